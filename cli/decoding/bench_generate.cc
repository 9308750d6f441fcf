// touchstone bench generate: prompts and tokens per second of a model, from a file or of random weights,
// against what its bytes and flops allow, and beside llama.cpp where it is installed.
#include "cli/decoding/bench_generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "bench/cuda_tools.h"
#include "bench/generate_bench.h"
#include "bench/llama_bench.h"
#include "cli/arguments.h"
#include "cli/decoding/open_model.h"
#include "cli/output.h"
#include "machine/memory_rate.h"
#include "machine/statistics.h"
#include "machine/stopwatch.h"
#include "touchstone/core/error.h"
#include "touchstone/model/random_weights.h"

namespace touchstone::cli {
namespace {

constexpr std::int64_t kMax = std::int64_t{1} << 24;

std::vector<std::int64_t> numbers_of(const char* option, const std::vector<std::string>& words) {
  std::vector<std::int64_t> numbers;
  for (const std::string& word : words) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < 1 || value > kMax) {
      throw InvalidArgument(
          fmt::format("bench: {}: expected whole numbers from 1 on, got '{}'", option, word));
    }
    numbers.push_back(value);
  }
  return numbers;
}

bool is_shape(const std::string& name) {
  return std::ranges::find(model::shape_names(), name) != model::shape_names().end();
}

// Everything that is measured alike.
class GenerateBench {
 public:
  GenerateBench(const BenchGenerateOptions& o, const std::string& device, int threads, int rounds)
      : o_(o), context_({.device = parse_device(device), .threads = threads}) {
    if (!is_shape(o.model)) {
      opened_.emplace(open_model({.path = o.model}));
    } else {
      shape_ = model::shape_by_name(o.model);
    }
    cuda_ = context_.device().is_cuda();
    program_ = o.llama_bench.empty() ? bench::find_llama_bench() : o.llama_bench;
    if (!opened_ || cuda_) program_.clear();
    if (!cuda_) {
      ceiling_ = machine::measure_cpu_ceiling(context_, rounds);
      buffer_ = Tensor::zeros({ceiling_.buffer_bytes / 4}, DType::f32);
      return;
    }
    const bench::CudaStream stream(context_.device().index);
    Context timed({.device = context_.device(), .stream = stream.get()});
    ceiling_ = bench::measure_cuda_ceiling(timed, rounds);
    cublaslt_ = bench::cublaslt_rate(context_.device());
  }

  Json header() const {
    Json json = {{"model", o_.model},
                 {"compute", o_.compute},
                 {"threads", context_.threads()},
                 {"read_gbs", ceiling_.read_gbs}};
    if (cuda_) json["cublaslt_tflops"] = 1e-12 * cublaslt_;
    if (!program_.empty()) json["llama_bench"] = program_;
    return json;
  }

  std::string heading() const {
    return fmt::format("generate: {}, {} weights, {} activations, {}\n", o_.model,
                       opened_ ? "its own" : o_.format, o_.compute,
                       cuda_ ? fmt::format("cuBLASLt 8192^3 {:.0f} TFLOP/s", 1e-12 * cublaslt_)
                             : fmt::format("{} threads", context_.threads()));
  }

  // One case in a model of its own, `rounds` times; the median of each figure.
  Json measure(std::int64_t batch, std::int64_t context, int rounds) {
    const bench::GenerateCase item{
        .batch = batch,
        .context = context,
        .tokens = o_.tokens,
        .max_rows = std::max<std::int64_t>(batch * std::max<std::int64_t>(1, o_.nodes),
                                           o_.max_rows > 0 ? o_.max_rows
                                           : cuda_         ? 2048
                                                           : 512),
        .sampling = {.temperature = o_.temperature}};
    model::Model model = make_model(item);
    std::vector<bench::GenerateRow> runs;
    std::vector<double> peer[2];
    for (int round = 0; round < rounds; ++round) {
      model.clear_prefixes();
      runs.push_back(bench::measure_generate(context_, model,
                                             opened_ ? &opened_->tokenizer : nullptr, item,
                                             [this] { return read_gbs(); }));
      if (program_.empty() || batch != 1) continue;
      const bench::LlamaBenchRates rates =
          bench::run_llama_bench(program_, o_.model, context_.threads(), item.context, item.tokens);
      peer[0].push_back(rates.prefill);
      peer[1].push_back(rates.decode);
    }
    const auto median = [](auto values) {
      std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
      return values[values.size() / 2];
    };
    const auto figure = [&](auto get) {
      std::vector<double> values;
      for (const bench::GenerateRow& run : runs) values.push_back(get(run));
      return median(values);
    };
    const bench::GenerateRow& any = runs.front();
    Json row = {{"batch", batch},
                {"context", context},
                {"tokens", o_.tokens},
                {"max_rows", item.max_rows},
                {"prefill_tokens_per_s", figure([](auto& r) { return r.prefill_rate(); })},
                {"prefill_tflops",
                 figure([](auto& r) { return 1e-12 * r.prefill_flops / r.prefill_seconds; })},
                {"step_us", figure([](auto& r) { return r.step_us; })},
                {"decode_tokens_per_s", figure([](auto& r) { return r.decode_rate(); })},
                {"weight_bytes", any.weight_bytes},
                {"cache_bytes", any.cache_bytes},
                {"read_gbs", figure([](auto& r) { return r.read_gbs; })},
                {"floor_us", figure([](auto& r) { return r.floor_us; })},
                {"share", figure([](auto& r) { return r.share(); })},
                {"graph_replays", model.graph_replays()}};
    if (cuda_) {
      row["of_cublaslt"] = row["prefill_tflops"].get<double>() / (1e-12 * cublaslt_);
    }
    if (!peer[0].empty()) {
      row["llama_prefill_tokens_per_s"] = median(peer[0]);
      row["llama_decode_tokens_per_s"] = median(peer[1]);
    }
    if (o_.profile) add_profile(row, bench::profile_generate(context_, model, item));
    if (o_.nodes > 0) {
      const bench::TreePass pass = bench::measure_tree_pass(context_, model, item, o_.nodes);
      row["tree"] = {{"nodes", pass.nodes},
                     {"pass_us", pass.pass_us},
                     {"score_us", pass.step_us},
                     {"ratio", pass.ratio()}};
    }
    return row;
  }

  bool cuda() const { return cuda_; }
  bool beside_llama() const { return !program_.empty(); }

 private:
  // On the CPU measured now: virtual cores move, and the rate with them.
  double read_gbs() {
    if (cuda_) return ceiling_.read_gbs;
    std::vector<double> seconds;
    for (int i = 0; i < 3; ++i) {
      const machine::Stopwatch watch;
      machine::parallel_read(context_, buffer_.data(), ceiling_.buffer_bytes);
      seconds.push_back(watch.seconds());
    }
    return 1e-9 * static_cast<double>(ceiling_.buffer_bytes) / machine::summarize(seconds).median;
  }

  model::Model make_model(const bench::GenerateCase& item) {
    const io::ModelDescription& description = opened_ ? opened_->file.description() : *shape_;
    model::ModelOptions options = model_options({.compute = o_.compute,
                                                 .activations = o_.activations,
                                                 .weights = o_.weights,
                                                 .page_tokens = o_.page_tokens},
                                                o_.cache, description);
    options.max_rows = item.max_rows;
    options.max_length = item.context + std::max(item.tokens, o_.nodes) + 4;
    options.sequences = item.batch;
    if (opened_) return {context_, io::ModelFile::open(o_.model), options};
    return {context_, description, model::random_weights(context_, description, o_.format, 1),
            options};
  }

  static void add_profile(Json& row, const bench::GenerateProfile& profile) {
    row["score_us"] = profile.score_us;
    row["profile"] = Json::array();
    for (const model::StepPart& part : profile.parts) {
      row["profile"].push_back({{"name", part.name},
                                {"calls", part.calls},
                                {"us", part.us},
                                {"bytes", part.bytes},
                                {"gbs", static_cast<double>(part.bytes) / (1e3 * part.us)}});
    }
  }

  const BenchGenerateOptions& o_;
  Context context_;
  std::optional<OpenedModel> opened_;
  std::optional<io::ModelDescription> shape_;
  bool cuda_ = false;
  std::string program_;  // llama-bench
  machine::Ceiling ceiling_;
  Tensor buffer_;  // CPU: what read_gbs() reads
  double cublaslt_ = 0;
};

void print_rows(const GenerateBench& bench, const Json& rows) {
  std::vector<std::string> headings = {">batch", ">context", ">prefill tok/s", ">TFLOP/s"};
  if (bench.cuda()) headings.emplace_back(">of cuBLASLt");
  for (const char* const name :
       {">step us", ">decode tok/s", ">reads GB/s", ">floor us", ">share"}) {
    headings.emplace_back(name);
  }
  if (bench.beside_llama()) {
    for (const char* const name :
         {">llama prefill", ">ours/llama", ">llama decode", ">ours/llama"}) {
      headings.emplace_back(name);
    }
  }
  Table table(headings);
  for (const Json& row : rows) {
    const auto number = [&](const char* key) { return row[key].get<double>(); };
    std::vector<std::string> cells = {fmt::format("{}", row["batch"].get<std::int64_t>()),
                                      fmt::format("{}", row["context"].get<std::int64_t>()),
                                      fmt::format("{:.0f}", number("prefill_tokens_per_s")),
                                      fmt::format("{:.3g}", number("prefill_tflops"))};
    if (bench.cuda()) cells.push_back(fmt::format("{:.2f}", number("of_cublaslt")));
    cells.push_back(fmt::format("{:.0f}", number("step_us")));
    cells.push_back(fmt::format("{:.1f}", number("decode_tokens_per_s")));
    cells.push_back(fmt::format("{:.0f}", number("read_gbs")));
    cells.push_back(fmt::format("{:.0f}", number("floor_us")));
    cells.push_back(fmt::format("{:.2f}", number("share")));
    if (row.contains("llama_prefill_tokens_per_s")) {
      for (const char* const what : {"prefill", "decode"}) {
        const double peer = number(fmt::format("llama_{}_tokens_per_s", what).c_str());
        cells.push_back(fmt::format("{:.1f}", peer));
        cells.push_back(
            fmt::format("{:.2f}", number(fmt::format("{}_tokens_per_s", what).c_str()) / peer));
      }
    }
    cells.resize(headings.size());
    table.add(cells);
  }
  print(table.text());
}

void print_profile(const Json& row) {
  if (!row.contains("profile")) return;
  double sum = 0;
  double whole = 0;
  for (const Json& part : row["profile"]) {
    const auto us = part["us"].get<double>();
    (part["name"] == "whole step" ? whole : sum) += us;
  }
  Table table({"operator", ">calls", ">us", ">share", ">us per call", ">bytes", ">of reads"});
  for (const Json& part : row["profile"]) {
    const auto us = part["us"].get<double>();
    const auto calls = part["calls"].get<std::int64_t>();
    table.add({part["name"].get<std::string>(), std::to_string(calls), fmt::format("{:.1f}", us),
               fmt::format("{:.1f}%", 100 * us / sum),
               fmt::format("{:.2f}", us / static_cast<double>(calls)),
               bytes_string(part["bytes"].get<std::int64_t>()),
               fmt::format("{:.2f}", part["gbs"].get<double>() / row["read_gbs"].get<double>())});
  }
  print(fmt::format(
      "\none step of batch {}, context {}: {:.0f} us, of them its model {:.0f}; layers and head as "
      "a "
      "graph {:.0f}, the sum of their operators {:.0f}\n{}",
      row["batch"].get<std::int64_t>(), row["context"].get<std::int64_t>(),
      row["step_us"].get<double>(), row["score_us"].get<double>(), whole, sum, table.text()));
}

void print_tree(const Json& row) {
  if (!row.contains("tree")) return;
  const Json& tree = row["tree"];
  print(fmt::format(
      "\none pass of {} nodes for each of {} requests, context {}: {:.0f} us, {:.2f} times the "
      "{:.0f} us of one row each\n",
      tree["nodes"].get<std::int64_t>(), row["batch"].get<std::int64_t>(),
      row["context"].get<std::int64_t>(), tree["pass_us"].get<double>(),
      tree["ratio"].get<double>(), tree["score_us"].get<double>()));
}

}  // namespace

void add_bench_generate_options(Options& verb, BenchGenerateOptions& o) {
  verb.add_option("--model", o.model,
                  "Of generate: llama3-8b, llama-100m or smollm2-135m with random weights, or a "
                  "GGUF file or folder");
  verb.add_option("--format", o.format, "... format of random weights (bf16)");
  verb.add_option("--compute", o.compute, "... dtype of activations (bf16)")
      ->one_of({"f32", "bf16", "f16"});
  verb.add_option("--cache", o.cache, "... format of the KV cache (as --compute)");
  verb.add_option("--activations", o.activations, "... compute or int8")
      ->one_of({"compute", "int8"});
  verb.add_option("--weights", o.weights,
                  "... of a file: file, copied into huge pages, or compute: blocks decoded")
      ->one_of({"file", "copied", "compute"});
  verb.add_option("--batch", o.batches, "... concurrent requests, a list (1)")->split_at(',');
  verb.add_option("--context", o.contexts, "... tokens of each prompt, a list (512)")
      ->split_at(',');
  verb.add_option("--tokens", o.tokens, "... decode steps (64)")->check(whole_number(4, kMax));
  verb.add_option("--max-rows", o.max_rows, "... rows of a step (2048 on CUDA, 512 on the CPU)")
      ->check(whole_number(1, 1 << 20));
  verb.add_option("--page-tokens", o.page_tokens, "... tokens of a cache page (16)")
      ->check(whole_number(1, 4096));
  verb.add_option("--temperature", o.temperature, "... 0 = greedy (the default)");
  verb.add_option("--llama-bench", o.llama_bench,
                  "... the program of llama.cpp to run beside it (that on PATH)");
  verb.add_option("--nodes", o.nodes,
                  "... also one pass over a random tree of so many nodes for each request (none)")
      ->check(whole_number(1, 4096));
  verb.add_flag("--profile", o.profile, "... the operators of a decode step, each timed alone");
}

void bench_generate(const BenchGenerateOptions& o, const std::string& device, int threads,
                    int rounds, bool quiet, Json& document) {
  const std::vector<std::int64_t> batches = numbers_of("--batch", o.batches);
  const std::vector<std::int64_t> contexts = numbers_of("--context", o.contexts);
  auto progress = std::make_unique<Progress>();
  progress->show("measuring the read rate");
  rounds = rounds > 0 ? rounds : 3;
  GenerateBench bench(o, device, threads, rounds);
  document["generate"] = bench.header();
  Json rows = Json::array();
  for (const std::int64_t context : contexts) {
    for (const std::int64_t batch : batches) {
      progress->show(fmt::format("generate: batch {}, context {}", batch, context));
      rows.push_back(bench.measure(batch, context, rounds));
    }
  }
  progress = nullptr;
  if (!quiet) {
    print(bench.heading());
    print_rows(bench, rows);
    for (const Json& row : rows) print_profile(row);
    for (const Json& row : rows) print_tree(row);
  }
  document["generate"]["rows"] = rows;
}

}  // namespace touchstone::cli
