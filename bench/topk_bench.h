// The benchmark of softmax_topk and sample.
#pragma once

#include <string>
#include <vector>

#include "bench/session.h"
#include "bench/topk_data.h"
#include "cases/cases.h"

namespace touchstone::bench {

// InvalidArgument when the machine has not the memory for the case.
void check_topk_memory(const SessionOptions& session, Selection op, const cases::Case& item);

class TopkBench {
 public:
  // InvalidArgument when no implementation of one of `ops` has the name asked for.
  TopkBench(Session& session, const std::vector<Selection>& ops,
            Controls controls = Controls::usual);

  // "naive", "torch 2.11.0", ...
  std::vector<std::string> peers() const;

  // After check_topk_memory.
  BenchRow measure(Selection op, const cases::Case& item);

 private:
  bool enter(std::vector<Contender>& contenders, const std::string& name, BenchRow& row,
             const TopkProblem& problem, TopkData& data, const TopkCall& call);
  void enter_peers(std::vector<Contender>& contenders, BenchRow& row, const TopkProblem& problem,
                   TopkData& data);

  Session& session_;
  Controls controls_;
};

}  // namespace touchstone::bench
