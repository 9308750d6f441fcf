// touchstone gradcheck: the float64 backward of an operator against its forward: the oracle's on
// dual numbers, or the operator's own by central differences.
#include "touchstone/gradcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "machine/stopwatch.h"
#include "spec/spec.h"
#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

namespace gc = touchstone::gradcheck;
using Array = std::vector<double>;

constexpr std::int64_t kMaxElements = std::int64_t{1} << 32;

struct GradcheckOptions {
  std::string op;
  std::string method = "dual";
  std::int64_t rows = 0;  // 0 = 4096 x 1024, of attention 512 x 64
  std::int64_t cols = 0;
  std::uint64_t seed = 1;
  int directions = 8;
  int threads = 1;
  double tolerance = 0;  // 0 = that of the method
  std::string implementation;
  std::int64_t plant = -1;
  bool json = false;
};

struct Outcome {
  gc::Report report;
  std::string implementation;
  double total_seconds = 0;
  double check_seconds = 0;
};

void check_options(const GradcheckOptions& o) {
  if (o.rows > kMaxElements / o.cols) {
    throw InvalidArgument(
        fmt::format("gradcheck: rows x cols: expected at most {} elements, got {} x {}",
                    kMaxElements, o.rows, o.cols));
  }
  if (o.plant >= o.rows * o.cols) {
    throw InvalidArgument(fmt::format("gradcheck: --plant: expected an index below {}, got {}",
                                      o.rows * o.cols, o.plant));
  }
}

// The backwards that can be checked, by the names of their forwards.
std::vector<std::string> operators() {
  std::vector<std::string> names;
  for (const spec::Operator& op : spec::all()) {
    if (op.is_backward()) names.push_back(op.forward_name());
  }
  return names;
}

// Arrays for the operands of a backward.
class Arrays {
 public:
  Arrays(const spec::Problem& problem, const spec::Gradients& gradients, std::uint64_t seed)
      : list_(problem.operands()), arrays_(list_.size()) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      const spec::Operand& operand = list_[i];
      if (!operand.defined()) {
        views_.emplace_back();
        continue;
      }
      const std::int64_t count = operand.elements();
      arrays_[i] = operand.output ? Array(static_cast<std::size_t>(count))
                                  : gc::random_values(count, seed + i);
      for (double& x : arrays_[i]) x = operand.output ? x : operand.center + operand.scale * x;
      // What is no random number, such as positions, takes eight bytes too.
      if (!operand.output && operand.write) {
        operand.write(std::as_writable_bytes(std::span(arrays_[i])));
      }
      views_.push_back(make_view(arrays_[i].data(), std::span<const std::int64_t>(operand.shape),
                                 operand.dtype, Device::cpu()));
    }
    for (const auto& input : gradients.inputs) {
      if (input.value != spec::Gradients::kNone) continue;
      // Away from zero, so that the output has a scale even where nothing else is left of it.
      loose_ = gc::random_values(std::ssize(arrays_[input.gradient]), seed + list_.size());
      for (double& x : loose_) x += 2;
    }
  }
  spec::Views views() const { return views_; }
  const std::vector<std::int64_t>& shape(std::size_t operand) const { return list_[operand].shape; }
  Array& operator[](std::size_t operand) {
    return operand == spec::Gradients::kNone ? loose_ : arrays_[operand];
  }

 private:
  std::vector<spec::Operand> list_;
  std::vector<Array> arrays_;
  Array loose_;
  std::vector<TensorView> views_;
};

// Leading dimensions of 1 say nothing about where an error is.
std::vector<std::int64_t> squeezed(std::vector<std::int64_t> shape) {
  while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

gc::Problem problem_of(const spec::Gradients& gradients, Arrays& arrays) {
  gc::Problem problem;
  for (const auto& input : gradients.inputs) {
    const std::vector<std::int64_t> shape = squeezed(arrays.shape(input.gradient));
    problem.inputs.push_back({.name = input.name,
                              .shape = shape,
                              .value = arrays[input.value],
                              .grad = arrays[input.gradient],
                              .per_row = input.per_row,
                              .dims = shape.size() == 3
                                          ? std::vector<std::string>{"token", "head", "col"}
                                      : shape.size() == 2 ? std::vector<std::string>{"row", "col"}
                                                          : std::vector<std::string>{"col"}});
  }
  for (const auto& output : gradients.outputs) {
    problem.outputs.push_back({.name = output.name,
                               .shape = squeezed(arrays.shape(output.cotangent)),
                               .cotangent = arrays[output.cotangent]});
  }
  problem.independent_rows = gradients.independent_rows;
  return problem;
}

// The operator's own forward as a black box. Its operands have the names of the gradients' inputs and
// outputs; of the others those that the specification writes, such as positions, are given.
class Forward {
 public:
  Forward(const std::string& op, const cases::Case& item, const spec::Gradients& gradients)
      : problem_(spec::find(op)->make(item)),
        list_(problem_->operands()),
        written_(list_.size()),
        views_(list_.size()) {
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (!list_[i].write) continue;
      written_[i].resize(static_cast<std::size_t>(list_[i].bytes()));
      list_[i].write(written_[i]);
      bind(i, written_[i].data());
    }
    for (const auto& input : gradients.inputs) inputs_.push_back(operand(input.name));
    for (const auto& output : gradients.outputs) outputs_.push_back(operand(output.name));
  }

  // One copy of the inputs after another.
  void operator()(Context& context, const gc::Batch& batch) {
    for (std::int64_t copy = 0; copy < batch.copies; ++copy) {
      const auto bind_copies = [&](const auto& arrays, const std::vector<std::size_t>& operands) {
        for (std::size_t i = 0; i < operands.size(); ++i) {
          const std::size_t each = arrays[i].size() / static_cast<std::size_t>(batch.copies);
          // Inputs are not written.
          bind(operands[i],
               const_cast<double*>(arrays[i].data()) + static_cast<std::size_t>(copy) * each);
        }
      };
      bind_copies(batch.in, inputs_);
      bind_copies(batch.out, outputs_);
      problem_->call(context, views_, "");
    }
  }

 private:
  std::size_t operand(const std::string& name) const {
    const auto found = std::ranges::find(list_, name, &spec::Operand::name);
    if (found == list_.end()) throw Error("gradcheck: the forward has no operand '" + name + "'");
    return static_cast<std::size_t>(found - list_.begin());
  }
  void bind(std::size_t operand, void* data) {
    views_[operand] = make_view(data, std::span<const std::int64_t>(list_[operand].shape),
                                list_[operand].dtype, Device::cpu());
  }

  std::unique_ptr<spec::Problem> problem_;
  std::vector<spec::Operand> list_;
  std::vector<std::vector<std::byte>> written_;
  std::vector<TensorView> views_;
  std::vector<std::size_t> inputs_, outputs_;
};

gc::Report run_check(Context& context, const GradcheckOptions& o, const cases::Case& item,
                     const spec::Gradients& gradients, Arrays& arrays) {
  gc::Problem problem = problem_of(gradients, arrays);
  const int directions = std::max(o.directions, static_cast<int>(gradients.inputs.size()));
  if (o.method == "dual") {
    gc::Options options{
        .seed = o.seed, .directions = directions, .gradient_floor = gradients.gradient_floor};
    if (o.tolerance > 0) options.tolerance = o.tolerance;
    return gc::check(problem, gradients.dual, options);
  }
  problem.independent_rows = 0;
  for (gc::Input& input : problem.inputs) input.per_row = false;
  gc::DifferenceOptions options;
  options.seed = o.seed;
  options.directions = directions;
  options.gradient_floor = gradients.gradient_floor;
  if (o.tolerance > 0) options.tolerance = o.tolerance;
  Forward forward(o.op, item, gradients);
  return gc::check_differences(
      problem, [&](const gc::Batch& batch) { forward(context, batch); }, options);
}

Json location_json(const gc::Location& location) {
  return {{"where", location.text},
          {"gradient", "d" + location.input},
          {"begin", location.begin},
          {"end", location.end},
          {"claimed", location.claimed},
          {"expected", location.expected},
          {"wrong_blocks", location.wrong_blocks},
          {"blocks", location.blocks}};
}

void print_outcome_json(const GradcheckOptions& o, const Outcome& outcome) {
  const gc::Report& report = outcome.report;
  Json gradients = Json::array();
  for (const gc::InputResult& in : report.inputs) {
    gradients.push_back({{"name", "d" + in.name},
                         {"residual", in.residual},
                         {"norm", in.grad_norm},
                         {"directions", in.directions},
                         {"ok", in.residual <= report.tolerance}});
  }
  Json wrong = Json::array();
  for (const gc::Location& location : report.locations) wrong.push_back(location_json(location));
  Json out = {{"op", o.op},
              {"method", o.method},
              {"dtype", "f64"},
              {"shape", {o.rows, o.cols}},
              {"impl", outcome.implementation},
              {"threads", o.threads},
              {"seed", o.seed},
              {"directions", o.directions},
              {"ok", report.ok},
              {"residual", report.residual},
              {"tolerance", report.tolerance},
              {"seconds", outcome.total_seconds},
              {"check_seconds", outcome.check_seconds},
              {"gradients", gradients},
              {"wrong", wrong}};
  if (!report.problem.empty()) out["problem"] = report.problem;
  if (o.plant >= 0) out["planted"] = o.plant;
  print_json(out);
}

void print_outcome(const GradcheckOptions& o, const Outcome& outcome) {
  const gc::Report& report = outcome.report;
  print(fmt::format("{} backward, f64, {} x {}, implementation {}, against {}\n\n", o.op, o.rows,
                    o.cols, outcome.implementation,
                    o.method == "dual" ? "dual numbers" : "central differences"));
  Table table({"gradient", ">norm", ">directions", ">residual", "verdict"});
  for (const gc::InputResult& in : report.inputs) {
    const bool right = in.residual <= report.tolerance;
    table.add({"d" + in.name, fmt::format("{:.4g}", in.grad_norm), std::to_string(in.directions),
               fmt::format("{:.1e}", in.residual), right ? "ok" : "WRONG"},
              right ? Color::plain : Color::bad);
  }
  print(table.text() + "\n");
  if (!report.problem.empty()) print(report.problem + "\n");
  for (const gc::Location& location : report.locations) {
    std::string line = "first wrong: " + location.text;
    if (std::isfinite(location.claimed)) {
      line += fmt::format(" is {:.17g}, expected {:.17g}", location.claimed, location.expected);
    }
    print(line + fmt::format(" ({} of {} blocks wrong)\n", location.wrong_blocks, location.blocks));
  }
  print(colored(report.ok ? "ok" : "wrong gradient", report.ok ? Color::good : Color::bad) +
        fmt::format(": residual {:.1e}, tolerance {:.0e}, {:.2f} s ({:.2f} s the check)\n",
                    report.residual, report.tolerance, outcome.total_seconds,
                    outcome.check_seconds));
}

// Rows and columns as the case of an operator spells them.
std::string shape_of(const GradcheckOptions& o) {
  if (o.op == "attention") return fmt::format("1x1x{}x{}", o.rows, o.cols);
  if (o.op == "linear" || o.op == "embedding" || o.op == "cross_entropy") {
    return fmt::format("{}x{}/{}", o.rows, o.cols, o.cols);
  }
  if (o.op == "rope") return fmt::format("{}x1x{}", o.rows, o.cols);
  return fmt::format("{}x{}", o.rows, o.cols);
}

// Runs the backward, plants an error where requested, and checks it.
int gradcheck(GradcheckOptions o) {
  const bool attention = o.op == "attention";
  const bool head = o.op == "cross_entropy";
  if (o.rows == 0) o.rows = attention ? 512 : head ? 64 : 4096;
  if (o.cols == 0) o.cols = attention ? 64 : 1024;
  check_options(o);
  const machine::Stopwatch total;
  const spec::Operator& op = *spec::find(o.op + "_backward");
  cases::Case item;
  item.dtype = DType::f64;
  item.shape = shape_of(o);
  if (attention) item.options = {{"causal", "1"}, {"lse_grad", "1"}};
  if (o.op == "linear") item.options = {{"bias", "1"}};
  const std::unique_ptr<spec::Problem> problem = op.make(item);
  const spec::Gradients gradients = problem->gradients().value();
  Context context({.threads = o.threads});
  Arrays arrays(*problem, gradients, o.seed * 16);
  problem->prepare(context, arrays.views());
  Outcome outcome;
  outcome.implementation = o.implementation.empty()
                               ? spec::chosen(problem->explain(context, arrays.views()))
                               : o.implementation;
  problem->call(context, arrays.views(), o.implementation);
  if (o.plant >= 0) arrays[gradients.inputs[0].gradient][static_cast<std::size_t>(o.plant)] *= 2;
  const machine::Stopwatch check;
  outcome.report = run_check(context, o, item, gradients, arrays);
  outcome.check_seconds = check.seconds();
  outcome.total_seconds = total.seconds();
  if (o.json) {
    print_outcome_json(o, outcome);
  } else {
    print_outcome(o, outcome);
  }
  return outcome.report.ok ? kOk : kNo;
}

}  // namespace

void add_gradcheck(Options& app, int& exit_code) {
  auto o = std::make_shared<GradcheckOptions>();
  Options* verb =
      app.add_verb("gradcheck", "Check the float64 backward of an operator against its forward");
  verb->add_option("op", o->op,
                   "an operator with a backward: linear, embedding and cross_entropy are square, "
                   "rope and attention (causal) "
                   "have one head")
      ->required()
      ->one_of(operators());
  verb->add_option("--method", o->method,
                   "dual (the default): the reference on dual numbers, to 1e-11; differences: the "
                   "operator's own forward as a black box, by central differences")
      ->one_of({"dual", "differences"});
  const Check positive = whole_number(1, kMaxElements);
  verb->add_option("--rows", o->rows,
                   "Rows (4096), or tokens of attention (512) and cross_entropy (64)")
      ->check(positive);
  verb->add_option("--cols", o->cols, "Columns (1024), or the size of a head (64)")
      ->check(positive);
  verb->add_option("--seed", o->seed, "Seed of data and directions")
      ->check(seed_number())
      ->show_default();
  verb->add_option("--directions", o->directions,
                   "Random directions, distributed over the gradients")
      ->check(whole_number(1, 4096))
      ->show_default();
  verb->add_option("--tolerance", o->tolerance, "Largest residual that passes (1e-11 for dual)")
      ->check(positive_number());
  verb->add_option("--threads", o->threads, "Threads of the backward; 0: all cores")
      ->check(whole_number(0, 1024))
      ->show_default();
  verb->add_option("--impl", o->implementation, "Implementation to check; default: the one chosen");
  verb->add_option("--plant", o->plant, "Double this element of dx or dq, to test the check itself")
      ->check(whole_number(0, kMaxElements));
  verb->add_flag("--json", o->json, "Print JSON");
  verb->callback([o, &exit_code] { exit_code = gradcheck(*o); });
}

}  // namespace touchstone::cli
