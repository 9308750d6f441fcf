// The cases that speed is measured on, with their right answers.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "judge/task/case_store.h"

namespace touchstone::judge {

// A process is asked each case only once, so it never meets content that it saw. The next process of
// the same contender may be asked it again: nothing outlives a process, and the right answers need
// not be computed again.
class TimedCase {
 public:
  explicit TimedCase(CaseSpec spec) : spec_(std::move(spec)) {}

  const CaseSpec& spec() const { return spec_; }
  const Case& asked() const { return stored_->asked(); }
  // Whether it is right, and why not. An answer that was found right before is right again, bit for bit.
  CaseCheck check(std::vector<Reply>&& replies);

 private:
  friend class TimedCases;
  CaseSpec spec_;
  std::shared_ptr<const StoredCase> stored_;  // null until it is built
  std::vector<int> asked_in_;                 // by contender, the life in which it was asked last
  std::mutex mutex_;
  std::vector<std::vector<Reply>> right_;
};

class TimedCases {
 public:
  explicit TimedCases(const Task& task) : store_(task, 0) {}

  // One of the shape that none of these contenders was asked in its present life, or a new one where
  // there is none or `fresh` wants it. By contender: `lives`.
  std::shared_ptr<TimedCase> choose(std::size_t shape, const CaseSpec& spec,
                                    std::span<const std::size_t> contenders,
                                    std::span<const int> lives, bool fresh,
                                    std::mt19937_64& random);
  // Builds what was chosen and is not built; for several threads at once if the cases differ.
  void build(TimedCase& chosen) {
    if (chosen.stored_ == nullptr) chosen.stored_ = store_.get(chosen.spec_);
  }

 private:
  CaseStore store_;                                               // remembers nothing itself
  std::vector<std::deque<std::shared_ptr<TimedCase>>> by_shape_;  // oldest first
};

}  // namespace touchstone::judge
