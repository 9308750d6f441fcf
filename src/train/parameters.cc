#include "touchstone/train/parameters.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "core/context_access.h"
#include "core/copy.h"
#include "core/cuda_runtime.h"
#include "core/thread_pool.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "touchstone/train/operators.h"
#include "train/layers.h"

namespace touchstone::inline v0::train {

void fill_zero(Context& context, const TensorView& view) {
  const std::int64_t bytes = view.elements() * size_of(view.dtype);
  if (bytes == 0) return;
  if (context.device().is_cuda()) {
    cuda::fill_zero(context.device().index, view.data, bytes, context.stream());
  } else {
    std::fill_n(static_cast<std::byte*>(view.data), bytes, std::byte{0});
  }
}

namespace {

// Of a block and of a vector, in elements: whole cache lines in every dtype.
constexpr std::int64_t kAlignment = 128;

std::int64_t aligned_up(std::int64_t offset) { return ceil_div(offset, kAlignment) * kAlignment; }

Tensor zeros(Context& context, std::int64_t elements, DType dtype) {
  Tensor tensor = Tensor::empty({elements}, dtype, context.device());
  fill_zero(context, tensor);
  return tensor;
}

// Two independent normal numbers from 128 random bits (Box and Muller, 1958).
std::pair<double, double> normal_pair(const PhiloxWords& words) {
  const double u = (static_cast<double>(words.word[0]) + 0.5) * 0x1p-32;
  const double angle = 2 * std::numbers::pi * (static_cast<double>(words.word[1]) + 0.5) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

MatrixBlock Parameters::add_matrices(const std::vector<Piece>& pieces, std::int64_t cols,
                                     double deviation) {
  if (end_ != matrix_end_) throw InvalidArgument("parameters: a matrix after a vector");
  MatrixBlock block{.offset = aligned_up(end_), .rows = 0, .cols = cols};
  for (const Piece& piece : pieces) {
    list_.push_back({.name = piece.name,
                     .shape = {piece.rows, cols},
                     .offset = block.offset + block.rows * cols,
                     .initial_deviation = deviation,
                     .matrix = true});
    block.rows += piece.rows;
  }
  blocks_.push_back(block);
  matrix_end_ = end_ = aligned_up(block.offset + checked_mul(block.rows, cols, "parameters"));
  return block;
}

std::int64_t Parameters::add_vector(const std::string& name, std::int64_t size) {
  const std::int64_t offset = end_;
  list_.push_back({.name = name, .shape = {size}, .offset = offset});
  end_ = aligned_up(offset + size);
  return offset;
}

void Parameters::allocate(Context& context, const ParameterOptions& options) {
  options_ = options;
  if ((options.master == DType::f64) != (options.compute == DType::f64) ||
      (options.master != DType::f32 && options.master != DType::f64)) {
    throw InvalidArgument(fmt::format("parameters: no weights of {} for computing in {}",
                                      name_of(options.master), name_of(options.compute)));
  }
  weights_ = zeros(context, end_, options.master);
  gradients_ = zeros(context, end_, options.master);
  m_ = zeros(context, end_, options.master);
  v_ = zeros(context, end_, options.master);
  vector_gradients_ = zeros(context, end_ - matrix_end_, options.master);
  if (options.average) average_ = zeros(context, end_, options.master);
  if (projection_ || options.compute != options.master) {
    compute_ = zeros(context, matrix_end_, options.compute);
  }
}

void Parameters::initialize(Context& context, std::int64_t seed) {
  Tensor host = Tensor::zeros({end_}, options_.master);
  std::int64_t first = 0;  // index among all elements, whatever the padding
  const auto fill = [&]<class T>() {
    T* const to = host.values<T>().data();
    Context cpu({.threads = 0});
    for (const Parameter& parameter : list_) {
      std::int64_t count = 1;
      for (const std::int64_t extent : parameter.shape) count *= extent;
      T* const values = to + parameter.offset;
      if (!parameter.matrix) std::fill_n(values, count, T{1});
      constexpr std::int64_t kChunk = 1 << 14;
      const std::int64_t chunks = parameter.matrix ? ceil_div(count, kChunk) : 0;
      detail::ContextAccess::pool(cpu).run(chunks, [&](std::int64_t chunk) {
        const std::int64_t end = std::min(count, (chunk + 1) * kChunk);
        for (std::int64_t i = chunk * kChunk; i < end; i += 2) {
          const auto [a, b] =
              normal_pair(random_words(seed, (first + i) / 2, RandomPurpose::initialize,
                                       static_cast<std::uint32_t>((first + i) % 2)));
          values[i] = static_cast<T>(a * parameter.initial_deviation);
          if (i + 1 < end) values[i + 1] = static_cast<T>(b * parameter.initial_deviation);
        }
      });
      first += count;
    }
  };
  options_.master == DType::f64 ? fill.operator()<double>() : fill.operator()<float>();
  const StreamLocation here{context.device(), context.stream()};
  queue_copy(here, weights_.data(), {}, host.data(), host.bytes());
  if (averaged()) queue_copy(here, average_.data(), {}, host.data(), host.bytes());
  wait_for(here);
}

void Parameters::prepare(Context& context, bool from_average) {
  if (from_average && !averaged()) throw InvalidArgument("parameters: there is no average");
  prepared_from_average_ = from_average;
  if (compute_.elements() == 0) return;
  Tensor& source = from_average ? average_ : weights_;
  if (!projection_) {
    cast(context, {.x = part(source, 0, matrix_end_), .y = compute_});
    return;
  }
  for (const Parameter& parameter : list_) {
    if (!parameter.matrix) continue;
    projection_(context, view(source, parameter), view(compute_, parameter));
  }
}

void Parameters::clear_gradients(Context& context) { fill_zero(context, gradients_); }

const Parameter& Parameters::find(std::string_view name) const {
  for (const Parameter& parameter : list_) {
    if (parameter.name == name) return parameter;
  }
  throw InvalidArgument(fmt::format("parameters: no parameter '{}'", name));
}

std::int64_t Parameters::count() const {
  std::int64_t count = 0;
  for (const Parameter& parameter : list_) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : parameter.shape) elements *= extent;
    count += elements;
  }
  return count;
}

TensorView Parameters::part(const TensorView& buffer, std::int64_t begin, std::int64_t end) {
  const std::int64_t shape[] = {end - begin};
  return make_view(static_cast<std::byte*>(buffer.data) + begin * size_of(buffer.dtype), shape,
                   buffer.dtype, buffer.device);
}

TensorView Parameters::at_offset(const TensorView& buffer, std::int64_t offset,
                                 std::initializer_list<std::int64_t> shape) const {
  return make_view(static_cast<std::byte*>(buffer.data) + offset * size_of(buffer.dtype),
                   std::span(shape.begin(), shape.size()), buffer.dtype, buffer.device);
}

TensorView Parameters::view(const TensorView& buffer, const Parameter& parameter) const {
  return make_view(static_cast<std::byte*>(buffer.data) + parameter.offset * size_of(buffer.dtype),
                   parameter.shape, buffer.dtype, buffer.device);
}

namespace {
// const objects return mutable views: layers own training access.
TensorView writable(const Tensor& tensor) {
  return make_view(const_cast<void*>(tensor.data()), tensor.sizes(), tensor.dtype(),
                   tensor.device());
}
}  // namespace

TensorView Parameters::gradient(const MatrixBlock& block) const {
  return at_offset(writable(gradients_), block.offset, {block.rows, block.cols});
}

TensorView Parameters::weight(const MatrixBlock& block) const {
  return at_offset(writable(weights_), block.offset, {block.rows, block.cols});
}

ConstTensorView Parameters::compute(const MatrixBlock& block) const {
  const Tensor& plain = prepared_from_average_ ? average_ : weights_;
  return at_offset(writable(compute_.elements() > 0 ? compute_ : plain), block.offset,
                   {block.rows, block.cols});
}

ConstTensorView Parameters::vector(std::int64_t offset, std::int64_t size) const {
  return at_offset(writable(prepared_from_average_ ? average_ : weights_), offset, {size});
}

TensorView Parameters::vector_gradient(std::int64_t offset, std::int64_t size) const {
  return at_offset(writable(vector_gradients_), offset - matrix_end_, {size});
}

void Parameters::collect_vectors(Context& context) {
  add_to(context, {.x = vector_gradients_, .y = part(gradients_, matrix_end_, end_)});
}

}  // namespace touchstone::inline v0::train
