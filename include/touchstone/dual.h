// Dual numbers: a double that carries K directional derivatives through any templated code.
//
//   Dual<8> x = Dual<8>::variable(0.3, 0);   // value 0.3, derivative 1 in lane 0
//   Dual<8> y = x * exp(x);
//   y.value, y.d[0]                           // f(0.3), f'(0.3)
//
// Every operation is exact to rounding (no step size), so forward-mode derivatives have the
// accuracy of the function itself. The K lanes share the cost of computing the value once.
//
// A Dual behaves like a double: `Dual<8> x;` is uninitialized, `Dual<8> x{}` and vector elements
// are zero, comparisons look at the value only. Where a function has no derivative the rule is that
// of common frameworks: abs has derivative 0 at 0, and max and min follow the operand they return.
#pragma once

#include <cmath>
#include <compare>
#include <numbers>

namespace touchstone::inline v0 {

// The lane loops have a constant trip count and write to a local, so that compilers turn them into
// vector instructions without alias checks (GCC at -O3, Clang at -O2). The type stays free of
// vector extensions, which differ between compilers and warn about the calling convention of wide
// vectors.
template <int K>
struct Dual {
  static_assert(K > 0, "a dual number needs at least one direction");
  static constexpr int kLanes = K;

  double value;
  double d[K];

  Dual() = default;
  constexpr Dual(double v) : value(v), d{} {}  // NOLINT: implicit, so that S s = 0 reads naturally

  static constexpr Dual variable(double v, int lane) {
    Dual out(v);
    out.d[lane] = 1.0;
    return out;
  }

  constexpr Dual& operator+=(const Dual& b) {
    value += b.value;
    for (int k = 0; k < K; ++k) d[k] += b.d[k];
    return *this;
  }
  constexpr Dual& operator-=(const Dual& b) {
    value -= b.value;
    for (int k = 0; k < K; ++k) d[k] -= b.d[k];
    return *this;
  }
  constexpr Dual& operator*=(const Dual& b) { return *this = *this * b; }
  constexpr Dual& operator/=(const Dual& b) { return *this = *this / b; }
  constexpr Dual& operator+=(double b) {
    value += b;
    return *this;
  }
  constexpr Dual& operator-=(double b) {
    value -= b;
    return *this;
  }
  constexpr Dual& operator*=(double b) {
    value *= b;
    for (int k = 0; k < K; ++k) d[k] *= b;
    return *this;
  }
  constexpr Dual& operator/=(double b) {
    value /= b;
    for (int k = 0; k < K; ++k) d[k] /= b;
    return *this;
  }

  friend constexpr Dual operator+(const Dual& a) { return a; }
  friend constexpr Dual operator-(const Dual& a) {
    Dual c;
    c.value = -a.value;
    for (int k = 0; k < K; ++k) c.d[k] = -a.d[k];
    return c;
  }
  friend constexpr Dual operator+(const Dual& a, const Dual& b) {
    Dual c;
    c.value = a.value + b.value;
    for (int k = 0; k < K; ++k) c.d[k] = a.d[k] + b.d[k];
    return c;
  }
  friend constexpr Dual operator-(const Dual& a, const Dual& b) {
    Dual c;
    c.value = a.value - b.value;
    for (int k = 0; k < K; ++k) c.d[k] = a.d[k] - b.d[k];
    return c;
  }
  friend constexpr Dual operator*(const Dual& a, const Dual& b) {
    Dual c;
    c.value = a.value * b.value;
    for (int k = 0; k < K; ++k) c.d[k] = a.value * b.d[k] + b.value * a.d[k];
    return c;
  }
  friend constexpr Dual operator/(const Dual& a, const Dual& b) {
    Dual c;
    c.value = a.value / b.value;
    const double slope = 1.0 / b.value;
    for (int k = 0; k < K; ++k) c.d[k] = (a.d[k] - c.value * b.d[k]) * slope;
    return c;
  }
  friend constexpr Dual operator+(const Dual& a, double b) { return shifted(a, a.value + b); }
  friend constexpr Dual operator+(double a, const Dual& b) { return shifted(b, a + b.value); }
  friend constexpr Dual operator-(const Dual& a, double b) { return shifted(a, a.value - b); }
  friend constexpr Dual operator-(double a, const Dual& b) { return chain(b, a - b.value, -1.0); }
  friend constexpr Dual operator*(const Dual& a, double b) { return chain(a, a.value * b, b); }
  friend constexpr Dual operator*(double a, const Dual& b) { return chain(b, a * b.value, a); }
  friend constexpr Dual operator/(const Dual& a, double b) {
    Dual c = a;
    return c /= b;
  }
  friend constexpr Dual operator/(double a, const Dual& b) {
    const double q = a / b.value;
    return chain(b, q, -q / b.value);
  }

  friend constexpr bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }
  friend constexpr std::partial_ordering operator<=>(const Dual& a, const Dual& b) {
    return a.value <=> b.value;
  }

  // The chain rule for a function of one argument: value f(a), slope f'(a).
  friend constexpr Dual chain(const Dual& a, double f, double slope) {
    Dual c;
    c.value = f;
    for (int k = 0; k < K; ++k) c.d[k] = slope * a.d[k];
    return c;
  }

  friend Dual sqrt(const Dual& a) {
    const double root = std::sqrt(a.value);
    return chain(a, root, 0.5 / root);
  }
  friend Dual rsqrt(const Dual& a) { return 1.0 / sqrt(a); }
  friend Dual exp(const Dual& a) {
    const double e = std::exp(a.value);
    return chain(a, e, e);
  }
  friend Dual exp2(const Dual& a) {
    const double e = std::exp2(a.value);
    return chain(a, e, e * kLn2);
  }
  friend Dual expm1(const Dual& a) { return chain(a, std::expm1(a.value), std::exp(a.value)); }
  friend Dual log(const Dual& a) { return chain(a, std::log(a.value), 1.0 / a.value); }
  friend Dual log2(const Dual& a) { return chain(a, std::log2(a.value), 1.0 / (a.value * kLn2)); }
  friend Dual log1p(const Dual& a) { return chain(a, std::log1p(a.value), 1.0 / (1.0 + a.value)); }
  friend Dual sin(const Dual& a) { return chain(a, std::sin(a.value), std::cos(a.value)); }
  friend Dual cos(const Dual& a) { return chain(a, std::cos(a.value), -std::sin(a.value)); }
  friend Dual tanh(const Dual& a) {
    const double t = std::tanh(a.value);
    // 1 - t^2 cancels for large |a|; 1/cosh^2 does not.
    const double c = std::cosh(a.value);
    return chain(a, t, 1.0 / (c * c));
  }
  friend Dual erf(const Dual& a) {
    return chain(a, std::erf(a.value), kTwoOverSqrtPi * std::exp(-a.value * a.value));
  }
  friend Dual abs(const Dual& a) {
    const double sign = a.value > 0 ? 1.0 : (a.value < 0 ? -1.0 : 0.0);
    return chain(a, std::fabs(a.value), sign);
  }
  friend Dual fabs(const Dual& a) { return abs(a); }
  friend Dual max(const Dual& a, const Dual& b) { return a.value < b.value ? b : a; }
  friend Dual min(const Dual& a, const Dual& b) { return b.value < a.value ? b : a; }
  friend Dual fma(const Dual& a, const Dual& b, const Dual& c) {
    Dual out = a * b + c;
    out.value = std::fma(a.value, b.value, c.value);
    return out;
  }
  friend Dual pow(const Dual& a, double p) {
    // x^0 is 1 with slope 0 at every x, also where p * x^(p-1) would read 0 * inf.
    const double slope = p == 0 ? 0.0 : p * std::pow(a.value, p - 1.0);
    return chain(a, std::pow(a.value, p), slope);
  }
  // General power for a positive base: d(a^b) = b a^(b-1) da + a^b log(a) db.
  friend Dual pow(const Dual& a, const Dual& b) {
    const double f = std::pow(a.value, b.value);
    const double base_slope = b.value * std::pow(a.value, b.value - 1.0);
    const double exponent_slope = f * std::log(a.value);
    Dual c;
    c.value = f;
    for (int k = 0; k < K; ++k) c.d[k] = base_slope * a.d[k] + exponent_slope * b.d[k];
    return c;
  }

  friend bool isnan(const Dual& a) { return std::isnan(a.value); }
  friend bool isinf(const Dual& a) { return std::isinf(a.value); }
  friend bool isfinite(const Dual& a) { return std::isfinite(a.value); }

 private:
  static constexpr double kLn2 = std::numbers::ln2;
  static constexpr double kTwoOverSqrtPi = 1.12837916709551257390;

  static constexpr Dual shifted(const Dual& a, double v) {
    Dual c = a;
    c.value = v;
    return c;
  }
};

// The plain number inside a scalar, for code templated on double or Dual.
constexpr double value_of(double x) { return x; }
template <int K>
constexpr double value_of(const Dual<K>& x) {
  return x.value;
}

}  // namespace touchstone::inline v0
