#include "decode/beam/select.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <queue>
#include <utility>

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
// The kernel for at most 8 tokens of short rows adds up a row in another order. The bits of a row
// must not depend on the length of its list, so no list is shorter than this.
constexpr std::int64_t kMinTokens = 9;

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
void Selector::plan(const SelectArgs& args) {
  const std::int64_t rows = args.logits.shape[0];
  const std::int64_t vocabulary = args.logits.shape[1];
  const Device device = args.logits.device;
  const std::int64_t least = std::min(vocabulary, kMinTokens);
  ranking_ = {.tokens = std::max(least, std::min(vocabulary, args.tokens_per_row))};
  const std::int64_t longer = std::min(vocabulary, ranking_.tokens + args.max_excluded);
  const bool masked = !args.masks.empty();
  ranking_.two_passes = masked && (args.max_excluded > kMaxExtraTokens || longer > kMaxFastTokens ||
                                   !args.normalize_allowed.empty());
  if (masked && !ranking_.two_passes) ranking_.tokens = longer;
  resized(status_, rows, 1, DType::i32, device);
  for (Tensor* tensor : {&probabilities_, &log_probabilities_}) {
    resized(*tensor, rows, ranking_.tokens, DType::f32, device);
  }
  resized(indices_, rows, ranking_.tokens, DType::i32, device);
  if (ranking_.two_passes) {
    resized(first_probability_, rows, kMinTokens, DType::f32, device);
    resized(first_log_probability_, rows, kMinTokens, DType::f32, device);
    resized(first_index_, rows, kMinTokens, DType::i32, device);
  }
  const Tensor& best = ranking_.two_passes ? first_index_ : indices_;
  const Tensor& value = ranking_.two_passes ? first_log_probability_ : log_probabilities_;
  ranking_.best = static_cast<const std::int32_t*>(best.data());
  ranking_.best_log_probability = static_cast<const float*>(value.data());
  ranking_.best_stride = ranking_.two_passes ? least : ranking_.tokens;
}

void Selector::rank_rows(Context& context, const SelectArgs& args, BeamStatistics& statistics) {
  const std::int64_t rows = args.logits.shape[0];
  const Device device = args.logits.device;
  const std::int64_t leading[] = {rows};
  SoftmaxTopkArgs call{.logits = args.logits};
  call.status = make_view(status_.data(), leading, DType::i32, device);
  if (ranking_.two_passes) {
    const std::int64_t first = ranking_.best_stride;
    call.probabilities = resized(first_probability_, rows, first, DType::f32, device);
    call.indices = resized(first_index_, rows, first, DType::i32, device);
    call.log_probabilities = resized(first_log_probability_, rows, first, DType::f32, device);
    softmax_topk(context, call);
    ++statistics.logit_passes;
    call.status = {};
    const std::int64_t mask_shape[] = {rows, (args.logits.shape[1] + 31) / 32};
    call.token_mask = make_view(masks_.data(), mask_shape, DType::i32, device);
  }
  call.probabilities = resized(probabilities_, rows, ranking_.tokens, DType::f32, device);
  call.indices = resized(indices_, rows, ranking_.tokens, DType::i32, device);
  call.log_probabilities = resized(log_probabilities_, rows, ranking_.tokens, DType::f32, device);
  softmax_topk(context, call);
  ++statistics.logit_passes;
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
std::vector<Candidate> merge_segment(const HostRows& rows, const Segment& segment) {
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

std::vector<std::vector<Candidate>> Selector::merge_on_host(const SelectArgs& args,
                                                            std::int64_t& nan_row) {
  const std::span<const std::int32_t> status = std::as_const(status_).values<std::int32_t>();
  for (std::int64_t r = 0; r < args.logits.shape[0] && nan_row < 0; ++r) {
    const auto row_status = static_cast<RowStatus>(status[static_cast<std::size_t>(r)]);
    if (has_any(row_status, RowStatus::has_nan)) nan_row = r;
  }
  std::vector<std::vector<Candidate>> lists;
  if (nan_row >= 0) return lists;
  const HostRows rows{args,
                      static_cast<const std::int32_t*>(indices_.data()),
                      static_cast<const float*>(log_probabilities_.data()),
                      ranking_.tokens,
                      ranking_.best,
                      ranking_.best_log_probability,
                      ranking_.best_stride};
  for (const Segment& segment : args.segments) lists.push_back(merge_segment(rows, segment));
  return lists;
}

namespace {

// Everything the merge needs from the host, in one upload of 8-byte words.
struct MergeUpload {
  explicit MergeUpload(const SelectArgs& args)
      : segments_at(std::ssize(args.scores)),
        offsets_at(segments_at + 3 * std::ssize(args.segments)),
        flags_at(offsets_at + std::ssize(args.segments) + 1) {}

  std::vector<std::int64_t> words(const SelectArgs& args,
                                  std::span<const std::int64_t> offsets) const {
    std::vector<std::int64_t> words;
    for (const double score : args.scores) words.push_back(std::bit_cast<std::int64_t>(score));
    for (const Segment& s : args.segments) words.insert(words.end(), {s.row, s.rows, s.keep});
    words.insert(words.end(), offsets.begin(), offsets.end());
    words.resize(words.size() + (args.normalize_allowed.size() + 1) / 2);
    if (!args.normalize_allowed.empty()) {
      std::memcpy(words.data() + flags_at, args.normalize_allowed.data(),
                  args.normalize_allowed.size_bytes());
    }
    return words;
  }
  // Scores, segments, offsets, flags.
  std::int64_t segments_at, offsets_at, flags_at;
};
static_assert(sizeof(Segment) == 3 * sizeof(std::int64_t));

}  // namespace

void Selector::upload(Context& context, const SelectArgs& args) {
  const Device device = args.logits.device;
  const StreamLocation there{device, context.stream()};
  plan(args);
  if (!args.masks.empty()) {
    const TensorView to = resized(masks_, std::ssize(args.masks), 1, DType::i32, device);
    queue_copy(there, to.data, {}, args.masks.data(), std::ssize(args.masks) * 4);
  }
  offsets_.assign(1, 0);
  for (const Segment& segment : args.segments) offsets_.push_back(offsets_.back() + segment.keep);
  if (!device.is_cuda()) return;
  const std::vector<std::int64_t> words = MergeUpload(args).words(args, offsets_);
  const TensorView to = resized(upload_, std::ssize(words), 1, DType::i64, device);
  queue_copy(there, to.data, {}, words.data(), std::ssize(words) * 8);
  resized(output_, offsets_.back(), sizeof(Candidate), DType::u8, device);
  const std::int64_t entries = MergePlan(args.segments).scratch_entries(std::ssize(args.segments));
  resized(scratch_, entries, sizeof(MergeEntry), DType::u8, device);
}

void Selector::queue(Context& context, const SelectArgs& args, BeamStatistics& statistics) {
  rank_rows(context, args, statistics);
  if (!args.logits.device.is_cuda()) return;
  const MergeUpload at(args);
  const auto* const words = static_cast<const std::int64_t*>(upload_.data());
  const bool masked = !args.masks.empty();
  const bool own = !args.normalize_allowed.empty();
  merge_rows_cuda(context,
                  {.logits = static_cast<const float*>(args.logits.data),
                   .vocabulary = args.logits.shape[1],
                   .tokens = static_cast<const std::int32_t*>(indices_.data()),
                   .tokens_per_row = ranking_.tokens,
                   .best = ranking_.best,
                   .best_log_probability = ranking_.best_log_probability,
                   .best_stride = ranking_.best_stride,
                   .status = static_cast<const std::int32_t*>(status_.data()),
                   .scores = reinterpret_cast<const double*>(words),
                   .masks = masked ? static_cast<const std::int32_t*>(masks_.data()) : nullptr,
                   .mask_words = (args.logits.shape[1] + 31) / 32,
                   .normalize_allowed =
                       own ? reinterpret_cast<const std::int32_t*>(words + at.flags_at) : nullptr,
                   .own_log_probability = static_cast<const float*>(log_probabilities_.data()),
                   .segments = reinterpret_cast<const Segment*>(words + at.segments_at),
                   .host_segments = args.segments,
                   .offsets = words + at.offsets_at,
                   .scratch = static_cast<MergeEntry*>(scratch_.data()),
                   .output = static_cast<Candidate*>(output_.data())});
}

std::vector<std::vector<Candidate>> Selector::read(Context& context, const SelectArgs& args,
                                                   std::int64_t& nan_row,
                                                   BeamStatistics& statistics) {
  nan_row = -1;
  const Device device = args.logits.device;
  if (!device.is_cuda()) return merge_on_host(args, nan_row);
  const StreamLocation there{device, context.stream()};
  const std::int64_t bytes = offsets_.back() * static_cast<std::int64_t>(sizeof(Candidate));
  host_.resize(static_cast<std::size_t>(offsets_.back()));
  queue_copy({}, host_.data(), there, output_.data(), bytes);
  wait_for(there);
  ++statistics.read_backs;
  statistics.read_back_bytes += bytes;
  std::vector<std::vector<Candidate>> lists;
  for (std::size_t s = 0; s < args.segments.size(); ++s) {
    const auto begin = host_.begin() + offsets_[s];
    const auto end = host_.begin() + offsets_[s + 1];
    if (begin != end && begin->row < -1 && nan_row < 0) nan_row = -2 - begin->row;
    const auto last = std::find_if(begin, end, [](const Candidate& c) { return c.row < 0; });
    lists.emplace_back(begin, last);
  }
  return lists;
}

std::vector<std::vector<Candidate>> Selector::select(Context& context, const SelectArgs& args,
                                                     std::int64_t& nan_row,
                                                     BeamStatistics& statistics) {
  upload(context, args);
  queue(context, args, statistics);
  return read(context, args, nan_row, statistics);
}

}  // namespace touchstone::inline v0::decode::beam
