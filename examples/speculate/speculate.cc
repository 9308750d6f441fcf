// Acceptance of a draft tree whose logits are written by hand. The second part is the example in
// docs/speculative.md, word for word.
#include <touchstone/touchstone.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

using namespace touchstone;

// Rows of logits in which one token stands out.
std::vector<float> rows_that_prefer(const std::vector<std::int32_t>& tokens,
                                    std::size_t vocabulary) {
  std::vector<float> logits(tokens.size() * vocabulary, 0.0F);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    logits[i * vocabulary + static_cast<std::size_t>(tokens[i])] = 4;
  }
  return logits;
}

// [snippet]
int main() {
  const char* const names[] = {"the", "a", "cat", "dog", "sat", "ran"};
  // After "the": cat with sat and ran behind it, or dog with ran behind it.
  decode::Draft draft;
  const auto cat = draft.tree.add({.token = 2, .log_probability = -0.5F});
  draft.tree.add({.parent = cat, .token = 4, .log_probability = -0.7F});
  draft.tree.add({.parent = cat, .token = 5, .log_probability = -1.1F});
  const auto dog = draft.tree.add({.token = 3, .log_probability = -1.2F});
  draft.tree.add({.parent = dog, .token = 5, .log_probability = -0.4F});

  // Target logits after the prefix and after each node: one pass.
  const std::vector<float> logits = rows_that_prefer({3, 4, 0, 0, 5, 0}, 6);

  const std::vector<std::int32_t> text = {0};
  const decode::Request request{.prompt = text};  // greedy
  const decode::DraftedSequence sequence{.request = &request, .tokens = text, .draft = &draft};
  Context context;
  decode::Acceptor acceptor(6);
  const decode::Acceptance found =
      acceptor.run(context, make_view(logits.data(), {6, 6}), {&sequence, 1})[0];
  std::cout << decode::format_trace(draft.tree, found,
                                    [&](std::int32_t token) { return std::string(names[token]); });
}
// [snippet]
