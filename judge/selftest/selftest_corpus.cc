// Reads the corpus: what there is, and what each entry says about itself.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

#include "judge/selftest/selftest.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw FileError(fmt::format("{}: cannot be read", path.string()));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename() != "__pycache__") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  return paths;
}

// "twice slow=0.02" -> {twice: "", slow: "0.02"}
std::map<std::string, std::string> parse_flags(const std::string& text) {
  std::map<std::string, std::string> flags;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const bool plain = equals == std::string::npos;
    flags[word.substr(0, equals)] = plain ? "" : word.substr(equals + 1);
  }
  return flags;
}

// What is left of a text, taken piece by piece from its beginning.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : left_(text) {}

  void skip(std::string_view characters) {
    left_.remove_prefix(std::min(left_.find_first_not_of(characters), left_.size()));
  }
  bool take(std::string_view token) {
    if (!left_.starts_with(token)) return false;
    left_.remove_prefix(token.size());
    return true;
  }
  // Spaces, and the end of a line of a macro.
  void skip_line_end() {
    skip(kSpaces);
    take("\\");
    skip(kSpaces);
  }
  bool take_comma() {
    if (!take(",")) return false;
    skip_line_end();
    return true;
  }
  bool take_name(std::string& name) {
    const auto end = std::ranges::find_if_not(
        left_, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; });
    name.assign(left_.begin(), end);
    return take(name) && !name.empty();
  }
  // A string, or several that follow each other: long ones are broken.
  bool take_quoted(std::string& content) {
    content.clear();
    for (bool first = true;; first = false) {
      const std::string_view before = left_;
      if (!first) skip_line_end();
      if (!take("\"")) {
        left_ = before;
        return !first;
      }
      const std::string part(left_.substr(0, left_.find('"')));
      if (!take(part) || !take("\"")) return false;
      content += part;
    }
  }

 private:
  static constexpr std::string_view kSpaces = " \t\n\v\f\r";
  std::string_view left_;
};

// WORD(name, "flags", "what") or WORD(name, "what") at the beginning of a line, in a comment or not.
// CorruptData for what begins so and is none: an entry that is not read is not judged.
std::optional<CorpusEntry> declared_entry(const fs::path& source, std::string_view text,
                                          const std::string& word) {
  Scanner scanner(text);
  CorpusEntry entry;
  scanner.skip(" /\"");
  if (!scanner.take(word) || !scanner.take("(")) return std::nullopt;
  scanner.skip_line_end();
  bool read =
      scanner.take_name(entry.name) && scanner.take_comma() && scanner.take_quoted(entry.what);
  if (read && scanner.take_comma()) {
    entry.flags = parse_flags(entry.what);
    read = scanner.take_quoted(entry.what);
  }
  if (!read || !scanner.take(")")) {
    throw CorruptData(
        fmt::format("{}: {}({}: expected a name and strings", source.string(), word, entry.name));
  }
  return entry;
}

// The lines of a source that name an entry.
std::vector<CorpusEntry> declared_entries(const fs::path& source, std::string_view text,
                                          const std::string& task, CorpusKind kind,
                                          const std::string& word) {
  std::vector<CorpusEntry> entries;
  for (size_t line = 0; line != std::string_view::npos;) {
    std::optional<CorpusEntry> entry = declared_entry(source, text.substr(line), word);
    if (entry.has_value()) {
      entry->task = task;
      entry->kind = kind;
      entry->source = source;
      entry->shared_source = true;
      entries.push_back(*std::move(entry));
    }
    line = text.find('\n', line);
    if (line != std::string_view::npos) ++line;
  }
  if (entries.empty()) {
    throw CorruptData(fmt::format("{}: no {}(name, \"...\") in it", source.string(), word));
  }
  return entries;
}

void add_shared(std::vector<CorpusEntry>& all, const fs::path& source, const std::string& task,
                CorpusKind kind, const std::string& word) {
  for (CorpusEntry& entry : declared_entries(source, text_of(source), task, kind, word)) {
    // The right code that the mutants were made from is one more known-good implementation.
    if (kind == CorpusKind::mutant && (entry.name == "none" || entry.name == "cuda_none")) {
      entry.kind = CorpusKind::good;
      entry.what = "what the mutants were made from";
    }
    all.push_back(std::move(entry));
  }
}

// A source of mutants, of contenders that lack something, or of both.
void add_table(std::vector<CorpusEntry>& all, const fs::path& source, const std::string& task) {
  const std::string text = text_of(source);
  const bool partial = text.find(" PARTIAL(") != std::string::npos;
  const bool mutant = text.find(" MUTANT(") != std::string::npos;
  if (mutant || !partial) add_shared(all, source, task, CorpusKind::mutant, "MUTANT");
  if (partial) add_shared(all, source, task, CorpusKind::partial, "PARTIAL");
}

// On a GPU all names begin with cuda_, so that --only can select them.
void add_good(std::vector<CorpusEntry>& all, const fs::path& folder, const std::string& task,
              const std::string& prefix = "") {
  for (const fs::path& path : sorted_entries(folder)) {
    CorpusEntry entry;
    entry.task = task;
    entry.name = prefix + path.stem().string();
    entry.source = path;
    all.push_back(std::move(entry));
  }
}

// A folder of exploits or look-alikes: <task>.cc and <task>-more.cc hold many of one task; every
// other file or folder is one of softmax_topk, the task with the plainest contract. Headers belong
// to others.
void add_mixed(std::vector<CorpusEntry>& all, const fs::path& folder, CorpusKind kind,
               const std::string& word) {
  for (const fs::path& path : sorted_entries(folder)) {
    if (path.extension() == ".h") continue;
    const std::string name = path.stem().string();
    const std::string stem = name.substr(0, name.find('-'));
    const bool of_task = std::ranges::any_of(
        tasks(), [&](const std::unique_ptr<Task>& task) { return task->card().id == stem; });
    if (of_task) {
      add_shared(all, path, stem, kind, word);
      continue;
    }
    const fs::path main = fs::is_directory(path) ? path / "contender.py" : path;
    CorpusEntry entry = declared_entries(path, text_of(main), "softmax_topk", kind, word).front();
    entry.shared_source = false;
    all.push_back(std::move(entry));
  }
}

}  // namespace

std::string_view name_of(CorpusKind kind) {
  constexpr std::array<std::string_view, 6> kNames = {"good",    "partial", "mutant",
                                                      "trivial", "exploit", "lookalike"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<CorpusEntry> read_corpus(const fs::path& corpus) {
  if (!fs::is_directory(corpus / "exploits")) {
    throw FileError(
        fmt::format("{}: not a corpus; the selftest needs the source tree", corpus.string()));
  }
  std::vector<CorpusEntry> all;
  for (const auto& task : tasks()) {
    const std::string& id = task->card().id;
    const fs::path folder = corpus / id;
    for (const char* name : {"mutants.cc", "mutants.py", "reach.cc", "reach.py", "crossings.cc"}) {
      if (fs::exists(folder / name)) add_table(all, folder / name, id);
    }
    add_good(all, folder / "good", id);
    add_shared(all, folder / "trivial.cc", id, CorpusKind::trivial, "TRIVIAL");
    if (fs::is_directory(folder / "cuda")) {
      add_shared(all, folder / "cuda/mutants.cu", id, CorpusKind::mutant, "MUTANT");
      add_good(all, folder / "cuda/good", id, "cuda_");
    }
  }
  add_mixed(all, corpus / "exploits", CorpusKind::exploit, "EXPLOIT");
  add_mixed(all, corpus / "lookalikes", CorpusKind::lookalike, "LOOKALIKE");
  return all;
}

}  // namespace touchstone::judge
