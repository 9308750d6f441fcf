#include "touchstone/plan/catalog.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "plan/tables.h"
#include "text/edit_distance.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::plan {
namespace {

constexpr std::size_t kNearestShown = 4;
constexpr std::size_t kLongestName = 100;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <class T>
bool read_number(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

// One line of a table, with its position for error messages.
class Row {
 public:
  Row(const char* table, int number, std::string_view line, std::size_t columns)
      : table_(table), number_(number), cells_(split(line, '|')) {
    // The note at the end may be left out.
    if (cells_.size() == columns - 1) cells_.emplace_back();
    if (cells_.size() != columns) {
      fail(fmt::format("expected {} columns, got {}", columns, cells_.size()));
    }
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw CorruptData(fmt::format("data/{}.txt:{}: {}", table_, number_, what));
  }

  std::string text(std::size_t column) const { return std::string(cells_[column]); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const std::string_view name : split(cells_[0], ',')) names.emplace_back(name);
    return names;
  }

  std::int64_t integer(std::size_t column, std::int64_t least) const {
    return integer(cells_[column], least);
  }

  std::int64_t integer(std::string_view text, std::int64_t least) const {
    std::int64_t value = 0;
    if (!read_number(text, value) || value < least) {
      fail(fmt::format("expected a whole number of at least {}, got '{}'", least, text));
    }
    return value;
  }

  double real(std::string_view text) const {
    double value = 0;
    if (!read_number(text, value) || !std::isfinite(value) || value <= 0) {
      fail(fmt::format("expected a positive number, got '{}'", text));
    }
    return value;
  }

  // "62 x 16 x 128/128 @ 1024" or "61 x 1 x 576/=512".
  CachedLayers layers(std::string_view text) const {
    CachedLayers layers;
    const std::vector<std::string_view> halves = split(text, '@');
    const std::vector<std::string_view> factors = split(halves[0], 'x');
    if (halves.size() > 2 || factors.size() != 3) {
      fail(fmt::format("expected layers x heads x key/value [@ window], got '{}'", text));
    }
    const std::vector<std::string_view> widths = split(factors[2], '/');
    if (widths.size() != 2) fail(fmt::format("expected key/value, got '{}'", factors[2]));
    layers.layers = integer(factors[0], 1);
    layers.kv_heads = integer(factors[1], 1);
    layers.k_dim = integer(widths[0], 1);
    layers.k_is_v = widths[1].starts_with('=');
    layers.v_dim = integer(widths[1].substr(layers.k_is_v ? 1 : 0), 1);
    if (halves.size() == 2) layers.window = integer(halves[1], 1);
    return layers;
  }

  std::vector<CachedLayers> all_layers(std::size_t column) const {
    std::vector<CachedLayers> all;
    for (const std::string_view part : split(cells_[column], ',')) all.push_back(layers(part));
    return all;
  }

  std::int64_t memory(std::size_t column) const {
    const std::vector<std::string_view> words = split(cells_[column], ' ');
    if (words.size() != 2 || (words[1] != "MiB" && words[1] != "GiB")) {
      fail(fmt::format("memory: expected a number of MiB or GiB, got '{}'", cells_[column]));
    }
    return integer(words[0], 1) << (words[1] == "MiB" ? 20 : 30);
  }

 private:
  const char* table_;
  int number_;
  std::vector<std::string_view> cells_;
};

template <class Visit>
void for_each_row(const char* table, std::string_view text, std::size_t columns, Visit&& visit) {
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    if (!line.empty() && !line.starts_with('#')) visit(Row(table, number, line, columns));
  }
}

// "H100 SXM 80GB" and "h100-sxm-80gb" are the same name.
std::string plain(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') letters += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) letters += c;
  }
  return letters;
}

struct Candidate {
  std::size_t distance;
  const std::string* name;
};

template <class Entry>
const auto& find(const std::vector<Entry>& entries, std::string_view name, const char* what) {
  const std::string wanted = plain(name.substr(0, kLongestName));
  std::vector<const Entry*> beginnings;
  std::vector<Candidate> candidates;
  for (const Entry& entry : entries) {
    bool begins = false;
    for (const std::string& known : entry.names) {
      const std::string letters = plain(known);
      if (letters == wanted) return entry.spec;
      const bool begins_so = !wanted.empty() && letters.starts_with(wanted);
      begins = begins || begins_so;
      candidates.push_back({begins_so ? 0 : edit_distance(wanted, letters), &known});
    }
    if (begins) beginnings.push_back(&entry);
  }
  if (beginnings.size() == 1) return beginnings.front()->spec;
  std::ranges::stable_sort(candidates, {}, &Candidate::distance);
  candidates.resize(std::min(candidates.size(), std::max(kNearestShown, beginnings.size())));
  std::vector<std::string_view> nearest;
  nearest.reserve(candidates.size());
  for (const Candidate& candidate : candidates) nearest.push_back(*candidate.name);
  throw InvalidArgument(
      fmt::format("plan: --{}: {} '{}'; nearest: {} (--list shows all)", what,
                  beginnings.empty() ? "there is no" : "more than one begins with",
                  name.substr(0, kLongestName), fmt::join(nearest, ", ")));
}

}  // namespace

std::vector<ModelEntry> parse_models(std::string_view text) {
  std::vector<ModelEntry> entries;
  for_each_row("models", text, 13, [&](const Row& row) {
    ModelEntry entry;
    entry.names = row.names();
    ModelSpec& spec = entry.spec;
    spec.name = entry.names.front();
    spec.parameters = row.integer(1, 1);
    spec.active_parameters = row.integer(2, 1);
    spec.parameters_basis = row.text(3);
    spec.hidden = row.integer(4, 1);
    spec.vocabulary = row.integer(5, 1);
    spec.query_heads = row.integer(6, 1);
    spec.native_context = row.integer(7, 1);
    spec.cached = row.all_layers(8);
    spec.other_layers = row.integer(9, 0);
    spec.state_bytes = row.integer(10, 0);
    spec.source = row.text(11);
    spec.note = row.text(12);
    entries.push_back(std::move(entry));
  });
  return entries;
}

std::vector<GpuEntry> parse_gpus(std::string_view text) {
  std::vector<GpuEntry> entries;
  for_each_row("gpus", text, 6, [&](const Row& row) {
    GpuEntry entry;
    entry.names = row.names();
    GpuSpec& spec = entry.spec;
    spec.name = entry.names.front();
    spec.memory_bytes = row.memory(1);
    spec.bytes_per_second = row.real(row.text(2)) * 1e9;
    spec.flops = row.text(3) == "-" ? 0 : row.real(row.text(3)) * 1e12;
    spec.source = row.text(4);
    spec.note = row.text(5);
    entries.push_back(std::move(entry));
  });
  return entries;
}

const std::vector<ModelEntry>& models() {
  static const std::vector<ModelEntry> kModels = parse_models(text("models"));
  return kModels;
}

const std::vector<GpuEntry>& gpus() {
  static const std::vector<GpuEntry> kGpus = parse_gpus(text("gpus"));
  return kGpus;
}

const ModelSpec& find_model(std::string_view name) {
  return find(models(), name.substr(name.rfind('/') + 1), "model");
}

const GpuSpec& find_gpu(std::string_view name) { return find(gpus(), name, "gpu"); }

}  // namespace touchstone::inline v0::plan
