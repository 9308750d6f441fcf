// The folder of a training run, with its checkpoints.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "touchstone/core/error.h"

namespace touchstone::cli {

// Folders that open() made are removed again where no run begins in them: settings may be refused
// as late as that, and what is refused leaves nothing behind.
class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  ~RunFolder() {
    if (begun_) return;
    std::error_code ignored;  // what has files in it stays
    for (const std::filesystem::path& folder : made_) std::filesystem::remove(folder, ignored);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path last() const { return checkpoints() / "last.safetensors"; }
  std::filesystem::path best() const { return checkpoints() / "best.safetensors"; }

  // Before any work: that it can be written, and holds no other run, or the one that goes on.
  void open(bool resume) {
    std::error_code error;
    if (resume && !std::filesystem::exists(last(), error)) {
      throw FileError(fmt::format("{}: there is no run to go on with", last().string()));
    }
    note_missing();
    std::filesystem::create_directories(checkpoints(), error);
    if (error || ::access(checkpoints().c_str(), W_OK) != 0) {
      throw FileError(fmt::format("{}: cannot be written: {}", path_.string(),
                                  error ? error.message() : std::strerror(errno)));
    }
    if (!resume && std::filesystem::exists(last(), error)) {
      throw InvalidArgument(fmt::format(
          "train: --out {}: there is a run in it: --resume goes on, or take another folder",
          path_.string()));
    }
  }
  void begin() { begun_ = true; }

  // What killed runs left of files that they wrote beside those of the folder, checkpoints apart,
  // which the library clears when it opens them.
  void remove_unfinished() const {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
      const std::string name = entry.path().filename().string();
      for (const char* const beginning : {"loss.csv.", "loss.svg.", "tokenizer.gguf.",
                                          "model.gguf.partial.", "model.safetensors.partial."}) {
        if (name.starts_with(beginning)) std::filesystem::remove(entry.path(), ignored);
      }
    }
  }

 private:
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }

  // Adds the folders that create_directories() is about to make, the innermost first. A link that
  // leads nowhere is there, and not ours to remove.
  void note_missing() {
    std::error_code error;
    for (std::filesystem::path folder = checkpoints(); !folder.empty();
         folder = folder.parent_path()) {
      const auto status = std::filesystem::symlink_status(folder, error);
      if (status.type() != std::filesystem::file_type::not_found) return;
      made_.push_back(folder);
    }
  }

  std::filesystem::path path_;
  std::vector<std::filesystem::path> made_{};  // in the order of their removal
  bool begun_ = false;
};

}  // namespace touchstone::cli
