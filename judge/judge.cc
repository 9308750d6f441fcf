#include "judge/judge.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>

#include "bench/machine.h"
#include "fmt/format.h"
#include "judge/examine.h"
#include "judge/measure.h"
#include "judge/roof.h"
#include "judge/score.h"
#include "judge/sha256.h"
#include "touchstone/core/error.h"
#include "touchstone/version.h"

namespace touchstone::judge {
namespace {

// What is committed to names the task as well, so that one seed cannot stand for another's.
std::string commitment(uint64_t seed, const TaskCard& card) {
  return sha256(fmt::format("touchstone:{}:{}:{}", card.id, card.version, seed));
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// All that the contender is made of, in a fixed order.
std::string source_hash(const Contender& contender) {
  std::vector<std::filesystem::path> files = contender.binding.sources;
  if (!contender.binding.adapter.empty()) files.push_back(contender.binding.adapter);
  std::ranges::sort(files);
  std::string all;
  for (const auto& file : files) {
    const std::string text = file_text(contender.folder / file);
    all += fmt::format("{}\n{}\n{}\n", file.string(), text.size(), text);
  }
  return sha256(all);
}

// A path by which the contender is found again from here, short where it can be.
std::string given_path(const Contender& contender) {
  std::filesystem::path path = contender.folder;
  const bool folder = std::filesystem::exists(path / "contender.json") ||
                      contender.binding.sources.size() != 1 || !contender.binding.adapter.empty();
  if (!folder) path /= contender.binding.sources.front();
  std::error_code error;
  const std::filesystem::path near = std::filesystem::relative(path, error);
  if (error || near.empty() || near.begin()->string() == "..") return path.string();
  return near.string();
}

std::map<std::string, std::string> this_machine() {
  const bench::CpuInfo cpu = bench::cpu_info();
  return {{"cpu", cpu.model},
          {"cores", fmt::format("{}", cpu.usable_cores)},
          {"date", bench::utc_now()},
          {"touchstone", std::string(version())}};
}

void fill_facts(Record& record) {
  const BuildResult& build = record.build;
  if (build.source_lines > 0) record.facts["lines"] = fmt::format("{}", build.source_lines);
  if (build.code_bytes > 0) record.facts["code bytes"] = fmt::format("{}", build.code_bytes);
  if (record.language != "numpy" && record.language != "shared_library") {
    record.facts["warnings"] = fmt::format("{}", build.warnings);
    record.facts["build seconds"] = fmt::format("{:.1f}", build.seconds);
  }
}

// Enough to be timed. That the timed answers are right is checked there.
Examination only_built(const Contender& contender, const Task& task, const JudgeOptions& options) {
  Examination examination;
  examination.contender = contender;
  examination.work = std::make_shared<WorkFolder>();
  Record& record = examination.record;
  record.task = task.card().id;
  record.contender = contender.name;
  record.language = name_of(contender.language);
  record.machine = this_machine();
  record.weights = task.card().weights;
  record.sandbox = probe_sandbox(options.sandbox);
  try {
    record.build =
        build_contender(contender, task, examination.work->path(), record.sandbox, false);
    record.verdict = record.build.built ? Verdict::pass : Verdict::nobuild;
  } catch (const Unsupported& missing) {
    record.untested = missing.what();
    record.verdict = Verdict::untested;
  }
  return examination;
}

void examine_built(Session& session, const Plan& plan) {
  if (session.stage.child() == nullptr) {
    const Reply& started = session.stage.started();
    session.record.build.built = false;
    session.record.build.log =
        fmt::format("does not load: {}: {}", name_of(started.ending), started.detail);
    return;
  }
  const JudgeOptions& options = session.options;
  const auto right = [&] {
    const auto good = [](const CaseRecord& c) { return c.check.passed || !c.gates; };
    return session.record.findings.empty() && std::ranges::all_of(session.record.cases, good) &&
           std::ranges::all_of(session.record.relations, good);
  };
  const bool all_run = run_cases(session, plan);
  if (all_run && (right() || !options.brief)) run_relations(session, plan);
  settle_probes(session);
  if (options.brief) {
    if (!all_run) return;
    if (right()) look_for_caches(session);
    if (right()) look_for_leaks(session);
    return;
  }
  control_precision(session, plan);
  if (session.stage.deaths() == 0) run_sanitized(session, plan);
  // What already failed is not looked at for finer faults.
  if (right()) {
    look_for_caches(session);
    climb_memory(session, plan);
    settle_memory_probe(session);
    look_for_leaks(session);
    look_for_dead_code(session);
    run_own_tests(session);
  }
  find_witnesses(session, plan);
}

}  // namespace

uint64_t drawn_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

WorkFolder::WorkFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "touchstone-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw FileError(fmt::format("{}: {}", pattern, std::generic_category().message(errno)));
  }
  path_ = pattern;
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string judge_command(std::string_view path, std::string_view task) {
  // Single quotes keep a shell from reading anything into either.
  const auto quoted = [](std::string_view text) {
    const bool plain = text.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789_./-") == std::string_view::npos;
    if (plain && !text.empty()) return std::string(text);
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
  };
  return fmt::format("touchstone judge {} --task {}", quoted(path), task);
}

std::string replay_command(std::string_view path, std::string_view task, const CaseSpec& spec) {
  return fmt::format("{} --replay '{}'", judge_command(path, task), format_spec(spec));
}

std::string replay_command(std::string_view path, std::string_view task, const Relation& relation) {
  return fmt::format("{} --replay '{}'", judge_command(path, task), format_relation(relation));
}

Examination examine(const Contender& contender, const Task& task, const JudgeOptions& options) {
  const auto begin = Clock::now();
  Examination examination;
  examination.contender = contender;
  examination.work = std::make_shared<WorkFolder>();
  Record& record = examination.record;
  record.task = task.card().id;
  record.task_version = task.card().version;
  record.contender = contender.name;
  record.path = given_path(contender);
  record.language = name_of(contender.language);
  record.binding = contender.binding;
  record.weights = task.card().weights;
  record.small = options.small;
  record.machine = this_machine();
  record.seed = options.seed.has_value() ? *options.seed : drawn_seed();
  record.seed_commitment = commitment(record.seed, task.card());
  if (options.committed) options.committed(record.seed_commitment);
  const Plan plan = task.plan(record.seed, options.small);

  record.source_hash = source_hash(contender);
  record.sandbox = probe_sandbox(options.sandbox);
  if (options.progress) {
    options.progress(fmt::format("{}: {}: building", task.card().id, contender.name));
  }
  try {
    record.build = options.built != nullptr
                       ? *options.built
                       : build_contender(contender, task, examination.work->path(), record.sandbox,
                                         options.sanitize && !options.brief);
    fill_facts(record);
    if (record.build.built) {
      Limits quick = options.limits;
      quick.measured = false;
      Session session{contender,
                      task,
                      options,
                      record,
                      Stage(contender, record.build, task, record.sandbox, quick),
                      Stage(contender, record.build, task, record.sandbox, options.limits),
                      std::mt19937_64(record.seed ^ 0x9e3779b97f4a7c15U)};
      examine_built(session, plan);
    }
  } catch (const Unsupported& missing) {
    record.untested = missing.what();  // the others can be judged all the same
  }
  record.seconds = seconds_since(begin);
  apply_scores(record);
  return examination;
}

namespace {

// Nobody is timed against anybody here, and compilers leave a core idle half of the time: two at
// once. More would get into the way of the experiments that do look at a clock.
std::vector<Examination> examine_all(std::span<const Contender> contenders, const Task& task,
                                     const JudgeOptions& given) {
  std::mutex mutex;
  JudgeOptions options = given;
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
        examined[i] = options.timing_only ? only_built(contenders[i], task, options)
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
    const bool alone = usable_cpus().size() < 2 || contenders.size() < 2;
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
  const bool timed = options.speed && std::ranges::any_of(examined, [](const Examination& e) {
                       return e.record.verdict == Verdict::pass;
                     });
  std::vector<Examination> others;
  for (const Contender& peer : peers) {
    if (!timed) break;  // nobody to compare with
    Examination other = only_built(peer, task, options);
    if (other.record.build.built) others.push_back(std::move(other));
  }
  if (timed) measure_speeds(task, examined, others, options);
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

// Builds the contender and lets `ask` put its question; nothing is asked where it does not build.
Replay replay_built(const Contender& contender, const Task& task, const JudgeOptions& options,
                    const std::function<void(Stage&, Replay&)>& ask) {
  Replay result;
  const WorkFolder work;
  const Sandbox sandbox = probe_sandbox(options.sandbox);
  const BuildResult build = build_contender(contender, task, work.path(), sandbox, false);
  if (!build.built) {
    result.build_log = build.log.empty() ? "does not build" : build.log;
    return result;
  }
  Stage stage(contender, build, task, sandbox, options.limits);
  ask(stage, result);
  return result;
}

}  // namespace

Replay replay(const Contender& contender, const Task& task, const CaseSpec& spec,
              const JudgeOptions& options) {
  const Case asked = task.build(spec);
  return replay_built(contender, task, options, [&](Stage& stage, Replay& result) {
    result.asked = asked;
    for (const Placement placement : {Placement::end_flush, Placement::start_flush}) {
      result.check = stage.check(asked, placement, spec.seed, &result.replies);
      if (!result.check.passed) break;
    }
  });
}

Replay replay(const Contender& contender, const Task& task, const Relation& relation,
              const JudgeOptions& options) {
  task.probes_of(relation);  // InvalidArgument: the task has no such relation
  task.build(relation.first);
  const Case second = task.build(relation.second);
  return replay_built(contender, task, options, [&](Stage& stage, Replay& result) {
    RelationRun run = run_relation(stage, task, relation, relation.first.seed);
    result.asked = second;
    result.replies = std::move(run.second_replies);
    result.check = std::move(run.check);
  });
}

}  // namespace touchstone::judge
