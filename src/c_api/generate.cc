// Models, requests and the scheduler.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "c_api/border.h"
#include "c_api/grammar_handle.h"
#include "c_api/tokenizer_handle.h"
#include "touchstone/decode/grammar.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/io/model_file.h"
#include "touchstone/model/dflash.h"
#include "touchstone/model/model.h"
#include "touchstone/touchstone_c_generate.h"

struct ts_model {
  touchstone::Context* context;
  touchstone::model::Model model;
};

struct ts_scheduler {
  touchstone::Context* context;
  touchstone::decode::Scheduler scheduler;
  touchstone::decode::SpeculationStatistics speculation{};  // of the last call that read it
};

struct ts_cancellation {
  touchstone::decode::Cancellation value;
};

struct ts_completions {
  // A completion with its log-probabilities in arrays.
  struct Sample {
    touchstone::decode::Completion completion;
    std::vector<float> own;
    std::vector<std::int32_t> top_tokens;
    std::vector<float> top;
    std::int64_t top_count = 0;
  };
  std::vector<Sample> samples;
};

namespace touchstone::c_api {
namespace {

using decode::Completion;
using decode::FinishReason;
using decode::Request;
using decode::TokenEvent;

static_assert(TS_FINISH_NO_TOKEN == static_cast<int>(FinishReason::no_token));
static_assert(TS_FINISH_FAILED == static_cast<int>(FinishReason::failed));
static_assert(TS_FINISH_CANCELLED == static_cast<int>(FinishReason::cancelled));

model::ModelOptions options_of(const ts_model_args* given) {
  ts_model_args args = TS_MODEL_ARGS;
  constexpr std::size_t kFirstVersion = offsetof(ts_model_args, expand_weights);
  if (given != nullptr) args = current(given, "model_open", kFirstVersion, args);
  model::ModelOptions options{.compute = dtype(args.compute, "model_open: compute"),
                              .max_length = args.max_length,
                              .sequences = args.sequences,
                              .host_sequences = args.host_sequences,
                              .page_tokens = args.page_tokens,
                              .max_rows = args.max_rows,
                              .share_prefixes = flag(args.share_prefixes),
                              .graphs = flag(args.graphs),
                              .expand_weights = flag(args.expand_weights),
                              .int8_activations = flag(args.int8_activations)};
  if (args.keys != nullptr) options.keys = quant_format(*args.keys, "model_open: keys");
  if (args.values != nullptr) options.values = quant_format(*args.values, "model_open: values");
  return options;
}

std::unique_ptr<decode::DraftSource> source_of(const std::string& name, ts_model& target,
                                               const ts_speculation_args& args) {
  if (name == "ngram") return decode::ngram_source();
  if (name == "lookup") return decode::prompt_lookup_source();
  if (name == "suffix") {
    if (args.corpus == nullptr) return decode::suffix_source();
    const auto vocabulary = static_cast<std::int32_t>(target.model.shape().vocabulary);
    const auto tokens = list(args.corpus, args.corpus_tokens, "speculation: corpus");
    for (const std::int32_t token : tokens) {
      if (token >= 0 && token < vocabulary) continue;
      throw InvalidArgument("speculation: corpus: token " + std::to_string(token) +
                            " is outside [0, " + std::to_string(vocabulary) + ")");
    }
    auto corpus = std::make_shared<decode::SuffixCorpus>();
    corpus->add(tokens);
    return decode::suffix_source({.corpus = std::move(corpus)});
  }
  if (name == "draft") {
    return decode::model_source(checked(args.draft, "speculation: draft").model,
                                target.model.shape().vocabulary,
                                {.draw = args.rule == TS_ACCEPT_REJECTION});
  }
  constexpr std::string_view kFolder = "dflash=";
  if (name.starts_with(kFolder)) {
    return std::make_unique<model::DFlash>(*target.context, name.substr(kFolder.size()),
                                           target.model);
  }
  throw InvalidArgument(
      "speculation: sources: expected ngram, lookup, suffix, draft, dflash=FOLDER, got '" + name +
      "'");
}

std::function<void(const decode::SpeculationTrace&)> trace_of(const ts_speculation_args& args) {
  if (args.trace == nullptr) return {};
  return [call = args.trace, user = args.trace_user](const decode::SpeculationTrace& trace) {
    const std::string text = decode::format_trace(
        *trace.tree, *trace.acceptance, [](std::int32_t token) { return std::to_string(token); });
    call(user, trace.request, trace.sample, trace.position, text.c_str());
  };
}

decode::SpeculationOptions options_of(const ts_speculation_args* given, ts_model& target) {
  if (given == nullptr) return {};
  constexpr std::size_t kFirstVersion = offsetof(ts_speculation_args, corpus);
  const ts_speculation_args args =
      current(given, "speculation", kFirstVersion, ts_speculation_args(TS_SPECULATION_ARGS));
  if (args.rule < TS_ACCEPT_GREEDY || args.rule > TS_ACCEPT_REJECTION) {
    throw InvalidArgument("speculation: rule: expected one of ts_acceptance_rule, got " +
                          std::to_string(args.rule));
  }
  std::vector<std::unique_ptr<decode::DraftSource>> sources;
  std::istringstream names(std::string(&checked(args.sources, "speculation: sources")));
  for (std::string name; std::getline(names, name, ',');) {
    sources.push_back(source_of(name, target, args));
  }
  if (sources.empty()) throw InvalidArgument("speculation: sources: expected at least one");
  return {.source = sources.size() == 1 ? std::move(sources[0])
                                        : decode::merged_source(std::move(sources)),
          .tree_nodes = args.tree_nodes,
          .max_depth = args.max_depth,
          .rule = static_cast<decode::AcceptanceRule>(args.rule),
          .adaptive = flag(args.adaptive),
          .trace = trace_of(args)};
}

decode::SchedulerOptions options_of(const ts_scheduler_args* given, ts_model& model) {
  constexpr std::size_t kFirstVersion = offsetof(ts_scheduler_args, speculation);
  const io::ModelDescription& description = model.model.description();
  ts_scheduler_args args = TS_SCHEDULER_ARGS;
  if (given != nullptr) args = current(given, "scheduler_create", kFirstVersion, args);
  decode::SchedulerOptions options{
      .max_rows = args.max_rows,
      .max_running = args.max_running,
      .share_prefixes = flag(args.share_prefixes),
      .swap_min_tokens = args.swap_min_tokens,
      .tokenizer = args.tokenizer == nullptr ? nullptr : &args.tokenizer->tokenizer,
      .skip_special = flag(args.skip_special),
      .speculation = options_of(args.speculation, model)};
  if (args.eos_count == -1) {
    for (const std::int64_t token : description.eos_tokens) {
      options.eos_tokens.push_back(static_cast<std::int32_t>(token));
    }
    return options;
  }
  const auto eos = list(args.eos_tokens, args.eos_count, "scheduler_create: eos_tokens");
  options.eos_tokens.assign(eos.begin(), eos.end());
  return options;
}

Request request_of(const ts_request_args& args) {
  const auto tokens = [](const std::int32_t* data, std::int64_t count, const char* name) {
    const auto span = list(data, count, name);
    return std::vector<std::int32_t>(span.begin(), span.end());
  };
  Request request{
      .prompt = tokens(args.prompt, args.prompt_count, "request: prompt"),
      .sampling = {.temperature = args.temperature,
                   .top_k = args.top_k,
                   .top_p = args.top_p,
                   .min_p = args.min_p,
                   .repetition_penalty = args.repetition_penalty,
                   .frequency_penalty = args.frequency_penalty,
                   .presence_penalty = args.presence_penalty,
                   .seed = args.seed},
      .stop = {.max_tokens = args.max_tokens,
               .min_tokens = args.min_tokens,
               .tokens = tokens(args.stop_tokens, args.stop_token_count, "request: stop_tokens"),
               .ignore_eos = flag(args.ignore_eos),
               .include_stop = flag(args.include_stop)},
      .samples = args.samples,
      .top_log_probabilities = args.top_log_probabilities,
      .prompt_log_probabilities = flag(args.prompt_log_probabilities)};
  for (const char* const string :
       list(args.stop_strings, args.stop_string_count, "request: stop_strings")) {
    request.stop.strings.push_back(text(string));
  }
  const auto bias_tokens = list(args.bias_tokens, args.bias_count, "request: bias_tokens");
  const auto bias_values = list(args.bias_values, args.bias_count, "request: bias_values");
  for (std::size_t i = 0; i < bias_tokens.size(); ++i) {
    request.sampling.bias.emplace_back(bias_tokens[i], bias_values[i]);
  }
  if (args.constraint != nullptr) {
    request.constraint = std::make_shared<decode::GrammarConstraint>(args.constraint->value);
  }
  if (args.cancellation != nullptr) request.cancellation = args.cancellation->value;
  return request;
}

decode::TokenHook hook_of(ts_token_hook hook, void* user) {
  if (hook == nullptr) return {};
  return [hook, user](const TokenEvent& event) {
    const ts_token_event plain{.struct_size = sizeof(ts_token_event),
                               .request = event.request.id,
                               .sample = event.sample,
                               .token = event.token,
                               .text = event.text.data(),
                               .text_bytes = std::ssize(event.text),
                               .finish = static_cast<ts_finish_reason>(event.finish),
                               .reserved = 0};
    hook(user, &plain);
  };
}

ts_completions::Sample sample_of(Completion completion) {
  ts_completions::Sample sample;
  for (const decode::TokenLogProbabilities& token : completion.log_probabilities) {
    sample.own.push_back(token.own);
    sample.top_count = std::max(sample.top_count, std::ssize(token.top));
  }
  for (const decode::TokenLogProbabilities& token : completion.log_probabilities) {
    for (std::int64_t i = 0; i < sample.top_count; ++i) {
      const bool there = i < std::ssize(token.top);
      const auto [id, value] =
          there ? token.top[static_cast<std::size_t>(i)] : std::pair(std::int32_t{-1}, 0.0F);
      sample.top_tokens.push_back(id);
      sample.top.push_back(value);
    }
  }
  sample.completion = std::move(completion);
  return sample;
}

}  // namespace
}  // namespace touchstone::c_api

using touchstone::c_api::checked;
using touchstone::c_api::guarded;
namespace c_api = touchstone::c_api;
namespace decode = touchstone::decode;

ts_status ts_model_open(ts_context* context, const char* path, const ts_model_args* args,
                        ts_model** model) {
  return guarded([&] {
    touchstone::Context& with = checked(context, "context").context;
    ts_model*& place = checked(model, "model_open: model");
    const std::string name(&checked(path, "model_open: path"));
    place =
        new ts_model{&with, touchstone::model::Model(with, touchstone::io::ModelFile::open(name),
                                                     c_api::options_of(args))};
  });
}

void ts_model_destroy(ts_model* model) { delete model; }

ts_status ts_model_describe(const ts_model* model, ts_model_info* info) {
  return guarded([&] {
    const touchstone::model::Model& m = checked(model, "model").model;
    const touchstone::io::ModelDescription& d = m.description();
    c_api::fill(info, "model_info",
                {.struct_size = 0,
                 .vocabulary = m.shape().vocabulary,
                 .max_length = m.shape().max_length,
                 .layers = m.shape().layers,
                 .width = d.width,
                 .weight_bytes = m.weight_bytes(),
                 .cache_bytes = m.cache_bytes(),
                 .bos_token = d.bos_token.value_or(-1),
                 .eos_count = std::ssize(d.eos_tokens),
                 .eos_tokens = d.eos_tokens.data()});
  });
}

ts_status ts_scheduler_create(ts_model* model, const ts_scheduler_args* args,
                              ts_scheduler** scheduler) {
  return guarded([&] {
    ts_model& with = checked(model, "model");
    ts_scheduler*& place = checked(scheduler, "scheduler_create: scheduler");
    place = new ts_scheduler{with.context,
                             decode::Scheduler(with.model, c_api::options_of(args, with))};
  });
}

void ts_scheduler_destroy(ts_scheduler* scheduler) { delete scheduler; }

ts_status ts_cancellation_create(ts_cancellation** cancellation) {
  return guarded([&] {
    ts_cancellation*& place = checked(cancellation, "cancellation_create: cancellation");
    place = new ts_cancellation{};
  });
}

void ts_cancellation_destroy(ts_cancellation* cancellation) { delete cancellation; }

ts_status ts_cancellation_cancel(const ts_cancellation* cancellation) {
  return guarded([&] { checked(cancellation, "cancellation").value.cancel(); });
}

ts_status ts_scheduler_submit(ts_scheduler* scheduler, const ts_request_args* given,
                              int64_t* request) {
  return guarded([&] {
    decode::Scheduler& with = checked(scheduler, "scheduler").scheduler;
    int64_t& place = checked(request, "scheduler_submit: request");
    const ts_request_args args = c_api::current(
        given, "request", offsetof(ts_request_args, bias_tokens), ts_request_args(TS_REQUEST_ARGS));
    place = with.submit(c_api::request_of(args), c_api::hook_of(args.hook, args.user)).id;
  });
}

ts_status ts_scheduler_step(ts_scheduler* scheduler, int32_t* more) {
  return guarded([&] {
    ts_scheduler& with = checked(scheduler, "scheduler");
    int32_t& place = checked(more, "scheduler_step: more");
    place = with.scheduler.step(*with.context) ? 1 : 0;
  });
}

ts_status ts_scheduler_finished(const ts_scheduler* scheduler, int64_t request, int32_t* finished) {
  return guarded([&] {
    const decode::Scheduler& with = checked(scheduler, "scheduler").scheduler;
    int32_t& place = checked(finished, "scheduler_finished: finished");
    place = with.finished({request}) ? 1 : 0;
  });
}

ts_status ts_scheduler_take(ts_scheduler* scheduler, int64_t request,
                            ts_completions** completions) {
  return guarded([&] {
    decode::Scheduler& with = checked(scheduler, "scheduler").scheduler;
    ts_completions*& place = checked(completions, "scheduler_take: completions");
    auto result = std::make_unique<ts_completions>();
    for (decode::Completion& completion : with.take({request})) {
      result->samples.push_back(c_api::sample_of(std::move(completion)));
    }
    place = result.release();
  });
}

ts_status ts_scheduler_statistics(const ts_scheduler* scheduler, ts_scheduler_counts* counts) {
  return guarded([&] {
    const decode::SchedulerStatistics s = checked(scheduler, "scheduler").scheduler.statistics();
    c_api::fill(counts, "scheduler_counts",
                {.struct_size = 0,
                 .steps = s.steps,
                 .prompt_rows = s.prompt_rows,
                 .decode_rows = s.decode_rows,
                 .prefix_tokens = s.prefix_tokens,
                 .preemptions = s.preemptions,
                 .swaps = s.swaps});
  });
}

ts_status ts_scheduler_speculation(ts_scheduler* scheduler, ts_speculation_counts* counts) {
  return guarded([&] {
    ts_scheduler& with = checked(scheduler, "scheduler");
    with.speculation = with.scheduler.speculation();
    const decode::SpeculationStatistics& s = with.speculation;
    c_api::fill(counts, "speculation_counts",
                {.struct_size = 0,
                 .passes = s.passes,
                 .drafted_passes = s.drafted_passes,
                 .tokens = s.tokens,
                 .nodes = s.nodes,
                 .depths = std::ssize(s.offered),
                 .offered = s.offered.data(),
                 .accepted = s.accepted.data(),
                 .draft_seconds = s.draft_seconds,
                 .seconds = s.seconds,
                 .plain_seconds = s.plain_seconds,
                 .controller = s.controller.c_str()});
  });
}

ts_status ts_completions_count(const ts_completions* completions, int64_t* samples) {
  return guarded([&] {
    const ts_completions& all = checked(completions, "completions");
    int64_t& place = checked(samples, "completions_count: samples");
    place = std::ssize(all.samples);
  });
}

ts_status ts_completions_get(const ts_completions* completions, int64_t sample,
                             ts_completion* completion) {
  return guarded([&] {
    const auto& all = checked(completions, "completions").samples;
    if (sample < 0 || sample >= std::ssize(all)) {
      throw touchstone::InvalidArgument("completions: sample " + std::to_string(sample) +
                                        " is not in [0, " + std::to_string(all.size()) + ")");
    }
    const ts_completions::Sample& s = all[static_cast<std::size_t>(sample)];
    const decode::Completion& c = s.completion;
    c_api::fill(completion, "completion",
                {.struct_size = 0,
                 .tokens = c.tokens.data(),
                 .token_count = std::ssize(c.tokens),
                 .text = c.text.c_str(),
                 .text_bytes = std::ssize(c.text),
                 .log_probabilities = s.own.empty() ? nullptr : s.own.data(),
                 .top_tokens = s.top_tokens.data(),
                 .top_log_probabilities = s.top.data(),
                 .top_count = s.top_count,
                 .prompt_log_probabilities = c.prompt_log_probabilities.data(),
                 .prompt_count = std::ssize(c.prompt_log_probabilities),
                 .finish = static_cast<ts_finish_reason>(c.finish),
                 .stop_index = c.stop_index});
  });
}

void ts_completions_destroy(ts_completions* completions) { delete completions; }
