// The tasks flash_attention_forward and flash_attention_backward.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/attention/attention.h"
#include "judge/task/tasks/attention/plan.h"
#include "judge/task/tasks/card_task.h"
#include "judge/task/tasks/plan_builder.h"

namespace touchstone::judge {
namespace {

using attention::BackwardAnswer;
using attention::ForwardAnswer;
using attention::Problem;
using attention::Shape;

// A query that sees a NaN may answer anything; the others are looked at.
Elements without_nan(const Expected& expected) {
  Elements elements;
  for (const double value : expected.value) elements.selected.push_back(!std::isnan(value));
  return elements;
}

const InputTensor& input_named(const Call& call, std::string_view name) {
  for (const InputTensor& input : call.inputs) {
    if (input.name == name) return input;
  }
  throw InvalidArgument(fmt::format("case: there is no input {}", name));
}

// The outputs of one call, by name, with what they have to be.
using Answers = std::vector<Expected>;

// From so many keys on the bounds of single gradients, which grant that all roundings of a row go
// one way, are too wide to tell a few bits.
constexpr int64_t kLongSum = 1024;

class FlashAttention final : public CardTask {
 public:
  explicit FlashAttention(bool backward)
      : CardTask(backward ? "flash_attention_backward" : "flash_attention_forward",
                 {.resolve = attention::resolve,
                  .check = [](const CaseSpec& spec) { attention::shape_of(spec); },
                  .sizes = {{"batch", 1},
                            {"kv_heads", 1},
                            {"group", 1},
                            {"queries", 1},
                            {"keys", 1},
                            {"dim", 1},
                            {"causal", 0}}}),
        backward_(backward) {}

  Plan plan(uint64_t seed, bool small) const override {
    return attention::make_plan(card(), seed, small, backward_);
  }
  std::vector<CaseSpec> timed(uint64_t seed, bool small) const override {
    return attention::make_timed(card(), seed, small);
  }

  CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                       Memo& memo) const override {
    Checker checker(asked, replies);
    if (asked.spec.family == "bad_arguments") {
      checker.refused(0, true);
      return checker.finish();
    }
    if (!checker.answered(0)) return checker.finish();
    const auto& right =
        memo.get<Answers>([&] { return answers(problem_of(asked), tolerance_of(asked.spec)); });
    for (size_t output = 0; output < right.size(); ++output) {
      compare_output(checker, asked, 0, output, right[output], Special::same,
                     without_nan(right[output]));
    }
    const Tolerance tolerance = tolerance_of(asked.spec);
    const int64_t keys = shape_in(asked.calls[0]).keys;
    // Of normal numbers: scores that are large round more than any sum does.
    const bool plain = asked.spec.family == "sizes" || asked.spec.family == "long";
    if (!backward_ || !plain || keys < kLongSum || tolerance.growth != Growth::random) {
      return checker.finish();
    }
    for (size_t output = 0; output < right.size(); ++output) {
      compare_norm(checker, asked, 0, output, right[output],
                   tolerance.factor * kUnit * growth_of(tolerance.growth, keys));
    }
    return checker.finish();
  }

  void compare_related(Checker& checker, const Related& pair) const override;
  std::vector<Reply> answer_in_bits(const Case& asked, int bits) const override;

  double bytes(const Case& c) const override {
    const Shape s = shape_in(c.calls[0]);
    const auto q = static_cast<double>(s.query_elements());
    const auto k = static_cast<double>(s.key_elements());
    const auto rows = static_cast<double>(s.rows());
    return 4 * (backward_ ? 4 * q + 4 * k + rows : 2 * q + 2 * k + rows);
  }

  double flops(const Case& c) const override {
    const Shape s = shape_in(c.calls[0]);
    return (backward_ ? 10.0 : 4.0) * s.pairs() * static_cast<double>(s.dim);
  }

 protected:
  Case make_case(const CaseSpec& spec) const override;

  // What the forward returned follows from the other inputs.
  void derive_inputs(Case& c) const override {
    if (!backward_ || c.spec.family == "bad_arguments") return;
    const ForwardAnswer forward = attention::expected_forward(problem_of(c), {});
    for (InputTensor& input : c.calls[0].inputs) {
      if (!input.derived) continue;
      const Expected& from = input.name == "out" ? forward.out : forward.lse;
      input.data = bytes_of(from);
    }
  }

 private:
  static Shape shape_in(const Call& call) {
    Shape s;
    s.batch = call.whole(0);
    s.query_heads = call.whole(1);
    s.kv_heads = call.whole(2);
    s.queries = call.whole(3);
    s.keys = call.whole(4);
    s.dim = call.whole(5);
    s.causal = call.whole(6) != 0;
    s.scale = call.real(7);
    return s;
  }

  // The numbers as the case holds them, so that a case is judged by what was really asked.
  Problem problem_of(const Case& asked) const {
    const Call& call = asked.calls[0];
    Problem p;
    p.shape = shape_in(call);
    p.q = floats_of(input_named(call, "q"));
    p.k = floats_of(input_named(call, "k"));
    p.v = floats_of(input_named(call, "v"));
    if (backward_) p.dout = floats_of(input_named(call, "dout"));
    return p;
  }

  Answers answers(const Problem& p, const Tolerance& tolerance) const {
    if (backward_) {
      BackwardAnswer a = attention::expected_backward(p, tolerance);
      return {std::move(a.dq), std::move(a.dk), std::move(a.dv)};
    }
    ForwardAnswer a = attention::expected_forward(p, tolerance);
    return {std::move(a.out), std::move(a.lse)};
  }

  // Where the relation puts an element of the case before it; -1 where it says nothing.
  std::vector<int64_t> sources(const Case& second, size_t output) const;

  bool backward_;
};

Case FlashAttention::make_case(const CaseSpec& spec) const {
  Problem p = attention::make_problem(spec, backward_);
  Shape s = p.shape;
  const bool bad = spec.family == "bad_arguments";
  const int64_t kind = parameter_or(spec, "bad", 0);
  if (bad && kind == 1) {
    // One query head more than the key-value heads can share.
    s.query_heads += 1;
    p.q.resize(static_cast<size_t>(s.query_elements()));
    if (backward_) p.dout.resize(p.q.size());
  }
  if (bad && (kind == 2 || kind == 3)) {
    // Heads of size 0, and arrays that have it: NumPy code that looks at shapes sees it too.
    s.dim = 0;
    for (std::vector<float>* values : {&p.q, &p.k, &p.v, &p.dout}) values->clear();
  }
  if (bad && kind == 4) {
    s.kv_heads = 0;
    for (std::vector<float>* values : {&p.k, &p.v}) values->clear();
  }
  const std::vector<int64_t> query_shape = {s.batch, s.query_heads, s.queries, s.dim};
  const std::vector<int64_t> key_shape = {s.batch, s.kv_heads, s.keys, s.dim};
  const std::vector<int64_t> row_shape = {s.batch, s.query_heads, s.queries};
  Call call;
  call.function = card().id;
  call.scalars = {s.batch,
                  s.query_heads,
                  s.kv_heads,
                  s.queries,
                  s.keys,
                  s.dim,
                  static_cast<int64_t>(s.causal ? 1 : 0),
                  s.scale};
  // Below 0: no array has such a size.
  if (bad && kind == 3) call.scalars[5] = int64_t{-8};
  if (bad && kind == 4) call.scalars[2] = -s.query_heads;
  if (backward_) call.inputs.push_back(f32_input("dout", query_shape, p.dout));
  call.inputs.push_back(f32_input("q", query_shape, p.q));
  call.inputs.push_back(f32_input("k", key_shape, p.k));
  call.inputs.push_back(f32_input("v", key_shape, p.v));
  if (backward_) {
    call.inputs.push_back(f32_input("out", query_shape, std::vector<float>(p.q.size())));
    call.inputs.push_back(
        f32_input("lse", row_shape, std::vector<float>(static_cast<size_t>(s.rows()))));
    for (size_t i = 4; i < 6; ++i) call.inputs[i].derived = true;
    call.outputs = {{"dq", DType::f32, query_shape},
                    {"dk", DType::f32, key_shape},
                    {"dv", DType::f32, key_shape}};
  } else {
    call.outputs = {{"out", DType::f32, query_shape}, {"lse", DType::f32, row_shape}};
  }
  return {spec, {std::move(call)}};
}

std::vector<int64_t> FlashAttention::sources(const Case& second, size_t output) const {
  const Shape s = shape_in(second.calls[0]);
  const bool of_keys = backward_ && output > 0;
  const std::vector<int64_t> items = attention::batch_order(second.spec, s);
  const std::vector<int64_t> keys = attention::key_order(second.spec, s);
  const bool last_changed = attention::changed_last_key(second.spec);
  const int64_t heads = of_keys ? s.kv_heads : s.query_heads;
  const int64_t length = of_keys ? s.keys : s.queries;
  const int64_t width = !backward_ && output == 1 ? 1 : s.dim;
  std::vector<int64_t> from;
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t item = items[static_cast<size_t>(b)];
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < length; ++i) {
        // The last key changes the gradients of all others, and the answer of who sees it.
        const bool lost = item < 0 || (last_changed && (of_keys || s.seen(i) == s.keys));
        const int64_t row = of_keys ? keys[static_cast<size_t>(i)] : i;
        for (int64_t d = 0; d < width; ++d) {
          from.push_back(lost ? -1 : ((item * heads + head) * length + row) * width + d);
        }
      }
    }
  }
  return from;
}

void FlashAttention::compare_related(Checker& checker, const Related& pair) const {
  const CaseSpec& spec = pair.second.spec;
  if (pair.relation.id == "power_of_two") {
    const char* name = backward_ ? "grads2" : "values2";
    compare_scaled(checker, pair.second, 0, pair.before[0],
                   parameter_or(spec, name, 0) - parameter_or(pair.first.spec, name, 0), "lse");
    return;
  }
  // Rows moved or kept.
  Answers right = answers(problem_of(pair.second), tolerance_of(spec));
  for (size_t output = 0; output < right.size(); ++output) {
    compare_moved(checker, pair.second, 0, output, std::move(right[output]),
                  sources(pair.second, output), pair.before[0]);
  }
}

// Inputs rounded, everything after it exact.
std::vector<Reply> FlashAttention::answer_in_bits(const Case& asked, int bits) const {
  Reply reply;
  if (asked.spec.family == "bad_arguments") {
    reply.ending = Ending::refused;
    return {reply};
  }
  Problem p = problem_of(asked);
  for (std::vector<float>* values : {&p.q, &p.k, &p.v, &p.dout}) {
    round_to_bits(*values, bits);
  }
  reply.ending = Ending::ok;
  for (const Expected& expected : answers(p, {})) reply.outputs.push_back(bytes_of(expected));
  return {reply};
}

}  // namespace

std::unique_ptr<Task> make_flash_attention_forward() {
  return std::make_unique<FlashAttention>(false);
}

std::unique_ptr<Task> make_flash_attention_backward() {
  return std::make_unique<FlashAttention>(true);
}

}  // namespace touchstone::judge
