// What softmax_topk and sample have to compute, row by row: the oracle's values with the bounds of
// the contracts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oracle/sample.h"
#include "oracle/softmax_topk.h"
#include "spec/bounds.h"

namespace touchstone::spec {

// Expected outputs of softmax_topk, rows appended one after another.
struct TopkReference {
  Expected tokens, probability, log_probability, log_sum_exp, status;

  // `temperature` is that of the row, with the scale of the call. `status_now` is the status word
  // as it was written, if there is one: how a row was done is not specified, and is taken from it.
  void add(const oracle::SoftmaxTopkRow& row, double temperature, std::int32_t status_now = 0);
};

// The bit of a status word that says how a row was done, which is not specified.
extern const std::int32_t kHowRowWasDone;
// The rest of the status word of a row.
std::int32_t expected_status(const oracle::SoftmaxTopkRow& row);
std::int32_t expected_status(const oracle::SampleDistribution& d, std::int64_t top_count);

// How far the sums of an implementation in f32 may be off, as a fraction of the whole: a few times
// the 1e-6 of the contract, since a prefix and the whole are both off.
inline constexpr double kDrawTolerance = 4e-6;

// Whether `token` is what the uniform picks, or would be if sums were off by `tolerance` of the
// whole: a uniform that close to a border has two right answers, and so has a cut. `d` is the
// distribution of the row.
bool is_the_draw(const oracle::SampleRow& row, const oracle::SampleDistribution& d, double u,
                 std::int64_t token, double tolerance, std::string* why = nullptr);

// The bound of a log-probability: a probability is within (1e-6 + 2e-7 * distance) of itself; then
// its logarithm is rounded to f32.
double log_probability_bound(const oracle::SampleRow& row, const oracle::SampleDistribution& d,
                             std::int64_t token);

// Bits packed as the contract of softmax_topk says, one row of words; spare bits are set, since
// they are ignored.
std::vector<std::int32_t> packed_mask(const std::vector<bool>& allowed);

}  // namespace touchstone::spec
