// The quantization_config of published weights.
#include <algorithm>

#include "plan/model_config.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::plan {
namespace {

using json = Json;

constexpr std::int64_t kMaxGroup = 1 << 20;

// Integers of 4 or 8 bits with an f16 scale per group. Zero points have the width of a code, which
// is nothing beside the scale. -1: a scale per row of a matrix, which is nothing beside the codes.
QuantFormat integer_format(const ConfigReader& config, std::int64_t bits, std::int64_t group) {
  if (bits != 4 && bits != 8) {
    config.fail(fmt::format("quantization_config: bits: expected 4 or 8, got {}", bits));
  }
  return {.dtype = bits == 4 ? DType::i4 : DType::i8,
          .group_size = std::max<std::int64_t>(group, 0)};
}

// compressed-tensors: the weights of the first group of modules.
QuantFormat compressed_format(const ConfigReader& config, const ConfigReader& given,
                              const json& quantization) {
  const std::string format = given.string_or("format", "");
  if (format.starts_with("nvfp4")) return parse_weight_format("nvfp4");
  if (format.starts_with("mxfp4")) return parse_weight_format("mxfp4");
  const json groups = given.has("config_groups") ? quantization["config_groups"] : json::object();
  if (groups.items().empty() || !groups.items().front().second.contains("weights") ||
      !groups.items().front().second["weights"].is_object()) {
    config.fail("quantization_config: config_groups: expected a group with weights");
  }
  const ConfigReader weights(config.file(), groups.items().front().second["weights"]);
  const std::int64_t bits = weights.integer_or("num_bits", 8, 1, 64);
  if (weights.string_or("type", "int") == "float") {
    if (bits == 8) return parse_weight_format("fp8");
    if (bits == 4) return parse_weight_format("nvfp4");
    config.fail(fmt::format("quantization_config: num_bits: expected 4 or 8, got {}", bits));
  }
  const std::int64_t group = weights.integer_or("group_size", 0, -1, kMaxGroup);
  return integer_format(config, bits, group);
}

QuantFormat bitsandbytes_format(const ConfigReader& given) {
  if (given.boolean_or("load_in_8bit", false)) {
    return {.dtype = DType::i8};  // one scale per row
  }
  // nf4 and fp4: codes of four bits and an f32 scale per 64, or a byte with nested scales.
  const bool nested = given.boolean_or("bnb_4bit_use_double_quant", false);
  return {.dtype = DType::i4, .group_size = 64, .scale_dtype = nested ? DType::u8 : DType::f32};
}

}  // namespace

void read_quantization(const ConfigReader& config, const json& quantization,
                       const ParameterCount& count, ModelSpec& model) {
  if (!quantization.is_object()) config.fail("quantization_config: expected an object");
  const ConfigReader given(config.file(), quantization);
  const std::string method = given.string_or("quant_method", "");
  const std::string algorithm = given.string_or("quant_algo", "");
  model.unquantized_parameters = count.embedding;
  if (method == "awq" || method == "gptq" || method == "auto-round") {
    model.weights = integer_format(config, given.integer_or("bits", 4, 1, 64),
                                   given.integer_or("group_size", 128, -1, kMaxGroup));
  } else if (method == "fp8" || method == "fbgemm_fp8") {
    model.weights = parse_weight_format("fp8");
  } else if (method == "bitsandbytes") {
    model.weights = bitsandbytes_format(given);
  } else if (method == "compressed-tensors") {
    model.weights = compressed_format(config, given, quantization);
  } else if (method == "mxfp4") {
    model.weights = parse_weight_format("mxfp4");
    // Attention, router and dense layers stay in bf16.
    if (count.experts > 0) model.unquantized_parameters = count.total - count.experts;
  } else if (method == "nvfp4" || (method == "modelopt" && algorithm == "NVFP4")) {
    model.weights = parse_weight_format("nvfp4");
  } else if (method == "modelopt" && algorithm == "FP8") {
    model.weights = parse_weight_format("fp8");
  } else {
    config.fail(
        fmt::format("quantization_config: quant_method: expected awq, gptq, fp8, bitsandbytes, "
                    "compressed-tensors, mxfp4 or modelopt (FP8, NVFP4), got '{}'",
                    (algorithm.empty() ? method : method + " " + algorithm).substr(0, 60)));
  }
}

}  // namespace touchstone::inline v0::plan
