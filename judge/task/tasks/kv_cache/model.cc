// The session in float64. The error terms are derived in docs/judge_tolerances.md.
#include <algorithm>
#include <cmath>
#include <set>

#include "judge/task/generate.h"
#include "judge/task/tasks/kv_cache/kv_cache.h"
#include "oracle/attention_softmax.h"
#include "touchstone/core/error.h"

namespace touchstone::judge::kv_cache {
namespace {

double dot(const double* a, const float* b, int64_t n) {
  // Four sums, so that the processor need not wait for each addition.
  double sum[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int lane = 0; lane < 4; ++lane) {
      sum[lane] += a[i + lane] * static_cast<double>(b[i + lane]);
    }
  }
  for (; i < n; ++i) sum[0] += a[i] * static_cast<double>(b[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

double norm(const float* values, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return std::sqrt(sum);
}

double largest_magnitude(const float* values, int64_t n) {
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
  }
  return largest;
}

}  // namespace

Model::Model(const Tolerance& tolerance, int64_t layers, int64_t sequences, int64_t kv_heads,
             int64_t head_dim, int64_t max_tokens, int64_t bits)
    : tolerance_(tolerance),
      layers_(layers),
      sequences_(sequences),
      kv_heads_(kv_heads),
      head_dim_(head_dim),
      max_tokens_(max_tokens),
      bits_(bits),
      tokens_(static_cast<size_t>(layers * sequences)) {}

bool Model::known(int64_t layer, int64_t sequence) const {
  return layer >= 0 && layer < layers_ && sequence >= 0 && sequence < sequences_;
}

int64_t Model::stored_bytes() const {
  std::set<int64_t> origins;
  for (const Tokens& t : tokens_) origins.insert(t.origin.begin(), t.origin.end());
  const auto count = static_cast<int64_t>(origins.size());
  return 2 * kv_heads_ * head_dim_ * count * (bits_ == 0 ? 32 : bits_) / 8;
}

void Model::append_token(Tokens& tokens, const float* k, const float* v) {
  const double steps = bits_ == 0 ? 0 : 0.5 / (std::ldexp(1.0, static_cast<int>(bits_) - 1) - 1);
  for (int64_t head = 0; head < kv_heads_; ++head) {
    const float* key = k + head * head_dim_;
    const float* value = v + head * head_dim_;
    tokens.k.insert(tokens.k.end(), key, key + head_dim_);
    tokens.v.insert(tokens.v.end(), value, value + head_dim_);
    tokens.k_norm.push_back(norm(key, head_dim_));
    tokens.k_step.push_back(steps * largest_magnitude(key, head_dim_));
    tokens.v_step.push_back(steps * largest_magnitude(value, head_dim_));
  }
  tokens.origin.push_back(next_origin_++);
}

// All or nothing: every sequence is looked at before the first one is changed.
bool Model::append(const Call& call) {
  const int64_t layer = call.whole(0);
  const std::span<const int32_t> sequence = as_i32(call.inputs[0]);
  const std::span<const int32_t> count = as_i32(call.inputs[1]);
  for (size_t i = 0; i < sequence.size(); ++i) {
    if (!known(layer, sequence[i]) || count[i] < 0 ||
        at(layer, sequence[i]).length() + count[i] > max_tokens_) {
      return false;
    }
  }
  if (layer < 0 || layer >= layers_) return false;
  const int64_t width = kv_heads_ * head_dim_;
  const float* k = as_f32(call.inputs[2]).data();
  const float* v = as_f32(call.inputs[3]).data();
  for (size_t i = 0; i < sequence.size(); ++i) {
    for (int32_t t = 0; t < count[i]; ++t, k += width, v += width) {
      append_token(at(layer, sequence[i]), k, v);
    }
  }
  return true;
}

void Model::attend_head(const Tokens& tokens, int64_t seen, int64_t kv_head, const float* q,
                        double scale, Expected& out, size_t place) const {
  const double q_norm = norm(q, head_dim_);
  const double score_growth = growth_of(tolerance_.growth, head_dim_);
  std::vector<double> score(static_cast<size_t>(seen));
  for (int64_t t = 0; t < seen; ++t) {
    score[static_cast<size_t>(t)] =
        scale * dot(tokens.k.data() + (t * kv_heads_ + kv_head) * head_dim_, q, head_dim_);
  }
  const auto [weight, largest, log_sum_exp] = oracle::attention_softmax<double>(score, nullptr);

  // The units of rounding in each score, and their mean under the weights.
  std::vector<double> units(score.size());
  double mean_units = 0;
  double mean_score = 0;
  for (size_t t = 0; t < score.size(); ++t) {
    const size_t head = t * static_cast<size_t>(kv_heads_) + static_cast<size_t>(kv_head);
    units[t] = score_growth * std::fabs(scale) * q_norm * tokens.k_norm[head] +
               2 * std::fabs(score[t] - largest) + std::fabs(score[t]);
    mean_units += weight[t] * units[t];
    mean_score += weight[t] * std::fabs(score[t]);
  }
  const double sum_growth = 6 + growth_of(tolerance_.growth, seen);
  for (size_t t = 0; t < score.size(); ++t) {
    const size_t head = t * static_cast<size_t>(kv_heads_) + static_cast<size_t>(kv_head);
    const double error = tolerance_.factor * kUnit * (sum_growth + units[t] + mean_units);
    const double* v = tokens.v.data() + head * static_cast<size_t>(head_dim_);
    for (int64_t d = 0; d < head_dim_; ++d) {
      const double magnitude = weight[t] * std::fabs(v[d]);
      const size_t element = place + static_cast<size_t>(d);
      out.value[element] += weight[t] * v[d];
      // A score that is rounded once moves its weight by that much, and the sum of all weights too:
      // nothing that keeps scores in float does better.
      out.scale[element] += magnitude * (1 + std::fabs(score[t]) + mean_score);
      // A weight below the normal numbers may have been flushed to zero.
      out.bound[element] += error * magnitude + kSmallestNormal * (1 + std::fabs(v[d]));
    }
  }
  if (bits_ != 0) add_stored_error(tokens, kv_head, weight, std::fabs(scale) * q_norm, out, place);
}

// Elements kept to half a step have errors that are uniform and independent: their deviations add
// in squares, through the score and through the value. Six deviations are allowed.
void Model::add_stored_error(const Tokens& tokens, int64_t kv_head,
                             const std::vector<double>& weight, double score_scale, Expected& out,
                             size_t place) const {
  for (int64_t d = 0; d < head_dim_; ++d) {
    const size_t element = place + static_cast<size_t>(d);
    double variance = 0;
    for (size_t t = 0; t < weight.size(); ++t) {
      const size_t head = t * static_cast<size_t>(kv_heads_) + static_cast<size_t>(kv_head);
      const double value = tokens.v[head * static_cast<size_t>(head_dim_) + static_cast<size_t>(d)];
      const double score_error = score_scale * tokens.k_step[head];
      const double distance = value - out.value[element];
      variance += weight[t] * weight[t] *
                  (tokens.v_step[head] * tokens.v_step[head] +
                   distance * distance * score_error * score_error) /
                  3;
    }
    out.bound[element] += 6 * std::sqrt(variance);
  }
}

bool Model::attend(const Call& call, Expected& out) {
  const int64_t layer = call.whole(0);
  const std::span<const int32_t> sequence = as_i32(call.inputs[0]);
  const std::span<const int32_t> count = as_i32(call.inputs[1]);
  if (layer < 0 || layer >= layers_) return false;
  for (size_t i = 0; i < sequence.size(); ++i) {
    if (!known(layer, sequence[i]) || count[i] < 0 || count[i] > at(layer, sequence[i]).length()) {
      return false;
    }
  }
  const int64_t heads = call.whole(3);
  const double scale = std::get<double>(call.scalars[4]);
  const std::span<const float> q = as_f32(call.inputs[2]);
  out = Expected(static_cast<int64_t>(q.size()));
  int64_t row = 0;
  for (size_t i = 0; i < sequence.size(); ++i) {
    const Tokens& tokens = at(layer, sequence[i]);
    for (int32_t t = 0; t < count[i]; ++t) {
      const int64_t seen = tokens.length() - count[i] + t + 1;
      for (int64_t head = 0; head < heads; ++head, ++row) {
        const auto place = static_cast<size_t>(row * head_dim_);
        attend_head(tokens, seen, head / (heads / kv_heads_), q.data() + place, scale, out, place);
      }
    }
  }
  return true;
}

bool Model::fork(int64_t parent, int64_t child) {
  if (!known(0, parent) || !known(0, child) || parent == child) return false;
  for (int64_t layer = 0; layer < layers_; ++layer) at(layer, child) = at(layer, parent);
  return true;
}

bool Model::free(int64_t sequence) {
  if (!known(0, sequence)) return false;
  for (int64_t layer = 0; layer < layers_; ++layer) at(layer, sequence) = Tokens();
  return true;
}

Outcome Model::apply(const Call& call) {
  Outcome outcome;
  if (call.function == "kv_cache_append") {
    outcome.refused = !append(call);
  } else if (call.function == "kv_cache_attend") {
    outcome.refused = !attend(call, outcome.out);
  } else if (call.function == "kv_cache_fork") {
    outcome.refused = !fork(call.whole(0), call.whole(1));
  } else if (call.function == "kv_cache_free") {
    outcome.refused = !free(call.whole(0));
  } else if (call.function == "kv_cache_length") {
    outcome.has_value = true;
    outcome.value =
        known(call.whole(0), call.whole(1)) ? at(call.whole(0), call.whole(1)).length() : -1;
  } else if (call.function == "kv_cache_bytes") {
    outcome.has_value = true;
    outcome.least_value = stored_bytes();
  }
  return outcome;
}

namespace {

Model created_by(const Call& call, const Tolerance& tolerance) {
  const int64_t bits = call.scalars.size() > 5 ? call.whole(5) : 0;
  return {tolerance,     call.whole(0), call.whole(1), call.whole(2),
          call.whole(3), call.whole(4), bits};
}

// Makes all calls of a case on the models of its handles.
template <class Visit>
void replay(const Case& asked, const Tolerance& tolerance, const Visit& visit) {
  std::map<int, Model> models;
  for (const Call& call : asked.calls) {
    if (call.function.starts_with("kv_cache_create")) {
      models.insert_or_assign(call.state, created_by(call, tolerance));
      visit(call, nullptr, models);
      continue;
    }
    const auto model = models.find(call.state);
    if (model == models.end()) throw InvalidArgument("case: a call before its cache was created");
    visit(call, &model->second, models);
    if (call.function == "kv_cache_destroy") models.erase(model);
  }
}

}  // namespace

std::vector<Outcome> expected_outcomes(const Case& asked, const Tolerance& tolerance) {
  std::vector<Outcome> outcomes;
  replay(asked, tolerance, [&](const Call& call, Model* model, const auto&) {
    outcomes.push_back(model ? model->apply(call) : Outcome());
  });
  return outcomes;
}

int64_t most_stored_bytes(const Case& asked) {
  int64_t most = 0;
  replay(asked, {}, [&](const Call& call, Model* model, const std::map<int, Model>& models) {
    if (!model || call.function == "kv_cache_attend") return;
    model->apply(call);
    int64_t sum = 0;
    for (const auto& [state, m] : models) sum += m.stored_bytes();
    most = std::max(most, sum);
  });
  return most;
}

}  // namespace touchstone::judge::kv_cache
