#include "bench/norm_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "bench/cuda_tools.h"
#include "bench/machine.h"
#include "bench/naive_cpu.h"
#include "bench/onednn.h"
#include "bench/torch_peer.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kOurName[] = "touchstone";
constexpr char kCopyName[] = "copy";

// A CPU sample is made of as many calls as it takes to last this long.
constexpr double kSampleUs = 5000;
// One graph holds about this much work, and is replayed this often per sample.
constexpr double kGraphUs = 1000;
constexpr int kReplays = 3;
constexpr int kMostLaunches = 1024;
// Thread pools spin for a while before they sleep; the next contender starts on quiet cores.
constexpr auto kPause = std::chrono::milliseconds(10);

struct Contender {
  std::string name;
  std::function<double()> sample_us;
  std::vector<double> us;
};

// Source and target of the copy of the same size, one piece per set of operands.
struct CopyData {
  Tensor from;
  Tensor to;
  std::int64_t piece = 0;

  char* to_at(std::int64_t i) { return static_cast<char*>(to.data()) + i * piece; }
  const char* from_at(std::int64_t i) { return static_cast<const char*>(from.data()) + i * piece; }
};

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

double elapsed_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Times call(0), call(1), ... on the CPU, going on where the last sample stopped.
std::function<double()> cpu_timer(std::function<void(std::int64_t)> call, std::int64_t sets,
                                  cases::Regime regime) {
  for (std::int64_t i = 0; i < std::max<std::int64_t>(sets, 2); ++i) call(i);
  const auto start = Clock::now();
  call(0);
  const double once = std::max(elapsed_us(start), 0.01);
  const auto calls = static_cast<std::int64_t>(std::clamp(std::ceil(kSampleUs / once), 1.0, 1e6));
  return [call = std::move(call), calls, regime, next = std::int64_t{0}]() mutable {
    // In cache the data must be there and the threads awake; from memory one call is as cold as
    // the next.
    if (regime == cases::Regime::cache) call(next), call(next);
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) call(next++);
    return elapsed_us(begin) / static_cast<double>(calls);
  };
}

std::function<double()> cuda_timer(Context& context, const std::function<void(std::int64_t)>& call,
                                   int launches) {
  auto graph = std::make_shared<CudaGraph>(context, launches, [&](int i) { call(i); });
  return [graph] {
    graph->replay_us();
    std::array<double, kReplays> times{};
    for (double& time : times) time = graph->replay_us();
    return summarize(times).median;
  };
}

// A device that is not there is the context's to report, in its words.
void require(Device device) {
  ContextOptions probe;
  probe.device = device;
  probe.workspace_bytes = 0;
  const Context context(probe);
}

void run_rounds(std::vector<Contender>& contenders, int rounds, bool pause) {
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      Contender& contender = contenders[(i + static_cast<std::size_t>(round)) % contenders.size()];
      if (pause) std::this_thread::sleep_for(kPause);
      contender.us.push_back(contender.sample_us());
    }
  }
}

NormProblem problem_of(norm::Kind kind, Device device, const cases::Case& item) {
  NormProblem problem;
  problem.kind = kind;
  problem.dtype = item.dtype;
  problem.device = device;
  problem.rows = item.rows;
  problem.cols = item.cols;
  return problem;
}

std::int64_t cache_bytes(Device device) {
  if (!device.is_cuda()) return last_level_cache_bytes(cpu_info());
  return cuda_devices()[static_cast<std::size_t>(device.index)].l2_bytes;
}

int sets_for(const NormProblem& problem, cases::Regime regime) {
  if (regime == cases::Regime::cache) return 1;
  const int sets = sets_beyond_cache(problem, cache_bytes(problem.device));
  return problem.device.is_cuda() ? std::clamp(sets, 2, kMostLaunches) : sets;
}

void check_implementation(Context& context, const std::string& name) {
  if (name.empty()) return;
  context.set_implementation("");
  NormProblem problem;
  problem.device = context.device();
  problem.rows = 1;
  problem.cols = 1;
  NormData data = make_norm_data(context, problem, 1, false);
  std::string known;
  for (const ImplementationReport& report : touchstone_implementations(context, problem, data)) {
    if (report.name == name) return context.set_implementation(name);
    known += (known.empty() ? "" : ", ") + report.name;
  }
  throw InvalidArgument("bench: --impl: expected one of " + known + ", got '" + name + "'");
}

}  // namespace

void check_memory(const NormBenchOptions& options, const cases::Case& item) {
  const Device device = options.device;
  const NormProblem problem = problem_of(norm::Kind::layer, device, item);
  checked_mul(item.rows, item.cols, "bench: --rows times --cols");
  const std::int64_t ours =
      norm_data_bytes(problem, sets_for(problem, item.regime), options.backward);
  // Our operands, the buffers of the copy, and those of torch.
  const std::int64_t needed =
      checked_mul(ours, options.torch || options.torch_compile ? 3 : 2, "bench: bytes");
  const std::int64_t there =
      device.is_cuda() ? cuda_devices()[static_cast<std::size_t>(device.index)].memory_bytes
                       : available_memory_bytes();
  if (needed > there / 5 * 4) {
    throw InvalidArgument("bench: shape " + problem.shape() + ": needs " +
                          std::to_string(needed >> 20) + " MiB of memory, " +
                          std::to_string(there >> 20) + " MiB are available on " + name_of(device));
  }
}

struct NormBench::State {
  NormBenchOptions options;
  std::unique_ptr<CudaStream> stream;
  std::unique_ptr<Context> context;
  std::unique_ptr<TorchPeer> torch;
  Ceiling ceiling;
  CpuCopy stream_copy{};  // the fastest on large data
  CpuCopy plain_copy{};   // the fastest on small data

  bool cuda() const { return options.device.is_cuda(); }
  void note(const std::string& line) const { options.note(line); }

  void open_device() {
    ContextOptions wanted;
    wanted.device = options.device;
    wanted.threads = options.threads;
    if (cuda()) {
      require(options.device);
      stream = std::make_unique<CudaStream>(options.device.index);
      wanted.stream = stream->get();
    }
    context = std::make_unique<Context>(wanted);
    check_implementation(*context, options.implementation);
  }

  void open_peers() {
    if (cuda()) options.onednn = false;
    if (options.onednn && onednn_version().empty()) {
      options.onednn = false;
      note("onednn: not in this build");
    }
    if (!options.torch && !options.torch_compile) return;
    std::string why_not;
    torch = TorchPeer::start(options.python, context->threads(), why_not);
    if (torch == nullptr) note("torch: " + why_not);
  }

  void choose_copies() {
    const std::vector<CpuCopy> copies = cpu_copies();
    plain_copy = copies.back();
    stream_copy = copies.back();
    for (const CpuCopy& copy : copies) {
      if (copy.name == ceiling.copy_name) stream_copy = copy;
    }
  }

  int launches_for(const NormProblem& problem, int sets) const {
    const double once = static_cast<double>(problem.minimal_bytes()) / ceiling.copy_gbs * 1e-3;
    const auto wanted = static_cast<std::int64_t>(std::ceil(kGraphUs / std::max(once, 0.5)));
    return static_cast<int>(round_up(std::clamp<std::int64_t>(wanted, sets, kMostLaunches), sets));
  }

  CopyData make_copy_data(const NormProblem& problem, int sets) {
    CopyData copy;
    NormProblem largest = problem;
    largest.direction = options.backward ? Direction::backward : Direction::forward;
    copy.piece = round_up(ceil_div(largest.minimal_bytes(), 2), 4096);
    copy.from = random_tensor(*context, sets, copy.piece / 4);
    copy.to = random_tensor(*context, sets, copy.piece / 4);
    return copy;
  }

  std::function<double()> timer(const std::function<void(std::int64_t)>& call, int sets,
                                int launches, cases::Regime regime) const {
    if (cuda()) return cuda_timer(*context, call, launches);
    return cpu_timer(call, sets, regime);
  }

  // Checks `checked` and adds `call` as a contender when it is right.
  bool enter(std::vector<Contender>& contenders, const std::string& name, NormRow& row,
             NormData& data, const NormCall& call, const NormCall& checked, int launches) {
    const double error = norm_error(*context, row.problem, data, checked);
    if (name == kOurName) row.error = error;
    if (!(error <= norm_error_bound(row.problem.dtype))) {
      note(name + ": " + row.problem.op() + " " + row.problem.shape() + " " +
           std::string(name_of(row.problem.dtype)) + ": wrong result, error " +
           std::to_string(error) + "; left out");
      return false;
    }
    const auto rotate = [&data, call](std::int64_t i) {
      call(data.sets[static_cast<std::size_t>(i) % data.sets.size()]);
    };
    contenders.push_back({name, timer(rotate, row.sets, launches, row.regime), {}});
    return true;
  }

  void enter_copy(std::vector<Contender>& contenders, const NormRow& row, CopyData& copy,
                  int launches) {
    const std::int64_t bytes = round_up(ceil_div(row.problem.minimal_bytes(), 2), 16);
    const CpuCopy how = row.regime == cases::Regime::cache ? plain_copy : stream_copy;
    const auto call = [this, &copy, bytes, how, sets = row.sets](std::int64_t i) {
      if (cuda()) {
        cuda_copy(*context, copy.to_at(i % sets), copy.from_at(i % sets), bytes);
      } else {
        parallel_copy(*context, how, copy.to_at(i % sets), copy.from_at(i % sets), bytes);
      }
    };
    contenders.push_back({kCopyName, timer(call, row.sets, launches, row.regime), {}});
  }

  std::optional<int> enter_torch(std::vector<Contender>& contenders, const NormRow& row,
                                 int launches, bool compile) {
    const std::string name = compile ? "torch_compile" : "torch";
    try {
      const int slot = torch->prepare({.problem = row.problem,
                                       .sets = row.sets,
                                       .launches = launches,
                                       .sample_us = kSampleUs,
                                       .compile = compile});
      contenders.push_back({name, [this, slot] { return torch->run(slot); }, {}});
      return slot;
    } catch (const DeviceError& error) {
      note(std::string(error.what()) + " (" + row.problem.op() + " " + row.problem.shape() +
           "); left out");
      if (!torch->alive()) torch = nullptr;
      return std::nullopt;
    }
  }

  NormRow measure(const NormProblem& problem, cases::Regime regime, NormData& data, CopyData& copy);
  void finish(NormRow& row, const std::vector<Contender>& contenders) const;
};

NormRow NormBench::State::measure(const NormProblem& problem, cases::Regime regime, NormData& data,
                                  CopyData& copy) {
  NormRow row;
  row.problem = problem;
  row.regime = regime;
  row.sets = static_cast<int>(data.sets.size());
  row.implementation = touchstone_implementation(*context, problem, data);
  const int launches = launches_for(problem, row.sets);
  const NormCall ours = touchstone_call(*context, problem, data);
  std::vector<Contender> contenders;
  row.right = enter(contenders, kOurName, row, data, ours, ours, launches);
  if (!row.right) return row;
  enter_copy(contenders, row, copy, launches);
  if (options.naive) {
    const NormCall naive =
        cuda() ? naive_cuda_call(*context, problem, data) : naive_cpu_call(*context, problem, data);
    enter(contenders, "naive", row, data, naive, naive, launches);
  }
  if (options.onednn) {
    const std::optional<OneDnnCalls> calls = onednn_calls(*context, problem, data);
    if (calls) enter(contenders, "onednn", row, data, calls->call, calls->checked, launches);
  }
  std::vector<int> slots;
  for (const bool compile : {false, true}) {
    if (torch == nullptr || !(compile ? options.torch_compile : options.torch)) continue;
    const std::optional<int> slot = enter_torch(contenders, row, launches, compile);
    if (slot) slots.push_back(*slot);
  }
  run_rounds(contenders, options.rounds, !cuda());
  if (torch != nullptr) {
    for (const int slot : slots) torch->release(slot);
  }
  finish(row, contenders);
  return row;
}

void NormBench::State::finish(NormRow& row, const std::vector<Contender>& contenders) const {
  for (const Contender& contender : contenders) {
    const Summary summary = summarize(contender.us);
    if (contender.name == kOurName) {
      row.us = summary;
    } else if (contender.name == kCopyName) {
      row.copy_us = summary.median;
    } else {
      row.peers.push_back({contender.name, summary});
    }
  }
  const auto bytes = static_cast<double>(row.problem.minimal_bytes());
  row.copy_gbs = bytes / row.copy_us * 1e-3;
  if (row.regime == cases::Regime::memory) row.copy_gbs = std::max(row.copy_gbs, ceiling.copy_gbs);
  row.floor_us = bytes / row.copy_gbs * 1e-3;
  row.fraction = row.floor_us / row.us.median;
  row.triad_floor_us = bytes / ceiling.triad_gbs * 1e-3;
}

NormBench::NormBench(NormBenchOptions options) : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  state_->open_device();
  state_->ceiling = measure_ceiling(*state_->context, std::max(3, state_->options.rounds));
  state_->choose_copies();
  state_->open_peers();
}

NormBench::~NormBench() = default;

const Ceiling& NormBench::ceiling() const { return state_->ceiling; }

int NormBench::threads() const { return state_->context->threads(); }

std::vector<std::string> NormBench::peers() const {
  std::vector<std::string> names;
  if (state_->options.naive) names.emplace_back("naive");
  if (state_->options.onednn) names.push_back("onednn " + onednn_version() + " (layer norm)");
  if (state_->torch != nullptr) names.push_back("torch " + state_->torch->version());
  return names;
}

std::vector<NormRow> NormBench::measure(norm::Kind kind, const cases::Case& item) {
  State& state = *state_;
  NormProblem problem = problem_of(kind, state.options.device, item);
  check_memory(state.options, item);
  const int sets = sets_for(problem, item.regime);
  NormData data = make_norm_data(*state.context, problem, sets, state.options.backward);
  CopyData copy = state.make_copy_data(problem, sets);
  std::vector<NormRow> rows;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const bool forward = direction == Direction::forward;
    if (!(forward ? state.options.forward : state.options.backward)) continue;
    problem.direction = direction;
    rows.push_back(state.measure(problem, item.regime, data, copy));
  }
  return rows;
}

}  // namespace touchstone::bench
