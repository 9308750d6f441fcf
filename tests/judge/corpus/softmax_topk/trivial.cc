// Contenders that do not do the work. Built and named as mutants.cc is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                                                 \
  TRIVIAL(zeros, "probabilities and indices are 0")                                       \
  TRIVIAL(ones, "probabilities and indices are 1")                                        \
  TRIVIAL(nans, "probabilities are NaN")                                                  \
  TRIVIAL(uniform, "1 / vocab for the first k columns: small enough for many tolerances") \
  TRIVIAL(copy, "the first k logits")                                                     \
  TRIVIAL(right_places, "right indices, probabilities 1 / k")                             \
  TRIVIAL(right_values, "right probabilities, indices 0 .. k - 1")                        \
  TRIVIAL(argmax_only, "the first place is right, the rest repeats it")                   \
  TRIVIAL(noise, "random probabilities and places")                                       \
  TRIVIAL(unwritten, "nothing is written")                                                \
  TRIVIAL(previous, "the answer of the call before")                                      \
  TRIVIAL(correct_once, "right the first time, zeros from then on")                       \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME

struct Answer {
  std::vector<float> p;
  std::vector<int32_t> i;
};

Answer right_answer(int64_t rows, int64_t vocab, int64_t k, const float* logits) {
  Answer answer{std::vector<float>(size_t(rows * k)), std::vector<int32_t>(size_t(rows * k))};
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  for (int64_t r = 0; r < rows; ++r, logits += vocab) {
    std::iota(order.begin(), order.end(), 0);
    const bool special = std::any_of(logits, logits + vocab, [](float v) { return std::isnan(v); });
    if (!special) {
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    }
    const double top = logits[order[0]];
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i) sum += std::exp(logits[i] - top);
    for (int64_t j = 0; j < k; ++j) {
      const float p = float(std::exp(logits[order[j]] - top) / sum);
      answer.p[r * k + j] = special ? NAN : std::isinf(top) ? 0 : p;
      answer.i[r * k + j] = order[j];
    }
  }
  return answer;
}

int run(Kind kind, int64_t rows, int64_t vocab, int64_t k, const float* logits,
        float* probabilities, int32_t* indices) {
  if (k < 1 || k > vocab || kind == refuses) return 1;
  static Answer before;
  static bool first = true;
  static std::minstd_rand random(7);
  const Answer right = right_answer(rows, vocab, k, logits);
  for (int64_t at = 0; at < rows * k; ++at) {
    float& p = probabilities[at];
    int32_t& i = indices[at];
    const auto place = static_cast<int32_t>(at % k);
    const bool known = size_t(at) < before.p.size();
    switch (kind) {
      case ones:
        p = 1, i = 1;
        break;
      case nans:
        p = NAN, i = place;
        break;
      case uniform:
        p = 1 / float(vocab), i = place;
        break;
      case copy:
        p = logits[at / k * vocab + place], i = place;
        break;
      case right_places:
        p = 1 / float(k), i = right.i[at];
        break;
      case right_values:
        p = right.p[at], i = place;
        break;
      case argmax_only:
        p = right.p[at / k * k], i = right.i[at / k * k];
        break;
      case noise:
        p = float(random() % 1000) / 1000, i = int32_t(random() % vocab);
        break;
      case unwritten:
        break;
      case previous:
        p = known ? before.p[at] : 0, i = known ? before.i[at] : 0;
        break;
      case correct_once:
        p = first ? right.p[at] : 0, i = first ? right.i[at] : 0;
        break;
      default:
        p = 0, i = 0;
    }
  }
  before = right;
  first = false;
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                         \
  extern "C" int softmax_topk__##name(int64_t rows, int64_t vocab, int64_t k, const float* logits, \
                                      float* probabilities, int32_t* indices) {                    \
    return run(name, rows, vocab, k, logits, probabilities, indices);                              \
  }
TRIVIALS(EXPORT)
