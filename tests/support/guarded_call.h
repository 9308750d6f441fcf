// Calls of an operator on guarded buffers.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/support/guarded.h"
#include "tests/support/run_log.h"
#include "tests/support/runners.h"
#include "touchstone/core/implementation_report.h"

namespace touchstone::test {

// The implementations that accept a call; all of them are noted as offered under `what`.
inline std::vector<std::string> accepting_names(const std::string& what,
                                                const std::vector<ImplementationReport>& reports) {
  std::vector<std::string> names;
  for (const ImplementationReport& report : reports) {
    log_offered(what, report.name);
    if (report.accepted) names.push_back(report.name);
  }
  return names;
}

template <class Args>
std::vector<std::string> accepting_names(const std::string& what, const Args& args) {
  Runner context({.device = test_device(), .threads = 1});
  return accepting_names(what, explain(context, args));
}

// Poisons the outputs, calls, waits, and expects that nothing but the outputs was written. The run is
// noted under `what`.
template <class Call>
void run_guarded(Runner& context, const std::string& what,
                 const std::vector<const Guarded*>& inputs, const std::vector<Guarded*>& outputs,
                 const Call& call) {
  for (Guarded* output : outputs) output->poison();
  call();
  context.synchronize();
  log_ran(what, context.implementation());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(inputs[i]->unchanged()) << what << ": input " << i;
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(outputs[i]->outside_intact()) << what << ": output " << i;
  }
}

// On the runner's implementation if it accepts this call, else on the operator's choice: for rows that
// must have the same result in batches of any size.
template <class Run>
void run_like(Run& run, Runner& context) {
  const std::string wanted = context.implementation();
  const std::vector<std::string> names = run.accepting();
  if (std::ranges::find(names, wanted) == names.end()) context.set_implementation("");
  run.run(context);
  context.set_implementation(wanted);
}

// The bytes of several buffers, one after the other; nothing for those that are not there.
inline std::vector<std::byte> joined_bytes(std::initializer_list<const Guarded*> parts) {
  std::vector<std::byte> result;
  for (const Guarded* part : parts) {
    if (!part->defined()) continue;
    const std::vector<std::byte> bytes = part->bytes();
    result.insert(result.end(), bytes.begin(), bytes.end());
  }
  return result;
}

}  // namespace touchstone::test
