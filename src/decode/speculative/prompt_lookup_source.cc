// Drafts that continue the longest earlier match of the last tokens of a sequence (prompt lookup).
#include <cmath>
#include <utility>

#include "core/index.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/draft_source.h"

namespace touchstone::inline v0::decode {
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

}  // namespace

std::unique_ptr<DraftSource> prompt_lookup_source(const PromptLookupOptions& options) {
  return std::make_unique<PromptLookupSource>(options);
}

}  // namespace touchstone::inline v0::decode
