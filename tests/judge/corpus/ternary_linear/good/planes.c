/* Plain C: sums of the columns with +1 less those with -1, nothing unpacked; halves by their bits. */
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The nearest half of a positive number, ties to even, as a float. */
static float nearest_half(double s) {
  int exponent;
  double scaled, low, rest;
  if (s == 0) return 0;
  if (s < ldexp(1, -24)) return (float)ldexp(1, -24);
  if (s > 65504) return 65504;
  frexp(s, &exponent); /* s = m * 2^exponent, 0.5 <= m < 1 */
  exponent = exponent - 11 < -24 ? -24 : exponent - 11;
  scaled = ldexp(s, -exponent);
  low = floor(scaled);
  rest = scaled - low;
  if (rest > 0.5 || (rest == 0.5 && fmod(low, 2) == 1)) low += 1;
  return (float)ldexp(low, exponent);
}

static int bad_group(int64_t group) { return group != 0 && (group < 32 || group > 256); }

static uint32_t code_at(const int32_t* row, int64_t c) {
  return (uint32_t)row[c >> 4] >> (2 * (c & 15)) & 3u;
}

static int has_bad_code(int64_t outputs, int64_t inputs, int64_t words, const int32_t* packed) {
  int64_t o, c;
  for (o = 0; o < outputs; ++o) {
    for (c = 0; c < inputs; ++c) {
      if (code_at(packed + o * words, c) == 3) return 1;
    }
  }
  return 0;
}

/* The step of 8-bit activations of a row; 0: none are asked for, or all are zero. */
static double step_of(const float* x, int64_t inputs, int64_t int8) {
  double most = 0;
  int64_t c;
  for (c = 0; c < inputs && int8; ++c) {
    if (fabs(x[c]) > most) most = fabs(x[c]);
  }
  return most / 127;
}

static double value_of(float x, double step) { return step == 0 ? x : step * rint(x / step); }

int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words,
                    int64_t absmax, const float* weight, int32_t* packed, float* scales) {
  const int64_t size = group == 0 ? inputs : group;
  int64_t o, g, c;
  if (bad_group(group)) return 1;
  memset(packed, 0, (size_t)(outputs * words) * sizeof(*packed));
  for (o = 0; o < outputs; ++o) {
    const float* w = weight + o * inputs;
    for (g = 0; g < groups; ++g) {
      const int64_t end = (g + 1) * size < inputs ? (g + 1) * size : inputs;
      double s = 0;
      for (c = g * size; c < end; ++c) {
        const double v = fabs(w[c]);
        if (!isfinite(w[c])) return 1;
        s = absmax ? (v > s ? v : s) : s + v;
      }
      if (!absmax) s /= (double)(end - g * size);
      scales[o * groups + g] = nearest_half(s);
      for (c = g * size; c < end; ++c) {
        const uint32_t code = w[c] > s / 2 ? 2 : w[c] < -s / 2 ? 0 : 1;
        packed[o * words + c / 16] |= (int32_t)(code << (2 * (c % 16)));
      }
    }
  }
  return 0;
}

int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                   int64_t words, int64_t int8, const int32_t* packed, const float* scales,
                   const float* x, float* y) {
  const int64_t size = group == 0 ? inputs : group;
  int64_t r, o, g, c;
  if (bad_group(group) || has_bad_code(outputs, inputs, words, packed)) return 1;
  for (r = 0; r < rows; ++r) {
    const double step = step_of(x + r * inputs, inputs, int8);
    for (o = 0; o < outputs; ++o) {
      double total = 0;
      for (g = 0; g < groups; ++g) {
        double plus = 0, minus = 0;
        for (c = g * size; c < inputs && c < (g + 1) * size; ++c) {
          const uint32_t code = code_at(packed + o * words, c);
          if (code == 2) plus += value_of(x[r * inputs + c], step);
          if (code == 0) minus += value_of(x[r * inputs + c], step);
        }
        total += scales[o * groups + g] * (plus - minus);
      }
      y[r * outputs + o] = (float)total;
    }
  }
  return 0;
}

int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                     int64_t words, int64_t int8, const int32_t* packed, const float* scales,
                     const float* x, const float* dy, float* dx, float* dweight) {
  const int64_t size = group == 0 ? inputs : group;
  int64_t r, o, c;
  if (bad_group(group) || has_bad_code(outputs, inputs, words, packed)) return 1;
  memset(dweight, 0, (size_t)(outputs * inputs) * sizeof(*dweight));
  for (r = 0; r < rows; ++r) {
    const double step = step_of(x + r * inputs, inputs, int8);
    for (c = 0; c < inputs; ++c) {
      double sum = 0;
      for (o = 0; o < outputs; ++o) {
        const uint32_t code = code_at(packed + o * words, c);
        const double term = (double)dy[r * outputs + o] * scales[o * groups + c / size];
        if (code == 2) sum += term;
        if (code == 0) sum -= term;
        dweight[o * inputs + c] += (float)(dy[r * outputs + o] * value_of(x[r * inputs + c], step));
      }
      dx[r * inputs + c] = (float)sum;
    }
  }
  return 0;
}
