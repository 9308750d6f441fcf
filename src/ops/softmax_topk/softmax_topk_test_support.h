// What the softmax_topk tests share: a problem, its data, the call on guarded buffers, and the
// comparison with the oracle. The same bodies serve both devices and every implementation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "oracle/softmax_topk.h"
#include "spec/selection.h"
#include "tests/support/compare.h"
#include "tests/support/guarded_call.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Absent, one for all rows, or one per row.
enum class PerToken : std::uint8_t { none, shared, rows };

// The logit of (row, token), before it is rounded to the dtype.
using Pattern = std::function<double(std::int64_t row, std::int64_t token)>;

// scale * N(0, 1), another draw for every seed.
Pattern normal_pattern(double scale = 3, std::uint64_t seed = 1);

struct TopkProblem {
  std::vector<std::int64_t> lead = {3};
  std::int64_t vocabulary = 1000;
  std::int64_t k = 8;
  DType dtype = DType::f32;
  Pattern pattern = normal_pattern();
  PerToken bias = PerToken::none;
  PerToken token_mask = PerToken::none;
  double allowed_share = 0.5;            // of the tokens, at random
  std::vector<double> temperature = {};  // repeated over the rows; empty: the argument is absent
  double temperature_scale = 1;
  bool renormalize = false;
  bool wide_indices = false;
  bool extras = true;  // log-probabilities, log-sum-exp and status
  Layout layout = {};  // of the logits
  std::uint64_t seed = 1;

  std::int64_t rows() const;
  std::vector<std::int64_t> shape(std::int64_t last) const;
  std::string describe() const;
};

// The inputs as numbers the dtypes hold exactly, per row even where the argument is shared.
struct TopkData {
  std::vector<double> logits;           // [rows, V]
  std::vector<double> bias;             // [rows, V] or empty
  std::vector<unsigned char> banned;    // [rows, V] or empty
  std::vector<double> temperature;      // [rows] of each row, `temperature_scale` included
  std::vector<double> own_temperature;  // [rows] or empty: the argument
};
TopkData make_data(const TopkProblem& problem);

// Guarded buffers for one problem. run() poisons the outputs, calls the operator, waits, and
// expects that nothing but the outputs was written.
struct TopkRun {
  TopkRun(const TopkProblem& problem, const TopkData& data);
  std::vector<std::string> accepting() const;
  void run(Runner& context);
  // All outputs as bytes, but for the status bit that says how a row was done.
  std::vector<std::byte> bits() const;

  Guarded logits, temperature, bias, token_mask;
  Guarded probabilities, indices, log_probabilities, log_sum_exp, status;
  SoftmaxTopkArgs args;
};

using spec::expected_status;

std::vector<oracle::SoftmaxTopkRow> expected_rows(const TopkProblem& problem, const TopkData& data);

void expect_matches(const TopkProblem& problem, const TopkData& data, const TopkRun& run,
                    const std::vector<oracle::SoftmaxTopkRow>& expected);

// Runs the problem on every implementation and SIMD target and holds it against the oracle.
void check(const TopkProblem& problem);

// The bits of the answer in a context of its own.
std::vector<std::byte> answer_bits(const TopkProblem& problem, const TopkData& data,
                                   const std::string& implementation, int threads);

}  // namespace touchstone::test
