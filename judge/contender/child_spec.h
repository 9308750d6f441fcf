// What a contender's process is started with: its isolation, its program, its arguments.
#pragma once

#include <filesystem>
#include <vector>

#include "judge/contender/contender.h"
#include "judge/sandbox/sandbox.h"

namespace touchstone::judge {

// What the driver of a GPU has in /dev; nothing where there is no GPU. In a container the first one
// need not be number 0.
std::vector<std::filesystem::path> gpu_nodes();

// The heap that a contender's process has: that of the C library; one that shows mistakes, for
// native code; one that counts, for Python.
enum class ChildHeap { plain, guarded, counted };

// InvalidArgument when the library lacks a bound function; Unsupported where there is no Python
// with NumPy, or no GPU.
JailSpec child_spec(const Contender& contender, const BuildResult& build, const Task& task,
                    const Sandbox& sandbox, bool sanitized, ChildHeap heap = ChildHeap::plain);

}  // namespace touchstone::judge
