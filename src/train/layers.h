// The layers of a decoder in training. Each lists its parameters in its constructor,
// computes its output and, from saved activations, its gradients. Only Activations owns memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/rotation.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/model_description.h"
#include "touchstone/train/decoder.h"
#include "touchstone/train/operators.h"
#include "touchstone/train/parameters.h"

namespace touchstone::inline v0::train {

struct Injection;

// One call of the model.
struct Pass {
  Context& context;
  const Batch& batch;
  std::int64_t tokens = 0;
  double dropout = 0;  // 0: no masks
  double attention_dropout = 0;
  StepSeed seed{};
  Injection* injection = nullptr;  // more keys and values than the tokens' own: drafts
};

enum class MaskOf : std::uint32_t { embedding, attention, mlp };

// Applies the mask of a layer to [tokens, cols]; the identity without dropout.
void drop(const Pass& pass, std::int64_t layer, MaskOf what, const TensorView& x);
// The gradient of what was dropped: `gradient` itself without dropout, else written to `scratch`.
ConstTensorView drop_gradient(const Pass& pass, std::int64_t layer, MaskOf what,
                              const ConstTensorView& gradient, const TensorView& scratch);

struct LinearLayer {
  MatrixBlock block{};

  void forward(Context& context, const Parameters& parameters, const ConstTensorView& x,
               const TensorView& y) const;
  // dx may be absent.
  void backward(Context& context, const Parameters& parameters, const ConstTensorView& dy,
                const ConstTensorView& x, const TensorView& dx) const;
};

struct RmsNormLayer {
  std::int64_t offset = 0;
  std::int64_t size = 0;
  double epsilon = 1e-5;

  // y = norm(x + residual), sum = x + residual; without a residual of x alone.
  void forward(Context& context, const Parameters& parameters, const ConstTensorView& x,
               const ConstTensorView& residual, const TensorView& sum, const TensorView& y,
               const TensorView& rstd) const;
  // `dsum` is the gradient of the sum beside that of y; may be absent, and may be dx.
  void backward(Context& context, const Parameters& parameters, const ConstTensorView& dy,
                const ConstTensorView& x, const ConstTensorView& rstd, const ConstTensorView& dsum,
                const TensorView& dx) const;
};

// Saved by the forward for the backward pass of one layer. [max_tokens, ..] each, of which a batch
// uses the first rows.
struct LayerActivations {
  LayerActivations() = default;
  LayerActivations(Context& context, const io::ModelDescription& d, const DecoderOptions& options);

  Tensor rstd1, normed1;                      // before attention
  Tensor qkv;                                 // q and k rotated in place where they have no norms
  Tensor q_raw, k_raw, q_rstd, k_rstd, q, k;  // with norms of q and k only
  Tensor mixed, log_sum_exp;                  // of attention
  Tensor sum2, rstd2, normed2;                // before the MLP
  Tensor gate_up, hidden;
};

// Gradients of the backward pass; one set for all layers.
struct Gradients {
  Gradients() = default;
  Gradients(Context& context, const io::ModelDescription& d, const DecoderOptions& options);

  Tensor stream;   // of the residual stream, [max_tokens, width]
  Tensor dropped;  // the same under a mask
  Tensor normed;   // of the input of a block
  Tensor mixed, qkv, q, k;
  Tensor hidden, gate_up;
};

// [tokens, cols] of the first rows of a buffer.
TensorView rows_of(const Tensor& buffer, std::int64_t tokens, std::int64_t cols);
// Columns [first, first + cols) of the rows of a matrix.
TensorView columns_of(const TensorView& matrix, std::int64_t first, std::int64_t cols);
// [tokens, heads, head_size] of rows of heads.
TensorView heads_of(const TensorView& rows, std::int64_t head_size);
void fill_zero(Context& context, const TensorView& contiguous);
// Of sums and statistics.
inline DType wide_of(DType compute) { return compute == DType::f64 ? DType::f64 : DType::f32; }

struct DecoderLayer {
  std::int64_t index = 0;
  RmsNormLayer attention_norm, mlp_norm;
  std::optional<RmsNormLayer> q_norm, k_norm;
  LinearLayer qkv, output, gate_up, down;
  const io::ModelDescription* description = nullptr;
  const model::Rotation* rotation = nullptr;

  // Matrices and vectors are listed by two calls, because all matrices come before all vectors.
  void add_matrices(Parameters& parameters);
  void add_vectors(Parameters& parameters);

  // sum1 [tokens, width] is the residual stream at the entry, normed1 and rstd1 are computed
  // already; `delta` is the output of the MLP, which the next norm adds to a.sum2.
  void forward(const Pass& pass, const Parameters& parameters, const ConstTensorView& sum1,
               LayerActivations& a, const TensorView& delta) const;
  // g.stream: the gradient of the layer's result, then that of sum1.
  void backward(const Pass& pass, const Parameters& parameters, const ConstTensorView& sum1,
                const LayerActivations& a, Gradients& g) const;

 private:
  void attend(const Pass& pass, const Parameters& parameters, LayerActivations& a) const;
  void attend_backward(const Pass& pass, const Parameters& parameters, const LayerActivations& a,
                       Gradients& g) const;
};

// The layers of a model one after the other, with the final norm and all buffers of a pass.
struct LayerStack {
  std::vector<DecoderLayer> layers;
  RmsNormLayer final_norm;
  std::vector<Tensor> sums;  // the residual stream at the entry of each layer and after the last
  std::vector<LayerActivations> activations;  // one, or one per layer
  Tensor delta, final_rstd, final_normed;
  Gradients gradients;

  // The description and the rotation outlive it, at their addresses.
  void add_matrices(const io::ModelDescription& d, const model::Rotation& rotation,
                    Parameters& parameters);
  void add_vectors(const io::ModelDescription& d, Parameters& parameters);
  void allocate(Context& context, const io::ModelDescription& d, const DecoderOptions& options);

  // From the entry, sums[0], to final_normed.
  void forward(const Pass& pass, const Parameters& parameters);
  // From gradients.normed, of final_normed, to gradients.stream, of the entry.
  void backward(const Pass& pass, const Parameters& parameters);

  TensorView rows(const Tensor& buffer, std::int64_t tokens) const;

 private:
  LayerActivations& activations_of(std::size_t layer);
};

}  // namespace touchstone::inline v0::train
