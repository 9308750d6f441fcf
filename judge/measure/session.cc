#include "judge/measure/session.h"

#include <fmt/format.h>

#include <algorithm>

#include "judge/report/score.h"

namespace touchstone::judge {
namespace {

// Findings reported of each kind.
constexpr int kMaxFindings = 3;

}  // namespace

double Session::granted_seconds(double usual) const {
  constexpr double kBusyShare = 0.05;
  constexpr double kBusyFactor = 5.0;
  const double queued = own_times.thread_times().queued_seconds - queued_before;
  return queued > kBusyShare * seconds_since(begin) ? kBusyFactor * usual : usual;
}

void Session::log_progress(std::string_view what) const {
  if (options.progress) {
    options.progress(fmt::format("{}: {}: {}", task.card().id, contender.name, what));
  }
}

void Session::add_finding(std::string_view kind, const std::string& text,
                          const std::string& case_id) {
  find_kind(kind);  // a misspelt kind is our own mistake
  const auto known = std::ranges::count(record.findings, kind, &Finding::kind);
  if (known >= kMaxFindings) return;
  record.findings.push_back(
      {fmt::format("f{}", record.findings.size() + 1), std::string(kind), text, case_id});
}

void Session::add_wrong_case(const std::string& id, const CaseSpec& spec, const CaseCheck& check,
                             Ending ending) {
  if (std::ranges::find(record.cases, id, &CaseRecord::id) != record.cases.end()) return;
  CaseRecord entry;
  entry.ending = ending;
  entry.id = id;
  entry.spec = spec;
  entry.probes = task.probes_of(spec);
  entry.gates = task.gates_verdict(spec);
  entry.check = check;
  // What it lacks was settled by the cases of the plan: a refusal here is no other fault.
  if (check.refused) entry.lack = lacked_by(record, task, spec);
  record.cases.push_back(std::move(entry));
}

bool Session::add_failed_run(const std::string& id, const CaseSpec& spec,
                             const std::vector<Reply>& replies) {
  const Reply* bad = first_bad(replies);
  if (bad == nullptr) return false;
  CaseCheck check;
  check.reason =
      fmt::format("{}{}{}", name_of(bad->ending), bad->detail.empty() ? "" : ": ", bad->detail);
  add_ending_finding(replies, id);
  add_wrong_case(id, spec, check, bad->ending);
  return true;
}

void Session::add_ending_finding(const std::vector<Reply>& replies, const std::string& case_id) {
  const Reply* bad = first_bad(replies);
  if (bad == nullptr || bad->ending == Ending::not_reached) return;
  const std::string kind(name_of(bad->ending));
  add_finding(
      kind,
      fmt::format("{}{}{}", find_kind(kind).title, bad->detail.empty() ? "" : ": ", bad->detail),
      case_id);
}

}  // namespace touchstone::judge
