// touchstone generate: continues prompts.
#include "cli/decoding/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <sstream>

#include "cli/arguments.h"
#include "cli/decoding/corpus.h"
#include "cli/decoding/speculate.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "json/json.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/beam_search.h"
#include "touchstone/decode/grammar.h"

namespace touchstone::cli {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::vector<std::string> texts_of(const GenerateOptions& o) {
  std::vector<std::string> texts = o.prompts;
  if (!o.prompts_file.empty()) {
    std::istringstream lines(read_whole_file(o.prompts_file));
    for (std::string line; std::getline(lines, line);) texts.push_back(line);
  }
  if (texts.empty()) throw InvalidArgument("generate: -p: expected a prompt, or --prompts FILE");
  return texts;
}

Json json_of(const decode::Completion& answer, const GenerateOptions& o, std::size_t prompt,
             std::size_t sample, std::int64_t prompt_tokens) {
  Json line = {{"prompt", prompt},
               {"sample", sample},
               {"text", answer.text},
               {"tokens", Json::array()},
               {"prompt_tokens", prompt_tokens},
               {"finish", std::string(name_of(answer.finish))}};
  for (const std::int32_t token : answer.tokens) line["tokens"].push_back(token);
  if (o.log_probs < 0) return line;
  line["log_probs"] = Json::array();
  for (const decode::TokenLogProbabilities& token : answer.log_probabilities) {
    Json top = Json::array();
    for (const auto& [id, value] : token.top) {
      top.push_back(Json{{"token", id}, {"log_prob", static_cast<double>(value)}});
    }
    line["log_probs"].push_back(Json{{"log_prob", static_cast<double>(token.own)}, {"top", top}});
  }
  return line;
}

// Prints the results in the order of prompts and samples; that of the first as it comes.
int continue_prompts(const GenerateOptions& o, const OpenedModel& opened, Context& context,
                     model::Model& model, const std::vector<std::vector<std::int32_t>>& prompts,
                     std::int64_t running, const decode::SpeculationOptions& speculation) {
  decode::Scheduler scheduler(model, scheduler_options(o, opened, running, speculation));
  TimedRun timing;
  const bool stream = !o.json && prompts.size() == 1 && o.samples == 1;
  std::vector<decode::RequestId> ids;
  const auto constraint = constraint_of(o, opened);
  for (const std::vector<std::int32_t>& prompt : prompts) {
    decode::Request request = request_of(o);
    request.prompt = prompt;
    request.constraint = constraint;
    ids.push_back(scheduler.submit(std::move(request), [&](const decode::TokenEvent& event) {
      timing.note(event);
      if (stream) print(event.text);
    }));
  }
  run_steps(context, model, scheduler);
  for (std::size_t p = 0; p < ids.size(); ++p) {
    const std::vector<decode::Completion> answers = scheduler.take(ids[p]);
    for (std::size_t s = 0; s < answers.size(); ++s) {
      if (o.json) {
        print(json_of(answers[s], o, p, s, std::ssize(prompts[p])).dump() + "\n");
      } else {
        print((stream ? "" : answers[s].text) + "\n");
      }
    }
    check_constraint(answers);
  }
  if (!o.quiet) {
    timing.report(model, {}, scheduler.statistics());
    report_speculation(scheduler.speculation());
  }
  return kOk;
}

int generate(const GenerateOptions& o) {
  if (!o.corpus.empty()) return sample_corpus(o);
  if (o.chat && (!o.prompts_file.empty() || o.prompts.size() > 1 || o.samples != 1 || o.json)) {
    throw InvalidArgument(
        "generate: --chat takes one -p or none, no --prompts, --samples or --json");
  }
  if (!o.grammar.empty() && !o.json_schema.empty()) {
    throw InvalidArgument("generate: --grammar and --json-schema: expected one of them");
  }
  if (o.beams > 0 && (!o.grammar.empty() || !o.json_schema.empty())) {
    throw InvalidArgument("generate: --beams: not with --grammar or --json-schema");
  }
  if (o.chat && o.beams > 0) throw InvalidArgument("generate: --beams: not with --chat");
  if (o.beams > 0 && !o.speculate.empty()) {
    throw InvalidArgument("generate: --beams: not with --speculate");
  }
  if (o.rule != GenerateOptions{}.rule && o.speculate.empty()) {
    throw InvalidArgument("generate: --rule: expected --speculate with it");
  }
  if (o.trace && o.speculate.empty()) {
    throw InvalidArgument("generate: --trace: expected --speculate with it");
  }
  const OpenedModel opened = open_model(o.model);
  model::ModelOptions options = model_options(o.model, o.model.cache, opened.file.description());
  options.max_rows = o.max_rows;
  const std::int64_t context_tokens = opened.file.description().context;
  std::vector<std::vector<std::int32_t>> prompts;
  std::int64_t longest = 0;
  if (!o.chat) {
    for (const std::string& text : texts_of(o)) {
      prompts.push_back(encode_prompt(opened, text, "generate: -p"));
      longest = std::max(longest, std::ssize(prompts.back()) + o.max_tokens);
    }
  } else {
    longest = std::max<std::int64_t>(4096, 2 * o.max_tokens);
  }
  // Nodes of drafts need pages, too.
  if (!o.speculate.empty()) longest += o.tree_nodes;
  options.max_length = o.context > 0 ? o.context : std::min(longest, context_tokens);
  constexpr std::int64_t kMaxRunning = 32;
  const std::int64_t running =
      std::clamp<std::int64_t>(std::ssize(prompts) * o.samples, 1, kMaxRunning);
  // A step forks the next beams before it lets go of the last: for a moment twice as many.
  options.sequences = o.beams > 0 ? std::ssize(prompts) * (2 * o.beams + 1) : running;
  Context context = make_context(o.model);
  model::Model model(context, io::ModelFile::open(o.model.path), options);
  const Speculation speculation(o, opened, context, model, options);
  if (o.chat) return chat(o, opened, context, model, speculation.options());
  if (o.beams > 0) return search_beams(o, opened, context, model, prompts);
  return continue_prompts(o, opened, context, model, prompts, running, speculation.options());
}

}  // namespace

decode::Request request_of(const GenerateOptions& o) {
  return {.sampling = {.temperature = o.temperature,
                       .top_k = static_cast<std::int32_t>(o.top_k),
                       .top_p = o.top_p,
                       .min_p = o.min_p,
                       .repetition_penalty = o.repetition_penalty,
                       .frequency_penalty = o.frequency_penalty,
                       .presence_penalty = o.presence_penalty,
                       .seed = o.seed},
          .stop = {.max_tokens = o.max_tokens,
                   .min_tokens = o.min_tokens,
                   .strings = o.stops,
                   .ignore_eos = o.ignore_eos},
          .samples = static_cast<std::int32_t>(o.samples),
          .top_log_probabilities = static_cast<std::int32_t>(o.log_probs)};
}

std::shared_ptr<const decode::TokenConstraint> constraint_of(const GenerateOptions& o,
                                                             const OpenedModel& opened) {
  if (o.grammar.empty() && o.json_schema.empty()) return nullptr;
  const decode::Grammar grammar =
      o.grammar.empty() ? decode::Grammar::from_json_schema(read_whole_file(o.json_schema))
                        : decode::Grammar::from_gbnf(read_whole_file(o.grammar));
  const io::ModelDescription& d = opened.file.description();
  const std::vector<std::int32_t> ends(d.eos_tokens.begin(), d.eos_tokens.end());
  const decode::GrammarVocabulary vocabulary(
      opened.tokenizer.token_bytes(static_cast<std::size_t>(d.vocabulary)), ends);
  return std::make_shared<decode::GrammarConstraint>(grammar, vocabulary);
}

void check_constraint(const std::vector<decode::Completion>& answers) {
  for (const decode::Completion& answer : answers) {
    if (answer.finish != decode::FinishReason::no_token) continue;
    throw InvalidArgument(
        fmt::format("generate: the grammar allows no token after {} tokens", answer.tokens.size()));
  }
}

decode::SchedulerOptions scheduler_options(const GenerateOptions& o, const OpenedModel& opened,
                                           std::int64_t running,
                                           const decode::SpeculationOptions& speculation) {
  decode::SchedulerOptions options{
      .max_rows = o.max_rows, .max_running = running, .tokenizer = &opened.tokenizer};
  for (const std::int64_t token : opened.file.description().eos_tokens) {
    options.eos_tokens.push_back(static_cast<std::int32_t>(token));
  }
  options.speculation = speculation;
  return options;
}

void run_steps(Context& context, const model::Model& model, decode::Scheduler& scheduler) {
  with_weight_names(model, [&] {
    while (scheduler.step(context)) {
    }
  });
}

TimedRun::TimedRun() : start_(now()) {}

void TimedRun::note(const decode::TokenEvent& event) {
  if (event.token < 0) return;
  last_ = now();
  if (first_ < 0) first_ = last_;
  ++tokens_;
}

void TimedRun::report(const model::Model& model, const decode::SchedulerStatistics& before,
                      const decode::SchedulerStatistics& after) const {
  if (tokens_ == 0) return;
  const std::int64_t prompt = after.prompt_rows - before.prompt_rows;
  const double first = first_ - start_;
  std::string decode = "no decode steps";
  if (last_ > first_) {
    decode =
        fmt::format("decode {:.1f} tokens/s", static_cast<double>(tokens_ - 1) / (last_ - first_));
  }
  say(fmt::format(
      "{} prompt tokens, first token after {:.0f} ms ({:.0f} tokens/s); {} generated, {}; "
      "cache {}, {} tokens from shared prefixes",
      prompt, 1e3 * first, static_cast<double>(prompt) / first, tokens_, decode,
      bytes_string(model.cache_bytes()), after.prefix_tokens - before.prefix_tokens));
}

void add_generate(Options& app, int& exit_code) {
  auto o = std::make_shared<GenerateOptions>();
  Options* verb =
      app.add_verb("generate", "Continues prompts with a model; --chat: a conversation");
  add_model_options(*verb, o->model);
  verb->add_option("-p,--prompt", o->prompts, "A prompt; may be given several times");
  verb->add_option("--prompts", o->prompts_file, "A file with one prompt per line");
  verb->add_option("-n,--max-tokens", o->max_tokens, "Tokens to generate, at most")
      ->check(whole_number(1, std::int64_t{1} << 24))
      ->show_default();
  verb->add_option("--min-tokens", o->min_tokens, "No end before so many")->check(whole_number(0));
  verb->add_option("--samples", o->samples,
                   "Continuations of each prompt, with seeds SEED, SEED + 1, ...")
      ->check(whole_number(1, 1 << 16));
  verb->add_option("--temperature", o->temperature, "0 = greedy")->show_default();
  verb->add_option("--top-k", o->top_k, "The k likeliest tokens; 0 = all")
      ->check(whole_number(0, std::numeric_limits<std::int32_t>::max()));
  verb->add_option("--top-p", o->top_p, "The likeliest tokens of this mass");
  verb->add_option("--min-p", o->min_p, "Tokens of at least this share of the likeliest one");
  verb->add_option("--repetition-penalty", o->repetition_penalty,
                   "Of tokens in the prompt or the text");
  verb->add_option("--frequency-penalty", o->frequency_penalty, "Per occurrence in the text");
  verb->add_option("--presence-penalty", o->presence_penalty, "Of tokens in the text");
  verb->add_option("--seed", o->seed, "Of the random numbers")->show_default();
  verb->add_option("--stop", o->stops, "Text that ends the answer; may be given several times");
  verb->add_flag("--ignore-eos", o->ignore_eos, "Go on after an end-of-sequence token");
  verb->add_option("--grammar", o->grammar, "A file with a GBNF grammar that the text follows");
  verb->add_option("--json-schema", o->json_schema,
                   "A file with a JSON Schema: the text is JSON of it");
  verb->add_flag("--chat", o->chat, "With the chat template of the model; without -p interactive");
  verb->add_option("--system", o->system, "With --chat: the system message");
  verb->add_option("--context", o->context, "Tokens of prompt and answer together")
      ->check(whole_number(1));
  verb->add_option("--max-rows", o->max_rows, "Tokens that run through the model at once")
      ->check(whole_number(1, 1 << 20))
      ->show_default();
  verb->add_option("--log-probs", o->log_probs,
                   "With --json: log-probabilities, and of the N likeliest")
      ->check(whole_number(0, 1 << 20));
  verb->add_option("--beams", o->beams, "Beam search with so many beams; greedy controls only")
      ->check(whole_number(1, decode::kMaxBeams));
  verb->add_option("--length-penalty", o->length_penalty, "With --beams: log p / length^penalty")
      ->show_default();
  verb->add_option("--dialect", o->dialect, "With --beams: whose rules")
      ->one_of({"canonical", "hf", "fairseq", "ctranslate2", "vllm"})
      ->show_default();
  verb->add_option("--early-stopping", o->early_stopping, "With --dialect hf")
      ->one_of({"true", "false", "never"})
      ->show_default();
  verb->add_option(
      "--speculate", o->speculate,
      "Drafts that the model verifies, the text stays the same: ngram, lookup, suffix, "
      "suffix=FILE (a corpus), draft=PATH, dflash=PATH, or several by commas");
  verb->add_option("--rule", o->rule,
                   "With --speculate: target_only (the plain text), greedy, or rejection (another "
                   "text of the same distribution)")
      ->one_of({"target_only", "greedy", "rejection"})
      ->show_default();
  verb->add_option("--tree-nodes", o->tree_nodes, "With --speculate: nodes of a draft, at most")
      ->check(whole_number(1, 256))
      ->show_default();
  verb->add_flag("--always-speculate", o->always_speculate,
                 "With --speculate: verify every draft, whether it pays or not");
  verb->add_flag("--trace", o->trace, "With --speculate: print every draft with its verdicts");
  verb->add_option("--corpus", o->corpus,
                   "Sample a corpus into this folder, in shards; an interrupted run goes on");
  verb->add_option("--documents", o->documents, "With --corpus: how many")
      ->check(whole_number(1, std::int64_t{1} << 31))
      ->show_default();
  verb->add_option("--shard-documents", o->shard_documents, "With --corpus: of each shard")
      ->check(whole_number(1, 1 << 24))
      ->show_default();
  verb->add_option("--batch", o->batch, "With --corpus: documents side by side")
      ->check(whole_number(1, 1 << 16))
      ->show_default();
  verb->add_option("--minutes", o->minutes, "With --corpus: stop after so many; 0 = when done");
  verb->add_flag("--json", o->json, "One JSON object per line and continuation");
  verb->add_flag("-q,--quiet", o->quiet, "No timing on standard error");
  verb->callback([o, &exit_code] {
    o->model.path = model_path(o->model.path);
    exit_code = generate(*o);
  });
}

}  // namespace touchstone::cli
