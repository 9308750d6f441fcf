// One run of the benchmarks: a device, its ceiling, the PyTorch process, and how times are taken.
// For each case all contenders are checked, then timed in rounds. In every round each contender is
// timed once, and every round starts with another one, so that a machine that slows down or speeds
// up does so for all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/cuda_tools.h"
#include "bench/torch_peer.h"
#include "cases/cases.h"
#include "machine/memory_rate.h"
#include "machine/statistics.h"

namespace touchstone::bench {

struct PeerTime {
  std::string name;
  machine::Summary us;
};

// One line of a report.
struct BenchRow {
  std::string op;
  DType dtype = DType::f32;
  Device device;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 0;  // 0: the operator has none
  // How K and V are stored, or the mask of dense attention; and which heads there are, "32/8x128".
  // Empty for other operators.
  std::string format{};
  std::string heads{};
  cases::Regime regime = cases::Regime::memory;
  std::int64_t bytes = 0;   // the least that has to move
  double flops = 0;         // 0: bytes are what counts
  bool only_reads = false;  // the floor is at the rate of reads, not of the copy
  std::string implementation;
  int sets = 0;         // of operands, rotated through
  machine::Summary us;  // ours
  double copy_us = 0;   // a plain copy that moves the same number of bytes, timed in the same way
  // Memory: where only reads happen, a read of as many bytes, timed in the same way (on CUDA `bytes`
  // at the read rate of this run); else at copy_gbs, the better of the large copy of this run and
  // the copy of this case. Cache: copy_us, since the rates of the memory say nothing there.
  double copy_gbs = 0;
  double floor_us = 0;
  double fraction = 0;  // floor_us / us
  // `bytes` at the rate of two reads for one write, and of reads alone: some memories serve these
  // faster than a copy. That of reads is what was timed beside the case where floor_us is it.
  double triad_floor_us = 0;
  double read_floor_us = 0;
  double error = 0;    // against float64 on a sample, before timing
  bool right = false;  // whether that is within the bound
  std::vector<PeerTime> peers;

  std::string shape() const;     // "8192x4096"
  std::string describe() const;  // "layer_norm 8192x4096 bf16"
};

struct SessionOptions {
  Device device;
  int threads = 0;             // CPU; 0 = every core
  std::string implementation;  // "" = chosen by the operator
  int rounds = 7;
  // Peers. One that is not there is left out, with a note.
  bool naive = true;
  bool partial_sort = true;
  bool onednn = true;
  bool torch = true;
  bool torch_compile = false;
  std::string python = "python3";
  // Notes for the user, one line each.
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

// InvalidArgument when the machine has not the memory for `bytes` of operands, the same again for
// the copy and, where it takes part, for torch. Allocates nothing: an absurd shape must end in a
// sentence, not in a killed process.
void check_memory(const SessionOptions& options, const std::string& shape, std::int64_t bytes);

// How many sets of operands calls rotate through, so that no call finds its data in a cache
// because the one before left it there.
int sets_for(Device device, cases::Regime regime, std::int64_t set_bytes);

struct Contender {
  std::string name;
  std::function<double()> sample_us;
  int torch_slot = -1;
  std::vector<double> us{};
};

class Session {
 public:
  explicit Session(SessionOptions options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Measures the ceiling and starts the torch peer.
  void start();

  const SessionOptions& options() const { return options_; }
  Context& context() { return *context_; }
  const Context& context() const { return *context_; }
  const machine::Ceiling& ceiling() const { return ceiling_; }
  bool cuda() const { return options_.device.is_cuda(); }
  void note(const std::string& line) const { options_.note(line); }
  // "2.11.0", or "" when torch is not there.
  std::string torch_version() const;

  // How often a graph launches what moves `bytes`.
  int launches_for(std::int64_t bytes, int sets) const;

  // Adds call(0), call(1), .. as a contender.
  void enter(std::vector<Contender>& contenders, const std::string& name, const BenchRow& row,
             const std::function<void(std::int64_t)>& call);
  // Operators of torch, natively and compiled, where the options select them, under this name.
  void enter_torch(std::vector<Contender>& contenders, const BenchRow& row,
                   const std::string& operation, const std::string& variant,
                   const std::string& name);
  void enter_torch_compile(std::vector<Contender>& contenders, const BenchRow& row,
                           const std::string& operation, const std::string& variant);

  // Times all contenders, a copy among them, and fills in the row. `ours` is the name of ours.
  void measure(BenchRow& row, std::vector<Contender>& contenders, const std::string& ours);

 private:
  struct CopyData;
  std::function<double()> timer(const std::function<void(std::int64_t)>& call, const BenchRow& row);
  void enter_copy(std::vector<Contender>& contenders, const BenchRow& row);
  // After enter_copy, of whose two buffers it reads.
  void enter_read(std::vector<Contender>& contenders, const BenchRow& row);
  void prepare_torch(std::vector<Contender>& contenders, const BenchRow& row,
                     const std::string& operation, const std::string& variant,
                     const std::string& name, bool compile);
  void run_rounds(std::vector<Contender>& contenders) const;
  void finish(BenchRow& row, const std::vector<Contender>& contenders,
              const std::string& ours) const;

  SessionOptions options_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<TorchPeer> torch_;
  machine::Ceiling ceiling_;
  machine::CpuCopy stream_copy_{};  // the fastest on large data
  machine::CpuCopy plain_copy_{};   // the fastest on small data
  std::unique_ptr<CopyData> copy_;
};

}  // namespace touchstone::bench
