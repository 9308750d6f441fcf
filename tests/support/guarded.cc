#include "tests/support/guarded.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace touchstone::test {
namespace {

constexpr std::size_t kGuardBytes = 256;  // a multiple of every alignment a kernel could require

// A pattern that is neither the poison nor constant, so that a copy of it elsewhere shows as well.
std::byte guard_byte(std::size_t index) {
  return static_cast<std::byte>(0xa5U ^ (index * 29U & 0xffU));
}

// Repeats itself every 256 bytes, so that most of it can be copied.
void fill_guard(std::span<std::byte> bytes) {
  std::size_t done = std::min<std::size_t>(bytes.size(), 256);
  for (std::size_t i = 0; i < done; ++i) bytes[i] = guard_byte(i);
  for (std::size_t count = 0; done < bytes.size(); done += count) {
    count = std::min(done, bytes.size() - done);
    std::memcpy(bytes.data() + done, bytes.data(), count);
  }
}

// All ones: a NaN in each of the four floating point types.
constexpr std::byte kPoison{0xff};

std::size_t as_size(std::int64_t value) { return static_cast<std::size_t>(value); }

std::int64_t row_length(const TensorView& view) {
  return view.rank == 0 ? 1 : view.shape[as_size(view.rank - 1)];
}

}  // namespace

Guarded::Guarded(Device device, DType dtype, const std::vector<std::int64_t>& shape,
                 Layout layout) {
  allocate(device, dtype, shape, layout);
  poison();
}

Guarded::Guarded(Device device, DType dtype, const std::vector<std::int64_t>& shape,
                 std::span<const double> values, Layout layout) {
  allocate(device, dtype, shape, layout);
  set(values);
}

void Guarded::allocate(Device device, DType dtype, const std::vector<std::int64_t>& shape,
                       Layout layout) {
  view_ = make_view(static_cast<void*>(nullptr), shape, dtype, device);
  const std::int64_t cols = row_length(view_);
  const std::int64_t rows = cols == 0 ? 0 : view_.elements() / std::max<std::int64_t>(cols, 1);
  std::int64_t stride = cols + layout.row_gap;
  for (int i = view_.rank - 2; i >= 0; --i) {
    view_.stride[as_size(i)] = stride;
    stride *= std::max<std::int64_t>(view_.shape[as_size(i)], 1);
  }
  const std::int64_t span_rows = view_.rank == 0 ? 1 : rows;
  const std::int64_t elements = span_rows * (cols + layout.row_gap);
  start_ = kGuardBytes + as_size(layout.offset) * element_size();
  image_.resize(start_ + as_size(elements) * element_size() + kGuardBytes);
  fill_guard(image_);
  memory_ = Tensor::empty({static_cast<std::int64_t>(image_.size())}, DType::u8, device);
  view_.data = static_cast<std::byte*>(memory_.data()) + start_;
}

Guarded::~Guarded() { fence(false); }

Guarded::Guarded(Guarded&& other) noexcept
    : memory_(std::exchange(other.memory_, {})),
      image_(std::exchange(other.image_, {})),
      start_(other.start_),
      view_(std::exchange(other.view_, {})) {}

Guarded& Guarded::operator=(Guarded&& other) noexcept {
  if (this != &other) {
    fence(false);
    memory_ = std::exchange(other.memory_, {});
    image_ = std::exchange(other.image_, {});
    start_ = other.start_;
    view_ = std::exchange(other.view_, {});
  }
  return *this;
}

// Calls body(first byte of the row in the image, elements in the row).
template <class Body>
void Guarded::for_each_row(Body&& body) const {
  const std::int64_t cols = row_length(view_);
  if (view_.elements() == 0) return;
  const std::int64_t rows = view_.elements() / cols;
  // A rank-1 or rank-0 view is one row.
  const std::int64_t stride = view_.rank < 2 ? cols : view_.stride[as_size(view_.rank - 2)];
  for (std::int64_t r = 0; r < rows; ++r) {
    body(start_ + as_size(r * stride) * element_size(), as_size(cols));
  }
}

void Guarded::poison() {
  if (!defined()) return;
  for_each_row([&](std::size_t at, std::size_t cols) {
    std::memset(image_.data() + at, static_cast<int>(kPoison), cols * element_size());
  });
  upload();
}

void Guarded::set(std::span<const double> values) {
  ASSERT_EQ(static_cast<std::int64_t>(values.size()), elements());
  visit_dtype(view_.dtype, [&]<class T>() {
    std::size_t next = 0;
    for_each_row([&](std::size_t at, std::size_t cols) {
      for (std::size_t c = 0; c < cols; ++c) {
        const T value = convert<T>(values[next++]);
        std::memcpy(image_.data() + at + c * sizeof(T), &value, sizeof(T));
      }
    });
  });
  upload();
}

// Into the same memory every time: views handed out before stay good.
void Guarded::upload() {
  if (view_.device.is_cuda()) {
    cuda::copy(view_.device, memory_.data(), Device::cpu(), image_.data(), memory_.bytes(),
               nullptr);
    cuda::synchronize(view_.device.index, nullptr);
    return;
  }
  fence(false);
  std::memcpy(memory_.data(), image_.data(), image_.size());
  fence(true);
}

// Calls body(all bytes as they are now).
template <class Body>
auto Guarded::with_memory(Body&& body) const {
  if (view_.device.is_cuda()) {
    std::vector<std::byte> now(image_.size());
    cuda::copy(Device::cpu(), now.data(), view_.device, memory_.data(), memory_.bytes(), nullptr);
    cuda::synchronize(view_.device.index, nullptr);
    return body(std::span<const std::byte>(now));
  }
  fence(false);
  auto result = body(
      std::span<const std::byte>(static_cast<const std::byte*>(memory_.data()), image_.size()));
  fence(true);
  return result;
}

// Everything but the elements is out of bounds for AddressSanitizer while the fence is up.
void Guarded::fence([[maybe_unused]] bool up) const {
#if defined(__SANITIZE_ADDRESS__)
  if (!defined() || view_.device.is_cuda()) return;
  const auto* data = static_cast<const std::byte*>(memory_.data());
  __asan_unpoison_memory_region(data, image_.size());
  if (!up) return;
  std::size_t free_from = 0;
  for_each_row([&](std::size_t at, std::size_t cols) {
    __asan_poison_memory_region(data + free_from, at - free_from);
    free_from = at + cols * element_size();
  });
  __asan_poison_memory_region(data + free_from, image_.size() - free_from);
#endif
}

std::vector<double> Guarded::values() const {
  std::vector<double> result(as_size(elements()));
  if (result.empty()) return result;
  return with_memory([&](std::span<const std::byte> now) {
    visit_dtype(view_.dtype, [&]<class T>() {
      double* next = result.data();
      for_each_row([&](std::size_t at, std::size_t cols) {
        for (std::size_t c = 0; c < cols; ++c) {
          T value;
          std::memcpy(&value, now.data() + at + c * sizeof(T), sizeof(T));
          *next++ = convert<double>(value);
        }
      });
    });
    return std::move(result);
  });
}

std::vector<std::byte> Guarded::bytes() const {
  std::vector<std::byte> result(as_size(elements()) * element_size());
  if (result.empty()) return result;
  return with_memory([&](std::span<const std::byte> now) {
    std::byte* next = result.data();
    for_each_row([&](std::size_t at, std::size_t cols) {
      std::memcpy(next, now.data() + at, cols * element_size());
      next += cols * element_size();
    });
    return std::move(result);
  });
}

testing::AssertionResult Guarded::outside_intact() const {
  if (!defined()) return testing::AssertionSuccess();
  return with_memory([&](std::span<const std::byte> now) {
    testing::AssertionResult result = testing::AssertionSuccess();
    std::size_t outside = 0;  // where the memory since the last row begins
    const auto check = [&](std::size_t end) {
      if (result) result = same(now, outside, end, "written outside the tensor");
    };
    for_each_row([&](std::size_t at, std::size_t cols) {
      check(at);
      outside = at + cols * element_size();
    });
    check(now.size());
    return result;
  });
}

testing::AssertionResult Guarded::unchanged() const {
  if (!defined()) return testing::AssertionSuccess();
  return with_memory(
      [&](std::span<const std::byte> now) { return same(now, 0, now.size(), "changed"); });
}

// Bytes [begin, end) are those of the image.
testing::AssertionResult Guarded::same(std::span<const std::byte> now, std::size_t begin,
                                       std::size_t end, const char* what) const {
  if (std::memcmp(now.data() + begin, image_.data() + begin, end - begin) == 0) {
    return testing::AssertionSuccess();
  }
  while (now[begin] == image_[begin]) ++begin;
  return testing::AssertionFailure()
         << what << ": byte " << static_cast<std::ptrdiff_t>(begin - start_)
         << " counted from the first element";
}

TensorView columns(TensorView view, std::int64_t begin, std::int64_t count) {
  view.data = static_cast<std::byte*>(view.data) + begin * size_of(view.dtype);
  view.shape[as_size(view.rank - 1)] = count;
  return view;
}

testing::AssertionResult same_bits(const Guarded& actual, std::span<const std::byte> expected) {
  const std::vector<std::byte> bytes = actual.bytes();
  if (bytes.size() != expected.size()) {
    return testing::AssertionFailure()
           << "sizes differ: " << bytes.size() << " and " << expected.size() << " bytes";
  }
  if (bytes.empty() || std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0) {
    return testing::AssertionSuccess();
  }
  const auto a = std::mismatch(bytes.begin(), bytes.end(), expected.begin()).first;
  const std::int64_t element = (a - bytes.begin()) / size_of(actual.dtype());
  return testing::AssertionFailure()
         << "bits differ, first at element " << element << " of " << actual.elements();
}

}  // namespace touchstone::test
