#include "io/container/storage_types.h"

#include <utility>
#include <vector>

namespace touchstone::inline v0::io {
namespace {

struct Names {
  std::string_view name;
  std::string_view safetensors;
  std::int32_t gguf = -1;
  std::int64_t bytes = 0;  // of what is no weight format
};
// Numbers of our own, far from those that GGUF gives out, so that other readers refuse them.
constexpr std::int32_t kOwnGguf = 0x54530000;
constexpr Names kNames[] = {{"f64", "F64", 28},
                            {"f32", "F32", 0},
                            {"bf16", "BF16", 30},
                            {"f16", "F16", 1},
                            {"fp8_e4m3", "F8_E4M3"},
                            {"q8_0", "", 8},
                            {"q4_0", "", 2},
                            {"q4_1", "", 3},
                            {"q5_0", "", 6},
                            {"q5_1", "", 7},
                            {"q4_k", "", 12},
                            {"q5_k", "", 13},
                            {"q6_k", "", 14},
                            {"tq1_0", "", 34},
                            {"tq2_0", "", 35},
                            {"q2_0", "", 42},
                            {"pq2_0", "", 142},
                            {"ptq1_0", "", 143},
                            {"ternary_g32", "", kOwnGguf},
                            {"ternary_g64", "", kOwnGguf + 1},
                            {"ternary_g128", "", kOwnGguf + 2},
                            {"ternary_g256", "", kOwnGguf + 3},
                            {"base3_g128", "", kOwnGguf + 4},
                            {"sherry_g128", "", kOwnGguf + 5},
                            {"i64", "I64", 27, 8},
                            {"i32", "I32", 26, 4},
                            {"i16", "I16", 25, 2},
                            {"i8", "I8", 24, 1},
                            {"u64", "U64", -1, 8},
                            {"u32", "U32", -1, 4},
                            {"u16", "U16", -1, 2},
                            {"u8", "U8", -1, 1},
                            {"bool", "BOOL", -1, 1},
                            {"f8_e5m2", "F8_E5M2", -1, 1},
                            {"f8_e8m0", "F8_E8M0", -1, 1},
                            {"c64", "C64", -1, 8}};

const std::vector<StorageType>& all() {
  static const std::vector<StorageType> types = [] {
    std::vector<StorageType> list;
    for (const Names& names : kNames) {
      StorageType type{names.name, nullptr, 1, names.bytes, names.safetensors, names.gguf};
      for (const WeightFormat& format : weight_formats()) {
        if (format.name != names.name) continue;
        type.format = &format;
        type.block_elements = format.block_elements;
        type.block_bytes = format.block_bytes;
      }
      list.push_back(type);
    }
    return list;
  }();
  return types;
}

template <class Matches>
const StorageType* find(Matches matches) {
  for (const StorageType& type : all()) {
    if (matches(type)) return &type;
  }
  return nullptr;
}

}  // namespace

const StorageType* storage_type_named(std::string_view name) {
  return find([&](const StorageType& type) { return type.name == name; });
}

const StorageType* storage_type_of_safetensors(std::string_view spelling) {
  if (spelling.empty()) return nullptr;
  return find([&](const StorageType& type) { return type.safetensors == spelling; });
}

const StorageType* storage_type_of_gguf(std::uint32_t number) {
  return find([&](const StorageType& type) {
    return type.gguf >= 0 && static_cast<std::uint32_t>(type.gguf) == number;
  });
}

std::string_view unread_gguf_type(std::uint32_t number) {
  constexpr std::pair<std::uint32_t, std::string_view> kUnread[] = {
      {9, "q8_1"},     {10, "q2_k"},   {11, "q3_k"},    {15, "q8_k"},
      {16, "iq2_xxs"}, {17, "iq2_xs"}, {18, "iq3_xxs"}, {19, "iq1_s"},
      {20, "iq4_nl"},  {21, "iq3_s"},  {22, "iq2_s"},   {23, "iq4_xs"},
      {29, "iq1_m"},   {39, "mxfp4"},  {40, "nvfp4"},   {41, "q1_0"}};
  for (const auto& [value, name] : kUnread) {
    if (value == number) return name;
  }
  return "";
}

}  // namespace touchstone::inline v0::io
