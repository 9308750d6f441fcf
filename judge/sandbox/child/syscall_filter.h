// The system calls that contender code may not make.
#pragma once

#include <string>

namespace touchstone::judge::child {

// What happens to an attempt to start another process.
enum class Forks { allow, refuse, report };

// Installs the filter in this thread for good, and returns a descriptor on which forbidden calls
// arrive; -1 where the kernel has no such descriptor (then a forbidden call ends the process with
// SIGSYS), -2 where it takes no filter at all. `pipes`: whether a process that has no others may
// make pipes to itself.
int install_filter(Forks forks, bool pipes);

std::string name_of_call(int number);

}  // namespace touchstone::judge::child
