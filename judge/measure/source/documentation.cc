// What stands beside the code: which topics it writes about, and the claims that the patterns of the
// task's card find in it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <sstream>

#include "judge/measure/session.h"
#include "judge/sandbox/read_file.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxDocument = 256 << 10;
constexpr std::size_t kMaxDocuments = 8;
// The library's regular expressions recurse with the length of the text.
constexpr std::size_t kMaxSearched = 400;
constexpr std::size_t kMaxClaims = 24;

// The section 'Beside the code (optional)' of the statements, point by point.
struct Topic {
  const char* title;
  const char* pattern;
};
constexpr std::array<Topic, 6> kTopics = {{
    {"complexity, with bytes and operations", "O\\(|flops?\\b|complexity|bytes (moved|read)"},
    {"where it is unstable", "unstable|instabil|stabil|cancel|overflow|underflow|precision"},
    {"how it maps to a GPU", "gpu|cuda|warp|shared memory|thread block|tensor core"},
    {"growth of its memory", "memory"},
    {"its own tests", "\\btests?\\b"},
    {"a benchmark", "benchmark|speed-?up|times faster|gb/s|gflop"},
}};

std::regex compiled(const std::string& pattern) {
  return std::regex(pattern, std::regex::ECMAScript | std::regex::icase);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  std::string line;
  while (std::getline(stream, line)) {
    std::string clean;
    for (const char c : line.substr(0, kMaxSearched)) {
      clean += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    const std::size_t first = clean.find_first_not_of(" *#->|");
    lines.push_back(first == std::string::npos ? "" : clean.substr(first));
  }
  return lines;
}

double unit_factor(std::string unit) {
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (unit.starts_with("ki")) return 1024.0;
  if (unit.starts_with("k")) return 1e3;
  if (unit.starts_with("mi")) return 1048576.0;
  if (unit.starts_with("m")) return 1e6;
  if (unit.starts_with("gi")) return 1073741824.0;
  if (unit.starts_with("g")) return 1e9;
  return 1.0;
}

// "not compute-bound" claims nothing.
bool negated(const std::string& before) {
  const std::string near = before.size() > 12 ? before.substr(before.size() - 12) : before;
  return std::regex_search(near, std::regex("\\bnot\\b|n't\\b|\\bno longer\\b"));
}

class ClaimFinder {
 public:
  explicit ClaimFinder(Session& session) : session_(session) {
    for (const ClaimPattern& pattern : session.task.card().claims) {
      patterns_.push_back(compiled(pattern.pattern));
    }
  }

  // Adds the claims of one line; one that nobody knows only where it was made as one.
  void take(const std::string& line, const std::string& source, bool declared) {
    bool known = false;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      std::smatch match;
      if (!std::regex_search(line, match, patterns_[i]) || negated(match.prefix().str())) continue;
      known = true;
      ClaimRecord claim = new_claim(line, source);
      const ClaimPattern& pattern = session_.task.card().claims[i];
      claim.measure = pattern.measure;
      claim.claimed = pattern.value;
      if (!pattern.value.has_value() && match.size() > 1 && match[1].matched) {
        claim.claimed = std::strtod(match[1].str().c_str(), nullptr);
      }
      if (match.size() > 2 && match[2].matched) {
        if (pattern.measure == "faster_than") {
          claim.peer = match[2].str();
        } else {
          claim.claimed = claim.claimed.value_or(1.0) * unit_factor(match[2].str());
        }
      }
      add(std::move(claim));
    }
    if (!known && declared) add(new_claim(line, source));
  }

 private:
  static ClaimRecord new_claim(const std::string& line, const std::string& source) {
    ClaimRecord claim;
    claim.text = line.substr(0, 200);
    claim.source = source;
    return claim;
  }

  void add(ClaimRecord claim) {
    std::vector<ClaimRecord>& claims = session_.record.claims;
    if (claims.size() >= kMaxClaims) return;
    // Once for each measure and number: a README repeats itself.
    const bool said = std::ranges::any_of(claims, [&](const ClaimRecord& other) {
      return !claim.measure.empty() && other.measure == claim.measure &&
             other.claimed == claim.claimed && other.peer == claim.peer;
    });
    if (said) return;
    claim.id = fmt::format("k{}", claims.size() + 1);
    claims.push_back(std::move(claim));
  }

  Session& session_;
  std::vector<std::regex> patterns_;
};

std::vector<fs::path> documents(const Session& session) {
  std::vector<fs::path> files;
  if (!session.contender.directory) return files;
  std::error_code error;
  for (fs::directory_iterator i(session.contender.folder, error);
       !error && i != fs::directory_iterator(); i.increment(error)) {
    std::error_code ignored;
    std::string extension = i->path().extension().string();
    std::ranges::transform(extension, extension.begin(),
                           [](unsigned char c) { return std::tolower(c); });
    const bool text = extension == ".md" || extension == ".txt" || extension == ".rst" ||
                      i->path().filename() == "README";
    // The statement that deploy wrote there is the judge's own.
    if (!text || i->path().filename() == "PROMPT.md") continue;
    if (i->is_symlink(ignored) || !i->is_regular_file(ignored)) continue;
    if (i->file_size(ignored) > kMaxDocument || ignored) continue;
    files.push_back(i->path().filename());
  }
  std::ranges::sort(files);
  if (files.size() > kMaxDocuments) files.resize(kMaxDocuments);
  return files;
}

}  // namespace

void read_documentation(Session& session) {
  DocumentationRecord& documentation = session.record.documentation;
  ClaimFinder claims(session);
  for (const std::string& claim : session.contender.claims) {
    claims.take(claim, "contender.json", true);
  }
  std::vector<bool> found(kTopics.size(), false);
  for (const fs::path& file : documents(session)) {
    const std::string text = read_file(session.contender.folder / file, kMaxDocument);
    documentation.files.push_back(file.string());
    int number = 0;
    for (const std::string& line : lines_of(text)) {
      ++number;
      claims.take(line, fmt::format("{}:{}", file.string(), number), false);
      std::istringstream words(line);
      for (std::string word; words >> word;) ++documentation.words;
      for (std::size_t i = 0; i < kTopics.size(); ++i) {
        found[i] = found[i] || std::regex_search(line, compiled(kTopics[i].pattern));
      }
    }
  }
  if (documentation.files.empty()) return;
  for (std::size_t i = 0; i < kTopics.size(); ++i) {
    (found[i] ? documentation.topics : documentation.missing).emplace_back(kTopics[i].title);
  }
}

}  // namespace touchstone::judge
