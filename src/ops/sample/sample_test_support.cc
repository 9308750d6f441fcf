#include "ops/sample/sample_test_support.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "touchstone/core/checked.h"
#include "touchstone/core/random.h"

namespace touchstone::test {
namespace {

using Values = std::vector<double>;

Values mask_words(const std::vector<bool>& token_mask) {
  const std::vector<std::int32_t> words = spec::packed_mask(token_mask);
  return {words.begin(), words.end()};
}

// Builds the buffers of a batch.
class Builder {
 public:
  explicit Builder(const Batch& batch) : batch_(batch), lead_(batch.lead) {
    if (lead_.empty()) lead_ = {static_cast<std::int64_t>(batch.rows.size())};
  }

  Guarded matrix(DType dtype, std::int64_t cols, const Values& values) const {
    return {test_device(), dtype, with(cols), values, batch_.layout};
  }

  Guarded logits() const {
    Values values;
    for (const TestRow& row : batch_.rows) {
      values.insert(values.end(), row.logits.begin(), row.logits.end());
    }
    return matrix(batch_.dtype, batch_.vocabulary(), values);
  }

  Guarded bias() const {
    const std::int64_t vocabulary = batch_.vocabulary();
    if (!any([](const TestRow& r) { return !r.bias.empty(); })) return {};
    if (batch_.share_bias) {
      return {test_device(), DType::f32, {vocabulary}, batch_.rows[0].bias};
    }
    Values values;
    for (const TestRow& row : batch_.rows) {
      const Values none(row.bias.empty() ? row.logits.size() : 0);
      values.insert(values.end(), row.bias.begin(), row.bias.end());
      values.insert(values.end(), none.begin(), none.end());
    }
    return matrix(DType::f32, vocabulary, values);
  }

  Guarded token_mask() const {
    const std::int64_t words = ceil_div(batch_.vocabulary(), 32);
    if (!any([](const TestRow& r) { return !r.token_mask.empty(); })) return {};
    if (batch_.share_mask) {
      return {test_device(), DType::i32, {words}, mask_words(batch_.rows[0].token_mask)};
    }
    Values values;
    for (const TestRow& row : batch_.rows) {
      const std::vector<bool> all(row.logits.size(), true);
      const Values mask = mask_words(row.token_mask.empty() ? all : row.token_mask);
      values.insert(values.end(), mask.begin(), mask.end());
    }
    return matrix(DType::i32, words, values);
  }

  // Rows whose history is shorter than the longest are padded.
  Guarded history() const {
    std::size_t longest = 0;
    for (const TestRow& row : batch_.rows) longest = std::max(longest, row.history.size());
    if (longest == 0 && batch_.leave_out_defaults) return {};
    Values values;
    for (const TestRow& row : batch_.rows) {
      for (std::size_t i = 0; i < longest; ++i) {
        values.push_back(i < row.history.size() ? static_cast<double>(row.history[i]) : -1.0);
      }
    }
    return matrix(DType::i32, static_cast<std::int64_t>(longest), values);
  }

  template <class Member, class Owner>
  Guarded per_row(DType dtype, Member Owner::*member, bool optional = true) const {
    const TestRow defaults;
    Values values;
    bool needed = !optional || !batch_.leave_out_defaults;
    for (const TestRow& row : batch_.rows) {
      values.push_back(static_cast<double>(row.*member));
      needed = needed || !(row.*member == defaults.*member);
    }
    if (!needed) return {};
    return {test_device(), dtype, lead_, values};
  }

  Guarded output(DType dtype) const { return {test_device(), dtype, lead_}; }
  Guarded output(DType dtype, std::int64_t cols) const {
    return {test_device(), dtype, with(cols)};
  }

 private:
  template <class Predicate>
  bool any(Predicate predicate) const {
    return std::ranges::any_of(batch_.rows, predicate);
  }
  std::vector<std::int64_t> with(std::int64_t cols) const {
    std::vector<std::int64_t> shape = lead_;
    shape.push_back(cols);
    return shape;
  }

  const Batch& batch_;
  std::vector<std::int64_t> lead_;
};

// One log-probability beside what it should be.
void expect_log_probability(double actual, const TestRow& row, const oracle::SampleDistribution& d,
                            std::int64_t token) {
  const double expected = d.log_probability[static_cast<std::size_t>(token)];
  if (std::isinf(expected)) {
    EXPECT_EQ(actual, expected) << "token " << token;
    return;
  }
  EXPECT_LE(actual, 0) << "token " << token;
  EXPECT_LE(std::fabs(actual - expected), spec::log_probability_bound(row, d, token))
      << "token " << token << ": " << actual;
}

// What a run wrote, as numbers.
struct Results {
  explicit Results(const SampleRun& run)
      : tokens(run.tokens()),
        logs(run.log_probability.values()),
        top_tokens(run.top_tokens.values()),
        top_logs(run.top_log_probabilities.values()) {
    if (run.status.defined()) statuses = run.statuses();
  }

  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> statuses;
  Values logs, top_tokens, top_logs;
};

void check_row(const Batch& batch, const oracle::SampleDistribution& d, std::size_t r,
               const Results& got, double tolerance) {
  const TestRow& row = batch.rows[r];
  const std::int64_t token = got.tokens[r];
  if (batch.want_status) {
    EXPECT_EQ(got.statuses[r], spec::expected_status(d, batch.top_count));
  }
  const auto n = static_cast<std::size_t>(batch.top_count);
  if (d.outcome != oracle::SampleOutcome::drawn) {
    EXPECT_EQ(token, -1);
    if (batch.want_log_probability) {
      EXPECT_TRUE(std::isnan(got.logs[r]));
    }
    for (std::size_t j = 0; j < n; ++j) {
      EXPECT_EQ(got.top_tokens[r * n + j], -1);
      EXPECT_TRUE(std::isnan(got.top_logs[r * n + j]));
    }
    return;
  }
  if (row.temperature == 0) {
    EXPECT_EQ(token, d.order[0]);
  } else {
    const double u = random_uniform(row.seed, row.position);
    EXPECT_TRUE(is_the_draw(row, d, u, token, tolerance));
  }
  if (token >= 0 && token < batch.vocabulary() && batch.want_log_probability) {
    expect_log_probability(got.logs[r], row, d, token);
  }
  for (std::size_t j = 0; j < n; ++j) {
    ASSERT_EQ(got.top_tokens[r * n + j], static_cast<double>(d.order[j])) << "rank " << j;
    expect_log_probability(got.top_logs[r * n + j], row, d, d.order[j]);
  }
}

}  // namespace

SampleRun::SampleRun(const Batch& batch) {
  const Builder build(batch);
  logits = build.logits();
  bias = build.bias();
  token_mask = build.token_mask();
  temperature = build.per_row(DType::f32, &TestRow::temperature);
  top_k = build.per_row(DType::i32, &TestRow::top_k);
  top_p = build.per_row(DType::f32, &TestRow::top_p);
  min_p = build.per_row(DType::f32, &TestRow::min_p);
  repetition = build.per_row(DType::f32, &TestRow::repetition_penalty);
  frequency = build.per_row(DType::f32, &TestRow::frequency_penalty);
  presence = build.per_row(DType::f32, &TestRow::presence_penalty);
  history = build.history();
  prompt_length = build.per_row(DType::i32, &TestRow::prompt_length);
  seed = build.per_row(DType::i64, &TestRow::seed, false);
  position = build.per_row(DType::i64, &TestRow::position, false);
  token = build.output(batch.token_dtype);
  if (batch.want_log_probability) log_probability = build.output(DType::f32);
  if (batch.want_status) status = build.output(DType::i32);
  if (batch.top_count > 0) {
    top_tokens = build.output(batch.top_token_dtype, batch.top_count);
    top_log_probabilities = build.output(DType::f32, batch.top_count);
  }
  args = {.logits = logits,
          .bias = bias,
          .token_mask = token_mask,
          .temperature = temperature,
          .top_k = top_k,
          .top_p = top_p,
          .min_p = min_p,
          .repetition_penalty = repetition,
          .frequency_penalty = frequency,
          .presence_penalty = presence,
          .history = history,
          .prompt_length = prompt_length,
          .seed = seed,
          .position = position,
          .token = token,
          .log_probability = log_probability,
          .top_tokens = top_tokens,
          .top_log_probabilities = top_log_probabilities,
          .status = status};
}

std::vector<std::string> SampleRun::accepting() const { return accepting_names("sample", args); }

std::vector<Guarded*> SampleRun::inputs() {
  return {&logits,     &bias,      &token_mask, &temperature, &top_k,         &top_p, &min_p,
          &repetition, &frequency, &presence,   &history,     &prompt_length, &seed,  &position};
}

std::vector<Guarded*> SampleRun::outputs() {
  return {&token, &log_probability, &top_tokens, &top_log_probabilities, &status};
}

void SampleRun::run(Runner& context) {
  const std::vector<Guarded*> in = inputs();
  run_guarded(context, "sample", {in.begin(), in.end()}, outputs(),
              [&] { sample(context, context.with(args)); });
}

std::vector<std::int64_t> SampleRun::tokens() const {
  std::vector<std::int64_t> result;
  for (const double value : token.values()) result.push_back(static_cast<std::int64_t>(value));
  return result;
}

std::vector<std::int32_t> SampleRun::statuses() const {
  std::vector<std::int32_t> result;
  for (const double value : status.values()) {
    result.push_back(static_cast<std::int32_t>(value) & ~to_int(RowStatus::two_pass));
  }
  return result;
}

TestRow row_of(std::vector<double> logits, std::int64_t top_k, float top_p, float min_p) {
  TestRow row;
  row.logits = std::move(logits);
  row.top_k = top_k;
  row.top_p = static_cast<double>(top_p);
  row.min_p = static_cast<double>(min_p);
  return row;
}

void check_batch(const Batch& batch) {
  SampleRun run(batch);
  std::vector<oracle::SampleDistribution> expected;
  for (const TestRow& row : batch.rows) expected.push_back(oracle::sample_distribution(row));
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    const Results got(run);
    for (std::size_t r = 0; r < batch.rows.size(); ++r) {
      SCOPED_TRACE("row " + std::to_string(r));
      check_row(batch, expected[r], r, got, sum_tolerance(context));
    }
  });
}

double sum_tolerance(const Runner& context) {
  // f64 sums of at most 2^20 terms.
  return context.implementation() == "plain" ? 1e-10 : spec::kDrawTolerance;
}

testing::AssertionResult is_the_draw(const oracle::SampleRow& row,
                                     const oracle::SampleDistribution& d, double u,
                                     std::int64_t token, double tolerance) {
  std::string why;
  if (spec::is_the_draw(row, d, u, token, tolerance, &why)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << why;
}

std::vector<std::int64_t> draw_many(Runner& context, const Batch& one_row, std::int64_t draws) {
  const TestRow& row = one_row.rows.at(0);
  // Controls and positions for every draw, one row of everything else for all of them: stride 0.
  const SampleRun shared(one_row);
  TestRow draw = row;
  draw.logits = {0};
  draw.bias.clear();
  draw.token_mask.clear();
  draw.history.clear();
  Batch many = one_row;
  many.leave_out_defaults = true;
  many.rows.assign(static_cast<std::size_t>(draws), draw);
  for (std::int64_t i = 0; i < draws; ++i) many.rows[static_cast<std::size_t>(i)].position += i;
  SampleRun run(many);
  const auto repeat = [&](const Guarded& one) {
    if (!one.defined()) return ConstTensorView{};
    const std::int64_t cols = one.view().shape[1];
    const std::int64_t shape[] = {draws, cols};
    const ConstTensorView view =
        make_view(static_cast<const void*>(one.view().data), shape, one.dtype(), one.view().device);
    return with_stride(view, 0, 0);
  };
  run.args.logits = repeat(shared.logits);
  run.args.bias = repeat(shared.bias);
  run.args.token_mask = repeat(shared.token_mask);
  run.args.history = repeat(shared.history);
  run_like(run, context);
  std::vector<std::int64_t> counts(row.logits.size());
  for (const std::int64_t token : run.tokens()) {
    if (token < 0 || token >= static_cast<std::int64_t>(counts.size())) {
      ADD_FAILURE() << token << " is no token";
      continue;
    }
    ++counts[static_cast<std::size_t>(token)];
  }
  return counts;
}

std::vector<double> random_logits(std::int64_t count, double scale, DType dtype,
                                  std::uint64_t seed) {
  return rounded(random_values({.scale = scale}, count, seed), dtype);
}

TestRow random_row(std::int64_t vocabulary, DType dtype, std::uint64_t seed) {
  const Random random(seed * 7919 + 17);
  std::int64_t at = 0;
  const auto uniform = [&] { return random.uniform(at++); };
  const auto one_in = [&](double n) { return uniform() * n < 1; };
  const auto f32 = [](double value) { return static_cast<double>(static_cast<float>(value)); };
  TestRow row;
  row.seed = static_cast<std::int64_t>(random.bits(at++) >> 20);
  row.position = static_cast<std::int64_t>(random.bits(at++) >> 40);
  row.logits = random_logits(vocabulary, std::exp(4 * uniform() - 1), dtype, seed);
  if (one_in(2)) row.temperature = one_in(4) ? 0 : f32(0.1 + 2 * uniform());
  if (one_in(2)) row.top_p = f32(uniform());
  if (one_in(3)) row.min_p = f32(0.3 * uniform() * uniform());
  if (one_in(2)) {
    row.top_k = 1 + static_cast<std::int64_t>(uniform() * static_cast<double>(vocabulary));
    if (one_in(2)) row.top_k = std::min<std::int64_t>(row.top_k, 50);
  }
  if (one_in(3)) row.bias = rounded(random_values({.scale = 2}, vocabulary, seed + 1), DType::f32);
  if (one_in(3)) {
    for (std::int64_t i = 0; i < vocabulary; ++i) row.token_mask.push_back(random.bits(i) % 4 != 0);
    row.token_mask[static_cast<std::size_t>(seed) % row.token_mask.size()] = true;
  }
  if (one_in(2)) {
    const auto length = static_cast<std::int64_t>(40 * uniform());
    for (std::int64_t i = 0; i < length; ++i) {
      row.history.push_back(one_in(5) ? -1
                                      : static_cast<std::int64_t>(uniform() * uniform() *
                                                                  static_cast<double>(vocabulary)));
    }
    row.prompt_length = static_cast<std::int64_t>(uniform() * 40);
    if (one_in(2)) row.repetition_penalty = f32(0.5 + 1.5 * uniform());
    if (one_in(2)) row.frequency_penalty = f32(uniform() - 0.3);
    if (one_in(2)) row.presence_penalty = f32(uniform() - 0.3);
  }
  return row;
}

}  // namespace touchstone::test
