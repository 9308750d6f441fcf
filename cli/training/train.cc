// touchstone train: a model from text.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "cli/arguments.h"
#include "cli/decoding/open_model.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/training/draft.h"
#include "cli/training/interrupt.h"
#include "cli/training/loss_curve.h"
#include "cli/training/run_folder.h"
#include "cli/training/settings.h"
#include "cli/verbs.h"
#include "json/json.h"
#include "machine/amx_rate.h"
#include "machine/fma_rate.h"
#include "machine/stopwatch.h"
#include "touchstone/core/error.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/ternary_file.h"
#include "touchstone/model/model.h"
#include "touchstone/plan/catalog.h"
#include "touchstone/train/data.h"
#include "touchstone/train/trainer.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;

struct TrainVerb {
  std::vector<std::string> texts{};
  std::vector<std::string> validation{};
  std::string out{};
  std::string config{};
  std::string from{};
  std::string teacher{};
  std::string dflash{};  // the target of a draft
  std::string shards{};
  std::string json{};
  std::string device = "cpu";
  int threads = 0;
  bool ternary = false;
  bool resume = false;
  TrainSettings settings{};
};

std::vector<std::string> read_all(const std::vector<std::string>& paths) {
  std::vector<std::string> documents;
  for (const std::string& path : paths) {
    for (std::string& document : train::read_documents(path)) {
      documents.push_back(std::move(document));
    }
  }
  return documents;
}

// The text of the tokenizer.json in use; empty where the parent's vocabulary is a tokenizer.gguf.
std::string tokenizer_text(const TrainVerb& o, const train::TextSplit& split) {
  if (!o.from.empty()) {
    const fs::path folder(o.from);
    if (fs::exists(folder / "tokenizer.json")) {
      return read_whole_file((folder / "tokenizer.json").string());
    }
    if (fs::exists(folder / "tokenizer.gguf")) return "";
    throw InvalidArgument(fmt::format(
        "train: --from {}: expected a folder with a tokenizer; touchstone convert makes one",
        o.from));
  }
  std::vector<std::string_view> texts(split.training.begin(), split.training.end());
  const bool several = split.training.size() + split.validation.size() > 2;
  const std::vector<std::string> special =
      several ? std::vector<std::string>{std::string(train::kEndOfText)}
              : std::vector<std::string>{};
  const std::string& choice = o.settings.text("tokenizer");
  if (choice == "characters") {
    texts.insert(texts.end(), split.validation.begin(), split.validation.end());
    return train::character_tokenizer(texts, special);
  }
  if (choice.find_first_not_of("0123456789") == std::string::npos) {
    return io::train_tokenizer(texts,
                               {.vocabulary = o.settings.integer("tokenizer"), .special = special});
  }
  return read_whole_file(choice);
}

struct Corpus {
  std::string tokenizer_json;
  io::Tokenizer tokenizer;
  std::int32_t end_token = -1;
  train::TokenData training{};
  train::TokenData validation{};
};

Corpus read_corpus(const TrainVerb& o, Json& report) {
  train::TextSplit split =
      o.validation.empty()
          ? train::split_documents(read_all(o.texts), o.settings.number("validation_share"),
                                   o.settings.integer("seed"))
          : train::separate_documents(read_all(o.texts), read_all(o.validation));
  log(fmt::format(
      "text: {} paragraphs in {} documents for training, {} in {} for validation; {} of training "
      "dropped because validation has them; {:.2f} % of the 13-grams of validation occur in "
      "training",
      split.training_paragraphs, split.training.size(), split.validation_paragraphs,
      split.validation.size(), split.dropped_paragraphs, 100 * split.common_13_grams));
  std::string json = o.dflash.empty() ? tokenizer_text(o, split) : "";
  io::Tokenizer tokenizer = json.empty()
                                ? io::Tokenizer::from_file(o.dflash.empty() ? o.from : o.dflash)
                                : io::Tokenizer::from_json(json);
  Corpus corpus{std::move(json), std::move(tokenizer)};
  const auto end = corpus.tokenizer.token_to_id(train::kEndOfText);
  const bool several = split.training.size() > 1;
  if (end && several) corpus.end_token = *end;
  Context cpu({.threads = o.threads});
  const auto vocabulary = static_cast<std::int64_t>(corpus.tokenizer.id_end());
  const fs::path shards = o.shards;
  const std::string source =
      train::text_checksum(split.training, corpus.tokenizer, corpus.end_token);
  if (!o.shards.empty() && train::has_shards(shards / "training")) {
    corpus.training = train::read_shards(shards / "training", vocabulary, source);
  } else {
    corpus.training =
        train::encode_documents(cpu, corpus.tokenizer, split.training, corpus.end_token);
    if (!o.shards.empty()) {
      train::write_shards(shards / "training", corpus.training, vocabulary, source);
    }
  }
  corpus.validation =
      train::encode_documents(cpu, corpus.tokenizer, split.validation, corpus.end_token);
  report["text"] = Json{{"training_bytes", corpus.training.bytes},
                        {"validation_bytes", corpus.validation.bytes},
                        {"training_documents", std::ssize(corpus.training.starts) - 1},
                        {"validation_documents", std::ssize(corpus.validation.starts) - 1},
                        {"training_tokens", corpus.training.size()},
                        {"validation_tokens", corpus.validation.size()},
                        {"dropped_paragraphs", split.dropped_paragraphs},
                        {"common_13_grams", split.common_13_grams},
                        {"vocabulary", vocabulary}};
  return corpus;
}

// Floating point operations per second that the device can do; 0 if unknown.
double peak_of(const TrainVerb& o, Context& context, DType compute) {
  const Device device = parse_device(o.device);
  if (!device.is_cuda()) {
    const double tiles = compute == DType::bf16 ? machine::measure_amx_gflops(context) : 0;
    return (tiles > 0 ? tiles : machine::measure_fma_gflops(context)) * 1e9;
  }
  if (compute == DType::f32) return 0;
  try {
    std::string name = cuda_devices()[static_cast<std::size_t>(device.index)].name;
    if (name.starts_with("NVIDIA ")) name.erase(0, 7);
    return plan::find_gpu(name).flops;
  } catch (const InvalidArgument&) {
    return 0;
  }
}

class Training {
 public:
  Training(const TrainVerb& o, Json& report)
      : o_(o),
        report_(report),
        corpus_(read_corpus(o, report)),
        context_({.device = parse_device(o.device),
                  .threads = o.threads,
                  .workspace_bytes = parse_device(o.device).is_cuda() ? std::int64_t{1} << 30
                                                                      : std::int64_t{64} << 20}),
        options_(o.settings.training()),
        folder_(o.out) {
    if (o.ternary) {
      const bool wide = options_.compute == DType::f32;
      options_.ternary =
          TernaryRule{.geometry = parse_ternary_geometry(o.settings.text("group")),
                      .scale = parse_ternary_scale_rule(o.settings.text("scale")),
                      .scale_type = wide ? TernaryScaleType::f16 : TernaryScaleType::f16_bf16};
    }
    if (!o.from.empty()) parent_.emplace(io::ModelFile::open(o.from));
    if (o.dflash.empty()) {
      trainer_.emplace(context_, description(), options_, corpus_.training, corpus_.validation);
      check_sample_prompt();
      open_teacher();
    } else {
      open_draft();
    }
    start();
    peak_ = peak_of(o, context_, options_.compute);
  }

  int run();

 private:
  io::ModelDescription description() const {
    io::ModelDescription d =
        parent_ ? parent_->description()
                : o_.settings.description(static_cast<std::int64_t>(corpus_.tokenizer.id_end()));
    if (static_cast<std::int64_t>(corpus_.tokenizer.id_end()) > d.vocabulary) {
      throw InvalidArgument(fmt::format("train: the tokenizer has {} tokens, the model {}",
                                        corpus_.tokenizer.id_end(), d.vocabulary));
    }
    if (!parent_ && corpus_.end_token >= 0) {
      d.bos_token = corpus_.end_token;
      d.eos_tokens = {corpus_.end_token};
    }
    return d;
  }
  std::vector<std::int32_t> sample_prompt() const {
    std::vector<std::int32_t> prompt =
        corpus_.tokenizer.encode(o_.settings.text("sample_prompt"), {.add_special = false});
    if (prompt.empty() && corpus_.end_token >= 0) prompt = {corpus_.end_token};
    if (prompt.empty()) prompt = {corpus_.validation.tokens[0]};
    return prompt;
  }
  void check_sample_prompt() {
    const std::int64_t context = trainer_->decoder().description().context;
    if (o_.settings.integer("samples") > 0 && std::ssize(sample_prompt()) >= context) {
      throw InvalidArgument(
          fmt::format("train: sample_prompt: expected fewer tokens than the context of {}, got {}",
                      context, sample_prompt().size()));
    }
  }
  // Logits of other tokens would be distilled silently.
  void check_teacher_tokens() const {
    const io::Tokenizer theirs = io::Tokenizer::from_file(o_.teacher);
    for (std::size_t id = 0; id < corpus_.tokenizer.id_end(); ++id) {
      const auto token = static_cast<io::Token>(id);
      if (theirs.id_to_token(token) == corpus_.tokenizer.id_to_token(token)) continue;
      throw InvalidArgument(fmt::format(
          "train: teacher: expected the same vocabulary, but token {} is another one there", id));
    }
  }
  void open_draft() {
    target_.emplace(context_, io::ModelFile::open(o_.dflash),
                    model::ModelOptions{.compute = options_.compute,
                                        .max_length = options_.length,
                                        .max_rows = 1024,
                                        .share_prefixes = false});
    folder_.open(o_.resume);  // the states of the target may be kept in it
    const train::DraftTraining draft =
        draft_training(o_.settings, *target_, corpus_.training, o_.out);
    const io::BlockDraftDescription& d = draft.description;
    log(fmt::format("draft: {} layers, blocks of {}, mask token {}, reads layers {} of {}",
                    d.layers, d.block, d.mask_token, fmt::join(d.taps, " "), o_.dflash));
    report_["draft"] =
        Json{{"layers", d.layers}, {"block", d.block},         {"mask_token", d.mask_token},
             {"taps", d.taps},     {"anchors", draft.anchors}, {"target", o_.dflash}};
    trainer_.emplace(context_, draft, options_, corpus_.training, corpus_.validation);
  }
  void open_teacher() {
    if (o_.teacher.empty()) return;
    teacher_.emplace(context_, io::ModelFile::open(o_.teacher),
                     model::ModelOptions{.compute = options_.compute,
                                         .max_length = options_.length,
                                         .max_rows = 1024,
                                         .share_prefixes = false});
    trainer_->set_teacher(&*teacher_);
    check_teacher_tokens();
  }
  void start() {
    folder_.open(o_.resume);
    folder_.remove_unfinished();
    if (o_.resume) {
      trainer_->load(folder_.last());
      log(fmt::format("goes on after step {}", trainer_->steps_done()));
    } else if (parent_) {
      trainer_->copy_weights(*parent_);
    } else {
      trainer_->initialize();
    }
    // What is decided by a run's history, where it goes on.
    for (const train::EvaluationReport& e : trainer_->evaluations()) count_evaluation(e);
    for (const train::StepReport& step : trainer_->steps()) diverged(step);
    folder_.begin();
  }
  // Whether it is the best so far.
  bool count_evaluation(const train::EvaluationReport& e) {
    const bool better = e.loss < best_;
    since_best_ = better ? 0 : since_best_ + 1;
    best_ = std::min(best_, e.loss);
    return better;
  }

  void show(const train::StepReport& step, Progress& progress);
  void evaluate();
  void write_packed();
  void sample();
  bool diverged(const train::StepReport& step);
  void write_curves();
  void finish(const std::string& how, int code);

  const TrainVerb& o_;
  Json& report_;
  Corpus corpus_;
  Context context_;
  train::TrainingOptions options_;
  RunFolder folder_;
  std::optional<io::ModelFile> parent_;
  std::optional<model::Model> teacher_;
  std::optional<model::Model> target_;
  std::optional<train::Trainer> trainer_;
  double peak_ = 0;
  machine::Stopwatch running_{};
  double stepping_ = 0;  // seconds in steps
  std::int64_t stepped_ = 0;
  double best_ = std::numeric_limits<double>::infinity();
  std::int64_t since_best_ = 0;
  double first_loss_ = 0;
};

void Training::show(const train::StepReport& step, Progress& progress) {
  const double rate = static_cast<double>(stepped_ * step.tokens) / stepping_;
  const double left =
      static_cast<double>(options_.steps - step.step) * stepping_ / static_cast<double>(stepped_);
  std::string share;
  if (peak_ > 0) {
    const double used = rate * trainer_->flops_per_token();
    share = fmt::format(", {:.1f} % of peak", 100 * used / peak_);
  }
  const std::string line = fmt::format(
      "step {}/{}  loss {:.4f}  norm {:.3f}  rate {:.2e}  {:.0f} tokens/s{}  {:.0f} s left",
      step.step, options_.steps, step.loss, step.norm, step.learning_rate, rate, share, left);
  progress.show(line);
  if (step.step % o_.settings.integer("evaluate_every") == 0 || step.step == options_.steps) {
    log(line);
    report_["tokens_per_second"] = rate;
    if (peak_ > 0) {
      report_["share_of_peak"] = rate * trainer_->flops_per_token() / peak_;
    }
  }
}

void Training::evaluate() {
  const train::EvaluationReport e = trainer_->evaluate(o_.settings.integer("evaluate_rows"));
  const bool better = count_evaluation(e);
  std::string line =
      fmt::format("validation after step {}: loss {:.4f}, {:.4f} bits per byte, perplexity {:.2f}",
                  e.step, e.loss, e.bits_per_byte, std::exp(e.loss));
  if (target_) {
    line = fmt::format("validation after step {}: loss {:.4f}, {:.2f} tokens per pass", e.step,
                       e.loss, e.tokens_per_pass);
  }
  if (o_.ternary) {
    line +=
        fmt::format(", {} groups ternary, {:.1f} % zeros, {:.2f} % flipped, {:.2f} % always zero",
                    e.ternary_groups, 100 * e.zero_share, 100 * e.flip_share, 100 * e.dead_share);
  }
  log(line + (better ? ", the best so far" : ""));
  // `last` comes last: a run that is killed before makes the files of this evaluation again.
  if (better) {
    trainer_->save(folder_.best());
    trainer_->write_model(folder_.path(), corpus_.tokenizer_json);
    if (corpus_.tokenizer_json.empty() && !target_) {
      OutputFile((folder_.path() / "tokenizer.gguf").string())
          .write(read_whole_file((fs::path(o_.from) / "tokenizer.gguf").string()));
    }
    if (o_.ternary) write_packed();
  }
  trainer_->save(folder_.last());
  write_curves();
  sample();
}

// The ternary model in 2 bits a weight, where GGUF has a format for its groups and rows.
void Training::write_packed() {
  const TernaryGeometry& geometry = options_.ternary->geometry;
  const bool grouped = geometry.grouping == TernaryGrouping::group;
  if (grouped && geometry.size % 32 != 0) {
    return log(fmt::format("model.gguf: no format has groups of {}", geometry.size));
  }
  const char* const format = !grouped || geometry.size == 128 ? "pq2_0"
                             : geometry.size % 256 == 0       ? "tq2_0"
                             : geometry.size % 64 == 0        ? "q2_0"
                                                              : "ternary_g32";
  try {
    const io::ConvertReport packed = io::convert_model(
        folder_.path(), folder_.path() / "model.gguf", {.format = &weight_format(format)});
    const io::TernaryInspection proof =
        io::inspect_ternary(io::TensorFile::open(folder_.path() / "model.gguf"));
    if (!proof.passed()) {
      throw CorruptData("model.gguf is not ternary: " +
                        (proof.faults.empty() ? "no tensor in it" : proof.faults[0]));
    }
    log(fmt::format("model.gguf: {} in {}, {} groups of {} tensors inspected, all ternary",
                    bytes_string(static_cast<std::int64_t>(packed.bytes)), format, proof.groups(),
                    proof.tensors.size()));
    report_["packed"] = Json{{"format", format},
                             {"bytes", static_cast<std::int64_t>(packed.bytes)},
                             {"groups", proof.groups()}};
  } catch (const InvalidArgument& error) {  // rows that are no whole blocks
    log(fmt::format("model.gguf: {}", error.what()));
    report_["packed"] = Json{{"format", format}, {"refused", error.what()}};
  }
}

// Continuations by the runtime, from the files as they were written.
void Training::sample() {
  const std::int64_t count = o_.settings.integer("samples");
  if (count == 0 || target_) return;
  decode::Request request{.prompt = sample_prompt(), .samples = static_cast<std::int32_t>(count)};
  const std::int64_t before = std::ssize(request.prompt);
  request.stop.max_tokens = std::min(o_.settings.integer("sample_tokens"),
                                     trainer_->decoder().description().context - before);
  // Pages of the samples alone: those of a long context may be more than there is memory for.
  model::Model model(context_, io::ModelFile::open(folder_.path()),
                     {.compute = options_.compute,
                      .max_length = before + request.stop.max_tokens,
                      .sequences = std::min<std::int64_t>(count, 8)});
  decode::Scheduler scheduler(
      model, {.eos_tokens = corpus_.end_token >= 0 ? std::vector<std::int32_t>{corpus_.end_token}
                                                   : std::vector<std::int32_t>{},
              .tokenizer = &corpus_.tokenizer});
  request.sampling = {.temperature = o_.settings.number("sample_temperature"),
                      .seed = o_.settings.integer("seed")};
  const auto id = scheduler.submit(std::move(request));
  while (scheduler.step(context_)) {
  }
  Json samples = Json::array();
  for (const decode::Completion& answer : scheduler.take(id)) {
    print(fmt::format("--- step {}\n{}\n", trainer_->steps_done(), answer.text));
    samples.push_back(answer.text);
  }
  report_["samples"] = samples;
}

// Far above where the run began: no schedule brings it back.
bool Training::diverged(const train::StepReport& step) {
  if (step.step <= 10) first_loss_ = std::max(first_loss_, step.loss);
  return step.step > 20 && first_loss_ > 0 && step.loss > first_loss_ + 3;
}

void Training::write_curves() {
  OutputFile((folder_.path() / "loss.csv").string())
      .write(loss_csv(trainer_->steps(), trainer_->evaluations()));
  OutputFile((folder_.path() / "loss.svg").string())
      .write(loss_svg(fmt::format("Loss, {} parameters{}", trainer_->parameters().count(),
                                  o_.ternary ? ", ternary" : ""),
                      trainer_->steps(), trainer_->evaluations()));
}

void Training::finish(const std::string& how, int code) {
  log(how);
  report_["ended"] = how;
  report_["steps_done"] = trainer_->steps_done();
  report_["best_validation_loss"] = std::isfinite(best_) ? Json(best_) : Json();
  report_["seconds"] = running_.seconds();
  Json evaluations = Json::array();
  for (const train::EvaluationReport& e : trainer_->evaluations()) {
    evaluations.push_back(Json{{"step", e.step},
                               {"loss", e.loss},
                               {"bits_per_byte", e.bits_per_byte},
                               {"zero_share", e.zero_share},
                               {"flip_share", e.flip_share},
                               {"dead_share", e.dead_share},
                               {"ternary_groups", e.ternary_groups},
                               {"tokens_per_pass", e.tokens_per_pass}});
  }
  report_["evaluations"] = evaluations;
  report_["exit"] = code;
}

int Training::run() {
  const InterruptScope scope;
  const std::int64_t parameters = trainer_->parameters().count();
  report_["parameters"] = parameters;
  log(fmt::format("{} parameters, {} tokens of text, vocabulary {}, {}", parameters,
                  corpus_.training.size(), corpus_.tokenizer.id_end(), name_of(context_.device())));
  running_ = {};
  const std::int64_t every = o_.settings.integer("evaluate_every");
  const std::int64_t patience = o_.settings.integer("patience");
  Progress progress;
  while (trainer_->steps_done() < options_.steps) {
    const machine::Stopwatch watch;
    const train::StepReport step = trainer_->step();
    stepping_ += watch.seconds();
    ++stepped_;
    if (!step.finite || diverged(step)) {
      // Both are at least 0: without the sign that the processor gives to NaN.
      finish(fmt::format("stopped at step {}: loss {}, norm {}; the last good state is {}",
                         step.step, std::abs(step.loss), std::abs(step.norm),
                         fs::exists(folder_.last()) ? folder_.last().string()
                                                    : std::string("not saved yet")),
             kNo);
      return kNo;
    }
    show(step, progress);
    // Before the end by a signal, so that a run that goes on has all evaluations.
    const bool due = step.step % every == 0 || step.step == options_.steps;
    if (due) evaluate();
    if (InterruptScope::interrupted()) {
      if (!due) trainer_->save(folder_.last());
      write_curves();
      finish(fmt::format("interrupted after step {}: saved, --resume goes on", step.step), kOk);
      return kOk;
    }
    if (patience > 0 && since_best_ >= patience) {
      finish(fmt::format("stopped early after step {}: {} evaluations without a better one",
                         step.step, since_best_),
             kOk);
      return kOk;
    }
  }
  finish(fmt::format("{}: the model of the best evaluation, loss {:.4f}", o_.out, best_), kOk);
  return kOk;
}

int train_model(TrainVerb& o) {
  if (!o.config.empty()) o.settings.read_config(o.config);
  if (!o.dflash.empty() && (o.ternary || !o.from.empty() || !o.teacher.empty())) {
    throw InvalidArgument("train: --dflash: not with --ternary, --from or --teacher");
  }
  parse_device(o.device);
  o.settings.check(o.from.empty() && o.dflash.empty());
  for (const std::string& line : o.settings.unused({.from = !o.from.empty(),
                                 .teacher = !o.teacher.empty(),
                                 .ternary = o.ternary,
                                 .dflash = !o.dflash.empty()})) {
    log(line);
  }
  OutputFile output(o.json);
  Json report = Json::object();
  report["settings"] = o.settings.json();
  report["ternary"] = o.ternary;
  report["device"] = o.device;
  Training training(o, report);
  const int code = training.run();
  if (output.wanted()) output.write(report.dump(1) + "\n");
  return code;
}

}  // namespace

void add_train(Options& app, int& exit_code) {
  auto o = std::make_shared<TrainVerb>();
  Options* verb = app.add_verb("train", "Train a model on text");
  verb->add_option("--text", o->texts,
                   "Text files, documents separated by lines of <|endoftext|>; .jsonl with a "
                   "\"text\" per line; folders of generate --corpus")
      ->required();
  verb->add_option("--validation", o->validation, "Validation text (default: a share of --text)");
  verb->add_option("--out", o->out, "Folder for the model, its checkpoints and curves")->required();
  verb->add_option("--config", o->config,
                   "JSON object of settings; command-line options take precedence");
  verb->add_option("--from", o->from, "Folder of a model to start from");
  verb->add_option("--teacher", o->teacher, "Teacher model for distillation");
  verb->add_option("--dflash", o->dflash,
                   "Train a block draft for this model, for generate --speculate dflash=");
  verb->add_option("--shards", o->shards, "Folder that caches the tokens of --text for later runs");
  verb->add_option("--json", o->json, "Report");
  verb->add_option("--device", o->device, "cpu, cuda or cuda:N")->show_default();
  verb->add_option("--threads", o->threads, "CPU threads; 0 = all cores")
      ->check(whole_number(0, 4096));
  verb->add_flag("--ternary", o->ternary, "Weights in {-1, 0, +1} times a scale per group");
  verb->add_flag("--resume", o->resume, "Resume from checkpoints/last.safetensors of --out");
  o->settings.add_options(*verb);
  verb->callback([o, &exit_code] { exit_code = train_model(*o); });
}

}  // namespace touchstone::cli
