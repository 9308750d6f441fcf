// Experiments beside the cases: memory, leaks, and answers that were not computed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "judge/measure/paired_stats.h"
#include "judge/measure/session.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// Below this the exponent would be fitted to the granularity of pages and allocators.
constexpr int64_t kMinExtra = 64 << 10;
constexpr int kLeakCalls = 200;
constexpr int kMinLeakCalls = 20;
// Bytes for each run of the case. The heap of an interpreter was seen to drift by 400 on its own.
constexpr double kMinLeak = 1024.0;
constexpr double kLeakCaseBytes = 64 << 10;
constexpr double kLeakSeconds = 1.5;
constexpr double kLadderSeconds = 6.0;
constexpr int kRepeats = 9;
constexpr std::size_t kMinRepeats = 5;
// A call whose content came before takes less than this share of a fresh one: work was skipped.
// Warm branch predictors and caches of honest code give nothing near it.
constexpr double kSkippedShare = 0.5;
// Shorter calls are mostly wake-up and capture.
constexpr double kMinSeconds = 50e-6;

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

// The slope of log(extra) over log(n), by least squares.
std::optional<double> fitted_exponent(const std::vector<MemoryPoint>& ladder) {
  double n = 0;
  double sx = 0;
  double sy = 0;
  double sxx = 0;
  double sxy = 0;
  for (const MemoryPoint& point : ladder) {
    if (point.extra_bytes < kMinExtra || point.n < 1) continue;
    const double x = std::log(static_cast<double>(point.n));
    const double y = std::log(static_cast<double>(point.extra_bytes));
    n += 1;
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  const double spread = n * sxx - sx * sx;
  if (n < 3 || !(spread > 0)) return std::nullopt;
  return (n * sxy - sx * sy) / spread;
}

// The same case with one element of one input replaced by another element of it: nothing that looks
// at a sample of the input notices.
Case with_one_change(Case c, uint64_t random) {
  InputTensor* largest = nullptr;
  for (Call& call : c.calls) {
    for (InputTensor& input : call.inputs) {
      if (input.dtype != DType::f32 || !call.timed) continue;
      if (largest == nullptr || input.data.size() > largest->data.size()) largest = &input;
    }
  }
  if (largest == nullptr || largest->data.size() < 8) return c;
  const std::size_t count = largest->data.size() / sizeof(float);
  std::vector<float> values(count);
  std::memcpy(values.data(), largest->data.data(), count * sizeof(float));
  // The largest magnitude: what is surely seen in an output.
  const std::size_t at = random % count;
  float most = 0.0F;
  for (const float value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  values[at] = values[at] == most ? -most : most;
  std::memcpy(largest->data.data(), values.data(), count * sizeof(float));
  return c;
}

// A case that keeps the contender busy long enough to be timed, and not for long.
std::optional<CaseSpec> busy_spec(Session& session, const std::vector<CaseSpec>& timed) {
  for (const CaseSpec& spec : timed) {
    const Case c = session.task.build(spec);
    const std::vector<Reply> replies = session.meter.run(c, Placement::end_flush, session.random());
    if (ending_of(replies) != Ending::ok) return std::nullopt;
    const double seconds = timed_seconds(c, replies);
    if (seconds >= kMinSeconds && seconds < 0.2) return spec;
  }
  return std::nullopt;
}

CaseSpec reseeded(CaseSpec spec, uint64_t seed) {
  spec.seed = seed;
  return spec;
}

// Times of repeated content over times of fresh content, as the median over some rounds.
double repeated_share(Session& session, const CaseSpec& spec) {
  std::vector<double> shares;
  for (int i = -2; i < kRepeats; ++i) {  // the first rounds warm up
    const Case fresh = session.task.build(reseeded(spec, session.random()));
    const auto first = session.meter.run(fresh, Placement::end_flush, session.random());
    const auto second = session.meter.run(fresh, Placement::end_flush, session.random());
    if (ending_of(first) != Ending::ok || ending_of(second) != Ending::ok) return 1.0;
    const bool quiet = !std::ranges::any_of(first, &Reply::disturbed) &&
                       !std::ranges::any_of(second, &Reply::disturbed);
    if (i >= 0 && quiet) {
      shares.push_back(timed_seconds(fresh, second) / timed_seconds(fresh, first));
    }
  }
  // Times on a busy machine are no evidence.
  return shares.size() < kMinRepeats ? 1.0 : median(shares);
}

// Old content, then new content that a cache could take for the old one. True when the answer is
// wrong there and right in a child that never saw the old content: the difference is the proof.
bool answers_from_memory(Session& session, const CaseSpec& spec, bool by_address,
                         std::string& what) {
  const Case old_case = session.task.build(reseeded(spec, session.random()));
  const Case new_case = by_address ? session.task.build(reseeded(spec, session.random()))
                                   : with_one_change(old_case, session.random());
  const Placement placement = by_address ? Placement::repeat : Placement::end_flush;
  const uint64_t poison = session.random();
  session.meter.restart();
  const std::vector<Reply> old_replies = session.meter.run(old_case, Placement::end_flush, poison);
  std::vector<Reply> new_replies;
  const CaseCheck seen = session.meter.check(new_case, placement, poison, &new_replies);
  if (seen.passed || ending_of(new_replies) != Ending::ok) return false;
  session.meter.restart();
  const CaseCheck unseen = session.meter.check(new_case, Placement::end_flush, poison, nullptr);
  if (!unseen.passed) return false;
  what = same_outputs(old_replies, new_replies) ? "the old answer, bit for bit" : seen.reason;
  return true;
}

}  // namespace

void measure_memory_growth(Session& session, const Plan& plan) {
  // What the driver holds in the process says nothing about the contender, nor about its memory on
  // the device.
  if (session.contender.language == Language::cuda) return;
  MemoryRecord& memory = session.record.memory;
  memory.parameter = growing_parameter(plan.memory_ladder);
  if (memory.parameter.empty()) return;
  const auto begin = Clock::now();
  for (const CaseSpec& spec : plan.memory_ladder) {
    if (seconds_since(begin) > kLadderSeconds) break;
    session.log_progress(
        fmt::format("memory at {} = {}", memory.parameter, spec.parameters.at(memory.parameter)));
    const Case c = session.task.build(spec);
    session.meter.restart();  // what an earlier case left in the allocator would hide this one's
    Child* child = session.meter.child();
    if (child == nullptr) return;
    // What one call left behind is there in the next: the peak is over the whole session. What was
    // taken while loading is there in all of them.
    int64_t state = 0;
    int64_t peak = 0;
    for (const Call& call : c.calls) {
      const int64_t kept = child->held_bytes();
      const Reply reply = child->call(call, Placement::end_flush, session.random());
      if (reply.ending != Ending::ok && reply.ending != Ending::refused) return;
      state = std::max(state, reply.state_bytes);
      peak = std::max(peak, std::max<int64_t>(0, kept) + reply.peak_extra_bytes);
    }
    MemoryPoint point;
    point.n = spec.parameters.at(memory.parameter);
    point.io_bytes = io_bytes(c);
    point.extra_bytes = state + peak;
    point.least_bytes = static_cast<int64_t>(session.task.least_state_bytes(c));
    memory.ladder.push_back(point);
  }
  session.meter.restart();
  memory.exponent = fitted_exponent(memory.ladder);
}

void detect_leaks(Session& session) {
  // Any nominal case that ended well will do; a small one lets many calls into the time, and one
  // too small leaks too little to be seen.
  const CaseRecord* usable = nullptr;
  Case c;
  for (const CaseRecord& entry : session.record.cases) {
    if (entry.ending != Ending::ok || entry.spec.family != "nominal") continue;
    Case candidate = session.task.build(entry.spec);
    const auto distance = [](const Case& one) {
      return std::abs(std::log(static_cast<double>(io_bytes(one) + 1) / kLeakCaseBytes));
    };
    if (usable != nullptr && distance(candidate) >= distance(c)) continue;
    usable = &entry;
    c = std::move(candidate);
  }
  if (usable == nullptr) return;
  session.log_progress("leaks");
  session.meter.restart();
  Child* child = session.meter.child();
  if (child == nullptr) return;
  const auto begin = Clock::now();
  const auto repeat = [&](int runs) {
    for (int i = 0; i < runs; ++i) {
      // On a busy machine the time is soon over; fewer runs than these show nothing.
      const double most = i < kMinLeakCalls ? 4 * kLeakSeconds : kLeakSeconds;
      if (seconds_since(begin) > most || !child->alive()) return i;
      child->run(c, Placement::end_flush, session.random());
    }
    return runs;
  };
  repeat(kLeakCalls / 4);  // thread pools and workspaces come to stay
  const int64_t before = child->held_bytes();
  const int first = repeat(kLeakCalls / 2);
  const int64_t middle = child->held_bytes();
  const int second = repeat(kLeakCalls / 2);
  const int64_t after = child->held_bytes();
  if (second < kMinLeakCalls || !child->alive()) return;
  const double slope = static_cast<double>(after - middle) / second;
  session.record.memory.leaked_bytes_per_call = std::max(0.0, slope);
  // Both halves must grow: a workspace that grew once is no leak.
  const double earlier = static_cast<double>(middle - before) / std::max(1, first);
  if (slope >= kMinLeak && earlier >= kMinLeak && after - before >= (64 << 10)) {
    session.add_finding(
        "leak", fmt::format("holds {:.0f} bytes more after every run of {}", slope, usable->id),
        usable->id);
  }
}

void detect_caching(Session& session) {
  const std::vector<CaseSpec> timed = session.task.timed(session.random(), true);
  if (timed.empty()) return;
  const std::optional<CaseSpec> spec = busy_spec(session, timed);
  session.log_progress("answers from memory");
  for (const bool by_address : {true, false}) {
    std::string first;
    std::string second;
    // Two seeds: one could be an accident. Answers are not timed, so any case will do.
    const CaseSpec& asked = spec.has_value() ? *spec : timed.front();
    if (!answers_from_memory(session, asked, by_address, first) ||
        !answers_from_memory(session, asked, by_address, second)) {
      continue;
    }
    session.add_finding("cached_answer",
                        fmt::format("{}: {}; right in a process that never saw the old content",
                                    by_address ? "new content at an old address"
                                               : "old content with one element changed",
                                    first),
                        "");
  }
  if (spec.has_value() && repeated_share(session, *spec) < kSkippedShare) {
    session.meter.restart();
    const double share = repeated_share(session, *spec);
    if (share < kSkippedShare) {
      session.add_finding(
          "work_skipped",
          fmt::format("content that came before takes {:.0f} % of the time of new content",
                      100.0 * share),
          "");
    }
  }
}

}  // namespace touchstone::judge
