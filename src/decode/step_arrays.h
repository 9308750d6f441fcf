// The small arrays of a step, built on the host and read by kernels: in place on the CPU, copied in
// one piece to a fixed address on CUDA, so that kernels captured with them can be replayed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0::decode {

class StepArrays {
 public:
  void clear();
  // Adds an array; the views are good after finish(), until clear().
  std::size_t add(std::span<const std::int32_t> values, std::vector<std::int64_t> shape);
  std::size_t add(std::span<const std::int64_t> values, std::vector<std::int64_t> shape);
  std::size_t add(std::span<const float> values, std::vector<std::int64_t> shape);
  void finish(Context& context);
  ConstTensorView view(std::size_t array) const;

 private:
  struct Array {
    std::size_t offset = 0;
    std::vector<std::int64_t> shape{};
    DType dtype = DType::i64;
  };
  std::size_t add_bytes(std::span<const std::byte> bytes, std::vector<std::int64_t> shape,
                        DType dtype);

  std::vector<std::byte> host_;
  Tensor device_{};
  const std::byte* base_ = nullptr;  // of host_ or device_
  Device where_{};
  std::vector<Array> arrays_;
};

}  // namespace touchstone::inline v0::decode
