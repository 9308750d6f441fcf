// The CUDA kernels of sampling: for the host.
#pragma once

#include "ops/sample/sample_problem.h"
#include "ops/sample/sample_values.cuh"
#include "ops/softmax_topk/topk_few_launch.h"
#include "ops/softmax_topk/topk_scan_launch.h"

namespace touchstone::sampling {

// How many tokens of a row are put in order. A kernel can do that for `most`, and does it for
// `unasked` where the row cuts without saying how many it wants: more would slow down every such
// row, fewer would send more of them to a search.
struct Places {
  int most = 0;
  int unasked = 0;
};

// Every row, or those that another kernel left.
struct ScanParams {
  Sampling p;
  topk::ScanShape shape;
  Places places;
  bool on_grid = false;  // plain rows that start on 16 bytes
  bool deep = false;     // blocks have a multiprocessor each
  bool second = false;   // for rows that another kernel, which is quicker, gave up
  bool penalizes = false;
  HistorySizes history{};
};

// Any row, by a block or a cluster; sample_scan_*.cu, by dtype.
template <class T>
void sample_by_scan(Context& context, const ScanParams& params);
std::int64_t scan_shared_bytes(const ScanParams& params);

// Plain rows on the grid, each by a block that is not the only one of its multiprocessor.
// sample_scan_alone.cu.
bool suits_alone(const ScanParams& params);
void sample_alone(Context& context, const ScanParams& params);

// Many long rows that are plain, as far as they are usual and want few tokens in order; the others
// get the token kLeft. sample_cuda_maxima.cu.
inline constexpr std::int64_t kLeft = -2;
bool suits_maxima(const Context& context, const Sampling& p);
// Whether no row is left.
bool sample_by_maxima(Context& context, const ScanParams& scan);

// Few long rows that are plain, each shared by a cluster, which takes whatever the row asks for;
// sample_few_*.cu, by dtype.
inline constexpr int kLargeScanThreads = 512;  // of a block that scans
struct FewParams {
  ScanParams together;  // for rows that the cluster scans,
  ScanParams alone;     // and those that the first block does
  topk::FewShape shape;
  int most = 0;  // places that other rows want
};
template <class T>
void sample_few(Context& context, const FewParams& params);

// Short rows, in the same way. sample_cuda_short.cu.
bool suits_short(const Sampling& p);
void sample_short(Context& context, const Sampling& p);

inline bool penalizes(const Sampling& p) {
  const bool any = p.repetition_penalty != nullptr || p.frequency_penalty != nullptr ||
                   p.presence_penalty != nullptr;
  return any && p.history_length > 0;
}

// Whether values are the logits as they are.
inline bool is_plain(const Sampling& p) {
  return p.bias == nullptr && p.allowed == nullptr && !penalizes(p);
}

}  // namespace touchstone::sampling
