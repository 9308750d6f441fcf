#include "judge/selftest/selftest_log.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

#include "json/json.h"
#include "judge/sandbox/read_file.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr std::int64_t kMaxLogBytes = std::int64_t{1} << 30;

Json json_of(const std::set<std::string>& names) {
  return std::vector<std::string>(names.begin(), names.end());
}

std::set<std::string> names_from(const Json& json) {
  const auto names = json.get<std::vector<std::string>>();
  return {names.begin(), names.end()};
}

}  // namespace

SelfTestLog::SelfTestLog(const std::filesystem::path& file, std::uint64_t seed, bool small)
    : seed_(seed), small_(small) {
  if (std::filesystem::exists(file)) read(file);
  file_.open(file, std::ios::app | std::ios::binary);
  if (!file_) throw FileError(fmt::format("{}: cannot be written", file.string()));
  file_ << '\n';  // ends a line that was cut off
}

void SelfTestLog::read(const std::filesystem::path& file) {
  const std::string text = read_file(file, kMaxLogBytes);
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.empty()) continue;
    try {
      const Json json = Json::parse(line);
      if (json.at("seed").get<std::uint64_t>() != seed_ || json.at("small").get<bool>() != small_) {
        continue;
      }
      SelfTestRow& row = known_[json.at("id").get<std::string>()];
      row.counted = json.at("counted").get<bool>();
      row.as_expected = json.at("as_expected").get<bool>();
      row.verdict = parse_verdict(json.at("verdict").get<std::string>());
      row.because = json.at("because").get<std::string>();
      row.seconds = json.at("seconds").get<double>();
      row.passed_probes = names_from(json.at("probes"));
      row.passed_cases = names_from(json.at("cases"));
    } catch (const Json::exception& error) {
      // A line that a kill cut off begins like every other.
      if (line.starts_with("{\"seed\":")) continue;
      throw CorruptData(
          fmt::format("{}: line {}: not of a self-test: {}", file.string(), number, error.what()));
    }
  }
}

bool SelfTestLog::restore(const std::string& id, SelfTestRow& row) const {
  const auto known = known_.find(id);
  // What failed on our side says nothing, and is done again.
  if (known == known_.end() || known->second.verdict == Verdict::judge_error) return false;
  CorpusEntry entry = std::move(row.entry);
  row = known->second;
  row.entry = std::move(entry);
  return true;
}

void SelfTestLog::add(const std::string& id, const SelfTestRow& row) {
  if (!file_.is_open()) return;
  Json json = Json::object();
  json["seed"] = seed_;
  json["small"] = small_;
  json["id"] = id;
  json["counted"] = row.counted;
  json["as_expected"] = row.as_expected;
  json["verdict"] = std::string(name_of(row.verdict));
  json["because"] = row.because;
  json["seconds"] = row.seconds;
  json["probes"] = json_of(row.passed_probes);
  json["cases"] = json_of(row.passed_cases);
  file_ << json.dump() + "\n" << std::flush;
}

}  // namespace touchstone::judge
