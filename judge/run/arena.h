// The shared memory between judge and child, and where tensors lie in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "judge/run/runner.h"
#include "judge/sandbox/child/protocol.h"
#include "judge/sandbox/descriptor.h"

namespace touchstone::judge {

// What one tensor, or one state, needs.
struct BufferRequest {
  protocol::BufferKind kind = protocol::kInput;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  int64_t alignment = 4;
  int echo_of = -1;  // devices: the input that comes back here
};

struct Layout {
  uint64_t base = 0;
  uint64_t span = 0;
  std::vector<protocol::Buffer> buffers;
};

class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int inputs_fd() const { return inputs_.get(); }
  int outputs_fd() const { return outputs_.get(); }

  // Forgets all layouts. The next ones lie elsewhere, or with `again` where they lay before.
  void restart(bool again);
  // Assigns addresses. Guard pages border every tensor; with `device` every tensor also
  // has a band of canaries on both sides, because a device has no guard pages. OutOfMemory.
  Layout place(std::span<const BufferRequest> needs, Placement placement, bool device);

  // Bytes of the two files that exist though no layout covered them: somebody else wrote there.
  int64_t foreign_bytes() const;

  // Takes away what an earlier call left in an input.
  void clear(const protocol::Buffer& buffer);
  // Fills what lies round an input's data, and the data.
  void write_input(const protocol::Buffer& buffer, std::span<const std::byte> data);
  // Fills an output or a state, its data and what lies round it, with a pattern of `poison`.
  void poison(const protocol::Buffer& buffer, uint64_t poison);
  // The first byte round the data that no longer has its pattern, counted from the first element;
  // `changed` says whether there is one.
  int64_t find_change(const protocol::Buffer& buffer, uint64_t poison, bool& changed) const;
  // Whether the data of an output still are the pattern that was there before the call.
  bool is_untouched(const protocol::Buffer& buffer, uint64_t poison) const;
  void read(const protocol::Buffer& buffer, std::span<std::byte> into) const;
  // Whether an echo came back as it was sent.
  bool echo_equals(const protocol::Buffer& echo, std::span<const std::byte> sent) const;

 private:
  std::byte* pages(const protocol::Buffer& buffer) const;

  Descriptor inputs_;
  Descriptor outputs_;
  std::byte* inputs_map_ = nullptr;
  std::byte* outputs_map_ = nullptr;
  uint64_t inputs_used_ = 0;
  uint64_t outputs_used_ = 0;
  uint64_t inputs_most_ = 0;  // of `used`, over all layouts
  uint64_t outputs_most_ = 0;
  uint64_t layout_seed_ = 0;
  uint64_t layouts_ = 0;
};

}  // namespace touchstone::judge
