// From the paths of a command line to contenders of tasks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "judge/contender/adapter.h"
#include "judge/contender/contender.h"
#include "judge/task/task.h"

namespace touchstone::cli {

// The contenders of one task, and those that are measured beside them.
struct Field {
  const judge::Task* task = nullptr;
  std::vector<judge::Contender> contenders;
  std::vector<judge::Contender> peers;
  // Contenders whose files cannot be read: each is a record of its own, the others are judged.
  struct Unreadable {
    std::string name;
    std::filesystem::path path;
    std::string why;
  };
  std::vector<Unreadable> unreadable;
};

// Contenders at the paths: one each, or all in a folder of them, by task. A path whose folder has
// the name of a task belongs to that; else `task` says which. No path: the bundled contenders.
// `device` is "cpu" or "cuda", and leaves out of a folder what runs on the other; "" takes all that
// is at the paths, and of the bundled ones those for the CPU. InvalidArgument for a path that is
// not there, no task named, or where nothing is left. Contenders whose signatures do not match
// are left out while there are others: `unusable` gets each, with the adapter to copy. A single
// path to a contender that cannot be read throws; one of several is a Field::Unreadable.
std::vector<Field> find_contenders(const std::vector<std::string>& paths, const std::string& task,
                                   const std::string& device, bool with_peers,
                                   std::vector<judge::BadSignature>& unusable);

// One contender of one task, for a replay or a duel.
judge::Contender find_contender(const std::string& path, const judge::Task& task);
// The task of a path: `task` when given, else by the name of its folder.
const judge::Task& task_of(const std::string& path, const std::string& task);

}  // namespace touchstone::cli
