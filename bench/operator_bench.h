// The benchmark of an operator: any case of its specification, checked against the reference, then
// timed with its peers.
#pragma once

#include <cstdint>

#include "bench/session.h"
#include "spec/spec.h"

namespace touchstone::bench {

// InvalidArgument when no implementation of the operator has the name that the session is given, or
// when the machine has not the memory for the case.
void check_implementation(Context& context, const spec::Operator& op, const cases::Case& item,
                          const std::string& implementation);
void check_case_memory(const SessionOptions& options, const spec::Operator& op,
                       const cases::Case& item);

BenchRow measure(Session& session, const spec::Operator& op, const cases::Case& item);

}  // namespace touchstone::bench
