// Contenders that do not do the work. Built and named as mutants.cc is.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                  \
  TRIVIAL(zeros, "everything is 0")                        \
  TRIVIAL(ones, "everything is 1")                         \
  TRIVIAL(zero_codes, "all codes are zero")                \
  TRIVIAL(copies, "outputs are copies of the activations") \
  TRIVIAL(first_scale, "scales are the first weight")      \
  TRIVIAL(noise, "random numbers")                         \
  TRIVIAL(unwritten, "nothing is written")                 \
  TRIVIAL(previous, "the product of the call before")      \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME
Kind active;

float number() {
  static std::minstd_rand random(7);
  return active == ones ? 1.0f : active == noise ? float(random() % 1000) / 500 - 1 : 0.0f;
}

void fill(float* to, int64_t count, const float* from, int64_t known) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = active == copies && known > 0 ? from[i % known] : number();
}

int project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups, int64_t words,
            int64_t absmax, const float* weight, int32_t* packed, float* scales) {
  (void)group, (void)absmax;
  if (active == refuses) return 1;
  if (active == unwritten) return 0;
  for (int64_t i = 0; i < outputs * words; ++i) {
    packed[i] = active == zero_codes ? 0x55555555
                : active == noise    ? int32_t(number() * 1e9f)
                                     : int32_t(number());
  }
  for (int64_t i = 0; i < outputs * groups; ++i) {
    scales[i] = active == first_scale ? weight[0]
                : active == copies    ? weight[i % inputs]
                                      : number();
  }
  return 0;
}

int linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
           int64_t words, int64_t int8, const int32_t* packed, const float* scales, const float* x,
           float* y) {
  (void)group, (void)groups, (void)words, (void)int8, (void)packed, (void)scales;
  if (active == refuses) return 1;
  if (active == unwritten) return 0;
  static std::vector<float> before;
  fill(y, rows * outputs, x, rows * inputs);
  if (active == previous) {
    std::copy_n(before.begin(), std::min<int64_t>(int64_t(before.size()), rows * outputs), y);
    before.assign(y, y + rows * outputs);
  }
  return 0;
}

int backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
             int64_t words, int64_t int8, const int32_t* packed, const float* scales,
             const float* x, const float* dy, float* dx, float* dweight) {
  (void)group, (void)groups, (void)words, (void)int8, (void)packed, (void)scales, (void)dy;
  if (active == refuses) return 1;
  if (active == unwritten) return 0;
  fill(dx, rows * inputs, x, rows * inputs);
  fill(dweight, outputs * inputs, x, rows * inputs);
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
TRIVIALS(EXPORT)
