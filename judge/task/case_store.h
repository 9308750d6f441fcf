// Cases with their right answers, each computed once. All contenders of a task are asked the same cases,
// and the experiments on each of them ask some again.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "judge/task/task.h"

namespace touchstone::judge {

class CaseStore;

// One case and, once somebody was checked on it, its right answers. For any number of threads.
class StoredCase {
 public:
  StoredCase(CaseStore& store, Case asked) : asked_(std::move(asked)), store_(store) {}

  const Case& asked() const { return asked_; }
  CaseCheck check(const std::vector<Reply>& replies) const;

 private:
  friend class CaseStore;
  // Computes the right answers, unless somebody did or is at it.
  void prepare() const;

  Case asked_;
  CaseStore& store_;
  mutable std::mutex computing_;
  mutable std::atomic<bool> ready_ = false;
  mutable Memo memo_;
};

// Remembers cases as long as there is room: those that came first, because every contender asks them
// in the same order. For any number of threads; outlives the cases it returns.
class CaseStore {
 public:
  explicit CaseStore(const Task& task, std::int64_t most_bytes = std::int64_t{1} << 30)
      : task_(task), most_bytes_(most_bytes) {}

  const Task& task() const { return task_; }
  // InvalidArgument: not a case of the task.
  std::shared_ptr<const StoredCase> get(const CaseSpec& spec);

  // Cases that will be asked in this order. Whoever waits for an answer that another thread computes
  // does the next of these meanwhile.
  void expect(std::span<const CaseSpec> cases);

 private:
  friend class StoredCase;
  struct Slot {
    std::mutex building;
    std::shared_ptr<const StoredCase> built;
  };
  bool prepare_next();  // false: none is left

  const Task& task_;
  const std::int64_t most_bytes_;
  std::mutex mutex_;
  std::int64_t bytes_ = 0;
  std::map<std::string, std::shared_ptr<Slot>> slots_;  // by the text of the spec
  std::deque<CaseSpec> expected_;
};

}  // namespace touchstone::judge
