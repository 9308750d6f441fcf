// This library as a contender on a GPU: the task's function in terms of touchstone::softmax_topk.
#include <touchstone/touchstone.h>

#include <cstdint>
#include <exception>
#include <optional>

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices, void* stream) try {
  using touchstone::Device;
  using touchstone::make_view;
  // Made once, for its scratch memory; another stream needs another one.
  static std::optional<touchstone::Context> context;
  if (k < 1 || k > vocab) return 1;
  if (!context.has_value() || context->stream() != stream) {
    context.emplace(touchstone::ContextOptions{.device = Device::cuda(0), .stream = stream});
  }
  touchstone::softmax_topk(*context,
                           {.logits = make_view(logits, {rows, vocab}, Device::cuda(0)),
                            .probabilities = make_view(probabilities, {rows, k}, Device::cuda(0)),
                            .indices = make_view(indices, {rows, k}, Device::cuda(0))});
  return 0;
} catch (const std::exception&) {
  return 1;
}
