// Dual numbers against closed forms and against central differences.
#include "touchstone/dual.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

namespace touchstone::inline v0 {
namespace {

using D2 = Dual<2>;

static_assert(std::is_trivially_copyable_v<Dual<8>>);
static_assert(sizeof(Dual<8>) == 9 * sizeof(double));

TEST(Dual, BehavesLikeADouble) {
  EXPECT_EQ(D2{}.value, 0.0);
  EXPECT_EQ(std::vector<D2>(3)[2].d[1], 0.0);
  const D2 three = 3;
  EXPECT_EQ(three.value, 3.0);
  EXPECT_EQ(three.d[0], 0.0);
  EXPECT_TRUE(three < 4.0 && 2.0 < three && three == 3.0 && three >= D2(3.0) && three != D2(1.0));
  const D2 nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(nan < three || nan > three || nan == nan);
  EXPECT_TRUE(isnan(nan) && !isfinite(nan) && isfinite(three) && isinf(three / 0.0));
  EXPECT_EQ(value_of(three), value_of(3.0));
}

TEST(Dual, ArithmeticRules) {
  const D2 x = D2::variable(3.0, 0), y = D2::variable(2.0, 1);
  const auto expect = [](const D2& z, double value, double dx, double dy) {
    EXPECT_DOUBLE_EQ(z.value, value);
    EXPECT_DOUBLE_EQ(z.d[0], dx);
    EXPECT_DOUBLE_EQ(z.d[1], dy);
  };
  expect(x + y, 5, 1, 1);
  expect(x - y, 1, 1, -1);
  expect(x * y, 6, 2, 3);
  expect(x / y, 1.5, 0.5, -0.75);
  expect(-x, -3, -1, 0);
  expect(+x, 3, 1, 0);
  expect(x + 1.0, 4, 1, 0);
  expect(1.0 + x, 4, 1, 0);
  expect(x - 1.0, 2, 1, 0);
  expect(1.0 - x, -2, -1, 0);
  expect(x * 4.0, 12, 4, 0);
  expect(4 * x, 12, 4, 0);
  expect(x / 2, 1.5, 0.5, 0);
  expect(6.0 / x, 2, -2.0 / 3.0, 0);
  D2 z = x;
  expect(z += y, 5, 1, 1);
  expect(z -= x, 2, 0, 1);
  expect(z *= x, 6, 2, 3);
  expect(z /= y, 3, 1, 0);
  expect(z += 1.0, 4, 1, 0);
  expect(z -= 2.0, 2, 1, 0);
  expect(z *= 3.0, 6, 3, 0);
  expect(z /= 6.0, 1, 0.5, 0);
  z = x;
  const D2& same = z;  // both operands are the result
  expect(z *= same, 9, 6, 0);
  expect(z /= same, 1, 0, 0);
  expect(max(x, y), 3, 1, 0);
  expect(min(x, y), 2, 0, 1);
  expect(abs(-x), 3, 1, 0);
  expect(fabs(D2::variable(-3.0, 0)), 3, -1, 0);
  expect(abs(D2::variable(0.0, 0)), 0, 0, 0);
  expect(fma(x, y, x), 9, 3, 3);
  expect(pow(x, y), 9, 6, 9 * std::log(3.0));
  expect(pow(x, 0.0), 1, 0, 0);
  expect(pow(D2::variable(0.0, 0), 2.0), 0, 0, 0);
}

TEST(Dual, FunctionsOfOneArgument) {
  struct Case {
    const char* name;
    D2 (*dual)(const D2&);
    double (*slope)(double);
  };
  const Case cases[] = {
      {"sqrt", [](const D2& x) { return sqrt(x); }, [](double x) { return 0.5 / std::sqrt(x); }},
      {"rsqrt", [](const D2& x) { return rsqrt(x); },
       [](double x) { return -0.5 * std::pow(x, -1.5); }},
      {"exp", [](const D2& x) { return exp(x); }, [](double x) { return std::exp(x); }},
      {"exp2", [](const D2& x) { return exp2(x); },
       [](double x) { return std::log(2.0) * std::exp2(x); }},
      {"expm1", [](const D2& x) { return expm1(x); }, [](double x) { return std::exp(x); }},
      {"log", [](const D2& x) { return log(x); }, [](double x) { return 1 / x; }},
      {"log2", [](const D2& x) { return log2(x); },
       [](double x) { return 1 / (x * std::log(2.0)); }},
      {"log1p", [](const D2& x) { return log1p(x); }, [](double x) { return 1 / (1 + x); }},
      {"sin", [](const D2& x) { return sin(x); }, [](double x) { return std::cos(x); }},
      {"cos", [](const D2& x) { return cos(x); }, [](double x) { return -std::sin(x); }},
      {"tanh", [](const D2& x) { return tanh(x); },
       [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); }},
      {"erf", [](const D2& x) { return erf(x); },
       [](double x) { return 2 / std::sqrt(std::acos(-1.0)) * std::exp(-x * x); }},
      {"pow", [](const D2& x) { return pow(x, 2.5); },
       [](double x) { return 2.5 * std::pow(x, 1.5); }},
  };
  for (const Case& c : cases) {
    for (double x : {0.1, 0.9, 1.0, 2.7}) {
      D2 in = x;
      in.d[0] = 1.0;
      in.d[1] = -2.0;
      const D2 out = c.dual(in);
      EXPECT_NEAR(out.d[0], c.slope(x), 1e-15 * std::fabs(c.slope(x)) * 8) << c.name << " " << x;
      EXPECT_DOUBLE_EQ(out.d[1], -2.0 * out.d[0]) << c.name;
      const double h = 1e-5;
      const double difference = (c.dual(D2(x + h)).value - c.dual(D2(x - h)).value) / (2 * h);
      EXPECT_NEAR(out.d[0], difference, 2e-8 * (1 + std::fabs(out.d[0]))) << c.name << " " << x;
    }
  }
}

TEST(Dual, TanhKeepsItsTail) {
  const D2 far = tanh(D2::variable(30.0, 0));
  EXPECT_NEAR(far.d[0] / (4 * std::exp(-60.0)), 1.0, 1e-14);
  EXPECT_EQ(tanh(D2::variable(1000.0, 0)).d[0], 0.0);
}

// The derivative of a long composition, known in closed form: x^64 by repeated squaring.
TEST(Dual, LongChains) {
  Dual<3> x = Dual<3>::variable(1.01, 2);
  for (int i = 0; i < 6; ++i) x *= x;
  EXPECT_NEAR(x.d[2] / (64 * std::pow(1.01, 63)), 1.0, 1e-13);
  EXPECT_EQ(x.d[0], 0.0);
}

}  // namespace
}  // namespace touchstone::inline v0
