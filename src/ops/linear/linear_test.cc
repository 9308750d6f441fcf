// Linear beyond closeness to the oracle: empty shapes, NaN and infinity, aliasing, what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/index.h"
#include "ops/linear/linear_test_support.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"

namespace touchstone::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kRows = 5;
constexpr std::int64_t kIn = 64;
constexpr std::int64_t kOut = 6;

// Operands of a small problem with every argument.
struct Operands {
  Guarded x{test_device(), DType::f32, {kRows, kIn}, random_values({}, kRows* kIn, 1)};
  Guarded weight{test_device(), DType::f32, {kOut, kIn}, random_values({}, kOut* kIn, 2)};
  Guarded bias{test_device(), DType::f32, {kOut}, random_values({}, kOut, 3)};
  Guarded residual{test_device(), DType::f32, {kRows, kOut}, random_values({}, kRows* kOut, 4)};
  Guarded y{test_device(), DType::f32, {kRows, kOut}};
  Guarded dy{test_device(), DType::f32, {kRows, kOut}, random_values({}, kRows* kOut, 5)};
  Guarded dx{test_device(), DType::f32, {kRows, kIn}};
  Guarded dweight{test_device(), DType::f32, {kOut, kIn}};
  Guarded dbias{test_device(), DType::f32, {kOut}};

  LinearArgs forward() const {
    return {.x = x, .weight = weight, .bias = bias, .residual = residual, .y = y};
  }
  LinearBackwardArgs backward() const {
    return {.dy = dy, .x = x, .weight = weight, .dx = dx, .dweight = dweight, .dbias = dbias};
  }
  void expect_untouched() const {
    for (const Guarded* output : {&y, &dx, &dweight, &dbias}) EXPECT_TRUE(output->unchanged());
  }
};

Runner runner() { return Runner({.device = test_device(), .threads = 2}); }

// ---- empty shapes ---------------------------------------------------------------------------------

TEST(Linear, NoRows_WritesOnlyZeroGradients) {
  const Guarded none(test_device(), DType::f32, {0, kIn});
  const Guarded no_dy(test_device(), DType::f32, {0, kOut});
  const Operands o;
  Runner context = runner();
  linear(context, {.x = none, .weight = o.weight, .y = no_dy});
  linear_backward(context, {.dy = no_dy,
                            .x = none,
                            .weight = o.weight,
                            .dx = none,
                            .dweight = o.dweight,
                            .dbias = o.dbias});
  context.synchronize();
  for (const double value : o.dweight.values()) EXPECT_EQ(value, 0);
  for (const double value : o.dbias.values()) EXPECT_EQ(value, 0);
}

TEST(Linear, NoColumns_TheProductIsZero) {
  const Guarded x(test_device(), DType::f32, {kRows, 0});
  const Guarded weight(test_device(), DType::f32, {kOut, 0});
  const Operands o;
  for (const std::string& name : accepting(LinearArgs{.x = x, .weight = weight, .y = o.y})) {
    Runner context = runner();
    linear(context, {.x = x, .weight = weight, .bias = o.bias, .y = o.y, .implementation = name});
    context.synchronize();
    for (std::int64_t i = 0; i < kRows * kOut; ++i) {
      EXPECT_EQ(o.y.values()[at(i)], o.bias.values()[at(i % kOut)]) << name;
    }
  }
}

TEST(Linear, NoColumnsOfBlocks_TheProductIsZero) {
  const Guarded x(test_device(), DType::f32, {kRows, 0});
  const Guarded weight(test_device(), DType::u8, {kOut, 0});
  const Operands o;
  for (const char* format : {"q8_0", "q4_k", "q6_k", "tq1_0"}) {
    for (const bool int8_activations : {false, true}) {
      Runner context = runner();
      linear(context, {.x = x,
                       .weight = weight,
                       .weight_format = format,
                       .bias = o.bias,
                       .y = o.y,
                       .int8_activations = int8_activations});
      context.synchronize();
      for (std::int64_t i = 0; i < kRows * kOut; ++i) {
        EXPECT_EQ(o.y.values()[at(i)], o.bias.values()[at(i % kOut)]) << format;
      }
    }
  }
}

TEST(Linear, NoOutputs_DxIsZero) {
  const Guarded y(test_device(), DType::f32, {kRows, 0});
  const Guarded weight(test_device(), DType::f32, {0, kIn});
  const Operands o;
  Runner context = runner();
  linear(context, {.x = o.x, .weight = weight, .y = y});
  linear_backward(context, {.dy = y, .weight = weight, .dx = o.dx});
  context.synchronize();
  for (const double value : o.dx.values()) EXPECT_EQ(value, 0);
}

// ---- NaN and infinity -----------------------------------------------------------------------------

TEST(Linear, NanAndInfinity_StayInTheirRow) {
  for (const double bad : {kNan, kInfinity}) {
    for (const bool int8 : {false, true}) {
      Operands o;
      LinearArgs args = o.forward();
      args.int8_activations = int8;
      for (const std::string& name : accepting(args)) {
        Runner context = runner();
        args.implementation = name;
        linear(context, args);
        context.synchronize();
        const std::vector<double> before = o.y.values();
        std::vector<double> x = o.x.values();
        x[at(2 * kIn + 7)] = bad;
        const Guarded changed(test_device(), DType::f32, {kRows, kIn}, x);
        LinearArgs with_bad = args;
        with_bad.x = changed;
        linear(context, with_bad);
        context.synchronize();
        const std::vector<double> after = o.y.values();
        for (std::int64_t i = 0; i < kRows * kOut; ++i) {
          if (i / kOut == 2) {
            EXPECT_FALSE(std::isfinite(after[at(i)])) << name;
          } else {
            EXPECT_EQ(after[at(i)], before[at(i)]) << name;
          }
        }
      }
    }
  }
}

TEST(Linear, NanScaleOfABlock_ReachesItsColumnAlone) {
  std::vector<double> bytes(at(kOut * 34 * 2));  // q8_0, two blocks a row: f16 scale, 32 codes
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = i % 34 == 1 ? 0x3c : i % 34 == 0 ? 0 : 2;
  bytes[34 * 2 * 3 + 1] = 0x7e;  // row 3
  const Guarded weight(test_device(), DType::u8, {kOut, 68}, bytes);
  const Operands o;
  LinearArgs args{.x = o.x, .weight = weight, .weight_format = "q8_0", .y = o.y};
  for (const std::string& name : accepting(args)) {
    Runner context = runner();
    args.implementation = name;
    linear(context, args);
    context.synchronize();
    const std::vector<double> y = o.y.values();
    for (std::int64_t i = 0; i < kRows * kOut; ++i) {
      EXPECT_EQ(std::isnan(y[at(i)]), i % kOut == 3) << name << " " << i;
    }
  }
}

// Weights that are zero because codes and minima cancel contribute nothing, however large both are.
TEST(Linear, MinimaThatCancel_LeaveNothing) {
  const Guarded x(test_device(), DType::f32, {3, 256}, [] {
    std::vector<double> values(3 * 256);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<double>(i * 37 % 101) / 64 - 0.7;
    }
    return values;
  }());
  const auto repeated = [](const std::vector<double>& block, std::int64_t times) {
    std::vector<double> bytes;
    for (std::int64_t i = 0; i < times; ++i) bytes.insert(bytes.end(), block.begin(), block.end());
    return bytes;
  };
  std::vector<double> q4_1(20, 0x88);                                  // codes of 8
  std::copy_n(std::begin({0x35, 0x3e, 0x35, 0xca}), 4, q4_1.begin());  // d = 1.5519, m = -8 d
  std::vector<double> q4_k(144, 0x77);                                 // codes of 7
  std::copy_n(std::begin({0x35, 0x3e, 0x35, 0x3e}), 4, q4_k.begin());  // d = dmin
  // Scales of 9 and minima of 63 = 7 * 9: six bits each, the later four in two parts.
  for (std::size_t i = 0; i < 4; ++i) {
    q4_k[4 + i] = 9;
    q4_k[8 + i] = 63 | 3 << 6;
    q4_k[12 + i] = 9 | 15 << 4;
  }
  const auto check = [&](const std::string& format, const std::vector<double>& row) {
    const Guarded weight(test_device(), DType::u8, {5, std::ssize(row)}, repeated(row, 5));
    for (const bool int8 : {false, true}) {
      const Guarded y(test_device(), DType::f32, {3, 5});
      LinearArgs args{
          .x = x, .weight = weight, .weight_format = format, .y = y, .int8_activations = int8};
      for (const std::string& name : accepting(args)) {
        Runner context = runner();
        args.implementation = name;
        linear(context, args);
        context.synchronize();
        for (const double value : y.values()) EXPECT_EQ(value, 0) << format << " " << name << int8;
      }
    }
  };
  check("q4_1", repeated(q4_1, 8));
  check("q4_k", q4_k);
}

// scale * code, as the formula says: infinite for a code other than zero, NaN for a zero, in every
// implementation and for x of 16 bits, too.
TEST(Linear, InfiniteScaleOfABlock_TimesItsCodes) {
  constexpr std::int64_t kBlock = 34;  // q8_0: f16 scale, 32 codes
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<double> bytes(at(8 * kBlock * 2));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = i % 34 == 1 ? 0x3c : i % 34 == 0 ? 0 : 2;
    }
    bytes[kBlock * 2 * 3 + 1] = 0x7c;  // row 3: all codes are 2
    bytes[kBlock * 2 * 5 + 1] = 0x7c;  // row 5: one code is 0
    bytes[kBlock * 2 * 5 + 2 + 17] = 0;
    const Guarded weight(test_device(), DType::u8, {8, kBlock * 2}, bytes);
    const Guarded x(test_device(), dtype, {kRows, kIn}, std::vector<double>(at(kRows * kIn), 0.5));
    const Guarded y(test_device(), dtype, {kRows, 8});
    LinearArgs args{.x = x, .weight = weight, .weight_format = "q8_0", .y = y};
    for (const std::string& name : accepting(args)) {
      Runner context = runner();
      args.implementation = name;
      linear(context, args);
      context.synchronize();
      const std::vector<double> values = y.values();
      for (std::int64_t i = 0; i < kRows * 8; ++i) {
        const std::string where =
            name + " " + std::string(name_of(dtype)) + " " + std::to_string(i);
        if (i % 8 == 3) {
          EXPECT_EQ(values[at(i)], kInfinity) << where;
        } else if (i % 8 == 5) {
          EXPECT_TRUE(std::isnan(values[at(i)])) << where;
        } else {
          EXPECT_EQ(values[at(i)], 64) << where;
        }
      }
    }
  }
}

// Nibbles have a kernel of their own: q4_0, whose codes stand for -8 to 7.
TEST(Linear, InfiniteScaleOfNibbles_TimesTheirCodes) {
  constexpr std::int64_t kBlock = 18;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<double> bytes(at(8 * kBlock * 2));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = i % 18 == 1 ? 0x3c : i % 18 == 0 ? 0 : 0x99;
    }
    bytes[kBlock * 2 * 2 + 1] = 0x7c;
    bytes[kBlock * 2 * 6 + 1] = 0x7c;
    bytes[kBlock * 2 * 6 + 2 + 5] = 0x89;
    const Guarded weight(test_device(), DType::u8, {8, kBlock * 2}, bytes);
    const Guarded x(test_device(), dtype, {kRows, kIn}, std::vector<double>(at(kRows * kIn), 0.5));
    const Guarded y(test_device(), dtype, {kRows, 8});
    LinearArgs args{.x = x, .weight = weight, .weight_format = "q4_0", .y = y};
    for (const std::string& name : accepting(args)) {
      Runner context = runner();
      args.implementation = name;
      linear(context, args);
      context.synchronize();
      const std::vector<double> values = y.values();
      for (std::int64_t i = 0; i < kRows * 8; ++i) {
        const std::string where =
            name + " " + std::string(name_of(dtype)) + " " + std::to_string(i);
        if (i % 8 == 2) {
          EXPECT_EQ(values[at(i)], kInfinity) << where;
        } else if (i % 8 == 6) {
          EXPECT_TRUE(std::isnan(values[at(i)])) << where;
        } else {
          EXPECT_EQ(values[at(i)], 32) << where;
        }
      }
    }
  }
}

// With int8 activations a scale multiplies sums of codes: an infinite one makes its column infinite, in
// formats with a minimum too, and no other.
TEST(Linear, InfiniteScale_Int8Activations) {
  constexpr std::int64_t kBlock = 20;  // q4_1: scale and minimum as f16, 32 codes
  std::vector<double> bytes(at(8 * kBlock * 2), 0x33);
  for (std::size_t i = 0; i < bytes.size(); i += kBlock) {
    std::copy_n(std::begin({0x00, 0x3c, 0x00, 0xbc}), 4, bytes.begin() + static_cast<int>(i));
  }
  bytes[kBlock * 2 * 3 + 1] = 0x7c;
  const Guarded weight(test_device(), DType::u8, {8, kBlock * 2}, bytes);
  for (const std::int64_t rows : {1, 9}) {
    const Guarded x(test_device(), DType::f32, {rows, kIn}, std::vector<double>(at(rows * kIn), 1));
    const Guarded y(test_device(), DType::f32, {rows, 8});
    LinearArgs args{
        .x = x, .weight = weight, .weight_format = "q4_1", .y = y, .int8_activations = true};
    for (const std::string& name : accepting(args)) {
      Runner context = runner();
      args.implementation = name;
      linear(context, args);
      context.synchronize();
      const std::vector<double> values = y.values();
      for (std::int64_t i = 0; i < rows * 8; ++i) {
        if (i % 8 == 3) {
          EXPECT_EQ(values[at(i)], kInfinity) << name << " " << i;
        } else {
          EXPECT_NEAR(values[at(i)], 128, 1e-3) << name << " " << i;
        }
      }
    }
  }
}

// ---- aliasing -------------------------------------------------------------------------------------

TEST(Linear, ResidualMayBeY) {
  Operands o;
  LinearArgs args = o.forward();
  for (const std::string& name : accepting(args)) {
    Runner context = runner();
    args.implementation = name;
    args.residual = o.residual;
    linear(context, args);
    context.synchronize();
    const std::vector<std::byte> expected = o.y.bytes();
    o.y.set(o.residual.values());
    args.residual = o.y;
    linear(context, args);
    context.synchronize();
    EXPECT_EQ(o.y.bytes(), expected) << name;
    o.y.poison();
  }
}

// ---- libraries ------------------------------------------------------------------------------------

TEST(Linear, Libraries_RefuseUnlessTheCallerAllowsOtherBits) {
  const Operands o;
  const std::string library = on_gpu() ? "cublaslt" : "openblas";
  Runner context = runner();
  LinearArgs args = o.forward();
  args.implementation = library;
  LinearBackwardArgs backward = o.backward();
  backward.implementation = library;
  for (const std::function<void()>& call :
       {std::function<void()>([&] { linear(context, args); }),
        std::function<void()>([&] { linear_backward(context, backward); })}) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Unsupported& error) {
      EXPECT_NE(std::string(error.what()).find("bits_may_depend_on_batch"), std::string::npos);
    }
  }
  o.expect_untouched();
}

// Ours against the library of the device, forward and backward; skipped where it is not installed.
TEST(Linear, Libraries_AgreeWithOursWhereTheyAreInstalled) {
  const std::string library = on_gpu() ? "cublaslt" : "openblas";
  Operands o;
  Runner context = runner();
  LinearArgs args = o.forward();
  if (on_gpu()) args.bias = args.residual = {};  // cublaslt computes the product alone
  args.bits_may_depend_on_batch = true;
  LinearBackwardArgs backward = o.backward();
  backward.bits_may_depend_on_batch = true;
  for (const ImplementationReport& report : explain(context, args)) {
    if (report.name == library && !report.accepted) GTEST_SKIP() << report.refusal;
  }
  const auto run = [&](const std::string& name) {
    args.implementation = backward.implementation = name;
    linear(context, args);
    linear_backward(context, backward);
    context.synchronize();
    std::vector<double> all;
    for (Guarded* output : {&o.y, &o.dx, &o.dweight, &o.dbias}) {
      EXPECT_TRUE(output->outside_intact());
      const std::vector<double> values = output->values();
      all.insert(all.end(), values.begin(), values.end());
      output->poison();
    }
    return all;
  };
  const std::vector<double> ours = run("");
  const std::vector<double> theirs = run(library);
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(theirs[i], ours[i], 1e-4) << i;
}

// ---- refusals -------------------------------------------------------------------------------------

TEST(LinearErrors, Forward_OneClearErrorAndNothingWritten) {
  const Guarded other(test_device(), DType::f32, {kRows, kIn + 1});
  const Guarded bytes(test_device(), DType::u8, {kOut, 36});
  const Guarded odd(test_device(), DType::f32, {kOut - 1, kIn});
  const Operands o;
  const std::vector<Mistake<LinearArgs>> mistakes = {
      {"no x", "x", [](LinearArgs& a) { a.x = {}; }},
      {"no weight", "weight", [](LinearArgs& a) { a.weight = {}; }},
      {"no y", "y", [](LinearArgs& a) { a.y = {}; }},
      {"x of i32", "x", [](LinearArgs& a) { a.x.dtype = DType::i32; }},
      {"x longer", "weight", [&](LinearArgs& a) { a.x = other; }},
      {"weight of u8 without a format", "weight", [&](LinearArgs& a) { a.weight = bytes; }},
      {"weight of f64", "weight", [](LinearArgs& a) { a.weight.dtype = DType::f64; }},
      {"weight of rank 1", "weight", [](LinearArgs& a) { a.weight.rank = 1; }},
      {"weight on the other device", "weight",
       [](LinearArgs& a) { a.weight.device = other_device(); }},
      {"bias too long", "bias", [](LinearArgs& a) { a.bias.shape[0] += 1; }},
      {"residual of another shape", "residual", [](LinearArgs& a) { a.residual.shape[1] -= 1; }},
      {"residual of bf16", "residual", [](LinearArgs& a) { a.residual.dtype = DType::bf16; }},
      {"y of another width", "y", [](LinearArgs& a) { a.y.shape[1] += 1; }},
      {"y of f16", "y", [](LinearArgs& a) { a.y.dtype = DType::f16; }},
      {"gate without room in y", "y", [](LinearArgs& a) { a.gate = LinearGate::silu; }},
      {"gate with an odd weight", "weight",
       [&](LinearArgs& a) {
         a.weight = odd;
         a.gate = LinearGate::silu;
       }},
      {"an unknown gate", "gate", [](LinearArgs& a) { a.gate = static_cast<LinearGate>(9); }},
      {"a negative soft cap", "soft_cap", [](LinearArgs& a) { a.soft_cap = -1; }},
      {"a soft cap of NaN", "soft_cap", [](LinearArgs& a) { a.soft_cap = kNan; }},
      {"a soft cap beyond f32", "soft_cap", [](LinearArgs& a) { a.soft_cap = 1e300; }},
      {"a soft cap that f32 rounds to 0", "soft_cap", [](LinearArgs& a) { a.soft_cap = 1e-310; }},
      {"y over x", "y", [](LinearArgs& a) { a.y.data = const_cast<void*>(a.x.data); }},
  };
  for (const Mistake<LinearArgs>& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    LinearArgs args = o.forward();
    mistake.make(args);
    Runner context = runner();
    expect_refusal("linear: " + mistake.argument, [&] { linear(context, args); });
    expect_refusal("linear: " + mistake.argument, [&] { explain(context, args); });
  }
  o.expect_untouched();
}

TEST(LinearErrors, Formats) {
  const Guarded bytes(test_device(), DType::u8, {kOut, 36});
  const Operands o;
  Runner context = runner();
  LinearArgs args = o.forward();
  args.weight = bytes;
  args.weight_format = "q4_0";
  linear(context, args);  // 64 values, two blocks of 18 bytes
  context.synchronize();
  o.y.outside_intact();
  args.weight_format = "q4_k";
  expect_refusal("linear: in: expected a multiple of 256", [&] { linear(context, args); });
  args.weight_format = "q8_0";
  expect_refusal("linear: weight: expected shape [6, 68]", [&] { linear(context, args); });
  args.weight_format = "bf16";
  expect_refusal("linear: weight_format: expected a block format", [&] { linear(context, args); });
  args.weight_format = "q3";
  expect_refusal("weight format: expected one of", [&] { linear(context, args); });
}

TEST(LinearErrors, Backward_OneClearErrorAndNothingWritten) {
  const Operands o;
  const std::vector<Mistake<LinearBackwardArgs>> mistakes = {
      {"no dy", "dy", [](LinearBackwardArgs& a) { a.dy = {}; }},
      {"no weight for dx", "weight", [](LinearBackwardArgs& a) { a.weight = {}; }},
      {"no x for dweight", "x", [](LinearBackwardArgs& a) { a.x = {}; }},
      {"dx of another dtype", "dx", [](LinearBackwardArgs& a) { a.dx.dtype = DType::f16; }},
      {"dx of another shape", "weight", [](LinearBackwardArgs& a) { a.dx.shape[1] -= 1; }},
      {"weight with more rows", "weight", [](LinearBackwardArgs& a) { a.weight.shape[0] += 1; }},
      {"dweight of another shape", "dweight",
       [](LinearBackwardArgs& a) { a.dweight.shape[0] -= 1; }},
      {"dbias of another size", "dbias", [](LinearBackwardArgs& a) { a.dbias.shape[0] -= 1; }},
      {"accumulate in bf16", "dweight",
       [](LinearBackwardArgs& a) {
         a.accumulate = true;
         a.dweight.dtype = DType::bf16;
       }},
      {"dx over dy", "dx", [](LinearBackwardArgs& a) { a.dx.data = const_cast<void*>(a.dy.data); }},
  };
  for (const Mistake<LinearBackwardArgs>& mistake : mistakes) {
    SCOPED_TRACE(mistake.name);
    LinearBackwardArgs args = o.backward();
    mistake.make(args);
    Runner context = runner();
    expect_refusal("linear_backward: " + mistake.argument, [&] { linear_backward(context, args); });
  }
  o.expect_untouched();
}

TEST(LinearErrors, UnknownImplementation_ListsTheKnown) {
  const Operands o;
  Runner context = runner();
  LinearArgs args = o.forward();
  args.implementation = "fastest";
  EXPECT_THROW(linear(context, args), Unsupported);
  o.expect_untouched();
}

}  // namespace
}  // namespace touchstone::test
