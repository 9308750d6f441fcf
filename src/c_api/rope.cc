// Rotary position embedding.
#include "touchstone/ops/rope.h"

#include "c_api/border.h"

namespace touchstone::c_api {
namespace {

RopeArgs converted(const ts_rope_args* given, const char* op) {
  const ts_rope_args args =
      current(given, op, offsetof(ts_rope_args, implementation), TS_ROPE_ARGS);
  const std::string name = op;
  return {.x = view(args.x, (name + ": x").c_str()),
          .positions = view(args.positions, (name + ": positions").c_str()),
          .frequencies = view(args.frequencies, (name + ": frequencies").c_str()),
          .y = view(args.y, (name + ": y").c_str()),
          .pairs = args.adjacent != 0 ? RopePairs::adjacent : RopePairs::halves,
          .scale = args.scale,
          .implementation = text(args.implementation)};
}

RopeArgs forward(const ts_rope_args* given) { return converted(given, "rope"); }
RopeBackwardArgs backward(const ts_rope_args* given) {
  const RopeArgs args = converted(given, "rope_backward");
  return {.dy = args.x,
          .positions = args.positions,
          .frequencies = args.frequencies,
          .dx = args.y,
          .pairs = args.pairs,
          .scale = args.scale,
          .implementation = args.implementation};
}

}  // namespace
}  // namespace touchstone::c_api

TOUCHSTONE_C_OPERATOR(rope, ts_rope_args, forward);
TOUCHSTONE_C_OPERATOR(rope_backward, ts_rope_args, backward);
