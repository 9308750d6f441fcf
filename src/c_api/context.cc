#include "c_api/border.h"

using touchstone::c_api::checked;
using touchstone::c_api::guarded;

ts_status ts_context_create(const ts_context_args* args, ts_context** context) {
  return guarded([&] {
    const ts_context_args defaults = TS_CONTEXT_ARGS;
    const ts_context_args given = touchstone::c_api::current(
        args == nullptr ? &defaults : args, "context_create", sizeof(ts_context_args), defaults);
    checked(context, "context");
    *context = new ts_context{
        touchstone::Context({.device = touchstone::c_api::device(given.device, "device"),
                             .threads = given.threads,
                             .stream = given.stream,
                             .workspace_bytes = given.workspace_bytes})};
  });
}

void ts_context_destroy(ts_context* context) { delete context; }

ts_status ts_context_synchronize(ts_context* context) {
  return guarded([&] { checked(context, "context").context.synchronize(); });
}

ts_status ts_context_reserve_workspace(ts_context* context, int64_t bytes) {
  return guarded([&] { checked(context, "context").context.reserve_workspace(bytes); });
}
