// A task whose card and statement travel inside the program.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "judge/task/task_texts.h"
#include "judge/task/tasks/plan_builder.h"

namespace touchstone::judge {

class CardTask : public Task {
 public:
  // How the cases of a task are read.
  struct Specs {
    CaseSpec (*resolve)(const CaseSpec&);  // the family that a hidden one stands for
    void (*check)(const CaseSpec&);        // InvalidArgument when it is not a case of this task
    std::vector<Shrinkable> sizes;         // what can be smaller in a failing case
  };
  CardTask(const std::string& id, Specs specs)
      : card_(parse_card(std::string(text(id + "/task.json")))), specs_(std::move(specs)) {
    card_.prompt = text(id + "/PROMPT.md");
  }
  const TaskCard& card() const final { return card_; }

  std::vector<CaseSpec> smaller(const CaseSpec& spec) const final {
    return valid_neighbors(spec, specs_.sizes, specs_.check);
  }

  // Both cases must be answered in full. `repeat` wants the same bits whatever the task; the other
  // relations are the task's own.
  CaseCheck check_relation(const Relation& relation, const Case& first,
                           const std::vector<Reply>& first_replies, const Case& second,
                           const std::vector<Reply>& second_replies) const final {
    for (const auto& [asked, replies] :
         {std::pair(&first, &first_replies), {&second, &second_replies}}) {
      Checker checker(*asked, *replies);
      for (size_t i = 0; i < asked->calls.size(); ++i) {
        if (!checker.answered(i)) return checker.finish();
      }
    }
    Checker checker(second, second_replies);
    if (relation.id == "repeat") {
      compare_all_bits(checker, second, first_replies);
    } else {
      compare_related(checker, {relation, first, first_replies, second});
    }
    return checker.finish();
  }

 protected:
  // Two cases and what was answered before.
  struct Related {
    const Relation& relation;
    const Case& first;
    const std::vector<Reply>& before;
    const Case& second;
  };
  virtual void compare_related(Checker& checker, const Related& pair) const = 0;

  virtual Tolerance tolerance_of(const CaseSpec& spec) const {
    const CaseSpec resolved = specs_.resolve(spec);
    return {card_.tolerance_factor, growth_for(resolved), family_of(resolved).stable};
  }

 private:
  TaskCard card_;
  Specs specs_;
};

}  // namespace touchstone::judge
