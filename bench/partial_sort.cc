#include "bench/partial_sort.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "spec/sample_controls.h"
#include "touchstone/core/convert.h"
#include "touchstone/core/random.h"

namespace touchstone::bench {
namespace {

// Tokens in order and the probabilities of the first `count` of them.
struct Selected {
  std::vector<float> values;  // logits, then probabilities
  std::vector<std::int32_t> tokens;
  float largest = 0;
};

template <class T>
void read_row(const T* logits, std::int64_t cols, float temperature, Selected& s) {
  s.values.resize(static_cast<std::size_t>(cols));
  for (std::size_t i = 0; i < s.values.size(); ++i) {
    s.values[i] = convert<float>(logits[i]) / temperature;
  }
  s.tokens.resize(s.values.size());
  std::iota(s.tokens.begin(), s.tokens.end(), 0);
}

float total_of(Selected& s) {
  s.largest = *std::ranges::max_element(s.values);
  double sum = 0;
  for (const float v : s.values) sum += static_cast<double>(std::exp(v - s.largest));
  return static_cast<float>(sum);
}

auto by_value(const Selected& s) {
  return [&values = s.values](std::int32_t a, std::int32_t b) {
    const float x = values[static_cast<std::size_t>(a)];
    const float y = values[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
}

// The first k tokens by logit, and probabilities for these only.
void select(Selected& s, std::int64_t k) {
  const float total = total_of(s);
  std::partial_sort(s.tokens.begin(), s.tokens.begin() + k, s.tokens.end(), by_value(s));
  for (std::int64_t rank = 0; rank < k; ++rank) {
    float& v = s.values[static_cast<std::size_t>(s.tokens[static_cast<std::size_t>(rank)])];
    v = std::exp(v - s.largest) / total;
  }
}

float probability_at(const Selected& s, std::int64_t rank) {
  return s.values[static_cast<std::size_t>(s.tokens[static_cast<std::size_t>(rank)])];
}

// The rank that `u` picks among the first k, cut by top_p.
std::int64_t draw(const Selected& s, std::int64_t k, double u) {
  double mass = 0;
  for (std::int64_t rank = 0; rank < k; ++rank)
    mass += static_cast<double>(probability_at(s, rank));
  double kept_mass = 0;
  std::int64_t kept = 0;
  while (kept < k && kept_mass < static_cast<double>(spec::kSampleTopP) * mass) {
    kept_mass += static_cast<double>(probability_at(s, kept++));
  }
  double sum = 0;
  std::int64_t rank = -1;
  while (rank + 1 < kept && sum <= u * kept_mass) {
    sum += static_cast<double>(probability_at(s, ++rank));
  }
  return rank;
}

template <class T>
void run_row(const SelectionOperands& p, std::int64_t row, Selected& s) {
  const T* const logits = static_cast<const T*>(p.logits) + row * p.cols;
  read_row(logits, p.cols, p.sampled ? spec::kSampleTemperature : 1.0F, s);
  select(s, p.k);
  if (p.sampled) {
    const std::int64_t rank = draw(s, p.k, random_uniform(p.seed[row], p.position[row]));
    p.tokens[row] = s.tokens[static_cast<std::size_t>(rank)];
    p.values[row] = std::log(probability_at(s, rank));
    return;
  }
  for (std::int64_t rank = 0; rank < p.k; ++rank) {
    p.tokens[row * p.k + rank] = s.tokens[static_cast<std::size_t>(rank)];
    p.values[row * p.k + rank] = probability_at(s, rank);
  }
}

}  // namespace

SelectionCall partial_sort_selection(Context& context, const SelectionOperands& like) {
  return visit_float_dtype(like.dtype, [&]<class T>() -> SelectionCall {
    return [&context](const SelectionOperands& p) {
      ThreadPool& pool = detail::ContextAccess::pool(context);
      const std::int64_t tasks = std::min<std::int64_t>(pool.threads(), p.rows);
      pool.run(tasks, [&](std::int64_t task) {
        Selected scratch;
        const std::int64_t end = p.rows * (task + 1) / tasks;
        for (std::int64_t row = p.rows * task / tasks; row < end; ++row) {
          run_row<T>(p, row, scratch);
        }
      });
    };
  });
}

}  // namespace touchstone::bench
