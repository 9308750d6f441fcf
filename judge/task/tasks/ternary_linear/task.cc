#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/card_task.h"
#include "judge/task/tasks/output_errors.h"
#include "judge/task/tasks/plan_builder.h"
#include "judge/task/tasks/ternary_linear/ternary_linear.h"

namespace touchstone::judge {
namespace {

using ternary_linear::Answer;
using ternary_linear::Problem;
using ternary_linear::Projected;

enum Step : size_t { kProject, kProduct, kBackward };

// A case that must be refused asks for one thing only.
constexpr int64_t kBadCode = 4;
constexpr int64_t kBadGroupBackward = 5;
bool is_bad(const CaseSpec& spec) { return spec.family == "bad_input"; }
// Of the calls that multiply, which is asked; the projection is not.
bool has_bad_code(const CaseSpec& spec) {
  return is_bad(spec) && parameter_or(spec, "defect", 0) == kBadCode;
}
bool has_bad_backward(const CaseSpec& spec) {
  return is_bad(spec) && parameter_or(spec, "defect", 0) == kBadGroupBackward;
}
bool is_projected(const CaseSpec& spec) { return !has_bad_code(spec) && !has_bad_backward(spec); }

// The numbers as the case holds them, so that a case is judged by what was really asked.
Problem problem_of(const Case& asked) {
  Problem p = ternary_linear::make_problem(asked.spec);
  if (is_bad(asked.spec)) return p;
  p.weight = floats_of(asked.calls[kProject].inputs[0]);
  p.x = floats_of(asked.calls[kProduct].inputs[2]);
  p.dy = floats_of(asked.calls[kBackward].inputs[3]);
  return p;
}

// What the calls that multiply are given: the right codes, with anything in the unused bits.
Projected given_to(const Problem& p) {
  Projected given = ternary_linear::project(p);
  const auto used = static_cast<int>(p.inputs % 16 * 2);
  if (!p.garbage || used == 0) return given;
  const uint32_t unused = ~0U << used;
  for (size_t row = 0; row < static_cast<size_t>(p.outputs); ++row) {
    int32_t& word = given.packed[(row + 1) * static_cast<size_t>(p.words()) - 1];
    word = static_cast<int32_t>(static_cast<uint32_t>(word) |
                                (static_cast<uint32_t>(mix_bits(row)) & unused));
  }
  return given;
}

class TernaryLinear final : public CardTask {
 public:
  TernaryLinear()
      : CardTask(
            "ternary_linear",
            {.resolve = ternary_linear::resolve,
             .check = ternary_linear::check_spec,
             .sizes = {{"rows", 1}, {"outputs", 1}, {"inputs", 1}, {"int8", 0}, {"absmax", 0}}}) {}

  Plan plan(uint64_t seed, bool small) const override {
    return ternary_linear::make_plan(card(), seed, small);
  }

  CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                       Memo& memo) const override {
    Checker checker(asked, replies);
    if (is_bad(asked.spec)) {
      checker.refused(0);
      return checker.finish();
    }
    const Answer& right = memo.get<Answer>([&] {
      const Problem p = problem_of(asked);
      return ternary_linear::expected_answer(p, given_to(p), tolerance_of(asked.spec),
                                             is_exact(asked.spec));
    });
    if (checker.answered(kProject)) {
      add_words(checker, asked, right.projected.packed);
      checker.add(compare_bits("scales", kProject, as_f32(replies[kProject].outputs[1]),
                               right.projected.scales),
                  asked.calls[kProject].outputs[1].shape);
    }
    const Call& product = asked.calls[kProduct];
    if (checker.answered(kProduct)) {
      compare_numbers(checker, asked, {kProduct, 0}, right.y, product.whole(2));
    }
    if (checker.answered(kBackward)) {
      compare_numbers(checker, asked, {kBackward, 0}, right.dx, product.whole(1));
      compare_numbers(checker, asked, {kBackward, 1}, right.dweight, product.whole(0));
    }
    return checker.finish();
  }

  void compare_related(Checker& checker, const Related& pair) const override;
  std::vector<Reply> answer_in_bits(const Case& asked, int bits) const override;

  std::vector<CaseSpec> timed(uint64_t seed, bool small) const override {
    PlanBuilder b(card(), seed);
    using ternary_linear::shape;
    if (small) {
      b.add("mixed", shape({.rows = 2, .outputs = 64, .inputs = 256, .group = 128}));
    } else {
      b.add("mixed", shape({.rows = 1, .outputs = 512, .inputs = 2048, .group = 128}));
      b.add("mixed",
            shape({.rows = 16, .outputs = 256, .inputs = 1024, .group = 128}, {{"int8", 1}}));
    }
    return b.plan.cases;
  }

  double bytes(const Case& c) const override {
    double sum = 0;
    for (const Call& call : c.calls) {
      if (!call.timed) continue;
      sum += 4 * static_cast<double>(element_count(call.outputs[0].shape));
      for (const InputTensor& input : call.inputs) sum += static_cast<double>(input.data.size());
    }
    return sum;
  }
  double flops(const Case& c) const override {
    double sum = 0;
    for (const Call& call : c.calls) {
      if (call.timed) sum += 2 * call.count(0) * call.count(1) * call.count(2);
    }
    return sum;
  }

 private:
  static bool is_exact(const CaseSpec& spec) {
    return ternary_linear::is_exact(spec.family) && spec.edits.empty();
  }

  // Each element, and where numbers are normal all of them together: bounds of single elements of long
  // sums are too wide to tell a few bits.
  void compare_numbers(Checker& checker, const Case& asked, std::pair<size_t, size_t> which,
                       const Expected& right, int64_t terms) const {
    compare_output(checker, asked, which.first, which.second, right, Special::same);
    const Tolerance tolerance = tolerance_of(asked.spec);
    constexpr size_t kEnough = 16;
    if (tolerance.growth != Growth::random || right.value.size() < kEnough) return;
    compare_norm(checker, asked, which.first, which.second, right,
                 tolerance.factor * kUnit * (4 + growth_of(tolerance.growth, terms)));
  }

  static void add_words(Checker& checker, const Case& asked, std::span<const int32_t> packed) {
    OutputErrors errors(asked.calls[kProject]);
    const auto got = as_i32(checker.reply(kProject).outputs[0]);
    for (size_t i = 0; i < packed.size(); ++i) {
      errors.exact(0, static_cast<int64_t>(i), got[i], packed[i]);
    }
    errors.add_to(checker, {0});
  }

  Case make_case(const CaseSpec& spec) const override {
    ternary_linear::check_spec(spec);
    const Problem p = ternary_linear::make_problem(spec);
    Case made{spec, {}};
    if (is_projected(spec)) made.calls.push_back(project_call(p));
    if (is_bad(spec) && is_projected(spec)) return made;
    Call product;
    product.function = "ternary_linear";
    product.scalars = {p.rows,     p.outputs, p.inputs,       p.group,
                       p.groups(), p.words(), int64_t{p.int8}};
    product.inputs = {i32_input("packed", {p.outputs, p.words()},
                                std::vector<int32_t>(static_cast<size_t>(p.outputs * p.words()))),
                      f32_input("scales", {p.outputs, p.groups()},
                                std::vector<float>(static_cast<size_t>(p.outputs * p.groups()))),
                      f32_input("x", {p.rows, p.inputs}, p.x)};
    product.inputs[0].derived = product.inputs[1].derived = true;
    product.outputs = {{"y", DType::f32, {p.rows, p.outputs}}};
    Call backward = product;
    backward.function = "ternary_backward";
    backward.inputs.push_back(f32_input("dy", {p.rows, p.outputs}, p.dy));
    backward.outputs = {{"dx", DType::f32, {p.rows, p.inputs}},
                        {"dweight", DType::f32, {p.outputs, p.inputs}}};
    backward.timed = false;
    if (!has_bad_backward(spec)) made.calls.push_back(product);
    if (!has_bad_code(spec)) made.calls.push_back(backward);
    return made;
  }

  static Call project_call(const Problem& p) {
    Call call;
    call.function = "ternary_project";
    call.scalars = {p.outputs, p.inputs, p.group, p.groups(), p.words(), int64_t{p.absmax}};
    call.inputs = {f32_input("weight", {p.outputs, p.inputs}, p.weight)};
    call.outputs = {{"packed", DType::i32, {p.outputs, p.words()}},
                    {"scales", DType::f32, {p.outputs, p.groups()}}};
    call.timed = false;
    return call;
  }

  // Packed weights and scales follow from the weights, edited ones included.
  void derive_inputs(Case& c) const override {
    if (is_bad(c.spec) && is_projected(c.spec)) return;
    Problem p = ternary_linear::make_problem(c.spec);
    if (!is_bad(c.spec)) p.weight = floats_of(c.calls[kProject].inputs[0]);
    Projected given = given_to(p);
    if (has_bad_code(c.spec)) given.packed.back() |= 3;
    for (Call& call : c.calls) {
      if (call.function == "ternary_project") continue;
      call.inputs[0] = i32_input("packed", call.inputs[0].shape, given.packed);
      call.inputs[1] = f32_input("scales", call.inputs[1].shape, given.scales);
      call.inputs[0].derived = call.inputs[1].derived = true;
    }
  }
};

void TernaryLinear::compare_related(Checker& checker, const Related& pair) const {
  const std::vector<Reply>& before = pair.before;
  if (pair.relation.id == "scale_weights") {
    const int64_t power = parameter_or(pair.second.spec, "power", 0);
    const auto packed = as_i32(before[kProject].outputs[0]);
    add_words(checker, pair.second, packed);
    for (const auto& [call, output] : {std::pair(kProject, 1U), {kProduct, 0U}, {kBackward, 0U}}) {
      const std::span<const float> earlier = as_f32(before[call].outputs[output]);
      std::vector<float> scaled(earlier.begin(), earlier.end());
      for (float& value : scaled) value = std::ldexp(value, static_cast<int>(power));
      const OutputTensor& tensor = pair.second.calls[call].outputs[output];
      if (checker.omitted(call, output)) continue;
      checker.add(compare_bits(tensor.name, static_cast<int>(call),
                               as_f32(checker.reply(call).outputs[output]), scaled),
                  tensor.shape);
    }
    return;
  }
  const Problem p = problem_of(pair.second);
  const Answer right = ternary_linear::expected_answer(
      p, given_to(p), tolerance_of(pair.second.spec), is_exact(pair.second.spec));
  const std::vector<int64_t> order = ternary_linear::row_order(pair.second.spec, p.rows);
  compare_moved(checker, pair.second, kProduct, 0, right.y, elements_of_rows(order, p.outputs),
                before[kProduct]);
  compare_moved(checker, pair.second, kBackward, 0, right.dx, elements_of_rows(order, p.inputs),
                before[kBackward]);
}

// Weights, activations and gradients rounded, everything after it exact.
std::vector<Reply> TernaryLinear::answer_in_bits(const Case& asked, int bits) const {
  std::vector<Reply> replies(asked.calls.size());
  for (Reply& reply : replies) reply.ending = Ending::refused;
  if (is_bad(asked.spec)) return replies;
  Problem p = problem_of(asked);
  const Projected given = given_to(p);
  for (std::vector<float>* numbers : {&p.weight, &p.x, &p.dy}) round_to_bits(*numbers, bits);
  const Answer answer = ternary_linear::expected_answer(p, given, {}, false);
  for (Reply& reply : replies) reply.ending = Ending::ok;
  replies[kProject].outputs = {bytes_of(answer.projected.packed),
                               bytes_of(answer.projected.scales)};
  replies[kProduct].outputs = {bytes_of(answer.y)};
  replies[kBackward].outputs = {bytes_of(answer.dx), bytes_of(answer.dweight)};
  return replies;
}

}  // namespace

std::unique_ptr<Task> make_ternary_linear() { return std::make_unique<TernaryLinear>(); }

}  // namespace touchstone::judge
