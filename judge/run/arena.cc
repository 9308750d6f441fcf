#include "judge/run/arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr uint64_t kPage = 4096;
// Of each file. Pages come into being when they are touched, so that size costs nothing.
constexpr uint64_t kFileBytes = uint64_t{16} << 30;
// Bytes of canaries before and behind a tensor on a device.
constexpr uint64_t kDeviceBand = kPage;

// Addresses are drawn from a range that the loader, the heap, and the shadow of AddressSanitizer
// leave alone.
constexpr uint64_t kLowestAddress = uint64_t{0x200000000000};
constexpr uint64_t kAddressRange = uint64_t{0x300000000000};

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

Descriptor make_file(const char* name) {
  Descriptor fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ftruncate(fd.get(), static_cast<off_t>(kFileBytes)) != 0) {
    throw Error(fmt::format("judge: shared memory: {}", strerror(errno)));
  }
  return fd;
}

std::byte* map_file(const Descriptor& fd) {
  void* map =
      mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (map == MAP_FAILED) throw Error(fmt::format("judge: shared memory: {}", strerror(errno)));
  return static_cast<std::byte*>(map);
}

// Byte `i` of the pattern lies in word i / 8, so that any part of it can be checked alone.
void fill_pattern(std::byte* at, uint64_t begin, uint64_t end, uint64_t seed) {
  uint64_t i = begin;
  while (i < end) {
    const uint64_t word = mix(seed + i / 8);
    const uint64_t offset = i % 8;
    if (offset == 0 && end - i >= 8) {
      memcpy(at + i, &word, 8);
      i += 8;
      continue;
    }
    const uint64_t count = std::min(8 - offset, end - i);
    memcpy(at + i, reinterpret_cast<const char*>(&word) + offset, count);
    i += count;
  }
}

uint64_t first_change(const std::byte* at, uint64_t begin, uint64_t end, uint64_t seed) {
  for (uint64_t i = begin; i < end; ++i) {
    const uint64_t word = mix(seed + i / 8);
    if (i % 8 == 0 && end - i >= 8 && memcmp(at + i, &word, 8) == 0) {
      i += 7;
      continue;
    }
    const auto expected = static_cast<std::byte>(word >> (8 * (i % 8)) & 0xff);
    if (at[i] != expected) return i;
  }
  return end;
}

}  // namespace

Arena::Arena() : inputs_(make_file("inputs")), outputs_(make_file("outputs")) {
  inputs_map_ = map_file(inputs_);
  outputs_map_ = map_file(outputs_);
  // From here on the inputs cannot be mapped writable again, not even through /proc.
  if (fcntl(inputs_.get(), F_ADD_SEALS,
            F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw Error(fmt::format("judge: sealing the inputs: {}", strerror(errno)));
  }
  fcntl(outputs_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  restart(false);
}

Arena::~Arena() {
  munmap(inputs_map_, kFileBytes);
  munmap(outputs_map_, kFileBytes);
}

void Arena::restart(bool again) {
  inputs_used_ = 0;
  outputs_used_ = 0;
  layouts_ = 0;
  if (again && layout_seed_ != 0) return;
  if (getrandom(&layout_seed_, sizeof layout_seed_, 0) != sizeof layout_seed_) {
    throw Error("judge: the system gives no random numbers");
  }
  layout_seed_ |= 1;
}

Layout Arena::place(std::span<const BufferRequest> needs, Placement placement, bool device) {
  Layout layout;
  layout.base = (kLowestAddress + mix(layout_seed_ + layouts_++) % kAddressRange) / kPage * kPage;
  uint64_t address = kPage;  // the first guard
  for (const BufferRequest& need : needs) {
    protocol::Buffer buffer{};
    buffer.kind = need.kind;
    buffer.dtype = static_cast<uint32_t>(need.dtype);
    buffer.data_bytes = static_cast<uint64_t>(need.bytes);
    buffer.echo_of = static_cast<uint32_t>(need.echo_of + 1);
    buffer.rank =
        static_cast<uint32_t>(std::min<std::size_t>(need.shape.size(), protocol::kMaxRank));
    std::copy_n(need.shape.begin(), buffer.rank, buffer.shape);
    const auto alignment = static_cast<uint64_t>(need.alignment);
    const uint64_t room = round_up(buffer.data_bytes, alignment);
    // A tensor without elements gets a page too: its pointer is valid, though nothing may be read.
    buffer.mapped_bytes = std::max(kPage, round_up(room, kPage)) + (device ? 2 * kDeviceBand : 0);
    buffer.address_offset = address;
    buffer.data_offset = placement == Placement::end_flush ? buffer.mapped_bytes - room : 0;
    if (device) buffer.data_offset = kDeviceBand;
    uint64_t& used = need.kind == protocol::kInput ? inputs_used_ : outputs_used_;
    if (buffer.mapped_bytes > kFileBytes - used) {
      throw OutOfMemory(
          fmt::format("judge: a case needs more than {} GiB of tensors", kFileBytes >> 30));
    }
    buffer.file_offset = used;
    used += buffer.mapped_bytes;
    uint64_t& most = need.kind == protocol::kInput ? inputs_most_ : outputs_most_;
    most = std::max(most, used);
    address += buffer.mapped_bytes + kPage;
    layout.buffers.push_back(buffer);
  }
  layout.span = needs.empty() ? 0 : address;
  return layout;
}

std::byte* Arena::pages(const protocol::Buffer& buffer) const {
  return (buffer.kind == protocol::kInput ? inputs_map_ : outputs_map_) + buffer.file_offset;
}

int64_t Arena::foreign_bytes() const {
  const auto beyond = [](const Descriptor& fd, uint64_t own) {
    struct stat now {};
    if (fstat(fd.get(), &now) != 0) return int64_t{0};
    return std::max<int64_t>(0,
                             static_cast<int64_t>(now.st_blocks) * 512 - static_cast<int64_t>(own));
  };
  return beyond(inputs_, inputs_most_) + beyond(outputs_, outputs_most_);
}

void Arena::clear(const protocol::Buffer& buffer) {
  memset(pages(buffer), 0xa5, buffer.mapped_bytes);
}

void Arena::write_input(const protocol::Buffer& buffer, std::span<const std::byte> data) {
  std::byte* at = pages(buffer);
  // Whoever reads beside the data reads noise, and not what an earlier case left there.
  const uint64_t noise = mix(layout_seed_ + buffer.file_offset);
  const uint64_t end = buffer.data_offset + buffer.data_bytes;
  fill_pattern(at, 0, buffer.data_offset, noise);
  fill_pattern(at, end, buffer.mapped_bytes, noise);
  if (!data.empty()) memcpy(at + buffer.data_offset, data.data(), data.size());
}

void Arena::poison(const protocol::Buffer& buffer, uint64_t poison) {
  fill_pattern(pages(buffer), 0, buffer.mapped_bytes, mix(poison + buffer.file_offset));
}

int64_t Arena::find_change(const protocol::Buffer& buffer, uint64_t poison, bool& changed) const {
  const std::byte* at = pages(buffer);
  const uint64_t seed = mix(poison + buffer.file_offset);
  const uint64_t end = buffer.data_offset + buffer.data_bytes;
  const uint64_t before = first_change(at, 0, buffer.data_offset, seed);
  const uint64_t behind = first_change(at, end, buffer.mapped_bytes, seed);
  changed = before < buffer.data_offset || behind < buffer.mapped_bytes;
  const uint64_t where = behind < buffer.mapped_bytes ? behind : before;
  return static_cast<int64_t>(where) - static_cast<int64_t>(buffer.data_offset);
}

bool Arena::is_untouched(const protocol::Buffer& buffer, uint64_t poison) const {
  const uint64_t end = buffer.data_offset + buffer.data_bytes;
  return first_change(pages(buffer), buffer.data_offset, end, mix(poison + buffer.file_offset)) ==
         end;
}

void Arena::read(const protocol::Buffer& buffer, std::span<std::byte> into) const {
  if (!into.empty()) memcpy(into.data(), pages(buffer) + buffer.data_offset, into.size());
}

bool Arena::echo_equals(const protocol::Buffer& echo, std::span<const std::byte> sent) const {
  return sent.empty() || memcmp(pages(echo) + echo.data_offset, sent.data(), sent.size()) == 0;
}

}  // namespace touchstone::judge
