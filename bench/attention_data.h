// One decoding step over a KV cache to be measured, and the memory it is measured on.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cases/cases.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/cached_attention.h"

namespace touchstone::bench {

// `batch` sequences of `tokens` each; one query token of each, bf16, sees all of them.
struct AttentionProblem {
  std::string format;  // "bf16", "k8v4", ..
  std::string heads;   // "32/8x128": query heads, KV heads, dim; "mla 16x576"
  cache::LayerGroup layers{};
  std::int64_t query_heads = 0;
  std::int64_t batch = 0;
  std::int64_t tokens = 0;
  std::int64_t shared = 0;  // so many tokens at the beginning are the same pages in all sequences
  Device device{};
  cases::Regime regime = cases::Regime::memory;

  // What has to be read and written: the stored keys and values, scales included, once; query and
  // output.
  std::int64_t minimal_bytes() const;
};

// The shapes that matter, and those of a short look among them.
std::vector<AttentionProblem> attention_problems(Device device, cases::Tier tier);
// The same heads and formats, each once, with other numbers of sequences and tokens.
void set_shape(std::vector<AttentionProblem>& problems, std::int64_t batch, std::int64_t tokens,
               cases::Regime regime);

// Pages in shuffled order, filled with encoded noise, and the operands of a call.
class AttentionData {
 public:
  // A page for `page_tokens` tokens; 0 = one for each sequence. `queries` query tokens for each
  // sequence, spread evenly over its positions, or one, its last.
  AttentionData(const AttentionProblem& problem, std::int64_t page_tokens, std::int64_t queries,
                std::uint64_t seed);
  AttentionData(const AttentionData&) = delete;
  AttentionData& operator=(const AttentionData&) = delete;

  const CachedAttentionArgs& args() const { return args_; }
  void set_implementation(std::string name) { args_.implementation = std::move(name); }
  Tensor& output() { return output_; }

  const Tensor& query() const { return query_; }

  // The decoded keys and values, [tokens, dim], of one KV head of one sequence.
  struct Head {
    std::vector<double> keys, values;
  };
  Head head(std::int64_t row, std::int64_t kv_head) const;

 private:
  void make_pages(std::mt19937_64& random);
  void make_table(std::mt19937_64& random);
  void make_operands(std::int64_t queries, std::mt19937_64& random);

  AttentionProblem problem_;
  std::vector<std::int32_t> numbers_;  // of the pages, [batch, pages of a sequence]
  Tensor host_pages_, device_pages_, table_, lengths_;  // device_pages_: CUDA only
  Tensor query_, query_offsets_, positions_, output_;
  cache::GroupView group_{};
  CachedAttentionArgs args_{};
};

// How far the output of `call`, one query token per sequence, is from float64 on a sample of
// sequences and heads. Values are near 1 in size. The output is poisoned first.
double attention_error(Context& context, const AttentionProblem& problem, AttentionData& data,
                       const std::function<void()>& call);
// What counts as right before a time is taken: far above rounding, far below any mistake.
inline constexpr double kAttentionErrorBound = 1e-4;

}  // namespace touchstone::bench
