// What an adapter allocates is not the contender's memory: its object file calls a heap that counts. A
// block that is handed on and freed by the contender stays counted, so the judge takes off no more
// than the arrays of a call.
#pragma once

#include <span>
#include <utility>

namespace touchstone::judge {

const char* adapter_heap();  // its source, in C
// Symbols of allocation, and what stands for them behind "touchstone_adapter_".
std::span<const std::pair<const char*, const char*>> adapter_calls();

}  // namespace touchstone::judge
