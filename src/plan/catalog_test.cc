#include "touchstone/plan/catalog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "plan/tables.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::plan {
namespace {

using testing::HasSubstr;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Catalog, NamesMatchWithoutCaseAndPunctuation) {
  for (const char* name :
       {"Llama-2-7B", "llama-2-7b", "LLAMA 2 7B", "llama2_7b", "meta/Llama-2-7b"}) {
    EXPECT_EQ(find_model(name).name, "Llama-2-7B") << name;
  }
  for (const char* name : {"H100 SXM 80GB", "h100-sxm-80gb", "h100sxm80gb", "h100 sxm"}) {
    EXPECT_EQ(find_gpu(name).name, "H100 SXM 80GB") << name;
  }
  EXPECT_EQ(find_model("deepseek-r1").name, "DeepSeek-V3");
  EXPECT_EQ(find_gpu("a100-40gb").name, "A100 SXM 40GB");
  EXPECT_EQ(find_gpu("h100-nvl-94gb").name, "H100 NVL 94GB");
  EXPECT_EQ(find_gpu("h200").name, "H200 SXM");
}

TEST(Catalog, AWholeNameBeatsABeginning) {
  EXPECT_EQ(find_model("deepseek-v3").name, "DeepSeek-V3");
  EXPECT_EQ(find_gpu("a10").name, "A10");
  EXPECT_EQ(find_gpu("l4").name, "L4");
}

TEST(Catalog, UnknownNamesListTheNearest) {
  EXPECT_THAT(refusal([] { find_model("lama-2-7b"); }), HasSubstr("Llama-2-7B"));
  EXPECT_THAT(refusal([] { find_gpu("h100-sxm-81gb"); }), HasSubstr("H100 SXM 80GB"));
  EXPECT_THAT(refusal([] { find_gpu("a100"); }), HasSubstr("A100 PCIe 80GB"));
  EXPECT_THROW(find_model(""), InvalidArgument);
  EXPECT_THROW(find_model("///"), InvalidArgument);
  EXPECT_THROW(find_gpu(std::string(1 << 20, 'x')), InvalidArgument);
}

TEST(Catalog, EveryRowIsWholeAndHasASource) {
  std::set<std::string> names;
  for (const ModelEntry& entry : models()) {
    EXPECT_TRUE(names.insert(entry.spec.name).second) << entry.spec.name << " stands twice";
    EXPECT_FALSE(entry.spec.source.empty()) << entry.spec.name;
    EXPECT_THAT(entry.spec.parameters_basis, testing::AnyOf("counted", "stated", "estimated"));
    EXPECT_LE(entry.spec.active_parameters, entry.spec.parameters) << entry.spec.name;
    for (const std::string& name : entry.names) EXPECT_EQ(&find_model(name), &entry.spec);
  }
  for (const GpuEntry& entry : gpus()) {
    EXPECT_TRUE(names.insert(entry.spec.name).second) << entry.spec.name << " stands twice";
    EXPECT_FALSE(entry.spec.source.empty()) << entry.spec.name;
    for (const std::string& name : entry.names) EXPECT_EQ(&find_gpu(name), &entry.spec);
  }
  // Mixtures of experts: the time of a step follows from what a token passes through.
  for (const char* name : {"MiniMax-M3", "MiMo-V2-Flash", "Step-3.7-Flash", "gpt-oss-120b"}) {
    EXPECT_LT(find_model(name).active_parameters, find_model(name).parameters / 10) << name;
  }
  EXPECT_GE(models().size(), 45U);
  EXPECT_GE(gpus().size(), 36U);
}

TEST(Catalog, MemoryIsNeverMoreThanThereIs) {
  EXPECT_EQ(find_gpu("h100-sxm-80gb").memory_bytes, std::int64_t{81559} << 20);
  EXPECT_EQ(find_gpu("mi300x").memory_bytes, 205822885888);
  EXPECT_EQ(find_gpu("gb10").flops, 0);
  EXPECT_EQ(find_gpu("gb10").memory_bytes, std::int64_t{128} << 30);
  // Within the ECC's sixteenth of what the name says, never 7 % below by a mistaken unit.
  EXPECT_GT(find_gpu("mi325x").memory_bytes, 270'000'000'000);
  EXPECT_EQ(find_gpu("rtx-4080").memory_bytes, std::int64_t{16376} << 20);
  EXPECT_EQ(find_gpu("a10").memory_bytes, std::int64_t{23028} << 20);
}

TEST(Catalog, BrokenTablesNameTheLine) {
  const auto models_refusal = [](const char* text) {
    return refusal([text] { parse_models(text); });
  };
  EXPECT_THAT(models_refusal("# comment\n\na | b\n"), HasSubstr("data/models.txt:3: expected 13"));
  const std::string good = "m | 10 | 10 | counted | 4 | 5 | 6 | 7 | 1 x 2 x 3/3 | 0 | 0 | here";
  EXPECT_EQ(parse_models(good).size(), 1U);
  for (const auto& [from, to] :
       {std::pair{"1 x 2 x 3/3", "1 x 2"}, std::pair{"3/3", "3"}, std::pair{"3/3", "3/=x"},
        std::pair{"3/3", "3/3 @ 0"}, std::pair{"3/3", "3/3 @ 1 @ 2"}, std::pair{" 10 ", " -1 "},
        std::pair{" 10 ", " 99999999999999999999 "}}) {
    std::string bad = good;
    bad.replace(bad.find(from), std::string(from).size(), to);
    EXPECT_THROW(parse_models(bad), CorruptData) << bad;
  }
  for (const char* bad : {"g | 80 | 1 | 1 | s", "g | 80 GB | 1 | 1 | s", "g | 80 TB | 1 | 1 | s",
                          "g | 80 GiB | -1 | 1 | s", "g | 80 GiB | nan | 1 | s",
                          "g | 80 GiB | 1 | x | s", "g | 80 GiB"}) {
    EXPECT_THROW(parse_gpus(bad), CorruptData) << bad;
  }
}

}  // namespace
}  // namespace touchstone::inline v0::plan
