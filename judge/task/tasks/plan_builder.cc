#include "judge/task/tasks/plan_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// Octave and place within it, 0 at 1: a logarithm that is linear within each octave, exact on every
// machine.
double octaves(int64_t value) {
  const int whole = static_cast<int>(std::bit_width(static_cast<uint64_t>(value))) - 1;
  return whole + static_cast<double>(value) / std::ldexp(1.0, whole) - 1;
}

int64_t at_octave(double octave) {
  const double whole = std::floor(octave);
  return static_cast<int64_t>(std::ldexp(1 + octave - whole, static_cast<int>(whole)));
}

}  // namespace

std::vector<int64_t> PlanBuilder::spread(int64_t most, size_t count) {
  std::vector<int64_t> values;
  const uint64_t order = derive_seed(seed_, 0x73707264 + static_cast<uint64_t>(draws_));
  for (const int64_t part : permutation(order, static_cast<int64_t>(count))) {
    const double share = (static_cast<double>(part) + uniform()) / static_cast<double>(count);
    values.push_back(std::clamp<int64_t>(at_octave(share * octaves(most + 1)), 1, most));
  }
  return values;
}

std::vector<int64_t> PlanBuilder::sweep(int64_t most, int64_t step) {
  const int64_t parts = (most + step - 1) / step;
  const uint64_t order = derive_seed(seed_, 0x73776570 + static_cast<uint64_t>(draws_));
  std::vector<int64_t> values;
  for (const int64_t part : permutation(order, parts)) {
    values.push_back(std::min(part * step + 1 + draw(step), most));
  }
  return values;
}

int64_t PlanBuilder::draw_size(int64_t least, int64_t most) {
  const double low = octaves(least);
  return std::clamp(at_octave(low + uniform() * (octaves(most + 1) - low)), least, most);
}

std::vector<int64_t> PlanBuilder::regions(std::initializer_list<int64_t> borders) {
  std::vector<int64_t> values;
  for (const auto* border = borders.begin(); border + 1 != borders.end(); ++border) {
    values.push_back(draw_size(border[0], border[1] - 1));
  }
  values.push_back(draw_largest(borders.end()[-1] - 1));
  return values;
}

std::vector<int64_t> PlanBuilder::beside_tiles(int64_t most, bool both) {
  std::vector<int64_t> sizes;
  for (int64_t tile : {1, 3, 5, 7}) {
    while (2 * tile <= most) tile *= 2;
    const bool above = draw(2) == 1;
    if (both || above) sizes.push_back(tile + 1);
    if (both || !above) sizes.push_back(tile - 1);
  }
  return sizes;
}

std::vector<CaseSpec> valid_neighbors(const CaseSpec& spec, std::span<const Shrinkable> list,
                                      const std::function<void(const CaseSpec&)>& valid) {
  // Edits name elements of the shape that they were made for.
  if (!spec.edits.empty()) return {};
  std::vector<CaseSpec> candidates = smaller_parameters(spec, list);
  if (spec.family != "nominal") {
    CaseSpec plain = spec;
    plain.family = "nominal";
    candidates.insert(candidates.begin(), std::move(plain));
  }
  std::vector<CaseSpec> kept;
  for (CaseSpec& candidate : candidates) {
    try {
      valid(candidate);
    } catch (const InvalidArgument&) {
      continue;
    }
    kept.push_back(std::move(candidate));
  }
  return kept;
}

void compare_output(Checker& checker, const Case& asked, size_t call, size_t output,
                    const Expected& expected, Special special, const Elements& elements) {
  if (checker.omitted(call, output)) return;
  const OutputTensor& tensor = asked.calls[call].outputs[output];
  checker.add(
      compare_values(tensor.name, static_cast<int>(call),
                     as_f32(checker.reply(call).outputs[output]), expected, special, elements),
      tensor.shape);
}

void compare_norm(Checker& checker, const Case& asked, size_t call, size_t output,
                  const Expected& right, double bound) {
  if (checker.omitted(call, output)) return;
  const OutputTensor& tensor = asked.calls[call].outputs[output];
  const std::span<const float> got = as_f32(checker.reply(call).outputs[output]);
  OutputError error;
  error.output = tensor.name;
  error.call = static_cast<int>(call);
  error.count = static_cast<int64_t>(got.size());
  double errors = 0, values = 0, most = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    const double distance = static_cast<double>(got[i]) - right.value[i];
    errors += distance * distance;
    values += right.value[i] * right.value[i];
    if (std::fabs(distance) <= most) continue;
    most = std::fabs(distance);
    error.first = static_cast<int64_t>(i);
    error.got = static_cast<double>(got[i]);
    error.expected = right.value[i];
  }
  if (values == 0) return;
  const double share = std::sqrt(errors / values);
  error.worst = share / bound;
  error.outside = share <= bound ? 0 : error.count;
  if (error.outside == 0) error.first = -1;
  if (error.outside != 0) {
    checker.complain(fmt::format("{}: all errors together are {:.3g} of it, {:.3g} is allowed",
                                 tensor.name, share, bound));
  }
  checker.add(error, tensor.shape);
}

void compare_moved(Checker& checker, const Case& asked, size_t call, size_t output, Expected right,
                   std::span<const int64_t> from, const Reply& before) {
  const std::span<const float> earlier = as_f32(before.outputs[output]);
  Elements kept;
  for (size_t i = 0; i < from.size(); ++i) {
    kept.selected.push_back(from[i] >= 0);
    if (from[i] < 0) continue;
    right.value[i] = static_cast<double>(earlier[static_cast<size_t>(from[i])]);
    right.bound[i] *= 2;
  }
  compare_output(checker, asked, call, output, right, Special::same, kept);
}

std::vector<int64_t> elements_of_rows(std::span<const int64_t> order, int64_t width) {
  std::vector<int64_t> from;
  for (const int64_t row : order) {
    for (int64_t i = 0; i < width; ++i) from.push_back(row < 0 ? -1 : row * width + i);
  }
  return from;
}

void compare_scaled(Checker& checker, const Case& asked, size_t call, const Reply& before,
                    int64_t power, std::string_view unscaled) {
  for (size_t output = 0; output < asked.calls[call].outputs.size(); ++output) {
    const OutputTensor& tensor = asked.calls[call].outputs[output];
    const std::span<const float> earlier = as_f32(before.outputs[output]);
    std::vector<float> scaled(earlier.begin(), earlier.end());
    for (float& value : scaled) {
      if (tensor.name != unscaled) value = std::ldexp(value, static_cast<int>(power));
    }
    checker.add(compare_bits(tensor.name, static_cast<int>(call),
                             as_f32(checker.reply(call).outputs[output]), scaled),
                tensor.shape);
  }
}

void compare_all_bits(Checker& checker, const Case& asked, const std::vector<Reply>& before) {
  for (size_t call = 0; call < asked.calls.size(); ++call) {
    if (asked.calls[call].outputs.empty() || !checker.answered(call)) continue;
    for (size_t output = 0; output < asked.calls[call].outputs.size(); ++output) {
      const OutputTensor& tensor = asked.calls[call].outputs[output];
      if (checker.omitted(call, output)) continue;
      if (output >= before[call].outputs.size() ||
          before[call].outputs[output].size() != checker.reply(call).outputs[output].size()) {
        checker.complain(fmt::format("call {}: {}: sizes differ", call, tensor.name));
        continue;
      }
      // Four bytes at a time whatever the type: only equality matters, and NaN equals NaN.
      checker.add(compare_bits(tensor.name, static_cast<int>(call),
                               as_f32(checker.reply(call).outputs[output]),
                               as_f32(before[call].outputs[output])),
                  tensor.shape);
    }
  }
}

}  // namespace touchstone::judge
