#include "spec/per_token.h"

#include <bit>

#include "touchstone/core/checked.h"

namespace touchstone::spec {
namespace {

using PerToken = TokenCase::PerToken;

PerToken per_token(const cases::Case& item, const char* key) {
  return static_cast<PerToken>(item.choice(key, {"none", "shared", "rows"}));
}

std::vector<std::int64_t> shape_of(PerToken kind, std::int64_t rows, std::int64_t last) {
  return kind == PerToken::shared ? std::vector<std::int64_t>{last}
                                  : std::vector<std::int64_t>{rows, last};
}

}  // namespace

TokenCase::TokenCase(const cases::Case& item) : dtype(item.dtype) {
  const std::vector<std::int64_t> dims = item.dims("x");
  rows = dims[0];
  vocabulary = dims[1];
  bias = per_token(item, "bias");
  mask = per_token(item, "mask");
}

std::int64_t TokenCase::logit_bytes() const {
  return checked_mul(checked_mul(rows, vocabulary, "elements"), size_of(dtype), "bytes");
}

Operand TokenCase::logits() const {
  return {
      .name = "logits", .dtype = dtype, .shape = {rows, vocabulary}, .scale = 3, .strided = true};
}

Operand TokenCase::bias_operand() const {
  if (bias == PerToken::none) return {};
  return {.name = "bias", .dtype = DType::f32, .shape = shape_of(bias, rows, vocabulary)};
}

Operand TokenCase::mask_operand() const {
  if (mask == PerToken::none) return {};
  // Two of three tokens, another selection in every row; spare bits are set.
  const std::int64_t words = ceil_div(vocabulary, 32);
  return {.name = "token_mask",
          .dtype = DType::i32,
          .shape = shape_of(mask, rows, words),
          .write = values_of<std::int32_t>([words](std::int64_t i) {
            std::uint32_t word = 0;
            for (std::uint32_t bit = 0; bit < 32; ++bit) {
              const std::int64_t token = i % words * 32 + bit;
              if ((token * 7 + i / words) % 3 != 0) word |= 1U << bit;
            }
            return std::bit_cast<std::int32_t>(word);
          })};
}

std::vector<double> TokenCase::bias_row(const Reader& reader, std::size_t operand,
                                        std::int64_t row) const {
  if (bias == PerToken::none) return {};
  return reader.row(operand, bias == PerToken::shared ? 0 : row);
}

std::vector<unsigned char> TokenCase::banned_row(const Reader& reader, std::size_t operand,
                                                 std::int64_t row) const {
  if (mask == PerToken::none) return {};
  const std::vector<double> words = reader.row(operand, mask == PerToken::shared ? 0 : row);
  std::vector<unsigned char> banned(static_cast<std::size_t>(vocabulary));
  for (std::size_t i = 0; i < banned.size(); ++i) {
    const auto word = std::bit_cast<std::uint32_t>(static_cast<std::int32_t>(words[i / 32]));
    banned[i] = (word >> (i % 32) & 1U) == 0;
  }
  return banned;
}

}  // namespace touchstone::spec
