#include "cases/cases.h"

#include <algorithm>
#include <charconv>
#include <string>

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

// One line of a list; knows where it stands so that a mistake can be found.
class Line {
 public:
  Line(std::string_view list, int number, std::string_view text)
      : list_(list), number_(number), words_(split(text.substr(0, text.find('#')), kBlanks)) {}

  bool empty() const { return words_.empty(); }

  void append_to(std::vector<Case>& cases) const {
    if (words_.size() != 5 && words_.size() != 6) {
      fail("expected five columns (tier device regime dtypes shape), or six with k, got " +
           std::to_string(words_.size()));
    }
    Case item;
    item.tier = word<Tier>(0, {{"smoke", Tier::smoke}, {"full", Tier::full}}, "tier");
    item.device =
        word<DeviceKind>(1, {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}}, "device");
    item.regime = word<Regime>(2, {{"cache", Regime::cache}, {"memory", Regime::memory}}, "regime");
    read_shape(words_[4], item);
    if (words_.size() == 6) read_k(words_[5], item);
    const std::vector<std::string_view> dtypes = split(words_[3], ",");
    if (dtypes.empty()) fail("dtypes: expected at least one, got none");
    for (const std::string_view dtype : dtypes) {
      item.dtype = read_dtype(dtype);
      cases.push_back(item);
    }
  }

 private:
  template <class T>
  struct Choice {
    std::string_view name;
    T value;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw CorruptData("cases/" + std::string(list_) + ".txt:" + std::to_string(number_) + ": " +
                      what);
  }

  template <class T>
  T word(std::size_t column, std::initializer_list<Choice<T>> choices, const char* what) const {
    std::string known;
    for (const Choice<T>& choice : choices) {
      if (choice.name == words_[column]) return choice.value;
      known += (known.empty() ? "" : " or ") + std::string(choice.name);
    }
    fail(std::string(what) + ": expected " + known + ", got '" + std::string(words_[column]) + "'");
  }

  DType read_dtype(std::string_view name) const {
    try {
      return parse_dtype(name);
    } catch (const InvalidArgument& error) {
      fail(error.what());
    }
  }

  void read_shape(std::string_view shape, Case& item) const {
    const char* end = shape.data() + shape.size();
    const auto rows = std::from_chars(shape.data(), end, item.rows);
    bool good = rows.ec == std::errc{} && rows.ptr != end && *rows.ptr == 'x';
    if (good) {
      const auto cols = std::from_chars(rows.ptr + 1, end, item.cols);
      good = cols.ec == std::errc{} && cols.ptr == end && item.rows > 0 && item.cols > 0;
    }
    if (!good) fail("shape: expected rows x cols as in 64x1024, got '" + std::string(shape) + "'");
    try {
      checked_mul(item.rows, item.cols, "shape");
    } catch (const InvalidArgument& error) {
      fail(error.what());
    }
  }

  void read_k(std::string_view k, Case& item) const {
    const char* end = k.data() + k.size();
    const auto read = std::from_chars(k.data(), end, item.k);
    if (read.ec != std::errc{} || read.ptr != end || item.k < 1 || item.k > item.cols) {
      fail("k: expected a number from 1 to the columns, got '" + std::string(k) + "'");
    }
  }

  std::string_view list_;
  int number_;
  std::vector<std::string_view> words_;
};

}  // namespace

std::string_view name_of(Tier tier) { return tier == Tier::smoke ? "smoke" : "full"; }

std::string_view name_of(Regime regime) { return regime == Regime::cache ? "cache" : "memory"; }

Tier parse_tier(std::string_view name) {
  if (name == "smoke") return Tier::smoke;
  if (name == "full") return Tier::full;
  throw InvalidArgument("case: expected smoke or full, got '" + std::string(name) + "'");
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
    if (selection.tier == Tier::smoke && item.tier != Tier::smoke) continue;
    if (item.device != selection.device) continue;
    if (selection.dtype) item.dtype = *selection.dtype;
    if (selection.k) item.k = std::min(*selection.k, item.cols);
    const bool seen = std::ranges::any_of(selected, [&](const Case& other) {
      return other.dtype == item.dtype && other.regime == item.regime && other.rows == item.rows &&
             other.cols == item.cols && other.k == item.k;
    });
    if (!seen) selected.push_back(item);
  }
  return selected;
}

}  // namespace touchstone::cases
