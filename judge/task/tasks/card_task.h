// A task whose card and statement travel inside the program.
#pragma once

#include <string>
#include <utility>

#include "judge/task/task.h"
#include "judge/task/task_texts.h"

namespace touchstone::judge {

class CardTask : public Task {
 public:
  explicit CardTask(const std::string& id)
      : card_(parse_card(std::string(text(id + "/task.json")))) {
    card_.prompt = text(id + "/PROMPT.md");
  }
  const TaskCard& card() const final { return card_; }

 private:
  TaskCard card_;
};

}  // namespace touchstone::judge
