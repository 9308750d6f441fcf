// The parameters of a model in training: weights, gradients and the state of the optimizer, each
// one contiguous buffer, with a named view per parameter.
//
//   weight    the master copy, f32 (f64 for checks): latent weights where the model is ternary
//   compute   what the layers multiply with, in the dtype of the activations: the weight itself,
//             the weight rounded, or its ternary projection; refreshed by prepare()
//   gradient  of the loss with respect to `compute`, in the dtype of the master copy; that of
//             `weight` too, straight through rounding and projection
//   m, v      of AdamW; average: an exponential moving average of `weight`, optional
//
// Matrices come first and then vectors (norms), which are neither decayed, rounded nor projected.
// Matrices that are multiplied at once (q, k and v; gate and up) lie one below the other.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0::train {

struct Parameter {
  std::string name;  // as ModelFile names weights: "blk.0.attn_q.weight"
  std::vector<std::int64_t> shape{};
  std::int64_t offset = 0;          // of the first element in the buffers
  double initial_deviation = 0.02;  // of the normal distribution of a matrix; vectors begin at 1
  bool matrix = false;
};

// Matrices of one input that lie one below the other, [rows, cols].
struct MatrixBlock {
  std::int64_t offset = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

struct ParameterOptions {
  DType master = DType::f32;   // f32; f64 on the CPU
  DType compute = DType::f32;  // f32, bf16, f16; f64 with a master of f64
  bool average = false;
};

// The operation of prepare() on a matrix: reads `weight` and writes `compute`, both [rows, cols].
using Projection =
    std::function<void(Context& context, const ConstTensorView& weight, const TensorView& compute)>;

class TOUCHSTONE_API Parameters {
 public:
  // Adding comes first: matrices [rows, cols] of one block; then vectors.
  struct Piece {
    std::string name;
    std::int64_t rows = 0;
  };
  MatrixBlock add_matrices(const std::vector<Piece>& pieces, std::int64_t cols, double deviation);
  std::int64_t add_vector(const std::string& name, std::int64_t size);  // its offset

  // Allocates on the device of the context: gradients, moments and averages 0, weights undefined.
  void allocate(Context& context, const ParameterOptions& options);
  // Weights drawn by random_words(seed, index of the element, RandomPurpose::initialize): the same
  // for every device. The average begins at the weights.
  void initialize(Context& context, std::int64_t seed);
  void set_projection(Projection projection) { projection_ = std::move(projection); }

  // Refreshes `compute` from the weights, or from the average.
  void prepare(Context& context, bool from_average = false);
  void clear_gradients(Context& context);

  const std::vector<Parameter>& list() const { return list_; }
  const std::vector<MatrixBlock>& blocks() const { return blocks_; }
  const Parameter& find(std::string_view name) const;  // InvalidArgument names an unknown one
  std::int64_t count() const;                          // of all elements, padding left out
  std::int64_t matrix_elements() const { return matrix_end_; }  // of the buffers, padding included
  std::int64_t elements() const { return end_; }
  bool averaged() const { return average_.elements() > 0; }
  const ParameterOptions& options() const { return options_; }

  // Buffers as a whole, [elements()].
  TensorView weights() { return weights_; }
  TensorView gradients() { return gradients_; }
  TensorView m() { return m_; }
  TensorView v() { return v_; }
  TensorView average() { return average_; }
  // Elements [begin, end) of a buffer.
  static TensorView part(const TensorView& buffer, std::int64_t begin, std::int64_t end);

  TensorView view(const TensorView& buffer, const Parameter& parameter) const;
  TensorView gradient(const MatrixBlock& block) const;
  ConstTensorView compute(const MatrixBlock& block) const;
  TensorView weight(const MatrixBlock& block) const;
  ConstTensorView vector(std::int64_t offset, std::int64_t size) const;
  // Where the backward pass of a vector writes; collect_vectors() adds all of them to the
  // gradients.
  TensorView vector_gradient(std::int64_t offset, std::int64_t size) const;
  void collect_vectors(Context& context);

 private:
  TensorView at_offset(const TensorView& buffer, std::int64_t offset,
                       std::initializer_list<std::int64_t> shape) const;

  std::vector<Parameter> list_;
  std::vector<MatrixBlock> blocks_;
  std::int64_t matrix_end_ = 0;
  std::int64_t end_ = 0;
  ParameterOptions options_{};
  Projection projection_;
  bool prepared_from_average_ = false;
  Tensor weights_, gradients_, m_, v_, average_, compute_, vector_gradients_;
};

}  // namespace touchstone::inline v0::train
