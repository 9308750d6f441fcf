// A rope_append call after its checks, and its implementations.
#pragma once

#include <string>

#include "core/host_device.h"
#include "ops/kv_append/kv_append_problem.h"
#include "ops/rope/rope_problem.h"
#include "touchstone/core/context.h"

namespace touchstone::rope_append_op {

struct Problem {
  DType dtype = DType::f32;
  cache::KvAppendProblem append{};  // k and v, and where they go
  rope_op::Problem rope{};          // of q; of k with its own data and heads. No pairs: not rotated
  const float* weight[2] = {};      // of q and k, or null: no norms
  double eps = 0;
  bool round_before_weight = false;

  // Vectors of a token: heads of q, of k, of v.
  TOUCHSTONE_HOST_DEVICE std::int64_t vectors() const { return rope.heads + 2 * append.kv_heads; }
};

// CPU, plain loops, tokens spread over the threads: rope_append_plain.cc.
void rope_append_plain(Context& context, const Problem& p);
// CUDA: rope_append_cuda.cu, or src/no_cuda in a CPU-only build. One warp per head.
std::string rope_append_warps_refuses(const Context& context, const Problem& p);
void rope_append_warps(Context& context, const Problem& p);

}  // namespace touchstone::rope_append_op
