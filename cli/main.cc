// The touchstone program: reads the command line, runs one verb, turns every error into one line.
#include <fmt/format.h>

#include <exception>
#include <new>
#include <optional>

#include "cli/command_line.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/core/error.h"
#include "touchstone/version.h"

namespace touchstone::cli {
namespace {

int run(int argc, char** argv) {
  Options app("Language-model kernels, and a judge that proves implementations of them",
              "touchstone");
  app.set_version(fmt::format("touchstone {}", version()));
  app.footer(
      "Results go to standard output, messages and progress to standard error.\n"
      "Exit status: 0 success, 1 negative result, 2 usage error, 3 bad input or unsuitable "
      "machine.");
  int exit_code = kOk;
  add_info(app, exit_code);
  add_selfcheck(app, exit_code);
  add_bench(app, exit_code);
  add_gradcheck(app, exit_code);
  add_plan(app, exit_code);
  add_judge(app, exit_code);
  add_duel(app, exit_code);
  add_deploy(app, exit_code);
  add_inspect(app, exit_code);
  add_convert(app, exit_code);
  add_tokenize(app, exit_code);
  add_generate(app, exit_code);
  add_score(app, exit_code);
  add_train(app, exit_code);
  const std::optional<int> code = app.parse(argc, argv);
  return code ? *code : exit_code;
}

}  // namespace
}  // namespace touchstone::cli

int main(int argc, char** argv) {
  namespace cli = touchstone::cli;
  cli::occupy_standard_descriptors();
  cli::set_command_line(argc, argv);
  try {
    return cli::run(argc, argv);
  } catch (const touchstone::InvalidArgument& error) {
    cli::log(error.what());
    return cli::kUsage;
  } catch (const std::bad_alloc&) {
    cli::log("out of memory");
    return cli::kBadData;
  } catch (const std::exception& error) {
    cli::log(error.what());
    return cli::kBadData;
  }
}
