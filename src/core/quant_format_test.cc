#include "touchstone/core/quant_format.h"

#include <gtest/gtest.h>

#include <string>

#include "touchstone/core/error.h"

namespace touchstone {
namespace {

TEST(QuantFormat, NamesRoundTrip) {
  for (const DType dtype : kFormatDTypes) {
    EXPECT_EQ(parse_format_dtype(format_name(dtype)), dtype);
  }
  EXPECT_EQ(format_name(DType::i4), "int4");
  EXPECT_EQ(format_name(DType::u8), "unknown");
  for (const char* name : {"", "i8", "int5", "fp8"}) {
    EXPECT_THROW(parse_format_dtype(name), InvalidArgument) << name;
  }
}

TEST(QuantFormat, StorageTypesHaveNoElementType) {
  EXPECT_TRUE(is_quantized(DType::f8_e4m3));
  EXPECT_FALSE(is_quantized(DType::bf16));
  EXPECT_EQ(size_of(DType::f8_e4m3), 1);
  EXPECT_THROW(size_of(DType::i4), Unsupported);
  EXPECT_THROW(visit_dtype(DType::f8_e4m3, []<class T>() {}), Unsupported);
  EXPECT_EQ(name_of(DType::i4), "i4");
}

}  // namespace
}  // namespace touchstone
