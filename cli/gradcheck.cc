// touchstone gradcheck: the shipped float64 backward against the oracle's forward on dual numbers.
#include "touchstone/gradcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "oracle/attention.h"
#include "oracle/layer_norm.h"
#include "oracle/rms_norm.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/attention.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/rms_norm.h"

namespace touchstone::cli {
namespace {

namespace gc = touchstone::gradcheck;
using Array = std::vector<double>;

constexpr double kEps = 1e-5;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 32;

struct GradcheckOptions {
  std::string op;
  std::int64_t rows = 0;  // 0 = 4096 x 1024, of attention 512 x 64
  std::int64_t cols = 0;
  std::uint64_t seed = 1;
  int directions = 8;
  int threads = 1;
  double tolerance = 1e-11;
  std::string implementation;
  std::int64_t plant = -1;
  bool json = false;
};

// The arrays of one problem. RMS norm has no beta, and its weight is called gamma here.
struct NormData {
  Array x, gamma, beta, dy;
  Array dx, dgamma, dbeta;
  Array mean, rstd;
};

// One causal head; the output goes where it is, the log-sum-exp has a gradient too.
struct AttentionData {
  Array q, k, v, output, log_sum_exp;
  Array doutput, dlog_sum_exp;
  Array dq, dk, dv;
};

struct Outcome {
  gc::Report report;
  std::string implementation;
  double total_seconds = 0;
  double check_seconds = 0;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

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

NormData make_data(const GradcheckOptions& o) {
  const auto cols = static_cast<std::size_t>(o.cols);
  const auto rows = static_cast<std::size_t>(o.rows);
  const std::uint64_t seed = o.seed * 4;
  NormData d;
  d.x = gc::random_values(o.rows * o.cols, seed);
  d.gamma = gc::random_values(o.cols, seed + 1);
  d.beta = gc::random_values(o.cols, seed + 2);
  d.dy = gc::random_values(o.rows * o.cols, seed + 3);
  // Away from zero, so that y has a scale even where one column leaves nothing but beta.
  for (double& gamma : d.gamma) gamma = 1 + 0.5 * gamma;
  for (double& beta : d.beta) beta += 2;
  d.dx.resize(rows * cols);
  d.dgamma.resize(cols);
  d.dbeta.resize(cols);
  d.mean.resize(rows);
  d.rstd.resize(rows);
  return d;
}

std::string chosen(const std::string& wanted, const std::vector<ImplementationReport>& reports) {
  if (!wanted.empty()) return wanted;
  for (const ImplementationReport& report : reports) {
    if (report.accepted) return report.name;
  }
  return {};
}

// Runs forward and backward of the library and returns the name of the backward that ran. The
// forward is run for its statistics; its y goes where dx will be.
std::string run_layer_norm(Context& context, const GradcheckOptions& o, NormData& d) {
  const auto view = [&](Array& a) { return make_view(a.data(), {o.rows, o.cols}); };
  const auto per_row = [&](Array& a) { return make_view(a.data(), {o.rows}); };
  const auto per_col = [&](Array& a) { return make_view(a.data(), {o.cols}); };
  layer_norm(context, {.x = view(d.x),
                       .weight = per_col(d.gamma),
                       .bias = per_col(d.beta),
                       .y = view(d.dx),
                       .mean = per_row(d.mean),
                       .rstd = per_row(d.rstd),
                       .eps = kEps,
                       .implementation = o.implementation});
  const LayerNormBackwardArgs args{.dy = view(d.dy),
                                   .x = view(d.x),
                                   .mean = per_row(d.mean),
                                   .rstd = per_row(d.rstd),
                                   .weight = per_col(d.gamma),
                                   .dx = view(d.dx),
                                   .dweight = per_col(d.dgamma),
                                   .dbias = per_col(d.dbeta),
                                   .implementation = o.implementation};
  layer_norm_backward(context, args);
  return chosen(args.implementation, explain(context, args));
}

std::string run_rms_norm(Context& context, const GradcheckOptions& o, NormData& d) {
  const auto view = [&](Array& a) { return make_view(a.data(), {o.rows, o.cols}); };
  const auto per_row = [&](Array& a) { return make_view(a.data(), {o.rows}); };
  const auto per_col = [&](Array& a) { return make_view(a.data(), {o.cols}); };
  rms_norm(context, {.x = view(d.x),
                     .weight = per_col(d.gamma),
                     .y = view(d.dx),
                     .rstd = per_row(d.rstd),
                     .eps = kEps,
                     .implementation = o.implementation});
  const RmsNormBackwardArgs args{.dy = view(d.dy),
                                 .x = view(d.x),
                                 .rstd = per_row(d.rstd),
                                 .weight = per_col(d.gamma),
                                 .dx = view(d.dx),
                                 .dweight = per_col(d.dgamma),
                                 .implementation = o.implementation};
  rms_norm_backward(context, args);
  return chosen(args.implementation, explain(context, args));
}

gc::Report check(const GradcheckOptions& o, const NormData& d) {
  const bool layer = o.op == "layer_norm";
  gc::Problem problem{.inputs = {{.name = "x",
                                  .shape = {o.rows, o.cols},
                                  .value = d.x,
                                  .grad = d.dx,
                                  .per_row = true,
                                  .dims = {"row", "col"}},
                                 {.name = layer ? "gamma" : "weight",
                                  .shape = {o.cols},
                                  .value = d.gamma,
                                  .grad = d.dgamma,
                                  .dims = {"col"}}},
                      .outputs = {{.name = "y", .shape = {o.rows, o.cols}, .cotangent = d.dy}},
                      .independent_rows = o.rows};
  if (layer) {
    problem.inputs.push_back(
        {.name = "beta", .shape = {o.cols}, .value = d.beta, .grad = d.dbeta, .dims = {"col"}});
  }
  const gc::DualForward forward = [&](const gc::DualSlice& s) {
    if (layer) {
      oracle::layer_norm_forward<gc::DualScalar>({.rows = s.rows,
                                                  .cols = o.cols,
                                                  .eps = kEps,
                                                  .x = s.in[0].data(),
                                                  .gamma = s.in[1].data(),
                                                  .beta = s.in[2].data(),
                                                  .y = s.out[0].data()});
    } else {
      oracle::rms_norm_forward<gc::DualScalar>({.rows = s.rows,
                                                .cols = o.cols,
                                                .eps = kEps,
                                                .x = s.in[0].data(),
                                                .weight = s.in[1].data(),
                                                .y = s.out[0].data()});
    }
  };
  // With one or two columns dx vanishes, and what is left is rounding noise of 1/sqrt(eps) size.
  return gc::check(problem, forward,
                   {.seed = o.seed,
                    .directions = o.directions,
                    .tolerance = o.tolerance,
                    .gradient_floor = 0.1});
}

AttentionData make_attention_data(const GradcheckOptions& o) {
  const std::int64_t count = o.rows * o.cols;
  const std::uint64_t seed = o.seed * 8;
  AttentionData d;
  d.q = gc::random_values(count, seed);
  d.k = gc::random_values(count, seed + 1);
  d.v = gc::random_values(count, seed + 2);
  d.doutput = gc::random_values(count, seed + 3);
  d.dlog_sum_exp = gc::random_values(o.rows, seed + 4);
  for (Array* array : {&d.output, &d.dq, &d.dk, &d.dv}) array->resize(d.q.size());
  d.log_sum_exp.resize(static_cast<std::size_t>(o.rows));
  return d;
}

std::string run_attention(Context& context, const GradcheckOptions& o, AttentionData& d) {
  const auto view = [&](Array& a) { return make_view(a.data(), {1, o.rows, 1, o.cols}); };
  const auto per_row = [&](Array& a) { return make_view(a.data(), {1, o.rows, 1}); };
  attention(context, {.q = view(d.q),
                      .k = view(d.k),
                      .v = view(d.v),
                      .output = view(d.output),
                      .log_sum_exp = per_row(d.log_sum_exp),
                      .options = {.causal = true},
                      .implementation = o.implementation});
  const AttentionBackwardArgs args{.doutput = view(d.doutput),
                                   .dlog_sum_exp = per_row(d.dlog_sum_exp),
                                   .q = view(d.q),
                                   .k = view(d.k),
                                   .v = view(d.v),
                                   .output = view(d.output),
                                   .log_sum_exp = per_row(d.log_sum_exp),
                                   .dq = view(d.dq),
                                   .dk = view(d.dk),
                                   .dv = view(d.dv),
                                   .options = {.causal = true},
                                   .implementation = o.implementation};
  attention_backward(context, args);
  return chosen(args.implementation, explain(context, args));
}

gc::Report check_attention(const GradcheckOptions& o, const AttentionData& d) {
  const std::vector<std::int64_t> shape{o.rows, o.cols};
  const auto input = [&](const char* name, const Array& value, const Array& grad) {
    return gc::Input{
        .name = name, .shape = shape, .value = value, .grad = grad, .dims = {"row", "col"}};
  };
  const gc::Problem problem{
      .inputs = {input("q", d.q, d.dq), input("k", d.k, d.dk), input("v", d.v, d.dv)},
      .outputs = {{.name = "output", .shape = shape, .cotangent = d.doutput},
                  {.name = "log_sum_exp", .shape = {o.rows}, .cotangent = d.dlog_sum_exp}}};
  const gc::DualForward forward = [&](const gc::DualSlice& s) {
    oracle::attention<gc::DualScalar>({.queries = o.rows,
                                       .keys = o.rows,
                                       .query_heads = 1,
                                       .kv_heads = 1,
                                       .k_dim = o.cols,
                                       .v_dim = o.cols,
                                       .q = s.in[0].data(),
                                       .k = s.in[1].data(),
                                       .v = s.in[2].data(),
                                       .scale = 1 / std::sqrt(static_cast<double>(o.cols)),
                                       .causal = true,
                                       .output = s.out[0].data(),
                                       .log_sum_exp = s.out[1].data()});
  };
  return gc::check(
      problem, forward,
      {.seed = o.seed, .directions = std::max(o.directions, 3), .tolerance = o.tolerance});
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
  print(fmt::format("{} backward, f64, {} x {}, implementation {}, against dual numbers\n\n", o.op,
                    o.rows, o.cols, outcome.implementation));
  Table table({"gradient", ">norm", ">directions", ">residual", "verdict"});
  for (const gc::InputResult& in : report.inputs) {
    const bool right = in.residual <= report.tolerance;
    table.add({"d" + in.name, fmt::format("{:.4g}", in.grad_norm), std::to_string(in.directions),
               fmt::format("{:.1e}", in.residual), right ? "ok" : "WRONG"},
              right ? Tone::plain : Tone::bad);
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
  print(toned(report.ok ? "ok" : "wrong gradient", report.ok ? Tone::good : Tone::bad) +
        fmt::format(": residual {:.1e}, tolerance {:.0e}, {:.2f} s ({:.2f} s the check)\n",
                    report.residual, report.tolerance, outcome.total_seconds,
                    outcome.check_seconds));
}

// Runs the backward, spoils it where that is asked for, and checks it.
void check_norm(Context& context, const GradcheckOptions& o, Outcome& outcome) {
  NormData data = make_data(o);
  outcome.implementation =
      o.op == "layer_norm" ? run_layer_norm(context, o, data) : run_rms_norm(context, o, data);
  if (o.plant >= 0) data.dx[static_cast<std::size_t>(o.plant)] *= 2;
  const auto check_start = std::chrono::steady_clock::now();
  outcome.report = check(o, data);
  outcome.check_seconds = seconds_since(check_start);
}

void check_attention(Context& context, const GradcheckOptions& o, Outcome& outcome) {
  AttentionData data = make_attention_data(o);
  outcome.implementation = run_attention(context, o, data);
  if (o.plant >= 0) data.dq[static_cast<std::size_t>(o.plant)] *= 2;
  const auto check_start = std::chrono::steady_clock::now();
  outcome.report = check_attention(o, data);
  outcome.check_seconds = seconds_since(check_start);
}

int gradcheck(GradcheckOptions o) {
  const bool attention = o.op == "attention";
  if (o.rows == 0) o.rows = attention ? 512 : 4096;
  if (o.cols == 0) o.cols = attention ? 64 : 1024;
  check_options(o);
  const auto start = std::chrono::steady_clock::now();
  Context context({.threads = o.threads});
  Outcome outcome;
  if (attention) {
    check_attention(context, o, outcome);
  } else {
    check_norm(context, o, outcome);
  }
  outcome.total_seconds = seconds_since(start);
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
      app.add_verb("gradcheck", "Checks the float64 backward of an operator against dual numbers");
  verb->add_option("op", o->op, "layer_norm, rms_norm or attention (causal, one head)")
      ->required()
      ->one_of({"layer_norm", "rms_norm", "attention"});
  const Check positive = whole_number(1, kMaxElements);
  verb->add_option("--rows", o->rows, "Rows (4096), or tokens of attention (512)")->check(positive);
  verb->add_option("--cols", o->cols, "Columns (1024), or the size of a head (64)")
      ->check(positive);
  verb->add_option("--seed", o->seed, "Seed of data and directions")->show_default();
  verb->add_option("--directions", o->directions, "Random directions, dealt out to the gradients")
      ->check(whole_number(1, 4096))
      ->show_default();
  verb->add_option("--tolerance", o->tolerance, "Largest residual that passes")->show_default();
  verb->add_option("--threads", o->threads, "Threads of the backward; 0: all cores")
      ->check(whole_number(0, 1024))
      ->show_default();
  verb->add_option("--impl", o->implementation, "Implementation to check; default: the one chosen");
  verb->add_option("--plant", o->plant,
                   "Doubles this element of dx or dq, to see the check find it")
      ->check(whole_number(0, kMaxElements));
  verb->add_flag("--json", o->json, "JSON on standard output");
  verb->callback([o, &exit_code] { exit_code = gradcheck(*o); });
}

}  // namespace touchstone::cli
