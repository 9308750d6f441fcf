// Training of a decoder on text: steps, evaluations, checkpoints and the trained model.
//
//   Trainer trainer(context, description, options, training, validation);
//   trainer.initialize();                          // or copy_weights(file), or load(checkpoint)
//   while (trainer.steps_done() < options.steps) {
//     const StepReport report = trainer.step();
//     if (!report.finite) break;                   // the weights are the last good ones
//   }
//   trainer.write_model("out", tokenizer_json);    // with config.json and tokenizer.json
//
// Guarantees  Everything random is a function of (seed, step), so two runs, and a run that was
//             saved and loaded at any step, have the same bits on the same kind of device, for any
//             number of threads. One read-back of a few bytes per step; no other synchronization.
// Checkpoints One safetensors file with weights, moments, average and history, written atomically:
//             an interrupted save leaves the previous checkpoint intact.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/ternary.h"
#include "touchstone/decode/scorer.h"
#include "touchstone/io/block_draft.h"
#include "touchstone/io/model_description.h"
#include "touchstone/io/model_file.h"
#include "touchstone/model/model.h"
#include "touchstone/train/block_draft.h"
#include "touchstone/train/data.h"
#include "touchstone/train/decoder.h"

namespace touchstone::inline v0::train {

// The learning rate over the steps, after a linear warm-up. t runs from 0 after it to 1 at the end.
enum class Schedule : std::uint8_t {
  constant,
  cosine,     // from learning_rate to final_rate along half a cosine
  linear,     // from learning_rate to final_rate
  two_phase,  // (1 - t) learning_rate, from t = 1/2 on (1 - t) second_rate and no weight decay
};
TOUCHSTONE_API std::string_view name_of(Schedule schedule);
TOUCHSTONE_API Schedule parse_schedule(std::string_view name);  // InvalidArgument lists the names

struct TrainingOptions {
  std::int64_t steps = 1000;
  std::int64_t rows = 16;         // of a step
  std::int64_t rows_at_once = 0;  // of one pass; 0 = all; divides rows
  std::int64_t length = 256;      // tokens of a row
  Schedule schedule = Schedule::cosine;
  double learning_rate = 1e-3;
  double final_rate = 1e-4;
  double second_rate = 6e-4;  // two_phase
  std::int64_t warm_up = 100;
  double weight_decay = 0.1;  // of matrices
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double clip = 1;     // global norm of the gradient; 0 = none
  double dropout = 0;  // see decoder.h
  double attention_dropout = 0;
  double average_decay = 0;  // of the moving average that is evaluated and written; 0 = none
  std::int64_t seed = 1;
  DType compute = DType::f32;
  bool checkpoint_activations = false;
  // Every matrix is projected in every forward pass, embedding and head included.
  std::optional<TernaryRule> ternary{};
  double teacher_weight = 0.5;  // where there is a teacher
  double teacher_temperature = 1;
};

// InvalidArgument names the first option that is out of range.
TOUCHSTONE_API void check_options(const TrainingOptions& options);

struct StepRates {
  double learning_rate = 0;
  double weight_decay = 0;
};
TOUCHSTONE_API StepRates rates_at(const TrainingOptions& options, std::int64_t step);

struct StepReport {
  std::int64_t step = 0;  // of the run, from 1
  double loss = 0;        // mean over the tokens of the step
  double norm = 0;        // of the gradient before it was clipped
  double learning_rate = 0;
  std::int64_t tokens = 0;
  bool finite = true;  // else nothing was changed
};

struct EvaluationReport {
  std::int64_t step = 0;
  double loss = 0;           // mean over the tokens of the validation text
  double bits_per_byte = 0;  // of that text
  double zero_share = 0;     // ternary: codes that are 0
  double flip_share = 0;     // ternary: codes that changed since the evaluation before
  double dead_share = 0;     // ternary: codes that were 0 at every evaluation so far
  // Ternary: groups of the weights that the loss was computed with; each group is validated: codes
  // in {-1, 0, 1} and one representable scale. Error where one is not.
  std::int64_t ternary_groups = 0;
  // Drafts: tokens of the greedy chain that the target accepts, and its own one.
  double tokens_per_pass = 0;
};

// Training of a block draft (train/block_draft.h) for a target. Rows are windows of the text from
// fixed starts, so that the target's hidden states of a window are computed once. A step draws
// `anchors` tokens of each row, by (seed, step, row), one in each of as many equal parts of it:
// each begins a block, whose next tokens are what its masked positions learn, position k (from 1)
// with weight exp(-(k - 1) / decay). The text should be the target's own (`touchstone generate
// --corpus`). Evaluations take every token of the validation rows as anchor; tokens_per_pass walks
// through the rows as decoding does, from pass to pass, and counts a drafted token where it is the
// one of the text.
struct DraftTraining {
  io::BlockDraftDescription description{};
  model::Model* target = nullptr;  // on the device of the run; outlives it
  std::int64_t anchors = 16;       // of a row
  double decay = 0;                // 0 = half a block, at most 7
  // Hidden states that are kept, of the windows that come first, so that epochs find the same ones:
  // the bytes in memory, and then those of an unnamed file in `spill_folder`. Others are computed
  // again.
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  std::int64_t spill_bytes = 0;
  std::filesystem::path spill_folder{};
};

class TOUCHSTONE_API Trainer {
 public:
  // Data must outlive it. InvalidArgument, Unsupported, OutOfMemory.
  Trainer(Context& context, const io::ModelDescription& description, const TrainingOptions& options,
          const TokenData& training, const TokenData& validation);
  // Of a draft. Ternary weights and f64 are refused, and targets with a bias of the head.
  Trainer(Context& context, const DraftTraining& draft, const TrainingOptions& options,
          const TokenData& training, const TokenData& validation);
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  void initialize();  // random weights
  // The weights of a model of the same description. Every tensor of the file is read into a
  // parameter, and every parameter is written; InvalidArgument names the first without a
  // counterpart, or that holds NaN or infinity.
  void copy_weights(const io::ModelFile& file);
  // A model whose logits are distilled; null: none. Outlives the trainer. InvalidArgument for
  // another vocabulary or too short a context. Checkpoints identify a model::Model by a checksum of
  // its weights, any other scorer by its shape alone.
  void set_teacher(decode::Scorer* teacher);

  std::int64_t steps_done() const;
  StepReport step();
  // Of the average where there is one. At most `max_rows` rows of the validation text; 0 = all.
  EvaluationReport evaluate(std::int64_t max_rows = 0);

  const std::vector<StepReport>& steps() const;
  const std::vector<EvaluationReport>& evaluations() const;

  // FileError when it cannot be written: the previous file stays. Temporary files of a save that
  // was killed are removed first.
  void save(const std::filesystem::path& path) const;
  // CorruptData for a file that is no checkpoint; InvalidArgument for one of another model, teacher
  // or target of a draft, other text or other options that decide the bits of a run. Call
  // set_teacher() before.
  void load(const std::filesystem::path& path);
  // The model as `touchstone generate` runs it, or a draft as --speculate dflash= does: what the
  // forward pass multiplies with, so of a ternary model the projected weights. Files are replaced
  // one by one, each as a whole; without a text there is no tokenizer.json.
  void write_model(const std::filesystem::path& folder, std::string_view tokenizer_json) const;

  Parameters& parameters();
  double flops_per_token() const;  // of a step, per token that StepReport counts
  Decoder& decoder();              // InvalidArgument where a draft is trained
  BlockDraft& draft();             // InvalidArgument where none is

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::train
