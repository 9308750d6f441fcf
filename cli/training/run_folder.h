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

#include "touchstone/core/error.h"

namespace touchstone::cli {

// A folder that open() made is removed again where no run begins in it: settings may be refused as
// late as that, and what is refused leaves nothing behind.
class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  ~RunFolder() {
    if (!made_ || begun_) return;
    std::error_code ignored;  // what has files in it stays
    std::filesystem::remove(checkpoints(), ignored);
    std::filesystem::remove(path_, ignored);
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
    const bool there = std::filesystem::exists(path_, error);
    std::filesystem::create_directories(checkpoints(), error);
    if (error || ::access(checkpoints().c_str(), W_OK) != 0) {
      throw FileError(fmt::format("{}: cannot be written: {}", path_.string(),
                                  error ? error.message() : std::strerror(errno)));
    }
    made_ |= !there;
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

  std::filesystem::path path_;
  bool made_ = false;
  bool begun_ = false;
};

}  // namespace touchstone::cli
