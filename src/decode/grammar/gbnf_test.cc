// Texts that grammars match, and grammars that are refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "io/fuzz/mutate.h"
#include "touchstone/decode/grammar.h"

namespace touchstone::decode {
namespace {

std::string refusal(const std::string& text) {
  try {
    Grammar::from_gbnf(text);
  } catch (const GrammarError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Gbnf, MatchesWhatIsWritten) {
  const Grammar grammar = Grammar::from_gbnf(R"(
# a list of words and numbers
root ::= item ("," " "? item)*   # with commas
item ::= word
       | number
word ::= [a-zA-Zäöü_]+ "!"{0,2}
number ::= "-"? [0-9]{1,3} ("." [0-9]{2})?
)");
  for (const char* text : {"a", "grün!", "-12.50, x,y!!", "123", "7.00"}) {
    EXPECT_TRUE(grammar.matches(text)) << text;
  }
  for (const char* text : {"", "a!!!", "1234", "1.5", "a,", ",a", "a,  b", "\xc3"}) {
    EXPECT_FALSE(grammar.matches(text)) << text;
  }
  EXPECT_TRUE(grammar.can_begin("gr\xc3"));
  EXPECT_FALSE(grammar.can_begin("gr\xc5"));
}

TEST(Gbnf, SetsAndEscapes) {
  const Grammar negative = Grammar::from_gbnf(R"(root ::= [^"\\\n\u00e9]*)");
  EXPECT_TRUE(negative.matches("ab\xe2\x82\xac \xf0\x9f\x98\x80"));
  EXPECT_FALSE(negative.matches("\xc3\xa9"));
  EXPECT_FALSE(negative.matches("a\"b"));
  EXPECT_FALSE(negative.matches("\xed\xa0\x80"));  // half of a surrogate pair
  EXPECT_FALSE(negative.matches("\xc0\x80"));
  const Grammar some = Grammar::from_gbnf(R"(root ::= "\x41\t\U0001F600" [\]\-x-z] .)");
  EXPECT_TRUE(some.matches("A\t\xf0\x9f\x98\x80]\n"));
  EXPECT_TRUE(some.matches("A\t\xf0\x9f\x98\x80-\xc3\xa9"));
  EXPECT_FALSE(some.matches("A\t\xf0\x9f\x98\x80w."));
}

TEST(Gbnf, CallsAndEmptyRules) {
  const Grammar nested =
      Grammar::from_gbnf("root ::= empty pair* empty\npair ::= \"(\" root \")\"\nempty ::= \"\"");
  EXPECT_TRUE(nested.matches(""));
  EXPECT_TRUE(nested.matches("(()())()"));
  EXPECT_FALSE(nested.matches("(()"));
  // Readings that differ in their ends only.
  const Grammar twins =
      Grammar::from_gbnf("root ::= a\na ::= \"x\" a \"y\" | \"x\" a \"z\" | \"-\"");
  std::string text(200, 'x');
  text += '-';
  for (int i = 0; i < 200; ++i) text += i % 3 == 0 ? 'y' : 'z';
  EXPECT_TRUE(twins.matches(text));
  EXPECT_FALSE(twins.matches(text + "y"));
  // A call at the end of a rule takes no space on the stack.
  const Grammar list = Grammar::from_gbnf("root ::= \"x\" root | \"y\"");
  EXPECT_TRUE(list.matches(std::string(5000, 'x') + "y"));
}

TEST(Gbnf, RefusalsNameThePlace) {
  EXPECT_EQ(refusal("root ::= \"a\" item"), "grammar:1:14: the rule 'item' is not defined");
  EXPECT_EQ(refusal("root ::= a\na ::= b \"x\"\nb ::= a | \"y\""),
            "grammar:2:1: the rule 'a' begins with itself (left recursion)");
  EXPECT_EQ(refusal("root ::= e root \"x\" | \"y\"\ne ::= \"z\"?"),
            "grammar:1:1: the rule 'root' begins with itself (left recursion)");
  EXPECT_EQ(refusal("root ::= \"a\" | b\nb ::= \"x\" b"),
            "grammar:2:1: the rule 'b' has no text that ends");
  EXPECT_EQ(refusal("root ::= [^\\x00-\\U0010ffff]"),
            "grammar:1:1: the rule 'root' has no text that ends");
  EXPECT_EQ(refusal("root ::= \"a\n"), "grammar:1:10: a text without its closing quote");
  EXPECT_EQ(refusal("root ::= (\"a\""), "grammar:1:14: expected ')', got the end");
  EXPECT_EQ(refusal("root ::= \"a\"\nroot ::= \"b\""),
            "grammar:2:1: the rule 'root' is defined twice");
  EXPECT_EQ(refusal("x ::= \"a\""), "grammar:1:1: there is no rule 'root'");
  EXPECT_EQ(refusal("root ::= [z-a]"), "grammar:1:11: a range that ends before it begins");
  EXPECT_EQ(refusal("root ::= \"a\"{3,2}"), "grammar:1:13: {3,2} repeats nothing");
  EXPECT_EQ(refusal("root ::= \"\\q\""), "grammar:1:11: an escape that is not known");
  EXPECT_EQ(refusal("root ::= <[1000]>"), "grammar:1:10: tokens as symbols are not supported");
  EXPECT_EQ(refusal("root = \"a\""), "grammar:1:6: expected ::=, got '='");
  EXPECT_EQ(refusal(std::string("root ::= \"a\xff\"")), "grammar:1:12: bytes that are not UTF-8");
  EXPECT_EQ(refusal(""), "grammar:1:1: there is no rule 'root'");
}

TEST(Gbnf, HostileGrammarsAreRefusedSoon) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(refusal("root ::= ((\"a\"{1000}){1000}){1000}").find("nodes"), std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\"{999999999}").find("a count of more than"), std::string::npos);
  EXPECT_NE(refusal("root ::= " + std::string(100000, '(')).find("nested deeper"),
            std::string::npos);
  EXPECT_NE(refusal("root ::= \"a\"" + std::string(100000, '?')).find("repetitions"),
            std::string::npos);
  std::string doubling;
  for (int i = 0; i < 60; ++i) doubling += fmt::format("r{} ::= r{} r{}\n", i, i + 1, i + 1);
  EXPECT_EQ(refusal("root ::= r0\n" + doubling + "r60 ::= \"x\""), "accepted");  // 2^60 letters
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i) chain += fmt::format("r{} ::= \"x\"? r{}\n", i, i + 1);
  EXPECT_EQ(refusal(chain + "r2000 ::= \"y\""), "accepted");
  EXPECT_NE(refusal(std::string(2 << 20, ' ')).find("bytes, at most"), std::string::npos);
  // Every level doubles the ways to have come there.
  std::string ways = "root ::= a0\n";
  for (int i = 0; i < 30; ++i) {
    const std::string now = std::to_string(i);
    const std::string next = fmt::format("a{}", i + 1);
    ways += "a" + now + " ::= b" + now + " \"x\" | c" + now + " \"y\" | \"k\" b" + now +
            " | \"k\" c" + now;
    for (const std::string name : {"b", "c"}) {
      ways += "\n" + name + now + " ::= " + next + " \"" + std::string(80, name[0]) + "\"";
    }
    ways += "\n";
  }
  EXPECT_NE(refusal(ways + "a30 ::= \"z\"").find("too ambiguous"), std::string::npos);
  // Not a measure of speed: what is refused is refused before the work is done.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// Every level doubles the ways to the next one, without a letter or a frame that would be too many.
TEST(Gbnf, WaysToTheSamePlaceAreOne) {
  std::string ways = "root ::= r0 \"z\"\n";
  for (int i = 0; i < 60; ++i) {
    ways += fmt::format("r{0} ::= x{0} | x{0} | y{0} | y{0}\n", i);
    ways += fmt::format("x{} ::= (\"\" | \"\"){{70}} r{}\n", i, i + 1);
    ways += fmt::format("y{} ::= (\"\" | \"\" | \"\"){{70}} r{}\n", i, i + 1);
  }
  const Grammar grammar = Grammar::from_gbnf(ways + "r60 ::= \"\"");
  EXPECT_TRUE(grammar.matches("z"));
  EXPECT_FALSE(grammar.can_begin("r"));
}

// Mutated grammars and schemas: read or refused with one line, and then every byte of a few texts steps
// or does not. TOUCHSTONE_MUTATIONS in the environment sets the number, for long runs under sanitizers.
TEST(Gbnf, MutationsAreHarmless) {
  const std::vector<std::string> seeds = {
      "root ::= \"a\" (b | [^x-z\\n]{2,3})* \"é\"?\nb ::= \"(\" root \")\" | .",
      "root ::= e ((\"+\" | \"-\") e)*  # sums\ne ::= [0-9]+ | \"[\" root \"]\"",
      R"({"type":"object","properties":{"a":{"type":"integer","minimum":-3,"maximum":120},"b":{"type":"array","items":{"$ref":"#"},"maxItems":3}},"required":["a"],"additionalProperties":{"type":"null"}})",
      R"({"anyOf":[{"type":"string","pattern":"^a[b-d]+(x|y){2}$"},{"enum":[1,"x",null]},{"type":"number","exclusiveMinimum":0},{"type":"string","minLength":1,"maxLength":4}]})"};
  const char* const wanted = std::getenv("TOUCHSTONE_MUTATIONS");
  const std::int64_t count = wanted != nullptr ? std::atoll(wanted) : 2000;
  const GrammarLimits limits = {.max_nodes = 1 << 14, .max_depth = 20, .max_readings = 256};
  io::Mutator mutator(9);
  std::int64_t read = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bytes = [&] {
      const std::string& seed = seeds[mutator.pick(seeds.size())];
      const auto* const begin = reinterpret_cast<const std::byte*>(seed.data());
      return std::vector<std::byte>(begin, begin + seed.size());
    };
    std::vector<std::byte> file = bytes();
    mutator.mutate(file, bytes());
    const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
    try {
      const bool schema = text.starts_with('{');
      const Grammar grammar =
          schema ? Grammar::from_json_schema(text, {}, limits) : Grammar::from_gbnf(text, limits);
      for (const char* start : {"a(b)", "1+[2-33]", "{\"a\": 1, \"b\": [{", "\"ab\\"})
        grammar.matches(start);
      ++read;
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos) << error.what();
    }
  }
  EXPECT_GT(read, count / 100);
  EXPECT_LT(read, count);
}

}  // namespace
}  // namespace touchstone::decode
