// Experiments beside the cases: memory, leaks, and answers that were not computed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <span>

#include "judge/measure/paired_stats.h"
#include "judge/measure/session.h"
#include "judge/task/generate.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// Below this the exponent would be fitted to the granularity of what counts: the kernel's count of
// pages is exact to some 64, and a heap's count has an interpreter's own objects in it.
constexpr int64_t kMinExtra = 256 << 10;
constexpr int64_t kMinCounted = 64 << 10;
// A quarter comes first, while thread pools and workspaces come to stay; then two halves.
constexpr int kLeakCalls = 200;
constexpr int kMinLeakCalls = 40;
// Bytes for each run of the case. The heap of an interpreter was seen to drift by 400 on its own.
constexpr double kMinLeak = 1024.0;
constexpr double kLeakCaseBytes = 64 << 10;
constexpr double kLeakCaseCalls = 16;
constexpr double kLeakSeconds = 0.8;
// On a busy machine, for the fewest calls that show anything.
constexpr double kMaxLeakSeconds = 20.0;
constexpr int kPacingCalls = 4;
constexpr double kLadderSeconds = 6.0;
constexpr int kRepeats = 9;
constexpr std::size_t kMinRepeats = 5;
// A call whose content came before takes less than this share of a fresh one: work was skipped.
// Warm branch predictors and caches of honest code give nothing near it.
constexpr double kSkippedShare = 0.5;
// Shorter calls are mostly wake-up and capture.
constexpr double kMinSeconds = 50e-6;
// Ids of cases that these experiments run.
constexpr const char* kTimedId = "a1";
constexpr const char* kRepeatedId = "a2";

int64_t io_bytes(const Case& c) {
  int64_t bytes = 0;
  for (const Call& call : c.calls) {
    for (const InputTensor& input : call.inputs) bytes += static_cast<int64_t>(input.data.size());
    for (const OutputTensor& output : call.outputs) {
      int64_t count = size_of(output.dtype);
      for (const int64_t extent : output.shape) count *= extent;
      bytes += count;
    }
  }
  return bytes;
}

// The name of the one parameter that differs along the ladder.
std::string growing_parameter(const std::vector<CaseSpec>& ladder) {
  if (ladder.size() < 2) return {};
  for (const auto& [name, value] : ladder.front().parameters) {
    const auto found = ladder.back().parameters.find(name);
    if (found != ladder.back().parameters.end() && found->second != value) return name;
  }
  return {};
}

// The same case with one element of one input replaced by the largest of it: nothing that looks at
// a sample of the input notices, and it is surely seen in an output.
CaseSpec with_one_change(const Case& c, const std::string& name, uint64_t random) {
  Edit edit;
  std::span<const float> values;
  for (size_t i = 0; i < c.calls.size(); ++i) {
    for (const InputTensor& input : c.calls[i].inputs) {
      if (input.name != name || as_f32(input).size() <= values.size()) continue;
      values = as_f32(input);
      edit.call = static_cast<int64_t>(i);
    }
  }
  const size_t at = values.empty() ? 0 : random % values.size();
  float most = 0.0F;
  for (const float value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  edit.input = name;
  edit.first = edit.last = static_cast<int64_t>(at);
  edit.value = !values.empty() && values[at] == most ? -most : most;
  CaseSpec changed = c.spec;
  changed.edits.push_back(edit);
  return changed;
}

// The inputs of numbers that a case has, by name.
std::vector<std::string> inputs_of(const Case& c) {
  std::vector<std::string> names;
  for (const Call& call : c.calls) {
    for (const InputTensor& input : call.inputs) {
      const bool wanted = input.dtype == DType::f32 && !input.derived && !input.data.empty();
      if (wanted && std::ranges::find(names, input.name) == names.end()) {
        names.push_back(input.name);
      }
    }
  }
  return names;
}

// A case that keeps the contender busy long enough to be timed, and not for long.
std::optional<CaseSpec> busy_spec(Session& session, const std::vector<CaseSpec>& timed) {
  for (const CaseSpec& spec : timed) {
    const Case c = session.task.build(spec);
    const std::vector<Reply> replies = session.meter.run(c, Placement::end_flush, session.random());
    if (session.add_failed_run(kTimedId, spec, replies)) return std::nullopt;
    const double seconds = timed_seconds(c, replies);
    if (seconds >= kMinSeconds && seconds < 0.2) return spec;
  }
  return std::nullopt;
}

CaseSpec reseeded(CaseSpec spec, uint64_t seed) {
  spec.seed = seed;
  return spec;
}

// Times of repeated content over times of fresh content, as the median over some rounds. Nothing
// where a busy machine disturbed too many of them: such times are no evidence.
std::optional<double> repeated_share(Session& session, const CaseSpec& spec) {
  std::vector<double> shares;
  for (int i = -2; i < kRepeats; ++i) {  // the first rounds warm up
    const Case fresh = session.task.build(reseeded(spec, session.random()));
    const auto first = session.meter.run(fresh, Placement::end_flush, session.random());
    const auto second = session.meter.run(fresh, Placement::end_flush, session.random());
    for (const auto* replies : {&first, &second}) {
      if (session.add_failed_run(kTimedId, fresh.spec, *replies)) return 1.0;
    }
    const bool quiet = !std::ranges::any_of(first, &Reply::disturbed) &&
                       !std::ranges::any_of(second, &Reply::disturbed);
    if (i >= 0 && quiet) {
      shares.push_back(timed_seconds(fresh, second) / timed_seconds(fresh, first));
    }
  }
  if (shares.size() < kMinRepeats) return std::nullopt;
  return median(shares);
}

// Where the answer depends on few of the numbers, several elements are tried.
constexpr int kTries = 12;

// One element of the input `changed` replaced, such that the old answer is wrong for what it is now.
Case visibly_changed(Session& session, const Case& old_case, const std::string& changed,
                     const std::vector<Reply>& old_replies) {
  Case c;
  for (int i = 0; i < kTries; ++i) {
    c = session.task.build(with_one_change(old_case, changed, session.random()));
    if (!session.task.check(c, old_replies).passed) break;
  }
  return c;
}

// Old content, then at the same addresses new content that a cache could take for the old one: all
// of it, or one element of the input `changed`. True when the answer is wrong there and right in a
// child that never saw the old content: the difference is the proof.
bool answers_from_memory(Session& session, const CaseSpec& spec, const std::string& changed,
                         std::string& what) {
  const Case old_case = session.task.build(reseeded(spec, session.random()));
  const uint64_t poison = session.random();
  const std::vector<Reply> old_replies = session.meter.run(old_case, Placement::end_flush, poison);
  if (session.add_failed_run(kRepeatedId, old_case.spec, old_replies)) return false;
  const Case new_case = changed.empty() ? session.task.build(reseeded(spec, session.random()))
                                        : visibly_changed(session, old_case, changed, old_replies);
  std::vector<Reply> new_replies;
  const CaseCheck seen = session.meter.check(new_case, Placement::repeat, poison, &new_replies);
  if (session.add_failed_run(kRepeatedId, new_case.spec, new_replies) || seen.passed) return false;
  session.meter.restart();
  std::vector<Reply> fresh;
  const CaseCheck unseen = session.meter.check(new_case, Placement::end_flush, poison, &fresh);
  if (session.add_failed_run(kRepeatedId, new_case.spec, fresh)) return false;
  if (!unseen.passed) {
    // Only data as the plan draws them have bounds that every right answer keeps.
    if (changed.empty()) session.add_wrong_case(kRepeatedId, new_case.spec, unseen);
    return false;
  }
  what = same_outputs(old_replies, new_replies) ? "the old answer, bit for bit" : seen.reason;
  return true;
}

std::string changed_words(const std::string& changed) {
  return changed.empty() ? "new content at an old address"
                         : fmt::format("old content with one element of {} changed", changed);
}

// All of the content first, then each input.
std::vector<std::string> changes_of(const Session& session, const CaseSpec& asked) {
  std::vector<std::string> changes = inputs_of(session.task.build(asked));
  changes.insert(changes.begin(), "");
  return changes;
}

void look_for_old_answers(Session& session, const CaseSpec& asked) {
  for (const std::string& changed : changes_of(session, asked)) {
    std::string first;
    std::string second;
    // Two seeds: one could be an accident.
    if (!answers_from_memory(session, asked, changed, first) ||
        !answers_from_memory(session, asked, changed, second)) {
      continue;
    }
    session.add_finding("cached_answer",
                        fmt::format("{}: {}; right in a process that never saw the old content",
                                    changed_words(changed), first),
                        "");
  }
}

// The same for a contender that is wrong anyway: only the bits of the old answer are evidence, because a
// wrong one may be wrong for many reasons. Looked at first, they cost no reference answer.
bool repeats_old_bits(Session& session, const CaseSpec& spec, const std::string& changed) {
  const Case old_case = session.task.build(reseeded(spec, session.random()));
  const uint64_t poison = session.random();
  const auto ended = [](const std::vector<Reply>& replies) {
    return ending_of(replies) == Ending::ok;
  };
  const std::vector<Reply> old_replies = session.meter.run(old_case, Placement::end_flush, poison);
  if (!ended(old_replies)) return false;
  for (int i = 0; i < kTries; ++i) {
    const Case new_case =
        session.task.build(changed.empty() ? reseeded(spec, session.random())
                                           : with_one_change(old_case, changed, session.random()));
    const std::vector<Reply> seen = session.meter.run(new_case, Placement::repeat, poison);
    if (!ended(seen) || !same_outputs(old_replies, seen)) return false;
    if (session.task.check(new_case, seen).passed) continue;  // the change does not show
    session.meter.restart();
    std::vector<Reply> fresh;
    return session.meter.check(new_case, Placement::end_flush, poison, &fresh).passed;
  }
  return false;
}

// One rung: the most that the contender held, over all calls of the case. Nothing when a call did
// not end well.
std::optional<MemoryPoint> climb(Session& session, ContenderProcess& process, const Case& c,
                                 const std::string& parameter, std::vector<Reply>& replies) {
  Child* child = process.child();
  if (child == nullptr) return std::nullopt;
  const bool python = session.contender.language == Language::numpy;
  int64_t state = 0;
  int64_t peak = 0;
  for (const Call& call : c.calls) {
    // What one call left behind is there in the next. What was taken while loading is there in all
    // of them. A state in Python is among what is held; one in C is in memory of the judge.
    const int64_t kept = child->held_bytes();
    replies.push_back(child->call(call, Placement::end_flush, session.random()));
    const Reply& reply = replies.back();
    if (reply.ending != Ending::ok && reply.ending != Ending::refused) return std::nullopt;
    state = std::max(state, reply.state_bytes);
    const int64_t held = python ? std::max(kept, state) : kept;
    peak = std::max(peak, std::max<int64_t>(0, held) + reply.peak_extra_bytes);
  }
  MemoryPoint point;
  point.n = c.spec.parameters.at(parameter);
  point.io_bytes = io_bytes(c);
  point.extra_bytes = python ? std::max(peak, state) : state + peak;
  point.least_bytes = static_cast<int64_t>(session.task.least_state_bytes(c));
  return point;
}

// Two cases to repeat: an ordinary one, and the one that calls most different functions, so that
// what is forked and given back is looked at. Small ones let many runs into the time; one too small
// leaks too little to be seen.
std::vector<CaseRecord> leak_cases(const Session& session) {
  const CaseRecord* nominal = nullptr;
  const CaseRecord* varied = nullptr;
  double nominal_distance = 0.0;
  std::pair<std::size_t, double> best{0, 0.0};
  for (const CaseRecord& entry : session.record.cases) {
    if (entry.ending != Ending::ok || !entry.check.passed) continue;
    const auto stored = session.reference.cases.get(entry.spec);
    const Case& c = stored->asked();
    // A long session takes its time in every run.
    const double distance =
        std::abs(std::log(static_cast<double>(io_bytes(c) + 1) / kLeakCaseBytes)) +
        std::log1p(static_cast<double>(c.calls.size()) / kLeakCaseCalls);
    if (entry.spec.family == "nominal" && (nominal == nullptr || distance < nominal_distance)) {
      nominal = &entry;
      nominal_distance = distance;
    }
    std::set<std::string> functions;
    for (const Call& call : c.calls) functions.insert(call.function);
    const std::pair<std::size_t, double> rank{functions.size(), -distance};
    if (functions.size() > 1 && (varied == nullptr || rank > best)) {
      varied = &entry;
      best = rank;
    }
  }
  std::vector<CaseRecord> cases;
  if (nominal != nullptr) cases.push_back(*nominal);
  if (varied != nullptr && varied != nominal) cases.push_back(*varied);
  return cases;
}

void look_for_leak(Session& session, const CaseRecord& entry) {
  const auto stored = session.reference.cases.get(entry.spec);
  const Case& c = stored->asked();
  session.log_progress("leaks");
  session.meter.restart();
  Child* child = session.meter.child();
  if (child == nullptr) return;
  const auto begin = Clock::now();
  std::vector<Reply> first_answer;
  bool wrong = false;
  int runs_done = 0;
  const auto repeat = [&](int runs) {
    for (int i = 0; i < runs; ++i) {
      if (seconds_since(begin) > kMaxLeakSeconds || !child->alive()) return i;
      std::vector<Reply> replies = child->run(c, Placement::end_flush, session.random());
      ++runs_done;
      if (!child->alive()) session.add_ending_finding(replies, entry.id);
      // Bits that were right once need no second look; others have to be right as well.
      const bool known = !first_answer.empty() && same_outputs(first_answer, replies);
      if (!known && !wrong && child->alive()) {
        CaseCheck check = stored->check(replies);
        wrong = !check.passed;
        check.reason = fmt::format("in run {} of the same case: {}", runs_done, check.reason);
        if (wrong) session.add_wrong_case(fmt::format("{}x{}", entry.id, runs_done), c.spec, check);
        if (!wrong && first_answer.empty()) first_answer = std::move(replies);
      }
    }
    return runs;
  };
  repeat(kPacingCalls);
  const double pace = seconds_since(begin) / kPacingCalls;
  const int calls =
      static_cast<int>(std::clamp<double>(kLeakSeconds / pace, kMinLeakCalls, kLeakCalls));
  repeat(calls / 4);
  const int64_t before = child->held_bytes();
  const int first = repeat(calls / 2);
  const int64_t middle = child->held_bytes();
  const int second = repeat(calls / 2);
  const int64_t after = child->held_bytes();
  std::string& fact = session.record.facts["leaks"];
  if (!fact.empty()) fact += "; ";
  if (second < kMinLeakCalls / 2 || !child->alive()) {
    fact += fmt::format("not measured on {}: {}", entry.id,
                        child->alive() ? "the machine was too busy" : "it ended");
    return;
  }
  fact += fmt::format("looked for in {} runs of {}", runs_done, entry.id);
  const double slope = static_cast<double>(after - middle) / second;
  std::optional<double>& leaked = session.record.memory.leaked_bytes_per_call;
  leaked = std::max({0.0, slope, leaked.value_or(0.0)});
  // Both halves must grow: a workspace that grew once is no leak.
  const double earlier = static_cast<double>(middle - before) / std::max(1, first);
  if (slope >= kMinLeak && earlier >= kMinLeak && after - before >= (64 << 10)) {
    session.add_finding(
        "leak", fmt::format("holds {:.0f} bytes more after every run of {}", slope, entry.id),
        entry.id);
  }
}

}  // namespace

void measure_memory_growth(Session& session, const Plan& plan) {
  // What the driver holds in the process says nothing about the contender, nor about its memory on
  // the device.
  if (session.contender.language == Language::cuda) return;
  MemoryRecord& memory = session.record.memory;
  memory.parameter = growing_parameter(plan.memory_ladder);
  if (memory.parameter.empty()) return;
  // Pages say little about an interpreter, whose heap holds many already: its heap counts.
  const bool counted = session.contender.language == Language::numpy;
  Limits limits = session.options.limits;
  limits.heap = counted ? ChildHeap::counted : ChildHeap::plain;
  ContenderProcess process(session.contender, session.record.build, session.task,
                           session.record.sandbox, limits);
  const auto begin = Clock::now();
  memory.sizes = static_cast<int64_t>(plan.memory_ladder.size());
  for (const CaseSpec& spec : plan.memory_ladder) {
    if (seconds_since(begin) > session.granted_seconds(kLadderSeconds)) {
      session.record.facts["memory"] =
          fmt::format("measured at {} of {} sizes in {:.0f} s", memory.ladder.size(),
                      plan.memory_ladder.size(), seconds_since(begin));
      break;
    }
    session.log_progress(
        fmt::format("memory at {} = {}", memory.parameter, spec.parameters.at(memory.parameter)));
    const auto stored = session.reference.cases.get(spec);
    const Case& c = stored->asked();
    process.restart();  // what an earlier case left in the allocator would hide this one's
    std::vector<Reply> replies;
    const std::optional<MemoryPoint> point = climb(session, process, c, memory.parameter, replies);
    const std::string id = ladder_id(memory.ladder.size());
    if (!point) {
      session.add_failed_run(id, spec, replies);
      session.record.facts["memory"] = fmt::format(
          "not measured beyond {} sizes: a call did not end well", memory.ladder.size());
      break;
    }
    memory.ladder.push_back(*point);
    const CaseCheck check = stored->check(replies);
    if (!check.passed) session.add_wrong_case(id, spec, check);
  }
  std::vector<std::pair<double, double>> points;
  for (const MemoryPoint& point : memory.ladder) {
    points.emplace_back(static_cast<double>(point.n), static_cast<double>(point.extra_bytes));
  }
  memory.exponent = growth_exponent(points, static_cast<double>(counted ? kMinCounted : kMinExtra));
}

std::string ladder_id(std::size_t rung) { return fmt::format("m{}", rung + 1); }

void detect_leaks(Session& session) {
  for (const CaseRecord& entry : leak_cases(session)) look_for_leak(session, entry);
}

void prove_old_answers(Session& session) {
  // A child that dies proves nothing, and each of its deaths takes time.
  if (session.process.deaths() > 0 || session.record.cases.empty()) return;
  session.log_progress("answers from memory");
  std::vector<CaseSpec> asked = session.task.timed(session.random(), true);
  if (asked.size() > 1) asked.resize(1);
  asked.push_back(session.record.cases.front().spec);
  for (const CaseSpec& one : asked) {
    for (const std::string& changed : changes_of(session, one)) {
      if (!repeats_old_bits(session, one, changed) || !repeats_old_bits(session, one, changed)) {
        continue;
      }
      session.add_finding(
          "cached_answer",
          fmt::format("{}: the old answer, bit for bit; right in a process that never "
                      "saw the old content",
                      changed_words(changed)),
          "");
      return;
    }
  }
}

void detect_caching(Session& session) {
  const std::vector<CaseSpec> timed = session.task.timed(session.random(), true);
  if (timed.empty()) return;
  const std::optional<CaseSpec> spec = busy_spec(session, timed);
  session.log_progress("answers from memory");
  // Answers are not timed, so any case will do: one of many rows, and the plainest.
  std::vector<CaseSpec> asked = {spec.has_value() ? *spec : timed.front()};
  if (!session.record.cases.empty()) asked.push_back(session.record.cases.front().spec);
  for (const CaseSpec& one : asked) look_for_old_answers(session, one);
  std::string& fact = session.record.facts["repeated content"];
  if (!spec.has_value()) {
    fact = "not timed: no case keeps it busy long enough";
    return;
  }
  std::optional<double> share = repeated_share(session, *spec);
  if (share.has_value() && *share < kSkippedShare) {
    session.meter.restart();
    share = repeated_share(session, *spec);
    if (share.has_value() && *share < kSkippedShare) {
      session.add_finding(
          "work_skipped",
          fmt::format("content that came before takes {:.0f} % of the time of new content",
                      100.0 * *share),
          "");
    }
  }
  fact = share.has_value()
             ? fmt::format("takes {:.0f} % of the time of new content", 100.0 * *share)
             : std::string("not timed: the machine was too busy");
}

}  // namespace touchstone::judge
