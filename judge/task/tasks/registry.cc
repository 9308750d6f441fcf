#include "judge/task/tasks/registry.h"

#include <fmt/format.h>

#include "text/edit_distance.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {

const Task& find_task(const std::string& id) {
  const Task* nearest = nullptr;
  size_t distance = 0;
  for (const std::unique_ptr<Task>& task : tasks()) {
    if (task->card().id == id) return *task;
    const size_t d = edit_distance(id, task->card().id);
    if (!nearest || d < distance) {
      nearest = task.get();
      distance = d;
    }
  }
  throw InvalidArgument(
      fmt::format("task: there is no '{}'; did you mean {}?", id, nearest->card().id));
}

}  // namespace touchstone::judge
