// touchstone score: how well a model predicts a text, in one or several cache formats.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>

#include "cli/arguments.h"
#include "cli/decoding/open_model.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "json/json.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/perplexity.h"

namespace touchstone::cli {
namespace {

struct ScoreOptions {
  ModelChoice model;
  std::vector<std::string> words;
  std::string file;
  std::vector<std::string> caches;
  std::vector<std::string> others;  // models
  std::int64_t window = 0;
  std::int64_t stride = 0;
  bool tokens = false;
  bool json = false;
};

struct Scored {
  std::string model;
  std::string cache;
  std::vector<std::int32_t> tokens;
  decode::Perplexity result;
  std::int64_t bytes = 0;  // of the tokens that were scored

  double bits_per_byte() const {
    return result.loss() / std::numbers::ln2 / static_cast<double>(bytes);
  }
};

std::string text_of(const ScoreOptions& o) {
  if (!o.file.empty() && !o.words.empty()) {
    throw InvalidArgument("score: expected TEXT or --file, got both");
  }
  if (!o.file.empty()) return read_whole_file(o.file);
  if (!o.words.empty()) return fmt::format("{}", fmt::join(o.words, " "));
  return read_standard_input();
}

Scored score_one(const ScoreOptions& o, const std::string& path, const std::string& cache,
                 const std::string& text) {
  ModelChoice choice = o.model;
  choice.path = path;
  OpenedModel opened = open_model(choice);
  Scored scored;
  scored.model = path;
  scored.cache = cache.empty() ? choice.compute : cache;
  scored.tokens = opened.tokenizer.encode(text);
  Context context = make_context(choice);
  model::ModelOptions options = model_options(choice, cache, opened.file.description());
  // Results do not depend on the rows of a pass. A GPU wants many, the CPU has its logits in cache with few.
  options.max_rows = context.device().is_cuda() ? 512 : 64;
  options.share_prefixes = false;
  const std::int64_t context_tokens = opened.file.description().context;
  const std::int64_t window = o.window > 0 ? o.window : std::min<std::int64_t>(512, context_tokens);
  options.max_length = std::min(window, context_tokens);
  model::Model model(context, std::move(opened.file), options);
  const std::span<const std::int32_t> beginning =
      std::span(scored.tokens)
          .first(static_cast<std::size_t>(
              std::min({std::ssize(scored.tokens), options.max_length, std::int64_t{16}})));
  if (beginning.size() > 1 && !decode::check_causality(context, model, beginning)) {
    throw CorruptData(
        "score: logits depend on later tokens; what this model gives is no prediction");
  }
  scored.result = with_weight_names(model, [&] {
    return decode::perplexity(context, model, scored.tokens,
                              {.window = window, .stride = o.stride, .max_rows = options.max_rows});
  });
  scored.bytes = decode::scored_bytes(opened.tokenizer, scored.tokens, scored.result);
  if (o.tokens && !o.json) {
    std::string lines;
    for (std::size_t i = 0; i < scored.tokens.size(); ++i) {
      const float value = scored.result.log_probabilities[i];
      lines += fmt::format("{:>8}  {}\n", std::isnan(value) ? "-" : fmt::format("{:.4f}", value),
                           Json(opened.tokenizer.decode({&scored.tokens[i], 1})).dump());
    }
    print(lines);
  }
  return scored;
}

Json json_of(const Scored& scored, bool tokens) {
  const decode::Perplexity& r = scored.result;
  const double mean = r.loss() / static_cast<double>(r.tokens());
  const double half = r.half_interval();
  Json line = {{"model", scored.model},          {"cache", scored.cache},
               {"tokens", scored.tokens.size()}, {"scored", r.tokens()},
               {"windows", r.windows.size()},    {"loss", r.loss()},
               {"perplexity", r.value()},        {"bits_per_byte", scored.bits_per_byte()}};
  if (std::isfinite(half)) {
    line["low"] = std::exp(mean - half);
    line["high"] = std::exp(mean + half);
  }
  if (!tokens) return line;
  line["log_probs"] = Json::array();
  for (std::size_t i = 0; i < scored.tokens.size(); ++i) {
    const double value = r.log_probabilities[i];
    line["log_probs"].push_back(
        Json{{"token", scored.tokens[i]}, {"log_prob", std::isnan(value) ? Json() : Json(value)}});
  }
  return line;
}

std::string interval_text(const decode::Perplexity& r) {
  const double mean = r.loss() / static_cast<double>(r.tokens());
  const double half = r.half_interval();
  if (!std::isfinite(half)) return "-";
  return fmt::format("{:.4f} .. {:.4f}", std::exp(mean - half), std::exp(mean + half));
}

int score(const ScoreOptions& o) {
  const std::string first = model_path(o.model.path);
  const std::string text = text_of(o);
  std::vector<std::string> caches = o.caches;
  if (caches.empty()) caches.push_back("");
  std::vector<std::string> models = {first};
  models.insert(models.end(), o.others.begin(), o.others.end());
  std::vector<Scored> all;
  for (const std::string& path : models) {
    for (const std::string& cache : caches) all.push_back(score_one(o, path, cache, text));
  }
  if (o.json) {
    for (const Scored& scored : all) print(json_of(scored, o.tokens).dump() + "\n");
    return kOk;
  }
  Table table({"model", "cache", ">tokens scored", ">perplexity", "95 % interval", ">change",
               ">bits/byte"});
  for (const Scored& scored : all) {
    // Perplexities of different tokens do not compare; bits per byte do.
    const bool same_tokens = scored.tokens == all.front().tokens;
    const double change = same_tokens ? scored.result.value() / all.front().result.value() - 1
                                      : scored.bits_per_byte() / all.front().bits_per_byte() - 1;
    const std::size_t slash = scored.model.find_last_of('/');
    table.add({slash == std::string::npos ? scored.model : scored.model.substr(slash + 1),
               scored.cache, std::to_string(scored.result.tokens()),
               fmt::format("{:.4f}", scored.result.value()), interval_text(scored.result),
               &scored == &all.front()
                   ? ""
                   : fmt::format("{:+.3f} %{}", 100 * change, same_tokens ? "" : " bits/byte"),
               fmt::format("{:.4f}", scored.bits_per_byte())});
  }
  print(table.text());
  return kOk;
}

}  // namespace

void add_score(Options& app, int& exit_code) {
  auto o = std::make_shared<ScoreOptions>();
  Options* verb = app.add_verb("score", "Compute the perplexity of a text under a model");
  add_model_options(*verb, o->model);
  verb->add_option("text", o->words, "The text, or standard input");
  verb->add_option("--file", o->file, "A file with the text");
  verb->add_option("--caches", o->caches, "KV cache formats to compare, comma-separated")
      ->split_at(',');
  verb->add_option("--beside", o->others,
                   "Other models to compare with, for example other weight formats");
  verb->add_option("--window", o->window, "Tokens per window (default: 512, or the context)")
      ->check(whole_number(2));
  verb->add_option("--stride", o->stride,
                   "Tokens from one window to the next (default: the window)")
      ->check(whole_number(1));
  verb->add_flag("--tokens", o->tokens, "Print the log-probability of every token");
  verb->add_flag("--json", o->json, "Print one JSON object per line and setting");
  verb->callback([o, &exit_code] {
    if (!o->model.cache.empty()) o->caches.insert(o->caches.begin(), o->model.cache);
    exit_code = score(*o);
  });
}

}  // namespace touchstone::cli
