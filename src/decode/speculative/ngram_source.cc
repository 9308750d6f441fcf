#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "core/index.h"
#include "decode/speculative/grow_tree.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/draft_source.h"

namespace touchstone::inline v0::decode {

DraftSource::~DraftSource() = default;
std::int64_t DraftSource::vocabulary() const { return 0; }
std::span<const std::int32_t> DraftSource::hidden_layers() const { return {}; }
void DraftSource::observe(Context& /*context*/, const ObservedRows& /*rows*/) {}
void DraftSource::copy(Context& /*context*/, std::int64_t /*from*/, std::int64_t /*to*/) {}

namespace {

class PromptLookupSource final : public DraftSource {
 public:
  explicit PromptLookupSource(const PromptLookupOptions& options) : options_(options) {
    if (options_.min_match < 1 || options_.max_match < options_.min_match) {
      throw InvalidArgument("prompt lookup source: expected 1 <= min_match <= max_match");
    }
  }
  std::string name() const override { return "lookup"; }
  void draft(Context& /*context*/, std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      const auto [from, match] = find(request.tokens);
      if (match == 0) continue;
      const auto tokens = request.tokens.subspan(at(from));
      std::vector<float> log_probabilities;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto known = static_cast<float>(match) + static_cast<float>(i);
        log_probabilities.push_back(std::log(known / (known + 1)));
      }
      request.draft.tree =
          chain_tree({.tokens = tokens, .log_probabilities = log_probabilities}, request.limits);
    }
  }
  void forget(std::int64_t /*id*/) override {}

 private:
  // Where the longest match continues, the most recent one, and its length.
  std::pair<std::int64_t, std::int64_t> find(std::span<const std::int32_t> tokens) const {
    const std::int64_t n = std::ssize(tokens);
    std::int64_t best = 0;
    std::int64_t from = 0;
    for (std::int64_t end = n - 1; end >= options_.min_match && best < options_.max_match; --end) {
      std::int64_t match = 0;
      while (match < options_.max_match && match < end &&
             tokens[at(end - 1 - match)] == tokens[at(n - 1 - match)]) {
        ++match;
      }
      if (match > best && match >= options_.min_match) {
        best = match;
        from = end;
      }
    }
    return {from, best};
  }

  PromptLookupOptions options_;
};

// Successors of contexts, by a hash of the last tokens. Two halves: when the younger one is full,
// the older one is dropped.
class ContextTable {
 public:
  struct Successors {
    std::array<std::pair<std::int32_t, std::int32_t>, 4> tokens{};  // with counts
    std::int32_t total = 0;
  };

  void note(std::uint64_t context, std::int32_t token, std::int64_t max_contexts) {
    if (std::ssize(young_) >= std::max<std::int64_t>(max_contexts / 2, 1)) {
      old_ = std::move(young_);
      young_ = {};
    }
    const auto [found, added] = young_.try_emplace(context);
    if (added) {
      if (const auto before = old_.find(context); before != old_.end()) {
        found->second = before->second;
      }
    }
    Successors& s = found->second;
    ++s.total;
    auto* slot = std::ranges::find_if(
        s.tokens, [&](const auto& known) { return known.second > 0 && known.first == token; });
    if (slot == s.tokens.end()) {
      slot = std::ranges::min_element(s.tokens, {}, [](const auto& known) { return known.second; });
      *slot = {token, 0};
    }
    ++slot->second;
  }
  const Successors* find(std::uint64_t context) const {
    if (const auto found = young_.find(context); found != young_.end()) return &found->second;
    const auto found = old_.find(context);
    return found == old_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<std::uint64_t, Successors> young_;
  std::unordered_map<std::uint64_t, Successors> old_;
};

std::uint64_t hash_of(std::span<const std::int32_t> tokens) {
  std::uint64_t hash = tokens.size();
  for (const std::int32_t token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
  }
  return hash;
}

class NgramSource final : public DraftSource {
 public:
  explicit NgramSource(const NgramOptions& options) : options_(options) {
    if (options_.min_match < 1 || options_.max_match < options_.min_match ||
        options_.max_match > kMaxMatch || options_.max_contexts < 2 ||
        !(options_.min_probability > 0)) {
      throw InvalidArgument(
          "ngram source: expected 1 <= min_match <= max_match <= 16, max_contexts >= 2, "
          "min_probability > 0");
    }
  }
  std::string name() const override { return "ngram"; }

  void draft(Context& /*context*/, std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      Sequence& sequence = sequences_[request.id];
      ContextTable& table = options_.shared ? shared_ : sequence.table;
      read(sequence, table, request.tokens);
      Window start;
      for (const std::int32_t token :
           request.tokens.last(std::min(request.tokens.size(), at(options_.max_match)))) {
        start.push(token, options_.max_match);
      }
      request.draft.tree =
          grow_tree(start, {request.limits, options_.min_probability, 0},
                    [&](const Window& window, std::vector<Successor<Window>>& list) {
                      follow(table, window, list);
                    });
    }
  }
  void forget(std::int64_t id) override { sequences_.erase(id); }

 private:
  static constexpr std::int64_t kMaxMatch = 16;
  struct Sequence {
    ContextTable table{};
    std::int64_t seen = 0;
  };
  // The last tokens of a path.
  struct Window {
    std::array<std::int32_t, kMaxMatch> tokens{};
    std::int64_t size = 0;

    void push(std::int32_t token, std::int64_t most) {
      if (size == most) {
        std::shift_left(tokens.begin(), tokens.begin() + size, 1);
        --size;
      }
      tokens[at(size++)] = token;
    }
    std::span<const std::int32_t> last(std::int64_t n) const {
      return std::span(tokens).subspan(at(size - n), at(n));
    }
  };

  void read(Sequence& sequence, ContextTable& table, std::span<const std::int32_t> tokens) const {
    for (; sequence.seen < std::ssize(tokens); ++sequence.seen) {
      for (std::int64_t n = options_.min_match; n <= options_.max_match && n <= sequence.seen;
           ++n) {
        table.note(hash_of(tokens.subspan(at(sequence.seen - n), at(n))), tokens[at(sequence.seen)],
                   options_.max_contexts);
      }
    }
  }
  // Of the longest context that is known.
  void follow(const ContextTable& table, const Window& window,
              std::vector<Successor<Window>>& list) const {
    for (std::int64_t n = std::min(window.size, options_.max_match); n >= options_.min_match; --n) {
      const ContextTable::Successors* const found = table.find(hash_of(window.last(n)));
      if (found == nullptr) continue;
      const double known = static_cast<double>(n) / static_cast<double>(n + 1);
      for (const auto& [token, count] : found->tokens) {
        if (count == 0) continue;
        const double share = static_cast<double>(count) / static_cast<double>(found->total);
        list.push_back({{token, static_cast<float>(std::log(share * known))}, window});
        list.back().state.push(token, options_.max_match);
      }
      return;
    }
  }

  NgramOptions options_;
  ContextTable shared_{};
  std::unordered_map<std::int64_t, Sequence> sequences_;
};

class MergedSource final : public DraftSource {
 public:
  explicit MergedSource(std::vector<std::unique_ptr<DraftSource>> sources)
      : sources_(std::move(sources)) {
    for (const auto& source : sources_) {
      const std::int64_t own = source->vocabulary();
      if (own != 0 && vocabulary_ != 0 && own != vocabulary_) {
        throw InvalidArgument("merged source: the vocabularies of the sources differ");
      }
      if (own != 0) vocabulary_ = own;
      if (source->hidden_layers().empty()) continue;
      if (observer_ != nullptr) {
        throw InvalidArgument("merged source: two sources read hidden states, expected one");
      }
      observer_ = source.get();
    }
  }
  std::span<const std::int32_t> hidden_layers() const override {
    return observer_ == nullptr ? std::span<const std::int32_t>() : observer_->hidden_layers();
  }
  void observe(Context& context, const ObservedRows& rows) override {
    observer_->observe(context, rows);
  }
  void copy(Context& context, std::int64_t from, std::int64_t to) override {
    for (const auto& source : sources_) source->copy(context, from, to);
  }
  std::string name() const override {
    std::string all;
    for (const auto& source : sources_) {
      if (!all.empty()) all += '+';
      all += source->name();
    }
    return all;
  }
  std::int64_t vocabulary() const override { return vocabulary_; }
  void draft(Context& context, std::span<DraftRequest> requests) override {
    std::vector<std::vector<TokenTree>> found(requests.size());
    for (std::size_t s = 0; s < sources_.size(); ++s) {
      std::vector<DraftRequest> copies(requests.begin(), requests.end());
      sources_[s]->draft(context, copies);
      for (std::size_t r = 0; r < requests.size(); ++r) {
        TokenTree& named = found[r].emplace_back();
        for (const TreeNode& node : copies[r].draft.tree.nodes()) {
          named.add({.parent = node.parent,
                     .token = node.token,
                     .log_probability = node.log_probability,
                     .source = static_cast<std::int32_t>(s)});
        }
      }
    }
    for (std::size_t r = 0; r < requests.size(); ++r) {
      std::vector<const TokenTree*> trees;
      for (const TokenTree& tree : found[r]) trees.push_back(&tree);
      requests[r].draft = {.tree = merge_trees(trees, requests[r].limits)};
    }
  }
  void forget(std::int64_t id) override {
    for (const auto& source : sources_) source->forget(id);
  }

 private:
  std::vector<std::unique_ptr<DraftSource>> sources_;
  DraftSource* observer_ = nullptr;  // of hidden states
  std::int64_t vocabulary_ = 0;
};

}  // namespace

std::unique_ptr<DraftSource> prompt_lookup_source(const PromptLookupOptions& options) {
  return std::make_unique<PromptLookupSource>(options);
}

std::unique_ptr<DraftSource> ngram_source(const NgramOptions& options) {
  return std::make_unique<NgramSource>(options);
}

std::unique_ptr<DraftSource> merged_source(std::vector<std::unique_ptr<DraftSource>> sources) {
  return std::make_unique<MergedSource>(std::move(sources));
}

}  // namespace touchstone::inline v0::decode
