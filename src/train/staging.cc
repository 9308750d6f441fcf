// Arrays between host and device, and the scale of gradients.
#include <cmath>
#include <cstring>

#include "core/copy.h"
#include "core/index.h"
#include "touchstone/core/checked.h"
#include "train/trainee.h"

namespace touchstone::inline v0::train {
namespace {

constexpr std::int64_t kArrayAlignment = 256;

std::int64_t array_bytes(DType dtype, std::int64_t count) {
  return ceil_div(count * size_of(dtype), kArrayAlignment) * kArrayAlignment;
}

}  // namespace

double loss_scale_of(DType compute, std::int64_t count) {
  return compute == DType::f16 ? std::exp2(std::floor(std::log2(static_cast<double>(count)))) : 1;
}

template <class T>
std::vector<T> download(Context& context, const ConstTensorView& view) {
  std::vector<T> values(at(view.elements()));
  const StreamLocation here{view.device, context.stream()};
  queue_copy({}, values.data(), here, view.data, std::ssize(values) * static_cast<int>(sizeof(T)));
  wait_for(here);
  return values;
}
template std::vector<float> download(Context& context, const ConstTensorView& view);
template std::vector<double> download(Context& context, const ConstTensorView& view);
template std::vector<std::int32_t> download(Context& context, const ConstTensorView& view);
template std::vector<std::byte> download(Context& context, const ConstTensorView& view);

std::vector<double> download_numbers(Context& context, const ConstTensorView& view) {
  if (view.dtype == DType::f64) return download<double>(context, view);
  const std::vector<float> values = download<float>(context, view);
  return {values.begin(), values.end()};
}

StagingBuffers::StagingBuffers(Context& context, std::int64_t slot_bytes, std::int64_t slots)
    : slot_bytes_(slot_bytes) {
  const std::int64_t bytes = checked_mul(slot_bytes, slots, "train");
  device_ = Tensor::empty({bytes}, DType::u8, context.device());
  if (context.device().is_cuda()) host_ = Tensor::page_locked({bytes}, DType::u8);
}

std::int64_t StagingBuffers::bytes_of(
    std::initializer_list<std::pair<DType, std::int64_t>> arrays) {
  std::int64_t bytes = 0;
  for (const auto& [dtype, count] : arrays) bytes += array_bytes(dtype, count);
  return bytes;
}

void StagingBuffers::begin(std::int64_t slot) { next_ = slot * slot_bytes_; }

ConstTensorView StagingBuffers::send_bytes(Context& context, const void* data, std::int64_t count,
                                           DType dtype) {
  const std::int64_t bytes = count * size_of(dtype);
  std::byte* const to = static_cast<std::byte*>(device_.data()) + next_;
  if (bytes > 0 && context.device().is_cuda()) {
    std::byte* const staged = static_cast<std::byte*>(host_.data()) + next_;
    std::memcpy(staged, data, at(bytes));
    queue_copy({context.device(), context.stream()}, to, {}, staged, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, data, at(bytes));
  }
  next_ += array_bytes(dtype, count);
  const std::int64_t shape[] = {count};
  return make_view(static_cast<const void*>(to), shape, dtype, context.device());
}

ConstTensorView StagingBuffers::send_wide(Context& context, std::span<const double> values,
                                          DType wide) {
  if (wide == DType::f64) return send(context, values);
  const std::vector<float> narrow(values.begin(), values.end());
  return send(context, narrow);
}

}  // namespace touchstone::inline v0::train
