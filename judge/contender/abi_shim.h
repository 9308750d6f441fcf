// The ABI shim between the contract and the child: generated, compiled once per contender.
#pragma once

#include <string>
#include <vector>

#include "judge/contender/contender.h"
#include "judge/contender/signatures.h"

namespace touchstone::judge {

// C++ (or CUDA) text that exports what child/serve.cc looks for. Where a signature is given for a
// function, it is called with the types written there: `int rows` takes the contract's int64_t, a
// function that returns nothing counts as success.
std::string make_abi_shim(const std::vector<Function>& functions,
                          const std::vector<std::optional<Signature>>& signatures, bool cuda);

// "int layer_norm_forward(int64_t rows, ...)": as a prompt or a template shows it.
std::string c_declaration(const Function& function, bool cuda);
// `makes_state`: the function returns its state instead of taking it.
std::string python_declaration(const Function& function, bool makes_state);

}  // namespace touchstone::judge
