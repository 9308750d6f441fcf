// touchstone bench: the operators against the floor and against peers.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/fork_join.h"
#include "bench/machine.h"
#include "bench/norm_bench.h"
#include "cli/arguments.h"
#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

struct BenchOptions {
  std::string op = "all";
  std::string device = "cpu";
  std::string tier = "smoke";
  std::string dtype;
  std::string direction = "both";
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::string regime = "memory";
  int threads = 0;
  std::string simd;
  std::string implementation;
  int rounds = 0;
  std::vector<std::string> peers = {"naive", "onednn", "torch"};
  std::string python = "python3";
  bool json = false;
};

struct Column {
  const char* heading;
  int width;  // negative: to the left
};

// Printed row by row while the measurement goes on, so the widths are fixed beforehand.
constexpr Column kColumns[] = {{"op", -19},     {"dtype", -5},   {"shape", -12}, {"data in", -7},
                               {"impl", -8},    {"us", 10},      {"+-", 6},      {"floor us", 10},
                               {"fraction", 8}, {"copy us", 10}, {"GB/s", 7}};

std::string line(const std::vector<std::string>& cells) {
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const int width = i < std::size(kColumns) ? kColumns[i].width : 13;
    text += i == 0 ? "" : "  ";
    text += width < 0 ? fmt::format("{:<{}}", cells[i], -width)
                      : fmt::format("{:>{}}", cells[i], width);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::string microseconds(double us) {
  return us < 100 ? fmt::format("{:.2f}", us) : fmt::format("{:.1f}", us);
}

bool wants(const BenchOptions& options, std::string_view peer) {
  return std::ranges::find(options.peers, peer) != options.peers.end();
}

bench::NormBenchOptions norm_options(const BenchOptions& options) {
  bench::NormBenchOptions result;
  result.device = parse_device(options.device);
  result.threads = options.threads;
  result.implementation = options.implementation;
  result.rounds = options.rounds > 0 ? options.rounds : options.tier == "full" ? 15 : 7;
  result.forward = options.direction != "backward";
  result.backward = options.direction != "forward";
  result.naive = wants(options, "naive");
  result.onednn = wants(options, "onednn");
  result.torch = wants(options, "torch");
  result.torch_compile = wants(options, "torch_compile");
  result.python = options.python;
  result.note = [](const std::string& note) { say(note); };
  return result;
}

std::vector<cases::Case> chosen_cases(const std::string& op, const BenchOptions& options) {
  const DeviceKind device = parse_device(options.device).kind;
  std::optional<DType> dtype;
  if (!options.dtype.empty()) dtype = parse_dtype(options.dtype);
  if (options.rows == 0) {
    return cases::select(
        op, {.tier = cases::parse_tier(options.tier), .device = device, .dtype = dtype});
  }
  cases::Case item;
  item.device = device;
  item.regime = options.regime == "cache" ? cases::Regime::cache : cases::Regime::memory;
  item.dtype = dtype.value_or(DType::f32);
  item.rows = options.rows;
  item.cols = options.cols;
  return {item};
}

Json row_json(const bench::NormRow& row) {
  Json peers = Json::array();
  for (const bench::PeerTime& peer : row.peers) {
    peers.push_back({{"name", peer.name}, {"us", peer.us.median}, {"spread", peer.us.spread}});
  }
  const bench::NormProblem& problem = row.problem;
  return {{"op", problem.op()},
          {"impl", row.implementation},
          {"device", name_of(problem.device)},
          {"dtype", name_of(problem.dtype)},
          {"shape", {problem.rows, problem.cols}},
          {"regime", cases::name_of(row.regime)},
          {"sets", row.sets},
          {"us", row.us.median},
          {"best_us", row.us.best},
          {"spread", row.us.spread},
          {"bytes", problem.minimal_bytes()},
          {"floor_us", row.floor_us},
          {"fraction", row.fraction},
          {"triad_floor_us", row.triad_floor_us},
          {"copy_gbs", row.copy_gbs},
          {"copy_same_size_us", row.copy_us},
          {"error", row.error},
          {"correct", row.right},
          {"peers", peers}};
}

std::vector<std::string> row_cells(const bench::NormRow& row) {
  const bench::NormProblem& problem = row.problem;
  std::vector<std::string> cells = {problem.op(), std::string(name_of(problem.dtype)),
                                    problem.shape(), std::string(cases::name_of(row.regime)),
                                    row.implementation};
  if (!row.right) {
    cells.push_back(fmt::format("WRONG, error {:.1e}", row.error));
    return cells;
  }
  const double rate = static_cast<double>(problem.minimal_bytes()) / row.us.median * 1e-3;
  for (const std::string& cell :
       {microseconds(row.us.median), fmt::format("{:.1f}%", 100 * row.us.spread),
        microseconds(row.floor_us), fmt::format("{:.2f}", row.fraction), microseconds(row.copy_us),
        fmt::format("{:.1f}", rate)}) {
    cells.push_back(cell);
  }
  for (const bench::PeerTime& peer : row.peers) {
    cells.push_back(fmt::format("{} {:.2f}x", peer.name, peer.us.median / row.us.median));
  }
  return cells;
}

Json ceiling_json(const bench::Ceiling& ceiling) {
  return {{"copy", ceiling.copy_name},
          {"copy_gbs", ceiling.copy_gbs},
          {"copy_best_gbs", ceiling.copy_best_gbs},
          {"triad_gbs", ceiling.triad_gbs},
          {"buffer_bytes", ceiling.buffer_bytes}};
}

std::string machine_name(Device device) {
  if (device.is_cuda()) return cuda_devices()[static_cast<std::size_t>(device.index)].name;
  const bench::CpuInfo cpu = bench::cpu_info();
  return fmt::format("{}, {} usable cores", cpu.model, cpu.usable_cores);
}

// What every figure needs beside it to be worth something.
Json header_json(const BenchOptions& options) {
  return {{"version", version()},
          {"machine", machine_name(parse_device(options.device))},
          {"simd", simd_target()},
          {"date", bench::utc_now()},
          {"command", command_line()}};
}

void print_norm_header(const bench::NormBench& bench, const BenchOptions& options) {
  const bench::Ceiling& ceiling = bench.ceiling();
  const Device device = parse_device(options.device);
  print(fmt::format(
      "{}{}; {}; {}\n", machine_name(device),
      device.is_cuda() ? "" : fmt::format(", {} threads, {}", bench.threads(), simd_target()),
      bench::utc_now(), command_line()));
  print(
      fmt::format("copy {:.1f} GB/s ({}, best round {:.1f}), 2 reads : 1 write {:.1f} GB/s, "
                  "buffers of {}\n",
                  ceiling.copy_gbs, ceiling.copy_name, ceiling.copy_best_gbs, ceiling.triad_gbs,
                  bytes_string(ceiling.buffer_bytes)));
  const std::vector<std::string> peers = bench.peers();
  print(fmt::format("peers: {}; \"naive 2.00x\" = it takes twice our time\n\n",
                    peers.empty() ? "none" : fmt::format("{}", fmt::join(peers, ", "))));
}

void print_headings() {
  std::vector<std::string> headings;
  for (const Column& column : kColumns) headings.emplace_back(column.heading);
  print(toned(line(headings), Tone::dim) + "\n");
}

// False when a result was wrong.
bool bench_norms(const BenchOptions& options, const std::vector<std::string>& ops, Json& document) {
  // A wrong shape or name is reported before anything is measured.
  std::vector<std::pair<std::string, cases::Case>> work;
  for (const std::string& op : ops) {
    for (const cases::Case& item : chosen_cases(op, options)) {
      bench::check_memory(norm_options(options), item);
      work.emplace_back(op, item);
    }
  }
  auto progress = std::make_unique<Progress>();
  progress->show("measuring the copy rate");
  bench::NormBench bench(norm_options(options));
  progress = nullptr;
  document["threads"] = bench.threads();
  document["ceiling"] = ceiling_json(bench.ceiling());
  document["copy_gbs"] = bench.ceiling().copy_gbs;
  document["peer_versions"] = bench.peers();
  document["rows"] = Json::array();
  if (!options.json) {
    print_norm_header(bench, options);
    print_headings();
  }
  bool right = true;
  for (std::size_t i = 0; i < work.size(); ++i) {
    const auto& [op, item] = work[i];
    progress = std::make_unique<Progress>();
    progress->show(fmt::format("[{}/{}] {} {} {}x{}", i + 1, work.size(), op, name_of(item.dtype),
                               item.rows, item.cols));
    const auto kind = op == "layer_norm" ? norm::Kind::layer : norm::Kind::rms;
    const std::vector<bench::NormRow> rows = bench.measure(kind, item);
    progress = nullptr;
    for (const bench::NormRow& row : rows) {
      right = right && row.right;
      document["rows"].push_back(row_json(row));
      if (!options.json) {
        print(toned(line(row_cells(row)), row.right ? Tone::plain : Tone::bad) + "\n");
      }
    }
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

void check(const BenchOptions& options) {
  if ((options.rows == 0) != (options.cols == 0)) {
    throw InvalidArgument("bench: --rows and --cols: expected both or neither");
  }
  if (!options.dtype.empty()) {
    const DType dtype = parse_dtype(options.dtype);
    const bool is_float =
        dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
    if (!is_float) {
      throw InvalidArgument("bench: --dtype: expected f64, f32, bf16 or f16, got " + options.dtype);
    }
  }
  for (const std::string& peer : options.peers) {
    const bool known = peer == "none" || peer == "naive" || peer == "onednn" || peer == "torch" ||
                       peer == "torch_compile";
    if (!known) {
      throw InvalidArgument(
          fmt::format("bench: --peers: expected naive, onednn, torch, torch_compile or none, "
                      "got '{}'",
                      peer));
    }
  }
}

int run_bench(const BenchOptions& options) {
  check(options);
  if (!options.simd.empty()) set_simd_target(options.simd);
  // Asked for early, so that a device that is not there is the first thing said.
  ContextOptions wanted;
  wanted.device = parse_device(options.device);
  wanted.threads = 1;
  wanted.workspace_bytes = 0;
  const Context probe(wanted);
  Json document = header_json(options);
  std::vector<std::string> norms;
  if (options.op == "all") norms = {"layer_norm", "rms_norm"};
  if (options.op == "layer_norm" || options.op == "rms_norm") norms = {options.op};
  bool right = true;
  if (!norms.empty()) right = bench_norms(options, norms, document);
  const bool fork_join =
      options.op == "fork_join" || (options.op == "all" && options.device == "cpu");
  if (fork_join) {
    if (!options.json && !norms.empty()) print("\n");
    bench_fork_join(options, document);
  }
  if (options.json) print_json(document);
  return right ? kOk : kNo;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* verb = app.add_subcommand("bench", "Time the operators against the floor and peers");
  verb->add_option("op", options->op, "layer_norm, rms_norm, fork_join or all (the default)")
      ->check(CLI::IsMember({"layer_norm", "rms_norm", "fork_join", "all"}));
  verb->add_option("--device", options->device, "cpu (the default), cuda or cuda:<number>");
  verb->add_option("--case", options->tier, "smoke (the default): seconds; full: minutes")
      ->check(CLI::IsMember({"smoke", "full"}));
  verb->add_option("--dtype", options->dtype, "Every shape in this dtype: f64, f32, bf16, f16");
  verb->add_option("--direction", options->direction, "forward, backward or both (the default)")
      ->check(CLI::IsMember({"forward", "backward", "both"}));
  verb->add_option("--rows", options->rows, "One shape instead of the list: its rows")
      ->check(whole_number(1));
  verb->add_option("--cols", options->cols, "... and its columns")->check(whole_number(1));
  verb->add_option("--regime", options->regime,
                   "... with its data in memory (the default) or cache")
      ->check(CLI::IsMember({"memory", "cache"}));
  verb->add_option("--threads", options->threads, "CPU threads (every core by default)")
      ->check(whole_number(1, 4096));
  verb->add_option("--simd", options->simd, "SIMD target, as `touchstone info` lists them");
  verb->add_option("--impl", options->implementation, "Run this implementation of the operator");
  verb->add_option("--rounds", options->rounds, "Samples per contender (smoke 7, full 15)")
      ->check(whole_number(1, 1000000));
  verb->add_option("--peers", options->peers,
                   "naive,onednn,torch (the default), torch_compile, or none")
      ->delimiter(',')
      ->allow_extra_args(false);
  verb->add_option("--python", options->python, "The Python that has PyTorch (python3)");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace touchstone::cli
