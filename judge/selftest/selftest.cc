#include "judge/selftest/selftest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "judge/contender/child_spec.h"
#include "judge/judge.h"
#include "judge/run/contender_process.h"
#include "judge/sandbox/read_file.h"
#include "judge/sandbox/work_folder.h"
#include "judge/selftest/selftest_log.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;
// Contenders of the corpus are small: what takes more is meant to.
Limits corpus_limits() {
  Limits limits;
  limits.memory_bytes = int64_t{1} << 30;
  return limits;
}

Language language_of(const fs::path& source) {
  const fs::path extension = source.extension();
  if (extension == ".cu") return Language::cuda;
  return extension == ".py" ? Language::numpy : extension == ".c" ? Language::c : Language::cpp;
}

// "a,b" of the flag "lacks=a,b".
std::vector<std::string> names_in(const CorpusEntry& entry, const std::string& flag) {
  std::vector<std::string> names;
  const auto found = entry.flags.find(flag);
  if (found == entry.flags.end()) return names;
  std::istringstream list(found->second);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);
  return names;
}

// One of many contenders in a source: its functions are those of the task with __name behind.
Contender shared_contender(const CorpusEntry& entry, const Task& task) {
  constexpr int64_t kMaxSource = 16 << 20;
  const std::string text = read_file(entry.source, kMaxSource);
  Contender contender;
  contender.name = entry.name;
  contender.folder = entry.source.parent_path();
  contender.language = language_of(entry.source);
  contender.binding.sources = {entry.source.filename()};
  contender.binding.lacks = names_in(entry, "declares");
  for (const Function& function : task.card().functions) {
    // Optional functions need not be there. C writes the name as __##name, Python as __{name}.
    if (text.find(function.name + "__##") == std::string::npos &&
        text.find(function.name + "__{") == std::string::npos) {
      continue;
    }
    contender.binding.functions[function.name] = fmt::format("{}__{}", function.name, entry.name);
  }
  return contender;
}

// Builds every source once, whoever asks first.
class Workshop {
 public:
  explicit Workshop(const Sandbox& sandbox) : sandbox_(sandbox) {}

  const BuildResult& build(const Contender& contender, const CorpusEntry& entry, const Task& task) {
    Bench& bench = find(entry.source);
    std::call_once(bench.once, [&] {
      bench.result = build_contender(contender, task, bench.folder.path(), sandbox_, false);
    });
    return bench.result;
  }

 private:
  struct Bench {
    std::once_flag once;
    WorkFolder folder;
    BuildResult result;
  };
  Bench& find(const fs::path& source) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Bench>& bench = benches_[source];
    if (bench == nullptr) bench = std::make_unique<Bench>();
    return *bench;
  }

  const Sandbox& sandbox_;
  std::mutex mutex_;
  std::map<fs::path, std::unique_ptr<Bench>> benches_;
};

// Which probes a record passes. Judged by these, a mutant that only loses digits, or only an
// optional part, is caught all the same.
std::set<std::string> passed_probes(const Record& record) {
  std::set<std::string> ids;
  for (const ProbeRecord& probe : record.probes) {
    if (probe.tested && probe.passed) ids.insert(probe.probe.id);
  }
  return ids;
}

std::string failed_probe(const Record& record, const std::set<std::string>& expected) {
  for (const ProbeRecord& probe : record.probes) {
    if (probe.tested && !probe.passed && expected.contains(probe.probe.id)) return probe.probe.id;
  }
  return {};
}

// The short form is part of every test run: of what passes, and so costs a whole examination, some
// of each kind; of mutants whose children are slow to start (NumPy) or whose cases take long, some.
bool in_short_form(const CorpusEntry& entry) {
  constexpr std::array<std::string_view, 9> kPassing = {"plain_float",
                                                        "numpy_wide",
                                                        "shape_cache",
                                                        "thread_pool",
                                                        "copy_of_gamma",
                                                        "C4_patches_clock",
                                                        "C15_works_before_ready",
                                                        "no_mask",
                                                        "no_dgamma"};
  const bool passes =
      entry.kind == CorpusKind::good || entry.kind == CorpusKind::lookalike || !entry.flags.empty();
  if (entry.on_cuda()) return false;
  if (entry.flags.contains("needs")) return !entry.flags.contains("twice");
  if (passes) return std::ranges::find(kPassing, entry.name) != kPassing.end();
  const bool attention = entry.task.starts_with("flash_attention");
  const bool long_cases = entry.task == "kv_cache" || entry.task == "tree_verify" ||
                          entry.task == "ternary_linear" || attention;
  if (entry.kind != CorpusKind::mutant) return !long_cases || entry.kind == CorpusKind::trivial;
  if (entry.source.extension() == ".py") return !attention && entry.name.size() % 4 == 0;
  return !long_cases || entry.name.size() % 5 == 0;
}

std::string row_id(const CorpusEntry& entry) {
  return fmt::format("{}/{}/{}", entry.task, name_of(entry.kind), entry.name);
}

class Runner {
 public:
  Runner(const SelfTestOptions& options, SelfTest& result)
      : options_(options), result_(result), workshop_(result.sandbox) {
    if (!options.log.empty()) log_ = SelfTestLog(options.log, result.seed, options.small);
  }

  void run_all() {
    // First the code that mutants are made from: what it passes is what mutants are held to.
    run_some([](const CorpusEntry& e) { return e.shared_source && e.kind == CorpusKind::good; });
    run_some([](const CorpusEntry& e) { return !e.shared_source || e.kind != CorpusKind::good; });
  }

 private:
  template <class Which>
  void run_some(Which which) {
    std::atomic<size_t> next = 0;
    const auto work = [&] {
      for (size_t i; (i = next++) < result_.rows.size();) {
        if (which(result_.rows[i].entry)) run_row(result_.rows[i]);
      }
    };
    std::vector<std::jthread> others;
    for (int job = 1; job < jobs(); ++job) others.emplace_back(work);
    work();
  }

  int jobs() const {
    if (options_.jobs > 0) return options_.jobs;
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  }

  void run_row(SelfTestRow& row) {
    const CorpusEntry& entry = row.entry;
    const std::string id = row_id(entry);
    const auto begin = Clock::now();
    if (log_.restore(id, row)) {
      keep_reference(row);
      return;
    }
    if (options_.progress) {
      const std::lock_guard lock(mutex_);
      options_.progress(id);
    }
    if (const std::string missing = missing_wall(entry); !missing.empty()) {
      row.counted = false;
      row.because = fmt::format("not counted: no {} on this machine", missing);
      return;
    }
    try {
      judge_row(row);
      if (row.verdict == Verdict::untested) row.counted = false;
    } catch (const Unsupported& missing) {
      row.counted = false;
      row.because = fmt::format("not counted: {}", missing.what());
    } catch (const Error& error) {
      row.verdict = Verdict::judge_error;
      row.because = error.what();
    }
    row.seconds = seconds_since(begin);
    keep_reference(row);
    const std::lock_guard lock(mutex_);
    log_.add(id, row);
  }

  // What the right code passes, mutants are held to.
  void keep_reference(const SelfTestRow& row) {
    if (row.entry.kind != CorpusKind::good || !row.entry.shared_source) return;
    const std::lock_guard lock(mutex_);
    expected_probes_[row.entry.device_task()] = row.passed_probes;
    expected_cases_[row.entry.device_task()] = row.passed_cases;
  }

  std::string missing_wall(const CorpusEntry& entry) const {
    // Compiled in tests of their own; there is nothing to run them on.
    if (entry.on_cuda() && gpu_nodes().empty()) return "GPU";
    const auto needs = entry.flags.find("needs");
    if (needs == entry.flags.end()) return {};
    const Sandbox& s = result_.sandbox;
    const bool there = needs->second == "namespaces" ? s.namespaces && s.files
                       : needs->second == "seccomp"  ? s.seccomp
                       : needs->second == "user"     ? s.user
                                                     : s.limits;
    return there ? std::string() : needs->second;
  }

  Record examine_once(const Contender& contender, const CorpusEntry& entry, const Task& task,
                      const BuildResult& built) {
    JudgeOptions options;
    options.small = options_.small;
    options.sandbox = options_.sandbox;
    options.seed = result_.seed;
    options.shrink = false;
    options.sanitize = false;
    options.brief = !entry.flags.contains("memory") && !entry.flags.contains("held");
    options.one_failure = entry.kind == CorpusKind::mutant;
    options.built = &built;
    options.reference = &reference_of(task);
    options.limits = corpus_limits();
    // Hanging is what some exploits do; a busy machine must not make anyone else look as if.
    if (entry.kind == CorpusKind::exploit) options.limits.call_seconds = 3.0;
    return examine(contender, task, options).record;
  }

  // Everybody of a task has the same cases.
  TaskReference& reference_of(const Task& task) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<TaskReference>& reference = references_[task.card().id];
    if (reference == nullptr) {
      reference = std::make_unique<TaskReference>(task, result_.seed, options_.small);
    }
    return *reference;
  }

  void judge_row(SelfTestRow& row) {
    const CorpusEntry& entry = row.entry;
    const Task& task = find_task(entry.task);
    const Contender contender =
        entry.shared_source ? shared_contender(entry, task) : read_contender(entry.source, task);
    const BuildResult& built = workshop_.build(contender, entry, task);
    Record record = examine_once(contender, entry, task, built);
    if (entry.flags.contains("twice")) record = examine_once(contender, entry, task, built);
    row.verdict = record.verdict;
    row.because = record.verdict_because;
    switch (entry.kind) {
      case CorpusKind::good:
        judge_good(row, record);
        break;
      case CorpusKind::partial:
        judge_partial(row, record);
        break;
      case CorpusKind::mutant:
        judge_mutant(row, record);
        break;
      case CorpusKind::trivial:
        row.as_expected = rejected(row, record) && record.verdict != Verdict::partial;
        break;
      case CorpusKind::exploit:
        judge_exploit(row, record, contender, task, built);
        break;
      case CorpusKind::lookalike:
        judge_lookalike(row, record);
        break;
    }
  }

  // A verdict that says something against the contender. What does not build was never tried: only
  // an entry that says so of itself may end like that.
  static bool rejected(const SelfTestRow& row, const Record& record) {
    if (record.verdict == Verdict::nobuild) return row.entry.flags.contains("nobuild");
    return record.verdict != Verdict::pass && record.verdict != Verdict::judge_error &&
           record.verdict != Verdict::untested;
  }

  static void judge_good(SelfTestRow& row, const Record& record) {
    row.as_expected = record.verdict == Verdict::pass;
    if (!row.entry.shared_source) return;
    row.passed_probes = passed_probes(record);
    for (const CaseRecord& c : record.cases) {
      if (c.check.passed) row.passed_cases.insert(c.id);
    }
  }

  // What is missing, no more and no less.
  static void judge_partial(SelfTestRow& row, const Record& record) {
    std::set<std::string> found;
    for (const LackRecord& lack : record.lacks) found.insert(lack.id);
    const std::vector<std::string> lacks = names_in(row.entry, "lacks");
    row.as_expected = record.verdict == Verdict::partial &&
                      found == std::set<std::string>(lacks.begin(), lacks.end());
    if (!row.as_expected) return;
    // And it costs its own probes only.
    for (const Feature& feature : find_task(record.task).card().lacks) {
      if (found.contains(feature.id)) found.insert(feature.probe);
    }
    for (const ProbeRecord& p : record.probes) {
      const bool counts = p.probe.dimension == "completeness" || p.probe.dimension == "robustness";
      if (!p.tested || p.passed || p.probe.optional || !counts) continue;
      if (found.contains(p.probe.id)) continue;
      row.as_expected = false;
      row.because =
          fmt::format("loses the probe {} ({}) as well", p.probe.id, fmt::join(p.failed, ", "));
    }
  }

  void judge_mutant(SelfTestRow& row, const Record& record) {
    row.as_expected = rejected(row, record);
    if (record.verdict != Verdict::pass) return;
    if (row.entry.flags.contains("memory")) {
      judge_memory(row, record);
      return;
    }
    const std::lock_guard lock(mutex_);
    const std::string probe = failed_probe(record, expected_probes_[row.entry.device_task()]);
    row.as_expected = !probe.empty();
    if (!probe.empty()) row.because = fmt::format("loses the probe {}", probe);
    if (row.as_expected) return;
    // A failure that costs points, in a case that is not one of the plain ones.
    const std::set<std::string>& expected = expected_cases_[row.entry.device_task()];
    for (const CaseRecord& c : record.cases) {
      if (c.check.passed || !expected.contains(c.id)) continue;
      row.as_expected = true;
      row.because = fmt::format("fails {}: {}", c.id, c.check.reason);
      return;
    }
  }

  static void judge_lookalike(SelfTestRow& row, const Record& record) {
    row.as_expected = record.verdict == Verdict::pass && record.findings.empty();
    if (!record.findings.empty()) row.because = record.findings.front().text;
  }

  void judge_exploit(SelfTestRow& row, const Record& record, const Contender& contender,
                     const Task& task, const BuildResult& built) {
    const auto& flags = row.entry.flags;
    // Right in all it does: nothing was said against it.
    row.as_expected = rejected(row, record) && record.verdict != Verdict::partial;
    if (flags.contains("says")) {
      row.as_expected = record.verdict_because.find(flags.at("says")) != std::string::npos;
      return;
    }
    if (record.verdict != Verdict::pass) return;
    if (flags.contains("harmless")) row.as_expected = true;
    if (flags.contains("leak") || flags.contains("memory")) {
      judge_memory(row, record);
    } else if (flags.contains("held")) {
      judge_held(row, record);
    } else if (flags.contains("probe")) {
      const std::string probe = failed_probe(record, {flags.at("probe")});
      row.as_expected = !probe.empty();
      if (!probe.empty()) row.because = fmt::format("loses the probe {}", probe);
    } else if (flags.contains("slow")) {
      const double planted = std::strtod(flags.at("slow").c_str(), nullptr);
      const double seen = charged_per_call(contender, task, built);
      row.as_expected = seen >= planted;
      row.because = fmt::format("the judge's clock says {:.1f} ms", 1e3 * seen);
    } else if (flags.contains("timed")) {
      judge_timed(row, contender, task, built);
    }
  }

  // Right, but the record must say that its memory is out of bounds.
  static void judge_memory(SelfTestRow& row, const Record& record) {
    const auto leak = std::ranges::find(record.findings, "leak", &Finding::kind);
    if (row.entry.flags.contains("leak")) {
      row.as_expected = leak != record.findings.end();
      if (row.as_expected) row.because = leak->text;
      return;
    }
    const double exponent = record.memory.exponent.value_or(0.0);
    row.as_expected = exponent > 1.5;
    row.because = fmt::format("memory grows with exponent {:.2f}", exponent);
  }

  // Right, but the record must say how much it holds.
  static void judge_held(SelfTestRow& row, const Record& record) {
    const auto planted =
        static_cast<int64_t>(std::strtoll(row.entry.flags.at("held").c_str(), nullptr, 10));
    const auto& ladder = record.memory.ladder;
    row.as_expected = !ladder.empty() && std::ranges::all_of(ladder, [&](const MemoryPoint& point) {
      return point.extra_bytes >= planted - planted / 8;
    });
    row.because = fmt::format("holds {} bytes", ladder.empty() ? 0 : ladder.back().extra_bytes);
  }

  // The mean over many calls, because what a call leaves behind may be charged to the next one. The two
  // longest are left out: on a busy machine they may be nobody's.
  double charged_per_call(const Contender& contender, const Task& task, const BuildResult& built) {
    const Limits limits = corpus_limits();
    const auto child = Child::start(contender, built, task, result_.sandbox, limits);
    const Case c = task.build(task.plan(result_.seed, true).cases.front());
    std::vector<double> seconds;
    for (uint64_t i = 0; seconds.size() < 20; ++i) {
      for (const Reply& reply : child->run(c, Placement::end_flush, i)) {
        if (reply.ending != Ending::ok) return 0.0;
        seconds.push_back(reply.seconds);
      }
    }
    std::ranges::sort(seconds);
    seconds.resize(seconds.size() - 2);
    return std::accumulate(seconds.begin(), seconds.end(), 0.0) /
           static_cast<double>(seconds.size());
  }

  // The shapes that speed is measured on; every answer there is checked as well.
  void judge_timed(SelfTestRow& row, const Contender& contender, const Task& task,
                   const BuildResult& built) {
    Limits quick = corpus_limits();
    quick.measured = false;
    const auto child = Child::start(contender, built, task, result_.sandbox, quick);
    for (const CaseSpec& spec : task.timed(result_.seed, false)) {
      const Case c = task.build(spec);
      const CaseCheck check = task.check(c, child->run(c, Placement::end_flush, spec.seed));
      if (check.passed) continue;
      row.as_expected = true;
      row.because = fmt::format("where speed is measured: {}", check.reason);
      return;
    }
  }

  const SelfTestOptions& options_;
  SelfTest& result_;
  Workshop workshop_;
  SelfTestLog log_;
  std::map<std::string, std::unique_ptr<TaskReference>> references_;  // by task
  std::mutex mutex_;
  std::map<std::string, std::set<std::string>> expected_probes_;  // of the right code, by task
  std::map<std::string, std::set<std::string>> expected_cases_;   // the same seed: the same cases
};

}  // namespace

int SelfTest::counted(CorpusKind kind, std::string_view task) const {
  return static_cast<int>(std::ranges::count_if(rows, [&](const SelfTestRow& row) {
    return row.counted && row.entry.kind == kind && (task.empty() || row.entry.task == task);
  }));
}

int SelfTest::as_expected(CorpusKind kind, std::string_view task) const {
  return static_cast<int>(std::ranges::count_if(rows, [&](const SelfTestRow& row) {
    return row.counted && row.as_expected && row.entry.kind == kind &&
           (task.empty() || row.entry.task == task);
  }));
}

bool SelfTest::judged() const { return std::ranges::any_of(rows, &SelfTestRow::counted); }

bool SelfTest::passed() const {
  if (!judged()) return false;
  for (const CorpusKind kind : {CorpusKind::good, CorpusKind::partial, CorpusKind::trivial,
                                CorpusKind::exploit, CorpusKind::lookalike}) {
    if (as_expected(kind) != counted(kind)) return false;
  }
  return as_expected(CorpusKind::mutant) >= kMinCaught * counted(CorpusKind::mutant);
}

namespace {

// The same entries for every seed, spread over all of them, and the right code of every task.
void keep_sample(std::vector<CorpusEntry>& entries, size_t count) {
  if (entries.size() <= count) return;
  std::vector<CorpusEntry> kept;
  const size_t all = entries.size();
  for (size_t i = 0; i < all; ++i) {
    const bool drawn = (i + 1) * count / all != i * count / all;
    const bool reference = entries[i].kind == CorpusKind::good && entries[i].shared_source;
    if (drawn || reference) kept.push_back(std::move(entries[i]));
  }
  entries = std::move(kept);
}

}  // namespace

namespace {

// Whether an id has one of the parts in it that a list "a,b" names, or there is none; and no part that
// the list names behind an exclamation mark.
bool is_named(const std::string& id, const std::string& list) {
  std::istringstream parts(list);
  bool any = false;
  bool named = false;
  for (std::string part; std::getline(parts, part, ',');) {
    const bool excluded = part.starts_with('!');
    if (excluded) part.erase(0, 1);
    if (part.empty()) continue;
    const bool found = id.find(part) != std::string::npos;
    if (excluded && found) return false;
    any = any || !excluded;
    named = named || (found && !excluded);
  }
  return named || !any;
}

}  // namespace

SelfTest run_selftest(const SelfTestOptions& options) {
  const auto begin = Clock::now();
  SelfTest result;
  if (!options.log.empty() && !options.seed.has_value()) {
    throw InvalidArgument("selftest: a log needs a seed: with another one its rows are none of it");
  }
  result.seed = options.seed.value_or(drawn_seed());
  result.sandbox = probe_sandbox(options.sandbox);
  const fs::path corpus = options.corpus.empty() ? fs::path(TOUCHSTONE_CORPUS) : options.corpus;
  std::vector<CorpusEntry> entries = read_corpus(corpus);
  if (options.sample > 0) keep_sample(entries, static_cast<size_t>(options.sample));
  const auto is_wanted = [&](const CorpusEntry& entry) {
    if (options.only.empty()) return !options.small || in_short_form(entry);
    return is_named(row_id(entry), options.only);
  };
  // Mutants are held to the probes of the right code, so where there are any that is there too.
  std::set<std::string> compared;
  for (const CorpusEntry& entry : entries) {
    if (entry.kind == CorpusKind::mutant && is_wanted(entry)) compared.insert(entry.device_task());
  }
  for (CorpusEntry& entry : entries) {
    const bool wanted = is_wanted(entry);
    const bool reference = entry.kind == CorpusKind::good && entry.shared_source &&
                           compared.contains(entry.device_task());
    if (!wanted && !reference) continue;
    SelfTestRow row;
    row.entry = std::move(entry);
    result.rows.push_back(std::move(row));
  }
  const bool nothing = std::ranges::none_of(result.rows, [&](const SelfTestRow& row) {
    return is_named(row_id(row.entry), options.only);
  });
  if (nothing) {
    throw InvalidArgument(
        fmt::format("selftest: --only: nothing in {} is called '{}'; expected a part of "
                    "task/kind/name, or several with commas",
                    corpus.string(), options.only));
  }
  Runner(options, result).run_all();
  result.seconds = seconds_since(begin);
  return result;
}

}  // namespace touchstone::judge
