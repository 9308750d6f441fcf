#include "train/decoder_trainee.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/index.h"
#include "io/model/convert_check.h"
#include "io/model/convert_metadata.h"
#include "io/model/tensor_rules.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/ternary_project.h"
#include "train/layers.h"
#include "train/model_identity.h"

namespace touchstone::inline v0::train {
namespace {

Projection projection_of(const TrainingOptions& options) {
  if (!options.ternary) return {};
  return [rule = *options.ternary](Context& context, const ConstTensorView& weight,
                                   const TensorView& values) {
    ternary_project(context, {.weight = weight, .rule = rule, .values = values});
  };
}

// The description, if what write_model() writes reads back as it: not known only after the training.
const io::ModelDescription& readable(const io::ModelDescription& description) {
  try {
    io::check_config(description, io::config_json(description, "float32"),
                     io::generation_json(description));
  } catch (const CorruptData& error) {
    throw InvalidArgument(fmt::format("train: the model could not be read back: {}", error.what()));
  } catch (const Unsupported& error) {
    throw Unsupported(fmt::format("train: the model could not be read back: {}", error.what()));
  }
  return description;
}

DecoderOptions decoder_options(const TrainingOptions& o, std::int64_t rows_at_once) {
  return {.compute = o.compute,
          .max_tokens = checked_mul(rows_at_once, o.length, "train"),
          .max_length = o.length,
          .average = o.average_decay > 0,
          .checkpoint_activations = o.checkpoint_activations,
          .dropout = o.dropout,
          .attention_dropout = o.attention_dropout,
          .projection = projection_of(o)};
}

std::int64_t slot_bytes(std::int64_t tokens, DType wide) {
  return StagingBuffers::bytes_of({{DType::i32, tokens},
                                   {DType::i32, tokens},
                                   {DType::i64, tokens},
                                   {DType::i64, tokens + 1},
                                   {wide, tokens}});
}

}  // namespace

DecoderTrainee::DecoderTrainee(Context& context, const io::ModelDescription& description,
                               const TrainingOptions& options, const TokenData& training,
                               const TokenData& validation)
    : context_(context),
      options_(options),
      rows_at_once_(options.rows_at_once > 0 ? options.rows_at_once : options.rows),
      passes_(options.rows / rows_at_once_),
      decoder_(context, readable(description), decoder_options(options, rows_at_once_)),
      source_(training, options.length, options.seed),
      held_out_(validation, options.length, options.seed),
      validation_(validation),
      buffers_(context, slot_bytes(rows_at_once_ * options.length, wide_of(options.compute)),
               passes_),
      loss_(Tensor::zeros({1}, wide_of(options.compute), context.device())) {}

void DecoderTrainee::set_teacher(decode::Scorer* teacher) {
  teacher_.reset();
  if (teacher != nullptr) {
    teacher_identity_ = identity_text(*teacher);
    teacher_.emplace(context_, *teacher, decoder_.description().vocabulary, options_.length,
                     rows_at_once_ * options_.length);
  }
}

void DecoderTrainee::plan(std::int64_t step) {
  if (step == step_) return;
  planned_.clear();
  counted_ = 0;
  for (std::int64_t i = 0; i < passes_; ++i) {
    planned_.push_back(source_.rows(step * options_.rows + i * rows_at_once_, rows_at_once_));
    counted_ += planned_.back().counted;
  }
  step_ = step;
}

Batch DecoderTrainee::upload(const HostBatch& batch, std::int64_t slot) {
  buffers_.begin(slot);
  Batch result{.tokens = buffers_.send(context_, batch.tokens),
               .targets = buffers_.send(context_, batch.targets),
               .positions = buffers_.send(context_, batch.positions),
               .rows = batch.rows};
  if (!batch.offsets.empty()) result.offsets = buffers_.send(context_, batch.offsets);
  return result;
}

double DecoderTrainee::run(std::int64_t pass, const TensorView& loss) {
  const HostBatch& host = planned_[at(pass)];
  const std::int64_t tokens = std::ssize(host.tokens);
  const Batch batch = upload(host, pass);
  const auto targets = static_cast<double>(std::max<std::int64_t>(1, counted_));
  const std::vector<double> share(at(tokens), loss_scale() / targets);
  const ConstTensorView dloss = buffers_.send_wide(context_, share, loss.dtype);
  std::optional<Distillation> distillation;
  if (teacher_) {
    distillation = Distillation{.logits = teacher_->score(context_, host),
                                .weight = options_.teacher_weight,
                                .temperature = options_.teacher_temperature};
  }
  decoder_.backward(context_, batch,
                    {.seed = options_.seed, .step = step_, .first_token = pass * tokens}, dloss,
                    loss, distillation);
  return static_cast<double>(host.counted) / targets;
}

void DecoderTrainee::evaluate(std::int64_t max_rows, EvaluationReport& report) {
  std::int64_t rows = held_out_.sequential_rows();
  if (max_rows > 0) rows = std::min(rows, max_rows);
  double sum = 0;
  std::int64_t counted = 0;
  for (std::int64_t first = 0; first < rows; first += rows_at_once_) {
    const HostBatch host = held_out_.sequential(first, std::min(rows_at_once_, rows - first));
    decoder_.loss(context_, upload(host, 0), loss_);
    sum += download_numbers(context_, loss_)[0] * static_cast<double>(host.counted);
    counted += host.counted;
  }
  if (counted == 0) throw InvalidArgument("train: validation text: no token of it has a successor");
  report.loss = sum / static_cast<double>(counted);
  const double bytes_per_token =
      static_cast<double>(validation_.bytes) / static_cast<double>(validation_.size());
  report.bits_per_byte = report.loss / std::log(2.0) / bytes_per_token;
}

std::map<std::string, std::string> DecoderTrainee::decisions() const {
  return {{"model", architecture_text(decoder_.description())},
          {"teacher", teacher_ ? fmt::format("{} weight {} temperature {}", teacher_identity_,
                                             options_.teacher_weight, options_.teacher_temperature)
                               : "none"}};
}

std::string DecoderTrainee::stored_name(const std::string& parameter) const {
  const io::ModelFamily family = decoder_.description().family;
  return hugging_face_name(family, io::known_prefixes(family)[0], parameter);
}

std::string DecoderTrainee::config_json(std::string_view torch_dtype) const {
  return io::config_json(decoder_.description(), torch_dtype);
}

}  // namespace touchstone::inline v0::train
