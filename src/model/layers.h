// The layers of a model: rows of tokens in, final hidden states out, keys and values to the cache.
// Everything per call lies in buffers that are allocated once, for max_rows rows.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "model/rotation.h"
#include "model/weights.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/layout.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/model_description.h"
#include "touchstone/model/model.h"
#include "touchstone/ops/linear.h"

namespace touchstone::inline v0::model {

// Layer `index` of layer group `group` of the cache.
struct CacheLayer {
  std::int64_t group = 0;
  std::int64_t index = 0;
};

// Layers with the same window and sinks have one cache layout and attend to the same positions: one
// layer group.
struct CachePlan {
  cache::Layout layout{};
  std::vector<CacheLayer> layers{};
};
CachePlan plan_cache(const io::ModelDescription& description, const ModelOptions& options);

// Rows that run together, sorted by the rows of the view. All tensors on the device.
struct Chunk {
  std::int64_t rows = 0;
  ConstTensorView tokens{};         // [rows] i32
  ConstTensorView positions{};      // [rows] i64, in the sequence
  ConstTensorView slots{};          // [rows] i64, where keys and values are stored
  ConstTensorView cache_rows{};     // [rows] i32, of the view
  ConstTensorView query_offsets{};  // [rows of the view + 1] i64
  // Of each layer group [rows, words] i64; none where all rows are chains.
  std::vector<ConstTensorView> trees{};
  ConstTensorView tree_starts{};  // [rows of the view] i64, with `trees`
  cache::CacheView view{};
};

// Runs one kind of operator of a step alone, and counts what all of them read and write.
struct StepTrace {
  std::string only{};                   // the kind that runs; "" = all
  std::vector<std::int64_t> lengths{};  // of the sequences, the new tokens included
  std::vector<StepPart> parts{};        // in the order of the first calls, without times
};

// Called with the output of layer i (0: the embedding), [rows, width], as soon as it is complete.
using HiddenHook = std::function<void(std::int64_t layer, const ConstTensorView& output)>;

class Layers {
 public:
  Layers(Context& context, const io::ModelDescription& description, const Weights& weights,
         const CachePlan& plan, const ModelOptions& options, std::int64_t max_length);

  // [rows, width], after the final norm; valid until the next call.
  ConstTensorView run(Context& context, const Chunk& chunk, const HiddenHook& hook);
  // The result of the last run, of `rows` rows.
  ConstTensorView last(std::int64_t rows) { return rows_of(normed_, rows, d_.width); }
  // For the calls that follow; null = none. Outlives them.
  void set_trace(StepTrace* trace) { trace_ = trace; }
  // y [n, width] of tokens [n], in the dtype of y.
  void embed_tokens(Context& context, const ConstTensorView& tokens, const TensorView& y) const;
  // logits [n, vocabulary] f32 of hidden states [n, width].
  void head(Context& context, const ConstTensorView& hidden, const TensorView& logits);
  // y = x in f32, [n, width], n at most max_rows.
  void widen(Context& context, const ConstTensorView& x, const TensorView& y) const;
  // Rows `from` [n] i32 of the last result one after another: [n, width].
  ConstTensorView gather(Context& context, const ConstTensorView& hidden,
                         const ConstTensorView& from);

 private:
  TensorView rows_of(Tensor& buffer, std::int64_t rows, std::int64_t columns) const;
  TensorView heads_of(Tensor& buffer, std::int64_t rows, std::int64_t heads) const;
  // Writes the residual stream; returns a tensor that the first norm adds to it, or none.
  ConstTensorView embed(Context& context, const Chunk& chunk);
  // y = norm(x + delta); x becomes the sum. Without a delta x stays.
  void norm(Context& context, const NormWeights& weights, const TensorView& x,
            const ConstTensorView& delta, const TensorView& y, const char* name = "norm");
  struct Epilogue {
    ConstTensorView residual{};
    LinearGate gate = LinearGate::none;
    double soft_cap = 0;
  };
  void project(Context& context, const char* name, const Matrix& matrix, const ConstTensorView& x,
               const TensorView& y, const Epilogue& epilogue);
  void rotate(Context& context, const Rotation& rotation, const Chunk& chunk, const TensorView& x);
  struct Heads {
    TensorView q{};  // [rows, heads, head_size]
    TensorView k{};
    TensorView v{};
  };
  Heads project_heads(Context& context, std::int64_t rows, const LayerWeights& w,
                      const ConstTensorView& input);
  // Norms and rotation of q and k, in place; k and v to the cache.
  void rotate_and_append(Context& context, const Chunk& chunk, const LayerWeights& w,
                         const Rotation& rotation, const CacheLayer& cache_layer,
                         const Heads& heads);
  // The same, call by call.
  void prepare_heads(Context& context, const Chunk& chunk, const LayerWeights& w,
                     const Rotation& rotation, const CacheLayer& cache_layer, const Heads& heads);
  // Records a call that reads and writes these tensors and `bytes` more in the trace. False: the
  // call must not run (a trace of another kind of operator).
  bool begin_call(const char* name, std::initializer_list<ConstTensorView> tensors,
                  std::int64_t bytes = 0);
  std::int64_t cached_bytes(const Chunk& chunk, const CacheLayer& cache_layer) const;
  // The attention of `input`, added to `residual` where there is one.
  void attention(Context& context, const Chunk& chunk, std::size_t layer,
                 const ConstTensorView& input, const ConstTensorView& residual,
                 const TensorView& y);
  void mlp(Context& context, std::int64_t rows, std::size_t layer, const ConstTensorView& input,
           const ConstTensorView& residual, const TensorView& y);
  // One layer. `delta` is the output of the previous block, not yet added to x; it becomes that of
  // this layer.
  void layer(Context& context, const Chunk& chunk, std::size_t index, ConstTensorView& delta,
             const HiddenHook& hook);

  const io::ModelDescription& d_;
  const Weights& w_;
  std::vector<CacheLayer> cache_layers_;
  DType compute_;
  Device device_;
  bool int8_activations_;
  Rotation rotation_;
  Rotation local_rotation_;
  Tensor x_;       // [max_rows, width], the residual stream
  Tensor normed_;  // [max_rows, width]
  Tensor delta_;   // [max_rows, width]
  Tensor qkv_;     // [max_rows, (heads + 2 kv_heads) * head_size], where the three are one matrix
  Tensor q_;       // [max_rows, heads * head_size]
  Tensor k_;
  Tensor v_;
  Tensor mixed_;     // what attention gives
  Tensor gate_up_;   // [max_rows, 2 * ffn_width], where the two are one matrix on the CPU
  Tensor gate_;      // [max_rows, ffn_width]
  Tensor up_;        // [max_rows, ffn_width]
  Tensor gathered_;  // [max_rows, width]
  StepTrace* trace_ = nullptr;
  Tensor counting_;  // [max_rows] i32: 0, 1, 2, ...
};

}  // namespace touchstone::inline v0::model
