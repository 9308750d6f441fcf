// touchstone deploy: a folder to start from, with prompts, templates and working adapters.
#include "judge/contender/deploy.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "judge/contender/adapter.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"
#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

struct DeployOptions {
  std::string folder;
  std::vector<std::string> tasks;
  std::string from;
};

int run_deploy(const DeployOptions& options) {
  if (!options.from.empty()) {
    if (options.tasks.size() != 1) {
      throw InvalidArgument("deploy: --from needs one --task (touchstone judge --list)");
    }
    const judge::Task& task = judge::find_task(options.tasks.front());
    for (const auto& file : judge::deploy_adapter(options.folder, options.from, task)) {
      print(fmt::format("{}\n", (options.folder / file).string()));
    }
    return kOk;
  }
  std::vector<const judge::Task*> tasks;
  for (const std::string& id : options.tasks) tasks.push_back(&judge::find_task(id));
  if (tasks.empty()) {
    for (const auto& task : judge::tasks()) tasks.push_back(task.get());
  }
  for (const std::filesystem::path& file : judge::deploy(options.folder, tasks)) {
    print(fmt::format("{}\n", (options.folder / file).string()));
  }
  return kOk;
}

}  // namespace

void add_deploy(Options& app, int& exit_code) {
  auto options = std::make_shared<DeployOptions>();
  Options* verb =
      app.add_verb("deploy", "Write a starter folder: prompts, templates and working adapters");
  verb->add_option("folder", options->folder, "Folder to create")->required();
  verb->add_option("--task", options->tasks, "Only these tasks (touchstone judge --list)");
  verb->add_option("--from", options->from,
                   "An existing .c, .cc, .cpp, .cu or .py: write an adapter to its functions, with "
                   "HOLE where a human has to decide");
  verb->footer("Prints the files it wrote. Run what is there with touchstone judge.");
  verb->callback([options, &exit_code] { exit_code = run_deploy(*options); });
}

}  // namespace touchstone::cli
