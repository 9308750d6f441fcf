// A task: what a contender has to do, as data plus an oracle.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "judge/case.h"

namespace touchstone::judge {

// The contract, function by function. The C signature lists the arguments in this order.
enum class ArgumentKind {
  i64,     // int64_t
  f32,     // float
  input,   // const T*, `dtype`
  output,  // T*, `dtype`
  state,   // void*: bytes the judge owns; the function named by `sized_by` says how many
  handle,  // void*: what the task's create function returned
};

struct Argument {
  std::string name;
  ArgumentKind kind;
  DType dtype = DType::f32;  // inputs and outputs
  std::string shape;         // "rows, cols": for people, prompts and Python checks
};

enum class Returns { status, size, handle, nothing };  // status: int, 0 is success

struct Function {
  std::string name;
  Returns returns = Returns::status;
  std::vector<Argument> arguments;
  std::string sized_by;   // for functions with a state
  bool optional = false;  // a contender without it loses a probe, not the verdict
};

// One executable statement about completeness, stability, ...: passed when all its cases pass.
struct Probe {
  std::string id;
  std::string title;      // one line, for the report
  std::string dimension;  // completeness, stability, robustness, memory, determinism
  bool optional = false;
};

struct TaskCard {
  std::string id;
  int version = 1;
  std::string title;
  std::string prompt;  // PROMPT.md, whole
  std::vector<Function> functions;
  std::vector<Probe> probes;
  std::vector<std::string> devices;       // "cpu", "cuda"
  std::map<std::string, double> weights;  // dimension -> weight in the overall score
};

// What the comparer says of one output of one call.
struct OutputError {
  std::string output;
  int call = 0;
  double worst = 0.0;      // largest error in units of the bound; NaN where it should be a number
  double worst_bits = 0.0;  // log2 of the largest error in units of the rounding of the contract
  int64_t outside = 0;     // elements beyond the bound
  int64_t count = 0;
  int64_t first = -1;      // flat index of the first one beyond the bound
  double got = 0.0;
  double expected = 0.0;
};

struct CaseCheck {
  bool passed = false;
  std::string reason;  // one line naming the first thing wrong; empty when passed
  std::vector<OutputError> errors;
};

// A relation between two cases: the second is the first, changed so that the answer changes in a
// known way (rows permuted, a batch neighbour replaced, a future token changed, split in two).
struct Relation {
  std::string id;
  std::string title;
  CaseSpec first;
  CaseSpec second;
};

struct Plan {
  std::vector<CaseSpec> cases;
  std::vector<Relation> relations;
  std::vector<CaseSpec> memory_ladder;  // one shape growing in N, for the memory exponent
};

class Task {
 public:
  virtual ~Task() = default;
  virtual const TaskCard& card() const = 0;

  // All cases of a judgement; the same seed gives the same plan. `small` is the short form.
  virtual Plan plan(uint64_t seed, bool small) const = 0;
  // Which probes a case belongs to; empty when it counts for correctness alone.
  virtual std::vector<std::string> probes_of(const CaseSpec& spec) const = 0;

  virtual Case build(const CaseSpec& spec) const = 0;  // InvalidArgument: not a case of this task
  virtual CaseCheck check(const Case& asked, const std::vector<Reply>& replies) const = 0;
  virtual CaseCheck check_relation(const Relation& relation, const Case& first,
                                   const std::vector<Reply>& first_replies, const Case& second,
                                   const std::vector<Reply>& second_replies) const = 0;
  // The answer computed in the next lower precision: must fail `check` in at least one family.
  virtual std::vector<Reply> lower_precision(const Case& asked) const = 0;
  // Smaller neighbours of a failing case, most promising first.
  virtual std::vector<CaseSpec> smaller(const CaseSpec& spec) const = 0;

  // The shapes that are timed: one spec per shape, drawn anew (other seed, hidden family) per call.
  virtual std::vector<CaseSpec> timed(uint64_t seed, bool small) const = 0;
  virtual double bytes(const Case& c) const = 0;  // least traffic of the timed calls
  virtual double flops(const Case& c) const = 0;
  // What every implementation must keep beyond inputs and outputs at the fullest moment of the case.
  virtual double least_state_bytes(const Case& /*c*/) const { return 0.0; }
};

// All tasks built into the program, in the order of the board.
const std::vector<std::unique_ptr<Task>>& tasks();
const Task& find_task(const std::string& id);  // InvalidArgument names the nearest

}  // namespace touchstone::judge
