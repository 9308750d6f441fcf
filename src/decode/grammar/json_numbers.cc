// Ranges of numbers as expressions.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "decode/grammar/json_schema.h"

namespace touchstone::inline v0::decode::grammar {
namespace {

std::string digit_range(char first, char last) {
  return first == last ? fmt::format("\"{}\"", first) : fmt::format("[{}-{}]", first, last);
}

std::string any_digits(std::size_t count) {
  return count == 0 ? "" : count == 1 ? " [0-9]" : fmt::format(" [0-9]{{{}}}", count);
}

// All texts of digits from `low` to `high`, which have the same length.
std::string same_length(std::string_view low, std::string_view high) {
  if (low.size() == 1) return digit_range(low[0], high[0]);
  if (low[0] == high[0]) {
    return fmt::format("\"{}\" ({})", low[0], same_length(low.substr(1), high.substr(1)));
  }
  const std::size_t rest = low.size() - 1;
  const std::string nines(rest, '9');
  const std::string zeros(rest, '0');
  std::vector<std::string> parts;
  char first = low[0];
  char last = high[0];
  if (low.substr(1) != zeros) {
    parts.push_back(fmt::format("\"{}\" ({})", first, same_length(low.substr(1), nines)));
    ++first;
  }
  std::string upper;
  if (high.substr(1) != nines) {
    upper = fmt::format("\"{}\" ({})", last, same_length(zeros, high.substr(1)));
    --last;
  }
  if (first <= last) parts.push_back(digit_range(first, last) + any_digits(rest));
  if (!upper.empty()) parts.push_back(upper);
  return fmt::format("{}", fmt::join(parts, " | "));
}

constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};

// Natural numbers from `low` on; to `high`, or of at most `digits` digits.
std::string natural(std::uint64_t low, std::uint64_t high, int digits) {
  std::vector<std::string> parts;
  std::string begin = std::to_string(low);
  const auto most = static_cast<std::size_t>(digits);
  while (true) {
    const std::string nines(begin.size(), '9');
    const std::string end = std::to_string(high);
    if (high != kNoEnd && end.size() == begin.size()) {
      parts.push_back(same_length(begin, end));
      break;
    }
    parts.push_back(same_length(begin, nines));
    if (high == kNoEnd) {
      // Longer ones are all larger.
      if (begin.size() < most) {
        parts.push_back(fmt::format("[1-9] [0-9]{{{},{}}}", begin.size(), most - 1));
      }
      break;
    }
    begin.assign(begin.size() + 1, '0');
    begin[0] = '1';
  }
  return fmt::format("{}", fmt::join(parts, " | "));
}

std::uint64_t magnitude(std::int64_t value) {
  return value < 0 ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
}

std::string joined(const std::vector<std::string>& parts) {
  return fmt::format("({})", fmt::join(parts, " | "));
}

// Magnitudes between `low` and `high` with fractions; the bounds themselves where they belong to it.
void add_fractions(std::uint64_t low, bool with_low, std::uint64_t high, bool with_high, int digits,
                   const char* sign, std::vector<std::string>& parts) {
  const int whole_digits = digits;
  // Few enough digits that no number rounds, as a double, to the bound that it must exclude.
  const std::size_t longest = std::to_string(high == kNoEnd ? low : high).size();
  digits = std::clamp(15 - static_cast<int>(longest), 1, digits);
  const std::string fraction = fmt::format("(\".\" [0-9]{{1,{}}})?", digits);
  const std::string zeros = fmt::format("(\".\" \"0\"{{1,{}}})?", digits);
  const std::string more =
      digits > 1 ? fmt::format("\".\" [0-9]{{0,{}}} [1-9]", digits - 1) : "\".\" [1-9]";
  if (low > high) return;
  if (low == high) {
    if (with_low && with_high) parts.push_back(fmt::format("{}\"{}\" {}", sign, low, zeros));
    return;
  }
  parts.push_back(fmt::format("{}\"{}\" {}", sign, low, with_low ? fraction : more));
  if (low + 1 <= high - 1) {
    const std::uint64_t last = high == kNoEnd ? kNoEnd : high - 1;
    parts.push_back(fmt::format("{}({}) {}", sign, natural(low + 1, last, whole_digits), fraction));
  }
  if (high != kNoEnd && with_high) {
    parts.push_back(fmt::format("{}\"{}\" {}", sign, high, zeros));
  }
}

}  // namespace

std::string integer_expression(std::optional<std::int64_t> low, std::optional<std::int64_t> high,
                               int digits) {
  std::vector<std::string> parts;
  if (!low || *low < 0) {
    const std::uint64_t nearest = high && *high < 0 ? magnitude(*high) : 1;
    const std::uint64_t farthest = low ? magnitude(*low) : kNoEnd;
    parts.push_back(fmt::format("\"-\" ({})", natural(nearest, farthest, digits)));
  }
  if (!high || *high >= 0) {
    const std::uint64_t nearest = low && *low > 0 ? magnitude(*low) : 0;
    const std::uint64_t farthest = high ? magnitude(*high) : kNoEnd;
    parts.push_back(natural(nearest, farthest, digits));
  }
  return joined(parts);
}

std::string number_expression(const NumberBounds& bounds, int digits) {
  if (!bounds.low && !bounds.high) {
    return fmt::format(
        "\"-\"? (\"0\" | [1-9] [0-9]{{0,{}}}) (\".\" [0-9]{{1,{}}})? ([eE] [-+]? [0-9]{{1,2}})?",
        digits - 1, digits);
  }
  std::vector<std::string> parts;
  if (!bounds.low || *bounds.low < 0) {
    const bool negative = bounds.high && *bounds.high < 0;
    // Zero has no sign here; what is just below it has.
    const std::uint64_t nearest = negative ? magnitude(*bounds.high) : 0;
    const std::uint64_t farthest = bounds.low ? magnitude(*bounds.low) : kNoEnd;
    add_fractions(nearest, negative && !bounds.below_high, farthest, !bounds.above_low, digits,
                  "\"-\" ", parts);
  }
  if (!bounds.high || *bounds.high >= 0) {
    const bool positive = bounds.low && *bounds.low > 0;
    const bool at_zero = bounds.low && *bounds.low == 0;
    const std::uint64_t nearest = positive ? magnitude(*bounds.low) : 0;
    const std::uint64_t farthest = bounds.high ? magnitude(*bounds.high) : kNoEnd;
    add_fractions(nearest, !((positive || at_zero) && bounds.above_low), farthest,
                  !bounds.below_high, digits, "", parts);
  }
  return parts.empty() ? "" : joined(parts);
}

}  // namespace touchstone::inline v0::decode::grammar
