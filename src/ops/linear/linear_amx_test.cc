// The order of the sums on tiles, written out: what makes the bits of a row those of that row alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/index.h"
#include "cpu/amx.h"
#include "tests/support/random.h"
#include "touchstone/core/context.h"
#include "touchstone/core/convert.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/linear.h"

namespace touchstone::test {
namespace {

constexpr std::int64_t kStep = 32;

std::vector<Bf16> random_bf16(std::int64_t count, std::uint64_t seed) {
  std::vector<Bf16> values;
  for (const double value : random_values({}, count, seed)) values.push_back(convert<Bf16>(value));
  return values;
}

// Products of two bf16 are exact in f32, so each of these is one rounding.
float sum_of(const std::vector<Bf16>& a, std::int64_t a_first, std::int64_t a_stride,
             const std::vector<Bf16>& b, std::int64_t b_first, std::int64_t b_stride,
             std::int64_t depth) {
  float chain = 0;
  for (std::int64_t first = 0; first < depth; first += kStep) {
    float half[2] = {};
    for (std::int64_t k = first; k < std::min(first + kStep, depth); ++k) {
      half[k % 2] += static_cast<float>(a[at(a_first + k * a_stride)]) *
                     static_cast<float>(b[at(b_first + k * b_stride)]);
    }
    chain += half[0] + half[1];
  }
  return chain;
}

struct Sizes {
  std::int64_t rows, in, out;
};

class LinearAmx : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (!uses_amx_bf16()) GTEST_SKIP() << "no AMX tiles for bf16 on this processor";
    const Sizes& s = GetParam();
    x_ = random_bf16(s.rows * s.in, 1);
    weight_ = random_bf16(s.out * s.in, 2);
    dy_ = random_bf16(s.rows * s.out, 3);
  }

  std::vector<Bf16> x_, weight_, dy_;
  Context context_{{.threads = 2}};
};

TEST_P(LinearAmx, ForwardAddsInTheDocumentedOrder) {
  const Sizes& s = GetParam();
  std::vector<float> y(at(s.rows * s.out));
  linear(context_, {.x = make_view(std::as_const(x_).data(), {s.rows, s.in}),
                    .weight = make_view(std::as_const(weight_).data(), {s.out, s.in}),
                    .y = make_view(y.data(), {s.rows, s.out}),
                    .implementation = "amx"});
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t o = 0; o < s.out; ++o) {
      ASSERT_EQ(y[at(r * s.out + o)], sum_of(x_, r * s.in, 1, weight_, o * s.in, 1, s.in))
          << "row " << r << ", column " << o;
    }
  }
}

TEST_P(LinearAmx, BackwardAddsInTheDocumentedOrder) {
  const Sizes& s = GetParam();
  std::vector<Bf16> dx(at(s.rows * s.in));
  std::vector<float> dweight(at(s.out * s.in), 0.5F);
  linear_backward(context_, {.dy = make_view(std::as_const(dy_).data(), {s.rows, s.out}),
                             .x = make_view(std::as_const(x_).data(), {s.rows, s.in}),
                             .weight = make_view(std::as_const(weight_).data(), {s.out, s.in}),
                             .dx = make_view(dx.data(), {s.rows, s.in}),
                             .dweight = make_view(dweight.data(), {s.out, s.in}),
                             .accumulate = true,
                             .implementation = "amx"});
  for (std::int64_t i = 0; i < s.in; ++i) {
    for (std::int64_t r = 0; r < s.rows; ++r) {
      const float sum = sum_of(dy_, r * s.out, 1, weight_, i, s.in, s.out);
      ASSERT_EQ(dx[at(r * s.in + i)].bits, convert<Bf16>(sum).bits)
          << "row " << r << ", column " << i;
    }
    for (std::int64_t o = 0; o < s.out; ++o) {
      ASSERT_EQ(dweight[at(o * s.in + i)], 0.5F + sum_of(dy_, o, s.out, x_, i, s.in, s.rows))
          << "row " << o << ", column " << i;
    }
  }
}

// One row, W as it is stored, packed strips, odd borders, several segments, several chunks of rows.
INSTANTIATE_TEST_SUITE_P(Shapes, LinearAmx,
                         testing::Values(Sizes{1, 64, 64}, Sizes{2, 33, 17}, Sizes{40, 512, 96},
                                         Sizes{70, 288, 130}, Sizes{130, 47, 65},
                                         Sizes{1030, 64, 32}));

}  // namespace
}  // namespace touchstone::test
