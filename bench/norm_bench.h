// The benchmark of layer norm and RMS norm: for each case all contenders are checked, then timed
// in rounds. In every round each contender is timed once, and every round starts with another one,
// so that a machine that slows down or speeds up does so for all of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/ceiling.h"
#include "bench/norm_data.h"
#include "bench/statistics.h"
#include "cases/cases.h"

namespace touchstone::bench {

struct PeerTime {
  std::string name;
  Summary us;
};

struct NormRow {
  NormProblem problem;
  cases::Regime regime = cases::Regime::memory;
  std::string implementation;
  int sets = 0;        // of operands, rotated through
  Summary us;          // ours
  double copy_us = 0;  // a plain copy that moves the same number of bytes, timed in the same way
  // Memory: minimal bytes at copy_gbs, the better of the large copy of this run and the copy of
  // this case. Cache: copy_us, since the copy rate of the memory says nothing there.
  double copy_gbs = 0;
  double floor_us = 0;
  double fraction = 0;  // floor_us / us
  // Minimal bytes at the rate of two reads for one write, which some memories serve faster.
  double triad_floor_us = 0;
  double error = 0;    // against float64 on a sample, before timing
  bool right = false;  // whether that is below norm_error_bound
  std::vector<PeerTime> peers;
};

struct NormBenchOptions {
  Device device;
  int threads = 0;             // CPU; 0 = every core
  std::string implementation;  // "" = chosen by the operator
  int rounds = 7;
  bool forward = true;
  bool backward = true;
  // Peers. One that is not there is left out, with a note.
  bool naive = true;
  bool onednn = true;
  bool torch = true;
  bool torch_compile = false;
  std::string python = "python3";
  // Notes for the user, one line each.
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

// InvalidArgument when the machine has not the memory for the case. Allocates nothing: an absurd
// shape must end in a sentence, not in a killed process.
void check_memory(const NormBenchOptions& options, const cases::Case& item);

class NormBench {
 public:
  // Measures the ceiling and starts the peers. InvalidArgument when no implementation on the
  // device has the name asked for.
  explicit NormBench(NormBenchOptions options);
  ~NormBench();
  NormBench(const NormBench&) = delete;
  NormBench& operator=(const NormBench&) = delete;

  const Ceiling& ceiling() const;
  int threads() const;
  // "naive", "torch 2.11.0", ...
  std::vector<std::string> peers() const;

  // One row per direction, after check_memory.
  std::vector<NormRow> measure(norm::Kind kind, const cases::Case& item);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::bench
