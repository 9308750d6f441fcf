// The verbs of the program. One file per verb, one function per file:
//
//   void add_plan(Options& app, int& exit_code) {
//     auto options = std::make_shared<PlanOptions>();
//     Options* verb = app.add_verb("plan", "What fits in the memory of a device");
//     verb->add_option("--rows", options->rows, "Rows")->required();
//     verb->callback([options, &exit_code] { exit_code = plan(*options); });
//   }
//
// The callback runs once the whole command line is understood and sets exit_code to one of the
// values below. It lets exceptions through: main turns touchstone::InvalidArgument into one line
// on standard error and kUsage, every other touchstone::Error into one line and kBadData.
// Results go to standard output, messages to standard error: see output.h.
#pragma once

namespace touchstone::cli {

class Options;

inline constexpr int kOk = 0;
inline constexpr int kNo = 1;       // it ran, and the answer is "no": a check failed
inline constexpr int kUsage = 2;    // the command line is wrong
inline constexpr int kBadData = 3;  // the data, or this machine, cannot serve the request

void add_info(Options& app, int& exit_code);
void add_selfcheck(Options& app, int& exit_code);
void add_bench(Options& app, int& exit_code);
void add_gradcheck(Options& app, int& exit_code);
void add_plan(Options& app, int& exit_code);
void add_judge(Options& app, int& exit_code);
void add_duel(Options& app, int& exit_code);
void add_deploy(Options& app, int& exit_code);
void add_inspect(Options& app, int& exit_code);
void add_convert(Options& app, int& exit_code);
void add_tokenize(Options& app, int& exit_code);
void add_generate(Options& app, int& exit_code);
void add_score(Options& app, int& exit_code);
void add_train(Options& app, int& exit_code);

}  // namespace touchstone::cli
