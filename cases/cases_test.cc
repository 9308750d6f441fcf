#include "cases/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::cases {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Cases, ReadsOneCasePerDtype) {
  const auto cases = parse("demo",
                           "# heading\n"
                           "\n"
                           "smoke cpu cache f32,bf16 64x1024  # why\r\n"
                           "  full\tcuda memory f16 8192x4096");
  EXPECT_THAT(
      cases,
      ElementsAre(Case{Tier::smoke, DeviceKind::cpu, Regime::cache, DType::f32, 64, 1024},
                  Case{Tier::smoke, DeviceKind::cpu, Regime::cache, DType::bf16, 64, 1024},
                  Case{Tier::full, DeviceKind::cuda, Regime::memory, DType::f16, 8192, 4096}));
}

TEST(Cases, ASixthColumnIsK) {
  EXPECT_THAT(
      parse("demo", "smoke cpu cache f32 64x1024\nsmoke cpu cache f32 64x1024 8 # why"),
      ElementsAre(
          Case{Tier::smoke, DeviceKind::cpu, Regime::cache, DType::f32, 64, 1024, kDefaultK},
          Case{Tier::smoke, DeviceKind::cpu, Regime::cache, DType::f32, 64, 1024, 8}));
}

TEST(Cases, EmptyTextHasNoCases) {
  EXPECT_THAT(parse("demo", ""), IsEmpty());
  EXPECT_THAT(parse("demo", "\n\n# only words\n   \n"), IsEmpty());
}

struct Mistake {
  const char* text;
  const char* message;
};

class CasesMistake : public testing::TestWithParam<Mistake> {};

TEST_P(CasesMistake, IsReportedWithItsLine) {
  const std::string text = std::string("# one\n\n") + GetParam().text + "\n";
  try {
    parse("demo", text);
    FAIL() << "accepted: " << text;
  } catch (const CorruptData& error) {
    EXPECT_THAT(error.what(), HasSubstr("cases/demo.txt:3: "));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CasesMistake,
    testing::Values(
        Mistake{"smoke cpu cache f32", "expected five columns"},
        Mistake{"smoke cpu cache f32 64x64 8 more", "got 7"},
        Mistake{"smoke cpu cache f32 64x64 more", "k: expected a number from 1"},
        Mistake{"smoke cpu cache f32 64x64 0", "got '0'"},
        Mistake{"smoke cpu cache f32 64x64 65", "got '65'"},
        Mistake{"smoke cpu cache f32 64x64 8x", "got '8x'"},
        Mistake{"tiny cpu cache f32 64x64", "tier: expected smoke or full, got 'tiny'"},
        Mistake{"smoke tpu cache f32 64x64", "device: expected cpu or cuda, got 'tpu'"},
        Mistake{"smoke cpu disk f32 64x64", "regime: expected cache or memory, got 'disk'"},
        Mistake{"smoke cpu cache f33 64x64", "f33"}, Mistake{"smoke cpu cache , 64x64", "dtypes"},
        Mistake{"smoke cpu cache f32 64", "shape"}, Mistake{"smoke cpu cache f32 64x", "shape"},
        Mistake{"smoke cpu cache f32 x64", "shape"},
        Mistake{"smoke cpu cache f32 64x64x2", "shape"},
        Mistake{"smoke cpu cache f32 64*64", "shape"}, Mistake{"smoke cpu cache f32 0x64", "shape"},
        Mistake{"smoke cpu cache f32 -1x64", "shape"},
        Mistake{"smoke cpu cache f32 99999999999999999999x2", "shape"},
        Mistake{"smoke cpu cache f32 4294967296x4294967296", "64 bits"}));

class CasesShipped : public testing::TestWithParam<const char*> {};

TEST_P(CasesShipped, AreReadable) {
  ASSERT_FALSE(text(GetParam()).empty());
  EXPECT_FALSE(parse(GetParam(), text(GetParam())).empty());
}

TEST_P(CasesShipped, FullHoldsSmoke) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    const auto smoke = select(GetParam(), {.tier = Tier::smoke, .device = device, .dtype = {}});
    const auto full = select(GetParam(), {.tier = Tier::full, .device = device, .dtype = {}});
    EXPECT_FALSE(smoke.empty());
    EXPECT_GT(full.size(), smoke.size());
    for (const Case& item : smoke) EXPECT_THAT(full, testing::Contains(item));
    for (const Case& item : full) EXPECT_EQ(item.device, device);
  }
}

TEST_P(CasesShipped, ADtypeReplacesThoseListedAndShapesAppearOnce) {
  const auto all = select(GetParam(), {.tier = Tier::full, .device = DeviceKind::cpu, .dtype = {}});
  const auto f16 =
      select(GetParam(), {.tier = Tier::full, .device = DeviceKind::cpu, .dtype = DType::f16});
  EXPECT_LT(f16.size(), all.size());
  for (const Case& item : f16) {
    EXPECT_EQ(item.dtype, DType::f16);
    EXPECT_EQ(std::count(f16.begin(), f16.end(), item), 1);
  }
}

TEST_P(CasesShipped, AKReplacesThoseListedAndShapesAppearOnce) {
  const auto cases = select(
      GetParam(), {.tier = Tier::full, .device = DeviceKind::cpu, .dtype = DType::f32, .k = 200});
  for (const Case& item : cases) {
    EXPECT_EQ(item.k, std::min<std::int64_t>(200, item.cols));
    EXPECT_EQ(std::count(cases.begin(), cases.end(), item), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CasesShipped,
                         testing::Values("append", "layer_norm", "rms_norm", "sample",
                                         "softmax_topk"));

TEST(Cases, AnUnknownListIsAnError) {
  EXPECT_EQ(text("no_such_list"), "");
  EXPECT_THROW(select("no_such_list", {}), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::cases
