#include "cli/decoding/speculate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <vector>

#include "cli/output.h"
#include "touchstone/core/error.h"
#include "touchstone/model/dflash.h"
#include "touchstone/train/data.h"

namespace touchstone::cli {
namespace {

// Control characters as escapes, so that a node stays on its line.
std::string shown(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

// The documents of a file, or of a folder of generate --corpus.
std::shared_ptr<decode::SuffixCorpus> read_suffix_corpus(const std::string& path,
                                                         const io::Tokenizer& tokenizer) {
  auto corpus = std::make_shared<decode::SuffixCorpus>();
  for (const std::string& document : train::read_documents(path)) {
    corpus->add(tokenizer.encode(document, {.add_special = false}));
  }
  return corpus;
}

// The folder `draft` beside a model's file, or in its folder.
std::string draft_beside(const std::string& model) {
  const std::filesystem::path path(model);
  const std::filesystem::path draft =
      (std::filesystem::is_directory(path) ? path : path.parent_path()) / "draft";
  if (!std::filesystem::exists(draft / "config.json")) {
    throw InvalidArgument(fmt::format(
        "generate: --speculate: there is no draft in {}: expected dflash=PATH", draft.string()));
  }
  return draft.string();
}

}  // namespace

Speculation::Speculation(const GenerateOptions& o, const OpenedModel& opened, Context& context,
                         model::Model& model, const model::ModelOptions& target) {
  if (o.speculate.empty()) return;
  options_.rule = decode::parse_acceptance_rule(o.rule);
  std::vector<std::unique_ptr<decode::DraftSource>> sources;
  std::istringstream list(o.speculate);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "ngram") {
      sources.push_back(decode::ngram_source());
    } else if (name == "lookup") {
      sources.push_back(decode::prompt_lookup_source());
    } else if (name == "suffix") {
      sources.push_back(decode::suffix_source());
    } else if (name.starts_with("suffix=")) {
      sources.push_back(
          decode::suffix_source({.corpus = read_suffix_corpus(name.substr(7), opened.tokenizer)}));
    } else if (name.starts_with("draft=")) {
      if (draft_) throw InvalidArgument("generate: --speculate: expected one draft=PATH");
      ModelChoice choice = o.model;
      choice.path = name.substr(6);
      const OpenedModel draft = open_model(choice);
      if (draft.tokenizer.token_bytes() != opened.tokenizer.token_bytes()) {
        throw InvalidArgument(fmt::format(
            "generate: --speculate: {} has another vocabulary than {}", choice.path, o.model.path));
      }
      model::ModelOptions options = target;
      // What the format of a cache is in groups of depends on the heads.
      const model::ModelOptions own = model_options(choice, choice.cache, draft.file.description());
      options.keys = own.keys;
      options.values = own.values;
      options.max_length = std::min(target.max_length, draft.file.description().context);
      options.sequences = 2 * target.sequences;  // drafts are written on forks
      draft_ = std::make_unique<model::Model>(context, io::ModelFile::open(choice.path), options);
      const bool chain = o.tree_nodes <= 4;
      sources.push_back(
          decode::model_source(*draft_, opened.file.description().vocabulary,
                               {.width = chain ? 1 : 2,
                                .branch = chain ? 1 : 2,
                                .draw = options_.rule == decode::AcceptanceRule::rejection}));
    } else if (name == "dflash" || name.starts_with("dflash=")) {
      const std::string folder = name == "dflash" ? draft_beside(o.model.path) : name.substr(7);
      sources.push_back(std::make_unique<model::DFlash>(context, folder, model));
    } else {
      throw InvalidArgument(
          fmt::format("generate: --speculate: expected ngram, lookup, suffix, suffix=FILE, "
                      "draft=PATH, dflash, dflash=PATH, got '{}'",
                      name));
    }
  }
  options_.source =
      sources.size() == 1 ? std::move(sources[0]) : decode::merged_source(std::move(sources));
  options_.tree_nodes = o.tree_nodes;
  options_.max_depth = o.tree_nodes;
  options_.adaptive = !o.always_speculate;
  if (!o.trace) return;
  const io::Tokenizer& tokenizer = opened.tokenizer;
  options_.trace = [&tokenizer](const decode::SpeculationTrace& trace) {
    log(fmt::format("request {} sample {} position {}", trace.request, trace.sample,
                    trace.position));
    std::istringstream lines(
        decode::format_trace(*trace.tree, *trace.acceptance, [&](std::int32_t token) {
          const std::vector<std::int32_t> one = {token};
          return shown(tokenizer.decode(one, {}));
        }));
    for (std::string line; std::getline(lines, line);) log(line);
  };
}

void report_speculation(const decode::SpeculationStatistics& s) {
  if (s.passes == 0) return;
  std::string depths;
  for (std::size_t d = 0; d < s.offered.size(); ++d) {
    if (s.offered[d] == 0) break;
    depths += fmt::format("{}{:.2f}", d == 0 ? "" : " ",
                          static_cast<double>(s.accepted[d]) / static_cast<double>(s.offered[d]));
  }
  const auto ratio = [](std::int64_t a, std::int64_t b) {
    return static_cast<double>(a) / static_cast<double>(std::max<std::int64_t>(b, 1));
  };
  std::string speed = "no plain step was measured";
  if (s.plain_seconds > 0) speed = fmt::format("{:.2f}x plain steps", s.plain_seconds / s.seconds);
  log(fmt::format(
      "speculation: {:.2f} tokens per pass ({} passes, {} with drafts, {:.1f} nodes each); "
      "accepted "
      "by depth {}; {}; {}",
      ratio(s.tokens, s.passes), s.passes, s.drafted_passes, ratio(s.nodes, s.drafted_passes),
      depths.empty() ? "-" : depths, speed, s.controller));
}

}  // namespace touchstone::cli
