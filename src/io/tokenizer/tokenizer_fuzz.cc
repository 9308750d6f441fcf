// The fuzz target: any bytes are a tokenizer.json, which encodes and decodes a few texts when it is
// one. The preset fuzz builds it with libFuzzer; tokenizer_mutation_test.cc calls it with
// mutations.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/error.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::io {
namespace {

// One line, whatever the file holds.
void check_message(const std::string& message) {
  if (message.empty() || message.find('\n') != std::string::npos) std::abort();
}

void use(const Tokenizer& tokenizer) {
  constexpr std::string_view kTexts[] = {
      "", "aab ab  uA", "Hello's \xc3\xa9\xcc\x81 123\n\n \xf0\x9f\x98\x80<|end|>",
      "a b a b \xe2\x96\x81 x",
      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
  for (const std::string_view text : kTexts) {
    try {
      const std::vector<Token> ids = tokenizer.encode(text);
      for (const Token id : ids) {
        if (id < 0) std::abort();
      }
      tokenizer.decode(ids);
      TokenStream stream(tokenizer, {.skip_special = true});
      for (const Token id : ids) stream.next(id);
      stream.finish();
    } catch (const Error& error) {
      check_message(error.what());
    }
  }
  tokenizer.describe();
}

}  // namespace
}  // namespace touchstone::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace io = touchstone::io;
  try {
    io::use(io::Tokenizer::from_json({reinterpret_cast<const char*>(data), size}));
  } catch (const touchstone::Error& error) {
    io::check_message(error.what());
  }
  return 0;
}
