// Every struct of a record has one list of its keys: fields(io, struct), which a FieldWriter or a Reader
// visits.
#include "judge/report/record_json.h"

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <filesystem>
#include <limits>
#include <type_traits>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

template <class T>
concept IsBasic = std::integral<T> || std::same_as<T, std::string>;

class FieldWriter {
 public:
  template <class T>
  void field(const char* key, const T& value) {
    json_[key] = json_of(value);
  }
  template <class T>
  void field_or(const char* key, const T& value, const char* /*otherwise*/) {
    field(key, value);
  }
  template <class T>
  void optional_field(const char* key, const T& value) {
    field(key, value);
  }
  template <class T>
  static Json written(const T& value) {
    FieldWriter writer;
    fields(writer, const_cast<T&>(value));  // the list serves both directions; nothing is changed
    return std::move(writer.json_);
  }

 private:
  template <IsBasic T>
  static Json json_of(const T& value) {
    return value;
  }
  // JSON has no infinity and no NaN, and both are what a wrong contender answers.
  static Json json_of(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }
  static Json json_of(const CaseSpec& spec) { return format_spec(spec); }
  static Json json_of(Ending ending) { return std::string(name_of(ending)); }
  static Json json_of(Verdict verdict) { return std::string(name_of(verdict)); }
  static Json json_of(const std::filesystem::path& path) { return path.string(); }
  template <class T>
  static Json json_of(const std::optional<T>& value) {
    return value.has_value() ? json_of(*value) : Json(nullptr);
  }
  template <class T>
  static Json json_of(const std::vector<T>& values) {
    Json json = Json::array();
    for (const T& value : values) json.push_back(json_of(value));
    return json;
  }
  template <class T>
  static Json json_of(const std::map<std::string, T>& values) {
    Json json = Json::object();
    for (const auto& [key, value] : values) json[key] = json_of(value);
    return json;
  }
  template <class T>
  requires std::is_aggregate_v<T>
  static Json json_of(const T& value) { return written(value); }

  Json json_ = Json::object();
};

// Reads with the place in mind: every error names the key it is about, "cases[3].spec: ...".
class Reader {
 public:
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json_.is_object()) wrong(path_, "an object", json_);
  }

  template <class T>
  void field(const char* key, T& value) {
    const std::string path = path_.empty() ? key : fmt::format("{}.{}", path_, key);
    if (!json_.contains(key)) throw CorruptData(fmt::format("record: {}: is missing", path));
    read(path, json_.at(key), value);
  }
  // Reads the key `otherwise` where this one is missing, as it is in older records.
  template <class T>
  void field_or(const char* key, T& value, const char* otherwise) {
    field(json_.contains(key) ? key : otherwise, value);
  }
  // Keeps what is there where the key is missing, as it is in older records.
  template <class T>
  void optional_field(const char* key, T& value) {
    if (json_.contains(key)) field(key, value);
  }

 private:
  [[noreturn]] static void wrong(const std::string& path, std::string_view expected,
                                 const Json& got) {
    constexpr std::size_t kShown = 40;
    std::string text = got.dump();
    if (text.size() > kShown) text = text.substr(0, kShown) + "...";
    throw CorruptData(fmt::format("record: {}: expected {}, got {}", path, expected, text));
  }
  template <class T>
  static T basic(const std::string& path, const Json& json, std::string_view expected) {
    try {
      return json.get<T>();
    } catch (const Json::exception&) {
      wrong(path, expected, json);
    }
  }
  // A word or a spec that has its own grammar; what is wrong with it follows the place.
  template <class Parse>
  static auto parsed(const std::string& path, const Json& json, const Parse& parse) {
    const auto text = basic<std::string>(path, json, "a string");
    try {
      return parse(text);
    } catch (const InvalidArgument& error) {
      throw CorruptData(fmt::format("record: {}: {}", path, error.what()));
    }
  }

  template <IsBasic T>
  static void read(const std::string& path, const Json& json, T& value) {
    value = basic<T>(path, json,
                     std::same_as<T, std::string> ? "a string"
                     : std::same_as<T, bool>      ? "true or false"
                                                  : "a whole number");
  }
  static void read(const std::string& path, const Json& json, double& value) {
    if (!json.is_string()) {
      value = basic<double>(path, json, "a number");
      return;
    }
    const auto text = json.get<std::string>();
    if (text == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (text == "inf" || text == "-inf") {
      value = (text == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
    } else {
      wrong(path, "a number", json);
    }
  }
  static void read(const std::string& path, const Json& json, CaseSpec& spec) {
    spec = parsed(path, json, [](const std::string& text) { return parse_spec(text); });
  }
  static void read(const std::string& path, const Json& json, Ending& ending) {
    ending = parsed(path, json, [](const std::string& text) { return parse_ending(text); });
  }
  static void read(const std::string& path, const Json& json, Verdict& verdict) {
    verdict = parsed(path, json, [](const std::string& text) { return parse_verdict(text); });
  }
  static void read(const std::string& path, const Json& json, std::filesystem::path& value) {
    value = basic<std::string>(path, json, "a string");
  }
  template <class T>
  static void read(const std::string& path, const Json& json, std::optional<T>& value) {
    value.reset();
    if (!json.is_null()) read(path, json, value.emplace());
  }
  template <class T>
  static void read(const std::string& path, const Json& json, std::vector<T>& values) {
    if (!json.is_array()) wrong(path, "a list", json);
    values.clear();
    for (const Json& element : json) {
      const std::string place = fmt::format("{}[{}]", path, values.size());
      read(place, element, values.emplace_back());
    }
  }
  template <class T>
  static void read(const std::string& path, const Json& json, std::map<std::string, T>& values) {
    if (!json.is_object()) wrong(path, "an object", json);
    values.clear();
    for (const auto& [name, value] : json.items()) {
      read(fmt::format("{}.{}", path, name), value, values[name]);
    }
  }
  template <class T>
  requires std::is_aggregate_v<T>
  static void read(const std::string& path, const Json& json, T& value) {
    Reader reader(json, path);
    fields(reader, value);
  }

  const Json& json_;
  std::string path_;
};

template <class Io>
void fields(Io& io, OutputError& e) {
  io.field("output", e.output);
  io.field("call", e.call);
  io.field("worst", e.worst);
  io.field("worst_bits", e.worst_bits);
  io.field("outside", e.outside);
  io.field("count", e.count);
  io.field("first", e.first);
  io.field("got", e.got);
  io.field("expected", e.expected);
  io.optional_field("worst_absolute", e.worst_absolute);
}

template <class Io>
void fields(Io& io, CaseRecord& c) {
  io.field("id", c.id);
  io.field("spec", c.spec);
  io.field("title", c.title);
  io.field("probes", c.probes);
  io.field("gates", c.gates);
  io.field("ending", c.ending);
  io.field("passed", c.check.passed);
  io.field("reason", c.check.reason);
  io.field("errors", c.check.errors);
  io.optional_field("refused", c.check.refused);
  io.optional_field("omitted", c.check.omitted);
  io.optional_field("lack", c.lack);
  io.optional_field("seconds", c.seconds);
}

template <class Io>
void fields(Io& io, LackRecord& l) {
  io.field("id", l.id);
  io.field("title", l.title);
  io.field("where", l.where);
  io.field("declared", l.declared);
  io.field("refused", l.refused);
  io.field("cases", l.cases);
}

template <class Io>
void fields(Io& io, ProbeRecord& p) {
  io.field("id", p.probe.id);
  io.field("title", p.probe.title);
  io.field("dimension", p.probe.dimension);
  io.field("optional", p.probe.optional);
  io.field("tested", p.tested);
  io.field("passed", p.passed);
  io.field("failed", p.failed);
}

template <class Io>
void fields(Io& io, Witness& w) {
  io.field("case", w.case_id);
  io.field("smallest", w.smallest);
  io.field("reason", w.reason);
  io.field("replay", w.replay);
}

template <class Io>
void fields(Io& io, Finding& f) {
  io.field("id", f.id);
  io.field("kind", f.kind);
  io.field("text", f.text);
  io.field("case", f.case_id);
}

template <class Io>
void fields(Io& io, Interval& i) {
  io.field("value", i.value);
  io.field("low", i.low);
  io.field("high", i.high);
  io.field("samples", i.samples);
}

template <class Io>
void fields(Io& io, SpeedRecord& s) {
  io.field("id", s.id);
  io.field("shape", s.shape);
  io.field("seconds", s.seconds);
  io.field("ratio_to", s.ratio_to);
  io.field("fastest_seconds", s.fastest_seconds);
  io.field("bytes", s.bytes);
  io.field("flops", s.flops);
  io.field_or("copy_seconds", s.copy_seconds, "floor_seconds");
  io.optional_field("compute_seconds", s.compute_seconds);
  io.field("floor_seconds", s.floor_seconds);
  io.field("share_of_roof", s.share_of_roof);
  io.field("roof", s.roof);
  io.field("impossible", s.impossible);
}

template <class Io>
void fields(Io& io, MemoryPoint& p) {
  io.field("n", p.n);
  io.field("io_bytes", p.io_bytes);
  io.field("extra_bytes", p.extra_bytes);
  io.field("least_bytes", p.least_bytes);
  io.optional_field("kept_bytes", p.kept_bytes);
  io.optional_field("seconds", p.seconds);
}

template <class Io>
void fields(Io& io, MemoryRecord& m) {
  io.field("parameter", m.parameter);
  io.field("ladder", m.ladder);
  io.field("exponent", m.exponent);
  io.field("leaked_bytes_per_call", m.leaked_bytes_per_call);
  io.optional_field("time_exponent", m.time_exponent);
  io.optional_field("sizes", m.sizes);
}

template <class Io>
void fields(Io& io, InputReads& i) {
  io.field("input", i.input);
  io.field("pages", i.pages);
  io.field("reads", i.reads);
}

template <class Io>
void fields(Io& io, TrafficRecord& t) {
  io.field("not_measured", t.not_measured);
  if (t.not_measured.empty()) {
    io.field("shape", t.shape);
    io.field("window_pages", t.window_pages);
    io.field("inputs", t.inputs);
  }
}

template <class Io>
void fields(Io& io, ClaimRecord& c) {
  io.field("id", c.id);
  io.field("text", c.text);
  io.field("source", c.source);
  io.field("measure", c.measure);
  io.field("claimed", c.claimed);
  io.field("peer", c.peer);
  io.field("state", c.state);
  io.field("because", c.because);
}

template <class Io>
void fields(Io& io, DocumentationRecord& d) {
  io.field("files", d.files);
  io.field("words", d.words);
  io.field("topics", d.topics);
  io.field("missing", d.missing);
}

template <class Io>
void fields(Io& io, SeedRun& s) {
  io.field("seed", s.seed);
  io.field("verdict", s.verdict);
  io.field("scores", s.scores);
}

template <class Io>
void fields(Io& io, DeterminismRecord& d) {
  io.field("cases", d.cases);
  io.field("repeated", d.repeated);
  io.field("moved", d.moved);
  io.field("differing", d.differing);
}

template <class Io>
void fields(Io& io, Score& s) {
  io.field("value", s.value);
  io.field("low", s.low);
  io.field("high", s.high);
  io.field("evidence", s.evidence);
  io.field("because", s.because);
}

template <class Io>
void fields(Io& io, Sandbox& s) {
  io.field("enabled", s.enabled);
  io.field("namespaces", s.namespaces);
  io.field("seccomp", s.seccomp);
  io.field("limits", s.limits);
  io.field("missing", s.missing);
}

// The path of the library is of no use later.
template <class Io>
void fields(Io& io, BuildResult& b) {
  io.field("built", b.built);
  io.field("log", b.log);
  io.field("warnings", b.warnings);
  io.field("seconds", b.seconds);
  io.field("code_bytes", b.code_bytes);
  io.field("source_lines", b.source_lines);
}

template <class Io>
void fields(Io& io, Binding& b) {
  io.field("functions", b.functions);
  io.field("sources", b.sources);
  io.field("adapter", b.adapter);
  io.field("proposed", b.proposed);
  io.optional_field("lacks", b.lacks);
}

template <class Io>
void fields(Io& io, OwnTests& t) {
  io.field("present", t.present);
  io.field("detail", t.detail);
  io.field("mutants", t.mutants);
  io.field("killed", t.killed);
  io.optional_field("tests", t.tests);
  io.optional_field("asserts", t.asserts);
  io.optional_field("not_ended", t.not_ended);
  io.optional_field("not_run", t.not_run);
  io.optional_field("all_counted", t.all_counted);
}

template <class Io>
void fields(Io& io, Record& r) {
  io.field("schema", r.schema);
  io.field("task", r.task);
  io.field("task_version", r.task_version);
  io.field("contender", r.contender);
  io.optional_field("author", r.author);
  io.field("verdict", r.verdict);
  io.field("verdict_because", r.verdict_because);
  io.field("scores", r.scores);
  io.field("weights", r.weights);
  io.field("path", r.path);
  io.field("language", r.language);
  io.field("source_hash", r.source_hash);
  io.field("binding", r.binding);
  io.field("seed_commitment", r.seed_commitment);
  io.field("seed", r.seed);
  io.field("small", r.small);
  io.field("machine", r.machine);
  io.field("sandbox", r.sandbox);
  io.field("build", r.build);
  io.field("cases", r.cases);
  io.field("relations", r.relations);
  io.field("probes", r.probes);
  io.optional_field("lacks", r.lacks);
  io.optional_field("diagnosis", r.diagnosis);
  io.field("witnesses", r.witnesses);
  io.field("findings", r.findings);
  io.field("speeds", r.speeds);
  io.field("speeds_withheld", r.speeds_withheld);
  io.field("twin", r.twin);
  io.field("memory", r.memory);
  io.field("determinism", r.determinism);
  io.field("own_tests", r.own_tests);
  io.optional_field("traffic", r.traffic);
  io.optional_field("claims", r.claims);
  io.optional_field("documentation", r.documentation);
  io.optional_field("seeds", r.seeds);
  io.field("facts", r.facts);
  io.field("judge_error", r.judge_error);
  io.optional_field("untested", r.untested);
  io.field("seconds", r.seconds);
  io.optional_field("phase_seconds", r.phase_seconds);
}

void check_ids(const Record& record, const std::string& path) {
  std::map<std::string, int> seen;
  for (const auto* cases : {&record.cases, &record.relations}) {
    for (const CaseRecord& c : *cases) {
      if (c.id.empty() || ++seen[c.id] > 1) {
        throw CorruptData(fmt::format("record: {}case id '{}': expected to be unique", path, c.id));
      }
    }
  }
  for (const Witness& witness : record.witnesses) {
    if (!seen.contains(witness.case_id)) {
      throw CorruptData(
          fmt::format("record: {}witness of '{}': no such case", path, witness.case_id));
    }
  }
}

void check_scores(const Record& record, const std::string& path) {
  for (const auto& [dimension, score] : record.scores) {
    if (score.value.has_value() && !(*score.value >= 0.0 && *score.value <= 100.0)) {
      throw CorruptData(fmt::format("record: {}score of {}: expected 0 to 100", path, dimension));
    }
  }
  for (const auto& [dimension, weight] : record.weights) {
    if (!(weight >= 0.0 && std::isfinite(weight))) {
      throw CorruptData(fmt::format("record: {}weight of {}: expected 0 or more", path, dimension));
    }
  }
}

}  // namespace

Json record_to_json(const Record& record) { return FieldWriter::written(record); }

Record json_to_record(const Json& json, const std::string& path) {
  Record record;
  Reader reader(json, path);
  fields(reader, record);
  const std::string within = path.empty() ? "" : path + ": ";
  check_ids(record, within);
  check_scores(record, within);
  return record;
}

}  // namespace touchstone::judge
