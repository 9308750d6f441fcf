// Verification of draft trees for the reach of the judge: right code with faults that show only at
// sizes and crossings that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#define MUTANTS(MUTANT)                                                                           \
  MUTANT(nodes_above_100, "nodes from 100 on are never accepted")                                 \
  MUTANT(bits_above_64, "bits of nodes from 64 on are lost")                                      \
  MUTANT(depth_above_32, "paths end after 32 nodes")                                              \
  MUTANT(requests_above_30, "requests from 30 on draw with the seed of the first")                \
  MUTANT(position_above_1023, "positions of draws wrap around at 1024")                           \
  MUTANT(token_above_50000, "tokens from 50000 on are not looked at")                             \
  MUTANT(top_k_above_64, "top_k counts as 64 at most")                                            \
  MUTANT(last_mask_word, "the last word of a mask that is not full is not looked at")             \
  MUTANT(penalty_not_rejected, "rejection does not know penalties")                               \
  MUTANT(mask_not_rejected, "rejection does not know masks")                                      \
  MUTANT(top_k_not_rejected, "rejection does not know top_k")                                     \
  MUTANT(eos_not_rejected, "rejection does not end at eos")                                       \
  MUTANT(limit_one, "a limit of 1 is none")                                                       \
  MUTANT(history_above_16, "of the history the first 16 tokens count")                            \
  MUTANT(siblings_above_8, "the ninth sibling is not looked at")                                  \
  MUTANT(width_above_16, "16 numbers of a row of the cache are moved")                            \
  MUTANT(empty_greedy, "an empty tree is decoded greedily")                                       \
  MUTANT(negative_penalty, "negative penalties count as 0")                                       \
  MUTANT(nodes_above_256, "large", "nodes from 256 on are never accepted")                        \
  MUTANT(requests_above_200, "large", "requests from 200 on draw with the seed of the first")     \
  MUTANT(position_16_bits, "large", "positions of draws have 16 bits")                            \
  MUTANT(vocab_15_bits, "large", "of 32769 to 65535 tokens those from 32768 on are left out")     \
  MUTANT(hot, "temperatures above 2 count as 2")                                                  \
  MUTANT(cold, "temperatures below 0.1 count as 0")                                               \
  MUTANT(path_once, "a token that occurs twice on a path counts once there")                      \
  MUTANT(history_or_path, "a token of the history is not counted on the path")                    \
  MUTANT(top_k_before_mask, "top_k counts excluded tokens, too")                                  \
  MUTANT(duplicate_not_drawn, "a sibling with the token of a rejected one is not tried")          \
  MUTANT(residual_in_support, "of what is left, tokens of probability 0 in the draft are 0, too") \
  MUTANT(last_bit_of_word, "node 31 of a tree of 32 nodes does not attend to itself")             \
  MUTANT(behind_empty, "the request behind an empty tree is taken for empty, too")                \
  MUTANT(aligned_ties, "where logits begin on 64 bytes equal ones go to the higher token")        \
  MUTANT(capacity_full, "where the tree fills the cache the last accepted row is not moved")      \
  MUTANT(top_k_all_but_one, "top_k = vocab - 1 cuts nothing")                                     \
  MUTANT(top_k_greedy, "at temperature 0 log-probabilities are of what top_k leaves")             \
  MUTANT(kept_row,                                                                                \
         "a row of logits is taken for that of the last call when address and ends are the same") \
  MUTANT(penalty_greedy, "at temperature 0 penalties are not applied to drafted tokens")          \
  MUTANT(vocab_is_41, "large", "the last of 41 tokens is not looked at")                          \
  MUTANT(nodes_700, "large", "nodes from 700 on are not looked at")                               \
  MUTANT(root_after_child, "a root that follows a child is not looked at")                        \
  MUTANT(steps_equal_nodes, "a tree of one chain as deep as it may be loses its bonus")           \
  MUTANT(penalty_minus_2, "penalties below -2 count as -2")                                       \
  MUTANT(temperature_60, "temperatures above 60 count as 60")                                     \
  MUTANT(count_above_8, "a token that occurs more than 8 times counts 8 times")                   \
  MUTANT(temperature_two, "a temperature of exactly 2 counts as 1")                               \
  MUTANT(temperature_half, "a temperature of exactly 0.5 counts as 0.25")                         \
  MUTANT(ends_with_zero, "token 0 is no ending token")                                            \
  MUTANT(history_zero, "token 0 of the history is not counted")                                   \
  MUTANT(limit_at_bonus, "a limit that the last token of the target reaches is not told")         \
  MUTANT(bit_31, "the last bit of every word of a mask is not looked at")                         \
  MUTANT(top_k_one_ties, "top_k = 1 takes the last of equal tokens")                              \
  MUTANT(width_one, "rows of one number are not moved")                                           \
  MUTANT(penalty_one, "a penalty of exactly 1 counts tokens once")                                \
  MUTANT(logits_1e6, "logits are at most 1e6")                                                    \
  MUTANT(last_token, "the last token of a vocabulary is never a child")                           \
  MUTANT(top_k_whole, "top_k = vocab and above sums by value")                                    \
  MUTANT(capacity_behind, "rows of the cache behind the last node are kept")                      \
  MUTANT(words_behind, "words of ancestors beyond those that a tree needs are not written")       \
  MUTANT(draft_of_one, "a child whose draft probability is 1 is accepted")                        \
  MUTANT(greedy_second, "at temperature 0 rule 1 does not try a second sibling")                  \
  MUTANT(row_like_before, "a row with the logits of the one before it draws its token")           \
  MUTANT(temperature_of_same, "a call of the logits of the one before has its temperature")       \
  MUTANT(penalty_of_same, "a call of the logits of the one before has its penalty")               \
  MUTANT(limit_above_steps, "limits above steps count as steps")                                  \
  MUTANT(tokens_192, "the last of 193, 385 tokens is not looked at")                              \
  MUTANT(log_17_bits, "log-probabilities have 17 bits")                                           \
  MUTANT(history_96, "of the history the first 96 tokens count")                                  \
  MUTANT(length_sign, "positions from 2^16 on wrap around in positions")                          \
  MUTANT(eos_at_limit_rejected, "under rule 1 the limit is a better reason than eos")             \
  MUTANT(middle_request,                                                                          \
         "of an odd number of requests above 2 the middle one does not know masks")               \
  MUTANT(no_steps_left, "a leaf at the greatest depth that penalties reach has no bonus")         \
  MUTANT(top_k_of_open, "top_k of all tokens that are not excluded, or more, sums by token")      \
  MUTANT(cold_hundredth, "temperatures below 0.02 are 0")                                         \
  MUTANT(negative_zero, "a logit of -0 is below one of 0")                                        \
  MUTANT(excluded_1e9, "rows whose logits all lie below -1e9 are excluded")                       \
  MUTANT(excluded_1e6, "logits below -1e6 are excluded")                                          \
  MUTANT(width_tail, "of rows above 64 numbers the last behind whole vectors of 4 is not moved")  \
  MUTANT(seed_of_before,                                                                          \
         "a request with the seed of the one before it draws at the next "                        \
         "position")                                                                              \
  MUTANT(seed_zero, "a seed of 0 counts as 1")                                                    \
  MUTANT(limit_overflow, "length and limit are added in 32 bits: a walk ends behind their sum")   \
  MUTANT(top_k_32_bits, "top_k has 32 bits")                                                      \
  MUTANT(width_23, "rows of 23, 46, 69 numbers are moved without the last")                       \
  MUTANT(mask_words_counted,                                                                      \
         "a row is excluded where all words of its mask are 0, else a token is left")             \
  MUTANT(cold_1e5, "temperatures below 1e-5 are 0")                                               \
  MUTANT(count_8_bits, "tokens are counted in 8 bits")                                            \
  MUTANT(count_255, "tokens are counted up to 255")                                               \
  MUTANT(draws_3_bits, "siblings are counted in 3 bits for their draws")                          \
  MUTANT(token_17_bits, "tokens from 131072 on are not looked at")                                \
  MUTANT(vocab_tail, "large",                                                                     \
         "of more than 100000 tokens those behind whole tiles of 8192 are left out")              \
  MUTANT(rejected_mask_top_k, "under rule 1 top_k counts excluded tokens, too")                   \
  MUTANT(top_k_of_same, "a call of the logits of the one before has its top_k")                   \
  MUTANT(mask_of_same, "a call of the logits of the one before has its masks, or none")           \
  MUTANT(limit_of_same,                                                                           \
         "a call of the logits of the one before has the limit of its first request")             \
  MUTANT(requests_7_of_8,                                                                         \
         "of 7 requests behind tiles of 8 the last draws with the seed before its own")           \
  MUTANT(steps_above_nodes, "steps above all nodes and 8 are not written")                        \
  MUTANT(all_sizes_one, "of one request, one node and one token nothing is accepted")             \
  MUTANT(top_k_above_512, "large", "top_k counts as 512 at most")

#define PARTIALS(PARTIAL)                                                         \
  PARTIAL(no_rejection, "lacks=rejection", "the target's own token only")         \
  PARTIAL(no_top_k, "lacks=top_k", "no cut")                                      \
  PARTIAL(no_masks, "lacks=masks", "no masks")                                    \
  PARTIAL(no_penalties, "lacks=penalties", "no penalties")                        \
  PARTIAL(no_many_nodes, "lacks=many_nodes", "one word of 64 bits for a tree")    \
  PARTIAL(no_empty_batch, "lacks=no_requests", "at least one request")            \
  PARTIAL(declared_penalties, "lacks=penalties declares=penalties", "as it says") \
  PARTIAL(no_cache, "lacks=cache declares=cache", "does not move the cache")      \
  PARTIAL(plain, "lacks=top_k,masks,penalties declares=masks", "temperature only")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }

double uniform(uint32_t seed, uint32_t position, uint32_t purpose, uint32_t draw) {
  uint32_t c[4] = {position, 0, purpose, draw}, k[2] = {seed, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b),
                              uint32_t(a >> 32) ^ c[3] ^ k[1], uint32_t(a)};
    std::copy_n(next, 4, c);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return (double((uint64_t(c[1]) << 32 | c[0]) >> 12) + 0.5) * 0x1p-52;
}

// Where the running sum of the weights of `order` first exceeds u of the total.
int32_t pick(const std::vector<int32_t>& order, const std::vector<double>& weight, double u) {
  double total = 0, sum = 0;
  for (const int32_t t : order) total += weight[t];
  int32_t last = order[0];
  for (const int32_t t : order) {
    if (weight[t] == 0) continue;
    sum += weight[t];
    last = t;
    if (sum > u * total) break;
  }
  return last;
}

// The row of an earlier call, as long as nothing tells that it is another.
const float* known_row(const float* row, int64_t vocab) {
  static std::map<const float*, std::vector<float>> rows;
  std::vector<float>& known = rows[row];
  if (int64_t(known.size()) != vocab || known.front() != row[0] || known.back() != row[vocab - 1]) {
    known.assign(row, row + vocab);
  }
  return known.data();
}

int run(int64_t requests, int64_t nodes, int64_t vocab, int64_t steps, int64_t tree_words,
        int64_t mask_words, int64_t history_tokens, int64_t capacity, int64_t width, int64_t rule,
        int64_t top_k, int64_t eos, float temperature, float penalty, const float* logits,
        const float* draft, const int32_t* allowed, const int32_t* first, const int32_t* tokens,
        const int32_t* parents, const int32_t* lengths, const int32_t* limits, const int32_t* seeds,
        const int32_t* history, const float* cache, int32_t* path, int32_t* accepted,
        int32_t* emitted, int32_t* finish, float* log_probabilities, int32_t* positions,
        int32_t* ancestors, float* cache_after) {
  if (!(temperature >= 0)) return 1;
  int64_t history_used = history_tokens;
  int32_t first_limit = 0;
  std::vector<int32_t> taken_masks;
  if (bug(no_rejection) && rule == 1) return 1;
  if ((bug(no_top_k) || bug(plain)) && top_k > 0) return 1;
  if ((bug(no_masks) || bug(plain)) && mask_words > 0) return 1;
  if ((bug(no_penalties) || bug(declared_penalties) || bug(plain)) && penalty != 0) return 1;
  if (bug(no_many_nodes) && tree_words > 2) return 1;
  if (bug(no_empty_batch) && requests == 0) return 1;
  if (bug(top_k_above_64)) top_k = std::min<int64_t>(top_k, 64);
  if (bug(negative_penalty)) penalty = std::max(0.0f, penalty);
  if (bug(penalty_minus_2)) penalty = std::max(-2.0f, penalty);
  if (bug(temperature_60)) temperature = std::min(60.0f, temperature);
  if (bug(temperature_two) && temperature == 2) temperature = 1;
  if (bug(temperature_half) && temperature == 0.5f) temperature = 0.25f;
  if (bug(ends_with_zero) && eos == 0) eos = -1;
  if (bug(history_96)) history_used = std::min<int64_t>(96, history_tokens);
  if (bug(temperature_of_same) || bug(penalty_of_same)) {
    static std::vector<float> before;
    static float temperature_before = 0, penalty_before = 0;
    std::vector<float> now(logits, logits + (requests + nodes) * vocab);
    const bool same = now == before && !now.empty();
    if (same && bug(temperature_of_same)) temperature = temperature_before;
    if (same && bug(penalty_of_same)) penalty = penalty_before;
    before = std::move(now), temperature_before = temperature, penalty_before = penalty;
  }
  if (bug(top_k_of_same) || bug(mask_of_same) || bug(limit_of_same)) {
    static std::vector<float> before;
    static std::vector<int32_t> allowed_before;
    static int64_t top_k_before = 0;
    static int32_t limit_before = 0;
    std::vector<float> now(logits, logits + (requests + nodes) * vocab);
    const bool same = now == before && !now.empty();
    if (same && bug(top_k_of_same)) top_k = top_k_before;
    if (same && bug(limit_of_same)) first_limit = limit_before;
    const bool fits = int64_t(allowed_before.size()) == (requests + nodes) * mask_words;
    if (same && bug(mask_of_same) && fits) {
      taken_masks = allowed_before, allowed = taken_masks.data();
    } else if (same && bug(mask_of_same)) {
      mask_words = 0;
    }
    allowed_before.assign(allowed, allowed + (requests + nodes) * mask_words);
    before = std::move(now), top_k_before = top_k;
    limit_before = first_limit > 0 ? first_limit : requests > 0 ? limits[0] : 0;
  }
  if (bug(top_k_above_512)) top_k = std::min<int64_t>(top_k, 512);
  if (bug(top_k_32_bits)) top_k = std::max<int64_t>(0, int32_t(top_k));
  if (bug(cold_1e5) && temperature < 1e-5f) temperature = 0;
  if (bug(hot)) temperature = std::min(2.0f, temperature);
  if (bug(cold) && temperature < 0.1f) temperature = 0;
  if (bug(cold_hundredth) && temperature < 0.02f) temperature = 0;
  if (bug(top_k_all_but_one) && top_k == vocab - 1) top_k = 0;
  if (rule == 1 && bug(penalty_not_rejected)) penalty = 0;
  if (rule == 1 && bug(mask_not_rejected)) mask_words = 0;
  if (rule == 1 && bug(top_k_not_rejected)) top_k = 0;
  if (rule == 1 && bug(eos_not_rejected)) eos = -1;
  std::fill_n(ancestors, nodes * tree_words, 0);
  if (!bug(no_cache)) std::fill_n(cache_after, requests * capacity * width, 0.0f);
  const bool few_steps = bug(steps_above_nodes) && steps > nodes + 8 && nodes > 0;
  std::fill_n(path, requests * (few_steps ? nodes : steps), -1);
  std::fill_n(emitted, requests * (steps + 1), -1);
  std::fill_n(log_probabilities, requests * (steps + 1), 0.0f);
  for (int64_t r = 0; r < requests; ++r) {
    const int32_t* const parent = parents + first[r];
    const int32_t* const token = tokens + first[r];
    int32_t count = first[r + 1] - first[r];
    for (int32_t n = 0; n < count; ++n) {
      if (parent[n] < -1 || parent[n] >= n || token[n] < 0 || token[n] >= vocab) return 1;
      int32_t depth = 0;
      for (int32_t a = n; a >= 0; a = parent[a], ++depth) {
        if (bug(bits_above_64) && a >= 64) continue;
        ancestors[(first[r] + n) * tree_words + a / 32] |= int32_t(1u << (a % 32));
      }
      if (depth > steps) return 1;
      positions[first[r] + n] = lengths[r] + depth - 1;
      if (bug(length_sign)) positions[first[r] + n] &= 0xffff;
    }
    for (int32_t n = 0; n < count && bug(words_behind); ++n) {
      for (int64_t w = (count + 31) / 32; w < tree_words; ++w) {
        ancestors[(first[r] + n) * tree_words + w] = 1;
      }
    }
    if (bug(last_bit_of_word) && count == 32) ancestors[(first[r] + 31) * tree_words] &= INT32_MAX;
    if (bug(behind_empty) && r > 0 && first[r] == first[r - 1]) count = 0;
    std::vector<double> seen(vocab);
    for (int64_t i = 0;
         i < (bug(history_above_16) ? std::min<int64_t>(16, history_tokens) : history_used); ++i) {
      const int32_t t = history[r * history_tokens + i];
      if (t >= 0 && !(bug(history_zero) && t == 0)) seen[t] += 1;
    }
    const std::vector<double> in_history = seen;
    int64_t taken = 0, written = 0;
    int32_t reason = 0;
    for (int32_t node = -1, child = 0; child >= 0 && reason == 0; node = child) {
      const int64_t row = node < 0 ? r : requests + first[r] + node;
      uint32_t position = uint32_t(lengths[r] + taken);
      if (bug(position_above_1023)) position %= 1024;
      if (bug(position_16_bits)) position %= 65536;
      const bool other =
          (bug(requests_above_30) && r >= 30) || (bug(requests_above_200) && r >= 200);
      const bool tail = bug(requests_7_of_8) && requests % 8 == 7 && r == requests - 1;
      uint32_t seed = uint32_t(seeds[other ? 0 : tail ? r - 1 : r]);
      if (bug(seed_zero) && seed == 0) seed = 1;
      if (bug(seed_of_before) && r > 0 && seeds[r] == seeds[r - 1]) ++position;
      std::vector<double> v(vocab), w(vocab);
      const float* const values =
          bug(kept_row) ? known_row(logits + row * vocab, vocab) : logits + row * vocab;
      const std::vector<double>& counted =
          bug(penalty_greedy) && temperature == 0 ? in_history : seen;
      for (int64_t t = 0; t < vocab; ++t) {
        const bool once_only = bug(penalty_one) && penalty == 1;
        const double count_of = once_only            ? std::min(1.0, counted[t])
                                : bug(count_above_8) ? std::min(8.0, counted[t])
                                : bug(count_255)     ? std::min(255.0, counted[t])
                                : bug(count_8_bits)  ? double(int(counted[t]) % 256)
                                                     : counted[t];
        v[t] = (bug(logits_1e6) ? std::min(values[t], 1e6f) : values[t]) - penalty * count_of;
        if (std::isnan(v[t])) return 1;
        if (bug(negative_zero) && v[t] == 0 && std::signbit(values[t])) v[t] = -1e-300;
        if (bug(excluded_1e6) && v[t] < -1e6) v[t] = -INFINITY;
        if (bug(tokens_192) && vocab > 192 && vocab % 192 == 1 && t == vocab - 1) v[t] = -INFINITY;
        if (bug(token_17_bits) && t >= 131072) v[t] = -INFINITY;
        if (bug(vocab_tail) && vocab > 100000 && t >= vocab / 8192 * 8192) v[t] = -INFINITY;
        if (bug(vocab_is_41) && vocab == 41 && t == 40) v[t] = -INFINITY;
        if (bug(token_above_50000) && t >= 50000) v[t] = -INFINITY;
        if (bug(vocab_15_bits) && vocab < 65536 && t >= 32768) v[t] = -INFINITY;
        const bool skip = (bug(bit_31) && t % 32 == 31) ||
                          (bug(last_mask_word) && t / 32 + 1 == mask_words && vocab % 32 != 0);
        const bool middle =
            bug(middle_request) && requests > 2 && requests % 2 == 1 && r == requests / 2;
        const bool open = mask_words == 0 || skip || middle ||
                          (uint32_t(allowed[row * mask_words + t / 32]) >> (t % 32) & 1u) != 0;
        if (!open) v[t] = -INFINITY;
      }
      const double top = *std::max_element(v.begin(), v.end());
      const int64_t open =
          std::count_if(v.begin(), v.end(), [](double value) { return !std::isinf(value); });
      const int32_t* const words = allowed + row * mask_words;
      const bool some_word =
          std::any_of(words, words + mask_words, [](int32_t w) { return w != 0; });
      if (bug(mask_words_counted) && std::isinf(top) && some_word) return 1;
      if (std::isinf(top) || (bug(excluded_1e9) && top < -1e9)) {
        reason = 3;
        break;
      }
      const bool greedy = temperature == 0 || (bug(empty_greedy) && count == 0 && rule == 0);
      const double heat = temperature == 0 ? 1 : temperature;
      double sum = 0;
      for (int64_t t = 0; t < vocab; ++t) sum += w[t] = std::exp((v[t] - top) / heat);
      std::vector<int32_t> order(vocab);
      for (int64_t t = 0; t < vocab; ++t) order[t] = int32_t(t);
      const bool cut = top_k > 0 && top_k < (bug(top_k_of_open) ? open : vocab);
      const bool sorted = bug(top_k_whole) && top_k >= vocab && rule == 0;
      if (greedy || cut || sorted) {
        const bool aligned = reinterpret_cast<uintptr_t>(logits) % 64 == 0;
        if (bug(aligned_ties) && aligned) std::reverse(order.begin(), order.end());
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          const bool counts_all = bug(top_k_before_mask) || (bug(rejected_mask_top_k) && rule == 1);
          if (counts_all && cut && !greedy) {
            return logits[row * vocab + a] > logits[row * vocab + b];
          }
          return v[a] > v[b];
        });
        if (bug(top_k_greedy) && greedy && cut) {
          sum = 0;
          for (int64_t i = 0; i < top_k; ++i) sum += w[order[i]];
        }
        if (bug(top_k_one_ties) && top_k == 1 && cut) {
          for (const int32_t t : order) order[0] = v[t] == v[order[0]] ? t : order[0];
        }
        order.resize(greedy ? 1 : std::min(top_k, vocab));
        if (w[order[0]] == 0) order[0] = int32_t(std::max_element(v.begin(), v.end()) - v.begin());
      }
      int32_t chosen = -1, siblings = 0;
      child = -1;
      const auto usable = [&](int32_t n) {
        if (bug(nodes_above_100) && n >= 100) return false;
        if (bug(all_sizes_one) && requests * nodes * vocab == 1) return false;
        if (bug(nodes_700) && n >= 700) return false;
        if (bug(nodes_above_256) && n >= 256) return false;
        if (bug(last_token) && vocab > 1 && token[n] == vocab - 1) return false;
        if (bug(depth_above_32) && taken >= 32) return false;
        const bool late = bug(root_after_child) && node < 0 && n > 0 && parent[n - 1] >= 0;
        return parent[n] == node && !late && (++siblings <= 8 || !bug(siblings_above_8));
      };
      if (rule == 0) {
        chosen = pick(order, w, uniform(seed, position, 0, 0));
        const float* const row_before = logits + (row - 1) * vocab;
        const bool alike = bug(row_like_before) && row > 0 && vocab > 2 &&
                           std::equal(row_before, row_before + vocab, row_before + vocab);
        if (alike) chosen = pick(order, w, uniform(seed, position - 1, 0, 0));
        for (int32_t n = 0; n < count && child < 0; ++n) {
          if (usable(n) && token[n] == chosen) child = n;
        }
      } else {
        const float* const q = draft + row * vocab;
        std::vector<double> p(vocab);
        double total = 0;
        for (const int32_t t : order) total += w[t];
        for (const int32_t t : order) p[t] = w[t] / total;
        uint32_t sibling = 0;
        std::set<int32_t> tried;
        for (int32_t n = 0; n < count && child < 0; ++n) {
          if (!usable(n)) continue;
          if (bug(duplicate_not_drawn) && !tried.insert(token[n]).second) continue;
          if (bug(greedy_second) && greedy && sibling > 0) continue;
          const float share_of = q[token[n]];
          const bool always = bug(draft_of_one) && share_of == 1;
          const uint32_t number = bug(draws_3_bits) ? sibling++ % 8 : sibling++;
          if ((uniform(seed, position, 1, number) * share_of < p[token[n]]) || always) {
            child = n;
            chosen = token[n];
            continue;
          }
          double left = 0;
          for (int64_t t = 0; t < vocab; ++t) left += p[t] = std::max(0.0, p[t] - q[t]);
          for (int64_t t = 0; t < vocab && bug(residual_in_support); ++t) {
            if (q[t] == 0) left -= p[t], p[t] = 0;
          }
          for (double& share : p) share /= left;
        }
        order.resize(vocab);
        for (int64_t t = 0; t < vocab; ++t) order[t] = int32_t(t);
        if (child < 0) chosen = pick(order, p, uniform(seed, position, 2, 0));
      }
      if (bug(no_steps_left) && taken == steps && penalty != 0 && steps > 2) break;
      if (bug(steps_equal_nodes) && taken == steps && count == steps && steps > 1) break;
      log_probabilities[r * (steps + 1) + written] =
          float((v[chosen] - top) / heat - std::log(sum));
      float& log_of = log_probabilities[r * (steps + 1) + written];
      if (bug(log_17_bits) && log_of != 0 && std::isfinite(log_of)) {
        log_of -= std::fmod(log_of, std::ldexp(1.0f, std::ilogb(log_of) - 16));
      }
      emitted[r * (steps + 1) + written++] = chosen;
      if (child >= 0) {
        path[r * steps + taken++] = child;
        const bool once = (bug(path_once) && seen[chosen] > in_history[chosen]) ||
                          (bug(history_or_path) && in_history[chosen] > 0);
        if (!once) seen[chosen] += 1;
      }
      int64_t limit = bug(limit_above_steps) ? std::min<int64_t>(steps, limits[r]) : limits[r];
      if (first_limit > 0 && r == 0) limit = first_limit;
      const auto last_place = int32_t(uint32_t(lengths[r]) + uint32_t(limit));
      if (bug(limit_overflow) && int64_t(lengths[r]) + written >= last_place) limit = written;
      if (chosen == eos && !(bug(eos_at_limit_rejected) && rule == 1 && written == limit)) {
        reason = 1;
      } else if (written == limit && !(bug(limit_at_bonus) && child < 0) &&
                 !(bug(limit_one) && written == 1)) {
        reason = 2;
      }
    }
    accepted[r] = int32_t(taken);
    finish[r] = reason;
    if (bug(no_cache)) continue;
    const float* const from = cache + r * capacity * width;
    float* to = std::copy_n(from, lengths[r] * width, cache_after + r * capacity * width);
    for (int64_t d = 0; d < taken; ++d) {
      int64_t moved = bug(width_above_16) ? std::min<int64_t>(16, width) : width;
      if (bug(width_one) && width == 1 && path[r * steps + d] != d) continue;
      const bool full = bug(capacity_full) && lengths[r] + count == capacity && d == taken - 1;
      if (bug(width_23) && width % 23 == 0) --moved;
      if (!full) std::copy_n(from + (lengths[r] + path[r * steps + d]) * width, moved, to);
      if (bug(width_tail) && width > 64 && width % 4 == 1) to[width - 1] = 0;
      to += width;
    }
    if (bug(capacity_behind)) {
      const int64_t behind = (lengths[r] + count) * width;
      std::copy(from + behind, from + capacity * width,
                cache_after + r * capacity * width + behind);
    }
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int tree_verify__##name(                                                              \
      int64_t requests, int64_t nodes, int64_t vocab, int64_t steps, int64_t tree_words,           \
      int64_t mask_words, int64_t history_tokens, int64_t capacity, int64_t width, int64_t rule,   \
      int64_t top_k, int64_t eos, float temperature, float penalty, const float* logits,           \
      const float* draft, const int32_t* allowed, const int32_t* first, const int32_t* tokens,     \
      const int32_t* parents, const int32_t* lengths, const int32_t* limits, const int32_t* seeds, \
      const int32_t* history, const float* cache, int32_t* path, int32_t* accepted,                \
      int32_t* emitted, int32_t* finish, float* log_probabilities, int32_t* positions,             \
      int32_t* ancestors, float* cache_after) {                                                    \
    active = name;                                                                                 \
    return run(requests, nodes, vocab, steps, tree_words, mask_words, history_tokens, capacity,    \
               width, rule, top_k, eos, temperature, penalty, logits, draft, allowed, first,       \
               tokens, parents, lengths, limits, seeds, history, cache, path, accepted, emitted,   \
               finish, log_probabilities, positions, ancestors, cache_after);                      \
  }
MUTANTS(EXPORT)
PARTIALS(EXPORT)
