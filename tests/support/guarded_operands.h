// The operands of a specification's problem in guarded memory.
#pragma once

#include <cstdint>
#include <vector>

#include "cases/cases.h"
#include "spec/operand.h"
#include "tests/support/guarded.h"

namespace touchstone::test {

class GuardedOperands {
 public:
  GuardedOperands(const std::vector<spec::Operand>& list, const cases::Case& item,
                  std::uint64_t seed);

  spec::Views views() const { return views_; }
  // Outputs as they are before a call.
  void poison();
  // What is there now is what inputs have to keep.
  void accept_inputs();
  // After a call: guard bands and inputs are what they were ..
  void expect_nothing_else_written() const;
  // .. and after a refusal outputs as well.
  void expect_nothing_written() const;

 private:
  std::vector<spec::Operand> list_;
  std::vector<std::vector<double>> initial_;
  std::vector<Guarded> memory_;
  std::vector<TensorView> views_;
};

}  // namespace touchstone::test
