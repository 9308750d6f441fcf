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

using touchstone::c_api::backward;
using touchstone::c_api::checked;
using touchstone::c_api::explained;
using touchstone::c_api::forward;
using touchstone::c_api::guarded;

ts_status ts_rope(ts_context* context, const ts_rope_args* args) {
  return guarded([&] { touchstone::rope(checked(context, "context").context, forward(args)); });
}

ts_status ts_rope_backward(ts_context* context, const ts_rope_args* args) {
  return guarded(
      [&] { touchstone::rope_backward(checked(context, "context").context, backward(args)); });
}

ts_status ts_rope_explain(ts_context* context, const ts_rope_args* args, ts_report report,
                          void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, forward(args)); });
}

ts_status ts_rope_backward_explain(ts_context* context, const ts_rope_args* args, ts_report report,
                                   void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, backward(args)); });
}
