#include "spec/operand.h"

#include <algorithm>
#include <cstring>

#include "core/context_access.h"
#include "core/cuda_runtime.h"
#include "core/thread_pool.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/convert.h"

namespace touchstone::spec {
namespace {

// Elements one task fills: some pages, so that threads touch the pages they will work on.
constexpr std::int64_t kFillGrain = 1 << 16;
// Operands up to this size are copied from a device as a whole, larger ones row by row.
constexpr std::int64_t kWholeCopy = std::int64_t{1} << 28;

std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// Near-normal, mean 0, deviation 1: the sum of four 16-bit uniforms.
float near_normal(std::uint64_t bits) {
  const auto sum = static_cast<float>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                      ((bits >> 32) & 0xffff) + (bits >> 48));
  return (sum / 65536.0F - 2.0F) * 1.7320508F;
}

void fill_on_cpu(ThreadPool& pool, Tensor& tensor, float center, float scale, std::uint64_t seed) {
  visit_float_dtype(tensor.dtype(), [&]<class T>() {
    const std::span<T> values = tensor.values<T>();
    const auto count = static_cast<std::int64_t>(values.size());
    pool.run(ceil_div(count, kFillGrain), [&](std::int64_t task) {
      const std::int64_t end = std::min(count, (task + 1) * kFillGrain);
      for (std::int64_t i = task * kFillGrain; i < end; ++i) {
        const float value = near_normal(mix(seed ^ static_cast<std::uint64_t>(i)));
        values[static_cast<std::size_t>(i)] = convert<T>(center + scale * value);
      }
    });
  });
}

std::vector<double> doubles(const std::byte* from, std::int64_t count, DType dtype) {
  std::vector<double> result(static_cast<std::size_t>(count));
  visit_dtype(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < result.size(); ++i) {
      T value;
      std::memcpy(&value, from + i * sizeof(T), sizeof(T));
      result[i] = convert<double>(value);
    }
  });
  return result;
}

std::int64_t last_dim(const TensorView& view) {
  return view.rank == 0 ? 1 : view.shape[static_cast<std::size_t>(view.rank - 1)];
}

bool contiguous(const TensorView& view) {
  std::int64_t expected = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (view.shape[at] != 1 && view.stride[at] != expected) return false;
    expected *= view.shape[at];
  }
  return true;
}

// Where the elements of row `row` begin, in elements.
std::int64_t row_offset(const TensorView& view, std::int64_t row) {
  std::int64_t offset = 0;
  for (int i = view.rank - 2; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    offset += row % view.shape[at] * view.stride[at];
    row /= view.shape[at];
  }
  return offset;
}

void copy_to_host(const TensorView& view, const std::byte* from, std::span<std::byte> to) {
  if (to.empty()) return;
  if (!view.device.is_cuda()) {
    std::memcpy(to.data(), from, to.size());
    return;
  }
  cuda::copy(Device::cpu(), to.data(), view.device, from, static_cast<std::int64_t>(to.size()),
             nullptr);
  cuda::synchronize(view.device.index, nullptr);
}

}  // namespace

Operand control_operand(const char* name, DType dtype, std::vector<std::int64_t> shape,
                        const std::function<std::int64_t(std::int64_t)>& value) {
  return {.name = name,
          .dtype = dtype,
          .shape = std::move(shape),
          .write =
              dtype == DType::i64 ? values_of<std::int64_t>(value) : values_of<std::int32_t>(value),
          .control = true};
}

double initial_gradient(std::int64_t index) {
  return static_cast<double>(index * 37 % 64 - 32) / 16;
}

void begin_with_initial_gradient(Operand& gradient) {
  gradient.write = gradient.dtype == DType::f64 ? values_of<double>(initial_gradient)
                                                : values_of<float>(initial_gradient);
}

std::int64_t Operand::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count = checked_mul(count, extent, "elements");
  return count;
}

std::int64_t Operand::bytes() const { return checked_mul(elements(), size_of(dtype), "bytes"); }

Operands::Operands(Context& context, const std::vector<Operand>& list, std::uint64_t seed,
                   const Operands* first)
    : list_(list), tensors_(list.size()), views_(list.size()) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Operand& operand = list[i];
    if (!operand.defined()) continue;
    if (operand.shared && first != nullptr) {
      views_[i] = first->views_[i];
      continue;
    }
    tensors_[i] = Tensor::empty(operand.shape, operand.dtype, context.device());
    views_[i] = tensors_[i];
    if (operand.output) continue;
    if (operand.write) {
      write(context, i);
    } else {
      fill_random(context, tensors_[i], static_cast<float>(operand.center),
                  static_cast<float>(operand.scale), 64 * seed + i);
    }
  }
  poison(context);
  context.synchronize();
}

void Operands::write(Context& context, std::size_t operand) {
  Tensor& tensor = tensors_[operand];
  const auto bytes_of = [](Tensor& t) {
    return std::span(static_cast<std::byte*>(t.data()), static_cast<std::size_t>(t.bytes()));
  };
  const auto fill = [&](std::span<std::byte> bytes) {
    if (list_[operand].write) {
      list_[operand].write(bytes);
    } else {
      std::ranges::fill(bytes, std::byte{0xff});
    }
  };
  if (tensor.bytes() == 0) return;
  if (!tensor.device().is_cuda()) return fill(bytes_of(tensor));
  Tensor host = Tensor::empty(tensor.sizes(), tensor.dtype());
  fill(bytes_of(host));
  cuda::copy(tensor.device(), tensor.data(), Device::cpu(), host.data(), host.bytes(),
             context.stream());
  context.synchronize();
}

void Operands::poison(Context& context) {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].output && list_[i].defined()) write(context, i);
  }
}

// Null where rows are to be copied one by one.
const std::byte* Reader::host(std::size_t operand) const {
  const TensorView& view = views_[operand];
  const bool plain = contiguous(view);
  if (!view.device.is_cuda() && plain) return static_cast<const std::byte*>(view.data);
  const std::int64_t size = view.elements() * size_of(view.dtype);
  if (size > kWholeCopy) return nullptr;
  const auto found = copies_.find(operand);
  if (found != copies_.end()) return found->second.data();
  std::vector<std::byte>& copy = copies_[operand];
  copy.resize(static_cast<std::size_t>(size));
  const auto* const data = static_cast<const std::byte*>(view.data);
  if (plain) {
    copy_to_host(view, data, copy);
    return copy.data();
  }
  const std::int64_t row_bytes = last_dim(view) * size_of(view.dtype);
  for (std::int64_t r = 0; row_bytes > 0 && r * row_bytes < size; ++r) {
    copy_to_host(view, data + row_offset(view, r) * size_of(view.dtype),
                 std::span(copy).subspan(static_cast<std::size_t>(r * row_bytes),
                                         static_cast<std::size_t>(row_bytes)));
  }
  return copy.data();
}

std::vector<double> Reader::row(std::size_t operand, std::int64_t row) const {
  const TensorView& view = views_[operand];
  const std::int64_t cols = last_dim(view);
  const std::int64_t row_bytes = cols * size_of(view.dtype);
  if (const std::byte* whole = host(operand)) {
    return doubles(whole + row * row_bytes, cols, view.dtype);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes));
  copy_to_host(
      view, static_cast<const std::byte*>(view.data) + row_offset(view, row) * size_of(view.dtype),
      bytes);
  return doubles(bytes.data(), cols, view.dtype);
}

std::vector<double> Reader::all(std::size_t operand) const {
  const TensorView& view = views_[operand];
  if (!view.defined()) return {};
  if (const std::byte* whole = host(operand)) return doubles(whole, view.elements(), view.dtype);
  std::vector<double> result;
  for (std::int64_t r = 0; r < view.elements() / last_dim(view); ++r) {
    const std::vector<double> values = row(operand, r);
    result.insert(result.end(), values.begin(), values.end());
  }
  return result;
}

std::vector<double> Reader::gather(std::size_t operand, std::span<const std::int64_t> index) const {
  const TensorView& view = views_[operand];
  const std::int64_t cols = last_dim(view);
  const std::byte* const whole = host(operand);
  std::vector<double> result;
  result.reserve(index.size());
  std::int64_t current = -1;
  std::vector<double> values;
  for (const std::int64_t i : index) {
    if (whole != nullptr) {
      result.push_back(doubles(whole + i * size_of(view.dtype), 1, view.dtype).front());
      continue;
    }
    if (i / cols != current) values = row(operand, current = i / cols);
    result.push_back(values[static_cast<std::size_t>(i % cols)]);
  }
  return result;
}

std::vector<std::byte> Reader::bytes(std::size_t operand, std::int64_t first,
                                     std::int64_t count) const {
  const TensorView& view = views_[operand];
  if (const std::byte* whole = host(operand)) return {whole + first, whole + first + count};
  std::vector<std::byte> result(static_cast<std::size_t>(count));
  copy_to_host(view, static_cast<const std::byte*>(view.data) + first, result);
  return result;
}

void fill_random(Context& context, Tensor& tensor, float center, float scale, std::uint64_t seed) {
  seed = mix(seed) << 32;  // streams of different tensors do not meet
  if (tensor.device().is_cuda()) {
    fill_random_cuda(tensor, center, scale, seed, context.stream());
  } else {
    fill_on_cpu(detail::ContextAccess::pool(context), tensor, center, scale, seed);
  }
}

std::vector<std::int64_t> spread_sample(std::int64_t count, std::int64_t size) {
  size = std::min(count, size);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < size; ++i) {
    indices.push_back(size == 1 ? 0 : i * (count - 1) / (size - 1));
  }
  return indices;
}

}  // namespace touchstone::spec
