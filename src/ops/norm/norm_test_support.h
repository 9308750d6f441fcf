// What the norm tests share: a problem, its data, the call on guarded buffers, and what the oracle
// expects with a derived bound. One set of test bodies serves both norms, both devices and every
// implementation: RMS norm is layer norm without mean and bias.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/norm/norm.h"
#include "spec/norm.h"
#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/rms_norm.h"

namespace touchstone::test {

using norm::Kind;

inline constexpr Kind kBothKinds[] = {Kind::layer, Kind::rms};

// The dtypes of one call: of x, of weight and bias, of dweight and dbias.
struct DTypes {
  DType x = DType::f32;
  DType weight = DType::f32;
  DType weight_grad = DType::f32;
};

// Every combination the contract allows on the device under test.
std::vector<DTypes> all_dtypes();

struct Problem {
  Kind kind = Kind::layer;
  DTypes dtypes = {};
  std::vector<std::int64_t> lead = {7};  // leading shape
  std::int64_t cols = 64;
  bool weight = true;
  bool bias = true;           // ignored by RMS norm
  bool fused = false;         // residual and sum forward, dsum backward
  bool statistics = true;     // forward: ask for mean and rstd
  bool weight_grads = true;   // backward: ask for dweight and dbias
  bool weight_zeros = false;  // every third weight is 0
  double eps = 1e-5;
  double weight_offset = 0;    // RMS norm only
  bool before_weight = false;  // RMS norm only
  Distribution x = {};
  Distribution dy = {};
  Layout layout = {};  // of every [.., D] tensor
  std::uint64_t seed = 1;

  std::int64_t rows() const;
  std::vector<std::int64_t> shape() const;
  std::string describe() const;
};

// The inputs, as numbers that the dtypes hold exactly. h is what gets normalized: x, or the rounded
// x + residual. Absent arguments are empty.
struct Data {
  std::vector<double> x, residual, h, weight, bias, dy, dsum;
};
Data make_data(const Problem& problem);

// One argument list for both norms.
struct ForwardArgs : LayerNormArgs {
  double weight_offset = 0;
  RmsNormRounding rounding = RmsNormRounding::once;
};
struct BackwardArgs : LayerNormBackwardArgs {
  double weight_offset = 0;
};
void call(Context& context, Kind kind, const ForwardArgs& args);
void call(Context& context, Kind kind, const BackwardArgs& args);
std::vector<ImplementationReport> reports(Context& context, Kind kind, const ForwardArgs& args);
std::vector<ImplementationReport> reports(Context& context, Kind kind, const BackwardArgs& args);

// Guarded buffers for one problem. run() poisons the outputs, calls the operator, waits, and
// expects that nothing but the outputs was written.
struct ForwardRun {
  ForwardRun(const Problem& problem, const Data& data);
  std::vector<std::string> accepting() const;  // implementations that take the problem
  void run(Runner& context);

  Kind kind;
  Guarded x, residual, weight, bias, y, sum, mean, rstd;
  ForwardArgs args;
};

struct BackwardRun {
  // With the oracle's statistics, rounded once.
  BackwardRun(const Problem& problem, const Data& data);
  // From now on with those of a forward.
  void take_statistics(const ForwardRun& forward);
  std::vector<std::string> accepting() const;
  // The arguments of a call on the backward that goes with the runner's forward implementation.
  BackwardArgs args_on(const Runner& runner) const;
  void run(Runner& context);

  Kind kind;
  Guarded dy, x, mean, rstd, weight, dsum, dx, dweight, dbias;
  BackwardArgs args;
};

// The references of spec/ for a problem.
using Statistics = spec::NormStatistics;
using ExpectedForward = spec::NormForwardReference;
using ExpectedBackward = spec::NormBackwardReference;
Statistics oracle_statistics(const Problem& problem, const Data& data);
ExpectedForward expected_forward(const Problem& problem, const Data& data);
ExpectedBackward expected_backward(const Problem& problem, const Data& data);

// Runs the problem on every implementation and SIMD target and holds it against the oracle.
void check_forward(const Problem& problem, Targets targets = Targets::all);
void check_backward(const Problem& problem, Targets targets = Targets::all);

// The forward implementations that take the problem and whose backward does.
std::vector<std::string> both(const ForwardRun& forward, const BackwardRun& backward);

// Forward, and then backward on its statistics, with every implementation and SIMD target that
// takes both.
void for_each_round_trip(const Problem& problem, const Data& data,
                         const std::function<void(Runner&, ForwardRun&, BackwardRun&)>& body);

}  // namespace touchstone::test
