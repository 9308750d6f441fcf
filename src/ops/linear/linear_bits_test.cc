// The promise of linear: the bits of a row depend on that row and the parameters alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/index.h"
#include "cpu/vnni.h"
#include "ops/linear/linear_test_support.h"
#include "tests/support/random.h"
#include "touchstone/core/testing.h"

namespace touchstone::test {
namespace {

constexpr std::uint64_t kSeed = 5;
// Around vectors, passes, tiles of tensor cores and chunks of rows.
constexpr std::int64_t kBatches[] = {1, 2, 3, 7, 8, 9, 31, 33, 64, 65, 128, 129};
constexpr std::int64_t kLargeBatch = 1000;
constexpr std::int64_t kHugeBatch = 4096;  // on the GPU

struct Layer {
  DType dtype = DType::f32;
  std::int64_t in = 0;
  std::int64_t out = 0;
  const WeightFormat* format = nullptr;
  bool int8_activations = false;
  LinearGate gate = LinearGate::none;

  std::int64_t columns() const { return gate == LinearGate::none ? out : out / 2; }
};

// y of the rows of x; nothing where the implementation refuses as many.
std::vector<std::byte> forward_bytes(Runner& runner, const Layer& layer, const TestWeight& weight,
                                     const ConstTensorView& x) {
  const Guarded y(test_device(), layer.dtype, {x.shape[0], layer.columns()});
  const LinearArgs args = runner.with(LinearArgs{.x = x,
                                                 .weight = weight.view(),
                                                 .weight_format = weight.format(),
                                                 .y = y,
                                                 .gate = layer.gate,
                                                 .int8_activations = layer.int8_activations});
  for (const ImplementationReport& report : explain(runner, args)) {
    if (report.name == runner.implementation() && !report.accepted) return {};
  }
  linear(runner, args);
  runner.synchronize();
  EXPECT_TRUE(y.outside_intact());
  return y.bytes();
}

// Of rows [first, first + rows) of the endless matrix.
std::vector<std::byte> forward_bytes(Runner& runner, const Layer& layer, const TestWeight& weight,
                                     std::int64_t first, std::int64_t rows) {
  const Guarded x(test_device(), layer.dtype, {rows, layer.in},
                  random_rows(first, rows, layer.in, kSeed));
  return forward_bytes(runner, layer, weight, x.view());
}

// On the GPU implementations give the bits of the one that is chosen, which depends on the batch. Of
// ternary weights with int8 activations the ternary ones do: others round W to the dtype of x.
bool has_chosen_bits(const Layer& layer, const std::string& implementation) {
  if (!on_gpu()) return false;
  return implementation.empty() || implementation.starts_with("ternary") ||
         !(layer.int8_activations && layer.format->ternary);
}

// Rows of a batch that begins anywhere against the same rows alone.
void check_batches(Runner& runner, const Layer& layer, const TestWeight& weight,
                   const std::vector<std::int64_t>& batches) {
  const std::int64_t most = *std::ranges::max_element(batches);
  const std::int64_t row = layer.columns() * size_of(layer.dtype);
  std::vector<std::byte> alone;
  Runner chosen({.device = test_device(), .threads = 1});
  Runner& reference = has_chosen_bits(layer, runner.implementation()) ? chosen : runner;
  for (std::int64_t r = 0; r < most; ++r) {
    const bool compared = r < 140 || r % 97 == 0 || r + 3 > most;
    const auto bytes =
        compared ? forward_bytes(reference, layer, weight, r, 1) : std::vector<std::byte>(at(row));
    alone.insert(alone.end(), bytes.begin(), bytes.end());
  }
  for (const std::int64_t rows : batches) {
    const std::int64_t first = (most - rows) / 3;
    const std::vector<std::byte> together = forward_bytes(runner, layer, weight, first, rows);
    if (together.empty()) continue;
    for (std::int64_t r = first; r < first + rows; ++r) {
      if (!(r < 140 || r % 97 == 0 || r + 3 > most)) continue;
      EXPECT_TRUE(std::equal(alone.begin() + r * row, alone.begin() + (r + 1) * row,
                             together.begin() + (r - first) * row))
          << layer.format->name << ", x " << name_of(layer.dtype) << ": row " << r << " of " << rows
          << " rows from " << first << " on";
    }
  }
}

std::vector<std::string> implementations(const Layer& layer, const TestWeight& weight) {
  const Guarded x(test_device(), layer.dtype, {1, layer.in});
  const Guarded y(test_device(), layer.dtype, {1, layer.out});
  std::vector<std::string> names =
      accepting(LinearArgs{.x = x,
                           .weight = weight.view(),
                           .weight_format = weight.format(),
                           .y = y,
                           .int8_activations = layer.int8_activations});
  if (on_gpu()) names.emplace_back();  // the choice, which depends on the batch
  return names;
}

TEST(LinearBits, AnyBatch_EveryFormat_EveryTarget) {
  for (const WeightFormat& format : weight_formats()) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      if ((dtype == DType::f64) != (format.id == WeightFormatId::f64)) continue;
      if (dtype == DType::f64 && on_gpu()) continue;
      if (dtype == DType::f16 && format.block_elements > 1) continue;
      const Layer layer{.dtype = dtype, .in = 1280, .out = 21, .format = &format};
      const TestWeight weight(format, layer.out, layer.in, 3);
      for_each_runner(implementations(layer, weight), [&](Runner& runner) {
        if (runner.implementation() == "plain") return;  // one row at a time anyway
        check_batches(runner, layer, weight, {1, 2, 3, 7, 8, 9, 31, 33});
      });
    }
  }
}

TEST(LinearBits, AnyBatch_Int8Activations) {
  for (const WeightFormat& format : weight_formats()) {
    if (format.id == WeightFormatId::f64) continue;
    const Layer layer{.dtype = DType::f32,
                      .in = format.block_elements == 32 ? 1120 : 1280,
                      .out = 21,
                      .format = &format,
                      .int8_activations = true};
    const TestWeight weight(format, layer.out, layer.in, 3);
    for_each_runner(implementations(layer, weight), [&](Runner& runner) {
      if (runner.implementation() == "plain") return;  // one row at a time anyway
      check_batches(runner, layer, weight, {1, 2, 3, 4, 5, 7, 8, 9, 12, 31, 33, 64, 65, 129});
    });
  }
}

// Integer sums are exact and lanes are outputs: AVX2 and AVX-512 agree, with VNNI and without.
TEST(LinearBits, Int8Activations_AnyWidthOfVectors) {
  if (on_gpu()) GTEST_SKIP() << "vectors are the CPU's";
  for (const std::string_view name : {"q4_1", "q8_0", "int4_g128", "q4_k", "q6_k"}) {
    const Layer layer{.dtype = DType::f32,
                      .in = 1280,
                      .out = 40,
                      .format = &weight_format(name),
                      .int8_activations = true};
    const TestWeight weight(*layer.format, layer.out, layer.in, 8);
    for (const std::int64_t rows : {1, 11}) {
      std::vector<std::byte> first;
      for_each_runner({"simd"}, [&](Runner& runner) {
        if (!simd_target().starts_with("AVX")) return;  // others multiply floats
        const bool vnni = uses_vnni();
        for (const bool enabled : {true, false}) {
          testing::set_vnni(enabled);
          const std::vector<std::byte> bytes = forward_bytes(runner, layer, weight, 3, rows);
          if (first.empty()) first = bytes;
          EXPECT_EQ(bytes, first) << name << ", " << rows << " rows, VNNI " << enabled;
        }
        testing::set_vnni(vnni);
      });
    }
  }
}

TEST(LinearBits, AnyBatch_LargeBatches) {
  for (const std::string_view name : {"f32", "bf16", "q4_0", "q4_k"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const WeightFormat& format = weight_format(name);
      const Layer layer{.dtype = dtype, .in = 1280, .out = 40, .format = &format};
      const TestWeight weight(format, layer.out, layer.in, 4);
      std::vector<std::int64_t> batches(std::begin(kBatches), std::end(kBatches));
      batches.push_back(sanitized_size(kLargeBatch, 250));
      if (on_gpu()) batches.push_back(kHugeBatch);
      for_each_implementation(implementations(layer, weight), [&](Runner& runner) {
        if (runner.implementation() == "plain") return;
        check_batches(runner, layer, weight, batches);
      });
    }
  }
}

// More rows of W than a dimension of a grid, decoded at once.
TEST(LinearBits, WeightsOfManyRowsAreDecoded) {
  if (!on_gpu()) GTEST_SKIP() << "grids are the GPU's";
  const Layer layer{.dtype = DType::bf16, .in = 64, .out = 70000, .format = &weight_format("q8_0")};
  const TestWeight weight(*layer.format, layer.out, layer.in, 11);
  Runner decoded({.device = test_device(), .implementation = "wgmma"});
  const std::vector<std::byte> bytes = forward_bytes(decoded, layer, weight, 0, 17);
  if (bytes.empty()) GTEST_SKIP() << "this device has no wgmma";
  Runner portable({.device = test_device(), .implementation = "portable"});
  EXPECT_TRUE(bytes == forward_bytes(portable, layer, weight, 0, 17));
}

// A ragged `in`, whose last vector and last step are partly empty.
TEST(LinearBits, AnyBatch_RaggedRows) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Layer layer{.dtype = dtype, .in = 2075, .out = 70, .format = weight_format(dtype)};
    const TestWeight weight(*layer.format, layer.out, layer.in, 5);
    for_each_runner(implementations(layer, weight), [&](Runner& runner) {
      if (runner.implementation() == "plain") return;
      check_batches(runner, layer, weight, {1, 2, 4, 5, 6, 13, 65});
    });
  }
}

// Where x of several rows does not fit in shared memory, `stream` reads slices of it beside W: whole units
// and tails, tiles in one and several rounds of a CTA.
TEST(LinearBits, AnyBatch_LongRowsOfStream) {
  if (!on_gpu()) GTEST_SKIP() << "shared memory is the GPU's";
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::pair<std::int64_t, std::int64_t> sizes[] = {
        {14336, 333}, {14344, 700}, {15000, 70}, {7400, 4300}, {40000, 40}};
    for (const auto& [in, out] : sizes) {
      for (const LinearGate gate : {LinearGate::none, LinearGate::silu}) {
        const Layer layer{.dtype = dtype,
                          .in = in,
                          .out = gate == LinearGate::none ? out : 2 * out,
                          .format = weight_format(dtype),
                          .gate = gate};
        const TestWeight weight(*layer.format, layer.out, layer.in, 6);
        Runner runner({.device = test_device(), .implementation = "stream"});
        ASSERT_FALSE(forward_bytes(runner, layer, weight, 0, 16).empty()) << in << " x " << out;
        check_batches(runner, layer, weight, {1, 2, 3, 6, 7, 8, 9, 12, 16});
      }
    }
  }
}

TEST(LinearBits, Threads_DoNotChangeThem) {
  if (on_gpu()) GTEST_SKIP() << "threads are the CPU's";
  for (const std::string_view name : {"bf16", "q4_1", "q8_0"}) {
    const Layer layer{.dtype = DType::bf16,
                      .in = 1536,
                      .out = 300,
                      .format = &weight_format(name),
                      .int8_activations = name != "bf16"};
    const TestWeight weight(*layer.format, layer.out, layer.in, 6);
    for (const std::int64_t rows : {1, 5, 70}) {
      Runner one({.threads = 1});
      Runner several({.threads = 7});
      EXPECT_EQ(forward_bytes(one, layer, weight, 0, rows),
                forward_bytes(several, layer, weight, 0, rows));
    }
  }
}

// ---- any neighbors ------------------------------------------------------------------------------

constexpr std::int64_t kTracked = 8;  // rows that are compared, again and again

// Every third row of a tall matrix is one of the tracked rows; those between are like them, or NaN,
// infinite, huge and tiny.
Guarded tall_rows(DType dtype, std::int64_t rows, std::int64_t in, bool hostile) {
  const std::vector<double> tracked = random_rows(0, kTracked, in, kSeed);
  const std::vector<double> others = random_rows(kTracked, kTracked, in, kSeed);
  const double huge = dtype == DType::f16 ? 6e4 : 1e30;
  const double hostile_values[] = {std::numeric_limits<double>::quiet_NaN(),
                                   std::numeric_limits<double>::infinity(), huge, -huge, 1e-7};
  std::vector<double> values;
  values.reserve(at(rows * in));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t row = r / 3 % kTracked;
    for (std::int64_t i = 0; i < in; ++i) {
      const double other = hostile ? hostile_values[(r + i / 100) % 5] : others[at(row * in + i)];
      values.push_back(r % 3 == 0 ? tracked[at(row * in + i)] : other);
    }
  }
  return {test_device(), dtype, {rows, in}, values};
}

// Of rows [first, first + rows) of x.
std::vector<std::byte> rows_of(Runner& runner, const Layer& layer, const TestWeight& weight,
                               const Guarded& x, std::int64_t first, std::int64_t rows) {
  const std::int64_t shape[] = {rows, layer.in};
  const auto* const from = static_cast<const std::byte*>(x.view().data);
  return forward_bytes(
      runner, layer, weight,
      make_view(static_cast<const void*>(from + first * layer.in * size_of(layer.dtype)), shape,
                layer.dtype, test_device()));
}

struct TallRows {
  Guarded plain;
  Guarded hostile;
};

// How many rows were compared.
std::int64_t check_neighbors(const Layer& layer, const TestWeight& weight, const TallRows& x) {
  const std::int64_t most = x.plain.view().shape[0];
  const auto row = static_cast<std::ptrdiff_t>(layer.out * size_of(layer.dtype));
  Runner one({.device = test_device(), .threads = 1});
  Runner several({.device = test_device(), .threads = kTestThreads});
  std::int64_t compared = 0;
  for (const std::string& name : implementations(layer, weight)) {
    if (name == "plain") continue;  // one row at a time anyway
    SCOPED_TRACE(std::string(layer.format->name) + ", x " + std::string(name_of(layer.dtype)) +
                 (layer.int8_activations ? ", int8 " : " ") + name);
    one.set_implementation(has_chosen_bits(layer, name) ? "" : name);
    std::vector<std::vector<std::byte>> alone;
    for (std::int64_t r = 0; r < kTracked; ++r) {
      alone.push_back(rows_of(one, layer, weight, x.plain, 3 * r, 1));
    }
    one.set_implementation(name);
    several.set_implementation(name);
    for (std::int64_t rows : {1, 2, 3, 7, 8, 9, 31, 33, 64, 65, 128, 129, 1000, 4096}) {
      rows = std::min(rows, most);
      const std::int64_t first = most - rows;
      for (const bool hostile : {false, true}) {
        Runner& runner = hostile ? several : one;
        const auto together =
            rows_of(runner, layer, weight, hostile ? x.hostile : x.plain, first, rows);
        if (together.empty()) continue;
        for (std::int64_t r = (first + 2) / 3 * 3; r < most; r += 3) {
          const std::vector<std::byte>& expected = alone[at(r / 3 % kTracked)];
          EXPECT_TRUE(
              std::equal(expected.begin(), expected.end(), together.begin() + (r - first) * row))
              << "row " << r - first << " of " << rows << (hostile ? ", hostile neighbors" : "");
          if (::testing::Test::HasFailure()) return compared;
          ++compared;
        }
      }
    }
  }
  return compared;
}

TEST(LinearBits, AnyNeighbors_EveryFormat_UpTo4096Rows) {
  const std::int64_t most = sanitized_size(4096, 200);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    if (dtype == DType::f64 && on_gpu()) continue;
    std::map<std::int64_t, TallRows> x;
    for (const WeightFormat& format : weight_formats()) {
      if ((dtype == DType::f64) != (format.id == WeightFormatId::f64)) continue;
      // Small blocks do not end where vectors do.
      const std::int64_t in = format.block_elements <= 32 ? 288 : 256;
      if (!x.contains(in)) {
        x.emplace(in,
                  TallRows{tall_rows(dtype, most, in, false), tall_rows(dtype, most, in, true)});
      }
      for (const bool int8 : {false, true}) {
        if (int8 && dtype == DType::f64) continue;
        const Layer layer{
            .dtype = dtype, .in = in, .out = 40, .format = &format, .int8_activations = int8};
        const TestWeight weight(format, layer.out, layer.in, 9);
        EXPECT_GT(check_neighbors(layer, weight, x.at(in)), most / 3)
            << format.name << ", x " << name_of(dtype) << ", int8 " << int8;
        if (HasFailure()) return;
      }
    }
  }
}

// `values` of rows [first, ...) with NaN of both signs in each, at places of its own, and infinity in
// some.
std::vector<double> with_nan(std::vector<double> values, std::int64_t first, std::int64_t columns) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (std::int64_t at_row = 0; at_row < std::ssize(values) / columns; ++at_row) {
    const std::int64_t r = first + at_row;
    double* const row = values.data() + at_row * columns;
    row[(r * 37 + 5) % columns] = r % 2 == 0 ? nan : -nan;
    row[(r * 101 + columns / 2) % columns] = r % 2 == 0 ? -nan : nan;
    if (r % 3 == 0) row[(r * 53 + columns - 9) % columns] = std::numeric_limits<double>::infinity();
  }
  return values;
}

// A sum of NaN of both signs has the sign of the operand that an instruction lists first.
TEST(LinearBits, NanOfBothSigns) {
  constexpr std::int64_t kRows = 65;
  for (const std::string_view name : {"f64", "f32", "bf16", "q8_0", "q4_k", "pq2_0"}) {
    for (const bool int8 : {false, true}) {
      const DType dtype = name == "f64" ? DType::f64 : name == "bf16" ? DType::bf16 : DType::f32;
      if (dtype == DType::f64 && (int8 || on_gpu())) continue;
      const Layer layer{.dtype = dtype,
                        .in = 1280,
                        .out = 37,
                        .format = &weight_format(name),
                        .int8_activations = int8};
      const TestWeight weight(*layer.format, layer.out, layer.in, 12);
      const Guarded x(test_device(), dtype, {kRows, layer.in},
                      with_nan(random_rows(0, kRows, layer.in, kSeed), 0, layer.in));
      for_each_runner(implementations(layer, weight), [&](Runner& runner) {
        Runner one({.device = test_device(),
                    .threads = 1,
                    .implementation = has_chosen_bits(layer, runner.implementation())
                                          ? ""
                                          : runner.implementation()});
        const auto row = static_cast<std::ptrdiff_t>(layer.out * size_of(dtype));
        for (const std::int64_t rows : {2, 3, 5, 8, 9, 17, 33, 65}) {
          const auto together = rows_of(runner, layer, weight, x, kRows - rows, rows);
          if (together.empty()) continue;
          for (std::int64_t r = kRows - rows; r < kRows; ++r) {
            const auto alone = rows_of(one, layer, weight, x, r, 1);
            ASSERT_TRUE(std::equal(alone.begin(), alone.end(),
                                   together.begin() + (r - (kRows - rows)) * row))
                << name << (int8 ? ", int8 " : " ") << runner.implementation() << ": row " << r
                << " in a batch of " << rows;
          }
        }
      });
    }
  }
}

// ---- backward -----------------------------------------------------------------------------------

struct Gradients {
  std::vector<std::byte> dx, dweight, dbias;
};

Gradients backward_bytes(Runner& runner, const Layer& layer, const TestWeight& weight,
                         std::int64_t first, std::int64_t rows, bool nan = false) {
  std::vector<double> gradients = random_rows(first, rows, layer.out, kSeed);
  if (nan) gradients = with_nan(std::move(gradients), first, layer.out);
  const Guarded dy(test_device(), layer.dtype, {rows, layer.out}, gradients);
  const Guarded x(test_device(), layer.dtype, {rows, layer.in},
                  random_rows(first, rows, layer.in, kSeed + 1));
  const Guarded dx(test_device(), layer.dtype, {rows, layer.in});
  const Guarded dweight(test_device(), DType::f32, {layer.out, layer.in});
  const Guarded dbias(test_device(), DType::f32, {layer.out});
  linear_backward(runner, runner.with(LinearBackwardArgs{.dy = dy,
                                                         .x = x,
                                                         .weight = weight.view(),
                                                         .weight_format = weight.format(),
                                                         .dx = dx,
                                                         .dweight = dweight,
                                                         .dbias = dbias}));
  runner.synchronize();
  return {dx.bytes(), dweight.bytes(), dbias.bytes()};
}

TEST(LinearBits, Backward_RowsOfDxInAnyBatchAndAllInAnyNumberOfThreads) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Layer layer{.dtype = dtype, .in = 300, .out = 530, .format = weight_format(dtype)};
    const TestWeight weight(*layer.format, layer.out, layer.in, 7);
    Runner runner({.device = test_device(), .threads = 1});
    Runner others({.device = test_device(), .threads = 5});
    const std::int64_t row = layer.in * size_of(dtype);
    const Gradients with_nan = backward_bytes(runner, layer, weight, 0, 200, true);
    EXPECT_EQ(with_nan.dx, backward_bytes(others, layer, weight, 0, 200, true).dx);
    const Gradients all = backward_bytes(runner, layer, weight, 0, 200);
    const Gradients again = backward_bytes(others, layer, weight, 0, 200);
    EXPECT_EQ(all.dx, again.dx);
    EXPECT_EQ(all.dweight, again.dweight);
    EXPECT_EQ(all.dbias, again.dbias);
    for (const std::int64_t rows : {1, 2, 7, 8, 33, 97, 129}) {
      for (const std::int64_t first : {std::int64_t{0}, 200 - rows}) {
        const Gradients some = backward_bytes(runner, layer, weight, first, rows);
        EXPECT_TRUE(std::equal(some.dx.begin(), some.dx.end(), all.dx.begin() + first * row))
            << name_of(dtype) << ": rows " << first << " to " << first + rows;
        const Gradients nan = backward_bytes(runner, layer, weight, first, rows, true);
        EXPECT_TRUE(std::equal(nan.dx.begin(), nan.dx.end(), with_nan.dx.begin() + first * row))
            << name_of(dtype) << ": rows with NaN, " << first << " to " << first + rows;
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::test
