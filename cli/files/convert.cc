// touchstone convert: models between safetensors and GGUF, and to other weight formats.
#include "touchstone/io/convert.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

struct ConvertArguments {
  std::string in;
  std::string out;
  std::string type;
  std::string project;
  std::int64_t shard_mb = 0;
  bool json = false;
  bool force = false;
};

int convert_files(const ConvertArguments& arguments) {
  std::error_code error;
  if (!arguments.force && std::filesystem::is_regular_file(arguments.out, error)) {
    throw InvalidArgument(
        fmt::format("convert: out: {} is there already; --force replaces it", arguments.out));
  }
  io::ConvertOptions options;
  if (!arguments.type.empty()) options.format = &weight_format(std::string_view(arguments.type));
  if (!arguments.project.empty()) options.project = parse_ternary_scale_rule(arguments.project);
  options.max_shard_bytes = static_cast<std::uint64_t>(arguments.shard_mb) * 1'000'000;
  Progress progress;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.show(fmt::format("{} of {} written", bytes_string(static_cast<std::int64_t>(done)),
                              bytes_string(static_cast<std::int64_t>(total))));
  };
  const io::ConvertReport report = io::convert_model(arguments.in, arguments.out, options);
  for (const std::string& note : report.notes) log(note);
  if (arguments.json) {
    Json notes = Json::array();
    for (const std::string& note : report.notes) notes.push_back(note);
    print_json({{"out", arguments.out},
                {"tensors", report.tensors},
                {"bytes", report.bytes},
                {"notes", notes}});
  } else {
    print(fmt::format("{}: {} tensors, {}\n", arguments.out, report.tensors,
                      bytes_string(static_cast<std::int64_t>(report.bytes))));
  }
  return kOk;
}

}  // namespace

void add_convert(Options& app, int& exit_code) {
  auto arguments = std::make_shared<ConvertArguments>();
  Options* verb = app.add_verb("convert", "Convert a model to another container or weight format");
  verb->add_option("in", arguments->in, "A safetensors folder or a GGUF file")->required();
  verb->add_option("out", arguments->out, "NAME.gguf, or a new folder for safetensors")->required();
  verb->add_option("--type", arguments->type,
                   "Of matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k; "
                   "ternary: tq1_0, tq2_0, q2_0, pq2_0, ptq1_0, ternary_g32 to ternary_g256, "
                   "base3_g128, sherry_g128 (default: as they are)");
  verb->add_option(
      "--project", arguments->project,
      "To a ternary type: make weights ternary that are not, with scales by mean, absmax "
      "or least_squares");
  verb->add_option("--shard-mb", arguments->shard_mb, "safetensors: maximum MB per file")
      ->check(whole_number(0, 1'000'000));
  verb->add_flag("--force", arguments->force, "Overwrite an existing file");
  verb->add_flag("--json", arguments->json, "Print JSON");
  verb->callback([arguments, &exit_code] { exit_code = convert_files(*arguments); });
}

}  // namespace touchstone::cli
