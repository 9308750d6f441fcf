#include "cli/decoding/open_model.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/arguments.h"
#include "cli/output.h"
#include "json/json.h"
#include "touchstone/core/error.h"

namespace touchstone::cli {

void add_model_options(Options& verb, ModelChoice& choice) {
  verb.add_option(
      "-m,--model", choice.path,
      "A GGUF file, or a folder in the layout of Hugging Face (default: the built-in model)");
  verb.add_option("--compute", choice.compute, "Dtype of the activations")
      ->one_of({"f32", "bf16", "f16"})
      ->show_default();
  verb.add_option(
      "--cache", choice.cache,
      "Format of the KV cache: f32, bf16, f16, int8, int4, fp8_e4m3 (default: as --compute)");
  verb.add_option("--activations", choice.activations,
                  "compute, or int8: inputs of linear layers quantized to 8 bits")
      ->one_of({"compute", "int8"})
      ->show_default();
  verb.add_option(
          "--weights", choice.weights,
          "file: as they are stored; copied: the same in huge pages, faster on a CPU; compute: "
          "blocks decoded to --compute when loaded")
      ->one_of({"file", "copied", "compute"})
      ->show_default();
  verb.add_option("--device", choice.device, "cpu, cuda or cuda:N")->show_default();
  verb.add_option("--threads", choice.threads, "CPU threads; 0 = all cores")
      ->check(whole_number(0, 4096));
  verb.add_option("--page-tokens", choice.page_tokens, "Tokens per KV cache page")
      ->check(whole_number(1, 4096))
      ->show_default();
}

std::string model_path(const std::string& given) {
  if (!given.empty()) return given;
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  // Installed: bin/touchstone and share/touchstone/model. In a build tree: the sources.
  for (const std::filesystem::path& folder : {program.parent_path() / "../share/touchstone/model",
                                              std::filesystem::path(TOUCHSTONE_SOURCE_MODEL)}) {
    const std::filesystem::path file = folder / "touchstone.gguf";
    if (std::filesystem::exists(file, error)) return file.lexically_normal().string();
  }
  throw InvalidArgument("no model: -m PATH, or make real-model");
}

OpenedModel open_model(const ModelChoice& choice) {
  const std::string path = model_path(choice.path);
  io::ModelFile file = io::ModelFile::open(path);
  io::Tokenizer tokenizer = io::Tokenizer::from_file(path);
  if (static_cast<std::int64_t>(tokenizer.id_end()) > file.description().vocabulary) {
    throw CorruptData(
        fmt::format("{}: the tokenizer has tokens up to {}, the model a vocabulary of {}", path,
                    tokenizer.id_end() - 1, file.description().vocabulary));
  }
  return {std::move(file), std::move(tokenizer)};
}

model::ModelOptions model_options(const ModelChoice& choice, const std::string& cache,
                                  const io::ModelDescription& description) {
  model::ModelOptions options;
  options.compute = parse_dtype(choice.compute);
  if (!cache.empty()) {
    options.keys = QuantFormat{.dtype = parse_format_dtype(cache)};
    if (options.keys->dtype == DType::i4 && description.head_size % 32 == 0) {
      options.keys->group_size = 32;
      options.keys->asymmetric = true;
    }
    options.values = options.keys;
  }
  options.page_tokens = choice.page_tokens;
  options.expand_weights = choice.weights == "compute";
  options.copy_weights = choice.weights != "file";
  options.int8_activations = choice.activations == "int8";
  options.load_progress = [progress = std::make_shared<Progress>()](std::uint64_t done,
                                                                    std::uint64_t total) {
    progress->show(done < total ? fmt::format("weights: {} of {}",
                                              bytes_string(static_cast<std::int64_t>(done)),
                                              bytes_string(static_cast<std::int64_t>(total)))
                                : std::string());
  };
  return options;
}

Context make_context(const ModelChoice& choice) {
  return Context({.device = parse_device(choice.device), .threads = choice.threads});
}

std::vector<std::int32_t> encode_prompt(const OpenedModel& opened, const std::string& text,
                                        const std::string& what) {
  std::vector<std::int32_t> tokens;
  try {
    tokens = opened.tokenizer.encode(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", what, error.what()));
  }
  if (!tokens.empty()) return tokens;
  const auto bos = opened.file.description().bos_token;
  if (!bos) {
    throw InvalidArgument(
        fmt::format("{}: {}, as the model has no BOS token", what,
                    text.empty() ? "expected text" : "expected a character of the vocabulary"));
  }
  return {static_cast<std::int32_t>(*bos)};
}

}  // namespace touchstone::cli
