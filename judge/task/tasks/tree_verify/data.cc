// The trees and rows of tree_verify cases, family by family.
//
// A request is drawn node by node: a row of logits first, then what the target chooses there, then
// the tokens of its children, which agree with it or not, by the family.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/tree_verify/tree_verify.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::tree_verify {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::array<const char*, 21> kParameters = {
    "requests", "nodes",    "vocab",    "depth", "prefix", "width",   "temp100",
    "topk",     "penalty4", "mask",     "rule",  "eos",    "history", "limit",
    "shift10",  "grid",     "relation", "add",   "defect", "temp10",  "seeds"};
constexpr std::array<const char*, 6> kHostile = {"late_sibling", "wrong_root", "duplicates",
                                                 "cousins",      "masked",     "ties"};

enum : uint64_t {
  kRequest = 1,
  kTree,
  kLogit,
  kDraft,
  kMask,
  kPolicy,
  kCache,
  kFamily,
  kOrder,
  kPlace
};
enum Defect : int64_t {
  kLateParent,
  kSelfParent,
  kLowParent,
  kHighToken,
  kLowToken,
  kTooDeep,
  kCold
};
enum Seeds : int64_t { kDrawnSeeds, kZeroSeeds, kLargestSeeds };
constexpr int64_t kTries = 300;
constexpr int64_t kMaxDrawn = 1 << 22;  // logits of one row, over all tries

struct Knobs {
  std::string family;
  int64_t requests = 1, nodes = 1, vocab = 1, depth = 1, prefix = 1, width = 1, top_k = 0, eos = 0,
          history = 0;
  int64_t limit = 0, defect = 0, seeds = 0;
  double temperature = 0, penalty = 0, shift = 0, add = 0;
  bool mask = false, rejection = false, grid = false;
  uint64_t common = 0;  // of all requests

  bool is(const char* name) const { return family == name; }
  bool ties() const { return is("ties"); }
};

Knobs read_knobs(const CaseSpec& spec) {
  Knobs k;
  k.family = spec.family;
  k.common = spec.seed;
  k.requests = parameter(spec, "requests", 0, 4096);
  k.nodes = parameter(spec, "nodes", 0, 4096);
  k.vocab = parameter(spec, "vocab", 1, 1 << 20);
  const int64_t most = std::max<int64_t>(1, k.nodes);
  constexpr int64_t kSteps = 64;  // which no tree has to need
  k.depth = optional_parameter(spec, "depth", 1, std::max(most, kSteps), most);
  k.prefix = optional_parameter(spec, "prefix", 1, 1 << 17, 9);
  k.width = optional_parameter(spec, "width", 1, 4096, 2);
  k.temperature = static_cast<double>(optional_parameter(spec, "temp100", 0, 100000)) / 100;
  if (spec.parameters.contains("temp10")) {
    k.temperature /= power_of_ten(-optional_parameter(spec, "temp10", -30, 0));
  }
  k.seeds = optional_parameter(spec, "seeds", 0, kLargestSeeds);
  k.top_k = optional_parameter(spec, "topk", 0, int64_t{1} << 40);
  k.penalty = static_cast<double>(optional_parameter(spec, "penalty4", -64, 64)) / 4;
  k.mask = optional_parameter(spec, "mask", 0, 1) != 0;
  k.rejection = optional_parameter(spec, "rule", 0, 1) != 0;
  k.eos = optional_parameter(spec, "eos", 0, 3);
  k.history = optional_parameter(spec, "history", 0, 4096);
  k.limit = optional_parameter(spec, "limit", 0, std::numeric_limits<int32_t>::max());
  k.defect = optional_parameter(spec, "defect", 0, kCold);
  k.shift = shift_of(spec);
  k.add = static_cast<double>(parameter_or(spec, "add", 0));
  k.grid = parameter_or(spec, "grid", 0) != 0;
  if (k.requests * (k.nodes + 1) * k.vocab > int64_t{1} << 24) {
    throw InvalidArgument("case: requests * (nodes + 1) * vocab is above 2^24");
  }
  if (k.requests * (k.nodes + k.prefix + k.history) * k.width > int64_t{1} << 24) {
    throw InvalidArgument("case: the cache has more than 2^24 numbers");
  }
  return k;
}

int32_t eos_of(const Knobs& k, uint64_t seed) {
  if (k.eos == 2) return 0;
  if (k.eos == 3) return static_cast<int32_t>(k.vocab - 1);
  return k.eos != 0 ? static_cast<int32_t>(Stream(seed, kPlace).index(0, k.vocab)) : -1;
}

bool is_chain(const Knobs& k) {
  return k.is("full_chain") || k.is("eos_inside") || k.is("limit") || k.is("deep");
}

// One request, drawn from its own seed: nothing in it depends on the others.
class Draft {
 public:
  Draft(const Knobs& knobs, uint64_t seed, int32_t eos, bool largest)
      : k_(knobs), seed_(seed), eos_(eos), random_(seed, kRequest), policy_(seed, kPolicy) {
    at_zero_ = random_.bits(2) % 2 == 0;
    length = static_cast<int32_t>(k_.is("long_prefix") ? k_.prefix - random_.index(0, 4)
                                                       : 1 + random_.index(0, k_.prefix));
    // As many tokens are committed as the history has, at least.
    length = std::max(length, 1) + static_cast<int32_t>(k_.history);
    // Requests that are alike draw alike: their seeds are no names for them.
    const Stream seeds = k_.is("alike") ? Stream(k_.common, kRequest) : random_;
    request_seed = static_cast<int32_t>(seeds.bits(1) & 0x7fffffff);
    if (k_.seeds == kZeroSeeds) request_seed = 0;
    if (k_.seeds == kLargestSeeds) request_seed = std::numeric_limits<int32_t>::max();
    const int64_t deepest = k_.is("dead_end") ? 1 : 6;
    eos_depth_ = random_.index(2, std::min(k_.depth, deepest) + 1);
    draw_tree(largest ? k_.nodes : random_.index(3, k_.nodes + 1));
    limit = static_cast<int32_t>(k_.depth + 2 + random_.index(4, 9));
    if (k_.is("limit")) limit = static_cast<int32_t>(1 + random_.index(5, k_.depth + 1));
    if (k_.limit > 0) limit = static_cast<int32_t>(k_.limit);
    for (int64_t i = 0; i < k_.history; ++i) {
      const bool padding = random_.bits(100 + i) % 5 == 0;
      // Behind the first dozens other tokens come up, too.
      const bool any = i >= 32 && random_.bits(~i) % 3 == 0;
      const auto drawn = static_cast<int32_t>(random_.index(~(200 + i), k_.vocab));
      history.push_back(padding ? -1 : any ? drawn : hot_token(200 + i));
    }
    draw_rows();
  }

  std::vector<int32_t> parents, tokens, history, allowed;
  std::vector<float> logits, draft;  // one row more than nodes
  int32_t length = 1, limit = 1, request_seed = 0;

 private:
  int64_t nodes() const { return std::ssize(parents); }
  int64_t words() const { return k_.mask ? (k_.vocab + 31) / 32 : 0; }

  void draw_tree(int64_t count) {
    const Stream way(seed_, kTree);
    if (is_chain(k_)) count = std::min(count, k_.depth);
    std::vector<int64_t> depth;
    for (int64_t i = 0; i < count; ++i) {
      int64_t parent = i - 1;
      if (k_.is("wide")) {
        parent = i < 3 || i % 3 != 0 ? -1 : way.index(i, i);
      } else if (k_.is("cousins")) {
        parent = (i - 2) >= 0 ? (i - 2) / 2 : -1;
      } else if (!is_chain(k_)) {
        const int64_t near = std::max<int64_t>(-1, i - 5);
        parent = way.bits(~i) % 3 == 0 ? way.index(i, i + 1) - 1 : near + way.index(i, i - near);
      }
      // The last nodes of a large tree are a chain of their own, and the one that agrees.
      if (k_.is("many_nodes") && i >= count - k_.depth) parent = i == count - k_.depth ? -1 : i - 1;
      while (parent >= 0 && depth[static_cast<size_t>(parent)] >= k_.depth) {
        parent = parents[static_cast<size_t>(parent)];
      }
      depth.push_back(parent < 0 ? 1 : depth[static_cast<size_t>(parent)] + 1);
      parents.push_back(static_cast<int32_t>(parent));
    }
    tokens.assign(static_cast<size_t>(count), -1);
  }

  // Tokens that come up again and again, so that counting them matters.
  int32_t hot_token(int64_t element) const {
    const int64_t hot = std::min<int64_t>(k_.vocab, 4);
    return static_cast<int32_t>(Stream(seed_, kPlace).index(random_.index(element, hot), k_.vocab));
  }
  bool is_hot(int64_t token) const {
    for (int64_t i = 0; i < std::min<int64_t>(k_.vocab, 4); ++i) {
      if (Stream(seed_, kPlace).index(i, k_.vocab) == token) return true;
    }
    return false;
  }

  struct NodeContext {
    int64_t row = 0;  // 0: the last committed token; else node + 1
    int64_t depth = 0;
    bool on_path = true;  // all nodes up to here are accepted
    std::vector<int32_t> seen;
    std::vector<size_t> children;
  };

  double logit(const Stream& random, const NodeContext& at, int64_t token) const {
    double value = 2 * random.normal(token);
    if (k_.is("ties")) value = std::round(random.normal(token));
    // Zeros of both signs are equal: in every second request they are the largest.
    if (k_.is("ties") && at_zero_) value = std::min(value, 0.0);
    // Differences of the size of the temperature: no token has all the weight.
    if (k_.is("temperature") && k_.temperature < 1 && at.row % 2 == 0) value *= k_.temperature;
    if (k_.is("peaked")) value = std::clamp(3 * random.heavy(token), -12.0, 12.0);
    if (k_.vocab > 2000) value *= 2;  // of thousands of tokens a few have most of the weight
    // What all but a few hundred tokens of a large vocabulary add to a sum is lost in it.
    if (k_.is("large") && random.bits(~token) % 200 != 0) value -= 45;
    // The last of them are the ones that count in every second row, the first one read among them.
    const int64_t last = k_.vocab / (k_.top_k > 0 ? 8 : 64);  // more than top_k of them
    if (k_.is("large") && at.row % 2 == 0 && token < k_.vocab - last) value -= 45;
    if (k_.is("penalty") && is_hot(token)) value += 4;
    if (token == eos_ && at.depth == eos_depth_ && k_.is("eos_inside")) value += 25;
    if ((k_.is("masked") || k_.is("dead_end")) && random.bits(~token) % 4 == 0) {
      return -std::numeric_limits<double>::infinity();
    }
    if (k_.is("dead_end") && at.depth == eos_depth_) {
      return -std::numeric_limits<double>::infinity();
    }
    return value;
  }

  void fill_row(const NodeContext& at, uint64_t attempt, double add) {
    const uint64_t source = k_.is("alike") ? k_.common : seed_;
    const uint64_t seed = derive_seed(source, static_cast<uint64_t>(at.row) * 1000 + attempt);
    const Stream random(seed, kLogit);
    const Stream weights(seed, kDraft);
    const size_t begin = static_cast<size_t>(at.row * k_.vocab);
    double total = 0;
    std::vector<double> q(k_.rejection ? static_cast<size_t>(k_.vocab) : 0);
    for (int64_t t = 0; t < k_.vocab; ++t) {
      double value = logit(random, at, t);
      // Draft logits correlate with the target's, and other tokens as well.
      if (k_.rejection) {
        const double liked = std::isinf(value) ? 0 : std::floor(value / 2);
        const auto extra = static_cast<int>(weights.index(t, 5));
        double& weight = q[static_cast<size_t>(t)];
        weight = std::ldexp(1 + weights.uniform(~t), static_cast<int>(liked) + extra);
        // A draft that was cut itself has tokens of probability 0.
        if (k_.is("rejection") && t > 0 && weights.bits(2 * k_.vocab + t) % 4 == 0) weight = 0;
        total += weight;
      }
      if (k_.grid && !std::isinf(value)) value = std::round(value * 0x1p14) * 0x1p-14;
      // The sum of -0 and 0 would be 0.
      const double moved = k_.shift == 0 && add == 0 ? value : value + k_.shift + add;
      logits[begin + static_cast<size_t>(t)] = static_cast<float>(moved);
    }
    // Now and then the draft knows nothing but one token.
    if (k_.rejection && k_.is("rejection") && weights.bits(-1) % 4 == 0) {
      const auto most = std::ranges::max_element(q) - q.begin();
      std::ranges::fill(q, 0.0);
      total = q[static_cast<size_t>(most)] = 1;
    }
    for (size_t t = 0; t < q.size(); ++t) draft[begin + t] = static_cast<float>(q[t] / total);
    const Stream bits(seed, kMask);
    for (int64_t w = 0; w < words(); ++w) {
      uint32_t word = 0;
      for (int64_t b = 0; b < 32 && 32 * w + b < k_.vocab; ++b) {
        const bool open =
            !(k_.is("dead_end") && at.depth == eos_depth_) && bits.bits(32 * w + b) % 3 != 0;
        word |= static_cast<uint32_t>(open) << b;
      }
      // Bits of no token say nothing.
      const int64_t used = std::min<int64_t>(32, k_.vocab - 32 * w);
      if (used < 32) word |= static_cast<uint32_t>(bits.bits(~w)) << used;
      allowed[static_cast<size_t>(at.row * words() + w)] = static_cast<int32_t>(word);
    }
  }

  Row row_of(const NodeContext& at) const {
    const auto vocab = static_cast<size_t>(k_.vocab);
    const auto row = static_cast<size_t>(at.row);
    Row r;
    r.logits = std::span(logits).subspan(row * vocab, vocab);
    if (k_.rejection) r.draft = std::span(draft).subspan(row * vocab, vocab);
    const auto w = static_cast<size_t>(words());
    r.allowed = std::span(allowed).subspan(row * w, w);
    r.seen = at.seen;
    for (const size_t child : at.children) r.children.push_back(tokens[child]);
    r.top_k = k_.top_k;
    r.temperature = k_.temperature;
    r.penalty = k_.penalty;
    r.seed = static_cast<uint32_t>(request_seed);
    r.position = static_cast<uint32_t>(length + at.depth);
    return r;
  }

  // Which child agrees with the target, or none.
  int64_t agreeing_child(const NodeContext& at) const {
    const auto count = std::ssize(at.children);
    if (is_chain(k_) || k_.is("cousins") || k_.is("penalty")) return 0;
    if (k_.is("late_sibling") || k_.is("wide") || k_.is("many_nodes")) return count - 1;
    if (k_.is("wrong_root") && at.depth == 0) return -1;
    if (k_.is("wrong_root") || k_.is("dead_end")) return policy_.index(at.row, count);
    if (k_.is("no_match")) return -1;
    return policy_.bits(~at.row) % 4 == 0 ? -1 : policy_.index(at.row, count);
  }

  int32_t other_token(int64_t element, int32_t than) const {
    auto token = static_cast<int32_t>(policy_.index(element, k_.vocab));
    if (token == than) token = static_cast<int32_t>((token + 1) % k_.vocab);
    return token;
  }

  void draw_children(const NodeContext& at) {
    if (k_.rejection) {
      draw_from_draft(at);
      return;
    }
    const int32_t target = choose(row_of(at), {}).token;
    const int64_t agreeing = target < 0 ? -1 : agreeing_child(at);  // a dead end agrees with none
    for (size_t j = 0; j < at.children.size(); ++j) {
      const auto element = static_cast<int64_t>(1000 * at.children[j]);
      int32_t& token = tokens[at.children[j]];
      token = static_cast<int64_t>(j) == agreeing ? target : other_token(element, target);
      // The next token of the accepted path, below a node that is not on it.
      const auto depth = static_cast<size_t>(at.depth);
      if (k_.is("cousins") && !at.on_path && depth < wanted_.size()) token = wanted_[depth];
      if (!k_.is("duplicates") || j == 0) continue;
      if (policy_.bits(element + 1) % 2 == 0) token = tokens[at.children[j - 1]];
    }
    if (at.on_path && std::ssize(wanted_) == at.depth) wanted_.push_back(target);
  }

  // What the draft gives the likeliest token so that, after all siblings but the last are rejected, half of
  // that is left of the target's own share: that sibling is decided by its draw. All but a thousandth of
  // the rest goes to the unlikeliest token, which the others have.
  void draw_late_decision(const NodeContext& at) {
    const auto begin = static_cast<std::ptrdiff_t>(at.row * k_.vocab);
    const auto row =
        std::span(logits).subspan(static_cast<size_t>(begin), static_cast<size_t>(k_.vocab));
    const auto [least, most] = std::ranges::minmax_element(row);
    std::vector<double> target;
    double sum = 0;
    for (const float v : row) {
      target.push_back(std::exp(static_cast<double>(v - *most) / std::max(k_.temperature, 1e-2)));
      sum += target.back();
    }
    const auto wanted = static_cast<size_t>(most - row.begin());
    const auto other = static_cast<size_t>(least - row.begin());
    std::vector<double> q(row.size());
    const auto fill = [&](double share) {
      std::ranges::fill(q, (1 - share) / 1000 / static_cast<double>(q.size()));
      q[wanted] = share;
      q[other] = (1 - share) * 0.999;
    };
    // The share that is left, in units of q; less the larger q is.
    const auto left = [&](double share) {
      fill(share);
      std::vector<double> p = target;
      for (double& value : p) value /= sum;
      for (size_t j = 0; j + 1 < at.children.size(); ++j) {
        double total = 0;
        for (size_t t = 0; t < p.size(); ++t) total += p[t] = std::max(0.0, p[t] - q[t]);
        for (double& value : p) value /= std::max(total, 1e-9);
      }
      return p[wanted] / share;
    };
    double low = 1e-6, high = 0.9;
    for (int step = 0; step < 40; ++step) {
      const double middle = (low + high) / 2;
      (left(middle) > 0.5 ? low : high) = middle;
    }
    fill(low);
    for (size_t t = 0; t < q.size(); ++t)
      draft[static_cast<size_t>(begin) + t] = static_cast<float>(q[t]);
    for (const size_t child : at.children) tokens[child] = static_cast<int32_t>(other);
    tokens[at.children.back()] = static_cast<int32_t>(wanted);
  }

  // Drawn as a draft model does, by numbers of its own.
  void draw_from_draft(const NodeContext& at) {
    // More siblings lose more digits in 32 bits.
    constexpr size_t kFew = 2, kMany = 16;
    if (k_.is("wide") && at.children.size() > kFew && at.children.size() <= kMany) {
      draw_late_decision(at);
      return;
    }
    const float* const q = draft.data() + at.row * k_.vocab;
    for (size_t j = 0; j < at.children.size(); ++j) {
      const double u = policy_.uniform(static_cast<int64_t>(1000 * at.children[j] + attempt_));
      double sum = 0;
      int64_t token = 0;
      for (; token + 1 < k_.vocab; ++token) {
        sum += static_cast<double>(q[token]);
        if (sum > u) break;
      }
      tokens[at.children[j]] = static_cast<int32_t>(token);
      const bool again = k_.is("duplicates") && j > 0 && policy_.bits(static_cast<int64_t>(j)) % 2;
      if (again) tokens[at.children[j]] = tokens[at.children[j - 1]];
    }
  }

  // The draw with the largest margin, or the first whose margin suffices. A constant that is added
  // does not change which one that is.
  void choose_decisive_draw(const NodeContext& at) {
    const int64_t tries = std::clamp(kMaxDrawn / k_.vocab, int64_t{6}, kTries);
    double best = -1;
    uint64_t chosen = 0;
    const std::vector<int32_t> wanted = wanted_;
    for (int64_t attempt = 0; attempt < tries && best < kMargin; ++attempt) {
      attempt_ = static_cast<size_t>(attempt);
      wanted_ = wanted;
      fill_row(at, attempt_, 0);
      draw_children(at);
      const Choice choice = choose(row_of(at), {});
      double margin = choice.tied && !k_.ties() ? 0 : choice.margin;
      if (choice.dead) margin = kMargin;
      if (margin <= best) continue;
      best = margin;
      chosen = attempt_;
    }
    attempt_ = chosen;
    wanted_ = wanted;
    fill_row(at, chosen, 0);
    draw_children(at);
    if (k_.add != 0) fill_row(at, chosen, k_.add);
  }

  void draw_rows() {
    const auto rows = static_cast<size_t>(nodes() + 1);
    logits.resize(rows * static_cast<size_t>(k_.vocab));
    if (k_.rejection) draft.resize(logits.size());
    allowed.resize(rows * static_cast<size_t>(words()));
    std::vector<NodeContext> contexts(rows);
    contexts[0].seen = history;
    for (size_t i = 0; i < parents.size(); ++i) {
      contexts[static_cast<size_t>(parents[i] + 1)].children.push_back(i);
    }
    for (size_t row = 0; row < rows; ++row) {
      NodeContext& at = contexts[row];
      at.row = static_cast<int64_t>(row);
      choose_decisive_draw(at);
      const Choice choice = choose(row_of(at), {});
      for (size_t j = 0; j < at.children.size(); ++j) {
        NodeContext& child = contexts[at.children[j] + 1];
        child.depth = at.depth + 1;
        child.seen = at.seen;
        child.seen.push_back(tokens[at.children[j]]);
        child.on_path = at.on_path && choice.child == static_cast<int64_t>(j);
      }
    }
  }

  const Knobs& k_;
  uint64_t seed_;
  int32_t eos_;
  Stream random_, policy_;
  int64_t eos_depth_ = 0;
  size_t attempt_ = 0;
  bool at_zero_ = false;
  std::vector<int32_t> wanted_;  // by the target on the accepted path, by depth
};

void append(Problem& p, const Draft& d) {
  const auto add = [](auto& to, const auto& from, size_t begin) {
    to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin), from.end());
  };
  add(p.tokens, d.tokens, 0);
  add(p.parents, d.parents, 0);
  add(p.history, d.history, 0);
  p.lengths.push_back(d.length);
  p.limits.push_back(d.limit);
  p.seeds.push_back(d.request_seed);
  p.first.push_back(static_cast<int32_t>(p.tokens.size()));
}

// First the rows of the committed tokens, then those of all nodes.
template <class T>
void gather_rows(std::vector<T>& to, const std::vector<Draft>& drafts, std::vector<T> Draft::*rows,
                 int64_t width) {
  for (const Draft& d : drafts) {
    const std::vector<T>& from = d.*rows;
    if (!from.empty()) to.insert(to.end(), from.begin(), from.begin() + width);
  }
  for (const Draft& d : drafts) {
    const std::vector<T>& from = d.*rows;
    if (!from.empty()) to.insert(to.end(), from.begin() + width, from.end());
  }
}

// NaN in the first row of request 0, or in all rows that no walk of the case reads.
void place_nan(const Knobs& k, Problem& p) {
  if (k.is("nan") && p.requests > 0) p.logits[static_cast<size_t>(p.vocab) - 1] = kNan;
  if (!k.is("nan_elsewhere")) return;
  std::vector<bool> read(static_cast<size_t>(p.requests + p.nodes));
  for (const Answer& answer : verify(p, {})) {
    for (const int64_t row : answer.rows) read[static_cast<size_t>(row)] = true;
  }
  for (size_t row = 0; row < read.size(); ++row) {
    if (!read[row]) p.logits[row * static_cast<size_t>(p.vocab)] = kNan;
  }
}

// What makes a call one to refuse: in the last request, so that looking at the first is not enough.
void place_defect(const Knobs& k, Problem& p) {
  if (!k.is("bad_tree")) return;
  const size_t last = p.tokens.size() - 1;
  const auto own = static_cast<int32_t>(p.tokens.size()) - p.first[p.first.size() - 2] - 1;
  switch (k.defect) {
    case kLateParent:
      p.parents[last - 1] = own;
      break;
    case kSelfParent:
      p.parents[last] = own;
      break;
    case kLowParent:
      p.parents[last] = -2;
      break;
    case kHighToken:
      p.tokens[last] = static_cast<int32_t>(p.vocab);
      break;
    case kLowToken:
      p.tokens[last] = -1;
      break;
    case kTooDeep:
      for (size_t i = last; i > last - static_cast<size_t>(p.steps); --i) {
        p.parents[i] = own - static_cast<int32_t>(last - i) - 1;
      }
      break;
    default:
      p.temperature = -1;
  }
}

}  // namespace

CaseSpec resolve(const CaseSpec& spec) {
  return spec.family == "mixed" ? drawn_family(spec, kFamily, kHostile) : spec;
}

void check_spec(const CaseSpec& spec) {
  check_parameter_names(spec, kParameters);
  const Knobs k = read_knobs(spec);
  if (k.is("bad_tree") && (k.requests < 1 || k.nodes <= k.depth)) {
    throw InvalidArgument("case: bad_tree needs more nodes than its depth");
  }
}

std::vector<int64_t> request_order(const CaseSpec& spec, int64_t requests) {
  return order_after(spec, derive_seed(spec.seed, kOrder), requests);
}

Problem make_problem(const CaseSpec& spec) {
  const CaseSpec resolved = resolve(spec);
  const Knobs k = read_knobs(resolved);
  Problem p;
  p.requests = k.requests;
  p.vocab = k.vocab;
  p.steps = k.depth;
  p.tree_words = std::max<int64_t>(1, (k.nodes + 31) / 32);
  p.mask_words = k.mask ? (k.vocab + 31) / 32 : 0;
  p.history_tokens = k.history;
  p.capacity = k.prefix + k.history + k.nodes;
  p.width = k.width;
  p.rule = k.rejection ? kRejection : kOwnToken;
  p.top_k = k.top_k;
  p.eos = eos_of(k, spec.seed);
  p.temperature = static_cast<float>(k.temperature);
  p.penalty = static_cast<float>(k.penalty);
  const std::vector<int64_t> order = request_order(resolved, k.requests);
  std::vector<Draft> drafts;
  drafts.reserve(static_cast<size_t>(k.requests));
  p.first = {0};
  for (int64_t r = 0; r < k.requests; ++r) {
    const int64_t from = order[static_cast<size_t>(r)];
    const auto id = static_cast<uint64_t>(from < 0 ? r + 5000 : from);
    const bool largest = from == 0 || k.is("bad_tree");
    drafts.emplace_back(k, derive_seed(spec.seed, 1000 + id), static_cast<int32_t>(p.eos), largest);
    append(p, drafts.back());
    // The cache of a request moves with it.
    const Stream numbers(derive_seed(spec.seed, 1000 + id), kCache);
    for (int64_t i = 0; i < p.capacity * p.width; ++i) {
      p.cache.push_back(static_cast<float>(numbers.normal(i)));
    }
  }
  p.nodes = std::ssize(p.tokens);
  gather_rows(p.logits, drafts, &Draft::logits, k.vocab);
  gather_rows(p.draft, drafts, &Draft::draft, k.vocab);
  gather_rows(p.allowed, drafts, &Draft::allowed, p.mask_words);
  place_nan(k, p);
  place_defect(k, p);
  return p;
}

}  // namespace touchstone::judge::tree_verify
