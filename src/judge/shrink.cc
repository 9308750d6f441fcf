#include "judge/shrink.h"

#include <set>
#include <string>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {

Shrunk shrink(const Task& task, CaseSpec spec,
              const std::function<bool(const CaseSpec&)>& still_fails, int budget) {
  Shrunk result{std::move(spec), 0};
  std::set<std::string> asked{format_spec(result.spec)};
  bool progress = true;
  while (progress) {
    progress = false;
    for (CaseSpec& candidate : task.smaller(result.spec)) {
      if (result.tried >= budget) return result;
      // A neighbour of a neighbour is often an old acquaintance.
      if (!asked.insert(format_spec(candidate)).second) continue;
      ++result.tried;
      if (!still_fails(candidate)) continue;
      result.spec = std::move(candidate);
      progress = true;
      break;
    }
  }
  return result;
}

}  // namespace touchstone::judge
