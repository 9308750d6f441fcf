// What the norms guarantee beyond closeness to the oracle: accuracy at large means, bitwise
// reproducibility, independence of rows, aliasing and memory layout.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/norm/norm_test_support.h"

namespace touchstone::test {
namespace {

// The bytes of every output of a forward and the backward on its statistics.
struct Outputs {
  std::vector<std::byte> y, sum, mean, rstd, dx, dweight, dbias;
  friend bool operator==(const Outputs&, const Outputs&) = default;
};

Outputs outputs_of(const ForwardRun& forward, const BackwardRun& backward) {
  return {forward.y.bytes(),     forward.sum.bytes(), forward.mean.bytes(),
          forward.rstd.bytes(),  backward.dx.bytes(), backward.dweight.bytes(),
          backward.dbias.bytes()};
}

std::vector<DTypes> some_dtypes() {
  return {{DType::f32, DType::f32, DType::f32},
          {DType::bf16, DType::bf16, DType::f32},
          {DType::f16, DType::f32, DType::f16}};
}

// ---- large means ---------------------------------------------------------------------------

void check_large_mean(std::int64_t cols, double ratio, double limit, DType dtype = DType::f32) {
  // As many numbers whatever the width: the error is that of a row.
  const std::int64_t rows = std::max<std::int64_t>(8, sanitized_size(64, 8) * 4096 / cols);
  Problem p{.lead = {rows}, .cols = cols, .x = {.center = ratio}};
  p.dtypes = {dtype, dtype, dtype};
  const Data data = make_data(p);
  const ExpectedForward forward_expected = expected_forward(p, data);
  const ExpectedBackward backward_expected = expected_backward(p, data);
  for_each_round_trip(p, data, [&](Runner&, ForwardRun& forward, BackwardRun& backward) {
    EXPECT_LE(relative_l2(forward.y.values(), forward_expected.y.value), limit);
    EXPECT_LE(relative_l2(forward.rstd.values(), forward_expected.rstd.value), limit);
    EXPECT_LE(relative_l2(forward.mean.values(), forward_expected.mean.value), 1e-6);
    EXPECT_LE(relative_l2(backward.dx.values(), backward_expected.dx.value), limit);
    EXPECT_LE(relative_l2(backward.dweight.values(), backward_expected.dweight.value), limit);
    EXPECT_LE(relative_l2(backward.dbias.values(), backward_expected.dbias.value), 1e-6);
  });
}

TEST(NormLargeMean, AccurateUpToAMillionSigmas) {
  for (const std::int64_t cols : {4096, 65537}) {
    for (const double ratio : {1e2, 1e3, 1e4, 1e5, 1e6}) check_large_mean(cols, ratio, 1e-6);
  }
}

TEST(NormLargeMean, NegativeMean) { check_large_mean(4096, -1e6, 1e-6); }

// Beyond, the error grows in proportion to mean / sigma. The sigma that counts is that of the
// rounded data: at 1e8 the inputs themselves lie 8 apart.
TEST(NormLargeMean, GrowsInProportionBeyond) {
  for (const double ratio : {1e7, 1e8}) check_large_mean(4096, ratio, ratio * 1e-12);
}

// f64 re-centers as well. Its own rounding is 2^29 times finer.
TEST(NormLargeMean, Doubles) {
  if (on_gpu()) GTEST_SKIP() << "f64 is for the CPU";
  for (const double ratio : {1e8, 1e11, 1e13}) check_large_mean(4096, ratio, 1e-10, DType::f64);
}

// ---- bitwise reproducibility ---------------------------------------------------------------

TEST(NormBits, SameFromRunToRun) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : some_dtypes()) {
      const Problem p{.kind = kind, .dtypes = dtypes, .lead = {300}, .cols = 257, .fused = true};
      const Data data = make_data(p);
      ForwardRun forward(p, data);
      BackwardRun backward(p, data);
      for_each_implementation(both(forward, backward), [&](Runner& context) {
        Outputs first;
        for (std::int64_t i = 0; i < sanitized_size(100, 10); ++i) {
          forward.run(context);
          backward.take_statistics(forward);
          backward.run(context);
          if (i == 0) first = outputs_of(forward, backward);
          ASSERT_TRUE(outputs_of(forward, backward) == first) << "run " << i;
        }
      });
    }
  }
}

TEST(NormBits, SameForAnyNumberOfThreads) {
  if (on_gpu()) GTEST_SKIP() << "threads are a matter of the CPU";
  struct Size {
    std::int64_t rows, cols;
  };
  // Few wide rows and many narrow ones are split in different ways.
  for (const Size& size : {Size{1, 65537}, Size{2, 20000}, Size{5, 4096}, Size{1000, 100},
                           Size{5000, 3}, Size{257, 768}}) {
    for (const Kind kind : kBothKinds) {
      for (const DTypes& dtypes : some_dtypes()) {
        const Problem p{.kind = kind, .dtypes = dtypes, .lead = {size.rows}, .cols = size.cols};
        const Data data = make_data(p);
        for_each_round_trip(p, data, [&](Runner& context, ForwardRun& f, BackwardRun& b) {
          const Outputs first = outputs_of(f, b);
          for (const int threads : {1, 2, 5, 16}) {
            Runner other({.threads = threads, .implementation = context.implementation()});
            f.run(other);
            b.run(other);
            EXPECT_TRUE(outputs_of(f, b) == first) << threads << " threads";
          }
        });
      }
    }
  }
}

// Rows [first, first + rows) of a problem and its data.
Data slice(const Data& data, std::int64_t first, std::int64_t rows, std::int64_t cols) {
  const auto cut = [&](const std::vector<double>& v) {
    if (v.empty()) return v;
    const auto begin = v.begin() + static_cast<std::ptrdiff_t>(first * cols);
    return std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(rows * cols));
  };
  return {cut(data.x), cut(data.residual), cut(data.h),   data.weight,
          data.bias,   cut(data.dy),       cut(data.dsum)};
}

// Rows [first, first + rows) as a view into the larger tensor.
template <class View>
View row_slice(View view, std::int64_t first, std::int64_t rows) {
  if (!view.defined()) return view;
  using Bytes = std::conditional_t<std::is_same_v<View, TensorView>, std::byte*, const std::byte*>;
  view.data = static_cast<Bytes>(view.data) + first * view.stride[0] * size_of(view.dtype);
  view.shape[0] = rows;
  return view;
}

struct Batch {
  std::int64_t rows, cols;
  DType dtype;
};

// A row is the same bits whatever batch it is in: copied out on its own, and as a slice in place,
// which starts at another alignment. Also where the implementation is chosen by the library: the
// choice may look at everything but the number of rows.
class SameRowInAnyBatch {
 public:
  SameRowInAnyBatch(const Problem& p, const Data& data)
      : width_(static_cast<std::size_t>(p.cols * size_of(p.dtypes.x))), whole_(p, data) {
    for (const std::int64_t rows : {1, 2, 255, 256}) {
      if (kFirst + rows > p.rows()) continue;
      Problem part = p;
      part.lead = {rows};
      const Data cut = slice(data, kFirst, rows, p.cols);
      parts_.push_back({rows, Both(part, cut), Both(part, cut)});
      Both& in_place = parts_.back().in_place;
      in_place.f.args.x = row_slice(whole_.f.args.x, kFirst, rows);
      in_place.f.args.residual = row_slice(whole_.f.args.residual, kFirst, rows);
      in_place.b.args.x = row_slice(whole_.b.args.x, kFirst, rows);
      in_place.b.args.dy = row_slice(whole_.b.args.dy, kFirst, rows);
      in_place.b.args.dsum = row_slice(whole_.b.args.dsum, kFirst, rows);
    }
  }

  std::vector<std::string> accepting() const { return whole_.f.accepting(); }

  void check(Runner& context) {
    whole_.run(context);
    const std::vector<std::byte> y = whole_.f.y.bytes();
    const std::vector<std::byte> dx = whole_.b.dx.bytes();
    for (Part& part : parts_) {
      SCOPED_TRACE(std::to_string(part.rows) + " rows");
      const auto cut = [&](const std::vector<std::byte>& bytes) {
        const auto rows = static_cast<std::size_t>(part.rows);
        return std::span(bytes).subspan(kFirst * width_, rows * width_);
      };
      part.copied.run(context);
      EXPECT_TRUE(same_bits(part.copied.f.y, cut(y))) << "y, copied out";
      EXPECT_TRUE(same_bits(part.copied.b.dx, cut(dx))) << "dx, copied out";
      part.in_place.run(context);
      EXPECT_TRUE(same_bits(part.in_place.f.y, cut(y))) << "y, in place";
      EXPECT_TRUE(same_bits(part.in_place.b.dx, cut(dx))) << "dx, in place";
    }
  }

 private:
  static constexpr std::int64_t kFirst = 11;

  struct Both {
    Both(const Problem& p, const Data& data) : f(p, data), b(p, data) {}
    void run(Runner& context) {
      f.run(context);
      b.take_statistics(f);
      b.run(context);
    }
    ForwardRun f;
    BackwardRun b;
  };
  struct Part {
    std::int64_t rows = 0;
    Both copied;
    Both in_place;
  };

  std::size_t width_;
  Both whole_;
  std::vector<Part> parts_;
};

TEST(NormBits, SameRowInAnyBatch) {
  constexpr std::int64_t kMany = sanitized_size(4096, 300);
  constexpr std::int64_t kSome = sanitized_size(300, 20);
  for (const Batch& batch : {Batch{kMany, 64, DType::f32}, Batch{kMany, 257, DType::bf16},
                             Batch{kMany / 6, 767, DType::f32}, Batch{kSome, 4096, DType::f32},
                             Batch{kSome, 1000, DType::f16}, Batch{14, 65537, DType::f32}}) {
    for (const Kind kind : kBothKinds) {
      Problem p{.kind = kind, .lead = {batch.rows}, .cols = batch.cols, .fused = true};
      p.dtypes.x = batch.dtype;
      SCOPED_TRACE(p.describe());
      SameRowInAnyBatch test(p, make_data(p));
      for_each_runner(test.accepting(), [&](Runner& context) {
        // The vectorized ones may refuse the slices; see below.
        if (on_gpu() && context.implementation() != "portable") return;
        test.check(context);
      });
      for_each_implementation({""}, [&](Runner& context) { test.check(context); });
    }
  }
}

// The layout of memory does not show in the results: row gaps and a start off every alignment.
TEST(NormBits, SameForAnyLayout) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : some_dtypes()) {
      for (const std::int64_t cols : {7, 64, 1000, 4096}) {
        Problem p{.kind = kind, .dtypes = dtypes, .lead = {9}, .cols = cols, .fused = true};
        const Data data = make_data(p);
        ForwardRun dense_forward(p, data);
        BackwardRun dense_backward(p, data);
        Problem spread = p;
        spread.layout = {.row_gap = 3, .offset = 1};
        for_each_round_trip(spread, data, [&](Runner& context, ForwardRun& f, BackwardRun&) {
          dense_forward.run(context);
          EXPECT_TRUE(same_bits(dense_forward.y, f.y.bytes()));
          EXPECT_TRUE(same_bits(dense_forward.rstd, f.rstd.bytes()));
        });
      }
    }
  }
}

// ---- rows do not touch each other ----------------------------------------------------------

constexpr std::int64_t kBadRow = 5;

bool row_is(const std::vector<double>& values, std::int64_t row, std::int64_t cols,
            bool (*predicate)(double)) {
  for (std::int64_t c = 0; c < cols; ++c) {
    if (!predicate(values[static_cast<std::size_t>(row * cols + c)])) return false;
  }
  return true;
}

bool is_nan(double value) { return std::isnan(value); }
bool is_not_finite(double value) { return !std::isfinite(value); }

// The bytes without those of the bad row.
std::vector<std::byte> other_rows(std::vector<std::byte> bytes, std::int64_t rows) {
  if (bytes.empty()) return bytes;
  const auto width = static_cast<std::ptrdiff_t>(bytes.size()) / rows;
  bytes.erase(bytes.begin() + kBadRow * width, bytes.begin() + (kBadRow + 1) * width);
  return bytes;
}

void expect_other_rows_same(const ForwardRun& f, const BackwardRun& b, const Outputs& clean,
                            std::int64_t rows) {
  EXPECT_EQ(other_rows(f.y.bytes(), rows), other_rows(clean.y, rows));
  EXPECT_EQ(other_rows(f.mean.bytes(), rows), other_rows(clean.mean, rows));
  EXPECT_EQ(other_rows(f.rstd.bytes(), rows), other_rows(clean.rstd, rows));
  EXPECT_EQ(other_rows(b.dx.bytes(), rows), other_rows(clean.dx, rows));
}

TEST(NormSpecial, NotANumberStaysInItsRow) {
  constexpr std::int64_t kRows = 12;
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : some_dtypes()) {
      for (const std::int64_t cols : {1, 7, 300, 5000}) {
        const Problem p{.kind = kind, .dtypes = dtypes, .lead = {kRows}, .cols = cols};
        const Data data = make_data(p);
        std::vector<Outputs> clean;
        for_each_round_trip(p, data, [&](Runner&, ForwardRun& f, BackwardRun& b) {
          clean.push_back(outputs_of(f, b));
        });
        for (const double bad :
             {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
              -std::numeric_limits<double>::infinity()}) {
          SCOPED_TRACE(bad);
          Data with = data;
          with.x[static_cast<std::size_t>(kBadRow * cols + cols / 2)] = bad;
          with.h = with.x;
          std::size_t runner = 0;
          for_each_round_trip(p, with, [&](Runner&, ForwardRun& f, BackwardRun& b) {
            EXPECT_TRUE(row_is(f.y.values(), kBadRow, cols, is_nan)) << "y";
            if (kind == Kind::layer) {
              EXPECT_TRUE(row_is(f.mean.values(), kBadRow, 1, is_nan));
            }
            EXPECT_TRUE(row_is(f.rstd.values(), kBadRow, 1, is_nan)) << "rstd";
            EXPECT_TRUE(row_is(b.dx.values(), kBadRow, cols, is_nan)) << "dx";
            EXPECT_TRUE(row_is(b.dweight.values(), 0, cols, is_nan)) << "dweight";
            expect_other_rows_same(f, b, clean.at(runner++), kRows);
          });
        }
      }
    }
  }
}

TEST(NormSpecial, NotFiniteGradientStaysInItsRow) {
  constexpr std::int64_t kRows = 12;
  constexpr std::int64_t kCols = 300;
  for (const Kind kind : kBothKinds) {
    const Problem p{.kind = kind, .lead = {kRows}, .cols = kCols};
    const Data data = make_data(p);
    std::vector<Outputs> clean;
    for_each_round_trip(p, data, [&](Runner&, ForwardRun& f, BackwardRun& b) {
      clean.push_back(outputs_of(f, b));
    });
    for (const double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
      Data with = data;
      with.dy[kBadRow * kCols + 17] = bad;
      std::size_t runner = 0;
      for_each_round_trip(p, with, [&](Runner&, ForwardRun& f, BackwardRun& b) {
        // From infinity, the formula makes infinities of either sign and their differences.
        EXPECT_TRUE(row_is(b.dx.values(), kBadRow, kCols, std::isnan(bad) ? is_nan : is_not_finite))
            << "dx";
        const std::vector<double> dweight = b.dweight.values();
        EXPECT_FALSE(std::isfinite(dweight[17]));
        // The other columns never see that element.
        for (std::size_t c = 0; c < dweight.size(); ++c) {
          if (c != 17) {
            EXPECT_TRUE(std::isfinite(dweight[c])) << "column " << c;
          }
        }
        expect_other_rows_same(f, b, clean.at(runner++), kRows);
      });
    }
  }
}

// ---- aliasing ------------------------------------------------------------------------------

TEST(NormAliasing, ForwardInPlace) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : some_dtypes()) {
      for (const std::int64_t cols : {7, 64, 1000, 65537}) {
        const Problem p{.kind = kind, .dtypes = dtypes, .lead = {3}, .cols = cols, .fused = true};
        SCOPED_TRACE(p.describe());
        const Data data = make_data(p);
        ForwardRun apart(p, data);
        for_each_runner(apart.accepting(), [&](Runner& context) {
          apart.run(context);
          const auto expect_same = [&](bool y_is_x, bool sum_is_residual) {
            ForwardRun shared(p, data);
            const Guarded& for_y = y_is_x ? shared.x : shared.residual;
            const Guarded& for_sum = sum_is_residual ? shared.residual : shared.x;
            shared.args.y = for_y;
            shared.args.sum = for_sum;
            call(context, kind, context.with(shared.args));
            context.synchronize();
            EXPECT_TRUE(same_bits(for_y, apart.y.bytes()));
            EXPECT_TRUE(same_bits(for_sum, apart.sum.bytes()));
            EXPECT_TRUE(same_bits(shared.rstd, apart.rstd.bytes()));
            EXPECT_TRUE(for_y.outside_intact());
            EXPECT_TRUE(for_sum.outside_intact());
          };
          expect_same(true, true);
          expect_same(false, false);
        });
      }
    }
  }
}

TEST(NormAliasing, ForwardUnfusedInPlace) {
  for (const Kind kind : kBothKinds) {
    for (const std::int64_t cols : {7, 64, 1000, 65537}) {
      const Problem p{.kind = kind, .lead = {3}, .cols = cols};
      const Data data = make_data(p);
      ForwardRun apart(p, data);
      for_each_runner(apart.accepting(), [&](Runner& context) {
        apart.run(context);
        ForwardRun shared(p, data);
        shared.args.y = shared.x;
        call(context, kind, context.with(shared.args));
        context.synchronize();
        EXPECT_TRUE(same_bits(shared.x, apart.y.bytes()));
      });
    }
  }
}

TEST(NormAliasing, BackwardInPlace) {
  for (const Kind kind : kBothKinds) {
    for (const DTypes& dtypes : some_dtypes()) {
      for (const std::int64_t cols : {7, 64, 1000, 65537}) {
        const Problem p{.kind = kind, .dtypes = dtypes, .lead = {5}, .cols = cols, .fused = true};
        SCOPED_TRACE(p.describe());
        const Data data = make_data(p);
        BackwardRun apart(p, data);
        for_each_runner(apart.accepting(), [&](Runner& context) {
          apart.run(context);
          for (Guarded BackwardRun::*target :
               {&BackwardRun::dy, &BackwardRun::x, &BackwardRun::dsum}) {
            BackwardRun shared(p, data);
            shared.args.dx = shared.*target;
            call(context, kind, context.with(shared.args));
            context.synchronize();
            EXPECT_TRUE(same_bits(shared.*target, apart.dx.bytes()));
            EXPECT_TRUE(same_bits(shared.dweight, apart.dweight.bytes()));
            if (kind == Kind::layer) {
              EXPECT_TRUE(same_bits(shared.dbias, apart.dbias.bytes()));
            }
            EXPECT_TRUE((shared.*target).outside_intact());
          }
        });
      }
    }
  }
}

// The left half of wide rows is the input, the right half the output: no element is shared.
TEST(NormAliasing, InterleavedHalves) {
  for (const Kind kind : kBothKinds) {
    for (const std::int64_t cols : {8, 65, 1024}) {
      const Problem p{.kind = kind, .lead = {10}, .cols = cols};
      const Data data = make_data(p);
      ForwardRun apart(p, data);
      for_each_runner(apart.accepting(), [&](Runner& context) {
        apart.run(context);
        Guarded wide(test_device(), DType::f32, {10, 2 * cols});
        std::vector<double> values(static_cast<std::size_t>(20 * cols), 0.0);
        for (std::size_t i = 0; i < data.x.size(); ++i) {
          const auto width = static_cast<std::size_t>(cols);
          values[i / width * 2 * width + i % width] = data.x[i];
        }
        wide.set(values);
        ForwardRun shared(p, data);
        shared.args.x = columns(wide, 0, cols);
        shared.args.y = columns(wide, cols, cols);
        ASSERT_NO_THROW(call(context, kind, context.with(shared.args)));
        context.synchronize();
        const std::vector<double> after = wide.values();
        const std::vector<double> y = apart.y.values();
        for (std::size_t i = 0; i < y.size(); ++i) {
          const auto width = static_cast<std::size_t>(cols);
          const std::size_t at = i / width * 2 * width + i % width;
          ASSERT_EQ(after[at], data.x[i]);
          ASSERT_EQ(after[at + width], y[i]);
        }
        EXPECT_TRUE(wide.outside_intact());
      });
    }
  }
}

// ---- random problems -----------------------------------------------------------------------

// Shapes and options nobody thought of. A failure names the problem, and its seed is its number.
TEST(NormRandom, MatchesOracle) {
  const std::vector<DTypes> dtypes = all_dtypes();
  for (std::int64_t i = 0; i < 300; ++i) {
    const Random random(900);
    const auto draw = [&](std::int64_t which, std::int64_t limit) {
      return static_cast<std::int64_t>(random.uniform(16 * i + which) * static_cast<double>(limit));
    };
    Problem p{.kind = kBothKinds[draw(0, 2)],
              .dtypes = dtypes[static_cast<std::size_t>(draw(1, std::ssize(dtypes)))],
              .lead = {1 + draw(2, 40)},
              .cols = 1 + draw(3, draw(4, 4) == 0 ? 3000 : 150)};
    p.weight = draw(5, 2) == 0;
    p.bias = draw(6, 2) == 0;
    p.fused = draw(7, 2) == 0;
    p.weight_grads = draw(8, 4) != 0;
    p.layout = {.row_gap = draw(9, 2) * draw(10, 20), .offset = draw(11, 9)};
    p.x.center = static_cast<double>(draw(12, 21) - 10);
    p.weight_offset = p.kind == Kind::rms ? static_cast<double>(draw(13, 2)) : 0;
    p.before_weight = p.kind == Kind::rms && draw(14, 2) == 0;
    p.seed = static_cast<std::uint64_t>(i);
    check_forward(p);
    check_backward(p);
    if (testing::Test::HasFailure()) FAIL() << "random problem " << i;
  }
}

}  // namespace
}  // namespace touchstone::test
