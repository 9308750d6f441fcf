// What the operators on rows of logits have in common: the logits, a bias, a mask of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "spec/selection.h"
#include "spec/spec.h"

namespace touchstone::spec {

// k where a case does not say.
inline constexpr std::int64_t kDefaultK = 50;

struct TokenCase {
  // Absent, one for all rows, or one per row.
  enum class PerToken : std::uint8_t { none, shared, rows };

  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  DType dtype = DType::f32;
  PerToken bias = PerToken::none;
  PerToken mask = PerToken::none;

  explicit TokenCase(const cases::Case& item);

  std::int64_t logit_bytes() const;
  // 3 * N(0, 1): the largest stand out as they do in a language model.
  Operand logits() const;
  Operand bias_operand() const;
  Operand mask_operand() const;
  // One value for each row, given by its number.
  template <class T>
  Operand per_row(const char* name, const std::function<double(std::int64_t)>& value) const {
    return {.name = name,
            .dtype = dtype_of<T>,
            .shape = {rows},
            .write = values_of<T>([value](std::int64_t row) { return value(row); }),
            .shared = true};
  }

  // The bias and the mask of one row; empty where there is none.
  std::vector<double> bias_row(const Reader& reader, std::size_t operand, std::int64_t row) const;
  std::vector<unsigned char> banned_row(const Reader& reader, std::size_t operand,
                                        std::int64_t row) const;
};

}  // namespace touchstone::spec
