// touchstone info: what this machine and this build have; which implementation a call would run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "machine/cpu_info.h"
#include "spec/spec.h"
#include "touchstone/touchstone.h"

namespace touchstone::cli {
namespace {

struct InfoOptions {
  bool json = false;
  bool markdown = false;
  std::string op;
  std::int64_t rows = 4096;
  std::int64_t cols = 1024;
  std::int64_t k = 50;
  std::string dtype = "f32";
  std::string device = "cpu";
  std::string format = "bf16";
  bool backward = false;
};

std::vector<std::string> names(const std::vector<DType>& dtypes) {
  std::vector<std::string> result(dtypes.size());
  std::ranges::transform(dtypes, result.begin(), [](DType dtype) { return name_of(dtype); });
  return result;
}

// Addresses for views that are described and never followed: which implementation would run is a
// question of shapes, and must not cost the memory of the tensors. What the checks of an operator
// read is there.
class Addresses {
 public:
  Addresses(Context& context, const std::vector<spec::Operand>& list) {
    std::vector<spec::Operand> controls = list;
    for (spec::Operand& operand : controls) {
      if (!operand.control) operand = {};
    }
    controls_.emplace(context, controls, 1);
    for (std::size_t i = 0; i < list.size(); ++i) {
      views_.push_back(list[i].control || !list[i].defined() ? controls_->views()[i]
                                                             : take(list[i], context.device()));
    }
  }
  spec::Views views() const { return views_; }

 private:
  TensorView take(const spec::Operand& operand, Device device) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const TensorView view =
        make_view(reinterpret_cast<void*>(next_), std::span<const std::int64_t>(operand.shape),
                  operand.dtype, device);
    next_ += (static_cast<std::uintptr_t>(operand.bytes()) + 511) / 256 * 256;
    return view;
  }

  std::uintptr_t next_ = 1 << 20;
  std::optional<spec::Operands> controls_;
  std::vector<TensorView> views_;
};

const spec::Operator& operator_of(const InfoOptions& options) {
  const spec::Operator* op = spec::find(options.op);
  if (options.backward && !op->is_backward()) op = spec::find(options.op + "_backward");
  if (op == nullptr) {
    throw InvalidArgument("info: --backward: expected an operator that has one, got " + options.op);
  }
  return *op;
}

int show_choice(const InfoOptions& options) {
  const Device device = parse_device(options.device);
  const spec::Operator& op = operator_of(options);
  cases::Case item;
  item.device = device.kind;
  item.dtype = parse_dtype(options.dtype);
  item.options = {{"k", std::to_string(options.k)}, {"format", options.format}};
  item = op.of_rows(options.rows, options.cols, item);
  if (op.name == "sample") item.options.erase("k");
  // Nothing runs, so one thread and no scratch memory will do.
  ContextOptions wanted;
  wanted.device = device;
  wanted.threads = 1;
  wanted.workspace_bytes = 0;
  Context context(wanted);
  const std::unique_ptr<spec::Problem> problem = op.make(item);
  const Addresses addresses(context, problem->operands());
  const std::vector<ImplementationReport> list = problem->explain(context, addresses.views());
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
    print_json({{"op", op.name},
                {"device", name_of(device)},
                {"dtype", options.dtype},
                {"shape", {options.rows, options.cols}},
                {"implementations", rows}});
    return chosen.empty() ? kNo : kOk;
  }
  const spec::Labels labels = problem->labels();
  const std::string call = (labels.heads.empty() ? item.shape : labels.heads) + " " +
                           (labels.format.empty() ? options.dtype : labels.format);
  print(fmt::format("{} {} on {}, in order of preference:\n", op.name, call, name_of(device)));
  Table table({"implementation", "answer", "why"});
  for (const ImplementationReport& report : list) {
    const bool runs = report.name == chosen;
    table.add({report.name,
               runs              ? "runs"
               : report.accepted ? "could"
                                 : "refuses",
               report.refusal},
              runs ? Color::good : Color::plain);
  }
  print(table.text());
  return chosen.empty() ? kNo : kOk;
}

Json machine_json() {
  const machine::CpuInfo cpu = machine::cpu_info();
  Json caches = Json::array();
  for (const machine::CpuCache& cache : cpu.caches) {
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
  for (const spec::Operator& op : spec::all()) {
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

std::string cache_line(const std::vector<machine::CpuCache>& caches) {
  std::string line;
  for (const machine::CpuCache& cache : caches) {
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
  const machine::CpuInfo cpu = machine::cpu_info();
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
  for (const spec::Operator& op : spec::all()) {
    table.add({op.name, fmt::format("{}", fmt::join(names(op.cpu), " ")),
               built_with_cuda() ? fmt::format("{}", fmt::join(names(op.cuda), " ")) : "-"});
  }
  print("\n" + table.text());
  return kOk;
}

}  // namespace

void add_info(Options& app, int& exit_code) {
  auto options = std::make_shared<InfoOptions>();
  Options* verb =
      app.add_verb("info", "Show this machine, this build, and which kernels would run");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->add_flag("--markdown", options->markdown, "Print the table of operators of the README");
  std::vector<std::string> operators;
  for (const spec::Operator& op : spec::all()) operators.push_back(op.name);
  const Option* op =
      verb->add_option("--op", options->op, "Show which implementation of an operator would run")
          ->one_of(operators);
  verb->add_option("--rows", options->rows, "Rows of the call; tokens of attention")
      ->check(whole_number(1))
      ->needs(op);
  verb->add_option("--cols", options->cols, "Columns of the call; of attention the size of a head")
      ->check(whole_number(1))
      ->needs(op);
  verb->add_option("--k", options->k, "Tokens per row of softmax_topk")
      ->check(whole_number(1))
      ->needs(op);
  verb->add_option("--format", options->format,
                   "How a cache stores keys and values: f32 bf16 f16 int8 int4 fp8 k8v4")
      ->needs(op);
  verb->add_option("--dtype", options->dtype, "Dtype of the call: f64, f32, bf16, f16")->needs(op);
  verb->add_option("--device", options->device, "cpu, cuda or cuda:<number>")->needs(op);
  verb->add_flag("--backward", options->backward, "The backward of the operator")->needs(op);
  verb->callback([options, &exit_code] {
    if (options->markdown) {
      if (options->json || !options->op.empty()) {
        throw InvalidArgument("info: --markdown: expected no --json or --op beside it");
      }
      return print(spec::support_table());
    }
    exit_code = options->op.empty() ? show_machine(*options) : show_choice(*options);
  });
}

}  // namespace touchstone::cli
