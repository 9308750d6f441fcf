// The case lists of this folder, compiled into the program so that it needs no files beside it.
//
// One case per line, five columns and for some operators a sixth, '#' starts a comment:
//
//   tier   device  regime  dtypes    shape    k
//   smoke  cpu     cache   f32,bf16  64x1024  8
//
// tier    smoke: a look of some seconds; full: everything, the smoke cases included
// regime  cache: the data of one call stays in the caches from call to call; memory: it does not
// dtypes  one case each
// shape   rows x cols
// k       how many per row an operator that selects is asked for; kDefaultK where it is left out
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "touchstone/core/device.h"
#include "touchstone/core/dtype.h"

namespace touchstone::cases {

enum class Tier : std::uint8_t { smoke, full };
enum class Regime : std::uint8_t { cache, memory };

// What samplers usually ask for.
inline constexpr std::int64_t kDefaultK = 50;

struct Case {
  Tier tier = Tier::smoke;
  DeviceKind device = DeviceKind::cpu;
  Regime regime = Regime::memory;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = kDefaultK;

  friend bool operator==(const Case&, const Case&) = default;
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
  std::optional<DType> dtype;
  // Every shape once, with this k, or as many as there are columns, instead of those listed.
  std::optional<std::int64_t> k{};
};

// The cases a run has to do. InvalidArgument when there is no list of that name.
std::vector<Case> select(std::string_view name, const Selection& selection);

}  // namespace touchstone::cases
