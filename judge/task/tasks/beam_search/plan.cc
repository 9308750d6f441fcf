// The cases of a judgment.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "judge/task/tasks/beam_search/beam_search.h"
#include "judge/task/tasks/plan_builder.h"

namespace touchstone::judge::beam_search {
namespace {

using Parameters = PlanBuilder::Parameters;

Shape common(PlanBuilder& b) {
  return {.prompts = 2 + b.draw(2),
          .width = 4 + b.draw(4),
          .vocab = 20 + b.draw(40),
          .beams = 3 + b.draw(3),
          .tokens = 5 + b.draw(4)};
}

void add_families(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 10> kFamilies = {
      "nominal", "eos_first", "early_finish", "late_finish",   "masked",
      "peaked",  "ties",      "scale",        "nan_elsewhere", "dead_ends"};
  constexpr std::array<int64_t, 5> kPenalties = {0, 100, 60, 250, -70};
  for (const char* family : kFamilies) {
    for (size_t i = 0; i < kPenalties.size(); ++i) {
      if (small && i > 2 && std::string(family) != "nominal" &&
          std::string(family) != "early_finish")
        continue;
      b.add(family, shape(common(b), {{"alpha100", kPenalties[i]}}));
    }
  }
  // Much space: what a running beam can reach at its own length is far from what it would be at the
  // longest.
  for (const int64_t penalty : {-100, -60, -30, 0, 90, 100}) {
    Shape roomy = common(b);
    roomy.tokens = 30 + b.draw(11);
    b.add("slow_finish", shape(roomy, {{"alpha100", penalty}}));
  }
  for (const int64_t vocab : {2, 5, 16}) {
    b.add("all_tied", shape({.prompts = 2, .width = 4, .vocab = vocab, .beams = 3, .tokens = 4},
                            {{"alpha100", 0}}));
    b.add("all_tied", shape({.prompts = 1, .width = 4, .vocab = vocab, .beams = 4, .tokens = 5},
                            {{"alpha100", 0}, {"eos", 0}}));
  }
  for (const int64_t beams : {1, 2, 4}) {
    b.add("tied_lengths",
          shape({.prompts = 4, .width = 4, .vocab = 7 + b.draw(9), .beams = beams, .tokens = 4},
                {{"alpha100", 0}}));
    b.add("cyclic",
          shape({.prompts = 6, .width = 3, .vocab = 6 + b.draw(9), .beams = beams, .tokens = 6},
                {{"alpha100", 50 * b.draw(4)}, {"eos", beams == 2 ? 1 : 0}}));
    // Nothing runs on before the limit.
    b.add("dead_ends",
          shape({.prompts = 8, .width = 4, .vocab = 5 + b.draw(6), .beams = beams, .tokens = 9},
                {{"alpha100", 50 * b.draw(4)}}));
  }
  // The same table with another penalty and another least length.
  for (int i = 0; i < 2; ++i) {
    b.add("late_finish", shape(common(b), {{"alpha100", 30 + b.draw(100)}, {"min", 0}}));
    b.add_again({{"alpha100", -100 - b.draw(100)}});
    b.add("nominal", shape(common(b), {{"alpha100", 100}, {"min", 0}}));
    b.add_again({{"min", 3}});
  }
  // The kind of NaN follows the number of ending tokens.
  for (int64_t i = 0; i < 4; ++i) b.add("nan", shape(common(b), {{"eos", 1 + i}}));
  // So many states that each prompt has some of its own.
  for (int64_t i = 0; i < 4; ++i) {
    b.add("nan", shape({.prompts = 2 + b.draw(3),
                        .width = 12,
                        .vocab = 6 + b.draw(20),
                        .beams = 1 + b.draw(3),
                        .tokens = 3 + b.draw(4)},
                       {{"eos", 1 + i}}));
  }
  b.add("nan", shape({.prompts = 1, .width = 2, .vocab = 7, .beams = 1, .tokens = 2}));
  b.add("bad_arguments", shape({.prompts = 1, .width = 2, .vocab = 7, .beams = 0, .tokens = 2}));
}

void add_sizes(PlanBuilder& b, bool small) {
  constexpr std::array<int64_t, 12> kVocab = {1, 2, 3, 15, 16, 17, 31, 33, 64, 127, 257, 1000};
  for (const int64_t vocab : kVocab) {
    b.add("sizes", shape({.prompts = 1 + b.draw(3),
                          .width = 1 + b.draw(6),
                          .vocab = vocab,
                          .beams = 1 + b.draw(8),
                          .tokens = 1 + b.draw(6)},
                         {{"alpha100", 50 * b.draw(4)}}));
  }
  // Tiles that are no power of two, with beams for most of their tokens.
  for (const int64_t vocab : {47, 49, 79, 81, 95, 97}) {
    b.add("sizes", shape({.prompts = 4,
                          .width = 6,
                          .vocab = vocab,
                          .beams = 3 * vocab / 4,
                          .tokens = 1 + b.draw(2)}));
  }
  for (const int64_t vocab : b.beside_tiles(512)) {
    b.add("sizes",
          shape({.prompts = 4, .width = 6, .vocab = vocab, .beams = 9 * vocab / 10, .tokens = 1}));
  }
  // One beam, and several ways to end.
  for (const int64_t tokens : {4, 9}) {
    b.add("sizes", shape({.prompts = 12, .width = 8, .vocab = 9, .beams = 1, .tokens = tokens},
                         {{"eos", 2}, {"alpha100", 50 * b.draw(3)}}));
  }
  b.add("no_prompts", shape({.prompts = 0, .width = 2, .vocab = 9, .beams = 2, .tokens = 3}));
  // One beam, one token, more beams than tokens, a beam for every text.
  for (const int64_t vocab : {3, 30, 300}) {
    b.add("one_beam", shape({.prompts = 3, .width = 5, .vocab = vocab, .beams = 1, .tokens = 9},
                            {{"alpha100", 0}}));
    b.add("one_token", shape({.prompts = 3, .width = 5, .vocab = vocab, .beams = 4, .tokens = 1}));
  }
  for (const int64_t beams : {5, 12, 40}) {
    b.add("many_beams", shape({.prompts = 2, .width = 4, .vocab = 4, .beams = beams, .tokens = 4},
                              {{"alpha100", 100 * b.draw(2)}}));
  }
  b.add("many_beams", shape({.prompts = 1, .width = 16, .vocab = 200, .beams = 70, .tokens = 4}));
  // Odd and even numbers of beams beyond the usual ones.
  for (const int64_t odd : {0, 1}) {
    b.add("many_beams", shape({.prompts = 2,
                               .width = 6,
                               .vocab = 30 + b.draw(30),
                               .beams = 2 * b.draw_size(9, 30) + odd,
                               .tokens = 5}));
  }
  const int64_t cube = 4 + b.draw(5);
  b.add("sizes",
        shape({.prompts = cube, .width = cube, .vocab = cube, .beams = cube, .tokens = cube}));
  b.add("long", shape({.prompts = 1, .width = 3, .vocab = 30, .beams = 3, .tokens = 60}));
  b.add("long",
        shape({.prompts = 1, .width = 3, .vocab = 30, .beams = 3, .tokens = 50}, {{"eos", 0}}));
  b.add("scale",
        shape({.prompts = 1, .width = 3, .vocab = 40, .beams = 3, .tokens = 40}, {{"eos", 0}}));
  b.add("large", shape({.prompts = 1, .width = 2, .vocab = 66000, .beams = 2, .tokens = 2}));
  b.add("many_prompts", shape({.prompts = 40, .width = 8, .vocab = 30, .beams = 3, .tokens = 5}));
  if (small) return;
  b.add("many_beams", shape({.prompts = 1, .width = 16, .vocab = 500, .beams = 256, .tokens = 3}));
  b.add("long", shape({.prompts = 2, .width = 4, .vocab = 50, .beams = 6, .tokens = 200}));
  b.add("large", shape({.prompts = 1, .width = 2, .vocab = 128256, .beams = 4, .tokens = 2}));
  b.add("many_prompts", shape({.prompts = 300, .width = 8, .vocab = 40, .beams = 3, .tokens = 5}));
}

void add_options(PlanBuilder& b) {
  for (const int64_t eos : {0, 2, 3, 7}) {
    for (const int64_t alpha : {0, 100}) {
      b.add("several_eos", shape(common(b), {{"eos", eos}, {"alpha100", alpha}}));
    }
  }
  // Short texts are better and the limit is far: what can still be reached is near, not there.
  for (const int64_t alpha : {-30, -50, -50, -70, -100}) {
    b.add("penalty",
          shape({.prompts = 4, .width = 6, .vocab = 24, .beams = 2 + b.draw(3), .tokens = 40},
                {{"alpha100", alpha}}));
  }
  // Penalties that are nearly none.
  for (const int64_t alpha : {3, -3}) {
    b.add("early_finish", shape({.prompts = 4, .width = 6, .vocab = 24, .beams = 4, .tokens = 9},
                                {{"alpha100", alpha + (alpha > 0 ? 1 : -1) * b.draw(6)}}));
  }
  // More endings than beams among the best.
  for (const int64_t beams : {3, 4, 6, 8}) {
    b.add("several_eos", shape({.prompts = 4, .width = 6, .vocab = 20, .beams = beams, .tokens = 6},
                               {{"eos", 15}, {"alpha100", 200}}));
  }
  b.add("several_eos", shape({.prompts = 2, .width = 4, .vocab = 90, .beams = 4, .tokens = 6},
                             {{"eos", 17 + b.draw(40)}, {"alpha100", 100}}));
  // Nothing but endings.
  b.add("several_eos",
        shape({.prompts = 2, .width = 4, .vocab = 3, .beams = 4, .tokens = 4}, {{"eos", 3}}));
  for (const int64_t min : {1, 2, 4}) {
    b.add("min_tokens", shape(common(b), {{"min", min}, {"alpha100", 50 * b.draw(3)}}));
    b.add("eos_first", shape(common(b), {{"min", min}, {"eos", 2}}));
  }
  b.add("min_tokens",
        shape({.prompts = 2, .width = 4, .vocab = 12, .beams = 3, .tokens = 4}, {{"min", 4}}));
  // Every third token would end the text, and none may.
  b.add("min_tokens", shape({.prompts = 3, .width = 6, .vocab = 12, .beams = 4, .tokens = 3},
                            {{"min", 3}, {"eos", 4}}));
  for (const int64_t region : b.regions({10, 50, 200, 500, 1000, 2001})) {
    for (const int64_t alpha : {region, -region}) {
      b.add("penalty", shape(common(b), {{"alpha100", alpha}}));
      b.add("early_finish", shape(common(b), {{"alpha100", alpha}}));
    }
  }
  // Least lengths of every region, with and without space behind them.
  for (const int64_t min : b.regions({5, 9, 17, 33})) {
    for (const int64_t space : {int64_t{0}, 1 + b.draw(9)}) {
      Shape roomy = common(b);
      roomy.tokens = min + space;
      b.add("min_tokens", shape(roomy, {{"min", min}, {"eos", 1 + b.draw(3)}}));
    }
  }
  // An ending token may come last, and only there.
  for (const int64_t eos : {1, 3}) {
    b.add("min_tokens",
          shape({.prompts = 4, .width = 6, .vocab = 6 + b.draw(9), .beams = 8, .tokens = 4},
                {{"min", 3}, {"eos", eos}}));
  }
  for (int64_t whole = 4; whole <= 20; ++whole) {
    b.add("early_finish",
          shape({.prompts = 3, .width = 4, .vocab = 12 + b.draw(9), .beams = 3, .tokens = 6},
                {{"alpha100", 100 * whole}}));
  }
  // A least length where there is nothing but endings, and of one token of one.
  b.add("min_tokens", shape({.prompts = 2, .width = 4, .vocab = 2, .beams = 4, .tokens = 4},
                            {{"min", 1}, {"eos", 2}}));
  b.add("min_tokens", shape({.prompts = 3, .width = 4, .vocab = 9, .beams = 4, .tokens = 1},
                            {{"min", 1}, {"eos", 4}}));
  // Penalties that have a formula of their own.
  for (const int64_t alpha : {-200, -100, -50, 0, 50, 100, 200, 300}) {
    b.add("early_finish", shape(common(b), {{"alpha100", alpha}}));
  }
  // Texts of probability 1.
  b.add("sizes", shape({.prompts = 2, .width = 2, .vocab = 1, .beams = 2, .tokens = 4 + b.draw(5)},
                       {{"eos", 0}}));
  for (const int64_t shift10 : {2, 3, -3, 6}) {
    b.add("large_logits", shape(common(b), {{"shift10", shift10}}));
  }
  b.add("common_shift", shape(common(b), {{"shift10", 4}}));
}

void add_drawn(PlanBuilder& b, bool small) {
  // Drawn sizes include those with trivial answers, which `nominal` must not have.
  constexpr std::array<const char*, 8> kFamilies = {
      "sizes", "masked", "ties", "eos_first", "peaked", "late_finish", "dead_ends", "scale"};
  const std::vector<int64_t> vocab = b.spread(small ? 400 : 4000, kFamilies.size());
  const std::vector<int64_t> beams = b.spread(24, kFamilies.size());
  const std::vector<int64_t> tokens = b.spread(small ? 12 : 30, kFamilies.size());
  for (size_t i = 0; i < kFamilies.size(); ++i) {
    const int64_t longest = tokens[i];
    b.add(kFamilies[i], shape({.prompts = 1 + b.draw(4),
                               .width = 1 + b.draw(9),
                               .vocab = std::max<int64_t>(2, vocab[i]),
                               .beams = beams[i],
                               .tokens = longest},
                              {{"alpha100", b.draw(251) - 50},
                               {"eos", 1 + b.draw(2)},
                               {"min", b.draw(3) == 0 ? b.draw(longest) : 0}}));
  }
  if (small) return;
  // Large ones, where a single size stands out.
  for (const int64_t many : {b.draw_size(4001, 32768), b.draw_size(32769, 49999),
                             b.draw_size(50000, 65535), b.draw_largest(250000)}) {
    // Several beams, so that some of what they take lies in every part of the vocabulary; two steps,
    // because a third sorts as many again and shows nothing more.
    b.add("sizes",
          shape({.prompts = 1, .width = 2, .vocab = many, .beams = 6 + b.draw(4), .tokens = 2}));
  }
  b.add("sizes", shape({.prompts = 1,
                        .width = 9,
                        .vocab = 200 + b.draw(200),
                        .beams = b.draw_largest(1024),
                        .tokens = 2}));
  b.add("sizes", shape({.prompts = 1,
                        .width = 4,
                        .vocab = 30 + b.draw(30),
                        .beams = 3,
                        .tokens = b.draw_largest(256)}));
  // Many states.
  b.add("sizes", shape({.prompts = 40,
                        .width = b.draw_largest(4096),
                        .vocab = 5 + b.draw(5),
                        .beams = 3,
                        .tokens = 3}));
  b.add("sizes", shape({.prompts = b.draw_largest(2000),
                        .width = 4,
                        .vocab = 12 + b.draw(12),
                        .beams = 2,
                        .tokens = 3}));
}

// Tokens that are all but impossible, rows far below zero, and what only shows where two sizes are large:
// ties of long rows or of many parents, parents beyond 8 bits over several steps, states beyond 16.
void add_crossings(PlanBuilder& b, bool small) {
  // Every token has a beam, so the least likely one is chosen as well. Finite is not masked.
  for (const float low : {-70.0F - static_cast<float>(b.draw(20)),
                          -120.0F - static_cast<float>(b.draw(300)), -2e4F, -1.5e9F, -2e30F}) {
    const int64_t vocab = 4 + b.draw(6), token = b.draw(vocab);
    b.add_edited("one_token",
                 shape({.prompts = 2, .width = 1, .vocab = vocab, .beams = vocab, .tokens = 1},
                       {{"alpha100", 50 * b.draw(3)}}),
                 {{0, "logits", token, token, low}});
  }
  for (const float all : {-2e4F, -2e9F, -3e38F}) {
    const int64_t vocab = 4 + b.draw(6);
    b.add_edited("one_token",
                 shape({.prompts = 1, .width = 1, .vocab = vocab, .beams = 3, .tokens = 1}),
                 {{0, "logits", 0, vocab - 1, all}});
  }
  // The longest texts.
  b.add("long", shape({.prompts = 1, .width = 2, .vocab = 7, .beams = 2, .tokens = 256},
                      {{"eos", 0}, {"alpha100", 50 * b.draw(3)}}));
  if (small) return;
  b.add("all_tied",
        shape({.prompts = 1, .width = 4, .vocab = 16, .beams = 70 + b.draw(60), .tokens = 3},
              {{"alpha100", 0}}));
  for (const int64_t vocab : {b.draw_size(4097, 9000), b.draw_size(65537, 80000)}) {
    for (const char* family : {"ties", "all_tied"}) {
      b.add(family, shape({.prompts = 1, .width = 2, .vocab = vocab, .beams = 5, .tokens = 1}));
    }
  }
  for (const char* family : {"masked", "peaked"}) {
    b.add(family, shape({.prompts = 1,
                         .width = 2,
                         .vocab = b.draw_size(65537, 80000),
                         .beams = 4,
                         .tokens = 2}));
  }
  b.add(
      "one_token",
      shape(
          {.prompts = 1, .width = 1, .vocab = b.draw_size(65537, 80000), .beams = 260, .tokens = 1},
          {{"parts", 16}}));
  // The likeliest token is the last one.
  for (const int64_t vocab : b.beside_tiles(1 << 13)) {
    b.add_edited("one_token",
                 shape({.prompts = 1, .width = 1, .vocab = vocab, .beams = 5, .tokens = 1}),
                 {{0, "logits", vocab - 1, vocab - 1, 14.0F}});
  }
  // Endings that are likely, and must not be taken, and states without a way on in long rows.
  for (const int64_t vocab : {b.draw_size(6000, 9000), b.draw_size(70000, 80000)}) {
    for (const int64_t min : {0, 1}) {
      b.add("eos_first", shape({.prompts = 1, .width = 2, .vocab = vocab, .beams = 6, .tokens = 2},
                               {{"eos", 24}, {"min", min}}));
    }
  }
  b.add(
      "dead_ends",
      shape({.prompts = 8, .width = 8, .vocab = b.draw_size(4097, 6000), .beams = 3, .tokens = 2}));
  // No way on from any text: those that a row of another kind allows would be all there is.
  for (const int64_t vocab : {b.draw_size(70, 200), b.draw_size(4097, 6000)}) {
    b.add_edited("dead_ends",
                 shape({.prompts = 1, .width = 1, .vocab = vocab, .beams = 3, .tokens = 2}),
                 {{0, "logits", vocab, 2 * vocab - 1, -std::numeric_limits<float>::infinity()}});
  }
  // More tokens in the answer than 16 bits count, most of them of the later prompts.
  b.add("many_prompts",
        shape({.prompts = 900 + b.draw(99), .width = 4, .vocab = 12, .beams = 10, .tokens = 8}));
  b.add("many_beams", shape({.prompts = 1,
                             .width = 16,
                             .vocab = 12 + b.draw(20),
                             .beams = b.draw_largest(1024),
                             .tokens = 5},
                            {{"eos", 1 + b.draw(2)}}));
  b.add("late_finish",
        shape({.prompts = 1, .width = 4096, .vocab = 3, .beams = 2, .tokens = 20 + b.draw(4)},
              {{"eos", 0}}));
}

// Every vocabulary, every number of beams, of prompts and of ending tokens, every limit and every least
// length up to 64. Beams for most tokens of a vocabulary: none of them is without a text.
void add_swept(PlanBuilder& b, bool small) {
  const int64_t step = small ? 16 : 1;
  for (const int64_t vocab : b.sweep(64, step)) {
    b.add("sizes", shape({.prompts = 4,
                          .width = 6,
                          .vocab = vocab,
                          .beams = 1 + 3 * vocab / 4,
                          .tokens = 1 + b.draw(2)}));
  }
  for (const int64_t beams : b.sweep(64, step)) {
    b.add("sizes", shape({.prompts = 1,
                          .width = 2 + b.draw(4),
                          .vocab = 12 + b.draw(60),
                          .beams = beams,
                          .tokens = 3 + b.draw(2)}));
  }
  for (const int64_t prompts : b.sweep(64, step)) {
    b.add("sizes", shape({.prompts = prompts, .width = 8, .vocab = 9, .beams = 3, .tokens = 3}));
  }
  for (const int64_t longest : b.sweep(64, step)) {
    const Shape s = {.prompts = 1, .width = 2, .vocab = 6, .beams = 3, .tokens = longest};
    b.add("late_finish", shape(s, {{"eos", 0}}));
    // What ends as early as it may is best.
    b.add("min_tokens",
          shape({.prompts = 1, .width = 2, .vocab = 4, .beams = 6, .tokens = longest + 2},
                {{"min", longest}, {"eos", 2}, {"alpha100", 0}}));
  }
  // All endings are chosen at the first step.
  for (const int64_t eos : b.sweep(32, step)) {
    b.add_where("several_eos",
                shape({.prompts = 2, .width = 3, .vocab = eos + 3, .beams = eos + 3, .tokens = 2},
                      {{"eos", eos}}),
                [](const CaseSpec& spec) { return !beam_search::lists_one_twice(spec.seed); });
  }
}

void add_relations(PlanBuilder& b) {
  for (const int64_t vocab : {25, 120}) {
    const CaseSpec first = b.spec(
        "nominal",
        shape({.prompts = 6, .width = 8, .vocab = vocab, .beams = 4, .tokens = 6}, {{"grid", 1}}));
    b.relate("permute_prompts", first, {{"relation", 1}});
    b.relate("neighbours", first, {{"relation", 2}});
    b.relate("add_constant", first, {{"add", 16}});
    b.relate("repeat", first, {});
  }
  b.relate("repeat",
           b.spec("ties", shape({.prompts = 2, .width = 4, .vocab = 30, .beams = 5, .tokens = 5})),
           {});
}

}  // namespace

std::map<std::string, int64_t> shape(const Shape& s, std::map<std::string, int64_t> more) {
  more.insert({{"prompts", s.prompts},
               {"width", s.width},
               {"vocab", s.vocab},
               {"beams", s.beams},
               {"tokens", s.tokens}});
  return more;
}

Plan make_plan(const TaskCard& card, uint64_t seed, bool small) {
  PlanBuilder b(card, seed);
  b.add("nominal", shape({.prompts = 1, .width = 4, .vocab = 32, .beams = 4, .tokens = 6}));
  b.add("nominal", shape({.prompts = 4, .width = 8, .vocab = 100, .beams = 5, .tokens = 8}));
  add_families(b, small);
  add_sizes(b, small);
  add_options(b);
  add_drawn(b, small);
  add_crossings(b, small);
  add_swept(b, small);
  add_relations(b);
  const int64_t beams = 3 + b.draw(4);
  for (const int64_t vocab : {512, 1024, 2048, 4096}) {
    if (small && vocab > 2048) continue;
    b.ladder("nominal", shape({.prompts = 1,
                               .width = beams,
                               .vocab = b.rung(vocab, 1),
                               .beams = beams,
                               .tokens = 6}));
  }
  return b.plan;
}

}  // namespace touchstone::judge::beam_search
