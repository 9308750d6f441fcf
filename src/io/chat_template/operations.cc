// Python's operations on values: comparison, arithmetic, iteration, slices.
#include <algorithm>
#include <cmath>
#include <limits>

#include "io/chat_template/lexer.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

// Walks over values recurse, so that what is nested must end.
constexpr int kMaxValueDepth = 100;
// Of jinja2's sandbox.
constexpr std::int64_t kMaxRange = 100'000;

template <class Items>
int depth_over(const Items& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_quotient(double a, double b) {
  const double rest = floor_modulo(a, b);
  const double quotient = (a - rest) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

}  // namespace

void Runtime::fail(TemplateFault fault, const std::string& problem) const {
  const Place place = place_of(source_, at_);
  throw TemplateError(fault, place.line, place.column, problem);
}

void Runtime::out_of_steps() const {
  fail(TemplateFault::limit, "more than " + std::to_string(limits_.max_steps) + " steps");
}

void Runtime::bad_operands(const char* sign, const Value& a, const Value& b) const {
  if (a.is_undefined() || b.is_undefined()) {
    fail(std::string("an operand of '") + sign + "' is undefined");
  }
  fail(std::string("unsupported operands of '") + sign + "': " + type_name(a) + " and " +
       type_name(b));
}

// No text is of use that is longer than the output may be.
void Runtime::check_size(std::size_t bytes) const {
  if (bytes > limits_.max_output_bytes) {
    fail(TemplateFault::limit,
         "a text of more than " + std::to_string(limits_.max_output_bytes) + " bytes");
  }
}

Value Runtime::text(std::string text, bool markup) {
  charge_bytes(text.size() + 64);
  check_size(text.size());
  return Value::of_text(std::move(text), markup);
}

Value Runtime::sequence(Kind kind, std::vector<Value> items) {
  charge_values(items.size());
  auto object = std::make_shared<Sequence>();
  object->depth = depth_over(items);
  if (object->depth > kMaxValueDepth) {
    fail(TemplateFault::limit,
         "values nested deeper than " + std::to_string(kMaxValueDepth) + " levels");
  }
  object->items = std::move(items);
  return Value::of_object(kind, std::move(object));
}

Value Runtime::dict(std::vector<std::pair<Value, Value>> members) {
  charge_values(members.size() * 2);
  auto object = std::make_shared<Dict>();
  for (const auto& [key, value] : members) {
    object->depth = std::max(object->depth, std::max(key.depth(), value.depth()) + 1);
  }
  if (object->depth > kMaxValueDepth) {
    fail(TemplateFault::limit,
         "values nested deeper than " + std::to_string(kMaxValueDepth) + " levels");
  }
  object->members = std::move(members);
  return Value::of_object(Kind::dict, std::move(object));
}

Value Runtime::generator(const Value& source, Iterator next) {
  charge_values(8);
  auto object = std::make_shared<Generator>();
  object->depth = source.depth() + 1;
  if (object->depth > kMaxValueDepth) {
    fail(TemplateFault::limit,
         "filters nested deeper than " + std::to_string(kMaxValueDepth) + " levels");
  }
  object->next = std::move(next);
  return Value::of_object(Kind::generator, std::move(object));
}

Value Runtime::range(std::int64_t start, std::int64_t stop, std::int64_t step) {
  if (step == 0) fail("range: the step must not be zero");
  // In unsigned numbers, whose difference does not overflow.
  const auto from = static_cast<std::uint64_t>(start);
  const auto to = static_cast<std::uint64_t>(stop);
  std::uint64_t count = 0;
  if (step > 0 && start < stop) count = (to - from - 1) / static_cast<std::uint64_t>(step) + 1;
  if (step < 0 && start > stop) {
    count = (from - to - 1) / (std::uint64_t{0} - static_cast<std::uint64_t>(step)) + 1;
  }
  if (count > static_cast<std::uint64_t>(kMaxRange)) {
    fail("range: more than " + std::to_string(kMaxRange) + " elements");
  }
  charge_values(count);
  auto object = std::make_shared<Range>();
  object->start = start;
  object->stop = stop;
  object->step = step;
  object->items.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    object->items.push_back(
        Value::of(static_cast<std::int64_t>(from + i * static_cast<std::uint64_t>(step))));
  }
  return Value::of_object(Kind::range, std::move(object));
}

namespace {

// Python compares whole numbers with floating-point ones exactly.
static_assert(std::numeric_limits<long double>::digits >= 64);
long double exact(const Value& number) {
  return number.is_integral() ? static_cast<long double>(number.integer())
                              : static_cast<long double>(number.floating());
}

}  // namespace

bool Runtime::equal(const Value& a, const Value& b) {
  charge(1);
  if (a.is_number() && b.is_number()) {
    return exact(a) == exact(b);
  }
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) return equal_text(a.text(), b.text());
  if (a.is(Kind::dict)) {
    if (a.members().size() != b.members().size()) return false;
    return std::ranges::all_of(a.members(), [&](const auto& member) {
      const Value* other = find_member(b, member.first);
      return other != nullptr && equal(member.second, *other);
    });
  }
  if (a.is_sequence() && !a.is(Kind::values)) {
    return std::ranges::equal(a.items(), b.items(),
                              [&](const Value& x, const Value& y) { return equal(x, y); });
  }
  return a.same_as(b);
}

bool Runtime::less(const Value& a, const Value& b) {
  charge(1);
  if (a.is_number() && b.is_number()) {
    return exact(a) < exact(b);
  }
  if (a.is_string() && b.is_string()) {
    charge_bytes(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // bytes of UTF-8 are in the order of code points
  }
  if (a.kind() == b.kind() && (a.is(Kind::list) || a.is(Kind::tuple))) {
    const std::size_t count = std::min(a.items().size(), b.items().size());
    for (std::size_t i = 0; i < count; ++i) {
      if (!equal(a.items()[i], b.items()[i])) return less(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size();
  }
  bad_operands("<", a, b);
}

bool Runtime::is_hashable(const Value& value) {
  charge(1);
  if (value.is(Kind::tuple)) {
    return std::ranges::all_of(value.items(), [&](const Value& item) { return is_hashable(item); });
  }
  return !value.is(Kind::list) && !value.is(Kind::dict) && !value.is(Kind::keys) &&
         !value.is(Kind::items);
}

bool Runtime::contains(const Value& container, const Value& element) {
  if (container.is_string()) {
    if (!element.is_string()) {
      fail(std::string("'in' of a string needs a string, not ") + type_name(element));
    }
    charge_bytes(container.text().size() * 4);
    return find_text(container.text(), element.text()) != std::string::npos;
  }
  if (container.is(Kind::dict) || container.is(Kind::keys)) {
    if (!is_hashable(element)) fail(std::string("unhashable type: ") + type_name(element));
  }
  if (container.is(Kind::dict)) return find_member(container, element) != nullptr;
  const Iterator next = iterate(container);
  for (Value value; next(*this, value);) {
    if (equal(value, element)) return true;
  }
  return false;
}

std::size_t Runtime::length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) {
    charge_bytes(value.text().size());
    return count_code_points(value.text());
  }
  if (value.is(Kind::dict)) return value.members().size();
  if (value.is(Kind::loop)) return loop_length(value.loop());
  if (!value.is_sequence())
    fail(std::string("a value of type ") + type_name(value) + " has no length");
  return value.items().size();
}

Iterator Runtime::iterate(const Value& value) {
  if (value.is_undefined()) return [](Runtime&, Value&) { return false; };
  if (value.is(Kind::generator)) {
    return [value](Runtime& runtime, Value& element) {
      runtime.charge(1);
      const auto* generator = static_cast<const Generator*>(value.object());
      return generator->next(runtime, element);
    };
  }
  if (value.is_string()) {
    return [value, at = std::size_t{0}](Runtime& runtime, Value& element) mutable {
      const std::string& text = value.text();
      if (at >= text.size()) return false;
      const std::size_t begin = at;
      next_code_point(text, at);
      element = runtime.text(text.substr(begin, at - begin));
      return true;
    };
  }
  if (value.is(Kind::dict)) {
    return [value, index = std::size_t{0}](Runtime& runtime, Value& element) mutable {
      runtime.charge(1);
      if (index >= value.members().size()) return false;
      element = value.members()[index++].first;
      return true;
    };
  }
  if (value.is(Kind::loop)) unsupported("iterating over 'loop' is not supported");
  if (!value.is_sequence()) {
    fail(std::string("a value of type ") + type_name(value) + " cannot be iterated over");
  }
  return [value, index = std::size_t{0}](Runtime& runtime, Value& element) mutable {
    runtime.charge(1);
    if (index >= value.items().size()) return false;
    element = value.items()[index++];
    return true;
  };
}

std::vector<Value> Runtime::elements(const Value& value) {
  if (value.is_sequence()) {
    charge_values(value.items().size());
    return value.items();
  }
  std::vector<Value> all;
  const Iterator next = iterate(value);
  for (Value element; next(*this, element);) {
    charge_values(1);
    all.push_back(std::move(element));
  }
  return all;
}

const Value* Runtime::find_member(const Value& dict, const Value& key) {
  charge(dict.members().size() / 4 + 1);
  for (const auto& [name, value] : dict.members()) {
    const bool same = name.is_string() && key.is_string() ? equal_text(name.text(), key.text())
                                                          : equal(name, key);
    if (same) {
      return &value;
    }
  }
  return nullptr;
}

void Runtime::insert_member(std::vector<std::pair<Value, Value>>& members, Value key, Value value) {
  if (!is_hashable(key)) fail(std::string("unhashable type: ") + type_name(key));
  charge(members.size() / 4 + 1);
  for (auto& [name, old] : members) {
    if (equal(name, key)) {
      old = std::move(value);
      return;
    }
  }
  members.emplace_back(std::move(key), std::move(value));
}

Value Runtime::arithmetic(Operation operation, const Value& a, const Value& b) {
  switch (operation) {
    case Operation::add:
      return add(a, b);
    case Operation::multiply:
      return multiply(a, b);
    case Operation::power:
      return power(a, b);
    case Operation::subtract: {
      if (!a.is_number() || !b.is_number()) bad_operands("-", a, b);
      if (!a.is_integral() || !b.is_integral()) return Value::of(a.floating() - b.floating());
      std::int64_t result = 0;
      if (__builtin_sub_overflow(a.integer(), b.integer(), &result)) {
        unsupported("whole numbers beyond 64 bits are not supported");
      }
      return Value::of(result);
    }
    default:
      if (operation == Operation::modulo && a.is_string())
        return format_percent(*this, a.text(), b);
      return divide(operation, a, b);
  }
}

Value Runtime::add(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    check_size(a.text().size() + b.text().size());
    if (!a.is_markup() && !b.is_markup()) return text(a.text() + b.text());
    const auto escaped = [](const Value& value) {
      return value.is_markup() ? value.text() : escape_markup(value.text());
    };
    return text(escaped(a) + escaped(b), true);
  }
  if (a.is_number() && b.is_number()) {
    if (!a.is_integral() || !b.is_integral()) return Value::of(a.floating() + b.floating());
    std::int64_t result = 0;
    if (__builtin_add_overflow(a.integer(), b.integer(), &result)) {
      unsupported("whole numbers beyond 64 bits are not supported");
    }
    return Value::of(result);
  }
  if (a.kind() == b.kind() && (a.is(Kind::list) || a.is(Kind::tuple))) {
    charge_values(a.items().size() + b.items().size());
    std::vector<Value> all = a.items();
    all.insert(all.end(), b.items().begin(), b.items().end());
    return sequence(a.kind(), std::move(all));
  }
  bad_operands("+", a, b);
}

Value Runtime::repeat(const Value& value, std::int64_t count) {
  const auto times = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  if (value.is_string()) {
    const std::size_t size = value.text().size();
    if (size != 0 && times > limits_.max_output_bytes / size) {
      check_size(limits_.max_output_bytes + 1);
    }
    charge_bytes(size * times);
    std::string all;
    all.reserve(size * times);
    for (std::size_t i = 0; i < times && size != 0; ++i) all += value.text();
    return text(std::move(all), value.is_markup());
  }
  const std::size_t size = value.items().size();
  if (size != 0 && times > static_cast<std::size_t>(limits_.max_steps) / size) out_of_steps();
  charge_values(size * times);
  std::vector<Value> all;
  all.reserve(size * times);
  for (std::size_t i = 0; i < times && size != 0; ++i) {
    all.insert(all.end(), value.items().begin(), value.items().end());
  }
  return sequence(value.kind(), std::move(all));
}

Value Runtime::multiply(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_integral() || !b.is_integral()) return Value::of(a.floating() * b.floating());
    std::int64_t result = 0;
    if (__builtin_mul_overflow(a.integer(), b.integer(), &result)) {
      unsupported("whole numbers beyond 64 bits are not supported");
    }
    return Value::of(result);
  }
  const auto repeats = [](const Value& value) {
    return value.is_string() || value.is(Kind::list) || value.is(Kind::tuple);
  };
  if (repeats(a) && b.is_integral()) return repeat(a, b.integer());
  if (repeats(b) && a.is_integral()) return repeat(b, a.integer());
  bad_operands("*", a, b);
}

Value Runtime::divide(Operation operation, const Value& a, const Value& b) {
  const char* sign = operation == Operation::divide         ? "/"
                     : operation == Operation::floor_divide ? "//"
                                                            : "%";
  if (!a.is_number() || !b.is_number()) bad_operands(sign, a, b);
  if (b.floating() == 0) fail("division by zero");
  if (operation == Operation::divide) {
    const auto quotient =
        a.is_integral() && b.is_integral()
            ? static_cast<long double>(a.integer()) / static_cast<long double>(b.integer())
            : static_cast<long double>(a.floating() / b.floating());
    return Value::of(static_cast<double>(quotient));
  }
  if (!a.is_integral() || !b.is_integral()) {
    return Value::of(operation == Operation::modulo ? floor_modulo(a.floating(), b.floating())
                                                    : floor_quotient(a.floating(), b.floating()));
  }
  const std::int64_t x = a.integer();
  const std::int64_t y = b.integer();
  if (y == -1)
    return operation == Operation::modulo ? Value::of(std::int64_t{0})
                                          : unary(Operation::negate, a);
  const std::int64_t rest = x % y;
  const bool down = rest != 0 && (rest < 0) != (y < 0);
  if (operation == Operation::modulo) return Value::of(down ? rest + y : rest);
  return Value::of(x / y - (down ? 1 : 0));
}

Value Runtime::power(const Value& a, const Value& b) {
  if (!a.is_number() || !b.is_number()) bad_operands("**", a, b);
  if (a.is_integral() && b.is_integral() && b.integer() >= 0) {
    std::int64_t base = a.integer();
    std::int64_t result = 1;
    bool overflow = false;
    for (std::int64_t left = b.integer(); left > 0; left >>= 1) {
      // A base beyond 64 bits is an error only where a remaining bit of the exponent multiplies
      // with it.
      if ((left & 1) != 0) overflow = overflow || __builtin_mul_overflow(result, base, &result);
      if (left > 1) overflow = overflow || __builtin_mul_overflow(base, base, &base);
    }
    if (overflow) unsupported("whole numbers beyond 64 bits are not supported");
    return Value::of(result);
  }
  if (a.floating() == 0 && b.floating() < 0) fail("zero cannot be raised to a negative power");
  if (a.floating() < 0 && b.floating() != std::floor(b.floating())) {
    unsupported("complex numbers are not supported");
  }
  const double result = std::pow(a.floating(), b.floating());
  if (std::isinf(result) && std::isfinite(a.floating()) && std::isfinite(b.floating())) {
    fail("the result of '**' is out of range");
  }
  return Value::of(result);
}

Value Runtime::unary(Operation operation, const Value& value) {
  if (!value.is_number()) {
    fail(std::string("bad operand of a sign: ") +
         (value.is_undefined() ? "it is undefined" : type_name(value)));
  }
  if (operation == Operation::plus) {
    return value.is(Kind::boolean) ? Value::of(value.integer()) : value;
  }
  if (value.is(Kind::floating)) return Value::of(-value.floating());
  if (value.integer() == std::numeric_limits<std::int64_t>::min()) {
    unsupported("whole numbers beyond 64 bits are not supported");
  }
  return Value::of(-value.integer());
}

std::int64_t Runtime::to_index(const Value& value, const char* what) {
  if (!value.is_integral()) {
    fail(std::string(what) + " must be a whole number, not " + type_name(value));
  }
  return value.integer();
}

Value Runtime::slice(const Value& value, const Value& start, const Value& stop, const Value& step) {
  const bool is_text = value.is_string();
  if (value.is(Kind::range)) unsupported("slices of a range are not supported");
  if (!is_text && !value.is(Kind::list) && !value.is(Kind::tuple)) {
    fail(value.is_undefined()
             ? "an undefined value has no slices"
             : std::string("a value of type ") + type_name(value) + " has no slices");
  }
  const auto length = static_cast<std::int64_t>(this->length(value));
  const std::int64_t stride = step.is(Kind::none) ? 1 : to_index(step, "the step of a slice");
  if (stride == 0) fail("the step of a slice must not be zero");
  const auto bound = [&](const Value& given, std::int64_t otherwise) {
    if (given.is(Kind::none)) return otherwise;
    std::int64_t index = to_index(given, "the bound of a slice");
    if (index < 0) index = std::max(index + length, std::int64_t{stride < 0 ? -1 : 0});
    return std::min(index, stride < 0 ? length - 1 : length);
  };
  const std::int64_t first = bound(start, stride < 0 ? length - 1 : 0);
  const std::int64_t last = bound(stop, stride < 0 ? -1 : length);
  if (is_text && stride == 1) {
    charge_bytes(value.text().size());
    const std::string& all = value.text();
    const std::size_t begin = offset_of(all, static_cast<std::size_t>(first));
    const std::size_t count = static_cast<std::size_t>(std::max<std::int64_t>(last - first, 0));
    const std::size_t end = begin + offset_of(std::string_view(all).substr(begin), count);
    return text(all.substr(begin, end - begin), value.is_markup());
  }
  const std::vector<Value> all = elements(value);
  std::vector<Value> chosen;
  std::string joined;
  for (std::int64_t i = first; stride > 0 ? i < last : i > last;) {
    const Value& element = all[static_cast<std::size_t>(i)];
    is_text ? void(joined += element.text()) : chosen.push_back(element);
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (is_text) return text(std::move(joined), value.is_markup());
  return sequence(value.kind(), std::move(chosen));
}

}  // namespace touchstone::inline v0::io::chat
