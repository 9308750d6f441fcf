// touchstone judge: is an implementation of a task right, and how good is it?
#include "judge/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/judge_paths.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/verbs.h"
#include "judge/report/board.h"
#include "judge/report/duel.h"
#include "judge/report/html/html_report.h"
#include "judge/report/markdown.h"
#include "judge/report/score.h"
#include "judge/report/text_format.h"
#include "judge/sandbox/read_file.h"
#include "judge/selftest/selftest.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

struct JudgeVerbOptions {
  std::vector<std::string> paths;
  std::string task;
  std::string device;
  std::string json;
  std::string html;
  std::string md;
  int seeds = 1;
  std::string from;
  std::string replay;
  std::string seed;
  bool list = false;
  bool small = false;
  bool no_sandbox = false;
  bool no_speed = false;
  bool alone = false;
  bool selftest = false;
  std::string corpus;
  std::string only;
  bool timing_only = false;
  bool allow_partial = false;
  std::string call_seconds;
  int sample = 0;
  int jobs = 0;
  std::string log;
};

// Of the records of thousands of contenders, and no more.
constexpr std::int64_t kMaxRecords = std::int64_t{1} << 30;
constexpr int kMaxSeeds = 100;

std::optional<std::uint64_t> parse_seed(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InvalidArgument(
        fmt::format("judge: --seed: expected a whole number from 0 to {}, got '{}'",
                    std::numeric_limits<std::uint64_t>::max(), text));
  }
  return seed;
}

double parse_seconds(const std::string& text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(seconds >= 0.01 && seconds <= 3600)) {
    throw InvalidArgument(
        fmt::format("judge: --call-seconds: expected 0.01 to 3600, got '{}'", text));
  }
  return seconds;
}

std::vector<judge::Record> read_records(const std::string& path) {
  std::vector<judge::Record> records;
  try {
    records = judge::records_from_json(judge::read_file(path, kMaxRecords));
  } catch (const CorruptData& error) {
    throw CorruptData(fmt::format("{}: {}", path, error.what()));
  }
  if (records.empty()) throw CorruptData(fmt::format("{}: no records in it", path));
  for (judge::Record& record : records) judge::apply_scores(record);
  return records;
}

// What does not go together is said, not passed over.
void check_together(const JudgeVerbOptions& options) {
  struct Way {
    const char* name;
    bool asked;
    bool takes_paths;
  };
  const Way ways[] = {{"--list", options.list, false},
                      {"--selftest", options.selftest, false},
                      {"--from", !options.from.empty(), false},
                      {"--replay", !options.replay.empty(), true}};
  const Way* chosen = nullptr;
  for (const Way& way : ways) {
    if (!way.asked) continue;
    if (chosen != nullptr) {
      throw InvalidArgument(
          fmt::format("judge: {} and {} do not go together", chosen->name, way.name));
    }
    chosen = &way;
  }
  if (chosen != nullptr && !chosen->takes_paths && !options.paths.empty()) {
    throw InvalidArgument(
        fmt::format("judge: {} takes no path, got {}", chosen->name, options.paths.front()));
  }
}

bool uses_colors() { return colored("x", Color::good) != "x"; }

int list_tasks() {
  Table table({"task", ">version", "devices", ">functions", ">probes", "title"});
  for (const auto& task : judge::tasks()) {
    const judge::TaskCard& card = task->card();
    table.add({card.id, fmt::format("{}", card.version),
               fmt::format("{}", fmt::join(card.devices, " ")),
               fmt::format("{}", card.functions.size()), fmt::format("{}", card.probes.size()),
               card.title});
  }
  print(table.text());
  return kOk;
}

judge::JudgeOptions judge_options(const JudgeVerbOptions& options, Progress& progress) {
  judge::JudgeOptions result;
  result.small = options.small;
  result.sandbox = !options.no_sandbox;
  result.seed = parse_seed(options.seed);
  result.speed = !options.no_speed;
  result.timing_only = options.timing_only;
  if (!options.call_seconds.empty())
    result.limits.call_seconds = parse_seconds(options.call_seconds);
  result.progress = [&progress](std::string_view what) { progress.show(what); };
  return result;
}

int run_replay(const JudgeVerbOptions& options) {
  if (options.paths.size() != 1) throw InvalidArgument("judge: --replay needs one path");
  const bool related = options.replay.find('@') != std::string::npos;
  const judge::Relation relation =
      related ? judge::parse_relation(options.replay)
              : judge::Relation{"", "", judge::parse_spec(options.replay), {}};
  const judge::Task& task = task_of(options.paths.front(), options.task);
  const judge::Contender contender = find_contender(options.paths.front(), task);
  Progress progress;
  const judge::JudgeOptions judging = judge_options(options, progress);
  const judge::Replay replay = related ? judge::replay(contender, task, relation, judging)
                                       : judge::replay(contender, task, relation.first, judging);
  if (!replay.build_log.empty()) {
    print(replay.build_log + "\n");
    return kNo;
  }
  print(fmt::format("{}  {}  {}\n", contender.name, options.replay,
                    colored(replay.check.passed ? "right" : "wrong",
                            replay.check.passed ? Color::good : Color::bad)));
  if (!replay.check.reason.empty()) print(replay.check.reason + "\n");
  Table table(
      {"output", ">call", ">outside", ">of", ">worst in bounds", ">first", ">got", ">expected"});
  for (const judge::OutputError& e : replay.check.errors) {
    table.add({e.output, fmt::format("{}", e.call), fmt::format("{}", e.outside),
               fmt::format("{}", e.count), fmt::format("{:.3g}", e.worst),
               e.first < 0 ? "-" : fmt::format("{}", e.first),
               e.first < 0 ? "-" : fmt::format("{:.9g}", e.got),
               e.first < 0 ? "-" : fmt::format("{:.9g}", e.expected)});
  }
  if (!replay.check.errors.empty()) print(table.text());
  return replay.check.passed ? kOk : kNo;
}

// One seed for all contenders of a task, and none that was told before; with --seeds several, one
// after the other.
std::vector<judge::Record> judged_with_seeds(
    const std::string& task, int seeds, judge::JudgeOptions judging,
    const std::function<std::vector<judge::Record>(const judge::JudgeOptions&)>& judge_once) {
  if (seeds < 1 || seeds > kMaxSeeds) {
    throw InvalidArgument(
        fmt::format("judge: --seeds: expected 1 to {}, got {}", kMaxSeeds, seeds));
  }
  const std::optional<std::uint64_t> given = judging.seed;
  std::vector<judge::Record> records;
  for (int i = 0; i < seeds; ++i) {
    judging.seed = given.has_value() ? *given + static_cast<std::uint64_t>(i) : judge::drawn_seed();
    std::vector<judge::Record> judged = judge_once(judging);
    log(fmt::format("{}: seed was {}", task, *judging.seed));
    if (seeds == 1) return judged;
    judge::merge_seeds(records, std::move(judged));
  }
  return records;
}

std::vector<judge::Record> judge_fields(const JudgeVerbOptions& options,
                                        std::vector<judge::BadSignature>& unusable) {
  std::vector<judge::Record> records;
  Progress progress;
  judge::JudgeOptions judging = judge_options(options, progress);
  const std::vector<Field> fields =
      find_contenders(options.paths, options.task, options.device, !options.alone, unusable);
  for (const judge::BadSignature& error : unusable) {
    log(error.what());
    print(error.adapter());
  }
  const std::optional<std::uint64_t> given_seed = judging.seed;
  // What cannot be judged at all is reported at once; the rest comes with the board.
  judging.examined = [](const judge::Record& record) {
    if (record.verdict != judge::Verdict::nobuild && record.verdict != judge::Verdict::untested) {
      return;
    }
    log(fmt::format("{}: {}: {}: {}", record.task, record.contender, name_of(record.verdict),
                    record.verdict_because));
  };
  for (const Field& field : fields) {
    // The promise comes before the first contender of the task is built.
    std::string told;
    judging.committed = [&](std::string_view commitment) {
      if (told == commitment) return;
      told = commitment;
      log(fmt::format("{}: seed committed to, SHA-256 {}", field.task->card().id, commitment));
    };
    const auto judged_once = [&](const judge::JudgeOptions& once) {
      return judge::judge_all(field.contenders, *field.task, once, field.peers);
    };
    for (const Field::Unreadable& one : field.unreadable) {
      records.push_back(
          judge::unreadable_record(one.name, one.path, *field.task, one.why, judging));
      judging.examined(records.back());
    }
    if (field.contenders.empty()) continue;
    judging.seed = given_seed;
    std::ranges::move(judged_with_seeds(field.task->card().id, options.seeds, judging, judged_once),
                      std::back_inserter(records));
  }
  return records;
}

int run_selftest(const JudgeVerbOptions& options) {
  Progress progress;
  judge::SelfTestOptions asked;
  asked.small = options.small;
  asked.sandbox = !options.no_sandbox;
  asked.seed = parse_seed(options.seed);
  asked.corpus = options.corpus;
  asked.only = options.only;
  asked.sample = options.sample;
  asked.jobs = options.jobs;
  asked.log = options.log;
  asked.progress = [&progress](std::string_view what) { progress.show(what); };
  const judge::SelfTest result = judge::run_selftest(asked);
  print(judge::format_selftest(result));
  if (!result.judged()) return kBadData;
  return result.passed() ? kOk : kNo;
}

// No verdict at all is bad data or a bad machine; of those that have one, all must pass, or lack no
// more than is allowed.
int exit_code_of(const std::vector<judge::Record>& records, bool allow_partial) {
  const auto has = [&](judge::Verdict verdict) {
    return std::ranges::find(records, verdict, &judge::Record::verdict) != records.end();
  };
  if (has(judge::Verdict::judge_error)) return kBadData;
  std::size_t passed = 0;
  std::size_t untested = 0;
  for (const judge::Record& record : records) {
    const bool right = record.verdict == judge::Verdict::pass ||
                       (allow_partial && record.verdict == judge::Verdict::partial);
    passed += right ? 1 : 0;
    untested += record.verdict == judge::Verdict::untested ? 1 : 0;
  }
  if (untested == records.size()) return kBadData;
  return passed + untested == records.size() ? kOk : kNo;
}

// What comes with the program says by its name what it is: wrong_* has a planted fault, the others are
// right.
int exit_code_of_bundled(const std::vector<judge::Record>& records) {
  int code = kOk;
  for (const judge::Record& record : records) {
    if (record.verdict == judge::Verdict::untested) continue;
    const judge::Verdict expected =
        record.contender.starts_with("wrong_") ? judge::Verdict::wrong : judge::Verdict::pass;
    if (record.verdict == expected) continue;
    log(fmt::format("{}: {}: expected {}, got {}", record.task, record.contender, name_of(expected),
                    name_of(record.verdict)));
    code = kNo;
  }
  return code;
}

int run_judge(const JudgeVerbOptions& options) {
  check_together(options);
  if (options.list) return list_tasks();
  if (options.selftest) return run_selftest(options);
  if (!options.replay.empty()) return run_replay(options);
  OutputFile json(options.json);
  OutputFile html(options.html);
  std::vector<judge::BadSignature> unusable;
  OutputFile md(options.md);
  const std::vector<judge::Record> records =
      options.from.empty() ? judge_fields(options, unusable) : read_records(options.from);
  json.write(judge::to_json(records));
  if (html.wanted()) html.write(judge::html_report(records));
  if (md.wanted()) md.write(judge::markdown_report(records));
  print(judge::board_text(records, uses_colors()));
  if (!options.html.empty()) log(fmt::format("wrote {}", options.html));
  // The others were judged; that one could not be is wrong usage all the same.
  if (!unusable.empty()) return kUsage;
  const int code = exit_code_of(records, options.allow_partial);
  const bool bundled = options.paths.empty() && options.from.empty();
  return bundled && code == kNo ? exit_code_of_bundled(records) : code;
}

struct DuelVerbOptions {
  std::string first;
  std::string second;
  JudgeVerbOptions judge;
};

int run_duel(const DuelVerbOptions& options) {
  JudgeVerbOptions judging = options.judge;
  judging.paths = {options.first, options.second};
  judging.alone = true;
  if (judging.task.empty()) judging.task = task_of(options.first, "").card().id;
  const judge::Task& task = judge::find_task(judging.task);
  std::vector<judge::Contender> both = {find_contender(options.first, task),
                                        find_contender(options.second, task)};
  if (both[0].name == both[1].name) both[1].name += "-2";
  OutputFile json(judging.json);
  OutputFile html(judging.html);
  OutputFile md(judging.md);
  Progress progress;
  const std::vector<judge::Record> records = judged_with_seeds(
      task.card().id, judging.seeds, judge_options(judging, progress),
      [&](const judge::JudgeOptions& once) { return judge::judge_all(both, task, once); });
  judge::Duel duel = judge::duel(records[0], records[1]);
  if (judging.timing_only) {
    // Verdicts and scores would all be blank.
    duel.dimensions.clear();
    duel.facts.clear();
    duel.first_remarks = duel.second_remarks = {};
    duel.hybrid.reset();
    const std::string& withheld = records[0].speeds_withheld;
    duel.conclusion = withheld.empty() ? "Only timed: nobody looked whether they are right."
                                       : fmt::format("Speeds are withheld: {}.", withheld);
  }
  json.write(judge::to_json(records));
  if (html.wanted()) html.write(judge::html_duel_report(duel, records));
  if (md.wanted()) md.write(judge::markdown_duel_report(duel, records));
  print(judge::duel_text(duel, uses_colors()));
  if (!judging.timing_only) return exit_code_of(records, judging.allow_partial);
  // Where both are only timed there is no verdict.
  for (const judge::Record& record : records) {
    if (record.untested.empty()) continue;
    log(fmt::format("{}: {}", record.contender, record.untested));
    return kBadData;
  }
  return kOk;
}

void add_common(Options* verb, JudgeVerbOptions& options) {
  verb->add_option("--task", options.task, "Task name (default: the name of the folder)");
  verb->add_option("--json", options.json, "Write the records to this file");
  verb->add_option("--html", options.html, "Write the report to this file");
  verb->add_option("--md", options.md, "Write the report to this file, as Markdown");
  verb->add_option("--seeds", options.seeds,
                   "Number of judgments, each with another seed; scores span all of them");
  verb->add_flag("--small", options.small, "Fewer cases and shapes");
  verb->add_flag("--no-sandbox", options.no_sandbox,
                 "Run without the sandbox, for debugging; noted in the report");
  verb->add_option("--seed", options.seed, "Seed of the cases (default: random)");
  verb->add_option("--call-seconds", options.call_seconds,
                   "Time limit of a call in seconds (default: 10)");
  verb->add_flag("--allow-partial", options.allow_partial,
                 "Exit 0 for PARTIAL: correct, with parts of the contract not supported");
}

}  // namespace

void add_judge(Options& app, int& exit_code) {
  auto options = std::make_shared<JudgeVerbOptions>();
  Options* verb = app.add_verb(
      "judge",
      "Judge implementations of a task: correctness, stability, speed, memory, with evidence");
  verb->add_option("path", options->paths,
                   "Contenders, or folders of them (default: the bundled ones)");
  add_common(verb, *options);
  verb->add_option("--device", options->device,
                   "cpu or cuda: only contenders that run there; of the bundled ones else those "
                   "for the CPU");
  verb->add_flag("--list", options->list, "List the tasks");
  verb->add_option("--replay", options->replay, "Run one case, given as a report prints it");
  verb->add_option("--from", options->from, "Recompute the scores of the records in this file");
  verb->add_flag("--no-speed", options->no_speed, "Skip the timing");
  verb->add_flag("--alone", options->alone, "Do not time bundled peers beside the contenders");
  verb->add_flag("--selftest", options->selftest,
                 "Test the judge with contenders of known verdicts");
  verb->add_option("--corpus", options->corpus,
                   "Folder of these contenders (default: in the source tree)");
  verb->add_option("--only", options->only,
                   "With --selftest: only contenders whose task/kind/name contains this; "
                   "comma-separated; !x excludes x");
  verb->add_option("--sample", options->sample,
                   "With --selftest: this many contenders, spread over all of them");
  verb->add_option("--jobs", options->jobs,
                   "With --selftest: concurrent contenders (default: one per core, up to 8)");
  verb->add_option(
      "--log", options->log,
      "With --selftest: log of finished contenders; a run with the same seed resumes from it");
  verb->callback([options, &exit_code] { exit_code = run_judge(*options); });
}

void add_duel(Options& app, int& exit_code) {
  auto options = std::make_shared<DuelVerbOptions>();
  Options* verb = app.add_verb("duel", "Compare two contenders criterion by criterion");
  verb->add_option("first", options->first, "A contender")->required();
  verb->add_option("second", options->second, "Another contender")->required();
  add_common(verb, options->judge);
  verb->add_flag("--timing-only", options->judge.timing_only, "Only time them, without checking");
  verb->callback([options, &exit_code] { exit_code = run_duel(*options); });
}

}  // namespace touchstone::cli
