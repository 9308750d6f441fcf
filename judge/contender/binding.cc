#include "judge/contender/binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "text/edit_distance.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr int kNoFit = 1000;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Small letters, no underscores, abbreviations written out: layerNorm_fwd -> layernormforward.
std::string essence(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c != '_') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  text = replaced(text, "fwd", "forward");
  text = replaced(text, "bwd", "backward");
  return text;
}

// 0 is the same name; kNoFit is no relation. Less sure names must agree in their arguments.
int distance(const std::string& wanted, const Candidate& candidate, int arguments) {
  if (candidate.name == wanted) return 0;
  const bool known = arguments >= 0 && candidate.arguments >= 0;
  if (known && candidate.arguments != arguments) return kNoFit;
  const std::string a = essence(wanted);
  const std::string b = essence(candidate.name);
  if (a == b) return 1;
  // An affix: my_softmax_topk, softmax_topk_cpu.
  if (b.find(a) != std::string::npos) return 2 + static_cast<int>(b.size() - a.size());
  const auto edits = static_cast<int>(edit_distance(a, b));
  const int allowed = static_cast<int>(a.size()) / (known ? 4 : 6);
  return edits <= allowed ? 2 + edits : kNoFit;
}

std::string names_of(const std::vector<Candidate>& candidates) {
  if (candidates.empty()) return "it has no functions at all";
  std::string text = "it has ";
  const std::size_t most = 8;
  for (std::size_t i = 0; i < candidates.size() && i < most; ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", candidates[i].name);
    if (candidates[i].arguments >= 0)
      text += fmt::format("({} arguments)", candidates[i].arguments);
  }
  if (candidates.size() > most) text += fmt::format(" and {} more", candidates.size() - most);
  return text;
}

}  // namespace

int argument_count(const Function& function, Language language) {
  int count = language == Language::cuda ? 1 : 0;
  for (const Argument& argument : function.arguments) {
    const bool python = language == Language::numpy;
    if (python && argument.kind == ArgumentKind::state) return -1;
    if (!python || argument.kind != ArgumentKind::output) ++count;
  }
  return count;
}

bool is_sizer(const TaskCard& card, const Function& function) {
  return std::ranges::any_of(card.functions,
                             [&](const Function& f) { return f.sized_by == function.name; });
}

bool is_optional(const TaskCard& card, const Function& function, Language language) {
  return function.optional || (language == Language::numpy && is_sizer(card, function));
}

std::map<std::string, std::string> propose_binding(
    const TaskCard& card, Language language, const std::vector<Candidate>& candidates,
    const std::map<std::string, std::string>& written, const std::string& contender) {
  std::map<std::string, std::string> binding = written;
  std::set<std::string> used;
  for (const auto& [wanted, name] : written) used.insert(name);
  // Best fits first, so that a sure name is not taken away by a lesser guess.
  struct Fit {
    int distance;
    std::size_t function;
    std::size_t candidate;
  };
  std::vector<Fit> fits;
  for (std::size_t f = 0; f < card.functions.size(); ++f) {
    const int arguments = argument_count(card.functions[f], language);
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      const int d = distance(card.functions[f].name, candidates[c], arguments);
      if (d < kNoFit) fits.push_back({d, f, c});
    }
  }
  std::stable_sort(fits.begin(), fits.end(),
                   [](const Fit& a, const Fit& b) { return a.distance < b.distance; });
  for (const Fit& fit : fits) {
    const Function& function = card.functions[fit.function];
    const std::string& name = candidates[fit.candidate].name;
    // An optional function is not worth a guess: its absence is an answer too.
    if (binding.contains(function.name) || used.contains(name)) continue;
    if (is_optional(card, function, language) && fit.distance > 1) continue;
    binding[function.name] = name;
    used.insert(name);
  }
  for (const Function& function : card.functions) {
    if (is_optional(card, function, language) || binding.contains(function.name)) continue;
    throw InvalidArgument(fmt::format(
        "contender '{}': no function for {} ({} arguments); {}. Name it in contender.json "
        "(\"functions\") or write an adapter: touchstone deploy NAME --task {} shows both",
        contender, function.name, argument_count(function, language), names_of(candidates),
        card.id));
  }
  return binding;
}

std::vector<std::string> resolve_symbols(const TaskCard& card, const Contender& contender,
                                         const std::vector<Symbol>& symbols) {
  std::vector<std::string> resolved;
  for (const Function& function : card.functions) {
    const auto bound = contender.binding.functions.find(function.name);
    const std::string name =
        bound == contender.binding.functions.end() ? function.name : bound->second;
    const int arguments = argument_count(function, contender.language);
    const Symbol* best = nullptr;
    for (const Symbol& symbol : symbols) {
      if (symbol.name == name) {
        best = &symbol;
        break;
      }
      const bool fits = symbol.arguments < 0 || symbol.arguments == arguments;
      if (symbol.plain == name && fits) best = &symbol;
    }
    if (best != nullptr) {
      resolved.push_back(best->name);
    } else if (function.optional) {
      resolved.emplace_back("-");
    } else {
      throw InvalidArgument(fmt::format(
          "contender '{}': its library exports no function {} for {}; is it static, a template, or "
          "in another file?",
          contender.name, name, function.name));
    }
  }
  return resolved;
}

}  // namespace touchstone::judge
