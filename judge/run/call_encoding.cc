#include "judge/run/call_encoding.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <variant>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

protocol::ReturnKind return_kind(Returns returns) {
  switch (returns) {
    case Returns::status:
      return protocol::kStatus;
    case Returns::size:
      return protocol::kSize;
    case Returns::handle:
      return protocol::kHandle;
    case Returns::nothing:
      return protocol::kNothing;
  }
  return protocol::kNothing;
}

}  // namespace

int64_t tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && count > (int64_t{1} << 40) / extent)) {
      throw InvalidArgument("judge: a tensor of a case is too large");
    }
    count *= extent;
  }
  return count * size_of(dtype);
}

bool has_kind(const Function& function, ArgumentKind kind) {
  return std::ranges::any_of(function.arguments,
                             [kind](const Argument& a) { return a.kind == kind; });
}

std::vector<BufferRequest> buffer_requests(const Function& function, const Call& call,
                                           bool device) {
  std::vector<BufferRequest> needs;
  std::size_t input = 0;
  std::size_t output = 0;
  std::size_t scalars = 0;
  for (const Argument& argument : function.arguments) {
    if (argument.kind == ArgumentKind::i64 || argument.kind == ArgumentKind::f32) ++scalars;
    if (argument.kind == ArgumentKind::input && input < call.inputs.size()) {
      const InputTensor& t = call.inputs[input];
      const auto bytes = static_cast<int64_t>(t.data.size());
      if (bytes != tensor_bytes(t.dtype, t.shape) || t.dtype != argument.dtype) {
        throw InvalidArgument(fmt::format("judge: {}: input {} does not fit the contract",
                                          function.name, argument.name));
      }
      needs.push_back({protocol::kInput, t.dtype, t.shape, bytes, size_of(t.dtype)});
    }
    if (argument.kind == ArgumentKind::output && output < call.outputs.size()) {
      const OutputTensor& t = call.outputs[output];
      needs.push_back(
          {protocol::kOutput, t.dtype, t.shape, tensor_bytes(t.dtype, t.shape), size_of(t.dtype)});
    }
    if (argument.kind == ArgumentKind::input) ++input;
    if (argument.kind == ArgumentKind::output) ++output;
  }
  if (input != call.inputs.size() || output != call.outputs.size() ||
      scalars != call.scalars.size()) {
    throw InvalidArgument(fmt::format(
        "judge: {}: the contract has {} scalars, {} inputs and {} outputs, the case {}, {} and {}",
        function.name, scalars, input, output, call.scalars.size(), call.inputs.size(),
        call.outputs.size()));
  }
  if (device) {
    const std::size_t count = needs.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (needs[i].kind != protocol::kInput) continue;
      BufferRequest echo = needs[i];
      echo.kind = protocol::kOutput;
      echo.echo_of = static_cast<int>(i);
      needs.push_back(echo);
    }
  }
  if (needs.size() > protocol::kMaxBuffers || scalars > protocol::kMaxScalars ||
      function.arguments.size() - scalars > protocol::kMaxPointers) {
    throw InvalidArgument(fmt::format("judge: {}: too many arguments", function.name));
  }
  return needs;
}

void encode_call(const std::vector<Function>& functions, const Function& function, const Call& call,
                 protocol::Control& c) {
  c.function = static_cast<int32_t>(&function - functions.data());
  c.state = call.state;
  c.returns = return_kind(function.returns);
  c.scalar_count = static_cast<uint32_t>(call.scalars.size());
  for (std::size_t i = 0; i < call.scalars.size(); ++i) {
    const bool whole = std::holds_alternative<int64_t>(call.scalars[i]);
    c.scalars[i] = whole ? std::get<int64_t>(call.scalars[i])
                         : std::bit_cast<int64_t>(std::get<double>(call.scalars[i]));
    c.scalar_is_float[i] = whole ? 0 : 1;
  }
  uint32_t pointers = 0;
  uint32_t buffers = 0;
  for (const Argument& argument : function.arguments) {
    switch (argument.kind) {
      case ArgumentKind::input:
      case ArgumentKind::output:
        c.pointers[pointers++] = {protocol::kBufferPointer, buffers++};
        break;
      case ArgumentKind::state:
        c.pointers[pointers++] = {protocol::kStatePointer, 0};
        break;
      case ArgumentKind::handle:
        c.pointers[pointers++] = {protocol::kHandlePointer, 0};
        break;
      default:
        break;
    }
  }
  c.pointer_count = pointers;
}

}  // namespace touchstone::judge
