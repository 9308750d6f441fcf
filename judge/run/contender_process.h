// A contender's process over many cases: started when needed, replaced when it died.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "judge/run/runner.h"
#include "judge/task/case_store.h"

namespace touchstone::judge {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start);

// How a case as a whole ended: as the first of its calls that ended badly.
Ending ending_of(const std::vector<Reply>& replies);
const Reply* first_bad(const std::vector<Reply>& replies);  // null when all returned
bool same_outputs(const std::vector<Reply>& a, const std::vector<Reply>& b);
// The time of the calls that count.
double timed_seconds(const Case& c, const std::vector<Reply>& replies);

// A contender in a child that is started when needed and replaced when it died.
class ContenderProcess {
 public:
  ContenderProcess(const Contender& contender, BuildResult build, const Task& task,
                   const Sandbox& sandbox, const Limits& limits);

  std::vector<Reply> run(const Case& c, Placement placement, uint64_t poison);
  // Runs and checks; an ending that is no answer is a failed check that names it.
  CaseCheck check(const Case& c, Placement placement, uint64_t poison, std::vector<Reply>* replies);
  CaseCheck check(const StoredCase& c, Placement placement, uint64_t poison,
                  std::vector<Reply>* replies);
  void restart() { child_.reset(); }
  Child* child();  // null when it cannot be started: see started()
  const Reply& started() const { return started_; }
  int deaths() const { return deaths_; }

 private:
  template <class Compare>
  CaseCheck run_and_check(const Case& c, Placement placement, uint64_t poison,
                          std::vector<Reply>* replies, const Compare& compare);

  const Contender& contender_;
  BuildResult build_;
  const Task& task_;
  Sandbox sandbox_;
  Limits limits_;
  std::unique_ptr<Child> child_;
  Reply started_;
  int deaths_ = 0;
};

}  // namespace touchstone::judge
