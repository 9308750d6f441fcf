// Views and owning tensors. A view is plain data: pointer, dtype, device, shape, strides; it owns
// nothing and copies freely. Sizes and strides are in elements, signed, 64-bit.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "touchstone/core/device.h"
#include "touchstone/core/dtype.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0 {

inline constexpr int kMaxRank = 8;

namespace detail {

template <class Pointer>
struct BasicView {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  Device device;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  // An absent optional argument is a default-constructed view: not defined. Empty tensors (an
  // extent of zero) are defined even when their data is null.
  constexpr bool defined() const { return data != nullptr || rank != 0; }

  // Views built by hand may claim more elements than 64 bits can count; operators refuse them, and
  // until then the product wraps.
  constexpr std::int64_t elements() const {
    std::uint64_t count = 1;
    for (int i = 0; i < rank; ++i) {
      count *= static_cast<std::uint64_t>(shape[static_cast<std::size_t>(i)]);
    }
    return defined() ? static_cast<std::int64_t>(count) : 0;
  }

  constexpr bool contiguous() const {
    if (elements() == 0) return true;
    std::uint64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      const auto d = static_cast<std::size_t>(i);
      if (shape[d] != 1 && static_cast<std::uint64_t>(stride[d]) != expected) return false;
      expected *= static_cast<std::uint64_t>(shape[d]);
    }
    return true;
  }

  std::span<const std::int64_t> sizes() const {
    return {shape.data(), static_cast<std::size_t>(rank)};
  }
};

}  // namespace detail

struct TensorView : detail::BasicView<void*> {};

struct ConstTensorView : detail::BasicView<const void*> {
  constexpr ConstTensorView() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a writable view is readable.
  constexpr ConstTensorView(const TensorView& view) {
    data = view.data;
    dtype = view.dtype;
    device = view.device;
    rank = view.rank;
    shape = view.shape;
    stride = view.stride;
  }
};

static_assert(std::is_trivially_copyable_v<TensorView>);
static_assert(std::is_trivially_copyable_v<ConstTensorView>);

// A row-major view of memory the caller owns. InvalidArgument for a negative extent, a rank above
// kMaxRank or a size beyond 64 bits.
TOUCHSTONE_API TensorView make_view(void* data, std::span<const std::int64_t> shape, DType dtype,
                                    Device device = Device::cpu());
TOUCHSTONE_API ConstTensorView make_view(const void* data, std::span<const std::int64_t> shape,
                                         DType dtype, Device device = Device::cpu());

// The same from typed memory: make_view(values.data(), {rows, cols}).
template <class T>
auto make_view(T* data, std::initializer_list<std::int64_t> shape, Device device = Device::cpu()) {
  const std::span<const std::int64_t> sizes(shape.begin(), shape.size());
  using Void = std::conditional_t<std::is_const_v<T>, const void, void>;
  return make_view(static_cast<Void*>(data), sizes, dtype_of<std::remove_const_t<T>>, device);
}

// The same view with the elements of dimension `dim` taken `stride` elements apart.
TOUCHSTONE_API TensorView with_stride(TensorView view, int dim, std::int64_t stride);
TOUCHSTONE_API ConstTensorView with_stride(ConstTensorView view, int dim, std::int64_t stride);

// The same elements with two dimensions swapped: [B, S, H, D] seen as [B, H, S, D] is
// transposed(view, 1, 2).
TOUCHSTONE_API TensorView transposed(TensorView view, int a, int b);
TOUCHSTONE_API ConstTensorView transposed(ConstTensorView view, int a, int b);

// "[4096, 1024]"
TOUCHSTONE_API std::string shape_string(std::span<const std::int64_t> shape);

// Owns its memory (64-byte aligned on the CPU, cudaMalloc on CUDA) and is always contiguous.
// Move-only: clone() copies. A tensor that was moved from is as default-constructed.
class TOUCHSTONE_API Tensor {
 public:
  Tensor() noexcept;
  Tensor(Tensor&& other) noexcept;
  Tensor& operator=(Tensor&& other) noexcept;
  ~Tensor();

  // Contents undefined. OutOfMemory when the allocation fails.
  static Tensor empty(std::span<const std::int64_t> shape, DType dtype,
                      Device device = Device::cpu());
  static Tensor empty(std::initializer_list<std::int64_t> shape, DType dtype,
                      Device device = Device::cpu());
  static Tensor zeros(std::initializer_list<std::int64_t> shape, DType dtype,
                      Device device = Device::cpu());

  // On the CPU, in page-locked memory: copies to and from a GPU run at the speed of the link.
  // Contents undefined. Unsupported in a build without CUDA.
  static Tensor page_locked(std::initializer_list<std::int64_t> shape, DType dtype);

  // A copy in memory of its own, complete when the call returns; of page-locked memory too, in
  // ordinary memory. to() copies to any device, the tensor's own included.
  Tensor clone() const;
  Tensor to(Device device) const;

  const TensorView& view() { return view_; }
  ConstTensorView view() const { return view_; }
  // NOLINTBEGIN(google-explicit-constructor): a tensor is passed where a view is expected.
  operator TensorView() { return view_; }
  operator ConstTensorView() const { return view_; }
  // NOLINTEND(google-explicit-constructor)

  DType dtype() const { return view_.dtype; }
  Device device() const { return view_.device; }
  std::span<const std::int64_t> sizes() const { return view_.sizes(); }
  std::int64_t elements() const { return view_.elements(); }
  std::int64_t bytes() const { return elements() * size_of(view_.dtype); }
  void* data() { return view_.data; }
  const void* data() const { return view_.data; }

  // The elements of a CPU tensor; InvalidArgument when T is not its dtype or it is on a GPU.
  template <class T>
  std::span<T> values() {
    check_host_access(dtype_of<T>);
    return {static_cast<T*>(view_.data), static_cast<std::size_t>(elements())};
  }
  template <class T>
  std::span<const T> values() const {
    check_host_access(dtype_of<T>);
    return {static_cast<const T*>(view_.data), static_cast<std::size_t>(elements())};
  }

 private:
  void check_host_access(DType wanted) const;

  struct Memory;
  void own(std::unique_ptr<Memory> memory);

  TensorView view_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace touchstone::inline v0
