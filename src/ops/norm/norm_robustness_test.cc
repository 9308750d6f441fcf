// Calls that are allowed and rare: strange strides and eps, one context for everything, many
// contexts at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include "ops/norm/norm_test_support.h"

namespace touchstone::test {
namespace {

// Forward, and backward on its statistics, against the oracle.
void check_round_trip(const Problem& p, const Data& data) {
  const ExpectedForward forward_expected = expected_forward(p, data);
  const ExpectedBackward backward_expected = expected_backward(p, data);
  for_each_round_trip(p, data, [&](Runner&, ForwardRun& forward, BackwardRun& backward) {
    EXPECT_TRUE(close(forward.y.values(), forward_expected.y, p.dtypes.x, p.cols)) << "y";
    EXPECT_TRUE(close(forward.rstd.values(), forward_expected.rstd, DType::f32)) << "rstd";
    EXPECT_TRUE(close(backward.dx.values(), backward_expected.dx, p.dtypes.x, p.cols)) << "dx";
    EXPECT_TRUE(close(backward.dweight.values(), backward_expected.dweight, DType::f32))
        << "dweight";
  });
}

// eps is a double: what f32 cannot hold must still do what the formula says.
TEST(NormRobust, EpsBeyondF32) {
  for (const Kind kind : kBothKinds) {
    for (const double eps : {1e-70, 1e-50, 1e-40, 1e35, 1e45, 1e60}) {
      // Zero variance, where eps alone decides, and ordinary rows.
      for (const Shape shape : {Shape::constant, Shape::normal}) {
        const Problem p{
            .kind = kind, .lead = {3}, .cols = 100, .eps = eps, .x = {.shape = shape, .center = 2}};
        check_forward(p);
        check_backward(p);
      }
    }
  }
}

// A row as a function of the column, its relative position in [0, 1) and a draw of N(0, 1).
struct Pattern {
  const char* name;
  double (*value)(std::int64_t column, double position, double noise);
};

const Pattern kPatterns[] = {
    {"ramp", [](std::int64_t, double at, double e) { return 1000 * at + e; }},
    {"steps", [](std::int64_t c, double, double e) { return c / 100 % 2 == 0 ? e : 1e4 + e; }},
    {"head far away", [](std::int64_t c, double, double e) { return c < 8 ? 1e5 + e : e; }},
    {"head zero, rest far away",
     [](std::int64_t c, double, double e) { return c < 64 ? 0.0 : 1e5 + e; }},
    {"first element far away", [](std::int64_t c, double, double e) { return c == 0 ? 1e6 : e; }},
    {"end far away", [](std::int64_t, double at, double e) { return at > 0.999 ? -1e6 : e; }},
    {"growing", [](std::int64_t, double at, double e) { return e * std::exp2(20 * at); }},
    {"alternating", [](std::int64_t c, double, double e) { return (c % 2 == 0 ? 1e3 : -1e3) + e; }},
    {"wave on an offset",
     [](std::int64_t, double at, double e) { return 1e5 + 10 * std::sin(40 * at) + e; }},
    {"one step", [](std::int64_t c, double, double) { return c == 5 ? 1.0 : 1e4; }},
    {"half zero", [](std::int64_t, double at, double e) { return at < 0.5 ? 0.0 : e; }},
};

// Rows that are anything but independent draws: whatever an implementation guesses from a part of
// the row is wrong for the rest.
TEST(NormRobust, StructuredRows) {
  for (const std::int64_t cols : {9, 65, 1000, 5000, 20011}) {
    for (const Kind kind : kBothKinds) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const Pattern& pattern : kPatterns) {
          Problem p{.kind = kind, .lead = {3}, .cols = cols};
          p.dtypes.x = dtype;
          Data data = make_data(p);
          for (std::int64_t i = 0; i < 3 * cols; ++i) {
            double& x = data.x[static_cast<std::size_t>(i)];
            const std::int64_t c = i % cols;
            x = pattern.value(c, static_cast<double>(c) / static_cast<double>(cols), x);
          }
          data.x = data.h = rounded(data.x, dtype);
          SCOPED_TRACE(pattern.name);
          check_round_trip(p, data);
        }
      }
    }
  }
}

// eps of the size of the variance, from where squares underflow to where they overflow: neither may
// be lost beside the other, also where the row is worked on in another scale.
TEST(NormRobust, EpsComparableToTheVariance) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : all_dtypes()) {
      if (dtypes.x == DType::f16) continue;  // its range ends where squares are still harmless
      for (const double scale : {1e-32, 1e-25, 1e-18, 1e-14, 1e-12, 1e18, 1e20, 1e30}) {
        for (const double ratio : {0.01, 1.0, 100.0}) {
          const Problem p{.kind = kind,
                          .dtypes = dtypes,
                          .lead = {2},
                          .cols = 100,
                          .eps = ratio * scale * scale,
                          .x = {.center = scale, .scale = scale}};
          check_forward(p);
          check_backward(p);
        }
      }
    }
  }
}

// f64 has a range of its own. Without eps the norm does not see a factor in x: y stays, dx is
// divided by it. Powers of two, so that the inputs are exact.
TEST(NormRobust, DoublesOfAnySize) {
  if (on_gpu()) GTEST_SKIP() << "f64 is for the CPU";
  for (const Kind kind : kBothKinds) {
    Problem p{.kind = kind, .lead = {4}, .cols = 333, .eps = 0};
    p.dtypes = {DType::f64, DType::f64, DType::f64};
    const Data data = make_data(p);
    for (const int exponent : {-1000, -700, -500, 500, 700, 1000}) {
      SCOPED_TRACE(exponent);
      Data scaled = data;
      for (double& value : scaled.x) value = std::ldexp(value, exponent);
      scaled.h = scaled.x;
      ForwardRun forward(p, data);
      BackwardRun backward(p, data);
      ForwardRun scaled_forward(p, scaled);
      for_each_runner(both(forward, backward), [&](Runner& context) {
        forward.run(context);
        backward.take_statistics(forward);
        backward.run(context);
        scaled_forward.run(context);
        EXPECT_LE(relative_l2(scaled_forward.y.values(), forward.y.values()), 1e-14);
        BackwardRun scaled_backward(p, scaled);
        scaled_backward.take_statistics(scaled_forward);
        scaled_backward.run(context);
        std::vector<double> dx = scaled_backward.dx.values();
        for (double& value : dx) value = std::ldexp(value, exponent);
        EXPECT_LE(relative_l2(dx, backward.dx.values()), 1e-13);
        EXPECT_LE(relative_l2(scaled_backward.dweight.values(), backward.dweight.values()), 1e-14);
      });
    }
  }
}

// The same row again and again, without copies.
TEST(NormRobust, ExpandedInput) {
  for (const Kind kind : kBothKinds) {
    for (const std::int64_t cols : {7, 64, 1024}) {
      const Problem p{.kind = kind, .lead = {20}, .cols = cols};
      SCOPED_TRACE(p.describe());
      Data data = make_data(p);
      for (std::size_t i = static_cast<std::size_t>(cols); i < data.x.size(); ++i) {
        data.x[i] = data.x[i - static_cast<std::size_t>(cols)];
      }
      data.h = data.x;
      const ExpectedForward expected = expected_forward(p, data);
      ForwardRun run(p, data);
      run.args.x = with_stride(run.args.x, 0, 0);
      for_each_runner(run.accepting(), [&](Runner& context) {
        run.run(context);
        EXPECT_TRUE(close(run.y.values(), expected.y, DType::f32, cols));
      });
    }
  }
}

// Rows that overlap in the input, as windows sliding over a signal do.
TEST(NormRobust, SlidingWindows) {
  constexpr std::int64_t kRows = 30;
  constexpr std::int64_t kCols = 64;
  for (const Kind kind : kBothKinds) {
    for (const std::int64_t stride : {1, 3, 63}) {
      const Problem p{.kind = kind, .lead = {kRows}, .cols = kCols};
      const std::vector<double> signal =
          rounded(random_values({}, kRows * stride + kCols, 8), DType::f32);
      Data data = make_data(p);
      for (std::size_t i = 0; i < data.x.size(); ++i) {
        const std::size_t row = i / static_cast<std::size_t>(kCols);
        data.x[i] = signal[row * static_cast<std::size_t>(stride) + i % kCols];
      }
      data.h = data.x;
      const ExpectedForward expected = expected_forward(p, data);
      const Guarded input(test_device(), DType::f32, {std::ssize(signal)}, signal);
      ForwardRun run(p, data);
      run.args.x.data = input.view().data;
      run.args.x.stride[0] = stride;
      for_each_runner(run.accepting(), [&](Runner& context) {
        run.run(context);
        EXPECT_TRUE(close(run.y.values(), expected.y, DType::f32, kCols)) << "stride " << stride;
      });
    }
  }
}

// Longer rows than any buffer inside, and more rows than any grid is wide.
TEST(NormRobust, VeryWideAndVeryMany) {
  for (const Kind kind : kBothKinds) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Problem wide{.kind = kind, .lead = {2}, .cols = sanitized_size(1000003, 200003)};
      wide.dtypes.x = dtype;
      check_forward(wide, Targets::best);
      check_backward(wide, Targets::best);
      Problem many{.kind = kind, .lead = {sanitized_size(200001, 70001)}, .cols = 3};
      many.dtypes.x = dtype;
      check_forward(many, Targets::best);
      check_backward(many, Targets::best);
    }
  }
}

// ---- contexts ------------------------------------------------------------------------------

std::vector<Problem> mixed_problems() {
  std::vector<Problem> list;
  for (const std::int64_t cols : {3000, 5, 257, 65537, 64}) {
    for (const Kind kind : kBothKinds) {
      Problem p{.kind = kind, .lead = {200000 / cols / 4 + 1}, .cols = cols};
      p.dtypes.x = cols == 257 ? DType::bf16 : DType::f32;
      list.push_back(p);
    }
  }
  return list;
}

struct Bits {
  std::vector<std::byte> y, dx, dweight;
  friend bool operator==(const Bits&, const Bits&) = default;
};

Bits run_in(Runner& context, const Problem& p, const Data& data) {
  ForwardRun forward(p, data);
  forward.run(context);
  BackwardRun backward(p, data);
  backward.take_statistics(forward);
  backward.run(context);
  return {forward.y.bytes(), backward.dx.bytes(), backward.dweight.bytes()};
}

// What a call left in the scratch memory does not reach the next one.
TEST(NormContexts, OneForEverything) {
  const std::vector<Problem> problems = mixed_problems();
  const Problem any{.lead = {1}, .cols = 64};
  for_each_implementation(ForwardRun(any, make_data(any)).accepting(), [&](Runner& shared) {
    // The vectorized ones may refuse some.
    if (on_gpu() && shared.implementation() != "portable") shared.set_implementation("");
    for (int round = 0; round < 2; ++round) {
      for (const Problem& p : problems) {
        const Data data = make_data(p);
        Runner fresh({.device = test_device(),
                      .threads = kTestThreads,
                      .implementation = shared.implementation()});
        EXPECT_TRUE(run_in(shared, p, data) == run_in(fresh, p, data)) << p.describe();
      }
    }
  });
}

// Rows with NaN or infinity have a path of their own in `simd`: it gives the bits that arithmetic
// gives. An element that is NaN keeps its sign and payload, the others become the default NaN; in
// place too.
TEST(NormRobust, NonFiniteRowsHaveTheBitsOfArithmetic) {
  if (on_gpu()) GTEST_SKIP() << "about a path of the CPU";
  const std::int64_t cols = 133;
  const double infinity = HUGE_VAL;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double payload = std::bit_cast<double>(std::uint64_t{0xfffa'a000'0000'0000});
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const std::vector<double>& bad :
         {std::vector<double>{nan}, {payload}, {infinity}, {-infinity, payload, nan, infinity}}) {
      SCOPED_TRACE(name_of(dtype));
      const auto run = [&](const char* implementation, bool in_place) {
        Tensor x = Tensor::empty({2, cols}, dtype);
        Tensor y = Tensor::zeros({2, cols}, dtype);
        visit_float_dtype(dtype, [&]<class T>() {
          const std::span<T> values = x.values<T>();
          for (std::size_t i = 0; i < values.size(); ++i) {
            values[i] = convert<T>(static_cast<double>(i % 13));
          }
          for (std::size_t i = 0; i < bad.size(); ++i) values[5 + 31 * i] = convert<T>(bad[i]);
        });
        Context context({.threads = 1});
        layer_norm(context, {.x = x, .y = in_place ? x : y, .implementation = implementation});
        const auto* bytes = static_cast<const std::byte*>((in_place ? x : y).data());
        return std::vector<std::byte>(bytes, bytes + x.bytes());
      };
      const std::vector<std::byte> expected = run("plain", false);
      const std::size_t row = expected.size() / 2;  // the other row is rounded, not determined
      for (const bool in_place : {false, true}) {
        const std::vector<std::byte> got = run("simd", in_place);
        EXPECT_TRUE(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(row),
                               expected.begin()))
            << "in place: " << in_place;
      }
    }
  }
}

// A NaN has the same sign whoever makes it: fewer rows than threads take another path to the sums.
TEST(NormRobust, NonFiniteRowsHaveTheSameBitsForAnyNumberOfThreads) {
  if (on_gpu()) GTEST_SKIP() << "threads are a matter of the CPU";
  for (const Kind kind : kBothKinds) {
    Problem p{.kind = kind, .lead = {12}, .cols = 4096, .eps = 0};
    Data data = make_data(p);
    data.x[5 * 4096 + 9] = data.h[5 * 4096 + 9] = HUGE_VAL;
    // Of variance 0, which is NaN without eps.
    std::fill_n(data.x.begin() + 7 * 4096, 4096, 0.0);
    std::fill_n(data.h.begin() + 7 * 4096, 4096, 0.0);
    for_each_round_trip(p, data, [&](Runner& context, ForwardRun& f, BackwardRun& b) {
      const std::vector<std::byte> dx = b.dx.bytes();
      const std::vector<std::byte> dweight = b.dweight.bytes();
      for (const int threads : {1, 3}) {
        Runner other({.threads = threads, .implementation = context.implementation()});
        f.run(other);
        b.run(other);
        EXPECT_TRUE(same_bits(b.dx, dx)) << "dx";
        EXPECT_TRUE(same_bits(b.dweight, dweight)) << "dweight";
      }
    });
  }
}

// Contexts of different threads share nothing.
TEST(NormContexts, ManyAtOnce) {
  const std::vector<Problem> problems = mixed_problems();
  std::vector<Data> data;
  std::vector<Bits> expected;
  for (const Problem& p : problems) {
    data.push_back(make_data(p));
    Runner context({.device = test_device(), .threads = 1, .implementation = ""});
    expected.push_back(run_in(context, p, data.back()));
  }
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      Runner context({.device = test_device(), .threads = 2, .implementation = ""});
      for (std::size_t i = 0; i < problems.size(); ++i) {
        const std::size_t k = (i + 3 * t) % problems.size();
        wrong[t] += run_in(context, problems[k], data[k]) == expected[k] ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(wrong.size(), 0));
}

}  // namespace
}  // namespace touchstone::test
