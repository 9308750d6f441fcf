// One specification per operator: its problems (parsed from a line of cases/<name>.txt), their data,
// the call, the float64 reference with a derived bound per element, and the cost. Everything generic
// is a loop over all(): `touchstone info`, `bench`, `selfcheck` and `gradcheck`, the sweep of the
// tests, the table of supported dtypes in the README. Not part of libtouchstone.
//
// A new operator derives from Problem in a file of its own and adds one entry to all().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cases/cases.h"
#include "spec/bounds.h"
#include "spec/operand.h"
#include "touchstone/core/context.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/gradcheck/problem.h"

namespace touchstone::spec {

struct Cost {
  std::int64_t bytes = 0;   // the least that has to move
  double flops = 0;         // 0: bytes are what counts
  bool only_reads = false;  // next to nothing is written: the floor is the read rate
};

// What the reference says about some elements of one output.
struct OutputReference {
  std::size_t operand = 0;
  std::vector<std::int64_t> index{};  // flat, of each element; empty: all, in order
  Expected expected{};

  void add(std::int64_t element, double value, double bound) {
    index.push_back(element);
    expected.add(value, bound);
  }
};

// How a problem is shown and handed to peers: rows and columns in a table, and what an operator has
// beside them.
struct Labels {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 0;    // 0: the operator has none
  std::string heads{};   // "32/8x128", or the shape of dense attention; empty: no attention
  std::string format{};  // of a cache
  std::string mask{};    // of dense attention
};

// A backward for a gradient check: which operand is the gradient of which input, and the forward of the
// oracle on dual numbers. Inputs and outputs are operands of the forward, by name. Operands are f64
// and contiguous.
struct Gradients {
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Input {
    std::string name;
    std::size_t value = 0;  // kNone: any value has the same gradient
    std::size_t gradient = 0;
    bool per_row = false;
  };
  struct Output {
    std::string name;
    std::size_t cotangent = 0;
  };
  std::vector<Input> inputs{};
  std::vector<Output> outputs{};
  std::int64_t independent_rows = 0;
  double gradient_floor = 1e-2;
  gradcheck::DualForward dual{};
};

using Reports = std::vector<ImplementationReport>;

// Calls an operator, or lists which of its implementations take the call.
struct Invoke {
  Context& context;
  bool only_explain = false;

  template <class Args>
  Reports operator()(void (*op)(Context&, const Args&), const Args& args) const {
    if (only_explain) return explain(context, args);
    op(context, args);
    return {};
  }
};

class Problem {
 public:
  virtual ~Problem() = default;

  virtual std::vector<Operand> operands() const = 0;
  // Inputs that another operator computes from other inputs, such as statistics of a forward.
  virtual void prepare(Context& /*context*/, Views /*views*/) const {}
  void call(Context& context, Views views, const std::string& implementation) const {
    apply({context}, views, implementation);
  }
  Reports explain(Context& context, Views views) const { return apply({context, true}, views, ""); }
  // From what the inputs hold, for about `sample` rows of every output, or all. Where more than one
  // answer is right (a draw at the border of two tokens) it agrees with the output if that is one.
  virtual std::vector<OutputReference> reference(const Reader& reader,
                                                 std::int64_t sample) const = 0;
  // Whether reference() reads outputs.
  virtual bool reference_reads_outputs() const { return false; }
  virtual Cost cost() const = 0;
  virtual Labels labels() const = 0;
  virtual std::optional<Gradients> gradients() const { return std::nullopt; }

 private:
  // Returns invoke(the operator, its arguments).
  virtual Reports apply(const Invoke& invoke, Views views,
                        const std::string& implementation) const = 0;
};

inline constexpr std::int64_t kAllRows = std::int64_t{1} << 62;

// The outputs against a reference.
Verdict check(const std::vector<OutputReference>& reference, const std::vector<Operand>& list,
              const Reader& reader);
Verdict check(const Problem& problem, const std::vector<Operand>& list, const Reader& reader,
              std::int64_t sample = kAllRows);
// Poisons the outputs, runs call(), waits, and compares.
Verdict check_call(const Problem& problem, Context& context, Operands& operands,
                   const std::function<void()>& call, std::int64_t sample = kAllRows);
// The implementation that a call runs which forces none; "none" when all refuse.
std::string chosen(const std::vector<ImplementationReport>& reports);

struct Operator {
  std::string name;
  std::string list{};  // cases/<list>.txt; the name where it is left out
  std::string page{};  // docs/ops/<page>.md, likewise
  std::vector<DType> cpu{DType::f64, DType::f32, DType::bf16, DType::f16};
  std::vector<DType> cuda{DType::f32, DType::bf16, DType::f16};
  std::function<std::unique_ptr<Problem>(const cases::Case&)> make{};
  // The shape of a case with R rows and C columns, and the options that go with it: how a command
  // line describes a problem.
  std::string shape = "RxC";
  std::vector<std::string> options{};
  std::string note{};  // what a table of operators says beside the name

  const std::vector<DType>& dtypes(Device device) const { return device.is_cuda() ? cuda : cpu; }
  bool supports(Device device, DType dtype) const;
  bool has_option(std::string_view option) const;
  bool is_backward() const { return name.ends_with("_backward"); }
  // Of a backward that of its forward.
  std::string forward_name() const;
  // A case of R rows and C columns; of the options given those that the operator has.
  cases::Case of_rows(std::int64_t rows, std::int64_t cols, cases::Case item) const;
};

// The operators with their dtypes per device, as a Markdown table.
std::string support_table();

// Every operator of the library.
const std::vector<Operator>& all();
// Null when there is none of that name.
const Operator* find(std::string_view name);

// The cases of an operator in dtypes that it has on the device.
std::vector<cases::Case> select(const Operator& op, const cases::Selection& selection);

}  // namespace touchstone::spec
