// touchstone bench: the operators against the floor and against peers.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/append_bench.h"
#include "bench/attention_bench.h"
#include "bench/cache_bench.h"
#include "bench/fork_join.h"
#include "bench/machine.h"
#include "bench/norm_bench.h"
#include "bench/session.h"
#include "bench/topk_bench.h"
#include "cli/arguments.h"
#include "cli/bench_attention.h"
#include "cli/bench_report.h"
#include "cli/command_line.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/core/testing.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

struct BenchOptions {
  std::string op = "all";
  std::string device = "cpu";
  std::string tier = "smoke";
  std::string dtype;
  std::string direction = "both";
  bool backward = false;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 0;
  std::string controls = "usual";
  std::string regime = "memory";
  int threads = 0;
  std::string simd;
  std::string implementation;
  int rounds = 0;
  std::vector<std::string> peers = {"naive", "partial_sort", "onednn", "torch"};
  std::string python = "python3";
  bool json = false;
};

bool wants(const BenchOptions& options, std::string_view peer) {
  return std::ranges::find(options.peers, peer) != options.peers.end();
}

bench::SessionOptions session_options(const BenchOptions& options) {
  bench::SessionOptions result;
  result.device = parse_device(options.device);
  result.threads = options.threads;
  result.implementation = options.implementation;
  result.rounds = options.rounds > 0 ? options.rounds : options.tier == "full" ? 15 : 7;
  result.naive = wants(options, "naive");
  result.partial_sort = wants(options, "partial_sort");
  result.onednn = wants(options, "onednn");
  result.torch = wants(options, "torch");
  result.torch_compile = wants(options, "torch_compile");
  result.python = options.python;
  result.note = [](const std::string& note) { say(note); };
  return result;
}

bench::NormBenchOptions norm_options(const BenchOptions& options) {
  return {.forward = options.direction != "backward", .backward = options.direction != "forward"};
}

bool is_norm(const std::string& op) { return op == "layer_norm" || op == "rms_norm"; }
bool is_append(const std::string& op) { return op.starts_with("append_"); }

cases::Regime regime_of(const BenchOptions& options) {
  return options.regime == "cache" ? cases::Regime::cache : cases::Regime::memory;
}

std::vector<cases::Case> chosen_cases(const std::string& op, const BenchOptions& options) {
  const DeviceKind device = parse_device(options.device).kind;
  std::optional<DType> dtype;
  if (!options.dtype.empty()) dtype = parse_dtype(options.dtype);
  std::optional<std::int64_t> k;
  if (options.k > 0) k = options.k;
  if (options.rows == 0) {
    return cases::select(
        is_append(op) ? "append" : op,
        {.tier = cases::parse_tier(options.tier), .device = device, .dtype = dtype, .k = k});
  }
  cases::Case item;
  item.device = device;
  item.regime = regime_of(options);
  item.dtype = dtype.value_or(DType::f32);
  item.rows = options.rows;
  item.cols = options.cols;
  item.k = std::min(k.value_or(cases::kDefaultK), item.cols);
  return {item};
}

// What every figure needs beside it to be worth something.
Json header_json(const BenchOptions& options) {
  return {{"version", version()},
          {"machine", machine_name(parse_device(options.device))},
          {"simd", simd_target()},
          {"date", bench::utc_now()},
          {"command", command_line()}};
}

// One case of one operator.
struct Work {
  std::string op;
  cases::Case item;
};

bench::Selection selection_of(const std::string& op) {
  return op == "sample" ? bench::Selection::sample : bench::Selection::softmax_topk;
}

// A wrong shape or name is reported before anything is measured.
std::vector<Work> planned(const BenchOptions& options, const std::vector<std::string>& ops) {
  std::vector<Work> work;
  for (const std::string& op : ops) {
    for (const cases::Case& item : chosen_cases(op, options)) {
      if (is_norm(op)) {
        bench::check_norm_memory(session_options(options), norm_options(options), item);
      } else if (is_append(op)) {
        bench::check_append_memory(session_options(options), op, item);
      } else {
        bench::check_topk_memory(session_options(options), selection_of(op), item);
      }
      work.push_back({op, item});
    }
  }
  return work;
}

// The benchmarks of the operators asked for, on one session.
class Benches {
 public:
  Benches(bench::Session& session, const BenchOptions& options,
          const std::vector<std::string>& ops) {
    std::vector<bench::Selection> selections;
    for (const std::string& op : ops) {
      if (!is_norm(op) && !is_append(op)) selections.push_back(selection_of(op));
    }
    if (std::ranges::any_of(ops, is_norm)) norms_.emplace(session, norm_options(options));
    if (!selections.empty()) {
      selections_.emplace(session, selections, bench::parse_controls(options.controls));
    }
    if (std::ranges::any_of(ops, is_append)) appends_.emplace(session);
  }

  // Of all, each once, in the order in which they are measured.
  std::vector<std::string> peers() const {
    std::vector<std::string> names;
    const auto add = [&](const auto& bench) {
      if (!bench) return;
      for (const std::string& name : bench->peers()) {
        if (std::ranges::find(names, name) == names.end()) names.push_back(name);
      }
    };
    add(norms_);
    add(selections_);
    add(appends_);
    return names;
  }

  std::vector<bench::BenchRow> measure(const Work& work) {
    if (is_append(work.op)) return {appends_->measure(work.op, work.item)};
    if (!is_norm(work.op)) return {selections_->measure(selection_of(work.op), work.item)};
    return norms_->measure(work.op == "layer_norm" ? norm::Kind::layer : norm::Kind::rms,
                           work.item);
  }

 private:
  std::optional<bench::NormBench> norms_;
  std::optional<bench::TopkBench> selections_;
  std::optional<bench::AppendBench> appends_;
};

// False when a result was wrong.
bool bench_operators(const BenchOptions& options, const std::vector<std::string>& ops,
                     Json& document) {
  const std::vector<Work> work = planned(options, ops);
  auto progress = std::make_unique<Progress>();
  progress->show("measuring the copy rate");
  bench::Session session(session_options(options));
  Benches benches(session, options, ops);
  session.start();
  progress = nullptr;
  document["threads"] = session.context().threads();
  document["ceiling"] = ceiling_json(session.ceiling());
  document["copy_gbs"] = session.ceiling().copy_gbs;
  document["peer_versions"] = benches.peers();
  document["rows"] = Json::array();
  if (!options.json) {
    print_bench_header(session, benches.peers());
    print_headings();
  }
  bool right = true;
  for (std::size_t i = 0; i < work.size(); ++i) {
    const auto& [op, item] = work[i];
    progress = std::make_unique<Progress>();
    progress->show(fmt::format("[{}/{}] {} {} {}x{}", i + 1, work.size(), op, name_of(item.dtype),
                               item.rows, item.cols));
    const std::vector<bench::BenchRow> rows = benches.measure(work[i]);
    progress = nullptr;
    for (const bench::BenchRow& row : rows) {
      right = right && row.right;
      document["rows"].push_back(row_json(row));
      if (!options.json) print_row(row);
    }
  }
  return right;
}

// False when a result was wrong.
bool bench_attention(const BenchOptions& options, Json& document) {
  std::vector<bench::AttentionProblem> problems =
      bench::attention_problems(parse_device(options.device), cases::parse_tier(options.tier));
  if (options.rows > 0) {
    bench::set_shape(problems, options.rows, options.cols, regime_of(options));
  }
  for (const bench::AttentionProblem& problem : problems) {
    bench::check_attention_memory(session_options(options), problem);
  }
  auto progress = std::make_unique<Progress>();
  progress->show("measuring the copy rate");
  bench::Session session(session_options(options));
  bench::AttentionBench bench(session);
  session.start();
  progress = nullptr;
  document["threads"] = session.context().threads();
  document["ceiling"] = ceiling_json(session.ceiling());
  document["peer_versions"] = bench.peers();
  document["explanation"] = bench::AttentionBench::explanation();
  document["rows"] = Json::array();
  if (!options.json) {
    print_bench_header(session, bench.peers());
    print(bench::AttentionBench::explanation() + "\n\n");
    print_headings();
  }
  bool right = true;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    progress = std::make_unique<Progress>();
    progress->show(fmt::format("[{}/{}] decode_attention {} {}", i + 1, problems.size(),
                               problems[i].heads, problems[i].format));
    const bench::BenchRow row = bench.measure(problems[i]);
    progress = nullptr;
    right = right && row.right;
    document["rows"].push_back(row_json(row));
    if (!options.json) print_row(row);
  }
  return right;
}

void bench_fork_join(const BenchOptions& options, Json& document) {
  Progress progress;
  const int rounds = options.rounds > 0 ? options.rounds : 15;
  const std::vector<bench::ForkJoinRow> rows = bench::measure_fork_join(
      options.threads, rounds,
      [&](int threads) { progress.show(fmt::format("fork_join: {} threads", threads)); });
  Json list = Json::array();
  Table table({"runtime", ">threads", ">us", ">+-", ">best us"});
  for (const bench::ForkJoinRow& row : rows) {
    list.push_back({{"op", "fork_join"},
                    {"impl", row.runtime},
                    {"device", "cpu"},
                    {"threads", row.threads},
                    {"us", row.us.median},
                    {"best_us", row.us.best},
                    {"spread", row.us.spread}});
    table.add({row.runtime, std::to_string(row.threads), fmt::format("{:.2f}", row.us.median),
               fmt::format("{:.1f}%", 100 * row.us.spread), fmt::format("{:.2f}", row.us.best)});
  }
  document["fork_join"] = list;
  if (!options.json) {
    print("fork_join: one parallel loop of one empty task per thread\n" + table.text());
  }
}

// "52.3 M pages/s", "3.1 GB/s", or nothing where a time says it all.
std::string rate_string(const bench::CacheRow& row) {
  if (row.amount == 0) return "";
  const double per_second = row.amount / (row.us.median * 1e-6);
  if (row.amount_name == "bytes") return fmt::format("{:.2f} GB/s", per_second * 1e-9);
  return fmt::format("{:.1f} M {}/s", per_second * 1e-6, row.amount_name);
}

void bench_kv_cache(const BenchOptions& options, Json& document) {
  Progress progress;
  const int rounds = options.rounds > 0 ? options.rounds : 15;
  const std::vector<bench::CacheRow> rows = bench::measure_cache(rounds, [&](int round) {
    progress.show(fmt::format("kv_cache: round {} of {}", round + 1, rounds));
  });
  Json list = Json::array();
  Table table({"what", ">us", ">+-", ">best us", ">rate"});
  for (const bench::CacheRow& row : rows) {
    list.push_back({{"op", "kv_cache"},
                    {"impl", row.name},
                    {"device", "cpu"},
                    {"threads", 1},
                    {"what", row.what},
                    {"us", row.us.median},
                    {"best_us", row.us.best},
                    {"spread", row.us.spread}});
    if (row.amount > 0) {
      list.back()[row.amount_name + "_per_s"] = row.amount / (row.us.median * 1e-6);
    }
    table.add({row.what, fmt::format("{:.4g}", row.us.median),
               fmt::format("{:.1f}%", 100 * row.us.spread), fmt::format("{:.4g}", row.us.best),
               rate_string(row)});
  }
  document["kv_cache"] = list;
  if (!options.json) {
    print(fmt::format("{}, 1 thread; {}; {}\n{}", machine_name(Device::cpu()), bench::utc_now(),
                      command_line(), table.text()));
  }
}

void check(const BenchOptions& options) {
  if ((options.rows == 0) != (options.cols == 0)) {
    throw InvalidArgument("bench: --rows and --cols: expected both or neither");
  }
  if (options.backward && options.op != "attention") {
    throw InvalidArgument("bench: --backward: for attention; the norms have --direction");
  }
  if (options.op == "attention" && options.rows > 0) {
    throw InvalidArgument("bench: --rows and --cols: not for attention, which has its cases");
  }
  if (options.op == "kv_cache" && parse_device(options.device).is_cuda()) {
    throw InvalidArgument("bench: --device: expected cpu for kv_cache, got " + options.device);
  }
  if (options.op == "decode_attention" && !options.dtype.empty()) {
    throw InvalidArgument("bench: --dtype: not for decode_attention, whose cases have formats");
  }
  if (!options.dtype.empty()) {
    const DType dtype = parse_dtype(options.dtype);
    const bool is_float =
        dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
    if (!is_float) {
      throw InvalidArgument("bench: --dtype: expected f64, f32, bf16 or f16, got " + options.dtype);
    }
    const bool no_f64 =
        options.op == "softmax_topk" || options.op == "sample" || options.op == "append";
    if (dtype == DType::f64 && no_f64) {
      throw InvalidArgument("bench: --dtype: expected f32, bf16 or f16 for " + options.op +
                            ", got f64");
    }
  }
  for (const std::string& peer : options.peers) {
    constexpr std::string_view kKnown[] = {"none",   "naive", "partial_sort",
                                           "onednn", "torch", "torch_compile"};
    if (std::ranges::find(kKnown, peer) == std::end(kKnown)) {
      throw InvalidArgument(
          fmt::format("bench: --peers: expected naive, partial_sort, onednn, torch, torch_compile "
                      "or none, got '{}'",
                      peer));
    }
  }
}

// The operators that are measured case by case.
std::vector<std::string> operators_of(const BenchOptions& options) {
  if (options.op == "append") {
    std::vector<std::string> names;
    for (const bench::AppendFormat& format : bench::append_formats()) names.push_back(format.name);
    return names;
  }
  if (options.op == "all") {
    // Logits are never f64.
    if (options.dtype == "f64") return {"layer_norm", "rms_norm"};
    return {"layer_norm", "rms_norm", "softmax_topk", "sample"};
  }
  return {options.op};
}

int run_bench(const BenchOptions& options) {
  check(options);
  if (!options.simd.empty()) testing::set_simd_target(options.simd);
  // Asked for early, so that a device that is not there is the first thing said.
  ContextOptions wanted;
  wanted.device = parse_device(options.device);
  wanted.threads = 1;
  wanted.workspace_bytes = 0;
  const Context probe(wanted);
  Json document = header_json(options);
  bool right = true;
  if (options.op == "decode_attention") {
    right = bench_attention(options, document);
  } else if (options.op == "attention") {
    std::optional<DType> dtype;
    if (!options.dtype.empty()) dtype = parse_dtype(options.dtype);
    right = bench_dense_attention(
        session_options(options),
        bench::dense_attention_problems(parse_device(options.device),
                                        cases::parse_tier(options.tier), dtype),
        options.backward, options.json, document);
  } else if (options.op == "kv_cache") {
    bench_kv_cache(options, document);
  } else if (options.op == "fork_join") {
    bench_fork_join(options, document);
  } else {
    right = bench_operators(options, operators_of(options), document);
  }
  if (options.op == "all" && options.device == "cpu") {
    if (!options.json) print("\n");
    bench_fork_join(options, document);
  }
  if (options.json) print_json(document);
  return right ? kOk : kNo;
}

}  // namespace

void add_bench(Options& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  Options* verb = app.add_verb("bench", "Time the operators against the floor and peers");
  verb->add_option("op", options->op,
                   "layer_norm, rms_norm, softmax_topk, sample, fork_join or all of them (the "
                   "default); append, attention, decode_attention, kv_cache")
      ->one_of({"layer_norm", "rms_norm", "softmax_topk", "sample", "fork_join", "all", "append",
                "attention", "decode_attention", "kv_cache"});
  verb->add_option("--device", options->device, "cpu (the default), cuda or cuda:<number>");
  verb->add_option("--case", options->tier, "smoke (the default): seconds; full: minutes")
      ->one_of({"smoke", "full"});
  verb->add_option("--dtype", options->dtype, "Every shape in this dtype: f64, f32, bf16, f16");
  verb->add_option("--direction", options->direction,
                   "Of the norms: forward, backward or both (the default)")
      ->one_of({"forward", "backward", "both"});
  verb->add_flag("--backward", options->backward, "Of attention: the backward");
  verb->add_option("--rows", options->rows, "One shape instead of the list: its rows")
      ->check(whole_number(1));
  verb->add_option("--cols", options->cols, "... and its columns")->check(whole_number(1));
  verb->add_option("--k", options->k, "Every shape with this k: of softmax_topk, top_k of sample")
      ->check(whole_number(1));
  verb->add_option("--controls", options->controls,
                   "Of sample: usual (the default; top_k with top_p), top_p, wide_top_p, min_p, "
                   "greedy, none, penalties, probabilities")
      ->one_of(bench::controls_names());
  verb->add_option("--regime", options->regime,
                   "... with its data in memory (the default) or cache")
      ->one_of({"memory", "cache"});
  verb->add_option("--threads", options->threads, "CPU threads (every core by default)")
      ->check(whole_number(1, 4096));
  verb->add_option("--simd", options->simd, "SIMD target, as `touchstone info` lists them");
  verb->add_option("--impl", options->implementation, "Run this implementation of the operator");
  verb->add_option("--rounds", options->rounds, "Samples per contender (smoke 7, full 15)")
      ->check(whole_number(1, 1000000));
  verb->add_option("--peers", options->peers,
                   "naive,partial_sort,onednn,torch (the default), torch_compile, or none")
      ->split_at(',');
  verb->add_option("--python", options->python, "The Python that has PyTorch (python3)");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace touchstone::cli
