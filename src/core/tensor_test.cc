// Checked arithmetic, views and owning tensors.
#include "touchstone/core/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/copy.h"
#include "tests/support/runners.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

template <class Exception, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no exception";
  return {};
}

// ---- checked arithmetic --------------------------------------------------------------------

TEST(Checked, Multiplication) {
  EXPECT_EQ(checked_mul(0, kMax), 0);
  EXPECT_EQ(checked_mul(1, kMax), kMax);
  EXPECT_EQ(checked_mul(kMax / 2, 2), kMax - 1);
  EXPECT_EQ(checked_mul(-3, 5), -15);
  for (const auto& [a, b] : {std::pair{kMax, std::int64_t{2}},
                             {kMax / 2 + 1, 2},
                             {std::int64_t{1} << 32, std::int64_t{1} << 31},
                             {std::numeric_limits<std::int64_t>::min(), -1}}) {
    const std::string message =
        message_of<InvalidArgument>([&, a = a, b = b] { checked_mul(a, b, "rows"); });
    EXPECT_EQ(message.substr(0, 6), "rows: ") << message;
  }
}

TEST(Checked, Addition) {
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_EQ(checked_add(kMax, -1), kMax - 1);
  EXPECT_THROW(checked_add(kMax, 1), InvalidArgument);
  EXPECT_THROW(checked_add(std::numeric_limits<std::int64_t>::min(), -1), InvalidArgument);
}

TEST(Checked, CeilDiv) {
  EXPECT_EQ(ceil_div(0, 4), 0);
  EXPECT_EQ(ceil_div(1, 4), 1);
  EXPECT_EQ(ceil_div(4, 4), 1);
  EXPECT_EQ(ceil_div(5, 4), 2);
  EXPECT_EQ(ceil_div(kMax, 2), kMax / 2 + 1);
  EXPECT_EQ(ceil_div(kMax, 1), kMax);
}

// ---- views ---------------------------------------------------------------------------------

TEST(View, RowMajorStrides) {
  float values[24] = {};
  const TensorView view = make_view(values, {2, 3, 4});
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.dtype, DType::f32);
  EXPECT_EQ(view.elements(), 24);
  EXPECT_EQ(view.stride[0], 12);
  EXPECT_EQ(view.stride[1], 4);
  EXPECT_EQ(view.stride[2], 1);
  EXPECT_TRUE(view.contiguous());
  EXPECT_TRUE(view.defined());
}

TEST(View, ConstnessFollowsThePointer) {
  const float constant[4] = {};
  float variable[4] = {};
  static_assert(std::is_same_v<decltype(make_view(constant, {4})), ConstTensorView>);
  static_assert(std::is_same_v<decltype(make_view(variable, {4})), TensorView>);
  const ConstTensorView readable = make_view(variable, {2, 2});
  EXPECT_EQ(readable.data, variable);
  EXPECT_EQ(readable.elements(), 4);
  EXPECT_EQ(readable.stride[0], 2);
}

TEST(View, AbsentEmptyAndScalar) {
  const TensorView absent;
  EXPECT_FALSE(absent.defined());
  EXPECT_EQ(absent.elements(), 0);
  const std::int64_t empty_shape[] = {3, 0, 5};
  const TensorView empty = make_view(static_cast<void*>(nullptr), empty_shape, DType::f32);
  EXPECT_TRUE(empty.defined());
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_TRUE(empty.contiguous());
  double value = 1;
  const TensorView scalar = make_view(&value, {});
  EXPECT_TRUE(scalar.defined());
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_TRUE(scalar.contiguous());
}

TEST(View, ContiguityIgnoresExtentsOfOne) {
  float values[24] = {};
  TensorView view = make_view(values, {4, 1, 6});
  view = with_stride(view, 1, 1000);
  EXPECT_TRUE(view.contiguous());
  EXPECT_FALSE(with_stride(view, 0, 7).contiguous());
  EXPECT_FALSE(with_stride(view, 0, 0).contiguous());
  EXPECT_FALSE(with_stride(view, 2, 2).contiguous());
  EXPECT_FALSE(with_stride(view, 0, -6).contiguous());
}

TEST(View, EmptyViewsAreContiguousWhateverTheirStrides) {
  const std::int64_t shape[] = {0, 5};
  TensorView view = make_view(static_cast<void*>(nullptr), shape, DType::f32);
  view.stride[1] = 3;
  EXPECT_TRUE(view.contiguous());
}

TEST(View, Errors) {
  float value = 0;
  void* const data = &value;
  const std::vector<std::int64_t> nine(9, 1);
  const std::vector<std::int64_t> eight(8, 1);
  EXPECT_NO_THROW(make_view(data, eight, DType::f32));
  EXPECT_THROW(make_view(data, nine, DType::f32), InvalidArgument);
  EXPECT_THROW(make_view(&value, {2, -1}), InvalidArgument);
  EXPECT_THROW(make_view(&value, {std::int64_t{1} << 32, std::int64_t{1} << 31}), InvalidArgument);
  EXPECT_THROW(make_view(&value, {std::int64_t{1} << 61}), InvalidArgument) << "2^63 bytes";
  EXPECT_THROW(make_view(&value, {0, std::int64_t{1} << 32, std::int64_t{1} << 32}),
               InvalidArgument)
      << "an empty extent must not hide strides beyond 64 bits";
  const std::string message = message_of<InvalidArgument>([&] { make_view(&value, {2, -1}); });
  EXPECT_NE(message.find("[2, -1]"), std::string::npos) << message;
}

TEST(View, WithStride) {
  float values[12] = {};
  const TensorView view = make_view(values, {3, 4});
  EXPECT_EQ(with_stride(view, 0, 9).stride[0], 9);
  EXPECT_EQ(view.stride[0], 4) << "the original is left alone";
  EXPECT_THROW(with_stride(view, 2, 1), InvalidArgument);
  EXPECT_THROW(with_stride(view, -1, 1), InvalidArgument);
  EXPECT_THROW(with_stride(ConstTensorView(view), 5, 1), InvalidArgument);
}

TEST(View, TransposedSwapsShapeAndStride) {
  std::vector<float> values(2 * 3 * 5 * 7);
  const TensorView view = make_view(values.data(), {2, 3, 5, 7});
  const TensorView swapped = transposed(view, 1, 2);
  EXPECT_EQ(shape_string(swapped.sizes()), "[2, 5, 3, 7]");
  EXPECT_EQ(swapped.stride[1], 7);
  EXPECT_EQ(swapped.stride[2], 35);
  EXPECT_EQ(swapped.data, view.data);
  EXPECT_FALSE(swapped.contiguous());
  EXPECT_TRUE(transposed(swapped, 2, 1).contiguous());
  EXPECT_TRUE(transposed(view, 3, 3).contiguous());
  EXPECT_EQ(transposed(ConstTensorView(view), 0, 3).shape[0], 7);
  EXPECT_THROW(transposed(view, -1, 0), InvalidArgument);
  EXPECT_THROW(transposed(view, 0, 4), InvalidArgument);
  EXPECT_THROW(transposed(ConstTensorView(), 0, 0), InvalidArgument);
}

TEST(View, ShapeString) {
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{}), "[]");
  EXPECT_EQ(shape_string(std::vector<std::int64_t>{4096, 1024}), "[4096, 1024]");
}

// ---- tensors -------------------------------------------------------------------------------

TEST(TensorMemory, EmptyIsAlignedAndContiguous) {
  for (const DType dtype : kNativeDTypes) {
    Tensor tensor = Tensor::empty({3, 5}, dtype);
    EXPECT_EQ(tensor.elements(), 15);
    EXPECT_EQ(tensor.bytes(), 15 * size_of(dtype));
    EXPECT_EQ(tensor.dtype(), dtype);
    EXPECT_EQ(tensor.device(), Device::cpu());
    EXPECT_TRUE(tensor.view().contiguous());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0U);
  }
}

TEST(TensorMemory, FourBitsHaveNoViews) {
  EXPECT_THROW(Tensor::empty({4}, DType::i4), InvalidArgument);
  EXPECT_EQ(Tensor::empty({4}, DType::f8_e4m3).bytes(), 4);
}

// A moved-from tensor is empty, and a copy has memory of its own.
TEST(TensorMemory, MovesAndClones) {
  static_assert(!std::is_copy_constructible_v<Tensor> && !std::is_copy_assignable_v<Tensor>);
  Tensor first = Tensor::zeros({3}, DType::f32);
  const void* const memory = first.data();
  Tensor second = std::move(first);
  EXPECT_EQ(second.data(), memory);
  EXPECT_FALSE(first.view().defined());  // NOLINT(bugprone-use-after-move): what is tested
  const Tensor copy = second.clone();
  second.values<float>()[1] = 5;
  EXPECT_NE(copy.data(), memory);
  EXPECT_EQ(copy.values<float>()[1], 0);
  second = Tensor();
  EXPECT_EQ(second.elements(), 0);
}

TEST(TensorMemory, Zeros) {
  for (const DType dtype : kNativeDTypes) {
    const Tensor tensor = Tensor::zeros({7, 11}, dtype, test::test_device()).to(Device::cpu());
    const auto* bytes = static_cast<const unsigned char*>(tensor.data());
    for (std::int64_t i = 0; i < tensor.bytes(); ++i) ASSERT_EQ(bytes[i], 0);
  }
}

TEST(TensorMemory, ZeroExtents) {
  for (const Device device : {Device::cpu(), test::test_device()}) {
    const Tensor tensor = Tensor::zeros({4, 0, 3}, DType::f32, device);
    EXPECT_EQ(tensor.elements(), 0);
    EXPECT_EQ(tensor.bytes(), 0);
    EXPECT_TRUE(ConstTensorView(tensor).defined());
    EXPECT_EQ(tensor.to(Device::cpu()).sizes().size(), 3U);
  }
  Tensor tensor = Tensor::zeros({0}, DType::f32);
  EXPECT_TRUE(tensor.values<float>().empty());
}

// One element: the statistics of a single row, which has no leading shape, are such tensors.
TEST(TensorMemory, Scalars) {
  Tensor tensor = Tensor::empty(std::span<const std::int64_t>(), DType::f64);
  EXPECT_TRUE(tensor.view().defined());
  EXPECT_EQ(tensor.elements(), 1);
  EXPECT_EQ(tensor.bytes(), 8);
  ASSERT_NE(tensor.data(), nullptr);
  tensor.values<double>()[0] = 2.5;
  EXPECT_EQ(tensor.to(Device::cpu()).values<double>()[0], 2.5);
}

TEST(TensorMemory, Undefined) {
  const Tensor tensor;
  EXPECT_FALSE(tensor.view().defined());
  EXPECT_EQ(tensor.elements(), 0);
  EXPECT_EQ(tensor.bytes(), 0);
  EXPECT_FALSE(tensor.to(Device::cpu()).view().defined());
}

TEST(TensorMemory, CopiesAreDeep) {
  Tensor tensor = Tensor::empty({1000}, DType::i32);
  for (std::int32_t i = 0; i < 1000; ++i)
    tensor.values<std::int32_t>()[static_cast<std::size_t>(i)] = i;
  const Tensor there = tensor.to(test::test_device());
  EXPECT_EQ(there.device(), test::test_device());
  EXPECT_NE(there.data(), tensor.data());
  tensor.values<std::int32_t>()[5] = -1;
  const Tensor back = there.to(test::test_device()).to(Device::cpu());
  for (std::int32_t i = 0; i < 1000; ++i) {
    ASSERT_EQ(back.values<std::int32_t>()[static_cast<std::size_t>(i)], i);
  }
}

TEST(TensorMemory, ValuesAreTyped) {
  Tensor tensor = Tensor::zeros({4}, DType::f32);
  EXPECT_EQ(tensor.values<float>().size(), 4U);
  const std::string message = message_of<InvalidArgument>([&] { tensor.values<double>(); });
  EXPECT_NE(message.find("f32"), std::string::npos) << message;
  EXPECT_NE(message.find("f64"), std::string::npos) << message;
  EXPECT_THROW(tensor.values<std::int32_t>(), InvalidArgument) << "same size, another type";
  EXPECT_THROW(std::as_const(tensor).values<Bf16>(), InvalidArgument);
}

TEST(TensorMemory, ValuesOfAnotherDevice) {
  if (!test::on_gpu()) GTEST_SKIP() << "every device here is the CPU";
  Tensor tensor = Tensor::zeros({4}, DType::f32, test::test_device());
  EXPECT_THROW(tensor.values<float>(), InvalidArgument);
}

TEST(TensorMemory, PageLocked) {
  if (!built_with_cuda()) {
    EXPECT_THROW(Tensor::page_locked({4}, DType::f32), Unsupported);
  }
  if (!test::on_gpu()) return;
  Tensor tensor = Tensor::page_locked({1000}, DType::i32);
  EXPECT_EQ(tensor.device(), Device::cpu());
  std::int32_t next = 0;
  for (std::int32_t& value : tensor.values<std::int32_t>()) value = next++;
  const Tensor back = tensor.to(test::test_device()).to(Device::cpu());
  EXPECT_TRUE(std::ranges::equal(back.values<std::int32_t>(),
                                 std::as_const(tensor).values<std::int32_t>()));
}

// The same few bytes through every pair of devices.
TEST(Copy, BetweenAnyTwoDevices) {
  Tensor from = Tensor::empty({100}, DType::i32);
  for (std::int32_t& value : from.values<std::int32_t>()) value = 7;
  Tensor there = Tensor::zeros({100}, DType::i32, test::test_device());
  Tensor back = Tensor::zeros({100}, DType::i32);
  queue_copy({there.device()}, there.data(), {from.device()}, from.data(), from.bytes() - 4);
  queue_copy({back.device()}, back.data(), {there.device()}, there.data(), back.bytes());
  wait_for({there.device()});
  EXPECT_EQ(back.values<std::int32_t>()[98], 7);
  EXPECT_EQ(back.values<std::int32_t>()[99], 0);
  queue_copy({}, nullptr, {}, nullptr, 0);
}

TEST(TensorMemory, HugeAllocations) {
  const std::int64_t elements = std::int64_t{1} << 58;
  const std::string message =
      message_of<OutOfMemory>([&] { Tensor::empty({elements}, DType::f32, test::test_device()); });
  EXPECT_NE(message.find(std::to_string(elements * 4)), std::string::npos) << message;
  EXPECT_THROW(Tensor::zeros({elements}, DType::f32, test::test_device()), OutOfMemory);
  EXPECT_THROW(Tensor::empty({std::int64_t{1} << 61}, DType::f64), InvalidArgument);
  EXPECT_THROW(Tensor::empty({-1}, DType::f64), InvalidArgument);
  // The failure left nothing broken behind.
  EXPECT_EQ(Tensor::zeros({10}, DType::f32, test::test_device()).elements(), 10);
}

TEST(TensorMemory, NoSuchDevice) {
  EXPECT_THROW(Tensor::empty({4}, DType::f32, Device::cuda(1000)), Error);
  if (cuda_devices().empty()) {
    EXPECT_THROW(Tensor::empty({4}, DType::f32, Device::cuda()), Unsupported);
    EXPECT_THROW(Tensor::zeros({4}, DType::f32).to(Device::cuda()), Unsupported);
  }
}

}  // namespace
}  // namespace touchstone::inline v0
