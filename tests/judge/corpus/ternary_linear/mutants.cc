// A ternary linear layer, right except for one planted bug at a time; see layer_norm_backward/mutants.cc.
//
// The right code projects group by group, multiplies groups of integers or doubles and applies scales
// to their sums.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define MUTANTS(MUTANT)                                                                       \
  MUTANT(none, "nothing: the right code")                                                     \
  MUTANT(padded_mean, "the mean of a short group is divided by the whole size")               \
  MUTANT(mean_of_row, "the scale is the mean of the row")                                     \
  MUTANT(mean_of_tensor, "the scale is the mean of the matrix")                               \
  MUTANT(mean_signed, "the mean of the weights, not of their magnitudes")                     \
  MUTANT(mean_of_nonzero, "zeros do not count in the mean")                                   \
  MUTANT(root_mean_square, "the root of the mean square")                                     \
  MUTANT(mean_minus_one, "divided by n - 1")                                                  \
  MUTANT(median_scale, "the median magnitude")                                                \
  MUTANT(absmax_ignored, "the largest is asked for, the mean is taken")                       \
  MUTANT(absmax_always, "the largest is always taken")                                        \
  MUTANT(absmax_signed, "the largest weight, not magnitude")                                  \
  MUTANT(absmax_half, "half the largest")                                                     \
  MUTANT(groups_across_rows, "groups run through the matrix, across the ends of rows")        \
  MUTANT(group_one_more, "groups have one weight more")                                       \
  MUTANT(last_group_skipped, "the last group of a row that is short has scale 0")             \
  MUTANT(last_group_scale_of_previous, "a short last group has the scale of the one before")  \
  MUTANT(row_group_128, "one scale per row is one per 128")                                   \
  MUTANT(epsilon_1e_5, "scales are at least 1e-5")                                            \
  MUTANT(epsilon_added, "1e-8 is added to the scale")                                         \
  MUTANT(threshold_epsilon, "codes are 0 where |w| < 1e-7")                                   \
  MUTANT(zero_group_one, "a group of zeros has scale 1")                                      \
  MUTANT(zero_group_least, "a group of zeros has the smallest half")                          \
  MUTANT(zero_group_plus, "zeros of a group of zeros are +1")                                 \
  MUTANT(minus_zero_negative, "-0 is -1")                                                     \
  MUTANT(tie_to_one, "a tie is +1 or -1")                                                     \
  MUTANT(threshold_s, "codes are 0 where |w| <= s")                                           \
  MUTANT(threshold_0_7, "codes are 0 where |w| <= 0.7 s")                                     \
  MUTANT(threshold_third, "codes are 0 where |w| <= s / 3")                                   \
  MUTANT(no_zeros, "codes are signs")                                                         \
  MUTANT(negative_lost, "negative weights are 0")                                             \
  MUTANT(sign_flipped, "codes have the other sign")                                           \
  MUTANT(codes_by_rounded_scale, "codes are decided by the rounded scale")                    \
  MUTANT(scale_not_rounded, "scales are stored as floats")                                    \
  MUTANT(scale_bf16, "scales are rounded to bf16")                                            \
  MUTANT(scale_truncated, "scales are cut off, not rounded")                                  \
  MUTANT(scale_half_up, "halfway scales go up")                                               \
  MUTANT(scale_e8, "scales are powers of two")                                                \
  MUTANT(scale_flushed, "scales below the smallest half are 0")                               \
  MUTANT(scale_subnormal_flushed, "subnormal halves are 0")                                   \
  MUTANT(scale_infinite, "scales above the largest half are infinite")                        \
  MUTANT(scale_inverse, "the inverse of the scale is stored")                                 \
  MUTANT(pack_code_plus_two, "codes are packed as code + 2")                                  \
  MUTANT(pack_twos_complement, "codes are packed as two bits of two's complement")            \
  MUTANT(pack_high_first, "the first code is in the highest bits of its word")                \
  MUTANT(pack_strided, "column c is in word c modulo words")                                  \
  MUTANT(pack_bytes_swapped, "bytes of words in the other order")                             \
  MUTANT(pack_across_rows, "codes run through the matrix, across words of rows")              \
  MUTANT(pack_padding_ones, "unused bits are those of a zero code")                           \
  MUTANT(pack_last_word_lost, "a word that is not full is not written")                       \
  MUTANT(read_high_first, "reads the first code in the highest bits")                         \
  MUTANT(read_plus_two, "reads codes as code + 2")                                            \
  MUTANT(read_sign_swapped, "reads 0 as +1 and 2 as -1")                                      \
  MUTANT(read_padding, "columns up to the end of the last word are multiplied")               \
  MUTANT(linear_scale_of_first, "all groups of a row have the scale of the first")            \
  MUTANT(linear_scale_of_row_0, "all rows have the scales of the first")                      \
  MUTANT(linear_scale_once, "the scale is applied to the total of the row: the last group's") \
  MUTANT(linear_group_edge, "the last column of a group has the next scale")                  \
  MUTANT(linear_no_scale, "scales are not applied")                                           \
  MUTANT(linear_scale_squared, "scales are applied twice")                                    \
  MUTANT(linear_inverse_scale, "divides by the scales")                                       \
  MUTANT(linear_transposed, "reads y as [outputs, rows]")                                     \
  MUTANT(linear_last_column, "the last column is left out")                                   \
  MUTANT(linear_last_output, "the last of several outputs is 0")                              \
  MUTANT(linear_last_row, "the last of several rows is 0")                                    \
  MUTANT(linear_row_0, "all rows are the first")                                              \
  MUTANT(linear_half_sums, "sums are rounded to 16 bits")                                     \
  MUTANT(linear_int16_sums, "sums of a group wrap at 16 bits, activations as 1/256")          \
  MUTANT(linear_adds, "adds to what is there")                                                \
  MUTANT(int8_ignored, "activations stay floats")                                             \
  MUTANT(int8_always, "activations always have 8 bits")                                       \
  MUTANT(int8_per_tensor, "one scale for all rows")                                           \
  MUTANT(int8_128, "divided by 128")                                                          \
  MUTANT(int8_floor, "rounded down")                                                          \
  MUTANT(int8_away_trunc, "cut off")                                                          \
  MUTANT(int8_zero_row_nan, "a row of zeros is divided by zero")                              \
  MUTANT(int8_not_scaled_back, "the scale of the activations is not applied")                 \
  MUTANT(int8_per_group, "one scale for each group of a row")                                 \
  MUTANT(int8_clamp_100, "integers are clamped to 100")                                       \
  MUTANT(int4_activations, "7 steps")                                                         \
  MUTANT(int8_scale_half, "the scale of the activations is rounded to a half")                \
  MUTANT(dx_of_latent_sign, "dx has signs instead of codes: zeros count as +1")               \
  MUTANT(dx_no_scale, "dx without scales")                                                    \
  MUTANT(dx_transposed_groups, "dx takes the scale of the output's number")                   \
  MUTANT(dx_of_first_output, "dx of the first output only")                                   \
  MUTANT(dx_masked, "dx is 0 where the activation is negative")                               \
  MUTANT(dw_masked_zero, "dweight is 0 where the code is 0")                                  \
  MUTANT(dw_masked_one, "dweight is 0 where the code is not 0")                               \
  MUTANT(dw_scaled, "dweight is multiplied by the scale")                                     \
  MUTANT(dw_clipped, "dweight is clipped to 1")                                               \
  MUTANT(dw_with_code, "dweight is multiplied by the code")                                   \
  MUTANT(dw_mean_of_rows, "dweight is divided by the rows")                                   \
  MUTANT(dw_float_x, "dweight takes the activations before they are rounded")                 \
  MUTANT(dw_centered, "the mean of a group is taken off: a term of the scale")                \
  MUTANT(dw_transposed, "dweight as [inputs, outputs]")                                       \
  MUTANT(dw_one_row, "dweight of the last row only")                                          \
  MUTANT(dw_not_zeroed, "without rows dweight is not written")                                \
  MUTANT(bad_group_taken, "groups that are none are not refused")                             \
  MUTANT(nan_taken, "NaN among the weights is not refused")                                   \
  MUTANT(infinity_taken, "infinity among the weights is not refused")                         \
  MUTANT(bad_code_taken, "a code of 3 is not refused")                                        \
  MUTANT(input_overwritten, "activations are rounded in place")                               \
  MUTANT(kept_weights, "weights are unpacked once for all calls of a shape")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

struct Shape {
  int64_t rows, outputs, inputs, group, groups, words;
  int64_t size() const { return group == 0 ? (bug(row_group_128) ? 128 : inputs) : group; }
};

bool legal(int64_t group) {
  return bug(bad_group_taken) || group == 0 || (group >= 32 && group <= 256);
}

float cut(double value, int bits, bool nearest) {
  const double step = std::ldexp(1.0, std::ilogb(value) + 1 - bits);
  return float((nearest ? std::nearbyint(value / step) : std::floor(value / step)) * step);
}

float stored(double s) {
  if (s == 0) {
    if (bug(zero_group_one)) return 1;
    return bug(zero_group_least) ? 0x1p-24f : 0;
  }
  if (bug(scale_not_rounded)) return float(s);
  if (bug(scale_bf16)) return cut(s, 8, true);
  if (bug(scale_flushed) && s < 0x1p-24) return 0;
  if (bug(scale_subnormal_flushed) && s < 0x1p-14) return 0;
  if (bug(scale_infinite) && s > 65520) return INFINITY;
  s = std::min(std::max(s, 0x1p-24), 65504.0);
  if (bug(scale_e8)) return float(std::ldexp(1.0, std::ilogb(s)));
  const double step = std::max(std::ldexp(1.0, std::ilogb(s) - 10), 0x1p-24);
  double steps = std::nearbyint(s / step);
  if (bug(scale_truncated)) steps = std::max(1.0, std::floor(s / step));
  if (bug(scale_half_up)) steps = std::floor(s / step + 0.5);
  const double result = steps * step;
  return float(bug(scale_inverse) ? 1 / result : result);
}

double scale_of(const float* w, int64_t n, int64_t size, bool absmax) {
  double sum = 0, most = 0, plain = 0, squares = 0;
  int64_t used = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = std::fabs(w[i]);
    sum += v;
    plain += w[i];
    squares += v * v;
    used += v != 0 ? 1 : 0;
    most = std::max(most, bug(absmax_signed) ? double(w[i]) : v);
  }
  if (bug(absmax_ignored)) absmax = false;
  if (bug(absmax_always)) absmax = true;
  if (absmax) return bug(absmax_half) ? most / 2 : most;
  if (bug(median_scale)) {
    std::vector<float> sorted(w, w + n);
    for (float& v : sorted) v = std::fabs(v);
    std::nth_element(sorted.begin(), sorted.begin() + n / 2, sorted.end());
    return sorted[n / 2];
  }
  if (bug(mean_signed)) return std::fabs(plain) / double(n);
  if (bug(root_mean_square)) return std::sqrt(squares / double(n));
  if (bug(mean_of_nonzero)) return used == 0 ? 0 : sum / double(used);
  if (bug(mean_minus_one) && n > 1) return sum / double(n - 1);
  return sum / double(bug(padded_mean) ? size : n);
}

int code_of(double w, double s) {
  if (bug(zero_group_plus) && s == 0) return 1;
  if (bug(minus_zero_negative) && w == 0 && std::signbit(w)) return -1;
  double limit = s / 2;
  if (bug(threshold_s)) limit = s;
  if (bug(threshold_0_7)) limit = 0.7 * s;
  if (bug(threshold_third)) limit = s / 3;
  if (bug(no_zeros)) limit = 0;
  if (bug(threshold_epsilon)) limit = std::max(limit, 1e-7);
  bool one = std::fabs(w) > limit;
  if (bug(tie_to_one)) one = std::fabs(w) >= limit && w != 0;
  if (!one || (bug(negative_lost) && w < 0)) return 0;
  return (w > 0) != bug(sign_flipped) ? 1 : -1;
}

int project(Bug which, const Shape& p, bool absmax, const float* weight, int32_t* packed,
            float* scales) {
  active = which;
  if (!legal(p.group)) return 1;
  if (bug(bad_group_taken) && p.group != 0 && (p.group < 32 || p.group > 256)) return 0;
  const int64_t count = p.outputs * p.inputs;
  for (int64_t i = 0; i < count; ++i) {
    const bool nan = std::isnan(weight[i]) && !bug(nan_taken);
    const bool infinite = std::isinf(weight[i]) && !bug(infinity_taken);
    if (nan || infinite) return 1;
    if (!std::isfinite(weight[i])) return 0;
  }
  std::fill_n(packed, p.outputs * p.words, 0);
  const double tensor = scale_of(weight, count, count, absmax);
  for (int64_t o = 0; o < p.outputs; ++o) {
    const float* const row = weight + o * p.inputs;
    const double whole = scale_of(row, p.inputs, p.inputs, absmax);
    double s = 0;
    int64_t known = -1;
    for (int64_t c = 0; c < p.inputs; ++c) {
      const int64_t size = p.size() + (bug(group_one_more) && p.group != 0 ? 1 : 0);
      int64_t g = std::min(c / size, p.groups - 1);
      int64_t begin = c / size * size, end = std::min(p.inputs, begin + size);
      const float* from = row;
      if (bug(groups_across_rows) && p.group != 0) {
        const int64_t at = o * p.inputs + c;
        from = weight;
        begin = at / size * size;
        end = std::min(count, begin + size);
      }
      if (c == 0 || begin != known) s = scale_of(from + begin, end - begin, size, absmax);
      known = begin;
      if (bug(mean_of_row)) s = whole;
      if (bug(mean_of_tensor)) s = tensor;
      if (bug(last_group_skipped) && end - begin < size) s = 0;
      if (bug(last_group_scale_of_previous) && end - begin < size && begin > 0) {
        s = scale_of(row + begin - size, size, size, absmax);
      }
      if (bug(epsilon_1e_5)) s = std::max(s, 1e-5);
      if (bug(epsilon_added) && c % size == 0) s += 1e-8;
      if (c % size == 0 || c == 0) scales[o * p.groups + g] = stored(s);
      const int code = code_of(row[c], bug(codes_by_rounded_scale) ? double(stored(s)) : s);
      auto bits = uint32_t(code + 1);
      if (bug(pack_code_plus_two)) bits = uint32_t(code + 2);
      if (bug(pack_twos_complement)) bits = uint32_t(code) & 3u;
      int64_t word = o * p.words + c / 16, place = c % 16;
      if (bug(pack_high_first)) place = 15 - place;
      if (bug(pack_strided)) word = o * p.words + c % p.words, place = c / p.words;
      if (bug(pack_across_rows)) word = (o * p.inputs + c) / 16, place = (o * p.inputs + c) % 16;
      if (bug(pack_bytes_swapped)) place = place % 4 + 4 * (3 - place / 4);
      if (bug(pack_last_word_lost) && c / 16 == p.inputs / 16) continue;
      packed[word] |= int32_t(bits << (2 * place));
    }
    for (int64_t c = p.inputs; c < p.words * 16 && bug(pack_padding_ones); ++c) {
      packed[o * p.words + c / 16] |= int32_t(1u << (2 * (c % 16)));
    }
  }
  return 0;
}

// Codes of the columns, and what stands behind them; false: a code of 3.
bool unpack(const Shape& p, const int32_t* packed, std::vector<int>& codes) {
  static std::vector<int> kept;
  static int64_t shape = -1;
  if (bug(kept_weights) && shape == p.outputs * 100000 + p.inputs) {
    codes = kept;
    return true;
  }
  for (int64_t o = 0; o < p.outputs; ++o) {
    for (int64_t c = 0; c < p.words * 16; ++c) {
      const auto word = uint32_t(packed[o * p.words + c / 16]);
      const int64_t place = bug(read_high_first) ? 15 - c % 16 : c % 16;
      int code = int(word >> (2 * place) & 3u) - (bug(read_plus_two) ? 2 : 1);
      if (bug(read_sign_swapped)) code = -code;
      if (c < p.inputs && (word >> (2 * (c % 16)) & 3u) == 3 && !bug(bad_code_taken)) return false;
      codes.push_back(code);
    }
  }
  kept = codes;
  shape = p.outputs * 100000 + p.inputs;
  return true;
}

double scale_at(const Shape& p, const float* scales, int64_t o, int64_t c) {
  if (bug(linear_scale_of_row_0)) o = 0;
  if (bug(linear_group_edge)) c = std::min(c + 1, p.inputs - 1);
  if (bug(linear_scale_of_first)) c = 0;
  if (bug(linear_scale_once)) c = p.inputs - 1;
  const double s = scales[o * p.groups + std::min(c / p.size(), p.groups - 1)];
  if (bug(linear_no_scale)) return 1;
  if (bug(linear_scale_squared)) return s * s;
  return bug(linear_inverse_scale) ? (s == 0 ? 0 : 1 / s) : s;
}

double rounded(double v, double a) {
  double q = std::nearbyint(v / a);
  if (bug(int8_floor)) q = std::floor(v / a);
  if (bug(int8_away_trunc)) q = std::trunc(v / a);
  if (bug(int8_clamp_100)) q = std::min(100.0, std::max(-100.0, q));
  return bug(int8_not_scaled_back) ? q : a * q;
}

std::vector<double> activations(const Shape& p, bool int8, const float* x) {
  std::vector<double> out(x, x + p.rows * p.inputs);
  if (bug(int8_ignored)) int8 = false;
  if (bug(int8_always)) int8 = true;
  if (!int8) return out;
  double all = 0;
  for (const double v : out) all = std::max(all, std::fabs(v));
  const double steps = bug(int8_128) ? 128 : bug(int4_activations) ? 7 : 127;
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t part = bug(int8_per_group) ? p.size() : p.inputs;
    for (int64_t begin = 0; begin < p.inputs; begin += part) {
      double* const from = out.data() + r * p.inputs + begin;
      const int64_t n = std::min(part, p.inputs - begin);
      double most = 0;
      for (int64_t c = 0; c < n; ++c) most = std::max(most, std::fabs(from[c]));
      if (bug(int8_per_tensor)) most = all;
      if (most == 0 && !bug(int8_zero_row_nan)) continue;
      double a = most / steps;
      if (bug(int8_scale_half)) a = cut(a, 11, true);
      for (int64_t c = 0; c < n; ++c) from[c] = rounded(from[c], a);
    }
  }
  return out;
}

int linear(Bug which, const Shape& p, bool int8, const int32_t* packed, const float* scales,
           const float* x, float* y) {
  active = which;
  std::vector<int> codes;
  if (!legal(p.group) || !unpack(p, packed, codes)) return 1;
  if (bug(input_overwritten) && p.rows > 0) const_cast<float*>(x)[0] = 0;
  const std::vector<double> a = activations(p, int8, x);
  const int64_t wide = p.words * 16;
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t from = bug(linear_row_0) ? 0 : r;
    for (int64_t o = 0; o < p.outputs; ++o) {
      double sum = 0, part = 0;
      for (int64_t c = 0; c < p.inputs; ++c) {
        if (bug(linear_last_column) && c > 0 && c + 1 == p.inputs) break;
        const double term = a[from * p.inputs + c] * codes[o * wide + c];
        if (bug(linear_int16_sums)) {
          part += int8 ? term : std::nearbyint(term * 256);
          if (c + 1 == p.inputs || (c + 1) % p.size() == 0) {
            const double kept = int8 ? part : double(int16_t(int32_t(part))) / 256;
            sum += kept * scale_at(p, scales, o, c);
            part = 0;
          }
          continue;
        }
        sum += term * scale_at(p, scales, o, c);
        if (bug(linear_half_sums) && sum != 0) sum = cut(sum, 11, true);
      }
      for (int64_t c = p.inputs; c < wide && bug(read_padding); ++c) {
        sum += a[from * p.inputs] * codes[o * wide + c] * scale_at(p, scales, o, p.inputs - 1);
      }
      if (bug(linear_last_output) && o > 0 && o + 1 == p.outputs) sum = 0;
      if (bug(linear_last_row) && r > 0 && r + 1 == p.rows) sum = 0;
      float& to = y[bug(linear_transposed) ? o * p.rows + r : r * p.outputs + o];
      to = float(sum + (bug(linear_adds) ? double(to) : 0));
    }
  }
  return 0;
}

void activation_gradient(const Shape& p, const std::vector<int>& codes, const float* scales,
                         const float* x, const float* dy, float* dx) {
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t c = 0; c < p.inputs; ++c) {
      double sum = 0;
      for (int64_t o = 0; o < (bug(dx_of_first_output) ? 1 : p.outputs); ++o) {
        int code = codes[o * p.words * 16 + c];
        if (bug(dx_of_latent_sign) && code == 0) code = 1;
        double s = scale_at(p, scales, o, c);
        if (bug(dx_no_scale)) s = 1;
        if (bug(dx_transposed_groups)) s = scale_at(p, scales, o, std::min(o, p.inputs - 1));
        sum += double(dy[r * p.outputs + o]) * s * code;
      }
      if (bug(dx_masked) && x[r * p.inputs + c] < 0) sum = 0;
      dx[r * p.inputs + c] = float(sum);
    }
  }
}

void weight_gradient(const Shape& p, const std::vector<int>& codes, const float* scales,
                     const std::vector<double>& a, const float* dy, float* dweight) {
  if (bug(dw_not_zeroed) && p.rows == 0) return;
  for (int64_t o = 0; o < p.outputs; ++o) {
    std::vector<double> row(p.inputs);
    double mean = 0;
    for (int64_t c = 0; c < p.inputs; ++c) {
      for (int64_t r = bug(dw_one_row) && p.rows > 0 ? p.rows - 1 : 0; r < p.rows; ++r) {
        row[c] += double(dy[r * p.outputs + o]) * a[r * p.inputs + c];
      }
      mean += row[c] / double(p.inputs);
      const int code = codes[o * p.words * 16 + c];
      if (bug(dw_masked_zero) && code == 0) row[c] = 0;
      if (bug(dw_masked_one) && code != 0) row[c] = 0;
      if (bug(dw_with_code)) row[c] *= code;
      if (bug(dw_scaled)) row[c] *= scale_at(p, scales, o, c);
      if (bug(dw_clipped)) row[c] = std::min(1.0, std::max(-1.0, row[c]));
      if (bug(dw_mean_of_rows)) row[c] /= double(p.rows);
    }
    for (int64_t c = 0; c < p.inputs; ++c) {
      const double value = row[c] - (bug(dw_centered) ? mean : 0);
      dweight[bug(dw_transposed) ? c * p.outputs + o : o * p.inputs + c] = float(value);
    }
  }
}

int backward(Bug which, const Shape& p, bool int8, const int32_t* packed, const float* scales,
             const float* x, const float* dy, float* dx, float* dweight) {
  active = which;
  std::vector<int> codes;
  if (!legal(p.group) || !unpack(p, packed, codes)) return 1;
  activation_gradient(p, codes, scales, x, dy, dx);
  weight_gradient(p, codes, scales, activations(p, int8 && !bug(dw_float_x), x), dy, dweight);
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int ternary_project__##name(int64_t outputs, int64_t inputs, int64_t group,           \
                                         int64_t groups, int64_t words, int64_t absmax,            \
                                         const float* weight, int32_t* packed, float* scales) {    \
    return project(name, {0, outputs, inputs, group, groups, words}, absmax != 0, weight, packed,  \
                   scales);                                                                        \
  }                                                                                                \
  extern "C" int ternary_linear__##name(                                                           \
      int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words, \
      int64_t int8, const int32_t* packed, const float* scales, const float* x, float* y) {        \
    return linear(name, {rows, outputs, inputs, group, groups, words}, int8 != 0, packed, scales,  \
                  x, y);                                                                           \
  }                                                                                                \
  extern "C" int ternary_backward__##name(                                                         \
      int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words, \
      int64_t int8, const int32_t* packed, const float* scales, const float* x, const float* dy,   \
      float* dx, float* dweight) {                                                                 \
    return backward(name, {rows, outputs, inputs, group, groups, words}, int8 != 0, packed,        \
                    scales, x, dy, dx, dweight);                                                   \
  }
MUTANTS(EXPORT)
