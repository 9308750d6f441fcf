// Filters of lists and mappings. Those that jinja2 writes as generators are generators here.
#include <algorithm>
#include <array>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

bool flag(const Value* value) { return value != nullptr && is_true(*value); }

Value path_of(const Value* attribute) { return attribute == nullptr ? Value::none() : *attribute; }

// What min, max, sort and unique compare.
Value sort_key(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  runtime.charge_bytes(value.text().size() * 8);
  return runtime.text(lower(value.text()));
}

Value length_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return Value::of(static_cast<std::int64_t>(runtime.length(value)));
}

Value list_filter(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return runtime.list(runtime.elements(value));
}

Value first(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  Value element;
  return runtime.iterate(value)(runtime, element) ? element : Value();
}

Value last(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  if (value.is(Kind::generator)) {
    runtime.fail(std::string("a value of type ") + type_name(value) + " cannot be reversed");
  }
  const std::vector<Value> all = runtime.elements(value);
  return all.empty() ? Value() : all.back();
}

Value reverse(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  std::vector<Value> all = runtime.elements(value);
  std::ranges::reverse(all);
  if (value.is_string()) {
    std::string joined;
    for (const Value& element : all) joined += element.text();
    return runtime.text(std::move(joined), value.is_markup());
  }
  const Value list = runtime.list(std::move(all));
  // A list where Python has no reversed(), else an iterator.
  if (value.is(Kind::generator)) return list;
  return runtime.generator(list, runtime.iterate(list));
}

Value join(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"d", "attribute"});
  const std::string separator = bound[0] == nullptr ? "" : runtime.str(*bound[0]);
  const Value path = path_of(bound[1]);
  const Iterator next = runtime.iterate(value);
  std::string joined;
  bool later = false;
  for (Value element; next(runtime, element);) {
    if (later) runtime.append(joined, separator);
    later = true;
    runtime.append(joined, runtime.str(runtime.path_item(element, path)));
  }
  return runtime.text(std::move(joined));
}

Value items(Runtime& runtime, const Value& value, const Arguments& arguments) {
  arguments.bind(runtime, {});
  return runtime.generator(value,
                           [value, index = std::size_t{0}](Runtime& now, Value& element) mutable {
                             if (value.is_undefined()) return false;
                             if (!value.is(Kind::dict))
                               now.fail("items: only a mapping has pairs of items");
                             if (index >= value.members().size()) return false;
                             const auto& [key, member] = value.members()[index++];
                             element = now.tuple({key, member});
                             return true;
                           });
}

Value map(Runtime& runtime, const Value& value, const Arguments& arguments) {
  Arguments rest{{}, arguments.keywords};
  if (!arguments.positional.empty()) {
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  }
  runtime.charge_values(rest.positional.size() + rest.keywords.size());
  return runtime.generator(value, [value, arguments, rest = std::move(rest), next = Iterator()](
                                      Runtime& now, Value& element) mutable {
    if (!next) {
      if (!is_true(value)) return false;
      next = now.iterate(value);
    }
    if (!arguments.positional.empty()) {
      const Value& name = arguments.positional[0];
      const Filter* filter = name.is_string() ? find_filter(name.text()) : nullptr;
      if (filter == nullptr) now.unsupported("map: unknown filter " + now.repr(name));
      if (!next(now, element)) return false;
      element = filter->apply(now, element, rest);
      return true;
    }
    const auto bound = arguments.bind(now, {"attribute", "default"}, 1);
    if (!next(now, element)) return false;
    // The default replaces every undefined step of the path, which then fails or ends.
    const Value item = now.path_item(element, *bound[0]);
    element =
        item.is_undefined() && bound[1] != nullptr && !bound[1]->is(Kind::none) ? *bound[1] : item;
    return true;
  });
}

// select, reject, selectattr, rejectattr.
Value choose(Runtime& runtime, const Value& value, const Arguments& arguments, bool wanted,
             bool by_attribute) {
  const std::size_t first = by_attribute ? 1 : 0;
  Arguments rest{{}, arguments.keywords};  // of the test
  if (arguments.positional.size() > first) {
    rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                           arguments.positional.end());
  }
  runtime.charge_values(rest.positional.size() + rest.keywords.size());
  return runtime.generator(
      value, [value, arguments, rest = std::move(rest), first, wanted, by_attribute,
              next = Iterator()](Runtime& now, Value& element) mutable {
        const auto& given = arguments.positional;
        if (!next) {
          if (!is_true(value)) return false;
          if (given.size() < first) now.fail("the name of the attribute is missing");
          next = now.iterate(value);
        }
        const Test* test = nullptr;
        if (given.size() > first) {
          test = given[first].is_string() ? find_test(given[first].text()) : nullptr;
          if (test == nullptr) now.unsupported("unknown test " + now.repr(given[first]));
        }
        while (next(now, element)) {
          const Value item = by_attribute ? now.path_item(element, given[0]) : element;
          const bool holds = test == nullptr ? is_true(item) : test->apply(now, item, rest);
          if (holds == wanted) return true;
        }
        return false;
      });
}

Value select(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return choose(runtime, value, arguments, true, false);
}

Value reject(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return choose(runtime, value, arguments, false, false);
}

Value selectattr(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return choose(runtime, value, arguments, true, true);
}

Value rejectattr(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return choose(runtime, value, arguments, false, true);
}

Value unique(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"case_sensitive", "attribute"});
  const bool case_sensitive = flag(bound[0]);
  const Value path = path_of(bound[1]);
  return runtime.generator(
      value, [value, case_sensitive, path, next = Iterator(),
              seen = std::vector<std::pair<Value, Value>>()](Runtime& now, Value& element) mutable {
        if (!next) next = now.iterate(value);
        while (next(now, element)) {
          Value key = sort_key(now, now.path_item(element, path), case_sensitive);
          const std::size_t before = seen.size();
          now.charge_values(1);
          now.insert_member(seen, std::move(key), Value());
          if (seen.size() > before) return true;
        }
        return false;
      });
}

using Keyed = std::pair<Value, Value>;  // key, element

std::vector<Value> sorted(Runtime& runtime, std::vector<Keyed> keyed, bool reverse) {
  runtime.charge_values(keyed.size());
  std::ranges::stable_sort(keyed, [&](const Keyed& a, const Keyed& b) {
    return reverse ? runtime.less(b.first, a.first) : runtime.less(a.first, b.first);
  });
  std::vector<Value> all;
  all.reserve(keyed.size());
  for (Keyed& pair : keyed) all.push_back(std::move(pair.second));
  return all;
}

Value sort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"reverse", "case_sensitive", "attribute"});
  const Value path = path_of(bound[2]);
  std::vector<Value> paths;
  if (path.is_string()) {
    runtime.charge(path.text().size());  // for the parts
    for (const std::string_view part : split(path.text(), ",", -1)) {
      paths.push_back(runtime.text(std::string(part)));
    }
  } else {
    paths.push_back(path);
  }
  std::vector<Keyed> keyed;
  for (Value& element : runtime.elements(value)) {
    std::vector<Value> key;
    for (const Value& part : paths) {
      key.push_back(sort_key(runtime, runtime.path_item(element, part), flag(bound[1])));
    }
    keyed.emplace_back(runtime.list(std::move(key)), std::move(element));
  }
  return runtime.list(sorted(runtime, std::move(keyed), flag(bound[0])));
}

Value dictsort(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] == nullptr ? "key" : runtime.str(*bound[1]);
  if (by != "key" && by != "value") runtime.fail("dictsort: by must be 'key' or 'value'");
  if (!value.is(Kind::dict)) {
    runtime.fail(std::string("dictsort of a value of type ") + type_name(value));
  }
  std::vector<Keyed> keyed;
  for (const auto& [key, member] : value.members()) {
    const Value& compared = by == "key" ? key : member;
    keyed.emplace_back(sort_key(runtime, compared, flag(bound[0])), runtime.tuple({key, member}));
  }
  return runtime.list(sorted(runtime, std::move(keyed), flag(bound[2])));
}

Value extreme(Runtime& runtime, const Value& value, const Arguments& arguments, bool largest) {
  const auto bound = arguments.bind(runtime, {"case_sensitive", "attribute"});
  const Value path = path_of(bound[1]);
  const Iterator next = runtime.iterate(value);
  Value best;
  Value best_key;
  bool any = false;
  for (Value element; next(runtime, element);) {
    const Value key = sort_key(runtime, runtime.path_item(element, path), flag(bound[0]));
    if (!any || (largest ? runtime.less(best_key, key) : runtime.less(key, best_key))) {
      best = element;
      best_key = key;
    }
    any = true;
  }
  return best;
}

Value min(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return extreme(runtime, value, arguments, false);
}

Value max(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return extreme(runtime, value, arguments, true);
}

Value sum(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"attribute", "start"});
  const Value path = path_of(bound[0]);
  Value total = bound[1] == nullptr ? Value::of(std::int64_t{0}) : *bound[1];
  if (total.is_string()) runtime.fail("sum cannot add strings");
  const Iterator next = runtime.iterate(value);
  for (Value element; next(runtime, element);) {
    total = runtime.arithmetic(Operation::add, total, runtime.path_item(element, path));
  }
  return total;
}

Value batch(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind(runtime, {"linecount", "fill_with"}, 1);
  const std::int64_t count = runtime.to_index(*bound[0], "the size of a batch");
  if (count < 1) runtime.unsupported("batch: a size below 1");
  const Value fill = bound[1] == nullptr ? Value::none() : *bound[1];
  return runtime.generator(
      value, [value, count, fill, next = Iterator()](Runtime& now, Value& element) mutable {
        if (!next) next = now.iterate(value);
        std::vector<Value> row;
        for (Value one; static_cast<std::int64_t>(row.size()) < count && next(now, one);) {
          now.charge_values(1);
          row.push_back(std::move(one));
        }
        if (row.empty()) return false;
        while (!fill.is(Kind::none) && static_cast<std::int64_t>(row.size()) < count) {
          now.charge_values(1);
          row.push_back(fill);
        }
        element = now.list(std::move(row));
        return true;
      });
}

constexpr std::array<Filter, 20> kSequenceFilters = {{{"batch", batch},
                                                      {"count", length_filter},
                                                      {"dictsort", dictsort},
                                                      {"first", first},
                                                      {"items", items},
                                                      {"join", join},
                                                      {"last", last},
                                                      {"length", length_filter},
                                                      {"list", list_filter},
                                                      {"map", map},
                                                      {"max", max},
                                                      {"min", min},
                                                      {"reject", reject},
                                                      {"rejectattr", rejectattr},
                                                      {"reverse", reverse},
                                                      {"select", select},
                                                      {"selectattr", selectattr},
                                                      {"sort", sort},
                                                      {"sum", sum},
                                                      {"unique", unique}}};

}  // namespace

const Filter* find_sequence_filter(std::string_view name) {
  const auto found = std::ranges::find(kSequenceFilters, name, &Filter::name);
  return found == kSequenceFilters.end() ? nullptr : &*found;
}

const Filter* find_filter(std::string_view name) {
  const Filter* found = find_text_filter(name);
  return found != nullptr ? found : find_sequence_filter(name);
}

}  // namespace touchstone::inline v0::io::chat
