// The border between C and C++: exceptions become a status and a message, argument structs of any
// older version become the current one, plain tensors become views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/error.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/quant_format.h"
#include "touchstone/core/tensor.h"
#include "touchstone/touchstone_c.h"

// The macros TS_*_ARGS name only the fields whose default is not zero.
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

struct ts_context {
  touchstone::Context context;
};

namespace touchstone::c_api {

// Records the exception in flight as the last error of this thread.
ts_status current_failure() noexcept;

// Runs `body`; no exception crosses it into C.
template <class Body>
ts_status guarded(Body&& body) noexcept {
  try {
    body();
    return TS_OK;
  } catch (...) {
    return current_failure();
  }
}

// The object behind a handle or an output pointer of the caller. To be called before anything is
// done: in `checked(out) = f()` C++ evaluates f() first.
template <class T>
T& checked(T* pointer, const char* name) {
  if (pointer == nullptr) throw InvalidArgument(std::string(name) + ": is NULL");
  return *pointer;
}

// InvalidArgument unless least <= struct_size <= most.
void check_struct_size(const char* op, std::size_t struct_size, std::size_t least,
                       std::size_t most);

// `args` as the struct of this version of the library: fields that an older caller's struct lacks
// keep their defaults in `known`. `least` is the size of the struct's first version.
template <class Args>
Args current(const Args* args, const char* op, std::size_t least, Args known) {
  checked(args, op);
  check_struct_size(op, args->struct_size, least, sizeof(Args));
  std::memcpy(&known, args, args->struct_size);
  return known;
}

// Writes a result struct of the caller, whose struct_size must be that of this version.
template <class Result>
void fill(Result* result, const char* op, Result full) {
  checked(result, op);
  check_struct_size(op, result->struct_size, sizeof(Result), sizeof(Result));
  full.struct_size = sizeof(Result);
  *result = full;
}

DType dtype(ts_dtype value, const char* name);
Device device(ts_device value, const char* name);
// `name` is for messages: the argument.
TensorView view(const ts_tensor& tensor, const char* name);
QuantFormat quant_format(const ts_quant_format& given, const char* name);
bool flag(std::int32_t value);
std::string text(const char* value);  // NULL is ""
// InvalidArgument for a negative count, or a NULL with elements.
template <class T>
std::span<T> list(T* data, std::int64_t count, const char* name) {
  if (count < 0)
    throw InvalidArgument(std::string(name) + ": count " + std::to_string(count) + " < 0");
  if (count > 0) checked(data, name);
  return {data, static_cast<std::size_t>(count)};
}

// Calls `report` once per implementation.
void send_reports(const std::vector<ImplementationReport>& reports, ts_report report, void* user);
// Sends the reports that `explain`, which takes the C++ context, returns.
template <class Explain>
ts_status explained(ts_context* context, ts_report report, void* user,
                    const Explain& explain) noexcept {
  return guarded([&] { send_reports(explain(checked(context, "context").context), report, user); });
}

}  // namespace touchstone::c_api

// Defines ts_<op> and ts_<op>_explain: the C++ functions on the arguments that `convert` returns.
#define TOUCHSTONE_C_OPERATOR(op, args_type, convert)                                            \
  ts_status ts_##op(ts_context* context, const args_type* args) {                                \
    using namespace touchstone::c_api;                                                           \
    return guarded([&] { touchstone::op(checked(context, "context").context, convert(args)); }); \
  }                                                                                              \
  ts_status ts_##op##_explain(ts_context* context, const args_type* args, ts_report report,      \
                              void* user) {                                                      \
    using namespace touchstone::c_api;                                                           \
    return explained(context, report, user,                                                      \
                     [&](auto& c) { return touchstone::explain(c, convert(args)); });            \
  }                                                                                              \
  ts_status ts_##op##_explain(ts_context*, const args_type*, ts_report, void*)
