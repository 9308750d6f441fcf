#include "touchstone/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "touchstone/core/error.h"
#include "touchstone/ops/ternary_project.h"
#include "touchstone/train/operators.h"
#include "train/layers.h"
#include "train/trainer_state.h"

namespace touchstone::inline v0::train {
namespace {

void check_at_least(const char* name, double value, double least) {
  if (!(value >= least) || !std::isfinite(value)) {
    throw InvalidArgument(
        fmt::format("train: {}: expected at least {}, got {}", name, least, value));
  }
}

void check_below(const char* name, double value, double least, double end) {
  if (!(value >= least && value < end)) {
    throw InvalidArgument(fmt::format("train: {}: expected at least {} and less than {}, got {}",
                                      name, least, end, value));
  }
}

// Before memory is taken for rows that a text cannot fill.
void check_text(const char* what, const TokenData& data, std::int64_t vocabulary,
                std::int64_t length) {
  if (data.size() <= length) {
    throw InvalidArgument(
        fmt::format("train: {}: expected more than {} tokens, the length of a row, got {}", what,
                    length, data.size()));
  }
  for (const std::int32_t token : data.tokens) {
    if (token >= 0 && token < vocabulary) continue;
    throw InvalidArgument(fmt::format("train: {}: expected tokens of a vocabulary of {}, got {}",
                                      what, vocabulary, token));
  }
}

void check_texts(const TokenData& training, const TokenData& validation, std::int64_t vocabulary,
                 std::int64_t length) {
  check_text("text", training, vocabulary, length);
  check_text("validation text", validation, vocabulary, length);
}

}  // namespace

void check_options(const TrainingOptions& o) {
  check_at_least("steps", static_cast<double>(o.steps), 1);
  check_at_least("rows", static_cast<double>(o.rows), 1);
  check_at_least("length", static_cast<double>(o.length), 1);
  check_at_least("warm_up", static_cast<double>(o.warm_up), 0);
  check_at_least("learning_rate", o.learning_rate, 0);
  check_at_least("final_rate", o.final_rate, 0);
  check_at_least("second_rate", o.second_rate, 0);
  check_at_least("weight_decay", o.weight_decay, 0);
  check_at_least("epsilon", o.epsilon, 0);
  check_at_least("clip", o.clip, 0);
  check_below("beta1", o.beta1, 0, 1);
  check_below("beta2", o.beta2, 0, 1);
  check_below("average_decay", o.average_decay, 0, 1);
  // Probabilities are rounded to 1/65536; all must not be dropped.
  constexpr double kMaxDropout = 1 - 0.5 / 65536;
  check_below("dropout", o.dropout, 0, kMaxDropout);
  check_below("attention_dropout", o.attention_dropout, 0, kMaxDropout);
  check_at_least("teacher_weight", o.teacher_weight, 0);
  if (o.teacher_weight > 1 || !(o.teacher_temperature > 0) ||
      !std::isfinite(o.teacher_temperature)) {
    throw InvalidArgument(fmt::format(
        "train: teacher: expected a weight from 0 to 1 and a temperature above 0, got {} and {}",
        o.teacher_weight, o.teacher_temperature));
  }
  if (o.steps >= std::int64_t{1} << 23) {
    throw InvalidArgument(fmt::format("train: steps: expected less than 2^23, got {}", o.steps));
  }
  if (o.rows_at_once < 0 || (o.rows_at_once > 0 && o.rows % o.rows_at_once != 0)) {
    throw InvalidArgument(
        fmt::format("train: rows_at_once: expected a divisor of the {} rows of a step, got {}",
                    o.rows, o.rows_at_once));
  }
  if (o.ternary && o.compute == DType::bf16 && o.ternary->scale_type == TernaryScaleType::f16) {
    throw InvalidArgument("train: ternary: scales of f16 are not exact in bf16: take f16_bf16");
  }
}

Trainer::State::State(Context& context_, const TrainingOptions& options_,
                      std::unique_ptr<Trainee> made, const TokenData& training_,
                      const TokenData& validation_)
    : context(context_),
      options(options_),
      trainee(std::move(made)),
      training(training_),
      validation(validation_),
      passes(options_.rows_at_once > 0 ? options_.rows / options_.rows_at_once : 1),
      losses(Tensor::zeros({passes}, wide_of(options_.compute), context_.device())),
      norm(Tensor::zeros({1}, DType::f64, context_.device())) {}

// Clips and applies the gradients. AdamW divides a gradient by its own magnitude: with clip and
// epsilon scaled alike the loss scale cancels in the update; only the moments contain it.
void Trainer::State::update(std::int64_t step) {
  Parameters& p = trainee->parameters();
  const StepRates rates = rates_at(options, step);
  const double scale = trainee->loss_scale();
  // The average follows the weights closely at first, while they change quickly.
  const double decay = std::min(options.average_decay,
                                static_cast<double>(1 + step) / static_cast<double>(10 + step));
  const std::int64_t ends[] = {0, p.matrix_elements(), p.elements()};
  for (int part = 0; part < 2; ++part) {
    const auto of = [&](const TensorView& buffer) {
      return buffer.defined() ? Parameters::part(buffer, ends[part], ends[part + 1]) : TensorView{};
    };
    adamw(context, {.gradient = of(p.gradients()),
                    .norm = norm,
                    .weight = of(p.weights()),
                    .m = of(p.m()),
                    .v = of(p.v()),
                    .average = p.averaged() ? of(p.average()) : TensorView{},
                    .step = step + 1,
                    .learning_rate = rates.learning_rate,
                    .beta1 = options.beta1,
                    .beta2 = options.beta2,
                    .epsilon = scale * options.epsilon,
                    .weight_decay = part == 0 ? rates.weight_decay : 0,
                    .clip = scale * options.clip,
                    .average_decay = p.averaged() ? decay : 0});
  }
}

Trainer::Trainer(Context& context, const io::ModelDescription& description,
                 const TrainingOptions& options, const TokenData& training,
                 const TokenData& validation) {
  check_options(options);
  check_texts(training, validation, description.vocabulary, options.length);
  auto made = std::make_unique<DecoderTrainee>(context, description, options, training, validation);
  DecoderTrainee* const text = made.get();
  state_ = std::make_unique<State>(context, options, std::move(made), training, validation);
  state_->text = text;
}

Trainer::Trainer(Context& context, const DraftTraining& draft, const TrainingOptions& options,
                 const TokenData& training, const TokenData& validation) {
  check_options(options);
  check_texts(training, validation, draft.description.vocabulary, options.length);
  auto made = std::make_unique<DraftTrainee>(context, draft, options, training, validation);
  DraftTrainee* const trainee = made.get();
  state_ = std::make_unique<State>(context, options, std::move(made), training, validation);
  state_->draft = trainee;
}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

void Trainer::initialize() {
  state_->trainee->parameters().initialize(state_->context, state_->options.seed);
}

void Trainer::set_teacher(decode::Scorer* teacher) {
  if (state_->text == nullptr) throw InvalidArgument("train: teacher: a draft learns from tokens");
  state_->text->set_teacher(teacher);
}

std::int64_t Trainer::steps_done() const { return state_->done; }

StepReport Trainer::step() {
  State& s = *state_;
  Parameters& p = s.trainee->parameters();
  s.trainee->plan(s.done);
  p.prepare(s.context);
  p.clear_gradients(s.context);
  std::vector<double> shares;
  for (std::int64_t i = 0; i < s.passes; ++i) {
    shares.push_back(s.trainee->run(i, Parameters::part(s.losses, i, i + 1)));
  }
  gradient_norm(s.context, {.gradient = p.gradients(), .norm = s.norm});
  s.trainee->plan(s.done + 1);  // while the device works
  StepReport report{.step = s.done + 1,
                    .norm = download<double>(s.context, s.norm)[0] / s.trainee->loss_scale(),
                    .learning_rate = rates_at(s.options, s.done).learning_rate,
                    .tokens = s.trainee->tokens_of_step()};
  const std::vector<double> losses = download_numbers(s.context, s.losses);
  for (std::size_t i = 0; i < losses.size(); ++i) report.loss += losses[i] * shares[i];
  report.finite = std::isfinite(report.norm) && std::isfinite(report.loss);
  if (!report.finite) return report;
  s.update(s.done);
  ++s.done;
  s.history.push_back(report);
  return report;
}

// The weights that products multiply with: projected, or rounded to `compute`.
std::vector<float> Trainer::State::compute_values(const MatrixBlock& block) {
  const ConstTensorView compute = trainee->parameters().compute(block);
  if (compute.dtype == DType::f64) {
    std::vector<float> narrow;
    for (const double value : download<double>(context, compute)) {
      narrow.push_back(static_cast<float>(value));
    }
    return narrow;
  }
  Tensor values = Tensor::empty({block.rows, block.cols}, DType::f32, context.device());
  cast(context, {.x = compute, .y = values});
  return download<float>(context, values);
}

void Trainer::State::count_codes(EvaluationReport& report) {
  if (!options.ternary) return;
  std::vector<std::int8_t> now;
  Parameters& p = trainee->parameters();
  for (const Parameter& parameter : p.list()) {
    if (!parameter.matrix) continue;
    const std::int64_t rows = parameter.shape[0];
    const std::int64_t cols = parameter.shape[1];
    const TernaryExact exact =
        ternary_exact(options.ternary->geometry, options.ternary->scale_type, rows, cols,
                      compute_values({parameter.offset, rows, cols}));
    if (!exact.matrix) {
      throw Error(fmt::format("train: {} is not ternary: row {}, column {}: {}", parameter.name,
                              exact.mismatch.row, exact.mismatch.col, exact.mismatch.reason));
    }
    report.ternary_groups += std::ssize(exact.matrix->scales);
    now.insert(now.end(), exact.matrix->codes.begin(), exact.matrix->codes.end());
  }
  const bool first = codes.size() != now.size();
  if (first) alive.assign(now.size(), 0);
  std::int64_t zeros = 0;
  std::int64_t flips = 0;
  std::int64_t dead = 0;
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] != 0) alive[i] = 1;
    zeros += now[i] == 0 ? 1 : 0;
    dead += alive[i] == 0 ? 1 : 0;
    flips += !first && now[i] != codes[i] ? 1 : 0;
  }
  const auto count = static_cast<double>(now.size());
  report.zero_share = static_cast<double>(zeros) / count;
  report.flip_share = static_cast<double>(flips) / count;
  report.dead_share = static_cast<double>(dead) / count;
  codes = std::move(now);
}

EvaluationReport Trainer::evaluate(std::int64_t max_rows) {
  State& s = *state_;
  Parameters& p = s.trainee->parameters();
  p.prepare(s.context, p.averaged());
  EvaluationReport report{.step = s.done};
  s.trainee->evaluate(max_rows, report);
  s.count_codes(report);
  s.evaluations.push_back(report);
  return report;
}

const std::vector<StepReport>& Trainer::steps() const { return state_->history; }
const std::vector<EvaluationReport>& Trainer::evaluations() const { return state_->evaluations; }
Parameters& Trainer::parameters() { return state_->trainee->parameters(); }
double Trainer::flops_per_token() const { return state_->trainee->flops_per_token(); }

Decoder& Trainer::decoder() {
  if (state_->text == nullptr) throw InvalidArgument("train: the run trains a draft, no decoder");
  return state_->text->decoder();
}

BlockDraft& Trainer::draft() {
  if (state_->draft == nullptr) throw InvalidArgument("train: the run trains a decoder, no draft");
  return state_->draft->draft();
}

}  // namespace touchstone::inline v0::train
