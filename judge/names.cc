// The words by which records and reports call endings and languages.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "judge/contender.h"
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

constexpr std::array<std::pair<Language, std::string_view>, 5> kLanguages = {{
    {Language::c, "c"},
    {Language::cpp, "cpp"},
    {Language::cuda, "cuda"},
    {Language::shared_library, "shared_library"},
    {Language::numpy, "numpy"},
}};

template <class Table, class Value>
std::string_view look_up(const Table& table, Value value) {
  for (const auto& [key, name] : table) {
    if (key == value) return name;
  }
  return "?";
}

}  // namespace

std::string_view name_of(Ending ending) { return look_up(kEndings, ending); }

std::string_view name_of(Language language) { return look_up(kLanguages, language); }

Ending parse_ending(std::string_view name) {
  for (const auto& [ending, known] : kEndings) {
    if (known == name) return ending;
  }
  throw InvalidArgument(fmt::format("ending: unknown name '{}'", name));
}

Language parse_language(std::string_view name) {
  for (const auto& [language, known] : kLanguages) {
    if (known == name) return language;
  }
  throw InvalidArgument(
      fmt::format("language: expected c, cpp, cuda, shared_library or numpy, got '{}'", name));
}

}  // namespace touchstone::judge
