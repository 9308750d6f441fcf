// A cursor over bytes of a file: little-endian values, every read checked against what is left.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

class ByteReader {
 public:
  // `name` stands at the front of messages.
  ByteReader(std::string name, std::span<const std::byte> bytes)
      : name_(std::move(name)), bytes_(bytes) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }

  // The next n bytes; CorruptData naming `what` when fewer are left.
  std::span<const std::byte> take(std::uint64_t n, std::string_view what) {
    if (n > left()) {
      fail(fmt::format("{}: needs {} bytes, {} are left", what, n, left()));
    }
    const auto taken = bytes_.subspan(position_, n);
    position_ += n;
    return taken;
  }

  template <class T>
  T read(std::string_view what) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string_view take_text(std::uint64_t n, std::string_view what) {
    const auto bytes = take(n, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  // CorruptData "<name>: byte <position>: <problem>".
  [[noreturn]] void fail(const std::string& problem) const {
    throw CorruptData(fmt::format("{}: byte {}: {}", name_, position_, problem));
  }

 private:
  std::string name_;
  std::span<const std::byte> bytes_;
  std::uint64_t position_ = 0;
};

}  // namespace touchstone::inline v0::io
