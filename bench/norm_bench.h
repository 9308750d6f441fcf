// The benchmark of layer norm and RMS norm.
#pragma once

#include <string>
#include <vector>

#include "bench/norm_data.h"
#include "bench/session.h"
#include "cases/cases.h"

namespace touchstone::bench {

struct NormBenchOptions {
  bool forward = true;
  bool backward = true;
};

// InvalidArgument when the machine has not the memory for the case.
void check_norm_memory(const SessionOptions& session, const NormBenchOptions& options,
                       const cases::Case& item);

class NormBench {
 public:
  // InvalidArgument when no implementation on the device has the name asked for.
  NormBench(Session& session, NormBenchOptions options);

  // "naive", "torch 2.11.0", ...
  std::vector<std::string> peers() const;

  // One row per direction, after check_norm_memory.
  std::vector<BenchRow> measure(norm::Kind kind, const cases::Case& item);

 private:
  BenchRow measure(const NormProblem& problem, cases::Regime regime, NormData& data);
  bool enter(std::vector<Contender>& contenders, const std::string& name, BenchRow& row,
             const NormProblem& problem, NormData& data, const NormCall& call,
             const NormCall& checked);

  Session& session_;
  NormBenchOptions options_;
  bool onednn_ = false;
};

}  // namespace touchstone::bench
