// Times of token masks under a grammar, along texts drawn from the masks themselves:
//   ninja -C build/release grammar_mask_bench
//   build/release/grammar_mask_bench MODEL|tokenizer.json [SCHEMA.json]
// The first walks reach new states; then the same constraint serves new walks.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "machine/stopwatch.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/grammar.h"
#include "touchstone/io/tokenizer.h"

namespace {

namespace decode = touchstone::decode;
using touchstone::machine::Stopwatch;

constexpr const char* kSchema = R"({"type": "object", "properties": {
  "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
  "tags": {"type": "array", "items": {"type": "string"}},
  "address": {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "string",
    "pattern": "^[0-9]{5}$"}}, "required": ["street"]},
  "extra": {}}, "required": ["name", "age", "tags"]})";

// One walk of up to 200 tokens; times of its masks.
void walk(const decode::GrammarConstraint& constraint, std::size_t tokens, std::mt19937& random,
          std::vector<double>& times) {
  const auto state = constraint.start();
  std::vector<std::int32_t> mask((tokens + 31) / 32);
  for (int step = 0; step < 200; ++step) {
    const Stopwatch watch;
    state->allowed(mask);
    times.push_back(watch.microseconds());
    std::vector<std::int32_t> allowed;
    for (std::size_t token = 0; token < tokens; ++token) {
      if ((static_cast<std::uint32_t>(mask[token / 32]) >> (token % 32) & 1) != 0) {
        allowed.push_back(static_cast<std::int32_t>(token));
      }
    }
    if (allowed.empty()) return;
    state->accept(allowed[random() % allowed.size()]);
  }
}

void report(const char* name, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double part) {
    return times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))];
  };
  fmt::print("{}: {} masks, median {:.1f} us, 90 % {:.1f} us, 99 % {:.1f} us, largest {:.0f} us\n",
             name, times.size(), at(.5), at(.9), at(.99), times.back());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: grammar_mask_bench MODEL|tokenizer.json [SCHEMA.json]\n");
    return 2;
  }
  try {
    std::string schema = kSchema;
    if (argc == 3) {
      std::ifstream file(argv[2]);
      schema.assign(std::istreambuf_iterator<char>(file), {});
    }
    const auto tokenizer = touchstone::io::Tokenizer::from_file(argv[1]);
    const std::vector<std::string> bytes = tokenizer.token_bytes();
    Stopwatch watch;
    const decode::GrammarVocabulary vocabulary(bytes, {});
    const double trie = watch.seconds();
    watch = {};
    const auto grammar = decode::Grammar::from_json_schema(schema);
    const decode::GrammarConstraint constraint(grammar, vocabulary);
    fmt::print("{} tokens, trie {:.0f} ms; grammar of {} nodes {:.2f} ms\n", bytes.size(),
               trie * 1e3, grammar.nodes(), watch.seconds() * 1e3);
    std::mt19937 random(1);
    for (const char* name : {"first walks", "later walks", "later walks"}) {
      std::vector<double> times;
      for (int i = 0; i < 20; ++i) walk(constraint, bytes.size(), random, times);
      report(name, std::move(times));
    }
  } catch (const touchstone::Error& error) {
    fmt::print(stderr, "grammar_mask_bench: {}\n", error.what());
    return 3;
  }
  return 0;
}
