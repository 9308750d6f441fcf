#include "touchstone/core/weight_format.h"

#include <cmath>
#include <string>

#include "cpu/ternary_codec.h"
#include "cpu/weight_codec.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace {

using Id = WeightFormatId;

// Integer groups and GGUF blocks.
constexpr WeightFormat blocks(Id id, std::string_view name, std::int64_t elements,
                              std::int64_t bytes, decltype(WeightFormat::decode) decode,
                              decltype(WeightFormat::encode) encode) {
  return {.id = id,
          .name = name,
          .block_elements = elements,
          .block_bytes = bytes,
          .dtype = std::nullopt,
          .linear_cpu = true,
          .linear_cuda = true,
          .embedding_cpu = true,
          .embedding_cuda = true,
          .decode = decode,
          .encode = encode};
}

// One group per block.
template <Id kId>
constexpr WeightFormat ternary_blocks(std::string_view name, std::int64_t elements,
                                      std::int64_t bytes) {
  WeightFormat format =
      blocks(kId, name, elements, bytes, ternary::decode_blocks<kId>, ternary::encode_blocks<kId>);
  format.ternary = true;
  return format;
}

constexpr WeightFormat plain(Id id, std::string_view name, std::int64_t bytes, DType dtype,
                             decltype(WeightFormat::decode) decode,
                             decltype(WeightFormat::encode) encode) {
  return {.id = id,
          .name = name,
          .block_elements = 1,
          .block_bytes = bytes,
          .dtype = dtype,
          .linear_cpu = true,
          .linear_cuda = dtype != DType::f64,
          .embedding_cpu = true,
          .embedding_cuda = dtype != DType::f64,
          .decode = decode,
          .encode = encode};
}

namespace w = weights;
constexpr WeightFormat kFormats[] = {
    plain(Id::f64, "f64", 8, DType::f64, w::decode_f64, w::encode_f64),
    plain(Id::f32, "f32", 4, DType::f32, w::decode_f32, w::encode_f32),
    plain(Id::bf16, "bf16", 2, DType::bf16, w::decode_bf16, w::encode_bf16),
    plain(Id::f16, "f16", 2, DType::f16, w::decode_f16, w::encode_f16),
    plain(Id::fp8_e4m3, "fp8_e4m3", 1, DType::f8_e4m3, w::decode_fp8_e4m3, nullptr),
    blocks(Id::int8_g32, "int8_g32", 32, 34, w::decode_int8_g32, w::encode_int8_g32),
    blocks(Id::int8_g64, "int8_g64", 64, 66, w::decode_int8_g64, w::encode_int8_g64),
    blocks(Id::int8_g128, "int8_g128", 128, 130, w::decode_int8_g128, w::encode_int8_g128),
    blocks(Id::int4_g32, "int4_g32", 32, 18, w::decode_int4_g32, w::encode_int4_g32),
    blocks(Id::int4_g64, "int4_g64", 64, 34, w::decode_int4_g64, w::encode_int4_g64),
    blocks(Id::int4_g128, "int4_g128", 128, 66, w::decode_int4_g128, w::encode_int4_g128),
    blocks(Id::q8_0, "q8_0", 32, 34, w::decode_q8_0, w::encode_q8_0),
    blocks(Id::q4_0, "q4_0", 32, 18, w::decode_q4_0, w::encode_q4_0),
    blocks(Id::q4_1, "q4_1", 32, 20, w::decode_q4_1, w::encode_q4_1),
    blocks(Id::q5_0, "q5_0", 32, 22, w::decode_q5_0, w::encode_q5_0),
    blocks(Id::q5_1, "q5_1", 32, 24, w::decode_q5_1, w::encode_q5_1),
    blocks(Id::q4_k, "q4_k", 256, 144, w::decode_q4_k, w::encode_q4_k),
    blocks(Id::q5_k, "q5_k", 256, 176, w::decode_q5_k, w::encode_q5_k),
    blocks(Id::q6_k, "q6_k", 256, 210, w::decode_q6_k, w::encode_q6_k),
    ternary_blocks<Id::ternary_g32>("ternary_g32", 32, 10),
    ternary_blocks<Id::ternary_g64>("ternary_g64", 64, 18),
    ternary_blocks<Id::ternary_g128>("ternary_g128", 128, 34),
    ternary_blocks<Id::ternary_g256>("ternary_g256", 256, 66),
    ternary_blocks<Id::base3_g128>("base3_g128", 128, 28),
    ternary_blocks<Id::sherry_g128>("sherry_g128", 128, 22),
    ternary_blocks<Id::tq1_0>("tq1_0", 256, 54),
    ternary_blocks<Id::tq2_0>("tq2_0", 256, 66),
    ternary_blocks<Id::q2_0>("q2_0", 64, 18),
    ternary_blocks<Id::pq2_0>("pq2_0", 128, 34),
    ternary_blocks<Id::ptq1_0>("ptq1_0", 128, 28),
};

// The largest magnitude whose scale fits in f16: 65504 times the largest code.
double largest_encodable(const WeightFormat& format) {
  if (format.ternary) return 65504;
  switch (format.id) {
    case Id::f64:
    case Id::f32:
      return INFINITY;
    case Id::bf16:  // from 2^128 - 2^119 on, values are rounded to infinity
      return std::nextafter(0x1.ffp127, 0.0);
    case Id::f16:  // from 65520
      return std::nextafter(65520.0, 0.0);
    case Id::q4_1:  // the minimum itself is an f16
    case Id::q5_1:
      return 65504;
    case Id::q4_0:
      return 65504.0 * 8;
    case Id::q5_0:
      return 65504.0 * 16;
    case Id::int4_g32:
    case Id::int4_g64:
    case Id::int4_g128:
      return 65504.0 * 7;
    default:
      return 65504.0 * 63;
  }
}

}  // namespace

std::span<const WeightFormat> weight_formats() { return kFormats; }

const WeightFormat& weight_format(WeightFormatId id) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= std::size(kFormats)) throw InvalidArgument("weight_format: id: unknown value");
  return kFormats[index];
}

const WeightFormat& weight_format(std::string_view name) {
  std::string known;
  for (const WeightFormat& format : kFormats) {
    if (format.name == name) return format;
    known += known.empty() ? "" : ", ";
    known += format.name;
  }
  throw InvalidArgument("weight format: expected one of " + known + ", got '" + std::string(name) +
                        "'");
}

const WeightFormat* weight_format(DType dtype) {
  for (const WeightFormat& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

std::int64_t weight_bytes(const WeightFormat& format, std::int64_t elements,
                          std::string_view what) {
  if (elements < 0 || elements % format.block_elements != 0) {
    throw InvalidArgument(std::string(what) + ": expected a multiple of " +
                          std::to_string(format.block_elements) + " elements for " +
                          std::string(format.name) + ", got " + std::to_string(elements));
  }
  return checked_mul(elements / format.block_elements, format.block_bytes, "weight bytes");
}

void decode_weights(const WeightFormat& format, std::span<const std::byte> from,
                    std::span<float> to) {
  const std::int64_t bytes =
      weight_bytes(format, static_cast<std::int64_t>(to.size()), "decode_weights: to");
  if (static_cast<std::int64_t>(from.size()) != bytes) {
    throw InvalidArgument("decode_weights: from: expected " + std::to_string(bytes) +
                          " bytes, got " + std::to_string(from.size()));
  }
  format.decode(from.data(), static_cast<std::int64_t>(to.size()) / format.block_elements,
                to.data());
}

void encode_weights(const WeightFormat& format, std::span<const float> from,
                    std::span<std::byte> to) {
  if (format.encode == nullptr) {
    throw InvalidArgument("encode_weights: format: " + std::string(format.name) +
                          " is read, not written");
  }
  const std::int64_t bytes =
      weight_bytes(format, static_cast<std::int64_t>(from.size()), "encode_weights: from");
  if (static_cast<std::int64_t>(to.size()) != bytes) {
    throw InvalidArgument("encode_weights: to: expected " + std::to_string(bytes) + " bytes, got " +
                          std::to_string(to.size()));
  }
  const double largest = largest_encodable(format);
  // Plain formats keep NaN and infinity, which are data; scales would spread them over the block.
  const bool plain = format.block_elements == 1;
  for (std::size_t i = 0; i < from.size() && !(plain && std::isinf(largest)); ++i) {
    const double magnitude = std::abs(static_cast<double>(from[i]));
    if (plain && !std::isfinite(magnitude)) continue;
    if (!(magnitude <= largest) || std::isinf(magnitude)) {
      throw InvalidArgument("encode_weights: from: value " + std::to_string(i) + " is " +
                            std::to_string(from[i]) + ", which " + std::string(format.name) +
                            " cannot hold");
    }
  }
  format.encode(from.data(), static_cast<std::int64_t>(from.size()) / format.block_elements,
                to.data());
}

}  // namespace touchstone::inline v0
