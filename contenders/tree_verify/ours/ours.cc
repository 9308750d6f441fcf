// This library as a contender: ts_accept finds the path and the tokens. What follows from the trees
// alone, and the copy of the cache, is done here, as are the ends of a text, which the library leaves to
// its scheduler.
#include <touchstone/touchstone_c.h>
#include <touchstone/touchstone_c_speculative.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace {

struct Batch {
  int64_t requests, vocab, steps, tree_words, mask_words, history_tokens;
  const float *logits, *draft;
  const int32_t *allowed, *first, *tokens, *parents, *lengths, *history;
};

// Positions and ancestors; false: no tree.
bool describe(const Batch& b, int64_t r, int32_t* positions, int32_t* ancestors) {
  for (int32_t i = b.first[r]; i < b.first[r + 1]; ++i) {
    const int32_t n = i - b.first[r], parent = b.parents[i];
    if (parent < -1 || parent >= n || b.tokens[i] < 0 || b.tokens[i] >= b.vocab) return false;
    positions[i] = parent < 0 ? b.lengths[r] : positions[b.first[r] + parent] + 1;
    if (positions[i] - b.lengths[r] >= b.steps) return false;
    int32_t* const bits = ancestors + i * b.tree_words;
    if (parent < 0) {
      std::fill_n(bits, b.tree_words, 0);
    } else {
      std::copy_n(ancestors + (b.first[r] + parent) * b.tree_words, b.tree_words, bits);
    }
    bits[n / 32] = static_cast<int32_t>(static_cast<uint32_t>(bits[n / 32]) | 1U << (n % 32));
  }
  return true;
}

// The call, sequence by sequence: the row after the tokens, then those of the nodes.
struct Rows {
  std::vector<float> logits, draft;
  std::vector<int32_t> masks, tokens, parents, nodes, history;
  std::vector<int64_t> offsets = {0}, history_offsets = {0};
};

void add_row(const Batch& b, int64_t row, Rows& to) {
  const auto copy = [row](auto& list, const auto* from, int64_t width) {
    list.insert(list.end(), from + row * width, from + (row + 1) * width);
  };
  copy(to.logits, b.logits, b.vocab);
  if (b.draft != nullptr) copy(to.draft, b.draft, b.vocab);
  copy(to.masks, b.allowed, b.mask_words);
}

// The contract takes the first of siblings with the same token; the library would take the longest
// branch. So the target's own token meets the first ones only.
void add_sequence(const Batch& b, int64_t r, Rows& to) {
  const int32_t count = b.first[r + 1] - b.first[r];
  std::vector<int32_t> number(static_cast<size_t>(count), -1);
  add_row(b, r, to);
  to.tokens.push_back(0);
  to.parents.push_back(-1);
  to.nodes.push_back(-1);
  const size_t begin = to.tokens.size();
  for (int32_t n = 0; n < count; ++n) {
    const int32_t at = b.first[r] + n, parent = b.parents[at];
    if (parent >= 0 && number[static_cast<size_t>(parent)] < 0) continue;
    const int32_t above = parent < 0 ? -1 : number[static_cast<size_t>(parent)];
    bool twin = false;
    for (size_t i = begin; i < to.tokens.size() && b.draft == nullptr; ++i) {
      twin = twin || (to.parents[i] == above && to.tokens[i] == b.tokens[at]);
    }
    if (twin) continue;
    number[static_cast<size_t>(n)] = static_cast<int32_t>(to.tokens.size() - begin);
    add_row(b, b.requests + at, to);
    to.tokens.push_back(b.tokens[at]);
    to.parents.push_back(above);
    to.nodes.push_back(n);
  }
  to.offsets.push_back(static_cast<int64_t>(to.tokens.size()));
  for (int64_t i = 0; i < b.history_tokens; ++i) {
    const int32_t token = b.history[r * b.history_tokens + i];
    if (token >= 0) to.history.push_back(token);
  }
  to.history_offsets.push_back(static_cast<int64_t>(to.history.size()));
}

}  // namespace

extern "C" int tree_verify(int64_t requests, int64_t /*nodes*/, int64_t vocab, int64_t steps,
                           int64_t tree_words, int64_t mask_words, int64_t history_tokens,
                           int64_t capacity, int64_t width, int64_t rule, int64_t top_k,
                           int64_t eos, float temperature, float penalty, const float* logits,
                           const float* draft, const int32_t* allowed, const int32_t* first,
                           const int32_t* tokens, const int32_t* parents, const int32_t* lengths,
                           const int32_t* limits, const int32_t* seeds, const int32_t* history,
                           const float* cache, int32_t* path, int32_t* accepted, int32_t* emitted,
                           int32_t* finish, float* log_probabilities, int32_t* positions,
                           int32_t* ancestors, float* cache_after) {
  static ts_context* context = nullptr;  // makes threads once; calls come from one thread
  if (context == nullptr && ts_context_create(nullptr, &context) != TS_OK) return 1;
  if (!(temperature >= 0)) return 1;
  if (requests == 0) return 0;
  const Batch batch{requests,   vocab,          steps,  tree_words,
                    mask_words, history_tokens, logits, rule == 1 ? draft : nullptr,
                    allowed,    first,          tokens, parents,
                    lengths,    history};
  Rows rows;
  for (int64_t r = 0; r < requests; ++r) {
    if (!describe(batch, r, positions, ancestors)) return 1;
    add_sequence(batch, r, rows);
  }
  const auto count = static_cast<int64_t>(rows.tokens.size());
  const std::vector<int64_t> starts(lengths, lengths + requests);
  const std::vector<int64_t> keys(seeds, seeds + requests);
  std::vector<int32_t> found(rows.tokens.size()), chosen(rows.tokens.size());
  std::vector<float> scores(rows.tokens.size());
  const int64_t shape[] = {count, vocab};
  ts_accept_args args = TS_ACCEPT_ARGS;
  args.logits = ts_make_tensor(rows.logits.data(), TS_F32, ts_device{}, 2, shape);
  args.offsets = rows.offsets.data();
  args.sequences = requests;
  args.node_tokens = rows.tokens.data();
  args.node_parents = rows.parents.data();
  args.history = rows.history.data();
  args.history_offsets = rows.history_offsets.data();
  args.positions = starts.data();
  args.seeds = keys.data();
  args.token_masks = mask_words > 0 ? rows.masks.data() : nullptr;
  args.temperature = static_cast<double>(temperature);
  args.frequency_penalty = static_cast<double>(penalty);
  args.top_k = static_cast<int32_t>(std::min(top_k, vocab));
  if (rule == 1) {
    args.rule = TS_ACCEPT_REJECTION;
    args.proposal = TS_PROPOSAL_WITH_REPLACEMENT;
    args.draft = rows.draft.data();
  }
  args.accepted = accepted;
  args.path = found.data();
  args.tokens = chosen.data();
  args.log_probabilities = scores.data();
  if (ts_accept(context, &args) != TS_OK) return 1;
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t begin = rows.offsets[static_cast<size_t>(r)];
    const int64_t end = rows.offsets[static_cast<size_t>(r) + 1];
    int64_t length = 0;
    finish[r] = 0;
    while (begin + length < end && length <= accepted[r] && finish[r] == 0) {
      const int32_t token = chosen[static_cast<size_t>(begin + length)];
      if (token < 0) break;
      emitted[r * (steps + 1) + length] = token;
      log_probabilities[r * (steps + 1) + length] = scores[static_cast<size_t>(begin + length)];
      ++length;
      finish[r] = token == eos ? 1 : length == limits[r] ? 2 : 0;
    }
    if (finish[r] == 0 && length <= accepted[r]) finish[r] = 3;
    accepted[r] = static_cast<int32_t>(std::min<int64_t>(accepted[r], length));
    std::fill_n(emitted + r * (steps + 1) + length, steps + 1 - length, -1);
    std::fill_n(log_probabilities + r * (steps + 1) + length, steps + 1 - length, 0.0F);
    std::fill_n(path + r * steps, steps, -1);
    const float* const from = cache + r * capacity * width;
    float* to = std::copy_n(from, lengths[r] * width, cache_after + r * capacity * width);
    for (int32_t d = 0; d < accepted[r]; ++d) {
      const auto row = static_cast<size_t>(begin + 1 + found[static_cast<size_t>(begin + d)]);
      const int32_t node = rows.nodes[row];
      path[r * steps + d] = node;
      to = std::copy_n(from + (lengths[r] + node) * width, width, to);
    }
    std::fill(to, cache_after + (r + 1) * capacity * width, 0.0F);
  }
  return 0;
}
