// This library as a contender: the task's function in terms of its C API.
#include <touchstone/touchstone_c.h>

#include <cstdint>

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices) {
  static ts_context* context = nullptr;  // makes threads once; calls come from one thread
  if (k < 1 || k > vocab) return 1;
  if (context == nullptr && ts_context_create(nullptr, &context) != TS_OK) return 1;
  const int64_t whole[] = {rows, vocab};
  const int64_t kept[] = {rows, k};
  ts_softmax_topk_args args = TS_SOFTMAX_TOPK_ARGS;
  args.logits = ts_make_tensor(logits, TS_F32, TS_CPU, 2, whole);
  args.probabilities = ts_make_tensor(probabilities, TS_F32, TS_CPU, 2, kept);
  args.indices = ts_make_tensor(indices, TS_I32, TS_CPU, 2, kept);
  return ts_softmax_topk(context, &args) == TS_OK ? 0 : 1;
}
