#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/card_task.h"
#include "judge/task/tasks/output_errors.h"
#include "judge/task/tasks/plan_builder.h"
#include "judge/task/tasks/tree_verify/tree_verify.h"

namespace touchstone::judge {
namespace {

using tree_verify::Answer;
using tree_verify::Problem;
using Answers = std::vector<Answer>;

enum Output : size_t {
  kPath,
  kAccepted,
  kEmitted,
  kFinish,
  kLogProbabilities,
  kPositions,
  kAncestors,
  kCacheAfter
};

// The numbers as the case holds them, so that a case is judged by what was really asked.
Problem problem_of(const Case& asked) {
  const Call& call = asked.calls[0];
  Problem p;
  p.requests = call.whole(0);
  p.nodes = call.whole(1);
  p.vocab = call.whole(2);
  p.steps = call.whole(3);
  p.tree_words = call.whole(4);
  p.mask_words = call.whole(5);
  p.history_tokens = call.whole(6);
  p.capacity = call.whole(7);
  p.width = call.whole(8);
  p.rule = call.whole(9);
  p.top_k = call.whole(10);
  p.eos = call.whole(11);
  p.temperature = static_cast<float>(call.real(12));
  p.penalty = static_cast<float>(call.real(13));
  p.logits = floats_of(call.inputs[0]);
  p.draft = floats_of(call.inputs[1]);
  p.allowed = ints_of(call.inputs[2]);
  p.first = ints_of(call.inputs[3]);
  p.tokens = ints_of(call.inputs[4]);
  p.parents = ints_of(call.inputs[5]);
  p.lengths = ints_of(call.inputs[6]);
  p.limits = ints_of(call.inputs[7]);
  p.seeds = ints_of(call.inputs[8]);
  p.history = ints_of(call.inputs[9]);
  p.cache = floats_of(call.inputs[10]);
  return p;
}

double bound_of(const tree_verify::Choice& choice, const Tolerance& t) {
  return t.factor * kUnit * choice.error;
}

// A part of an output that belongs to one request.
template <class T>
std::span<const T> part(std::span<const T> all, int64_t begin, int64_t count) {
  return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

class TreeVerify final : public CardTask {
 public:
  TreeVerify()
      : CardTask("tree_verify", {.resolve = tree_verify::resolve,
                                 .check = tree_verify::check_spec,
                                 .sizes = {{"requests", 1},
                                           {"nodes", 0},
                                           {"vocab", 1},
                                           {"depth", 1},
                                           {"prefix", 1},
                                           {"width", 1},
                                           {"history", 0},
                                           {"mask", 0},
                                           {"eos", 0},
                                           {"topk", 0},
                                           {"rule", 0}}}) {}

  Plan plan(uint64_t seed, bool small) const override {
    return tree_verify::make_plan(card(), seed, small);
  }

  CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                       Memo& memo) const override {
    Checker checker(asked, replies);
    const Tolerance tolerance = tolerance_of(asked.spec);
    const Problem p = problem_of(asked);
    const bool bad = tree_verify::must_be_refused(p);
    const Answers& right =
        memo.get<Answers>([&] { return bad ? Answers{} : tree_verify::verify(p, tolerance); });
    if (bad || std::ranges::any_of(right, &Answer::nan)) {
      checker.refused(0);
      return checker.finish();
    }
    if (!checker.answered(0)) return checker.finish();
    OutputErrors errors(asked.calls[0]);
    compare_answers(p, right, tolerance, replies[0], errors);
    compare_trees(checker, p, right, replies[0], errors);
    add_errors(checker, errors);
    return checker.finish();
  }

  void compare_related(Checker& checker, const Related& pair) const override;
  std::vector<Reply> answer_in_bits(const Case& asked, int bits) const override;

  std::vector<CaseSpec> timed(uint64_t seed, bool small) const override {
    PlanBuilder b(card(), seed);
    using tree_verify::shape;
    if (small) {
      b.add("mixed", shape({.requests = 4, .nodes = 8, .vocab = 512}, {{"temp100", 80}}));
    } else {
      b.add("mixed", shape({.requests = 8, .nodes = 16, .vocab = 4096}, {{"width", 64}}));
      b.add("mixed",
            shape({.requests = 4, .nodes = 12, .vocab = 4096}, {{"temp100", 80}, {"topk", 20}}));
    }
    return b.plan.cases;
  }

  // The rows of the committed tokens and the cache, read and written; how many rows more are read,
  // and how many nodes there are, depends on the data.
  double bytes(const Case& c) const override {
    const Call& call = c.calls[0];
    return 4 * call.count(0) *
           (call.count(2) + 2 * call.count(7) * call.count(8) + 3 * call.count(3));
  }
  double flops(const Case& c) const override {
    return 6 * c.calls[0].count(0) * c.calls[0].count(2);
  }

 private:
  static void add_errors(Checker& checker, const OutputErrors& errors) {
    errors.add_to(checker, {kAccepted, kPath, kEmitted, kFinish, kPositions, kAncestors,
                            kCacheAfter, kLogProbabilities});
  }

  static void compare_answers(const Problem& p, const Answers& right, const Tolerance& t,
                              const Reply& reply, OutputErrors& errors) {
    const auto path = as_i32(reply.outputs[kPath]);
    const auto emitted = as_i32(reply.outputs[kEmitted]);
    const auto scores = as_f32(reply.outputs[kLogProbabilities]);
    for (size_t r = 0; r < right.size(); ++r) {
      const Answer& a = right[r];
      const auto at = static_cast<int64_t>(r);
      errors.exact(kAccepted, at, as_i32(reply.outputs[kAccepted])[r], std::ssize(a.path));
      errors.exact(kFinish, at, as_i32(reply.outputs[kFinish])[r], a.finish);
      for (int64_t d = 0; d < p.steps; ++d) {
        const int64_t i = at * p.steps + d;
        errors.exact(kPath, i, path[static_cast<size_t>(i)],
                     d < std::ssize(a.path) ? a.path[static_cast<size_t>(d)] : -1);
      }
      for (int64_t d = 0; d <= p.steps; ++d) {
        const int64_t i = at * (p.steps + 1) + d;
        const bool there = d < std::ssize(a.emitted);
        const auto step = static_cast<size_t>(d);
        errors.exact(kEmitted, i, emitted[static_cast<size_t>(i)], there ? a.emitted[step] : -1);
        if (omitted(reply, "log_probabilities")) continue;
        if (!there) errors.same_bits(kLogProbabilities, i, scores[static_cast<size_t>(i)], 0.0F);
        if (!there) continue;
        errors.within(kLogProbabilities, i, scores[static_cast<size_t>(i)],
                      a.choices[step].log_probability, bound_of(a.choices[step], t));
      }
    }
  }

  static bool omitted(const Reply& reply, const char* output) {
    return std::ranges::find(reply.omitted, output) != reply.omitted.end();
  }

  static void compare_trees(Checker& checker, const Problem& p, const Answers& right,
                            const Reply& reply, OutputErrors& errors) {
    const std::vector<int32_t> positions = tree_verify::positions_of(p);
    const std::vector<int32_t> ancestors = tree_verify::ancestors_of(p);
    const std::vector<float> cache = tree_verify::cache_after(p, right);
    for (size_t i = 0; i < positions.size(); ++i) {
      errors.exact(kPositions, static_cast<int64_t>(i), as_i32(reply.outputs[kPositions])[i],
                   positions[i]);
    }
    for (size_t i = 0; i < ancestors.size(); ++i) {
      errors.exact(kAncestors, static_cast<int64_t>(i), as_i32(reply.outputs[kAncestors])[i],
                   ancestors[i]);
    }
    if (checker.omitted(0, kCacheAfter)) return;
    for (size_t i = 0; i < cache.size(); ++i) {
      errors.same_bits(kCacheAfter, static_cast<int64_t>(i), as_f32(reply.outputs[kCacheAfter])[i],
                       cache[i]);
    }
  }

  Case make_case(const CaseSpec& spec) const override {
    tree_verify::check_spec(spec);
    const Problem p = tree_verify::make_problem(spec);
    const int64_t rows = p.requests + p.nodes;
    Call call;
    call.function = "tree_verify";
    call.scalars = {p.requests,
                    p.nodes,
                    p.vocab,
                    p.steps,
                    p.tree_words,
                    p.mask_words,
                    p.history_tokens,
                    p.capacity,
                    p.width,
                    p.rule,
                    p.top_k,
                    p.eos,
                    static_cast<double>(p.temperature),
                    static_cast<double>(p.penalty)};
    call.inputs = {f32_input("logits", {rows, p.vocab}, p.logits),
                   f32_input("draft", {p.rule * rows, p.vocab}, p.draft),
                   i32_input("allowed", {rows, p.mask_words}, p.allowed),
                   i32_input("first", {p.requests + 1}, p.first),
                   i32_input("tokens", {p.nodes}, p.tokens),
                   i32_input("parents", {p.nodes}, p.parents),
                   i32_input("lengths", {p.requests}, p.lengths),
                   i32_input("limits", {p.requests}, p.limits),
                   i32_input("seeds", {p.requests}, p.seeds),
                   i32_input("history", {p.requests, p.history_tokens}, p.history),
                   f32_input("cache", {p.requests, p.capacity, p.width}, p.cache)};
    for (size_t i = 1; i + 1 < call.inputs.size(); ++i) call.inputs[i].derived = true;
    call.outputs = {{"path", DType::i32, {p.requests, p.steps}},
                    {"accepted", DType::i32, {p.requests}},
                    {"emitted", DType::i32, {p.requests, p.steps + 1}},
                    {"finish", DType::i32, {p.requests}},
                    {"log_probabilities", DType::f32, {p.requests, p.steps + 1}},
                    {"positions", DType::i32, {p.nodes}},
                    {"ancestors", DType::i32, {p.nodes, p.tree_words}},
                    {"cache_after", DType::f32, {p.requests, p.capacity, p.width}}};
    return {spec, {call}};
  }
};

// The same answers, and numbers at most two bounds apart.
void TreeVerify::compare_related(Checker& checker, const Related& pair) const {
  const Problem p = problem_of(pair.second);
  const Problem q = problem_of(pair.first);
  const Tolerance tolerance = tolerance_of(pair.second.spec);
  const Answers right = tree_verify::verify(p, tolerance);
  const std::vector<int64_t> order = tree_verify::request_order(pair.second.spec, p.requests);
  const Reply& now = checker.reply(0);
  const Reply& then = pair.before[0];
  OutputErrors errors(pair.second.calls[0]);
  const auto same = [&](Output output, int64_t to, int64_t from, int64_t count) {
    const auto a = part(as_i32(now.outputs[output]), to, count);
    const auto b = part(as_i32(then.outputs[output]), from, count);
    for (size_t i = 0; i < a.size(); ++i) {
      errors.exact(output, to + static_cast<int64_t>(i), a[i], b[i]);
    }
  };
  for (int64_t r = 0; r < p.requests; ++r) {
    const int64_t from = order[static_cast<size_t>(r)];
    if (from < 0) continue;
    same(kAccepted, r, from, 1);
    same(kFinish, r, from, 1);
    same(kPath, r * p.steps, from * p.steps, p.steps);
    same(kEmitted, r * (p.steps + 1), from * (p.steps + 1), p.steps + 1);
    const int64_t begin = p.first[static_cast<size_t>(r)];
    const int64_t count = p.first[static_cast<size_t>(r) + 1] - begin;
    const int64_t source = q.first[static_cast<size_t>(from)];
    same(kPositions, begin, source, count);
    same(kAncestors, begin * p.tree_words, source * p.tree_words, count * p.tree_words);
    const auto& choices = right[static_cast<size_t>(r)].choices;
    for (size_t d = 0; d < choices.size() && !omitted(now, "log_probabilities"); ++d) {
      const int64_t to = r * (p.steps + 1) + static_cast<int64_t>(d);
      const int64_t back = from * (p.steps + 1) + static_cast<int64_t>(d);
      errors.within(
          kLogProbabilities, to, as_f32(now.outputs[kLogProbabilities])[static_cast<size_t>(to)],
          static_cast<double>(as_f32(then.outputs[kLogProbabilities])[static_cast<size_t>(back)]),
          2 * bound_of(choices[d], tolerance));
    }
    const int64_t size = p.capacity * p.width;
    const auto a = part(as_f32(now.outputs[kCacheAfter]), r * size, size);
    const auto b = part(as_f32(then.outputs[kCacheAfter]), from * size, size);
    for (size_t i = 0; i < a.size(); ++i) {
      errors.same_bits(kCacheAfter, r * size + static_cast<int64_t>(i), a[i], b[i]);
    }
  }
  add_errors(checker, errors);
}

// Logits and the cache rounded, everything after it exact.
std::vector<Reply> TreeVerify::answer_in_bits(const Case& asked, int bits) const {
  Problem p = problem_of(asked);
  round_to_bits(p.logits, bits);
  round_to_bits(p.cache, bits);
  Reply reply;
  reply.ending = Ending::refused;
  if (tree_verify::must_be_refused(p)) return {reply};
  const Answers answers = tree_verify::verify(p, {});
  if (std::ranges::any_of(answers, &Answer::nan)) return {reply};
  const auto requests = static_cast<size_t>(p.requests);
  const auto steps = static_cast<size_t>(p.steps);
  std::vector<int32_t> path(requests * steps, -1), accepted(requests), finish(requests);
  std::vector<int32_t> emitted(requests * (steps + 1), -1);
  std::vector<float> scores(emitted.size());
  for (size_t r = 0; r < requests; ++r) {
    const Answer& a = answers[r];
    std::ranges::copy(a.path, path.begin() + static_cast<std::ptrdiff_t>(r * steps));
    std::ranges::copy(a.emitted, emitted.begin() + static_cast<std::ptrdiff_t>(r * (steps + 1)));
    for (size_t d = 0; d < a.choices.size(); ++d) {
      scores[r * (steps + 1) + d] = static_cast<float>(a.choices[d].log_probability);
    }
    accepted[r] = static_cast<int32_t>(a.path.size());
    finish[r] = a.finish;
  }
  reply.ending = Ending::ok;
  reply.outputs = {bytes_of(path),
                   bytes_of(accepted),
                   bytes_of(emitted),
                   bytes_of(finish),
                   bytes_of(scores),
                   bytes_of(tree_verify::positions_of(p)),
                   bytes_of(tree_verify::ancestors_of(p)),
                   bytes_of(tree_verify::cache_after(p, answers))};
  return {reply};
}

}  // namespace

std::unique_ptr<Task> make_tree_verify() { return std::make_unique<TreeVerify>(); }

}  // namespace touchstone::judge
