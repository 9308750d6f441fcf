// touchstone plan: what fits in the memory of a GPU, and how fast it could decode.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/plan_report.h"
#include "cli/verbs.h"
#include "plan/catalog.h"
#include "plan/growth_plot.h"
#include "plan/model_config.h"
#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

struct PlanOptions {
  std::string model;
  std::string gpu;
  std::string kv_dtype = "bf16";
  std::string weights_dtype = "bf16";
  std::int64_t context = 0;
  std::int64_t batch = 1;
  std::int64_t gpus = 1;
  std::int64_t page_tokens = 16;
  std::int64_t chunk = 1;
  std::int64_t reserve_mib = 1024;
  std::string svg;
  bool json = false;
  bool list = false;
};

// A file by its ending, a folder by its config.json; so that a folder that happens to have the name
// of a model does not hide it.
cache::ModelSpec model_called(const std::string& name) {
  std::error_code ignored;
  const bool is_path =
      name.ends_with(".json") ||
      std::filesystem::exists(std::filesystem::path(name) / "config.json", ignored);
  return is_path ? plan::read_model_config(name) : plan::find_model(name);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw Error(fmt::format("{}: {}", path, std::strerror(errno)));
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
    for (const cache::CachedLayers& cached : entry.spec.cached) layers += cached.layers;
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

int run_plan(const PlanOptions& options) {
  if (options.list) return list_names(options.json);
  if (options.model.empty()) throw InvalidArgument("plan: --model is required (--list shows all)");
  if (options.gpu.empty()) throw InvalidArgument("plan: --gpu is required (--list shows all)");
  cache::PlanRequest request;
  request.cache = cache::parse_cache_format(options.kv_dtype);
  request.weights = cache::parse_weight_format(options.weights_dtype);
  request.model = model_called(options.model);
  request.gpu = plan::find_gpu(options.gpu);
  request.context = options.context;
  if (request.context == 0) request.context = request.model.native_context;
  if (request.context == 0) {
    throw InvalidArgument("plan: --context is required: the model does not say its own");
  }
  request.batch = options.batch;
  request.gpus = options.gpus;
  request.page_tokens = options.page_tokens;
  request.chunk = options.chunk;
  request.runtime_bytes = options.reserve_mib << 20;
  const cache::Plan result = cache::make_plan(request);
  if (!options.svg.empty()) write_file(options.svg, plan::growth_plot(request, result));
  if (options.json) {
    print_json(plan_json(request, result));
  } else {
    print(plan_text(request, result));
  }
  return result.fits ? kOk : kNo;
}

}  // namespace

void add_plan(Options& app, int& exit_code) {
  auto options = std::make_shared<PlanOptions>();
  Options* verb = app.add_verb("plan", "What fits in the memory of a GPU: weights and cache");
  verb->add_option("--model", options->model, "A name of --list, or a config.json");
  verb->add_option("--gpu", options->gpu, "A name of --list");
  verb->add_option("--kv-dtype", options->kv_dtype,
                   "f32, bf16, f16, int8, int4, fp8, or K and V apart as in k8v4");
  verb->add_option("--weights-dtype", options->weights_dtype, "f32, bf16, f16, int8, int4, fp8");
  verb->add_option("--context", options->context, "Tokens of each sequence; else the model's own")
      ->check(whole_number(1));
  verb->add_option("--batch", options->batch, "Sequences at once")->check(whole_number(1));
  verb->add_option("--gpus", options->gpus, "GPUs that share the heads")
      ->check(whole_number(1, 1024));
  verb->add_option("--page-tokens", options->page_tokens, "Tokens of a page")
      ->check(whole_number(1, 4096));
  verb->add_option("--chunk", options->chunk, "Tokens appended per step, for windows")
      ->check(whole_number(1));
  verb->add_option("--reserve-mib", options->reserve_mib, "MiB that driver and runtime take")
      ->check(whole_number(0, std::int64_t{1} << 24));
  verb->add_option("--svg", options->svg, "Write a plot of memory over length to this file");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->add_flag("--list", options->list, "Show the models and GPUs that are known");
  verb->footer("Exit status 1 when the batch does not fit.");
  verb->callback([options, &exit_code] { exit_code = run_plan(*options); });
}

}  // namespace touchstone::cli
