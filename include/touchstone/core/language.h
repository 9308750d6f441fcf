// Included first by the base headers, so that a compiler in an older mode reports the missing
// standard before it fails on syntax that it does not support.
#pragma once

#if __cplusplus < 201709L
#error "touchstone needs C++20: compile with -std=c++20 or later"
#endif
