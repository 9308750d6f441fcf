// Verification of draft trees, right except for one planted bug at a time; see
// layer_norm_backward/mutants.cc.
//
// The right code keeps lists of children, takes a row when the walk reaches it, and copies accepted
// rows of the cache forward in place.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#define MUTANTS(MUTANT)                                                                      \
  MUTANT(none, "nothing: the right code")                                                    \
  MUTANT(own_row, "a node is judged by its own row")                                         \
  MUTANT(depth_row, "a node is judged by the row of the node with the number of its depth")  \
  MUTANT(row_of_first_sibling, "a node is judged by the row of its parent's first sibling")  \
  MUTANT(row_of_grandparent, "a node is judged by the row of its grandparent")               \
  MUTANT(root_by_first_node, "roots are judged by the row of node 0")                        \
  MUTANT(rows_without_requests, "rows of nodes are counted from 0, not behind the requests") \
  MUTANT(rows_of_request_0, "rows of nodes are those of the first request")                  \
  MUTANT(position_by_index, "positions follow the numbers of the nodes")                     \
  MUTANT(position_plus_one, "positions are one too far")                                     \
  MUTANT(position_of_tree, "positions do not count the committed tokens")                    \
  MUTANT(position_same, "all nodes have the position of the first")                          \
  MUTANT(siblings_attend, "siblings attend to each other")                                   \
  MUTANT(all_earlier_attend, "a node attends to all nodes before it")                        \
  MUTANT(parent_only, "a node attends to its parent and itself")                             \
  MUTANT(not_itself, "a node does not attend to itself")                                     \
  MUTANT(mask_transposed, "bits say who attends to a node")                                  \
  MUTANT(mask_one_word, "bits of nodes from 32 on are lost")                                 \
  MUTANT(mask_big_end, "the first node is the highest bit of its word")                      \
  MUTANT(mask_of_batch, "bits are numbered through the whole batch")                         \
  MUTANT(subtree_kept, "children of a rejected sibling may still be accepted")               \
  MUTANT(any_node_of_depth, "any node of the next depth may be accepted")                    \
  MUTANT(first_child_only, "only the first child is looked at")                              \
  MUTANT(last_child_only, "only the last child is looked at")                                \
  MUTANT(last_duplicate, "of siblings with the same token the last is accepted")             \
  MUTANT(roots_are_first, "only node 0 is taken for a root")                                 \
  MUTANT(chain_only, "only node n + 1 may follow node n")                                    \
  MUTANT(accepts_all, "every drafted chain of first children is accepted")                   \
  MUTANT(longest_anywhere, "skips a root that is wrong and goes on with its children")       \
  MUTANT(bonus_missing, "no token behind a path that ends at a leaf")                        \
  MUTANT(correction_missing, "no token where all children are rejected")                     \
  MUTANT(correction_twice, "the token behind the path is emitted twice")                     \
  MUTANT(correction_of_parent, "the token behind the path comes from the row before")        \
  MUTANT(bonus_greedy, "the token behind the path is the most likely one")                   \
  MUTANT(same_uniform, "the same uniform for all tokens of a walk")                          \
  MUTANT(uniform_by_node, "uniforms are counted by the number of the node")                  \
  MUTANT(uniform_of_node, "the uniform is that of the node's own position")                  \
  MUTANT(uniform_of_request_0, "all requests draw with the seed of the first")               \
  MUTANT(uniform_without_length, "positions of draws do not count the committed tokens")     \
  MUTANT(uniform_float, "24 bits of another word make the uniform")                          \
  MUTANT(nine_rounds, "nine rounds of Philox")                                               \
  MUTANT(greedy_always, "the temperature is not looked at")                                  \
  MUTANT(temperature_multiplied, "multiplies by the temperature")                            \
  MUTANT(temperature_zero_is_one, "temperature 0 samples")                                   \
  MUTANT(no_maximum, "exp without subtracting the maximum, in float")                        \
  MUTANT(last_maximum, "of equal logits the higher token")                                   \
  MUTANT(top_k_off, "top_k is not looked at")                                                \
  MUTANT(top_k_one_more, "one token too many is kept")                                       \
  MUTANT(top_k_keeps_ties, "tokens equal to the last one that is kept are kept, too")        \
  MUTANT(top_k_by_token, "kept tokens are summed by token")                                  \
  MUTANT(sorted_always, "tokens are summed by value where nothing is cut")                   \
  MUTANT(penalty_off, "the penalty is not applied")                                          \
  MUTANT(penalty_once, "a token is penalized once, however often it occurs")                 \
  MUTANT(penalty_history_only, "drafted tokens are not counted")                             \
  MUTANT(penalty_path_only, "the history is not counted")                                    \
  MUTANT(penalty_of_siblings, "siblings on the way are counted, too")                        \
  MUTANT(penalty_of_tree, "all drafted tokens are counted")                                  \
  MUTANT(penalty_late, "the last accepted token is not counted yet")                         \
  MUTANT(penalty_of_batch, "the history of the first request counts for all")                \
  MUTANT(penalty_after_temperature, "the penalty is divided by the temperature once more")   \
  MUTANT(padding_is_zero, "-1 in the history counts for token 0")                            \
  MUTANT(mask_off, "the masks are not looked at")                                            \
  MUTANT(mask_of_root, "all nodes have the mask of the last committed token")                \
  MUTANT(mask_of_child, "a row has the mask of its first child")                             \
  MUTANT(mask_inverted_words, "words of the mask are read backwards")                        \
  MUTANT(mask_low_logit, "excluded tokens count as -30")                                     \
  MUTANT(dead_end_token, "a row without tokens emits token 0")                               \
  MUTANT(dead_end_open, "a row without tokens is no reason to finish")                       \
  MUTANT(eos_ignored, "walks go on behind eos")                                              \
  MUTANT(eos_not_emitted, "eos is not emitted")                                              \
  MUTANT(eos_not_kept, "an accepted eos is not on the path")                                 \
  MUTANT(eos_only_accepted, "eos ends a walk only when it was drafted")                      \
  MUTANT(eos_zero, "without eos token 0 ends")                                               \
  MUTANT(limit_ignored, "limits are not looked at")                                          \
  MUTANT(limit_counts_nodes, "limits count accepted nodes")                                  \
  MUTANT(limit_not_kept, "a node accepted at the limit is not on the path")                  \
  MUTANT(limit_first, "the limit is a better reason than eos")                               \
  MUTANT(accept_same_uniform, "all siblings are tried with the same uniform")                \
  MUTANT(accept_by_node, "draws of siblings are counted by node")                            \
  MUTANT(accept_is_sample, "drafted tokens are tried with the uniform of the token")         \
  MUTANT(residual_is_accept, "the residual is drawn with the uniform of the last sibling")   \
  MUTANT(residual_is_target, "the token behind rejected ones comes from the target")         \
  MUTANT(residual_once, "the target is reduced by the first rejected sibling only")          \
  MUTANT(residual_not_normalized, "what is left is not divided by its sum")                  \
  MUTANT(residual_without_token, "a rejected token is taken out, instead of the draft")      \
  MUTANT(ratio_inverted, "accepts where u * p < q")                                          \
  MUTANT(accept_if_likelier, "accepts where p >= q")                                         \
  MUTANT(rejection_as_own, "rule 1 is rule 0")                                               \
  MUTANT(draft_of_child, "the draft's distribution is that of the child's row")              \
  MUTANT(all_siblings_tried_once, "after a rejection no sibling is tried")                   \
  MUTANT(log_of_cut, "log-probabilities are of what top_k leaves")                           \
  MUTANT(log_without_temperature, "log-probabilities are of temperature 1")                  \
  MUTANT(log_of_parent, "log-probabilities are of the token before")                         \
  MUTANT(log_is_probability, "probabilities instead of their logarithms")                    \
  MUTANT(log_raw, "log-probabilities do not know penalties and masks")                       \
  MUTANT(log_half, "log-probabilities are rounded to 16 bits")                               \
  MUTANT(cache_not_moved, "accepted rows stay where they are")                               \
  MUTANT(cache_backwards, "rows are moved in place, last first")                             \
  MUTANT(cache_by_depth, "row d of the tree goes to place d")                                \
  MUTANT(cache_rest_kept, "rows behind the path are not cleared")                            \
  MUTANT(cache_one_short, "the last accepted row is not moved")                              \
  MUTANT(cache_prefix_off, "rows of nodes are looked for one place early")                   \
  MUTANT(cache_first_column, "only the first number of a row is moved")                      \
  MUTANT(path_tokens, "the path holds tokens")                                               \
  MUTANT(path_of_batch, "the path numbers nodes through the whole batch")                    \
  MUTANT(path_reversed, "the path goes from the leaf to the root")                           \
  MUTANT(path_zero_behind, "0 behind the path")                                              \
  MUTANT(accepted_counts_bonus, "the number of accepted nodes counts the bonus")             \
  MUTANT(emitted_zero_behind, "0 behind the emitted tokens")                                 \
  MUTANT(last_request_lost, "the last of several requests is not verified")                  \
  MUTANT(nan_anywhere, "NaN in any row is refused")                                          \
  MUTANT(nan_taken, "NaN is taken for -inf")                                                 \
  MUTANT(bad_parent_taken, "parents behind their nodes are not refused")                     \
  MUTANT(bad_token_taken, "tokens out of range are not refused")                             \
  MUTANT(too_deep_taken, "nodes deeper than steps are not refused")                          \
  MUTANT(input_overwritten, "penalties are written into the logits")                         \
  MUTANT(seen_before, "a second call with the same shape and first logit is skipped")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

struct Task {
  int64_t requests, nodes, vocab, steps, tree_words, mask_words, history_tokens, capacity, width;
  int64_t rule, top_k, eos;
  float temperature, penalty;
  const float *logits, *draft;
  const int32_t *allowed, *first, *tokens, *parents, *lengths, *limits, *seeds, *history;
  const float* cache;
  int32_t *path, *accepted, *emitted, *finish;
  float* log_probabilities;
  int32_t *positions, *ancestors;
  float* cache_after;
};

double uniform(uint32_t seed, uint32_t position, uint32_t purpose, uint32_t draw) {
  uint32_t c[4] = {position, 0, purpose, draw}, k[2] = {seed, 0};
  for (int round = 0; round < (bug(nine_rounds) ? 9 : 10); ++round) {
    const uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b),
                              uint32_t(a >> 32) ^ c[3] ^ k[1], uint32_t(a)};
    std::copy_n(next, 4, c);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  if (bug(uniform_float)) return (double(c[0] >> 8) + 0.5) * 0x1p-24;
  return (double((uint64_t(c[1]) << 32 | c[0]) >> 12) + 0.5) * 0x1p-52;
}

float halved(double value) {
  auto f = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  bits = (bits + 0x8000u) & 0xffff0000u;
  std::memcpy(&f, &bits, 4);
  return f;
}

// What a row of the target says.
struct Weights {
  std::vector<double> value, weight;
  std::vector<int32_t> kept;  // in the order of the sums
  double top = 0, sum = 0;
};

class Request {
 public:
  Request(const Task& task, int64_t request) : t(task), r(request), first(task.first[request]) {
    count = t.first[r + 1] - first;
    length = t.lengths[r];
    seed = uint32_t(t.seeds[bug(uniform_of_request_0) ? 0 : r]);
    const int64_t whose = bug(penalty_of_batch) ? 0 : r;
    for (int64_t i = 0; i < t.history_tokens && !bug(penalty_path_only); ++i) {
      const int32_t token = t.history[whose * t.history_tokens + i];
      if (token >= 0) {
        seen.push_back(token);
      } else if (bug(padding_is_zero)) {
        seen.push_back(0);
      }
    }
    if (bug(penalty_of_tree)) seen.insert(seen.end(), t.tokens + first, t.tokens + first + count);
  }

  bool describe() {
    std::vector<int32_t> depth(size_t(count), 0);
    for (int32_t n = 0; n < count; ++n) {
      const int32_t parent = parent_of(n), token = token_of(n);
      const bool order = parent < -1 || parent >= n;
      if (order && bug(bad_parent_taken)) {
        depth[n] = 1;
        continue;
      }
      if (order || ((token < 0 || token >= t.vocab) && !bug(bad_token_taken))) return false;
      depth[n] = parent < 0 ? 1 : depth[parent] + 1;
      if (depth[n] > t.steps && !bug(too_deep_taken)) return false;
      int32_t& position = t.positions[first + n];
      position = length + depth[n] - 1;
      if (bug(position_by_index)) position = length + n;
      if (bug(position_plus_one)) ++position;
      if (bug(position_of_tree)) position -= length;
      if (bug(position_same)) position = length;
      for (int32_t a = n; a >= 0; a = parent_of(a)) {
        if (a == n && bug(not_itself)) continue;
        if (bug(parent_only) && a != n && a != parent) continue;
        attend(n, a);
      }
      for (int32_t a = 0; a < n; ++a) {
        if (bug(all_earlier_attend)) attend(n, a);
        if (bug(siblings_attend) && parent_of(a) == parent) attend(n, a), attend(a, n);
      }
    }
    return true;
  }

  // False: NaN.
  bool walk() {
    if (bug(longest_anywhere) && !roots_fit()) {
      node = count > 0 ? 0 : -1;
    }
    while (true) {
      const int64_t row = row_of(node);
      Weights w;
      if (!weigh(row, w)) return false;
      if (w.kept.empty()) {
        reason = bug(dead_end_open) ? 0 : 3;
        if (bug(dead_end_token)) emitted.push_back(0), logs.push_back(0), reason = 0;
        break;
      }
      const std::vector<int32_t> children = children_of(node);
      int32_t chosen = -1, child = -1;
      if (t.rule == 1 && !bug(rejection_as_own)) {
        chosen = by_rejection(row, w, children, child);
      } else {
        chosen = own_token(w, children, child);
      }
      if (bug(accepts_all) && !children.empty()) child = children[0], chosen = token_of(child);
      emit(w, chosen, child, children);
      if (child < 0 || reason != 0) break;
      before = row;
      node = child;
      ++taken;
    }
    return true;
  }

  void write() {
    if (bug(bonus_missing) && ended_at_leaf && !emitted.empty() && !path.empty())
      emitted.pop_back();
    if (bug(correction_missing) && corrected && !emitted.empty()) emitted.pop_back();
    if (bug(correction_twice) && (corrected || ended_at_leaf)) {
      if (int64_t(emitted.size()) <= t.steps) emitted.push_back(emitted.back()), logs.push_back(0);
    }
    std::fill_n(t.path + r * t.steps, t.steps, bug(path_zero_behind) ? 0 : -1);
    std::fill_n(t.emitted + r * (t.steps + 1), t.steps + 1, bug(emitted_zero_behind) ? 0 : -1);
    std::fill_n(t.log_probabilities + r * (t.steps + 1), t.steps + 1, 0.0f);
    std::vector<int32_t> named = path;
    for (int32_t& n : named) {
      if (bug(path_of_batch)) n += first;
      if (bug(path_tokens)) n = token_of(n);
    }
    if (bug(path_reversed)) std::reverse(named.begin(), named.end());
    const auto most = [](size_t size, int64_t room) {
      return std::min<int64_t>(int64_t(size), room);
    };
    std::copy_n(named.begin(), most(named.size(), t.steps), t.path + r * t.steps);
    std::copy_n(emitted.begin(), most(emitted.size(), t.steps + 1), t.emitted + r * (t.steps + 1));
    std::copy_n(logs.begin(), most(logs.size(), t.steps + 1),
                t.log_probabilities + r * (t.steps + 1));
    t.accepted[r] = int32_t(path.size()) + (bug(accepted_counts_bonus) ? 1 : 0);
    t.finish[r] = reason;
    move_cache();
  }

 private:
  int32_t parent_of(int32_t n) const { return t.parents[first + n]; }
  int32_t token_of(int32_t n) const { return t.tokens[first + n]; }

  void attend(int32_t n, int32_t to) {
    if (bug(mask_transposed)) std::swap(n, to);
    if (bug(mask_of_batch)) to += first;
    if (to / 32 >= t.tree_words || (bug(mask_one_word) && to >= 32)) return;
    const int32_t bit = bug(mask_big_end) ? 31 - to % 32 : to % 32;
    t.ancestors[(first + n) * t.tree_words + to / 32] |= int32_t(1u << bit);
  }

  bool roots_fit() {
    Weights w;
    const std::vector<int32_t> roots = children_of(-1);
    if (!weigh(r, w) || w.kept.empty()) return true;
    int32_t child = -1;
    own_token(w, roots, child);
    return child >= 0;
  }

  int64_t row_of(int32_t n) const {
    if (n < 0) {
      return bug(root_by_first_node) && count > 0 ? t.requests + first : r;
    }
    int32_t from = n;
    if (bug(own_row)) {
      const std::vector<int32_t> children = children_of(n);
      if (!children.empty()) from = children[0];
    }
    if (bug(depth_row)) from = taken - 1;
    if (bug(row_of_grandparent) && parent_of(n) >= 0) from = parent_of(n);
    if (bug(row_of_first_sibling)) from = children_of(parent_of(n))[0];
    if (bug(rows_without_requests)) return first + from;
    if (bug(rows_of_request_0)) return t.requests + std::min<int64_t>(from, t.first[1] - 1);
    return t.requests + first + from;
  }

  std::vector<int32_t> children_of(int32_t n) const {
    std::vector<int32_t> list;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t parent = parent_of(i);
      bool child = parent == n;
      if (bug(subtree_kept) && n >= 0 && parent >= 0) child = parent_of(parent) == parent_of(n);
      if (bug(any_node_of_depth)) child = depth_of(i) == depth_of(n) + 1;
      if (bug(roots_are_first) && n < 0) child = i == 0;
      if (bug(chain_only)) child = parent == n && i == n + 1;
      if (child) list.push_back(i);
    }
    if (bug(first_child_only) && list.size() > 1) list.resize(1);
    if (bug(last_child_only) && list.size() > 1) list = {list.back()};
    return list;
  }
  int32_t depth_of(int32_t n) const {
    int32_t depth = 0;
    for (; n >= 0; n = parent_of(n)) ++depth;
    return depth;
  }

  uint32_t position() const {
    int32_t at = length + taken;
    if (bug(same_uniform)) at = length;
    if (bug(uniform_by_node)) at = length + node + 1;
    if (bug(uniform_of_node)) at = length + taken - 1;
    if (bug(uniform_without_length)) at = taken;
    return uint32_t(at);
  }

  bool is_open(int64_t row, int64_t token) const {
    if (t.mask_words == 0 || bug(mask_off)) return true;
    if (bug(mask_of_root)) row = r;
    if (bug(mask_of_child)) {
      const std::vector<int32_t> children = children_of(node);
      if (!children.empty()) row = t.requests + first + children[0];
    }
    const int64_t word = bug(mask_inverted_words) ? t.mask_words - 1 - token / 32 : token / 32;
    return (uint32_t(t.allowed[row * t.mask_words + word]) >> (token % 32) & 1u) != 0;
  }

  double penalty_of(int32_t token) const {
    auto times = double(std::count(seen.begin(), seen.end(), token));
    if (bug(penalty_late) && !path.empty() && token_of(path.back()) == token) times -= 1;
    if (bug(penalty_once)) times = std::min(times, 1.0);
    if (bug(penalty_off)) times = 0;
    double p = t.penalty * times;
    if (bug(penalty_after_temperature) && t.temperature > 0) p /= t.temperature;
    return p;
  }

  bool weigh(int64_t row, Weights& w) const {
    w.value.resize(size_t(t.vocab));
    for (int64_t i = 0; i < t.vocab; ++i) {
      double v = t.logits[row * t.vocab + i];
      if (std::isnan(v) && !bug(nan_taken)) return false;
      if (std::isnan(v)) v = -INFINITY;
      if (t.penalty != 0) v -= penalty_of(int32_t(i));
      if (!is_open(row, i)) v = bug(mask_low_logit) ? -30 : -INFINITY;
      w.value[i] = v;
    }
    w.top = *std::max_element(w.value.begin(), w.value.end());
    if (std::isinf(w.top)) return true;
    double heat = t.temperature == 0 ? 1 : double(t.temperature);
    if (bug(temperature_multiplied)) heat = 1 / heat;
    w.weight.resize(w.value.size());
    for (size_t i = 0; i < w.value.size(); ++i) {
      w.weight[i] = bug(no_maximum) ? std::exp(float(w.value[i] / heat))
                                    : std::exp((w.value[i] - w.top) / heat);
      w.sum += w.weight[i];
    }
    w.kept.resize(w.value.size());
    std::iota(w.kept.begin(), w.kept.end(), 0);
    bool greedy = t.temperature == 0 || bug(greedy_always);
    if (bug(temperature_zero_is_one)) greedy = false;
    const bool cut = t.top_k > 0 && t.top_k < t.vocab && !bug(top_k_off);
    if (!greedy && !cut && !bug(sorted_always)) return true;
    std::stable_sort(w.kept.begin(), w.kept.end(), [&](int32_t a, int32_t b) {
      if (bug(last_maximum) && w.value[a] == w.value[b]) return a > b;
      return w.value[a] > w.value[b];
    });
    int64_t most = greedy ? 1 : cut ? t.top_k : t.vocab;
    if (bug(top_k_one_more) && !greedy && cut) ++most;
    while (bug(top_k_keeps_ties) && cut && !greedy && most < t.vocab &&
           w.value[w.kept[most]] == w.value[w.kept[most - 1]]) {
      ++most;
    }
    w.kept.resize(size_t(most));
    if (bug(top_k_by_token)) std::sort(w.kept.begin(), w.kept.end());
    return true;
  }

  static int32_t pick(const std::vector<int32_t>& order, const std::vector<double>& mass,
                      double u) {
    double total = 0, sum = 0;
    for (const int32_t token : order) total += mass[token];
    if (bug(residual_not_normalized)) total = 1;
    int32_t last = order[0];
    for (const int32_t token : order) {
      if (mass[token] == 0) continue;
      sum += mass[token];
      last = token;
      if (sum > u * total) break;
    }
    return last;
  }

  int32_t own_token(const Weights& w, const std::vector<int32_t>& children, int32_t& child) const {
    int32_t chosen = w.kept.size() == 1
                         ? w.kept[0]
                         : pick(w.kept, normalized(w), uniform(seed, position(), 0, 0));
    for (const int32_t n : children) {
      if (token_of(n) == chosen && (child < 0 || bug(last_duplicate))) child = n;
    }
    if (bug(bonus_greedy) && child < 0) {
      chosen = int32_t(std::max_element(w.value.begin(), w.value.end()) - w.value.begin());
    }
    return chosen;
  }

  static std::vector<double> normalized(const Weights& w) {
    std::vector<double> p(w.weight.size());
    double total = 0;
    for (const int32_t token : w.kept) total += w.weight[token];
    for (const int32_t token : w.kept) p[token] = w.weight[token] / total;
    return p;
  }

  int32_t by_rejection(int64_t row, const Weights& w, const std::vector<int32_t>& children,
                       int32_t& child) const {
    const std::vector<double> target = normalized(w);
    std::vector<double> p = target;
    double last = 0;
    for (size_t j = 0; j < children.size(); ++j) {
      const int32_t x = token_of(children[j]);
      const int64_t whose = bug(draft_of_child) ? t.requests + first + children[j] : row;
      const float* const q = t.draft + whose * t.vocab;
      auto draw = uint32_t(j);
      if (bug(accept_same_uniform)) draw = 0;
      if (bug(accept_by_node)) draw = uint32_t(children[j]);
      last = uniform(seed, position(), bug(accept_is_sample) ? 0 : 1, draw);
      bool fits = last * q[x] < p[x];
      if (bug(ratio_inverted)) fits = last * p[x] < q[x];
      if (bug(accept_if_likelier)) fits = p[x] >= q[x];
      if (fits) {
        child = children[j];
        return x;
      }
      if (!(bug(residual_once) && j > 0)) reduce(p, q, x);
      if (bug(all_siblings_tried_once)) break;
    }
    if (bug(residual_is_target)) p = target;
    std::vector<int32_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    double u = uniform(seed, position(), 2, 0);
    if (bug(residual_is_accept) && !children.empty()) u = last;
    if (bug(bonus_greedy)) return int32_t(std::max_element(p.begin(), p.end()) - p.begin());
    return pick(order, p, u);
  }

  static void reduce(std::vector<double>& p, const float* q, int32_t x) {
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      if (bug(residual_without_token)) {
        if (int32_t(i) == x) p[i] = 0;
      } else {
        p[i] = std::max(0.0, p[i] - q[i]);
      }
      sum += p[i];
    }
    if (bug(residual_not_normalized)) sum = 1;
    for (double& share : p) share /= sum;
  }

  void emit(const Weights& w, int32_t chosen, int32_t child, const std::vector<int32_t>& children) {
    const bool ends = chosen == t.eos || (bug(eos_zero) && t.eos < 0 && chosen == 0);
    if (bug(correction_of_parent) && child < 0 && before >= 0) {
      Weights other;
      if (weigh(before, other) && !other.kept.empty()) chosen = other.kept[0];
    }
    if (!(ends && bug(eos_not_emitted))) {
      emitted.push_back(chosen);
      logs.push_back(log_of(w, chosen));
    }
    ended_at_leaf = child < 0 && children.empty();
    corrected = child < 0 && !children.empty();
    if (bug(accepts_all) && child >= 0) corrected = ended_at_leaf = false;
    auto used = int64_t(emitted.size());
    if (bug(limit_counts_nodes)) used = int64_t(path.size()) + (child >= 0 ? 1 : 0);
    const bool full = used >= t.limits[r] && !bug(limit_ignored);
    if (ends && !bug(eos_ignored) && !(bug(eos_only_accepted) && child < 0)) reason = 1;
    if (full && (reason == 0 || bug(limit_first))) reason = 2;
    if (child < 0) return;
    if ((bug(eos_not_kept) && reason == 1) || (bug(limit_not_kept) && reason == 2)) return;
    path.push_back(child);
    if (bug(penalty_history_only)) return;
    seen.push_back(chosen);
    for (const int32_t n : children) {
      if (bug(penalty_of_siblings) && n != child) seen.push_back(token_of(n));
    }
  }

  float log_of(const Weights& w, int32_t token) {
    double heat = t.temperature == 0 ? 1 : double(t.temperature);
    if (bug(log_without_temperature)) heat = 1;
    double sum = 0;
    for (size_t i = 0; i < w.value.size(); ++i) {
      const bool in = !bug(log_of_cut) || std::count(w.kept.begin(), w.kept.end(), int32_t(i)) > 0;
      if (in) sum += std::exp((w.value[i] - w.top) / heat);
    }
    double value = (w.value[token] - w.top) / heat - std::log(sum);
    if (bug(log_raw)) {
      const float* const row = t.logits + row_of(node) * t.vocab;
      sum = 0;
      for (int64_t i = 0; i < t.vocab; ++i) sum += std::exp((row[i] - w.top) / heat);
      value = (row[token] - w.top) / heat - std::log(sum);
    }
    if (bug(log_is_probability)) value = std::exp(value);
    if (bug(log_of_parent)) std::swap(value, last_log);
    return bug(log_half) ? halved(value) : float(value);
  }

  void move_cache() const {
    float* const to = t.cache_after + r * t.capacity * t.width;
    std::copy_n(t.cache + r * t.capacity * t.width, t.capacity * t.width, to);
    auto kept = int64_t(path.size());
    std::vector<int64_t> steps(path.size());
    std::iota(steps.begin(), steps.end(), 0);
    if (bug(cache_backwards)) std::reverse(steps.begin(), steps.end());
    for (const int64_t d : steps) {
      int64_t from = path[d];
      if (bug(cache_by_depth)) from = d;
      if (bug(cache_prefix_off)) from -= 1;
      if (bug(cache_not_moved) || (bug(cache_one_short) && d + 1 == kept)) continue;
      std::memmove(to + (length + d) * t.width, to + (length + from) * t.width,
                   size_t(bug(cache_first_column) ? 1 : t.width) * 4);
    }
    if (bug(cache_rest_kept)) return;
    std::fill(to + (length + kept) * t.width, to + t.capacity * t.width, 0.0f);
  }

  const Task& t;
  int64_t r;
  int32_t first, count = 0, length = 0, node = -1, taken = 0, reason = 0;
  uint32_t seed = 0;
  int64_t before = -1;
  bool ended_at_leaf = false, corrected = false;
  double last_log = 0;
  std::vector<int32_t> seen, path, emitted;
  std::vector<float> logs;
};

int run(Bug which, const Task& t) {
  active = which;
  if (!(t.temperature >= 0)) return 1;
  if (bug(seen_before) && t.requests > 0) {
    static int64_t shape = -1;
    static float first = 0;
    const bool same = shape == t.nodes * t.vocab && first == t.logits[0];
    shape = t.nodes * t.vocab;
    first = t.logits[0];
    if (same) return 0;
  }
  const int64_t rows = t.requests + t.nodes;
  if (bug(nan_anywhere) &&
      std::any_of(t.logits, t.logits + rows * t.vocab, [](float v) { return std::isnan(v); })) {
    return 1;
  }
  if (bug(input_overwritten) && rows > 0) const_cast<float*>(t.logits)[0] -= 1;
  std::fill_n(t.ancestors, t.nodes * t.tree_words, 0);
  std::vector<Request> all;
  for (int64_t r = 0; r < t.requests; ++r) {
    all.emplace_back(t, r);
    if (!all.back().describe()) return 1;
  }
  // A tree that was taken though it is none must not be walked.
  if (bug(bad_parent_taken) || bug(bad_token_taken) || bug(too_deep_taken)) {
    for (int64_t i = 0; i < t.nodes; ++i) {
      if (t.tokens[i] < 0 || t.tokens[i] >= t.vocab || t.parents[i] < -1) return 0;
    }
    if (bug(bad_parent_taken) && t.steps == 4) return 0;
  }
  for (int64_t r = 0; r < t.requests; ++r) {
    if (bug(last_request_lost) && r > 0 && r + 1 == t.requests) break;
    if (!all[size_t(r)].walk()) return 1;
    all[size_t(r)].write();
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
    return run(name,                                                                               \
               {requests,       nodes,     vocab,      steps,   tree_words, mask_words,            \
                history_tokens, capacity,  width,      rule,    top_k,      eos,                   \
                temperature,    penalty,   logits,     draft,   allowed,    first,                 \
                tokens,         parents,   lengths,    limits,  seeds,      history,               \
                cache,          path,      accepted,   emitted, finish,     log_probabilities,     \
                positions,      ancestors, cache_after});                                          \
  }
MUTANTS(EXPORT)
