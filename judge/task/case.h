// A case: the inputs of one experiment with a contender, as plain data.
//
// A case is a list of calls, made one after the other on one contender. All inputs are known before
// the first call; no answer is. So a case can be rebuilt from its specification alone, on any
// machine, and a failure is replayed by one command line.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "touchstone/core/dtype.h"

namespace touchstone::judge {

// Elements of an input, set by hand after the case was drawn: how a failing case is stated with fewer
// numbers, and how two inputs or two rows get the same ones. Written `call.input.first-last=value`, or
// `call.input.first-last=source.from` for the elements of an input of the same call, from `from` on.
struct Edit {
  int64_t call = 0;
  std::string input;
  int64_t first = 0;
  int64_t last = 0;  // inclusive
  float value = 0;
  std::string source = {};  // empty: `value`
  int64_t from = 0;

  // By the bits of the value: NaN is NaN.
  friend bool operator==(const Edit& a, const Edit& b) {
    return a.call == b.call && a.input == b.input && a.first == b.first && a.last == b.last &&
           std::bit_cast<uint32_t>(a.value) == std::bit_cast<uint32_t>(b.value) &&
           a.source == b.source && a.from == b.from;
  }
};

// What a case is made of: enough to build it again. Written `family:rows=3,cols=5:seed` in replay
// commands, edits behind a slash (format_spec, parse_spec).
struct CaseSpec {
  std::string family;                         // nominal, ties, shifted_mean, ...
  std::map<std::string, int64_t> parameters;  // shapes and knobs, by name
  uint64_t seed = 0;             // of this case, derived from the session's hidden seed
  std::vector<Edit> edits = {};  // in order; a later one wins
};

std::string format_spec(const CaseSpec& spec);
CaseSpec parse_spec(const std::string& text);  // InvalidArgument says what is wrong

// "rows=3,cols=5" alone.
std::map<std::string, int64_t> parse_parameters(const std::string& text);

struct InputTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
  bool derived = false;  // follows from the other inputs of the case: not for anyone to edit
};

struct OutputTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

using Scalar = std::variant<int64_t, double>;

// One call of one function of the task's contract. Scalars, inputs and outputs are in the order in
// which the function's signature lists arguments of that kind.
struct Call {
  std::string function;
  std::vector<Scalar> scalars;
  std::vector<InputTensor> inputs;
  std::vector<OutputTensor> outputs;
  // Which of the case's states or handles this call takes, where the signature has one: two calls
  // with the same number share it.
  int state = 0;
  // Only calls with `timed` count for speed and memory; the others prepare or take apart.
  bool timed = true;

  int64_t whole(size_t scalar) const { return std::get<int64_t>(scalars[scalar]); }
  double real(size_t scalar) const { return std::get<double>(scalars[scalar]); }
  // A whole scalar in a formula of costs.
  double count(size_t scalar) const { return static_cast<double>(whole(scalar)); }
};

struct Case {
  CaseSpec spec;
  std::vector<Call> calls;
};

// Sets the elements that the edits of its spec name. An input that stands in several calls with the
// same name and the same content is one tensor, and is changed in all of them. InvalidArgument when
// an edit names what is not there.
void apply_edits(Case& c);

// How one call ended. Everything but `ok` and `refused` ends the child, and with it the case.
enum class Ending {
  ok,             // returned success
  refused,        // returned its own error code, which may be what the contract requires
  crashed,        // signal; `detail` names it
  wrote_outside,  // touched a guard page, or canary words beside an output changed
  wrote_input,    // tried to write to its inputs
  hung,           // over the time for one call
  exited,         // left without answering, whatever the exit code
  out_of_memory,  // over the memory limit
  forbidden,      // a system call the sandbox refuses; `detail` names it
  not_reached,    // an earlier call ended the case
};

std::string_view name_of(Ending ending);     // "wrote_outside"
Ending parse_ending(std::string_view name);  // its inverse; InvalidArgument

struct Reply {
  Ending ending = Ending::not_reached;
  std::string detail;                           // for a person; empty when ok
  int64_t returned = 0;                         // what the function returned (status, size, count)
  std::vector<std::vector<std::byte>> outputs;  // as captured by the judge; empty unless ok
  // By the judge's clock, from posting the command to the captured output. Of the capture itself 0.1 ms at
  // most is counted, unless the child was seen working while it went on: then all of it.
  double seconds = 0.0;
  // Others had the processor of the child or of the judge meanwhile: the time is not the
  // contender's.
  bool disturbed = false;
  double cpu_seconds = 0.0;  // processor time of all its threads, where the call was timed
  int64_t state_bytes = 0;   // size of the opaque state that the contender requested
  // Most memory the child held over what it held before the call, as the kernel counted resident
  // pages: exact to about 64 pages per processor.
  int64_t peak_extra_bytes = 0;
  // How often pages were read, by input, where Limits::read_window is set. Reported by the child.
  std::vector<int64_t> page_reads = {};
  // Of a refused call: an output that was written to all the same, by name.
  std::string touched = {};
  // Outputs that the contender left out, by name; what `outputs` holds in their place is zero.
  std::vector<std::string> omitted = {};
};

}  // namespace touchstone::judge
