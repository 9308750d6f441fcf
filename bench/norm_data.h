// One norm problem to be measured, and the memory it is measured on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops/norm/norm.h"
#include "touchstone/core/context.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {

enum class Direction : std::uint8_t { forward, backward };

struct NormProblem {
  norm::Kind kind = norm::Kind::layer;
  Direction direction = Direction::forward;
  DType dtype = DType::f32;
  Device device;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::string implementation{};  // "" = chosen by the operator

  // "layer_norm_forward"
  std::string op() const;
  // "8192x4096"
  std::string shape() const;
  // Bytes of one [rows, cols] tensor.
  std::int64_t tensor_bytes() const;
  // The least that has to move: forward x in, y out; backward x and dy in, dx out. Statistics and
  // parameters are left out, so the floor stays on the strict side.
  std::int64_t minimal_bytes() const;
};

inline constexpr double kEpsilon = 1e-5;

// The operands of one call. `out` is y or dx. Statistics belong to x.
struct NormSet {
  Tensor x;
  Tensor dy;
  Tensor out;
  Tensor mean;
  Tensor rstd;
  Tensor dgamma;
  Tensor dbeta;
};

// Sets of operands that calls rotate through, so that no call finds its data in a cache because
// the one before left it there.
struct NormData {
  Tensor gamma;
  Tensor beta;
  std::vector<NormSet> sets;
};

// Random data, never zeros; the pages of CPU tensors are first touched by the threads of the
// context. With `backward` there is a dy as well.
NormData make_norm_data(Context& context, const NormProblem& problem, int sets, bool backward);

// Memory that make_norm_data will take.
std::int64_t norm_data_bytes(const NormProblem& problem, int sets, bool backward);

// One implementation, as a call on one set of operands. CUDA: queued on the context's stream.
using NormCall = std::function<void(NormSet& set)>;

// Touchstone itself. `data` and `context` must outlive the call object.
NormCall touchstone_call(Context& context, const NormProblem& problem, const NormData& data);
// What every implementation says to the call, and the name of the one that touchstone_call runs.
std::vector<ImplementationReport> touchstone_implementations(Context& context,
                                                             const NormProblem& problem,
                                                             NormData& data);
std::string touchstone_implementation(Context& context, const NormProblem& problem, NormData& data);

// The relative error of what `call` writes, against float64 on a sample of rows and columns: the
// norm of the difference over the norm of the reference, the worst of y, or of dx, dgamma, dbeta.
// NaN where the output holds one. Outputs are poisoned first.
double norm_error(Context& context, const NormProblem& problem, NormData& data,
                  const NormCall& call);

}  // namespace touchstone::bench
