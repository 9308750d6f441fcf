// The benchmark of cached_attention: one decoding step over a KV cache.
#pragma once

#include <string>
#include <vector>

#include "bench/attention_data.h"
#include "bench/session.h"

namespace touchstone::bench {

// InvalidArgument when the machine has not the memory for the problem.
void check_attention_memory(const SessionOptions& session, const AttentionProblem& problem);

class AttentionBench {
 public:
  // InvalidArgument when no implementation has the name asked for.
  explicit AttentionBench(Session& session);

  // "naive", "contiguous", "torch 2.11.0"
  std::vector<std::string> peers() const;
  // What those are and what the floor is, in words.
  static std::string explanation();

  BenchRow measure(const AttentionProblem& problem);

 private:
  void enter_peers(std::vector<Contender>& contenders, const BenchRow& row,
                   const AttentionProblem& problem);

  Session& session_;
  std::vector<std::unique_ptr<AttentionData>> data_;  // of the contenders
};

}  // namespace touchstone::bench
