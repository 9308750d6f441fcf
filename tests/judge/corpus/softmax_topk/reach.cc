// Softmax and top-k for the reach of the judge: right code with faults that show only at sizes and
// crossings that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#define MUTANTS(MUTANT)                                                                           \
  MUTANT(k_half, "with 2 k = vocab or one more the last two places are exchanged")                \
  MUTANT(vocab_13_k, "k above 6 of a vocabulary of 13, 26, 39 repeats its last place")            \
  MUTANT(odd_vocab_even_k,                                                                        \
         "an even k from 16 on of an odd vocabulary has its last index one too high")             \
  MUTANT(two_maxima, "a second maximum more than 100 columns behind the first is not in the sum") \
  MUTANT(rows_64_every_8, "of 64 rows and more every eighth has the sum of the one before")       \
  MUTANT(wide_thin, "more than 300 rows of fewer than 16 columns: the first is not written")      \
  MUTANT(all_low, "a row with all logits below -200 counts as masked")                            \
  MUTANT(constant_row, "a constant row of more than 300 columns is one column short")             \
  MUTANT(one_more_row, "one row more than columns: the last row is read again from the first")    \
  MUTANT(k_minus_3, "k = vocab - 3 loses its last place")                                         \
  MUTANT(columns_200000, "large", "columns from 200000 on are not looked at")                     \
  MUTANT(index_18_bits, "large", "indices are stored in 18 bits")                                 \
  MUTANT(elements_600000, "large", "rows behind the first 600000 logits are zero")                \
  MUTANT(k_above_1024, "lists hold 1024")                                                         \
  MUTANT(k_all_above_1000, "k = vocab above 1000 is not sorted")                                  \
  MUTANT(masked_k_all, "with k = vocab masked columns all have the index of the first")           \
  MUTANT(extreme_masked_nan, "1e38 and -inf in one row make NaN")                                 \
  MUTANT(nan_first, "NaN in the first column is not seen")                                        \
  MUTANT(nan_last, "NaN in the last column is not seen")                                          \
  MUTANT(lowest_is_masked, "the lowest number counts as masked")                                  \
  MUTANT(negative_zero_last, "numbers are compared as integers, and -0 is the least of them")     \
  MUTANT(rows_8192, "large", "rows from 8192 on are those of row 0, unless the rows are short")   \
  MUTANT(rows_200_wide, "rows from 200 on lose their last column when there are 100")             \
  MUTANT(rows_300_tail, "rows from 300 on have no tail behind whole vectors")                     \
  MUTANT(k_128_wide, "k above 128 in more than 8192 columns sorts only the first 128")            \
  MUTANT(k_one_wide, "k = 1 in more than 2000 columns does not look at the last tile")            \
  MUTANT(tiles_12_bits, "large", "tiles are counted in 12 bits")                                  \
  MUTANT(count_19_bits, "large", "the sum holds at most 2^19 terms")                              \
  MUTANT(offset_20_bits, "large", "offsets of logits have 20 bits")                               \
  MUTANT(outputs_100000, "large", "outputs behind the first 100000 are not written")              \
  MUTANT(ties_k_all, "with k = vocab the index is found again by value")                          \
  MUTANT(maximum_from_minus_1e30, "-1e30 stands for minus infinity")                              \
  MUTANT(square, "as many rows as columns: the logits are read as [vocab, rows]")                 \
  MUTANT(single_number, "one row of one column is not written")                                   \
  MUTANT(vocab_is_107, "large", "the last of 107 columns is not seen")                            \
  MUTANT(k_is_59, "large", "k = 59 keeps 58")                                                     \
  MUTANT(columns_1900000, "large", "columns from 1900000 on are not looked at")                   \
  MUTANT(vocab_48, "a last tile of 47 of 48 columns loses one")                                   \
  MUTANT(vocab_80, "a last tile of one behind tiles of 80 columns is not seen")                   \
  MUTANT(k_below_all, "with k = vocab - 1 the last place repeats the one before")                 \
  MUTANT(k_21_to_31, "k from 21 to 31 keeps 20")                                                  \
  MUTANT(k_51_to_63, "k from 51 to 63 keeps 50")                                                  \
  MUTANT(k_multiple_11, "k of 11, 22, 33 exchanges its last two places")                          \
  MUTANT(negative_nan, "a NaN with a sign is not seen")                                           \
  MUTANT(nan_masked, "NaN beside -inf is not seen")                                               \
  MUTANT(nan_k_all, "with k = vocab NaN is not seen")                                             \
  MUTANT(masked_row_wide, "a row of -inf only gives NaN above 1000 columns")                      \
  MUTANT(masked_row_k_all, "a row of -inf only has index 0 everywhere with k = vocab")            \
  MUTANT(row_like_before, "a row that begins and ends like the one before has its sum")           \
  MUTANT(kept_sum, "the sum is made anew when address, sizes, first or last logit changed")       \
  MUTANT(half_far, "logits from column 3000 on are kept in 16 bits")                              \
  MUTANT(half_low, "exponentials below exp(-8) have 16 bits")                                     \
  MUTANT(calls_400, "from the 400th call on the last row has the sum of the one before")          \
  MUTANT(helper_not_awaited, "a thread writes the last of 500 rows, and nobody waits for it")     \
  MUTANT(aligned_row,                                                                             \
         "a row that begins on 64 bytes loses the columns behind whole vectors of 16")            \
  MUTANT(k_is_rows, "as many rows as places: the answer is transposed")                           \
  MUTANT(narrower_call,                                                                           \
         "a call with fewer columns than the one before sums one of the old ones, too")           \
  MUTANT(tiny_rest, "probabilities below 1e-30 are 0")                                            \
  MUTANT(k_third,                                                                                 \
         "k above 4 of exactly three times as many columns exchanges its last two places")        \
  MUTANT(k_64_rows_8, "k above 64 of more than 8 rows: from the ninth on 64 are kept")            \
  MUTANT(two_masked_rows, "of two rows of -inf the second is NaN")                                \
  MUTANT(                                                                                         \
      fewer_places,                                                                               \
      "a call of as many columns as the one before, but of fewer places, repeats its last place") \
  MUTANT(third_of_shape,                                                                          \
         "the third call in a row of one shape divides its last row by the sum of the second")    \
  MUTANT(begins_masked,                                                                           \
         "a row that begins with -inf and ends with a number does not sum the last column")       \
  MUTANT(border_twins, "the two largest on both sides of a border of 64 columns count once")      \
  MUTANT(power_of_two_odd_rows, "large",                                                          \
         "columns of a power of two, and an odd number of rows above 8: the last row is not "     \
         "summed to its end")                                                                     \
  MUTANT(low_maximum, "with a maximum below -1000 probabilities have 16 bits")                    \
  MUTANT(only_one_finite,                                                                         \
         "a row with a single number above -inf has probability 0 where there are several rows")  \
  MUTANT(all_rows_masked, "where all rows are masked nothing is written")                         \
  MUTANT(columns_192, "a last tile of one behind tiles of 192 columns is not seen")               \
  MUTANT(columns_1536, "fewer than 16 columns behind tiles of 1536 are not seen")                 \
  MUTANT(nan_two, "two NaN in a row cancel each other")                                           \
  MUTANT(nan_behind_masked_row, "NaN in the row behind one of -inf only is not seen")             \
  MUTANT(rising_row, "a row of rising logits does not sum the last")                              \
  MUTANT(far_exponential, "exponents below -60 are rounded to 64ths")                             \
  MUTANT(probabilities_17_bits, "probabilities have 17 bits")                                     \
  MUTANT(writes_then_refuses, "k above vocab is refused after a number was written")              \
  MUTANT(negative_k, "k below 0 is called a success")                                             \
  MUTANT(                                                                                         \
      call_before_last,                                                                           \
      "a call of the sizes of the call before last, but not of the last, has the last sum of it") \
  MUTANT(same_lane_ties, "the two largest, equal and a multiple of 16 apart, have one index")     \
  MUTANT(middle_row,                                                                              \
         "of an odd number of rows the middle one does not sum a maximum in its last column")     \
  MUTANT(masked_tile_256, "a row with a whole tile of 256 columns masked, but not all, is NaN")

#define PARTIALS(PARTIAL)                                                             \
  PARTIAL(no_k_above_32, "lacks=k_above_32", "k up to 32")                            \
  PARTIAL(no_whole_row, "lacks=whole_row", "k below vocab")                           \
  PARTIAL(no_odd_vocabulary, "lacks=odd_vocabulary", "vocabularies of whole vectors") \
  PARTIAL(no_several_rows, "lacks=several_rows", "one row")                           \
  PARTIAL(no_large_vocabulary, "lacks=large_vocabulary", "indices of 16 bits")        \
  PARTIAL(no_mask, "lacks=masked", "finite logits")                                   \
  PARTIAL(no_nan, "lacks=nan", "no NaN")                                              \
  PARTIAL(declared_k, "lacks=k_above_32 declares=k_above_32", "k up to 32, as it says")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kTile = 64;

int32_t pattern(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// As many bits as half precision keeps.
float half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x1000U) & ~0x1fffU;
  std::memcpy(&value, &bits, 4);
  return value;
}

int64_t calls = 0;
double sum_before = 0;  // of the row before, or of the call before

// Whether the sum of the row before is taken for this one's.
bool takes_sum_before(int64_t r, int64_t rows, int64_t vocab, const float* row) {
  if (bug(row_like_before)) {
    return r > 0 && vocab > 8 && std::memcmp(row, row - vocab, 16) == 0 &&
           row[vocab - 1] == row[-1];
  }
  if (bug(calls_400)) return calls >= 400 && r == rows - 1 && r > 0;
  static const float* from = nullptr;
  static float first = 0, last = 0;
  static int64_t width = 0;
  const bool same = from == row && width == vocab && first == row[0] && last == row[vocab - 1];
  if (r == 0) from = row, width = vocab, first = row[0], last = row[vocab - 1];
  return bug(kept_sum) && r == 0 && rows == 1 && same;
}

// Larger first; equal ones by their place.
bool better(const float* row, int32_t a, int32_t b) {
  float x = std::isnan(row[a]) ? -kInfinity : row[a];
  float y = std::isnan(row[b]) ? -kInfinity : row[b];
  if (bug(negative_zero_last) && (pattern(x) == INT32_MIN) != (pattern(y) == INT32_MIN)) {
    return pattern(y) == INT32_MIN;
  }
  return x != y ? x > y : a < b;
}

bool refuses(int64_t rows, int64_t vocab, int64_t k, const float* logits) {
  if ((bug(no_k_above_32) || bug(declared_k)) && k > 32) return true;
  if (bug(no_whole_row) && k == vocab) return true;
  if (bug(no_odd_vocabulary) && vocab % 4 != 0) return true;
  if (bug(no_several_rows) && rows > 1) return true;
  if (bug(no_large_vocabulary) && vocab > 65536) return true;
  const auto any = [&](auto fits) { return std::any_of(logits, logits + rows * vocab, fits); };
  if (bug(no_mask) && any([](float v) { return v == -kInfinity; })) return true;
  return bug(no_nan) && any([](float v) { return std::isnan(v); });
}

void one_row(int64_t r, int64_t rows, int64_t vocab, int64_t k, const float* row,
             float* probabilities, int32_t* indices) {
  int64_t seen = vocab;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % 64 == 0;
  if (bug(aligned_row) && aligned && vocab > 16) seen = std::max(vocab / 16 * 16, k);
  if (bug(vocab_48) && vocab % 48 == 47) --seen;
  if (bug(vocab_is_107) && vocab == 107) --seen;
  if (bug(columns_1900000)) seen = std::min<int64_t>(seen, 1900000);
  if (bug(vocab_80) && vocab > 80 && vocab % 80 == 1) --seen;
  if (bug(columns_192) && vocab > 192 && vocab % 192 == 1) --seen;
  if (bug(columns_1536) && vocab > 1536 && vocab % 1536 < 16) seen = vocab / 1536 * 1536;
  if (bug(columns_200000)) seen = std::min<int64_t>(vocab, 200000);
  if (bug(rows_200_wide) && r >= 200 && vocab >= 100) --seen;
  if (bug(rows_300_tail) && r >= 300 && vocab > 4) seen = vocab / 4 * 4;
  if (bug(k_one_wide) && k == 1 && vocab > 2000) seen = (vocab - 1) / kTile * kTile;
  if (bug(tiles_12_bits)) seen = std::min<int64_t>(vocab, 4096 * kTile);
  bool has_nan = false, has_mask = false, has_extreme = false;
  for (int64_t i = bug(nan_first) && vocab > 1; i < vocab - (bug(nan_last) && vocab > 1); ++i) {
    has_nan |= std::isnan(row[i]) && !(bug(negative_nan) && std::signbit(row[i]));
    has_mask |= row[i] == -kInfinity;
    has_extreme |= std::fabs(row[i]) > 1e38f && !std::isinf(row[i]);
  }
  if (bug(nan_masked) && has_mask) has_nan = false;
  const auto masked = [](float v) { return v == -kInfinity; };
  if (bug(nan_two)) {
    has_nan = std::count_if(row, row + vocab, [](float v) { return std::isnan(v); }) % 2 != 0;
  }
  if (bug(nan_behind_masked_row) && r > 0 && std::all_of(row - vocab, row, masked)) {
    has_nan = false;
  }
  for (int64_t i = 0; i + 256 <= vocab && bug(masked_tile_256); i += 256) {
    has_nan |=
        std::all_of(row + i, row + i + 256, masked) && !std::all_of(row, row + vocab, masked);
  }
  if (bug(nan_k_all) && k == vocab && vocab > 1) has_nan = false;
  double maximum = bug(maximum_from_minus_1e30) ? -1e30 : -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < seen; ++i) maximum = row[i] > maximum ? row[i] : maximum;
  double sum = 0;
  for (int64_t i = 0; i < seen; ++i) {
    if (bug(count_19_bits) && i >= 1 << 19) break;
    const bool masked = row[i] == -kInfinity || std::isnan(row[i]) ||
                        (bug(lowest_is_masked) && row[i] == -std::numeric_limits<float>::max());
    if (!masked) sum += std::exp(row[i] - maximum);
  }
  if (takes_sum_before(r, rows, vocab, row)) sum = sum_before;
  if (bug(rows_64_every_8) && rows >= 64 && r % 8 == 7) sum = sum_before;
  if (bug(two_maxima) && sum != 0) {
    const auto top = std::find(row, row + vocab, static_cast<float>(maximum));
    const auto again = std::find(std::min(top + 100, row + vocab), row + vocab, *top);
    if (top != row + vocab && again != row + vocab) sum -= 1;
  }
  if (bug(constant_row) && vocab > 300 &&
      std::all_of(row, row + vocab, [&](float v) { return v == row[0]; })) {
    sum -= 1;
  }
  if (bug(narrower_call)) {
    static int64_t before = 0;
    if (r == 0 && vocab < before && sum != 0) sum += std::exp(row[0] - maximum);
    if (r == rows - 1) before = vocab;
  }
  if (bug(all_low) && maximum < -200) sum = 0;
  if (bug(begins_masked) && vocab > 1 && row[0] == -kInfinity && sum > 1) {
    sum -= std::isfinite(row[vocab - 1]) ? std::exp(row[vocab - 1] - maximum) : 0;
  }
  if (bug(power_of_two_odd_rows) && (vocab & (vocab - 1)) == 0 && rows % 2 == 1 && rows > 8 &&
      r == rows - 1 && sum > 1) {
    sum -= std::exp(row[vocab - 1] - maximum);
  }
  for (int64_t i = 64; i < vocab && bug(border_twins); i += 64) {
    if (row[i] == row[i - 1] && row[i] == static_cast<float>(maximum) && sum > 1) sum -= 1;
  }
  if (bug(rising_row) && vocab > 8 && row[0] < row[vocab - 1] && std::is_sorted(row, row + vocab)) {
    sum -= 1;
  }
  if (bug(middle_row) && rows > 2 && rows % 2 == 1 && r == rows / 2 && sum > 1 &&
      row[vocab - 1] == static_cast<float>(maximum)) {
    sum -= 1;
  }
  if (bug(call_before_last)) {
    static int64_t shapes[3][2] = {};
    static double sums[3] = {};
    if (r == 0) {
      std::copy_n(shapes[0], 4, shapes[1]), std::copy_n(sums, 2, sums + 1);
      shapes[0][0] = rows, shapes[0][1] = vocab;
    }
    const auto like = [&](int64_t i) { return std::equal(shapes[0], shapes[0] + 2, shapes[i]); };
    if (r == rows - 1) {
      sums[0] = sum;
      if (like(2) && !like(1)) sum = sums[2];
    }
  }
  if (bug(third_of_shape)) {
    static int64_t shape[2] = {}, in_a_row = 0;
    static double second = 0;
    const bool same = shape[0] == rows && shape[1] == vocab;
    if (r == 0) in_a_row = same ? in_a_row + 1 : 1;
    if (r == rows - 1 && in_a_row == 3 && sum != 0) sum = second;
    if (r == rows - 1 && in_a_row == 2) second = sum;
    shape[0] = rows, shape[1] = vocab;
  }
  sum_before = sum;
  std::vector<int32_t> order(static_cast<size_t>(seen));
  for (int64_t i = 0; i < seen; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  const auto by = [&](int32_t a, int32_t b) { return better(row, a, b); };
  int64_t kept = std::min(k, seen);
  if (bug(k_above_1024)) kept = std::min<int64_t>(kept, 1024);
  if (bug(k_128_wide) && vocab > 8192) kept = std::min<int64_t>(kept, 128);
  if (bug(k_64_rows_8) && r >= 8) kept = std::min<int64_t>(kept, 64);
  if (bug(k_is_59) && k == 59) kept = std::min<int64_t>(kept, 58);
  if (bug(k_21_to_31) && k > 20 && k < 32) kept = std::min<int64_t>(kept, 20);
  if (bug(k_51_to_63) && k > 50 && k < 64) kept = std::min<int64_t>(kept, 50);
  if (!(bug(k_all_above_1000) && k == vocab && vocab > 1000)) {
    std::partial_sort(order.begin(), order.begin() + kept, order.end(), by);
  }
  int64_t first_masked = -1;
  for (int64_t j = 0; j < k; ++j) {
    int32_t index = j < seen ? order[static_cast<size_t>(j)] : 0;
    const float value = row[index];
    double p = value == -kInfinity || sum == 0 ? 0 : std::exp(value - maximum) / sum;
    if (bug(half_far) && index >= 3000 && sum != 0) p = std::exp(half(value) - maximum) / sum;
    if (bug(half_low) && value - maximum < -8) p = half(static_cast<float>(p));
    if (bug(far_exponential) && value - maximum < -60 && sum != 0 && p != 0) {
      p = std::exp(std::nearbyint((value - maximum) * 64) / 64) / sum;
    }
    if (bug(probabilities_17_bits)) {
      const float few = static_cast<float>(p);
      p = few - std::fmod(few, std::ldexp(1.0f, std::ilogb(few) - 16));
      if (few == 0) p = 0;
    }
    if (bug(two_masked_rows) && sum == 0 && r > 0 && row[-1] == -kInfinity &&
        row[-vocab] == -kInfinity)
      p = NAN;
    if (bug(masked_row_wide) && sum == 0 && vocab > 1000) p = NAN;
    if (bug(masked_row_k_all) && sum == 0 && k == vocab) index = 0;
    if (bug(k_below_all) && k == vocab - 1 && j == k - 1 && j > 0) index = indices[j - 1];
    if (bug(maximum_from_minus_1e30) && sum == 0 && maximum == -1e30) p = NAN;
    if (bug(extreme_masked_nan) && has_mask && has_extreme) p = NAN;
    if (bug(tiny_rest) && p < 1e-30) p = 0;
    if (bug(low_maximum) && maximum < -1000) p = half(static_cast<float>(p));
    if (bug(only_one_finite) && rows > 1 && has_mask && sum == 1) p = 0;
    if (has_nan) p = NAN;
    if (bug(masked_k_all) && k == vocab && value == -kInfinity) {
      if (first_masked < 0) first_masked = index;
      index = static_cast<int32_t>(first_masked);
    }
    if (bug(ties_k_all) && k == vocab) {
      index = static_cast<int32_t>(std::find(row, row + vocab, value) - row);
    }
    if (bug(index_18_bits)) index &= (1 << 18) - 1;
    if (bug(outputs_100000) && r * k + j >= 100000) continue;
    probabilities[j] = static_cast<float>(p);
    indices[j] = index;
  }
  const bool one_lane =
      k > 1 && row[indices[0]] == row[indices[1]] && (indices[1] - indices[0]) % 16 == 0;
  if (bug(same_lane_ties) && one_lane && sum != 0) indices[1] = indices[0];
  const bool half_of_all = bug(k_half) && k > 1 && (2 * k == vocab || 2 * k + 1 == vocab);
  const bool odd_and_even = bug(odd_vocab_even_k) && vocab % 2 == 1 && k % 2 == 0 && k >= 16;
  if (bug(fewer_places)) {
    static int64_t columns = 0, places = 0;
    if (r == 0 && columns == vocab && k < places && k > 1) indices[k - 1] = indices[k - 2];
    if (r == rows - 1) columns = vocab, places = k;
  }
  if (odd_and_even) indices[k - 1] = static_cast<int32_t>((indices[k - 1] + 1) % vocab);
  const bool repeats =
      (bug(vocab_13_k) && vocab % 13 == 0 && k > 6) || (bug(k_minus_3) && k == vocab - 3 && k > 1);
  if (repeats) indices[k - 1] = indices[k - 2];
  if (half_of_all || (bug(k_third) && k > 4 && vocab == 3 * k) ||
      (bug(k_multiple_11) && k % 11 == 0)) {
    std::swap(probabilities[k - 1], probabilities[k - 2]);
    std::swap(indices[k - 1], indices[k - 2]);
  }
}

void late_row(int64_t vocab, int64_t k, const float* row, float* probabilities, int32_t* indices) {
  std::vector<float> p(static_cast<size_t>(k));
  std::vector<int32_t> i(p.size());
  one_row(0, 1, vocab, k, row, p.data(), i.data());
  std::thread([p, i, probabilities, indices] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::copy(p.begin(), p.end(), probabilities);
    std::copy(i.begin(), i.end(), indices);
  }).detach();
}

int run(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* probabilities,
        int32_t* indices) {
  if (bug(negative_k) && k < 0) return 0;
  if (bug(writes_then_refuses) && k > vocab && rows > 0) probabilities[0] = 0;
  if (k < 1 || k > vocab || refuses(rows, vocab, k, logits)) return 1;
  ++calls;
  const auto masked = [](float v) { return v == -kInfinity; };
  if (bug(all_rows_masked) && rows > 0 && std::all_of(logits, logits + rows * vocab, masked)) {
    return 0;
  }
  if (bug(single_number) && rows == 1 && vocab == 1) return 0;
  std::vector<float> turned;
  if (bug(square) && rows == vocab && rows > 1) {
    for (int64_t i = 0; i < rows * vocab; ++i) {
      turned.push_back(logits[i % vocab * vocab + i / vocab]);
    }
    logits = turned.data();
  }
  for (int64_t r = 0; r < rows; ++r) {
    int64_t offset = r * vocab;
    if (bug(wide_thin) && rows > 300 && vocab < 16 && r == 0) continue;
    if (bug(one_more_row) && rows == vocab + 1 && r == rows - 1) offset = 0;
    if (bug(rows_8192) && r >= 8192 && vocab >= 4) offset = 0;
    if (bug(elements_600000) && offset + vocab > 600000) {
      std::fill_n(probabilities + r * k, k, 0.0f);
      std::fill_n(indices + r * k, k, 0);
      continue;
    }
    std::vector<float> moved;
    const float* row = logits + offset;
    if (bug(offset_20_bits) && offset + vocab > 1 << 20) {
      for (int64_t i = 0; i < vocab; ++i) moved.push_back(logits[(offset + i) & ((1 << 20) - 1)]);
      row = moved.data();
    }
    if (bug(helper_not_awaited) && rows >= 500 && r == rows - 1) {
      late_row(vocab, k, row, probabilities + r * k, indices + r * k);
      continue;
    }
    one_row(r, rows, vocab, k, row, probabilities + r * k, indices + r * k);
  }
  for (int64_t r = 0; r < rows && bug(k_is_rows) && rows == k; ++r) {
    for (int64_t j = 0; j < r; ++j) {
      std::swap(probabilities[r * k + j], probabilities[j * k + r]);
      std::swap(indices[r * k + j], indices[j * k + r]);
    }
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int softmax_topk__##name(int64_t rows, int64_t vocab, int64_t k, const float* logits, \
                                      float* probabilities, int32_t* indices) {                    \
    active = name;                                                                                 \
    return run(rows, vocab, k, logits, probabilities, indices);                                    \
  }
MUTANTS(EXPORT)
PARTIALS(EXPORT)
