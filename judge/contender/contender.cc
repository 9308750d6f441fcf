// Contenders as they lie on disk. Everything here is hostile: names, sizes, JSON, links.
#include "judge/contender/contender.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "json/json.h"
#include "judge/contender/adapter.h"
#include "judge/contender/binding.h"
#include "judge/sandbox/read_file.h"
#include "text/edit_distance.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr std::array<std::pair<Language, std::string_view>, 5> kLanguages = {{
    {Language::c, "c"},
    {Language::cpp, "cpp"},
    {Language::cuda, "cuda"},
    {Language::shared_library, "shared_library"},
    {Language::numpy, "numpy"},
}};

namespace fs = std::filesystem;
constexpr int64_t kMaxJson = 1 << 20;
constexpr int64_t kMaxSource = 4 << 20;
constexpr int64_t kMaxAllSources = 32 << 20;
constexpr std::size_t kMaxSources = 200;
constexpr std::size_t kMaxClaims = 32;
constexpr std::size_t kMaxLine = 300;

std::optional<Language> language_of(const fs::path& file) {
  const std::string e = file.extension().string();
  if (e == ".c") return Language::c;
  if (e == ".cc" || e == ".cpp" || e == ".cxx" || e == ".C") return Language::cpp;
  if (e == ".cu") return Language::cuda;
  if (e == ".so") return Language::shared_library;
  if (e == ".py") return Language::numpy;
  return std::nullopt;
}

bool is_test(const fs::path& file) {
  const std::string stem = file.stem().string();
  return stem.starts_with("test_") || stem.ends_with("_test") || stem == "test";
}

// A contender's own error: the path in front, then what is wrong.
template <class... Words>
[[noreturn]] void bad(const fs::path& where, fmt::format_string<Words...> format,
                      Words&&... words) {
  throw CorruptData(
      fmt::format("{}: {}", where.string(), fmt::format(format, std::forward<Words>(words)...)));
}

// A path written in contender.json: inside the folder, whatever links lie on the way.
fs::path inside(const fs::path& folder, const std::string& written, const fs::path& json) {
  const fs::path relative(written);
  std::error_code error;
  if (written.empty() || relative.is_absolute())
    bad(json, "'{}': expected a relative path", written);
  const fs::path real = fs::canonical(folder / relative, error);
  if (error) bad(json, "'{}': no such file", written);
  const fs::path root = fs::canonical(folder);
  const auto [end, ignored] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  if (end != root.end()) bad(json, "'{}': lies outside the contender's folder", written);
  if (!fs::is_regular_file(real)) bad(json, "'{}': not a plain file", written);
  return real.lexically_relative(root);
}

bool is_identifier(const std::string& name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !name.empty() && name.size() <= 200 &&
         std::isdigit(static_cast<unsigned char>(name[0])) == 0 && std::ranges::all_of(name, fits);
}

std::string text_at(const Json& json, const char* key, const fs::path& where) {
  const Json& value = json.at(key);
  if (!value.is_string()) bad(where, "'{}': expected a string", key);
  return value.get<std::string>();
}

// Text that is printed: one line that is not long.
std::string one_line(const Json& json, const char* key, const fs::path& where) {
  if (!json.is_string()) bad(where, "'{}': expected a string", key);
  auto text = json.get<std::string>();
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (text.empty() || text.size() > kMaxLine || std::ranges::any_of(text, control)) {
    bad(where, "'{}': expected one line of 1 to {} characters", key, kMaxLine);
  }
  return text;
}

std::map<std::string, std::string> read_functions(const Json& json, const TaskCard& card,
                                                  const fs::path& where) {
  if (!json.is_object()) bad(where, "'functions': expected an object of names");
  std::map<std::string, std::string> functions;
  for (const auto& item : json.items()) {
    const std::string& contract = item.key();
    const Json& value = item.value();
    const auto same = [&](const Function& f) { return f.name == contract; };
    if (std::ranges::none_of(card.functions, same)) {
      const auto nearest = std::ranges::min_element(
          card.functions, {}, [&](const Function& f) { return edit_distance(f.name, contract); });
      bad(where, "'functions': task {} has no function '{}'{}", card.id, contract,
          nearest == card.functions.end() ? ""
                                          : fmt::format("; did you mean '{}'?", nearest->name));
    }
    if (!value.is_string() || !is_identifier(value.get<std::string>())) {
      bad(where, "'functions': '{}': expected the name of a function", contract);
    }
    functions[contract] = value.get<std::string>();
  }
  return functions;
}

// Features of the card that the contender says it does not have. The list is closed: what every
// contender must do cannot be lacked.
std::vector<std::string> read_lacks(const Json& json, const TaskCard& card, const fs::path& where) {
  if (!json.is_array()) bad(where, "'lacks': expected a list of names");
  std::vector<std::string> lacks;
  for (const Json& name : json) {
    const std::string id = name.is_string() ? name.get<std::string>() : name.dump();
    if (std::ranges::find(card.lacks, id, &Feature::id) == card.lacks.end()) {
      std::vector<std::string> known;
      for (const Feature& feature : card.lacks) known.push_back(feature.id);
      bad(where, "'lacks': '{}' is nothing that {} may lack; known are {}", id, card.id,
          fmt::join(known, ", "));
    }
    lacks.push_back(id);
  }
  return lacks;
}

void read_json(const fs::path& where, const TaskCard& card, Contender& contender,
               std::optional<Language>& language, bool& has_sources) {
  static const std::set<std::string> kKeys = {"name",        "task",    "language",  "sources",
                                              "library",     "adapter", "functions", "peer",
                                              "description", "author",  "claims",    "lacks"};
  const Json json = Json::parse_or_null(read_file(where, kMaxJson));
  if (json.is_null()) bad(where, "not valid JSON");
  if (!json.is_object()) bad(where, "expected an object");
  for (const auto& [key, value] : json.items()) {
    if (!kKeys.contains(key))
      bad(where, "unknown key '{}'; known are {}", key, fmt::join(kKeys, ", "));
  }
  if (json.contains("task") && text_at(json, "task", where) != card.id) {
    throw InvalidArgument(fmt::format("{}: is for task {}, not {}", where.string(),
                                      text_at(json, "task", where), card.id));
  }
  if (json.contains("peer")) {
    if (!json["peer"].is_boolean()) bad(where, "'peer': expected true or false");
    contender.peer = json["peer"].get<bool>();
  }
  if (json.contains("name")) contender.name = text_at(json, "name", where);
  if (json.contains("author")) contender.author = one_line(json["author"], "author", where);
  if (json.contains("claims")) {
    if (!json["claims"].is_array() || json["claims"].size() > kMaxClaims) {
      bad(where, "'claims': expected at most {} sentences", kMaxClaims);
    }
    for (const Json& claim : json["claims"]) {
      contender.claims.push_back(one_line(claim, "claims", where));
    }
  }
  if (json.contains("language")) {
    try {
      language = parse_language(text_at(json, "language", where));
    } catch (const InvalidArgument& error) {
      bad(where, "{}", error.what());
    }
  }
  if (json.contains("library")) {
    contender.binding.sources = {inside(contender.folder, text_at(json, "library", where), where)};
    has_sources = true;
  }
  if (json.contains("sources")) {
    if (!json["sources"].is_array() || json["sources"].size() > kMaxSources) {
      bad(where, "'sources': expected at most {} file names", kMaxSources);
    }
    for (const Json& source : json["sources"]) {
      if (!source.is_string()) bad(where, "'sources': expected file names");
      contender.binding.sources.push_back(
          inside(contender.folder, source.get<std::string>(), where));
    }
    has_sources = true;
  }
  if (json.contains("adapter")) {
    contender.binding.adapter = inside(contender.folder, text_at(json, "adapter", where), where);
  }
  if (json.contains("functions")) {
    contender.binding.functions = read_functions(json["functions"], card, where);
  }
  if (json.contains("lacks")) contender.binding.lacks = read_lacks(json["lacks"], card, where);
}

// Sources of a folder that does not list them: those at its top, tests left out.
void find_sources(const fs::path& folder, Contender& contender) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::directory_iterator i(folder, error);
  for (; !error && i != fs::directory_iterator(); i.increment(error)) {
    const fs::directory_entry& entry = *i;
    std::error_code ignored;  // what is no file is no source
    if (entry.is_symlink(ignored) || !entry.is_regular_file(ignored)) continue;
    const fs::path file = entry.path().filename();
    if (!language_of(file) || is_test(file) || file == contender.binding.adapter) continue;
    if (file.stem() == "adapter" && contender.binding.adapter.empty()) {
      contender.binding.adapter = file;
      continue;
    }
    files.push_back(file);
    if (files.size() > kMaxSources) bad(folder, "more than {} sources", kMaxSources);
  }
  if (error) throw FileError(fmt::format("{}: {}", folder.string(), error.message()));
  std::ranges::sort(files);
  contender.binding.sources = files;
}

// The language of all files together. C and C++ go together, and with CUDA; the rest stands alone.
Language common_language(const Contender& contender, const fs::path& where) {
  std::optional<Language> common;
  std::vector<fs::path> files = contender.binding.sources;
  if (!contender.binding.adapter.empty()) files.push_back(contender.binding.adapter);
  for (const fs::path& file : files) {
    const std::optional<Language> language = language_of(file);
    if (!language) {
      bad(where, "'{}': expected a file that ends in .c, .cc, .cpp, .cu, .py or .so",
          file.string());
    }
    const auto alone = [](Language l) {
      return l == Language::shared_library || l == Language::numpy;
    };
    const bool adapter = file == contender.binding.adapter;
    if (common && *common == Language::shared_library && adapter && !alone(*language)) continue;
    if (common && *common != *language && (alone(*common) || alone(*language))) {
      bad(where, "holds files of several kinds; list the ones that count in contender.json");
    }
    if (!common || *language > *common) common = language;
  }
  if (!common) bad(where, "no source, library or Python file in it");
  return *common;
}

std::vector<Candidate> candidates_of(const Contender& contender) {
  std::vector<Candidate> candidates;
  std::vector<fs::path> files = contender.binding.sources;
  if (!contender.binding.adapter.empty()) files.push_back(contender.binding.adapter);
  int64_t left = kMaxAllSources;
  for (const fs::path& file : files) {
    const fs::path path = contender.folder / file;
    const Language language = *language_of(file);
    if (language == Language::shared_library) {
      for (const Symbol& symbol : exported_functions(path)) {
        candidates.push_back({symbol.plain, symbol.arguments});
      }
      continue;
    }
    const std::string text = read_file(path, kMaxSource);
    left -= static_cast<int64_t>(text.size());
    if (left < 0) {
      bad(contender.folder, "more than {} MiB of sources", kMaxAllSources >> 20);
    }
    for (const Signature& s : language == Language::numpy ? scan_python(text) : scan_c(text)) {
      if (!s.is_static) candidates.push_back({s.name, s.required});
    }
  }
  return candidates;
}

void check_name(const Contender& contender, const fs::path& where) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.' || c == '+' || c == ' ';
  };
  if (contender.name.empty() || contender.name.size() > 64 ||
      !std::ranges::all_of(contender.name, fits)) {
    bad(where,
        "a contender's name has 1 to 64 letters, digits, or . _ - +; say \"name\" in "
        "contender.json");
  }
}

}  // namespace

Contender read_contender(const fs::path& path, const Task& task) {
  const TaskCard& card = task.card();
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error) throw InvalidArgument(fmt::format("{}: no such file or folder", path.string()));
  Contender contender;
  std::optional<Language> language;
  bool has_sources = false;
  if (fs::is_directory(real)) {
    contender.folder = real;
    contender.directory = true;
    contender.name = real.filename().string();
    const fs::path json = real / "contender.json";
    if (fs::exists(json)) read_json(json, card, contender, language, has_sources);
    if (!has_sources) find_sources(real, contender);
  } else {
    contender.folder = real.parent_path();
    contender.name = real.stem().string();
    contender.binding.sources = {real.filename()};
    if (!language_of(real)) {
      throw InvalidArgument(fmt::format(
          "{}: expected a folder, or a file that ends in .c, .cc, .cpp, .cu, .py or .so",
          path.string()));
    }
  }
  check_name(contender, real);
  contender.language = common_language(contender, real);
  // A library may hold CUDA code: only the contender can say so.
  if (language == Language::cuda) contender.language = Language::cuda;
  if (contender.language == Language::cuda &&
      std::ranges::find(card.devices, "cuda") == card.devices.end()) {
    throw InvalidArgument(
        fmt::format("{}: task {} takes no CUDA contenders", path.string(), card.id));
  }
  const std::size_t written = contender.binding.functions.size();
  try {
    contender.binding.functions =
        propose_binding(card, contender.language, candidates_of(contender),
                        contender.binding.functions, contender.name);
  } catch (const InvalidArgument& missing) {
    throw bad_signature(card, contender, missing.what());
  }
  check_signatures(card, contender);
  for (const auto& [contract, name] : contender.binding.functions) {
    contender.binding.proposed = contender.binding.proposed || (written == 0 && contract != name);
  }
  return contender;
}

std::string_view name_of(Language language) {
  for (const auto& [known, name] : kLanguages) {
    if (known == language) return name;
  }
  return "?";
}

Language parse_language(std::string_view name) {
  for (const auto& [language, known] : kLanguages) {
    if (known == name) return language;
  }
  throw InvalidArgument(
      fmt::format("language: expected c, cpp, cuda, shared_library or numpy, got '{}'", name));
}

}  // namespace touchstone::judge
