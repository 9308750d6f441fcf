#include "io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 18;

[[noreturn]] void fail(const std::filesystem::path& path, int error) {
  throw FileError(path.string() + ": " + std::error_code(error, std::generic_category()).message());
}

// Closes the descriptor when the scope ends.
struct Descriptor {
  int value;
  ~Descriptor() { ::close(value); }
};

// O_NONBLOCK: opening a pipe without a writer must not block.
int open_regular(const std::filesystem::path& path, std::uint64_t& size) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail(path, errno);
  struct stat status {};
  const int result = ::fstat(descriptor, &status);
  if (result != 0 || !S_ISREG(status.st_mode)) {
    const int error = errno;
    ::close(descriptor);
    if (result != 0) fail(path, error);
    throw FileError(path.string() + ": not a regular file");
  }
  size = static_cast<std::uint64_t>(status.st_size);
  return descriptor;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  std::uint64_t size = 0;
  const Descriptor file{open_regular(path, size)};
  if (size == 0) return;  // a mapping of nothing is refused by the system
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (memory == MAP_FAILED) fail(path, errno);
  data_ = static_cast<const std::byte*>(memory);
  size_ = size;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  std::uint64_t size = 0;
  const Descriptor file{open_regular(path, size)};
  if (size > max_bytes) {
    throw CorruptData(fmt::format("{}: {} bytes, at most {}", path.string(), size, max_bytes));
  }
  std::string text(size, '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::read(file.value, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path, errno);
    if (n == 0) break;  // shortened meanwhile: what is there is the content
    done += static_cast<std::size_t>(n);
  }
  text.resize(done);
  return text;
}

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path_, error);
  if (std::filesystem::is_directory(status)) fail(path_, EISDIR);
  if (std::filesystem::exists(status)) {
    // The rename would put a file in the place of a device, a pipe or a link.
    if (!std::filesystem::is_regular_file(status)) {
      throw FileError(path_.string() + ": not a regular file");
    }
    path_ = std::filesystem::canonical(path_);
  }
  temporary_ = path_;
  temporary_ += fmt::format(".partial.{}", ::getpid());
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(path_, errno);
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void OutputFile::write(const void* data, std::size_t bytes) {
  position_ += bytes;
  const char* from = static_cast<const char*>(data);
  while (bytes != 0) {
    const std::size_t part = std::min(bytes, kBufferBytes - buffer_.size());
    buffer_.append(from, part);
    from += part;
    bytes -= part;
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void OutputFile::pad_to(std::uint64_t position) {
  constexpr char kZeros[64] = {};
  while (position_ < position) write(kZeros, std::min<std::uint64_t>(64, position - position_));
}

void OutputFile::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t n = ::write(descriptor_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, errno);
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
  buffer_.clear();
}

void OutputFile::commit(bool durable) {
  flush();
  if (durable && ::fsync(descriptor_) != 0) fail(path_, errno);
  const int descriptor = std::exchange(descriptor_, -1);
  const int closed = ::close(descriptor);  // some systems report a failed write only here
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    fail(path_, error);
  }
  if (!durable) return;
  const std::filesystem::path folder = path_.parent_path();
  const int opened =
      ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) fail(path_, errno);
  const int synced = ::fsync(opened);
  const int error = errno;
  ::close(opened);
  if (synced != 0 && error != EINVAL) fail(path_, error);  // some file systems sync no folders
}

void write_text_file(const std::filesystem::path& path, std::string_view text, bool durable) {
  OutputFile file(path);
  file.write(text);
  file.commit(durable);
}

}  // namespace touchstone::inline v0::io
