// The proof that a file holds ternary weights, from its bytes alone.
//
// Every matrix of the file (rank 2 and more: linears, embedding and head) must have a ternary
// format of weight_format.h, and every vector must be f32. Each group is taken apart: its codes are
// -1, 0 or +1, its scale is finite and not negative, its bytes are the one spelling of these codes.
//
// Whether a scale or a code is the one that was written cannot be derived from a group. Files
// written by convert_model, and others by state_ternary, therefore state per tensor the number of
// groups, the number of zeros and checksums of scales and codes, which are derived again and
// compared. They are independent of how a format packs them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/write_tensors.h"

namespace touchstone::inline v0::io {

struct TernaryTensor {
  std::string name;
  std::string type;  // "ternary_g128"
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t groups = 0;
  std::int64_t zero_groups = 0;  // scale 0
  std::int64_t zero_codes = 0;
  std::uint64_t scale_checksum = 0;
  std::uint64_t code_checksum = 0;
  float smallest_scale = 0;  // of groups that are not zero
  float largest_scale = 0;

  std::int64_t values() const { return rows * cols; }
};

struct TernaryInspection {
  std::vector<TernaryTensor> tensors{};  // those that were visited, in the order of the file
  std::int64_t vectors = 0;              // f32 tensors of rank 0 and 1
  bool stated = false;                   // the file states checksums
  std::int64_t fault_count = 0;
  std::vector<std::string> faults{};  // one line each, the first kMaxTernaryFaults

  std::int64_t groups() const;
  std::int64_t values() const;
  std::int64_t zero_codes() const;
  // Something was visited, and nothing was wrong.
  bool passed() const { return !tensors.empty() && fault_count == 0; }
};

inline constexpr std::int64_t kMaxTernaryFaults = 20;

// Reads all tensors. Faults are results, not errors: nothing is thrown for a file that could be
// opened.
TOUCHSTONE_API TernaryInspection inspect_ternary(const TensorFile& file);

// Adds what inspect_ternary compares (keys ternary.tensors and ternary.statements) for those of
// `tensors` that have a ternary format. Calls OutputTensor::data once; writing the file calls it
// again.
TOUCHSTONE_API void state_ternary(std::span<const OutputTensor> tensors, GgufMetadata& metadata);

}  // namespace touchstone::inline v0::io
