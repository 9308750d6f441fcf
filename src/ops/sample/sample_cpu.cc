// The fast sampler: one scan of the row, shared with softmax_topk, and then only what the scan says
// is needed.
//
// The scan leaves the sum of exponentials of every segment and the maxima of small groups. A row
// that asks for a cut takes its first tokens in order from those maxima, as softmax_topk does,
// first a few and then more, and walks along them in f64. A row that asks for none needs no order
// at all: the uniform picks a segment by the sums, a block of it by sums over blocks, and a token
// of that. Rows that are penalized are copied once, in f32, and scanned there.
//
// The sum of a scan is right to some 1e-7. Where that leaves it open whether top_p keeps one token
// more, the row is read again for a sum in f64: the cut is exact.
//
// What the scan cannot take (NaN, infinities, no token left, extreme temperatures) and kept sets of
// more than kMaxKept tokens are left to the plain implementation.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/sample/philox.h"
#include "ops/sample/sample_output.h"
#include "ops/sample/sample_problem.h"
#include "ops/sample/sample_row.h"
#include "ops/softmax_topk/topk_cpu.h"
#include "touchstone/core/checked.h"

namespace touchstone::sampling {
namespace {

using topk::RowScratch;
using topk::ScratchSizes;
using topk::SegmentSum;
using topk::Topk;

// The contract's "more tokens than fit in the fast path", and the steps to it. Most rows with top_p
// keep fewer than the first.
constexpr std::int64_t kMaxKept = 2048;
constexpr std::int64_t kSteps[] = {64, 512, kMaxKept};

// Work worth one more thread: as for softmax_topk.
constexpr std::int64_t kBytesPerThread = std::int64_t{192} << 10;

// The sum of a scan is right to 12 roundings of f32 (topk_cpu.h) and a few of its exponentials.
constexpr double kSumError = 1e-6;

// Tokens in a word of a mask.
constexpr std::size_t kMaskWord = 32;

constexpr double kLog2E = 1.44269504088896340736;
constexpr double kLn2 = 0.693147180559945309417;

// Memory that is used again and never cleared: the scan writes all that it reads.
template <class Element>
class Buffer {
 public:
  void grow(std::size_t size) {
    if (size <= size_) return;
    data_ = std::make_unique_for_overwrite<Element[]>(size);
    size_ = size;
  }
  Element* data() const { return data_.get(); }
  Element& operator[](std::size_t i) const { return data_[i]; }

 private:
  std::unique_ptr<Element[]> data_;
  std::size_t size_ = 0;
};

// What the scan and the selection after it want. Kernels store whole vectors, so there is room for
// one more at each end. Asking for more tokens in order must leave what the scan has written.
class ScanMemory {
 public:
  // `pieces` of a row may be scanned at a time.
  void fit(const Topk& q, const ScratchSizes& s, std::size_t pieces) {
    constexpr std::size_t kVector = 16;
    fine_.grow(s.blocks * s.lanes + kVector);
    coarse_.grow(s.coarse * s.lanes + kVector);
    segments.grow(s.segments);
    maxima_.grow(s.maxima + kVector);
    coarse_list_.grow(s.coarse + kVector);
    listed_.grow(s.blocks * s.lanes + kVector);
    found_bits_.grow(s.candidates + kVector);
    found_tokens_.grow(s.candidates + kVector);
    bins_.grow(s.candidates + kVector);
    candidates_.grow(s.candidates + kVector);
    sorted_.grow(s.candidates + kVector);
    const auto k = static_cast<std::size_t>(q.k) + kVector;
    equals_.grow(k);
    top.grow(k);
    tokens.grow(k);
    probabilities.grow(k);
    values_stride_ = s.segment_tokens + kVector;
    if (q.bias != nullptr || q.allowed != nullptr) values_.grow(pieces * values_stride_);
  }

  RowScratch scratch(std::size_t piece) const {
    return {
        .fine = fine_.data(),
        .coarse = coarse_.data(),
        .segments = segments.data(),
        .maxima = maxima_.data(),
        .coarse_list = coarse_list_.data(),
        .listed = listed_.data(),
        .found_bits = found_bits_.data(),
        .found_tokens = found_tokens_.data(),
        .bins = bins_.data(),
        .candidates = candidates_.data(),
        .sorted = sorted_.data(),
        .equals = equals_.data(),
        .top = top.data(),
        .values = values_.data() == nullptr ? nullptr : values_.data() + piece * values_stride_};
  }

  Buffer<SegmentSum> segments;
  Buffer<float> top;  // values of the first tokens in order
  Buffer<std::int32_t> tokens;
  Buffer<float> probabilities;

 private:
  Buffer<float> fine_, coarse_, maxima_, values_;
  Buffer<topk::Candidate> candidates_, sorted_;
  Buffer<std::uint32_t> coarse_list_, listed_, found_bits_, found_tokens_, equals_;
  Buffer<std::uint16_t> bins_;
  std::size_t values_stride_ = 0;
};

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
  FastRow(const Sampling& p, ThreadPool* pool) : p_(p), pool_(pool) {}

  void run(std::int64_t row) {
    row_ = row;
    controls_ = row_controls(p_, row);
    if (!controls_.legal) return refuse_row(p_, row, kRowBadParameter);
    temperature_ = controls_.greedy() ? 1 : static_cast<double>(controls_.temperature);
    const bool usual = temperature_ >= topk::kLowestTemperature &&
                       temperature_ <= topk::kHighestTemperature && p_.top_count <= kMaxKept;
    if (!usual) return sample_plain_row(p_, row, 0);
    describe();
    scan();
    if (!merge()) return sample_plain_row(p_, row, 0);
    ready_ = 0;
    exact_ = false;
    if (p_.top_count > 0) order(p_.top_count);
    const std::optional<Drawn> drawn = draw();
    if (!drawn) return sample_plain_row(p_, row, kRowTwoPass);
    write(*drawn);
  }

 private:
  struct Drawn {
    std::int64_t token = 0;
    float value = 0;
  };

  // The row as a problem of softmax_topk: itself, or its penalized copy.
  void describe() {
    q_ = {};
    q_.rows = 1;
    q_.vocabulary = p_.vocabulary;
    q_.temperature_scale = temperature_;
    copied_ = controls_.penalizes() && p_.history_length > 0;
    if (copied_) {
      read_values(p_, row_, values_);
      penalize(p_, row_, controls_, values_);
      q_.dtype = DType::f32;
      q_.logits = values_.data();
      return;
    }
    q_.dtype = p_.dtype;
    q_.logits = static_cast<const char*>(p_.logits) + row_ * p_.logits_stride * size_of(p_.dtype);
    if (p_.bias != nullptr) q_.bias = p_.bias + row_ * p_.bias_stride;
    if (p_.allowed != nullptr) {
      // The same bits, told as unsigned.
      q_.allowed = reinterpret_cast<const std::uint32_t*>(p_.allowed) + row_ * p_.allowed_stride;
    }
  }

  void prepare(std::int64_t k) {
    q_.k = k;
    sizes_ = topk::scratch_sizes(q_);
    pieces_ = pool_ == nullptr ? 1 : static_cast<std::size_t>(pool_->threads());
    pieces_ = std::min(pieces_, sizes_.segments);
    memory_.fit(q_, sizes_, pieces_);
    q_.probabilities = memory_.probabilities.data();
    q_.indices = memory_.tokens.data();
  }

  void scan() {
    prepare(1);
    if (pieces_ == 1) {
      topk::scan_segments(q_, 0, 0, sizes_.segments, memory_.scratch(0));
      return;
    }
    pool_->run(static_cast<std::int64_t>(pieces_), [&](std::int64_t task) {
      const auto piece = static_cast<std::size_t>(task);
      topk::scan_segments(q_, 0, piece * sizes_.segments / pieces_,
                          (piece + 1) * sizes_.segments / pieces_, memory_.scratch(piece));
    });
  }

  // Sums of segments over one reference. False when the scan found what it cannot sum up.
  bool merge() {
    double reference = -std::numeric_limits<double>::infinity();
    largest_ = kMinusInfinity;
    const Buffer<SegmentSum>& segments = memory_.segments;
    for (std::size_t g = 0; g < sizes_.segments; ++g) {
      if (std::isnan(segments[g].sum)) return false;
      largest_ = std::max(largest_, segments[g].largest);
      if (segments[g].sum != 0) reference = std::max(reference, segments[g].reference);
    }
    if (largest_ == kMinusInfinity) return false;
    sums_.resize(sizes_.segments);
    double sum = 0;
    for (std::size_t g = 0; g < sizes_.segments; ++g) {
      const SegmentSum& s = segments[g];
      sums_[g] = s.sum == 0 ? 0 : s.sum * std::exp2(s.reference - reference);
      sum += sums_[g];
    }
    // From the reference to the largest value, whose weight is 1. The scale is that of the scan.
    const auto scale = static_cast<float>(kLog2E / temperature_);
    const double distance = reference - static_cast<double>(largest_) * static_cast<double>(scale);
    total_ = sum * std::exp2(distance);
    log_total_ = std::log(sum) + distance * kLn2;
    return true;
  }

  // The first `count` tokens in order, and their values.
  void order(std::int64_t count) {
    if (count <= ready_) return;
    prepare(count);
    topk::finish_row(q_, 0, sizes_, memory_.scratch(0));
    ready_ = count;
  }

  double exponent(float value) const {
    if (value == largest_) return 0;
    return (static_cast<double>(value) - static_cast<double>(largest_)) / temperature_;
  }
  double weight_at(std::int64_t rank) const {
    return std::exp(exponent(memory_.top[static_cast<std::size_t>(rank)]));
  }
  Drawn at_rank(std::int64_t rank) {
    const auto at = static_cast<std::size_t>(rank);
    return {memory_.tokens[at], memory_.top[at]};
  }

  // Nothing when more than kMaxKept tokens would have to be put in order.
  std::optional<Drawn> draw() {
    if (controls_.greedy()) {
      order(1);
      return at_rank(0);
    }
    const double u = uniform_of(p_.seed[row_], p_.position[row_]);
    if (!controls_.cuts(p_.vocabulary)) return by_token(u);
    return by_value(u);
  }

  // ---- a cut -----------------------------------------------------------------------------------

  std::optional<Drawn> by_value(double u) {
    const bool top_k_cuts = controls_.top_k < p_.vocabulary;
    // For top_p the mass of the first top_k has to be known.
    if (top_k_cuts && controls_.top_p < 1 && controls_.top_k > kMaxKept) return std::nullopt;
    const std::int64_t limit = std::min(controls_.top_k, kMaxKept);
    for (const std::int64_t step : kSteps) {
      const bool whole = top_k_cuts && controls_.top_p < 1;
      const std::int64_t count = whole ? limit : std::min(step, limit);
      order(count);
      if (const std::optional<Drawn> drawn = walk(u, count)) return drawn;
      if (count == limit) break;
    }
    return std::nullopt;
  }

  // The draw, if the kept set ends within the first `count` tokens.
  std::optional<Drawn> walk(double u, std::int64_t count) {
    weights_.resize(static_cast<std::size_t>(count));
    double mass = 0;
    for (std::int64_t rank = 0; rank < count; ++rank) {
      mass += weights_[static_cast<std::size_t>(rank)] = weight_at(rank);
    }
    const bool all = count == controls_.top_k;  // top_k is the vocabulary where it does not cut
    Cut cut = cut_at(all ? mass : total_);
    if (!all && cut.doubtful && !exact_) {
      sum_exactly();
      cut = cut_at(total_);
    }
    if (!cut.ended && !all) return std::nullopt;
    const Choice choice = choose(cut.kept, u, [this](std::size_t i) { return weights_[i]; });
    return at_rank(static_cast<std::int64_t>(choice.index));
  }

  struct Cut {
    std::size_t kept = 0;
    bool ended = false;     // by top_p or min_p, and not because there are no more weights
    bool doubtful = false;  // a sum that is off in its last digits might have cut elsewhere
  };

  // Where top_p, of this mass, and min_p cut the tokens of weights_.
  Cut cut_at(double mass) const {
    const bool by_mass = controls_.top_p < 1;
    const double needed = static_cast<double>(controls_.top_p) * mass;
    Cut cut;
    double kept_mass = 0;
    while (cut.kept < weights_.size() && !cut.ended) {
      if (weights_[cut.kept] < static_cast<double>(controls_.min_p)) {
        cut.ended = true;  // the first one weighs 1
        break;
      }
      kept_mass += weights_[cut.kept++];
      if (!by_mass) continue;
      cut.ended = kept_mass >= needed;
      cut.doubtful = cut.doubtful || std::fabs(kept_mass - needed) <= kSumError * needed;
    }
    return cut;
  }

  // The sum of all weights in f64, where that of the scan leaves a cut in doubt.
  void sum_exactly() {
    if (!copied_) read_values(p_, row_, values_);
    total_ = 0;
    for (const float value : values_) total_ += std::exp(exponent(value));
    exact_ = true;
  }

  // ---- no cut ----------------------------------------------------------------------------------

  Drawn by_token(double u) {
    const Choice segment = choose(sizes_.segments, u, [this](std::size_t g) { return sums_[g]; });
    const std::size_t begin = segment.index * sizes_.segment_tokens;
    const std::size_t end =
        std::min(static_cast<std::size_t>(p_.vocabulary), begin + sizes_.segment_tokens);
    const std::size_t block = std::max(kMaskWord, topk::kBlockVectors * sizes_.lanes);
    scan_blocks(begin, end, block);
    const Choice piece = choose(block_sums_.size(), segment.fraction,
                                [this](std::size_t b) { return block_sums_[b]; });
    const std::size_t first = begin + piece.index * block;
    const std::size_t tokens = std::min(block, end - first);
    weights_.resize(tokens);
    for (std::size_t i = 0; i < tokens; ++i) weights_[i] = std::exp(exponent(value_at(first + i)));
    const Choice token =
        choose(tokens, piece.fraction, [this](std::size_t i) { return weights_[i]; });
    const std::size_t at = first + token.index;
    return {static_cast<std::int64_t>(at), value_at(at)};
  }

  // The sum of every block of a segment, by scanning it as a row of its own. Blocks are whole words
  // of a mask.
  void scan_blocks(std::size_t begin, std::size_t end, std::size_t block) {
    Topk part = q_;
    SegmentSum sum;
    RowScratch scratch = memory_.scratch(0);
    // What the scan writes beside the sum is not wanted, and must not overwrite the row's.
    float fine[64];
    float coarse[64];
    scratch.fine = fine;
    scratch.coarse = coarse;
    scratch.segments = &sum;
    block_sums_.clear();
    double reference = 0;
    for (std::size_t first = begin; first < end; first += block) {
      part.vocabulary = static_cast<std::int64_t>(std::min(block, end - first));
      part.logits = static_cast<const char*>(q_.logits) +
                    static_cast<std::int64_t>(first) * size_of(q_.dtype);
      part.bias = q_.bias == nullptr ? nullptr : q_.bias + first;
      part.allowed = q_.allowed == nullptr ? nullptr : q_.allowed + first / kMaskWord;
      topk::scan_segments(part, 0, 0, 1, scratch);
      block_sums_.push_back(sum.sum);
      references_.resize(block_sums_.size());
      references_.back() = sum.reference;
      if (sum.sum != 0 && (block_sums_.size() == 1 || sum.reference > reference)) {
        reference = sum.reference;
      }
    }
    for (std::size_t b = 0; b < block_sums_.size(); ++b) {
      if (block_sums_[b] != 0) block_sums_[b] *= std::exp2(references_[b] - reference);
    }
  }

  float value_at(std::size_t token) const {
    return copied_ ? values_[token] : value_of(p_, row_, static_cast<std::int64_t>(token));
  }

  // ---- outputs ---------------------------------------------------------------------------------

  // The largest and the sum come by different roundings: no more than 0.
  float log_probability(float value) const {
    return std::min(0.0F, static_cast<float>(exponent(value) - log_total_));
  }

  void write(const Drawn& drawn) {
    std::int32_t status = exact_ ? kRowTwoPass : 0;
    const std::int64_t n = p_.top_count;
    if (n > 0 && at_rank(n - 1).value == kMinusInfinity) status |= kRowFewerThanK;
    write_token(p_, row_, drawn.token, log_probability(drawn.value), status);
    for (std::int64_t rank = 0; rank < n; ++rank) {
      const Drawn top = at_rank(rank);
      write_top(p_, row_, rank, top.token, log_probability(top.value));
    }
  }

  const Sampling& p_;
  ThreadPool* pool_;
  std::int64_t row_ = 0;
  RowControls controls_;
  double temperature_ = 1;
  bool copied_ = false;
  Topk q_;
  ScratchSizes sizes_;
  std::size_t pieces_ = 1;
  ScanMemory memory_;
  std::int64_t ready_ = 0;     // tokens in order
  std::vector<float> values_;  // of a penalized row
  std::vector<double> sums_;   // of segments, over one reference
  std::vector<double> block_sums_, references_, weights_;
  float largest_ = 0;
  double total_ = 0;      // of the weights; that of the largest value is 1
  bool exact_ = false;    // total_ is a sum in f64
  double log_total_ = 0;  // its logarithm
};

}  // namespace

std::string sample_simd_refuses(const Context& /*context*/, const Sampling& p) {
  return p.vocabulary > std::numeric_limits<std::int32_t>::max() ? "more than 2^31 - 1 tokens" : "";
}

void sample_simd(Context& context, const Sampling& p) {
  const std::int64_t row_bytes = p.vocabulary * size_of(p.dtype);
  const std::int64_t most = context.threads();
  const std::int64_t threads =
      row_bytes >= kBytesPerThread * most
          ? most
          : std::clamp<std::int64_t>(p.rows / ceil_div(kBytesPerThread, row_bytes), 1, most);
  // Too few rows to go round, and long enough to be shared.
  if (threads > 1 && p.rows < threads) {
    FastRow worker(p, &detail::ContextAccess::pool(context));
    for (std::int64_t row = 0; row < p.rows; ++row) worker.run(row);
    return;
  }
  // A few tasks per thread, so that one that is held up does not hold up the rest.
  const std::int64_t tasks = threads == 1 ? 1 : std::min(p.rows, 4 * threads);
  detail::ContextAccess::pool(context).run(tasks, [&](std::int64_t task) {
    FastRow worker(p, nullptr);
    // Without the product task * rows, which may not fit.
    const auto begin = [&](std::int64_t t) {
      return p.rows / tasks * t + std::min(p.rows % tasks, t);
    };
    for (std::int64_t row = begin(task); row < begin(task + 1); ++row) worker.run(row);
  });
}

}  // namespace touchstone::sampling
