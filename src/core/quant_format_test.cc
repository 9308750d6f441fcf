#include "touchstone/core/quant_format.h"

#include <gtest/gtest.h>

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::inline v0 {
namespace {

TEST(QuantFormatNames, RoundTrip) {
  for (const DType dtype : kFormatDTypes) {
    EXPECT_EQ(parse_format_dtype(format_name(dtype)), dtype);
  }
  EXPECT_EQ(format_name(DType::i4), "int4");
  EXPECT_EQ(format_name(DType::u8), "unknown");
  for (const char* name : {"", "i8", "int5", "fp8"}) {
    EXPECT_THROW(parse_format_dtype(name), InvalidArgument) << name;
  }
}

}  // namespace
}  // namespace touchstone::inline v0
