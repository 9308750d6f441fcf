// The gate of the attention tasks: honest implementations of many styles pass every case that can
// make a verdict, wrong and lower-precision ones do not, and other ways to the same numbers agree
// with the oracle.
#include "judge/task/tasks/attention/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "judge/task/generate.h"
#include "judge/task/tasks/gate_test_support.h"
#include "judge/task/tasks/registry.h"
#include "oracle/attention.h"

namespace touchstone::judge {
namespace {

using attention::Problem;
using attention::Shape;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

enum class Sum { running, backwards, lanes, fused };
enum class Softmax { online, tiles, two_pass, parts };
enum class Fault {
  none,
  rescale_inverted,
  mask_shifted,
  top_left,
  tile_lost,
  masked_nan,
  delta_per_tile,
  overwritten,
  heads_modulo,
  bf16
};

struct Style {
  const char* name;
  Sum sum = Sum::running;
  Softmax softmax = Softmax::online;
  bool base_two = false;
  bool flush = false;        // exponentials below the normal numbers are 0
  bool own_delta = false;    // backward: the sum of P * dP instead of dO * O
  bool own_softmax = false;  // backward: made again instead of taken from lse
  Fault fault = Fault::none;
};

float exponential(const Style& style, float x) {
  const float y = style.base_two ? std::exp2(x * 1.44269504F) : std::exp(x);
  return style.flush && y < std::numeric_limits<float>::min() ? 0 : y;
}

float dot(const Style& style, const float* a, const float* b, int64_t n) {
  std::array<float, 8> lanes{};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t d = style.sum == Sum::backwards ? n - 1 - i : i;
    float& to = lanes[static_cast<size_t>(style.sum == Sum::lanes ? i % 8 : 0)];
    to = style.sum == Sum::fused ? std::fma(a[d], b[d], to) : to + a[d] * b[d];
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// One row of queries: where its numbers are.
struct Row {
  const Shape& s;
  const float *q, *k, *v;
  int64_t seen = 0;

  float score(const Style& style, int64_t t) const {
    return dot(style, q, k + t * s.dim, s.dim) * static_cast<float>(s.scale);
  }
};

// A softmax over keys [begin, end), with the output not yet divided by the sum.
struct Part {
  float m = -kInfinity;
  float l = 0;
  std::vector<float> out;
};

void rescale(const Style& style, Part& part, float top) {
  float correction = part.m == -kInfinity ? 0 : exponential(style, part.m - top);
  if (style.fault == Fault::rescale_inverted && correction > 0) correction = 1 / correction;
  part.l *= correction;
  for (float& o : part.out) o *= correction;
  part.m = top;
}

Part attend(const Style& style, const Row& row, int64_t begin, int64_t end) {
  Part part;
  part.out.assign(static_cast<size_t>(row.s.dim), 0.0F);
  const int64_t tile = style.softmax == Softmax::online  ? 1
                       : style.softmax == Softmax::tiles ? 13
                                                         : std::max<int64_t>(end - begin, 1);
  for (int64_t t0 = begin; t0 < end; t0 += tile) {
    const int64_t t1 = std::min(t0 + tile, end);
    if (style.fault == Fault::tile_lost && t1 - t0 < tile && t0 > 0) break;
    float top = part.m;
    for (int64_t t = t0; t < t1; ++t) top = std::max(top, row.score(style, t));
    rescale(style, part, top);
    for (int64_t t = t0; t < t1; ++t) {
      const float w = exponential(style, row.score(style, t) - top);
      part.l += w;
      for (size_t d = 0; d < part.out.size(); ++d) {
        part.out[d] += w * row.v[t * row.s.dim + static_cast<int64_t>(d)];
      }
    }
  }
  return part;
}

Part softmax_row(const Style& style, const Row& row) {
  if (style.softmax != Softmax::parts) return attend(style, row, 0, row.seen);
  Part all = attend(style, row, 0, row.seen / 3);
  Part rest = attend(style, row, row.seen / 3, row.seen);
  const float top = std::max(all.m, rest.m);
  if (top == -kInfinity) return all;
  rescale(style, all, top);
  rescale(style, rest, top);
  all.l += rest.l;
  for (size_t d = 0; d < all.out.size(); ++d) all.out[d] += rest.out[d];
  return all;
}

float rounded(const Style& style, float value) {
  return style.fault == Fault::bf16 ? round_to_bits(value, 11) : value;
}

// The case with the faults of its reader.
struct Reader {
  Shape s;
  std::vector<float> dout, q, k, v, out, lse;

  Reader(const Style& style, const Case& c) {
    const Call& call = c.calls[0];
    const auto whole = [&](size_t i) { return std::get<int64_t>(call.scalars[i]); };
    s = {whole(0), whole(2), whole(1),      whole(3),
         whole(4), whole(5), whole(6) != 0, std::get<double>(call.scalars[7])};
    for (const InputTensor& input : call.inputs) {
      std::vector<float>& to = input.name == "q"      ? q
                               : input.name == "k"    ? k
                               : input.name == "v"    ? v
                               : input.name == "dout" ? dout
                               : input.name == "out"  ? out
                                                      : lse;
      for (const float value : as_f32(input)) to.push_back(rounded(style, value));
    }
  }
  bool refused() const { return s.kv_heads < 1 || s.query_heads % s.kv_heads != 0 || s.dim < 1; }

  int64_t kv_row(const Style& style, int64_t row) const {
    const int64_t n = row / s.queries;
    const int64_t head = n % s.query_heads;
    const int64_t kv = style.fault == Fault::heads_modulo ? head % s.kv_heads : head / s.group();
    return (n / s.query_heads * s.kv_heads + kv) * s.keys;
  }
  Row row_of(const Style& style, int64_t row) const {
    const int64_t key = kv_row(style, row) * s.dim;
    const int64_t i = row % s.queries;
    int64_t seen = s.seen(i);
    if (style.fault == Fault::mask_shifted && s.causal) seen = std::min(seen + 1, s.keys);
    if (style.fault == Fault::top_left && s.causal) seen = std::min(i + 1, s.keys);
    return {s, q.data() + row * s.dim, k.data() + key, v.data() + key, seen};
  }
};

std::vector<Reply> forward(const Style& style, const Case& c) {
  const Reader x(style, c);
  Reply reply;
  reply.ending = x.refused() ? Ending::refused : Ending::ok;
  if (x.refused()) return {reply};
  std::vector<float> out, lse;
  for (int64_t r = 0; r < x.s.rows(); ++r) {
    const Part part = softmax_row(style, x.row_of(style, r));
    const bool nothing = part.l == 0 && style.fault != Fault::masked_nan;
    for (const float o : part.out) out.push_back(nothing ? 0 : o / part.l);
    lse.push_back(part.m == -kInfinity ? -kInfinity : part.m + std::log(part.l));
  }
  reply.outputs = {bytes_of(out), bytes_of(lse)};
  return {reply};
}

// P and dP of one row, and delta.
struct Weights {
  std::vector<float> p, dp;
  float delta = 0;
};

Weights weights_of(const Style& style, const Reader& x, const Row& row, int64_t r) {
  Weights w;
  const float* dout = x.dout.data() + r * x.s.dim;
  float lse = x.lse[static_cast<size_t>(r)];
  if (style.own_softmax) {
    const Part part = softmax_row(style, row);
    lse = part.m + std::log(part.l);
  }
  for (int64_t t = 0; t < row.seen; ++t) {
    w.p.push_back(exponential(style, row.score(style, t) - lse));
    w.dp.push_back(dot(style, dout, row.v + t * x.s.dim, x.s.dim));
  }
  w.delta = style.own_delta ? dot(style, w.p.data(), w.dp.data(), row.seen)
                            : dot(style, dout, x.out.data() + r * x.s.dim, x.s.dim);
  if (style.fault == Fault::delta_per_tile) {
    w.delta = dot(style, w.p.data(), w.dp.data(), std::min<int64_t>(row.seen, 16));
  }
  return w;
}

std::vector<Reply> backward(const Style& style, const Case& c) {
  const Reader x(style, c);
  Reply reply;
  reply.ending = x.refused() ? Ending::refused : Ending::ok;
  if (x.refused()) return {reply};
  const auto scale = static_cast<float>(x.s.scale);
  std::vector<float> dq(x.q.size()), dk(x.k.size()), dv(x.v.size());
  for (int64_t n = 0; n < x.s.rows(); ++n) {
    const int64_t r = style.sum == Sum::backwards ? x.s.rows() - 1 - n : n;
    const Row row = x.row_of(style, r);
    const Weights w = weights_of(style, x, row, r);
    const int64_t keys = x.kv_row(style, r) * x.s.dim;
    for (int64_t t = 0; t < row.seen; ++t) {
      if (style.fault == Fault::tile_lost && t >= row.seen / 16 * 16 && t >= 16) break;
      const auto i = static_cast<size_t>(t);
      const float ds = w.p[i] * (w.dp[i] - w.delta) * scale;
      for (int64_t d = 0; d < x.s.dim; ++d) {
        const auto query = static_cast<size_t>(r * x.s.dim + d);
        const auto key = static_cast<size_t>(keys + t * x.s.dim + d);
        if (style.fault == Fault::overwritten && r % 16 == 0) dk[key] = dv[key] = 0;
        dq[query] += ds * x.k[key];
        dk[key] += ds * x.q[query];
        dv[key] += w.p[i] * x.dout[query];
      }
    }
  }
  reply.outputs = {bytes_of(dq), bytes_of(dk), bytes_of(dv)};
  return {reply};
}

gate::Contender contender(const Style& style, bool is_backward) {
  return [style, is_backward](const Case& c) {
    return is_backward ? backward(style, c) : forward(style, c);
  };
}

const Task& task(bool is_backward) {
  return find_task(is_backward ? "flash_attention_backward" : "flash_attention_forward");
}

const std::array<Style, 6> kForward = {{
    {.name = "online"},
    {.name = "tiles, lanes", .sum = Sum::lanes, .softmax = Softmax::tiles},
    {.name = "two passes, backwards", .sum = Sum::backwards, .softmax = Softmax::two_pass},
    {.name = "base two",
     .sum = Sum::fused,
     .softmax = Softmax::tiles,
     .base_two = true,
     .flush = true},
    {.name = "base two, online", .base_two = true},
    {.name = "merged parts", .sum = Sum::lanes, .softmax = Softmax::parts},
}};
const std::array<Style, 5> kBackward = {{
    {.name = "one sweep"},
    {.name = "lanes", .sum = Sum::lanes, .flush = true, .own_delta = true},
    {.name = "backwards, base two", .sum = Sum::backwards, .base_two = true},
    {.name = "all made again", .sum = Sum::fused, .own_delta = true, .own_softmax = true},
    {.name = "softmax made again", .softmax = Softmax::tiles, .own_softmax = true},
}};

// A function that only sees arrays must be able to notice what is wrong with the call.
TEST(BadArguments, ArraysHaveTheShapeThatIsRefused) {
  for (const char* id : {"flash_attention_forward", "flash_attention_backward"}) {
    const Case c = find_task(id).build(parse_spec(
        "bad_arguments:bad=2,batch=1,causal=0,dim=8,group=1,keys=4,kv_heads=1,queries=4:1"));
    EXPECT_EQ(c.calls[0].inputs[0].shape, (std::vector<int64_t>{1, 1, 4, 0})) << id;
    EXPECT_TRUE(c.calls[0].inputs[0].data.empty()) << id;
    EXPECT_EQ(c.calls[0].outputs[0].shape.back(), 0) << id;
  }
}

TEST(AttentionGate, HonestStylesPass) {
  for (const Style& style : kForward) {
    gate::expect_passes(task(false), style.name, contender(style, false), 21);
  }
  for (const Style& style : kBackward) {
    gate::expect_passes(task(true), style.name, contender(style, true), 21);
  }
}

// Where delta is far larger than dP, a weight of 1e-38 that is flushed to 0 shows.
TEST(AttentionGate, FlushedWeightsPass) {
  const CaseSpec spec = parse_spec(
      "large_scores:batch=2,causal=0,dim=74,group=1,keys=13,kv_heads=11,queries=1:"
      "14385799282398357497");
  const Case c = task(true).build(spec);
  const Style style{.name = "", .flush = true};
  const CaseCheck check = task(true).check(c, contender(style, true)(c));
  EXPECT_TRUE(check.passed) << check.reason;
}

TEST(AttentionGate, PlantedFaultsAreFound) {
  for (const Fault fault :
       {Fault::rescale_inverted, Fault::mask_shifted, Fault::top_left, Fault::tile_lost,
        Fault::masked_nan, Fault::heads_modulo, Fault::bf16}) {
    const Style style{.name = "", .softmax = Softmax::tiles, .fault = fault};
    const std::string name = "fault " + std::to_string(static_cast<int>(fault));
    gate::expect_found(task(false), name, contender(style, false), 3);
  }
  for (const Fault fault :
       {Fault::mask_shifted, Fault::top_left, Fault::tile_lost, Fault::delta_per_tile,
        Fault::overwritten, Fault::heads_modulo, Fault::bf16}) {
    const Style style{.name = "", .fault = fault};
    const std::string name = "backward fault " + std::to_string(static_cast<int>(fault));
    gate::expect_found(task(true), name, contender(style, true), 3);
  }
}

// Not part of the tests of every day: how often bounds are met over many seeds.
TEST(AttentionGate, DISABLED_ManySeeds) {
  for (uint64_t seed = 100; seed < 110; ++seed) {
    for (const Style& style : kForward) {
      gate::expect_passes(task(false), style.name, contender(style, false), seed, false);
    }
    for (const Style& style : kBackward) {
      gate::expect_passes(task(true), style.name, contender(style, true), seed, false);
    }
  }
}

TEST(AttentionGate, TrivialContendersFailEverywhere) {
  gate::expect_trivial_fail(task(false));
  gate::expect_trivial_fail(task(true));
}

TEST(AttentionGate, LowerPrecisionFails) {
  gate::expect_lower_precision_fails(task(false), "nominal");
  gate::expect_lower_precision_fails(task(true), "nominal");
}

TEST(AttentionGate, RelationsHoldAndBite) {
  for (const bool is_backward : {false, true}) {
    gate::expect_relations(task(is_backward),
                           contender({.name = "", .sum = Sum::lanes}, is_backward));
    // A mask that is off by one is right about everything but the key that changes.
    const Style shifted{.name = "", .fault = Fault::mask_shifted};
    EXPECT_FALSE(
        gate::broken_relations(task(is_backward), contender(shifted, is_backward)).empty());
  }
}

// The oracle of the operator knows nothing of tolerances or cases.
TEST(AttentionOracle, ASecondOneAgrees) {
  for (const CaseSpec& spec : task(true).plan(7, true).cases) {
    if (spec.family == "future_nan" || spec.family == "bad_arguments") continue;
    SCOPED_TRACE(format_spec(spec));
    const Problem p = attention::make_problem(spec, true);
    const Shape& s = p.shape;
    const auto wide = [](const std::vector<float>& x) {
      return std::vector<double>(x.begin(), x.end());
    };
    const std::vector<double> q = wide(p.q), k = wide(p.k), v = wide(p.v), dout = wide(p.dout);
    std::vector<double> out(q.size()), lse(static_cast<size_t>(s.rows())), dq(q.size()),
        dk(k.size()), dv(v.size());
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t of_queries = b * s.query_heads * s.queries * s.dim;
      const int64_t of_keys = b * s.kv_heads * s.keys * s.dim;
      const oracle::Attention<double> item{.queries = s.queries,
                                           .keys = s.keys,
                                           .query_heads = s.query_heads,
                                           .kv_heads = s.kv_heads,
                                           .k_dim = s.dim,
                                           .v_dim = s.dim,
                                           .q = q.data() + of_queries,
                                           .k = k.data() + of_keys,
                                           .v = v.data() + of_keys,
                                           .scale = s.scale,
                                           .causal = s.causal,
                                           .output = out.data() + of_queries,
                                           .log_sum_exp = lse.data() + of_queries / s.dim};
      oracle::attention(item);
      oracle::attention_backward({.forward = item,
                                  .doutput = dout.data() + of_queries,
                                  .dq = dq.data() + of_queries,
                                  .dk = dk.data() + of_keys,
                                  .dv = dv.data() + of_keys});
    }
    const attention::ForwardAnswer forward = attention::expected_forward(p, {});
    gate::expect_agrees(forward.out, out);
    for (size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(lse[i])) {
        ASSERT_EQ(forward.lse.value[i], lse[i]);
      } else {
        ASSERT_NEAR(forward.lse.value[i], lse[i], 1e-6 * forward.lse.bound[i]);
      }
    }
    const attention::BackwardAnswer backward = attention::expected_backward(p, {});
    gate::expect_agrees(backward.dq, dq);
    gate::expect_agrees(backward.dk, dk);
    gate::expect_agrees(backward.dv, dv);
  }
}

// The gradient of sum(dout * out), by differences of the forward.
TEST(AttentionOracle, GradientsAreSlopes) {
  for (const CaseSpec& spec : {CaseSpec{"nominal",
                                        {{"batch", 2},
                                         {"kv_heads", 2},
                                         {"group", 2},
                                         {"queries", 4},
                                         {"keys", 5},
                                         {"dim", 3},
                                         {"causal", 1}},
                                        5},
                               CaseSpec{"heavy_tails",
                                        {{"batch", 1},
                                         {"kv_heads", 1},
                                         {"group", 3},
                                         {"queries", 5},
                                         {"keys", 3},
                                         {"dim", 4},
                                         {"causal", 1}},
                                        6},
                               CaseSpec{"nominal",
                                        {{"batch", 1},
                                         {"kv_heads", 2},
                                         {"group", 1},
                                         {"queries", 3},
                                         {"keys", 6},
                                         {"dim", 2},
                                         {"causal", 0}},
                                        7}}) {
    Problem p = attention::make_problem(spec, true);
    const attention::BackwardAnswer right = attention::expected_backward(p, {});
    const auto loss = [&] {
      const attention::ForwardAnswer a = attention::expected_forward(p, {});
      double sum = 0;
      for (size_t i = 0; i < p.dout.size(); ++i)
        sum += static_cast<double>(p.dout[i]) * a.out.value[i];
      return sum;
    };
    const auto check = [&](std::vector<float>& values, const Expected& expected) {
      for (size_t i = 0; i < values.size(); ++i) {
        const float kept = values[i];
        const float above = kept + 0x1p-10F, below = kept - 0x1p-10F;
        values[i] = above;
        const double high = loss();
        values[i] = below;
        const double low = loss();
        values[i] = kept;
        const double step = static_cast<double>(above) - static_cast<double>(below);
        EXPECT_NEAR((high - low) / step, expected.value[i], 2e-5) << format_spec(spec) << " " << i;
      }
    };
    check(p.q, right.dq);
    check(p.k, right.dk);
    check(p.v, right.dv);
  }
}

TEST(AttentionOracle, WhatNobodySeesIsExactlyZero) {
  const Task& t = task(true);
  // Of nine queries over five keys the first four see nothing.
  const Case c = t.build({"sees_nothing",
                          {{"batch", 1},
                           {"kv_heads", 1},
                           {"group", 1},
                           {"queries", 9},
                           {"keys", 5},
                           {"dim", 2},
                           {"causal", 1}},
                          3});
  std::vector<Reply> replies = backward({.name = ""}, c);
  EXPECT_TRUE(t.check(c, replies).passed);
  std::vector<float> dq(as_f32(replies[0].outputs[0]).begin(), as_f32(replies[0].outputs[0]).end());
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(dq[i], 0.0F);
  dq[7] = 1e-30F;
  replies[0].outputs[0] = bytes_of(dq);
  EXPECT_FALSE(t.check(c, replies).passed);
}

}  // namespace
}  // namespace touchstone::judge
