#include "decode/beam/select.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <queue>

#include "core/copy.h"
#include "decode/beam/merge_plan.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::inline v0::decode::beam {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Masks that exclude no more are applied to a longer list of the same pass.
constexpr std::int64_t kMaxExtraTokens = 256;
// Longest list of softmax_topk's fast kernels.
constexpr std::int64_t kMaxFastTokens = 2048;

// Log-probability of a token with logit v, given those of the best token of the row.
float log_probability_of(float v, float best, float best_log_probability) {
  if (v == -kInfinity) return -kInfinity;
  if (best == kInfinity) return v == kInfinity ? best_log_probability : -kInfinity;
  return static_cast<float>(static_cast<double>(v) - static_cast<double>(best) +
                            static_cast<double>(best_log_probability));
}

bool allowed(std::span<const std::int32_t> mask, std::int32_t token) {
  return (static_cast<std::uint32_t>(mask[static_cast<std::size_t>(token / 32)]) >> (token % 32) &
          1U) != 0;
}

}  // namespace

struct Selector::Rows {
  std::int64_t k = 0;  // tokens per row
  // The row of the best token: of the whole row, every best_stride-th.
  const std::int32_t* best = nullptr;
  const float* best_log_probability = nullptr;
  std::int64_t best_stride = 1;
};

TensorView Selector::resized(Tensor& tensor, std::int64_t rows, std::int64_t columns, DType dtype,
                             Device device) {
  if (tensor.elements() < rows * columns || tensor.dtype() != dtype || tensor.device() != device) {
    tensor = Tensor::empty({rows * columns}, dtype, device);
  }
  const std::int64_t shape[] = {rows, columns};
  return make_view(tensor.data(), shape, dtype, device);
}

// One pass where nothing is masked, or little: the masked tokens are then skipped in a longer list.
// Otherwise a pass for the normalization and one for the best allowed tokens.
Selector::Rows Selector::rank_rows(Context& context, const SelectArgs& args,
                                   BeamStatistics& statistics) {
  const std::int64_t rows = args.logits.shape[0];
  const std::int64_t vocabulary = args.logits.shape[1];
  const Device device = args.logits.device;
  Rows found;
  found.k = std::min(vocabulary, args.tokens_per_row);
  const bool masked = !args.masks.empty();
  const std::int64_t longer = std::min(vocabulary, found.k + args.max_excluded);
  const bool two_passes = masked && (args.max_excluded > kMaxExtraTokens ||
                                     longer > kMaxFastTokens || !args.normalize_allowed.empty());
  if (masked && !two_passes) found.k = longer;
  const std::int64_t leading[] = {rows};
  SoftmaxTopkArgs call{.logits = args.logits};
  call.status =
      make_view(resized(status_, rows, 1, DType::i32, device).data, leading, DType::i32, device);
  if (two_passes) {
    call.probabilities = resized(first_probability_, rows, 1, DType::f32, device);
    call.indices = resized(first_index_, rows, 1, DType::i32, device);
    call.log_probabilities = resized(first_log_probability_, rows, 1, DType::f32, device);
    softmax_topk(context, call);
    ++statistics.logit_passes;
    found.best = static_cast<const std::int32_t*>(call.indices.data);
    found.best_log_probability = static_cast<const float*>(call.log_probabilities.data);
    call.status = {};
    const std::int64_t mask_shape[] = {rows, (vocabulary + 31) / 32};
    call.token_mask = make_view(masks_.data(), mask_shape, DType::i32, device);
  }
  call.probabilities = resized(probabilities_, rows, found.k, DType::f32, device);
  call.indices = resized(indices_, rows, found.k, DType::i32, device);
  call.log_probabilities = resized(log_probabilities_, rows, found.k, DType::f32, device);
  softmax_topk(context, call);
  ++statistics.logit_passes;
  if (!two_passes) {
    found.best = static_cast<const std::int32_t*>(call.indices.data);
    found.best_log_probability = static_cast<const float*>(call.log_probabilities.data);
    found.best_stride = found.k;
  }
  return found;
}

namespace {

// The rows of a call on the CPU as lists of candidates.
struct HostRows {
  const SelectArgs& args;
  const std::int32_t* tokens;
  const float* own_log_probability;
  std::int64_t k;
  const std::int32_t* best;
  const float* best_log_probability;
  std::int64_t best_stride;

  // The candidate at or after `slot` of a row, which is moved to it; row -1 at the end of the list.
  Candidate next(std::int64_t row, std::int64_t& slot) const {
    const std::int64_t vocabulary = args.logits.shape[1];
    const float* const logits = static_cast<const float*>(args.logits.data) + row * vocabulary;
    const std::int64_t words = (vocabulary + 31) / 32;
    const bool own = !args.normalize_allowed.empty() &&
                     args.normalize_allowed[static_cast<std::size_t>(row)] != 0;
    for (; slot < k; ++slot) {
      const std::int32_t token = tokens[row * k + slot];
      if (!args.masks.empty() &&
          !allowed(args.masks.subspan(static_cast<std::size_t>(row * words)), token)) {
        continue;
      }
      const std::int32_t first = own ? tokens[row * k] : best[row * best_stride];
      const float first_log_probability =
          own ? own_log_probability[row * k] : best_log_probability[row * best_stride];
      const float value = log_probability_of(logits[token], logits[first], first_log_probability);
      if (value == -kInfinity) break;
      return {.score = args.scores[static_cast<std::size_t>(row)] + static_cast<double>(value),
              .log_probability = value,
              .row = static_cast<std::int32_t>(row),
              .token = token};
    }
    return {};
  }
};

// Merges the sorted lists of a segment; ties go to the lower row.
std::vector<Candidate> merge_on_host(const HostRows& rows, const Segment& segment) {
  struct Head {
    Candidate candidate;
    std::int64_t slot;
  };
  const auto later = [](const Head& a, const Head& b) {
    if (a.candidate.score != b.candidate.score) return a.candidate.score < b.candidate.score;
    return a.candidate.row > b.candidate.row;
  };
  std::priority_queue<Head, std::vector<Head>, decltype(later)> heads(later);
  const auto push = [&](std::int64_t row, std::int64_t slot) {
    const Candidate candidate = rows.next(row, slot);
    if (candidate.row >= 0) heads.push({candidate, slot});
  };
  for (std::int64_t r = 0; r < segment.rows; ++r) push(segment.row + r, 0);
  std::vector<Candidate> best;
  while (!heads.empty() && std::ssize(best) < segment.keep) {
    const Head head = heads.top();
    heads.pop();
    best.push_back(head.candidate);
    push(head.candidate.row, head.slot + 1);
  }
  return best;
}

}  // namespace

std::vector<std::vector<Candidate>> Selector::select(Context& context, const SelectArgs& args,
                                                     std::int64_t& nan_row,
                                                     BeamStatistics& statistics) {
  const std::int64_t rows = args.logits.shape[0];
  const Device device = args.logits.device;
  const StreamLocation host{};
  const StreamLocation there{device, context.stream()};
  if (!args.masks.empty()) {
    const TensorView to = resized(masks_, std::ssize(args.masks), 1, DType::i32, device);
    queue_copy(there, to.data, host, args.masks.data(), std::ssize(args.masks) * 4);
  }
  const Rows found = rank_rows(context, args, statistics);
  std::vector<std::vector<Candidate>> lists;
  nan_row = -1;
  if (!device.is_cuda()) {
    const auto* const status = static_cast<const std::int32_t*>(status_.data());
    for (std::int64_t r = 0; r < rows && nan_row < 0; ++r) {
      if (has_any(static_cast<RowStatus>(status[r]), RowStatus::has_nan)) nan_row = r;
    }
    if (nan_row >= 0) return lists;
    const HostRows view{args,
                        static_cast<const std::int32_t*>(indices_.data()),
                        static_cast<const float*>(log_probabilities_.data()),
                        found.k,
                        found.best,
                        found.best_log_probability,
                        found.best_stride};
    for (const Segment& segment : args.segments) lists.push_back(merge_on_host(view, segment));
    return lists;
  }
  return merge_on_device(context, args, found, nan_row, statistics);
}

namespace {

// Everything the merge needs from the host, in one upload of 8-byte words.
struct MergeUpload {
  explicit MergeUpload(const SelectArgs& args) {
    for (const Segment& segment : args.segments) offsets.push_back(offsets.back() + segment.keep);
    for (const double score : args.scores) words.push_back(std::bit_cast<std::int64_t>(score));
    segments_at = std::ssize(words);
    for (const Segment& s : args.segments) words.insert(words.end(), {s.row, s.rows, s.keep});
    offsets_at = std::ssize(words);
    words.insert(words.end(), offsets.begin(), offsets.end());
    flags_at = std::ssize(words);
    words.resize(words.size() + (args.normalize_allowed.size() + 1) / 2);
    std::memcpy(words.data() + flags_at, args.normalize_allowed.data(),
                args.normalize_allowed.size_bytes());
  }
  std::vector<std::int64_t> words;       // scores, segments, offsets, flags
  std::vector<std::int64_t> offsets{0};  // of the lists in the output
  std::int64_t segments_at, offsets_at, flags_at;
};
static_assert(sizeof(Segment) == 3 * sizeof(std::int64_t));

}  // namespace

std::vector<std::vector<Candidate>> Selector::merge_on_device(Context& context,
                                                              const SelectArgs& args,
                                                              const Rows& found,
                                                              std::int64_t& nan_row,
                                                              BeamStatistics& statistics) {
  const Device device = args.logits.device;
  const StreamLocation host{};
  const StreamLocation there{device, context.stream()};
  const MergeUpload upload(args);
  auto* const words = static_cast<std::int64_t*>(
      resized(upload_, std::ssize(upload.words), 1, DType::i64, device).data);
  queue_copy(there, words, host, upload.words.data(), std::ssize(upload.words) * 8);
  const std::int64_t bytes = upload.offsets.back() * static_cast<std::int64_t>(sizeof(Candidate));
  void* const output = resized(output_, bytes, 1, DType::u8, device).data;
  const std::int64_t entries = MergePlan(args.segments).scratch_entries(std::ssize(args.segments));
  void* const scratch = resized(scratch_, entries, sizeof(MergeEntry), DType::u8, device).data;
  const bool masked = !args.masks.empty();
  const bool own = !args.normalize_allowed.empty();
  merge_rows_cuda(
      context, {.logits = static_cast<const float*>(args.logits.data),
                .vocabulary = args.logits.shape[1],
                .tokens = static_cast<const std::int32_t*>(indices_.data()),
                .tokens_per_row = found.k,
                .best = found.best,
                .best_log_probability = found.best_log_probability,
                .best_stride = found.best_stride,
                .status = static_cast<const std::int32_t*>(status_.data()),
                .scores = reinterpret_cast<const double*>(words),
                .masks = masked ? static_cast<const std::int32_t*>(masks_.data()) : nullptr,
                .mask_words = (args.logits.shape[1] + 31) / 32,
                .normalize_allowed =
                    own ? reinterpret_cast<const std::int32_t*>(words + upload.flags_at) : nullptr,
                .own_log_probability = static_cast<const float*>(log_probabilities_.data()),
                .segments = reinterpret_cast<const Segment*>(words + upload.segments_at),
                .host_segments = args.segments,
                .offsets = words + upload.offsets_at,
                .scratch = static_cast<MergeEntry*>(scratch),
                .output = static_cast<Candidate*>(output)});
  host_.resize(static_cast<std::size_t>(upload.offsets.back()));
  queue_copy(host, host_.data(), there, output, bytes);
  wait_for(there);
  ++statistics.read_backs;
  statistics.read_back_bytes += bytes;
  std::vector<std::vector<Candidate>> lists;
  for (std::size_t s = 0; s < args.segments.size(); ++s) {
    const auto begin = host_.begin() + upload.offsets[s];
    const auto end = host_.begin() + upload.offsets[s + 1];
    if (begin != end && begin->row < -1 && nan_row < 0) nan_row = -2 - begin->row;
    const auto last = std::find_if(begin, end, [](const Candidate& c) { return c.row < 0; });
    lists.emplace_back(begin, last);
  }
  return lists;
}

}  // namespace touchstone::inline v0::decode::beam
