// What the selftest prints.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "judge/selftest/selftest.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge {

std::string format_selftest(const SelfTest& result) {
  struct Line {
    CorpusKind kind;
    std::string_view title;
    bool failures;  // whether the number to show is of those that went wrong
  };
  constexpr Line kLines[] = {{CorpusKind::good, "known-good rejected", true},
                             {CorpusKind::partial, "partial misjudged", true},
                             {CorpusKind::mutant, "mutants caught", false},
                             {CorpusKind::trivial, "trivial failing", false},
                             {CorpusKind::exploit, "exploits blocked", false},
                             {CorpusKind::lookalike, "look-alikes accused", true}};
  std::string text = fmt::format("{:<22}", "");
  // As wide as the longest name.
  size_t width = 0;
  for (const auto& task : tasks()) width = std::max(width, task->card().id.size() + 2);
  for (const auto& task : tasks()) text += fmt::format("{:>{}}", task->card().id, width);
  text += fmt::format("{:>14}\n", "all");
  for (const Line& line : kLines) {
    text += fmt::format("{:<22}", line.title);
    const auto cell = [&](std::string_view task) {
      const int all = result.counted(line.kind, task);
      const int right = result.as_expected(line.kind, task);
      return all == 0 ? std::string("-")
                      : fmt::format("{} of {}", line.failures ? all - right : right, all);
    };
    for (const auto& task : tasks()) text += fmt::format("{:>{}}", cell(task->card().id), width);
    text += fmt::format("{:>14}\n", cell({}));
  }
  for (const SelfTestRow& row : result.rows) {
    if (row.counted && row.as_expected) continue;
    text +=
        fmt::format("{} {}/{}/{} ({}): {}: {}\n", row.counted ? "  !" : "  -", row.entry.task,
                    name_of(row.entry.kind), row.entry.name, row.entry.what,
                    row.counted ? name_of(row.verdict) : std::string_view("skipped"), row.because);
  }
  text += fmt::format("seed {}, {} contenders in {:.1f} s: {}\n", result.seed, result.rows.size(),
                      result.seconds,
                      result.passed()   ? "the judge is fit"
                      : result.judged() ? "THE JUDGE IS NOT FIT"
                                        : "NOTHING WAS JUDGED");
  return text;
}

int judge_selftest(bool small) {
  SelfTestOptions options;
  options.small = small;
  const SelfTest result = run_selftest(options);
  fmt::print("{}", format_selftest(result));
  return result.passed() ? 0 : 1;
}

}  // namespace touchstone::judge
