// Counts the calls that reached each implementation: a suite that never reached one must not look
// as if it had passed it. At the end of a whole run the counts are printed, and none may be 0.
#pragma once

#include <string>

namespace touchstone::test {

// `what` names the operator. An empty `implementation` is the library's own choice, not counted.
void log_offered(const std::string& what, const std::string& implementation);
void log_ran(const std::string& what, const std::string& implementation);

}  // namespace touchstone::test
