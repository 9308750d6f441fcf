// The operands of one call: what they are, memory for them, and their values as float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::spec {

// An argument that is not given has no name.
struct Operand {
  std::string name{};
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape{};
  bool output = false;
  // Inputs: center + scale * N(0, 1) ..
  double center = 0;
  double scale = 1;
  // .. or what this writes, contiguous; called with as many bytes as the tensor has.
  std::function<void(std::span<std::byte>)> write{};
  bool strided = false;  // rows may lie apart
  bool control = false;  // what it holds is read by the operator's checks, also by explain()
  bool shared = false;   // the same memory in every set of a benchmark: parameters of a model

  bool defined() const { return !name.empty(); }
  std::int64_t elements() const;
  std::int64_t bytes() const;  // InvalidArgument when they do not fit in 64 bits
};

// A writer of values that are a function of the flat index.
template <class T, class Value>
std::function<void(std::span<std::byte>)> values_of(Value value) {
  return [value](std::span<std::byte> bytes) {
    T* const to = reinterpret_cast<T*>(bytes.data());
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
      to[i] = static_cast<T>(value(static_cast<std::int64_t>(i)));
    }
  };
}

// An input of whole numbers, i32 or i64, that the operator's checks read.
Operand control_operand(const char* name, DType dtype, std::vector<std::int64_t> shape,
                        const std::function<std::int64_t(std::int64_t)>& value);

// What a gradient that is added to holds before, f32 or f64.
double initial_gradient(std::int64_t index);
void begin_with_initial_gradient(Operand& gradient);

// One view per operand, in order; undefined where the argument is not given.
using Views = std::span<const TensorView>;

// Memory for a list of operands on the device of a context, filled. Outputs are poisoned.
class Operands {
 public:
  // Shared operands are those of `first`, which must outlive this, where it is given.
  Operands(Context& context, const std::vector<Operand>& list, std::uint64_t seed,
           const Operands* first = nullptr);
  Views views() const { return views_; }
  const std::vector<Operand>& list() const { return list_; }
  // Every byte of the outputs 0xff, NaN in each floating point format and -1 in each integer one, or
  // what the operand writes.
  void poison(Context& context);

 private:
  void write(Context& context, std::size_t operand);

  std::vector<Operand> list_;
  std::vector<Tensor> tensors_;
  std::vector<TensorView> views_;
};

// The values of operands as float64. Copies from a device as little as it can.
class Reader {
 public:
  explicit Reader(Views views) : views_(views.begin(), views.end()) {}

  const TensorView& view(std::size_t operand) const { return views_[operand]; }
  bool defined(std::size_t operand) const { return views_[operand].defined(); }
  // All elements, and those of one row (all but the last dimension are rows).
  std::vector<double> all(std::size_t operand) const;
  std::vector<double> row(std::size_t operand, std::int64_t row) const;
  std::vector<double> gather(std::size_t operand, std::span<const std::int64_t> index) const;
  // Raw bytes of a contiguous operand.
  std::vector<std::byte> bytes(std::size_t operand, std::int64_t first, std::int64_t count) const;

 private:
  const std::byte* host(std::size_t operand) const;

  std::vector<TensorView> views_;
  mutable std::map<std::size_t, std::vector<std::byte>> copies_;  // contiguous, of small operands
};

// Near-normal values: center + scale * N(0, 1). The pages of CPU tensors are first touched by the
// threads of the context; CUDA: queued on its stream.
void fill_random(Context& context, Tensor& tensor, float center, float scale, std::uint64_t seed);
// Implemented by fill_cuda.cu, or by no_cuda.cc in a build without CUDA.
void fill_random_cuda(Tensor& tensor, float center, float scale, std::uint64_t seed, void* stream);

// Evenly spread over [0, count), the first and the last among them; all when there are no more.
std::vector<std::int64_t> spread_sample(std::int64_t count, std::int64_t size);

}  // namespace touchstone::spec
