// What dense attention promises beside right numbers: bits that depend on nothing else, nothing
// from what is not seen, and gradients that belong to the forward.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/index.h"
#include "ops/attention_dense/attention_test_support.h"
#include "oracle/attention.h"
#include "touchstone/gradcheck.h"

namespace touchstone::test {
namespace {

namespace gc = touchstone::gradcheck;

// A head for the GPU's tensor cores, where that is the device.
std::int64_t head_size() { return on_gpu() ? 64 : 16; }

// Rows [first, first + count) of a [B, H, S, D] tensor of one head.
Values some(const Values& all, std::int64_t first, std::int64_t count, std::int64_t dim) {
  return {all.begin() + first * dim, all.begin() + (first + count) * dim};
}

template <class Run>
void expect_same_bytes(Run& run, Runner& context, const std::vector<std::byte>& expected) {
  run.run(context);
  EXPECT_TRUE(run.bytes() == expected);
}

// On the CPU the number of threads decides how dq is made: with heads enough for all threads a task
// has a whole head, else blocks of keys add in order, and with sinks it has a sweep of its own.
TEST(AttentionProperties, SameBitsEveryTimeAndForAnyThreads) {
  const DType dtype = on_gpu() ? DType::bf16 : DType::f32;
  const DenseProblem problems[] = {
      {{.batch = 2,
        .heads = 6,
        .kv_heads = 2,
        .queries = 130,
        .keys = 150,
        .k_dim = head_size(),
        .dtype = dtype,
        .causal = true,
        .sink_logits = true,
        .log_sum_exp_grad = true}},
      {{.batch = 2,
        .heads = 2,
        .kv_heads = 2,
        .queries = 200,
        .keys = 190,
        .k_dim = 17,
        .dtype = dtype,
        .window = 70,
        .sinks = 3,
        .soft_cap = 2,
        .alibi = true}},
      {{.heads = 8, .kv_heads = 8, .queries = 70, .keys = 129, .dtype = dtype}},
      {{.queries = 401, .keys = 390, .k_dim = 16, .dtype = dtype}},
      {{.queries = 530, .keys = 390, .k_dim = 17, .dtype = dtype, .causal = true, .window = 150}}};
  for (const DenseProblem& p : problems) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, p.describe());
    const DenseData data = make_data(p);
    DenseForwardRun forward(p, data);
    DenseBackwardRun backward(p, data);
    for (const std::string& name : backward.accepting()) {
      const int times = name == "plain" || kSanitized ? 2 : 100;
      Runner first({.device = test_device(), .threads = 1, .implementation = name});
      forward.run(first);
      backward.run(first);
      const auto output = forward.bytes();
      const auto gradients = backward.bytes();
      for (const int threads : {1, 2, 3, 7}) {
        Runner context({.device = test_device(), .threads = threads, .implementation = name});
        expect_same_bytes(forward, context, output);
        for (int i = 0; i < times / 4 + 1; ++i) expect_same_bytes(backward, context, gradients);
      }
    }
  }
}

TEST(AttentionProperties, DbiasSharedByHeadsIsTheSameForAnyThreads) {
  const DenseProblem p{
      {.batch = 3, .heads = 4, .queries = 150, .keys = 70, .k_dim = 8, .bias = BiasKind::shared}};
  const DenseData data = make_data(p);
  DenseBackwardRun backward(p, data);
  for (const std::string& name : backward.accepting()) {
    Runner one({.device = test_device(), .threads = 1, .implementation = name});
    backward.run(one);
    const auto expected = backward.bytes();
    for (const int threads : {2, 5}) {
      Runner context({.device = test_device(), .threads = threads, .implementation = name});
      expect_same_bytes(backward, context, expected);
    }
  }
}

// The rows of a sequence, alone and as one of many.
TEST(AttentionProperties, SameBitsInAnyBatch) {
  for (const DType dtype : dtypes()) {
    const DenseProblem alone{{.heads = 4,
                              .kv_heads = 2,
                              .queries = 70,
                              .keys = 75,
                              .k_dim = head_size(),
                              .dtype = dtype,
                              .causal = true}};
    DenseProblem among = alone;
    among.batch = 3;
    const DenseData one = make_data(alone);
    DenseData many = make_data(among);
    const auto put = [](const Values& part, Values& whole) {
      std::copy(part.begin(), part.end(), whole.begin() + std::ssize(part));
    };
    put(one.q, many.q);
    put(one.k, many.k);
    put(one.v, many.v);
    put(one.doutput, many.doutput);
    DenseForwardRun forward_one(alone, one);
    DenseForwardRun forward_many(among, many);
    for_each_runner(forward_one.accepting(), [&](Runner& context) {
      forward_one.run(context);
      forward_many.run(context);
      const Values part = forward_one.output.values();
      const std::int64_t n = std::ssize(part);
      EXPECT_EQ(part, some(forward_many.output.values(), 1, 1, n));
    });
    DenseBackwardRun backward_one(alone, one);
    DenseBackwardRun backward_many(among, many);
    for_each_runner(backward_one.accepting(), [&](Runner& context) {
      backward_one.run(context);
      backward_many.run(context);
      for (const auto& [part, whole] : {std::pair(&backward_one.dq, &backward_many.dq),
                                        std::pair(&backward_one.dk, &backward_many.dk),
                                        std::pair(&backward_one.dv, &backward_many.dv)}) {
        const Values values = part->values();
        EXPECT_EQ(values, some(whole->values(), 1, 1, std::ssize(values)));
      }
    });
  }
}

// Packed sequences against each of them alone.
TEST(AttentionProperties, PackedIsTheSameAsAlone) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> lengths{{70, 70}, {1, 130}, {65, 9}};
  const DenseProblem packed{{.packed = lengths, .causal = true}};
  const DenseData data = make_data(packed);
  DenseForwardRun run(packed, data);
  DenseBackwardRun all(packed, data);
  std::int64_t query = 0;
  std::int64_t key = 0;
  for (const auto& [queries, keys] : lengths) {
    const DenseProblem alone{{.queries = queries, .keys = keys, .causal = true}};
    DenseData part = make_data(alone);
    part.q = some(data.q, query, queries, 16);
    part.k = some(data.k, key, keys, 16);
    part.v = some(data.v, key, keys, 16);
    part.doutput = some(data.doutput, query, queries, 16);
    DenseForwardRun other(alone, part);
    for_each_implementation(run.accepting(), [&](Runner& context) {
      run.run(context);
      other.run(context);
      EXPECT_EQ(other.output.values(), some(run.output.values(), query, queries, 16));
    });
    DenseBackwardRun gradient(alone, part);
    for_each_runner(all.accepting(), [&](Runner& context) {
      all.run(context);
      gradient.run(context);
      EXPECT_EQ(gradient.dq.values(), some(all.dq.values(), query, queries, 16));
      EXPECT_EQ(gradient.dk.values(), some(all.dk.values(), key, keys, 16));
      EXPECT_EQ(gradient.dv.values(), some(all.dv.values(), key, keys, 16));
    });
    query += queries;
    key += keys;
  }
}

// NaN and infinity in a key, and in a query's gradient, reach those only who see them.
// There a weight of 0 times NaN is NaN.
bool multiplies_whole_tiles(const Runner& context) {
  return context.implementation() == "wgmma" || context.implementation() == "mma";
}

TEST(AttentionProperties, WhatIsNotSeenIsNotLookedAt) {
  for (const DType dtype : dtypes()) {
    for (const double poison : {kNan, kInfinity, 7.0}) {
      for (const std::int64_t victim : {0, 77, 130, 149}) {
        const std::int64_t dim = head_size();
        const DenseProblem p{{.queries = 150,
                              .keys = 150,
                              .k_dim = dim,
                              .dtype = dtype,
                              .causal = true,
                              .window = 40,
                              .sinks = 1}};
        const DenseData clean = make_data(p);
        DenseData dirty = clean;
        for (std::int64_t d = 0; d < dim; ++d) {
          dirty.k[at(victim * dim + d)] = poison;
          dirty.v[at(victim * dim + d)] = poison;
        }
        const auto attends = [&](std::int64_t query, std::int64_t key) {
          return key <= query && (key > query - 40 || key < 1);
        };
        DenseForwardRun before(p, clean);
        DenseForwardRun after(p, dirty);
        DenseBackwardRun gradient(p, clean);
        DenseBackwardRun spoiled(p, clean);
        spoiled.k.set(dirty.k);
        spoiled.v.set(dirty.v);
        for_each_implementation(before.accepting(), [&](Runner& context) {
          if (!std::isfinite(poison) && multiplies_whole_tiles(context)) return;
          before.run(context);
          after.run(context);
          gradient.run(context);
          spoiled.run(context);
          const Values outputs[] = {before.output.values(), after.output.values()};
          const Values gradients[] = {gradient.dq.values(), spoiled.dq.values()};
          for (std::int64_t i = 0; i < p.queries; ++i) {
            if (attends(i, victim)) continue;
            EXPECT_EQ(some(outputs[0], i, 1, dim), some(outputs[1], i, 1, dim))
                << "query " << i << ", key " << victim;
            EXPECT_EQ(some(gradients[0], i, 1, dim), some(gradients[1], i, 1, dim))
                << "dq " << i << ", key " << victim;
          }
        });
        if (!std::isnan(poison)) continue;
        // The other way round: a gradient of NaN at one query reaches the keys that it sees.
        DenseBackwardRun hurt(p, clean);
        Values doutput = clean.doutput;
        for (std::int64_t d = 0; d < dim; ++d) doutput[at(victim * dim + d)] = poison;
        hurt.doutput.set(doutput);
        for_each_implementation(hurt.accepting(), [&](Runner& context) {
          if (multiplies_whole_tiles(context)) return;
          gradient.run(context);
          hurt.run(context);
          const Values dk[] = {gradient.dk.values(), hurt.dk.values()};
          const Values dv[] = {gradient.dv.values(), hurt.dv.values()};
          for (std::int64_t t = 0; t < p.keys; ++t) {
            if (attends(victim, t)) continue;
            EXPECT_EQ(some(dk[0], t, 1, dim), some(dk[1], t, 1, dim));
            EXPECT_EQ(some(dv[0], t, 1, dim), some(dv[1], t, 1, dim));
          }
        });
      }
    }
  }
}

// Nor by several threads that share a head.
TEST(AttentionProperties, WhatIsNotSeenIsNotLookedAtInTurns) {
  if (on_gpu()) GTEST_SKIP() << "about threads";
  const DenseProblem p{{.queries = 300, .keys = 300, .dtype = DType::f32, .causal = true}};
  const std::int64_t victim = 200;
  const DenseData clean = make_data(p);
  DenseData dirty = clean;
  for (std::int64_t d = 0; d < 16; ++d) {
    dirty.k[at(victim * 16 + d)] = kNan;
    dirty.v[at(victim * 16 + d)] = kNan;
  }
  DenseBackwardRun gradient(p, clean);
  DenseBackwardRun spoiled(p, clean);
  spoiled.k.set(dirty.k);
  spoiled.v.set(dirty.v);
  for (const int threads : {1, 4}) {
    Runner context({.threads = threads, .implementation = "simd"});
    gradient.run(context);
    spoiled.run(context);
    EXPECT_EQ(some(gradient.dq.values(), 0, victim, 16), some(spoiled.dq.values(), 0, victim, 16));
    EXPECT_TRUE(std::isnan(spoiled.dq.values()[at(victim * 16)]));
  }
}

// Keys past the end of a packed sequence belong to the next one, and rows past the last to nobody.
TEST(AttentionProperties, PaddingNeverLeaks) {
  const std::int64_t dim = head_size();
  for (const DType dtype : dtypes()) {
    const DenseProblem p{{.k_dim = dim, .packed = {{10, 10}, {7, 70}, {9, 9}}, .dtype = dtype}};
    const DenseData clean = make_data(p);
    DenseData dirty = clean;
    for (std::int64_t i = 10 * dim; i < 80 * dim; ++i) dirty.k[at(i)] = dirty.v[at(i)] = kNan;
    DenseForwardRun before(p, clean);
    DenseForwardRun after(p, dirty);
    DenseBackwardRun gradient(p, clean);
    DenseBackwardRun spoiled(p, clean);
    spoiled.k.set(dirty.k);
    spoiled.v.set(dirty.v);
    for_each_runner(before.accepting(), [&](Runner& context) {
      before.run(context);
      after.run(context);
      gradient.run(context);
      spoiled.run(context);
      for (const auto& [first, count] : {std::pair{0, 10}, std::pair{17, 9}}) {
        EXPECT_EQ(some(before.output.values(), first, count, dim),
                  some(after.output.values(), first, count, dim));
        EXPECT_EQ(some(gradient.dq.values(), first, count, dim),
                  some(spoiled.dq.values(), first, count, dim));
      }
      for (const auto& [first, count] : {std::pair{0, 10}, std::pair{80, 9}}) {
        EXPECT_EQ(some(gradient.dk.values(), first, count, dim),
                  some(spoiled.dk.values(), first, count, dim));
      }
    });
  }
}

// A query that sees nothing takes no part, whatever its gradient.
TEST(AttentionProperties, EmptyRowsTakeNoPart) {
  const std::int64_t dim = head_size();
  const DenseProblem p{
      {.queries = 90, .keys = 30, .k_dim = dim, .causal = true, .log_sum_exp_grad = true}};
  const DenseData clean = make_data(p);
  DenseBackwardRun gradient(p, clean);
  DenseBackwardRun hurt(p, clean);
  Values doutput = clean.doutput;
  std::fill(doutput.begin(), doutput.begin() + 60 * dim, kNan);
  hurt.doutput.set(doutput);
  for_each_runner(hurt.accepting(), [&](Runner& context) {
    gradient.run(context);
    hurt.run(context);
    EXPECT_TRUE(gradient.bytes() == hurt.bytes());
    for (const double x : some(hurt.dq.values(), 0, 60, dim)) EXPECT_EQ(x, 0);
  });
}

// The same where it is the bias that leaves nothing.
TEST(AttentionProperties, RowsHiddenByTheBiasTakeNoPart) {
  const std::int64_t dim = head_size();
  const DenseProblem p{{.queries = 70, .keys = 30, .k_dim = dim, .bias = BiasKind::full}};
  DenseData data = make_data(p);
  for (std::size_t i = 20 * 30; i < 25 * 30; ++i) data.bias[i] = -kInfinity;
  DenseBackwardRun gradient(p, data);
  DenseBackwardRun hurt(p, data);
  Values doutput = data.doutput;
  std::fill(doutput.begin() + 20 * dim, doutput.begin() + 25 * dim, kNan);
  hurt.doutput.set(doutput);
  for_each_runner(hurt.accepting(), [&](Runner& context) {
    gradient.run(context);
    hurt.run(context);
    EXPECT_TRUE(gradient.bytes() == hurt.bytes());
    for (const double x : some(hurt.dq.values(), 20, 5, dim)) EXPECT_EQ(x, 0);
  });
}

TEST(AttentionProperties, KeysThatNobodySeesHaveNoGradient) {
  const std::int64_t dim = head_size();
  for (const DType dtype : dtypes()) {
    // The queries stand at positions 190 to 199 and see 20 keys each: 171 to 199.
    const DenseProblem p{
        {.queries = 10, .keys = 200, .k_dim = dim, .dtype = dtype, .causal = true, .window = 20}};
    DenseBackwardRun run(p, make_data(p));
    for_each_runner(run.accepting(), [&](Runner& context) {
      run.run(context);
      for (const Heads* gradient : {&run.dk, &run.dv}) {
        const Values values = gradient->values();
        for (const double x : some(values, 0, 171, dim)) EXPECT_EQ(x, 0);
        const Values seen = some(values, 171, 29, dim);
        EXPECT_TRUE(std::ranges::all_of(seen, [](double x) { return x != 0; }));
      }
    });
  }
}

// dS is what a bias of 0 gets: it sums to 0 along every row, because weights sum to 1.
TEST(AttentionProperties, RowSumsOfDsVanish) {
  const DenseProblem p{{.heads = 2,
                        .queries = 100,
                        .keys = 140,
                        .k_dim = head_size(),
                        .causal = true,
                        .bias = BiasKind::full}};
  DenseData data = make_data(p);
  std::ranges::fill(data.bias, 0.0);
  DenseBackwardRun run(p, data);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    const Values ds = run.dbias.values();
    for (std::size_t row = 0; row < 200; ++row) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t t = 0; t < 140; ++t) {
        sum += ds[row * 140 + t];
        magnitude += std::fabs(ds[row * 140 + t]);
      }
      EXPECT_LE(std::fabs(sum), 1e-5 * std::max(magnitude, 1.0)) << "row " << row;
    }
  });
}

// ---- gradients by dual numbers ----------------------------------------------------------------

// The f64 backward of the library against the oracle's forward on dual numbers.
void check_gradient(const DenseProblem& p) {
  const testing::ScopedTrace trace(__FILE__, __LINE__, p.describe());
  const DenseData data = make_data(p);
  DenseForwardRun forward(p, data);
  DenseBackwardRun backward(p, data);
  Runner context({.threads = 2});
  forward.run(context);
  backward.output.set(forward.output.values());
  backward.log_sum_exp.set(forward.log_sum_exp.values());
  backward.run(context);
  const Values dq = backward.dq.values();
  const Values dk = backward.dk.values();
  const Values dv = backward.dv.values();
  const Values dbias = backward.dbias.values();
  const Values dsinks = backward.dsinks.values();
  gc::Problem problem{
      .inputs =
          {{.name = "q", .shape = {p.heads, p.queries, p.k_dim}, .value = data.q, .grad = dq},
           {.name = "k", .shape = {p.kv_heads, p.keys, p.k_dim}, .value = data.k, .grad = dk},
           {.name = "v", .shape = {p.kv_heads, p.keys, p.v_size()}, .value = data.v, .grad = dv}},
      .outputs = {{.name = "output",
                   .shape = {p.heads, p.queries, p.v_size()},
                   .cotangent = data.doutput}}};
  if (p.log_sum_exp_grad) {
    problem.outputs.push_back(
        {.name = "log_sum_exp", .shape = {p.heads, p.queries}, .cotangent = data.dlog_sum_exp});
  }
  if (p.bias == BiasKind::full) {
    problem.inputs.push_back(
        {.name = "bias", .shape = {p.heads, p.queries, p.keys}, .value = data.bias, .grad = dbias});
  }
  if (p.sink_logits) {
    problem.inputs.push_back(
        {.name = "sinks", .shape = {p.heads}, .value = data.sinks, .grad = dsinks});
  }
  const gc::Report report = gc::check(problem, [&](const gc::DualSlice& s) {
    oracle::attention<gc::DualScalar>(
        {.queries = p.queries,
         .keys = p.keys,
         .query_heads = p.heads,
         .kv_heads = p.kv_heads,
         .k_dim = p.k_dim,
         .v_dim = p.v_size(),
         .q = s.in[0].data(),
         .k = s.in[1].data(),
         .v = s.in[2].data(),
         .scale = 1 / std::sqrt(static_cast<double>(p.k_dim)),
         .soft_cap = p.soft_cap,
         .causal = p.causal,
         .window = p.window,
         .sinks = p.sinks,
         .bias = p.bias == BiasKind::full ? s.in[3].data() : nullptr,
         .alibi_slopes = p.alibi ? data.slopes.data() : nullptr,
         .sink_logits = p.sink_logits ? s.in.back().data() : nullptr,
         .output = s.out[0].data(),
         .log_sum_exp = p.log_sum_exp_grad ? s.out[1].data() : nullptr});
  });
  EXPECT_TRUE(report.ok) << report.summary();
  EXPECT_LE(report.residual, 1e-11);
}

TEST(AttentionGradient, AgreesWithDualNumbers) {
  if (on_gpu()) GTEST_SKIP() << "f64 is for the CPU";
  const std::int64_t length = sanitized_size(512, 64);
  for (const bool causal : {false, true}) {
    check_gradient({{.queries = length,
                     .keys = length,
                     .k_dim = 64,
                     .dtype = DType::f64,
                     .causal = causal,
                     .log_sum_exp_grad = true}});
  }
  check_gradient({{.heads = 4,
                   .kv_heads = 2,
                   .queries = 30,
                   .keys = 41,
                   .k_dim = 8,
                   .v_dim = 5,
                   .dtype = DType::f64,
                   .causal = true,
                   .soft_cap = 1.2,
                   .bias = BiasKind::full,
                   .alibi = true,
                   .sink_logits = true,
                   .log_sum_exp_grad = true}});
  check_gradient({{.heads = 2,
                   .queries = 50,
                   .keys = 50,
                   .k_dim = 8,
                   .dtype = DType::f64,
                   .window = 7,
                   .sinks = 2,
                   .log_sum_exp_grad = true}});
  check_gradient({{.queries = 40, .keys = 30, .k_dim = 8, .dtype = DType::f64, .causal = true}});
}

// ---- against the naive way --------------------------------------------------------------------

// Softmax of a whole row in f32, as one would write it first.
Values naive_row(const DenseProblem& p, const DenseData& data, std::int64_t b, std::int64_t head,
                 std::int64_t i) {
  const std::int64_t dim = p.k_dim;
  const auto token = [&](const Values& from, std::int64_t tokens, std::int64_t t) {
    return from.data() + ((b * p.heads + head) * tokens + t) * dim;
  };
  const double* const q = token(data.q, p.queries, i);
  const std::int64_t end = p.causal ? i + p.keys - p.queries + 1 : p.keys;
  std::vector<float> weights;
  float most = -std::numeric_limits<float>::infinity();
  for (std::int64_t t = 0; t < end; ++t) {
    float dot = 0;
    const double* const k = token(data.k, p.keys, t);
    for (std::int64_t d = 0; d < dim; ++d)
      dot += static_cast<float>(q[d]) * static_cast<float>(k[d]);
    weights.push_back(dot / std::sqrt(static_cast<float>(dim)));
    most = std::max(most, weights.back());
  }
  float sum = 0;
  for (float& w : weights) sum += w = std::exp(w - most);
  std::vector<float> output(at(dim));
  for (std::int64_t t = 0; t < end; ++t) {
    const double* const v = token(data.v, p.keys, t);
    for (std::int64_t d = 0; d < dim; ++d) {
      output[at(d)] += weights[at(t)] / sum * static_cast<float>(v[d]);
    }
  }
  return {output.begin(), output.end()};
}

void compare_with_naive(const DenseProblem& p, std::int64_t step) {
  const DenseData data = make_data(p);
  DenseForwardRun run(p, data);
  for_each_implementation(run.accepting(), [&](Runner& context) {
    if (context.implementation() == "plain" && p.queries > 1000) return;
    run.run(context);
    const Values output = run.output.values();
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        for (std::int64_t i = (b + h) % step; i < p.queries; i += step) {
          const Values expected = naive_row(p, data, b, h, i);
          const Values actual = some(output, (b * p.heads + h) * p.queries + i, 1, p.k_dim);
          for (std::size_t d = 0; d < expected.size(); ++d) {
            ASSERT_NEAR(actual[d], expected[d], 1e-4) << b << " " << h << " " << i << " " << d;
          }
        }
      }
    }
  });
}

TEST(Attention, AgreesWithNaive) {
  compare_with_naive({{.queries = 256, .keys = 256, .k_dim = 64, .causal = true}, {.tile = 64}}, 1);
  const std::int64_t length = sanitized_size(4096, 300);
  compare_with_naive(
      {{.batch = 2, .heads = 8, .kv_heads = 8, .queries = length, .keys = length, .k_dim = 64},
       {.tile = 128}},
      509);
}

// The naive backward, by the oracle's formulas on what f32 holds.
TEST(Attention, BackwardAgreesWithNaive) {
  const DenseProblem p{{.heads = 2, .queries = 256, .keys = 256, .k_dim = 64, .causal = true},
                       {.tile = 64}};
  const DenseData data = make_data(p);
  const ExpectedDense expected = expected_dense(p, data);
  DenseBackwardRun run(p, data);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    for (const auto& [gradient, values] :
         {std::pair(&run.dq, &expected.dq.value), std::pair(&run.dk, &expected.dk.value),
          std::pair(&run.dv, &expected.dv.value)}) {
      const Values actual = gradient->values();
      for (std::size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], (*values)[i], 1e-4);
    }
  });
}

}  // namespace
}  // namespace touchstone::test
