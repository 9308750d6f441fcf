// touchstone generate --beams: the likeliest continuations instead of drawn ones.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cli/decoding/generate.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "json/json.h"
#include "touchstone/core/error.h"
#include "touchstone/decode/beam_search.h"
#include "touchstone/decode/continuation_text.h"

namespace touchstone::cli {
namespace {

Json json_line(const decode::BeamHypothesis& found, const std::string& text, std::size_t prompt,
               std::size_t rank, bool log_probs) {
  Json line = {{"prompt", prompt},
               {"beam", rank},
               {"text", text},
               {"tokens", Json::array()},
               {"log_probability", found.log_probability},
               {"score", found.score},
               {"length", found.length},
               {"finish", std::string(name_of(found.reason))},
               {"finished", found.finished}};
  for (const std::int32_t token : found.tokens) line["tokens"].push_back(token);
  if (!log_probs) return line;
  line["log_probs"] = Json::array();
  for (const float value : found.log_probabilities) {
    line["log_probs"].push_back(Json{{"log_prob", static_cast<double>(value)}});
  }
  return line;
}

}  // namespace

int search_beams(const GenerateOptions& o, const OpenedModel& opened, Context& context,
                 model::Model& model, const std::vector<std::vector<std::int32_t>>& prompts) {
  std::vector<decode::BeamRequest> requests;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    decode::BeamRequest request{.request = request_of(o, opened.tokenizer)};
    request.request.prompt = prompt;
    request.options.beams = static_cast<std::int32_t>(o.beams);
    request.options.length_penalty = o.length_penalty;
    request.options.dialect = decode::parse_beam_dialect(o.dialect);
    request.options.early_stopping = decode::parse_early_stopping(o.early_stopping);
    for (const std::int64_t token : opened.file.description().eos_tokens) {
      request.options.eos.push_back(static_cast<std::int32_t>(token));
    }
    requests.push_back(std::move(request));
  }
  const decode::BeamResults results =
      with_weight_names(model, [&] { return decode::beam_search(context, model, requests); });
  for (std::size_t p = 0; p < results.hypotheses.size(); ++p) {
    const auto& found = results.hypotheses[p];
    if (!o.json && found.empty()) print("\n");
    for (std::size_t i = 0; i < found.size() && (o.json || i == 0); ++i) {
      const std::string text = decode::continuation_text(opened.tokenizer, prompts[p],
                                                         found[i].tokens, {.skip_special = true});
      print((o.json ? json_line(found[i], text, p, i, o.log_probs >= 0).dump() : text) + "\n");
    }
  }
  if (!o.quiet) {
    const decode::BeamStatistics& s = results.statistics;
    const std::int64_t rows = s.rows - s.prompt_rows;
    log(fmt::format("{}; {} steps, {} forks",
                    times_text({.prompt_rows = s.prompt_rows,
                                .first_seconds = s.prompt_seconds,
                                .prompt_seconds = s.prompt_seconds,
                                .generated = rows,
                                .decode_tokens = rows,
                                .decode_seconds = s.decode_seconds},
                               model),
                    s.steps, s.forks));
  }
  return kOk;
}

}  // namespace touchstone::cli
