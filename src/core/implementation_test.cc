// What a caller reads where no implementation takes a problem.
#include "core/implementation.h"

#include <gtest/gtest.h>

namespace touchstone {
namespace {

struct Rows {
  int count = 0;
};

constexpr Implementation<Rows> kList[] = {
    {"wide", DeviceKind::cpu,
     [](const Context&, const Rows& rows) {
       return rows.count < 8 ? "rows " + std::to_string(rows.count) + " < 8" : std::string();
     },
     nullptr},
    {"narrow", DeviceKind::cpu,
     [](const Context&, const Rows& rows) {
       return rows.count > 4 ? "rows " + std::to_string(rows.count) + " > 4" : std::string();
     },
     nullptr},
    {"elsewhere", DeviceKind::cuda, nullptr, nullptr}};

std::string refusal_of(int count, const std::string& wanted) {
  Context context({.threads = 1});
  try {
    run_first("rows", std::span<const Implementation<Rows>>(kList), context, Rows{count}, wanted);
  } catch (const Unsupported& error) {
    return error.what();
  }
  return {};
}

TEST(Implementations, ARefusalNamesEveryReason) {
  EXPECT_EQ(refusal_of(6, ""),
            "rows: every implementation refuses: wide: rows 6 < 8; narrow: rows 6 > 4");
  EXPECT_EQ(refusal_of(6, "wide"), "rows: implementation 'wide' refuses: rows 6 < 8");
  EXPECT_EQ(refusal_of(6, "elsewhere"),
            "rows: implementation: expected one of wide, narrow, got 'elsewhere'");
}

}  // namespace
}  // namespace touchstone
