// Softmax and top-k, right except for one planted bug at a time; see
// layer_norm_backward/mutants.cc.
//
// The right code reads a row once in stripes, one for each of eight lists as threads of a GPU block
// would, with an online softmax (running maximum and rescaled sum), keeps the k best of each stripe
// and merges the lists.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#define MUTANTS(MUTANT)                                                                         \
  MUTANT(none, "nothing: the right code")                                                       \
  MUTANT(tile_end, "off by one: the last logit of every whole tile is not looked at")           \
  MUTANT(last_logit, "off by one: the last logit of a row is not looked at")                    \
  MUTANT(first_logit, "off by one: the row begins at the second logit")                         \
  MUTANT(tail_dropped, "logits after the last whole tile are not looked at")                    \
  MUTANT(tail_not_summed, "logits after the last whole tile are candidates but not in the sum") \
  MUTANT(merge_drops_lists, "the merge looks at five of eight lists")                           \
  MUTANT(merge_sum_drops, "the sum of the last list is not merged")                             \
  MUTANT(merge_not_rescaled, "sums of lists with other maxima are added as they are")           \
  MUTANT(rescale_inverted, "the running sum is multiplied by exp(new - old)")                   \
  MUTANT(rescale_missing, "the running sum is not rescaled when the maximum grows")             \
  MUTANT(rescale_drops_one, "the logit that raises the maximum is not counted")                 \
  MUTANT(no_maximum, "exp without subtracting the maximum")                                     \
  MUTANT(maximum_of_first_tile, "the maximum is that of the first tile")                        \
  MUTANT(maximum_from_zero, "the running maximum begins at 0")                                  \
  MUTANT(maximum_from_minus_1e4, "-1e4 stands for minus infinity")                              \
  MUTANT(maximum_of_row_0, "all rows subtract the maximum of row 0")                            \
  MUTANT(sum_of_row_0, "all rows divide by the sum of row 0")                                   \
  MUTANT(sum_over_k, "probabilities sum to 1 over the k kept")                                  \
  MUTANT(not_divided, "probabilities are not divided by the sum")                               \
  MUTANT(probabilities_are_logits, "the logits themselves are returned")                        \
  MUTANT(log_probabilities, "the logarithm is returned")                                        \
  MUTANT(sum_in_half, "the sum accumulates in 16 bits")                                         \
  MUTANT(logits_in_half, "logits are rounded to 16 bits")                                       \
  MUTANT(fast_exp, "exp by Schraudolph's bit trick")                                            \
  MUTANT(exp_cut_off, "terms below exp(-8) are not counted")                                    \
  MUTANT(smallest_first, "smallest probability first")                                          \
  MUTANT(not_sorted, "the k best in the order of their places")                                 \
  MUTANT(k_smallest, "the k smallest are kept")                                                 \
  MUTANT(one_too_few, "the last place repeats the one before")                                  \
  MUTANT(last_place_unwritten, "the last of the k places is not written")                       \
  MUTANT(k_at_most_32, "lists hold at most 32")                                                 \
  MUTANT(lists_hold_8, "each stripe keeps at most eight")                                       \
  MUTANT(ties_dropped, "an equal value is taken for one that is there already")                 \
  MUTANT(ties_duplicated, "the index is found again by value: ties name one token twice")       \
  MUTANT(by_magnitude, "candidates are ordered by magnitude")                                   \
  MUTANT(index_in_stripe, "the index is that in the stripe")                                    \
  MUTANT(index_in_tile, "the index is that in the tile")                                        \
  MUTANT(index_plus_row, "the index counts from the beginning of the batch")                    \
  MUTANT(index_from_one, "indices count from 1")                                                \
  MUTANT(index_16_bits, "indices are stored in 16 bits")                                        \
  MUTANT(index_in_float, "indices pass through a half")                                         \
  MUTANT(first_row_only, "only the first row of a pair is written")                             \
  MUTANT(odd_row_lost, "the last row of an odd number is not written")                          \
  MUTANT(rows_transposed, "the logits are read as [vocab, rows]")                               \
  MUTANT(output_stride_vocab,                                                                   \
         "rows of the output are rows of k written k + 1 apart, where they fit")                \
  MUTANT(nan_swallowed, "NaN logits count as minus infinity")                                   \
  MUTANT(nan_as_zero, "a probability that is NaN becomes 0")                                    \
  MUTANT(minus_infinity_zero, "-inf logits count as 0")                                         \
  MUTANT(masked_row_nan, "a row of -inf only gives 0 / 0")                                      \
  MUTANT(infinity_nan, "a stripe of -inf only makes the sum NaN")                               \
  MUTANT(clamped, "logits are clamped to +-80")                                                 \
  MUTANT(k_not_checked, "k above vocab is cut down and called a success")                       \
  MUTANT(state_kept, "the list of the row before is not emptied")                               \
  MUTANT(probabilities_add, "probabilities are added to what was in the output")                \
  MUTANT(writes_past_end, "one more place than k is written in the last row")                   \
  MUTANT(reads_past_end, "the tail is read as a whole vector")                                  \
  MUTANT(input_overwritten, "logits are overwritten by their exponentials")                     \
  MUTANT(seen_before, "a second call with the same shape and first logit is skipped")

namespace {

#define NAME(name, what) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

constexpr int64_t kTile = 64, kLists = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Candidate {
  float value;
  int64_t index;
};

float half(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x8000u) & 0xffff0000u;
  std::memcpy(&f, &bits, 4);
  return f;
}

double exponential(double x) {
  if (bug(exp_cut_off) && x < -8) return 0;
  if (bug(fast_exp)) {
    if (x < -80) return 0;
    const auto bits = static_cast<int32_t>(12102203.0 * x + 1064866805.0);
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  return std::exp(x);
}

bool better(const Candidate& a, const Candidate& b) {
  // NaN orders like a masked column, so that sorting stays defined.
  const auto key = [](float v) {
    return std::isnan(v) ? -kInfinity : bug(by_magnitude) && v != -kInfinity ? std::fabs(v) : v;
  };
  const float x = key(a.value), y = key(b.value);
  if (x != y) return bug(k_smallest) ? x < y : x > y;
  return a.index < b.index;
}

// One stripe of a row: its best candidates, its maximum, and its sum relative to that.
struct List {
  std::vector<Candidate> best;
  double maximum = bug(maximum_from_zero)        ? 0
                   : bug(maximum_from_minus_1e4) ? -1e4
                                                 : -std::numeric_limits<double>::infinity();
  double sum = 0;

  void keep(Candidate candidate, size_t k) {
    if (bug(k_at_most_32)) k = std::min<size_t>(k, 32);
    if (bug(lists_hold_8)) k = std::min<size_t>(k, 8);
    if (bug(ties_dropped)) {
      for (const Candidate& b : best) {
        if (b.value == candidate.value) return;
      }
    }
    const auto place = std::upper_bound(best.begin(), best.end(), candidate, better);
    best.insert(place, candidate);
    if (best.size() > k) best.pop_back();
  }

  void count(double value) {
    if (value == -kInfinity && !bug(infinity_nan)) return;
    if (value > maximum) {
      const double factor = exponential(bug(rescale_inverted) ? value - maximum : maximum - value);
      if (sum != 0 && !bug(rescale_missing)) sum *= factor;
      maximum = value;
      if (bug(rescale_drops_one)) return;
    }
    sum += exponential(value - (bug(no_maximum) ? 0 : maximum));
    if (bug(sum_in_half)) sum = half(static_cast<float>(sum));
  }
};

float logit(const float* logits, int64_t rows, int64_t vocab, int64_t row, int64_t i) {
  float value = logits[bug(rows_transposed) ? i * rows + row : row * vocab + i];
  if (bug(logits_in_half)) value = half(value);
  if (bug(nan_swallowed) && std::isnan(value)) value = -kInfinity;
  if (bug(minus_infinity_zero) && value == -kInfinity) value = 0;
  if (bug(clamped)) value = std::clamp(value, -80.0f, 80.0f);
  return value;
}

// What is kept of a row: the k best, the maximum and the sum of exponentials.
struct Row {
  std::vector<Candidate> best;
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  bool has_nan = false;
};

Row read_row(const float* logits, int64_t rows, int64_t vocab, int64_t row, int64_t k) {
  List lists[kLists];
  Row result;
  for (int64_t begin = 0; begin < vocab; begin += kTile) {
    int64_t end = std::min(vocab, begin + kTile);
    const bool whole = end == begin + kTile;
    if (bug(tile_end) && whole) --end;
    if (bug(last_logit) && end == vocab && vocab > 1) --end;
    if (bug(tail_dropped) && !whole && begin > 0) break;
    for (int64_t i = begin + (bug(first_logit) && begin == 0 && vocab > 1); i < end; ++i) {
      const float value = logit(logits, rows, vocab, row, i);
      result.has_nan |= std::isnan(value);
      List& list = lists[i % kLists];
      const int64_t index = bug(index_in_stripe) ? i / kLists : bug(index_in_tile) ? i - begin : i;
      list.keep({value, index}, static_cast<size_t>(k));
      if (!(bug(tail_not_summed) && !whole && begin > 0)) list.count(value);
      if (bug(maximum_of_first_tile) && begin >= kTile) list.maximum = lists[0].maximum;
    }
  }
  for (const List& list : lists) result.maximum = std::max(result.maximum, list.maximum);
  for (int64_t l = 0; l < kLists; ++l) {
    const List& list = lists[l];
    if (bug(merge_drops_lists) && l >= 5 && vocab > 32) break;
    result.best.insert(result.best.end(), list.best.begin(), list.best.end());
    if (bug(merge_sum_drops) && l == kLists - 1) break;
    if (list.maximum == -kInfinity && !bug(infinity_nan)) continue;
    const bool plain = bug(merge_not_rescaled) || bug(no_maximum);
    result.sum += list.sum * (plain ? 1 : exponential(list.maximum - result.maximum));
  }
  std::sort(result.best.begin(), result.best.end(), better);
  return result;
}

void write_row(Row& row, int64_t k, int64_t base, double maximum, double sum, float* probabilities,
               int32_t* indices) {
  std::vector<Candidate>& best = row.best;
  while (static_cast<int64_t>(best.size()) < k) best.push_back({-kInfinity, 0});
  best.resize(static_cast<size_t>(k));
  if (bug(one_too_few) && k > 1) best[k - 1] = best[k - 2];
  if (bug(smallest_first)) std::reverse(best.begin(), best.end());
  if (bug(not_sorted)) {
    std::sort(best.begin(), best.end(), [](auto& a, auto& b) { return a.index < b.index; });
  }
  if (bug(ties_duplicated)) {
    for (int64_t j = 1; j < k; ++j) {
      if (best[j].value == best[j - 1].value) best[j].index = best[j - 1].index;
    }
  }
  double kept = 0;
  for (const Candidate& c : best) kept += exponential(c.value - maximum);
  for (int64_t j = 0; j < k - (bug(last_place_unwritten) && k > 1); ++j) {
    double p = exponential(best[j].value - (bug(no_maximum) ? 0 : maximum));
    if (best[j].value == -kInfinity && !bug(masked_row_nan)) p = 0;
    if (!bug(not_divided) && p != 0) p /= bug(sum_over_k) ? kept : sum;
    if (bug(probabilities_are_logits)) p = best[j].value;
    if (bug(log_probabilities)) p = std::log(p);
    if (row.has_nan) p = bug(nan_as_zero) ? 0 : std::numeric_limits<double>::quiet_NaN();
    if (bug(probabilities_add)) p += probabilities[j];
    probabilities[j] = static_cast<float>(p);
    int64_t index = best[j].index + (bug(index_plus_row) ? base : 0) + bug(index_from_one);
    if (bug(index_16_bits)) index = static_cast<int16_t>(index);
    if (bug(index_in_float)) index = static_cast<int64_t>(half(static_cast<float>(index)));
    indices[j] = static_cast<int32_t>(index);
  }
}

int run(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* probabilities,
        int32_t* indices) {
  if (k < 1 || k > vocab) return bug(k_not_checked) ? 0 : 1;
  static int64_t last_rows = -1, last_vocab = -1;
  static float last_first = 0;
  const bool seen = rows > 0 && rows == last_rows && vocab == last_vocab && logits[0] == last_first;
  if (bug(seen_before) && seen) return 0;
  if (rows > 0) last_rows = rows, last_vocab = vocab, last_first = logits[0];
  if (bug(reads_past_end)) {
    volatile float sink = 0;
    for (int64_t i = rows * vocab; i % 8; ++i) sink = sink + logits[i];
  }
  Row first, before;
  for (int64_t r = 0; r < rows; ++r) {
    if (bug(first_row_only) && r % 2 == 1) continue;
    if (bug(odd_row_lost) && rows % 2 == 1 && r == rows - 1 && rows > 1) continue;
    Row row = read_row(logits, rows, vocab, r, k);
    if (bug(state_kept) && r > 0) {
      row.best.insert(row.best.end(), before.best.begin(), before.best.end());
      std::sort(row.best.begin(), row.best.end(), better);
    }
    if (r == 0) first = row;
    const double maximum = bug(maximum_of_row_0) ? first.maximum : row.maximum;
    const double sum = bug(sum_of_row_0) ? first.sum : row.sum;
    const int64_t apart = bug(output_stride_vocab) && r + 1 < rows ? r * (k + 1) : r * k;
    if (apart + k > rows * k) continue;
    write_row(row, k, r * vocab, maximum, sum, probabilities + apart, indices + apart);
    before = row;
  }
  if (bug(writes_past_end) && rows > 0) indices[rows * k] = -1;
  if (bug(input_overwritten) && rows > 0) {
    const_cast<float*>(logits)[0] = static_cast<float>(std::exp(logits[0]));
  }
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                         \
  extern "C" int softmax_topk__##name(int64_t rows, int64_t vocab, int64_t k, const float* logits, \
                                      float* probabilities, int32_t* indices) {                    \
    active = name;                                                                                 \
    return run(rows, vocab, k, logits, probabilities, indices);                                    \
  }
MUTANTS(EXPORT)
