#include "judge/task/tasks/plan_builder.h"

#include <fmt/format.h>

#include "touchstone/core/error.h"

namespace touchstone::judge {

std::vector<CaseSpec> valid_neighbors(const CaseSpec& spec, std::span<const Shrinkable> list,
                                      const std::function<void(const CaseSpec&)>& valid) {
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
