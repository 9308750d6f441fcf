#include "judge/report/record.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "judge/report/record_json.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr std::array<std::pair<Verdict, std::string_view>, 12> kVerdicts = {{
    {Verdict::pass, "PASS"},
    {Verdict::partial, "PARTIAL"},
    {Verdict::wrong, "WRONG"},
    {Verdict::unsafe, "UNSAFE"},
    {Verdict::unstable, "UNSTABLE"},
    {Verdict::limit, "LIMIT"},
    {Verdict::nobuild, "NOBUILD"},
    {Verdict::rule, "RULE"},
    {Verdict::proven_cheat, "PROVEN-CHEAT"},
    {Verdict::impossible, "IMPOSSIBLE"},
    {Verdict::untested, "UNTESTED"},
    {Verdict::judge_error, "JUDGE-ERROR"},
}};

// A file of records says what it is before anything in it is believed.
constexpr const char* kFormat = "touchstone-judgement";

Json parsed(const std::string& text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("record: not JSON: {}", error.what()));
  }
}

// Type errors of the JSON library become ours: one line that says where.
template <class Read>
auto guarded(const Read& read) {
  try {
    return read();
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("record: {}", error.what()));
  } catch (const InvalidArgument& error) {
    throw CorruptData(fmt::format("record: {}", error.what()));
  }
}

void check_schema(const Json& json, const std::string& within = "") {
  if (!json.is_object()) throw CorruptData(fmt::format("record: {}expected an object", within));
  if (!json.contains("schema") || !json["schema"].is_number_integer()) {
    throw CorruptData(fmt::format("record: {}schema: expected a number", within));
  }
  if (json["schema"] != kRecordSchema) {
    throw CorruptData(fmt::format("record: {}schema: expected {}, got {}", within, kRecordSchema,
                                  json["schema"].dump()));
  }
}

std::string dumped(const Json& json) {
  // `replace`: what a contender printed need not be UTF-8.
  return json.dump(1) + "\n";
}

}  // namespace

std::string failure_kind(Ending ending, const CaseCheck& check) {
  if (ending != Ending::ok) return std::string(name_of(ending));
  if (check.refused) return "refused";
  for (const OutputError& e : check.errors) {
    if (e.outside == 0) continue;
    const bool strange = !std::isfinite(e.got) && std::isfinite(e.expected);
    return fmt::format("{} {}", strange ? "no number in" : "wrong", e.output);
  }
  return "wrong status";
}

std::string_view name_of(Verdict verdict) {
  for (const auto& [value, name] : kVerdicts) {
    if (value == verdict) return name;
  }
  return "?";
}

Verdict parse_verdict(std::string_view name) {
  for (const auto& [value, known] : kVerdicts) {
    if (known == name) return value;
  }
  throw InvalidArgument(fmt::format("verdict: unknown word '{}'", name));
}

std::string to_json(const Record& record) { return dumped(record_to_json(record)); }

Record record_from_json(const std::string& text) {
  const Json json = parsed(text);
  check_schema(json);
  return guarded([&] { return json_to_record(json, ""); });
}

std::string to_json(const std::vector<Record>& records) {
  Json list = Json::array();
  for (const Record& record : records) list.push_back(record_to_json(record));
  return dumped({{"format", kFormat}, {"schema", kRecordSchema}, {"records", std::move(list)}});
}

std::vector<Record> records_from_json(const std::string& text) {
  const Json json = parsed(text);
  check_schema(json);
  return guarded([&] {
    if (json.value("format", "") != kFormat) {
      throw CorruptData(fmt::format("record: format: expected {}", kFormat));
    }
    std::vector<Record> records;
    for (const Json& entry : json.at("records")) {
      const std::string place = fmt::format("records[{}]", records.size());
      check_schema(entry, place + ".");
      records.push_back(json_to_record(entry, place));
    }
    return records;
  });
}

}  // namespace touchstone::judge
