#include "touchstone/train/decoder.h"

#include <fmt/format.h>

#include "model/rotation.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/cross_entropy.h"
#include "touchstone/ops/embedding.h"
#include "touchstone/ops/linear.h"
#include "train/distill.h"
#include "train/layers.h"

namespace touchstone::inline v0::train {
namespace {

void refuse_if(bool condition, const char* what) {
  if (condition) throw Unsupported(fmt::format("train: {} cannot be trained", what));
}

void check_trainable(const io::ModelDescription& d) {
  refuse_if(d.family != io::ModelFamily::llama && d.family != io::ModelFamily::qwen3,
            "a family other than llama and qwen3");
  refuse_if(d.norm != io::NormKind::rms || d.norm_bias, "a norm other than RMS");
  refuse_if(d.post_norms, "a model with norms after its blocks");
  refuse_if(d.learned_positions || d.rope.dims == 0, "a model with learned positions");
  refuse_if(d.local_rope.has_value(), "a model with two rotations");
  refuse_if(d.attention_soft_cap != 0 || d.final_soft_cap != 0, "a model with soft caps");
  refuse_if(d.qkv_bias || d.attention_output_bias || d.mlp_bias || d.head_bias,
            "a model with biases");
  refuse_if(!d.gated || d.activation != io::ActivationKind::silu,
            "an MLP other than a gate with silu");
  refuse_if(d.parallel_blocks, "a model with parallel blocks");
  refuse_if(d.embedding_scale != 1, "a model with a scaled embedding");
  // Counters of dropout keep 16 bits for four draws per layer.
  refuse_if(d.layers.size() > (1U << 14), "a model of more than 16384 layers");
}

}  // namespace

struct Decoder::State {
  io::ModelDescription description;
  DecoderOptions options;
  Parameters parameters;
  model::Rotation rotation;
  LinearLayer embedding, head;
  LayerStack stack;
  DistillBuffers distill;

  void add_parameters(Context& context);
  Pass check(Context& context, const Batch& batch) const;
  void forward(const Pass& pass);
  void backward_layers(const Pass& pass);
};

void Decoder::State::add_parameters(Context& context) {
  const io::ModelDescription& d = description;
  embedding.block = parameters.add_matrices({{"token_embd.weight", d.vocabulary}}, d.width, 0.02);
  stack.add_matrices(d, rotation, parameters);
  head =
      d.tied_head
          ? embedding
          : LinearLayer{parameters.add_matrices({{"output.weight", d.vocabulary}}, d.width, 0.02)};
  stack.add_vectors(d, parameters);
  parameters.set_projection(options.projection);
  const DType master = options.compute == DType::f64 ? DType::f64 : DType::f32;
  parameters.allocate(context,
                      {.master = master, .compute = options.compute, .average = options.average});
}

Pass Decoder::State::check(Context& context, const Batch& batch) const {
  const std::int64_t tokens = batch.tokens.elements();
  if (tokens > options.max_tokens || batch.rows < 1 || tokens % batch.rows != 0) {
    throw InvalidArgument(fmt::format(
        "train: batch: expected whole rows of at most {} tokens in all, got {} in {} rows",
        options.max_tokens, tokens, batch.rows));
  }
  if (batch.targets.elements() != tokens || batch.positions.elements() != tokens) {
    throw InvalidArgument("train: batch: tokens, targets and positions differ in number");
  }
  return {.context = context, .batch = batch, .tokens = tokens};
}

// The hidden states after the final norm.
void Decoder::State::forward(const Pass& pass) {
  const TensorView entry = stack.rows(stack.sums[0], pass.tokens);
  touchstone::embedding(
      pass.context,
      {.tokens = pass.batch.tokens, .weight = parameters.compute(embedding.block), .y = entry});
  drop(pass, 0, MaskOf::embedding, entry);
  stack.forward(pass, parameters);
}

// stack.gradients.normed holds the gradient of the hidden states.
void Decoder::State::backward_layers(const Pass& pass) {
  const std::int64_t n = pass.tokens;
  stack.backward(pass, parameters);
  embedding_backward(pass.context, {.tokens = pass.batch.tokens,
                                    .dy = drop_gradient(pass, 0, MaskOf::embedding,
                                                        stack.rows(stack.gradients.stream, n),
                                                        stack.rows(stack.gradients.dropped, n)),
                                    .dweight = parameters.gradient(embedding.block),
                                    .accumulate = true});
  parameters.collect_vectors(pass.context);
}

Decoder::Decoder(Context& context, const io::ModelDescription& description,
                 const DecoderOptions& options)
    : state_(std::make_unique<State>()) {
  check_trainable(description);
  if (options.max_tokens < 1 || options.max_length < 1 ||
      options.max_length > description.context) {
    throw InvalidArgument(fmt::format(
        "train: length: expected 1 to the model's context of {} tokens, got {} ({} in a batch)",
        description.context, options.max_length, options.max_tokens));
  }
  state_->description = description;
  state_->options = options;
  state_->rotation = model::make_rotation(description.rope, options.max_length, context.device());
  state_->add_parameters(context);
  state_->stack.allocate(context, state_->description, options);
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Parameters& Decoder::parameters() { return state_->parameters; }
const Parameters& Decoder::parameters() const { return state_->parameters; }
const io::ModelDescription& Decoder::description() const { return state_->description; }

void Decoder::loss(Context& context, const Batch& batch, const TensorView& mean_loss,
                   const TensorView& losses) {
  State& s = *state_;
  const Pass pass = s.check(context, batch);
  s.forward(pass);
  cross_entropy(context, {.x = s.stack.rows(s.stack.final_normed, pass.tokens),
                          .weight = s.parameters.compute(s.head.block),
                          .targets = batch.targets,
                          .loss = losses,
                          .mean_loss = mean_loss});
}

void Decoder::backward(Context& context, const Batch& batch, const StepSeed& seed,
                       const ConstTensorView& dloss, const TensorView& mean_loss,
                       const std::optional<Distillation>& teacher) {
  State& s = *state_;
  Pass pass = s.check(context, batch);
  pass.dropout = s.options.dropout;
  pass.attention_dropout = s.options.attention_dropout;
  pass.seed = seed;
  s.forward(pass);
  const TensorView hidden = s.stack.rows(s.stack.final_normed, pass.tokens);
  const TensorView dhidden = s.stack.rows(s.stack.gradients.normed, pass.tokens);
  if (teacher) {
    distill_backward(context, s.distill,
                     {.hidden = hidden,
                      .weight = s.parameters.compute(s.head.block),
                      .targets = batch.targets,
                      .dloss = dloss,
                      .dhidden = dhidden,
                      .dweight = s.parameters.gradient(s.head.block),
                      .mean_loss = mean_loss,
                      .teacher = *teacher});
  } else {
    cross_entropy_backward(context, {.x = hidden,
                                     .weight = s.parameters.compute(s.head.block),
                                     .targets = batch.targets,
                                     .dloss = dloss,
                                     .dx = dhidden,
                                     .dweight = s.parameters.gradient(s.head.block),
                                     .mean_loss = mean_loss,
                                     .accumulate = true});
  }
  s.backward_layers(pass);
}

void Decoder::logits(Context& context, std::int64_t first, std::int64_t count,
                     const TensorView& out) {
  State& s = *state_;
  const std::int64_t width = s.description.width;
  TensorView hidden = s.stack.rows(s.stack.final_normed, first + count);
  hidden.data = static_cast<std::byte*>(hidden.data) + first * width * size_of(hidden.dtype);
  hidden.shape[0] = count;
  linear(context, {.x = hidden, .weight = s.parameters.compute(s.head.block), .y = out});
}

double Decoder::flops_per_token(std::int64_t length) const {
  const io::ModelDescription& d = state_->description;
  double products = 0;
  for (const MatrixBlock& block : state_->parameters.blocks()) {
    products += static_cast<double>(block.rows) * static_cast<double>(block.cols);
  }
  // The embedding is looked up, not multiplied; a tied one is multiplied as the head.
  if (!d.tied_head) products -= static_cast<double>(d.vocabulary * d.width);
  const double scores = static_cast<double>(d.heads * d.head_size) * static_cast<double>(length) *
                        static_cast<double>(d.layers.size());
  // Causal attention: 2 products of half the scores forward, 5 backward.
  return 6 * products + 7 * scores;
}

}  // namespace touchstone::inline v0::train
