// Options of `touchstone generate`, and the parts it is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/decoding/open_model.h"
#include "machine/stopwatch.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/io/chat_template.h"
#include "touchstone/model/model.h"

namespace touchstone::cli {

struct GenerateOptions {
  ModelChoice model;
  std::vector<std::string> prompts;
  std::string prompts_file;
  std::int64_t max_tokens = 128;
  std::int64_t min_tokens = 0;
  std::int64_t samples = 1;
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  double frequency_penalty = 0;
  double presence_penalty = 0;
  std::uint64_t seed = 0;
  std::vector<std::string> stops;
  bool ignore_eos = false;
  std::string grammar;  // files
  std::string json_schema;
  bool chat = false;
  std::string system;
  std::int64_t context = 0;
  std::int64_t max_rows = 256;
  std::int64_t log_probs = -1;
  std::int64_t beams = 0;  // 0 = no beam search
  double length_penalty = 1;
  std::string dialect = "canonical";
  std::string early_stopping = "false";
  std::string speculate;  // "" = plain decoding
  std::int64_t tree_nodes = 16;
  std::string rule = "target_only";
  bool always_speculate = false;
  bool trace = false;
  bool json = false;
  bool quiet = false;
  std::string corpus;  // the folder; "" = none
  std::int64_t documents = 1024;
  std::int64_t shard_documents = 1024;
  std::int64_t batch = 32;
  double minutes = 0;  // 0 = no limit
};

// The request of a prompt, without the prompt and the constraint. A --stop that is the text of a special
// token becomes a stop token: the text of the answer has none of them.
decode::Request request_of(const GenerateOptions& o, const io::Tokenizer& tokenizer);

// Of --grammar or --json-schema; null without them.
std::shared_ptr<const decode::TokenConstraint> constraint_of(const GenerateOptions& o,
                                                             const OpenedModel& opened);
// InvalidArgument where a continuation ended because nothing was allowed to follow. A line on standard
// error where -n or the context cut a text that is not complete.
void check_constraint(const decode::TokenConstraint* constraint,
                      const std::vector<decode::Completion>& answers);

// What a run took, as the line on standard error says it.
struct RunTimes {
  std::int64_t prompt_rows = 0;
  double first_seconds = 0;  // until the first token
  double prompt_seconds = 0;
  std::int64_t generated = 0;
  std::int64_t decode_tokens = 0;  // of them, after the first tokens, which the prompts give
  double decode_seconds = 0;
};
std::string times_text(const RunTimes& times, const model::Model& model);

// Requests of one run, timed: the time of a step is divided among its rows.
class TimedRun {
 public:
  // To be called with every event.
  void note(const decode::TokenEvent& event);
  // Runs steps until all is done, with `after_step` after each.
  void run(Context& context, const model::Model& model, decode::Scheduler& scheduler,
           const std::function<void()>& after_step = {});
  // One line on standard error.
  void report(const model::Model& model) const;

 private:
  machine::Stopwatch watch_{};
  RunTimes times_{};
  std::int64_t prefix_tokens_ = 0;
  std::set<std::pair<std::int64_t, std::int32_t>> samples_{};  // that have a token
};

// Prompts as the chat template of a model has them; as they are where it has none.
class ChatPrompts {
 public:
  ChatPrompts(const OpenedModel& opened, const std::string& path);
  bool has_template() const { return template_.has_value(); }
  // The tokens of messages, ready for the answer. `now` is for templates that name the day.
  std::vector<std::int32_t> render(const io::TemplateValue::Array& messages,
                                   std::int64_t now) const;
  // Of one message, after that of the system where there is one; on a day that is always the same.
  std::vector<std::int32_t> prompt(const std::string& system, const std::string& text) const;

 private:
  std::optional<std::string> special(const std::optional<std::int64_t>& token) const;

  const OpenedModel& opened_;
  std::optional<io::ChatTemplate> template_;
};
io::TemplateValue chat_message(const char* role, const std::string& text);

// A conversation: reads lines and answers them, or answers one prompt. The exit code.
int chat(const GenerateOptions& o, const OpenedModel& opened, Context& context, model::Model& model,
         const decode::SpeculationOptions& speculation);

// The best continuation of each prompt; all beams with --json. The exit code.
int search_beams(const GenerateOptions& o, const OpenedModel& opened, Context& context,
                 model::Model& model, const std::vector<std::vector<std::int32_t>>& prompts);

decode::SchedulerOptions scheduler_options(const GenerateOptions& o, const OpenedModel& opened,
                                           std::int64_t running,
                                           const decode::SpeculationOptions& speculation);

}  // namespace touchstone::cli
