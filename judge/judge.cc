#include "judge/judge.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "judge/measure/measure.h"
#include "judge/measure/roofline.h"
#include "judge/measure/session.h"
#include "judge/report/score.h"
#include "judge/sandbox/work_folder.h"
#include "machine/cpu_info.h"

namespace touchstone::judge {
namespace {

// Nobody is timed against anybody here, and compilers leave a core idle half of the time: two at
// once. More would get into the way of the experiments that do look at a clock.
std::vector<Examination> examine_all(std::span<const Contender> contenders, const Task& task,
                                     const JudgeOptions& given) {
  std::mutex mutex;
  JudgeOptions options = given;
  // Without a seed for all of them every contender has cases of its own.
  std::optional<TaskReference> reference;
  if (given.seed.has_value() && given.reference == nullptr && !given.timing_only) {
    options.reference = &reference.emplace(task, *given.seed, given.small);
  }
  const auto guarded = [&mutex](const std::function<void(std::string_view)>& tell) {
    return [&mutex, &tell](std::string_view what) {
      const std::lock_guard lock(mutex);
      if (tell) tell(what);
    };
  };
  options.progress = guarded(given.progress);
  options.committed = guarded(given.committed);
  std::vector<Examination> examined(contenders.size());
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < contenders.size();) {
      try {
        examined[i] = options.timing_only ? build_only(contenders[i], task, options)
                                          : examine(contenders[i], task, options);
        const std::lock_guard lock(mutex);
        if (given.examined) given.examined(examined[i].record);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = contenders.size();
      }
    }
  };
  {
    const bool alone = machine::usable_cpus().size() < 2 || contenders.size() < 2;
    const std::jthread other = alone ? std::jthread() : std::jthread(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return examined;
}

}  // namespace

std::vector<Record> judge_all(std::span<const Contender> contenders, const Task& task,
                              const JudgeOptions& options, std::span<const Contender> peers) {
  std::vector<Examination> examined = examine_all(contenders, task, options);
  const bool timed = options.speed && std::ranges::any_of(examined, [&](const Examination& e) {
                       return can_be_timed(e.record, task, options);
                     });
  std::vector<Examination> others;
  for (const Contender& peer : peers) {
    if (!timed) break;  // nobody to compare with
    Examination other = build_only(peer, task, options);
    if (other.record.build.built) others.push_back(std::move(other));
  }
  if (timed) {
    const auto begin = Clock::now();
    measure_speeds(task, examined, others, options);
    for (Examination& e : examined) e.record.phase_seconds["timing, all"] = seconds_since(begin);
  }
  std::vector<Record> records;
  for (Examination& examination : examined) {
    apply_scores(examination.record);
    records.push_back(std::move(examination.record));
  }
  return records;
}

Record judge(const Contender& contender, const Task& task, const JudgeOptions& options) {
  return judge_all({&contender, 1}, task, options).front();
}

namespace {

// Builds the contender and calls `ask`, unless it does not build.
Replay replay_built(const Contender& contender, const Task& task, const JudgeOptions& options,
                    const std::function<void(ContenderProcess&, Replay&)>& ask) {
  Replay result;
  const WorkFolder work;
  const Sandbox sandbox = probe_sandbox(options.sandbox);
  const BuildResult build = build_contender(contender, task, work.path(), sandbox, false);
  if (!build.built) {
    result.build_log = build.log.empty() ? "does not build" : build.log;
    return result;
  }
  ContenderProcess process(contender, build, task, sandbox, options.limits);
  ask(process, result);
  return result;
}

}  // namespace

Replay replay(const Contender& contender, const Task& task, const CaseSpec& spec,
              const JudgeOptions& options) {
  const Case asked = task.build(spec);
  return replay_built(contender, task, options, [&](ContenderProcess& process, Replay& result) {
    result.asked = asked;
    for (const Placement placement : {Placement::end_flush, Placement::start_flush}) {
      result.check = process.check(asked, placement, spec.seed, &result.replies);
      if (!result.check.passed) break;
    }
  });
}

Replay replay(const Contender& contender, const Task& task, const Relation& relation,
              const JudgeOptions& options) {
  task.probes_of(relation);  // InvalidArgument: the task has no such relation
  task.build(relation.first);
  const Case second = task.build(relation.second);
  return replay_built(contender, task, options, [&](ContenderProcess& process, Replay& result) {
    RelationRun run = run_relation(process, task, relation, relation.first.seed);
    result.asked = second;
    result.replies = std::move(run.second_replies);
    result.check = std::move(run.check);
  });
}

}  // namespace touchstone::judge
