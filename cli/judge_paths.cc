#include "cli/judge_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <system_error>

#include "cli/output.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;

const judge::Task* task_called(const std::string& id) {
  for (const auto& task : judge::tasks()) {
    if (task->card().id == id) return task.get();
  }
  return nullptr;
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator i(folder, error); !error && i != fs::directory_iterator();
       i.increment(error)) {
    entries.push_back(*i);
  }
  if (error) throw FileError(fmt::format("{}: {}", folder.string(), error.message()));
  return entries;
}

std::vector<fs::path> folders_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;  // a link that leads nowhere is no folder
  for (const fs::directory_entry& entry : entries_of(folder)) {
    if (entry.is_directory(ignored)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

// A file, or a folder with code in it; else it may be a folder of contenders.
bool is_one(const fs::path& path) {
  if (!fs::is_directory(path) || fs::exists(path / "contender.json")) return true;
  constexpr std::array<std::string_view, 7> kCode = {".c",  ".cc", ".cpp", ".cxx",
                                                     ".cu", ".so", ".py"};
  std::error_code ignored;
  for (const fs::directory_entry& entry : entries_of(path)) {
    const std::string extension = entry.path().extension().string();
    if (entry.is_regular_file(ignored) && std::ranges::find(kCode, extension) != kCode.end())
      return true;
  }
  return false;
}

bool is_one_or_unreadable(const fs::path& path) {
  try {
    return is_one(path);
  } catch (const FileError&) {
    return true;
  } catch (const fs::filesystem_error&) {
    return true;
  }
}

// Where the build or the installation put the contenders that come with the program.
fs::path bundled_root() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& place :
       {program.parent_path() / "contenders",
        program.parent_path().parent_path() / "share/touchstone/contenders"}) {
    if (fs::is_directory(place, error)) return place;
  }
  return {};
}

// The name of a contender that could not say its own: what a report cannot print is left out.
std::string printable_name(const fs::path& path) {
  std::string name;
  for (const char c : path.filename().string()) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-';
    name += plain ? c : '_';
  }
  return name.empty() ? "unnamed" : name.substr(0, 64);
}

const char* device_of(const judge::Contender& contender) {
  return contender.language == judge::Language::cuda ? "cuda" : "cpu";
}

class Finder {
 public:
  // `alone`: one path is all there is, so that its faults are errors of the command.
  Finder(std::string task, std::string device, bool alone)
      : wanted_(std::move(task)), device_(std::move(device)), alone_(alone) {}

  void add(const fs::path& path) {
    if (alone_ ? is_one(path) : is_one_or_unreadable(path)) {
      const judge::Task& task = task_of(path.string(), wanted_);
      const std::optional<judge::Contender> contender =
          alone_ ? read_usable(path, task) : read_or_note(path, task);
      if (!contender.has_value()) return;
      if (!fits(*contender)) {
        throw InvalidArgument(fmt::format("judge: {}: --device: runs on {}, not on {}",
                                          path.string(), device_of(*contender), device_));
      }
      field(task).contenders.push_back(*contender);
      return;
    }
    // A folder of contenders of one task, or of folders of tasks.
    const fs::path name = fs::absolute(path).lexically_normal().filename();
    const judge::Task* own = task_called(wanted_.empty() ? name.string() : wanted_);
    bool any = false;
    for (const fs::path& inner : folders_in(path)) {
      const judge::Task* task = task_called(inner.filename().string());
      if (task != nullptr) {
        if (!wanted_.empty() && task->card().id != wanted_) continue;
        for (const fs::path& each : folders_in(inner)) any = add_if_fit(each, *task) || any;
      } else if (own != nullptr && name.string() == own->card().id) {
        any = add_if_fit(inner, *own) || any;
      }
    }
    if (!any) {
      throw InvalidArgument(fmt::format("judge: {}: no contender {}in this folder", path.string(),
                                        device_.empty() ? "" : fmt::format("for {} ", device_)));
    }
  }

  std::vector<judge::BadSignature> unusable;

  std::vector<Field> take() {
    std::vector<Field> ordered;  // as the tasks come on a board
    for (const auto& task : judge::tasks()) {
      const auto found = std::ranges::find(fields_, task.get(), &Field::task);
      if (found == fields_.end()) continue;
      if (found->contenders.empty() && found->unreadable.empty()) continue;
      ordered.push_back(std::move(*found));
    }
    return ordered;
  }

 private:
  bool fits(const judge::Contender& contender) const {
    return device_.empty() || device_ == device_of(contender);
  }

  // True when there is a contender for the device, or one that cannot be read.
  bool add_if_fit(const fs::path& path, const judge::Task& task) {
    const std::size_t noted = unusable.size() + field(task).unreadable.size();
    const std::optional<judge::Contender> contender = read_or_note(path, task);
    if (!contender.has_value()) return unusable.size() + field(task).unreadable.size() > noted;
    if (!fits(*contender)) return false;
    field(task).contenders.push_back(*contender);
    return true;
  }

  // Nothing for signatures that do not match, which are noted.
  std::optional<judge::Contender> read_usable(const fs::path& path, const judge::Task& task) {
    try {
      return judge::read_contender(path, task);
    } catch (const judge::BadSignature& error) {
      unusable.push_back(error);
      return std::nullopt;
    }
  }

  // Nothing for a folder without code, and for what cannot be read, which is noted.
  std::optional<judge::Contender> read_or_note(const fs::path& path, const judge::Task& task) {
    const auto note = [&](const char* why) {
      field(task).unreadable.push_back({printable_name(path), path, why});
    };
    try {
      if (is_one(path)) return read_usable(path, task);
    } catch (const CorruptData& error) {
      note(error.what());
    } catch (const FileError& error) {
      note(error.what());
    } catch (const InvalidArgument& error) {
      note(error.what());
    } catch (const fs::filesystem_error& error) {
      note(error.what());
    }
    return std::nullopt;
  }

  Field& field(const judge::Task& task) {
    const auto found = std::ranges::find(fields_, &task, &Field::task);
    if (found != fields_.end()) return *found;
    fields_.push_back({&task, {}, {}, {}});
    return fields_.back();
  }

  std::string wanted_;
  std::string device_;
  bool alone_;
  std::vector<Field> fields_;
};

void require(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error))
    throw InvalidArgument(fmt::format("judge: {}: no such file or folder", path));
}

// Bundled contenders that say of themselves that others may be measured against them: where the
// same device does the work.
void add_peers(Field& field) {
  const fs::path root = bundled_root();
  const fs::path folder = root / field.task->card().id;
  if (root.empty() || !fs::is_directory(folder)) return;
  for (const fs::path& path : folders_in(folder)) {
    // Peers say so in a file; what has none is not read, so that its faults stay its own.
    if (!fs::exists(path / "contender.json")) continue;
    judge::Contender peer;
    try {
      peer = judge::read_contender(path, *field.task);
    } catch (const Error& error) {
      // It was not requested: the given contenders are judged all the same.
      log(fmt::format("a bundled peer is left out: {}", error.what()));
      continue;
    }
    const bool known = std::ranges::any_of(
        field.contenders, [&](const judge::Contender& c) { return c.name == peer.name; });
    const bool same_device = std::ranges::any_of(field.contenders, [&](const judge::Contender& c) {
      return std::string_view(device_of(c)) == device_of(peer);
    });
    if (peer.peer && !known && same_device) field.peers.push_back(peer);
  }
}

}  // namespace

const judge::Task& task_of(const std::string& path, const std::string& task) {
  if (!task.empty()) return judge::find_task(task);
  // contenders/softmax_topk/naive and its files: the nearest folder that is named like a task.
  for (fs::path part = fs::absolute(path).lexically_normal(); part.has_relative_path();
       part = part.parent_path()) {
    const judge::Task* named = task_called(part.filename().string());
    if (named != nullptr) return *named;
  }
  throw InvalidArgument(
      fmt::format("judge: {}: of which task? say --task (--list shows them)", path));
}

judge::Contender find_contender(const std::string& path, const judge::Task& task) {
  require(path);
  try {
    return judge::read_contender(path, task);
  } catch (const judge::BadSignature& error) {
    print(error.adapter());
    throw;
  }
}

std::vector<Field> find_contenders(const std::vector<std::string>& paths, const std::string& task,
                                   const std::string& device, bool with_peers,
                                   std::vector<judge::BadSignature>& unusable) {
  if (!task.empty()) judge::find_task(task);  // a misspelt one is said before anything is read
  if (!device.empty() && device != "cpu" && device != "cuda") {
    throw InvalidArgument(fmt::format("judge: --device: expected cpu or cuda, got '{}'", device));
  }
  // A board compares contenders of the same task only.
  Finder finder(task, device.empty() && paths.empty() ? "cpu" : device, paths.size() == 1);
  if (paths.empty()) {
    const fs::path root = bundled_root();
    if (root.empty())
      throw InvalidArgument("judge: a path is required: no contenders came with this program");
    finder.add(root);
  }
  for (const std::string& path : paths) {
    require(path);
    finder.add(path);
  }
  std::vector<Field> fields = finder.take();
  unusable = std::move(finder.unusable);
  if (fields.empty() && !unusable.empty()) {
    print(unusable.front().adapter());
    throw InvalidArgument(unusable.front().what());
  }
  for (Field& field : fields) {
    // Reports tell contenders apart by name.
    std::vector<std::string*> names;
    for (judge::Contender& contender : field.contenders) names.push_back(&contender.name);
    for (Field::Unreadable& one : field.unreadable) names.push_back(&one.name);
    for (std::size_t i = 0; i < names.size(); ++i) {
      for (std::size_t k = 0; k < i; ++k) {
        if (*names[k] == *names[i]) *names[i] += fmt::format("-{}", i + 1);
      }
    }
    if (with_peers && !paths.empty()) add_peers(field);
  }
  return fields;
}

}  // namespace touchstone::cli
