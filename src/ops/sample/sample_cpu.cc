// Sampling on the CPU by the selection engine: one scan of the row, then only what the scan says is
// needed.
//
// The scan leaves the sum of exponentials of every segment and the maxima of small groups. A row
// with a cut takes its first tokens in order from those maxima, a few and then more, and walks
// along them in f64; kept sets beyond those prefixes come from a histogram of the whole row. A row
// without a cut needs no order: the uniform picks a segment by the sums, a block of it by sums over
// blocks, and a token of that. Penalized rows are copied once, in f32, and scanned there.
//
// The sum of a scan is right to some 1e-7. Where that leaves it open whether top_p keeps one token
// more, the row is read again for a sum in f64: the cut is exact.
//
// Rows that the scan cannot sum (NaN, infinities, all masked, extreme temperatures) are left to the
// plain implementation.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <optional>
#include <span>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/sample/sample_cpu_histogram.h"
#include "ops/sample/sample_output.h"
#include "ops/sample/sample_problem.h"
#include "ops/sample/sample_row.h"
#include "ops/sample/sample_tuning.h"
#include "ops/selection/cpu/cpu_scratch.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/random.h"

namespace touchstone::sampling {
namespace {

using selection::LogitRows;
using selection::RowScratch;
using selection::RowSum;
using selection::ScratchSizes;
using selection::SegmentSum;

// The sum of a scan is right to 12 roundings of f32 (cpu_select.h) and a few of its exponentials.
constexpr double kSumError = 1e-6;

// Tokens per word of a mask.
constexpr std::size_t kMaskWord = 32;

constexpr double kLog2E = std::numbers::log2e;
constexpr double kLn2 = std::numbers::ln2;

// Scratch of one worker.
struct SampleScratch {
  RowScratch select;
  float* piece_values = nullptr;  // a segment of processed logits per piece of a row
  std::size_t piece_stride = 0;
  float* row_values = nullptr;     // of a penalized row, or of one that is read again
  double* weights = nullptr;       // of a sorted prefix
  double* segment_sums = nullptr;  // relative to the row's reference
  HistogramScratch histogram;
};

// Sizes and layout of the scratch. `pieces`: tasks that scan one row at a time.
struct SampleLayout {
  SampleLayout(const SampleProblem& problem, std::int64_t threads_per_row)
      : p(problem),
        max_prefix(std::min(p.vocabulary, p.has_cuts() ? kMaxSortedPrefix
                                                       : std::clamp<std::int64_t>(
                                                             p.top_count, 1, kMaxSortedPrefix))),
        sizes(selection::scratch_sizes_up_to(p, max_prefix)),
        pieces(std::min(static_cast<std::size_t>(threads_per_row), sizes.segments)) {}

  SampleScratch operator()(selection::WorkspacePartition& from) const {
    SampleScratch scratch;
    scratch.select = selection::partition_row(p, sizes, from);
    if (!p.has_raw_logits()) {
      scratch.piece_stride = sizes.segment_tokens + 16;
      scratch.piece_values = from.take<float>((pieces - 1) * scratch.piece_stride);
    }
    const bool whole_row = p.has_cuts() || p.has_penalties();
    scratch.row_values = from.take<float>(whole_row ? static_cast<std::size_t>(p.vocabulary) : 0);
    scratch.weights = from.take<double>(std::max(static_cast<std::size_t>(max_prefix),
                                                 sizes.segment_tokens / kMaskWord + kMaskWord));
    scratch.segment_sums = from.take<double>(sizes.segments);
    if (p.has_cuts()) scratch.histogram = partition_histogram(p.vocabulary, from);
    return scratch;
  }

  const SampleProblem& p;
  std::int64_t max_prefix;  // tokens that are ever sorted
  ScratchSizes sizes;
  std::size_t pieces;
};
using Scratch = selection::ScratchPool<SampleLayout>;

// A range of weights, and where in it the uniform points: a fraction in [0, 1) of its sum.
struct Choice {
  std::size_t index = 0;
  double fraction = 0;
};

// The first of `count` weights where the running sum exceeds `fraction` of their sum, and where in
// that weight. Weights of 0 are never chosen as long as one is larger.
template <class Weight>
Choice choose(std::size_t count, double fraction, const Weight& weight) {
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) total += weight(i);
  const double target = fraction * total;
  constexpr double kBelowOne = 1 - 0x1p-53;
  Choice choice;
  double before = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double w = weight(i);
    if (!(w > 0)) continue;
    choice = {i, std::min((target - before) / w, kBelowOne)};
    before += w;
    if (before > target) break;
  }
  return choice;
}

class FastRow {
 public:
  // With a pool, its threads share every row.
  FastRow(const SampleLayout& layout, const SampleScratch& scratch, ThreadPool* pool)
      : p_(layout.p), layout_(layout), scratch_(scratch), pool_(pool) {}

  void run(std::int64_t row) {
    row_ = row;
    controls_ = row_controls(p_, row);
    if (!controls_.legal) return store_invalid_row(p_, row, RowStatus::bad_parameter);
    temperature_ = controls_.greedy() ? 1 : static_cast<double>(controls_.temperature);
    if (!selection::is_fast_temperature(temperature_) || p_.top_count > kMaxSortedPrefix) {
      return sample_plain_row(p_, row, RowStatus::ok);
    }
    describe();
    scan();
    if (!merge()) return sample_plain_row(p_, row, RowStatus::ok);
    ready_ = 0;
    read_again_ = false;
    exact_ = false;
    if (p_.top_count > 0) order(p_.top_count);
    store(draw());
  }

 private:
  struct Drawn {
    std::int64_t token = 0;
    float value = 0;
  };

  // The row that is scanned: the problem's, or its penalized copy.
  void describe() {
    source_ = p_;
    source_row_ = row_;
    copied_ = controls_.penalizes() && p_.history_length > 0;
    if (!copied_) return;
    read_values(p_, row_, row_values());
    penalize(p_, row_, controls_, row_values());
    source_ = {};
    source_.rows = 1;
    source_.vocabulary = p_.vocabulary;
    source_.logits = scratch_.row_values;
    source_row_ = 0;
  }

  std::span<float> row_values() const {
    return {scratch_.row_values, static_cast<std::size_t>(p_.vocabulary)};
  }

  RowScratch piece_scratch(std::size_t piece) const {
    RowScratch scratch = scratch_.select;
    if (piece > 0) {
      scratch.values = scratch_.piece_values + (piece - 1) * scratch_.piece_stride;
    }
    return scratch;
  }

  void scan() {
    const std::size_t segments = layout_.sizes.segments;
    const std::size_t pieces = pool_ == nullptr ? 1 : layout_.pieces;
    const auto scan_piece = [&](std::int64_t task) {
      const auto piece = static_cast<std::size_t>(task);
      selection::scan_segments(source_, source_row_, temperature_, piece * segments / pieces,
                               (piece + 1) * segments / pieces, piece_scratch(piece));
    };
    if (pieces == 1) return scan_piece(0);
    pool_->run(static_cast<std::int64_t>(pieces), scan_piece);
  }

  // The row sum. False if the scan cannot sum the row.
  bool merge() {
    sum_ = selection::merge_segments(scratch_.select.segments, layout_.sizes.segments);
    if (!(sum_.sum > 0)) return false;
    // From the reference to the largest value, whose weight is 1. The scale is that of the scan.
    const auto scale = static_cast<float>(kLog2E / temperature_);
    const double distance =
        sum_.reference - static_cast<double>(sum_.largest) * static_cast<double>(scale);
    total_ = sum_.sum * std::exp2(distance);
    log_total_ = std::log(sum_.sum) + distance * kLn2;
    return true;
  }

  // The first `count` tokens in order, and their values.
  void order(std::int64_t count) {
    if (count <= ready_) return;
    tokens_ = selection::select_tokens(source_, source_row_, count,
                                       selection::scratch_sizes(source_, count), sum_.largest,
                                       scratch_.select);
    ready_ = count;
  }

  double exponent(float value) const {
    if (value == sum_.largest) return 0;
    return (static_cast<double>(value) - static_cast<double>(sum_.largest)) / temperature_;
  }
  Drawn at_rank(std::int64_t rank) const {
    const auto at = static_cast<std::size_t>(rank);
    return {tokens_[at], scratch_.select.top[at]};
  }

  Drawn draw() {
    if (controls_.greedy()) {
      order(1);
      return at_rank(0);
    }
    const double u = random_uniform(p_.seed[row_], p_.position[row_]);
    return controls_.cuts(p_.vocabulary) ? by_value(u) : by_token(u);
  }

  // ---- with a cut ------------------------------------------------------------------------------

  Drawn by_value(double u) {
    // top_p is relative to the mass of what top_k keeps.
    const bool whole = controls_.top_k < p_.vocabulary && controls_.top_p < 1;
    if (whole && controls_.top_k > kMaxSortedPrefix) return by_histogram(u);
    const std::int64_t limit = std::min(controls_.top_k, kMaxSortedPrefix);
    if (!whole && limit == kMaxSortedPrefix && exceeds_prefixes(0)) return by_histogram(u);
    for (const std::int64_t step : kPrefixSteps) {
      const std::int64_t count = whole ? limit : std::min(step, limit);
      order(count);
      if (const std::optional<Drawn> drawn = walk(u, count)) return *drawn;
      if (count == limit || exceeds_prefixes(count)) break;
    }
    return by_histogram(u);
  }

  // Whether top_p and min_p certainly keep more tokens than are ever sorted: no later token weighs
  // more than the last of the first `count`, whose weights are in scratch_.weights, and none more
  // than 1.
  bool exceeds_prefixes(std::int64_t count) const {
    if (controls_.min_p > 0 && !min_p_exceeds_prefixes()) return false;
    if (!(controls_.top_p < 1)) return controls_.min_p > 0;
    double mass = 0;
    for (std::int64_t rank = 0; rank < count; ++rank) mass += scratch_.weights[rank];
    const double missing =
        static_cast<double>(controls_.top_p) * total_ * (1 - 2 * kSumError) - mass;
    const double heaviest = count > 0 ? scratch_.weights[count - 1] : 1;
    return missing > heaviest * static_cast<double>(kMaxSortedPrefix - count);
  }

  // Each group whose maximum is kept holds one kept token.
  bool min_p_exceeds_prefixes() const {
    const double exponent = std::log(static_cast<double>(controls_.min_p));
    const double least =
        static_cast<double>(sum_.largest) + temperature_ * (exponent + 1e-9 * std::fabs(exponent));
    const auto bound = std::nextafter(static_cast<float>(least), sum_.largest);
    const float* const maxima = scratch_.select.fine;
    const std::size_t groups = layout_.sizes.blocks * layout_.sizes.lanes;
    std::int32_t kept = 0;  // as wide as a float, so that compilers vectorize the loop
    for (std::size_t i = 0; i < groups; ++i) kept += maxima[i] > bound ? 1 : 0;
    return kept > kMaxSortedPrefix;
  }

  // The draw, if the kept set ends within the first `count` tokens.
  std::optional<Drawn> walk(double u, std::int64_t count) {
    const std::span<double> weights(scratch_.weights, static_cast<std::size_t>(count));
    double mass = 0;
    for (std::size_t rank = 0; rank < weights.size(); ++rank) {
      mass += weights[rank] = std::exp(exponent(scratch_.select.top[rank]));
    }
    const bool all = count == controls_.top_k;  // top_k is the vocabulary if it does not cut
    Cut cut = cut_at(all ? mass : total_, weights);
    if (!all && cut.doubtful && !exact_) {
      sum_exactly();
      cut = cut_at(total_, weights);
    }
    if (!cut.ended && !all) return std::nullopt;
    const Choice choice = choose(cut.kept, u, [&](std::size_t i) { return weights[i]; });
    return at_rank(static_cast<std::int64_t>(choice.index));
  }

  struct Cut {
    std::size_t kept = 0;
    bool ended = false;     // by top_p or min_p, not by the end of the weights
    bool doubtful = false;  // an error in the last digits of the sum might move the cut
  };

  // Where top_p, of this mass, and min_p cut the sorted weights.
  Cut cut_at(double mass, std::span<const double> weights) const {
    const bool by_mass = controls_.top_p < 1;
    const double needed = static_cast<double>(controls_.top_p) * mass;
    Cut cut;
    double kept_mass = 0;
    while (cut.kept < weights.size() && !cut.ended) {
      if (weights[cut.kept] < static_cast<double>(controls_.min_p)) {
        cut.ended = true;  // the first one weighs 1
        break;
      }
      kept_mass += weights[cut.kept++];
      if (!by_mass) continue;
      cut.ended = kept_mass >= needed;
      cut.doubtful = cut.doubtful || std::fabs(kept_mass - needed) <= kSumError * needed;
    }
    return cut;
  }

  // The sum of all weights in f64, where that of the scan leaves a cut in doubt.
  void sum_exactly() {
    total_ = 0;
    for (const float value : f32_values()) total_ += std::exp(exponent(value));
    exact_ = true;
    read_again_ = true;
  }

  // Kept sets beyond the sorted prefixes.
  Drawn by_histogram(double u) {
    read_again_ = true;
    const std::span<const float> values = f32_values();
    HistogramDraw histogram(values, sum_.largest, temperature_, controls_, scratch_.histogram);
    log_total_ = std::log(histogram.total());
    const std::int64_t token = histogram.draw(u);
    return {token, values[static_cast<std::size_t>(token)]};
  }

  // The values of the row: in place where they are f32 already.
  std::span<const float> f32_values() const {
    if (!copied_ && p_.dtype == DType::f32 && p_.has_raw_logits()) {
      return {static_cast<const float*>(p_.logits) + row_ * p_.logits_stride,
              static_cast<std::size_t>(p_.vocabulary)};
    }
    if (!copied_ && !exact_) read_values(p_, row_, row_values());
    return row_values();
  }

  // ---- without a cut ---------------------------------------------------------------------------

  Drawn by_token(double u) {
    const ScratchSizes& sizes = layout_.sizes;
    for (std::size_t g = 0; g < sizes.segments; ++g) {
      const SegmentSum& s = scratch_.select.segments[g];
      scratch_.segment_sums[g] =
          s.sum == 0 ? 0 : s.sum * selection::power_of_two(s.reference - sum_.reference);
    }
    const Choice segment =
        choose(sizes.segments, u, [this](std::size_t g) { return scratch_.segment_sums[g]; });
    const std::size_t begin = segment.index * sizes.segment_tokens;
    const std::size_t end =
        std::min(static_cast<std::size_t>(p_.vocabulary), begin + sizes.segment_tokens);
    const std::size_t block = std::max(kMaskWord, selection::kBlockVectors * sizes.lanes);
    const Choice piece = choose_block(begin, end, block, segment.fraction);
    const std::size_t first = begin + piece.index * block;
    const std::size_t tokens = std::min(block, end - first);
    double* const weights = scratch_.weights;
    for (std::size_t i = 0; i < tokens; ++i) weights[i] = std::exp(exponent(value_at(first + i)));
    const Choice token =
        choose(tokens, piece.fraction, [weights](std::size_t i) { return weights[i]; });
    const std::size_t at = first + token.index;
    return {static_cast<std::int64_t>(at), value_at(at)};
  }

  // Picks a block of a segment by the sums of its blocks, each scanned as a row of its own. Blocks
  // are whole words of a mask.
  Choice choose_block(std::size_t begin, std::size_t end, std::size_t block, double fraction) {
    LogitRows part = source_;
    part.rows = 1;
    const auto offset = static_cast<std::size_t>(source_row_);
    SegmentSum sum;
    RowScratch scratch = piece_scratch(0);
    // What the scan writes beside the sum must not overwrite the row's.
    float fine[64];
    float coarse[64];
    scratch.fine = fine;
    scratch.coarse = coarse;
    scratch.segments = &sum;
    std::array<double, selection::kSegmentBlocks> sums;
    std::array<double, selection::kSegmentBlocks> references;
    std::size_t blocks = 0;
    double reference = -std::numeric_limits<double>::infinity();
    for (std::size_t first = begin; first < end; first += block) {
      part.vocabulary = static_cast<std::int64_t>(std::min(block, end - first));
      part.logits = static_cast<const char*>(source_.logits) +
                    (static_cast<std::int64_t>(offset) * source_.logits_stride +
                     static_cast<std::int64_t>(first)) *
                        size_of(source_.dtype);
      if (source_.bias != nullptr) {
        part.bias = source_.bias + source_row_ * source_.bias_stride + first;
      }
      if (source_.token_mask != nullptr) {
        part.token_mask =
            source_.token_mask + source_row_ * source_.token_mask_stride + first / kMaskWord;
      }
      selection::scan_segments(part, 0, temperature_, 0, 1, scratch);
      sums[blocks] = sum.sum;
      references[blocks] = sum.reference;
      if (sum.sum != 0 && sum.reference > reference) reference = sum.reference;
      ++blocks;
    }
    for (std::size_t b = 0; b < blocks; ++b) {
      if (sums[b] != 0) sums[b] *= std::exp2(references[b] - reference);
    }
    return choose(blocks, fraction, [&](std::size_t b) { return sums[b]; });
  }

  float value_at(std::size_t token) const {
    return copied_ ? scratch_.row_values[token]
                   : value_of(p_, row_, static_cast<std::int64_t>(token));
  }

  // ---- outputs ---------------------------------------------------------------------------------

  // Clamped to 0: the maximum and the sum are rounded differently.
  float log_probability(float value) const {
    return std::min(0.0F, static_cast<float>(exponent(value) - log_total_));
  }

  void store(const Drawn& drawn) {
    RowStatus status = read_again_ ? RowStatus::two_pass : RowStatus::ok;
    const std::int64_t n = p_.top_count;
    if (n > 0 && at_rank(n - 1).value == kMinusInfinity) status |= RowStatus::fewer_than_k;
    write_token(p_, row_, drawn.token, log_probability(drawn.value), status);
    for (std::int64_t rank = 0; rank < n; ++rank) {
      const Drawn top = at_rank(rank);
      write_top(p_, row_, rank, top.token, log_probability(top.value));
    }
  }

  const SampleProblem& p_;
  const SampleLayout& layout_;
  SampleScratch scratch_;
  ThreadPool* pool_;
  std::int64_t row_ = 0;
  RowControls controls_;
  double temperature_ = 1;
  bool copied_ = false;  // the row is penalized: scratch_.row_values
  LogitRows source_;     // what is scanned
  std::int64_t source_row_ = 0;
  std::int64_t ready_ = 0;  // tokens in order
  selection::SelectedTokens tokens_;
  RowSum sum_;
  double total_ = 0;         // of the weights; that of the largest value is 1
  double log_total_ = 0;     // its logarithm
  bool exact_ = false;       // total_ is a sum in f64
  bool read_again_ = false;  // the row was read twice
};

}  // namespace

std::string sample_simd_refuses(const Context& /*context*/, const SampleProblem& p) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  return p.vocabulary > kMax ? "V " + std::to_string(p.vocabulary) + " > " + std::to_string(kMax)
                             : "";
}

void sample_simd(Context& context, const SampleProblem& p) {
  const std::int64_t max_threads = context.threads();
  const std::int64_t threads = selection::useful_threads(p, max_threads);
  ThreadPool& pool = detail::ContextAccess::pool(context);
  // Fewer rows than threads, and long enough to be shared.
  if (threads > 1 && p.rows < threads) {
    const SampleLayout layout(p, pool.threads());
    Scratch scratch(context, "sample", layout, 1, 0);
    const Scratch::ScratchLease lease(scratch);
    FastRow worker(layout, lease.scratch(), &pool);
    for (std::int64_t row = 0; row < p.rows; ++row) worker.run(row);
    return;
  }
  const std::int64_t tasks = threads == 1 ? 1 : std::min(p.rows, kTasksPerThread * threads);
  const SampleLayout layout(p, 1);
  Scratch scratch(context, "sample", layout, std::min(tasks, max_threads), 0);
  pool.run(tasks, [&](std::int64_t task) {
    const Scratch::ScratchLease lease(scratch);
    FastRow worker(layout, lease.scratch(), nullptr);
    // Without the product task * rows, which may overflow.
    const auto begin = [&](std::int64_t t) {
      return p.rows / tasks * t + std::min(p.rows % tasks, t);
    };
    for (std::int64_t row = begin(task); row < begin(task + 1); ++row) worker.run(row);
  });
}

}  // namespace touchstone::sampling
