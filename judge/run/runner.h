// Runs contender code in a child process that holds neither the answers, nor the clock, nor a way
// to say anything but "this call is done".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "judge/contender/child_spec.h"
#include "judge/contender/contender.h"
#include "judge/sandbox/sandbox.h"

namespace touchstone::judge {

struct Limits {
  double start_seconds = 20.0;
  double call_seconds = 10.0;
  int64_t memory_bytes = int64_t{4} << 30;  // over what the inputs and outputs take
  int threads = 64;                         // of the one process a contender has
  std::vector<int> cpus;                    // empty: those of the judge
  // Whether seconds and bytes of a call are wanted. Without them a call is quicker: inputs are
  // written before the child is notified, helper threads are not waited for,
  // seconds mean nothing, and peak_extra_bytes stays 0.
  bool measured = true;
  ChildHeap heap = ChildHeap::plain;
  // Pages of each input that are readable at a time, to count how often pages are read; 0: all.
  int read_window = 0;
};

// Where inputs and outputs lie: flush against the guard page behind them or before them; or, with
// new content, at the very addresses of the same call of the run before.
enum class Placement { end_flush, start_flush, repeat };

class Child {
 public:
  // Loads the contender; Ending::ok in `started()` when it is ready for calls.
  static std::unique_ptr<Child> start(const Contender& contender, const BuildResult& build,
                                      const Task& task, const Sandbox& sandbox,
                                      const Limits& limits);
  virtual ~Child() = default;
  virtual const Reply& started() const = 0;

  // Forgets the states and handles of the case before. False when the child is no more; `reply`
  // says why.
  virtual bool begin(Placement placement, Reply& reply) = 0;
  // Makes one call. Outputs are filled with a pattern drawn from `poison` first; inputs are
  // read-only in the child and lie at addresses that no earlier call predicts. States and handles
  // live until the next begin(); arrays end with their call (in Python only with the case, because
  // there it is usual to keep them).
  virtual Reply call(const Call& call, Placement placement, uint64_t poison) = 0;
  // begin() and all calls of a case. InvalidArgument when a call does not fit the task's contract.
  virtual std::vector<Reply> run(const Case& c, Placement placement, uint64_t poison) = 0;
  virtual bool alive() const = 0;

  // Memory the contender holds now and did not hold when it was loaded: private pages of its
  // process as the kernel counts them, buffers of the judge left out.
  virtual int64_t held_bytes() const = 0;
};

}  // namespace touchstone::judge
