// Hidden states of a target for windows of text, computed once as long as there is room to keep
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <unordered_map>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/model/model.h"
#include "touchstone/train/data.h"

namespace touchstone::inline v0::train {

// Requests of a run.
struct FeatureCounts {
  std::int64_t computed = 0;  // windows
  std::int64_t from_memory = 0;
  std::int64_t from_file = 0;
};

class FeatureCache {
 public:
  struct Options {
    std::vector<std::int32_t> layers{};  // as ScoreArgs::hidden_layers
    std::int64_t length = 0;             // of a window
    DType dtype = DType::f32;
    std::int64_t memory_bytes = 0;
    std::int64_t spill_bytes = 0;
    std::filesystem::path spill_folder{};
  };
  // InvalidArgument where the target has no such layers or a shorter context; FileError where the
  // file cannot be made.
  FeatureCache(Context& context, model::Model& target, const Options& options);
  ~FeatureCache();
  FeatureCache(const FeatureCache&) = delete;
  FeatureCache& operator=(const FeatureCache&) = delete;

  // The states of a window to out [length, layers * width], documents of the window each on its
  // own. `key` names the window: the same tokens at every request.
  void fetch(Context& context, std::int64_t key, const HostBatch& window, const TensorView& out);
  const FeatureCounts& counts() const { return counts_; }

 private:
  void compute(Context& context, const HostBatch& window, const TensorView& out);
  void store(Context& context, std::int64_t key, const TensorView& out);
  void put(Context& context, std::span<const std::byte> bytes, const TensorView& out);

  model::Model& target_;
  Options options_;
  std::int64_t window_bytes_ = 0;
  Tensor hidden_;  // [layers, length, width] f32
  std::unordered_map<std::int64_t, std::vector<std::byte>> kept_;
  std::unordered_map<std::int64_t, std::int64_t> spilled_;  // slot of the file
  std::vector<std::byte> page_;                             // staging memory of one window
  int file_ = -1;
  FeatureCounts counts_;
};

}  // namespace touchstone::inline v0::train
