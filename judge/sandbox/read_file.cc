#include "judge/sandbox/read_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "judge/sandbox/descriptor.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {

std::string read_file(const std::filesystem::path& path, int64_t most) {
  // Non-blocking: a pipe instead of a file would otherwise block forever.
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) {
    throw FileError(fmt::format("{}: {}", path.string(), strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) throw FileError(fmt::format("{}: not a plain file", path.string()));
  if (info.st_size > most) {
    throw CorruptData(fmt::format("{}: {} bytes, more than the {} that are read", path.string(),
                                  static_cast<int64_t>(info.st_size), most));
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = read(fd.get(), text.data() + have, text.size() - have);
    if (got <= 0) throw FileError(fmt::format("{}: {}", path.string(), strerror(errno)));
    have += static_cast<std::size_t>(got);
  }
  return text;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw FileError(fmt::format("{}: {}", path.string(), strerror(errno)));
}

}  // namespace touchstone::judge
