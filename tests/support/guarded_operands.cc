#include "tests/support/guarded_operands.h"

#include <cstring>

#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/core/convert.h"

namespace touchstone::test {
namespace {

std::vector<double> written(const spec::Operand& operand) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(operand.bytes()));
  operand.write(bytes);
  std::vector<double> result;
  visit_dtype(operand.dtype, [&]<class T>() {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + i, sizeof(T));
      result.push_back(convert<double>(value));
    }
  });
  return result;
}

}  // namespace

GuardedOperands::GuardedOperands(const std::vector<spec::Operand>& list, const cases::Case& item,
                                 std::uint64_t seed)
    : list_(list) {
  const Layout layout{.row_gap = item.integer("gap", 0), .offset = item.integer("offset", 0)};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const spec::Operand& operand = list[i];
    initial_.push_back(operand.write ? written(operand) : std::vector<double>());
    if (!operand.defined()) {
      memory_.emplace_back();
    } else if (operand.write) {
      memory_.emplace_back(test_device(), operand.dtype, operand.shape, initial_[i]);
    } else if (operand.output) {
      memory_.emplace_back(test_device(), operand.dtype, operand.shape,
                           operand.strided ? layout : Layout{});
    } else {
      const Distribution noise{.center = operand.center, .scale = operand.scale};
      memory_.emplace_back(test_device(), operand.dtype, operand.shape,
                           random_values(noise, operand.elements(), seed * 64 + i),
                           operand.strided ? layout : Layout{});
    }
    views_.push_back(memory_.back());
  }
}

void GuardedOperands::poison() {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!list_[i].output || !list_[i].defined()) continue;
    if (list_[i].write) {
      memory_[i].set(initial_[i]);
    } else {
      memory_[i].poison();
    }
  }
}

void GuardedOperands::accept_inputs() {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!list_[i].output && list_[i].defined()) memory_[i].set(memory_[i].values());
  }
}

void GuardedOperands::expect_nothing_else_written() const {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!list_[i].defined()) continue;
    EXPECT_TRUE(list_[i].output ? memory_[i].outside_intact() : memory_[i].unchanged())
        << list_[i].name;
  }
}

void GuardedOperands::expect_nothing_written() const {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (!list_[i].defined()) continue;
    EXPECT_TRUE(memory_[i].unchanged()) << list_[i].name;
  }
}

}  // namespace touchstone::test
