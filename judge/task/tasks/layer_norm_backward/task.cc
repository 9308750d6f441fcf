#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/card_task.h"
#include "judge/task/tasks/layer_norm_backward/layer_norm.h"
#include "judge/task/tasks/plan_builder.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

using layer_norm::Answer;
using layer_norm::Problem;

// All forward calls of a case come first, then all backward calls.
Call forward_call(const Problem& p, int state) {
  Call call;
  call.function = "layer_norm_forward";
  call.scalars = {p.rows, p.cols, static_cast<double>(p.eps)};
  call.inputs = {f32_input("x", {p.rows, p.cols}, p.x), f32_input("gamma", {p.cols}, p.gamma),
                 f32_input("beta", {p.cols}, p.beta)};
  call.outputs = {{"y", DType::f32, {p.rows, p.cols}}};
  call.state = state;
  return call;
}

Call backward_call(const Problem& p, int state) {
  Call call;
  call.function = "layer_norm_backward";
  call.scalars = {p.rows, p.cols, static_cast<double>(p.eps)};
  call.inputs = {f32_input("dy", {p.rows, p.cols}, p.dy), f32_input("x", {p.rows, p.cols}, p.x),
                 f32_input("gamma", {p.cols}, p.gamma)};
  call.outputs = {{"dx", DType::f32, {p.rows, p.cols}},
                  {"dgamma", DType::f32, {p.cols}},
                  {"dbeta", DType::f32, {p.cols}}};
  call.state = state;
  return call;
}

// From so many columns on the sums of a row may have lost more than any single element.
constexpr int64_t kLongSum = 1024;

size_t forwards_of(const Case& asked) {
  return static_cast<size_t>(
      std::ranges::count(asked.calls, std::string("layer_norm_forward"), &Call::function));
}

// Which call is the backward of pair number i, or the first of them: where many caches are alive
// they are used in an order of their own.
size_t backward_of(const Case& asked, size_t i) {
  for (size_t call = forwards_of(asked); call < asked.calls.size(); ++call) {
    if (asked.calls[call].state == static_cast<int>(i)) return call;
  }
  throw InvalidArgument("case: a forward without its backward");
}

// The numbers as the case holds them, so that a case is judged by what was really asked.
std::vector<Problem> problems_of(const Case& asked) {
  std::vector<Problem> problems;
  for (size_t i = 0; i < forwards_of(asked); ++i) {
    const Call& forward = asked.calls[i];
    const Call& backward = asked.calls[backward_of(asked, i)];
    Problem p;
    p.rows = forward.whole(0);
    p.cols = forward.whole(1);
    p.eps = static_cast<float>(forward.real(2));
    p.x = floats_of(forward.inputs[0]);
    p.gamma = floats_of(forward.inputs[1]);
    p.beta = floats_of(forward.inputs[2]);
    p.dy = floats_of(backward.inputs[0]);
    problems.push_back(std::move(p));
  }
  return problems;
}

Special special_of(const CaseSpec& spec) {
  return spec.family == "infinity" ? Special::not_finite : Special::same;
}

class LayerNormBackward final : public CardTask {
 public:
  LayerNormBackward()
      : CardTask("layer_norm_backward", {.resolve = layer_norm::resolve,
                                         .check = layer_norm::check_spec,
                                         .sizes = {{"rows", 1}, {"cols", 1}}}) {}

  Plan plan(uint64_t seed, bool small) const override {
    return layer_norm::make_plan(card(), seed, small);
  }

  CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                       Memo& memo) const override {
    Checker checker(asked, replies);
    const auto& answers = memo.get<std::vector<Answer>>([&] {
      std::vector<Answer> all;
      for (const Problem& problem : problems_of(asked)) {
        const Tolerance tolerance = tolerance_of(asked.spec);
        all.push_back(layer_norm::expected_answer(problem, tolerance));
        // Long sums may cost more than the digits of a single element.
        if (problem.cols < kLongSum || tolerance.growth != Growth::random) continue;
        Answer own = all.back();
        layer_norm::set_bounds(problem, {tolerance.factor, Growth::tree, tolerance.stable}, own);
        all.back().own_y = std::move(own.y);
        all.back().own_dx = std::move(own.dx);
      }
      return all;
    });
    const size_t pairs = answers.size();
    const Special special = special_of(asked.spec);
    for (size_t i = 0; i < pairs; ++i) {
      const Answer& right = answers[i];
      if (checker.answered(i)) compare_output(checker, asked, i, 0, right.y, special);
      if (right.own_y.value.empty() || !checker.answered(i)) continue;
      check_digits(checker, asked, i, right.own_y, false);
    }
    for (size_t call = pairs; call < asked.calls.size(); ++call) {
      const Answer& right = answers[static_cast<size_t>(asked.calls[call].state)];
      if (!checker.answered(call)) continue;
      compare_output(checker, asked, call, 0, right.dx, special);
      compare_output(checker, asked, call, 1, right.dgamma, special);
      compare_output(checker, asked, call, 2, right.dbeta, special);
      if (!right.own_y.value.empty()) check_digits(checker, asked, call, right.own_dx, true);
    }
    return checker.finish();
  }

  void compare_related(Checker& checker, const Related& pair) const override;
  std::vector<Reply> answer_in_bits(const Case& asked, int bits) const override;

  std::vector<CaseSpec> timed(uint64_t seed, bool small) const override {
    PlanBuilder builder(card(), seed);
    if (small) {
      builder.add("mixed", {{"rows", 64}, {"cols", 256}});
    } else {
      builder.add("mixed", {{"rows", 64}, {"cols", 512}});
      builder.add("mixed", {{"rows", 512}, {"cols", 1024}});
      builder.add("mixed", {{"rows", 64}, {"cols", 8192}});
    }
    return builder.plan.cases;
  }

  double bytes(const Case& c) const override {
    double sum = 0;
    for (const Call& call : c.calls) {
      if (call.function != "layer_norm_forward") continue;
      sum += 4 * (call.count(0) * call.count(1) * 5 + call.count(1) * 6);
    }
    return sum;
  }

  // Mean and rstd of every row.
  double least_state_bytes(const Case& c) const override {
    double sum = 0;
    for (const Call& call : c.calls) {
      if (call.function == "layer_norm_forward") sum += 8 * call.count(0);
    }
    return sum;
  }

  double flops(const Case& c) const override {
    double sum = 0;
    for (const Call& call : c.calls) {
      const double per_element = call.function == "layer_norm_forward" ? 9 : 15;
      sum += per_element * call.count(0) * call.count(1);
    }
    return sum;
  }

 private:
  // The elements of a row against each other: what its mean and its variance contribute is common.
  static void check_digits(Checker& checker, const Case& asked, size_t call, const Expected& own,
                           bool backward) {
    const auto state = static_cast<size_t>(asked.calls[call].state);
    const Problem p = problems_of(asked)[state];
    const Shared shared{p.rows, p.cols,
                        [&](int64_t row, std::vector<std::vector<double>>& vectors) {
                          return layer_norm::shared_errors(p, row, backward, vectors);
                        }};
    const OutputTensor& tensor = asked.calls[call].outputs[0];
    checker.add(compare_apart(tensor.name, static_cast<int>(call),
                              as_f32(checker.reply(call).outputs[0]), own, shared),
                tensor.shape);
  }

  Case make_case(const CaseSpec& spec) const override {
    const std::vector<Problem> problems = layer_norm::make_problems(spec);
    Case c{spec, {}};
    for (size_t i = 0; i < problems.size(); ++i) {
      c.calls.push_back(forward_call(problems[i], static_cast<int>(i)));
    }
    const bool many = spec.family == "many_caches";
    const std::vector<int64_t> order =
        permutation(spec.seed, static_cast<int64_t>(problems.size()));
    for (size_t i = 0; i < problems.size(); ++i) {
      const size_t which = many ? static_cast<size_t>(order[i]) : i;
      c.calls.push_back(backward_call(problems[which], static_cast<int>(which)));
    }
    // A cache is only read by the backward: it may be asked again.
    if (spec.family == "interleaved") c.calls.push_back(backward_call(problems[0], 0));
    return c;
  }

  Tolerance tolerance_of(const CaseSpec& spec) const override {
    Tolerance tolerance = CardTask::tolerance_of(spec);
    // A million deviations from zero every rounding of the mean shows: no factor on top.
    if (family_of(layer_norm::resolve(spec)).growth == Growth::tree) tolerance.factor = 1;
    return tolerance;
  }
};

// Each output of the second case against the one of the first, where the relation puts it.
void LayerNormBackward::compare_related(Checker& checker, const Related& pair) const {
  const Case& second = pair.second;
  if (pair.relation.id == "scale_gradient") {
    compare_scaled(
        checker, second, 1, pair.before[1],
        parameter_or(second.spec, "grad2", 0) - parameter_or(pair.first.spec, "grad2", 0));
    return;
  }
  // Rows moved or kept.
  const Problem p = problems_of(second)[0];
  Answer right = layer_norm::expected_answer(p, tolerance_of(second.spec));
  const std::vector<int64_t> from =
      elements_of_rows(layer_norm::row_order(second.spec, p.rows), p.cols);
  compare_moved(checker, second, 0, 0, std::move(right.y), from, pair.before[0]);
  compare_moved(checker, second, 1, 0, std::move(right.dx), from, pair.before[1]);
}

// Inputs rounded, everything after it exact.
std::vector<Reply> LayerNormBackward::answer_in_bits(const Case& asked, int bits) const {
  std::vector<Problem> problems = problems_of(asked);
  std::vector<Reply> replies(asked.calls.size());
  for (size_t i = 0; i < problems.size(); ++i) {
    Problem& p = problems[i];
    for (std::vector<float>* values : {&p.x, &p.gamma, &p.beta, &p.dy}) {
      round_to_bits(*values, bits);
    }
    const Answer a = layer_norm::expected_answer(p, {});
    const auto put = [](Reply& reply, const Expected& expected) {
      reply.ending = Ending::ok;
      reply.outputs.push_back(bytes_of(expected));
    };
    put(replies[i], a.y);
    for (size_t call = problems.size(); call < replies.size(); ++call) {
      if (asked.calls[call].state != static_cast<int>(i)) continue;
      for (const Expected* expected : {&a.dx, &a.dgamma, &a.dbeta}) put(replies[call], *expected);
    }
  }
  return replies;
}

}  // namespace

std::unique_ptr<Task> make_layer_norm_backward() { return std::make_unique<LayerNormBackward>(); }

}  // namespace touchstone::judge
