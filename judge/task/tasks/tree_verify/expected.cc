// Rows and walks in float64, by the statement of the task.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "judge/task/tasks/tree_verify/tree_verify.h"

namespace touchstone::judge::tree_verify {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();
enum Purpose : uint32_t { kSample = 0, kAccept = 1, kResidual = 2 };

// A row while it chooses.
class Chooser {
 public:
  Chooser(const Row& row, const Tolerance& tolerance) : r_(row), t_(tolerance) {}

  Choice run() {
    find_values();
    if (c_.nan || c_.dead) return c_;
    find_weights();
    cut();
    if (r_.draft.empty()) {
      choose_own();
    } else {
      choose_by_rejection();
    }
    score();
    return c_;
  }

 private:
  void decides(double a, double b, double unit) {
    if (a == b) {
      c_.tied = true;
    } else {
      c_.margin = std::min(c_.margin, std::abs(a - b) / unit);
    }
  }

  void find_values() {
    value_.assign(r_.logits.begin(), r_.logits.end());
    c_.nan = std::any_of(value_.begin(), value_.end(), [](double v) { return std::isnan(v); });
    if (r_.penalty != 0) {
      for (const int32_t token : r_.seen) {
        if (token >= 0) value_[static_cast<size_t>(token)] -= r_.penalty;
      }
    }
    for (size_t t = 0; t < value_.size() && !r_.allowed.empty(); ++t) {
      if ((static_cast<uint32_t>(r_.allowed[t / 32]) >> (t % 32) & 1U) == 0) value_[t] = kNone;
    }
    best_ = static_cast<size_t>(std::max_element(value_.begin(), value_.end()) - value_.begin());
    c_.dead = std::isinf(value_[best_]);
  }

  void find_weights() {
    const double scale = r_.temperature == 0 ? 1 : r_.temperature;
    weight_.resize(value_.size());
    double slope = 0;
    double size = 0;
    for (size_t t = 0; t < value_.size(); ++t) {
      const double below = (value_[best_] - value_[t]) / scale;
      weight_[t] = std::exp(-below);
      sum_ += weight_[t];
      if (weight_[t] == 0) continue;
      slope += weight_[t] * below;
      if (r_.penalty != 0) size += weight_[t] * std::abs(value_[t]) / scale;
    }
    // Sum and logarithm; exponents of terms that count, by their weight.
    const double largest = std::abs(value_[best_]) / scale;
    common_ = 4 + running_sum_units(t_, weight_, sum_) + std::log(sum_) +
              (2 * slope + 2 * size) / sum_ + (t_.stable ? 0 : largest);
  }

  // Tokens in order, as far as they are kept.
  void cut() {
    const auto vocab = std::ssize(value_);
    const int64_t most = r_.temperature == 0 ? 1 : r_.top_k == 0 ? vocab : r_.top_k;
    kept_.resize(value_.size());
    std::iota(kept_.begin(), kept_.end(), size_t{0});
    if (most >= vocab) return;
    const auto better = [&](size_t a, size_t b) {
      return value_[a] != value_[b] ? value_[a] > value_[b] : a < b;
    };
    std::partial_sort(kept_.begin(), kept_.begin() + most + 1, kept_.end(), better);
    const double last = value_[kept_[static_cast<size_t>(most) - 1]];
    const double left = value_[kept_[static_cast<size_t>(most)]];
    // Excluded tokens come last, in any order.
    if (!std::isinf(left)) decides(last, left, std::max(1.0, std::abs(last)));
    // Running sums depend on the order inside as well, but only where it is not a tie.
    for (size_t i = 1; i < static_cast<size_t>(most); ++i) {
      const double here = value_[kept_[i]];
      if (std::isinf(here)) break;
      decides(value_[kept_[i - 1]], here, std::max(1.0, std::abs(here)));
    }
    kept_.resize(static_cast<size_t>(most));
  }

  // Where the running sum of what `mass` says of each token first exceeds u.
  template <class Mass>
  size_t draw(const std::vector<size_t>& tokens, const Mass& mass, double u) {
    double total = 0;
    for (const size_t t : tokens) total += mass(t);
    double sum = 0;
    size_t last = tokens.front();
    for (const size_t t : tokens) {
      if (mass(t) == 0) continue;
      if (sum > 0) decides(sum, u * total, total);
      sum += mass(t);
      last = t;
      if (sum > u * total) break;
    }
    if (total - sum > 1e-9 * total) decides(sum, u * total, total);
    return last;
  }

  void choose_own() {
    const double u = uniform(r_.seed, r_.position, kSample, 0);
    const size_t token = r_.temperature == 0 ? kept_[0]
                                             : draw(
                                                   kept_, [&](size_t t) { return weight_[t]; }, u);
    c_.token = static_cast<int32_t>(token);
    const auto child = std::find(r_.children.begin(), r_.children.end(), c_.token);
    if (child != r_.children.end()) c_.child = child - r_.children.begin();
  }

  void choose_by_rejection() {
    std::vector<double> p(value_.size());
    double total = 0;
    for (const size_t t : kept_) total += r_.temperature == 0 ? 1 : weight_[t];
    for (const size_t t : kept_) p[t] = (r_.temperature == 0 ? 1 : weight_[t]) / total;
    for (size_t j = 0; j < r_.children.size(); ++j) {
      const auto x = static_cast<size_t>(r_.children[j]);
      const double u = uniform(r_.seed, r_.position, kAccept, static_cast<uint32_t>(j));
      const auto q = static_cast<double>(r_.draft[x]);
      // Differences of probabilities have an absolute error, too.
      decides(u * q, p[x], std::max({u * q, p[x], 0.02}));
      if (u * q < p[x]) {
        c_.token = r_.children[j];
        c_.child = static_cast<int64_t>(j);
        return;
      }
      reject(p);
    }
    std::vector<size_t> tokens(value_.size());
    std::iota(tokens.begin(), tokens.end(), size_t{0});
    const double u = uniform(r_.seed, r_.position, kResidual, 0);
    c_.token = static_cast<int32_t>(draw(
        tokens, [&](size_t t) { return p[t]; }, u));
  }

  void reject(std::vector<double>& p) {
    std::vector<double> rest(p.size());
    double sum = 0;
    for (size_t t = 0; t < p.size(); ++t) {
      rest[t] = std::max(0.0, p[t] - static_cast<double>(r_.draft[t]));
      sum += rest[t];
    }
    // What is left of two nearly equal distributions has no digits.
    c_.margin = std::min(c_.margin, sum * kMargin / 0.05);
    if (sum <= 0) return;
    for (size_t t = 0; t < p.size(); ++t) p[t] = rest[t] / sum;
  }

  void score() {
    const auto token = static_cast<size_t>(c_.token);
    const double scale = r_.temperature == 0 ? 1 : r_.temperature;
    const double below = (value_[best_] - value_[token]) / scale;
    c_.log_probability = -below - std::log(sum_);
    c_.error = common_ + 3 * below + std::abs(c_.log_probability);
    if (r_.penalty != 0) c_.error += 2 * (std::abs(value_[token]) + std::abs(r_.penalty)) / scale;
  }

  const Row& r_;
  const Tolerance& t_;
  Choice c_;
  std::vector<double> value_, weight_;
  std::vector<size_t> kept_;
  size_t best_ = 0;
  double sum_ = 0;
  double common_ = 0;
};

class Walk {
 public:
  Walk(const Problem& problem, const Tolerance& tolerance, int64_t request)
      : p_(problem), t_(tolerance), r_(static_cast<size_t>(request)) {
    for (int64_t i = 0; i < p_.history_tokens; ++i) {
      seen_.push_back(
          p_.history[r_ * static_cast<size_t>(p_.history_tokens) + static_cast<size_t>(i)]);
    }
  }

  Answer run() {
    int32_t node = -1;
    while (true) {
      std::vector<int32_t> children;
      const Choice choice = choose(row_of(node, children), t_);
      a_.nan = choice.nan;
      if (choice.nan) return std::move(a_);
      if (choice.dead) {
        a_.finish = kDeadEnd;
        return std::move(a_);
      }
      a_.emitted.push_back(choice.token);
      a_.choices.push_back(choice);
      if (choice.child >= 0) {
        node = children[static_cast<size_t>(choice.child)];
        a_.path.push_back(node);
        seen_.push_back(choice.token);
      }
      if (choice.token == p_.eos) a_.finish = kEos;
      if (a_.finish == kOpen && std::ssize(a_.emitted) == p_.limits[r_]) a_.finish = kLimit;
      if (a_.finish != kOpen || choice.child < 0) return std::move(a_);
    }
  }

 private:
  // Also fills the numbers of its children.
  Row row_of(int32_t node, std::vector<int32_t>& children) {
    const int64_t first = p_.first[r_];
    const int64_t at = node < 0 ? static_cast<int64_t>(r_) : p_.requests + first + node;
    a_.rows.push_back(at);
    const auto vocab = static_cast<size_t>(p_.vocab);
    const auto words = static_cast<size_t>(p_.mask_words);
    Row row;
    row.logits = std::span(p_.logits).subspan(static_cast<size_t>(at) * vocab, vocab);
    if (p_.rule == kRejection) {
      row.draft = std::span(p_.draft).subspan(static_cast<size_t>(at) * vocab, vocab);
    }
    row.allowed = std::span(p_.allowed).subspan(static_cast<size_t>(at) * words, words);
    row.seen = seen_;
    for (int64_t i = first; i < p_.first[r_ + 1]; ++i) {
      if (p_.parents[static_cast<size_t>(i)] != node) continue;
      children.push_back(static_cast<int32_t>(i - first));
      row.children.push_back(p_.tokens[static_cast<size_t>(i)]);
    }
    row.top_k = p_.top_k;
    row.temperature = static_cast<double>(p_.temperature);
    row.penalty = static_cast<double>(p_.penalty);
    row.seed = static_cast<uint32_t>(p_.seeds[r_]);
    row.position = static_cast<uint32_t>(p_.lengths[r_] + std::ssize(a_.path));
    return row;
  }

  const Problem& p_;
  const Tolerance& t_;
  size_t r_;
  std::vector<int32_t> seen_;
  Answer a_;
};

// Calls visit(request, node of the request, flat index) for each node.
template <class Visit>
void each_node(const Problem& p, const Visit& visit) {
  for (size_t r = 0; r < static_cast<size_t>(p.requests); ++r) {
    for (int32_t i = p.first[r]; i < p.first[r + 1]; ++i) {
      visit(r, i - p.first[r], static_cast<size_t>(i));
    }
  }
}

}  // namespace

double uniform(uint32_t seed, uint32_t position, uint32_t purpose, uint32_t draw) {
  uint32_t c[4] = {position, 0, purpose, draw};
  uint32_t k[2] = {seed, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(b),
        static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(a)};
    std::copy_n(next, 4, c);
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return (static_cast<double>((uint64_t{c[1]} << 32 | c[0]) >> 12) + 0.5) * 0x1p-52;
}

Choice choose(const Row& row, const Tolerance& tolerance) { return Chooser(row, tolerance).run(); }

std::vector<Answer> verify(const Problem& problem, const Tolerance& tolerance) {
  std::vector<Answer> answers;
  for (int64_t r = 0; r < problem.requests; ++r) {
    answers.push_back(Walk(problem, tolerance, r).run());
  }
  return answers;
}

bool must_be_refused(const Problem& p) {
  if (!(p.temperature >= 0)) return true;
  bool bad = false;
  std::vector<int32_t> depth(p.tokens.size());
  each_node(p, [&](size_t r, int32_t node, size_t i) {
    const int32_t parent = p.parents[i];
    bad = bad || parent < -1 || parent >= node || p.tokens[i] < 0 || p.tokens[i] >= p.vocab;
    if (bad) return;
    depth[i] = parent < 0 ? 1 : depth[static_cast<size_t>(p.first[r] + parent)] + 1;
    bad = depth[i] > p.steps;
  });
  return bad;
}

std::vector<int32_t> depths_of(const Problem& p) {
  std::vector<int32_t> depth(p.tokens.size());
  each_node(p, [&](size_t r, int32_t, size_t i) {
    const int32_t parent = p.parents[i];
    depth[i] = parent < 0 ? 1 : depth[static_cast<size_t>(p.first[r] + parent)] + 1;
  });
  return depth;
}

std::vector<int32_t> positions_of(const Problem& p) {
  std::vector<int32_t> positions = depths_of(p);
  each_node(p, [&](size_t r, int32_t, size_t i) { positions[i] += p.lengths[r] - 1; });
  return positions;
}

std::vector<int32_t> ancestors_of(const Problem& p) {
  const auto words = static_cast<size_t>(p.tree_words);
  std::vector<uint32_t> bits(p.tokens.size() * words);
  each_node(p, [&](size_t r, int32_t node, size_t i) {
    for (int32_t n = node; n >= 0; n = p.parents[static_cast<size_t>(p.first[r] + n)]) {
      bits[i * words + static_cast<size_t>(n) / 32] |= 1U << (n % 32);
    }
  });
  return {bits.begin(), bits.end()};
}

std::vector<float> cache_after(const Problem& p, const std::vector<Answer>& answers) {
  std::vector<float> after(p.cache.size());
  const auto row = [&](size_t r, int64_t k) {
    return (static_cast<int64_t>(r) * p.capacity + k) * p.width;
  };
  for (size_t r = 0; r < answers.size(); ++r) {
    std::copy_n(p.cache.begin() + row(r, 0), p.lengths[r] * p.width, after.begin() + row(r, 0));
    for (size_t d = 0; d < answers[r].path.size(); ++d) {
      std::copy_n(p.cache.begin() + row(r, p.lengths[r] + answers[r].path[d]), p.width,
                  after.begin() + row(r, p.lengths[r] + static_cast<int64_t>(d)));
    }
  }
  return after;
}

}  // namespace touchstone::judge::tree_verify
