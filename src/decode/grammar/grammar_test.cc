// Masks: those of the trie equal those of every token byte by byte.
#include "touchstone/decode/grammar.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "decode/grammar/grammar_test_support.h"
#include "tests/support/runners.h"

namespace touchstone::decode {
namespace {

// A grammar of a few rules over the letters a to d, also with calls of each other.
class RandomGrammar {
 public:
  explicit RandomGrammar(std::mt19937& random) : random_(random) {}

  std::string text() {
    const int rules = 1 + pick(4);
    std::string all;
    for (int i = 0; i < rules; ++i) {
      all += fmt::format("{} ::= {}\n", name(i), choice(2, rules));
    }
    return all;
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  static std::string name(int i) { return i == 0 ? "root" : fmt::format("r{}", i); }

  std::string choice(int depth, int rules) {
    std::string all = sequence(depth, rules);
    for (int i = pick(3); i > 0; --i) all.append(" | ").append(sequence(depth, rules));
    return all;
  }
  std::string sequence(int depth, int rules) {
    std::string all = item(depth, rules);
    for (int i = pick(3); i > 0; --i) all.append(" ").append(item(depth, rules));
    return all;
  }
  std::string item(int depth, int rules) {
    constexpr const char* kRepeats[] = {"", "", "", "?", "*", "+", "{2,3}", "{0,2}", "{2}"};
    const int kind = pick(depth > 0 ? 8 : 6);
    std::string one;
    if (kind < 2) {
      constexpr const char* kTexts[] = {"\"a\"", "\"ab\"", "\"c\"", "\"bd\"", "\"é\"", "\"\""};
      one = kTexts[pick(6)];
    } else if (kind < 4) {
      constexpr const char* kSets[] = {"[ab]", "[^a]", "[b-d]", "[a-é]", "."};
      one = kSets[pick(5)];
    } else if (kind < 6) {
      one = name(pick(rules));
    } else {
      one = fmt::format("({})", choice(depth - 1, rules));
    }
    return one + kRepeats[pick(9)];
  }

  std::mt19937& random_;
};

const TestVocabulary& letters() {
  static const TestVocabulary vocabulary = [] {
    std::vector<std::string> texts;
    for (const char* a : {"a", "b", "c", "d", "\xc3\xa9", "\xc3"}) {
      for (const char* b : {"a", "b", "c", "d", "\xc3\xa9", "\xa9"}) {
        texts.push_back(std::string(a) + b);
        for (const char* c : {"a", "b", "d", "\xc3"}) texts.push_back(std::string(a) + b + c);
      }
    }
    texts.push_back("ab");  // a second token of the same bytes
    texts.emplace_back();   // one without text
    return TestVocabulary(texts);
  }();
  return vocabulary;
}

void expect_brute_force(const Grammar& grammar, const GrammarConstraint& constraint,
                        const std::string& text, const TestVocabulary& vocabulary) {
  const std::vector<std::int32_t> mask = mask_of(constraint, vocabulary.bytes.size());
  for (std::size_t token = 0; token < vocabulary.bytes.size(); ++token) {
    const auto id = static_cast<std::int32_t>(token);
    const std::string& bytes = vocabulary.bytes[token];
    const bool wanted = id == vocabulary.end ? grammar.matches(text)
                                             : !bytes.empty() && grammar.can_begin(text + bytes);
    ASSERT_EQ(has_bit(mask, id), wanted) << "token " << id << " after '" << text << "'";
    ASSERT_EQ(constraint.allows(id), wanted);
  }
}

TEST(GrammarMasks, EqualThoseOfEveryTokenByteByByte) {
  std::mt19937 random(7);
  int grammars = 0;
  int masks = 0;
  // TOUCHSTONE_GRAMMARS in the environment: how many, for long runs.
  const char* const wanted = std::getenv("TOUCHSTONE_GRAMMARS");
  const int count =
      wanted != nullptr ? std::atoi(wanted) : static_cast<int>(test::sanitized_size(120, 30));
  for (int i = 0; i < count; ++i) {
    const std::string text = RandomGrammar(random).text();
    try {
      const Grammar grammar = Grammar::from_gbnf(text);
      SCOPED_TRACE(text);
      GrammarConstraint constraint(grammar, letters().get());
      std::string written;
      for (int step = 0; step < 6; ++step) {
        expect_brute_force(grammar, constraint, written, letters());
        ++masks;
        const auto allowed = tokens_of(mask_of(constraint, letters().bytes.size()));
        if (allowed.empty()) break;
        const std::int32_t token = allowed[random() % allowed.size()];
        constraint.accept(token);
        if (constraint.ended()) break;
        written += letters().bytes[static_cast<std::size_t>(token)];
      }
      ++grammars;
      if (testing::Test::HasFatalFailure()) return;
    } catch (const GrammarError&) {  // left recursion, or no text that ends
    } catch (const InvalidArgument&) {
    }
  }
  EXPECT_GT(grammars, count / 5);
  EXPECT_GT(masks, count);
}

TEST(GrammarMasks, NestingBeyondTheLimitIsNotAllowed) {
  const Grammar grammar =
      Grammar::from_gbnf("root ::= \"(\" (root \",\")* \")\"", {.max_depth = 5});
  const TestVocabulary vocabulary({"((", "(((", "((((((", "))", "),("});
  GrammarConstraint constraint(grammar, vocabulary.get());
  std::string text;
  for (int i = 0; i < 6; ++i) {
    expect_brute_force(grammar, constraint, text, vocabulary);
    constraint.accept('(');
    text += '(';
  }
  EXPECT_FALSE(constraint.allows('('));
  EXPECT_TRUE(constraint.allows(')'));
  expect_brute_force(grammar, constraint, text, vocabulary);
}

TEST(GrammarMasks, StayTheSameWhenTheCacheBeginsAnew) {
  const char* const text = "root ::= \"(\" (root \",\")* [a-d]{0,40} \")\"";
  const GrammarConstraint large(Grammar::from_gbnf(text), letters().get());
  const GrammarConstraint small(Grammar::from_gbnf(text, {.max_cache_bytes = 20000}),
                                letters().get());
  std::mt19937 random(3);
  for (int run = 0; run < 5; ++run) {
    auto a = large.start();
    auto b = small.start();
    std::vector<std::int32_t> mask((letters().bytes.size() + 31) / 32);
    std::vector<std::int32_t> other(mask.size());
    for (int step = 0; step < 60; ++step) {
      a->allowed(mask);
      b->allowed(other);
      ASSERT_EQ(mask, other);
      const auto allowed = tokens_of(mask);
      if (allowed.empty()) break;
      const std::int32_t token = allowed[random() % allowed.size()];
      a->accept(token);
      b->accept(token);
    }
  }
}

// Every text has stacks of its own: a server that keeps a constraint meets ever new states.
TEST(GrammarMasks, AreFoundAfterAnyNumberOfTexts) {
  const TestVocabulary vocabulary;
  const GrammarConstraint constraint(
      Grammar::from_gbnf("root ::= \"a\" root \"b\" | \"c\" root \"d\" | \"e\""), vocabulary.get());
  std::mt19937 random(1);
  std::vector<std::int32_t> mask((vocabulary.bytes.size() + 31) / 32);
  for (int text = 0; text < 3000; ++text) {
    const auto state = constraint.start();
    std::string rest;
    for (int i = 0; i < 40; ++i) {
      const bool first = random() % 2 == 0;
      state->accept(first ? 'a' : 'c');
      rest += first ? 'b' : 'd';
    }
    state->accept('e');
    for (; !rest.empty(); rest.pop_back()) {
      ASSERT_NO_THROW(state->allowed(mask)) << "text " << text;
      ASSERT_EQ(tokens_of(mask), std::vector<std::int32_t>{rest.back()});
      state->accept(rest.back());
    }
    ASSERT_TRUE(state->complete());
  }
}

TEST(GrammarConstraint, EndsCopiesAndRefuses) {
  const TestVocabulary vocabulary({"yes", "no", "ye"});
  GrammarConstraint constraint(Grammar::from_gbnf("root ::= \"yes\" | \"no\""), vocabulary.get());
  EXPECT_FALSE(constraint.can_end());
  EXPECT_THROW(constraint.accept('x'), InvalidArgument);
  EXPECT_THROW(constraint.accept(-1), InvalidArgument);
  EXPECT_THROW(constraint.accept(100000), InvalidArgument);
  constraint.accept('y');
  GrammarConstraint copy = constraint;
  constraint.accept('e');
  EXPECT_FALSE(constraint.can_end());
  constraint.accept('s');
  EXPECT_TRUE(constraint.can_end());
  EXPECT_EQ(tokens_of(mask_of(constraint, vocabulary.bytes.size())),
            std::vector<std::int32_t>{vocabulary.end});
  constraint.accept(vocabulary.end);
  EXPECT_TRUE(constraint.ended());
  EXPECT_TRUE(tokens_of(mask_of(constraint, vocabulary.bytes.size())).empty());
  EXPECT_TRUE(copy.allows('e'));
  EXPECT_FALSE(copy.allows('n'));
  EXPECT_EQ(tokens_of(mask_of(GrammarConstraint(copy), vocabulary.bytes.size())),
            std::vector<std::int32_t>{'e'});
  std::vector<std::int32_t> words(1);
  EXPECT_THROW(copy.allowed(words), InvalidArgument);
  const std::int32_t outside[] = {5};
  EXPECT_THROW(GrammarVocabulary({}, outside), InvalidArgument);
}

// Tokens that no way leads on with: the mask is empty, and the text has not ended.
TEST(GrammarConstraint, MayAllowNothing) {
  const std::string bytes[] = {"a", "b", ""};
  const std::int32_t ends[] = {2};
  const GrammarVocabulary vocabulary(bytes, ends);
  GrammarConstraint constraint(Grammar::from_gbnf("root ::= \"ac\""), vocabulary);
  constraint.accept(0);
  EXPECT_TRUE(tokens_of(mask_of(constraint, 3)).empty());
  EXPECT_FALSE(constraint.can_end());
}

TEST(GrammarConstraint, ServesManyThreads) {
  const GrammarConstraint constraint(
      Grammar::from_gbnf("root ::= \"[\" (root (\",\" root)*)? \"]\" | [a-d]+"), letters().get());
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i / 2));  // two threads write the same
      for (int run = 0; run < 20; ++run) {
        texts[i] += random_text(constraint, letters(), random, 30) + "\n";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[2], texts[3]);
  EXPECT_NE(texts[0], texts[2]);
}

}  // namespace
}  // namespace touchstone::decode
