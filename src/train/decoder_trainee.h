// A decoder on text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "touchstone/train/data.h"
#include "touchstone/train/decoder.h"
#include "train/teacher.h"
#include "train/trainee.h"

namespace touchstone::inline v0::train {

class DecoderTrainee final : public Trainee {
 public:
  DecoderTrainee(Context& context, const io::ModelDescription& description,
                 const TrainingOptions& options, const TokenData& training,
                 const TokenData& validation);

  void set_teacher(decode::Scorer* teacher);
  Decoder& decoder() { return decoder_; }

  Parameters& parameters() override { return decoder_.parameters(); }
  void plan(std::int64_t step) override;
  double loss_scale() const override { return loss_scale_of(options_.compute, tokens_of_step()); }
  double run(std::int64_t pass, const TensorView& loss) override;
  void evaluate(std::int64_t max_rows, EvaluationReport& report) override;
  std::map<std::string, std::string> decisions() const override;
  double flops_per_token() const override { return decoder_.flops_per_token(options_.length); }
  std::int64_t tokens_of_step() const override { return options_.rows * options_.length; }
  std::string stored_name(const std::string& parameter) const override;
  std::string config_json(std::string_view torch_dtype) const override;

 private:
  Batch upload(const HostBatch& batch, std::int64_t slot);

  Context& context_;
  TrainingOptions options_;
  std::int64_t rows_at_once_;
  std::int64_t passes_;
  Decoder decoder_;
  BatchSource source_;
  BatchSource held_out_;
  const TokenData& validation_;
  StagingBuffers buffers_;
  Tensor loss_;  // [1] of evaluations
  std::optional<TeacherLogits> teacher_;
  std::string teacher_identity_;
  std::int64_t step_ = -1;
  std::vector<HostBatch> planned_;  // the passes of step_
  std::int64_t counted_ = 0;        // targets of them
};

}  // namespace touchstone::inline v0::train
