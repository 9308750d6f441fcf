#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "touchstone/core/error.h"
#include "touchstone/train/trainer.h"

namespace touchstone::inline v0::train {
namespace {

constexpr std::pair<Schedule, std::string_view> kSchedules[] = {{Schedule::constant, "constant"},
                                                                {Schedule::cosine, "cosine"},
                                                                {Schedule::linear, "linear"},
                                                                {Schedule::two_phase, "two_phase"}};

}  // namespace

std::string_view name_of(Schedule schedule) {
  for (const auto& [value, name] : kSchedules) {
    if (value == schedule) return name;
  }
  return "unknown";
}

Schedule parse_schedule(std::string_view name) {
  std::string known;
  for (const auto& [value, own] : kSchedules) {
    if (own == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(own);
  }
  throw InvalidArgument(fmt::format("schedule: expected one of {}, got '{}'", known, name));
}

StepRates rates_at(const TrainingOptions& o, std::int64_t step) {
  StepRates rates{o.learning_rate, o.weight_decay};
  if (step < o.warm_up) {
    rates.learning_rate *= static_cast<double>(step + 1) / static_cast<double>(o.warm_up);
    return rates;
  }
  const auto left = static_cast<double>(std::max<std::int64_t>(1, o.steps - o.warm_up));
  const double t = std::min(1.0, static_cast<double>(step - o.warm_up) / left);
  switch (o.schedule) {
    case Schedule::constant:
      break;
    case Schedule::cosine:
      rates.learning_rate = o.final_rate + (o.learning_rate - o.final_rate) * 0.5 *
                                               (1 + std::cos(std::numbers::pi * t));
      break;
    case Schedule::linear:
      rates.learning_rate = o.learning_rate + (o.final_rate - o.learning_rate) * t;
      break;
    case Schedule::two_phase:
      rates.learning_rate = (1 - t) * (t < 0.5 ? o.learning_rate : o.second_rate);
      if (t >= 0.5) rates.weight_decay = 0;
      break;
  }
  return rates;
}

}  // namespace touchstone::inline v0::train
