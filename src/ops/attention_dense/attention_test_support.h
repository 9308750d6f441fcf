// What the tests of dense attention share: a problem, its data, the calls on guarded buffers, and
// what the oracle expects with a derived bound. One set of test bodies serves both devices and
// every implementation.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "spec/attention/attention.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/ops/attention.h"

namespace touchstone::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// f64 is for the CPU only.
inline std::vector<DType> dtypes() {
  if (on_gpu()) return {DType::f32, DType::bf16, DType::f16};
  return {DType::f32, DType::f64, DType::bf16, DType::f16};
}

using Values = std::vector<double>;

// How heads lie in memory.
enum class HeadOrder : std::uint8_t { heads_first, tokens_first };  // [B, H, S, D], [B, S, H, D]

using spec::BiasKind;

// How the tensors of a problem lie in memory, what they are filled with, and the key tile.
struct DenseSetup {
  HeadOrder order = HeadOrder::heads_first;
  Layout layout{};
  Distribution q{};
  Distribution k{};
  Distribution v{};
  std::int64_t tile = 0;
  std::uint64_t seed = 1;
};

struct DenseProblem : spec::AttentionProblem, DenseSetup {
  // NOLINTNEXTLINE(google-explicit-constructor): written {{.heads = 2}, {.seed = 3}}.
  DenseProblem(spec::AttentionProblem problem, DenseSetup setup = {})
      : AttentionProblem(std::move(problem)), DenseSetup(setup) {}
  spec::AttentionProblem reference_problem() const;
  std::string describe() const;
};

// Inputs in the order [B, H, S, D] or [H, N, D], as numbers the dtype holds exactly; absent ones
// are empty. What was made can be changed before it is run.
struct DenseData {
  Values q, k, v, doutput, dlog_sum_exp, bias, slopes, sinks;
};
DenseData make_data(const DenseProblem& problem);

// A tensor [B, S, H, D] or [N, H, D], in memory in the order of the problem.
class Heads {
 public:
  Heads() = default;
  Heads(const DenseProblem& p, std::int64_t heads, std::int64_t tokens, std::int64_t dim);
  Heads(const DenseProblem& p, std::int64_t heads, std::int64_t tokens, std::int64_t dim,
        const Values& values);
  // log_sum_exp or its gradient, [B, S, H] or [N, H], poisoned.
  static Heads statistics(const DenseProblem& p);

  TensorView view() const;
  // Both in the order [B, H, S, D].
  void set(const Values& values) { memory.set(reordered(values, true)); }
  Values values() const { return reordered(memory.values(), false); }
  Guarded memory;

 private:
  std::int64_t lead_ = 1;
  std::int64_t heads_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t dim_ = 0;
  bool packed_ = false;
  bool tokens_first_ = false;

  Values reordered(const Values& values, bool to_memory) const;
};

struct DenseForwardRun {
  DenseForwardRun(const DenseProblem& problem, const DenseData& data);
  std::vector<std::string> accepting() const;
  // Poisons the outputs, calls the operator, waits, and expects that nothing else was written.
  void run(Runner& context);
  std::vector<std::byte> bytes() const;

  Heads q, k, v, output, log_sum_exp;
  Guarded query_offsets, key_offsets, bias, slopes, sinks;
  AttentionArgs args;
  std::int64_t tile = 0;
};

struct DenseBackwardRun {
  // With the oracle's output and log-sum-exp, rounded once.
  DenseBackwardRun(const DenseProblem& problem, const DenseData& data);
  std::vector<std::string> accepting() const;
  void run(Runner& context);
  std::vector<std::byte> bytes() const;

  Heads q, k, v, output, doutput, dq, dk, dv, log_sum_exp, dlog_sum_exp;
  Guarded query_offsets, key_offsets, bias, slopes, sinks, dbias, dsinks;
  AttentionBackwardArgs args;
  std::int64_t tile = 0;
};

struct ExpectedDense {
  Expected output, log_sum_exp;
  Expected dq, dk, dv, dbias, dsinks;
};
// The references of spec/; the backward's is for the output and log-sum-exp that DenseBackwardRun
// is given.
ExpectedDense expected_dense(const DenseProblem& problem, const DenseData& data);

testing::AssertionResult is_right(const DenseForwardRun& run, const ExpectedDense& expected);
testing::AssertionResult is_right(const DenseBackwardRun& run, const ExpectedDense& expected);

// Both directions on every implementation and SIMD target, held against the oracle.
void check_dense(const DenseProblem& problem);
void check_dense(const DenseProblem& problem, const DenseData& data);

}  // namespace touchstone::test
