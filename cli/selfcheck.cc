// touchstone selfcheck: every operator, implementation, dtype and device of this machine against its
// float64 reference, on a handful of shapes. Takes seconds; the tests are the proof.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "spec/spec.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

// One operator, device, implementation and dtype, over some shapes.
struct CheckOutcome {
  std::string op;
  std::string device;
  std::string implementation;
  std::string dtype;
  int shapes = 0;
  double worst = 0;  // error over bound

  bool right() const { return worst <= 1; }
};

// Counts one more shape; NaN is worse than anything.
void add_outcome(std::vector<CheckOutcome>& outcomes, const CheckOutcome& fresh) {
  auto found = std::ranges::find_if(outcomes, [&](const CheckOutcome& other) {
    return other.op == fresh.op && other.device == fresh.device &&
           other.implementation == fresh.implementation && other.dtype == fresh.dtype;
  });
  if (found == outcomes.end()) {
    outcomes.push_back(fresh);
    found = std::prev(outcomes.end());
    found->worst = 0;
  }
  ++found->shapes;
  if (!(fresh.worst <= found->worst)) found->worst = fresh.worst;
}

void check_case(std::vector<CheckOutcome>& outcomes, Context& context, const spec::Operator& op,
                const cases::Case& item) {
  const std::unique_ptr<spec::Problem> problem = op.make(item);
  spec::Operands operands(context, problem->operands(), 1);
  problem->prepare(context, operands.views());
  const std::string format = problem->labels().format;
  for (const ImplementationReport& report : problem->explain(context, operands.views())) {
    if (!report.accepted) continue;
    const spec::Verdict verdict = spec::check_call(*problem, context, operands, [&] {
      problem->call(context, operands.views(), report.name);
    });
    if (!verdict.right()) log(op.name + " " + report.name + ": " + verdict.where);
    add_outcome(outcomes, {.op = op.name,
                           .device = name_of(context.device()),
                           .implementation = report.name,
                           .dtype = format.empty() ? std::string(name_of(item.dtype)) : format,
                           .worst = verdict.compared > 0 ? verdict.worst : HUGE_VAL});
  }
}

std::vector<CheckOutcome> check_device(Device device) {
  std::vector<CheckOutcome> outcomes;
  ContextOptions wanted;
  wanted.device = device;
  Context context(wanted);
  Progress progress;
  for (const spec::Operator& op : spec::all()) {
    for (const cases::Case& item :
         spec::select(op, {.tier = cases::Tier::check, .device = device.kind})) {
      progress.show(fmt::format("selfcheck: {} {}", op.name, item.describe()));
      check_case(outcomes, context, op, item);
    }
  }
  return outcomes;
}

int selfcheck(bool json) {
  std::vector<Device> devices = {Device::cpu()};
  for (std::size_t i = 0; i < cuda_devices().size(); ++i) {
    devices.push_back(Device::cuda(static_cast<int>(i)));
  }
  std::vector<CheckOutcome> outcomes;
  for (const Device device : devices) {
    for (CheckOutcome& outcome : check_device(device)) outcomes.push_back(std::move(outcome));
  }
  const auto failures =
      std::ranges::count_if(outcomes, [](const CheckOutcome& outcome) { return !outcome.right(); });
  if (json) {
    Json rows = Json::array();
    for (const CheckOutcome& outcome : outcomes) {
      // JSON has no infinity: a NaN in the output is null here.
      rows.push_back({{"op", outcome.op},
                      {"device", outcome.device},
                      {"impl", outcome.implementation},
                      {"dtype", outcome.dtype},
                      {"shapes", outcome.shapes},
                      {"error_over_bound", outcome.worst},
                      {"ok", outcome.right()}});
    }
    print_json({{"version", version()}, {"ok", failures == 0}, {"checks", rows}});
    return failures == 0 ? kOk : kNo;
  }
  Table table({"operator", "device", "impl", "dtype", ">shapes", ">error / bound", "verdict"});
  for (const CheckOutcome& outcome : outcomes) {
    table.add({outcome.op, outcome.device, outcome.implementation, outcome.dtype,
               std::to_string(outcome.shapes), fmt::format("{:.3f}", outcome.worst),
               outcome.right() ? "ok" : "FAILED"},
              outcome.right() ? Color::plain : Color::bad);
  }
  print(table.text());
  print(failures == 0 ? colored("selfcheck: all right\n", Color::good)
                      : colored(fmt::format("selfcheck: {} FAILED\n", failures), Color::bad));
  return failures == 0 ? kOk : kNo;
}

}  // namespace

void add_selfcheck(Options& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  Options* verb = app.add_verb("selfcheck", "Check every operator against its reference");
  verb->add_flag("--json", *json, "Print JSON");
  verb->callback([json, &exit_code] { exit_code = selfcheck(*json); });
}

}  // namespace touchstone::cli
