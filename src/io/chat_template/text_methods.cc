// Methods of str.
#include <utf8proc.h>

#include <algorithm>
#include <string_view>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

const std::string& text_of(Runtime& runtime, const Value& value, const char* what) {
  if (!value.is_string()) {
    runtime.fail(std::string(what) + " must be a string, not " + type_name(value));
  }
  return value.text();
}

bool given(const Value* value) { return value != nullptr && !value->is(Kind::none); }

Value list_of(Runtime& runtime, const std::vector<std::string_view>& parts, bool markup = false,
              Kind kind = Kind::list) {
  runtime.charge_values(parts.size());
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts)
    items.push_back(runtime.text(std::string(part), markup));
  return runtime.sequence(kind, std::move(items));
}

Value strip_method(Runtime& runtime, const Value& self, std::string_view name,
                   const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"chars"});
  std::optional<std::string_view> chars;
  if (given(bound[0])) {
    chars = text_of(runtime, *bound[0], "the argument of strip");
    runtime.charge((self.text().size() / 4 + 1) * (chars->size() / 8 + 1));
  }
  std::string_view text = self.text();
  if (name != "rstrip") text = strip_left(text, chars);
  if (name != "lstrip") text = strip_right(text, chars);
  return runtime.text(std::string(text), self.is_markup());
}

Value split_method(Runtime& runtime, const Value& self, std::string_view name,
                   const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"sep", "maxsplit"});
  std::optional<std::string_view> separator;
  if (given(bound[0])) separator = text_of(runtime, *bound[0], "the separator of split");
  if (separator && separator->empty()) runtime.fail("split: the separator is empty");
  const std::int64_t limit =
      bound[1] == nullptr ? -1 : runtime.to_index(*bound[1], "the limit of split");
  if (separator) runtime.charge_bytes(separator->size());
  // For the parts, before they are made.
  runtime.charge(self.text().size() / (separator ? separator->size() : 2) + 1);
  return list_of(runtime,
                 name == "split" ? split(self.text(), separator, limit)
                                 : split_from_right(self.text(), separator, limit),
                 self.is_markup());
}

// The part of the text between the optional bounds of find, count, startswith and so on.
struct Window {
  std::string_view text;
  std::size_t offset = 0;  // code points in front of it
  bool valid = true;
};

Window window(Runtime& runtime, const Value& self, const Value* start, const Value* stop) {
  if (!given(start) && !given(stop)) return {self.text()};
  const auto count = static_cast<std::int64_t>(runtime.length(self));
  const auto bound = [&](const Value* value, std::int64_t otherwise) {
    if (!given(value)) return otherwise;
    std::int64_t index = runtime.to_index(*value, "a bound");
    if (index < 0) index = std::max<std::int64_t>(index + count, 0);
    return index;
  };
  const std::int64_t first = bound(start, 0);
  const std::int64_t last = std::min(bound(stop, count), count);
  if (first > count || first > last) return {.text = {}, .offset = 0, .valid = false};
  const std::string_view all = self.text();
  const std::size_t begin = offset_of(all, static_cast<std::size_t>(first));
  const std::size_t end = offset_of(all, static_cast<std::size_t>(last));
  return {all.substr(begin, end - begin), static_cast<std::size_t>(first)};
}

Value affix_method(Runtime& runtime, const Value& self, std::string_view name,
                   const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"affix", "start", "end"}, 1);
  const Window in = window(runtime, self, bound[1], bound[2]);
  const auto fits = [&](const Value& affix) {
    const std::string& text = text_of(runtime, affix, "the argument");
    runtime.charge_bytes(std::min(text.size(), in.text.size()));
    if (!in.valid) return false;
    return name == "startswith" ? in.text.starts_with(text) : in.text.ends_with(text);
  };
  if (!bound[0]->is(Kind::tuple)) return Value::of(fits(*bound[0]));
  return Value::of(std::ranges::any_of(bound[0]->items(), fits));
}

Value find_in_text(Runtime& runtime, const Value& self, std::string_view name,
                   const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"sub", "start", "end"}, 1);
  const std::string& wanted = text_of(runtime, *bound[0], "what is looked for");
  const Window in = window(runtime, self, bound[1], bound[2]);
  runtime.charge_bytes((in.text.size() + wanted.size()) * 4);
  if (name == "count") {
    if (!in.valid) return Value::of(std::int64_t{0});
    if (wanted.empty()) return Value::of(static_cast<std::int64_t>(count_code_points(in.text)) + 1);
    std::int64_t count = 0;
    for (std::size_t at = find_text(in.text, wanted); at != std::string_view::npos;
         at = find_text(in.text, wanted, at + wanted.size())) {
      ++count;
    }
    return Value::of(count);
  }
  const bool from_right = name == "rfind" || name == "rindex";
  const std::size_t at = !in.valid    ? std::string_view::npos
                         : from_right ? find_last_text(in.text, wanted)
                                      : find_text(in.text, wanted);
  if (at == std::string_view::npos) {
    if (name == "index" || name == "rindex") runtime.fail("index: the text does not occur");
    return Value::of(std::int64_t{-1});
  }
  return Value::of(static_cast<std::int64_t>(in.offset + count_code_points(in.text.substr(0, at))));
}

Value partition_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"sep"}, 1);
  const std::string& separator = text_of(runtime, *bound[0], "the separator");
  if (separator.empty()) runtime.fail("partition: the separator is empty");
  const std::string_view text = self.text();
  runtime.charge_bytes((text.size() + separator.size()) * 4);
  const bool right = name == "rpartition";
  const std::size_t at = right ? find_last_text(text, separator) : find_text(text, separator);
  if (at == std::string_view::npos) {
    return right ? list_of(runtime, {"", "", text}, false, Kind::tuple)
                 : list_of(runtime, {text, "", ""}, false, Kind::tuple);
  }
  return list_of(runtime, {text.substr(0, at), separator, text.substr(at + separator.size())},
                 false, Kind::tuple);
}

Value justify_method(Runtime& runtime, const Value& self, std::string_view name,
                     const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"width", "fillchar"}, 1);
  const std::int64_t width = runtime.to_index(*bound[0], "the width");
  std::string_view fill = " ";
  if (bound[1] != nullptr) fill = text_of(runtime, *bound[1], "the fill character");
  if (count_code_points(fill) != 1) runtime.fail("the fill character must be one character");
  const auto count = static_cast<std::int64_t>(runtime.length(self));
  const std::int64_t missing = std::max<std::int64_t>(width - count, 0);
  // As CPython rounds: the left side gets less where the width is even.
  const std::int64_t left = name == "ljust"   ? 0
                            : name == "rjust" ? missing
                                              : missing / 2 + (missing & width & 1);
  const auto filled = [&](std::int64_t times) {
    const Value text = Value::of_text(std::string(fill));
    return runtime.arithmetic(Operation::multiply, text, Value::of(times)).text();
  };
  return runtime.text(filled(left) + self.text() + filled(missing - left));
}

Value zfill_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"width"}, 1);
  const std::int64_t width = runtime.to_index(*bound[0], "the width");
  const auto count = static_cast<std::int64_t>(runtime.length(self));
  if (width <= count) return self;
  const std::string zeros =
      runtime.arithmetic(Operation::multiply, Value::of_text("0"), Value::of(width - count)).text();
  const std::string& text = self.text();
  const std::size_t sign = !text.empty() && (text[0] == '+' || text[0] == '-') ? 1 : 0;
  return runtime.text(text.substr(0, sign) + zeros + text.substr(sign));
}

Value join_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"iterable"}, 1);
  std::string joined;
  bool first = true;
  for (const Value& element : runtime.elements(*bound[0])) {
    if (!first) runtime.append(joined, self.text());
    first = false;
    runtime.append(joined, text_of(runtime, element, "an element of join"));
  }
  return runtime.text(std::move(joined));
}

Value replace_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"old", "new", "count"}, 2);
  const std::string& from = text_of(runtime, *bound[0], "the first argument of replace");
  const std::string& to = text_of(runtime, *bound[1], "the second argument of replace");
  const std::int64_t count =
      bound[2] == nullptr ? -1 : runtime.to_index(*bound[2], "the count of replace");
  const std::size_t places = self.text().size() / std::max<std::size_t>(from.size(), 1) + 1;
  runtime.charge_bytes(self.text().size() * 4);
  // Only what could be inserted, so that the product is checked before it is made.
  if (to.size() > from.size()) {
    const Value found = find_in_text(runtime, self, "count", {{*bound[0]}, {}});
    const auto times = std::min(places, static_cast<std::size_t>(found.integer()));
    runtime.charge_bytes(times * to.size());
  }
  return runtime.text(replace(self.text(), from, to, count));
}

// Whether all code points, of which there is at least one, are of a class of str.is*.
Value class_method(Runtime& runtime, const Value& self, std::string_view name) {
  const std::string& text = self.text();
  runtime.charge_bytes(text.size() * 4);
  if (name == "islower") return Value::of(is_lower(text));
  if (name == "isupper") return Value::of(is_upper(text));
  if (name == "isascii") {
    return Value::of(std::ranges::all_of(text, [](char c) { return (c & 0x80) == 0; }));
  }
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code = next_code_point(text, at);
    const int category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
    const bool letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
    const bool decimal = category == UTF8PROC_CATEGORY_ND;
    if (!decimal && category == UTF8PROC_CATEGORY_NO && (name == "isdigit" || name == "isalnum")) {
      runtime.unsupported(std::string(name) + " of a number that is not a decimal digit");
    }
    const bool fits = name == "isspace"   ? is_space(code)
                      : name == "isalpha" ? letter
                      : name == "isalnum" ? letter || decimal
                                          : decimal;
    if (!fits) return Value::of(false);
  }
  return Value::of(!text.empty());
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    next_code_point(text, at);
    const std::string_view one = text.substr(begin, at - begin);
    out += is_upper(one) ? lower(one) : upper(one);
  }
  return out;
}

Value affix_removed(Runtime& runtime, const Value& self, std::string_view name,
                    const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"affix"}, 1);
  const std::string& affix = text_of(runtime, *bound[0], "the argument");
  std::string_view text = self.text();
  if (name == "removeprefix" && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (name == "removesuffix" && text.ends_with(affix)) text.remove_suffix(affix.size());
  return runtime.text(std::string(text));
}

Value call_plain(Runtime& runtime, const Value& self, std::string_view name,
                 const Arguments& arguments) {
  const std::string& text = self.text();
  if (name == "splitlines") {
    const auto bound = arguments.bind(runtime, {"keepends"});
    runtime.charge(text.size());  // for the lines, before they are made
    return list_of(runtime, split_lines(text, bound[0] != nullptr && is_true(*bound[0])),
                   self.is_markup());
  }
  arguments.bind(runtime, {});
  if (name.starts_with("is")) return class_method(runtime, self, name);
  runtime.charge_bytes(text.size() * 8);
  std::string changed = name == "upper"        ? upper(text)
                        : name == "lower"      ? lower(text)
                        : name == "capitalize" ? capitalize(text)
                        : name == "title"      ? title(text)
                                               : swap_case(text);
  return runtime.text(std::move(changed), self.is_markup());
}

}  // namespace

Value call_text_method(Runtime& runtime, const Value& self, std::string_view name,
                       const Arguments& arguments) {
  const bool keywords_allowed =
      name == "split" || name == "rsplit" || name == "splitlines" || name == "format";
  if (!keywords_allowed && !arguments.keywords.empty()) {
    runtime.fail(std::string(name) + " takes no keyword arguments");
  }
  // Markup escapes what it takes in.
  if (self.is_markup() && !arguments.positional.empty()) {
    runtime.unsupported("methods with arguments of text that is marked safe");
  }
  runtime.charge_bytes(self.text().size());
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return strip_method(runtime, self, name, arguments);
  }
  if (name == "split" || name == "rsplit") return split_method(runtime, self, name, arguments);
  if (name == "startswith" || name == "endswith")
    return affix_method(runtime, self, name, arguments);
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return find_in_text(runtime, self, name, arguments);
  }
  if (name == "partition" || name == "rpartition") {
    return partition_method(runtime, self, name, arguments);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    return affix_removed(runtime, self, name, arguments);
  }
  if (name == "ljust" || name == "rjust" || name == "center") {
    return justify_method(runtime, self, name, arguments);
  }
  if (name == "zfill") return zfill_method(runtime, self, arguments);
  if (name == "join") return join_method(runtime, self, arguments);
  if (name == "replace") return replace_method(runtime, self, arguments);
  if (name == "format") return format_braces(runtime, self.text(), arguments);
  return call_plain(runtime, self, name, arguments);
}

}  // namespace touchstone::inline v0::io::chat
