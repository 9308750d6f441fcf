#include "cases/cases.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::cases {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// The words of `line` between any of the characters in `separators`.
std::vector<std::string_view> split(std::string_view line, std::string_view separators) {
  std::vector<std::string_view> words;
  std::size_t start = 0;
  while ((start = line.find_first_not_of(separators, start)) != std::string_view::npos) {
    const std::size_t end = std::min(line.find_first_of(separators, start), line.size());
    words.push_back(line.substr(start, end - start));
    start = end;
  }
  return words;
}

template <class T>
std::optional<T> parse_number(std::string_view word) {
  T value{};
  const char* const end = word.data() + word.size();
  const auto read = std::from_chars(word.data(), end, value);
  if (word.empty() || read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return value;
}

struct Shape {
  std::vector<std::int64_t> dims;
  std::string separators;
};

Shape parse_shape(std::string_view text) {
  const auto fail = [&] {
    throw InvalidArgument("shape: expected dimensions of at least 1 as in 64x1024, got '" +
                          std::string(text) + "'");
  };
  Shape shape;
  std::string_view rest = text;
  while (true) {
    const std::size_t end = std::min(rest.find_first_of("x/"), rest.size());
    const auto dim = parse_number<std::int64_t>(rest.substr(0, end));
    if (!dim || *dim < 1) fail();
    shape.dims.push_back(*dim);
    if (end == rest.size()) break;
    shape.separators += rest[end];
    rest.remove_prefix(end + 1);
  }
  if (shape.dims.size() < 2) fail();
  std::int64_t product = 1;
  for (const std::int64_t dim : shape.dims) product = checked_mul(product, dim, "shape");
  return shape;
}

// One line of a list; its number is part of every error.
class Line {
 public:
  Line(std::string_view list, int number, std::string_view text)
      : list_(list), number_(number), words_(split(text.substr(0, text.find('#')), kBlanks)) {}

  bool empty() const { return words_.empty(); }

  void append_to(std::vector<Case>& cases) const {
    if (words_.size() < 5) {
      fail("expected five columns (tier device regime dtypes shape) and options, got " +
           std::to_string(words_.size()));
    }
    Case item;
    try {
      item.tier = parse_tier(words_[0]);
    } catch (const InvalidArgument& error) {
      fail(error.what());
    }
    item.device = device(words_[1]);
    item.regime = regime(words_[2]);
    std::vector<Case> product;
    for (const std::string_view dtype : alternatives(words_[3], "dtypes")) {
      for (const std::string_view shape : alternatives(words_[4], "shape")) {
        item.dtype = read_dtype(dtype);
        item.shape = read_shape(shape);
        product.push_back(item);
      }
    }
    for (std::size_t i = 5; i < words_.size(); ++i) product = with_option(product, words_[i]);
    cases.insert(cases.end(), product.begin(), product.end());
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptData("cases/" + std::string(list_) + ".txt:" + std::to_string(number_) + ": " +
                      what);
  }

  std::optional<DeviceKind> device(std::string_view word) const {
    if (word == "any") return std::nullopt;
    if (word == "cpu") return DeviceKind::cpu;
    if (word == "cuda") return DeviceKind::cuda;
    fail("device: expected cpu or cuda or any, got '" + std::string(word) + "'");
  }

  Regime regime(std::string_view word) const {
    if (word == "cache") return Regime::cache;
    if (word == "memory") return Regime::memory;
    fail("regime: expected cache or memory, got '" + std::string(word) + "'");
  }

  std::vector<std::string_view> alternatives(std::string_view word, const char* what) const {
    std::vector<std::string_view> result = split(word, ",");
    if (result.empty()) fail(std::string(what) + ": expected at least one, got none");
    return result;
  }

  DType read_dtype(std::string_view name) const {
    try {
      return parse_dtype(name);
    } catch (const InvalidArgument& error) {
      fail(error.what());
    }
  }

  std::string read_shape(std::string_view shape) const {
    try {
      parse_shape(shape);
    } catch (const InvalidArgument& error) {
      fail(error.what());
    }
    return std::string(shape);
  }

  std::vector<Case> with_option(const std::vector<Case>& cases, std::string_view word) const {
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fail("option: expected key=value, got '" + std::string(word) + "'");
    }
    const std::string key(word.substr(0, equals));
    std::vector<Case> result;
    for (const Case& item : cases) {
      if (item.options.contains(key)) fail("option: " + key + " is given twice");
      for (const std::string_view value : alternatives(word.substr(equals + 1), key.c_str())) {
        result.push_back(item);
        result.back().options[key] = value;
      }
    }
    return result;
  }

  std::string_view list_;
  int number_;
  std::vector<std::string_view> words_;
};

bool selects(Tier wanted, Tier tier) {
  if (wanted == Tier::full) return tier == Tier::smoke || tier == Tier::full;
  if (wanted == Tier::sweep) return tier == Tier::check || tier == Tier::sweep;
  return tier == wanted;
}

[[noreturn]] void bad_option(const std::string& key, const std::string& value,
                             const std::string& what) {
  throw InvalidArgument(key + ": expected " + what + ", got '" + value + "'");
}

}  // namespace

std::string Case::describe() const {
  std::string result = shape + " " + std::string(touchstone::name_of(dtype));
  for (const auto& [key, value] : options) result += " " + key + "=" + value;
  return result;
}

std::vector<std::int64_t> Case::dims(std::string_view pattern) const {
  Shape parsed = parse_shape(shape);
  if (parsed.separators != pattern) {
    std::string example = "8";
    for (const char separator : pattern) example += std::string(1, separator) + "8";
    throw InvalidArgument("shape: expected one as " + example + ", got '" + shape + "'");
  }
  return parsed.dims;
}

std::string Case::text(const std::string& key, const std::string& otherwise) const {
  const auto found = options.find(key);
  return found == options.end() ? otherwise : found->second;
}

std::int64_t Case::integer(const std::string& key, std::int64_t otherwise) const {
  const auto found = options.find(key);
  if (found == options.end()) return otherwise;
  const auto value = parse_number<std::int64_t>(found->second);
  if (!value || *value < 0) bad_option(key, found->second, "a number from 0 on");
  return *value;
}

double Case::number(const std::string& key, double otherwise) const {
  const auto found = options.find(key);
  if (found == options.end()) return otherwise;
  const auto value = parse_number<double>(found->second);
  if (!value || !std::isfinite(*value)) bad_option(key, found->second, "a finite number");
  return *value;
}

bool Case::flag(const std::string& key, bool otherwise) const {
  const std::string value = text(key, otherwise ? "1" : "0");
  if (value != "0" && value != "1") bad_option(key, value, "0 or 1");
  return value == "1";
}

std::size_t Case::choice(const std::string& key, const std::vector<std::string>& names) const {
  const auto given = options.find(key);
  if (given == options.end()) return 0;
  const auto found = std::ranges::find(names, given->second);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  std::string list = names[0];
  for (std::size_t i = 1; i < names.size(); ++i) {
    list += (i + 1 == names.size() ? " or " : ", ") + names[i];
  }
  bad_option(key, given->second, list);
}

DType Case::dtype_option(const std::string& key, DType otherwise) const {
  const auto found = options.find(key);
  return found == options.end() ? otherwise : parse_dtype(found->second);
}

void Case::check_options(std::initializer_list<std::string_view> known) const {
  for (const auto& [key, value] : options) {
    if (std::ranges::find(known, key) == known.end()) {
      throw InvalidArgument("option: '" + key + "' is not known");
    }
  }
}

std::string_view name_of(Tier tier) {
  constexpr std::string_view kNames[] = {"smoke", "full", "check", "sweep"};
  return kNames[static_cast<std::size_t>(tier)];
}

std::string_view name_of(Regime regime) { return regime == Regime::cache ? "cache" : "memory"; }

Tier parse_tier(std::string_view name) {
  for (const Tier tier : {Tier::smoke, Tier::full, Tier::check, Tier::sweep}) {
    if (name == name_of(tier)) return tier;
  }
  throw InvalidArgument("tier: expected smoke, full, check or sweep, got '" + std::string(name) +
                        "'");
}

std::vector<Case> parse(std::string_view name, std::string_view text) {
  std::vector<Case> cases;
  int number = 1;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const Line line(name, number++, text.substr(0, end));
    if (!line.empty()) line.append_to(cases);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return cases;
}

std::vector<Case> select(std::string_view name, const Selection& selection) {
  const std::string_view list = text(name);
  if (list.empty()) {
    throw InvalidArgument("cases: there is no list '" + std::string(name) + "'");
  }
  std::vector<Case> selected;
  for (Case item : parse(name, list)) {
    if (!selects(selection.tier, item.tier)) continue;
    if (item.device && *item.device != selection.device) continue;
    item.device = selection.device;
    if (selection.dtype) item.dtype = *selection.dtype;
    for (const auto& [key, value] : selection.options) item.options[key] = value;
    const bool repeated = std::ranges::any_of(selected, [&](const Case& other) {
      return other.dtype == item.dtype && other.regime == item.regime &&
             other.shape == item.shape && other.options == item.options;
    });
    if (!repeated) selected.push_back(item);
  }
  return selected;
}

}  // namespace touchstone::cases
