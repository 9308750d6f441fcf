// The case lists of this directory, compiled into the program so that it needs no files beside it.
// One grammar for all operators, one line per case, '#' starts a comment:
//
//   tier   device  regime  dtypes    shape     options
//   smoke  cpu     cache   f32,bf16  64x1024   k=8
//
// tier     smoke: benchmarks that take seconds; full: all benchmarks, the smoke cases included;
//          check: small, for `touchstone selfcheck` and the sweep of the tests; sweep: tests only
// device   cpu, cuda, or any
// regime   cache: the data of one call stays in the caches from call to call; memory: it does not
// shape    dimensions separated by x; a/b in one dimension: query heads and KV heads
// options  key=value, defined by the specification of the operator (spec/)
//
// Commas in dtypes, shape and options separate alternatives; a line stands for their product.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/device.h"
#include "touchstone/core/dtype.h"

namespace touchstone::cases {

enum class Tier : std::uint8_t { smoke, full, check, sweep };
enum class Regime : std::uint8_t { cache, memory };

struct Case {
  Tier tier = Tier::smoke;
  std::optional<DeviceKind> device = DeviceKind::cpu;  // none: any
  Regime regime = Regime::memory;
  DType dtype = DType::f32;
  std::string shape{};
  std::map<std::string, std::string> options{};

  friend bool operator==(const Case&, const Case&) = default;

  // "64x1024 bf16 k=8"
  std::string describe() const;

  // The dimensions of the shape; `pattern` is what stands between them, as in "x" for 64x1024 or
  // "x/xx" for 1x16/4x1024x128. InvalidArgument unless it matches and all are at least 1.
  std::vector<std::int64_t> dims(std::string_view pattern) const;
  // Options by type. InvalidArgument names the option and the value.
  std::string text(const std::string& key, const std::string& otherwise) const;
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  double number(const std::string& key, double otherwise) const;
  bool flag(const std::string& key, bool otherwise) const;  // 0 or 1
  // The index of the value among `names`; 0 where the option is not given.
  std::size_t choice(const std::string& key, const std::vector<std::string>& names) const;
  DType dtype_option(const std::string& key, DType otherwise) const;
  // InvalidArgument when there is an option that is not among these.
  void check_options(std::initializer_list<std::string_view> known) const;
};

std::string_view name_of(Tier tier);
std::string_view name_of(Regime regime);
// InvalidArgument lists the known names.
Tier parse_tier(std::string_view name);

// The text of cases/<name>.txt; empty when there is no such list.
std::string_view text(std::string_view name);

// Every case of a list, in its order. CorruptData names the list and the line.
std::vector<Case> parse(std::string_view name, std::string_view text);

struct Selection {
  Tier tier = Tier::smoke;
  DeviceKind device = DeviceKind::cpu;
  // Every shape once, with this dtype instead of those listed.
  std::optional<DType> dtype{};
  // Every shape once, with these options instead of those listed.
  std::map<std::string, std::string> options{};
};

// The cases a run has to do: full includes smoke, sweep includes check. InvalidArgument when there
// is no list of that name.
std::vector<Case> select(std::string_view name, const Selection& selection);

}  // namespace touchstone::cases
