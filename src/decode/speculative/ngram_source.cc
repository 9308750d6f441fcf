// Drafts from the successors of n-grams: counts per context, of one sequence or of all.
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
namespace {

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

}  // namespace

std::unique_ptr<DraftSource> ngram_source(const NgramOptions& options) {
  return std::make_unique<NgramSource>(options);
}

}  // namespace touchstone::inline v0::decode
