// touchstone generate: continues prompts.
#include "cli/decoding/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

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

struct PromptText {
  std::string text;
  std::string name;  // for messages
};

std::vector<PromptText> texts_of(const GenerateOptions& o) {
  std::vector<PromptText> texts;
  for (const std::string& text : o.prompts) texts.push_back({text, "generate: -p"});
  if (!o.prompts_file.empty()) {
    const std::vector<std::string> lines = read_lines(o.prompts_file);
    if (lines.empty()) {
      throw InvalidArgument(fmt::format("generate: --prompts: no lines in {}", o.prompts_file));
    }
    for (std::size_t i = 0; i < lines.size(); ++i) {
      texts.push_back({lines[i], fmt::format("generate: {}: line {}", o.prompts_file, i + 1)});
    }
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
    decode::Request request = request_of(o, opened.tokenizer);
    request.prompt = prompt;
    request.constraint = constraint;
    ids.push_back(scheduler.submit(std::move(request), [&](const decode::TokenEvent& event) {
      timing.note(event);
      if (stream) print(event.text);
    }));
  }
  timing.run(context, model, scheduler);
  if (stream) print("\n");
  std::vector<std::vector<decode::Completion>> answers;
  for (const decode::RequestId id : ids) {
    answers.push_back(scheduler.take(id));
    check_constraint(constraint.get(), answers.back());
  }
  for (std::size_t p = 0; p < answers.size() && !stream; ++p) {
    for (std::size_t s = 0; s < answers[p].size(); ++s) {
      const decode::Completion& answer = answers[p][s];
      print((o.json ? json_of(answer, o, p, s, std::ssize(prompts[p])).dump() : answer.text) +
            "\n");
    }
  }
  if (!o.quiet) {
    timing.report(model);
    report_speculation(scheduler.speculation());
  }
  return kOk;
}

// Sequences of max_length tokens whose pages hold all beams. K beams of a prompt are alive at once. They
// share its pages; each has a last page of its own, and beams that have just parted hold the common one
// until all of them have written. Windows move past the prompt, and then layers share nothing.
std::int64_t beam_sequences(const GenerateOptions& o, const model::ModelOptions& options,
                            const io::ModelDescription& description,
                            const std::vector<std::vector<std::int32_t>>& prompts) {
  const bool windows = std::ranges::any_of(
      description.layers, [](const io::LayerDescription& layer) { return layer.window > 0; });
  if (windows) return std::ssize(prompts) * (o.beams + o.beams / 2 + 1);
  const std::int64_t page = options.page_tokens;
  std::int64_t tokens = 0;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    const std::int64_t own = std::min(o.max_tokens, options.max_length - std::ssize(prompt));
    tokens += std::ssize(prompt) + page + o.beams * (std::max<std::int64_t>(own, 0) + 3 * page);
  }
  return (tokens + options.max_length - 1) / options.max_length;
}

int generate(const GenerateOptions& o) {
  if (!o.system.empty() && !o.chat && o.corpus.empty()) {
    throw InvalidArgument("generate: --system: expected --chat or --corpus with it");
  }
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
  const OpenedModel opened = open_model(o.model);
  model::ModelOptions options = model_options(o.model, o.model.cache, opened.file.description());
  options.max_rows = o.max_rows;
  const std::int64_t context_tokens = opened.file.description().context;
  std::vector<std::vector<std::int32_t>> prompts;
  std::int64_t longest = 0;
  if (!o.chat) {
    const std::int64_t limit = o.context > 0 ? o.context : context_tokens;
    for (const PromptText& prompt : texts_of(o)) {
      prompts.push_back(encode_prompt(opened, prompt.text, prompt.name));
      const std::int64_t tokens = std::ssize(prompts.back());
      if (tokens >= limit) {
        throw InvalidArgument(
            fmt::format("{}: prompt: expected fewer than {} tokens, the context, got {}",
                        prompt.name, limit, tokens));
      }
      longest = std::max(longest, tokens + o.max_tokens);
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
  options.sequences =
      o.beams > 0 ? beam_sequences(o, options, opened.file.description(), prompts) : running;
  Context context = make_context(o.model);
  model::Model model(context, io::ModelFile::open(o.model.path), options);
  const Speculation speculation(o, opened, context, model, options);
  if (o.chat) return chat(o, opened, context, model, speculation.options());
  if (o.beams > 0) return search_beams(o, opened, context, model, prompts);
  return continue_prompts(o, opened, context, model, prompts, running, speculation.options());
}

}  // namespace

decode::Request request_of(const GenerateOptions& o, const io::Tokenizer& tokenizer) {
  decode::StopConditions stop{
      .max_tokens = o.max_tokens, .min_tokens = o.min_tokens, .ignore_eos = o.ignore_eos};
  for (const std::string& text : o.stops) {
    const std::optional<io::Token> token = tokenizer.token_to_id(text);
    if (token && tokenizer.is_special(*token)) {
      stop.tokens.push_back(*token);
    } else {
      stop.strings.push_back(text);
    }
  }
  return {.sampling = {.temperature = o.temperature,
                       .top_k = static_cast<std::int32_t>(o.top_k),
                       .top_p = o.top_p,
                       .min_p = o.min_p,
                       .repetition_penalty = o.repetition_penalty,
                       .frequency_penalty = o.frequency_penalty,
                       .presence_penalty = o.presence_penalty,
                       .seed = static_cast<std::int64_t>(o.seed)},
          .stop = std::move(stop),
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

void check_constraint(const decode::TokenConstraint* constraint,
                      const std::vector<decode::Completion>& answers) {
  if (constraint == nullptr) return;
  for (const decode::Completion& answer : answers) {
    if (answer.finish == decode::FinishReason::no_token) {
      throw InvalidArgument(fmt::format("generate: the grammar allows no token after {} tokens",
                                        answer.tokens.size()));
    }
    if (answer.finish != decode::FinishReason::length) continue;
    const std::unique_ptr<decode::TokenConstraint> state = constraint->start();
    for (const std::int32_t token : answer.tokens) state->accept(token);
    if (!state->complete()) {
      log(fmt::format("the text was cut after {} tokens and is not complete: raise -n",
                      answer.tokens.size()));
    }
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

std::string times_text(const RunTimes& times, const model::Model& model) {
  const auto rate = [](std::int64_t count, double seconds) {
    return static_cast<double>(count) / seconds;
  };
  const std::string decode =
      times.decode_tokens == 0
          ? "no decode steps"
          : fmt::format("decode {:.1f} tokens/s", rate(times.decode_tokens, times.decode_seconds));
  return fmt::format(
      "{} prompt tokens, first token after {:.0f} ms, prefill {:.0f} tokens/s; {} generated, {}; "
      "cache {}",
      times.prompt_rows, 1e3 * times.first_seconds, rate(times.prompt_rows, times.prompt_seconds),
      times.generated, decode, bytes_string(model.cache_bytes()));
}

void TimedRun::note(const decode::TokenEvent& event) {
  if (event.token < 0) return;
  if (times_.generated++ == 0) times_.first_seconds = watch_.seconds();
  if (!samples_.emplace(event.request.id, event.sample).second) ++times_.decode_tokens;
}

void TimedRun::run(Context& context, const model::Model& model, decode::Scheduler& scheduler,
                   const std::function<void()>& after_step) {
  with_weight_names(model, [&] {
    for (bool more = true; more;) {
      const decode::SchedulerStatistics before = scheduler.statistics();
      const machine::Stopwatch step;
      more = scheduler.step(context);
      const decode::SchedulerStatistics after = scheduler.statistics();
      const std::int64_t prompt = after.prompt_rows - before.prompt_rows;
      const std::int64_t others =
          after.decode_rows + after.draft_rows - before.decode_rows - before.draft_rows;
      const double seconds_per_row =
          step.seconds() / static_cast<double>(std::max<std::int64_t>(prompt + others, 1));
      times_.prompt_rows += prompt;
      times_.prompt_seconds += seconds_per_row * static_cast<double>(prompt);
      times_.decode_seconds += seconds_per_row * static_cast<double>(others);
      prefix_tokens_ += after.prefix_tokens - before.prefix_tokens;
      if (after_step) after_step();
    }
  });
}

void TimedRun::report(const model::Model& model) const {
  if (times_.generated == 0) return;
  log(fmt::format("{}, {} tokens from shared prefixes", times_text(times_, model), prefix_tokens_));
}

namespace {

void add_sampling(Options& verb, GenerateOptions& o) {
  verb.add_option("-n,--max-tokens", o.max_tokens, "Maximum number of tokens to generate")
      ->check(whole_number(1, std::int64_t{1} << 24))
      ->show_default();
  verb.add_option("--min-tokens", o.min_tokens, "Minimum number of tokens before the text may end")
      ->check(whole_number(0));
  verb.add_option("--samples", o.samples, "Completions per prompt, with seeds SEED, SEED + 1, ...")
      ->check(whole_number(1, 1 << 16));
  verb.add_option("--temperature", o.temperature, "0 = greedy")->show_default();
  verb.add_option("--top-k", o.top_k, "Sample from the k likeliest tokens; 0 = all")
      ->check(whole_number(0, std::numeric_limits<std::int32_t>::max()));
  verb.add_option("--top-p", o.top_p,
                  "Sample from the likeliest tokens of this cumulative probability");
  verb.add_option("--min-p", o.min_p,
                  "Sample from tokens with at least this fraction of the largest probability");
  verb.add_option("--repetition-penalty", o.repetition_penalty,
                  "Penalty factor for tokens in the prompt or the output; 1 = none");
  verb.add_option("--frequency-penalty", o.frequency_penalty,
                  "Penalty per occurrence of a token in the output");
  verb.add_option("--presence-penalty", o.presence_penalty,
                  "Penalty for tokens that occur in the output");
  verb.add_option("--seed", o.seed, "Random seed")->check(seed_number())->show_default();
  verb.add_option("--stop", o.stops,
                  "Text or special token that ends the output; may be given several times");
  verb.add_flag("--ignore-eos", o.ignore_eos, "Continue after an end-of-sequence token");
}

void add_beams(Options& verb, GenerateOptions& o) {
  Option* beams =
      verb.add_option("--beams", o.beams, "Beam search with this many beams; not with sampling");
  beams->check(whole_number(1, decode::kMaxBeams));
  verb.add_option("--length-penalty", o.length_penalty,
                  "With --beams: rank by log p / length^penalty")
      ->needs(beams)
      ->show_default();
  verb.add_option("--dialect", o.dialect, "With --beams: follow the rules of this engine")
      ->one_of({"canonical", "hf", "fairseq", "ctranslate2", "vllm"})
      ->needs(beams)
      ->show_default();
  verb.add_option("--early-stopping", o.early_stopping, "With --dialect hf: its early_stopping")
      ->one_of({"true", "false", "never"})
      ->needs(beams)
      ->show_default();
}

void add_speculation(Options& verb, GenerateOptions& o) {
  Option* speculate = verb.add_option(
      "--speculate", o.speculate,
      "Speculative decoding, the output stays the same. Draft sources: ngram, lookup, suffix, "
      "suffix=FILE (a corpus), draft=PATH, dflash=PATH (dflash: the folder draft beside the "
      "model), or several by commas");
  verb.add_option("--rule", o.rule,
                  "With --speculate: target_only (the plain text), greedy, or rejection (another "
                  "text of the same distribution)")
      ->one_of({"target_only", "greedy", "rejection"})
      ->needs(speculate)
      ->show_default();
  verb.add_option("--tree-nodes", o.tree_nodes,
                  "With --speculate: maximum number of nodes of a draft tree")
      ->check(whole_number(1, 256))
      ->needs(speculate)
      ->show_default();
  verb.add_flag("--always-speculate", o.always_speculate,
                "With --speculate: verify every draft, even where it does not pay")
      ->needs(speculate);
  verb.add_flag("--trace", o.trace, "With --speculate: print every draft with what was accepted")
      ->needs(speculate);
}

void add_corpus(Options& verb, GenerateOptions& o) {
  Option* corpus =
      verb.add_option("--corpus", o.corpus,
                      "Sample a corpus into this folder, in shards; resumes an interrupted run");
  verb.add_option("--documents", o.documents, "With --corpus: number of documents")
      ->check(whole_number(1, std::int64_t{1} << 31))
      ->needs(corpus)
      ->show_default();
  verb.add_option("--shard-documents", o.shard_documents, "With --corpus: documents per shard")
      ->check(whole_number(1, 1 << 24))
      ->needs(corpus)
      ->show_default();
  verb.add_option("--batch", o.batch, "With --corpus: documents generated concurrently")
      ->check(whole_number(1, 1 << 16))
      ->needs(corpus)
      ->show_default();
  verb.add_option("--minutes", o.minutes,
                  "With --corpus: stop after this many minutes; 0 = when done")
      ->needs(corpus);
}

}  // namespace

void add_generate(Options& app, int& exit_code) {
  auto o = std::make_shared<GenerateOptions>();
  Options* verb =
      app.add_verb("generate", "Generate text with a model: completions, chat, beam search");
  add_model_options(*verb, o->model);
  verb->add_option("-p,--prompt", o->prompts, "A prompt; may be given several times");
  verb->add_option("--prompts", o->prompts_file, "A file with one prompt per line");
  add_sampling(*verb, *o);
  verb->add_option("--grammar", o->grammar, "File with a GBNF grammar that constrains the output");
  verb->add_option("--json-schema", o->json_schema,
                   "File with a JSON Schema that the output conforms to");
  verb->add_flag("--chat", o->chat, "Apply the chat template of the model; without -p interactive");
  verb->add_option("--system", o->system, "With --chat: the system message")->may_be_empty();
  verb->add_option("--context", o->context, "Context length: tokens of prompt and output together")
      ->check(whole_number(1));
  verb->add_option("--max-rows", o->max_rows, "Maximum number of tokens in one forward pass")
      ->check(whole_number(1, 1 << 20))
      ->show_default();
  Option* log_probs =
      verb->add_option("--log-probs", o->log_probs,
                       "With --json: log-probabilities of the tokens and of the N likeliest");
  log_probs->check(whole_number(0, 1 << 20));
  add_beams(*verb, *o);
  add_speculation(*verb, *o);
  add_corpus(*verb, *o);
  log_probs->needs(
      verb->add_flag("--json", o->json, "Print one JSON object per line and completion"));
  verb->add_flag("-q,--quiet", o->quiet, "Do not print timings");
  verb->callback([o, &exit_code] {
    o->model.path = model_path(o->model.path);
    exit_code = generate(*o);
  });
}

}  // namespace touchstone::cli
