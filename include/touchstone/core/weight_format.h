// How the weights of a model are stored: a list of named block formats. A row of a weight matrix is
// a run of blocks, each of which holds `block_elements` values in `block_bytes` bytes with the
// scales inside; plain element types are blocks of one. Readers of files, operators and the program
// loop over the list: a format that is added to it is read, converted, listed and tested
// everywhere.
//
// The GGUF formats (q8_0 ... q6_k, tq1_0, tq2_0) decode to the values of the PyPI package `gguf`,
// bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "touchstone/core/dtype.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0 {

enum class WeightFormatId : std::uint8_t {
  // Plain elements; fp8_e4m3 without a scale of its own.
  f64,
  f32,
  bf16,
  f16,
  fp8_e4m3,
  // Groups of 32, 64 or 128 values: an f16 scale s, then the codes; value = s * code. int8: codes
  // -127..127, one byte each. int4: codes -7..7 stored as code + 8, the value of even index in the
  // low half of its byte.
  int8_g32,
  int8_g64,
  int8_g128,
  int4_g32,
  int4_g64,
  int4_g128,
  // GGUF. q8_0, q4_0, q4_1, q5_0, q5_1: blocks of 32; q4_k, q5_k, q6_k: of 256 with sub-blocks.
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  // Ternary: codes -1, 0, +1 and one f16 scale per block (core/ternary.h); value = scale * code.
  // Ours. ternary_g*: 2 bits a code, stored as code + 1; of n values byte i < n / 4 holds values i,
  // i + n / 4, i + n / 2 and i + 3 n / 4 from its low bits up; the scale follows. base3_g128:
  // values 5 i .. 5 i + 4 of a group in byte i as a number below 243, the first its most
  // significant digit; the scale follows. sherry_g128, for groups with one zero in every four
  // values: five bits for four neighbors, from the low bits up: the signs of the three that are not
  // 0 (1 = negative), then the position of the 0; the scale follows.
  ternary_g32,
  ternary_g64,
  ternary_g128,
  ternary_g256,
  base3_g128,
  sherry_g128,
  // GGUF. tq1_0 and ptq1_0: five digits a byte, blocks of 256 and 128; tq2_0, q2_0 and pq2_0: 2
  // bits, blocks of 256, 64 and 128. A stored code of 3 decodes to 2 * scale, as q2_0 means it.
  tq1_0,
  tq2_0,
  q2_0,
  pq2_0,
  ptq1_0,
};

struct WeightFormat {
  WeightFormatId id{};
  std::string_view name;            // as users write it: "bf16", "int4_g64", "q4_k"
  std::int64_t block_elements = 1;  // values in a block; divides the length of a row
  std::int64_t block_bytes = 0;     // bytes of a block
  std::optional<DType> dtype;       // of a plain element type, the type of views of such weights
  // Operators that run from the storage on the CPU and on CUDA; for others the weights are
  // converted when they are loaded.
  bool linear_cpu = false;
  bool linear_cuda = false;
  bool embedding_cpu = false;
  bool embedding_cuda = false;
  // Codes -1, 0, +1 and one scale for the values of a block.
  bool ternary = false;

  // Values of `blocks` blocks as f32. Bytes need no alignment. f64 rounds to nearest.
  void (*decode)(const std::byte* from, std::int64_t blocks, float* to) = nullptr;
  // The inverse, deterministic, of finite values; null for formats that are only read. The result
  // depends on the values of the block alone. See encode_weights. Ternary formats: blocks that are
  // already ternary are kept exactly; others are projected, ours by the mean of magnitudes, those
  // of GGUF by the largest, as their tools do, sherry_g128 by the mean after the smallest of every
  // four became 0. To project by another rule, or to refuse, see core/ternary.h and io/convert.h.
  void (*encode)(const float* from, std::int64_t blocks, std::byte* to) = nullptr;
};

// All formats, in the order of WeightFormatId.
TOUCHSTONE_API std::span<const WeightFormat> weight_formats();

TOUCHSTONE_API const WeightFormat& weight_format(WeightFormatId id);
// By name; InvalidArgument lists the known names.
TOUCHSTONE_API const WeightFormat& weight_format(std::string_view name);
// Of a plain element type; null for integers and i4, in which no weights are stored.
TOUCHSTONE_API const WeightFormat* weight_format(DType dtype);

// Bytes of `elements` values in a row. InvalidArgument names `what` when blocks do not divide the
// row or the product does not fit in 64 bits.
TOUCHSTONE_API std::int64_t weight_bytes(const WeightFormat& format, std::int64_t elements,
                                         std::string_view what = "row");

// decode() and encode() of whole rows with their checks. `elements` must be whole blocks.
// encode_weights: InvalidArgument for a format that is only read, and for a value (with its index)
// that is not finite or too large for the scales of the format. Plain elements keep NaN and
// infinity; a finite value that bf16 or f16 would round to infinity is refused.
TOUCHSTONE_API void decode_weights(const WeightFormat& format, std::span<const std::byte> from,
                                   std::span<float> to);
TOUCHSTONE_API void encode_weights(const WeightFormat& format, std::span<const float> from,
                                   std::span<std::byte> to);

}  // namespace touchstone::inline v0
