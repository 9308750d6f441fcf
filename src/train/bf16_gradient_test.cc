// Loss and gradients in bf16 against bounds that follow from what is rounded, on the CPU and CUDA;
// and that faults exceed these bounds (docs/design/training.md, "What bf16 costs").
#include <gtest/gtest.h>

#include <bit>

#include "cpu/amx.h"
#include "oracle/decoder_gradient.h"
#include "tests/support/compare.h"
#include "touchstone/core/half.h"
#include "touchstone/core/testing.h"
#include "touchstone/train/decoder.h"
#include "train/decoder_test_support.h"

namespace touchstone::train {
namespace {

using oracle::DecoderGradient;
using oracle::Store;
using oracle::Stored;
using test::DecoderVariant;
using test::OwnedBatch;
using test::RandomDecoder;

constexpr int kDraws = 64;
// Standard deviations of the draws, and the share of their root mean square that flipped ties are
// given: docs/design/training.md derives both.
constexpr double kSigmas = 8;
constexpr double kSameRoundings = 0.125;

double to_bf16(double value) { return convert<double>(convert<Bf16>(value)); }

bool is_stored(Stored what) { return what < Stored::norm_term; }
bool rounded_on_cuda_alone(Stored what) {
  return what == Stored::probability || what == Stored::dlogits || what == Stored::dscore;
}

// As the CPU stores it.
double cpu_store(Stored what, double value) {
  return !is_stored(what) || rounded_on_cuda_alone(what) ? value : to_bf16(value);
}

// As it does where products run on the tiles of AMX.
double amx_store(Stored what, double value) {
  return what == Stored::dlogits ? to_bf16(value) : cpu_store(what, value);
}

// An error of its own for every result: uniform within half a unit in the last place, as far as
// rounding to nearest can go; within a whole one for attention's weights, as ops/attention.h says.
Store random_errors(std::int64_t draw) {
  return [draw, position = std::int64_t{0}](Stored what, double value) mutable {
    if (value == 0 || !is_stored(what)) return value;
    const double half = std::ldexp(what == Stored::probability ? 2 : 1, std::ilogb(value) - 8);
    return value + half * (2 * random_uniform(draw, position++, RandomPurpose::shuffle, 11) - 1);
  };
}

// What one run's gradient of a tensor is off by, in units of the gradient's 2-norm: how far, and
// how far along the gradient itself.
struct Deviation {
  double distance = 0;
  double along = 0;
};

Deviation deviation(std::span<const double> got, std::span<const double> exact) {
  double error = 0;
  double along = 0;
  double norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (got[i] - exact[i]) * (got[i] - exact[i]);
    along += (got[i] - exact[i]) * exact[i];
    norm += exact[i] * exact[i];
  }
  return {std::sqrt(error / norm), along / norm};
}

// Mean and deviation over the draws.
struct Spread {
  double sum = 0;
  double squares = 0;
  void add(double value) {
    sum += value;
    squares += value * value;
  }
  double mean() const { return sum / kDraws; }
  double sigma() const { return std::sqrt(std::max(0.0, squares / kDraws - mean() * mean())); }
  double rms() const { return std::sqrt(squares / kDraws); }
};

struct TensorBound {
  Spread distance;
  Spread along;
};

// A model and a batch: its exact gradient and how far rounding moves it.
class Bf16Problem {
 public:
  explicit Bf16Problem(bool qk_norm)
      : variant_{.qk_norm = qk_norm,
                 .tied = qk_norm,
                 .document = qk_norm ? 4 : 0,
                 .dropout = 0.25,
                 .attention_dropout = qk_norm ? 0.2 : 0},
        description_(test::small_description(qk_norm, qk_norm)),
        shape_(test::oracle_shape(description_)),
        batch_(test::make_batch(3, 8, description_.vocabulary, variant_.document)),
        model_(description_, options(DType::bf16)),
        oracle_batch_(test::oracle_batch(batch_, seed_, variant_, description_.width)) {
    Parameters& p = model_.decoder.parameters();
    const std::vector<float> values = test::host_values<float>(model_.context, p.weights());
    for (const Parameter& parameter : p.list()) {
      std::vector<double> weight = slice(parameter, values);
      if (parameter.matrix) weight = test::rounded(weight, DType::bf16);
      weights_[parameter.name] = std::move(weight);
    }
    exact_ = run([](Stored, double value) { return value; });
    for (std::int64_t draw = 0; draw < kDraws; ++draw) {
      const DecoderGradient moved = run(random_errors(draw));
      loss_.add(moved.loss - exact_.loss);
      for (const auto& [name, expected] : exact_.of) {
        const Deviation d = deviation(moved.of.at(name), expected);
        bounds_[name].distance.add(d.distance);
        bounds_[name].along.add(d.along);
      }
    }
  }

  DecoderOptions options(DType compute) const {
    return {.compute = compute,
            .max_tokens = 24,
            .max_length = 8,
            .dropout = variant_.dropout,
            .attention_dropout = variant_.attention_dropout};
  }
  DecoderGradient run(const Store& store) const {
    return oracle::decoder_gradient(
        shape_, oracle_batch_,
        [this](const std::string& name) -> std::span<const double> { return weights_.at(name); },
        store);
  }
  // Of the library, in bf16 on the device of the test.
  DecoderGradient computed() {
    Parameters& p = model_.decoder.parameters();
    Tensor loss = Tensor::zeros({1}, DType::f32, test::test_device());
    p.clear_gradients(model_.context);
    model_.decoder.backward(model_.context, batch_.view, seed_, batch_.dloss, loss);
    DecoderGradient result;
    result.loss = static_cast<double>(test::host_values<float>(model_.context, loss)[0]);
    const std::vector<float> values = test::host_values<float>(model_.context, p.gradients());
    for (const Parameter& parameter : p.list())
      result.of[parameter.name] = slice(parameter, values);
    return result;
  }
  // The largest excess over a bound, as a multiple of it: at most 1 where all hold.
  double excess(const DecoderGradient& got, std::string* worst = nullptr) const {
    double largest = 0;
    const auto see = [&](const std::string& name, double value, double bound) {
      if (value / bound <= largest) return;
      largest = value / bound;
      if (worst != nullptr) *worst = name;
    };
    see("loss", std::abs(got.loss - exact_.loss), std::abs(loss_.mean()) + kSigmas * loss_.sigma());
    for (const auto& [name, bound] : bounds_) {
      const Deviation d = deviation(got.of.at(name), exact_.of.at(name));
      see(name, d.distance, bound.distance.mean() + kSigmas * bound.distance.sigma());
      see(name + " along", std::abs(d.along),
          std::abs(bound.along.mean()) + kSigmas * bound.along.sigma());
    }
    return largest;
  }
  // The largest distance of a tensor to the same tensor of another run, in units of what rounding
  // does.
  double distance(const DecoderGradient& a, const DecoderGradient& b,
                  std::string* worst = nullptr) const {
    double largest = 0;
    for (const auto& [name, bound] : bounds_) {
      const double d = deviation(a.of.at(name), b.of.at(name)).distance / bound.distance.rms();
      if (d > largest && worst != nullptr) *worst = name;
      largest = std::max(largest, d);
    }
    return largest;
  }

  DecoderVariant variant_;
  io::ModelDescription description_;
  oracle::DecoderLossShape shape_;
  StepSeed seed_{.seed = 1, .step = 2};
  OwnedBatch batch_;
  RandomDecoder model_;
  oracle::DecoderLossBatch oracle_batch_;
  std::map<std::string, std::vector<double>> weights_;
  DecoderGradient exact_;
  Spread loss_;
  std::map<std::string, TensorBound> bounds_;

 private:
  static std::vector<double> slice(const Parameter& parameter, const std::vector<float>& values) {
    std::int64_t count = 1;
    for (const std::int64_t extent : parameter.shape) count *= extent;
    const auto first = values.begin() + parameter.offset;
    return {first, first + count};
  }
};

class Bf16Gradients : public ::testing::TestWithParam<bool> {};

// On every device: no tensor is further off than errors of the size of its roundings would take it.
TEST_P(Bf16Gradients, AreWithinWhatRoundingCanDo) {
  Bf16Problem problem(GetParam());
  std::string worst;
  EXPECT_LE(problem.excess(problem.computed(), &worst), 1) << worst;
}

// On the CPU what is rounded is known to the last one: the same roundings in float64 give the same
// gradient but for values that f32 sums put on the other side of a tie.
TEST_P(Bf16Gradients, OnTheCpuAreThoseOfTheSameRoundings) {
  if (test::test_device().is_cuda()) GTEST_SKIP() << "tensor cores round in an order of their own";
  Bf16Problem problem(GetParam());
  const std::string before = simd_target();
  for (const std::string& target : simd_targets()) {
    touchstone::testing::set_simd_target(target);
    const DecoderGradient expected = problem.run(uses_amx_bf16() ? amx_store : cpu_store);
    std::string worst;
    EXPECT_LE(problem.distance(problem.computed(), expected, &worst), kSameRoundings)
        << target << " " << worst;
  }
  touchstone::testing::set_simd_target(before);
}

// What the two tests above are worth: faults planted in one kind of result, or one term, at a time.
TEST_P(Bf16Gradients, FaultsAreFound) {
  const Bf16Problem problem(GetParam());
  const DecoderGradient right = problem.run(cpu_store);
  EXPECT_LE(problem.excess(right), 1);
  const auto plant = [&](Stored kind, const auto& change) {
    return problem.run([&](Stored what, double value) {
      return what == kind ? change(value) : cpu_store(what, value);
    });
  };
  for (int i = 0; i <= static_cast<int>(Stored::stream_term); ++i) {
    const auto kind = static_cast<Stored>(i);
    if (kind == Stored::dhead && !GetParam()) continue;  // there are none
    EXPECT_GT(problem.excess(plant(kind, [](double v) { return 0.5 * v; })), 2) << "halved " << i;
    EXPECT_GT(problem.excess(plant(kind, [](double) { return 0.0; })), 4) << "missing " << i;
    if (!is_stored(kind)) continue;
    EXPECT_GT(problem.excess(plant(kind, [](double v) { return 1.05 * v; })), 1) << "5 % " << i;
    const auto truncated = [](double v) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(v));
      return static_cast<double>(std::bit_cast<float>(bits & 0xffff0000U));
    };
    EXPECT_GT(problem.distance(plant(kind, truncated), right), kSameRoundings) << "truncated " << i;
    if (rounded_on_cuda_alone(kind)) {
      EXPECT_GT(problem.distance(plant(kind, to_bf16), right), kSameRoundings) << "rounded " << i;
    } else {
      EXPECT_GT(problem.distance(plant(kind, [](double v) { return v; }), right), kSameRoundings)
          << "not rounded " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Decoder, Bf16Gradients, ::testing::Bool(),
                         [](const auto& v) { return v.param ? "QkNorm" : "Plain"; });

}  // namespace
}  // namespace touchstone::train
