// The text of generated tokens. It depends on the prompt: SentencePiece decoders drop the space
// before the first token of a text, which the first token of a continuation is not, and a character
// may begin in the prompt.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "touchstone/core/export.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::decode {

// A stream that continues the text of `prompt`: next() of the tokens that follow gives what they
// add. The tokenizer must outlive it.
TOUCHSTONE_API io::TokenStream continuation_stream(const io::Tokenizer& tokenizer,
                                                   std::span<const std::int32_t> prompt,
                                                   const io::DecodeOptions& options = {});

// The text that `tokens` add to the text of `prompt`.
TOUCHSTONE_API std::string continuation_text(const io::Tokenizer& tokenizer,
                                             std::span<const std::int32_t> prompt,
                                             std::span<const std::int32_t> tokens,
                                             const io::DecodeOptions& options = {});

}  // namespace touchstone::inline v0::decode
