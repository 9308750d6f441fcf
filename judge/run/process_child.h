// A child, seen from the judge: one isolated process, one call at a time. For runner.cc, which
// starts it and makes calls, and timed_calls.cc, which measures them.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "judge/run/arena.h"
#include "judge/run/child_memory.h"
#include "judge/run/completion_wait.h"
#include "judge/run/freezer.h"
#include "judge/run/process_stats.h"
#include "judge/run/runner.h"
#include "judge/sandbox/descriptor.h"
#include "judge/sandbox/sandbox.h"

namespace touchstone::judge {

class ProcessChild : public Child {
 public:
  ProcessChild(const Contender& contender, const BuildResult& build, const Task& task,
               const Sandbox& sandbox, const Limits& limits);
  ~ProcessChild() override;
  ProcessChild(const ProcessChild&) = delete;
  ProcessChild& operator=(const ProcessChild&) = delete;

  const Reply& started() const override { return started_; }
  bool alive() const override { return alive_; }
  int64_t held_bytes() const override;

  bool begin(Placement placement, Reply& reply) override;
  Reply call(const Call& call, Placement placement, uint64_t poison) override;
  std::vector<Reply> run(const Case& c, Placement placement, uint64_t poison) override;

 private:
  void load(const std::vector<std::string>& temporary);
  bool start_failed(const Reply& reply);

  // Rings for a command that needs no clock. False when the child is no more; `reply` says why.
  bool command(protocol::Command what, double seconds, const Function* function, Reply& reply);
  bool make_state(const Function& function, const Call& call, uint64_t poison, Reply& reply);

  // Makes the call that is in the control block. False when the child is no more.
  bool quick_call(const Function& function, const Call& call, const Layout& layout, uint64_t poison,
                  Reply& reply);
  bool measured_call(const Function& function, const Call& call, const Layout& layout,
                     uint64_t poison, Reply& reply);
  bool device_call(const Function& function, const Call& call, const Layout& layout,
                   uint64_t poison, Reply& reply);
  bool get_ready(const Function& function, const Layout& layout, Reply& reply);
  void fill(const Call& call, const Layout& layout, uint64_t poison);
  static void make_room(const Call& call, Reply& reply);
  void read_memory(const ProcessStats::Memory& before, int64_t outside_before, Reply& reply) const;

  // How processors were shared out so far, in seconds.
  struct Shares {
    double queued = 0.0;   // the thread that calls was ready, and others ran
    double helpers = 0.0;  // other threads of the child ran
    double judge_queued = 0.0;
  };
  Shares shares() const;
  static void leave_out_queues(const Shares& before, const Shares& after, Reply& reply);
  void capture(const Call& call, const Layout& layout, Reply& reply);
  void check_bounds(const Function& function, const Layout& layout, const Call& call,
                    uint64_t poison, Reply& reply);
  int64_t cpus() const;  // that the child may run on
  bool has_first_thread();
  void read_outcome(const Function& function, Reply& reply);
  void die(Waited waited, const Function* function, Reply& reply);
  std::string log_text() const;
  std::string note_text() const;
  CompletionWait::WaitLimits wait_limits(double seconds) const;
  // Threads that may have run at the same time.
  double busy_threads() const;

  bool counts_heap() const {
    return limits_.heap == ChildHeap::counted && control_->heap_held >= 0;
  }

  // The heap knows of blocks on pages that it held already. What is far beyond its count did not
  // come from it, or the count was tampered with: then the pages have the word.
  static int64_t counted_or_pages(int64_t counted, int64_t pages) {
    constexpr int64_t kCountSlack = 2 << 20;  // pages that come and go beside the blocks of a heap
    return pages <= counted + counted / 2 + kCountSlack ? counted : pages;
  }

  // Between its calls a child stands still.
  bool freezes() const { return freezer_ != nullptr; }
  // Processor time that a child is charged for outside of its calls. Where there is a device the
  // first thread works for the judge then, which copies: of the others.
  double chargeable_seconds() const;
  // What an adapter held of `bytes` of its own, which is not the contender's. The child's word: no
  // more than the arrays of the call, which is what an adapter may have to copy.
  int64_t of_adapter(int64_t bytes) const {
    const bool counts = !contender_.binding.adapter.empty();
    return counts ? std::clamp<int64_t>(bytes, 0, array_bytes_) : 0;
  }
  void thaw();
  // Stops it, and keeps what it worked beyond what `pages` of buffers cost, to be charged for.
  void freeze(int64_t pages);
  // What it worked since it was stopped, by whatever means, is charged for as well.
  void charge_while_stopped();

  Contender contender_;
  std::vector<Function> functions_;
  std::vector<std::string> omitted_;   // outputs that it says it leaves out
  std::vector<std::string> may_omit_;  // outputs that the card allows to leave out
  Limits limits_;
  bool device_;
  bool python_;
  bool sanitized_;
  Descriptor control_file_;
  Descriptor log_file_;
  protocol::Control* control_ = nullptr;
  Arena arena_;
  std::unique_ptr<Jail> jail_;
  std::unique_ptr<CompletionWait> completion_;
  std::unique_ptr<ProcessStats> stats_;
  std::unique_ptr<ChildMemory> memory_;
  std::unique_ptr<Freezer> freezer_;
  Reply started_;
  bool alive_ = false;
  uint32_t number_ = 0;
  int calls_ = 0;
  int64_t empty_bytes_ = 0;   // held before the contender was loaded
  int64_t empty_heap_ = 0;    // the same, as its heap counts
  int64_t mapped_bytes_ = 0;  // of the judge's buffers, in the child now
  int64_t state_mapped_bytes_ = 0;
  int64_t array_bytes_ = 0;       // of the last call
  double unpaid_seconds_ = 0.0;   // worked outside of calls, not yet charged for
  double settled_seconds_ = 0.0;  // of its processor time, what was charged for or granted
  Placement last_placement_ = Placement::end_flush;
  OwnThreadTimes own_times_;

  struct State {
    Layout layout;
    uint64_t poison = 0;
  };
  std::map<int, State> states_;  // native children; Python keeps its own
  std::set<int> handles_;        // made, and not refused
  std::set<int> python_states_;
};

}  // namespace touchstone::judge
