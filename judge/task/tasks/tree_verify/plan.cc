// The cases of a judgment.
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "judge/task/tasks/plan_builder.h"
#include "judge/task/tasks/tree_verify/tree_verify.h"

namespace touchstone::judge::tree_verify {
namespace {

using Parameters = PlanBuilder::Parameters;

Shape common(PlanBuilder& b) {
  return {.requests = 2 + b.draw(3), .nodes = 8 + b.draw(16), .vocab = 20 + b.draw(60)};
}

// Greedy, sampled, cut, and by rejection.
Parameters controls(PlanBuilder& b, size_t kind) {
  switch (kind % 4) {
    case 0:
      return {};
    case 1:
      return {{"temp100", 40 + b.draw(120)}};
    case 2:
      return {{"temp100", 60 + b.draw(100)}, {"topk", 2 + b.draw(8)}};
    default:
      return {{"temp100", 60 + b.draw(90)}, {"rule", 1}};
  }
}

Parameters with(Parameters first, const Parameters& more) {
  first.insert(more.begin(), more.end());
  return first;
}

void add_families(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 9> kFamilies = {"nominal",    "full_chain", "late_sibling",
                                                    "wrong_root", "duplicates", "no_match",
                                                    "cousins",    "peaked",     "nan_elsewhere"};
  for (const char* family : kFamilies) {
    for (size_t kind = 0; kind < 4; ++kind) b.add(family, shape(common(b), controls(b, kind)));
  }
  for (size_t kind = 0; kind < 4; ++kind) {
    b.add("nominal", shape(common(b), controls(b, kind)));
    b.add("eos_inside", shape({.requests = 6, .nodes = 8, .vocab = 24 + b.draw(20)},
                              with(controls(b, kind), {{"eos", 1}})));
    b.add("limit", shape({.requests = 6, .nodes = 7, .vocab = 30}, controls(b, kind)));
    b.add("masked", shape(common(b), with(controls(b, kind), {{"mask", 1}})));
    b.add("penalty", shape(common(b), with(controls(b, kind), {{"penalty4", 3 + b.draw(12)},
                                                               {"history", 5 + b.draw(9)}})));
  }
  // The first and the last token of the vocabulary end a text.
  for (const int64_t eos : {2, 3}) {
    for (size_t kind = 0; kind < 2; ++kind) {
      b.add("eos_inside", shape({.requests = 6, .nodes = 8, .vocab = 24 + b.draw(20)},
                                with(controls(b, kind), {{"eos", eos}})));
    }
  }
  // Both reasons to finish at once.
  for (const int64_t limit : {1, 2}) {
    for (const int64_t rule : {0, 1}) {
      b.add("eos_inside",
            shape({.requests = 8, .nodes = 5, .vocab = 30},
                  {{"eos", 1}, {"limit", limit}, {"depth", 2}, {"temp100", 80}, {"rule", rule}}));
    }
  }
  for (const int64_t temp100 : {0, 90}) {
    b.add("penalty",
          shape(common(b),
                {{"penalty4", 1 + b.draw(3)}, {"history", 30 + b.draw(40)}, {"temp100", temp100}}));
  }
  // Few tokens: the end, the masks and the branches meet by chance, too.
  for (size_t kind = 0; kind < (small ? 2U : 4U); ++kind) {
    b.add("nominal", shape({.requests = 8, .nodes = 14, .vocab = 5},
                           with(controls(b, kind), {{"eos", 1}, {"limit", 3}})));
    b.add("duplicates",
          shape({.requests = 5, .nodes = 24, .vocab = 8 + b.draw(9)}, controls(b, kind)));
  }
  for (const int64_t temp100 : {0, 70, 100, 160}) {
    b.add("rejection", shape(common(b), {{"rule", 1}, {"temp100", temp100}}));
    b.add("rejection", shape({.requests = 6, .nodes = 12, .vocab = 6 + b.draw(12)},
                             {{"rule", 1}, {"temp100", temp100}, {"depth", 3}}));
  }
  b.add("masked", shape(common(b)));
  // More tokens than there are behind the mask, and fewer than the vocabulary: a cut that takes nothing
  // away, where the order of the sum is the only difference.
  for (const int64_t rule : {0, 1}) {
    const int64_t vocab = 24 + b.draw(30);
    b.add("masked",
          shape({.requests = 8, .nodes = 5, .vocab = vocab},
                {{"mask", 1}, {"temp100", 200}, {"topk", vocab - 1 - b.draw(3)}, {"rule", rule}}));
  }
  // All that cuts at once.
  for (const int64_t rule : {0, 1}) {
    b.add("masked",
          shape({.requests = 24, .nodes = 4, .vocab = 30 + b.draw(40)}, {{"mask", 1},
                                                                         {"temp100", 300},
                                                                         {"topk", 3 + b.draw(6)},
                                                                         {"penalty4", 2},
                                                                         {"history", 12},
                                                                         {"rule", rule}}));
  }
  b.add("dead_end", shape({.requests = 6, .nodes = 10, .vocab = 20}, {{"mask", 1}}));
  b.add("dead_end", shape({.requests = 5, .nodes = 9, .vocab = 40}, {{"temp100", 80}}));
  b.add("dead_end",
        shape({.requests = 5, .nodes = 9, .vocab = 40}, {{"temp100", 80}, {"rule", 1}}));
  for (const int64_t region : b.regions({1, 4, 16, 65})) {
    for (const int64_t penalty : {region, -region}) {
      b.add("penalty",
            shape(common(b), with(controls(b, static_cast<size_t>(b.draw(4))),
                                  {{"penalty4", penalty}, {"history", 6 + b.draw(20)}})));
    }
  }
  b.add("penalty", shape(common(b), {{"penalty4", 8}}));
  for (const int64_t top_k : {0, 1, 3, 7}) {
    b.add("ties", shape(common(b), {{"temp100", 100}, {"topk", top_k}}));
    b.add("ties", shape({.requests = 6, .nodes = 12, .vocab = 9}, {{"topk", top_k}}));
  }
  for (size_t kind = 0; kind < 4; ++kind) {
    b.add("alike", shape({.requests = 5, .nodes = 6, .vocab = 9 + b.draw(20)}, controls(b, kind)));
  }
  // The same logits with other controls.
  for (const int64_t rule : {0, 1}) {
    b.add("nominal", shape({.requests = 1, .nodes = 2, .vocab = 12 + b.draw(9)},
                           {{"rule", rule}, {"temp100", 100}, {"history", 9}, {"penalty4", 2}}));
    b.add_again({{"temp100", 300 + b.draw(300)}});
    b.add_again({{"penalty4", 9 + b.draw(9)}});
    b.add_again({{"penalty4", 0}});
    b.add_again({{"topk", 2 + b.draw(3)}});
    b.add_again({{"limit", 1}});
    b.add_again({{"mask", 1}});
    b.add_again({{"mask", 0}});
  }
  // Several siblings, and one token that is left.
  for (const int64_t vocab : {3, 5, 8}) {
    b.add("rejection", shape({.requests = 8, .nodes = 20, .vocab = vocab}, {{"rule", 1}}));
  }
  for (const int64_t history : b.regions({1, 20, 100, 301})) {
    b.add("penalty",
          shape(common(b),
                {{"penalty4", 1 + b.draw(6)}, {"history", history}, {"temp100", 100 * b.draw(2)}}));
  }
  // About as many of four tokens as 8 bits count, more of some and fewer of others. Where penalties raise
  // what occurred, such tokens decide.
  b.add("penalty", shape({.requests = 8, .nodes = 3, .vocab = 20 + b.draw(30)},
                         {{"penalty4", -1}, {"history", 1850 + b.draw(140)}, {"temp100", 100}}));
  b.add("nan", shape(common(b)));
  b.add("nan", shape({.requests = 2, .nodes = 3, .vocab = 7}, {{"temp100", 90}, {"topk", 2}}));
  for (const int64_t defect : {0, 1, 2, 3, 4, 5, 6}) {
    b.add("bad_tree",
          shape({.requests = 2, .nodes = 7, .vocab = 12}, {{"depth", 4}, {"defect", defect}}));
  }
}

void add_sizes(PlanBuilder& b, bool small) {
  constexpr std::array<int64_t, 12> kVocab = {1, 2, 3, 15, 16, 31, 32, 33, 63, 65, 257, 1000};
  for (size_t i = 0; i < kVocab.size(); ++i) {
    b.add("sizes", shape({.requests = 1 + b.draw(4), .nodes = 1 + b.draw(12), .vocab = kVocab[i]},
                         with(controls(b, i), {{"mask", i % 2 == 1 && kVocab[i] > 8 ? 1 : 0},
                                               {"width", 1 + b.draw(9)}})));
  }
  for (const int64_t vocab : b.beside_tiles(512)) {
    b.add("sizes",
          shape({.requests = 6, .nodes = 4, .vocab = vocab}, {{"temp100", 100000}, {"depth", 2}}));
  }
  // Rows of the cache that are no multiple of a vector, over several of them.
  for (const int64_t width : b.beside_tiles(128)) {
    b.add("full_chain", shape({.requests = 2, .nodes = 4, .vocab = 12}, {{"width", width}}));
  }
  // Ends of the ranges of seeds and limits, top_k beyond 32 bits, more steps than nodes.
  for (const int64_t rule : {0, 1}) {
    for (const int64_t seeds : {1, 2}) {
      b.add("nominal", shape(common(b), {{"seeds", seeds}, {"temp100", 90}, {"rule", rule}}));
    }
    b.add("nominal",
          shape(common(b),
                {{"limit", std::numeric_limits<int32_t>::max()}, {"temp100", 90}, {"rule", rule}}));
    b.add("top_k", shape(common(b), {{"topk", (int64_t{1} << (31 + rule)) + 1 + b.draw(9)},
                                     {"temp100", 200},
                                     {"rule", rule}}));
    b.add("nominal", shape({.requests = 2, .nodes = 1 + b.draw(6), .vocab = 12},
                           {{"depth", 33 + b.draw(31)}, {"rule", rule}}));
    b.add("sizes", shape({.requests = 1, .nodes = 1, .vocab = 1}, {{"rule", rule}}));
  }
  b.add("top_k", shape(common(b), {{"topk", (int64_t{1} << 32) + 2}, {"temp100", 200}}));
  b.add("no_requests", shape({.requests = 0, .nodes = 3, .vocab = 9}));
  for (size_t kind = 0; kind < 4; ++kind) {
    b.add("empty_tree", shape({.requests = 3, .nodes = 0, .vocab = 30}, controls(b, kind)));
  }
  const int64_t cube = 5 + b.draw(9);
  b.add("sizes", shape({.requests = cube, .nodes = cube, .vocab = cube},
                       {{"depth", cube}, {"width", cube}, {"temp100", 90}}));
  // Around the words of the masks.
  for (const int64_t nodes : {31, 32, 33, 64, 65}) {
    b.add("sizes", shape({.requests = 2, .nodes = nodes, .vocab = 12}, controls(b, b.draw(4))));
  }
  b.add("wide", shape({.requests = 2, .nodes = 60, .vocab = 200}));
  b.add("wide", shape({.requests = 2, .nodes = 40, .vocab = 100}, {{"temp100", 100}, {"rule", 1}}));
  // Of a dozen siblings the last is decided by its own draw.
  b.add("wide", shape({.requests = 24, .nodes = 24, .vocab = 20 + b.draw(40)},
                      {{"temp100", 100}, {"rule", 1}}));
  b.add("deep", shape({.requests = 2, .nodes = 70, .vocab = 30}, {{"temp100", 70}}));
  b.add("deep", shape({.requests = 1, .nodes = 40, .vocab = 30}, {{"penalty4", 2}}));
  b.add("many_nodes", shape({.requests = 2, .nodes = 130, .vocab = 20}, {{"depth", 12}}));
  for (const int64_t prefix : {129, 513, 2051}) {
    b.add("long_prefix",
          shape({.requests = 2, .nodes = 9, .vocab = 20},
                with(controls(b, 1 + b.draw(3)), {{"prefix", prefix}, {"width", 2}})));
  }
  b.add("many_requests", shape({.requests = 40, .nodes = 6, .vocab = 20}, {{"temp100", 90}}));
  b.add("large",
        shape({.requests = 1, .nodes = 3, .vocab = 66000}, {{"temp100", 90}, {"topk", 40}}));
  for (const int64_t shift10 : {2, 3, -3, 6}) {
    b.add("large_logits", shape(common(b), {{"shift10", shift10}, {"temp100", 20}}));
  }
  // Far below every number that may stand for an excluded token: what is left of the logits are ties.
  for (const int64_t shift10 : {-6, -7, -9, -12}) {
    for (const int64_t temp100 : {0, 100}) {
      b.add("ties", shape(common(b), {{"shift10", shift10}, {"temp100", temp100}}));
    }
  }
  b.add("common_shift", shape(common(b), {{"shift10", 4}, {"temp100", 100}}));
  // Temperatures and penalties that may have a formula of their own.
  for (const int64_t temp100 : {25, 50, 100, 200, 400}) {
    b.add("temperature", shape(common(b), {{"temp100", temp100}}));
    b.add("temperature", shape(common(b), {{"temp100", temp100}, {"rule", 1}}));
  }
  for (const int64_t penalty4 : {-8, -4, 2, 4, 8}) {
    b.add("penalty", shape({.requests = 4, .nodes = 12, .vocab = 8 + b.draw(9)},
                           {{"penalty4", penalty4}, {"history", 30}, {"temp100", 90}}));
  }
  for (const int64_t temp100 : b.regions({1, 5, 30, 100, 300, 1000, 5000, 20000, 100001})) {
    b.add("temperature", shape(common(b), {{"temp100", temp100}}));
  }
  for (const int64_t rule : {0, 1}) {
    b.add("temperature", shape({.requests = 6, .nodes = 5, .vocab = 20 + b.draw(20)},
                               {{"temp100", 1}, {"rule", rule}}));
  }
  // None is so low that it is 0: what ties is drawn from.
  for (const int64_t temp10 : {-3 - b.draw(2), -6 - b.draw(4), -20 - b.draw(10)}) {
    b.add("ties", shape({.requests = 6, .nodes = 6, .vocab = 9 + b.draw(30)},
                        {{"temp100", 100}, {"temp10", temp10}}));
  }
  for (const int64_t top_k : {1, 2, 100000}) {
    b.add("top_k", shape(common(b), {{"temp100", 150}, {"topk", top_k}}));
    b.add("top_k", shape(common(b), {{"temp100", 110}, {"topk", top_k}, {"rule", 1}}));
  }
  const int64_t few = 6 + b.draw(12);
  b.add("top_k",
        shape({.requests = 6, .nodes = 8, .vocab = few}, {{"temp100", 250}, {"topk", few - 1}}));
  b.add("top_k", shape({.requests = 3, .nodes = 8, .vocab = 400 + b.draw(200)},
                       {{"temp100", 250}, {"topk", 65 + b.draw(200)}}));
  if (small) return;
  // Many that are kept, all of nearly the same weight.
  b.add("top_k", shape({.requests = 1, .nodes = 1, .vocab = 1100 + b.draw(200)},
                       {{"temp100", 100000}, {"topk", b.draw_largest(1024)}}));
  // Positions beyond 16 bits.
  b.add("long_prefix", shape({.requests = 4, .nodes = 5, .vocab = 20},
                             {{"temp100", 250}, {"prefix", 66000 + b.draw(9000)}, {"width", 1}}));
  b.add("many_nodes", shape({.requests = 2, .nodes = 520, .vocab = 16}, {{"depth", 40}}));
  b.add("large", shape({.requests = 1, .nodes = 4, .vocab = 128256}, {{"temp100", 80}}));
  b.add("large",
        shape({.requests = 1, .nodes = 3, .vocab = 151936}, {{"temp100", 80}, {"rule", 1}}));
  b.add("large", shape({.requests = 2, .nodes = 3, .vocab = 151936}, {{"mask", 1}}));
  b.add("large",
        shape({.requests = 1, .nodes = 2, .vocab = b.draw_largest(250000)}, {{"temp100", 100}}));
  b.add("many_requests", shape({.requests = 300, .nodes = 8, .vocab = 24}, {{"temp100", 80}}));
}

// One in each part of the range of every size, crossed with controls and families of all kinds.
void add_drawn(PlanBuilder& b, bool small) {
  constexpr std::array<const char*, 8> kFamilies = {"nominal", "late_sibling", "duplicates",
                                                    "ties",    "penalty",      "wrong_root",
                                                    "masked",  "cousins"};
  const size_t count = 2 * kFamilies.size();
  const std::vector<int64_t> vocab = b.spread(small ? 600 : 6000, count);
  const std::vector<int64_t> nodes = b.spread(small ? 60 : 200, count);
  const std::vector<int64_t> requests = b.spread(10, count);
  for (size_t i = 0; i < count; ++i) {
    const std::string family = kFamilies[i % kFamilies.size()];
    Parameters more = controls(b, i < kFamilies.size() ? i : i + 1);
    if (b.draw(2) == 0) more["mask"] = 1;
    if (family == "penalty" || b.draw(4) == 0) {
      more["penalty4"] = 1 + b.draw(14);
      more["history"] = b.draw_size(1, 60);
    }
    if (b.draw(3) == 0) more["eos"] = 1;
    if (b.draw(3) == 0) more["limit"] = 1 + b.draw(5);
    // Of more tokens that are kept two are nearly always too close, in whatever row is drawn.
    if (more.contains("topk")) more["topk"] = b.draw_size(1, std::min<int64_t>(128, vocab[i]));
    more["prefix"] = b.draw_size(1, 300);
    more["width"] = b.draw_size(1, 80);
    // Exact ties stay ties only where nothing is subtracted.
    if (family == "ties") more.erase("penalty4");
    b.add(family, shape({.requests = requests[i],
                         .nodes = std::min(nodes[i], 40000 / (requests[i] * vocab[i]) + 3),
                         .vocab = std::max<int64_t>(2, vocab[i])},
                        more));
  }
  if (small) return;
  // Large ones, where a single size stands out.
  for (const int64_t tokens :
       {b.draw_size(6001, 32768), b.draw_size(32769, 65535), b.draw_size(65536, 250000)}) {
    b.add("sizes", shape({.requests = 1, .nodes = 3, .vocab = tokens}, controls(b, 1 + b.draw(3))));
  }
  b.add("many_nodes",
        shape({.requests = 1, .nodes = b.draw_largest(800), .vocab = 16}, {{"depth", 40}}));
  b.add("sizes", shape({.requests = b.draw_largest(2000), .nodes = 4, .vocab = 12},
                       controls(b, 1 + b.draw(3))));
}

// Every vocabulary, every number of nodes and every width up to 64, every number of requests up to 32:
// many of those with few nodes, and with draws, which tell requests apart.
void add_swept(PlanBuilder& b, bool small) {
  const int64_t step = small ? 16 : 1;
  const std::vector<int64_t> vocab = b.sweep(64, step);
  const std::vector<int64_t> nodes = b.sweep(64, step);
  const std::vector<int64_t> width = b.sweep(64, step);
  constexpr int64_t kRequests = 32;
  for (size_t i = 0; i < vocab.size(); ++i) {
    const int64_t requests = nodes[i] <= kRequests ? kRequests + 1 - nodes[i] : 1 + b.draw(2);
    b.add("sizes", shape({.requests = requests, .nodes = nodes[i], .vocab = vocab[i]},
                         with(controls(b, requests > 2 ? 1 + i % 3 : i), {{"width", width[i]}})));
  }
}

void add_relations(PlanBuilder& b) {
  for (const size_t kind : {0U, 1U, 3U}) {
    const CaseSpec first = b.spec("nominal", shape({.requests = 6, .nodes = 10, .vocab = 40},
                                                   with(controls(b, kind), {{"grid", 1}})));
    b.relate("permute_requests", first, {{"relation", 1}});
    b.relate("neighbors", first, {{"relation", 2}});
    b.relate("add_constant", first, {{"add", 16}});
    b.relate("repeat", first, {});
  }
}

}  // namespace

std::map<std::string, int64_t> shape(const Shape& s, std::map<std::string, int64_t> more) {
  more.insert({{"requests", s.requests}, {"nodes", s.nodes}, {"vocab", s.vocab}});
  return more;
}

Plan make_plan(const TaskCard& card, uint64_t seed, bool small) {
  PlanBuilder b(card, seed);
  b.add("nominal", shape({.requests = 1, .nodes = 8, .vocab = 32}));
  b.add("nominal", shape({.requests = 3, .nodes = 16, .vocab = 100}, {{"temp100", 80}}));
  add_families(b, small);
  add_sizes(b, small);
  add_drawn(b, small);
  add_swept(b, small);
  add_relations(b);
  const int64_t nodes = 6 + b.draw(6);
  for (const int64_t vocab : {512, 1024, 2048, 4096}) {
    if (small && vocab > 2048) continue;
    b.ladder("nominal", shape({.requests = 2, .nodes = nodes, .vocab = b.rung(vocab, 1)}));
  }
  return b.plan;
}

}  // namespace touchstone::judge::tree_verify
