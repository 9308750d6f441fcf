// What dense attention and its backward have to compute: the oracle's values with the bounds an
// implementation must keep.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "spec/bounds.h"

namespace touchstone::spec {

enum class BiasKind : std::uint8_t { none, full, per_head, per_batch, shared };

struct AttentionProblem {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t queries = 16;
  std::int64_t keys = 16;
  std::int64_t k_dim = 16;
  std::int64_t v_dim = 0;  // 0 = k_dim
  // Packed: the (queries, keys) of every sequence; batch, queries and keys are not looked at.
  std::vector<std::pair<std::int64_t, std::int64_t>> packed{};
  DType dtype = DType::f32;
  bool causal = false;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  double scale = 0;
  double soft_cap = 0;
  BiasKind bias = BiasKind::none;
  bool alibi = false;
  bool sink_logits = false;
  bool log_sum_exp_grad = false;
  bool on_gpu = false;  // 16-bit numbers: P and dS are rounded once more before they are multiplied

  bool is_packed() const { return !packed.empty(); }
  std::int64_t sequences() const { return is_packed() ? std::ssize(packed) : batch; }
  std::int64_t v_size() const { return v_dim == 0 ? k_dim : v_dim; }
  std::int64_t all_queries() const;  // of a batch item; packed: of all
  std::int64_t all_keys() const;
  std::vector<std::int64_t> bias_shape() const;
};

// Inputs in the order [B, H, S, D] or [H, N, D]; absent ones are empty. The backward takes output
// and log_sum_exp as they are given: they are inputs of it.
struct AttentionValues {
  std::vector<double> q, k, v, doutput, dlog_sum_exp, bias, slopes, sinks;
  std::vector<double> output, log_sum_exp;
};

// Which rows are computed. Those left out have the value 0 and the bound 0.
struct AttentionRows {
  std::vector<bool> queries{};  // [Sq]; empty: all
  std::vector<bool> keys{};     // [Sk]; empty: all
};

struct AttentionForwardReference {
  Expected output, log_sum_exp;
};
struct AttentionBackwardReference {
  Expected dq, dk, dv, dbias, dsinks;
};
AttentionForwardReference attention_forward_reference(const AttentionProblem& problem,
                                                      const AttentionValues& values,
                                                      const AttentionRows& rows = {});
AttentionBackwardReference attention_backward_reference(const AttentionProblem& problem,
                                                        const AttentionValues& values,
                                                        const AttentionRows& rows = {});

}  // namespace touchstone::spec
