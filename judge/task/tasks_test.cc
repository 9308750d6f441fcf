// What holds for every task: its card is whole, its plan asks everything the card promises, and its
// cases are what its signatures say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "judge/task/generate.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

std::string text_of(const Plan& plan) {
  std::string text;
  for (const CaseSpec& spec : plan.cases) text += format_spec(spec) + "\n";
  for (const Relation& r : plan.relations) {
    text += r.id + " " + format_spec(r.first) + " " + format_spec(r.second) + "\n";
  }
  for (const CaseSpec& spec : plan.memory_ladder) text += format_spec(spec) + "\n";
  return text;
}

TEST(Tasks, AreFoundByName) {
  ASSERT_EQ(tasks().size(), 8U);
  EXPECT_EQ(find_task("softmax_topk").card().id, "softmax_topk");
  try {
    find_task("softmax_topq");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean softmax_topk"), std::string::npos);
  }
}

TEST(Tasks, CardsAreWhole) {
  const std::set<std::string> dimensions = {"correctness", "completeness", "stability",
                                            "speed",       "memory",       "robustness",
                                            "determinism", "code",         "own_tests"};
  for (const auto& task : tasks()) {
    const TaskCard& card = task->card();
    SCOPED_TRACE(card.id);
    EXPECT_GT(card.prompt.size(), 2000U);
    for (const Function& function : card.functions) {
      EXPECT_NE(card.prompt.find(function.name + "("), std::string::npos) << function.name;
      if (!function.sized_by.empty()) {
        EXPECT_TRUE(std::ranges::count(card.functions, function.sized_by, &Function::name) == 1);
      }
    }
    for (const Probe& probe : card.probes) EXPECT_TRUE(dimensions.contains(probe.dimension));
    std::set<std::string> weighted;
    for (const auto& [dimension, weight] : card.weights) {
      weighted.insert(dimension);
      EXPECT_GT(weight, 0);
    }
    EXPECT_EQ(weighted, dimensions);
    EXPECT_FALSE(card.bytes_rule.empty() || card.flops_rule.empty() || card.tolerance_rule.empty());
  }
}

TEST(Tasks, BadCardsAreNamed) {
  EXPECT_THROW(parse_card("{"), CorruptData);
  EXPECT_THROW(parse_card("{\"id\": \"x\"}"), CorruptData);
  EXPECT_THROW(parse_card("[]"), CorruptData);
}

TEST(Tasks, PlansDependOnTheSeedAlone) {
  for (const auto& task : tasks()) {
    for (const bool small : {true, false}) {
      EXPECT_EQ(text_of(task->plan(5, small)), text_of(task->plan(5, small)));
      EXPECT_NE(text_of(task->plan(5, small)), text_of(task->plan(6, small)));
    }
  }
}

// Every family and every probe of the card is asked about, in the long plan and in the short one.
TEST(Tasks, PlansKeepWhatCardsPromise) {
  for (const auto& task : tasks()) {
    for (const bool small : {true, false}) {
      SCOPED_TRACE(task->card().id);
      const Plan plan = task->plan(8, small);
      std::set<std::string> families, relations, probes;
      for (const CaseSpec& spec : plan.cases) {
        families.insert(spec.family);
        for (const std::string& probe : task->probes_of(spec)) probes.insert(probe);
      }
      for (const Relation& relation : plan.relations) {
        relations.insert(relation.id);
        EXPECT_FALSE(relation.title.empty());
        for (const std::string& probe : task->probes_of(relation)) probes.insert(probe);
      }
      for (const Family& family : task->card().families) {
        if (family.id.starts_with("mixed")) continue;  // for timed calls
        EXPECT_TRUE(families.contains(family.id)) << family.id;
      }
      for (const RelationKind& kind : task->card().relations) {
        EXPECT_TRUE(relations.contains(kind.id)) << kind.id;
      }
      if (!plan.memory_ladder.empty()) probes.insert(task->card().memory_probe);
      for (const Probe& probe : task->card().probes) {
        EXPECT_TRUE(probes.contains(probe.id)) << probe.id;
      }
    }
  }
}

void expect_fits(const TaskCard& card, const Call& call) {
  const auto function = std::ranges::find(card.functions, call.function, &Function::name);
  ASSERT_NE(function, card.functions.end()) << call.function;
  size_t scalar = 0, input = 0, output = 0;
  for (const Argument& argument : function->arguments) {
    if (argument.kind == ArgumentKind::i64 || argument.kind == ArgumentKind::f32) {
      ASSERT_LT(scalar, call.scalars.size());
      EXPECT_EQ(call.scalars[scalar++].index(), argument.kind == ArgumentKind::i64 ? 0U : 1U);
    } else if (argument.kind == ArgumentKind::input) {
      ASSERT_LT(input, call.inputs.size());
      const InputTensor& tensor = call.inputs[input++];
      EXPECT_EQ(tensor.name, argument.name);
      EXPECT_EQ(tensor.dtype, argument.dtype);
      EXPECT_EQ(static_cast<int64_t>(tensor.data.size()),
                element_count(tensor.shape) * size_of(tensor.dtype));
    } else if (argument.kind == ArgumentKind::output) {
      ASSERT_LT(output, call.outputs.size());
      EXPECT_EQ(call.outputs[output].name, argument.name);
      EXPECT_EQ(call.outputs[output++].dtype, argument.dtype);
    }
  }
  EXPECT_EQ(scalar, call.scalars.size());
  EXPECT_EQ(input, call.inputs.size());
  EXPECT_EQ(output, call.outputs.size());
}

TEST(Tasks, CasesFitTheSignatures) {
  for (const auto& task : tasks()) {
    for (const CaseSpec& spec : task->plan(4, true).cases) {
      SCOPED_TRACE(format_spec(spec));
      for (const Call& call : task->build(spec).calls) expect_fits(task->card(), call);
    }
  }
}

TEST(Tasks, CasesAreRebuiltBitForBit) {
  for (const auto& task : tasks()) {
    for (const CaseSpec& spec : task->plan(4, true).cases) {
      const Case first = task->build(spec);
      const Case second = task->build(parse_spec(format_spec(spec)));
      ASSERT_EQ(first.calls.size(), second.calls.size());
      for (size_t i = 0; i < first.calls.size(); ++i) {
        for (size_t j = 0; j < first.calls[i].inputs.size(); ++j) {
          ASSERT_EQ(first.calls[i].inputs[j].data, second.calls[i].inputs[j].data);
        }
      }
    }
  }
}

TEST(Tasks, TimedShapesHaveACostAndHiddenData) {
  for (const auto& task : tasks()) {
    for (const bool small : {true, false}) {
      for (CaseSpec spec : task->timed(9, small)) {
        const Case first = task->build(spec);
        EXPECT_GT(task->bytes(first), 0);
        EXPECT_GT(task->flops(first), 0);
        spec.seed += 1;
        const Case second = task->build(spec);
        ASSERT_EQ(first.calls.size(), second.calls.size());
        EXPECT_EQ(task->bytes(first), task->bytes(second));
        const auto timed = std::ranges::find_if(first.calls, &Call::timed);
        ASSERT_NE(timed, first.calls.end());
        const auto at = static_cast<size_t>(timed - first.calls.begin());
        EXPECT_NE(timed->inputs.back().data, second.calls[at].inputs.back().data);
      }
    }
  }
}

// The ladder varies one parameter: that one is N.
// In one parameter, or in two that are always equal.
TEST(Tasks, LaddersClimbInOneParameter) {
  for (const auto& task : tasks()) {
    const Plan plan = task->plan(3, false);
    ASSERT_GE(plan.memory_ladder.size(), 3U);
    for (size_t rung = 1; rung < plan.memory_ladder.size(); ++rung) {
      std::set<int64_t> changed;
      for (const auto& [name, value] : plan.memory_ladder[rung].parameters) {
        if (value != plan.memory_ladder[rung - 1].parameters.at(name)) changed.insert(value);
      }
      EXPECT_EQ(changed.size(), 1U) << task->card().id;
    }
  }
}

// What is wrong for a part of the values that a scalar can have must be wrong for every seed.
TEST(Tasks, EveryPlanHasEveryRegionOfAScalar) {
  struct Region {
    std::string task, parameter;
    int64_t least, most;
  };
  std::vector<Region> regions = {{"layer_norm_backward", "eps10", 2, 2},
                                 {"layer_norm_backward", "eps10", 3, 3},
                                 {"beam_search", "min", 31, 32}};
  const auto both_signs = [&](const std::string& task, const std::string& parameter, int64_t least,
                              int64_t most) {
    regions.push_back({task, parameter, least, most});
    regions.push_back({task, parameter, -most, -least});
  };
  for (const char* task : {"flash_attention_forward", "flash_attention_backward", "kv_cache"}) {
    regions.push_back({task, "scale_milli", 0, 0});
    both_signs(task, "scale_milli", 1, 29);
    both_signs(task, "scale_milli", 30, 999);
    both_signs(task, "scale_milli", 1000, 7999);
    both_signs(task, "scale_milli", 60000, 64000);
  }
  both_signs("beam_search", "alpha100", 10, 49);
  both_signs("beam_search", "alpha100", 1875, 2000);
  both_signs("tree_verify", "penalty4", 1, 3);
  both_signs("tree_verify", "penalty4", 60, 64);
  regions.push_back({"tree_verify", "temp100", 1, 4});
  regions.push_back({"tree_verify", "temp100", 93750, 100000});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::map<std::string, Plan> plans;
    for (const Region& region : regions) {
      if (!plans.contains(region.task))
        plans[region.task] = find_task(region.task).plan(seed, false);
      const bool there =
          std::ranges::any_of(plans.at(region.task).cases, [&](const CaseSpec& spec) {
            const auto found = spec.parameters.find(region.parameter);
            return found != spec.parameters.end() && found->second >= region.least &&
                   found->second <= region.most;
          });
      EXPECT_TRUE(there) << region.task << ": " << region.parameter << " from " << region.least
                         << " to " << region.most << ", seed " << seed;
    }
  }
}

TEST(Tasks, StabilityNeverMakesAVerdict) {
  const Task& task = find_task("layer_norm_backward");
  EXPECT_TRUE(task.gates_verdict(CaseSpec{"nominal", {}, 1}));
  EXPECT_TRUE(task.gates_verdict(CaseSpec{"nan", {}, 1}));
  EXPECT_FALSE(task.gates_verdict(CaseSpec{"far_mean", {}, 1}));
  EXPECT_FALSE(find_task("kv_cache").gates_verdict(CaseSpec{"int8", {}, 1}));
}

}  // namespace
}  // namespace touchstone::judge
