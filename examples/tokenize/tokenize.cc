// A tokenizer: trained here, or read from a file; text to ids, and ids to text one by one.
// [snippet]
#include <touchstone/touchstone.h>

#include <iostream>
#include <string_view>
#include <vector>

int main() {
  using namespace touchstone::io;
  const std::string_view texts[] = {"low lower lowest, new newer newest, café"};
  const Tokenizer tokenizer =
      Tokenizer::from_json(train_tokenizer(texts, {.vocabulary = 280, .special = {"<|end|>"}}));
  // Of a model: Tokenizer::from_file("folder"), with its tokenizer.json, or of a GGUF file.
  std::cout << tokenizer.describe() << '\n';

  std::vector<Token> ids = tokenizer.encode("the newest café<|end|>");
  // Text of users: "<|end|>" in it is seven characters.
  tokenizer.encode_to("<|end|>", ids, {.add_special = false, .parse_special = false});

  TokenStream stream(tokenizer, {.skip_special = true});
  for (const Token id : ids) std::cout << stream.next(id);  // whole characters, as they come
  std::cout << stream.finish() << '\n';
}
// [snippet]
