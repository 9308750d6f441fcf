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

TOUCHSTONE_C_OPERATOR(embedding, ts_embedding_args, converted);
TOUCHSTONE_C_OPERATOR(embedding_backward, ts_embedding_backward_args, converted);
