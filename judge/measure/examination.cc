#include "judge/measure/examination.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <system_error>

#include "judge/measure/session.h"
#include "judge/measure/sha256.h"
#include "judge/report/score.h"
#include "judge/sandbox/work_folder.h"
#include "machine/cpu_info.h"
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

std::string short_path(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path near = std::filesystem::relative(path, error);
  if (error || near.empty() || near.begin()->string() == "..") return path.string();
  return near.string();
}

// A path by which the contender is found again from here, short where it can be.
std::string given_path(const Contender& contender) {
  std::filesystem::path path = contender.folder;
  std::error_code error;
  const bool folder = std::filesystem::exists(path / "contender.json", error) ||
                      contender.binding.sources.size() != 1 || !contender.binding.adapter.empty();
  if (!folder) path /= contender.binding.sources.front();
  return short_path(path);
}

std::map<std::string, std::string> this_machine() {
  const machine::CpuInfo cpu = machine::cpu_info();
  return {{"cpu", cpu.model},
          {"cores", fmt::format("{}", cpu.usable_cores)},
          {"date", machine::utc_now()},
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

// Builds, unless that was done before. What is wrong with the contender's files is a contender that
// does not build, never the end of a session with others in it.
BuildResult build_or_explain(const Contender& contender, const Task& task,
                             const std::filesystem::path& work, const Sandbox& sandbox,
                             bool sanitized) {
  BuildResult failed;
  try {
    return build_contender(contender, task, work, sandbox, sanitized);
  } catch (const CorruptData& error) {
    failed.log = error.what();
  } catch (const FileError& error) {
    failed.log = error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    failed.log = fmt::format("could not be copied: {}", error.what());
  }
  return failed;
}

void examine_built(Session& session, const Plan& plan) {
  if (session.process.child() == nullptr) {
    const Reply& started = session.process.started();
    session.record.build.built = false;
    session.record.build.log =
        fmt::format("does not load: {}: {}", name_of(started.ending), started.detail);
    return;
  }
  const JudgeOptions& options = session.options;
  const auto good = [&](const CaseRecord& c) {
    return c.check.passed || !c.gates || !c.lack.empty() || may_be_lack(session, c);
  };
  const auto cases_right = [&] {
    return session.record.findings.empty() && std::ranges::all_of(session.record.cases, good);
  };
  const auto right = [&] {
    return cases_right() && std::ranges::all_of(session.record.relations, good);
  };
  const auto during = [&](const char* phase, const auto& work) {
    const PhaseClock clock(session.record, phase);
    return work();
  };
  const bool all_run = during("cases", [&] { return run_cases(session, plan); });
  if (all_run && (cases_right() || !options.brief)) {
    during("relations", [&] { run_relations(session, plan); });
  }
  settle_lacks(session);
  evaluate_probes(session);
  write_diagnosis(session);
  if (options.brief) {
    const bool failed =
        !std::ranges::all_of(session.record.cases, &CaseCheck::passed, &CaseRecord::check);
    if (!cases_right()) prove_old_answers(session);
    if (!all_run || (failed && options.one_failure)) return;
    if (cases_right()) walk_cases(session);
    if (cases_right()) detect_caching(session);
    if (right()) run_guarded(session);
    if (right()) detect_leaks(session);
    return;
  }
  if (cases_right()) during("order of calls", [&] { walk_cases(session); });
  during("precision control", [&] { check_precision_control(session); });
  if (session.process.deaths() == 0) {
    during("sanitizers", [&] { run_sanitized(session); });
    during("guarded heap", [&] { run_guarded(session); });
  }
  // What already failed is not looked at for finer faults. Where only a relation failed, its second case
  // may have got the answer of the first.
  during("answers from memory",
         [&] { cases_right() ? detect_caching(session) : prove_old_answers(session); });
  if (right()) {
    during("memory growth", [&] { measure_memory_growth(session, plan); });
    evaluate_memory_probe(session);
    during("time growth", [&] { measure_time_growth(session, plan); });
    during("leaks", [&] { detect_leaks(session); });
    during("page reads", [&] { count_page_reads(session); });
  }
  // What lies beside the code is as hostile as the code, and costs nobody a verdict.
  const auto look = [&](const char* what, const auto& at) {
    const PhaseClock clock(session.record, what);
    try {
      at();
    } catch (const Error& error) {
      session.record.facts[what] =
          fmt::format("not looked at: {}", std::string(error.what()).substr(0, 200));
    }
  };
  look("own tests", [&] { run_own_tests(session, right()); });
  look("code", [&] { collect_code_facts(session); });
  look("documentation", [&] { read_documentation(session); });
  during("witnesses", [&] { find_witnesses(session, plan); });
}

}  // namespace

uint64_t drawn_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

Record unreadable_record(const std::string& name, const std::filesystem::path& path,
                         const Task& task, const std::string& why, const JudgeOptions& options) {
  Record record;
  record.task = task.card().id;
  record.task_version = task.card().version;
  record.contender = name;
  record.path = short_path(path);
  record.weights = task.card().weights;
  record.small = options.small;
  record.machine = this_machine();
  record.sandbox = probe_sandbox(options.sandbox);
  record.build.log = "could not be read: " + why;
  apply_scores(record);
  return record;
}

Examination build_only(const Contender& contender, const Task& task, const JudgeOptions& options) {
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
        build_or_explain(contender, task, examination.work->path(), record.sandbox, false);
    record.verdict = record.build.built ? Verdict::pass : Verdict::nobuild;
  } catch (const Unsupported& missing) {
    record.untested = missing.what();
    record.verdict = Verdict::untested;
  } catch (const std::exception& error) {
    record.judge_error = error.what();
    record.verdict = Verdict::judge_error;
  }
  return examination;
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
  record.author = contender.author;
  record.path = given_path(contender);
  record.language = name_of(contender.language);
  record.binding = contender.binding;
  record.weights = task.card().weights;
  record.small = options.small;
  record.machine = this_machine();
  record.seed = options.seed.has_value() ? *options.seed : drawn_seed();
  record.seed_commitment = commitment(record.seed, task.card());
  if (options.committed) options.committed(record.seed_commitment);
  std::optional<TaskReference> own;
  TaskReference& reference = options.reference != nullptr
                                 ? *options.reference
                                 : own.emplace(task, record.seed, options.small);

  record.sandbox = probe_sandbox(options.sandbox);
  if (options.progress) {
    options.progress(fmt::format("{}: {}: building", task.card().id, contender.name));
  }
  try {
    record.source_hash = source_hash(contender);
    if (options.built != nullptr) {
      record.build = *options.built;
    } else {
      const PhaseClock clock(record, "build");
      record.build = build_or_explain(contender, task, examination.work->path(), record.sandbox,
                                      options.sanitize && !options.brief);
    }
    fill_facts(record);
    if (record.build.built) {
      Limits quick = options.limits;
      quick.measured = false;
      Session session{
          contender,
          task,
          options,
          record,
          reference,
          ContenderProcess(contender, record.build, task, record.sandbox, quick),
          ContenderProcess(contender, record.build, task, record.sandbox, options.limits),
          std::mt19937_64(record.seed ^ 0x9e3779b97f4a7c15U)};
      examine_built(session, reference.plan);
    }
  } catch (const Unsupported& missing) {
    record.untested = missing.what();  // the others can be judged all the same
  } catch (const std::exception& error) {
    record.judge_error = fmt::format("the examination broke off: {}", error.what());
  }
  record.seconds = seconds_since(begin);
  apply_scores(record);
  return examination;
}

}  // namespace touchstone::judge
