// Token embedding.
#include "touchstone/ops/embedding.h"

#include "c_api/border.h"

namespace touchstone::c_api {
namespace {

EmbeddingArgs converted(const ts_embedding_args* given) {
  const ts_embedding_args args =
      current(given, "embedding", offsetof(ts_embedding_args, implementation), TS_EMBEDDING_ARGS);
  return {.tokens = view(args.tokens, "embedding: tokens"),
          .weight = view(args.weight, "embedding: weight"),
          .weight_format = text(args.weight_format),
          .y = view(args.y, "embedding: y"),
          .scale = args.scale,
          .implementation = text(args.implementation)};
}

EmbeddingBackwardArgs converted(const ts_embedding_backward_args* given) {
  const ts_embedding_backward_args args =
      current(given, "embedding_backward", offsetof(ts_embedding_backward_args, implementation),
              TS_EMBEDDING_BACKWARD_ARGS);
  return {.tokens = view(args.tokens, "embedding_backward: tokens"),
          .dy = view(args.dy, "embedding_backward: dy"),
          .dweight = view(args.dweight, "embedding_backward: dweight"),
          .scale = args.scale,
          .accumulate = args.accumulate != 0,
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

using touchstone::c_api::checked;
using touchstone::c_api::converted;
using touchstone::c_api::explained;
using touchstone::c_api::guarded;

ts_status ts_embedding(ts_context* context, const ts_embedding_args* args) {
  return guarded(
      [&] { touchstone::embedding(checked(context, "context").context, converted(args)); });
}

ts_status ts_embedding_backward(ts_context* context, const ts_embedding_backward_args* args) {
  return guarded([&] {
    touchstone::embedding_backward(checked(context, "context").context, converted(args));
  });
}

ts_status ts_embedding_explain(ts_context* context, const ts_embedding_args* args, ts_report report,
                               void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, converted(args)); });
}

ts_status ts_embedding_backward_explain(ts_context* context, const ts_embedding_backward_args* args,
                                        ts_report report, void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, converted(args)); });
}
