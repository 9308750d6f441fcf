// A task: what a contender has to do, as data plus an oracle.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "judge/task/case.h"
#include "judge/task/condition.h"

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

// How an output is compared. A task of sampled outputs requests many draws in one call
// and says `distribution`: every draw lies in the oracle's support, and the frequencies pass tests
// that call a right sampler wrong once in 10^9 cases at most (distribution.h).
enum class Compare {
  bound,         // numbers, each within its own bound
  tie_set,       // positions; those the oracle cannot tell apart may be exchanged
  exact,         // discrete, and only one answer is right
  distribution,  // drawn
};

struct Argument {
  std::string name;
  ArgumentKind kind;
  DType dtype = DType::f32;          // inputs and outputs
  std::string shape = {};            // "rows, cols": for people, prompts and Python checks
  Compare compare = Compare::bound;  // outputs
};

enum class Returns { status, size, handle, nothing };  // status: int, 0 is success

struct Function {
  std::string name;
  Returns returns = Returns::status;
  std::vector<Argument> arguments;
  std::string sized_by = {};  // for functions with a state
  bool optional = false;      // a contender without it loses a probe, not the verdict
};

// One executable statement about completeness, stability, ...: passed when all its cases pass.
struct Probe {
  std::string id;
  std::string title;      // one line, for the report
  std::string dimension;  // completeness, stability, robustness, memory, determinism
  bool optional = false;
};

// Growth of the rounding error of a sum of n terms that a family allows.
enum class Growth {
  random,      // any order over random terms: square root of n
  structured,  // any order over terms whose roundings may all go one way: n
  tree,        // only what keeps the error of a sum near one rounding passes
};

// A kind of data. What a case of it has to say beyond right or wrong is in its probes.
struct Family {
  std::string id;
  std::string title;
  std::vector<std::string> probes;
  Growth growth = Growth::random;
  bool stable = false;  // formulas that are right on paper but lose digits are outside the bound
};

struct RelationKind {
  std::string id;
  std::string title;
  std::vector<std::string> probes;
};

// A sentence that a contender may say of itself, and what is measured against it. The first group
// of the pattern is a number where `value` has none; the second its unit, or the peer it names.
struct ClaimPattern {
  std::string measure;  // one of claim_measures() of judge/report/claims.h
  std::string pattern;  // a regular expression, in any case of letters
  std::optional<double> value = {};
};

// Something that a contender may lack and still be judged on the rest: cases where `where` holds may
// be refused, or an output may be left out. What is on no such list every contender must do.
struct Feature {
  std::string id;     // as in "lacks" of contender.json
  std::string title;  // "grouped heads": behind "lacks"
  Condition where;    // empty for an output
  std::string output = {};
  std::string probe = {};  // lost with it
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
  std::vector<Family> families;
  std::vector<RelationKind> relations;
  std::vector<Feature> lacks;  // the closed list
  double tolerance_factor = 4.0;
  std::string tolerance_rule;                      // for people
  std::string bytes_rule, flops_rule, state_rule;  // for people; bytes() and flops() compute them
  // The probe that fails when the extra memory grows faster along the memory ladder; may be none.
  std::string memory_probe;
  double memory_exponent = 0.0;
  std::vector<ClaimPattern> claims;
  std::string reads_case;  // in which reads of pages are counted: inputs of many pages; may be none
};

TaskCard parse_card(const std::string& json);  // CorruptData says what is wrong

// What the comparer says of one output of one call.
struct OutputError {
  std::string output;
  int call = 0;
  double worst = 0.0;       // largest error in units of the bound; NaN where it should be a number
  double worst_bits = 0.0;  // log2 of the largest error in units of the rounding of the contract
  int64_t outside = 0;      // elements beyond the bound
  int64_t count = 0;
  int64_t first = -1;  // flat index of the first one beyond the bound
  double got = 0.0;
  double expected = 0.0;
  double worst_absolute = 0.0;  // largest error as it is; NaN where it should be a number
};

struct CaseCheck {
  bool passed = false;
  std::string reason;  // one line naming the first thing wrong; empty when passed
  std::vector<OutputError> errors = {};
  // What is wrong is that a call was refused which has an answer; all before it was right.
  bool refused = false;
  std::vector<std::string> omitted = {};  // outputs that were left out, and may be
};

// A relation between two cases: the second is the first, changed so that the answer changes in a
// known way (rows permuted, a batch neighbor replaced, a future token changed, split in two).
struct Relation {
  std::string id;
  std::string title;
  CaseSpec first;
  CaseSpec second;
};

// `id@first@what changes in second`, as replay commands have it. What changes is a list of
// parameters, or a whole case.
std::string format_relation(const Relation& relation);
Relation parse_relation(const std::string& text);  // without its title; InvalidArgument

struct Plan {
  std::vector<CaseSpec> cases;
  std::vector<Relation> relations;
  std::vector<CaseSpec> memory_ladder;  // one shape growing in N, for the memory exponent
};

// The right answers of one case, once somebody computed them: for callers that check several
// contenders on it. Belongs to that case as it is; not for two threads at once while it is empty.
class Memo {
 public:
  template <class T, class Make>
  const T& get(const Make& make) {
    if (right_ == nullptr) right_ = std::make_shared<const T>(make());
    return *static_cast<const T*>(right_.get());
  }
  bool empty() const { return right_ == nullptr; }

 private:
  std::shared_ptr<const void> right_;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual const TaskCard& card() const = 0;

  // All cases of a judgment; the same seed gives the same plan. `small` is the short form.
  virtual Plan plan(uint64_t seed, bool small) const = 0;
  // Which probes a case belongs to; empty when it counts for correctness alone.
  std::vector<std::string> probes_of(const CaseSpec& spec) const;
  std::vector<std::string> probes_of(const Relation& relation) const;
  // Whether failing makes the verdict WRONG: always, unless the case is only about stability or
  // about something optional.
  bool gates_verdict(const CaseSpec& spec) const;
  bool gates_verdict(const Relation& relation) const;
  const Family& family_of(const CaseSpec& spec) const;  // InvalidArgument names the known ones
  // The features of the card that a case needs, in the order of the card.
  std::vector<std::string> features_of(const CaseSpec& spec) const;

  // The case, with the edits of its spec. InvalidArgument: not a case of this task.
  Case build(const CaseSpec& spec) const;
  CaseCheck check(const Case& asked, const std::vector<Reply>& replies) const {
    Memo memo;
    return check_with(asked, replies, memo);
  }
  virtual CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                               Memo& memo) const = 0;
  virtual CaseCheck check_relation(const Relation& relation, const Case& first,
                                   const std::vector<Reply>& first_replies, const Case& second,
                                   const std::vector<Reply>& second_replies) const = 0;
  // The answer computed in the next lower precision, inputs of 11 significant bits: must fail
  // `check` in at least one family.
  std::vector<Reply> lower_precision(const Case& asked) const { return answer_in_bits(asked, 11); }
  // Inputs rounded to `bits` significant bits, everything after it exact.
  virtual std::vector<Reply> answer_in_bits(const Case& asked, int bits) const = 0;
  // Smaller neighbors of a failing case, most promising first.
  virtual std::vector<CaseSpec> smaller(const CaseSpec& spec) const = 0;

  // The shapes that are timed: one spec per shape. Each timed call takes it with another seed; the
  // family of the data is drawn from the seed, so that nothing tells timed data from checked data.
  virtual std::vector<CaseSpec> timed(uint64_t seed, bool small) const = 0;
  virtual double bytes(const Case& c) const = 0;  // least traffic of the timed calls
  virtual double flops(const Case& c) const = 0;
  // What every implementation must keep beyond inputs and outputs at the fullest moment of the
  // case.
  virtual double least_state_bytes(const Case& /*c*/) const { return 0.0; }

 protected:
  virtual Case make_case(const CaseSpec& spec) const = 0;  // as drawn; edits come after
  virtual void derive_inputs(Case& /*c*/) const {}         // fills those marked `derived`
  // What the bound grants the sums of a case. Edited numbers are not drawn at random any more.
  Growth growth_for(const CaseSpec& spec) const;
};

}  // namespace touchstone::judge
