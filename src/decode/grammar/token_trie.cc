#include "decode/grammar/token_trie.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode::grammar {

TokenTrie::TokenTrie(std::span<const std::string> bytes, std::span<const std::int32_t> end_tokens)
    : bytes_(bytes.begin(), bytes.end()),
      end_tokens_(end_tokens.begin(), end_tokens.end()),
      ends_(bytes.size(), false),
      same_(bytes.size(), -1) {
  if (bytes.size() > std::size_t{1} << 24) {
    throw InvalidArgument(fmt::format(
        "grammar vocabulary: bytes: expected at most {} tokens, got {}", 1 << 24, bytes.size()));
  }
  for (const std::int32_t token : end_tokens_) {
    if (token < 0 || static_cast<std::size_t>(token) >= bytes.size()) {
      throw InvalidArgument(fmt::format(
          "grammar vocabulary: end_tokens: expected tokens below {}, got {}", bytes.size(), token));
    }
    ends_[static_cast<std::size_t>(token)] = true;
  }
  std::vector<std::int32_t> order(bytes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](std::int32_t token) {
    return bytes_[static_cast<std::size_t>(token)].empty() || is_end(token);
  });
  std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
    return bytes_[static_cast<std::size_t>(a)] < bytes_[static_cast<std::size_t>(b)];
  });
  std::vector<std::int32_t> path;  // the nodes of the bytes before
  const std::string* before = nullptr;
  for (const std::int32_t token : order) {
    const std::string& text = bytes_[static_cast<std::size_t>(token)];
    std::size_t common = 0;
    if (before != nullptr) {
      const std::size_t most = std::min(before->size(), text.size());
      while (common < most && (*before)[common] == text[common]) ++common;
    }
    const auto count = [&] { return static_cast<std::int32_t>(nodes_.size()); };
    for (; path.size() > common; path.pop_back()) {
      nodes_[static_cast<std::size_t>(path.back())].end = count();
    }
    for (std::size_t i = common; i < text.size(); ++i) {
      path.push_back(count());
      nodes_.push_back(
          {static_cast<std::uint8_t>(text[i]), static_cast<std::int32_t>(i) + 1, 0, -1});
    }
    Node& last = nodes_[static_cast<std::size_t>(path.back())];
    same_[static_cast<std::size_t>(token)] = last.token;
    last.token = token;
    max_depth_ = std::max(max_depth_, static_cast<std::int32_t>(text.size()));
    before = &text;
  }
  for (const std::int32_t node : path) {
    nodes_[static_cast<std::size_t>(node)].end = static_cast<std::int32_t>(nodes_.size());
  }
}

}  // namespace touchstone::inline v0::decode::grammar
