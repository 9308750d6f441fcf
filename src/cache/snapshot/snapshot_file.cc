// Snapshots in files, by the calls of the system itself: they report every failure, and pages go
// from and to the cache without a buffer between.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>

#include "cache/snapshot/snapshot_restore.h"
#include "touchstone/cache/snapshot.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* what, const fs::path& path) {
  const std::error_code error(errno, std::generic_category());
  throw FileError(std::string(what) + ": " + path.string() + ": " + error.message());
}

class File {
 public:
  File(const char* what, fs::path path, int flags) : what_(what), path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(what_, path_);
  }
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  std::int64_t bytes() const {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail(what_, path_);
    if (!S_ISREG(status.st_mode)) {
      throw FileError(std::string(what_) + ": " + path_.string() + ": not a regular file");
    }
    return status.st_size;
  }

  // Reserves disk space: a full disk is an error before anything is written, and writes need not
  // search for blocks. Not every file system supports it.
  void allocate(std::int64_t bytes) {
    if (::fallocate(descriptor_, 0, 0, bytes) == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) fail(what_, path_);
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::write(descriptor_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(what_, path_);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }

  void read(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t done = ::read(descriptor_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(what_, path_);
      if (done == 0) throw CorruptData("restore: the snapshot is shorter than its content");
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }

  // Some systems report a failed write only here.
  void close() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) fail(what_, path_);
  }

 private:
  const char* what_;
  fs::path path_;
  int descriptor_ = -1;
};

fs::path temporary_name(fs::path path) {
  static std::atomic<unsigned> count{0};
  path += fmt::format(".{}.{}.tmp", ::getpid(), ++count);
  return path;
}

// Removes a file at the end of the scope, unless it got its final name.
class Temporary {
 public:
  explicit Temporary(const fs::path& path) : path_(path) {}
  ~Temporary() {
    if (!renamed_) ::unlink(path_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void rename_to(const fs::path& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0) fail("save", target);
    renamed_ = true;
  }

 private:
  const fs::path& path_;
  bool renamed_ = false;
};

}  // namespace

void save(const KvCache& cache, std::span<const SequenceId> ids, const fs::path& path) {
  const std::int64_t bytes = snapshot_bytes(cache, ids);  // refuses a bad id
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {  // the rename would replace a device
    throw FileError("save: " + path.string() + ": not a regular file");
  }
  const fs::path name = temporary_name(path);
  File file("save", name, O_WRONLY | O_CREAT | O_EXCL);
  Temporary temporary(name);
  file.allocate(bytes);
  save(cache, ids, [&](std::span<const std::byte> piece) { file.write(piece); });
  file.close();
  temporary.rename_to(path);
}

std::vector<SequenceId> restore(KvCache& cache, const fs::path& path) {
  File file("restore", path, O_RDONLY | O_NONBLOCK);  // a pipe without a writer must not block
  return restore_sized(
      cache, [&](std::span<std::byte> piece) { file.read(piece); }, file.bytes());
}

}  // namespace touchstone::inline v0::cache
