// The step loop: rows to the scorer, logits to the selector, lists to each request's search, forks.
#include "touchstone/decode/beam_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>

#include "decode/beam/search_state.h"
#include "decode/beam/select.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {

namespace beam {
namespace {

// Sequences of a scorer that are released however the search ends.
class Sequences {
 public:
  explicit Sequences(Scorer& scorer) : scorer_(scorer) {}
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;
  ~Sequences() {
    for (const ScorerSequence sequence : list_) {
      try {
        scorer_.release(sequence);
      } catch (const Error&) {  // the exception in flight is the cause
      }
    }
  }
  // All but the last token of the prompt may be there already: that one gives the logits.
  ScorerSequence open(std::span<const std::int32_t> prompt) {
    list_.push_back(scorer_.open(prompt.first(prompt.size() - 1)));
    return list_.back();
  }
  const std::vector<ScorerSequence>& list() const { return list_; }

  // One sequence per new beam, that of its parent or a fork of it; the others are released first.
  std::int64_t follow(std::span<const RunningBeam> beams) {
    std::vector<std::int32_t> children(list_.size(), 0);
    for (const RunningBeam& beam : beams) ++children[static_cast<std::size_t>(beam.parent)];
    std::vector<ScorerSequence> parents = list_;
    for (std::size_t i = list_.size(); i-- > 0;) {
      if (children[i] > 0) continue;
      const ScorerSequence sequence = list_[i];
      list_.erase(list_.begin() + static_cast<std::ptrdiff_t>(i));
      scorer_.release(sequence);
    }
    std::vector<ScorerSequence> next;
    std::int64_t forks = 0;
    list_.reserve(list_.size() + beams.size());
    for (const RunningBeam& beam : beams) {
      const auto parent = static_cast<std::size_t>(beam.parent);
      // The last child takes the sequence itself.
      if (--children[parent] == 0) {
        next.push_back(parents[parent]);
      } else {
        list_.push_back(scorer_.fork(parents[parent]));
        next.push_back(list_.back());
        ++forks;
      }
    }
    list_ = std::move(next);
    return forks;
  }

 private:
  Scorer& scorer_;
  std::vector<ScorerSequence> list_;
};

struct Search {
  Search(const BeamRequest& request, Scorer& scorer)
      : state(request, scorer.shape()),
        sequences(scorer),
        cancellation(request.request.cancellation) {}
  SearchState state;
  Sequences sequences;
  Cancellation cancellation;
};

// Rows of prompts in one call, at most: activations are computed in chunks anyway, and layers with
// windows free pages between calls.
constexpr std::int64_t kPromptRows = 256;

// Opens the sequences of all requests. Prompts that fit in the first step together are left to it;
// else all are read up to their last token, whose logits are computed by the first step.
class PromptReader {
 public:
  PromptReader(Context& context, Scorer& scorer, BeamStatistics& statistics)
      : context_(context), scorer_(scorer), statistics_(statistics) {}

  void run(std::span<const std::unique_ptr<Search>> searches) {
    std::vector<RowCount> counts;
    std::int64_t rows = 0;
    for (const auto& search : searches) {
      if (search->state.done() || search->cancellation.cancelled()) continue;
      const std::span<const std::int32_t> prompt = search->state.prompt();
      const ScorerSequence sequence = search->sequences.open(prompt);
      const std::int64_t rest = std::ssize(prompt) - scorer_.length(sequence);
      counts.push_back({sequence, rest});
      rows += rest;
      unread_.push_back({sequence, prompt.first(prompt.size() - 1), search->cancellation});
    }
    if (rows <= kPromptRows && scorer_.fits(counts)) return;
    while (read_chunk()) {
    }
  }

 private:
  struct Unread {
    ScorerSequence sequence{};
    std::span<const std::int32_t> tokens{};
    Cancellation cancellation{};
  };

  // Rows of as many prompts as one call takes. False when there are none left.
  bool read_chunk() {
    std::vector<RowCount> counts;
    std::vector<std::span<const std::int32_t>> tokens;
    std::int64_t left = kPromptRows;
    for (const Unread& one : unread_) {
      if (one.cancellation.cancelled()) continue;
      const auto rest = one.tokens.subspan(static_cast<std::size_t>(scorer_.length(one.sequence)));
      if (rest.empty() || left == 0) continue;
      const std::int64_t rows = std::min(left, std::ssize(rest));
      counts.push_back({one.sequence, rows});
      tokens.push_back(rest);
      left -= rows;
    }
    if (counts.empty()) return false;
    // Fewer prompts, then fewer rows of one; where one row does not fit, score() says why.
    while (!scorer_.fits(counts) && (counts.size() > 1 || counts[0].rows > 1)) {
      if (counts.size() > 1) {
        counts.pop_back();
      } else {
        counts[0].rows /= 2;
      }
    }
    score(counts, tokens);
    return true;
  }

  void score(std::span<const RowCount> counts,
             std::span<const std::span<const std::int32_t>> tokens) {
    std::vector<ScoreRow> rows;
    std::vector<std::int32_t> all;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const auto chain = chain_rows(counts[i].sequence, scorer_.length(counts[i].sequence),
                                    tokens[i].first(static_cast<std::size_t>(counts[i].rows)),
                                    static_cast<std::int32_t>(rows.size()));
      rows.insert(rows.end(), chain.begin(), chain.end());
    }
    all.resize(rows.size());
    std::iota(all.begin(), all.end(), 0);
    scorer_.score(context_, {.rows = rows});
    std::vector<KeptRows> kept;
    std::size_t first = 0;
    for (const RowCount& count : counts) {
      const auto own = static_cast<std::size_t>(count.rows);
      kept.push_back({count.sequence, std::span(all).subspan(first, own)});
      first += own;
    }
    scorer_.keep(kept);
    ++statistics_.steps;
    statistics_.rows += std::ssize(rows);
    statistics_.prompt_rows += std::ssize(rows);
  }

  Context& context_;
  Scorer& scorer_;
  BeamStatistics& statistics_;
  std::vector<Unread> unread_;
};

// One step of all requests that still run.
class Step {
 public:
  Step(Context& context, Scorer& scorer, Selector& selector, Tensor& logits,
       BeamStatistics& statistics)
      : context_(context),
        scorer_(scorer),
        selector_(selector),
        logits_(logits),
        statistics_(statistics) {}

  void run(std::span<const std::unique_ptr<Search>> searches) {
    for (std::size_t i = 0; i < searches.size(); ++i) {
      Search& search = *searches[i];
      if (search.cancellation.cancelled()) search.state.cancel();
      if (search.state.done()) continue;
      first_row_.push_back(std::ssize(scores_));
      active_.push_back(i);
      add_rows(search);
    }
    if (active_.empty()) return;
    score();
    const std::vector<std::vector<Candidate>> lists = select(searches);
    std::size_t list = 0;
    for (std::size_t a = 0; a < active_.size(); ++a) {
      Search& search = *searches[active_[a]];
      search.state.advance(std::span(lists).subspan(list, segment_count_[a]), first_row_[a]);
      list += segment_count_[a];
      statistics_.forks += search.sequences.follow(search.state.running());
    }
  }
  bool idle() const { return active_.empty(); }

 private:
  void add_rows(Search& search) {
    const SearchState& state = search.state;
    const auto first = static_cast<std::int32_t>(rows_.size());
    if (state.generated() == 0) {
      const ScorerSequence sequence = search.sequences.list().front();
      const std::int64_t length = scorer_.length(sequence);
      const auto rest = std::span(state.prompt()).subspan(static_cast<std::size_t>(length));
      const std::vector<ScoreRow> chain = chain_rows(sequence, length, rest, first);
      rows_.insert(rows_.end(), chain.begin(), chain.end());
      statistics_.prompt_rows += std::ssize(chain);
      add_kept(sequence, first);
      scores_.push_back(0);
      return;
    }
    const std::int64_t position = std::ssize(state.prompt()) + state.generated() - 1;
    for (std::size_t b = 0; b < state.running().size(); ++b) {
      const RunningBeam& beam = state.running()[b];
      const auto row = static_cast<std::int32_t>(rows_.size());
      rows_.push_back({.sequence = search.sequences.list()[b],
                       .token = state.token_of(beam),
                       .position = position});
      add_kept(search.sequences.list()[b], row);
      scores_.push_back(beam.score);
    }
  }
  // The rows from `first` to the last one are a chain of the sequence.
  void add_kept(ScorerSequence sequence, std::int32_t first) {
    kept_first_.push_back(first);
    kept_.push_back({.sequence = sequence});
    logit_rows_.push_back(static_cast<std::int32_t>(rows_.size()) - 1);
  }

  void score() {
    const std::int64_t vocabulary = scorer_.shape().vocabulary;
    const Device device = scorer_.shape().device;
    const std::int64_t wanted[] = {std::ssize(scores_), vocabulary};
    if (logits_.elements() < wanted[0] * wanted[1]) {
      logits_ = Tensor::empty(std::span<const std::int64_t>(wanted), DType::f32, device);
    }
    view_ = make_view(logits_.data(), wanted, DType::f32, device);
    scorer_.score(context_, {.rows = rows_, .logit_rows = logit_rows_, .logits = view_});
    std::vector<std::int32_t> all(rows_.size());
    std::iota(all.begin(), all.end(), 0);
    for (std::size_t i = 0; i < kept_.size(); ++i) {
      const auto first = static_cast<std::size_t>(kept_first_[i]);
      const auto last = static_cast<std::size_t>(logit_rows_[i]);
      kept_[i].rows = std::span(all).subspan(first, last - first + 1);
    }
    scorer_.keep(kept_);
    ++statistics_.steps;
    statistics_.rows += std::ssize(rows_);
  }

  std::vector<std::vector<Candidate>> select(std::span<const std::unique_ptr<Search>> searches) {
    SelectArgs args{.logits = view_, .scores = scores_};
    std::vector<Segment> segments;
    for (std::size_t a = 0; a < active_.size(); ++a) {
      const SearchState& state = searches[active_[a]]->state;
      const std::size_t before = segments.size();
      state.add_segments(first_row_[a], segments);
      segment_count_.push_back(segments.size() - before);
      args.tokens_per_row = std::max(args.tokens_per_row, state.tokens_per_row());
      add_masks(state, first_row_[a], args);
    }
    args.segments = segments;
    args.masks = masks_;
    args.normalize_allowed = normalize_;
    std::int64_t nan_row = -1;
    std::vector<std::vector<Candidate>> lists =
        selector_.select(context_, args, nan_row, statistics_);
    if (nan_row >= 0) refuse_nan(nan_row, searches);
    return lists;
  }

  void add_masks(const SearchState& state, std::int64_t row, SelectArgs& args) {
    if (!state.constraints().active(state.generated())) return;
    const auto words = static_cast<std::size_t>((scorer_.shape().vocabulary + 31) / 32);
    if (masks_.empty()) masks_.assign(words * scores_.size(), -1);
    if (state.normalize_allowed() && normalize_.empty()) normalize_.assign(scores_.size(), 0);
    for (std::size_t b = 0; b < state.running().size(); ++b) {
      const RunningBeam& beam = state.running()[b];
      const std::size_t at = static_cast<std::size_t>(row) + b;
      std::vector<std::int32_t> text;
      if (state.constraints().needs_text()) text = state.text_of(beam);
      const std::int64_t excluded = state.constraints().fill(
          std::span(masks_).subspan(at * words, words), text, state.generated(), beam.trie_node);
      args.max_excluded = std::max(args.max_excluded, excluded);
      if (state.normalize_allowed()) normalize_[at] = 1;
    }
  }

  [[noreturn]] void refuse_nan(std::int64_t row,
                               std::span<const std::unique_ptr<Search>> searches) const {
    std::size_t a = 0;
    while (a + 1 < first_row_.size() && first_row_[a + 1] <= row) ++a;
    throw CorruptData(
        fmt::format("beam_search: request {}: step {}: the logits of beam {} contain NaN",
                    active_[a], searches[active_[a]]->state.generated() + 1, row - first_row_[a]));
  }

  Context& context_;
  Scorer& scorer_;
  Selector& selector_;
  Tensor& logits_;
  BeamStatistics& statistics_;
  TensorView view_;
  std::vector<std::size_t> active_;         // requests
  std::vector<std::int64_t> first_row_;     // of each, in the logits
  std::vector<std::size_t> segment_count_;  // of each
  std::vector<ScoreRow> rows_;
  std::vector<std::int32_t> logit_rows_;
  std::vector<KeptRows> kept_;
  std::vector<std::int32_t> kept_first_;
  std::vector<double> scores_;  // per row of logits
  std::vector<std::int32_t> masks_;
  std::vector<std::int32_t> normalize_;
};

}  // namespace
}  // namespace beam

BeamResults beam_search(Context& context, Scorer& scorer, std::span<const BeamRequest> requests) {
  const ScorerShape& shape = scorer.shape();
  const RequestLimits limits{.vocabulary = shape.vocabulary, .max_length = shape.max_length};
  for (std::size_t i = 0; i < requests.size(); ++i) {
    check_beam_request(requests[i], limits, static_cast<std::int64_t>(i));
  }
  std::vector<std::unique_ptr<beam::Search>> searches;
  for (const BeamRequest& request : requests) {
    searches.push_back(std::make_unique<beam::Search>(request, scorer));
  }
  BeamResults results;
  beam::Selector selector;
  Tensor logits;
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const Clock::time_point start = Clock::now();
  beam::PromptReader(context, scorer, results.statistics).run(searches);
  for (bool idle = false, first = true; !idle; first = false) {
    beam::Step step(context, scorer, selector, logits, results.statistics);
    step.run(searches);
    idle = step.idle();
    if (first) results.statistics.prompt_seconds = seconds_since(start);
  }
  results.statistics.decode_seconds = seconds_since(start) - results.statistics.prompt_seconds;
  for (const auto& search : searches) results.hypotheses.push_back(search->state.results());
  return results;
}

}  // namespace touchstone::inline v0::decode
