// A ternary linear layer for the reach of the judge: right code with faults that show only at sizes and
// crossings that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#define MUTANTS(MUTANT)                                                                            \
  MUTANT(columns_above_4096, "columns from 4096 on are not multiplied")                            \
  MUTANT(outputs_above_1024, "outputs from 1024 on are 0")                                         \
  MUTANT(rows_above_64, "rows from 64 on are those of the first")                                  \
  MUTANT(rows_above_100_dw, "dweight counts 100 rows at most")                                     \
  MUTANT(group_above_128, "groups above 128 are halved in the product")                            \
  MUTANT(odd_group_rounded, "groups that are no multiple of 16 are read as if they were")          \
  MUTANT(row_scale_256, "one scale per row is the mean of the first 256 weights")                  \
  MUTANT(absmax_short_group, "short groups take the mean where the largest is asked for")          \
  MUTANT(int8_backward, "8-bit activations are floats where rows are many")                        \
  MUTANT(int8_with_row_scales, "8-bit activations are floats where there is one scale per row")    \
  MUTANT(tiny_absmax, "scales of absmax have an epsilon")                                          \
  MUTANT(padding_of_one_word, "rows of less than a word are read to its end")                      \
  MUTANT(last_word_of_rows, "the last column of rows with 16 n + 1 is left out")                   \
  MUTANT(columns_above_20000, "large", "columns from 20000 on are not multiplied")                 \
  MUTANT(outputs_above_8000, "large", "outputs from 8000 on are 0")                                \
  MUTANT(columns_8000, "large", "of less than 40000 columns those from 9000 on are left out")      \
  MUTANT(columns_17_bits, "large", "columns from 65536 on are not multiplied")                     \
  MUTANT(aligned_tail, "x on 32 bytes: columns behind whole vectors of eight are left out")        \
  MUTANT(zero_words, "two neighboring words of zero codes end a row")                              \
  MUTANT(group_96, "groups of 96 and 192 are read as 64 and 128")                                  \
  MUTANT(subnormal_scale, "scales below 2^-14 count as 0 in the product")                          \
  MUTANT(int8_tail_maximum,                                                                        \
         "the last numbers behind whole vectors of 16 have no part in the step")                   \
  MUTANT(int8_tiny_row, "rows below 1e-20 count as rows of zeros")                                 \
  MUTANT(outputs_12, "of 11, 23, 35 outputs the last repeats the one before")                      \
  MUTANT(rows_are_outputs, "as many rows as outputs: dy is read transposed")                       \
  MUTANT(kept_group, "sizes that were projected before keep the group of the first time")          \
  MUTANT(negative_tie, "a tie below 0 is -1")                                                      \
  MUTANT(subnormal_half_tie, "ties between subnormal halves go up")                                \
  MUTANT(inputs_are_103, "large", "the last of 103 inputs is not summed")                          \
  MUTANT(group_71, "large", "groups of 71 are groups of 64")                                       \
  MUTANT(outputs_are_47, "large", "the last of 47 outputs is 0")                                   \
  MUTANT(odd_rows_twice, "the last of an odd number of rows above 8 counts twice in dweight")      \
  MUTANT(two_scales,                                                                               \
         "groups from the third on have the scale of the second where there are more than 8")      \
  MUTANT(dx_short_group,                                                                           \
         "a short last group of fewer than 8 columns has the scale before it in "                  \
         "dx")                                                                                     \
  MUTANT(x_1e12, "activations are at most 1e12")                                                   \
  MUTANT(dy_1e6, "gradients are at most 1e6")                                                      \
  MUTANT(batch_tiles_int8,                                                                         \
         "8-bit activations, 16 rows and 48 outputs and more: the last output repeats the one "    \
         "before")                                                                                 \
  MUTANT(scale_60000, "scales above 60000 count as 60000")                                         \
  MUTANT(zero_x, "where all of x is 0 y is not written")                                           \
  MUTANT(zero_dy, "where all of dy is 0 dweight is not written")                                   \
  MUTANT(zero_output_row, "an output whose codes are all 0 is not written")                        \
  MUTANT(group_above_inputs, "a group that is longer than the row divides by its own length")      \
  MUTANT(one_output_many_rows, "one output and more than 16 rows: the last row has no dx")         \
  MUTANT(one_row_many_outputs, "one row and more than 300 outputs: the last is not multiplied")    \
  MUTANT(powers_of_two,                                                                            \
         "rows, outputs and inputs of powers of two above 8: the last row repeats the one before") \
  MUTANT(tiny_x, "activations below 1e-25 are 0")                                                  \
  MUTANT(                                                                                          \
      narrower_call,                                                                               \
      "a call of fewer inputs than the one before, of as many outputs, repeats its last output")   \
  MUTANT(short_group_of_one, "a last group of one weight has code 0")                              \
  MUTANT(padding_three, "a code of 3 behind the columns is refused")                               \
  MUTANT(int8_of_same_x, "a call of the activations of the one before has its int8")               \
  MUTANT(same_codes,                                                                               \
         "an output with the codes of the one before it is copied, whatever its scales")           \
  MUTANT(first_scales_equal, "where the first three scales are equal all are")                     \
  MUTANT(no_rows_int8, "without rows and with 8-bit activations dweight is not written")           \
  MUTANT(negative_group, "a group below 0 counts as 0")                                            \
  MUTANT(group_257, "a group of 257 to 260 is taken by the backward")                              \
  MUTANT(inputs_192, "a last tile of one behind tiles of 192 inputs is not summed")                \
  MUTANT(outputs_192, "the last output behind tiles of 192 is 0")                                  \
  MUTANT(rows_192, "the last row behind tiles of 192 is that before it")                           \
  MUTANT(odd_group_dx, "dx takes the scales of a group that is no multiple of 4 as if it were")    \
  MUTANT(infinity_negative, "-inf among the weights is not refused")                               \
  MUTANT(equal_activations,                                                                        \
         "a row of equal activations is multiplied by the sum of codes with the first scale")      \
  MUTANT(product_17_bits, "products have 17 bits")                                                 \
  MUTANT(absmax_of_same, "a projection of the weights of the one before has its absmax")           \
  MUTANT(dx_int8_zero_row, "with 8-bit activations a row of zeros has no dx")                      \
  MUTANT(bad_code_far, "a code of 3 beyond the first 64 columns is taken")                         \
  MUTANT(half_above_end, "means above 65504 that a half rounds down are infinity")                 \
  MUTANT(half_short_group, "halfway scales of a short group go up")                                \
  MUTANT(int8_product, "127 times an activation is a float, and may be infinity")                  \
  MUTANT(zero_row_far, "a row of zeros behind the first 6 has no product")                         \
  MUTANT(codes_of_same_scales, "a call of the scales of the one before has its codes")             \
  MUTANT(scales_of_same_codes, "a call of the codes of the one before has its scales")             \
  MUTANT(int16_sums, "8-bit activations of a group are summed in 16 bits")                         \
  MUTANT(tile_odd_group, "tiles of 16 rows and 16 outputs round groups to whole vectors of 8")     \
  MUTANT(rows_15_bits, "rows from 32768 on are those from 0")                                      \
  MUTANT(int8_maximum_4096, "the largest activation is that of the first 4096 columns")            \
  MUTANT(int8_maximum_last, "the last column is not asked for the largest activation")             \
  MUTANT(one_by_one, "one row and one output over more than 64 columns: the last is left out")     \
  MUTANT(row_begins_0, "a row whose first 16 activations are 0 is a row of zeros")                 \
  MUTANT(dy_begins_0, "a row whose first 4 gradients are 0 has no dx")                             \
  MUTANT(group_begins_0, "a group whose first 8 weights are 0 is a group of zeros")                \
  MUTANT(output_begins_0, "an output without a code in its first 2 words has none")                \
  MUTANT(absmax_row_1024, "one scale per row: the largest of the first 1024 columns")              \
  MUTANT(no_rows_row_scales, "without rows, with one scale per row, dweight is not written")       \
  MUTANT(one_column, "of a single column, one row and one output dx is 0")                         \
  MUTANT(rows_11, "the last of 11, 22, 33 rows of 8-bit activations is that before it")

#define PARTIALS(PARTIAL)                                                                      \
  PARTIAL(no_absmax, "lacks=absmax", "the mean only")                                          \
  PARTIAL(no_int8, "lacks=int8", "float activations only")                                     \
  PARTIAL(no_row_scales, "lacks=row_scales", "groups only")                                    \
  PARTIAL(no_odd_inputs, "lacks=odd_inputs", "whole words")                                    \
  PARTIAL(no_wide, "lacks=many_columns", "4096 columns at most")                               \
  PARTIAL(no_empty_batch, "lacks=no_rows", "at least one row")                                 \
  PARTIAL(declared_int8, "lacks=int8 declares=int8", "as it says")                             \
  PARTIAL(no_dweight, "lacks=dweight declares=dweight", "without the gradient of the weights") \
  PARTIAL(plain, "lacks=absmax,int8 declares=int8", "mean and floats")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }

bool legal(int64_t group) { return group == 0 || (group >= 32 && group <= 256); }

// The nearest half, ties to even; what is above 0 stays in the range of halves.
float half(double s) {
  if (s == 0) return 0;
  if (bug(half_above_end) && s > 65504 && s < 65520) return INFINITY;
  s = std::min(std::max(s, 0x1p-24), 65504.0);
  const double step = std::max(std::ldexp(1.0, std::ilogb(s) - 10), 0x1p-24);
  if (bug(subnormal_half_tie) && s < 0x1p-14) return float(std::floor(s / step + 0.5) * step);
  return float(std::nearbyint(s / step) * step);
}

// False: a code of 3.
bool unpack(int64_t outputs, int64_t inputs, int64_t words, const int32_t* packed,
            const float* scales, int64_t groups, std::vector<int8_t>& codes) {
  static std::vector<float> scales_before;
  static std::vector<int8_t> codes_before;
  codes.resize(outputs * inputs);
  if (bug(codes_of_same_scales)) {
    std::vector<float> now(scales, scales + outputs * groups);
    const bool same = now == scales_before && codes.size() == codes_before.size();
    scales_before = std::move(now);
    if (same) codes = codes_before;
    if (same) return true;
  }
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < inputs; ++c) {
      const uint32_t code = uint32_t(packed[o * words + c / 16]) >> (2 * (c % 16)) & 3u;
      if (code == 3 && !(bug(bad_code_far) && c >= 64)) return false;
      codes[o * inputs + c] = int8_t(int(code) - 1);
    }
    for (int64_t c = inputs; c < words * 16 && bug(padding_three); ++c) {
      if ((uint32_t(packed[o * words + c / 16]) >> (2 * (c % 16)) & 3u) == 3) return false;
    }
  }
  if (bug(codes_of_same_scales)) codes_before = codes;
  return true;
}

std::vector<double> activations(int64_t rows, int64_t inputs, int64_t int8, const float* x) {
  std::vector<double> out(x, x + rows * inputs);
  for (double& value : out) {
    if (bug(tiny_x) && std::fabs(value) < 1e-25) value = 0;
    if (bug(x_1e12)) value = std::clamp(value, -1e12, 1e12);
  }
  for (int64_t r = 0; r < rows && int8 != 0; ++r) {
    double most = 0;
    int64_t looked = bug(int8_tail_maximum) && inputs > 16 ? inputs / 16 * 16 : inputs;
    if (bug(int8_maximum_4096)) looked = std::min<int64_t>(looked, 4096);
    if (bug(int8_maximum_last) && inputs > 1) --looked;
    for (int64_t c = 0; c < looked; ++c) most = std::max(most, std::fabs(out[r * inputs + c]));
    if (bug(int8_tiny_row) && most < 1e-20) std::fill_n(&out[r * inputs], inputs, 0.0);
    if (most == 0) continue;
    for (int64_t c = 0; c < inputs; ++c) {
      double& v = out[r * inputs + c];
      double n = v / (most / 127);
      if (bug(int8_product)) n = float(v) * 127.0f / float(most);
      v = most / 127 * (std::nearbyint(n));
    }
  }
  return out;
}

bool refuses(int64_t rows, int64_t inputs, int64_t group, int64_t int8) {
  if ((bug(no_int8) || bug(declared_int8) || bug(plain)) && int8 != 0) return true;
  if (bug(no_row_scales) && group == 0) return true;
  if (bug(no_odd_inputs) && inputs % 16 != 0) return true;
  if (bug(no_empty_batch) && rows == 0) return true;
  return bug(no_wide) && inputs > 4096;
}

int project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words,
            int64_t absmax, const float* weight, int32_t* packed, float* scales) {
  if (bug(negative_group) && group < 0) group = 0;
  if (!legal(group)) return 1;
  if (bug(absmax_of_same)) {
    static std::vector<float> before;
    static int64_t absmax_before = 0;
    std::vector<float> now(weight, weight + outputs * inputs);
    if (now == before) absmax = absmax_before;
    before = std::move(now), absmax_before = absmax;
  }
  if ((bug(no_absmax) || bug(plain)) && absmax != 0) return 1;
  if (bug(no_row_scales) && group == 0) return 1;
  if (bug(no_odd_inputs) && inputs % 16 != 0) return 1;
  if (bug(no_wide) && inputs > 4096) return 1;
  if (bug(kept_group) && group != 0) {
    static std::map<std::pair<int64_t, int64_t>, int64_t> known;
    group = known.try_emplace({outputs, inputs}, group).first->second;
  }
  const int64_t size = group == 0 ? inputs : group;
  for (int64_t i = 0; i < outputs * inputs; ++i) {
    const bool taken = bug(infinity_negative) && std::isinf(weight[i]) && weight[i] < 0;
    if (taken) return 0;
    if (!std::isfinite(weight[i])) return 1;
  }
  std::fill_n(packed, outputs * words, 0);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * size, end = std::min(inputs, begin + size);
      double sum = 0, most = 0;
      for (int64_t c = begin; c < end; ++c) {
        const double w = std::fabs(weight[o * inputs + c]);
        sum += w;
        most = std::max(most, w);
      }
      const bool largest = absmax != 0 && !(bug(absmax_short_group) && end - begin < size);
      double s = largest ? most : sum / double(end - begin);
      if (bug(absmax_row_1024) && group == 0 && absmax != 0 && inputs > 1024) {
        s = 0;
        for (int64_t c = 0; c < 1024; ++c)
          s = std::max<double>(s, std::fabs(weight[o * inputs + c]));
      }
      const float* const first_weight = weight + o * inputs + begin;
      const auto none = [](float w) { return w == 0; };
      const bool empty = bug(group_begins_0) && end - begin > 8 &&
                         std::all_of(first_weight, first_weight + 8, none);
      if (empty) s = 0;
      if (bug(tiny_absmax) && absmax != 0 && s > 0) s = std::max(s, 1e-6);
      if (bug(row_scale_256) && group == 0 && absmax == 0 && inputs > 256) {
        s = 0;
        for (int64_t c = 0; c < 256; ++c) s += std::fabs(weight[o * inputs + c]) / 256.0;
      }
      if (bug(group_above_inputs) && group > inputs && absmax == 0) s *= double(inputs) / group;
      scales[o * groups + g] = half(bug(scale_60000) ? std::min(s, 60000.0) : s);
      if (bug(half_short_group) && end - begin < size)
        scales[o * groups + g] = half(s * (1 + 1e-9));
      for (int64_t c = begin; c < end; ++c) {
        const double w = weight[o * inputs + c];
        const bool tie = bug(negative_tie) && w < 0 && -2 * w == s;
        uint32_t code = 2 * std::fabs(w) > s || tie ? (w > 0 ? 2 : 0) : 1;
        if (empty) code = 1;
        if (bug(short_group_of_one) && end - begin == 1 && size > 1) code = 1;
        packed[o * words + c / 16] |= int32_t(code << (2 * (c % 16)));
      }
    }
  }
  return 0;
}

bool row_begins(const float* row, int64_t count) {
  return std::all_of(row, row + count, [](float v) { return v == 0; });
}

// Of 8-bit activations.
double step_of(const float* row, int64_t inputs) {
  double most = 0;
  for (int64_t c = 0; c < inputs; ++c) most = std::max<double>(most, std::fabs(row[c]));
  return most / 127;
}

// Where the product of a row ends.
int64_t ends_of_words(int64_t inputs, int64_t words, const int32_t* row) {
  for (int64_t w = 0; w + 1 < words && bug(zero_words); ++w) {
    if (row[w] == 0x55555555 && row[w + 1] == 0x55555555) return 16 * w;
  }
  return inputs;
}

int linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
           int64_t words, int64_t int8, const int32_t* packed, const float* scales, const float* x,
           float* y) {
  std::vector<int8_t> codes;
  if (!legal(group) || !unpack(outputs, inputs, words, packed, scales, groups, codes)) return 1;
  if (refuses(rows, inputs, group, int8)) return 1;
  int64_t size = group == 0 ? inputs : group;
  if (bug(scales_of_same_codes)) {
    static std::vector<int32_t> codes_before;
    static std::vector<float> scales_before;
    std::vector<int32_t> now(packed, packed + outputs * words);
    if (now != codes_before || int64_t(scales_before.size()) != outputs * groups) {
      scales_before.assign(scales, scales + outputs * groups);
    }
    codes_before = std::move(now), scales = scales_before.data();
  }
  const bool tiled = rows >= 16 && outputs >= 16;
  if (bug(tile_odd_group) && tiled && group != 0) size = (size + 7) / 8 * 8;
  if (bug(group_71) && group == 71) size = 64;
  if (bug(group_96) && size % 96 == 0 && group != 0) size = size / 96 * 64;
  if (bug(odd_group_rounded) && group != 0) size = (size + 15) / 16 * 16;
  if (bug(int8_of_same_x)) {
    static std::vector<float> before;
    static int64_t int8_before = 0;
    std::vector<float> now(x, x + rows * inputs);
    if (now == before) int8 = int8_before;
    before = std::move(now), int8_before = int8;
  }
  if (bug(int8_with_row_scales) && group == 0) int8 = 0;
  if (bug(int8_backward) && rows > 32) int8 = 0;
  const std::vector<double> a = activations(rows, inputs, int8, x);
  const auto zero = [](float v) { return v == 0; };
  if (bug(zero_x) && std::all_of(x, x + rows * inputs, zero)) return 0;
  static int64_t inputs_before = 0, outputs_before = 0;
  const bool narrower =
      bug(narrower_call) && outputs == outputs_before && inputs < inputs_before && outputs > 1;
  inputs_before = inputs, outputs_before = outputs;
  const auto power = [](int64_t n) { return n > 8 && (n & (n - 1)) == 0; };
  const bool powers = bug(powers_of_two) && power(rows) && power(outputs) && power(inputs);
  const bool aligned = bug(aligned_tail) && reinterpret_cast<uintptr_t>(x) % 32 == 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < outputs; ++o) {
      double total = 0;
      const int64_t end = ends_of_words(inputs, words, packed + o * words);
      for (int64_t g = 0; g < groups; ++g) {
        double sum = 0;
        for (int64_t c = g * size; c < std::min(inputs, (g + 1) * size); ++c) {
          if (c >= end || (aligned && c >= inputs / 8 * 8)) break;
          if (bug(inputs_are_103) && inputs == 103 && c == 102) break;
          if (bug(inputs_192) && inputs > 192 && inputs % 192 == 1 && c + 1 == inputs) break;
          if (bug(columns_above_4096) && c >= 4096) break;
          if (bug(one_by_one) && rows * outputs == 1 && inputs > 64 && c + 1 == inputs) break;
          if (bug(row_begins_0) && inputs > 16 && row_begins(x + r * inputs, 16)) break;
          if (bug(output_begins_0) && words > 2 && packed[o * words] == 0x55555555 &&
              packed[o * words + 1] == 0x55555555) {
            break;
          }
          if (bug(columns_above_20000) && c >= 20000) break;
          if (bug(columns_8000) && inputs < 40000 && c >= 9000) break;
          if (bug(columns_17_bits) && c >= 65536) break;
          if (bug(last_word_of_rows) && inputs > 1 && inputs % 16 == 1 && c + 1 == inputs) break;
          if (bug(group_above_128) && size > 128 && c - g * size >= 128 && group != 0) break;
          int64_t row = bug(rows_above_64) && r >= 64 ? 0 : r;
          if (bug(rows_15_bits)) row &= 0x7fff;
          if (bug(rows_11) && int8 != 0 && rows % 11 == 0 && r == rows - 1) --row;
          sum += a[row * inputs + c] * codes[o * inputs + c];
        }
        const double step = int8 != 0 && bug(int16_sums) ? step_of(x + r * inputs, inputs) : 0;
        if (step > 0) sum = step * int16_t(int64_t(std::nearbyint(sum / step)));
        const int64_t used = bug(two_scales) && groups > 8 ? std::min<int64_t>(g, 1) : g;
        float scale = scales[o * groups + used];
        const bool alike = outputs * groups > 3 && scales[0] == scales[1] && scales[1] == scales[2];
        if (bug(first_scales_equal) && alike) scale = scales[0];
        const float* const row_x = x + r * inputs;
        const bool flat =
            bug(equal_activations) && inputs > 32 && groups > 1 &&
            std::all_of(row_x, row_x + inputs, [&](float v) { return v == row_x[0]; });
        if (flat) scale = scales[o * groups];
        total += bug(subnormal_scale) && scale < 0x1p-14f ? 0 : sum * scale;
      }
      for (int64_t c = inputs; c < 16 && bug(padding_of_one_word); ++c) {
        const int code = int(uint32_t(packed[o * words]) >> (2 * c) & 3u) - 1;
        total += double(scales[o * groups]) * code * a[r * inputs];
      }
      if (bug(outputs_12) && outputs % 12 == 11 && o == outputs - 1) total = y[r * outputs + o - 1];
      if (narrower && o == outputs - 1) total = y[r * outputs + o - 1];
      if (powers && r == rows - 1) total = y[(r - 1) * outputs + o];
      const int64_t at = o * inputs;
      const bool same = bug(same_codes) && o > 0 && inputs > 4 &&
                        std::equal(&codes[at - inputs], &codes[at], &codes[at]);
      if (same) total = y[r * outputs + o - 1];
      if (bug(outputs_192) && outputs > 192 && outputs % 192 == 1 && o == outputs - 1) total = 0;
      if (bug(rows_192) && rows > 192 && rows % 192 == 1 && r == rows - 1) {
        total = y[(r - 1) * outputs + o];
      }
      if (bug(product_17_bits) && total != 0) {
        total -= std::fmod(total, std::ldexp(1.0, std::ilogb(total) - 16));
      }
      if (bug(one_row_many_outputs) && rows == 1 && outputs > 300 && o == outputs - 1) total = 0;
      const int8_t* row_codes = &codes[o * inputs];
      const bool no_code =
          std::all_of(row_codes, row_codes + inputs, [](int8_t c) { return c == 0; });
      if (bug(zero_output_row) && no_code) continue;
      if (bug(zero_row_far) && r > 5 && std::all_of(x + r * inputs, x + (r + 1) * inputs, zero)) {
        continue;
      }
      const bool tiles = int8 != 0 && rows >= 16 && outputs >= 48;
      if (bug(batch_tiles_int8) && tiles && o == outputs - 1) total = y[r * outputs + o - 1];
      if (bug(outputs_are_47) && outputs == 47 && o == 46) total = 0;
      if (bug(outputs_above_1024) && o >= 1024) total = 0;
      if (bug(outputs_above_8000) && o >= 8000) total = 0;
      y[r * outputs + o] = float(total);
    }
  }
  return 0;
}

int backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
             int64_t words, int64_t int8, const int32_t* packed, const float* scales,
             const float* x, const float* dy, float* dx, float* dweight) {
  std::vector<int8_t> codes;
  if (bug(group_257) && group > 256 && group <= 260) return 0;
  if (!legal(group) || !unpack(outputs, inputs, words, packed, scales, groups, codes)) return 1;
  if (refuses(rows, inputs, group, int8)) return 1;
  const int64_t size = group == 0 ? inputs : group;
  const std::vector<double> a = activations(rows, inputs, int8, x);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < inputs; ++c) {
      double sum = 0;
      for (int64_t o = 0; o < outputs; ++o) {
        const int64_t last = inputs % size;
        const int64_t rounded = bug(odd_group_dx) && group % 4 != 0 ? (size + 3) / 4 * 4 : size;
        const bool before = bug(dx_short_group) && last < 8 && c >= size && c >= inputs - last;
        const bool turned = bug(rows_are_outputs) && rows == outputs && rows > 1;
        double d = dy[turned ? o * outputs + r : r * outputs + o];
        if (bug(dy_1e6)) d = std::clamp(d, -1e6, 1e6);
        sum += d * scales[o * groups + c / rounded - before] * codes[o * inputs + c];
      }
      if (bug(one_column) && rows * outputs * inputs == 1) sum = 0;
      if (bug(dy_begins_0) && outputs > 4 && row_begins(dy + r * outputs, 4)) sum = 0;
      if (bug(one_output_many_rows) && outputs == 1 && rows > 16 && r == rows - 1) sum = 0;
      const float* const row_x = x + r * inputs;
      const bool none = bug(dx_int8_zero_row) && int8 != 0 &&
                        std::all_of(row_x, row_x + inputs, [](float v) { return v == 0; });
      dx[r * inputs + c] = none ? 0 : float(sum);
    }
  }
  if (bug(no_dweight)) return 0;
  if (bug(no_rows_row_scales) && rows == 0 && group == 0) return 0;
  if (bug(no_rows_int8) && rows == 0 && int8 != 0) return 0;
  if (bug(zero_dy) && rows > 0 &&
      std::all_of(dy, dy + rows * outputs, [](float v) { return v == 0; })) {
    return 0;
  }
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < inputs; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < (bug(rows_above_100_dw) ? std::min<int64_t>(100, rows) : rows); ++r)
        sum += double(dy[r * outputs + o]) * a[r * inputs + c];
      if (bug(odd_rows_twice) && rows > 8 && rows % 2 == 1)
        sum += double(dy[(rows - 1) * outputs + o]) * a[(rows - 1) * inputs + c];
      dweight[o * inputs + c] = float(sum);
    }
  }
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int ternary_project__##name(int64_t outputs, int64_t inputs, int64_t group,           \
                                         int64_t groups, int64_t words, int64_t absmax,            \
                                         const float* weight, int32_t* packed, float* scales) {    \
    active = name;                                                                                 \
    return project(outputs, inputs, group, groups, words, absmax, weight, packed, scales);         \
  }                                                                                                \
  extern "C" int ternary_linear__##name(                                                           \
      int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words, \
      int64_t int8, const int32_t* packed, const float* scales, const float* x, float* y) {        \
    active = name;                                                                                 \
    return linear(rows, outputs, inputs, group, groups, words, int8, packed, scales, x, y);        \
  }                                                                                                \
  extern "C" int ternary_backward__##name(                                                         \
      int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words, \
      int64_t int8, const int32_t* packed, const float* scales, const float* x, const float* dy,   \
      float* dx, float* dweight) {                                                                 \
    active = name;                                                                                 \
    return backward(rows, outputs, inputs, group, groups, words, int8, packed, scales, x, dy, dx,  \
                    dweight);                                                                      \
  }
MUTANTS(EXPORT)
PARTIALS(EXPORT)
