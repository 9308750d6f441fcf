#include "cases/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "touchstone/core/error.h"

namespace touchstone::cases {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Case made(Tier tier, std::optional<DeviceKind> device, Regime regime, DType dtype,
          const char* shape, std::map<std::string, std::string> options = {}) {
  return {tier, device, regime, dtype, shape, std::move(options)};
}

TEST(Cases, ReadsOneCasePerDtype) {
  const auto cases = parse("demo",
                           "# heading\n"
                           "\n"
                           "smoke cpu cache f32,bf16 64x1024  # why\r\n"
                           "  full\tcuda memory f16 8192x4096");
  EXPECT_THAT(
      cases,
      ElementsAre(made(Tier::smoke, DeviceKind::cpu, Regime::cache, DType::f32, "64x1024"),
                  made(Tier::smoke, DeviceKind::cpu, Regime::cache, DType::bf16, "64x1024"),
                  made(Tier::full, DeviceKind::cuda, Regime::memory, DType::f16, "8192x4096")));
}

TEST(Cases, AlternativesStandForTheirProduct) {
  const auto cases = parse("demo", "check any cache f32 2x3,1x4/2x5x6 k=8 mask=none,rows # why");
  ASSERT_EQ(cases.size(), 4U);
  EXPECT_EQ(cases[0], made(Tier::check, std::nullopt, Regime::cache, DType::f32, "2x3",
                           {{"k", "8"}, {"mask", "none"}}));
  EXPECT_EQ(cases[3].shape, "1x4/2x5x6");
  EXPECT_EQ(cases[3].options.at("mask"), "rows");
}

TEST(Cases, OptionsHaveTypes) {
  Case item = parse("demo", "smoke cpu cache f32 1x16/4x9 k=8 p=0.5 on=1 d=bf16").front();
  EXPECT_THAT(item.dims("x/x"), ElementsAre(1, 16, 4, 9));
  EXPECT_THROW(item.dims("xx"), InvalidArgument);
  EXPECT_EQ(item.integer("k", 1), 8);
  EXPECT_EQ(item.integer("none", 3), 3);
  EXPECT_EQ(item.number("p", 0), 0.5);
  EXPECT_TRUE(item.flag("on", false));
  EXPECT_EQ(item.dtype_option("d", DType::f32), DType::bf16);
  for (const char* wrong : {"", "x", "-1", "1.5", "99999999999999999999"}) {
    item.options["k"] = wrong;
    EXPECT_THROW(item.integer("k", 1), InvalidArgument) << wrong;
  }
  EXPECT_THROW(item.check_options({"k", "p"}), InvalidArgument);
  EXPECT_NO_THROW(item.check_options({"k", "p", "on", "d"}));
}

TEST(Cases, AChoiceIsOneOfItsNames) {
  Case item = parse("demo", "smoke cpu cache f32 4x9 order=tokens").front();
  EXPECT_EQ(item.choice("order", {"heads", "tokens"}), 1U);
  EXPECT_EQ(item.choice("bias", {"none", "full"}), 0U);
  EXPECT_THAT(
      [&] {
        item.choice("order", {"heads", "rows", "columns"});
      },
      testing::ThrowsMessage<InvalidArgument>(
          "order: expected heads, rows or columns, got 'tokens'"));
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
        Mistake{"smoke cpu cache f32 64x64 more", "expected key=value, got 'more'"},
        Mistake{"smoke cpu cache f32 64x64 =8", "expected key=value"},
        Mistake{"smoke cpu cache f32 64x64 k=", "k: expected at least one"},
        Mistake{"smoke cpu cache f32 64x64 k=1 k=2", "k is given twice"},
        Mistake{"tiny cpu cache f32 64x64",
                "tier: expected smoke, full, check or sweep, got 'tiny'"},
        Mistake{"smoke tpu cache f32 64x64", "device: expected cpu or cuda or any, got 'tpu'"},
        Mistake{"smoke cpu disk f32 64x64", "regime: expected cache or memory, got 'disk'"},
        Mistake{"smoke cpu cache f33 64x64", "f33"}, Mistake{"smoke cpu cache , 64x64", "dtypes"},
        Mistake{"smoke cpu cache f32 64", "shape"}, Mistake{"smoke cpu cache f32 64x", "shape"},
        Mistake{"smoke cpu cache f32 x64", "shape"}, Mistake{"smoke cpu cache f32 64*64", "shape"},
        Mistake{"smoke cpu cache f32 0x64", "shape"}, Mistake{"smoke cpu cache f32 -1x64", "shape"},
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
  EXPECT_LE(f16.size(), all.size());
  for (const Case& item : f16) {
    EXPECT_EQ(item.dtype, DType::f16);
    EXPECT_EQ(std::count(f16.begin(), f16.end(), item), 1);
  }
}

TEST_P(CasesShipped, AnOptionReplacesThoseListedAndShapesAppearOnce) {
  const auto cases = select(GetParam(), {.tier = Tier::full, .options = {{"k", "200"}}});
  for (const Case& item : cases) {
    EXPECT_EQ(item.options.at("k"), "200");
    EXPECT_EQ(std::count(cases.begin(), cases.end(), item), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CasesShipped,
                         testing::Values("attention", "cached_attention", "kv_append", "layer_norm",
                                         "rms_norm", "sample", "softmax_topk"));

TEST(Cases, AnUnknownListIsAnError) {
  EXPECT_EQ(text("no_such_list"), "");
  EXPECT_THROW(select("no_such_list", {}), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::cases
