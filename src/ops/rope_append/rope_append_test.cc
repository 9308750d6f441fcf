// rope_append against the calls that it replaces: to the bit without norms, within rounding with them.
#include "touchstone/ops/rope_append.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "cache/cache_test_device.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/core/convert.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/kv_append.h"

namespace touchstone {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Tensor on_device(Tensor host) {
  return test::on_gpu() ? host.to(test::test_device()) : std::move(host);
}

Tensor random_tensor(std::initializer_list<std::int64_t> shape, DType dtype, std::uint64_t seed) {
  Tensor host = Tensor::empty(shape, dtype);
  const test::Random random(seed);
  visit_float_dtype(dtype, [&]<class T>() {
    std::int64_t i = 0;
    for (T& value : host.values<T>()) value = convert<T>(random.normal(i++));
  });
  return on_device(std::move(host));
}

template <class T>
Tensor array_of(const std::vector<T>& values) {
  Tensor host = Tensor::empty({std::ssize(values)}, dtype_of<T>);
  std::ranges::copy(values, host.values<T>().begin());
  return on_device(std::move(host));
}

std::vector<float> floats_of(Context& context, const Tensor& tensor) {
  context.synchronize();
  const Tensor host = tensor.to(Device::cpu());
  std::vector<float> values;
  visit_float_dtype(host.dtype(), [&]<class T>() {
    for (const T value : host.values<T>()) values.push_back(convert<float>(value));
  });
  return values;
}

struct Setting {
  DType dtype = DType::bf16;
  std::int64_t heads = 6;
  cache::LayerGroup group{.layers = 2, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .page_tokens = 8};
  std::int64_t rotary = 64;
  RopePairs pairs = RopePairs::halves;
  double scale = 1;
  bool packed = true;  // q, k and v are parts of one tensor
  bool norms = false;
  RmsNormRounding rounding = RmsNormRounding::once;
};

// Two sequences, 3 and 17 new tokens after 5 and 30, and a token of padding.
class Case {
 public:
  explicit Case(const Setting& setting, Context& context)
      : s(setting),
        cache(cache::make_cache({.layout = {{s.group}}, .pool_pages = {40}}, test::test_device())),
        builder(cache) {
    std::vector<std::int32_t> row_list;
    std::vector<std::int64_t> slot_list;
    std::vector<std::int64_t> position_list;
    for (const auto& [committed, added] : {std::pair{5, 3}, {30, 17}}) {
      const cache::SequenceId id = cache.create();
      cache.reserve(id, committed);
      cache.commit(id, committed);
      cache.reserve(id, added);
      for (int i = 0; i < added; ++i) {
        row_list.push_back(static_cast<std::int32_t>(ids.size()));
        slot_list.push_back(committed + i);
        position_list.push_back(committed + i / 2 + 1000000);  // a tree: positions are not slots
      }
      ids.push_back(id);
    }
    row_list.push_back(-1);
    slot_list.push_back(0);
    position_list.push_back(0);
    tokens = std::ssize(row_list);
    rows = array_of(row_list);
    slots = array_of(slot_list);
    positions = array_of(position_list);
    frequencies =
        array_of(s.rotary > 0 ? rope_frequencies(s.rotary, 1e4).values : std::vector<double>());
    q_weight = random_tensor({s.group.k_dim}, DType::f32, 7);
    k_weight = random_tensor({s.group.k_dim}, DType::f32, 8);
    const std::int64_t widths[] = {s.heads * s.group.k_dim, s.group.kv_heads * s.group.k_dim,
                                   s.group.kv_heads * s.group.v_dim};
    const std::int64_t all = std::accumulate(std::begin(widths), std::end(widths), std::int64_t{0});
    std::int64_t begin = 0;
    wide = random_tensor({tokens, all}, s.dtype, 3);
    for (int i = 0; i < 3; ++i) {
      const std::int64_t heads = i == 0 ? s.heads : s.group.kv_heads;
      const std::int64_t shape[] = {tokens, heads, widths[i] / heads};
      if (s.packed) {
        auto* const data = static_cast<std::byte*>(wide.data()) + begin * size_of(s.dtype);
        part[i] = with_stride(
            make_view(static_cast<void*>(data), shape, s.dtype, test::test_device()), 0, all);
      } else {
        apart[i] = random_tensor({tokens, heads, widths[i] / heads}, s.dtype,
                                 static_cast<std::uint64_t>(i));
        part[i] = apart[i];
      }
      begin += widths[i];
    }
    y = Tensor::empty({tokens, s.heads, s.group.k_dim}, s.dtype, test::test_device());
    view = builder.build(context, ids);
    clear();
  }

  void clear() {
    const cache::GroupView& group = view.groups[0];
    cache::write_bytes(
        test::test_device(), group.memory,
        std::vector<std::byte>(static_cast<std::size_t>(group.pages * group.geometry.page_bytes),
                               std::byte{0x5a}));
  }

  std::vector<std::byte> pages(Context& context) {
    context.synchronize();
    const cache::GroupView& group = view.groups[0];
    return cache::read_bytes(test::test_device(), group.memory,
                             static_cast<std::size_t>(group.pages * group.geometry.page_bytes));
  }

  RopeAppendArgs args() {
    RopeAppendArgs result{.cache = view,
                          .layer = 1,
                          .q = part[0],
                          .k = part[1],
                          .v = part[2],
                          .y = y,
                          .eps = 1e-5,
                          .rounding = s.rounding,
                          .pairs = s.pairs,
                          .scale = s.scale,
                          .rows = rows,
                          .slots = slots};
    if (s.rotary > 0) {
      result.positions = positions;
      result.frequencies = frequencies;
    }
    if (s.norms) {
      result.q_weight = q_weight;
      result.k_weight = k_weight;
    }
    return result;
  }

  // The calls one by one, on contiguous copies.
  Tensor one_by_one(Context& context) {
    Tensor heads[3];
    for (int i = 0; i < 3; ++i) {
      const std::int64_t count = part[i].shape[1];
      const std::int64_t dim = part[i].shape[2];
      heads[i] = Tensor::empty({tokens, count, dim}, s.dtype, test::test_device());
      const Tensor none = array_of(std::vector<double>());
      rope(context, {.x = part[i], .positions = positions, .frequencies = none, .y = heads[i]});
    }
    for (int i = 0; i < 2; ++i) {
      if (s.norms) {
        rms_norm(context, {.x = heads[i],
                           .weight = i == 0 ? q_weight : k_weight,
                           .y = heads[i],
                           .eps = 1e-5,
                           .rounding = s.rounding});
      }
      if (s.rotary > 0) {
        rope(context, {.x = heads[i],
                       .positions = positions,
                       .frequencies = frequencies,
                       .y = heads[i],
                       .pairs = s.pairs,
                       .scale = s.scale});
      }
    }
    kv_append(context, {.cache = view,
                        .layer = 1,
                        .k = heads[1],
                        .v = heads[2],
                        .rows = rows,
                        .positions = slots});
    context.synchronize();
    return std::move(heads[0]);
  }

  Setting s;
  cache::KvCache cache;
  cache::CacheViewBuilder builder;
  std::vector<cache::SequenceId> ids;
  std::int64_t tokens = 0;
  Tensor rows, slots, positions, frequencies, q_weight, k_weight, wide, y;
  Tensor apart[3];
  TensorView part[3];
  cache::CacheView view;
};

void expect_same(const Setting& setting) {
  test::Runner context({.device = test::test_device(), .threads = test::kTestThreads});
  Case c(setting, context);
  const std::vector<float> expected = floats_of(context, c.one_by_one(context));
  const std::vector<std::byte> pages = c.pages(context);
  c.clear();
  rope_append(context, c.args());
  EXPECT_EQ(expected, floats_of(context, c.y));
  EXPECT_EQ(pages, c.pages(context));
  if (setting.packed) return;
  // In place.
  c.clear();
  RopeAppendArgs args = c.args();
  args.y = c.part[0];
  rope_append(context, args);
  EXPECT_EQ(expected, floats_of(context, c.apart[0]));
  EXPECT_EQ(pages, c.pages(context));
}

TEST(RopeAppend, HasTheBitsOfTheCallsOneByOne) {
  for (const DType dtype : {DType::bf16, DType::f32, DType::f16}) {
    for (const bool packed : {true, false}) {
      expect_same({.dtype = dtype, .packed = packed});
      expect_same({.dtype = dtype, .pairs = RopePairs::adjacent, .scale = 1.25, .packed = packed});
      expect_same({.dtype = dtype, .rotary = 0, .packed = packed});
      expect_same({.dtype = dtype, .rotary = 20, .packed = packed});
    }
  }
}

TEST(RopeAppend, EveryFormatAndOddHeads) {
  const QuantFormat formats[] = {{.dtype = DType::f32},
                                 {.dtype = DType::f16},
                                 {.dtype = DType::i8},
                                 {.dtype = DType::i4, .group_size = 32, .asymmetric = true},
                                 {.dtype = DType::f8_e4m3}};
  for (const QuantFormat& format : formats) {
    for (const bool rotated : {false, true}) {
      Setting s;
      s.group.k = s.group.v = format;
      s.group.rotate_keys = rotated;
      expect_same(s);
      s.dtype = DType::f32;
      s.packed = false;
      s.group.k_dim = 128;
      s.group.v_dim = 32;
      s.rotary = 96;
      expect_same(s);
    }
  }
  // Numbers of a token that are no whole vectors.
  Setting s;
  s.heads = 3;
  s.group.kv_heads = 3;
  s.group.k_dim = 10;
  s.group.v_dim = 7;
  s.rotary = 6;
  expect_same(s);
}

TEST(RopeAppend, NormsAreThoseOfRmsNorm) {
  test::Runner context({.device = test::test_device(), .threads = test::kTestThreads});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const RmsNormRounding rounding : {RmsNormRounding::once, RmsNormRounding::before_weight}) {
      Setting s{.dtype = dtype, .norms = true, .rounding = rounding};
      s.group.k = s.group.v = {.dtype = DType::f32};
      Case c(s, context);
      const std::vector<float> expected = floats_of(context, c.one_by_one(context));
      const std::vector<std::byte> pages = c.pages(context);
      c.clear();
      rope_append(context, c.args());
      const std::vector<float> got = floats_of(context, c.y);
      // Another order of the sum, then up to three roundings that may fall to the other side.
      const float unit = dtype == DType::f32 ? 0x1p-21F : 0x1p-6F;
      float largest = 0;
      for (const float value : expected) largest = std::max(largest, std::abs(value));
      std::int64_t differ = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], expected[i], unit * largest) << i;
        differ += got[i] == expected[i] ? 0 : 1;
      }
      if (dtype == DType::bf16) {
        EXPECT_LT(differ, std::ssize(got) / 50);
      }
      const std::vector<std::byte> stored = c.pages(context);
      ASSERT_EQ(stored.size(), pages.size());
      for (std::size_t i = 0; i + 4 <= stored.size(); i += 4) {
        float a = 0;
        float b = 0;
        std::memcpy(&a, stored.data() + i, 4);
        std::memcpy(&b, pages.data() + i, 4);
        ASSERT_TRUE(a == b || std::abs(a - b) <= unit * largest) << i << ": " << a << ", " << b;
      }
    }
  }
}

// Heads whose squares leave the range of f32, one with an infinity and one of zeros under an eps that
// f32 does not hold: the norm is that of rms_norm, which does not sum squares of such numbers.
TEST(RopeAppend, NormsOfExtremeHeads) {
  test::Runner context({.device = test::test_device(), .threads = 1});
  Setting s{.dtype = DType::f32, .heads = 2, .rotary = 0, .packed = false, .norms = true};
  s.group.k = s.group.v = {.dtype = DType::f32};
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const double eps : {0.0, 1e-60, 1e-5, 1e60}) {
    for (const float factor : {1e25F, 1e-25F, 0.0F, inf, nan}) {
      Case c(s, context);
      // One number of every head, or all of them.
      for (Tensor* tensor : {&c.apart[0], &c.apart[1]}) {
        Tensor host = tensor->to(Device::cpu());
        std::int64_t i = 0;
        for (float& value : host.values<float>()) {
          const bool whole = std::isfinite(factor);
          if (whole || i++ % s.group.k_dim == 5) value = whole ? value * factor : factor;
        }
        *tensor = on_device(std::move(host));
      }
      c.part[0] = c.apart[0];
      c.part[1] = c.apart[1];
      const std::vector<float> q = floats_of(context, c.apart[0]);
      const std::vector<float> weight = floats_of(context, c.q_weight);
      RopeAppendArgs args = c.args();
      args.eps = eps;
      rope_append(context, args);
      const std::vector<float> got = floats_of(context, c.y);
      const auto dim = static_cast<std::size_t>(s.group.k_dim);
      for (std::size_t head = 0; head < q.size() / dim; ++head) {
        double squares = 0;
        for (std::size_t i = 0; i < dim; ++i) {
          squares += std::pow(static_cast<double>(q[head * dim + i]), 2);
        }
        const double root = std::sqrt(squares / static_cast<double>(dim) + eps);
        for (std::size_t i = 0; i < dim; ++i) {
          const float value = got[head * dim + i];
          const double exact =
              static_cast<double>(q[head * dim + i]) / root * static_cast<double>(weight[i]);
          if (std::isfinite(root) && std::isfinite(exact)) {
            ASSERT_NEAR(value, exact, std::abs(exact) * 1e-5 + 1e-37) << eps << ", " << factor;
          } else {
            ASSERT_TRUE(std::isnan(value)) << eps << ", " << factor << ": " << value;
          }
        }
      }
    }
  }
}

TEST(RopeAppend, RefusesWhatDoesNotFit) {
  test::Runner context({.device = test::test_device(), .threads = 1});
  Case c({}, context);
  const std::vector<std::byte> before = c.pages(context);
  const auto refused = [&](const auto& change, const char* message) {
    RopeAppendArgs args = c.args();
    change(args);
    EXPECT_THAT([&] { rope_append(context, args); },
                ThrowsMessage<InvalidArgument>(HasSubstr(message)));
  };
  refused([](auto& a) { a.y.shape[1] = 5; }, "rope_append: y: expected");
  refused([](auto& a) { a.layer = 2; }, "rope_append: layer: expected 0 to 1, got 2");
  refused([&](auto& a) { a.q_weight = c.q_weight; }, "k_weight: expected both weights or none");
  refused([](auto& a) { a.frequencies = {}; }, "positions: expected none without frequencies");
  refused([](auto& a) { a.eps = -1; }, "eps");
  refused([](auto& a) { a.q.stride[1] = 100; }, "q: expected");
  refused(
      [&](auto& a) {
        a.y = c.part[1];
        a.y.shape[1] = 6;
      },
      "y");
  refused([](auto& a) { a.slots = {}; }, "rope_append: slots");
  if (!test::on_gpu()) {
    c.slots.values<std::int64_t>()[0] = 4;  // committed
    refused([](auto&) {}, "rope_append: slots: expected one of the reserved");
  }
  EXPECT_EQ(before, c.pages(context));
}

}  // namespace
}  // namespace touchstone
