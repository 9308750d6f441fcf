#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <unordered_map>

#include "core/index.h"
#include "decode/speculative/grow_tree.h"
#include "decode/speculative/suffix_automaton.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/draft_source.h"

namespace touchstone::inline v0::decode {

struct SuffixCorpus::State {
  explicit State(std::int64_t most) : max_tokens(most) {
    if (most < 1) {
      throw InvalidArgument(
          fmt::format("suffix corpus: max_tokens: expected at least 1, got {}", most));
    }
  }
  void append(std::span<const std::int32_t> text) {
    for (const std::int32_t token : text) automaton.extend(token);
    automaton.end_text();
  }
  void add(std::span<const std::int32_t> text) {
    text = text.last(std::min(text.size(), at(max_tokens)));
    if (text.empty()) return;
    texts.emplace_back(text.begin(), text.end());
    held += std::ssize(text);
    if (held <= max_tokens) {
      append(text);
      return;
    }
    // Down to half, so that a full corpus is built anew once for many texts.
    while (texts.size() > 1 && held > max_tokens / 2) {
      held -= std::ssize(texts.front());
      texts.pop_front();
    }
    automaton.clear();
    for (const auto& kept : texts) append(kept);
    ++generation;
  }

  std::int64_t max_tokens;
  std::int64_t held = 0;
  std::int64_t generation = 0;  // states of earlier ones are void
  std::deque<std::vector<std::int32_t>> texts{};
  SuffixAutomaton automaton{};
};

SuffixCorpus::SuffixCorpus(std::int64_t max_tokens) : state_(std::make_unique<State>(max_tokens)) {}
SuffixCorpus::~SuffixCorpus() = default;
SuffixCorpus::SuffixCorpus(SuffixCorpus&&) noexcept = default;
SuffixCorpus& SuffixCorpus::operator=(SuffixCorpus&&) noexcept = default;
void SuffixCorpus::add(std::span<const std::int32_t> text) { state_->add(text); }
std::int64_t SuffixCorpus::tokens() const { return state_->held; }
std::int64_t SuffixCorpus::bytes() const { return state_->automaton.bytes() + 4 * state_->held; }

namespace {

// A place in an automaton: a state, and how many of the last tokens it matches.
struct Match {
  std::int32_t state = SuffixAutomaton::kRoot;
  std::int64_t length = 0;
};

void advance(const SuffixAutomaton& automaton, Match& match, std::int32_t token) {
  while (match.state != SuffixAutomaton::kRoot &&
         automaton.next(match.state, token) == SuffixAutomaton::kNone) {
    match.state = automaton.link(match.state);
    match.length = automaton.length(match.state);
  }
  const std::int32_t next = automaton.next(match.state, token);
  if (next == SuffixAutomaton::kNone) {
    match = {};
  } else {
    match = {next, match.length + 1};
  }
}

TokenTree tree_after(const SuffixAutomaton& automaton, const Match& start,
                     const GrowLimits& limits) {
  // A context with very many successors predicts none of them.
  constexpr int kMaxEdges = 256;
  return grow_tree(start, limits, [&](const Match& match, std::vector<Successor<Match>>& list) {
    std::int64_t total = 0;
    std::int32_t edge = automaton.first_edge(match.state);
    for (int i = 0; i < kMaxEdges && edge != SuffixAutomaton::kNone; ++i) {
      total += automaton.count(automaton.edge(edge).target);
      edge = automaton.edge(edge).next;
    }
    const double known = static_cast<double>(match.length) / static_cast<double>(match.length + 1);
    edge = automaton.first_edge(match.state);
    for (int i = 0; i < kMaxEdges && edge != SuffixAutomaton::kNone; ++i) {
      const SuffixAutomaton::Edge& next = automaton.edge(edge);
      const double share = static_cast<double>(automaton.count(next.target)) /
                           static_cast<double>(std::max<std::int64_t>(total, 1));
      if (share > 0) {
        list.push_back({{next.token, static_cast<float>(std::log(share * known))},
                        {next.target, match.length + 1}});
      }
      edge = next.next;
    }
  });
}

class SuffixSource final : public DraftSource {
 public:
  explicit SuffixSource(SuffixOptions options) : options_(std::move(options)) {
    if (options_.min_match < 1 || options_.max_tokens < 2 || !(options_.min_probability > 0)) {
      throw InvalidArgument(
          "suffix source: expected min_match >= 1, max_tokens >= 2, min_probability > 0");
    }
    if (options_.learn && !options_.corpus) options_.corpus = std::make_shared<SuffixCorpus>();
  }

  std::string name() const override { return "suffix"; }

  void draft(Context& /*context*/, std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      Sequence& sequence = sequences_[request.id];
      read(sequence, request.tokens);
      const GrowLimits own{request.limits, options_.min_probability, 0};
      const std::int32_t state = sequence.automaton.repeated();
      const Match here{state, sequence.automaton.length(state)};
      TokenTree found[2];
      if (here.length >= options_.min_match) found[0] = tree_after(sequence.automaton, here, own);
      if (options_.corpus && sequence.in_corpus.length >= options_.min_match) {
        found[1] = tree_after(options_.corpus->state().automaton, sequence.in_corpus,
                              {request.limits, options_.min_probability, 1});
      }
      const TokenTree* const trees[] = {&found[0], &found[1]};
      request.draft.tree = found[1].empty()   ? std::move(found[0])
                           : found[0].empty() ? std::move(found[1])
                                              : merge_trees(trees, request.limits);
    }
  }

  void forget(std::int64_t id) override {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    if (options_.learn) options_.corpus->add(found->second.tokens);
    sequences_.erase(found);
  }

 private:
  struct Sequence {
    SuffixAutomaton automaton{};
    std::vector<std::int32_t> tokens{};  // that are indexed
    std::int64_t seen = 0;               // of the whole sequence
    Match in_corpus{};
    std::int64_t generation = -1;
  };

  void read(Sequence& s, std::span<const std::int32_t> tokens) {
    if (options_.corpus && s.generation != options_.corpus->state().generation) {
      s.generation = options_.corpus->state().generation;
      s.in_corpus = {};
      constexpr std::size_t kReread = 64;
      const auto known = tokens.first(at(std::min(s.seen, std::ssize(tokens))));
      for (const std::int32_t token : known.last(std::min(kReread, known.size()))) {
        advance(options_.corpus->state().automaton, s.in_corpus, token);
      }
    }
    for (; s.seen < std::ssize(tokens); ++s.seen) {
      const std::int32_t token = tokens[at(s.seen)];
      if (std::ssize(s.tokens) == options_.max_tokens) {
        s.tokens.erase(s.tokens.begin(), s.tokens.begin() + options_.max_tokens / 2);
        s.automaton.clear();
        for (const std::int32_t old : s.tokens) s.automaton.extend(old);
      }
      s.tokens.push_back(token);
      s.automaton.extend(token);
      if (options_.corpus) advance(options_.corpus->state().automaton, s.in_corpus, token);
    }
  }

  SuffixOptions options_;
  std::unordered_map<std::int64_t, Sequence> sequences_;
};

}  // namespace

std::unique_ptr<DraftSource> suffix_source(const SuffixOptions& options) {
  return std::make_unique<SuffixSource>(options);
}

}  // namespace touchstone::inline v0::decode
