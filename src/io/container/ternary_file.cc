#include "touchstone/io/ternary_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/checksum.h"
#include "cpu/ternary_codec.h"
#include "io/container/tensor_file_state.h"
#include "touchstone/core/error.h"
#include "touchstone/core/half.h"

namespace touchstone::inline v0::io {
namespace {

constexpr char kNamesKey[] = "ternary.tensors";
constexpr char kStatementsKey[] = "ternary.statements";
constexpr std::size_t kMaxGroup = 256;

// What a file says of a tensor.
std::string statement(const TernaryTensor& tensor) {
  return fmt::format("groups={} zeros={} scales={:016x} codes={:016x}", tensor.groups,
                     tensor.zero_codes, tensor.scale_checksum, tensor.code_checksum);
}

// Takes every group of a tensor apart; report(group, fault) is called for each that is none.
template <class Report>
TernaryTensor derive(std::string name, const WeightFormat& format,
                     std::span<const std::int64_t> shape, std::span<const std::byte> data,
                     Report&& report) {
  TernaryTensor tensor{.name = std::move(name), .type = std::string(format.name)};
  tensor.cols = shape.back();
  tensor.rows = 1;
  for (const std::int64_t extent : shape.first(shape.size() - 1)) tensor.rows *= extent;
  tensor.groups = static_cast<std::int64_t>(data.size()) / format.block_bytes;
  std::vector<std::uint16_t> scales(static_cast<std::size_t>(tensor.groups));
  std::vector<std::int8_t> codes(static_cast<std::size_t>(tensor.groups * format.block_elements));
  for (std::int64_t g = 0; g < tensor.groups; ++g) {
    const std::byte* const block = data.data() + g * format.block_bytes;
    const std::string fault = ternary::block_fault(format.id, block);
    if (!fault.empty()) report(g, fault);
    std::int8_t* const to = codes.data() + g * format.block_elements;
    const float scale = ternary::block_scale(format.id, block);
    ternary::unpack_codes(format.id, block, to);
    // The values of a group of scale 0 are 0, whatever a format stores for them.
    if (scale == 0) std::fill_n(to, format.block_elements, std::int8_t{0});
    scales[static_cast<std::size_t>(g)] = F16(scale).bits;
    tensor.zero_codes += std::count(to, to + format.block_elements, 0);
    tensor.zero_groups += scale == 0 ? 1 : 0;
    if (!(scale > 0)) continue;
    tensor.largest_scale = std::max(tensor.largest_scale, scale);
    tensor.smallest_scale =
        tensor.smallest_scale == 0 ? scale : std::min(tensor.smallest_scale, scale);
  }
  tensor.scale_checksum = checksum(std::as_bytes(std::span(scales)));
  tensor.code_checksum = checksum(std::as_bytes(std::span(codes)));
  return tensor;
}

class Inspector {
 public:
  explicit Inspector(const TensorFile& file) : file_(file) { read_statements(); }

  TernaryInspection run() {
    for (const TensorInfo& tensor : file_.tensors()) visit(tensor);
    for (const auto& [name, text] : statements_) {
      fault(name, "stated, but not visited");
    }
    if (result_.tensors.empty()) fault("", "no ternary tensor was visited");
    return std::move(result_);
  }

 private:
  void fault(std::string_view tensor, const std::string& what) {
    ++result_.fault_count;
    if (result_.fault_count > kMaxTernaryFaults) return;
    result_.faults.push_back(
        tensor.empty() ? what : fmt::format("tensor '{}': {}", printable(tensor), what));
  }

  void read_statements() {
    const MetadataValue* const names = file_.find_metadata(kNamesKey);
    const MetadataValue* const texts = file_.find_metadata(kStatementsKey);
    result_.stated = names != nullptr || texts != nullptr;
    if (!result_.stated) return;
    const auto is_list = [](const MetadataValue* value) {
      return value != nullptr && value->is_array() &&
             value->element_type() == MetadataValue::Type::string;
    };
    if (!is_list(names) || !is_list(texts) || names->size() != texts->size()) {
      return fault(
          "", fmt::format("{} and {} are no lists of the same length", kNamesKey, kStatementsKey));
    }
    const std::vector<std::string_view> keys = names->strings();
    const std::vector<std::string_view> values = texts->strings();
    for (std::size_t i = 0; i < keys.size(); ++i) statements_.emplace(keys[i], values[i]);
  }

  void visit(const TensorInfo& tensor) {
    if (tensor.shape.size() < 2) {
      if (tensor.type != "f32") {
        return fault(tensor.name, "a vector of " + tensor.type + ", expected f32");
      }
      ++result_.vectors;
      check_finite(tensor);
      return;
    }
    if (tensor.format == nullptr || !tensor.format->ternary) {
      return fault(tensor.name, "a matrix of " + tensor.type + " among ternary ones");
    }
    result_.tensors.push_back(
        derive(tensor.name, *tensor.format, tensor.shape, tensor.data,
               [&](std::int64_t group, const std::string& what) { report(tensor, group, what); }));
    const auto stated = statements_.find(tensor.name);
    if (stated == statements_.end()) {
      if (result_.stated) fault(tensor.name, "not among the tensors that the file states");
      return;
    }
    const std::string derived = statement(result_.tensors.back());
    if (derived != stated->second) {
      fault(tensor.name, fmt::format("stated {}, found {}", printable(stated->second), derived));
    }
    statements_.erase(stated);
  }

  void check_finite(const TensorInfo& vector) {
    std::vector<float> values(static_cast<std::size_t>(vector.elements()));
    decode_weights(*vector.format, vector.data, values);
    const auto found = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
    if (found == values.end()) return;
    fault(vector.name, fmt::format("element {} is {}", found - values.begin(), *found));
  }

  void report(const TensorInfo& tensor, std::int64_t group, const std::string& what) {
    const std::int64_t per_row = tensor.shape.back() / tensor.format->block_elements;
    fault(tensor.name, fmt::format("row {}, group {}: {}", group / per_row, group % per_row, what));
  }

  const TensorFile& file_;
  TernaryInspection result_;
  std::map<std::string, std::string, std::less<>> statements_;
};

template <class Get>
std::int64_t total(const std::vector<TernaryTensor>& tensors, Get get) {
  std::int64_t sum = 0;
  for (const TernaryTensor& tensor : tensors) sum += get(tensor);
  return sum;
}

}  // namespace

std::int64_t TernaryInspection::groups() const {
  return total(tensors, [](const TernaryTensor& tensor) { return tensor.groups; });
}
std::int64_t TernaryInspection::values() const {
  return total(tensors, [](const TernaryTensor& tensor) { return tensor.values(); });
}
std::int64_t TernaryInspection::zero_codes() const {
  return total(tensors, [](const TernaryTensor& tensor) { return tensor.zero_codes; });
}

TernaryInspection inspect_ternary(const TensorFile& file) { return Inspector(file).run(); }

void state_ternary(std::span<const OutputTensor> tensors, GgufMetadata& metadata) {
  std::vector<std::string> names;
  std::vector<std::string> statements;
  std::vector<std::byte> scratch;
  for (const OutputTensor& tensor : tensors) {
    const auto formats = weight_formats();
    const auto format =
        std::find_if(formats.begin(), formats.end(),
                     [&](const WeightFormat& candidate) { return candidate.name == tensor.type; });
    if (format == formats.end() || !format->ternary || tensor.shape.size() < 2) continue;
    names.push_back(tensor.name);
    statements.push_back(statement(derive(tensor.name, *format, tensor.shape, tensor.data(scratch),
                                          [](std::int64_t, const std::string&) {})));
  }
  if (names.empty()) return;
  metadata.set(kNamesKey, std::span<const std::string>(names));
  metadata.set(kStatementsKey, std::span<const std::string>(statements));
}

}  // namespace touchstone::inline v0::io
