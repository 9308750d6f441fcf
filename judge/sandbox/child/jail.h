// Sets up the isolation layers of a program, runs it, and reports how it ended.
#pragma once

namespace touchstone::judge::child {

// `touchstone-child jail`: reads what to build from kSpecFd, one item a line, words separated by
// tabs:
//   isolated 0|1              whether to set up any
//   root     0|1              whether it gets a file system of its own
//   bind     from to ro|rw|dev
//   link     target at
//   tmpfs    at bytes
//   proc                      a /proc of the jail's own
//   limit    name value       processes, file_bytes, files, stack_bytes, cpu_seconds,
//                             address_bytes; memory_bytes is of all processes together,
//                             shared memory and temporary files included
//   cpus     0,1
//   forks    allow|refuse|report
//   pipes                     pipes of a process that may not start others
//   folder   path             where the program starts
//   env      NAME=value
//   arg      word             the program and its arguments, in order
int jail();

}  // namespace touchstone::judge::child
