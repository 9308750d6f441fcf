// touchstone info: what this machine and this build have; which implementation a call would run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/attention_data.h"
#include "bench/machine.h"
#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/cache/planner.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

struct InfoOptions {
  bool json = false;
  std::string op;
  std::int64_t rows = 4096;
  std::int64_t cols = 1024;
  std::int64_t k = 50;
  std::string dtype = "f32";
  std::string device = "cpu";
  std::string format = "bf16";
  bool backward = false;
};

struct Operator {
  const char* name;
  std::vector<DType> cpu;
  std::vector<DType> cuda;
};

const std::vector<Operator>& operators() {
  static const std::vector<DType> kCpu = {DType::f64, DType::f32, DType::bf16, DType::f16};
  static const std::vector<DType> kCuda = {DType::f32, DType::bf16, DType::f16};
  static const std::vector<Operator> kAll = {
      {"layer_norm", kCpu, kCuda},       {"layer_norm_backward", kCpu, kCuda},
      {"rms_norm", kCpu, kCuda},         {"rms_norm_backward", kCpu, kCuda},
      {"softmax_topk", kCuda, kCuda},    {"sample", kCuda, kCuda},
      {"attention", kCpu, kCuda},        {"attention_backward", kCpu, kCuda},
      {"cached_attention", kCuda, kCuda}};
  return kAll;
}

std::vector<std::string> names(const std::vector<DType>& dtypes) {
  std::vector<std::string> result(dtypes.size());
  std::ranges::transform(dtypes, result.begin(), [](DType dtype) { return name_of(dtype); });
  return result;
}

// Addresses for views that are described and never followed: which implementation would run is a
// question of shapes, and must not cost the memory of the tensors.
class Addresses {
 public:
  explicit Addresses(Device device) : device_(device) {}

  TensorView take(std::initializer_list<std::int64_t> shape, DType dtype) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    TensorView view = make_view(reinterpret_cast<void*>(next_), std::span(shape), dtype, device_);
    const auto bytes = static_cast<std::uintptr_t>(view.elements() * size_of(dtype));
    next_ += (bytes + 511) / 256 * 256;
    return view;
  }

 private:
  Device device_;
  std::uintptr_t next_ = 1 << 20;
};

std::vector<ImplementationReport> selection_reports(Context& context, const InfoOptions& options) {
  if (options.backward) {
    throw InvalidArgument("info: --backward: expected an operator that has one, got " + options.op);
  }
  Addresses addresses(context.device());
  const auto per_row = [&](DType dtype) { return addresses.take({options.rows}, dtype); };
  const TensorView logits =
      addresses.take({options.rows, options.cols}, parse_dtype(options.dtype));
  if (options.op == "softmax_topk") {
    SoftmaxTopkArgs args;
    args.logits = logits;
    args.probabilities = addresses.take({options.rows, options.k}, DType::f32);
    args.indices = addresses.take({options.rows, options.k}, DType::i32);
    return explain(context, args);
  }
  SampleArgs args;
  args.logits = logits;
  args.top_k = per_row(DType::i32), args.top_p = per_row(DType::f32);
  args.seed = per_row(DType::i64), args.position = per_row(DType::i64);
  args.token = per_row(DType::i32), args.log_probability = per_row(DType::f32);
  return explain(context, args);
}

// Of 32 query heads on 8 KV heads of 128, of which the answer depends; of sequences and tokens it
// does not.
std::vector<ImplementationReport> attention_reports(Context& context, const InfoOptions& options) {
  if (options.backward) {
    throw InvalidArgument("info: --backward: expected an operator that has one, got " + options.op);
  }
  bench::AttentionProblem problem =
      bench::attention_problems(context.device(), cases::Tier::smoke).front();
  const cache::CacheFormat formats = cache::parse_cache_format(options.format);
  problem.layers.k = formats.k;
  problem.layers.v = formats.v;
  problem.batch = problem.tokens = 1;
  const bench::AttentionData data(problem, 16, 1, 1);
  return explain(context, data.args());
}

// 8 heads; rows are tokens, columns the size of a head.
std::vector<ImplementationReport> dense_attention_reports(Context& context,
                                                          const InfoOptions& options) {
  const DType dtype = parse_dtype(options.dtype);
  Addresses addresses(context.device());
  const auto heads = [&] { return addresses.take({1, options.rows, 8, options.cols}, dtype); };
  const TensorView sums =
      addresses.take({1, options.rows, 8}, dtype == DType::f64 ? DType::f64 : DType::f32);
  if (!options.backward) {
    AttentionArgs args;
    args.q = heads(), args.k = heads(), args.v = heads(), args.output = heads();
    args.log_sum_exp = sums;
    return explain(context, args);
  }
  AttentionBackwardArgs args;
  args.doutput = heads(), args.q = heads(), args.k = heads(), args.v = heads();
  args.output = heads(), args.log_sum_exp = sums;
  args.dq = heads(), args.dk = heads(), args.dv = heads();
  return explain(context, args);
}

std::vector<ImplementationReport> reports(Context& context, const InfoOptions& options) {
  if (options.op == "cached_attention") return attention_reports(context, options);
  if (options.op == "attention") return dense_attention_reports(context, options);
  const DType dtype = parse_dtype(options.dtype);
  const DType statistics = dtype == DType::f64 ? DType::f64 : DType::f32;
  Addresses addresses(context.device());
  const auto matrix = [&] { return addresses.take({options.rows, options.cols}, dtype); };
  const auto column = [&] { return addresses.take({options.rows}, statistics); };
  const auto vector = [&] { return addresses.take({options.cols}, dtype); };
  if (options.op == "layer_norm" && !options.backward) {
    LayerNormArgs args;
    args.x = matrix(), args.y = matrix(), args.weight = vector(), args.bias = vector();
    args.mean = column(), args.rstd = column();
    return explain(context, args);
  }
  if (options.op == "layer_norm") {
    LayerNormBackwardArgs args;
    args.dy = matrix(), args.x = matrix(), args.dx = matrix(), args.weight = vector();
    args.mean = column(), args.rstd = column(), args.dweight = vector(), args.dbias = vector();
    return explain(context, args);
  }
  if (options.op == "softmax_topk" || options.op == "sample")
    return selection_reports(context, options);
  if (!options.backward) {
    RmsNormArgs args;
    args.x = matrix(), args.y = matrix(), args.weight = vector(), args.rstd = column();
    return explain(context, args);
  }
  RmsNormBackwardArgs args;
  args.dy = matrix(), args.x = matrix(), args.dx = matrix(), args.weight = vector();
  args.rstd = column(), args.dweight = vector();
  return explain(context, args);
}

int show_choice(const InfoOptions& options) {
  const Device device = parse_device(options.device);
  parse_dtype(options.dtype);
  // Nothing runs, so one thread and no scratch memory will do.
  ContextOptions wanted;
  wanted.device = device;
  wanted.threads = 1;
  wanted.workspace_bytes = 0;
  Context context(wanted);
  const std::vector<ImplementationReport> list = reports(context, options);
  const std::string op = options.op + (options.backward ? "_backward" : "");
  std::string chosen;
  for (const ImplementationReport& report : list) {
    if (report.accepted && chosen.empty()) chosen = report.name;
  }
  if (options.json) {
    Json rows = Json::array();
    for (const ImplementationReport& report : list) {
      rows.push_back({{"name", report.name},
                      {"accepted", report.accepted},
                      {"refusal", report.refusal},
                      {"chosen", report.name == chosen}});
    }
    print_json({{"op", op},
                {"device", name_of(device)},
                {"dtype", options.dtype},
                {"shape", {options.rows, options.cols}},
                {"implementations", rows}});
    return chosen.empty() ? kNo : kOk;
  }
  const std::string call = options.op == "cached_attention"
                               ? fmt::format("32/8x128 {}", options.format)
                               : fmt::format("{}x{} {}", options.rows, options.cols, options.dtype);
  print(fmt::format("{} {} on {}, in order of preference:\n", op, call, name_of(device)));
  Table table({"implementation", "answer", "why"});
  for (const ImplementationReport& report : list) {
    const bool runs = report.name == chosen;
    table.add({report.name,
               runs              ? "runs"
               : report.accepted ? "could"
                                 : "refuses",
               report.refusal},
              runs ? Tone::good : Tone::plain);
  }
  print(table.text());
  return chosen.empty() ? kNo : kOk;
}

Json machine_json() {
  const bench::CpuInfo cpu = bench::cpu_info();
  Json caches = Json::array();
  for (const bench::CpuCache& cache : cpu.caches) {
    caches.push_back({{"level", cache.level},
                      {"type", cache.type},
                      {"bytes", cache.bytes},
                      {"count", cache.count}});
  }
  Json gpus = Json::array();
  for (const CudaDeviceInfo& gpu : cuda_devices()) {
    gpus.push_back(
        {{"name", gpu.name},
         {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
         {"multiprocessors", gpu.multiprocessors},
         {"memory_bytes", gpu.memory_bytes},
         {"l2_bytes", gpu.l2_bytes}});
  }
  Json ops = Json::array();
  for (const Operator& op : operators()) {
    Json dtypes = {{"cpu", names(op.cpu)}};
    if (built_with_cuda()) dtypes["cuda"] = names(op.cuda);
    ops.push_back({{"name", op.name}, {"dtypes", dtypes}});
  }
  return {{"version", version()},
          {"cpu", {{"model", cpu.model}, {"usable_cores", cpu.usable_cores}, {"caches", caches}}},
          {"simd", {{"targets", simd_targets()}, {"chosen", simd_target()}}},
          {"cuda", {{"built", built_with_cuda()}, {"devices", gpus}}},
          {"operators", ops}};
}

std::string cache_line(const std::vector<bench::CpuCache>& caches) {
  std::string line;
  for (const bench::CpuCache& cache : caches) {
    if (cache.type == "instruction") continue;
    if (!line.empty()) line += ", ";
    line += fmt::format("L{} {}", cache.level, bytes_string(cache.bytes));
    if (cache.count > 1) line += fmt::format(" x {}", cache.count);
  }
  return line.empty() ? "not known" : line;
}

int show_machine(const InfoOptions& options) {
  if (options.json) {
    print_json(machine_json());
    return kOk;
  }
  const bench::CpuInfo cpu = bench::cpu_info();
  const auto line = [](std::string_view name, std::string_view value) {
    print(fmt::format("{:<10} {}\n", name, value));
  };
  line("version", version());
  line("cpu", fmt::format("{}, {} usable core{}", cpu.model.empty() ? "not known" : cpu.model,
                          cpu.usable_cores, cpu.usable_cores == 1 ? "" : "s"));
  line("caches", cache_line(cpu.caches));
  line("simd", fmt::format("{} (available: {})", simd_target(), fmt::join(simd_targets(), ", ")));
  const std::vector<CudaDeviceInfo> gpus = cuda_devices();
  if (gpus.empty()) {
    line("cuda", built_with_cuda() ? "built in; no GPU found" : "not built in");
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    line(fmt::format("cuda:{}", i),
         fmt::format("{}, compute capability {}.{}, {} multiprocessors, {} memory, {} L2",
                     gpus[i].name, gpus[i].compute_major, gpus[i].compute_minor,
                     gpus[i].multiprocessors, bytes_string(gpus[i].memory_bytes),
                     bytes_string(gpus[i].l2_bytes)));
  }
  Table table({"operator", "cpu", "cuda"});
  for (const Operator& op : operators()) {
    table.add({op.name, fmt::format("{}", fmt::join(names(op.cpu), " ")),
               built_with_cuda() ? fmt::format("{}", fmt::join(names(op.cuda), " ")) : "-"});
  }
  print("\n" + table.text());
  return kOk;
}

}  // namespace

void add_info(Options& app, int& exit_code) {
  auto options = std::make_shared<InfoOptions>();
  Options* verb = app.add_verb("info", "This machine, this build, and what would run");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->add_option("--op", options->op, "Show which implementation of an operator would run")
      ->one_of(
          {"layer_norm", "rms_norm", "softmax_topk", "sample", "attention", "cached_attention"});
  verb->add_option("--rows", options->rows, "Rows of the call; tokens of attention")
      ->check(whole_number(0));
  verb->add_option("--cols", options->cols, "Columns of the call; of attention the size of a head")
      ->check(whole_number(0));
  verb->add_option("--k", options->k, "Tokens per row of softmax_topk")->check(whole_number(1));
  verb->add_option("--format", options->format,
                   "How cached_attention finds keys and values stored: f32 bf16 f16 int8 int4 fp8 "
                   "k8v4");
  verb->add_option("--dtype", options->dtype, "Dtype of the call: f64, f32, bf16, f16");
  verb->add_option("--device", options->device, "cpu, cuda or cuda:<number>");
  verb->add_flag("--backward", options->backward, "The backward of the operator");
  verb->callback([options, &exit_code] {
    exit_code = options->op.empty() ? show_machine(*options) : show_choice(*options);
  });
}

}  // namespace touchstone::cli
