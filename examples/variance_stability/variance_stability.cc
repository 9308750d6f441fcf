// Four ways to compute a variance, on numbers that sit far away from zero.
//
// The variance of offset + noise does not depend on the offset, but formulas that form large
// intermediate numbers lose it to rounding. Reads best side by side:
//
//   naive        mean(x^2) - mean(x)^2
//   two-pass     m = mean(x), then mean((x - m)^2)
//   Welford      one pass that updates mean and variance with every element
//   re-centered  m = mean(x), d = x - m, delta = mean(d), then mean(d^2) - delta^2
//
// The last is what Touchstone's norms compute: d is small and nearly exact, and delta repairs what
// the rounding of m took away. All methods see the same, already rounded inputs, and are measured
// against the variance of exactly those inputs.
//
// Usage: variance_stability [--csv]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "touchstone/gradcheck.h"

namespace {

constexpr int kCount = 4096;
constexpr int kLanes = 16;  // partial sums, as a vectorized loop keeps them

template <class T, class Term>
T mean_of(const std::vector<T>& x, const Term& term) {
  T lanes[kLanes] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % kLanes] += term(x[i]);
  T sum = 0;
  for (T lane : lanes) sum += lane;
  return sum / static_cast<T>(x.size());
}

template <class T>
T naive(const std::vector<T>& x) {
  const T mean = mean_of(x, [](T v) { return v; });
  return mean_of(x, [](T v) { return v * v; }) - mean * mean;
}

template <class T>
T two_pass(const std::vector<T>& x) {
  const T mean = mean_of(x, [](T v) { return v; });
  return mean_of(x, [=](T v) { return (v - mean) * (v - mean); });
}

template <class T>
T welford(const std::vector<T>& x) {
  T mean = 0;
  T squares = 0;
  T count = 0;
  for (T v : x) {
    count += 1;
    const T before = v - mean;
    mean += before / count;
    squares += before * (v - mean);
  }
  return squares / count;
}

template <class T>
T recentered(const std::vector<T>& x) {
  const T mean = mean_of(x, [](T v) { return v; });
  const T delta = mean_of(x, [=](T v) { return v - mean; });
  return mean_of(x, [=](T v) { return (v - mean) * (v - mean); }) - delta * delta;
}

// Differences from the first element are exact: its neighbors differ by less than a factor of two.
// What is left is small, and long double computes its variance to 18 digits.
template <class T>
long double true_variance(const std::vector<T>& x) {
  std::vector<long double> d;
  d.reserve(x.size());
  for (T v : x) d.push_back(static_cast<long double>(v) - static_cast<long double>(x[0]));
  const long double count = static_cast<long double>(d.size());
  long double mean = 0, squares = 0;
  for (long double v : d) mean += v / count;
  for (long double v : d) squares += (v - mean) * (v - mean);
  return squares / count;
}

constexpr const char* kMethods[] = {"naive", "two-pass", "Welford", "re-centered"};

struct Row {
  double offset;
  double truth;
  double variance[4];
  double error[4];  // relative
};

template <class T>
Row measure(double offset) {
  std::vector<T> x;
  for (double noise : touchstone::gradcheck::random_values(kCount, 1)) {
    x.push_back(static_cast<T>(offset + noise));
  }
  const long double truth = true_variance(x);
  const T results[4] = {naive(x), two_pass(x), welford(x), recentered(x)};
  Row row{offset, static_cast<double>(truth), {}, {}};
  for (int m = 0; m < 4; ++m) {
    row.variance[m] = static_cast<double>(results[m]);
    row.error[m] =
        static_cast<double>(std::fabs(static_cast<long double>(results[m]) - truth) / truth);
  }
  return row;
}

template <class T>
std::vector<Row> measure_all(double last) {
  std::vector<Row> rows;
  for (double offset = 1e4; offset <= last; offset *= 10) rows.push_back(measure<T>(offset));
  return rows;
}

void print_table(const char* title, const std::vector<Row>& rows) {
  std::printf("%s\n\n%8s  %13s", title, "offset", "true variance");
  for (const char* method : kMethods) std::printf("  %22s", method);
  std::printf("\n%8s  %13s", "", "");
  for (int m = 0; m < 4; ++m) std::printf("  %13s %8s", "variance", "error");
  std::printf("\n");
  for (const Row& row : rows) {
    std::printf("%8.0e  %13.8f", row.offset, row.truth);
    for (int m = 0; m < 4; ++m) {
      // The naive formula leaves every scale: fixed digits where they fit, powers where not.
      const bool fits = std::fabs(row.variance[m]) < 1e4;
      std::printf(fits ? "  %13.8f %8.0e" : "  %13.4e %8.0e", row.variance[m], row.error[m]);
    }
    std::printf("\n");
  }
  std::printf("\n");
}

void print_csv(const char* type, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    for (int m = 0; m < 4; ++m) {
      std::printf("%s,%g,%s,%.17g,%.17g,%.3e\n", type, row.offset, kMethods[m], row.truth,
                  row.variance[m], row.error[m]);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool csv = argc == 2 && std::strcmp(argv[1], "--csv") == 0;
  if (argc > 1 && !csv) {
    std::fprintf(stderr, "usage: %s [--csv]\n", argv[0]);
    return 2;
  }
  const std::vector<Row> single = measure_all<float>(1e7);
  const std::vector<Row> twice = measure_all<double>(1e14);
  if (csv) {
    std::printf("type,offset,method,true_variance,variance,relative_error\n");
    print_csv("float32", single);
    print_csv("float64", twice);
    return 0;
  }
  std::printf("Variance of %d values, offset + noise of variance 1.\n\n", kCount);
  print_table("float32", single);
  std::printf(
      "Beyond 2^24 = 1.7e7 neighboring float32 numbers are 2 or more apart: the inputs "
      "themselves\n"
      "collapse, and no formula can bring the noise back. Already at 1e7 they are rounded to "
      "whole\n"
      "numbers, which is why the true variance has moved. float64 goes on:\n\n");
  print_table("float64", twice);
  std::printf("error: relative, against the variance of the same rounded inputs.\n");
  return 0;
}
