#include "cli/output_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>

#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, const char* why) {
  throw FileError(fmt::format("{}: cannot be written: {}", path.string(), why));
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (path.empty()) return;
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::is_directory(status)) fail(path_, std::strerror(EISDIR));
  if (fs::exists(status) && !fs::is_regular_file(status)) return;
  if (fs::exists(status)) {
    if (access(path.c_str(), W_OK) != 0) fail(path_, std::strerror(errno));
    path_ = fs::canonical(path_);  // what a link leads to is written, the link stays
  }
  beside_ = path_.string() + ".XXXXXX";
  const int fd = mkstemp(beside_.data());
  if (fd < 0) {
    const int reason = errno;
    beside_.clear();
    fail(path_, std::strerror(reason));
  }
  // As any new file: mkstemp is stricter.
  const mode_t mask = umask(0);
  umask(mask);
  (void)fchmod(fd, 0666 & ~mask);
  close(fd);
}

OutputFile::~OutputFile() {
  if (!beside_.empty()) unlink(beside_.c_str());
}

void OutputFile::write(std::string_view text) {
  if (!wanted()) return;
  std::ofstream file(beside_.empty() ? path_.string() : beside_, std::ios::binary);
  file << text;
  file.close();
  if (!file) fail(path_, std::strerror(errno));
  if (beside_.empty()) return;
  if (std::rename(beside_.c_str(), path_.c_str()) != 0) fail(path_, std::strerror(errno));
  beside_.clear();
}

}  // namespace touchstone::cli
