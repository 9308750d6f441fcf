#include "judge/contender/commands.h"

#include <fmt/format.h>

namespace touchstone::judge {

std::string judge_command(std::string_view path, std::string_view task) {
  // Single quotes keep a shell from reading anything into either.
  const auto quoted = [](std::string_view text) {
    const bool plain = text.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                           "0123456789_./-") == std::string_view::npos;
    if (plain && !text.empty()) return std::string(text);
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
  };
  return fmt::format("touchstone judge {} --task {}", quoted(path), task);
}

std::string replay_command(std::string_view path, std::string_view task, const CaseSpec& spec) {
  return fmt::format("{} --replay '{}'", judge_command(path, task), format_spec(spec));
}

std::string replay_command(std::string_view path, std::string_view task, const Relation& relation) {
  return fmt::format("{} --replay '{}'", judge_command(path, task), format_relation(relation));
}

}  // namespace touchstone::judge
