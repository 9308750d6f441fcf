#include "c_api/border.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "touchstone/version.h"

namespace touchstone::c_api {
namespace {

// A buffer of fixed size: recording a failure must not fail, and out of memory is one.
struct LastError {
  char text[1024] = "";
};
thread_local LastError last_error;

ts_status record(ts_status status, const char* what) noexcept {
  const std::size_t length = std::min(std::strlen(what), sizeof(last_error.text) - 1);
  std::memcpy(last_error.text, what, length);
  last_error.text[length] = '\0';
  return status;
}

constexpr const char* kStatusNames[] = {
    "ok",           "invalid argument", "unsupported",  "out of memory",
    "corrupt data", "file error",       "device error", "internal error"};

}  // namespace

ts_status current_failure() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return record(TS_INVALID_ARGUMENT, error.what());
  } catch (const Unsupported& error) {
    return record(TS_UNSUPPORTED, error.what());
  } catch (const OutOfMemory& error) {
    return record(TS_OUT_OF_MEMORY, error.what());
  } catch (const CorruptData& error) {
    return record(TS_CORRUPT_DATA, error.what());
  } catch (const FileError& error) {
    return record(TS_FILE_ERROR, error.what());
  } catch (const DeviceError& error) {
    return record(TS_DEVICE_ERROR, error.what());
  } catch (const std::bad_alloc&) {
    return record(TS_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return record(TS_INTERNAL_ERROR, error.what());
  } catch (...) {
    return record(TS_INTERNAL_ERROR, "unknown exception");
  }
}

void check_struct_size(const char* op, std::size_t struct_size, std::size_t least,
                       std::size_t most) {
  if (struct_size < least) {
    throw InvalidArgument(
        fmt::format("{}: struct_size {} < {}: expected a struct initialized by its TS_... macro",
                    op, struct_size, least));
  }
  if (struct_size > most) {
    throw InvalidArgument(fmt::format(
        "{}: struct_size {} > {}: the caller was compiled for a newer version of the library", op,
        struct_size, most));
  }
  // Pointers lie at multiples of their size, so that no such struct_size ends inside one.
  if (struct_size % alignof(void*) != 0) {
    throw InvalidArgument(
        fmt::format("{}: struct_size {} is not a multiple of {}", op, struct_size, alignof(void*)));
  }
}

DType dtype(ts_dtype value, const char* name) {
  switch (value) {
    case TS_F64:
      return DType::f64;
    case TS_F32:
      return DType::f32;
    case TS_BF16:
      return DType::bf16;
    case TS_F16:
      return DType::f16;
    case TS_I64:
      return DType::i64;
    case TS_I32:
      return DType::i32;
    case TS_I8:
      return DType::i8;
    case TS_U8:
      return DType::u8;
    case TS_F8_E4M3:
      return DType::f8_e4m3;
    case TS_I4:
      return DType::i4;
    default:
      throw InvalidArgument(fmt::format("{}: dtype {} is not a ts_dtype", name, value));
  }
}

Device device(ts_device value, const char* name) {
  if (value.kind == TS_DEVICE_CPU) return Device::cpu();
  if (value.kind == TS_DEVICE_CUDA) return Device::cuda(value.index);
  throw InvalidArgument(
      fmt::format("{}: device kind {} is not a ts_device_kind", name, value.kind));
}

TensorView view(const ts_tensor& tensor, const char* name) {
  TensorView view;
  view.data = tensor.data;
  view.dtype = dtype(tensor.dtype, name);
  view.device = device(tensor.device, name);
  if (tensor.rank < 0 || tensor.rank > kMaxRank) {
    throw InvalidArgument(fmt::format("{}: rank {} is not 0 to {}", name, tensor.rank, kMaxRank));
  }
  view.rank = tensor.rank;
  std::copy_n(tensor.shape, kMaxRank, view.shape.begin());
  std::copy_n(tensor.stride, kMaxRank, view.stride.begin());
  return view;
}

QuantFormat quant_format(const ts_quant_format& given, const char* name) {
  return {.dtype = dtype(given.dtype, name),
          .group_size = given.group_size,
          .asymmetric = flag(given.asymmetric),
          .scale_dtype = dtype(given.scale_dtype, name)};
}

bool flag(std::int32_t value) { return value != 0; }

std::string text(const char* value) { return value == nullptr ? "" : value; }

void send_reports(const std::vector<ImplementationReport>& reports, ts_report report, void* user) {
  if (report == nullptr) throw InvalidArgument("report: is NULL");
  for (const ImplementationReport& entry : reports) {
    report(user, entry.name.c_str(), entry.accepted ? 1 : 0, entry.refusal.c_str());
  }
}

}  // namespace touchstone::c_api

const char* ts_last_error(void) { return touchstone::c_api::last_error.text; }

const char* ts_status_name(ts_status status) {
  constexpr auto kCount = static_cast<ts_status>(std::size(touchstone::c_api::kStatusNames));
  if (status < 0 || status >= kCount) return "unknown status";
  return touchstone::c_api::kStatusNames[status];
}

const char* ts_version(void) { return touchstone::version(); }

ts_tensor ts_make_tensor(const void* data, ts_dtype dtype, ts_device device, int32_t rank,
                         const int64_t* shape) {
  ts_tensor tensor = {};
  tensor.data = const_cast<void*>(data);
  tensor.dtype = dtype;
  tensor.rank = rank;
  tensor.device = device;
  if (rank < 0 || rank > TS_MAX_RANK || shape == nullptr) return tensor;
  std::uint64_t stride = 1;  // wraps for shapes that operators refuse
  for (int32_t i = rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.stride[i] = static_cast<int64_t>(stride);
    stride *= static_cast<std::uint64_t>(shape[i]);
  }
  return tensor;
}
