#include "judge/contender/commands.h"

#include <fmt/format.h>

#include "text/shell_quote.h"

namespace touchstone::judge {

std::string judge_command(std::string_view path, std::string_view task) {
  return fmt::format("touchstone judge {} --task {}", shell_quoted(path), task);
}

std::string replay_command(std::string_view path, std::string_view task, const CaseSpec& spec) {
  return fmt::format("{} --replay '{}'", judge_command(path, task), format_spec(spec));
}

std::string replay_command(std::string_view path, std::string_view task, const Relation& relation) {
  return fmt::format("{} --replay '{}'", judge_command(path, task), format_relation(relation));
}

}  // namespace touchstone::judge
