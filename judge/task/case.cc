#include "judge/task/case.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr std::array<std::pair<Ending, std::string_view>, 10> kEndings = {{
    {Ending::ok, "ok"},
    {Ending::refused, "refused"},
    {Ending::crashed, "crashed"},
    {Ending::wrote_outside, "wrote_outside"},
    {Ending::wrote_input, "wrote_input"},
    {Ending::hung, "hung"},
    {Ending::exited, "exited"},
    {Ending::out_of_memory, "out_of_memory"},
    {Ending::forbidden, "forbidden"},
    {Ending::not_reached, "not_reached"},
}};

[[noreturn]] void refuse(const std::string& text, std::string_view why) {
  throw InvalidArgument(
      fmt::format("case: '{}': {}; expected family:name=number,...:seed", text, why));
}

// "at 7": where a part of the text begins, from 1.
std::string place_of(const std::string& text, std::string_view part) {
  return fmt::format("at {}", part.data() - text.data() + 1);
}

// `key` is what the number is for.
template <class Number>
Number parse_number(const std::string& text, std::string_view part, std::string_view key) {
  Number value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size() || part.empty()) {
    refuse(text, fmt::format("{}: '{}' {} is no number", key, part, place_of(text, part)));
  }
  return value;
}

bool is_name(std::string_view word) {
  if (word.empty()) return false;
  for (const char c : word) {
    const bool known = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    if (!known) return false;
  }
  return true;
}

// "rows=3"
std::pair<std::string, int64_t> parse_parameter(const std::string& text, std::string_view item) {
  const size_t equals = item.find('=');
  if (equals == std::string_view::npos || !is_name(item.substr(0, equals))) {
    refuse(text, fmt::format("'{}' {} is not name=number", item, place_of(text, item)));
  }
  const std::string_view name = item.substr(0, equals);
  return {std::string(name), parse_number<int64_t>(text, item.substr(equals + 1), name)};
}

// "0.logits.3-7=0": call, input, elements, value; or "0.beta.0-7=gamma.0", numbers of another input.
Edit parse_edit(const std::string& text, std::string_view item) {
  const size_t call_end = item.find('.');
  const size_t name_end =
      call_end == std::string_view::npos ? call_end : item.find('.', call_end + 1);
  const size_t equals = item.find('=');
  if (name_end == std::string_view::npos || equals == std::string_view::npos || equals < name_end) {
    refuse(text, fmt::format("edit: '{}' {} is not call.input.first-last=value", item,
                             place_of(text, item)));
  }
  Edit edit;
  edit.call = parse_number<int64_t>(text, item.substr(0, call_end), "edit: call");
  edit.input = item.substr(call_end + 1, name_end - call_end - 1);
  const std::string_view range = item.substr(name_end + 1, equals - name_end - 1);
  const size_t dash = range.find('-');
  edit.first = parse_number<int64_t>(text, range.substr(0, dash), "edit: first element");
  edit.last = dash == std::string_view::npos
                  ? edit.first
                  : parse_number<int64_t>(text, range.substr(dash + 1), "edit: last element");
  const std::string_view right = item.substr(equals + 1);
  const size_t source_end = right.find('.');
  if (source_end != std::string_view::npos && !right.empty() && right[0] >= 'a') {
    edit.source = right.substr(0, source_end);
    edit.from =
        parse_number<int64_t>(text, right.substr(source_end + 1), "edit: first element taken");
  } else {
    edit.value = parse_number<float>(text, right, "edit: value");
  }
  if (!is_name(edit.input) || edit.call < 0 || edit.first < 0 || edit.last < edit.first ||
      edit.from < 0) {
    refuse(text, fmt::format("edit: '{}' {} is not call.input.first-last=value", item,
                             place_of(text, item)));
  }
  return edit;
}

std::string format_edit(const Edit& edit) {
  const std::string range = edit.first == edit.last ? fmt::format("{}", edit.first)
                                                    : fmt::format("{}-{}", edit.first, edit.last);
  const std::string value = edit.source.empty() ? fmt::format("{}", edit.value)
                                                : fmt::format("{}.{}", edit.source, edit.from);
  return fmt::format("{}.{}.{}={}", edit.call, edit.input, range, value);
}

// The items between commas.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> items;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    items.push_back(list.substr(0, comma));
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return items;
}

}  // namespace

std::string format_spec(const CaseSpec& spec) {
  std::string parameters;
  for (const auto& [name, value] : spec.parameters) {
    parameters += fmt::format("{}{}={}", parameters.empty() ? "" : ",", name, value);
  }
  std::string text = fmt::format("{}:{}:{}", spec.family, parameters, spec.seed);
  for (size_t i = 0; i < spec.edits.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? '/' : ',', format_edit(spec.edits[i]));
  }
  return text;
}

CaseSpec parse_spec(const std::string& text) {
  const std::string_view whole(text);
  const size_t slash = whole.find('/');
  const std::string_view drawn = whole.substr(0, slash);
  const size_t first = drawn.find(':');
  const size_t last = drawn.rfind(':');
  if (first == std::string_view::npos || first == last) refuse(text, "two colons are needed");
  CaseSpec spec;
  spec.family = drawn.substr(0, first);
  if (!is_name(spec.family)) refuse(text, "the family has no name");
  spec.seed = parse_number<uint64_t>(text, drawn.substr(last + 1), "seed");
  for (const std::string_view item : split(drawn.substr(first + 1, last - first - 1))) {
    const auto [name, value] = parse_parameter(text, item);
    if (!spec.parameters.emplace(name, value).second) {
      refuse(text, fmt::format("'{}' {} is given twice", name, place_of(text, item)));
    }
  }
  if (slash == std::string_view::npos) return spec;
  for (const std::string_view item : split(whole.substr(slash + 1))) {
    spec.edits.push_back(parse_edit(text, item));
  }
  if (spec.edits.empty()) refuse(text, "nothing behind the slash");
  return spec;
}

std::map<std::string, int64_t> parse_parameters(const std::string& text) {
  std::map<std::string, int64_t> parameters;
  for (const std::string_view item : split(text)) parameters.insert(parse_parameter(text, item));
  return parameters;
}

void apply_edits(Case& c) {
  const auto wrong = [](const Edit& edit, std::string_view why) {
    throw InvalidArgument(fmt::format("case: edit {}: {}", format_edit(edit), why));
  };
  // Which inputs are one tensor is decided by what was drawn, not by what an earlier edit left.
  const Case drawn = c.spec.edits.empty() ? Case{} : c;
  for (const Edit& edit : c.spec.edits) {
    if (edit.call >= static_cast<int64_t>(drawn.calls.size())) wrong(edit, "there is no such call");
    const InputTensor* named = nullptr;
    const InputTensor* source = nullptr;
    for (const InputTensor& input : drawn.calls[static_cast<size_t>(edit.call)].inputs) {
      if (input.name == edit.input) named = &input;
      if (input.name == edit.source) source = &input;
    }
    if (named == nullptr) wrong(edit, "the call has no such input");
    if (named->dtype != DType::f32 || named->derived) wrong(edit, "this input cannot be edited");
    if (static_cast<size_t>(edit.last) >= named->data.size() / sizeof(float)) {
      wrong(edit, "the input has fewer elements");
    }
    const auto taken = static_cast<size_t>(edit.last - edit.first + 1) * sizeof(float);
    const auto from = static_cast<size_t>(edit.from) * sizeof(float);
    if (!edit.source.empty() &&
        (source == nullptr || source->dtype != DType::f32 || from + taken > source->data.size())) {
      wrong(edit, "there are no such numbers to take");
    }
    for (size_t call = 0; call < c.calls.size(); ++call) {
      for (size_t i = 0; i < c.calls[call].inputs.size(); ++i) {
        const InputTensor& before = drawn.calls[call].inputs[i];
        if (before.name != named->name || before.data != named->data) continue;
        std::byte* data = c.calls[call].inputs[i].data.data();
        if (source != nullptr) {
          std::memcpy(data + static_cast<size_t>(edit.first) * sizeof(float),
                      source->data.data() + from, taken);
          continue;
        }
        for (int64_t e = edit.first; e <= edit.last; ++e) {
          std::memcpy(data + static_cast<size_t>(e) * sizeof(float), &edit.value, sizeof(float));
        }
      }
    }
  }
}

std::string_view name_of(Ending ending) {
  for (const auto& [known, name] : kEndings) {
    if (known == ending) return name;
  }
  return "?";
}

Ending parse_ending(std::string_view name) {
  for (const auto& [ending, known] : kEndings) {
    if (known == name) return ending;
  }
  throw InvalidArgument(fmt::format("ending: unknown name '{}'", name));
}

}  // namespace touchstone::judge
