// Included first by the headers that everything else includes, so that a compiler in an older mode
// says what it lacks before it fails on what it does not know.
#pragma once

#if __cplusplus < 201709L
#error "touchstone needs C++20: compile with -std=c++20 or later"
#endif
