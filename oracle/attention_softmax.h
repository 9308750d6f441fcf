// The softmax of the scores of one query, with or without a sink, in float64: shared by dense attention,
// attention over a cache and the judge.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

namespace touchstone::oracle {

template <class S>
struct AttentionSoftmax {
  std::vector<S> weights;
  S largest;      // -inf where every key is masked: all weights are 0 then
  S log_sum_exp;  // -inf then
};

// `sink` is one more score without a value, or absent.
template <class S>
AttentionSoftmax<S> attention_softmax(const std::vector<S>& scores, const S* sink) {
  using std::exp;
  using std::log;
  const S nothing = -std::numeric_limits<double>::infinity();
  AttentionSoftmax<S> result{
      .weights = {}, .largest = sink ? *sink : nothing, .log_sum_exp = nothing};
  for (const S& score : scores) {
    if (!(score <= result.largest)) result.largest = score;  // a NaN stays
  }
  if (result.largest == nothing) {
    result.weights.assign(scores.size(), S(0.0));
    return result;
  }
  S sum = sink ? exp(*sink - result.largest) : S(0.0);
  for (const S& score : scores) {
    result.weights.push_back(exp(score - result.largest));
    sum += result.weights.back();
  }
  for (S& weight : result.weights) weight /= sum;
  result.log_sum_exp = result.largest + log(sum);
  return result;
}

}  // namespace touchstone::oracle
