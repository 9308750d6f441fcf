#include "touchstone/core/tensor.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/cuda_runtime.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace {

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

template <class View>
void fill_shape(View& view, std::span<const std::int64_t> shape, DType dtype, Device device) {
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    throw InvalidArgument("view: expected a rank of at most " + std::to_string(kMaxRank) +
                          ", got " + std::to_string(shape.size()));
  }
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(shape.size());
  std::int64_t elements = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] < 0) {
      throw InvalidArgument("view: expected extents of at least 0, got " + shape_string(shape));
    }
    view.shape[i] = shape[i];
    view.stride[i] = elements;
    // An extent of zero must not hide an overflow in the strides of the others.
    elements = checked_mul(elements, shape[i] == 0 ? 1 : shape[i], "view: elements");
  }
  checked_mul(elements, size_of(dtype), "view: bytes");
}

template <class View>
std::size_t checked_dim(const View& view, int dim, const char* what) {
  if (dim < 0 || dim >= view.rank) {
    throw InvalidArgument(std::string(what) + ": expected 0 to " + std::to_string(view.rank - 1) +
                          ", got " + std::to_string(dim));
  }
  return static_cast<std::size_t>(dim);
}

template <class View>
View restride(View view, int dim, std::int64_t stride) {
  view.stride[checked_dim(view, dim, "with_stride: dim")] = stride;
  return view;
}

template <class View>
View swap_dims(View view, int a, int b) {
  const std::size_t first = checked_dim(view, a, "transposed: a");
  const std::size_t second = checked_dim(view, b, "transposed: b");
  std::swap(view.shape[first], view.shape[second]);
  std::swap(view.stride[first], view.stride[second]);
  return view;
}

// Requests huge pages for large allocations, before they are first written: with 4 KB pages TLB
// misses cost a third of the bandwidth. A hint: it may have no effect.
void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // Whole pages of 2 MiB, the smallest size on x86-64 and on most arm64 systems.
  constexpr std::uintptr_t kHuge = std::uintptr_t{1} << 21;
  if (bytes < std::int64_t{2 * kHuge}) return;
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + kHuge - 1) & ~(kHuge - 1);
  const auto end =
      (reinterpret_cast<std::uintptr_t>(data) + static_cast<std::uintptr_t>(bytes)) & ~(kHuge - 1);
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

void* allocate_host(std::int64_t bytes) {
  void* data =
      ::operator new (static_cast<std::size_t>(bytes), std::align_val_t{kAlignment}, std::nothrow);
  if (data == nullptr) {
    throw OutOfMemory("tensor: cannot allocate " + std::to_string(bytes) + " bytes");
  }
  prefer_huge_pages(data, bytes);
  return data;
}

}  // namespace

// One allocation and how it is released.
struct Tensor::Memory {
  enum class Kind { host, page_locked, cuda };

  Memory(std::int64_t bytes, Kind memory_kind, int device_index = 0)
      : kind(memory_kind), index(device_index) {
    switch (kind) {
      case Kind::host:
        data = allocate_host(bytes);
        break;
      case Kind::page_locked:
        data = cuda::allocate_page_locked(bytes);
        break;
      case Kind::cuda:
        data = cuda::allocate(index, bytes);
        break;
    }
  }
  ~Memory() {
    switch (kind) {
      case Kind::host:
        ::operator delete (data, std::align_val_t{kAlignment});
        break;
      case Kind::page_locked:
        cuda::release_page_locked(data);
        break;
      case Kind::cuda:
        cuda::release(index, data);
        break;
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data = nullptr;
  Kind kind;
  int index;  // of the CUDA device
};

std::string shape_string(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

TensorView make_view(void* data, std::span<const std::int64_t> shape, DType dtype, Device device) {
  TensorView view;
  view.data = data;
  fill_shape(view, shape, dtype, device);
  return view;
}

ConstTensorView make_view(const void* data, std::span<const std::int64_t> shape, DType dtype,
                          Device device) {
  ConstTensorView view;
  view.data = data;
  fill_shape(view, shape, dtype, device);
  return view;
}

TensorView with_stride(TensorView view, int dim, std::int64_t stride) {
  return restride(view, dim, stride);
}

ConstTensorView with_stride(ConstTensorView view, int dim, std::int64_t stride) {
  return restride(view, dim, stride);
}

TensorView transposed(TensorView view, int a, int b) { return swap_dims(view, a, b); }

ConstTensorView transposed(ConstTensorView view, int a, int b) { return swap_dims(view, a, b); }

Tensor::Tensor(Tensor&& other) noexcept
    : view_(std::exchange(other.view_, {})), memory_(std::move(other.memory_)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  view_ = std::exchange(other.view_, {});
  memory_ = std::move(other.memory_);
  return *this;
}

Tensor::Tensor() noexcept = default;
Tensor::~Tensor() = default;

void Tensor::own(std::unique_ptr<Memory> memory) {
  memory_ = std::move(memory);
  view_.data = memory_->data;
}

Tensor Tensor::empty(std::span<const std::int64_t> shape, DType dtype, Device device) {
  Tensor tensor;
  tensor.view_ = make_view(static_cast<void*>(nullptr), shape, dtype, device);
  std::int64_t bytes = size_of(dtype);  // make_view has checked that the product fits
  for (const std::int64_t extent : shape) bytes *= extent;
  if (bytes == 0) return tensor;
  const auto kind = device.is_cuda() ? Memory::Kind::cuda : Memory::Kind::host;
  tensor.own(std::make_unique<Memory>(bytes, kind, device.index));
  return tensor;
}

Tensor Tensor::empty(std::initializer_list<std::int64_t> shape, DType dtype, Device device) {
  return empty(std::span<const std::int64_t>(shape.begin(), shape.size()), dtype, device);
}

Tensor Tensor::zeros(std::initializer_list<std::int64_t> shape, DType dtype, Device device) {
  Tensor tensor = empty(shape, dtype, device);
  if (tensor.bytes() == 0) return tensor;
  if (device.is_cuda()) {
    cuda::fill_zero(device.index, tensor.data(), tensor.bytes(), nullptr);
    cuda::synchronize(device.index, nullptr);
  } else {
    std::memset(tensor.data(), 0, static_cast<std::size_t>(tensor.bytes()));
  }
  return tensor;
}

Tensor Tensor::page_locked(std::initializer_list<std::int64_t> shape, DType dtype) {
  Tensor tensor;
  tensor.view_ = make_view(static_cast<void*>(nullptr),
                           std::span<const std::int64_t>(shape.begin(), shape.size()), dtype);
  const std::int64_t bytes = tensor.bytes();
  if (bytes > 0) {
    tensor.own(std::make_unique<Memory>(bytes, Memory::Kind::page_locked));
  }
  return tensor;
}

Tensor Tensor::clone() const { return to(device()); }

Tensor Tensor::to(Device device) const {
  if (!view_.defined()) return {};
  Tensor result = empty(sizes(), dtype(), device);
  if (bytes() == 0) return result;
  if (!device.is_cuda() && !this->device().is_cuda()) {
    std::memcpy(result.data(), data(), static_cast<std::size_t>(bytes()));
    return result;
  }
  cuda::copy(device, result.data(), this->device(), data(), bytes(), nullptr);
  cuda::synchronize(device.is_cuda() ? device.index : this->device().index, nullptr);
  return result;
}

void Tensor::check_host_access(DType wanted) const {
  if (view_.device.is_cuda()) {
    throw InvalidArgument("tensor: values: expected a tensor on cpu, got " + name_of(view_.device));
  }
  if (wanted != view_.dtype) {
    throw InvalidArgument("tensor: values: expected " + std::string(name_of(view_.dtype)) +
                          ", got " + std::string(name_of(wanted)));
  }
}

}  // namespace touchstone::inline v0
