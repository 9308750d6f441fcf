// touchstone bench: the operators against the floor and against peers.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cache_bench.h"
#include "bench/fork_join.h"
#include "bench/onednn.h"
#include "bench/operator_bench.h"
#include "bench/peers.h"
#include "bench/session.h"
#include "cli/arguments.h"
#include "cli/bench_report.h"
#include "cli/command_line.h"
#include "cli/decoding/bench_generate.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "machine/cpu_info.h"
#include "machine/fma_rate.h"
#include "spec/sample_controls.h"
#include "spec/spec.h"
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
  BenchGenerateOptions generate;
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
  result.note = [](const std::string& note) { log(note); };
  return result;
}

// What every figure needs beside it to be worth something.
Json header_json(const BenchOptions& options) {
  return {{"version", version()},
          {"machine", machine_name(parse_device(options.device))},
          {"simd", simd_target()},
          {"date", machine::utc_now()},
          {"command", command_line()}};
}

// The operators to measure: one with its backward, or all. Attention's backward is selected by a
// flag, that of the norms by a direction.
std::vector<const spec::Operator*> operators_of(const BenchOptions& options) {
  std::vector<const spec::Operator*> result;
  for (const spec::Operator& op : spec::all()) {
    if (options.op != "all" && op.forward_name() != options.op && op.name != options.op) continue;
    const bool only_this = op.name == options.op && op.is_backward();
    const bool attention = op.forward_name() == "attention" && options.op != "all";
    const bool forward = attention ? !options.backward : options.direction != "backward";
    const bool backward = attention ? options.backward : options.direction != "forward";
    if (!only_this && !(op.is_backward() ? backward : forward)) continue;
    if (!options.dtype.empty() &&
        !op.supports(parse_device(options.device), parse_dtype(options.dtype))) {
      continue;
    }
    result.push_back(&op);
  }
  return result;
}

std::vector<cases::Case> chosen_cases(const spec::Operator& op, const BenchOptions& options) {
  cases::Selection selection{.tier = cases::parse_tier(options.tier),
                             .device = parse_device(options.device).kind};
  if (!options.dtype.empty() && op.name != "cached_attention") {
    selection.dtype = parse_dtype(options.dtype);
  }
  if (op.has_option("controls") && options.controls != "usual") {
    selection.options["controls"] = options.controls;
  }
  std::vector<cases::Case> items = spec::select(op, selection);
  if (options.rows > 0) {
    // The shape once, with the formats and heads of the list.
    for (cases::Case& item : items) {
      item = op.of_rows(options.rows, options.cols, item);
      item.regime = options.regime == "cache" ? cases::Regime::cache : cases::Regime::memory;
      item.tier = cases::Tier::smoke;
      if (options.dtype.empty() && !op.has_option("format")) item.dtype = DType::f32;
      item.options.erase("k");
    }
    std::vector<cases::Case> once;
    for (const cases::Case& item : items) {
      if (std::ranges::find(once, item) == once.end()) once.push_back(item);
    }
    items = once;
  }
  if (options.k > 0 && op.has_option("k")) {
    std::vector<cases::Case> once;
    for (cases::Case& item : items) {
      item.options["k"] = std::to_string(std::min(options.k, item.dims("x")[1]));
      if (std::ranges::find(once, item) == once.end()) once.push_back(item);
    }
    items = once;
  }
  return items;
}

// One case of one operator.
struct Work {
  const spec::Operator* op;
  cases::Case item;
};

// Case by case where a list has a forward and a backward. A wrong shape or name is reported before
// anything is measured.
std::vector<Work> planned(const BenchOptions& options,
                          const std::vector<const spec::Operator*>& ops) {
  std::vector<Work> work;
  for (const spec::Operator* op : ops) {
    const bool follows = !work.empty() && work.back().op->list == op->list;
    std::vector<cases::Case> items = chosen_cases(*op, options);
    for (const cases::Case& item : items) {
      try {
        bench::check_case_memory(session_options(options), *op, item);
      } catch (const InvalidArgument& error) {
        const std::string what = error.what();
        throw InvalidArgument(what.starts_with("bench: ") ? what : "bench: " + what);
      }
    }
    if (!follows) {
      for (const cases::Case& item : items) work.push_back({op, item});
      continue;
    }
    for (const cases::Case& item : items) {
      const auto found = std::ranges::find_if(work, [&](const Work& other) {
        return other.op->list == op->list && other.op != op && other.item == item;
      });
      work.insert(found == work.end() ? work.end() : std::next(found), {op, item});
    }
  }
  return work;
}

// False when a result was wrong.
bool bench_operators(const BenchOptions& options, Json& document) {
  const std::vector<const spec::Operator*> ops = operators_of(options);
  const std::vector<Work> work = planned(options, ops);
  auto progress = std::make_unique<Progress>();
  progress->show("measuring the copy rate");
  bench::Session session(session_options(options));
  for (const spec::Operator* op : ops) {
    const std::vector<cases::Case> items = chosen_cases(*op, options);
    if (!items.empty()) {
      bench::check_implementation(session.context(), *op, items.front(), options.implementation);
    }
  }
  session.start();
  const bool norms = std::ranges::any_of(
      ops, [](const spec::Operator* op) { return op->forward_name() == "layer_norm"; });
  if (norms && session.options().onednn && !session.cuda() && bench::onednn_version().empty()) {
    session.note("onednn: not in this build");
  }
  std::vector<std::string> peers;
  std::string explanation;
  bool flops = false;
  for (const spec::Operator* op : ops) {
    for (const std::string& name : bench::peer_names(session, *op)) {
      if (std::ranges::find(peers, name) == peers.end()) peers.push_back(name);
    }
    const std::string line = bench::peer_explanation(*op);
    if (explanation.find(line) == std::string::npos) explanation += line + "\n";
    flops = flops || op->forward_name() == "attention";
  }
  const double fma_gflops =
      flops && !session.cuda() ? machine::measure_fma_gflops(session.context()) : 0;
  progress = nullptr;
  document["threads"] = session.context().threads();
  document["ceiling"] = ceiling_json(session.ceiling());
  document["copy_gbs"] = session.ceiling().copy_gbs;
  if (flops) document["fma_gflops"] = fma_gflops;
  document["peer_versions"] = peers;
  if (!explanation.empty()) document["explanation"] = explanation;
  document["rows"] = Json::array();
  BenchTable table(fma_gflops);
  if (!options.json) print_bench_header(session, peers, explanation, fma_gflops);
  bool right = true;
  for (std::size_t i = 0; i < work.size(); ++i) {
    progress = std::make_unique<Progress>();
    progress->show(fmt::format("[{}/{}] {} {}", i + 1, work.size(), work[i].op->name,
                               work[i].item.describe()));
    const bench::BenchRow row = bench::measure(session, *work[i].op, work[i].item);
    progress = nullptr;
    right = right && row.right;
    document["rows"].push_back(row_json(row, fma_gflops));
    if (!options.json) table.print_row(row);
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
    print(fmt::format("{}, 1 thread; {}; {}\n{}", machine_name(Device::cpu()), machine::utc_now(),
                      command_line(), table.text()));
  }
}

void check(const BenchOptions& options) {
  if ((options.rows == 0) != (options.cols == 0)) {
    throw InvalidArgument("bench: --rows and --cols: expected both or neither");
  }
  const spec::Operator* const op = spec::find(options.op);
  const bool attention = op != nullptr && op->forward_name() == "attention";
  if (options.backward && !attention) {
    throw InvalidArgument("bench: --backward: for attention; the norms have --direction");
  }
  if (attention && options.rows > 0) {
    throw InvalidArgument("bench: --rows and --cols: not for attention, which has its cases");
  }
  if (options.op == "kv_cache" && parse_device(options.device).is_cuda()) {
    throw InvalidArgument("bench: --device: expected cpu for kv_cache, got " + options.device);
  }
  if (options.op == "cached_attention" && !options.dtype.empty()) {
    throw InvalidArgument("bench: --dtype: not for cached_attention, whose cases have formats");
  }
  if (!options.dtype.empty()) {
    const DType dtype = parse_dtype(options.dtype);
    const std::vector<DType>& known = spec::find(op == nullptr ? "layer_norm" : options.op)->cpu;
    if (std::ranges::find(known, dtype) == known.end()) {
      std::string names;
      for (const DType one : known)
        names += (names.empty() ? "" : ", ") + std::string(name_of(one));
      throw InvalidArgument("bench: --dtype: expected one of " + names + " for " + options.op +
                            ", got " + options.dtype);
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

int run_bench(const BenchOptions& options) {
  check(options);
  if (!options.simd.empty()) testing::set_simd_target(options.simd);
  // A device that is not there is the first thing to be reported.
  ContextOptions wanted;
  wanted.device = parse_device(options.device);
  wanted.threads = 1;
  wanted.workspace_bytes = 0;
  const Context probe(wanted);
  Json document = header_json(options);
  const bool all = options.op == "all";
  bool right = true;
  if (options.op == "generate") {
    bench_generate(options.generate, options.device, options.threads, options.rounds, options.json,
                   document);
    if (options.json) print_json(document);
    return kOk;
  }
  if (options.op != "kv_cache" && options.op != "fork_join") {
    right = bench_operators(options, document);
  }
  if (options.op == "kv_cache" || (all && !wanted.device.is_cuda())) {
    if (all && !options.json) print("\n");
    bench_kv_cache(options, document);
  }
  if (options.op == "fork_join" || (all && !wanted.device.is_cuda())) {
    if (all && !options.json) print("\n");
    bench_fork_join(options, document);
  }
  if (options.json) print_json(document);
  return right ? kOk : kNo;
}

std::vector<std::string> bench_names() {
  std::vector<std::string> names;
  for (const spec::Operator& op : spec::all()) names.push_back(op.name);
  names.insert(names.end(), {"kv_cache", "fork_join", "generate", "all"});
  return names;
}

}  // namespace

void add_bench(Options& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  Options* verb = app.add_verb("bench", "Time the operators against the floor and peers");
  verb->add_option("op", options->op,
                   "An operator as `touchstone info` lists them, kv_cache (its bookkeeping), "
                   "fork_join, or all of them (the default); generate: a model")
      ->one_of(bench_names());
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
      ->one_of(spec::controls_names());
  verb->add_option("--regime", options->regime,
                   "... with its data in memory (the default) or cache")
      ->one_of({"memory", "cache"});
  verb->add_option("--threads", options->threads, "CPU threads (every core by default)")
      ->check(whole_number(1, 4096));
  verb->add_option("--simd", options->simd, "SIMD target, as `touchstone info` lists them");
  verb->add_option("--impl", options->implementation, "Force this implementation of the operator");
  verb->add_option("--rounds", options->rounds, "Samples per contender (smoke 7, full 15)")
      ->check(whole_number(1, 1000000));
  verb->add_option("--peers", options->peers,
                   "naive,partial_sort,onednn,torch (the default), torch_compile, or none")
      ->split_at(',');
  verb->add_option("--python", options->python, "The Python that has PyTorch (python3)");
  add_bench_generate_options(*verb, options->generate);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace touchstone::cli
