#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "touchstone/core/error.h"
#include "touchstone/ops/rope.h"

namespace touchstone::inline v0 {
namespace {

using Kind = RopeScaling::Kind;
constexpr double kPi = std::numbers::pi;

void require_positive(const char* field, double value) {
  if (std::isfinite(value) && value > 0) return;
  throw InvalidArgument(std::string("rope_frequencies: ") + field +
                        ": expected a finite number > 0, got " + std::to_string(value));
}

// The index whose frequency makes `turns` turns within the original length.
double index_of_turns(double turns, double dim, double base, double length) {
  return dim * std::log(length / (turns * 2 * kPi)) / (2 * std::log(base));
}

void scale_yarn(std::vector<double>& values, double dim, double base, const RopeScaling& s) {
  require_positive("original_length", s.original_length);
  require_positive("beta_fast", s.beta_fast);
  require_positive("beta_slow", s.beta_slow);
  const double low =
      std::max(std::floor(index_of_turns(s.beta_fast, dim, base, s.original_length)), 0.0);
  double high =
      std::min(std::ceil(index_of_turns(s.beta_slow, dim, base, s.original_length)), dim - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    values[i] = values[i] / s.factor * ramp + values[i] * (1 - ramp);
  }
}

void scale_llama3(std::vector<double>& values, const RopeScaling& s) {
  require_positive("original_length", s.original_length);
  require_positive("low_frequency_factor", s.low_frequency_factor);
  require_positive("high_frequency_factor", s.high_frequency_factor);
  if (s.high_frequency_factor <= s.low_frequency_factor) {
    throw InvalidArgument("rope_frequencies: high_frequency_factor: expected more than " +
                          std::to_string(s.low_frequency_factor) + ", got " +
                          std::to_string(s.high_frequency_factor));
  }
  for (double& value : values) {
    const double turns = s.original_length * value / (2 * kPi);
    if (turns > s.high_frequency_factor) continue;
    if (turns < s.low_frequency_factor) {
      value /= s.factor;
      continue;
    }
    const double kept =
        (turns - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
    value = (1 - kept) * value / s.factor + kept * value;
  }
}

}  // namespace

RopeFrequencies rope_frequencies(std::int64_t rotary_dim, double base, const RopeScaling& scaling) {
  const std::int64_t least = scaling.kind == Kind::ntk ? 4 : 2;
  if (rotary_dim < least || rotary_dim % 2 != 0) {
    throw InvalidArgument("rope_frequencies: rotary_dim: expected an even number >= " +
                          std::to_string(least) + ", got " + std::to_string(rotary_dim));
  }
  require_positive("base", base);
  if (scaling.kind != Kind::none) require_positive("factor", scaling.factor);
  const auto dim = static_cast<double>(rotary_dim);
  if (scaling.kind == Kind::ntk) base *= std::pow(scaling.factor, dim / (dim - 2));
  RopeFrequencies result;
  for (std::int64_t i = 0; i < rotary_dim / 2; ++i) {
    result.values.push_back(std::pow(base, -2 * static_cast<double>(i) / dim));
  }
  switch (scaling.kind) {
    case Kind::none:
    case Kind::ntk:
      break;
    case Kind::linear:
      for (double& value : result.values) value /= scaling.factor;
      break;
    case Kind::yarn:
      if (base == 1) {
        throw InvalidArgument("rope_frequencies: base: expected a number other than 1, got 1");
      }
      scale_yarn(result.values, dim, base, scaling);
      result.attention_factor = scaling.attention_factor != 0 ? scaling.attention_factor
                                : scaling.factor > 1          ? 0.1 * std::log(scaling.factor) + 1
                                                              : 1;
      if (!std::isfinite(result.attention_factor)) {
        throw InvalidArgument("rope_frequencies: attention_factor: expected a finite number");
      }
      break;
    case Kind::llama3:
      scale_llama3(result.values, scaling);
      break;
    default:
      throw InvalidArgument("rope_frequencies: kind: expected none, linear, ntk, yarn or llama3");
  }
  return result;
}

}  // namespace touchstone::inline v0
