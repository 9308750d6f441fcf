#include "judge/task/shrink.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "judge/task/generate.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr int64_t kMaxElements = 4096;

// Goes to the first neighbor that fails, again and again. `Thing` is a case or a relation.
template <class Thing, class Neighbors, class Text, class Fails>
int descend(Thing& thing, const Neighbors& neighbors, const Text& text, const Fails& still_fails,
            int budget) {
  int tried = 0;
  std::set<std::string> asked{text(thing)};
  bool progress = true;
  while (progress) {
    progress = false;
    for (Thing& candidate : neighbors(thing)) {
      if (tried >= budget) return tried;
      // A neighbor of a neighbor is often an old acquaintance.
      if (!asked.insert(text(candidate)).second) continue;
      ++tried;
      if (!still_fails(candidate)) continue;
      thing = std::move(candidate);
      progress = true;
      break;
    }
  }
  return tried;
}

// One number of the case: where it stands, what was drawn, and what it is now.
struct Element {
  int64_t call = 0;
  const std::string* input = nullptr;
  int64_t at = 0;
  float drawn = 0;
  float now = 0;
  bool edited = false;
};

bool follows(const Edit& edit, const Element& e) {
  return edit.call == e.call && edit.input == *e.input && edit.last + 1 == e.at &&
         edit.value == e.now && std::signbit(edit.value) == std::signbit(e.now);
}

// All f32 inputs. A tensor that stands in two calls counts once: edits change both.
std::vector<Element> elements_of(const Case& c) {
  std::vector<Element> elements;
  std::set<std::pair<std::string, std::vector<std::byte>>> seen;
  for (size_t call = 0; call < c.calls.size(); ++call) {
    for (const InputTensor& input : c.calls[call].inputs) {
      if (input.dtype != DType::f32 || input.derived) continue;
      if (!seen.emplace(input.name, input.data).second) continue;
      const std::span<const float> values = as_f32(input);
      for (size_t i = 0; i < values.size(); ++i) {
        elements.push_back({static_cast<int64_t>(call), &input.name, static_cast<int64_t>(i),
                            values[i], values[i], false});
      }
    }
  }
  return elements;
}

// Numbers made simpler, as long as the case still fails.
class Simplifier {
 public:
  Simplifier(const Case& drawn, CaseSpec spec, const StillFails& still_fails, int budget)
      : elements_(elements_of(drawn)),
        spec_(std::move(spec)),
        still_fails_(still_fails),
        budget_(budget) {}

  Shrunk run() {
    const size_t count = elements_.size();
    if (count == 0 || count > static_cast<size_t>(kMaxElements)) return {spec_, 0};
    for (size_t length = count; length > 0; length /= 2) {
      for (size_t begin = 0; begin < count; begin += length) {
        set(begin, std::min(begin + length, count), [](float) { return 0.0F; });
      }
    }
    for (size_t i = 0; i < count; ++i) {
      if (elements_[i].edited) continue;
      if (!set(i, i + 1, [](float) { return 1.0F; })) {
        set(i, i + 1, [](float value) { return std::trunc(value); });
      }
    }
    return {spec_, tried_};
  }

 private:
  // Tries a change of the elements that are still as drawn; keeps it when the case still fails.
  template <class Change>
  bool set(size_t begin, size_t end, const Change& change) {
    std::vector<Element> before(elements_.begin() + static_cast<std::ptrdiff_t>(begin),
                                elements_.begin() + static_cast<std::ptrdiff_t>(end));
    bool any = false;
    for (size_t i = begin; i < end; ++i) {
      Element& e = elements_[i];
      // NaN and infinity are what their case is about.
      if (e.edited || !std::isfinite(e.drawn) || e.drawn == change(e.drawn)) continue;
      e.now = change(e.drawn);
      e.edited = any = true;
    }
    if (!any || tried_ >= budget_) {
      std::ranges::copy(before, elements_.begin() + static_cast<std::ptrdiff_t>(begin));
      return false;
    }
    ++tried_;
    CaseSpec candidate = spec_;
    candidate.edits = edits();
    if (still_fails_(candidate)) {
      spec_ = std::move(candidate);
      return true;
    }
    std::ranges::copy(before, elements_.begin() + static_cast<std::ptrdiff_t>(begin));
    return false;
  }

  std::vector<Edit> edits() const {
    std::vector<Edit> list;
    for (const Element& e : elements_) {
      // Zeros that were drawn join the zeros around them.
      const bool joins = !list.empty() && follows(list.back(), e);
      if (joins) {
        list.back().last = e.at;
      } else if (e.edited) {
        list.push_back({e.call, *e.input, e.at, e.at, e.now});
      }
    }
    return list;
  }

  std::vector<Element> elements_;
  CaseSpec spec_;
  const StillFails& still_fails_;
  int budget_;
  int tried_ = 0;
};

// The same change, from a smaller first case. A family that both shared stays shared.
Relation moved(const Relation& relation, CaseSpec first) {
  Relation next = relation;
  for (auto& [name, value] : next.second.parameters) {
    const auto before = relation.first.parameters.find(name);
    const auto after = first.parameters.find(name);
    const bool shared = before != relation.first.parameters.end() && before->second == value;
    if (shared && after != first.parameters.end()) value = after->second;
  }
  if (next.second.family == relation.first.family) next.second.family = first.family;
  next.first = std::move(first);
  return next;
}

}  // namespace

Shrunk shrink(const Task& task, CaseSpec spec, const StillFails& still_fails, int budget) {
  Shrunk result{std::move(spec), 0};
  result.tried = descend(
      result.spec, [&](const CaseSpec& s) { return task.smaller(s); }, format_spec, still_fails,
      budget);
  return result;
}

Shrunk simplify(const Task& task, CaseSpec spec, const StillFails& still_fails, int budget) {
  const Case drawn = task.build(spec);
  return Simplifier(drawn, std::move(spec), still_fails, budget).run();
}

ShrunkRelation shrink_relation(const Task& task, Relation relation,
                               const std::function<bool(const Relation&)>& still_fails,
                               int budget) {
  const auto neighbors = [&](const Relation& r) {
    std::vector<Relation> kept;
    for (CaseSpec& smaller : task.smaller(r.first)) {
      Relation candidate = moved(r, std::move(smaller));
      try {
        task.build(candidate.second);  // a change may not fit into a smaller case
      } catch (const InvalidArgument&) {
        continue;
      }
      kept.push_back(std::move(candidate));
    }
    return kept;
  };
  ShrunkRelation result{std::move(relation), 0};
  result.tried = descend(result.relation, neighbors, format_relation, still_fails, budget);
  return result;
}

}  // namespace touchstone::judge
