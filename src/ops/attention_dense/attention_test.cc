// Dense attention, forward and backward, against the oracle: shapes, dtypes, layouts, options and
// the inputs that broke other libraries.
#include <cmath>
#include <limits>

#include "ops/attention_dense/attention_test_support.h"
#include "ops/attention_dense/dense_key_tile.h"

namespace touchstone::test {
namespace {

TEST(Attention, EveryHeadSize) {
  const std::int64_t largest = on_gpu() ? 256 : 300;
  std::size_t turn = 0;
  for (const std::int64_t dim : {1, 2, 3, 8, 15, 16, 17, 33, 40, 64, 80, 96, 128, 192, 256, 300}) {
    if (dim > largest) continue;
    const DType dtype = dtypes()[turn % dtypes().size()];
    check_dense({{.heads = 2,
                  .queries = 19,
                  .keys = 21,
                  .k_dim = dim,
                  .dtype = dtype,
                  .causal = turn % 2 == 0}});
    check_dense(
        {{.queries = 9, .keys = 70, .k_dim = dim, .v_dim = largest - dim + 1, .dtype = dtype}});
    ++turn;
  }
}

// Around the tiles of 64 own tokens and 128 others, primes, one token.
TEST(Attention, LengthsAroundTiles) {
  const std::int64_t lengths[] = {1, 2, 31, 63, 64, 65, 97, 127, 128, 129, 191, 257};
  std::size_t turn = 0;
  for (const std::int64_t length : lengths) {
    const DType dtype = dtypes()[turn++ % dtypes().size()];
    check_dense({{.queries = length, .keys = length, .dtype = dtype, .causal = true}});
    check_dense({{.queries = 1, .keys = length, .dtype = dtype}});
    check_dense({{.queries = length, .keys = 1, .dtype = dtype, .causal = turn % 2 == 0}});
    check_dense({{.queries = length, .keys = 130, .k_dim = 8, .dtype = dtype, .causal = true}});
    check_dense({{.queries = 70, .keys = length, .k_dim = 8, .dtype = dtype, .causal = true}});
  }
}

TEST(Attention, EveryTileSize) {
  for (const std::int64_t tile : {1, 7, 16, 63, 64, 65, 100, 256, 1024}) {
    check_dense({{.queries = 65, .keys = 101, .causal = true}, {.tile = tile}});
    check_dense({{.queries = 20, .keys = 101, .dtype = dtypes()[1], .window = 30}, {.tile = tile}});
  }
}

TEST(Attention, Groups) {
  for (const std::int64_t ratio : {1, 3, 8, 64}) {
    check_dense({{.batch = 2, .heads = ratio, .queries = 5, .keys = 23, .causal = true}});
    check_dense({{.heads = 2 * ratio,
                  .kv_heads = 2,
                  .queries = ratio == 64 ? 1 : 37,
                  .keys = 37,
                  .dtype = DType::bf16}});
  }
}

TEST(Attention, WindowsAndSinks) {
  for (const bool causal : {false, true}) {
    for (const std::int64_t window : {1, 2, 17, 64, 150, 1000}) {
      check_dense({{.queries = 150, .keys = 150, .k_dim = 8, .causal = causal, .window = window}});
      check_dense({{.queries = 140,
                    .keys = 171,
                    .k_dim = 8,
                    .causal = causal,
                    .window = window,
                    .sinks = 3},
                   {.tile = 32}});
    }
  }
  check_dense(
      {{.queries = 300, .keys = 300, .k_dim = 8, .causal = true, .window = 20, .sinks = 140}});
  const std::int64_t far = std::numeric_limits<std::int64_t>::max();
  check_dense({{.queries = 20, .keys = 30, .window = far}});
  check_dense({{.queries = 30, .keys = 20, .causal = true, .window = 4, .sinks = far}});
}

// All that is added to a score, with every way to share a bias.
void check_options(std::int64_t k_dim, std::int64_t v_dim) {
  std::size_t turn = 0;
  for (const BiasKind bias : {BiasKind::none, BiasKind::full, BiasKind::per_head,
                              BiasKind::per_batch, BiasKind::shared}) {
    for (int mix = 0; mix < 4; ++mix) {
      check_dense({{.batch = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .queries = 33,
                    .keys = 70,
                    .k_dim = k_dim,
                    .v_dim = v_dim,
                    .dtype = dtypes()[turn++ % dtypes().size()],
                    .causal = mix % 2 == 0,
                    .window = mix == 3 ? 9 : 0,
                    .soft_cap = mix == 1 || mix == 2 ? 1.5 : 0,
                    .bias = bias,
                    .alibi = mix >= 2,
                    .sink_logits = mix != 1,
                    .log_sum_exp_grad = mix != 2}});
    }
  }
}

TEST(Attention, Options) {
  check_options(12, 20);
  for (const DType dtype : dtypes()) {
    check_dense({{.queries = 12, .keys = 12, .dtype = dtype, .scale = -0.7}});
  }
  check_dense({{.queries = 40, .keys = 200, .soft_cap = 2}, {.q = {.scale = 30}}});
}

// Tensor cores want heads that are multiples of 8; one of each of their shapes.
TEST(Attention, OptionsOnTensorCores) {
  if (!on_gpu()) GTEST_SKIP() << "about tensor cores: runs with --device=cuda";
  check_options(16, 24);
  check_options(72, 128);
  check_options(136, 192);
  check_options(256, 200);
}

// On a GPU blocks stay on their multiprocessors and take one tile after the other: more tiles than
// there are multiprocessors, of every shape, with some of which nothing is seen in between.
TEST(Attention, MoreTilesThanMultiprocessors) {
  if (!on_gpu()) GTEST_SKIP() << "about tensor cores: runs with --device=cuda";
  std::size_t turn = 0;
  for (const std::int64_t dim : {16, 72, 136, 200}) {
    const bool causal = turn++ % 2 == 0;
    check_dense({{.batch = 3,
                  .heads = 100,
                  .kv_heads = 50,
                  .queries = 3,
                  .keys = 135,
                  .k_dim = dim,
                  .v_dim = 8,
                  .dtype = DType::bf16,
                  .causal = causal,
                  .sink_logits = dim == 72}});
    check_dense({{.heads = 30,
                  .kv_heads = 10,
                  .k_dim = dim,
                  .v_dim = 8,
                  .packed = {{130, 30}, {4, 0}, {5, 70}, {0, 3}, {270, 10}},
                  .dtype = DType::bf16,
                  .causal = !causal,
                  .window = dim == 136 ? 20 : 0,
                  .sink_logits = dim == 200}});
  }
}

TEST(Attention, Layouts) {
  for (const DType dtype : dtypes()) {
    for (const Layout layout : {Layout{}, Layout{.row_gap = 3, .offset = 1}}) {
      check_dense({{.batch = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .queries = 30,
                    .keys = 40,
                    .k_dim = 16,
                    .v_dim = 24,
                    .dtype = dtype,
                    .causal = true},
                   {.order = HeadOrder::tokens_first, .layout = layout}});
      check_dense({{.heads = 2, .queries = 30, .keys = 40, .dtype = dtype}, {.layout = layout}});
    }
  }
}

TEST(Attention, PackedSequences) {
  for (const bool causal : {false, true}) {
    for (const HeadOrder order : {HeadOrder::heads_first, HeadOrder::tokens_first}) {
      check_dense(
          {{.heads = 4,
            .kv_heads = 2,
            .packed = {{5, 5}, {0, 0}, {1, 64}, {63, 63}, {0, 9}, {65, 65}, {4, 0}, {64, 128}},
            .dtype = order == HeadOrder::heads_first ? DType::f32 : DType::bf16,
            .causal = causal,
            .sink_logits = true,
            .log_sum_exp_grad = true},
           {.order = order}});
      check_dense({{.packed = {{129, 127}, {3, 200}},
                    .causal = causal,
                    .window = 40,
                    .sinks = 2,
                    .alibi = true},
                   {.order = order}});
    }
  }
}

// No queries, no keys, no batch, nothing at all: what there is of outputs is 0 and -inf.
TEST(Attention, Empty) {
  for (const DType dtype : dtypes()) {
    const auto run = [&](const DenseProblem& p) {
      const testing::ScopedTrace trace(__FILE__, __LINE__, p.describe());
      const DenseData data = make_data(p);
      DenseForwardRun forward(p, data);
      for_each_runner(forward.accepting(), [&](Runner& context) {
        forward.run(context);
        for (const double x : forward.output.values()) EXPECT_EQ(x, 0);
        for (const double x : forward.log_sum_exp.values()) EXPECT_EQ(x, -kInfinity);
      });
      DenseBackwardRun backward(p, data);
      for_each_runner(backward.accepting(), [&](Runner& context) {
        backward.run(context);
        for (const Values& gradient : {backward.dq.values(), backward.dk.values(),
                                       backward.dv.values(), backward.dbias.values()}) {
          for (const double x : gradient) EXPECT_EQ(x, 0);
        }
      });
    };
    run({{.queries = 0, .keys = 5, .dtype = dtype}});
    run({{.queries = 5, .keys = 0, .dtype = dtype, .causal = true}});
    run({{.queries = 0, .keys = 0, .dtype = dtype}});
    run({{.batch = 0, .queries = 4, .keys = 4, .dtype = dtype}});
    run({{.packed = {{0, 0}, {0, 0}}, .dtype = dtype}});
    run({{.packed = {{7, 0}, {0, 0}}, .dtype = dtype}});
    run({{.batch = 0, .queries = 4, .keys = 4, .dtype = dtype, .bias = BiasKind::shared}});
  }
  // With a sink there is one logit after all.
  check_dense(
      {{.heads = 2, .queries = 3, .keys = 0, .sink_logits = true, .log_sum_exp_grad = true}});
}

// Sq > Sk: the first queries stand before every key.
TEST(Attention, FullyMaskedQueries) {
  for (const DType dtype : dtypes()) {
    check_dense({{.heads = 2,
                  .queries = 150,
                  .keys = 20,
                  .dtype = dtype,
                  .causal = true,
                  .log_sum_exp_grad = true}});
    check_dense({{.queries = 70,
                  .keys = 20,
                  .dtype = dtype,
                  .causal = true,
                  .window = 3,
                  .bias = BiasKind::full}});
  }
  check_dense(
      {{.queries = 40, .keys = 20, .causal = true, .sink_logits = true, .log_sum_exp_grad = true}});
}

// A bias of -inf hides a key; a row of it hides all.
TEST(Attention, BiasAsMask) {
  for (const DType dtype : dtypes()) {
    const DenseProblem p{{.batch = 2,
                          .heads = 2,
                          .queries = 66,
                          .keys = 70,
                          .k_dim = 8,
                          .dtype = dtype,
                          .bias = BiasKind::full}};
    DenseData data = make_data(p);
    for (std::size_t i = 0; i < data.bias.size(); ++i) {
      const std::size_t row = i / 70;
      if (row % 5 == 2 || (i % 70) % 3 == row % 3) data.bias[i] = -kInfinity;
    }
    check_dense(p, data);
  }
}

TEST(Attention, ExtremeLogits) {
  for (const DType dtype : dtypes()) {
    // Of +-5e4 and more: q . k is of the order of 4 * 64 * 64 * 3.
    check_dense({{.queries = 64, .keys = 192, .dtype = dtype, .scale = 1},
                 {.q = {.scale = 64}, .k = {.scale = 64}}});
    check_dense({{.queries = 65, .keys = 129, .dtype = dtype, .causal = true, .scale = 1},
                 {.q = {.center = 56, .scale = 0}, .k = {.center = 56, .scale = 1}}});
    // All near -120: no weight survives that is not taken relative to the largest.
    check_dense({{.heads = 2, .queries = 64, .keys = 64 + 128, .dtype = dtype, .scale = 1},
                 {.q = {.center = 2.74, .scale = 0.01}, .k = {.center = -2.74, .scale = 0.01}}});
    check_dense({{.queries = 1, .keys = 128, .dtype = dtype, .scale = 1},
                 {.q = {.center = 2.74, .scale = 0.01}, .k = {.center = -2.74, .scale = 0.01}}});
    check_dense({{.queries = 1, .keys = 1, .dtype = dtype}, {.k = {.center = -90, .scale = 1}}});
    // The same with a mask, rows of which hide the first tile, or all.
    const DenseProblem masked{
        {.heads = 2,
         .queries = 64,
         .keys = 64 + 128,
         .dtype = dtype,
         .scale = 1,
         .bias = BiasKind::shared},
        {.q = {.center = 2.74, .scale = 0.01}, .k = {.center = -2.74, .scale = 0.01}}};
    DenseData hidden = make_data(masked);
    for (std::size_t i = 0; i < hidden.bias.size(); ++i) {
      const std::size_t row = i / 192;
      const std::size_t first = row % 3 == 0 ? 0 : row % 3 == 1 ? 130 : 192;
      hidden.bias[i] = i % 192 < first ? -kInfinity : 0;
    }
    check_dense(masked, hidden);
    // All equal, and K = 0.
    check_dense({{.queries = 70, .keys = 70, .dtype = dtype, .causal = true}, {.k = {.scale = 0}}});
    // One logit far above the rest, at every position of a tile.
    for (const std::int64_t where : {0, 63, 127, 128, 150}) {
      const DenseProblem p{{.queries = 3, .keys = 151, .k_dim = 4, .dtype = dtype, .scale = 1},
                           {.q = {.center = 1, .scale = 0}}};
      DenseData data = make_data(p);
      data.k[static_cast<std::size_t>(where) * 4] = 19968;  // of every dtype
      check_dense(p, data);
    }
  }
}

// ---- large numbers ------------------------------------------------------------------------------

// One query of one head of one number, on the CPU.
void expect_single(DType dtype, double q, const Values& k, const Values& v, double expected,
                   double log_sum_exp) {
  const DenseProblem p{
      {.queries = 1, .keys = std::ssize(k), .k_dim = 1, .dtype = dtype, .scale = 1}};
  DenseData data = make_data(p);
  data.q = rounded(Values{q}, dtype);
  data.k = rounded(k, dtype);
  data.v = rounded(v, dtype);
  DenseForwardRun run(p, data);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_NEAR(run.output.values()[0], expected, 1e-2 * std::fabs(expected));
    EXPECT_NEAR(run.log_sum_exp.values()[0], log_sum_exp, 1e-2 * std::fabs(log_sum_exp));
  });
}

TEST(Attention, FiniteWhereSumsWouldOverflow) {
  if (on_gpu()) GTEST_SKIP() << "beyond the range that is promised there";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Values k(200, 0.0);
    Values v(200, 3e38);
    k.back() = 1000;
    v.back() = 1;
    expect_single(dtype, 1, k, v, 1, 1000);

    k.assign(256, 0.0);
    v.assign(256, -3e38);
    std::fill_n(v.begin(), 64, 3e38);
    expect_single(dtype, 1, k, v, -1.5e38, std::log(256));

    expect_single(dtype, 1e19, {3e19, -3e19, 3e19}, {1, 2, 5}, 3, 3e38);
    // All scores below the smallest float: not a masked query.
    expect_single(dtype, 1e19, {-3e19, -3e19}, {1, 3}, 2, -3e38);
  }
}

TEST(Attention, TilesHaveALargestSize) {
  EXPECT_NO_THROW(dense_attention::ScopedKeyTile(1024));
  EXPECT_THROW(dense_attention::ScopedKeyTile(1025), InvalidArgument);
  EXPECT_THROW(dense_attention::ScopedKeyTile(-1), InvalidArgument);
  EXPECT_EQ(dense_attention::key_tile(), 0);
}

}  // namespace
}  // namespace touchstone::test
