#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "judge/task/generate.h"
#include "judge/task/tasks/beam_search/beam_search.h"
#include "judge/task/tasks/card_task.h"
#include "judge/task/tasks/output_errors.h"
#include "judge/task/tasks/plan_builder.h"

namespace touchstone::judge {
namespace {

using beam_search::Answer;
using beam_search::Problem;
using beam_search::Text;
using Answers = std::vector<Answer>;

enum Output : size_t { kTokens, kLengths, kFinish, kLogProbabilities, kScores };

// The numbers as the case holds them, so that a case is judged by what was really asked.
Problem problem_of(const Case& asked) {
  const Call& call = asked.calls[0];
  Problem p;
  p.prompts = call.whole(0);
  p.states = call.whole(1);
  p.vocab = call.whole(2);
  p.beams = call.whole(3);
  p.max_tokens = call.whole(4);
  p.min_tokens = call.whole(5);
  p.length_penalty = static_cast<float>(call.real(7));
  p.logits = floats_of(call.inputs[0]);
  p.next = ints_of(call.inputs[1]);
  p.start = ints_of(call.inputs[2]);
  p.prompt_tokens = ints_of(call.inputs[3]);
  p.eos = ints_of(call.inputs[4]);
  return p;
}

// What a contender says of one prompt.
struct Said {
  std::span<const int32_t> tokens, lengths, finish;
  std::span<const float> log_probabilities, scores;
};

class BeamSearch final : public CardTask {
 public:
  BeamSearch()
      : CardTask("beam_search", {.resolve = beam_search::resolve,
                                 .check = beam_search::check_spec,
                                 .sizes = {{"prompts", 1},
                                           {"tokens", 1},
                                           {"vocab", 1},
                                           {"beams", 1},
                                           {"width", 1},
                                           {"eos", 0},
                                           {"min", 0}}}) {}

  Plan plan(uint64_t seed, bool small) const override {
    return beam_search::make_plan(card(), seed, small);
  }

  CaseCheck check_with(const Case& asked, const std::vector<Reply>& replies,
                       Memo& memo) const override {
    Checker checker(asked, replies);
    const Tolerance tolerance = tolerance_of(asked.spec);
    const Problem p = problem_of(asked);
    const Answers& right = memo.get<Answers>([&] {
      return asked.spec.family == "bad_arguments" ? Answers{} : beam_search::search(p, tolerance);
    });
    const bool nan = std::any_of(right.begin(), right.end(), [](const Answer& a) { return a.nan; });
    if (nan || asked.spec.family == "bad_arguments") {
      checker.refused(0);
      return checker.finish();
    }
    if (!checker.answered(0)) return checker.finish();
    OutputErrors errors(asked.calls[0]);
    for (int64_t i = 0; i < p.prompts; ++i) {
      check_prompt(p, i, right[static_cast<size_t>(i)], said_of(p, replies[0], i), tolerance,
                   errors);
    }
    add_errors(checker, errors);
    return checker.finish();
  }

  void compare_related(Checker& checker, const Related& pair) const override;
  std::vector<Reply> answer_in_bits(const Case& asked, int bits) const override;

  std::vector<CaseSpec> timed(uint64_t seed, bool small) const override {
    PlanBuilder b(card(), seed);
    using beam_search::shape;
    if (small) {
      b.add("mixed", shape({.prompts = 2, .width = 4, .vocab = 256, .beams = 4, .tokens = 8}));
    } else {
      b.add("mixed", shape({.prompts = 1, .width = 8, .vocab = 8192, .beams = 4, .tokens = 8}));
      b.add("mixed", shape({.prompts = 4, .width = 8, .vocab = 1024, .beams = 16, .tokens = 12}));
    }
    return b.plan.cases;
  }

  // A search that runs to the limit reads a row per step; how many more depends on the data.
  double bytes(const Case& c) const override {
    const Call& call = c.calls[0];
    const double outputs = call.count(0) * call.count(3) * (4 * call.count(4) + 16);
    return 4 * call.count(4) * call.count(2) + outputs;
  }
  double flops(const Case& c) const override {
    const Call& call = c.calls[0];
    return 6 * call.count(0) * call.count(4) * call.count(2);
  }

 private:
  static void add_errors(Checker& checker, const OutputErrors& errors) {
    errors.add_to(checker, {kLengths, kFinish, kTokens, kLogProbabilities, kScores});
  }

  static Said said_of(const Problem& p, const Reply& reply, int64_t prompt) {
    const auto k = static_cast<size_t>(p.beams);
    const auto at = static_cast<size_t>(prompt) * k;
    const auto t = static_cast<size_t>(p.max_tokens);
    return {as_i32(reply.outputs[kTokens]).subspan(at * t, k * t),
            as_i32(reply.outputs[kLengths]).subspan(at, k),
            as_i32(reply.outputs[kFinish]).subspan(at, k),
            as_f32(reply.outputs[kLogProbabilities]).subspan(at, k),
            as_f32(reply.outputs[kScores]).subspan(at, k)};
  }

  static double bound_of(const Text& text, const Tolerance& t) {
    return t.factor * kUnit * text.error;
  }
  static double score_bound(const Problem& p, const Text& text, const Tolerance& t) {
    const auto length = static_cast<double>(text.tokens.size());
    const auto alpha = static_cast<double>(p.length_penalty);
    // A power in 32 bits loses as much as its exponent times the logarithm is long.
    const double power = 4 + std::abs(alpha) * std::log(length) * 4;
    return bound_of(text, t) / std::pow(length, alpha) +
           t.factor * kUnit * (power * std::abs(text.score) + kSmallestNormal);
  }

  // Which of the right texts stands at each place. Texts whose scores differ by no more than two
  // bounds may be exchanged, tied ones may not.
  static std::vector<size_t> places(const Problem& p, const Answer& right, const Said& said,
                                    const Tolerance& t) {
    std::vector<size_t> order(right.texts.size());
    std::vector<bool> used(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = i;
      const auto row = said.tokens.subspan(i * static_cast<size_t>(p.max_tokens),
                                           static_cast<size_t>(p.max_tokens));
      const double reach = 2 * score_bound(p, right.texts[i], t);
      for (size_t j = 0; j < order.size(); ++j) {
        const Text& text = right.texts[j];
        const double distance = std::abs(text.score - right.texts[i].score);
        const bool same = i == j || (distance != 0 && distance <= reach);
        if (used[j] || !same || said.lengths[i] != static_cast<int64_t>(text.tokens.size()))
          continue;
        if (!std::equal(text.tokens.begin(), text.tokens.end(), row.begin())) continue;
        order[i] = j;
        break;
      }
      used[order[i]] = true;
    }
    return order;
  }

  static void check_prompt(const Problem& p, int64_t prompt, const Answer& right, const Said& said,
                           const Tolerance& t, OutputErrors& errors) {
    const std::vector<size_t> order = places(p, right, said, t);
    for (int64_t b = 0; b < p.beams; ++b) {
      const auto i = static_cast<size_t>(b);
      const int64_t at = prompt * p.beams + b;
      const bool there = i < order.size();
      const Text none;
      const Text& text = there ? right.texts[order[i]] : none;
      const auto length = static_cast<int64_t>(text.tokens.size());
      errors.exact(kLengths, at, said.lengths[i], length);
      errors.exact(kFinish, at, said.finish[i], text.finish);
      for (int64_t j = 0; j < p.max_tokens; ++j) {
        errors.exact(kTokens, at * p.max_tokens + j,
                     said.tokens[i * static_cast<size_t>(p.max_tokens) + static_cast<size_t>(j)],
                     j < length ? text.tokens[static_cast<size_t>(j)] : -1);
      }
      if (!there) continue;
      errors.within(kLogProbabilities, at, said.log_probabilities[i], text.log_probability,
                    bound_of(text, t));
      errors.within(kScores, at, said.scores[i], text.score, score_bound(p, text, t));
    }
  }

  Case make_case(const CaseSpec& spec) const override {
    beam_search::check_spec(spec);
    const Problem p = beam_search::make_problem(spec);
    const auto eos = static_cast<int64_t>(p.eos.size());
    Call call;
    call.function = "beam_search";
    call.scalars = {p.prompts,    p.states,     p.vocab, p.beams,
                    p.max_tokens, p.min_tokens, eos,     static_cast<double>(p.length_penalty)};
    call.inputs = {
        f32_input("logits", {p.states, p.vocab}, p.logits),
        i32_input("next", {p.states, p.vocab}, p.next), i32_input("start", {p.prompts}, p.start),
        i32_input("prompt_tokens", {p.prompts}, p.prompt_tokens), i32_input("eos", {eos}, p.eos)};
    for (size_t i = 1; i < call.inputs.size(); ++i) call.inputs[i].derived = true;
    call.outputs = {{"tokens", DType::i32, {p.prompts, p.beams, p.max_tokens}},
                    {"lengths", DType::i32, {p.prompts, p.beams}},
                    {"finish", DType::i32, {p.prompts, p.beams}},
                    {"log_probabilities", DType::f32, {p.prompts, p.beams}},
                    {"scores", DType::f32, {p.prompts, p.beams}}};
    return {spec, {call}};
  }
};

void BeamSearch::compare_related(Checker& checker, const Related& pair) const {
  // The same texts, and numbers at most two bounds apart.
  const Problem p = problem_of(pair.second);
  const Tolerance tolerance = tolerance_of(pair.second.spec);
  const std::vector<int64_t> order = beam_search::prompt_order(pair.second.spec, p.prompts);
  const Answers right = beam_search::search(p, tolerance);
  OutputErrors errors(pair.second.calls[0]);
  for (int64_t i = 0; i < p.prompts; ++i) {
    const int64_t from = order[static_cast<size_t>(i)];
    if (from < 0) continue;
    const Said now = said_of(p, checker.reply(0), i);
    const Said then = said_of(p, pair.before[0], from);
    const std::vector<Text>& texts = right[static_cast<size_t>(i)].texts;
    for (size_t b = 0; b < texts.size(); ++b) {
      const int64_t at = i * p.beams + static_cast<int64_t>(b);
      errors.exact(kLengths, at, now.lengths[b], then.lengths[b]);
      errors.exact(kFinish, at, now.finish[b], then.finish[b]);
      const auto t = static_cast<size_t>(p.max_tokens);
      for (size_t j = b * t; j < b * t + t; ++j) {
        errors.exact(kTokens, i * p.beams * p.max_tokens + static_cast<int64_t>(j), now.tokens[j],
                     then.tokens[j]);
      }
      errors.within(kLogProbabilities, at, now.log_probabilities[b],
                    static_cast<double>(then.log_probabilities[b]),
                    2 * bound_of(texts[b], tolerance));
      errors.within(kScores, at, now.scores[b], static_cast<double>(then.scores[b]),
                    2 * score_bound(p, texts[b], tolerance));
    }
  }
  add_errors(checker, errors);
}

// Logits rounded, everything after it exact.
std::vector<Reply> BeamSearch::answer_in_bits(const Case& asked, int bits) const {
  Problem p = problem_of(asked);
  round_to_bits(p.logits, bits);
  Reply reply;
  reply.ending = Ending::refused;
  if (asked.spec.family == "bad_arguments") return {reply};
  const Answers answers = beam_search::search(p, {});
  if (std::any_of(answers.begin(), answers.end(), [](const Answer& a) { return a.nan; })) {
    return {reply};
  }
  const auto slots = static_cast<size_t>(p.prompts * p.beams);
  const auto longest = static_cast<size_t>(p.max_tokens);
  std::vector<int32_t> tokens(slots * longest, -1), lengths(slots), finish(slots);
  std::vector<float> log_probabilities(slots), scores(slots);
  for (size_t i = 0; i < answers.size(); ++i) {
    for (size_t b = 0; b < answers[i].texts.size(); ++b) {
      const Text& text = answers[i].texts[b];
      const size_t at = i * static_cast<size_t>(p.beams) + b;
      std::copy(text.tokens.begin(), text.tokens.end(),
                tokens.begin() + static_cast<std::ptrdiff_t>(at * longest));
      lengths[at] = static_cast<int32_t>(text.tokens.size());
      finish[at] = text.finish;
      log_probabilities[at] = static_cast<float>(text.log_probability);
      scores[at] = static_cast<float>(text.score);
    }
  }
  reply.ending = Ending::ok;
  reply.outputs = {bytes_of(tokens), bytes_of(lengths), bytes_of(finish),
                   bytes_of(log_probabilities), bytes_of(scores)};
  return {reply};
}

}  // namespace

std::unique_ptr<Task> make_beam_search() { return std::make_unique<BeamSearch>(); }

}  // namespace touchstone::judge
