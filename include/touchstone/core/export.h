// TOUCHSTONE_API marks what libtouchstone exports; everything else in it is hidden. For C and C++.
#pragma once

#if defined(__GNUC__) || defined(__clang__)
#define TOUCHSTONE_API __attribute__((visibility("default")))
#else
#define TOUCHSTONE_API
#endif
