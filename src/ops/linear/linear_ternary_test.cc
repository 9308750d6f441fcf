// Linear from ternary weights with int8 activations against the order of operations that its contract
// states, written down one value at a time: the same bits on the CPU, on every SIMD target, and on CUDA, for
// every format, whatever the batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "ops/linear/linear_test_support.h"
#include "tests/support/guarded.h"
#include "tests/support/runners.h"
#include "touchstone/core/device.h"
#include "touchstone/core/error.h"
#include "touchstone/core/half.h"
#include "touchstone/core/testing.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/ops/linear.h"

namespace touchstone::test {
namespace {

struct TernaryCase {
  std::string format;
  std::int64_t rows = 1;
  std::int64_t in = 256;
  std::int64_t out = 1;
  DType dtype = DType::f32;
  bool bias = false;
  std::int64_t x_offset = 0;  // elements past an aligned address
};

std::vector<double> normal_values(std::int64_t count, unsigned seed, double scale) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = normal(random);
  return values;
}

// Random bytes with scales that are numbers: every code occurs, 3 where the packing has room for it.
std::vector<double> ternary_blocks(const WeightFormat& format, std::int64_t blocks, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> bytes(static_cast<std::size_t>(blocks * format.block_bytes));
  for (double& byte : bytes) byte = static_cast<double>(random() % 256);
  const bool first = format.name == "q2_0" || format.name == "pq2_0";
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t at = b * format.block_bytes + (first ? 0 : format.block_bytes - 2);
    const std::uint16_t bits = F16(0.01 + 0.001 * static_cast<double>(random() % 97)).bits;
    bytes[static_cast<std::size_t>(at)] = bits & 0xff;
    bytes[static_cast<std::size_t>(at + 1)] = bits >> 8;
  }
  return bytes;
}

float rounded_input(DType dtype, double value) {
  if (dtype == DType::bf16) return static_cast<float>(Bf16(value));
  if (dtype == DType::f16) return static_cast<float>(F16(value));
  return static_cast<float>(value);
}

// y in f32 before it is rounded to its dtype.
std::vector<float> ternary_reference(const TernaryCase& c, const std::vector<double>& x,
                                     const std::vector<std::byte>& weight,
                                     const std::vector<double>& bias,
                                     const std::vector<double>& residual) {
  const WeightFormat& format = weight_format(std::string_view(c.format));
  const std::int64_t group = format.block_elements;
  std::vector<float> y;
  for (std::int64_t r = 0; r < c.rows; ++r) {
    float largest = 0;
    bool finite = true;
    for (std::int64_t i = 0; i < c.in; ++i) {
      const float value = rounded_input(c.dtype, x[static_cast<std::size_t>(r * c.in + i)]);
      finite = finite && std::isfinite(value);
      largest = std::max(largest, std::abs(value));
    }
    const float scale = finite ? largest / 127.0F : NAN;
    std::vector<int> q(static_cast<std::size_t>(c.in));
    for (std::int64_t i = 0; i < c.in; ++i) {
      const float value = rounded_input(c.dtype, x[static_cast<std::size_t>(r * c.in + i)]);
      q[static_cast<std::size_t>(i)] =
          scale > 0 ? std::clamp(static_cast<int>(std::nearbyint(value / scale)), -127, 127) : 0;
    }
    for (std::int64_t o = 0; o < c.out; ++o) {
      const std::int64_t row_bytes = weight_bytes(format, c.in);
      float total = 0;
      float segment = 0;
      for (std::int64_t first = 0; first < c.in; first += group) {
        // Codes by way of values: exact, since a scale of 1 is put in the place of the stored one.
        std::vector<std::byte> block(static_cast<std::size_t>(format.block_bytes));
        std::memcpy(block.data(),
                    weight.data() + o * row_bytes + first / group * format.block_bytes,
                    block.size());
        const std::size_t at = c.format == "q2_0" || c.format == "pq2_0" ? 0 : block.size() - 2;
        std::uint16_t bits = 0;
        std::memcpy(&bits, block.data() + at, 2);
        const std::uint16_t one = F16(1.0).bits;
        std::memcpy(block.data() + at, &one, 2);
        std::vector<float> codes(static_cast<std::size_t>(group));
        decode_weights(format, block, codes);
        int sum = 0;
        for (std::int64_t i = 0; i < group; ++i) {
          sum += static_cast<int>(codes[static_cast<std::size_t>(i)]) *
                 q[static_cast<std::size_t>(first + i)];
        }
        segment =
            std::fma(static_cast<float>(F16::from_bits(bits)), static_cast<float>(sum), segment);
        if ((first + group) % 1024 == 0 || first + group == c.in) {
          total += segment;
          segment = 0;
        }
      }
      float v = scale * total;
      if (c.bias) {
        v += static_cast<float>(bias[static_cast<std::size_t>(o)]);
        v += rounded_input(c.dtype, residual[static_cast<std::size_t>(r * c.out + o)]);
      }
      y.push_back(v);
    }
  }
  return y;
}

// The kernels for ternary weights that take the call: one on the CPU, up to three on CUDA.
std::vector<std::string> ternary_kernels(const LinearArgs& args) {
  std::vector<std::string> names = accepting(args);
  std::erase_if(names, [](const std::string& name) { return !name.starts_with("ternary"); });
  EXPECT_FALSE(names.empty());
  return names;
}

void check_ternary(const TernaryCase& c) {
  SCOPED_TRACE(c.format + ": " + std::to_string(c.rows) + " x " + std::to_string(c.in) + " / " +
               std::to_string(c.out) + " of " + std::string(name_of(c.dtype)));
  const WeightFormat& format = weight_format(std::string_view(c.format));
  std::vector<double> x = normal_values(c.rows * c.in, 3, 1);
  if (c.rows > 2) x[static_cast<std::size_t>(c.in + 5)] = NAN;       // row 1
  if (c.rows > 3) std::fill_n(x.begin() + 2 * c.in, c.in, 0.0);      // row 2
  if (c.rows > 4) x[static_cast<std::size_t>(3 * c.in)] = INFINITY;  // row 3
  const std::vector<double> bytes = ternary_blocks(format, c.out * c.in / format.block_elements, 4);
  const std::vector<double> bias = normal_values(c.out, 5, 1);
  const std::vector<double> residual = normal_values(c.rows * c.out, 6, 1);
  const Guarded gx(test_device(), c.dtype, {c.rows, c.in}, x, {.offset = c.x_offset});
  const Guarded weight(test_device(), DType::u8, {c.out, weight_bytes(format, c.in)}, bytes);
  const Guarded gbias(test_device(), DType::f32, {c.out},
                      std::vector<double>(bias.begin(), bias.end()));
  const Guarded gresidual(test_device(), c.dtype, {c.rows, c.out}, residual);
  Guarded y(test_device(), DType::f32, {c.rows, c.out});
  LinearArgs args{
      .x = gx, .weight = weight, .weight_format = c.format, .y = y, .int8_activations = true};
  if (c.bias) {
    args.bias = gbias;
    if (c.dtype == DType::f32) args.residual = gresidual;
  }
  std::vector<std::byte> stored(bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    stored[i] = static_cast<std::byte>(static_cast<int>(bytes[i]));
  }
  const std::vector<double> no_residual(residual.size());
  const std::vector<float> expected =
      ternary_reference(c, x, stored, bias, c.dtype == DType::f32 ? residual : no_residual);
  Context context({.device = test_device(), .threads = 2});
  for (const std::string& kernel : ternary_kernels(args)) {
    SCOPED_TRACE(kernel);
    args.implementation = kernel;
    y.poison();
    linear(context, args);
    context.synchronize();
    const std::vector<double> found = y.values();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto value = static_cast<float>(found[i]);
      if (std::isnan(expected[i])) {
        ASSERT_TRUE(std::isnan(value)) << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(value), std::bit_cast<std::uint32_t>(expected[i]))
            << "row " << i / static_cast<std::size_t>(c.out) << ", column "
            << i % static_cast<std::size_t>(c.out) << ": " << value << ", expected " << expected[i];
      }
    }
    EXPECT_TRUE(y.outside_intact());
  }
}

void check_on_every_target(const TernaryCase& c) {
  if (test_device().is_cuda()) return check_ternary(c);
  for (const std::string& target : simd_targets()) {
    SCOPED_TRACE(target);
    touchstone::testing::set_simd_target(target);
    check_ternary(c);
  }
  touchstone::testing::set_simd_target("");
}

TEST(LinearTernary, EveryFormatHasTheBitsOfTheContract) {
  for (const WeightFormat& format : weight_formats()) {
    if (!format.ternary) continue;
    const std::string name(format.name);
    for (const std::int64_t in : {256, 1024, 1280, 2304}) {
      check_on_every_target({.format = name, .rows = 1, .in = in, .out = 37});
      check_on_every_target({.format = name, .rows = 5, .in = in, .out = 18, .dtype = DType::bf16});
    }
    check_on_every_target({.format = name, .rows = 2, .in = 512, .out = 33, .bias = true});
  }
}

TEST(LinearTernary, AnyNumberOfRowsHasTheBitsOfTheContract) {
  for (const char* name : {"ternary_g128", "pq2_0", "tq2_0"}) {
    for (const std::int64_t rows : {1, 2, 3, 7, 8, 9, 15, 16, 17, 63, 64, 65, 130}) {
      check_ternary({.format = name, .rows = rows, .in = 1536, .out = 40, .dtype = DType::bf16});
    }
    check_ternary({.format = name, .rows = 3, .in = 4096, .out = 50, .dtype = DType::f16});
    check_ternary({.format = name, .rows = 1, .in = 12288, .out = 20, .dtype = DType::bf16});
    check_ternary({.format = name, .rows = 70, .in = 2048, .out = 150, .bias = true});
    check_ternary({.format = name, .rows = 250, .in = 256, .out = 40});
  }
}

TEST(LinearTernary, UnalignedRowsAndOddNumbersOfGroups) {
  for (const char* name : {"ternary_g128", "pq2_0", "ternary_g64"}) {
    for (const std::int64_t in : {128, 384, 640, 1152}) {
      check_ternary({.format = name, .rows = 1, .in = in, .out = 35});
      check_ternary({.format = name, .rows = 20, .in = in, .out = 35, .dtype = DType::bf16});
    }
    check_ternary(
        {.format = name, .rows = 3, .in = 1024, .out = 35, .dtype = DType::bf16, .x_offset = 1});
    check_ternary({.format = name, .rows = 30, .in = 1024, .out = 35, .x_offset = 3});
  }
}

// Every output of a batch is that of its row alone, gates and soft caps included.
TEST(LinearTernary, GatesHaveTheSameBitsInEveryBatch) {
  for (const char* name : {"ternary_g128", "base3_g128"}) {
    const WeightFormat& format = weight_format(std::string_view(name));
    const std::int64_t in = 1280;
    const std::int64_t out = 60;
    const std::int64_t most = 70;
    const std::vector<double> x = normal_values(most * in, 7, 1);
    const Guarded weight(test_device(), DType::u8, {out, weight_bytes(format, in)},
                         ternary_blocks(format, out * in / format.block_elements, 8));
    std::vector<std::byte> alone;
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{9}, std::int64_t{16}, most}) {
      std::vector<std::byte> all;
      for (std::int64_t first = 0; first < most; first += rows) {
        const std::int64_t count = std::min(rows, most - first);
        const Guarded gx(
            test_device(), DType::bf16, {count, in},
            std::vector<double>(x.begin() + first * in, x.begin() + (first + count) * in));
        Guarded y(test_device(), DType::bf16, {count, out / 2});
        Context context({.device = test_device()});
        LinearArgs args{.x = gx,
                        .weight = weight,
                        .weight_format = name,
                        .y = y,
                        .gate = LinearGate::silu,
                        .soft_cap = 3,
                        .int8_activations = true};
        std::vector<std::byte> bytes;
        for (const std::string& kernel : ternary_kernels(args)) {
          args.implementation = kernel;
          y.poison();
          linear(context, args);
          context.synchronize();
          if (bytes.empty()) bytes = y.bytes();
          EXPECT_EQ(y.bytes(), bytes) << kernel;
        }
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
      if (alone.empty()) alone = all;
      EXPECT_EQ(all, alone) << name << ", " << rows << " rows";
    }
  }
}

TEST(LinearTernary, RefusesWhatItIsNotFor) {
  const Guarded x(test_device(), DType::f32, {1, 256}, std::vector<double>(256, 1.0));
  const WeightFormat& format = weight_format("ternary_g128");
  const Guarded weight(test_device(), DType::u8, {4, 68}, ternary_blocks(format, 8, 1));
  Guarded y(test_device(), DType::f32, {1, 4});
  Context context({.device = test_device()});
  EXPECT_THROW(linear(context, {.x = x,
                                .weight = weight,
                                .weight_format = "ternary_g128",
                                .y = y,
                                .implementation = on_gpu() ? "ternary_stream" : "ternary"}),
               Unsupported);
  EXPECT_TRUE(y.unchanged());
  // 130 columns are no whole group.
  const Guarded ragged(test_device(), DType::f32, {1, 130}, std::vector<double>(130, 1.0));
  EXPECT_THROW(linear(context, {.x = ragged,
                                .weight = weight,
                                .weight_format = "ternary_g128",
                                .y = y,
                                .int8_activations = true}),
               InvalidArgument);
  EXPECT_TRUE(y.unchanged());
}

}  // namespace
}  // namespace touchstone::test
