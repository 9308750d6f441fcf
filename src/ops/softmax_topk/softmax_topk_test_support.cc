#include "ops/softmax_topk/softmax_topk_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <sstream>

#include "core/index.h"
#include "touchstone/core/checked.h"

namespace touchstone::test {
namespace {

// The first row of what make_data repeats for every row.
template <class T>
std::vector<double> argument_rows(const std::vector<T>& all, std::int64_t cols, PerToken kind) {
  const auto end = kind == PerToken::shared ? all.begin() + cols : all.end();
  return {all.begin(), end};
}

std::vector<double> packed_allowed(const TopkProblem& p, const TopkData& data) {
  const std::int64_t rows = p.token_mask == PerToken::shared ? 1 : p.rows();
  std::vector<double> result;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto banned = data.banned.begin() + r * p.vocabulary;
    std::vector<bool> allowed(at(p.vocabulary));
    std::transform(banned, banned + p.vocabulary, allowed.begin(), std::logical_not<>());
    const std::vector<std::int32_t> words = spec::packed_mask(allowed);
    result.insert(result.end(), words.begin(), words.end());
  }
  return result;
}

std::vector<std::int64_t> per_token_shape(const TopkProblem& p, PerToken kind, std::int64_t last) {
  return kind == PerToken::shared ? std::vector<std::int64_t>{last} : p.shape(last);
}

}  // namespace

Pattern normal_pattern(double scale, std::uint64_t seed) {
  return [=](std::int64_t row, std::int64_t token) {
    return scale * Random(seed * 7919 + static_cast<std::uint64_t>(row)).normal(token);
  };
}

std::int64_t TopkProblem::rows() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : lead) count *= extent;
  return count;
}

std::vector<std::int64_t> TopkProblem::shape(std::int64_t last) const {
  std::vector<std::int64_t> result = lead;
  result.push_back(last);
  return result;
}

std::string TopkProblem::describe() const {
  const auto name = [](PerToken kind) {
    return kind == PerToken::none ? "none" : kind == PerToken::shared ? "shared" : "per row";
  };
  std::ostringstream text;
  text << "softmax_topk " << shape_string(shape(vocabulary)) << " k " << k << " " << name_of(dtype)
       << ", bias " << name(bias) << ", token_mask " << name(token_mask) << ", temperatures "
       << temperature.size() << " x " << temperature_scale << ", gap " << layout.row_gap
       << ", offset " << layout.offset << ", seed " << seed;
  if (renormalize) text << ", renormalized";
  if (wide_indices) text << ", i64";
  return text.str();
}

TopkData make_data(const TopkProblem& p) {
  const std::int64_t rows = p.rows();
  TopkData data;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < p.vocabulary; ++i) data.logits.push_back(p.pattern(r, i));
  }
  data.logits = rounded(data.logits, p.dtype);
  const Random random(p.seed * 31 + 5);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t bias_row = p.bias == PerToken::shared ? 0 : r;
    const std::int64_t mask_row = p.token_mask == PerToken::shared ? 0 : r;
    for (std::int64_t i = 0; i < p.vocabulary; ++i) {
      if (p.bias != PerToken::none) {
        data.bias.push_back(random.normal(bias_row * p.vocabulary + i));
      }
      if (p.token_mask != PerToken::none) {
        const double draw = random.uniform((mask_row + 1) * p.vocabulary * 3 + i);
        data.banned.push_back(draw < p.allowed_share ? 0 : 1);
      }
    }
    double temperature = p.temperature_scale;
    if (!p.temperature.empty()) {
      const double own = p.temperature[at(r) % p.temperature.size()];
      data.own_temperature.push_back(own);
      temperature *= static_cast<double>(static_cast<float>(own));
    }
    data.temperature.push_back(temperature);
  }
  data.bias = rounded(data.bias, DType::f32);
  return data;
}

TopkRun::TopkRun(const TopkProblem& p, const TopkData& data) {
  const Device device = test_device();
  logits = Guarded(device, p.dtype, p.shape(p.vocabulary), data.logits, p.layout);
  if (!data.own_temperature.empty()) {
    temperature = Guarded(device, DType::f32, p.lead, data.own_temperature);
  }
  if (p.bias != PerToken::none) {
    bias = Guarded(device, DType::f32, per_token_shape(p, p.bias, p.vocabulary),
                   argument_rows(data.bias, p.vocabulary, p.bias));
  }
  if (p.token_mask != PerToken::none) {
    token_mask =
        Guarded(device, DType::i32, per_token_shape(p, p.token_mask, ceil_div(p.vocabulary, 32)),
                packed_allowed(p, data));
  }
  probabilities = Guarded(device, DType::f32, p.shape(p.k));
  indices = Guarded(device, p.wide_indices ? DType::i64 : DType::i32, p.shape(p.k));
  if (p.extras) {
    log_probabilities = Guarded(device, DType::f32, p.shape(p.k));
    log_sum_exp = Guarded(device, DType::f32, p.lead);
    status = Guarded(device, DType::i32, p.lead);
  }
  args = {.logits = logits,
          .temperature = temperature,
          .bias = bias,
          .token_mask = token_mask,
          .probabilities = probabilities,
          .indices = indices,
          .log_probabilities = log_probabilities,
          .log_sum_exp = log_sum_exp,
          .status = status,
          .temperature_scale = p.temperature_scale,
          .renormalize = p.renormalize};
}

std::vector<std::string> TopkRun::accepting() const {
  return accepting_names("softmax_topk", args);
}

void TopkRun::run(Runner& context) {
  run_guarded(context, "softmax_topk", {&logits, &temperature, &bias, &token_mask},
              {&probabilities, &indices, &log_probabilities, &log_sum_exp, &status},
              [&] { softmax_topk(context, context.with(args)); });
}

std::vector<std::byte> TopkRun::bits() const {
  std::vector<std::byte> all =
      joined_bytes({&probabilities, &indices, &log_probabilities, &log_sum_exp});
  for (const double word : status.values()) {
    all.push_back(
        static_cast<std::byte>(static_cast<std::int32_t>(word) & ~to_int(RowStatus::two_pass)));
  }
  return all;
}

std::vector<oracle::SoftmaxTopkRow> expected_rows(const TopkProblem& p, const TopkData& data) {
  const oracle::SoftmaxTopk problem{
      .rows = p.rows(),
      .vocabulary = p.vocabulary,
      .k = p.k,
      .logits = data.logits.data(),
      .bias = data.bias.empty() ? nullptr : data.bias.data(),
      .banned = data.banned.empty() ? nullptr : data.banned.data(),
      .temperature = data.temperature.data(),
      .renormalize = p.renormalize,
  };
  std::vector<oracle::SoftmaxTopkRow> rows;
  for (std::int64_t r = 0; r < p.rows(); ++r) rows.push_back(softmax_topk_row(problem, r));
  return rows;
}

void expect_matches(const TopkProblem& p, const TopkData& data, const TopkRun& run,
                    const std::vector<oracle::SoftmaxTopkRow>& rows) {
  spec::TopkReference expected;
  const std::vector<double> status = run.status.values();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    expected.add(rows[r], data.temperature[r], p.extras ? static_cast<std::int32_t>(status[r]) : 0);
  }
  EXPECT_EQ(run.indices.values(), expected.tokens.value) << "indices";
  EXPECT_TRUE(close(run.probabilities.values(), expected.probability, DType::f32, p.k))
      << "probabilities";
  if (!p.extras) return;
  EXPECT_TRUE(close(run.log_probabilities.values(), expected.log_probability, DType::f32, p.k))
      << "log_probabilities";
  for (const double value : run.log_probabilities.values()) EXPECT_FALSE(value > 0) << value;
  EXPECT_TRUE(close(run.log_sum_exp.values(), expected.log_sum_exp, DType::f32)) << "log_sum_exp";
  EXPECT_EQ(status, expected.status.value) << "status";
}

void check(const TopkProblem& p) {
  SCOPED_TRACE(p.describe());
  const TopkData data = make_data(p);
  const std::vector<oracle::SoftmaxTopkRow> expected = expected_rows(p, data);
  TopkRun run(p, data);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    expect_matches(p, data, run, expected);
  });
}

std::vector<std::byte> answer_bits(const TopkProblem& p, const TopkData& data,
                                   const std::string& implementation, int threads) {
  Runner context({.device = test_device(), .threads = threads, .implementation = implementation});
  TopkRun run(p, data);
  run.run(context);
  return run.bits();
}

}  // namespace touchstone::test
