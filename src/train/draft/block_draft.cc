#include "touchstone/train/block_draft.h"

#include <fmt/format.h>

#include "model/rotation.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/cross_entropy.h"
#include "touchstone/ops/embedding.h"
#include "touchstone/ops/linear.h"
#include "train/draft/injection.h"
#include "train/layers.h"

namespace touchstone::inline v0::train {
namespace {

// The layers of a draft are those of Qwen3.
io::ModelDescription layers_of(const io::BlockDraftDescription& d) {
  io::ModelDescription m;
  m.family = io::ModelFamily::qwen3;
  m.width = d.width;
  m.ffn_width = d.mlp_width;
  m.heads = d.query_heads;
  m.kv_heads = d.kv_heads;
  m.head_size = d.head_size;
  m.vocabulary = d.vocabulary;
  m.layers.resize(static_cast<std::size_t>(d.layers));
  m.norm_epsilon = d.norm_eps;
  m.qk_norm = true;
  m.rope.dims = d.head_size;
  m.rope.theta = d.rope_base;
  return m;
}

TensorView one_rank(TensorView view) {
  view.rank = 1;
  return view;
}

// Views [n] as [1, n].
template <class View>
View as_row(View view) {
  view.rank = 2;
  view.shape = {1, view.shape[0]};
  view.stride = {view.shape[1], 1};
  return view;
}

}  // namespace

struct BlockDraft::State {
  io::BlockDraftDescription draft;
  io::ModelDescription description;
  SharedTables tables;
  BlockDraftOptions options;
  Parameters parameters;
  model::Rotation rotation;
  LinearLayer fc;
  RmsNormLayer hidden_norm;
  LayerStack stack;
  Injection injection;
  Tensor fused, fused_rstd, features, dfeatures, dfused, losses;

  void allocate(Context& context);
  Batch check(const BlockBatch& batch) const;
  void fuse(Context& context, const ConstTensorView& hidden);
  void fuse_backward(Context& context, const ConstTensorView& hidden);
  void forward(const Pass& pass, const BlockBatch& batch);
  void weigh(Context& context, const BlockBatch& batch, const TensorView& loss);
};

void BlockDraft::State::allocate(Context& context) {
  const io::ModelDescription& d = description;
  const std::int64_t positions = options.max_blocks * draft.block;
  fc.block =
      parameters.add_matrices({{"fc.weight", d.width}}, std::ssize(draft.taps) * d.width, 0.02);
  stack.add_matrices(d, rotation, parameters);
  hidden_norm = {parameters.add_vector("hidden_norm.weight", d.width), d.width, d.norm_epsilon};
  stack.add_vectors(d, parameters);
  const DType wide = wide_of(options.compute);
  parameters.allocate(context,
                      {.master = wide, .compute = options.compute, .average = options.average});
  stack.allocate(context, d,
                 {.compute = options.compute,
                  .max_tokens = positions,
                  .checkpoint_activations = options.checkpoint_activations,
                  .dropout = options.dropout});
  injection = Injection(context, d,
                        {.max_context = options.max_context,
                         .max_tokens = positions,
                         .max_keys = options.max_keys,
                         .compute = options.compute});
  const auto buffer = [&](std::int64_t rows, std::int64_t cols, DType dtype) {
    return Tensor::empty({rows, cols}, dtype, context.device());
  };
  fused = buffer(options.max_context, d.width, options.compute);
  features = buffer(options.max_context, d.width, options.compute);
  fused_rstd = buffer(options.max_context, 1, wide);
  dfeatures = buffer(options.max_context, d.width, wide);
  dfused = buffer(options.max_context, d.width, options.compute);
  losses = Tensor::zeros({positions}, wide, context.device());
}

Batch BlockDraft::State::check(const BlockBatch& b) const {
  const std::int64_t positions = b.tokens.elements();
  const std::int64_t context_tokens = b.hidden.shape[0];
  const std::int64_t columns = std::ssize(draft.taps) * draft.width;
  if (positions % draft.block != 0 || positions > options.max_blocks * draft.block ||
      context_tokens > options.max_context || b.keys.elements() > options.max_keys) {
    throw InvalidArgument(fmt::format(
        "train: blocks: expected whole blocks of {}, at most {}, over at most {} tokens and {} "
        "keys, got {} positions, {} tokens, {} keys",
        draft.block, options.max_blocks, options.max_context, options.max_keys, positions,
        context_tokens, b.keys.elements()));
  }
  if (b.hidden.rank != 2 || b.hidden.shape[1] != columns || b.hidden.dtype != options.compute) {
    throw InvalidArgument(fmt::format("train: blocks: hidden: expected {} [tokens, {}], got {} {}",
                                      name_of(options.compute), columns, name_of(b.hidden.dtype),
                                      shape_string(b.hidden.sizes())));
  }
  if (b.targets.elements() != positions || b.weights.elements() != positions ||
      b.positions.elements() != context_tokens + positions ||
      b.query_offsets.elements() != positions / draft.block + 1 ||
      b.key_offsets.elements() != positions / draft.block + 1) {
    throw InvalidArgument("train: blocks: targets, weights, positions or offsets differ in number");
  }
  ConstTensorView own = b.positions;  // of the blocks
  own.data = static_cast<const std::int64_t*>(own.data) + context_tokens;
  own.shape[0] = positions;
  return {.tokens = b.tokens,
          .targets = b.targets,
          .positions = own,
          .offsets = b.query_offsets,
          .rows = 1};
}

// One product per tap in f32, as the runtime does; in 16 bits their sum would be rounded in
// between.
void BlockDraft::State::fuse(Context& context, const ConstTensorView& hidden) {
  const std::int64_t rows = hidden.shape[0];
  const std::int64_t width = draft.width;
  const TensorView sum = rows_of(fused, rows, width);
  const ConstTensorView weight = parameters.compute(fc.block);
  const bool at_once = wide_of(options.compute) != options.compute;
  const std::int64_t step = at_once ? hidden.shape[1] : width;
  for (std::int64_t first = 0; first < hidden.shape[1]; first += step) {
    const auto columns = [&](ConstTensorView view) {
      view.data = static_cast<const std::byte*>(view.data) + first * size_of(view.dtype);
      view.shape[1] = step;
      return view;
    };
    linear(context, {.x = columns(hidden),
                     .weight = columns(weight),
                     .residual = first == 0 ? ConstTensorView{} : ConstTensorView(sum),
                     .y = sum});
  }
  hidden_norm.forward(context, parameters, sum, {}, {}, rows_of(features, rows, width),
                      one_rank(rows_of(fused_rstd, rows, 1)));
}

void BlockDraft::State::fuse_backward(Context& context, const ConstTensorView& hidden) {
  const std::int64_t rows = hidden.shape[0];
  const TensorView gradient = rows_of(dfused, rows, draft.width);
  cast(context, {.x = rows_of(dfeatures, rows, draft.width), .y = gradient});
  hidden_norm.backward(context, parameters, gradient, rows_of(fused, rows, draft.width),
                       one_rank(rows_of(fused_rstd, rows, 1)), {}, gradient);
  fc.backward(context, parameters, gradient, hidden, {});
}

void BlockDraft::State::forward(const Pass& pass, const BlockBatch& batch) {
  fuse(pass.context, batch.hidden);
  const std::int64_t rows = batch.hidden.shape[0];
  injection.features = rows_of(features, rows, draft.width);
  injection.dfeatures = rows_of(dfeatures, rows, draft.width);
  injection.positions = batch.positions;
  injection.keys = batch.keys;
  injection.query_offsets = batch.query_offsets;
  injection.key_offsets = batch.key_offsets;
  const TensorView entry = stack.rows(stack.sums[0], pass.tokens);
  embedding(pass.context, {.tokens = batch.tokens,
                           .weight = tables.embedding,
                           .y = entry,
                           .scale = tables.embedding_scale});
  drop(pass, 0, MaskOf::embedding, entry);
  stack.forward(pass, parameters);
}

// The weighted sum is a product of one row by one row.
void BlockDraft::State::weigh(Context& context, const BlockBatch& batch, const TensorView& loss) {
  TensorView sum = loss;
  sum.rank = 2;
  sum.shape = {1, 1};
  sum.stride = {1, 1};
  const TensorView each = Parameters::part(losses, 0, batch.tokens.elements());
  linear(context, {.x = as_row(each), .weight = as_row(batch.weights), .y = sum});
}

BlockDraft::BlockDraft(Context& context, const io::BlockDraftDescription& description,
                       const SharedTables& tables, const BlockDraftOptions& options)
    : state_(std::make_unique<State>()) {
  if (options.max_blocks < 1 || options.max_context < 0 || options.max_keys < 1 ||
      description.block < 2 || description.layers < 1 || description.taps.empty()) {
    throw InvalidArgument("train: blocks: expected at least one block of two positions and a tap");
  }
  for (const ConstTensorView* table : {&tables.embedding, &tables.head}) {
    if (table->rank != 2 || table->shape[0] != description.vocabulary ||
        table->shape[1] != description.width || table->dtype != options.compute) {
      throw InvalidArgument(fmt::format("train: blocks: tables: expected {} [{}, {}], got {} {}",
                                        name_of(options.compute), description.vocabulary,
                                        description.width, name_of(table->dtype),
                                        shape_string(table->sizes())));
    }
  }
  State& s = *state_;
  s.draft = description;
  s.description = layers_of(description);
  s.tables = tables;
  s.options = options;
  s.rotation = model::make_rotation(s.description.rope, 0, context.device());
  s.allocate(context);
}

BlockDraft::~BlockDraft() = default;
BlockDraft::BlockDraft(BlockDraft&&) noexcept = default;
BlockDraft& BlockDraft::operator=(BlockDraft&&) noexcept = default;

Parameters& BlockDraft::parameters() { return state_->parameters; }
const Parameters& BlockDraft::parameters() const { return state_->parameters; }
const io::BlockDraftDescription& BlockDraft::description() const { return state_->draft; }

void BlockDraft::loss(Context& context, const BlockBatch& batch, const TensorView& loss) {
  State& s = *state_;
  const Batch own = s.check(batch);
  const Pass pass{.context = context,
                  .batch = own,
                  .tokens = batch.tokens.elements(),
                  .injection = &s.injection};
  s.forward(pass, batch);
  cross_entropy(context, {.x = s.stack.rows(s.stack.final_normed, pass.tokens),
                          .weight = s.tables.head,
                          .targets = batch.targets,
                          .loss = Parameters::part(s.losses, 0, pass.tokens),
                          .soft_cap = s.tables.soft_cap});
  s.weigh(context, batch, loss);
}

void BlockDraft::backward(Context& context, const BlockBatch& batch, const StepSeed& seed,
                          const TensorView& loss) {
  State& s = *state_;
  const Batch own = s.check(batch);
  const Pass pass{.context = context,
                  .batch = own,
                  .tokens = batch.tokens.elements(),
                  .dropout = s.options.dropout,
                  .attention_dropout = s.options.attention_dropout,
                  .seed = seed,
                  .injection = &s.injection};
  s.forward(pass, batch);
  cross_entropy_backward(context, {.x = s.stack.rows(s.stack.final_normed, pass.tokens),
                                   .weight = s.tables.head,
                                   .targets = batch.targets,
                                   .dloss = batch.weights,
                                   .dx = s.stack.rows(s.stack.gradients.normed, pass.tokens),
                                   .loss = Parameters::part(s.losses, 0, pass.tokens),
                                   .soft_cap = s.tables.soft_cap});
  s.weigh(context, batch, loss);
  fill_zero(context, s.injection.dfeatures);
  s.stack.backward(pass, s.parameters);
  s.fuse_backward(context, batch.hidden);
  s.parameters.collect_vectors(context);
}

void BlockDraft::logits(Context& context, std::int64_t first, std::int64_t count,
                        const TensorView& out) {
  State& s = *state_;
  TensorView hidden = s.stack.rows(s.stack.final_normed, first + count);
  hidden.data =
      static_cast<std::byte*>(hidden.data) + first * s.draft.width * size_of(hidden.dtype);
  hidden.shape[0] = count;
  linear(context, {.x = hidden, .weight = s.tables.head, .y = out, .soft_cap = s.tables.soft_cap});
}

double BlockDraft::flops_per_position(double context_tokens, double keys) const {
  const io::BlockDraftDescription& d = state_->draft;
  const auto block = static_cast<double>(d.block);
  double products = static_cast<double>(d.vocabulary * d.width) * 2 / 3;  // the head has no dW
  for (const MatrixBlock& matrix : state_->parameters.blocks()) {
    products += static_cast<double>(matrix.rows * matrix.cols);
  }
  // Keys and values of the context, and fc, whose input has no gradient.
  const auto kv = static_cast<double>(2 * d.layers * d.kv_heads * d.head_size * d.width);
  const auto fusion = static_cast<double>(d.width * d.width) * static_cast<double>(d.taps.size());
  products += (kv + fusion * 2 / 3) * context_tokens / block - fusion;
  const auto scores = static_cast<double>(d.query_heads * d.head_size * d.layers) * keys;
  return 6 * products + 14 * scores;
}

}  // namespace touchstone::inline v0::train
