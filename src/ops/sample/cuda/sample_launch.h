// Host interface of the sampling kernels: their arguments and launchers, one source file each.
#pragma once

#include "ops/sample/cuda/sample_penalties.cuh"
#include "ops/sample/sample_problem.h"
#include "ops/sample/sample_tuning.h"
#include "ops/selection/launch_params.h"

namespace touchstone::sampling {

// The token of a row that a kernel leaves to the deferred launch.
inline constexpr std::int64_t kDeferred = -2;

// How many tokens of a row a kernel orders: up to `max` as top_k says, and `default_slots` for a
// row that cuts without top_k.
struct SlotLimits {
  int max = 0;
  int default_slots = 0;
};

struct StreamingArgs {
  SampleProblem p;
  selection::StreamingParams params;
  SlotLimits slots;
  bool aligned16 = false;  // raw logits whose rows start at multiples of 16 bytes
  bool second = false;     // for rows that another kernel could not finish
  bool penalizes = false;
  HistorySizes history{};
};

// Dynamic shared memory of a CTA that streams a row.
std::int64_t row_smem_bytes(const StreamingArgs& args);

// Any row, by a CTA or a cluster, and the deferred rows of another kernel:
// sample_streaming_<dtype>.cu.
template <class T>
void launch_streaming(Context& context, const StreamingArgs& args);
template <class T>
void launch_deferred(Context& context, const StreamingArgs& args);

// Raw logits at 16-byte alignment, one CTA per row: sample_streaming_block.cu.
void launch_streaming_block(Context& context, const StreamingArgs& args);

// Many long rows without bias, mask or penalties, sampled from at most 64 sorted candidates. Rows
// that need more are deferred; returns whether none is. sample_two_phase.cu.
bool launch_two_phase(Context& context, const StreamingArgs& args);

// Few long rows, each shared by a cluster that handles any row: sample_cluster_<dtype>.cu.
struct ClusterArgs {
  StreamingArgs cluster_streaming;      // for rows that the whole cluster streams
  StreamingArgs first_block_streaming;  // and those that its first CTA does
  selection::ClusterParams params;
  int max_slots = 0;  // tokens that the other rows may order
};
template <class T>
void launch_cluster(Context& context, const ClusterArgs& args);

// Short rows; those that need more than 64 sorted tokens are deferred: sample_subwarp.cu.
void launch_subwarp(Context& context, const SampleProblem& p);

}  // namespace touchstone::sampling
