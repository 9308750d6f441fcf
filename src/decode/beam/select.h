// The best continuations of a step, over all rows of logits in one pass: softmax_topk gives the best
// tokens of each row, a merge the best of each segment of rows.
//
// The log-probability of a token is f32(v - v0 + logp0) in f64, v its logit, v0 and logp0 those of
// the best token of the row: neither depends on the number of tokens of the row that are compared,
// nor on masks. It falls with v, so that the order of a row is that of its logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/beam_search.h"

namespace touchstone::inline v0::decode::beam {

// One continuation, as a step reads it back.
struct Candidate {
  double score = 0;  // of the row + log_probability
  float log_probability = 0;
  std::int32_t row = -1;  // in the call; -1 = none
  std::int32_t token = 0;
};
static_assert(sizeof(Candidate) == 24);

// Consecutive rows with one list of candidates.
struct Segment {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t keep = 0;  // candidates, best first
};

struct SelectArgs {
  ConstTensorView logits{};          // [rows, vocabulary] f32
  std::span<const double> scores{};  // per row, what its log-probabilities are added to
  std::span<const Segment> segments{};
  std::int64_t tokens_per_row = 0;  // that can be among the candidates; at most the vocabulary
  // [rows, ceil(vocabulary / 32)], 1 = allowed; empty = everything is.
  std::span<const std::int32_t> masks{};
  std::int64_t max_excluded = 0;  // by the mask of a row
  // Per row, not 0: log-probabilities over the allowed tokens. Empty = none.
  std::span<const std::int32_t> normalize_allowed{};
};

// Rows are merged in shared memory: lists longer than this take another path.
inline constexpr std::int64_t kMaxDeviceKeep = 4096;

class Selector {
 public:
  // One list per segment, without continuations of probability 0. `nan_row` is the first row with
  // NaN, or -1; then the lists are not to be used.
  std::vector<std::vector<Candidate>> select(Context& context, const SelectArgs& args,
                                             std::int64_t& nan_row, BeamStatistics& statistics);

  // The parts of select(). upload() allocates and copies what the kernels need, queue() launches
  // them and can be captured in a graph, read() waits and reads back. On the CPU read() merges.
  void upload(Context& context, const SelectArgs& args);
  void queue(Context& context, const SelectArgs& args, BeamStatistics& statistics);
  std::vector<std::vector<Candidate>> read(Context& context, const SelectArgs& args,
                                           std::int64_t& nan_row, BeamStatistics& statistics);

 private:
  // The arguments and results of softmax_topk.
  struct Ranking {
    std::int64_t tokens = 0;  // per row
    bool two_passes = false;
    const std::int32_t* best = nullptr;  // token of the best logit of a row, every best_stride-th
    const float* best_log_probability = nullptr;
    std::int64_t best_stride = 1;
  };
  void plan(const SelectArgs& args);
  void rank_rows(Context& context, const SelectArgs& args, BeamStatistics& statistics);
  std::vector<std::vector<Candidate>> merge_on_host(const SelectArgs& args, std::int64_t& nan_row);
  static TensorView resized(Tensor& tensor, std::int64_t rows, std::int64_t columns, DType dtype,
                            Device device);

  Ranking ranking_;
  std::vector<std::int64_t> offsets_;  // of the lists in the output
  Tensor probabilities_, indices_, log_probabilities_, status_, first_index_,
      first_log_probability_, first_probability_, masks_, upload_, scratch_, output_;
  std::vector<Candidate> host_;
};

// ---- the merge on CUDA (merge_cuda.cu, stubs in src/no_cuda) -----------------------------------

struct MergeEntry;

// All pointers on the device.
struct MergeProblem {
  const float* logits = nullptr;
  std::int64_t vocabulary = 0;
  const std::int32_t* tokens = nullptr;  // [rows, tokens_per_row], best first
  std::int64_t tokens_per_row = 0;
  const std::int32_t* best = nullptr;  // token of the best logit of a row, every best_stride-th
  const float* best_log_probability = nullptr;
  std::int64_t best_stride = 1;
  const std::int32_t* status = nullptr;  // [rows]
  const double* scores = nullptr;        // [rows]
  const std::int32_t* masks = nullptr;   // [rows, mask_words], or null
  std::int64_t mask_words = 0;
  const std::int32_t* normalize_allowed =
      nullptr;                                 // [rows], or null: then `tokens` are the allowed
  const float* own_log_probability = nullptr;  // [rows, tokens_per_row] of `tokens`
  const Segment* segments = nullptr;           // also on the host, below
  std::span<const Segment> host_segments{};
  const std::int64_t* offsets = nullptr;  // [segments + 1] into `output`
  MergeEntry* scratch = nullptr;          // MergePlan::scratch_entries()
  Candidate* output = nullptr;            // rows -1 behind the last; row -2 - r: row r has NaN
};

void merge_rows_cuda(Context& context, const MergeProblem& problem);

}  // namespace touchstone::inline v0::decode::beam
