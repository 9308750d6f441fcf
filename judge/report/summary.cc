#include "judge/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "judge/report/evidence.h"
#include "judge/report/score.h"
#include "judge/report/text_format.h"

namespace touchstone::judge {
namespace {

// From this many tasks on it is a pattern.
constexpr std::size_t kPattern = 2;

const Score* tested_score(const Record& record, const std::string& dimension) {
  const auto found = record.scores.find(dimension);
  if (found == record.scores.end() || !found->second.value.has_value()) return nullptr;
  return &found->second;
}

// The best of one dimension, the best contender first among equals.
std::optional<HybridPart> best_part(const std::vector<const Record*>& records,
                                    const std::string& dimension) {
  const Record* best = nullptr;
  double least = 100.0;
  for (const Record* record : records) {
    const Score* score = tested_score(*record, dimension);
    if (score == nullptr) continue;
    least = std::min(least, *score->value);
    if (best == nullptr ||
        *score->value > *tested_score(*best, dimension)->value + kTieMargin / 2) {
      best = record;
    }
  }
  if (best == nullptr) return std::nullopt;
  const Score& score = *tested_score(*best, dimension);
  const bool level = *score.value - least < kTieMargin;
  return HybridPart{dimension, level ? "" : best->contender, *score.value, score.because};
}

struct AuthorRecords {
  std::string author;
  std::vector<const Record*> records;
};

// A dimension over all tasks in which it was scored.
std::string dimension_pattern(const AuthorRecords& own) {
  struct Sum {
    double points = 0.0;
    int records = 0;
    std::set<std::string> tasks;
  };
  std::map<std::string, Sum> sums;
  for (const Record* record : own.records) {
    for (const std::string_view dimension : dimensions()) {
      const Score* score = tested_score(*record, std::string(dimension));
      if (score == nullptr) continue;
      Sum& sum = sums[std::string(dimension)];
      sum.points += *score->value;
      ++sum.records;
      sum.tasks.insert(record->task);
    }
  }
  std::erase_if(sums, [](const auto& entry) { return entry.second.tasks.size() < kPattern; });
  if (sums.size() < 2) return {};
  const auto mean = [](const auto& entry) { return entry.second.points / entry.second.records; };
  const auto low = std::ranges::min_element(sums, {}, mean);
  const auto high = std::ranges::max_element(sums, {}, mean);
  return fmt::format(
      "Strongest in {} ({:.0f} on average over {} tasks), weakest in {} ({:.0f} over {}).",
      dimension_title(high->first), mean(*high), high->second.tasks.size(),
      dimension_title(low->first), mean(*low), low->second.tasks.size());
}

std::vector<std::string> repeated_patterns(const AuthorRecords& own) {
  std::map<std::string, std::set<std::string>> probes;  // title -> tasks
  std::map<std::string, std::set<std::string>> findings;
  std::map<std::string, std::set<std::string>> verdicts;
  std::set<std::string> broken;
  int claims = 0;
  for (const Record* record : own.records) {
    for (const ProbeRecord& p : record->probes) {
      const ProbeState state = probe_state(*record, p);
      if (state.tested && !state.passed) probes[p.probe.title].insert(record->task);
    }
    for (const Finding& f : record->findings) {
      findings[std::string(find_kind(f.kind).title)].insert(record->task);
    }
    if (record->verdict != Verdict::pass) {
      verdicts[std::string(name_of(record->verdict))].insert(record->task);
    }
    for (const ClaimRecord& claim : record->claims) {
      if (claim.state != "broken") continue;
      ++claims;
      broken.insert(record->task);
    }
  }
  std::vector<std::string> out;
  const auto add = [&](const char* format, const auto& found) {
    for (const auto& [what, tasks] : found) {
      if (tasks.size() < kPattern) continue;
      out.push_back(fmt::format(fmt::runtime(format), what, tasks.size(), fmt::join(tasks, ", ")));
    }
  };
  add("{} in {} tasks: {}.", verdicts);
  add("Not \"{}\" in {} tasks: {}.", probes);
  add("Found in several: {}, in {} tasks: {}.", findings);
  if (claims > 0) {
    out.push_back(fmt::format("{} not held, in {}.", plural(claims, "claim"),
                              plural(std::ssize(broken), "task")));
  }
  return out;
}

AuthorPage page_of(const AuthorRecords& own, const std::vector<std::vector<Record>>& tasks) {
  AuthorPage page;
  page.author = own.author;
  double sum = 0.0;
  int graded = 0;
  for (const std::vector<Record>& group : tasks) {
    const std::vector<Standing> standings = rank(group);
    const auto ranked =
        std::ranges::count_if(standings, [](const Standing& s) { return s.rank > 0; });
    for (const Standing& standing : standings) {
      const Record& record = group[standing.index];
      if (record.author != own.author) continue;
      AuthorTask entry{record.task,  record.contender, record.verdict,
                       std::nullopt, standing.rank,    static_cast<int>(ranked)};
      if (const Score* score = tested_score(record, "overall"); score != nullptr) {
        entry.overall = score->value;
        sum += *score->value;
        ++graded;
      }
      page.passed += record.verdict == Verdict::pass ? 1 : 0;
      page.tasks.push_back(std::move(entry));
    }
  }
  if (graded > 0) page.average = sum / graded;
  if (std::string text = dimension_pattern(own); !text.empty()) page.patterns.push_back(text);
  for (std::string& text : repeated_patterns(own)) page.patterns.push_back(std::move(text));
  return page;
}

}  // namespace

std::optional<Hybrid> hybrid(std::span<const Record> records) {
  std::vector<const Record*> passing;
  for (const Record& record : records) {
    if (record.verdict == Verdict::pass && tested_score(record, "overall") != nullptr) {
      passing.push_back(&record);
    }
  }
  if (passing.size() < 2) return std::nullopt;
  std::ranges::stable_sort(passing, std::greater<>(), [](const Record* record) {
    return *tested_score(*record, "overall")->value;
  });
  Hybrid result;
  result.best = passing.front()->contender;
  result.best_overall = *tested_score(*passing.front(), "overall")->value;
  std::map<std::string, Score> best;
  for (const std::string_view dimension : dimensions()) {
    const std::optional<HybridPart> part = best_part(passing, std::string(dimension));
    if (!part.has_value()) continue;
    result.parts.push_back(*part);
    // What the best contender was not tested in would make the two scores means of different things.
    result.parts.back().counted = tested_score(*passing.front(), part->dimension) != nullptr;
    if (result.parts.back().counted) best[part->dimension].value = part->score;
  }
  result.overall = overall(best, passing.front()->weights).value_or(0.0);
  return result;
}

std::string hybrid_text(const Hybrid& h) {
  std::vector<std::string> taken;
  for (const HybridPart& part : h.parts) {
    if (part.from.empty() || part.from == h.best || !part.counted) continue;
    taken.push_back(fmt::format("the {} of {}", dimension_title(part.dimension), part.from));
  }
  if (taken.empty()) {
    return fmt::format(
        "{} is the best or level in every criterion: there is nothing to take from "
        "another.",
        h.best);
  }
  return fmt::format("A contender with the best of each would score {:.0f}: {} ({:.0f}) with {}.",
                     h.overall, h.best, h.best_overall, fmt::join(taken, ", "));
}

std::vector<AuthorPage> author_pages(const std::vector<Record>& records) {
  std::vector<AuthorRecords> authors;
  for (const Record& record : records) {
    if (record.author.empty()) continue;
    auto found = std::ranges::find(authors, record.author, &AuthorRecords::author);
    if (found == authors.end()) found = authors.insert(authors.end(), {record.author, {}});
    found->records.push_back(&record);
  }
  std::vector<AuthorPage> pages;
  const std::vector<std::vector<Record>> tasks = by_task(records);
  for (const AuthorRecords& own : authors) pages.push_back(page_of(own, tasks));
  return pages;
}

std::string author_text(const AuthorPage& page) {
  return fmt::format(
      "{} of {} pass{}", page.passed, page.tasks.size(),
      page.average.has_value() ? fmt::format(", {:.0f} on average", *page.average) : std::string());
}

}  // namespace touchstone::judge
