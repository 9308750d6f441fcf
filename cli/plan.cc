// touchstone plan: what fits in the memory of a GPU, and how fast it could decode.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/plan_report.h"
#include "cli/verbs.h"
#include "plan/growth_plot.h"
#include "plan/model_config.h"
#include "touchstone/core/error.h"
#include "touchstone/plan/catalog.h"

namespace touchstone::cli {
namespace {

struct PlanOptions {
  std::string model;
  std::string gpu;
  std::string kv_dtype = "bf16";
  std::string weights_dtype;
  std::int64_t context = 0;
  std::string batch = "1";
  std::int64_t gpus = 1;
  std::int64_t prefill_tokens = 2048;
  std::int64_t page_tokens = 16;
  std::int64_t chunk = 1;
  std::int64_t reserve_mib = 1024;
  std::string svg;
  bool json = false;
  bool markdown = false;
  bool list = false;
};

// Batches of `--batch all`.
constexpr std::int64_t kAllBatches[] = {1, 8, 64, 256};
// The context of a table's step where none is given, if the model was made for as much.
constexpr std::int64_t kTableContext = 8192;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = list.find(',', begin);
    parts.push_back(list.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

// A file by its ending, a folder by its config.json; so that a folder that happens to have the name
// of a model does not hide it.
plan::ModelSpec model_called(const std::string& name) {
  std::error_code ignored;
  const bool is_path =
      name.ends_with(".json") ||
      std::filesystem::exists(std::filesystem::path(name) / "config.json", ignored);
  return is_path ? plan::read_model_config(name) : plan::find_model(name);
}

int list_names(bool as_json) {
  if (as_json) {
    Json models = Json::array();
    for (const plan::ModelEntry& entry : plan::models()) models.push_back(entry.spec.name);
    Json gpus = Json::array();
    for (const plan::GpuEntry& entry : plan::gpus()) gpus.push_back(entry.spec.name);
    print_json({{"models", models}, {"gpus", gpus}});
    return kOk;
  }
  Table models({"model", ">parameters", ">layers", ">context", "note"});
  for (const plan::ModelEntry& entry : plan::models()) {
    std::int64_t layers = entry.spec.other_layers;
    for (const plan::CachedLayers& cached : entry.spec.cached) layers += cached.layers;
    models.add(
        {entry.spec.name, fmt::format("{:.2f} G", static_cast<double>(entry.spec.parameters) / 1e9),
         fmt::format("{}", layers), fmt::format("{}", entry.spec.native_context), entry.spec.note});
  }
  Table gpus({"GPU", ">memory", ">GB/s", ">TFLOPS", "note"});
  for (const plan::GpuEntry& entry : plan::gpus()) {
    gpus.add({entry.spec.name, bytes_string(entry.spec.memory_bytes),
              fmt::format("{:g}", entry.spec.bytes_per_second / 1e9),
              entry.spec.flops == 0 ? "-" : fmt::format("{:g}", entry.spec.flops / 1e12),
              entry.spec.note});
  }
  print(models.text() + "\n" + gpus.text());
  return kOk;
}

std::vector<plan::ModelSpec> models_of(const std::string& list) {
  std::vector<plan::ModelSpec> models;
  if (list == "all") {
    for (const plan::ModelEntry& entry : plan::models()) models.push_back(entry.spec);
    return models;
  }
  for (const std::string& name : split(list)) models.push_back(model_called(name));
  return models;
}

std::vector<plan::GpuSpec> gpus_of(const std::string& list) {
  std::vector<plan::GpuSpec> gpus;
  if (list == "all") {
    for (const plan::GpuEntry& entry : plan::gpus()) gpus.push_back(entry.spec);
    return gpus;
  }
  for (const std::string& name : split(list)) gpus.push_back(plan::find_gpu(name));
  return gpus;
}

std::vector<std::int64_t> batches_of(const std::string& list) {
  if (list == "all") return {std::begin(kAllBatches), std::end(kAllBatches)};
  std::vector<std::int64_t> batches;
  for (const std::string& text : split(list)) {
    std::int64_t batch = 0;
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, batch);
    if (error != std::errc{} || rest != end || batch < 1) {
      throw InvalidArgument(
          fmt::format("plan: --batch: expected whole numbers of at least 1, got '{}'", text));
    }
    batches.push_back(batch);
  }
  return batches;
}

// Everything but model, GPU and batch.
plan::PlanRequest request_of(const PlanOptions& options) {
  plan::PlanRequest request;
  request.cache = plan::parse_cache_format(options.kv_dtype);
  if (!options.weights_dtype.empty()) {
    request.weights = plan::parse_weight_format(options.weights_dtype);
  }
  request.context = options.context;
  request.gpus = options.gpus;
  request.page_tokens = options.page_tokens;
  request.chunk = options.chunk;
  request.prefill_tokens = options.prefill_tokens;
  request.runtime_bytes = options.reserve_mib << 20;
  return request;
}

int plan_one(const PlanOptions& options, plan::PlanRequest request) {
  if (request.context == 0) request.context = request.model.native_context;
  if (request.context == 0) {
    throw InvalidArgument("plan: --context is required: the model does not say its own");
  }
  const plan::Plan result = plan::make_plan(request);
  if (OutputFile svg(options.svg); svg.wanted()) svg.write(plan::growth_plot(request, result));
  if (options.json) {
    print_json(plan_json(request, result));
  } else {
    print(plan_text(request, result));
  }
  return result.fits ? kOk : kNo;
}

int plan_table(const PlanOptions& options, const std::vector<plan::ModelSpec>& models,
               const std::vector<plan::GpuSpec>& gpus, const std::vector<std::int64_t>& batches) {
  if (!options.svg.empty()) {
    throw InvalidArgument("plan: --svg: expected one model, GPU and batch, got a list");
  }
  std::vector<PlanRow> rows;
  bool any_fits = false;
  for (const plan::ModelSpec& model : models) {
    for (const plan::GpuSpec& gpu : gpus) {
      for (const std::int64_t batch : batches) {
        PlanRow row{.request = request_of(options), .plan = {}};
        row.request.model = model;
        row.request.gpu = gpu;
        row.request.batch = batch;
        const std::int64_t native = model.native_context;
        if (row.request.context == 0) {
          row.request.context = native == 0 ? kTableContext : std::min(kTableContext, native);
        }
        row.plan = plan::make_plan(row.request);
        any_fits = any_fits || row.plan.fits;
        rows.push_back(std::move(row));
      }
    }
  }
  if (options.json) {
    print_json(plan_table_json(rows));
  } else {
    print(options.markdown ? plan_table_markdown(rows) : plan_table_text(rows));
  }
  return any_fits ? kOk : kNo;
}

int run_plan(const PlanOptions& options) {
  if (options.list) return list_names(options.json);
  if (options.model.empty()) throw InvalidArgument("plan: --model is required (--list shows all)");
  if (options.gpu.empty()) throw InvalidArgument("plan: --gpu is required (--list shows all)");
  if (options.json && options.markdown) {
    throw InvalidArgument("plan: --markdown: expected no --json beside it");
  }
  plan::PlanRequest request = request_of(options);
  const std::vector<plan::ModelSpec> models = models_of(options.model);
  const std::vector<plan::GpuSpec> gpus = gpus_of(options.gpu);
  const std::vector<std::int64_t> batches = batches_of(options.batch);
  if (options.markdown || models.size() * gpus.size() * batches.size() > 1) {
    return plan_table(options, models, gpus, batches);
  }
  request.model = models.front();
  request.gpu = gpus.front();
  request.batch = batches.front();
  return plan_one(options, std::move(request));
}

}  // namespace

void add_plan(Options& app, int& exit_code) {
  auto options = std::make_shared<PlanOptions>();
  Options* verb = app.add_verb("plan", "Plan GPU memory: weights, KV cache, longest context");
  verb->add_option("--model", options->model,
                   "A name of --list, a config.json, a list of these (a,b), or all");
  verb->add_option("--gpu", options->gpu, "A name of --list, a list of these, or all");
  verb->add_option("--kv-dtype", options->kv_dtype,
                   "f32, bf16, f16, int8, int4, fp8, or K and V apart as in k8v4");
  verb->add_option("--weights-dtype", options->weights_dtype,
                   "f32, bf16, f16, int8, int4, fp8, mxfp4, nvfp4; else as published, or bf16");
  verb->add_option("--context", options->context,
                   "Tokens per sequence (default: the model's context)")
      ->check(whole_number(1));
  verb->add_option("--batch", options->batch, "Concurrent sequences, a list (1,8,64), or all");
  verb->add_option("--gpus", options->gpus,
                   "Number of GPUs with tensor parallelism: heads and weights are sharded")
      ->check(whole_number(1, 1024));
  verb->add_option("--page-tokens", options->page_tokens, "Tokens per page")
      ->check(whole_number(1, 4096));
  verb->add_option("--chunk", options->chunk, "Tokens appended per step, for windows")
      ->check(whole_number(1));
  verb->add_option("--prefill-tokens", options->prefill_tokens,
                   "Tokens of a prefill step, for activations")
      ->check(whole_number(1, 1 << 24));
  verb->add_option("--reserve-mib", options->reserve_mib, "MiB reserved for driver and runtime")
      ->check(whole_number(0, std::int64_t{1} << 24));
  verb->add_option("--svg", options->svg, "Write a plot of memory over length to this file");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->add_flag("--markdown", options->markdown, "Print the table as Markdown");
  verb->add_flag("--list", options->list, "List the known models and GPUs");
  verb->footer(
      "Lists give one table. Exit status 1 when the batch does not fit; of a table, when none "
      "does.");
  verb->callback([options, &exit_code] { exit_code = run_plan(*options); });
}

}  // namespace touchstone::cli
