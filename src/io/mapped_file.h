// Files of the file system: mapped for reading, read whole, written whole. FileError when the
// system refuses; directories, pipes and devices are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace touchstone::inline v0::io {

// Read-only memory of a file. Nothing is read before it is touched. A file that another process
// shortens while it is mapped ends this process by a signal, as with every mapping.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The content; CorruptData when the file is larger than max_bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes);

// A file under a temporary name beside its own, renamed at commit(): readers open the old file or
// the complete new one. Removed where commit() is not reached. A symbolic link stays; its target is
// replaced.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void pad_to(std::uint64_t position);  // with zeros
  std::uint64_t position() const { return position_; }
  // `durable`: the bytes, then the name, have reached the disk when it returns.
  void commit(bool durable = false);

 private:
  void flush();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::uint64_t position_ = 0;
  std::string buffer_;
};

void write_text_file(const std::filesystem::path& path, std::string_view text,
                     bool durable = false);

}  // namespace touchstone::inline v0::io
