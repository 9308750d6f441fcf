#include "decode/beam/constraints.h"

#include <algorithm>

namespace touchstone::inline v0::decode::beam {

namespace {

class Mask {
 public:
  explicit Mask(std::span<std::int32_t> words) : words_(words) {}
  bool allowed(std::int32_t token) const { return (word(token) >> (token % 32) & 1U) != 0; }
  // Whether it was allowed before.
  bool exclude(std::int32_t token) {
    const bool before = allowed(token);
    store(token, word(token) & ~(1U << (token % 32)));
    return before;
  }
  void allow(std::int32_t token) { store(token, word(token) | 1U << (token % 32)); }

 private:
  std::uint32_t word(std::int32_t token) const {
    return static_cast<std::uint32_t>(words_[static_cast<std::size_t>(token / 32)]);
  }
  void store(std::int32_t token, std::uint32_t value) {
    words_[static_cast<std::size_t>(token / 32)] = static_cast<std::int32_t>(value);
  }
  std::span<std::int32_t> words_;
};

// Calls f(token) for every token that would complete an n-gram of `text` again.
template <class F>
void for_each_repeat(std::span<const std::int32_t> text, std::size_t n, const F& f) {
  if (text.size() + 1 < n) return;
  const std::span<const std::int32_t> last = text.last(n - 1);
  for (std::size_t i = 0; i + n <= text.size(); ++i) {
    if (std::ranges::equal(text.subspan(i, n - 1), last)) f(text[i + n - 1]);
  }
}

}  // namespace

std::vector<std::int32_t> ending_tokens(const BeamRequest& request) {
  std::vector<std::int32_t> tokens;
  const auto add = [&](std::int32_t token) {
    if (std::ranges::find(tokens, token) == tokens.end()) tokens.push_back(token);
  };
  if (!request.request.stop.ignore_eos) std::ranges::for_each(request.options.eos, add);
  std::ranges::for_each(request.request.stop.tokens, add);
  return tokens;
}

Constraints::Constraints(const BeamRequest& request, std::int64_t vocabulary,
                         std::int64_t max_tokens)
    : options_(request.options),
      vocabulary_(vocabulary),
      min_tokens_(request.request.stop.min_tokens),
      ending_(ending_tokens(request)),
      base_(static_cast<std::size_t>((vocabulary + 31) / 32), -1) {
  if (rules_of(options_).limit == LimitRule::force_eos && !ending_.empty()) {
    forced_eos_index_ = max_tokens - 1;
  }
  Mask mask(base_);
  for (const std::int32_t token : options_.banned) {
    if (mask.exclude(token)) ++base_excluded_;
  }
}

bool Constraints::active(std::int64_t index) const {
  const bool forced =
      index < std::ssize(options_.forced) && options_.forced[static_cast<std::size_t>(index)] >= 0;
  return base_excluded_ > 0 || options_.no_repeat_ngram > 0 || options_.trie || forced ||
         (index < min_tokens_ && !ending_.empty()) || index == forced_eos_index_;
}

std::int64_t Constraints::fill(std::span<std::int32_t> words, std::span<const std::int32_t> text,
                               std::int64_t index, std::int32_t trie_node) const {
  std::ranges::copy(base_, words.begin());
  Mask mask(words);
  std::int64_t excluded = base_excluded_;
  const auto exclude = [&](std::int32_t token) { excluded += mask.exclude(token) ? 1 : 0; };
  // Leaves the given tokens, as far as they were allowed.
  std::vector<std::int32_t> left;
  const auto keep_only = [&](std::span<const std::int32_t> tokens, bool with_ending) {
    left.assign(tokens.begin(), tokens.end());
    if (with_ending) left.insert(left.end(), ending_.begin(), ending_.end());
    std::erase_if(left, [&](std::int32_t token) { return !mask.allowed(token); });
    std::ranges::sort(left);
    const auto repeated = std::ranges::unique(left);
    left.erase(repeated.begin(), repeated.end());
    std::ranges::fill(words, 0);
    for (const std::int32_t token : left) mask.allow(token);
    excluded = vocabulary_ - std::ssize(left);
  };
  if (options_.no_repeat_ngram > 0) {
    for_each_repeat(text, static_cast<std::size_t>(options_.no_repeat_ngram), exclude);
  }
  if (index < min_tokens_) std::ranges::for_each(ending_, exclude);
  if (options_.trie) keep_only(options_.trie->tokens(trie_node), options_.trie->ends(trie_node));
  if (index < std::ssize(options_.forced) &&
      options_.forced[static_cast<std::size_t>(index)] >= 0) {
    keep_only(std::span(options_.forced).subspan(static_cast<std::size_t>(index), 1), false);
  } else if (index == forced_eos_index_) {
    keep_only(ending_, false);
  }
  return excluded;
}

}  // namespace touchstone::inline v0::decode::beam
