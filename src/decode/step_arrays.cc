#include "decode/step_arrays.h"

#include <algorithm>

#include "core/copy.h"

namespace touchstone::inline v0::decode {

void StepArrays::clear() {
  host_.clear();
  arrays_.clear();
}

std::size_t StepArrays::add_bytes(std::span<const std::byte> bytes, std::vector<std::int64_t> shape,
                                  DType dtype) {
  constexpr std::size_t kAlignment = 16;
  host_.resize((host_.size() + kAlignment - 1) / kAlignment * kAlignment);
  arrays_.push_back({host_.size(), std::move(shape), dtype});
  host_.insert(host_.end(), bytes.begin(), bytes.end());
  return arrays_.size() - 1;
}

std::size_t StepArrays::add(std::span<const std::int32_t> values, std::vector<std::int64_t> shape) {
  return add_bytes(std::as_bytes(values), std::move(shape), DType::i32);
}

std::size_t StepArrays::add(std::span<const std::int64_t> values, std::vector<std::int64_t> shape) {
  return add_bytes(std::as_bytes(values), std::move(shape), DType::i64);
}

std::size_t StepArrays::add(std::span<const float> values, std::vector<std::int64_t> shape) {
  return add_bytes(std::as_bytes(values), std::move(shape), DType::f32);
}

void StepArrays::finish(Context& context) {
  where_ = context.device();
  base_ = host_.data();
  if (!where_.is_cuda()) return;
  const auto bytes = static_cast<std::int64_t>(host_.size());
  if (device_.elements() < bytes) {
    context.synchronize();  // kernels may still read the old one
    device_ = Tensor::empty({std::max(bytes, 2 * device_.elements())}, DType::u8, where_);
  }
  // From pageable memory the copy has left the host's when the call returns.
  queue_copy({where_, context.stream()}, device_.data(), {}, host_.data(), bytes);
  base_ = static_cast<const std::byte*>(device_.data());
}

ConstTensorView StepArrays::view(std::size_t array) const {
  const Array& a = arrays_[array];
  return make_view(static_cast<const void*>(base_ + a.offset), a.shape, a.dtype, where_);
}

}  // namespace touchstone::inline v0::decode
