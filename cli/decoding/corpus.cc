#include "cli/decoding/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>
#include <unordered_set>

#include "cli/arguments.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/verbs.h"
#include "core/checksum.h"
#include "machine/stopwatch.h"
#include "touchstone/core/error.h"
#include "touchstone/train/data.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;

void write_file(const fs::path& path, const std::string& text) {
  OutputFile file(path.string());
  file.write(text);
}

// What decides the text of a document: a folder holds documents of one of them.
Json settings_of(const GenerateOptions& o, const OpenedModel& opened,
                 const std::vector<std::string>& lines) {
  std::int64_t bytes = 0;
  for (const io::WeightInfo& info : opened.file.weights()) {
    bytes += std::ssize(opened.file.load(info.name).data);
  }
  std::string joined;
  for (const std::string& line : lines) joined += line + "\n";
  return {{"model", fs::path(o.model.path).filename().string()},
          {"weight_bytes", bytes},
          {"device", o.model.device.substr(0, o.model.device.find(':'))},
          {"compute", o.model.compute},
          {"cache", o.model.cache},
          {"activations", o.model.activations},
          {"weights", o.model.weights},
          {"seed", o.seed},
          {"temperature", o.temperature},
          {"top_k", o.top_k},
          {"top_p", o.top_p},
          {"min_p", o.min_p},
          {"repetition_penalty", o.repetition_penalty},
          {"frequency_penalty", o.frequency_penalty},
          {"presence_penalty", o.presence_penalty},
          {"min_tokens", o.min_tokens},
          {"max_tokens", o.max_tokens},
          {"stop", o.stops},
          {"ignore_eos", o.ignore_eos},
          {"context", o.context},
          {"shard_documents", o.shard_documents},
          {"system", o.system},
          {"prompts", lines.empty() ? "built in" : fmt::format("{} lines", lines.size())},
          {"prompts_hash",
           static_cast<std::int64_t>(checksum(std::as_bytes(std::span(joined))) >> 12)}};
}

// A model that writes the mark of the end has ended its text: in a shard it would be a border.
std::string before_end(const std::string& text) {
  return text.substr(0, text.find(train::kEndOfText));
}

// Texts that are complete, in the order of their documents.
struct Shard {
  std::map<std::int64_t, std::pair<Json, std::string>> documents{};
};

class Corpus {
 public:
  Corpus(const GenerateOptions& o, const OpenedModel& opened, Context& context, model::Model& model,
         const std::vector<std::string>& lines)
      : o_(o),
        opened_(opened),
        context_(context),
        model_(model),
        lines_(lines),
        chat_(opened, o.model.path),
        scheduler_(model, options(o, opened)) {}

  // Before the first document: one prompt that is refused would end the run at its place, and the
  // folder would hold the corrected run to other prompts. Lines are all checked, every time: more
  // documents may draw any of them.
  void check_prompts(bool begun) const {
    for (const std::string& line : lines_) encoded(line);
    if (begun || !lines_.empty()) return;
    // Built-in prompts consist of two hundred parts: the first documents have every part, and
    // nearly the longest prompt.
    constexpr std::int64_t kMost = std::int64_t{1} << 17;
    std::unordered_set<std::string> checked;
    for (std::int64_t document = 0; document < std::min(o_.documents, kMost); ++document) {
      const auto [prompt, added] = checked.insert(prompt_of(document));
      if (added) encoded(*prompt);
    }
  }

  // All shards that are missing, or as many as there is time for.
  void run() {
    watch_ = {};  // neither --minutes nor the rate has the time of the checks before
    std::int64_t next = 0;
    bool more = true;
    while (more && !late()) {
      while (std::ssize(open_) < 2 * o_.batch && next < o_.documents) {
        if (!is_complete(next / o_.shard_documents)) submit(next);
        ++next;
      }
      more = with_weight_names(model_, [&] { return scheduler_.step(context_); });
      more = collect() || more || next < o_.documents;
    }
    const std::string rate =
        o_.quiet
            ? ""
            : fmt::format("; {:.0f} tokens/s", static_cast<double>(tokens_) / watch_.seconds());
    log(fmt::format("corpus: {} documents, {} tokens, {} in {} shards{}{}", documents_, tokens_,
                    bytes_string(bytes_), shards_written_, rate,
                    open_.empty() ? "" : "; more is to be done"));
  }

 private:
  static decode::SchedulerOptions options(const GenerateOptions& o, const OpenedModel& opened) {
    decode::SchedulerOptions result = scheduler_options(o, opened, o.batch, {});
    result.max_rows = std::max(o.max_rows, o.batch);
    return result;
  }

  bool late() const { return o_.minutes > 0 && watch_.seconds() > 60 * o_.minutes; }

  std::string shard_name(std::int64_t shard, const char* ending) const {
    return fmt::format("shard-{:05}.{}", shard, ending);
  }

  std::int64_t documents_of(std::int64_t shard) const {
    return std::min(o_.documents - shard * o_.shard_documents, o_.shard_documents);
  }

  // The list is written last. A shard that was the last of fewer documents is sampled again: its
  // documents depend on nothing else, so they stay as they were.
  bool is_complete(std::int64_t shard) {
    const auto known = complete_.find(shard);
    if (known != complete_.end()) return known->second;
    const fs::path list = fs::path(o_.corpus) / shard_name(shard, "jsonl");
    std::error_code error;
    std::int64_t lines = 0;
    if (fs::exists(list, error)) {
      const std::string text = read_whole_file(list.string());
      lines = std::count(text.begin(), text.end(), '\n');
    }
    return complete_[shard] = lines >= documents_of(shard);
  }

  // No two documents share a seed, whatever the seeds of other corpora near this one.
  std::int64_t seed_of(std::int64_t document) const {
    return static_cast<std::int64_t>((o_.seed << 32) + static_cast<std::uint64_t>(document));
  }

  std::string prompt_of(std::int64_t document) const {
    return corpus_prompt(static_cast<std::int64_t>(o_.seed), document, lines_);
  }

  // A prompt that the model cannot take is refused by its text.
  std::vector<std::int32_t> encoded(const std::string& prompt) const {
    std::vector<std::int32_t> tokens;
    try {
      tokens = chat_.prompt(o_.system, prompt);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(
          fmt::format("generate: --corpus: prompt '{}': {}", prompt, error.what()));
    }
    if (std::ssize(tokens) >= model_.shape().max_length) {
      throw InvalidArgument(fmt::format("generate: --corpus: prompt '{}' is too long", prompt));
    }
    return tokens;
  }

  void submit(std::int64_t document) {
    const std::string prompt = prompt_of(document);
    decode::Request request = request_of(o_, opened_.tokenizer);
    request.prompt = encoded(prompt);
    request.samples = 1;
    request.sampling.seed = seed_of(document);
    open_.push_back({document, scheduler_.submit(std::move(request)), prompt});
  }

  // Finished documents go to their shards, whole shards to the folder. Whether any is open.
  bool collect() {
    std::erase_if(open_, [&](const Open& one) {
      if (!scheduler_.finished(one.id)) return false;
      const decode::Completion answer = scheduler_.take(one.id)[0];
      ++documents_;
      tokens_ += std::ssize(answer.tokens);
      const std::int64_t shard = one.document / o_.shard_documents;
      Json line = {{"document", one.document},
                   {"prompt", one.prompt},
                   {"seed", seed_of(one.document)},
                   {"tokens", std::ssize(answer.tokens)},
                   {"finish", std::string(name_of(answer.finish))}};
      shards_[shard].documents[one.document] = {std::move(line), before_end(answer.text)};
      if (std::ssize(shards_[shard].documents) == documents_of(shard)) write(shard);
      return true;
    });
    return !open_.empty();
  }

  void write(std::int64_t shard) {
    std::string text;
    std::string list;
    for (auto& [document, entry] : shards_[shard].documents) {
      entry.first["offset"] = std::ssize(text);
      entry.first["bytes"] = std::ssize(entry.second);
      list += entry.first.dump() + "\n";
      text += fmt::format("{}\n{}\n", entry.second, train::kEndOfText);
    }
    const fs::path folder(o_.corpus);
    write_file(folder / shard_name(shard, "txt"), text);
    write_file(folder / shard_name(shard, "jsonl"), list);
    shards_.erase(shard);
    complete_[shard] = true;
    bytes_ += std::ssize(text);
    ++shards_written_;
    if (!o_.quiet) {
      const double seconds = watch_.seconds();
      log(fmt::format("corpus: shard {}, {} so far, {:.0f} tokens/s", shard, bytes_string(bytes_),
                      static_cast<double>(tokens_) / seconds));
    }
  }

  struct Open {
    std::int64_t document = 0;
    decode::RequestId id{};
    std::string prompt{};
  };

  const GenerateOptions& o_;
  const OpenedModel& opened_;
  Context& context_;
  model::Model& model_;
  const std::vector<std::string>& lines_;
  ChatPrompts chat_;
  decode::Scheduler scheduler_;
  machine::Stopwatch watch_;
  std::vector<Open> open_;
  std::map<std::int64_t, Shard> shards_;
  std::map<std::int64_t, bool> complete_;
  std::int64_t documents_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t shards_written_ = 0;
};

fs::path manifest_of(const GenerateOptions& o) { return fs::path(o.corpus) / "manifest.json"; }

// Whether the folder was begun, which is with the same settings.
bool is_begun(const GenerateOptions& o, const Json& settings) {
  const fs::path manifest = manifest_of(o);
  std::error_code error;
  if (!fs::exists(manifest, error)) return false;
  const Json before = Json::parse_or_null(read_whole_file(manifest.string()));
  for (const auto& [key, value] : settings.items()) {
    if (before.is_object() && before.contains(key) && before[key] == value) continue;
    throw InvalidArgument(fmt::format(
        "generate: --corpus: {} was begun with another {}; give the same or another folder",
        o.corpus, key));
  }
  return true;
}

void begin(const GenerateOptions& o, const Json& settings) {
  std::error_code error;
  fs::create_directories(o.corpus, error);
  if (error) throw FileError(fmt::format("{}: {}", o.corpus, error.message()));
  write_file(manifest_of(o), settings.dump(2) + "\n");
}

// What a document with the shortest prompt would be refused for.
void check_settings(const GenerateOptions& o, const OpenedModel& opened,
                    const model::Model& model) {
  decode::Request request = request_of(o, opened.tokenizer);
  request.prompt = {0};
  decode::check_request(
      request, {.vocabulary = model.shape().vocabulary, .max_length = model.shape().max_length});
}

}  // namespace

int sample_corpus(const GenerateOptions& o) {
  if (!std::isfinite(o.minutes) || o.minutes < 0) {
    throw InvalidArgument(
        fmt::format("generate: --minutes: expected a finite number >= 0, got {}", o.minutes));
  }
  if (o.chat || o.json || o.beams > 0 || o.samples != 1 || !o.prompts.empty() ||
      !o.grammar.empty() || !o.json_schema.empty() || !o.speculate.empty()) {
    throw InvalidArgument(
        "generate: --corpus takes no -p, --chat, --json, --samples, --beams, --grammar, "
        "--json-schema or --speculate");
  }
  std::vector<std::string> lines;
  if (!o.prompts_file.empty()) {
    lines = read_lines(o.prompts_file);
    std::erase(lines, "");
    if (lines.empty()) throw InvalidArgument("generate: --prompts: expected lines");
  }
  const OpenedModel opened = open_model(o.model);
  model::ModelOptions options = model_options(o.model, o.model.cache, opened.file.description());
  // Prompts are short: their pages and those of the longest document.
  constexpr std::int64_t kPromptTokens = 256;
  options.max_length =
      o.context > 0 ? o.context
                    : std::min(o.max_tokens + kPromptTokens, opened.file.description().context);
  options.sequences = o.batch;
  options.max_rows = std::max(o.max_rows, o.batch);
  const Json settings = settings_of(o, opened, lines);
  const bool begun = is_begun(o, settings);
  Context context = make_context(o.model);
  model::Model model(context, io::ModelFile::open(o.model.path), options);
  check_settings(o, opened, model);
  Corpus corpus(o, opened, context, model, lines);
  // Settings that are refused leave no folder that would hold later runs to them.
  corpus.check_prompts(begun);
  if (!begun) begin(o, settings);
  corpus.run();
  return kOk;
}

}  // namespace touchstone::cli
