// Softmax and top-k as kernels are written: rows in parts with a maximum, a sum and candidates of their
// own, other paths for long rows, for many rows, for one place and for many. Faults where two of these
// meet, at special numbers in special places, and in what one row or call leaves to the next.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#define MUTANTS(MUTANT)                                                                            \
  MUTANT(quiet_nan_only, "a signaling NaN is not seen")                                            \
  MUTANT(nan_count_8_bits, "NaN of a row are counted in 8 bits")                                   \
  MUTANT(nan_count_16_bits, "large", "NaN of a row are counted in 16 bits")                        \
  MUTANT(nan_flag_kept, "a row of -inf only does not reset the mark of NaN")                       \
  MUTANT(nan_behind_nan, "NaN in the row behind one with NaN is not seen")                         \
  MUTANT(nan_column_5, "the sixth column is not looked at for NaN")                                \
  MUTANT(nan_tail_8, "NaN behind whole vectors of 8 columns is not seen")                          \
  MUTANT(nan_one_place, "k = 1 in several rows does not look for NaN in even ones")                \
  MUTANT(one_place_masked, "k = 1: the largest of -inf only has the index -1")                     \
  MUTANT(one_place_lowest, "k = 1: the largest of the lowest numbers only has the index -1")       \
  MUTANT(one_column_certain, "the probability of a single column is 1, whatever it is")            \
  MUTANT(coarse_beyond_512, "logits beyond 512 are compared in steps of 2^-12")                    \
  MUTANT(few_left_list_128, "k above 128: places behind the last number repeat its index")         \
  MUTANT(masked_list_1024, "large", "k above 1024: a masked column of the list is NaN")            \
  MUTANT(rows_256_k_32, "large", "more than 256 rows: lists hold 32")                              \
  MUTANT(long_list, "large", "beyond 65536 columns lists hold 1024")                               \
  MUTANT(rows_4096_nan, "large", "rows from 4096 on are not looked at for NaN")                    \
  MUTANT(rows_65536_masked, "large", "rows of -inf only from 65536 on are NaN")                    \
  MUTANT(long_nan_tail, "large", "beyond 65536 columns NaN behind whole vectors of 8 is not seen") \
  MUTANT(long_masked_part, "large", "beyond 65536 columns a part of -inf only makes NaN")          \
  MUTANT(long_equal_parts, "large", "beyond 65536 columns parts of one maximum count once")        \
  MUTANT(long_part_border, "large", "beyond 65536 columns parts do not sum their last column")     \
  MUTANT(long_part_candidate, "large",                                                             \
         "beyond 65536 columns the first column of a part is no candidate")                        \
  MUTANT(long_row_flag, "large", "beyond 65536 columns NaN of a row stays for the next")           \
  MUTANT(long_k_7, "large", "beyond 65536 columns k of 7, 15, 23 repeats its last place")          \
  MUTANT(long_rising, "large", "candidates are 16384 at most, the first to pass the first tile")   \
  MUTANT(long_minus_zero, "large", "beyond 65536 columns -0 is the least of all numbers")          \
  MUTANT(long_exact, "large", "beyond 65536 columns with -inf first the second place is lost")     \
  MUTANT(tiles_28672, "large", "a last tile of one behind tiles of 28672 columns is not summed")   \
  MUTANT(tie_buffer_1024, "candidates that tie with the last place are 1024 at most")              \
  MUTANT(k_all_33_to_63, "k = vocab of 33 to 63 exchanges its last two places")                    \
  MUTANT(k_all_4096, "large", "k = vocab above 4096 is sorted to 4096")                            \
  MUTANT(k_all_rows, "k = vocab of 17 to 32 in more than 32 rows: the last row repeats a place")   \
  MUTANT(k_64_whole, "k above 64 of whole tiles of 256 columns: 64 are kept")                      \
  MUTANT(wide_rows_5, "large",                                                                     \
         "of 5, 13, 21 rows of more than 1024 columns the last one is one short")                  \
  MUTANT(rows_31_one_place, "large", "k = 1 of 31, 63, 95 rows: the last one is not written")      \
  MUTANT(rows_4_k_rows, "k of 4, 8, 12 in as many rows: the last place of the last is lost")       \
  MUTANT(scratch_padding, "the last tile is padded with what the call before left")                \
  MUTANT(log2e_overflow, "logits are multiplied with log2(e) first, which overflows")              \
  MUTANT(maximum_kept, "the running maximum is not reset between rows")                            \
  MUTANT(widest_before, "after a call of more than 50000 columns one of fewer than 64 loses one")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active;
bool bug(Bug name) { return active == name; }

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kLong = 65536, kParts = 16;

// One row of a call, and what is known of it.
struct Row {
  int64_t r, rows, vocab, k;
  const float* logits;
  double top = -kInfinity, sum = 0;
  bool nan = false;
  bool is_long() const { return vocab > kLong; }
};

bool left_by_row_before = false;  // the mark of NaN
double top_before = -kInfinity;
int64_t widest = 0;
std::vector<float> scratch;

bool masked(float v) { return v == -kInfinity; }
bool all_masked(const Row& row) { return std::all_of(row.logits, row.logits + row.vocab, masked); }

bool is_nan(const Row& row, int64_t i) {
  uint32_t bits;
  std::memcpy(&bits, row.logits + i, 4);
  if (bug(quiet_nan_only)) return (bits & 0x7fc00000U) == 0x7fc00000U;
  if (bug(nan_column_5) && i == 5) return false;
  if (bug(nan_tail_8) && row.vocab > 8 && i >= row.vocab / 8 * 8) return false;
  if (bug(long_nan_tail) && row.is_long() && i >= row.vocab / 8 * 8) return false;
  return std::isnan(row.logits[i]);
}

bool find_nan(const Row& row) {
  if (bug(one_column_certain) && row.vocab == 1) return false;
  if (bug(rows_4096_nan) && row.r >= 4096) return false;
  if (bug(nan_one_place) && row.k == 1 && row.rows > 1 && row.r % 2 == 0) return false;
  int64_t count = 0;
  for (int64_t i = 0; i < row.vocab; ++i) count += is_nan(row, i) ? 1 : 0;
  if (bug(nan_count_8_bits)) count &= 0xff;
  if (bug(nan_count_16_bits)) count &= 0xffff;
  bool found = count > 0;
  const bool before = row.r > 0 && left_by_row_before;
  if (bug(nan_flag_kept) && before && all_masked(row)) found = true;
  if (bug(nan_behind_nan) && before && row.vocab > 1) found = false;
  if (bug(long_row_flag) && before && row.is_long()) found = true;
  left_by_row_before = found;
  return found;
}

// The maximum and the sum of a part, as an online softmax has them.
void read_part(Row& row, int64_t begin, int64_t end, bool several) {
  double top = -kInfinity, sum = 0;
  if (bug(maximum_kept) && row.r > 0) top = top_before;
  int64_t last = end;
  if (bug(long_part_border) && several) --last;
  if (bug(tiles_28672) && row.vocab > 28672 && row.vocab % 28672 == 1 && end == row.vocab) --last;
  const bool short_row = bug(wide_rows_5) && row.rows % 8 == 5 && row.r == row.rows - 1;
  if (short_row && row.vocab > 1024) --last;
  for (int64_t i = begin; i < end; ++i) {
    top = row.logits[i] > top ? row.logits[i] : top;
    const float scaled = row.logits[i] * 1.44269504F;
    if (bug(log2e_overflow) && std::isinf(scaled) && !masked(row.logits[i])) sum = NAN;
  }
  top_before = top;
  if (std::isinf(top)) {
    if (bug(long_masked_part) && several) row.sum = NAN;
    return;
  }
  for (int64_t i = begin; i < last; ++i) {
    if (!masked(row.logits[i])) sum += std::exp(row.logits[i] - top);
  }
  if (bug(long_equal_parts) && several && top == row.top) return;
  const double whole = std::max(top, row.top);
  row.sum = (row.sum == 0 ? 0 : row.sum * std::exp(row.top - whole)) + sum * std::exp(top - whole);
  row.top = whole;
}

// The candidates for the places of a row.
std::vector<int32_t> candidates(const Row& row) {
  std::vector<int32_t> all;
  const int64_t size = (row.vocab + kParts - 1) / kParts;
  float first = kInfinity;
  int64_t passed = 0, tied = 0;
  for (int64_t i = 0; i < row.vocab; ++i) {
    if (bug(long_part_candidate) && row.is_long() && i > 0 && i % size == 0) continue;
    if (bug(long_rising)) {
      if (i < 256) first = std::min(first, row.logits[i]);
      if (i >= 256 && row.logits[i] > first && ++passed > 16384) continue;
    }
    if (bug(tie_buffer_1024) && row.k < 1024 && row.logits[i] == row.logits[0] && ++tied > 1024) {
      break;
    }
    all.push_back(static_cast<int32_t>(i));
  }
  for (int32_t i = 0; static_cast<int64_t>(all.size()) < row.k; ++i) all.push_back(i);
  return all;
}

float compared(const Row& row, int32_t i) {
  const float v = row.logits[i];
  if (bug(coarse_beyond_512) && std::fabs(v) > 512 && std::fabs(v) < 1e6f) {
    return std::nearbyint(v * 4096) / 4096;
  }
  if (bug(long_minus_zero) && row.is_long() && v == 0 && std::signbit(v)) return -3e38f;
  return v;
}

std::vector<int32_t> best(const Row& row) {
  std::vector<int32_t> all = candidates(row);
  int64_t kept = row.k;
  if (bug(rows_256_k_32) && row.rows > 256) kept = std::min<int64_t>(kept, 32);
  if (bug(long_list) && row.is_long()) kept = std::min<int64_t>(kept, 1024);
  if (bug(k_64_whole) && row.vocab % 256 == 0) kept = std::min<int64_t>(kept, 64);
  if (bug(k_all_4096) && row.k == row.vocab) kept = std::min<int64_t>(kept, 4096);
  std::partial_sort(all.begin(), all.begin() + kept, all.end(), [&](int32_t a, int32_t b) {
    const float x = compared(row, a), y = compared(row, b);
    return x != y ? x > y : a < b;
  });
  all.resize(static_cast<size_t>(row.k));
  return all;
}

void spoil_places(const Row& row, std::vector<int32_t>& places) {
  const auto k = static_cast<size_t>(row.k);
  const bool last_row = row.r == row.rows - 1;
  const auto repeat_last = [&] {
    if (k > 1) places[k - 1] = places[k - 2];
  };
  if (bug(k_all_33_to_63) && row.k == row.vocab && k > 32 && k < 64) {
    std::swap(places[k - 1], places[k - 2]);
  }
  if (bug(k_all_rows) && row.k == row.vocab && k > 16 && k <= 32 && row.rows > 32 && last_row) {
    repeat_last();
  }
  if (bug(long_k_7) && row.is_long() && k % 8 == 7) repeat_last();
  if (bug(rows_4_k_rows) && k % 4 == 0 && row.rows == row.k && last_row) repeat_last();
  if (bug(long_exact) && row.is_long() && masked(row.logits[0]) && k > 1) places[1] = places[0];
  for (size_t j = 1; j < k && bug(few_left_list_128) && k > 128; ++j) {
    if (masked(row.logits[places[j]]) && !masked(row.logits[places[0]])) places[j] = places[j - 1];
  }
  if (k != 1) return;
  if (bug(one_place_masked) && masked(row.logits[places[0]])) places[0] = -1;
  if (bug(one_place_lowest) && places[0] >= 0 &&
      row.logits[places[0]] == -std::numeric_limits<float>::max()) {
    places[0] = -1;
  }
}

void one_row(Row row, float* probabilities, int32_t* indices) {
  row.nan = find_nan(row);
  if (bug(rows_31_one_place) && row.k == 1 && row.rows % 32 == 31 && row.r == row.rows - 1) return;
  std::vector<float> numbers;
  if (row.nan) {
    for (int64_t j = 0; j < row.k; ++j) probabilities[j] = NAN, indices[j] = int32_t(j);
    return;
  }
  // What only hides NaN must not sort it.
  numbers.assign(row.logits, row.logits + row.vocab);
  for (float& v : numbers) v = std::isnan(v) ? -kInfinity : v;
  row.logits = numbers.data();
  const int64_t parts = row.is_long() ? kParts : 1, size = (row.vocab + parts - 1) / parts;
  for (int64_t begin = 0; begin < row.vocab; begin += size) {
    read_part(row, begin, std::min(begin + size, row.vocab), parts > 1);
  }
  if (bug(scratch_padding)) {
    const int64_t end = (row.vocab + 63) / 64 * 64;
    for (int64_t i = row.vocab; i < std::min<int64_t>(end, scratch.size()); ++i) {
      if (std::isfinite(scratch[i]) && scratch[i] <= row.top) {
        row.sum += std::exp(scratch[i] - row.top);
      }
    }
    if (row.r == row.rows - 1) scratch = numbers;
  }
  if (bug(widest_before) && row.vocab < 64 && row.vocab > 1 && widest > 50000 && row.sum > 1) {
    row.sum -= std::exp(numbers.back() - row.top);
  }
  std::vector<int32_t> places = best(row);
  spoil_places(row, places);
  for (int64_t j = 0; j < row.k; ++j) {
    const float value = places[j] < 0 ? -kInfinity : row.logits[places[j]];
    double p = masked(value) ? 0 : std::exp(value - row.top) / row.sum;
    if (masked(value) && std::isnan(row.sum)) p = NAN;
    if (bug(masked_list_1024) && row.k > 1024 && masked(value)) p = NAN;
    if (bug(rows_65536_masked) && row.r >= 65536 && masked(value) && row.sum == 0) p = NAN;
    if (bug(one_column_certain) && row.vocab == 1) p = 1;
    probabilities[j] = static_cast<float>(p);
    indices[j] = places[j];
  }
}

int run(int64_t rows, int64_t vocab, int64_t k, const float* logits, float* probabilities,
        int32_t* indices) {
  if (k < 1 || k > vocab) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    one_row({r, rows, vocab, k, logits + r * vocab}, probabilities + r * k, indices + r * k);
  }
  widest = vocab;
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
