#include "judge/task/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "judge/task/generate.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <class T>
std::vector<std::byte> bytes(std::span<const T> values) {
  std::vector<std::byte> result(values.size_bytes());
  if (!values.empty()) std::memcpy(result.data(), values.data(), values.size_bytes());
  return result;
}

void note_outside(OutputError& error, size_t element, double got, double expected) {
  if (error.outside++ != 0) return;
  error.first = static_cast<int64_t>(element);
  error.got = got;
  error.expected = expected;
}

// Whether something that is no number stands where the oracle has none either.
bool special_matches(double got, double expected, Special special) {
  if (special == Special::not_finite) return !std::isfinite(got);
  return std::isnan(expected) ? std::isnan(got) : got == expected;
}

}  // namespace

double growth_of(Growth growth, int64_t n) {
  // A running sum within a block, then one over the blocks.
  constexpr double kBlock = 1024;
  const auto count = static_cast<double>(n);
  const double inside = std::min(count, kBlock);
  const double blocks = std::max(count / kBlock, 1.0);
  switch (growth) {
    case Growth::random:
      return 2 + std::sqrt(inside) + (std::sqrt(blocks) - 1);
    case Growth::structured:
      return 2 + inside + (blocks - 1);
    case Growth::tree:
      return 4;
  }
  throw InvalidArgument("growth: unknown value");
}

double running_growth_of(Growth growth, int64_t n) {
  // Roundings that all go one way are too many beyond this to be forgiven.
  constexpr double kMax = 16384;
  const auto count = static_cast<double>(n);
  switch (growth) {
    case Growth::random:
      return 2 + std::sqrt(count);
    case Growth::structured:
      return 2 + std::min(count, kMax);
    case Growth::tree:
      return 4;
  }
  throw InvalidArgument("growth: unknown value");
}

double running_sum_units(const Tolerance& tolerance, std::span<const double> terms, double sum) {
  const double rounding = kUnit * sum;
  int64_t counted = 0;
  double lost = 0;
  for (const double term : terms) {
    if (term < 8 * rounding) {
      lost += std::min(term, rounding);
    } else {
      ++counted;
    }
  }
  return running_growth_of(tolerance.growth, counted) +
         1.5 * lost / (tolerance.factor * kUnit * sum);
}

OutputError compare_values(const std::string& output, int call, std::span<const float> got,
                           const Expected& expected, Special special, const Elements& elements) {
  OutputError error;
  error.output = output;
  error.call = call;
  double worst_ratio = 0;  // in roundings
  for (size_t i = 0; i < expected.value.size(); ++i) {
    if (!elements.contains(i)) continue;
    ++error.count;
    const auto value = static_cast<double>(got[i]);
    const double right = expected.value[i];
    if (!std::isfinite(right)) {
      if (special_matches(value, right, special)) continue;
      error.worst = kNan;
      note_outside(error, i, value, right);
      continue;
    }
    const double distance = std::fabs(value - right);
    // Written so that NaN is outside.
    if (!(distance <= expected.bound[i])) note_outside(error, i, value, right);
    if (!std::isfinite(value)) {
      error.worst = error.worst_absolute = kNan;
      continue;
    }
    error.worst = std::max(error.worst, distance / expected.bound[i]);
    error.worst_absolute = std::max(error.worst_absolute, distance);
    if (expected.scale[i] > kSmallestNormal) {
      worst_ratio = std::max(worst_ratio, distance / (kUnit * expected.scale[i]));
    }
  }
  error.worst_bits = std::log2(1 + worst_ratio);
  return error;
}

OutputError compare_bits(const std::string& output, int call, std::span<const float> got,
                         std::span<const float> expected) {
  OutputError error;
  error.output = output;
  error.call = call;
  for (size_t i = 0; i < expected.size(); ++i) {
    ++error.count;
    const bool same = std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(expected[i]) ||
                      (std::isnan(got[i]) && std::isnan(expected[i]));
    if (same) continue;
    error.worst = kNan;
    note_outside(error, i, static_cast<double>(got[i]), static_cast<double>(expected[i]));
  }
  return error;
}

std::span<const float> as_f32(std::span<const std::byte> data) {
  return {reinterpret_cast<const float*>(data.data()), data.size() / sizeof(float)};
}

std::span<const int32_t> as_i32(std::span<const std::byte> data) {
  return {reinterpret_cast<const int32_t*>(data.data()), data.size() / sizeof(int32_t)};
}

std::vector<std::byte> bytes_of(std::span<const float> values) { return bytes(values); }
std::vector<std::byte> bytes_of(std::span<const int32_t> values) { return bytes(values); }
std::vector<std::byte> bytes_of(const Expected& expected) {
  const std::vector<float> values(expected.value.begin(), expected.value.end());
  return bytes(std::span(values));
}

std::string place(int64_t flat, const std::vector<int64_t>& shape) {
  std::string text;
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t extent = std::max<int64_t>(shape[d], 1);
    text = fmt::format("{}{}{}", flat % extent, text.empty() ? "" : ", ", text);
    flat /= extent;
  }
  return fmt::format("[{}]", text);
}

Checker::Checker(const Case& asked, const std::vector<Reply>& replies)
    : asked_(asked), replies_(replies) {
  check_.passed = true;
  if (replies.size() != asked.calls.size()) {
    complain(fmt::format("{} calls, {} replies", asked.calls.size(), replies.size()));
  }
}

std::string Checker::label(size_t call) const {
  return fmt::format("call {} ({})", call, asked_.calls[call].function);
}

void Checker::complain(const std::string& reason) {
  if (check_.passed) check_.reason = reason;
  check_.passed = false;
}

bool Checker::answered(size_t call) {
  if (call >= replies_.size()) return false;
  const Reply& r = replies_[call];
  if (r.ending != Ending::ok) {
    check_.refused = check_.refused || (check_.passed && r.ending == Ending::refused);
    complain(fmt::format("{}: {}{}{}", label(call), name_of(r.ending), r.detail.empty() ? "" : ": ",
                         r.detail));
    return false;
  }
  for (const std::string& name : r.omitted) {
    if (std::ranges::find(check_.omitted, name) == check_.omitted.end()) {
      check_.omitted.push_back(name);
    }
  }
  const std::vector<OutputTensor>& outputs = asked_.calls[call].outputs;
  if (r.outputs.size() != outputs.size()) {
    complain(
        fmt::format("{}: {} outputs instead of {}", label(call), r.outputs.size(), outputs.size()));
    return false;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto needed =
        static_cast<size_t>(element_count(outputs[i].shape) * size_of(outputs[i].dtype));
    if (r.outputs[i].size() == needed) continue;
    complain(fmt::format("{}: {}: {} bytes instead of {}", label(call), outputs[i].name,
                         r.outputs[i].size(), needed));
    return false;
  }
  return true;
}

bool Checker::refused(size_t call, bool untouched) {
  if (call >= replies_.size()) return false;
  const Reply& r = replies_[call];
  if (r.ending == Ending::refused) {
    if (!untouched || r.touched.empty()) return true;
    complain(fmt::format("{}: refused, but {} was written to", label(call), r.touched));
    return false;
  }
  complain(r.ending == Ending::ok
               ? fmt::format("{}: returned success where it must refuse", label(call))
               : fmt::format("{}: {}{}{}", label(call), name_of(r.ending),
                             r.detail.empty() ? "" : ": ", r.detail));
  return false;
}

bool Checker::omitted(size_t call, size_t output) const {
  const std::vector<std::string>& left_out = replies_[call].omitted;
  return std::ranges::find(left_out, asked_.calls[call].outputs[output].name) != left_out.end();
}

void Checker::returned(size_t call, int64_t expected) {
  if (!answered(call) || replies_[call].returned == expected) return;
  complain(
      fmt::format("{}: returned {} instead of {}", label(call), replies_[call].returned, expected));
}

void Checker::add(const OutputError& error, const std::vector<int64_t>& shape) {
  check_.errors.push_back(error);
  if (error.outside == 0) return;
  complain(fmt::format("{}: {}{} is {:.9g}, exact is {:.9g}; {} of {} outside the bound",
                       label(static_cast<size_t>(error.call)), error.output,
                       place(error.first, shape), error.got, error.expected, error.outside,
                       error.count));
}

void Checker::add_drawn(const OutputError& error, const std::string& reason) {
  check_.errors.push_back(error);
  if (reason.empty()) return;
  complain(fmt::format("{}: {}: {}", label(static_cast<size_t>(error.call)), error.output, reason));
}

}  // namespace touchstone::judge
