// A second witness for every reference: the backwards against dual numbers through the forward, the
// forwards against another derivation in long double. What bench, selfcheck, tests and the judge are
// held to must not rest on one program alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numbers>
#include <numeric>
#include <span>
#include <string>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "spec/spec.h"
#include "touchstone/core/random.h"
#include "touchstone/gradcheck.h"
#include "touchstone/ops/rope_append.h"

namespace touchstone::spec {
namespace {

using Real = long double;

// One small problem on the CPU, prepared and run, so that the outputs are there too.
struct Solved {
  Solved(const std::string& name, const std::string& shape, DType dtype,
         std::map<std::string, std::string> options)
      : context({.threads = 1}) {
    cases::Case item;
    item.dtype = dtype;
    item.shape = shape;
    item.options = std::move(options);
    problem = find(name)->make(item);
    operands = std::make_unique<Operands>(context, problem->operands(), 7);
    problem->prepare(context, operands->views());
    problem->call(context, operands->views(), "");
    context.synchronize();
    reader = std::make_unique<Reader>(operands->views());
    reference = problem->reference(*reader, kAllRows);
  }

  std::size_t index(const std::string& name) const {
    const auto& list = operands->list();
    return static_cast<std::size_t>(std::ranges::find(list, name, &Operand::name) - list.begin());
  }
  std::vector<double> operator[](const std::string& name) const { return reader->all(index(name)); }
  const OutputReference& expected(const std::string& name) const {
    return *std::ranges::find(reference, index(name), &OutputReference::operand);
  }
  // The witness agrees to a hundredth of the bound, in any order of elements.
  void agrees(const std::string& name, const std::vector<Real>& witness) const {
    const OutputReference& output = expected(name);
    ASSERT_EQ(output.expected.value.size(), witness.size()) << name;
    for (std::size_t i = 0; i < witness.size(); ++i) {
      const std::size_t at = output.index.empty() ? i : static_cast<std::size_t>(output.index[i]);
      const double off = std::fabs(output.expected.value[i] - static_cast<double>(witness[at]));
      EXPECT_LE(off, 0.01 * output.expected.bound[i] + 1e-300) << name << " " << at;
    }
  }

  Context context;
  std::unique_ptr<Problem> problem;
  std::unique_ptr<Operands> operands;
  std::unique_ptr<Reader> reader;
  std::vector<OutputReference> reference;
};

// The textbook formula by raw moments: no centering, no compensation.
void check_norm(const std::string& name) {
  const bool layer = name == "layer_norm";
  const Solved s(name, "5x37", DType::f32, {});
  const auto x = s["x"], weight = s["weight"];
  const auto bias = layer ? s["bias"] : std::vector<double>();
  std::vector<Real> y(x.size());
  for (std::size_t row = 0; row < 5; ++row) {
    Real sum = 0, squares = 0;
    for (std::size_t j = 0; j < 37; ++j) sum += x[row * 37 + j];
    for (std::size_t j = 0; j < 37; ++j) squares += Real(x[row * 37 + j]) * x[row * 37 + j];
    const Real mean = layer ? sum / 37 : 0;
    const Real rstd = 1 / std::sqrt(squares / 37 - mean * mean + Real(1e-5));
    for (std::size_t j = 0; j < 37; ++j) {
      y[row * 37 + j] = (x[row * 37 + j] - mean) * rstd * weight[j] + (layer ? Real(bias[j]) : 0);
    }
  }
  s.agrees("y", y);
}

TEST(SpecWitness, LayerNorm_RawMoments) { check_norm("layer_norm"); }
TEST(SpecWitness, RmsNorm_RawMoments) { check_norm("rms_norm"); }

// Column by column of W, with every part of the epilogue; silu by tanh of half its argument.
TEST(SpecWitness, Linear_OuterProducts) {
  const Solved s("linear", "3x40/10", DType::f32,
                 {{"bias", "1"}, {"residual", "1"}, {"gate", "silu"}, {"soft_cap", "2"}});
  const auto x = s["x"], weight = s["weight"], bias = s["bias"], residual = s["residual"];
  std::vector<Real> sums(30);
  for (std::size_t i = 0; i < 40; ++i) {
    for (std::size_t at = 0; at < 30; ++at) {
      sums[at] += Real(x[at / 10 * 40 + i]) * weight[at % 10 * 40 + i];
    }
  }
  for (std::size_t at = 0; at < 30; ++at) {
    sums[at] = 2 * std::tanh((sums[at] + bias[at % 10]) / 2);
  }
  std::vector<Real> y(15);
  for (std::size_t at = 0; at < 15; ++at) {
    const Real gate = sums[at / 5 * 10 + at % 5], up = sums[at / 5 * 10 + at % 5 + 5];
    y[at] = gate * (1 + std::tanh(gate / 2)) / 2 * up + residual[at];
  }
  s.agrees("y", y);
}

// Logarithms of softmax by products of ratios: 1 / p[t] is the sum of exp(l[v] - l[t]).
TEST(SpecWitness, CrossEntropy_Ratios) {
  const Solved s("cross_entropy", "4x12/19", DType::f32,
                 {{"smoothing", "0.2"}, {"z_loss", "0.01"}, {"soft_cap", "3"}, {"ignore", "some"}});
  const auto x = s["x"], weight = s["weight"], targets = s["targets"];
  std::vector<Real> loss, log_probability, lse;
  for (std::size_t n = 0; n < 4; ++n) {
    std::vector<Real> l(19);
    for (std::size_t v = 0; v < 19; ++v) {
      for (std::size_t i = 12; i-- > 0;) l[v] += Real(x[n * 12 + i]) * weight[v * 12 + i];
      l[v] = 3 * std::tanh(l[v] / 3);
    }
    const auto minus_log = [&](std::size_t t) {
      Real ratios = 0;
      for (const Real other : l) ratios += std::exp(other - l[t]);
      return std::log(ratios);
    };
    const Real z = l[0] + minus_log(0);
    lse.push_back(z);
    Real value = z * z / 100;
    for (std::size_t v = 0; v < 19; ++v) {
      const Real share = Real(0.2) / 19 + (targets[n] == static_cast<double>(v) ? Real(0.8) : 0);
      value += share * minus_log(v);
    }
    const bool ignored = targets[n] < 0;
    loss.push_back(ignored ? 0 : value);
    log_probability.push_back(ignored ? 0 : -minus_log(static_cast<std::size_t>(targets[n])));
  }
  s.agrees("loss", loss);
  s.agrees("log_probability", log_probability);
  s.agrees("lse", lse);
}

// A product with the matrix of one-hot rows.
TEST(SpecWitness, Embedding_OneHotRows) {
  const Solved s("embedding", "6x11/4", DType::f32, {{"tokens", "skewed"}, {"scale", "3"}});
  const auto tokens = s["tokens"], weight = s["weight"];
  std::vector<Real> y(66);
  for (std::size_t v = 0; v < 4; ++v) {
    for (std::size_t at = 0; at < 66; ++at) {
      const Real hot = tokens[at / 11] == static_cast<double>(v) ? 1 : 0;
      y[at] += 3 * hot * weight[v * 11 + at % 11];
    }
  }
  s.agrees("y", y);
}

// Silu by tanh of half its argument, gelu by the integral of its density, ReLU^2 by |x|.
TEST(SpecWitness, Activation_OtherForms) {
  const auto gelu = [](Real x) {
    constexpr int kSteps = 4000;  // Simpson's rule from 0 to x
    Real sum = 0;
    for (int i = 0; i <= kSteps; ++i) {
      const Real t = x * i / kSteps;
      const Real weight = i == 0 || i == kSteps ? 1 : i % 2 == 1 ? 4 : 2;
      sum += weight * std::exp(-t * t / 2);
    }
    return x * (Real(0.5) + sum * x / (3 * kSteps) / std::sqrt(2 * std::numbers::pi_v<Real>));
  };
  const std::map<std::string, std::function<Real(Real)>> forms{
      {"silu", [](Real x) { return x * (1 + std::tanh(x / 2)) / 2; }},
      {"gelu", gelu},
      {"gelu_tanh",
       [](Real x) {
         const Real z = std::sqrt(2 / std::numbers::pi_v<Real>) * (x + Real(0.044715) * x * x * x);
         return x / (1 + std::exp(-2 * z));
       }},
      {"relu_squared", [](Real x) { return x * (x + std::fabs(x)) / 2; }}};
  for (const auto& [kind, form] : forms) {
    SCOPED_TRACE(kind);
    const Solved plain("activation", "3x50", DType::f32, {{"kind", kind}});
    const Solved gated("gate", "3x50", DType::f32, {{"kind", kind}});
    std::vector<Real> y, z;
    for (const double x : plain["x"]) y.push_back(form(x));
    const auto gate = gated["gate"], up = gated["up"];
    for (std::size_t i = 0; i < gate.size(); ++i) z.push_back(form(gate[i]) * up[i]);
    plain.agrees("y", y);
    gated.agrees("y", z);
  }
}

// Pairs as complex numbers, turned by e^ia.
TEST(SpecWitness, Rope_ComplexNumbers) {
  for (const bool adjacent : {false, true}) {
    const Solved s(
        "rope", "3x2x12", DType::f32,
        {{"pairs", adjacent ? "adjacent" : "halves"}, {"rotary", "8"}, {"scale", "1.5"}});
    const auto x = s["x"], positions = s["positions"], frequencies = s["frequencies"];
    std::vector<Real> y(x.begin(), x.end());
    for (std::size_t row = 0; row < 6; ++row) {
      for (std::size_t i = 0; i < 4; ++i) {
        const std::size_t first = row * 12 + (adjacent ? 2 * i : i);
        const std::size_t second = row * 12 + (adjacent ? 2 * i + 1 : i + 4);
        const std::complex<Real> turned =
            std::complex<Real>(x[first], x[second]) *
            std::polar(Real(1.5), Real(positions[row / 2]) * Real(frequencies[i]));
        y[first] = turned.real(), y[second] = turned.imag();
      }
    }
    s.agrees("y", y);
  }
}

// Selection by repeated maximum, probabilities without subtracting the maximum.
TEST(SpecWitness, SoftmaxTopk_RepeatedMaximum) {
  const Solved s("softmax_topk", "4x61", DType::bf16, {{"k", "9"}});
  const auto logits = s["logits"];
  std::vector<Real> probabilities, tokens;
  for (std::size_t row = 0; row < 4; ++row) {
    Real sum = 0;
    for (std::size_t i = 0; i < 61; ++i) sum += std::exp(Real(logits[row * 61 + i]));
    std::vector<bool> taken(61);
    for (int rank = 0; rank < 9; ++rank) {
      std::size_t best = 61;
      for (std::size_t i = 0; i < 61; ++i) {
        if (taken[i]) continue;
        if (best == 61 || logits[row * 61 + i] > logits[row * 61 + best]) best = i;
      }
      taken[best] = true;
      tokens.push_back(static_cast<Real>(best));
      probabilities.push_back(std::exp(Real(logits[row * 61 + best])) / sum);
    }
  }
  s.agrees("probabilities", probabilities);
  s.agrees("indices", tokens);
}

// Inverse of the distribution function over a sorted list of (probability, token).
TEST(SpecWitness, Sample_SortedPairs) {
  const Solved s("sample", "40x61", DType::f32, {{"k", "9"}});
  const auto logits = s["logits"];
  std::vector<Real> tokens, logs;
  for (std::int64_t row = 0; row < 40; ++row) {
    std::vector<std::pair<Real, std::int64_t>> pairs;
    Real total = 0;
    for (std::int64_t i = 0; i < 61; ++i) {
      const Real weight =
          std::exp(Real(logits[static_cast<std::size_t>(row * 61 + i)]) / Real(0.8F));
      pairs.emplace_back(-weight, i);
      total += weight;
    }
    std::ranges::sort(pairs);
    pairs.resize(9);
    Real mass = 0;
    for (const auto& pair : pairs) mass -= pair.first;
    Real kept = 0;
    std::size_t count = 0;
    while (kept < Real(0.95F) * mass) kept -= pairs[count++].first;
    const Real u = random_uniform(row, 7 * row);
    Real sum = 0;
    std::size_t drawn = 0;
    while ((sum -= pairs[drawn].first) <= u * kept) ++drawn;
    tokens.push_back(static_cast<Real>(pairs[drawn].second));
    logs.push_back(std::log(-pairs[drawn].first / total));
  }
  s.agrees("token", tokens);
  s.agrees("log_probability", logs);
}

// One pass over the keys with a running maximum, as flash attention does it.
struct OnlineRow {
  Real largest = -HUGE_VALL;
  Real sum = 0;
  std::vector<Real> output;

  explicit OnlineRow(std::size_t dim) : output(dim) {}
  void add(Real score, const double* value) {
    const Real next = std::max(largest, score);
    const Real shrink = std::exp(largest - next);
    const Real weight = std::exp(score - next);
    sum = sum * shrink + weight;
    for (std::size_t d = 0; d < output.size(); ++d) {
      output[d] = output[d] * shrink + weight * value[d];
    }
    largest = next;
  }
};

TEST(SpecWitness, Attention_OnlineSoftmax) {
  const Solved s("attention", "2x4/2x19x8", DType::f32, {{"causal", "1"}});
  const auto q = s["q"], k = s["k"], v = s["v"];
  std::vector<Real> output, lse;
  for (std::size_t bh = 0; bh < 8; ++bh) {
    for (std::size_t i = 0; i < 19; ++i) {
      OnlineRow row(8);
      for (std::size_t t = 0; t <= i; ++t) {
        Real dot = 0;
        for (std::size_t d = 0; d < 8; ++d) {
          dot += Real(q[(bh * 19 + i) * 8 + d]) * k[(bh / 2 * 19 + t) * 8 + d];
        }
        row.add(dot / std::sqrt(Real(8)), &v[(bh / 2 * 19 + t) * 8]);
      }
      for (const Real x : row.output) output.push_back(x / row.sum);
      lse.push_back(row.largest + std::log(row.sum));
    }
  }
  s.agrees("output", output);
  s.agrees("log_sum_exp", lse);
}

// Decoded pages, one pass over the tokens.
TEST(SpecWitness, CachedAttention_OnlineSoftmax) {
  const Solved s("cached_attention", "2x37", DType::f32,
                 {{"heads", "4/2x64"}, {"format", "int8"}, {"page", "64"}});
  const auto q = s["q"];
  const auto table = s["page_table"];
  const auto pages = s["pages"];
  cache::LayerGroup layers{.layers = 1, .kv_heads = 2, .k_dim = 64, .v_dim = 64};
  layers.k.dtype = layers.v.dtype = DType::i8;
  layers.page_tokens = 64;
  const auto geometry = cache::page_geometry(layers);
  std::vector<std::byte> bytes;
  for (const double byte : pages) bytes.push_back(static_cast<std::byte>(byte));
  std::vector<Real> output;
  for (std::size_t query = 0; query < 2; ++query) {
    for (std::size_t head = 0; head < 4; ++head) {
      OnlineRow row(64);
      for (std::int64_t t = 0; t < 37; ++t) {
        const auto to =
            cache::token_offsets(layers, geometry, 0, static_cast<std::int64_t>(head / 2), t);
        const std::byte* page =
            bytes.data() + static_cast<std::int64_t>(table[query]) * geometry.page_bytes;
        std::vector<float> key(64), value(64);
        cache::decode(layers.k, 64, page + to.k_values, page + to.k_scales, key.data());
        cache::decode(layers.v, 64, page + to.v_values, page + to.v_scales, value.data());
        Real dot = 0;
        for (std::size_t d = 0; d < 64; ++d) dot += Real(q[(query * 4 + head) * 64 + d]) * key[d];
        const std::vector<double> wide(value.begin(), value.end());
        row.add(dot / 8, wide.data());
      }
      for (const Real x : row.output) output.push_back(x / row.sum);
    }
  }
  s.agrees("output", output);
}

// What is stored decodes to the numbers within half a step of each group.
TEST(SpecWitness, KvAppend_DecodesToTheInput) {
  const Solved s("kv_append", "5x128", DType::f32, {{"format", "int8"}, {"page", "8"}});
  const auto k = s["k"];
  cache::LayerGroup layers{.layers = 1, .kv_heads = 1, .k_dim = 128, .v_dim = 128};
  layers.k.dtype = layers.v.dtype = DType::i8;
  layers.k.group_size = layers.v.group_size = 32;
  layers.page_tokens = 8;
  const auto geometry = cache::page_geometry(layers);
  std::vector<std::byte> bytes;
  for (const double byte : s.expected("pages").expected.value) {
    bytes.push_back(static_cast<std::byte>(byte));
  }
  for (std::int64_t token = 0; token < 5; ++token) {
    const auto to = cache::token_offsets(layers, geometry, 0, 0, token);
    std::vector<float> key(128);
    cache::decode(layers.k, 128, bytes.data() + to.k_values, bytes.data() + to.k_scales,
                  key.data());
    for (std::size_t g = 0; g < 4; ++g) {
      const double* const x = k.data() + static_cast<std::size_t>(token) * 128 + g * 32;
      double largest = 0;
      for (std::size_t d = 0; d < 32; ++d) largest = std::max(largest, std::fabs(x[d]));
      for (std::size_t d = 0; d < 32; ++d) {
        EXPECT_LE(std::fabs(static_cast<double>(key[g * 32 + d]) - x[d]), 1.01 * largest / 254);
      }
    }
  }
}

// Norm by raw moments and pairs as complex numbers, in one go; what the pages hold decodes to it.
TEST(SpecWitness, RopeAppend_ComplexNumbers) {
  constexpr std::size_t kTokens = 3, kHeads = 2, kDim = 16, kPairs = 4;
  for (const bool adjacent : {false, true}) {
    const Solved s("rope_append", "3x2x16", DType::f32,
                   {{"format", "f32"},
                    {"page", "4"},
                    {"group", "2"},
                    {"pairs", adjacent ? "adjacent" : "halves"},
                    {"rotary", "8"}});
    const auto positions = s["positions"], frequencies = s["frequencies"];
    const auto turned = [&](const std::string& x_name, std::size_t heads) {
      const auto x = s[x_name], weight = s[x_name + "_weight"];
      std::vector<Real> y(x.begin(), x.end());
      for (std::size_t row = 0; row < kTokens * heads; ++row) {
        Real* const head = y.data() + row * kDim;
        Real squares = 0;
        for (std::size_t d = 0; d < kDim; ++d) squares += head[d] * head[d];
        const Real root = std::sqrt(squares / kDim + Real(RopeAppendArgs{}.eps));
        for (std::size_t d = 0; d < kDim; ++d) head[d] *= weight[d] / root;
        for (std::size_t i = 0; i < kPairs; ++i) {
          Real& first = head[adjacent ? 2 * i : i];
          Real& second = head[adjacent ? 2 * i + 1 : i + kPairs];
          const std::complex<Real> pair =
              std::complex<Real>(first, second) *
              std::polar(Real(1), Real(positions[row / heads]) * Real(frequencies[i]));
          first = pair.real(), second = pair.imag();
        }
      }
      return y;
    };
    s.agrees("y", turned("q", 2 * kHeads));

    cache::LayerGroup layers{.layers = 1, .kv_heads = kHeads, .k_dim = kDim, .v_dim = kDim};
    layers.k.dtype = layers.v.dtype = DType::f32;
    layers.page_tokens = 4;
    const auto geometry = cache::page_geometry(layers);
    std::vector<std::byte> bytes;
    for (const double byte : s.expected("pages").expected.value) {
      bytes.push_back(static_cast<std::byte>(byte));
    }
    const auto keys = turned("k", kHeads);
    const auto values = s["v"];
    for (std::size_t row = 0; row < kTokens * kHeads; ++row) {
      const auto to =
          cache::token_offsets(layers, geometry, 0, static_cast<std::int64_t>(row % kHeads),
                               static_cast<std::int64_t>(row / kHeads));
      std::vector<float> key(kDim), value(kDim);
      cache::decode(layers.k, kDim, bytes.data() + to.k_values, nullptr, key.data());
      cache::decode(layers.v, kDim, bytes.data() + to.v_values, nullptr, value.data());
      Real largest = 0;
      for (std::size_t d = 0; d < kDim; ++d)
        largest = std::max(largest, std::fabs(keys[row * kDim + d]));
      for (std::size_t d = 0; d < kDim; ++d) {
        // At most 16 + 8 roundings of the norm and 4 of the rotation, of two numbers of a pair.
        EXPECT_LE(std::fabs(Real(key[d]) - keys[row * kDim + d]), 64 * 0x1p-24L * largest);
        EXPECT_EQ(static_cast<double>(value[d]), values[row * kDim + d]);
      }
    }
  }
}

// The nearest number with 11 significant bits, not below 2^-24.
Real nearest_half(Real x) {
  const Real step = std::ldexp(Real(1), std::max(std::ilogb(x), -14) - 10);
  return std::nearbyint(x / step) * step;
}

// The scale of a group by its definition: of all sets of codes that are not 0, each with the scale that
// fits it best, the one with the least error.
Real fitted_scale(std::span<const double> group) {
  Real least = std::numeric_limits<Real>::infinity(), scale = 0;
  for (std::size_t chosen = 1; chosen < std::size_t{1} << group.size(); ++chosen) {
    Real sum = 0, error = 0;
    int count = 0;
    for (std::size_t i = 0; i < group.size(); ++i) {
      if ((chosen >> i & 1) != 0) sum += std::fabs(group[i]), ++count;
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      const Real off = std::fabs(group[i]) - ((chosen >> i & 1) != 0 ? sum / count : 0);
      error += off * off;
    }
    if (error < least) least = error, scale = sum / count;
  }
  return scale;
}

TEST(SpecWitness, TernaryProject_EverySetOfCodes) {
  for (const std::string rule : {"mean", "absmax", "least_squares"}) {
    const Solved s("ternary_project", "6x12", DType::f32, {{"groups", "row"}, {"scale", rule}});
    const auto weight = s["weight"];
    std::vector<Real> values, codes, scales;
    for (std::size_t row = 0; row < 6; ++row) {
      const std::span<const double> group(weight.data() + row * 12, 12);
      Real scale = 0;
      if (rule == "least_squares") scale = fitted_scale(group);
      for (const double w : group) {
        if (rule == "mean") scale += std::fabs(Real(w)) / 12;
        if (rule == "absmax") scale = std::max(scale, std::fabs(Real(w)));
      }
      scales.push_back(nearest_half(scale));
      for (const double w : group) {
        // The nearest of the three levels.
        const Real near =
            std::min({std::fabs(w + scale), std::fabs(Real(w)), std::fabs(w - scale)});
        codes.push_back(near == std::fabs(Real(w)) ? 0 : w < 0 ? -1 : 1);
        values.push_back(codes.back() * scales.back());
      }
    }
    s.agrees("codes", codes);
    s.agrees("scales", scales);
    s.agrees("values", values);
  }
}

// The references of the backwards as the gradients of a check on dual numbers.
TEST(SpecWitness, Backwards_DualNumbers) {
  const std::map<std::string, std::pair<std::string, std::map<std::string, std::string>>> problems{
      {"layer_norm_backward", {"6x21", {}}},
      {"rms_norm_backward", {"6x21", {}}},
      {"linear_backward", {"5x19/7", {}}},
      {"activation_backward", {"6x21", {{"kind", "gelu"}}}},
      {"gate_backward", {"6x21", {{"kind", "gelu_tanh"}}}},
      {"cross_entropy_backward",
       {"7x9/23",
        {{"smoothing", "0.1"}, {"z_loss", "0.01"}, {"soft_cap", "4"}, {"ignore", "some"}}}},
      {"embedding_backward", {"9x7/5", {{"tokens", "skewed"}, {"scale", "1.5"}}}},
      {"rope_backward", {"5x3x14", {{"rotary", "8"}, {"scale", "1.5"}}}},
      {"attention_backward", {"1x1x17x8", {{"causal", "1"}, {"lse_grad", "1"}}}}};
  for (const Operator& op : all()) {
    if (!op.is_backward()) continue;
    SCOPED_TRACE(op.name);
    ASSERT_TRUE(problems.contains(op.name));
    const auto& [shape, options] = problems.at(op.name);
    const Solved s(op.name, shape, DType::f64, options);
    const Gradients gradients = s.problem->gradients().value();
    std::vector<std::vector<double>> values, cotangents;
    gradcheck::Problem problem;
    for (const Gradients::Input& input : gradients.inputs) {
      const OutputReference& gradient =
          *std::ranges::find(s.reference, input.gradient, &OutputReference::operand);
      values.push_back(input.value == Gradients::kNone
                           ? std::vector<double>(gradient.expected.value.size(), 2.0)
                           : s.reader->all(input.value));
      std::vector<double>& ordered = values.emplace_back(gradient.expected.value);
      for (std::size_t i = 0; i < gradient.index.size(); ++i) {
        ordered[static_cast<std::size_t>(gradient.index[i])] = gradient.expected.value[i];
      }
    }
    for (std::size_t i = 0; i < gradients.inputs.size(); ++i) {
      const auto& list = s.operands->list();
      problem.inputs.push_back({.name = gradients.inputs[i].name,
                                .shape = list[gradients.inputs[i].gradient].shape,
                                .value = values[2 * i],
                                .grad = values[2 * i + 1],
                                .per_row = gradients.inputs[i].per_row});
    }
    for (const Gradients::Output& output : gradients.outputs) {
      cotangents.push_back(s.reader->all(output.cotangent));
    }
    for (std::size_t i = 0; i < gradients.outputs.size(); ++i) {
      problem.outputs.push_back({.name = gradients.outputs[i].name,
                                 .shape = s.operands->list()[gradients.outputs[i].cotangent].shape,
                                 .cotangent = cotangents[i]});
    }
    problem.independent_rows = gradients.independent_rows;
    const gradcheck::Report report =
        gradcheck::check(problem, gradients.dual, {.gradient_floor = gradients.gradient_floor});
    EXPECT_TRUE(report.ok) << report.summary();
  }
}

}  // namespace
}  // namespace touchstone::spec
