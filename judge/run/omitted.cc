#include "judge/run/omitted.h"

#include <algorithm>

namespace touchstone::judge {

std::vector<std::string> declared_omissions(const Contender& contender, const TaskCard& card) {
  std::vector<std::string> outputs;
  for (const Feature& feature : card.lacks) {
    const std::vector<std::string>& lacks = contender.binding.lacks;
    if (!feature.output.empty() && std::ranges::find(lacks, feature.id) != lacks.end()) {
      outputs.push_back(feature.output);
    }
  }
  return outputs;
}

std::vector<std::string> allowed_omissions(const TaskCard& card) {
  std::vector<std::string> outputs;
  for (const Feature& feature : card.lacks) {
    if (!feature.output.empty()) outputs.push_back(feature.output);
  }
  return outputs;
}

void mark_omitted(const std::vector<std::string>& declared, const std::vector<std::string>& allowed,
                  std::string_view note, const Call& call, Reply& reply) {
  if (reply.ending != Ending::ok) return;
  constexpr std::string_view kOmitted = "omitted ";
  std::vector<std::string> names = declared;
  if (note.starts_with(kOmitted)) {
    note.remove_prefix(kOmitted.size());
    while (!note.empty()) {
      const std::size_t comma = std::min(note.find(','), note.size());
      const std::string_view name = note.substr(0, comma);
      if (std::ranges::find(allowed, name) != allowed.end()) names.emplace_back(name);
      note.remove_prefix(std::min(comma + 1, note.size()));
    }
  }
  for (std::size_t i = 0; i < call.outputs.size() && i < reply.outputs.size(); ++i) {
    if (std::ranges::find(names, call.outputs[i].name) == names.end()) continue;
    reply.omitted.push_back(call.outputs[i].name);
    std::ranges::fill(reply.outputs[i], std::byte{0});
  }
}

}  // namespace touchstone::judge
