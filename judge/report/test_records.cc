#include "judge/report/test_records.h"

namespace touchstone::judge {
namespace {

CaseRecord passed_case(const std::string& id, const std::string& family, int64_t cols,
                       std::vector<std::string> probes, double bits) {
  CaseRecord c;
  c.id = id;
  c.spec = {family, {{"rows", 3}, {"cols", cols}}, 7};
  c.probes = std::move(probes);
  c.check.passed = true;
  OutputError error;
  error.output = "dx";
  error.worst = 0.25;
  error.worst_bits = bits;
  error.count = 3 * cols;
  c.check.errors.push_back(error);
  return c;
}

SpeedRecord speed(const std::string& id, int64_t rows, double seconds) {
  SpeedRecord s;
  s.id = id;
  s.shape = {"mixed", {{"rows", rows}, {"cols", 1024}}, 11};
  s.seconds = {seconds, 0.98 * seconds, 1.03 * seconds, 40};
  s.ratio_to["naive"] = {0.5, 0.49, 0.52, 40};
  s.fastest_seconds = seconds;
  s.bytes = 1e6;
  s.flops = 2e5;
  s.copy_seconds = s.floor_seconds = 0.4 * seconds;
  s.compute_seconds = 0.1 * seconds;
  s.share_of_roof = 0.4;
  s.roof = "copy";
  return s;
}

}  // namespace

Record sample_record(const std::string& contender, const std::string& task) {
  Record r;
  r.task = task;
  r.contender = contender;
  r.path = "contenders/" + task + "/" + contender;
  r.language = "cpp";
  r.source_hash = std::string(64, 'a');
  r.binding.functions = {{"layer_norm_forward", "layer_norm_forward"}};
  r.binding.sources = {"layer_norm.cc"};
  r.seed_commitment = std::string(64, 'b');
  r.seed = 0xfedcba9876543210U;
  r.machine = {{"cpu", "a CPU"}, {"date", "2026-01-31T12:34:56Z"}};
  r.sandbox.namespaces = r.sandbox.seccomp = r.sandbox.limits = true;
  r.build.built = true;
  r.build.source_lines = 120;
  r.build.code_bytes = 16384;
  r.cases = {passed_case("c1", "nominal", 5, {}, 1.0),
             passed_case("c2", "nominal", 64, {"any_shape"}, 1.5),
             passed_case("c3", "shifted_mean", 64, {"shifted"}, 2.0),
             passed_case("c4", "tile", 1025, {"any_shape"}, 1.0)};
  r.cases[2].spec.parameters["mean10"] = 4;
  CaseRecord relation = passed_case("r1", "nominal", 8, {}, 0.0);
  relation.title = "rows permuted";
  r.relations = {relation};
  r.probes = {{{"any_shape", "any shape", "completeness", false}, true, true, {}},
              {{"shifted", "a mean far from zero", "stability", false}, true, true, {}},
              {{"quantised", "a quantised cache", "completeness", true}, true, true, {}}};
  r.speeds = {speed("s1", 64, 20e-6), speed("s2", 4096, 3e-3)};
  r.twin = Interval{1.003, 0.996, 1.011, 80};
  r.memory.parameter = "rows";
  r.memory.ladder = {
      {256, 1 << 20, 4096, 0}, {1024, 4 << 20, 16384, 0}, {4096, 16 << 20, 65536, 0}};
  r.memory.exponent = 1.0;
  r.memory.leaked_bytes_per_call = 0.0;
  r.determinism = {4, 4, 4, {}};
  r.facts = {{"warnings", "0"}};
  r.weights = {{"correctness", 4}, {"completeness", 2}, {"stability", 2},   {"speed", 3},
               {"memory", 1},      {"robustness", 2},   {"determinism", 1}, {"code", 0.5}};
  r.seconds = 12.5;
  return r;
}

void fail_case(Record& record, std::size_t index, const std::string& reason) {
  CaseRecord& c = record.cases.at(index);
  c.check.passed = false;
  c.check.reason = reason;
  c.check.errors.front().worst = 1e6;
  c.check.errors.front().outside = 1;
  c.check.errors.front().first = 0;
  CaseSpec smallest = c.spec;
  smallest.parameters["rows"] = 1;
  record.witnesses.push_back(
      {c.id, smallest, reason, "touchstone judge " + record.path + " --replay '...'"});
}

}  // namespace touchstone::judge
