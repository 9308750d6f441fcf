#include "train/draft/draft_trainee.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/softmax_topk.h"
#include "touchstone/train/operators.h"
#include "train/layers.h"
#include "train/model_identity.h"

namespace touchstone::inline v0::train {
namespace {

// Elements of the logits buffer of an evaluation.
constexpr std::int64_t kLogitsAtOnce = std::int64_t{1} << 24;

DraftTraining checked_draft(DraftTraining draft, const TrainingOptions& o) {
  if (draft.target == nullptr) throw InvalidArgument("train: draft: expected a target");
  const decode::ScorerShape& shape = draft.target->shape();
  const io::BlockDraftDescription& d = draft.description;
  const auto same = [](const char* what, std::int64_t own, std::int64_t targets) {
    if (own == targets) return;
    throw InvalidArgument(fmt::format("train: draft: {}: expected {}, that of the target, got {}",
                                      what, targets, own));
  };
  same("width", d.width, shape.hidden_size);
  same("vocabulary", d.vocabulary, shape.vocabulary);
  const auto refuse_if = [](bool condition, const char* what) {
    if (condition) throw Unsupported(fmt::format("train: draft: {} is not supported", what));
  };
  refuse_if(draft.target->description().head_bias, "a bias of the target's head");
  refuse_if(draft.target->description().learned_positions, "a target with learned positions");
  refuse_if(o.ternary.has_value(), "a ternary draft");
  refuse_if(o.compute == DType::f64, "f64");
  if (draft.anchors < 1 || draft.memory_bytes < 0 || draft.spill_bytes < 0 || !(draft.decay >= 0) ||
      !std::isfinite(draft.decay)) {
    throw InvalidArgument(fmt::format(
        "train: draft: expected at least one anchor and a decay of at least 0, got {} and {}",
        draft.anchors, draft.decay));
  }
  if (d.mask_token < 0 || d.mask_token >= d.vocabulary) {
    throw InvalidArgument(fmt::format("train: draft: mask_token: expected 0 to {}, got {}",
                                      d.vocabulary - 1, d.mask_token));
  }
  draft.anchors = std::min(draft.anchors, o.length);
  if (draft.decay == 0) draft.decay = std::min(7.0, static_cast<double>(d.block) / 2);
  return draft;
}

// A table of the target, decoded and rounded to `compute`.
Tensor table_of(Context& context, const model::Model& target, const char* name, DType compute) {
  const io::Weight weight = target.file().load(name);
  Tensor host = Tensor::empty(weight.shape, DType::f32);
  decode_weights(*weight.format, weight.data, host.values<float>());
  Tensor wide = host.to(context.device());
  if (compute == DType::f32) return wide;
  Tensor table = Tensor::empty(weight.shape, compute, context.device());
  cast(context, {.x = wide, .y = table});
  context.synchronize();
  return table;
}

std::vector<std::int32_t> tapped_layers(const io::BlockDraftDescription& d) {
  std::vector<std::int32_t> layers;
  // The output of layer i, from 0, is hidden state i + 1.
  for (const std::int64_t tap : d.taps) layers.push_back(static_cast<std::int32_t>(tap + 1));
  return layers;
}

BlockDraftOptions draft_options(const DraftTraining& t, const TrainingOptions& o,
                                std::int64_t rows) {
  const std::int64_t context = checked_mul(rows, o.length, "train");
  const std::int64_t blocks = checked_mul(rows, t.anchors, "train");
  return {.compute = o.compute,
          .max_context = context,
          .max_blocks = blocks,
          .max_keys = checked_mul(blocks, o.length + t.description.block, "train"),
          .average = o.average_decay > 0,
          .checkpoint_activations = o.checkpoint_activations,
          .dropout = o.dropout,
          .attention_dropout = o.attention_dropout};
}

std::int64_t slot_bytes(const BlockDraftOptions& o, std::int64_t block) {
  const std::int64_t positions = o.max_blocks * block;
  return StagingBuffers::bytes_of({{DType::i32, positions},
                                   {DType::i32, positions},
                                   {DType::f64, positions},
                                   {DType::i64, o.max_context + positions},
                                   {DType::i32, o.max_keys},
                                   {DType::i64, o.max_blocks + 1},
                                   {DType::i64, o.max_blocks + 1}});
}

}  // namespace

DraftTrainee::DraftTrainee(Context& context, const DraftTraining& draft,
                           const TrainingOptions& options, const TokenData& training,
                           const TokenData& validation)
    : context_(context),
      options_(options),
      training_(checked_draft(draft, options)),
      rows_at_once_(options.rows_at_once > 0 ? options.rows_at_once : options.rows),
      embedding_(table_of(context, *draft.target, "token_embd.weight", options.compute)),
      head_(draft.target->description().tied_head
                ? Tensor{}
                : table_of(context, *draft.target, "output.weight", options.compute)),
      draft_(context, training_.description,
             {.embedding = embedding_,
              .head = head_.elements() > 0 ? head_ : embedding_,
              .embedding_scale = draft.target->description().embedding_scale,
              .soft_cap = draft.target->description().final_soft_cap},
             draft_options(training_, options, rows_at_once_)),
      source_(training, options.length, options.seed, true),
      held_out_(validation, options.length, options.seed),
      features_(context, *draft.target,
                {.layers = tapped_layers(training_.description),
                 .length = options.length,
                 .dtype = options.compute,
                 .memory_bytes = training_.memory_bytes,
                 .spill_bytes = training_.spill_bytes,
                 .spill_folder = training_.spill_folder}),
      buffers_(
          context,
          slot_bytes(draft_options(training_, options, rows_at_once_), training_.description.block),
          options.rows / rows_at_once_),
      loss_(Tensor::zeros({1}, DType::f32, context.device())) {
  target_identity_ = identity_text(*training_.target);
  const io::BlockDraftDescription& d = training_.description;
  hidden_ = Tensor::empty({rows_at_once_ * options.length, std::ssize(d.taps) * d.width},
                          options.compute, context.device());
}

DraftTrainee::Planned DraftTrainee::plan_pass(std::int64_t step, std::int64_t pass) const {
  Planned planned;
  std::vector<std::vector<std::int64_t>> anchors;
  for (std::int64_t i = 0; i < rows_at_once_; ++i) {
    const std::int64_t index = step * options_.rows + pass * rows_at_once_ + i;
    planned.rows.push_back(source_.rows(index, 1));
    planned.windows.push_back(source_.start_of(index) / options_.length);
    anchors.push_back(draw_anchors(possible_anchors(planned.rows.back()), training_.anchors,
                                   options_.seed, index));
  }
  planned.blocks = make_blocks(training_.description, planned.rows, anchors, training_.decay);
  return planned;
}

void DraftTrainee::plan(std::int64_t step) {
  if (step == step_) return;
  planned_.clear();
  weight_ = 0;
  for (std::int64_t i = 0; i < options_.rows / rows_at_once_; ++i) {
    planned_.push_back(plan_pass(step, i));
    weight_ += planned_.back().blocks.weight;
  }
  step_ = step;
}

// Weights are multiplied by `scale`.
BlockBatch DraftTrainee::upload(std::span<const HostBatch> rows,
                                std::span<const std::int64_t> windows, HostBlocks blocks,
                                double scale, std::int64_t slot) {
  const TensorView hidden =
      rows_of(hidden_, std::ssize(rows) * options_.length, hidden_.sizes()[1]);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    TensorView window = hidden;
    window.data = static_cast<std::byte*>(window.data) + static_cast<std::int64_t>(r) *
                                                             options_.length * window.stride[0] *
                                                             size_of(window.dtype);
    window.shape[0] = options_.length;
    features_.fetch(context_, windows[r], rows[r], window);
  }
  for (double& weight : blocks.weights) weight *= scale;
  buffers_.begin(slot);
  return {.hidden = hidden,
          .tokens = buffers_.send(context_, blocks.tokens),
          .targets = buffers_.send(context_, blocks.targets),
          .weights = buffers_.send_wide(context_, blocks.weights, DType::f32),
          .positions = buffers_.send(context_, blocks.positions),
          .keys = buffers_.send(context_, blocks.keys),
          .query_offsets = buffers_.send(context_, blocks.query_offsets),
          .key_offsets = buffers_.send(context_, blocks.key_offsets)};
}

double DraftTrainee::run(std::int64_t pass, const TensorView& loss) {
  const Planned& p = planned_[at(pass)];
  const double scale = weight_ > 0 ? loss_scale() / weight_ : 0;
  const std::int64_t positions = rows_at_once_ * training_.anchors * training_.description.block;
  draft_.backward(context_, upload(p.rows, p.windows, p.blocks, scale, pass),
                  {.seed = options_.seed, .step = step_, .first_token = pass * positions}, loss);
  return 1 / loss_scale();  // the loss is a sum by the scaled weights
}

std::vector<std::int32_t> DraftTrainee::likeliest(std::int64_t positions) {
  const std::int64_t vocabulary = training_.description.vocabulary;
  const std::int64_t chunk = std::clamp<std::int64_t>(kLogitsAtOnce / vocabulary, 1, positions);
  const Device device = context_.device();
  if (logits_.elements() < chunk * vocabulary) {
    logits_ = Tensor::empty({chunk * vocabulary}, DType::f32, device);
  }
  if (picked_.elements() < 2 * positions) {
    picked_ = Tensor::empty({2 * positions}, DType::i32, device);
  }
  auto* const base = static_cast<std::int32_t*>(picked_.data());
  for (std::int64_t first = 0; first < positions; first += chunk) {
    const std::int64_t count = std::min(chunk, positions - first);
    const std::int64_t shape[] = {count, vocabulary};
    const std::int64_t one[] = {count, 1};
    const TensorView logits = make_view(logits_.data(), shape, DType::f32, device);
    draft_.logits(context_, first, count, logits);
    softmax_topk(context_,
                 {.logits = logits,
                  .probabilities = make_view(static_cast<void*>(base + positions + first), one,
                                             DType::f32, device),
                  .indices = make_view(static_cast<void*>(base + first), one, DType::i32, device)});
  }
  const std::int64_t all[] = {positions};
  return download<std::int32_t>(context_,
                                make_view(static_cast<const void*>(base), all, DType::i32, device));
}

// Every token of the row begins a block, as many at a time as a pass has room for.
DraftTrainee::RowResult DraftTrainee::evaluate_row(std::int64_t row) {
  const std::int64_t block = training_.description.block;
  const HostBatch host = held_out_.sequential(row, 1);
  const std::vector<std::int64_t> possible = possible_anchors(host);
  const std::int64_t keys[] = {-1 - row};  // those of training are 0 and above
  const std::int64_t at_once = rows_at_once_ * training_.anchors;
  RowResult result;
  // Of each token that begins a whole block how many of its tokens are right, up to the first wrong
  // one.
  std::vector<std::int64_t> right(host.tokens.size(), -1);
  for (std::int64_t first = 0; first < std::ssize(possible); first += at_once) {
    const std::int64_t count = std::min(at_once, std::ssize(possible) - first);
    const std::vector<std::int64_t> anchors[] = {
        {possible.begin() + first, possible.begin() + first + count}};
    const HostBlocks blocks =
        make_blocks(training_.description, {&host, 1}, anchors, training_.decay);
    draft_.loss(context_, upload({&host, 1}, keys, blocks, 1, 0), loss_);
    result.loss += download_numbers(context_, loss_)[0];
    result.weight += blocks.weight;
    const std::vector<std::int32_t> picked = likeliest(count * block);
    for (std::int64_t i = 0; i < count; ++i) {
      if (blocks.targets[at(i * block + block - 1)] < 0) continue;
      std::int64_t matched = 0;
      while (matched < block - 1 &&
             picked[at(i * block + 1 + matched)] == blocks.targets[at(i * block + 1 + matched)]) {
        ++matched;
      }
      right[at(anchors[0][at(i)])] = matched;
    }
  }
  // As in decoding: a pass commits the right tokens and the target's next one, with which the next
  // pass begins.
  for (std::int64_t token = 0; token < std::ssize(right);) {
    if (right[at(token)] < 0) {
      ++token;  // the end of a document
      continue;
    }
    ++result.passes;
    result.tokens += right[at(token)] + 1;
    token += right[at(token)] + 1;
  }
  return result;
}

void DraftTrainee::evaluate(std::int64_t max_rows, EvaluationReport& report) {
  std::int64_t rows = held_out_.sequential_rows();
  if (max_rows > 0) rows = std::min(rows, max_rows);
  RowResult all;
  for (std::int64_t row = 0; row < rows; ++row) {
    const RowResult one = evaluate_row(row);
    all.loss += one.loss;
    all.weight += one.weight;
    all.passes += one.passes;
    all.tokens += one.tokens;
  }
  if (all.weight == 0) {
    throw InvalidArgument("train: validation text: no token of it can begin a block");
  }
  report.loss = all.loss / all.weight;
  if (all.passes > 0) {
    report.tokens_per_pass = static_cast<double>(all.tokens) / static_cast<double>(all.passes);
  }
}

std::map<std::string, std::string> DraftTrainee::decisions() const {
  const io::BlockDraftDescription& d = training_.description;
  return {{"model",
           fmt::format("dflash layers {} width {} ffn {} heads {}/{} of {} vocabulary {} theta {} "
                       "epsilon {} block {} mask {} taps {}",
                       d.layers, d.width, d.mlp_width, d.query_heads, d.kv_heads, d.head_size,
                       d.vocabulary, d.rope_base, d.norm_eps, d.block, d.mask_token,
                       fmt::join(d.taps, " "))},
          {"target", target_identity_},
          {"anchors", std::to_string(training_.anchors)},
          {"decay", fmt::format("{}", training_.decay)}};
}

std::int64_t DraftTrainee::tokens_of_step() const {
  return options_.rows * training_.anchors * training_.description.block;
}

double DraftTrainee::flops_per_token() const {
  const auto length = static_cast<double>(options_.length);
  return draft_.flops_per_position(length / static_cast<double>(training_.anchors),
                                   length / 2 + static_cast<double>(training_.description.block));
}

std::string DraftTrainee::stored_name(const std::string& parameter) const {
  if (parameter == "fc.weight" || parameter == "hidden_norm.weight") return parameter;
  return hugging_face_name(io::ModelFamily::qwen3, "", parameter);
}

std::string DraftTrainee::config_json(std::string_view torch_dtype) const {
  return io::block_draft_json(training_.description, torch_dtype);
}

}  // namespace touchstone::inline v0::train
