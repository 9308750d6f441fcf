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

namespace touchstone::cli {
namespace {

Json json_line(const decode::BeamHypothesis& found, const std::string& text, std::size_t prompt,
               std::size_t rank) {
  Json line = {{"prompt", prompt},
               {"beam", rank},
               {"text", text},
               {"tokens", Json::array()},
               {"log_probability", found.log_probability},
               {"score", found.score},
               {"length", found.length},
               {"finish", std::string(name_of(found.reason))}};
  for (const std::int32_t token : found.tokens) line["tokens"].push_back(token);
  return line;
}

}  // namespace

int search_beams(const GenerateOptions& o, const OpenedModel& opened, Context& context,
                 model::Model& model, const std::vector<std::vector<std::int32_t>>& prompts) {
  std::vector<decode::BeamRequest> requests;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    decode::BeamRequest request{.request = request_of(o)};
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
      const std::string text = opened.tokenizer.decode(found[i].tokens, {.skip_special = true});
      print(o.json ? json_line(found[i], text, p, i).dump() + "\n" : text + "\n");
    }
  }
  if (!o.quiet) {
    say(fmt::format("{} steps, {} rows, {} forks; cache {}", results.statistics.steps,
                    results.statistics.rows, results.statistics.forks,
                    bytes_string(model.cache_bytes())));
  }
  return kOk;
}

}  // namespace touchstone::cli
