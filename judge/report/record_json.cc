// Every struct of a record, written and read by one pair of functions that list the same keys.
#include "judge/report/record_json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// JSON has no infinity and no NaN, and both are what a wrong contender answers.
Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number(const Json& json) {
  if (!json.is_string()) return json.get<double>();
  const auto text = json.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw CorruptData(fmt::format("record: expected a number, got \"{}\"", text));
}

double number_at(const Json& json, const char* key) { return number(json.at(key)); }

template <class T>
T at(const Json& json, const char* key) {
  return json.at(key).get<T>();
}

Json optional_number(const std::optional<double>& value) {
  return value.has_value() ? number(*value) : Json(nullptr);
}

std::optional<double> optional_number_at(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (value.is_null()) return std::nullopt;
  return number(value);
}

template <class T, class Write>
Json list(const std::vector<T>& values, const Write& write) {
  Json json = Json::array();
  for (const T& value : values) json.push_back(write(value));
  return json;
}

template <class T, class Read>
std::vector<T> list_at(const Json& json, const char* key, const Read& read) {
  const Json& values = json.at(key);
  if (!values.is_array()) throw CorruptData(fmt::format("record: {}: expected a list", key));
  std::vector<T> result;
  for (const Json& value : values) result.push_back(read(value));
  return result;
}

Json write_error(const OutputError& e) {
  return {{"output", e.output},
          {"call", e.call},
          {"worst", number(e.worst)},
          {"worst_bits", number(e.worst_bits)},
          {"outside", e.outside},
          {"count", e.count},
          {"first", e.first},
          {"got", number(e.got)},
          {"expected", number(e.expected)}};
}

OutputError read_error(const Json& json) {
  OutputError e;
  e.output = at<std::string>(json, "output");
  e.call = at<int>(json, "call");
  e.worst = number_at(json, "worst");
  e.worst_bits = number_at(json, "worst_bits");
  e.outside = at<int64_t>(json, "outside");
  e.count = at<int64_t>(json, "count");
  e.first = at<int64_t>(json, "first");
  e.got = number_at(json, "got");
  e.expected = number_at(json, "expected");
  return e;
}

Json write_case(const CaseRecord& c) {
  return {{"id", c.id},
          {"spec", format_spec(c.spec)},
          {"title", c.title},
          {"probes", c.probes},
          {"gates", c.gates},
          {"ending", name_of(c.ending)},
          {"passed", c.check.passed},
          {"reason", c.check.reason},
          {"errors", list(c.check.errors, write_error)}};
}

CaseRecord read_case(const Json& json) {
  CaseRecord c;
  c.id = at<std::string>(json, "id");
  c.spec = parse_spec(at<std::string>(json, "spec"));
  c.title = at<std::string>(json, "title");
  c.probes = at<std::vector<std::string>>(json, "probes");
  c.gates = at<bool>(json, "gates");
  c.ending = parse_ending(at<std::string>(json, "ending"));
  c.check.passed = at<bool>(json, "passed");
  c.check.reason = at<std::string>(json, "reason");
  c.check.errors = list_at<OutputError>(json, "errors", read_error);
  return c;
}

Json write_probe(const ProbeRecord& p) {
  return {{"id", p.probe.id},
          {"title", p.probe.title},
          {"dimension", p.probe.dimension},
          {"optional", p.probe.optional},
          {"tested", p.tested},
          {"passed", p.passed},
          {"failed", p.failed}};
}

ProbeRecord read_probe(const Json& json) {
  ProbeRecord p;
  p.probe.id = at<std::string>(json, "id");
  p.probe.title = at<std::string>(json, "title");
  p.probe.dimension = at<std::string>(json, "dimension");
  p.probe.optional = at<bool>(json, "optional");
  p.tested = at<bool>(json, "tested");
  p.passed = at<bool>(json, "passed");
  p.failed = at<std::vector<std::string>>(json, "failed");
  return p;
}

Json write_witness(const Witness& w) {
  return {{"case", w.case_id},
          {"smallest", format_spec(w.smallest)},
          {"reason", w.reason},
          {"replay", w.replay}};
}

Witness read_witness(const Json& json) {
  Witness w;
  w.case_id = at<std::string>(json, "case");
  w.smallest = parse_spec(at<std::string>(json, "smallest"));
  w.reason = at<std::string>(json, "reason");
  w.replay = at<std::string>(json, "replay");
  return w;
}

Json write_finding(const Finding& f) {
  return {{"id", f.id}, {"kind", f.kind}, {"text", f.text}, {"case", f.case_id}};
}

Finding read_finding(const Json& json) {
  return {at<std::string>(json, "id"), at<std::string>(json, "kind"), at<std::string>(json, "text"),
          at<std::string>(json, "case")};
}

Json write_interval(const Interval& i) {
  return {{"value", number(i.value)},
          {"low", number(i.low)},
          {"high", number(i.high)},
          {"samples", i.samples}};
}

Interval read_interval(const Json& json) {
  return {number_at(json, "value"), number_at(json, "low"), number_at(json, "high"),
          at<int>(json, "samples")};
}

Json write_speed(const SpeedRecord& s) {
  Json ratios = Json::object();
  for (const auto& [peer, ratio] : s.ratio_to) ratios[peer] = write_interval(ratio);
  return {{"id", s.id},
          {"shape", format_spec(s.shape)},
          {"seconds", write_interval(s.seconds)},
          {"ratio_to", ratios},
          {"fastest_seconds", number(s.fastest_seconds)},
          {"bytes", number(s.bytes)},
          {"flops", number(s.flops)},
          {"copy_seconds", number(s.copy_seconds)},
          {"compute_seconds", number(s.compute_seconds)},
          {"floor_seconds", number(s.floor_seconds)},
          {"share_of_roof", number(s.share_of_roof)},
          {"roof", s.roof},
          {"impossible", s.impossible}};
}

SpeedRecord read_speed(const Json& json) {
  SpeedRecord s;
  s.id = at<std::string>(json, "id");
  s.shape = parse_spec(at<std::string>(json, "shape"));
  s.seconds = read_interval(json.at("seconds"));
  for (const auto& [peer, ratio] : json.at("ratio_to").items()) {
    s.ratio_to[peer] = read_interval(ratio);
  }
  s.fastest_seconds = number_at(json, "fastest_seconds");
  s.bytes = number_at(json, "bytes");
  s.flops = number_at(json, "flops");
  s.floor_seconds = number_at(json, "floor_seconds");
  // Records of before knew the copy alone.
  s.copy_seconds =
      json.contains("copy_seconds") ? number_at(json, "copy_seconds") : s.floor_seconds;
  s.compute_seconds = json.contains("compute_seconds") ? number_at(json, "compute_seconds") : 0.0;
  s.share_of_roof = number_at(json, "share_of_roof");
  s.roof = at<std::string>(json, "roof");
  s.impossible = at<bool>(json, "impossible");
  return s;
}

Json write_point(const MemoryPoint& p) {
  return {{"n", p.n},
          {"io_bytes", p.io_bytes},
          {"extra_bytes", p.extra_bytes},
          {"least_bytes", p.least_bytes}};
}

MemoryPoint read_point(const Json& json) {
  return {at<int64_t>(json, "n"), at<int64_t>(json, "io_bytes"), at<int64_t>(json, "extra_bytes"),
          at<int64_t>(json, "least_bytes")};
}

Json write_memory(const MemoryRecord& m) {
  return {{"parameter", m.parameter},
          {"ladder", list(m.ladder, write_point)},
          {"exponent", optional_number(m.exponent)},
          {"leaked_bytes_per_call", optional_number(m.leaked_bytes_per_call)}};
}

MemoryRecord read_memory(const Json& json) {
  MemoryRecord m;
  m.parameter = at<std::string>(json, "parameter");
  m.ladder = list_at<MemoryPoint>(json, "ladder", read_point);
  m.exponent = optional_number_at(json, "exponent");
  m.leaked_bytes_per_call = optional_number_at(json, "leaked_bytes_per_call");
  return m;
}

Json write_determinism(const DeterminismRecord& d) {
  return {
      {"cases", d.cases}, {"repeated", d.repeated}, {"moved", d.moved}, {"differing", d.differing}};
}

DeterminismRecord read_determinism(const Json& json) {
  return {at<int>(json, "cases"), at<int>(json, "repeated"), at<int>(json, "moved"),
          at<std::vector<std::string>>(json, "differing")};
}

Json write_score(const Score& s) {
  return {{"value", optional_number(s.value)},
          {"low", number(s.low)},
          {"high", number(s.high)},
          {"evidence", s.evidence},
          {"because", s.because}};
}

Score read_score(const Json& json) {
  Score s;
  s.value = optional_number_at(json, "value");
  s.low = number_at(json, "low");
  s.high = number_at(json, "high");
  s.evidence = at<std::vector<std::string>>(json, "evidence");
  s.because = at<std::string>(json, "because");
  return s;
}

Json write_sandbox(const Sandbox& s) {
  return {{"enabled", s.enabled},
          {"namespaces", s.namespaces},
          {"seccomp", s.seccomp},
          {"limits", s.limits},
          {"missing", s.missing}};
}

Sandbox read_sandbox(const Json& json) {
  Sandbox s;
  s.enabled = at<bool>(json, "enabled");
  s.namespaces = at<bool>(json, "namespaces");
  s.seccomp = at<bool>(json, "seccomp");
  s.limits = at<bool>(json, "limits");
  s.missing = at<std::vector<std::string>>(json, "missing");
  return s;
}

// Where the library lay is of no use to anyone later.
Json write_build(const BuildResult& b) {
  return {{"built", b.built},           {"log", b.log},
          {"warnings", b.warnings},     {"seconds", number(b.seconds)},
          {"code_bytes", b.code_bytes}, {"source_lines", b.source_lines}};
}

BuildResult read_build(const Json& json) {
  BuildResult b;
  b.built = at<bool>(json, "built");
  b.log = at<std::string>(json, "log");
  b.warnings = at<int>(json, "warnings");
  b.seconds = number_at(json, "seconds");
  b.code_bytes = at<int64_t>(json, "code_bytes");
  b.source_lines = at<int64_t>(json, "source_lines");
  return b;
}

Json write_binding(const Binding& b) {
  std::vector<std::string> sources;
  for (const auto& source : b.sources) sources.push_back(source.string());
  return {{"functions", b.functions},
          {"sources", sources},
          {"adapter", b.adapter.string()},
          {"proposed", b.proposed}};
}

Binding read_binding(const Json& json) {
  Binding b;
  b.functions = at<std::map<std::string, std::string>>(json, "functions");
  for (const auto& source : at<std::vector<std::string>>(json, "sources")) {
    b.sources.emplace_back(source);
  }
  b.adapter = at<std::string>(json, "adapter");
  b.proposed = at<bool>(json, "proposed");
  return b;
}

Json write_own_tests(const OwnTests& t) {
  return {
      {"present", t.present}, {"detail", t.detail}, {"mutants", t.mutants}, {"killed", t.killed}};
}

OwnTests read_own_tests(const Json& json) {
  return {at<bool>(json, "present"), at<std::string>(json, "detail"), at<int>(json, "mutants"),
          at<int>(json, "killed")};
}

void check_ids(const Record& record) {
  std::map<std::string, int> seen;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (c.id.empty() || ++seen[c.id] > 1) {
        throw CorruptData(fmt::format("record: case id '{}': expected to be unique", c.id));
      }
    }
  }
  for (const Witness& witness : record.witnesses) {
    if (!seen.contains(witness.case_id)) {
      throw CorruptData(fmt::format("record: witness of '{}': no such case", witness.case_id));
    }
  }
}

void check_scores(const Record& record) {
  for (const auto& [dimension, score] : record.scores) {
    if (score.value.has_value() && !(*score.value >= 0.0 && *score.value <= 100.0)) {
      throw CorruptData(fmt::format("record: score of {}: expected 0 to 100", dimension));
    }
  }
  for (const auto& [dimension, weight] : record.weights) {
    if (!(weight >= 0.0 && std::isfinite(weight))) {
      throw CorruptData(fmt::format("record: weight of {}: expected 0 or more", dimension));
    }
  }
}

}  // namespace

Json record_to_json(const Record& r) {
  Json scores = Json::object();
  for (const auto& [dimension, score] : r.scores) scores[dimension] = write_score(score);
  Json weights = Json::object();
  for (const auto& [dimension, weight] : r.weights) weights[dimension] = number(weight);
  return {{"schema", r.schema},
          {"task", r.task},
          {"task_version", r.task_version},
          {"contender", r.contender},
          {"verdict", name_of(r.verdict)},
          {"verdict_because", r.verdict_because},
          {"scores", scores},
          {"weights", weights},
          {"path", r.path},
          {"language", r.language},
          {"source_hash", r.source_hash},
          {"binding", write_binding(r.binding)},
          {"seed_commitment", r.seed_commitment},
          {"seed", r.seed},
          {"small", r.small},
          {"machine", r.machine},
          {"sandbox", write_sandbox(r.sandbox)},
          {"build", write_build(r.build)},
          {"cases", list(r.cases, write_case)},
          {"relations", list(r.relations, write_case)},
          {"probes", list(r.probes, write_probe)},
          {"witnesses", list(r.witnesses, write_witness)},
          {"findings", list(r.findings, write_finding)},
          {"speeds", list(r.speeds, write_speed)},
          {"speeds_withheld", r.speeds_withheld},
          {"twin", r.twin.has_value() ? write_interval(*r.twin) : Json(nullptr)},
          {"memory", write_memory(r.memory)},
          {"determinism", write_determinism(r.determinism)},
          {"own_tests", write_own_tests(r.own_tests)},
          {"facts", r.facts},
          {"judge_error", r.judge_error},
          {"untested", r.untested},
          {"seconds", number(r.seconds)}};
}

Record json_to_record(const Json& json) {
  Record r;
  r.schema = at<int>(json, "schema");
  r.task = at<std::string>(json, "task");
  r.task_version = at<int>(json, "task_version");
  r.contender = at<std::string>(json, "contender");
  r.verdict = parse_verdict(at<std::string>(json, "verdict"));
  r.verdict_because = at<std::string>(json, "verdict_because");
  for (const auto& [dimension, score] : json.at("scores").items()) {
    r.scores[dimension] = read_score(score);
  }
  for (const auto& [dimension, weight] : json.at("weights").items()) {
    r.weights[dimension] = number(weight);
  }
  r.path = at<std::string>(json, "path");
  r.language = at<std::string>(json, "language");
  r.source_hash = at<std::string>(json, "source_hash");
  r.binding = read_binding(json.at("binding"));
  r.seed_commitment = at<std::string>(json, "seed_commitment");
  r.seed = at<uint64_t>(json, "seed");
  r.small = at<bool>(json, "small");
  r.machine = at<std::map<std::string, std::string>>(json, "machine");
  r.sandbox = read_sandbox(json.at("sandbox"));
  r.build = read_build(json.at("build"));
  r.cases = list_at<CaseRecord>(json, "cases", read_case);
  r.relations = list_at<CaseRecord>(json, "relations", read_case);
  r.probes = list_at<ProbeRecord>(json, "probes", read_probe);
  r.witnesses = list_at<Witness>(json, "witnesses", read_witness);
  r.findings = list_at<Finding>(json, "findings", read_finding);
  r.speeds = list_at<SpeedRecord>(json, "speeds", read_speed);
  r.speeds_withheld = at<std::string>(json, "speeds_withheld");
  if (!json.at("twin").is_null()) r.twin = read_interval(json.at("twin"));
  r.memory = read_memory(json.at("memory"));
  r.determinism = read_determinism(json.at("determinism"));
  r.own_tests = read_own_tests(json.at("own_tests"));
  r.facts = at<std::map<std::string, std::string>>(json, "facts");
  r.judge_error = at<std::string>(json, "judge_error");
  r.untested = json.value("untested", "");  // records of before do not have it
  r.seconds = number_at(json, "seconds");
  check_ids(r);
  check_scores(r);
  return r;
}

}  // namespace touchstone::judge
