// A block draft for a target.
#pragma once

#include <string>
#include <vector>

#include "touchstone/train/block_draft.h"
#include "touchstone/train/data.h"
#include "train/draft/blocks.h"
#include "train/draft/feature_cache.h"
#include "train/trainee.h"

namespace touchstone::inline v0::train {

class DraftTrainee final : public Trainee {
 public:
  DraftTrainee(Context& context, const DraftTraining& draft, const TrainingOptions& options,
               const TokenData& training, const TokenData& validation);

  BlockDraft& draft() { return draft_; }

  Parameters& parameters() override { return draft_.parameters(); }
  void plan(std::int64_t step) override;
  double loss_scale() const override {
    return loss_scale_of(options_.compute, options_.rows * training_.anchors);
  }
  double run(std::int64_t pass, const TensorView& loss) override;
  void evaluate(std::int64_t max_rows, EvaluationReport& report) override;
  std::map<std::string, std::string> decisions() const override;
  double flops_per_token() const override;
  std::int64_t tokens_of_step() const override;
  std::string stored_name(const std::string& parameter) const override;
  std::string config_json(std::string_view torch_dtype) const override;

 private:
  struct Planned {
    std::vector<HostBatch> rows{};
    std::vector<std::int64_t> windows{};  // their keys
    HostBlocks blocks{};
  };
  Planned plan_pass(std::int64_t step, std::int64_t pass) const;
  BlockBatch upload(std::span<const HostBatch> rows, std::span<const std::int64_t> windows,
                    HostBlocks blocks, double scale, std::int64_t slot);
  // Of each position of the blocks of the last batch the likeliest token.
  std::vector<std::int32_t> likeliest(std::int64_t positions);
  struct RowResult {
    double loss = 0;
    double weight = 0;
    std::int64_t passes = 0;
    std::int64_t tokens = 0;
  };
  RowResult evaluate_row(std::int64_t row);

  Context& context_;
  TrainingOptions options_;
  DraftTraining training_;
  std::int64_t rows_at_once_;
  Tensor embedding_, head_;
  BlockDraft draft_;
  BatchSource source_;
  BatchSource held_out_;
  FeatureCache features_;
  StagingBuffers buffers_;
  Tensor hidden_;  // of a pass, [rows * length, taps * width]
  Tensor loss_;    // [1] of evaluations
  std::string target_identity_;
  Tensor logits_, picked_;
  std::int64_t step_ = -1;
  std::vector<Planned> planned_;
  double weight_ = 0;  // of all blocks of the step
};

}  // namespace touchstone::inline v0::train
