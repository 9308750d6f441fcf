#include "judge/task/tasks/gate_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "judge/task/generate.h"

namespace touchstone::judge::gate {
namespace {

// The largest error in units of the bound, over everything that was compared.
double worst_of(const CaseCheck& check) {
  double worst = 0;
  for (const OutputError& error : check.errors) worst = std::max(worst, error.worst);
  return worst;
}

// Outputs that say nothing about the inputs.
std::vector<Reply> trivial(const Case& c, const std::string& kind) {
  std::vector<Reply> replies;
  for (const Call& call : c.calls) {
    Reply& reply = replies.emplace_back();
    reply.ending = Ending::ok;
    for (const OutputTensor& output : call.outputs) {
      const auto count = static_cast<size_t>(element_count(output.shape));
      std::vector<std::byte> bytes(count * sizeof(float), std::byte{0});
      if (kind != "zeros" && output.dtype == DType::f32) {
        std::vector<float> values(count, kind == "NaN" ? std::nanf("") : 1.0F);
        const InputTensor* input = nullptr;
        for (const InputTensor& i : call.inputs) {
          if (i.dtype == DType::f32 && !i.data.empty()) input = input ? input : &i;
        }
        if (kind == "copy" && input) {
          for (size_t i = 0; i < count; ++i) values[i] = as_f32(*input)[i % as_f32(*input).size()];
        }
        bytes = bytes_of(values);
      }
      reply.outputs.push_back(std::move(bytes));
    }
  }
  return replies;
}

bool has_numbers(const Case& c) {
  return std::ranges::any_of(c.calls, [](const Call& call) {
    return std::ranges::any_of(call.outputs,
                               [](const OutputTensor& o) { return element_count(o.shape) > 0; });
  });
}

// The cases of a plan with their right answers, made once for all styles that are asked about them.
struct Asked {
  CaseSpec spec;
  Case asked;
  Memo right;
};

std::vector<Asked>& asked_cases(const Task& task, uint64_t seed, bool small) {
  static std::map<std::tuple<std::string, uint64_t, bool>, std::vector<Asked>> all;
  const auto [found, first] = all.try_emplace({task.card().id, seed, small});
  if (first) {
    for (const CaseSpec& spec : task.plan(seed, small).cases) {
      found->second.push_back({spec, task.build(spec), {}});
    }
  }
  return found->second;
}

}  // namespace

void expect_passes(const Task& task, const std::string& name, const Contender& contender,
                   uint64_t seed, bool small) {
  double worst = 0;
  std::string where;
  for (Asked& one : asked_cases(task, seed, small)) {
    const CaseSpec& spec = one.spec;
    if (!task.gates_verdict(spec)) continue;
    const CaseCheck check = task.check_with(one.asked, contender(one.asked), one.right);
    EXPECT_TRUE(check.passed) << name << ": " << format_spec(spec) << ": " << check.reason;
    // Cases with NaN in right places have no largest error.
    if (worst_of(check) > worst) {
      worst = worst_of(check);
      where = format_spec(spec);
    }
  }
  EXPECT_LT(worst, 0.5) << name << ": no factor 2 to spare: " << where;
  EXPECT_GT(worst, 0) << name << ": nothing was compared";
}

void expect_found(const Task& task, const std::string& name, const Contender& contender,
                  uint64_t seed) {
  for (Asked& one : asked_cases(task, seed, true)) {
    if (!task.gates_verdict(one.spec)) continue;
    if (!task.check_with(one.asked, contender(one.asked), one.right).passed) return;
  }
  ADD_FAILURE() << name << ": passes every case";
}

void expect_trivial_fail(const Task& task) {
  for (const std::string kind : {"zeros", "ones", "NaN", "copy"}) {
    int passed = 0;
    int asked = 0;
    for (Asked& one : asked_cases(task, 13, true)) {
      const Case& c = one.asked;
      if (!has_numbers(c)) continue;
      ++asked;
      if (!task.check_with(c, trivial(c, kind), one.right).passed) continue;
      ++passed;
      EXPECT_NE(one.spec.family, "nominal") << kind << ": " << format_spec(one.spec);
    }
    // A few cases have trivial answers: one column, masked rows.
    EXPECT_LE(passed, asked / 20) << kind << " of " << asked;
  }
}

void expect_lower_precision_fails(const Task& task, const std::string& family) {
  int asked = 0;
  int failed = 0;
  std::map<std::string, int> failing;
  for (const CaseSpec& spec : task.plan(17, true).cases) {
    const Case c = task.build(spec);
    const CaseCheck check = task.check(c, task.lower_precision(c));
    ++asked;
    if (check.passed) {
      EXPECT_NE(spec.family, family) << format_spec(spec);
      continue;
    }
    ++failed;
    ++failing[spec.family];
  }
  EXPECT_GT(failed, asked / 3);
}

std::set<std::string> failed_probes(const Task& task, const Contender& contender, uint64_t seed) {
  std::set<std::string> failed;
  for (const CaseSpec& spec : task.plan(seed, true).cases) {
    const Case c = task.build(spec);
    if (task.check(c, contender(c)).passed) continue;
    for (const std::string& probe : task.probes_of(spec)) failed.insert(probe);
  }
  return failed;
}

std::set<std::string> broken_relations(const Task& task, const Contender& contender) {
  std::set<std::string> broken;
  for (const Relation& relation : task.plan(19, true).relations) {
    const Case first = task.build(relation.first);
    const Case second = task.build(relation.second);
    const CaseCheck check =
        task.check_relation(relation, first, contender(first), second, contender(second));
    if (!check.passed) broken.insert(relation.id + ": " + check.reason);
  }
  return broken;
}

void expect_relations(const Task& task, const Contender& contender) {
  for (const std::string& broken : broken_relations(task, contender)) ADD_FAILURE() << broken;
}

void expect_agrees(const Expected& first, const std::vector<double>& second) {
  ASSERT_EQ(first.value.size(), second.size());
  for (size_t i = 0; i < second.size(); ++i) {
    ASSERT_LE(std::fabs(first.value[i] - second[i]), 1e-6 * first.bound[i] + 1e-300) << i;
  }
}

}  // namespace touchstone::judge::gate
