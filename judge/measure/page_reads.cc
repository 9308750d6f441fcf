// How often each page of an input is read. An untimed run, in which only a few pages of each input
// are readable at a time: every page that is read again after others were is a new read.
#include <fmt/format.h>

#include <algorithm>

#include "judge/measure/session.h"
#include "judge/task/case.h"

namespace touchstone::judge {
namespace {

// 128 KiB of each input: more than any register tile needs at once, less than any input that counts.
constexpr int kWindowPages = 32;
constexpr int64_t kPageBytes = 4096;
// Of smaller inputs most pages stay readable, and the count says nothing.
constexpr int64_t kMinPages = 2 * kWindowPages;

}  // namespace

void count_page_reads(Session& session) {
  TrafficRecord& traffic = session.record.traffic;
  const std::string& text = session.task.card().reads_case;
  if (session.contender.language == Language::cuda) {
    traffic.not_measured = "not on a GPU";
    return;
  }
  if (text.empty()) {
    traffic.not_measured = "the inputs of this task are small; what counts is its state";
    return;
  }
  session.log_progress("reads of each page");
  traffic.shape = parse_spec(text);
  traffic.window_pages = kWindowPages;
  const auto stored = session.reference.cases.get(traffic.shape);
  const Case& asked = stored->asked();
  Limits limits = session.options.limits;
  limits.measured = false;
  limits.read_window = kWindowPages;
  ContenderProcess process(session.contender, session.record.build, session.task,
                           session.record.sandbox, limits);
  std::vector<Reply> replies;
  const CaseCheck check = process.check(*stored, Placement::end_flush, session.random(), &replies);
  const Reply* bad = first_bad(replies);
  if (bad != nullptr) {
    traffic.not_measured = fmt::format("{} in the run that counts", name_of(bad->ending));
  } else if (!check.passed) {
    traffic.not_measured = "its answer was wrong there: " + check.reason;
  }
  if (bad != nullptr || !check.passed) {
    // Handling the faults is the judge's part: what also fails with all pages readable is not.
    constexpr const char* kId = "p1";
    std::vector<Reply> plain;
    const CaseCheck again =
        session.process.check(*stored, Placement::end_flush, session.random(), &plain);
    if (!session.add_failed_run(kId, asked.spec, plain) && !again.passed) {
      session.add_wrong_case(kId, asked.spec, again);
    }
    return;
  }
  traffic.not_measured.clear();
  for (std::size_t i = 0; i < asked.calls.size(); ++i) {
    const Call& call = asked.calls[i];
    for (std::size_t k = 0; k < call.inputs.size() && k < replies[i].page_reads.size(); ++k) {
      const auto bytes = static_cast<int64_t>(call.inputs[k].data.size());
      const int64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
      if (pages < kMinPages) continue;
      traffic.inputs.push_back({asked.calls.size() > 1
                                    ? fmt::format("{}.{}", call.function, call.inputs[k].name)
                                    : call.inputs[k].name,
                                pages, replies[i].page_reads[k]});
    }
  }
  if (traffic.inputs.empty()) traffic.not_measured = "no input has enough pages";
}

}  // namespace touchstone::judge
