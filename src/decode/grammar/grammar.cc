#include "touchstone/decode/grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "decode/grammar/mask_cache.h"

namespace touchstone::inline v0::decode {

GrammarError::GrammarError(int line, int column, const std::string& problem)
    : CorruptData(fmt::format("grammar:{}:{}: {}", line, column, problem)),
      line_(line),
      column_(column) {}

Grammar::Grammar(std::shared_ptr<const grammar::Automaton> automaton)
    : automaton_(std::move(automaton)) {}

Grammar Grammar::from_gbnf(std::string_view text, const GrammarLimits& limits) {
  const grammar::Syntax syntax = grammar::parse_gbnf(text, limits);
  Grammar made(std::make_shared<const grammar::Automaton>(syntax, limits));
  // Readings of the empty text: a grammar that has too many is refused here already.
  try {
    grammar::Machine machine(made.automaton_);
  } catch (const InvalidArgument& error) {
    const grammar::Rule& root = syntax.rules[static_cast<std::size_t>(syntax.root)];
    throw GrammarError(root.line, root.column, error.what());
  }
  return made;
}

Grammar Grammar::from_json_schema(std::string_view schema, const JsonSchemaOptions& options,
                                  const GrammarLimits& limits) {
  return from_gbnf(json_schema_to_gbnf(schema, options), limits);
}

bool Grammar::matches(std::string_view text) const {
  grammar::Machine machine(automaton_);
  const std::int32_t state = machine.run(machine.start(), text);
  return state != grammar::kDead && machine.finished(state);
}

bool Grammar::can_begin(std::string_view text) const {
  grammar::Machine machine(automaton_);
  return machine.run(machine.start(), text) != grammar::kDead;
}

std::int32_t Grammar::nodes() const { return automaton_->size(); }

GrammarVocabulary::GrammarVocabulary(std::span<const std::string> bytes,
                                     std::span<const std::int32_t> end_tokens)
    : trie_(std::make_shared<const grammar::TokenTrie>(bytes, end_tokens)) {}

std::int64_t GrammarVocabulary::size() const { return trie_->size(); }

GrammarConstraint::GrammarConstraint(const Grammar& grammar, const GrammarVocabulary& vocabulary)
    : cache_(std::make_shared<grammar::MaskCache>(grammar.automaton_, vocabulary.trie_)) {}

GrammarConstraint::GrammarConstraint(const GrammarConstraint& other) = default;
GrammarConstraint& GrammarConstraint::operator=(const GrammarConstraint& other) = default;
GrammarConstraint::~GrammarConstraint() = default;

std::unique_ptr<TokenConstraint> GrammarConstraint::start() const {
  auto fresh = std::make_unique<GrammarConstraint>(*this);
  fresh->text_.clear();
  fresh->generation_ = -1;
  fresh->ended_ = false;
  return fresh;
}

std::unique_ptr<TokenConstraint> GrammarConstraint::copy() const {
  return std::make_unique<GrammarConstraint>(*this);
}

// The number of the state, with the mutex of the cache held.
std::int32_t GrammarConstraint::current() const {
  grammar::MaskCache::CachedState cached{generation_, state_};
  cache_->refresh(cached, text_);
  generation_ = cached.generation;
  state_ = cached.state;
  return state_;
}

void GrammarConstraint::allowed(std::span<std::int32_t> mask) const {
  const grammar::TokenTrie& trie = cache_->trie();
  if (mask.size() != trie.words()) {
    throw InvalidArgument(fmt::format("grammar: mask: expected {} words for {} tokens, got {}",
                                      trie.words(), trie.size(), mask.size()));
  }
  if (ended_) {
    std::ranges::fill(mask, 0);
    return;
  }
  const std::lock_guard lock(cache_->mutex());
  const std::int32_t state = current();
  std::ranges::copy(cache_->mask_of(state), mask.begin());
  if (!cache_->machine().finished(state)) return;
  for (const std::int32_t token : trie.end_tokens()) grammar::TokenTrie::set_bit(token, mask);
}

bool GrammarConstraint::allows(std::int32_t token) const {
  const grammar::TokenTrie& trie = cache_->trie();
  if (ended_ || token < 0 || token >= trie.size()) return false;
  const std::lock_guard lock(cache_->mutex());
  const std::int32_t state = current();
  if (trie.is_end(token)) return cache_->machine().finished(state);
  const std::string& bytes = trie.bytes(token);
  return !bytes.empty() && cache_->machine().run(state, bytes) != grammar::kDead;
}

void GrammarConstraint::accept(std::int32_t token) {
  if (!allows(token)) {
    throw InvalidArgument(fmt::format("grammar: token: {} is not allowed here", token));
  }
  const grammar::TokenTrie& trie = cache_->trie();
  if (trie.is_end(token)) {
    ended_ = true;
    return;
  }
  const std::lock_guard lock(cache_->mutex());
  state_ = cache_->machine().run(current(), trie.bytes(token));
  text_ += trie.bytes(token);
}

bool GrammarConstraint::can_end() const {
  if (ended_) return false;
  const std::lock_guard lock(cache_->mutex());
  return cache_->machine().finished(current());
}

}  // namespace touchstone::inline v0::decode
