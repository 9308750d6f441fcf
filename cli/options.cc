#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/output.h"
#include "cli/verbs.h"
#include "text/edit_distance.h"

namespace touchstone::cli {
namespace {

// What was probably meant by `wrong`; empty when nothing is near.
std::string nearest(std::string_view wrong, const std::vector<std::string>& names) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, wrong.size() / 3) + 1;
  for (const std::string& name : names) {
    const std::size_t d = edit_distance(wrong, name);
    if (d < best_distance) {
      best_distance = d;
      best = name;
    }
  }
  return best;
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(fmt::format("--{}", name));
  }
  return names;
}

// The first word that is not an option must be a verb.
bool verb_is_known(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> names = verb_names(app);
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with('-')) continue;
    if (std::ranges::find(names, word) != names.end()) return true;
    const std::string meant = nearest(word, names);
    log(fmt::format(
        "there is no verb '{}'; {}", word,
        meant.empty() ? "touchstone --help lists them" : fmt::format("did you mean '{}'?", meant)));
    return false;
  }
  return true;
}

// CLI11's message as one line, the verb in front and a hint behind.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* verb = &app;
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (!chosen.empty()) verb = chosen.front();
  const std::string prefix = verb == &app ? "" : fmt::format("{}: ", verb->get_name());
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) {
    const std::string meant = nearest(extras.front(), option_names(*verb));
    log(fmt::format("{}'{}' is not understood; {}", prefix, extras.front(),
                    meant.empty()
                        ? fmt::format("touchstone {}--help lists the options",
                                      verb == &app ? "" : fmt::format("{} ", verb->get_name()))
                        : fmt::format("did you mean {}?", meant)));
    return kUsage;
  }
  std::string what = error.what();
  std::ranges::replace(what, '\n', ' ');
  constexpr std::string_view kTooOften = ": At Most 1 required but received ";
  if (const std::size_t at = what.find(kTooOften); at != std::string::npos) {
    what = fmt::format("{}: expected once, got {} times", what.substr(0, at),
                       what.substr(at + kTooOften.size()));
  }
  log(prefix + what);
  return kUsage;
}

}  // namespace

Option* Option::required() {
  option_->required();
  return this;
}

Option* Option::check(Check check) {
  option_->check(std::move(check));
  return this;
}

Option* Option::one_of(std::vector<std::string> names) {
  option_->check(CLI::IsMember(std::move(names)));
  return this;
}

Option* Option::show_default() {
  option_->capture_default_str();
  return this;
}

Option* Option::split_at(char delimiter) {
  option_->delimiter(delimiter)->allow_extra_args(false);
  return this;
}

Option* Option::may_be_empty() {
  may_be_empty_ = true;
  return this;
}

Option* Option::needs(const Option* other) {
  option_->needs(other->option_);
  return this;
}

Options::Options(std::string about, std::string name)
    : owned_(std::make_unique<CLI::App>(std::move(about), std::move(name))), app_(owned_.get()) {
  app_->set_help_flag("-h,--help", "Print this help and exit");
  app_->require_subcommand(0, 1);
}

Options::Options(CLI::App* app) : app_(app) {}

Options::~Options() = default;

Options* Options::add_verb(const std::string& name, const std::string& about) {
  verbs_.push_back(std::unique_ptr<Options>(new Options(app_->add_subcommand(name, about))));
  return verbs_.back().get();
}

Option* Options::add_option(const std::string& name, std::string& value, const std::string& help) {
  Option* option = keep(app_->add_option(name, value, help));
  return option->check([option](const std::string& text) -> std::string {
    return text.empty() && !option->may_be_empty_ ? "expected a value, got an empty text" : "";
  });
}

Option* Options::add_option(const std::string& name, std::vector<std::string>& value,
                            const std::string& help) {
  return keep(app_->add_option(name, value, help));
}

Option* Options::add_option(const std::string& name, std::int64_t& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}

Option* Options::add_option(const std::string& name, std::uint64_t& value,
                            const std::string& help) {
  return keep(app_->add_option(name, value, help));
}

Option* Options::add_option(const std::string& name, int& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}

Option* Options::add_option(const std::string& name, double& value, const std::string& help) {
  return keep(app_->add_option(name, value, help));
}

Option* Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  return keep(app_->add_flag(name, value, help));
}

void Options::set_version(const std::string& text) { app_->set_version_flag("--version", text); }

void Options::footer(const std::string& text) { app_->footer(text); }

void Options::callback(std::function<void()> body) { app_->callback(std::move(body)); }

Option* Options::keep(CLI::Option* option) {
  options_.push_back(std::make_unique<Option>(option));
  return options_.back().get();
}

std::optional<int> Options::parse(int argc, char** argv) {
  if (!verb_is_known(*app_, argc, argv)) return kUsage;
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForVersion& call) {
    print(std::string(call.what()) + "\n");
    return kOk;
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = app_->get_subcommands();
    print(chosen.empty() ? app_->help() : chosen.front()->help(app_->get_name()));
    return kOk;
  } catch (const CLI::ParseError& error) {
    return usage_error(*app_, error);
  }
  if (app_->get_subcommands().empty()) {
    std::fputs(app_->help().c_str(), stderr);
    return kUsage;
  }
  return std::nullopt;
}

}  // namespace touchstone::cli
