// The parts of an examination, for examination.cc: cases, relations and the experiments beside them.
#pragma once

#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "judge/measure/examination.h"
#include "judge/run/contender_process.h"
#include "judge/run/process_stats.h"

namespace touchstone::judge {

// What all parts of one examination share.
struct Session {
  const Contender& contender;
  const Task& task;
  const JudgeOptions& options;
  Record& record;
  TaskReference& reference;
  ContenderProcess process;  // for answers: quick
  ContenderProcess meter;    // for times and bytes
  std::mt19937_64 random;
  Clock::time_point begin = Clock::now();
  OwnThreadTimes own_times = {};
  double queued_before = own_times.thread_times().queued_seconds;
  // Work and id of the smallest case that took too long.
  std::optional<std::pair<double, std::string>> over_time = {};

  void log_progress(std::string_view what) const;
  // Wall time for what may usually take so long: more where others have the processors.
  double granted_seconds(double usual) const;
  // Adds a finding unless its kind was found often enough already.
  void add_finding(std::string_view kind, const std::string& text, const std::string& case_id);
  // An answer of an experiment that was wrong: a case like those of the plan.
  void add_wrong_case(const std::string& id, const CaseSpec& spec, const CaseCheck& check,
                      Ending ending = Ending::ok);
  // A run of an experiment that did not end well counts as in a case of the plan. False when it did.
  bool add_failed_run(const std::string& id, const CaseSpec& spec,
                      const std::vector<Reply>& replies);
  // A finding for a case that ended badly; nothing for the others.
  void add_ending_finding(const std::vector<Reply>& replies, const std::string& case_id);
};

// The first function of a case that the contender does not have; empty when it has all.
std::string missing_function(const Session& session, const Case& asked);

// Seconds of one part of an examination, added to the record when it ends.
class PhaseClock {
 public:
  PhaseClock(Record& record, std::string name) : record_(record), name_(std::move(name)) {}
  ~PhaseClock() { record_.phase_seconds[name_] += seconds_since(begin_); }
  PhaseClock(const PhaseClock&) = delete;
  PhaseClock& operator=(const PhaseClock&) = delete;

 private:
  Record& record_;
  std::string name_;
  Clock::time_point begin_ = Clock::now();
};

// Two cases, one after the other, and what holds between their answers.
struct RelationRun {
  Ending ending = Ending::ok;
  CaseCheck check;
  std::vector<Reply> first_replies;
  std::vector<Reply> second_replies;
};
RelationRun run_relation(ContenderProcess& process, const Task& task, const Relation& relation,
                         const Case& first, const Case& second, uint64_t poison);
RelationRun run_relation(ContenderProcess& process, const Task& task, const Relation& relation,
                         uint64_t poison);

bool run_cases(Session& session, const Plan& plan);  // false: the first failure ended it
void run_relations(Session& session, const Plan& plan);
// Whether a failed case was only refused, and needs what the card allows a contender to lack.
bool may_be_lack(const Session& session, const CaseRecord& c);
// Refusals that the card allows become what the contender lacks: lacks.cc.
void settle_lacks(Session& session);
// One sentence about which cases failed and which were refused.
void write_diagnosis(Session& session);
// Features of the card that a case needs and that are not what the probe is about.
int needs_besides(const Session& session, const CaseSpec& spec, const std::string& probe);
// The first feature that a case needs and the contender was found to lack; empty where there is none.
std::string lacked_by(const Record& record, const Task& task, const CaseSpec& spec);
void evaluate_probes(Session& session);        // after settle_lacks
void evaluate_memory_probe(Session& session);  // after measure_memory_growth
// The cases under ASan and UBSan, and the plain build over a guarded heap: instrumented.cc.
void run_sanitized(Session& session);
void run_guarded(Session& session);
// The smallest failures of each kind, with the commands that show them again: witness.cc.
void find_witnesses(Session& session, const Plan& plan);
// Cases that were right once more, back and forth: call_order.cc.
void walk_cases(Session& session);
void measure_memory_growth(Session& session, const Plan& plan);
std::string ladder_id(std::size_t rung);  // "m3": the third size
// After it: seconds along the same ladder, and what the last call leaves behind.
// The slope of log(value) over log(n), by least squares over the points whose value is `least` or more;
// nothing with fewer than three. What is near zero is not the contender's, but what measuring costs.
std::optional<double> growth_exponent(std::span<const std::pair<double, double>> points,
                                      double least);
void measure_time_growth(Session& session, const Plan& plan);
void detect_leaks(Session& session);
// Answers cached by address or content, and work skipped when content comes again.
void detect_caching(Session& session);
// The part of it that proves something about a contender that is wrong: a cheat must not depend on
// whether two cases of the plan happen to look alike to it.
void prove_old_answers(Session& session);
// Functions, branches, repeated lines, functions that nothing reaches: source/code_facts.cc.
void collect_code_facts(Session& session);
// Topics and claims in the files beside the code: source/documentation.cc.
void read_documentation(Session& session);
// How often each page of an input is read: page_reads.cc.
void count_page_reads(Session& session);
// Tests that came with the contender, run against broken copies of it where it is `right` itself.
void run_own_tests(Session& session, bool right);
// The answer in the next lower precision must fail, or the tolerance says nothing.
void check_precision_control(Session& session);

}  // namespace touchstone::judge
