// Why a call ended without a result: from exit status, limits and logs to one ending and one
// sentence.
#pragma once

#include <string>

#include "judge/run/completion_wait.h"
#include "judge/run/runner.h"
#include "judge/sandbox/child/protocol.h"

namespace touchstone::judge {

struct ExitEvidence {
  Waited waited = Waited::ended;
  int status = 0;  // wait status, where the child ended by itself
  std::string refused_call;
  std::string log;  // standard output and error
  bool sanitized = false;
  const Function* function = nullptr;  // null while starting
  protocol::Control* control = nullptr;
};

// Fills ending and detail of `reply`.
void explain_exit(const ExitEvidence& death, const Limits& limits, Reply& reply);

// "y", from the index of a buffer among the buffers of a call.
std::string buffer_name(const Function& function, uint32_t buffer);

// The sentence for a write beside a tensor: `offset` bytes from its first element.
std::string describe_write_outside(const std::string& name, int64_t offset, int64_t bytes);

}  // namespace touchstone::judge
