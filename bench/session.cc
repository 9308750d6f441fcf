#include "bench/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <thread>

#include "machine/cpu_info.h"
#include "machine/stopwatch.h"
#include "spec/operand.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {
namespace {

constexpr char kCopyName[] = "copy";
constexpr char kReadName[] = "read";

// A CPU sample is made of as many calls as it takes to last this long.
constexpr double kSampleUs = 5000;
// One graph holds about this much work, and is replayed this often per sample.
constexpr double kGraphUs = 1000;
constexpr int kReplays = 3;
constexpr int kMaxLaunches = 1024;
// Thread pools spin for a while before they sleep; the next contender starts on quiet cores.
constexpr auto kPause = std::chrono::milliseconds(10);

std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

std::int64_t cache_bytes(Device device) {
  if (!device.is_cuda()) return machine::last_level_cache_bytes(machine::cpu_info());
  return cuda_devices()[static_cast<std::size_t>(device.index)].l2_bytes;
}

// [rows, cols] of f32 noise on the context's device.
Tensor random_tensor(Context& context, std::int64_t rows, std::int64_t cols) {
  Tensor tensor = Tensor::empty({rows, cols}, DType::f32, context.device());
  spec::fill_random(context, tensor, 0.0F, 1.0F, 3);
  context.synchronize();
  return tensor;
}

// Times call(0), call(1), ... on the CPU, going on where the last sample stopped.
std::function<double()> cpu_timer(std::function<void(std::int64_t)> call, std::int64_t sets,
                                  cases::Regime regime) {
  for (std::int64_t i = 0; i < std::max<std::int64_t>(sets, 2); ++i) call(i);
  const machine::Stopwatch first;
  call(0);
  const double once = std::max(first.microseconds(), 0.01);
  const auto calls = static_cast<std::int64_t>(std::clamp(std::ceil(kSampleUs / once), 1.0, 1e6));
  return [call = std::move(call), calls, regime, next = std::int64_t{0}]() mutable {
    // In cache the data must be there and the threads awake; from memory one call is as cold as
    // the next.
    if (regime == cases::Regime::cache) call(next), call(next);
    const machine::Stopwatch watch;
    for (std::int64_t i = 0; i < calls; ++i) call(next++);
    return watch.microseconds() / static_cast<double>(calls);
  };
}

std::function<double()> cuda_timer(Context& context, const std::function<void(std::int64_t)>& call,
                                   int launches) {
  auto graph = std::make_shared<CudaGraph>(context, launches, [&](int i) { call(i); });
  return [graph] {
    graph->replay_us();
    std::array<double, kReplays> times{};
    for (double& time : times) time = graph->replay_us();
    return machine::summarize(times).median;
  };
}

// A device that is not there is the context's to report, in its words.
void require(Device device) {
  ContextOptions probe;
  probe.device = device;
  probe.workspace_bytes = 0;
  const Context context(probe);
}

}  // namespace

std::string BenchRow::shape() const { return std::to_string(rows) + "x" + std::to_string(cols); }

std::string BenchRow::describe() const {
  if (!heads.empty()) return op + " " + heads + " " + format + " " + shape();
  return op + " " + shape() + " " + std::string(name_of(dtype)) +
         (format.empty() ? "" : " " + format) + (k > 0 ? " k " + std::to_string(k) : "");
}

void check_memory(const SessionOptions& options, const std::string& shape, std::int64_t bytes) {
  const Device device = options.device;
  const std::int64_t needed =
      checked_mul(bytes, options.torch || options.torch_compile ? 3 : 2, "bench: bytes");
  const std::int64_t there =
      device.is_cuda() ? cuda_devices()[static_cast<std::size_t>(device.index)].memory_bytes
                       : machine::available_memory_bytes();
  if (needed > there / 5 * 4) {
    throw InvalidArgument("bench: shape " + shape + ": needs " + std::to_string(needed >> 20) +
                          " MiB of memory, " + std::to_string(there >> 20) +
                          " MiB are available on " + name_of(device));
  }
}

int sets_for(Device device, cases::Regime regime, std::int64_t set_bytes) {
  if (regime == cases::Regime::cache) return 1;
  const std::int64_t beyond =
      ceil_div(4 * cache_bytes(device), std::max<std::int64_t>(set_bytes, 1));
  const int sets = static_cast<int>(std::clamp<std::int64_t>(beyond, 1, 1 << 12));
  return device.is_cuda() ? std::clamp(sets, 2, kMaxLaunches) : sets;
}

// Source and target of the copy of the same size, one piece per set of operands.
struct Session::CopyData {
  Tensor from;
  Tensor to;
  std::int64_t piece = 0;
  std::int64_t sets = 0;

  char* to_at(std::int64_t i) { return static_cast<char*>(to.data()) + i % sets * piece; }
  const char* from_at(std::int64_t i) const {
    return static_cast<const char*>(from.data()) + i % sets * piece;
  }
};

Session::Session(SessionOptions options) : options_(std::move(options)) {
  ContextOptions wanted;
  wanted.device = options_.device;
  wanted.threads = options_.threads;
  if (cuda()) {
    require(options_.device);
    stream_ = std::make_unique<CudaStream>(options_.device.index);
    wanted.stream = stream_->get();
  }
  context_ = std::make_unique<Context>(wanted);
}

void Session::start() {
  const int rounds = std::max(3, options_.rounds);
  ceiling_ = options_.device.is_cuda() ? measure_cuda_ceiling(*context_, rounds)
                                       : machine::measure_cpu_ceiling(*context_, rounds);
  const std::vector<machine::CpuCopy> copies = machine::cpu_copies();
  plain_copy_ = copies.back();
  stream_copy_ = copies.back();
  for (const machine::CpuCopy& copy : copies) {
    if (copy.name == ceiling_.copy_name) stream_copy_ = copy;
  }
  if (!options_.torch && !options_.torch_compile) return;
  std::string why_not;
  torch_ = TorchPeer::start(options_.python, context_->threads(), why_not);
  if (torch_ == nullptr) note("torch: " + why_not);
}

Session::~Session() = default;

std::string Session::torch_version() const {
  return torch_ == nullptr ? std::string() : torch_->version();
}

int Session::launches_for(std::int64_t bytes, int sets) const {
  const double once = static_cast<double>(bytes) / ceiling_.copy_gbs * 1e-3;
  const auto wanted = static_cast<std::int64_t>(std::ceil(kGraphUs / std::max(once, 0.5)));
  return static_cast<int>(round_up(std::clamp<std::int64_t>(wanted, sets, kMaxLaunches), sets));
}

std::function<double()> Session::timer(const std::function<void(std::int64_t)>& call,
                                       const BenchRow& row) {
  if (cuda()) return cuda_timer(*context_, call, launches_for(row.bytes, row.sets));
  return cpu_timer(call, row.sets, row.regime);
}

void Session::enter(std::vector<Contender>& contenders, const std::string& name,
                    const BenchRow& row, const std::function<void(std::int64_t)>& call) {
  contenders.push_back({.name = name, .sample_us = timer(call, row)});
}

void Session::enter_copy(std::vector<Contender>& contenders, const BenchRow& row) {
  const std::int64_t bytes = round_up(ceil_div(row.bytes, 2), 16);
  copy_ = std::make_unique<CopyData>();
  copy_->sets = row.sets;
  copy_->piece = round_up(bytes, 4096);
  copy_->from = random_tensor(*context_, row.sets, copy_->piece / 4);
  copy_->to = random_tensor(*context_, row.sets, copy_->piece / 4);
  const machine::CpuCopy how = row.regime == cases::Regime::cache ? plain_copy_ : stream_copy_;
  enter(contenders, kCopyName, row, [this, bytes, how](std::int64_t i) {
    if (cuda()) {
      cuda_copy(*context_, copy_->to_at(i), copy_->from_at(i), bytes);
    } else {
      machine::parallel_copy(*context_, how, copy_->to_at(i), copy_->from_at(i), bytes);
    }
  });
}

void Session::enter_read(std::vector<Contender>& contenders, const BenchRow& row) {
  const std::int64_t half = round_up(ceil_div(row.bytes, 2), 16);
  enter(contenders, kReadName, row, [this, half](std::int64_t i) {
    machine::parallel_read(*context_, copy_->from_at(i), half);
    machine::parallel_read(*context_, copy_->to_at(i), half);
  });
}

void Session::prepare_torch(std::vector<Contender>& contenders, const BenchRow& row,
                            const std::string& operation, const std::string& variant,
                            const std::string& name, bool compile) {
  if (torch_ == nullptr) return;
  try {
    const int slot = torch_->prepare({.operation = operation,
                                      .variant = variant,
                                      .dtype = row.dtype,
                                      .device = row.device,
                                      .rows = row.rows,
                                      .cols = row.cols,
                                      .k = row.k,
                                      .sets = row.sets,
                                      .launches = launches_for(row.bytes, row.sets),
                                      .sample_us = kSampleUs,
                                      .compile = compile});
    contenders.push_back({.name = name,
                          .sample_us = [this, slot] { return torch_->run(slot); },
                          .torch_slot = slot});
  } catch (const DeviceError& error) {
    note(name + ": " + error.what() + " (" + row.describe() + "); left out");
    if (torch_->alive()) return;
    torch_ = nullptr;
    std::erase_if(contenders, [](const Contender& c) { return c.torch_slot >= 0; });
  }
}

void Session::enter_torch(std::vector<Contender>& contenders, const BenchRow& row,
                          const std::string& operation, const std::string& variant,
                          const std::string& name) {
  if (options_.torch) prepare_torch(contenders, row, operation, variant, name, false);
}

void Session::enter_torch_compile(std::vector<Contender>& contenders, const BenchRow& row,
                                  const std::string& operation, const std::string& variant) {
  if (!options_.torch_compile) return;
  prepare_torch(contenders, row, operation, variant, "torch_compile", true);
}

void Session::run_rounds(std::vector<Contender>& contenders) const {
  for (int round = 0; round < options_.rounds; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      Contender& contender = contenders[(i + static_cast<std::size_t>(round)) % contenders.size()];
      if (!cuda()) std::this_thread::sleep_for(kPause);
      contender.us.push_back(contender.sample_us());
    }
  }
}

void Session::measure(BenchRow& row, std::vector<Contender>& contenders, const std::string& ours) {
  enter_copy(contenders, row);
  // Virtual cores move: the rate of reads at the start of a run may be twice that of a minute later.
  const bool reads = row.only_reads && row.regime == cases::Regime::memory;
  if (reads && !cuda()) enter_read(contenders, row);
  run_rounds(contenders);
  for (const Contender& contender : contenders) {
    if (contender.torch_slot >= 0 && torch_ != nullptr) torch_->release(contender.torch_slot);
  }
  finish(row, contenders, ours);
  contenders.clear();
  copy_ = nullptr;
}

void Session::finish(BenchRow& row, const std::vector<Contender>& contenders,
                     const std::string& ours) const {
  for (const Contender& contender : contenders) {
    const machine::Summary summary = machine::summarize(contender.us);
    if (contender.name == ours) {
      row.us = summary;
    } else if (contender.name == kCopyName) {
      row.copy_us = summary.median;
    } else if (contender.name == kReadName) {
      row.read_floor_us = summary.median;
    } else {
      row.peers.push_back({contender.name, summary});
    }
  }
  const auto bytes = static_cast<double>(row.bytes);
  row.copy_gbs = bytes / row.copy_us * 1e-3;
  if (row.regime == cases::Regime::memory) {
    row.copy_gbs = std::max(row.copy_gbs, ceiling_.copy_gbs);
  }
  row.triad_floor_us = bytes / ceiling_.triad_gbs * 1e-3;
  if (row.read_floor_us == 0) row.read_floor_us = bytes / ceiling_.read_gbs * 1e-3;
  const bool reads = row.only_reads && row.regime == cases::Regime::memory;
  row.floor_us = reads ? row.read_floor_us : bytes / row.copy_gbs * 1e-3;
  row.fraction = row.floor_us / row.us.median;
}

}  // namespace touchstone::bench
