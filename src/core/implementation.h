// Dispatch: per operator and device an ordered list of named implementations, fastest first and the
// most general one last; it may refuse, too. Each returns the reason why it refuses a problem.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/error.h"
#include "touchstone/core/implementation_report.h"

namespace touchstone::inline v0 {

template <class Problem>
struct Implementation {
  const char* name;
  DeviceKind device;
  // Empty when the implementation accepts the problem, else the reason it does not. Null = always.
  std::string (*refuses)(const Context&, const Problem&);
  void (*run)(Context&, const Problem&);

  std::string refusal(const Context& context, const Problem& problem) const {
    return refuses == nullptr ? std::string() : refuses(context, problem);
  }
};

template <class Problem>
std::vector<ImplementationReport> report_implementations(
    std::span<const Implementation<Problem>> list, const Context& context, const Problem& problem) {
  std::vector<ImplementationReport> reports;
  for (const auto& implementation : list) {
    if (implementation.device != context.device().kind) continue;
    std::string refusal = implementation.refusal(context, problem);
    reports.push_back({implementation.name, refusal.empty(), refusal});
  }
  return reports;
}

// Runs the implementation named `wanted`, or the first that accepts where it is empty.
template <class Problem>
void run_first(const char* op, std::span<const Implementation<Problem>> list, Context& context,
               const Problem& problem, const std::string& wanted) {
  std::string known;
  std::string refusals;
  for (const auto& implementation : list) {
    if (implementation.device != context.device().kind) continue;
    known += known.empty() ? "" : ", ";
    known += implementation.name;
    if (!wanted.empty() && wanted != implementation.name) continue;
    const std::string refusal = implementation.refusal(context, problem);
    if (refusal.empty()) {
      implementation.run(context, problem);
      return;
    }
    if (!wanted.empty()) {
      throw Unsupported(std::string(op)
                            .append(": implementation '")
                            .append(wanted)
                            .append("' refuses: ")
                            .append(refusal));
    }
    refusals += refusals.empty() ? "" : "; ";
    refusals += implementation.name + (": " + refusal);
  }
  if (wanted.empty()) {
    throw Unsupported(std::string(op) + ": every implementation refuses: " + refusals);
  }
  throw Unsupported(std::string(op) + ": implementation: expected one of " + known + ", got '" +
                    wanted + "'");
}

}  // namespace touchstone::inline v0
