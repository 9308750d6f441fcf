// The encoding of a call in the control block, checked against the contract first.
#pragma once

#include <cstdint>
#include <vector>

#include "judge/run/arena.h"
#include "judge/sandbox/child/protocol.h"
#include "judge/task/task.h"

namespace touchstone::judge {

int64_t tensor_bytes(DType dtype, const std::vector<int64_t>& shape);  // InvalidArgument: too many
bool has_kind(const Function& function, ArgumentKind kind);

// The arrays of the call, in the order of the contract; on a device an echo of each input comes
// behind them. InvalidArgument when the call does not fit the contract.
std::vector<BufferRequest> buffer_requests(const Function& function, const Call& call, bool device);

// Function, scalars and pointers; the buffers are the arena's business.
void encode_call(const std::vector<Function>& functions, const Function& function, const Call& call,
                 protocol::Control& c);

}  // namespace touchstone::judge
