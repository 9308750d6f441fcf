// Argument checks that both attention operators share, beside those of every operator.
#pragma once

#include <cstdint>
#include <span>

#include "core/checks.h"

namespace touchstone::attention_common {

class AttentionChecks : public Checks {
 public:
  AttentionChecks(const char* op, const Context& context) : Checks(op, context), op_(op) {}

  // No stride below zero, nothing beyond 64 bits; with `writable` no element twice.
  void strides(const Argument& a, bool writable) const;

  // Likewise, and the last dimension has stride 1.
  void dense_last(const Argument& a, bool writable) const;

  // A contiguous array, optional unless `needed`; its data, or null.
  const void* array(const Argument& a, DType type, std::span<const std::int64_t> expected,
                    bool needed = false) const;

  // Offsets [count + 1], ascending from 0 to `tokens`. Reads them: on the CPU only.
  void offsets(const char* name, const std::int64_t* offsets, std::int64_t count,
               std::int64_t tokens) const;

  void at_least_zero(const char* name, std::int64_t value) const;

  // Every output against every input and every later output.
  void no_overlap(std::span<const Argument> outputs, std::span<const Argument> inputs) const;

 private:
  [[noreturn]] void refuse_strides(const Argument& a, const char* expected) const;

  const char* op_;
};

}  // namespace touchstone::attention_common
