// This library as a contender on a GPU: the task's function in terms of its C API.
#include <touchstone/touchstone_c.h>

#include <cstdint>

namespace {

constexpr ts_device kGpu = {TS_DEVICE_CUDA, 0};

// Made once, for its scratch memory; another stream needs another one. Null where that fails.
ts_context* context_of(void* stream) {
  static ts_context* context = nullptr;
  static void* made_for = nullptr;
  if (context != nullptr && made_for == stream) return context;
  ts_context_destroy(context);
  context = nullptr;
  ts_context_args args = TS_CONTEXT_ARGS;
  args.device = kGpu;
  args.stream = stream;
  ts_context_create(&args, &context);
  made_for = stream;
  return context;
}

}  // namespace

extern "C" int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* logits,
                            float* probabilities, int32_t* indices, void* stream) {
  if (k < 1 || k > vocab) return 1;
  const int64_t whole[] = {rows, vocab};
  const int64_t kept[] = {rows, k};
  ts_softmax_topk_args args = TS_SOFTMAX_TOPK_ARGS;
  args.logits = ts_make_tensor(logits, TS_F32, kGpu, 2, whole);
  args.probabilities = ts_make_tensor(probabilities, TS_F32, kGpu, 2, kept);
  args.indices = ts_make_tensor(indices, TS_I32, kGpu, 2, kept);
  return ts_softmax_topk(context_of(stream), &args) == TS_OK ? 0 : 1;
}
