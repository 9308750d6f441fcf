// Dense attention backward on Hopper's tensor cores: when, what of every row first, and the three
// kernels.
#include <string>

#include "core/context_access.h"
#include "ops/attention_dense/cuda/dense_wgmma_backward.cuh"

namespace touchstone::dense_attention {
namespace {

struct PadWork {
  GradientWork work;
  const float* delta = nullptr;
};

__global__ void __launch_bounds__(kRowPad) pad_kernel(const __grid_constant__ PadWork pad) {
  const BackwardProblem& p = pad.work.p;
  const auto tiles = static_cast<unsigned>(pad.work.padded_queries / kRowPad);
  const auto heads = static_cast<unsigned>(p.query_heads);
  const unsigned lane = blockIdx.x / tiles;
  const std::int64_t piece = blockIdx.x % tiles;
  const auto head = static_cast<int>(lane % heads);
  std::int64_t sequence = lane / heads;
  std::int64_t row = piece * kRowPad + threadIdx.x;
  if (p.query_offsets != nullptr) {
    sequence = sequence_of_piece(p.query_offsets, p.batch, piece, kRowPad);
    row -= first_piece(p.query_offsets, sequence, kRowPad) * kRowPad;
  }
  const SequenceSpan span = span_of(p, sequence);
  float log = __uint_as_float(0x7f800000U);
  float delta = 0;
  if (row < span.queries) {
    const std::int64_t from = row_index(p, span, sequence, head, row);
    const float value = *token_of<float>(p.log_sum_exp, sequence, head, span.first_query + row);
    if (value != minus_infinity()) {
      log = value * kLog2E;
      delta = pad.delta[from];
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < kTileCounters) pad.work.tiles_taken[threadIdx.x] = 0;
  const std::int64_t to = lane * pad.work.padded_queries + piece * kRowPad + threadIdx.x;
  pad.work.rows_log[to] = log;
  pad.work.rows_delta[to] = delta;
}

}  // namespace

std::string attention_backward_wgmma_refuses(const Context& context, const BackwardProblem& p) {
  if (std::string refusal = cuda::sm_90a_refusal(context); !refusal.empty()) return refusal;
  if (std::string refusal = refuses_heads(p); !refusal.empty()) return refusal;
  if (p.dropout.threshold > 0) return "dropout of weights";
  if (p.scale < 0) return "scale " + std::to_string(p.scale) + " < 0";
  if (std::string refusal = refuses_count(p); !refusal.empty()) return refusal;
  const struct {
    const char* name;
    cuda::HeadsShape shape;
  } tensors[] = {
      {"q", heads_shape(p, p.q, p.query_heads, p.queries, p.k_dim)},
      {"k", heads_shape(p, p.k, p.kv_heads, p.keys, p.k_dim)},
      {"v", heads_shape(p, p.v, p.kv_heads, p.keys, p.v_dim)},
      {"doutput", heads_shape(p, p.doutput, p.query_heads, p.queries, p.v_dim)},
      {"dq", heads_shape(p, p.dq, p.query_heads, p.queries, p.k_dim)},
      {"dk", heads_shape(p, p.dk, p.kv_heads, p.keys, p.k_dim)},
      {"dv", heads_shape(p, p.dv, p.kv_heads, p.keys, p.v_dim)},
  };
  for (const auto& tensor : tensors) {
    if (!cuda::can_map(tensor.shape)) {
      return std::string(tensor.name) + ": data or strides are no multiples of 16 bytes";
    }
  }
  return "";
}

void attention_backward_wgmma(Context& context, const BackwardProblem& p) {
  const bool packed = p.query_offsets != nullptr;
  const std::int64_t lanes = (packed ? 1 : p.batch) * p.query_heads;
  GradientWork work;
  work.p = p;
  work.scale = static_cast<float>(p.scale * 1.4426950408889634);
  work.padded_queries = pieces(p.queries, p.batch, packed, kRowPad) * kRowPad;
  const std::int64_t padded = lanes * work.padded_queries;
  auto* const memory = static_cast<float*>(detail::ContextAccess::workspace(
      context,
      static_cast<std::int64_t>(sizeof(float)) * (2 * padded + row_count(p) + kTileCounters)));
  work.rows_log = memory;
  work.rows_delta = memory + padded;
  float* const delta = memory + 2 * padded;
  work.tiles_taken = reinterpret_cast<unsigned*>(delta + row_count(p));
  attention_delta(context, p, delta);
  attention_sink_gradient(context, p, delta);
  cuda::launch(context, "attention rows", pad_kernel,
               {.blocks = static_cast<unsigned>(padded / kRowPad), .threads = kRowPad},
               PadWork{work, delta});
  attention_wgmma_key_gradient(context, work);
  attention_wgmma_query_gradient(context, work);
  if (p.dbias != nullptr) attention_wgmma_bias_gradient(context, work);
}

}  // namespace touchstone::dense_attention
