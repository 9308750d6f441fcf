#include "touchstone/decode/continuation_text.h"

#include <vector>

namespace touchstone::inline v0::decode {

io::TokenStream continuation_stream(const io::Tokenizer& tokenizer,
                                    std::span<const std::int32_t> prompt,
                                    const io::DecodeOptions& options) {
  // A character has up to four bytes, each of which may be a token. Special tokens that are skipped
  // have no text to continue.
  constexpr std::size_t kTail = 4;
  std::vector<std::int32_t> tail;
  for (std::size_t i = prompt.size(); i-- > 0 && tail.size() < kTail;) {
    if (!options.skip_special || !tokenizer.is_special(prompt[i])) tail.push_back(prompt[i]);
  }
  io::TokenStream stream(tokenizer, options);
  for (std::size_t i = tail.size(); i-- > 0;) stream.next(tail[i]);
  return stream;
}

std::string continuation_text(const io::Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                              std::span<const std::int32_t> tokens,
                              const io::DecodeOptions& options) {
  io::TokenStream stream = continuation_stream(tokenizer, prompt, options);
  std::string text;
  for (const std::int32_t token : tokens) text += stream.next(token);
  return text + stream.finish();
}

}  // namespace touchstone::inline v0::decode
