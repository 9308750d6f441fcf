#include "decode/speculative/likeliest_tokens.h"

#include <algorithm>

#include "core/copy.h"
#include "core/index.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::inline v0::decode {

std::vector<std::vector<TokenCandidate>> LikeliestTokens::run(Context& context,
                                                              const ConstTensorView& logits,
                                                              std::int64_t k) {
  const std::int64_t rows = logits.shape[0];
  const std::int64_t n = rows * k;
  const Device device = context.device();
  if (results_.elements() < 12 * n) results_ = Tensor::empty({12 * n}, DType::u8, device);
  auto* const base = static_cast<std::byte*>(results_.data());
  const std::int64_t shape[] = {rows, k};
  const auto view = [&](std::int64_t index, DType dtype) {
    return make_view(static_cast<void*>(base + 4 * n * index), shape, dtype, device);
  };
  softmax_topk(context, {.logits = logits,
                         .probabilities = view(0, DType::f32),
                         .indices = view(1, DType::i32),
                         .log_probabilities = view(2, DType::f32)});
  std::vector<std::int32_t> tokens(at(n));
  std::vector<float> log_probabilities(at(n));
  const StreamLocation here{device, context.stream()};
  queue_copy({}, tokens.data(), here, base + 4 * n, 4 * n);
  queue_copy({}, log_probabilities.data(), here, base + 8 * n, 4 * n);
  wait_for(here);
  std::vector<std::vector<TokenCandidate>> found(at(rows));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) continue;
    found[i / at(k)].push_back({tokens[i], std::min(log_probabilities[i], 0.0F)});
  }
  return found;
}

}  // namespace touchstone::inline v0::decode
