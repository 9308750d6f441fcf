// Tokens drawn at random under a JSON Schema: the example in docs/grammars.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <iostream>
#include <random>
#include <string>
#include <vector>

int main() {
  using namespace touchstone;
  // A vocabulary of bytes, a few words, and a token that ends the text; with a model it is
  // io::Tokenizer::token_bytes() and the model's end tokens.
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 128; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  for (const char* word : {"Berlin", "city", "\": ", "days", ""}) bytes.emplace_back(word);
  const std::int32_t end = static_cast<std::int32_t>(bytes.size()) - 1;
  const decode::GrammarVocabulary vocabulary(bytes, std::vector{end});

  const auto grammar = decode::Grammar::from_json_schema(R"({
      "type": "object",
      "properties": {"city": {"enum": ["Berlin", "Paris"]},
                     "days": {"type": "integer", "minimum": 1, "maximum": 14}},
      "required": ["city", "days"]})");
  decode::GrammarConstraint constraint(grammar, vocabulary);

  std::mt19937 random(1);  // in the place of a model: sample() takes the mask as token_mask
  std::vector<std::int32_t> mask((bytes.size() + 31) / 32);
  std::string text;
  while (!constraint.ended()) {
    constraint.allowed(mask);
    std::int32_t token = 0;
    do {
      token = static_cast<std::int32_t>(random() % bytes.size());
    } while (
        (static_cast<std::uint32_t>(mask[static_cast<std::size_t>(token) / 32]) >> (token % 32) &
         1) == 0);
    constraint.accept(token);
    text += bytes[static_cast<std::size_t>(token)];
  }
  std::cout << text << '\n';  // {"city": "Berlin", "days": 5}

  try {
    decode::Grammar::from_gbnf("root ::= list\nlist ::= list \",\" [a-z]+ | [a-z]+");
  } catch (const decode::GrammarError& error) {
    std::cout << error.what()
              << '\n';  // grammar:2:1: the rule 'list' begins with itself (left recursion)
  }
}
// [snippet]
