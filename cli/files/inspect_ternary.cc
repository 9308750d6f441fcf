#include "cli/files/inspect_ternary.h"

#include <fmt/format.h>

#include "cli/files/shown.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/ternary_file.h"

namespace touchstone::cli {
namespace {

double share(std::int64_t part, std::int64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

void print_ternary(const io::TernaryInspection& result) {
  Table table(
      {"tensor", "type", "shape", ">groups", ">zero groups", ">zeros", ">scales from", ">to"});
  for (const io::TernaryTensor& tensor : result.tensors) {
    table.add({shown(tensor.name, 200), tensor.type,
               shape_string(std::vector{tensor.rows, tensor.cols}), std::to_string(tensor.groups),
               std::to_string(tensor.zero_groups),
               fmt::format("{:.4f}", share(tensor.zero_codes, tensor.values())),
               fmt::format("{:.3g}", tensor.smallest_scale),
               fmt::format("{:.3g}", tensor.largest_scale)});
  }
  print(table.text() + "\n");
  for (const std::string& fault : result.faults) print(shown(fault, 400) + "\n");
  if (result.fault_count > static_cast<std::int64_t>(result.faults.size())) {
    print(fmt::format("... {} faults in all\n", result.fault_count));
  }
  print(fmt::format(
      "visited {} tensors, {} groups, {} values, {:.4f} of them zero; {} vectors of f32\n",
      result.tensors.size(), result.groups(), result.values(),
      share(result.zero_codes(), result.values()), result.vectors));
  print(result.stated ? "scales and codes are compared with the checksums that the file states\n"
                      : "the file states no checksums: a scale that was changed would not show\n");
  print(result.passed() ? "ternary: yes\n" : "ternary: no\n");
}

Json as_json(const std::string& path, const io::TernaryInspection& result) {
  Json out = {{"path", path},
              {"ternary", result.passed()},
              {"stated", result.stated},
              {"groups", result.groups()},
              {"values", result.values()},
              {"zero_codes", result.zero_codes()},
              {"vectors", result.vectors},
              {"fault_count", result.fault_count}};
  out["tensors"] = Json::array();
  for (const io::TernaryTensor& tensor : result.tensors) {
    out["tensors"].push_back({{"name", shown(tensor.name, 200)},
                              {"type", tensor.type},
                              {"rows", tensor.rows},
                              {"cols", tensor.cols},
                              {"groups", tensor.groups},
                              {"zero_groups", tensor.zero_groups},
                              {"zero_codes", tensor.zero_codes},
                              {"smallest_scale", tensor.smallest_scale},
                              {"largest_scale", tensor.largest_scale}});
  }
  out["faults"] = Json::array();
  for (const std::string& fault : result.faults) out["faults"].push_back(shown(fault, 400));
  return out;
}

}  // namespace

int inspect_ternary_file(const std::string& path, bool json) {
  const io::TernaryInspection result = io::inspect_ternary(io::TensorFile::open(path));
  if (json) {
    print_json(as_json(path, result));
  } else {
    print_ternary(result);
  }
  return result.passed() ? kOk : kNo;
}

}  // namespace touchstone::cli
