// Ternary weights and the formats of weights.
#include "touchstone/core/ternary.h"

#include "c_api/border.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/ternary_file.h"
#include "touchstone/ops/ternary_project.h"

namespace touchstone::c_api {
namespace {

template <class Enum>
Enum choice(std::int32_t value, std::int32_t last, const char* name) {
  if (value < 0 || value > last) {
    throw InvalidArgument("ternary_project: " + std::string(name) + ": unknown value " +
                          std::to_string(value));
  }
  return static_cast<Enum>(value);
}

TernaryGeometry geometry(ts_ternary_grouping grouping, std::int64_t size) {
  return {.grouping = choice<TernaryGrouping>(grouping, TS_TERNARY_GROUP, "grouping"),
          .size = size};
}

TernaryProjectArgs converted(const ts_ternary_project_args* given) {
  const ts_ternary_project_args args =
      current(given, "ternary_project", offsetof(ts_ternary_project_args, implementation),
              TS_TERNARY_PROJECT_ARGS);
  return {.weight = view(args.weight, "ternary_project: weight"),
          .rule = {.geometry = geometry(args.grouping, args.group_size),
                   .scale = choice<TernaryScaleRule>(args.scale, TS_TERNARY_LEAST_SQUARES, "scale"),
                   .scale_type = choice<TernaryScaleType>(args.scale_type,
                                                          TS_TERNARY_SCALE_F16_BF16, "scale_type")},
          .values = view(args.values, "ternary_project: values"),
          .codes = view(args.codes, "ternary_project: codes"),
          .scales = view(args.scales, "ternary_project: scales"),
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

using touchstone::c_api::checked;
using touchstone::c_api::guarded;

ts_status ts_weight_format_find(const char* name, ts_weight_format* format) {
  return guarded([&] {
    const touchstone::WeightFormat& found =
        touchstone::weight_format(std::string_view(&checked(name, "name")));
    ts_weight_format full = TS_WEIGHT_FORMAT;
    full.block_elements = found.block_elements;
    full.block_bytes = found.block_bytes;
    full.is_ternary = found.ternary ? 1 : 0;
    full.can_encode = found.encode != nullptr ? 1 : 0;
    touchstone::c_api::fill(format, "weight_format", full);
  });
}

ts_status ts_encode_weights(const char* format, const float* values, int64_t count, void* to,
                            int64_t bytes) {
  return guarded([&] {
    const touchstone::WeightFormat& found =
        touchstone::weight_format(std::string_view(&checked(format, "format")));
    touchstone::encode_weights(found, touchstone::c_api::list(values, count, "values"),
                               touchstone::c_api::list(static_cast<std::byte*>(to), bytes, "to"));
  });
}

ts_status ts_decode_weights(const char* format, const void* from, int64_t bytes, float* values,
                            int64_t count) {
  return guarded([&] {
    const touchstone::WeightFormat& found =
        touchstone::weight_format(std::string_view(&checked(format, "format")));
    touchstone::decode_weights(
        found, touchstone::c_api::list(static_cast<const std::byte*>(from), bytes, "from"),
        touchstone::c_api::list(values, count, "values"));
  });
}

TOUCHSTONE_C_OPERATOR(ternary_project, ts_ternary_project_args, converted);

ts_status ts_ternary_groups(ts_ternary_grouping grouping, int64_t group_size, int64_t rows,
                            int64_t cols, int64_t* groups) {
  return guarded([&] {
    checked(groups, "groups");
    *groups =
        touchstone::ternary_groups(touchstone::c_api::geometry(grouping, group_size), rows, cols);
  });
}

ts_status ts_inspect_ternary(const char* path, ts_ternary_inspection* inspection) {
  return guarded([&] {
    const touchstone::io::TernaryInspection found =
        touchstone::io::inspect_ternary(touchstone::io::TensorFile::open(&checked(path, "path")));
    ts_ternary_inspection full = TS_TERNARY_INSPECTION;
    full.tensors = static_cast<int64_t>(found.tensors.size());
    full.groups = found.groups();
    full.values = found.values();
    full.zero_codes = found.zero_codes();
    full.faults = found.fault_count;
    full.is_stated = found.stated ? 1 : 0;
    full.is_ternary = found.passed() ? 1 : 0;
    touchstone::c_api::fill(inspection, "ternary_inspection", full);
  });
}

ts_status ts_convert_model_ternary(const char* in, const char* out, const char* type,
                                   ts_ternary_scale_rule project) {
  return guarded([&] {
    touchstone::io::ConvertOptions options;
    options.format = &touchstone::weight_format(std::string_view(&checked(type, "type")));
    options.project = touchstone::c_api::choice<touchstone::TernaryScaleRule>(
        project, TS_TERNARY_LEAST_SQUARES, "project");
    touchstone::io::convert_model(&checked(in, "in"), &checked(out, "out"), options);
  });
}
