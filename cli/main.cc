// The touchstone program: reads the command line, runs one verb, turns every error into one line.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "text/edit_distance.h"
#include "touchstone/core/error.h"
#include "touchstone/version.h"

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
    say(fmt::format(
        "there is no verb '{}'; {}", word,
        meant.empty() ? "touchstone --help lists them" : fmt::format("did you mean '{}'?", meant)));
    return false;
  }
  return true;
}

// CLI11 knows what is wrong but not how we speak: one line, the verb in front, a hint behind.
int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* verb = &app;
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (!chosen.empty()) verb = chosen.front();
  const std::string prefix = verb == &app ? "" : fmt::format("{}: ", verb->get_name());
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) {
    const std::string meant = nearest(extras.front(), option_names(*verb));
    say(fmt::format("{}'{}' is not understood; {}", prefix, extras.front(),
                    meant.empty()
                        ? fmt::format("touchstone {}--help lists the options",
                                      verb == &app ? "" : fmt::format("{} ", verb->get_name()))
                        : fmt::format("did you mean {}?", meant)));
    return kUsage;
  }
  std::string what = error.what();
  std::ranges::replace(what, '\n', ' ');
  say(prefix + what);
  return kUsage;
}

int run(int argc, char** argv) {
  CLI::App app("Language-model kernels, and a judge that proves implementations of them",
               "touchstone");
  app.set_version_flag("--version", fmt::format("touchstone {}", version()));
  app.set_help_flag("-h,--help", "This text");
  app.footer(
      "Data goes to standard output, talk to standard error.\n"
      "Exit status: 0 yes, 1 the answer is no, 2 wrong usage, 3 bad data or unfit machine.");
  app.require_subcommand(0, 1);
  int exit_code = kOk;
  add_info(app, exit_code);
  add_selfcheck(app, exit_code);
  add_bench(app, exit_code);
  add_gradcheck(app, exit_code);
  add_plan(app, exit_code);
  add_judge(app, exit_code);
  add_duel(app, exit_code);
  add_deploy(app, exit_code);

  if (!verb_is_known(app, argc, argv)) return kUsage;
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForVersion& call) {
    print(std::string(call.what()) + "\n");
    return kOk;
  } catch (const CLI::CallForHelp&) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    print(chosen.empty() ? app.help() : chosen.front()->help(app.get_name()));
    return kOk;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error);
  }
  if (app.get_subcommands().empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kUsage;
  }
  return exit_code;
}

}  // namespace
}  // namespace touchstone::cli

int main(int argc, char** argv) {
  namespace cli = touchstone::cli;
  cli::set_command_line(argc, argv);
  try {
    return cli::run(argc, argv);
  } catch (const touchstone::InvalidArgument& error) {
    cli::say(error.what());
    return cli::kUsage;
  } catch (const std::bad_alloc&) {
    cli::say("out of memory");
    return cli::kBadData;
  } catch (const std::exception& error) {
    cli::say(error.what());
    return cli::kBadData;
  }
}
