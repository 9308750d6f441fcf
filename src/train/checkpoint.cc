// The state of a run in a file.
#include <fmt/format.h>

#include <cstring>
#include <map>

#include "core/checksum.h"
#include "core/copy.h"
#include "core/index.h"
#include "touchstone/core/error.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/write_tensors.h"
#include "train/trainer_state.h"

namespace touchstone::inline v0::train {
namespace {

constexpr char kFormat[] = "touchstone training 3";
constexpr std::int64_t kStepColumns = 5;
constexpr std::int64_t kEvaluationColumns = 7;

std::string ternary_text(const TrainingOptions& o) {
  if (!o.ternary) return "none";
  return fmt::format("{} {} {}", ternary_geometry_name(o.ternary->geometry),
                     ternary_scale_rule_name(o.ternary->scale),
                     static_cast<int>(o.ternary->scale_type));
}

std::string sum_text(std::span<const std::byte> data) {
  return fmt::format("{:016x}", checksum(data));
}

// The key of a tensor's checksum.
std::string sum_key(const std::string& tensor) { return "sum." + tensor; }

std::string text_of(const TokenData& data) {
  const std::uint64_t tokens = checksum(std::as_bytes(std::span(data.tokens)));
  const std::uint64_t starts = checksum(std::as_bytes(std::span(data.starts)));
  return fmt::format("{} tokens {:016x} in {} documents {:016x}", data.size(), tokens,
                     data.starts.size() - 1, starts);
}

}  // namespace

// Everything that decides the bits of a run, by the name it has in messages.
std::map<std::string, std::string> Trainer::State::decisions() const {
  const TrainingOptions& o = options;
  const auto shown = [](auto value) { return fmt::format("{}", value); };
  std::map<std::string, std::string> all = {{"steps", shown(o.steps)},
                                            {"rows", shown(o.rows)},
                                            {"rows_at_once", shown(o.rows_at_once)},
                                            {"length", shown(o.length)},
                                            {"schedule", std::string(name_of(o.schedule))},
                                            {"learning_rate", shown(o.learning_rate)},
                                            {"final_rate", shown(o.final_rate)},
                                            {"second_rate", shown(o.second_rate)},
                                            {"warm_up", shown(o.warm_up)},
                                            {"weight_decay", shown(o.weight_decay)},
                                            {"beta1", shown(o.beta1)},
                                            {"beta2", shown(o.beta2)},
                                            {"epsilon", shown(o.epsilon)},
                                            {"clip", shown(o.clip)},
                                            {"dropout", shown(o.dropout)},
                                            {"attention_dropout", shown(o.attention_dropout)},
                                            {"average_decay", shown(o.average_decay)},
                                            {"seed", shown(o.seed)},
                                            {"compute", std::string(name_of(o.compute))},
                                            {"ternary", ternary_text(o)},
                                            {"text", text_of(training)},
                                            {"validation text", text_of(validation)}};
  all.merge(trainee->decisions());
  return all;
}

namespace {

std::vector<double> step_rows(const std::vector<StepReport>& steps) {
  std::vector<double> rows;
  for (const StepReport& s : steps) {
    rows.insert(rows.end(), {static_cast<double>(s.step), s.loss, s.norm, s.learning_rate,
                             static_cast<double>(s.tokens)});
  }
  return rows;
}

std::vector<double> evaluation_rows(const std::vector<EvaluationReport>& evaluations) {
  std::vector<double> rows;
  for (const EvaluationReport& e : evaluations) {
    rows.insert(rows.end(), {static_cast<double>(e.step), e.loss, e.bits_per_byte, e.zero_share,
                             e.flip_share, e.dead_share, static_cast<double>(e.ternary_groups)});
  }
  return rows;
}

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : name_(path.string()), file_(io::TensorFile::open(path)) {
    if (value("format") != kFormat) throw CorruptData(name_ + ": no checkpoint of a training run");
  }

  std::string value(const std::string& key) const {
    const io::MetadataValue* const found = file_.find_metadata(key);
    if (found == nullptr) throw CorruptData(fmt::format("{}: no {} in it", name_, key));
    return std::string(found->as_string());
  }
  const io::TensorInfo& tensor(const std::string& name, std::string_view type,
                               std::int64_t elements) const {
    const io::TensorInfo& info = file_.tensor(name);
    if (info.type != type || (elements >= 0 && info.elements() != elements)) {
      throw CorruptData(fmt::format("{}: {}: expected {} values of {}, got {} of {}", name_, name,
                                    elements, type, info.elements(), info.type));
    }
    if (value(sum_key(name)) != sum_text(info.data)) {
      throw CorruptData(fmt::format("{}: {} is damaged: it has another checksum", name_, name));
    }
    return info;
  }
  std::vector<std::int8_t> bytes(const std::string& name, std::int64_t elements) const {
    const io::TensorInfo& info = tensor(name, "i8", elements);
    std::vector<std::int8_t> values(info.data.size());
    if (!values.empty()) std::memcpy(values.data(), info.data.data(), values.size());
    return values;
  }
  std::vector<double> table(const std::string& name, std::int64_t columns) const {
    const io::TensorInfo& info = tensor(name, "f64", -1);
    std::vector<double> values(info.data.size() / sizeof(double));
    if (!values.empty()) {
      std::memcpy(values.data(), info.data.data(), values.size() * sizeof(double));
    }
    if (std::ssize(values) % columns != 0) throw CorruptData(name_ + ": " + name + ": wrong size");
    return values;
  }

 private:
  std::string name_;
  io::TensorFile file_;
};

}  // namespace

void remove_unfinished(const std::filesystem::path& path) {
  const std::string begin = path.filename().string() + ".partial.";
  std::error_code ignored;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().filename().string().starts_with(begin)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

void Trainer::save(const std::filesystem::path& path) const {
  State& s = *state_;
  remove_unfinished(path);
  Parameters& p = s.trainee->parameters();
  std::vector<io::OutputTensor> tensors;
  std::vector<std::vector<std::byte>> kept;
  const auto add = [&](const char* name, const TensorView& view) {
    tensors.push_back({.name = name,
                       .type = std::string(name_of(view.dtype)),
                       .shape = {view.elements()},
                       .data = [&s, view](std::vector<std::byte>& scratch) {
                         TensorView bytes = view;
                         bytes.shape[0] = view.elements() * size_of(view.dtype);
                         scratch = download<std::byte>(s.context, bytes);
                         return std::span<const std::byte>(scratch);
                       }});
  };
  add("weights", p.weights());
  add("m", p.m());
  add("v", p.v());
  if (p.averaged()) add("average", p.average());
  const auto add_codes = [&](const char* name, const std::vector<std::int8_t>& values) {
    if (values.empty()) return;
    tensors.push_back(
        {.name = name,
         .type = "i8",
         .shape = {std::ssize(values)},
         .data = [&values](std::vector<std::byte>&) { return std::as_bytes(std::span(values)); }});
  };
  add_codes("codes", s.codes);
  add_codes("alive", s.alive);
  const std::vector<double> steps = step_rows(s.history);
  const std::vector<double> evaluations = evaluation_rows(s.evaluations);
  const auto add_table = [&](const char* name, const std::vector<double>& values,
                             std::int64_t columns) {
    tensors.push_back(
        {.name = name,
         .type = "f64",
         .shape = {std::ssize(values) / columns, columns},
         .data = [&values](std::vector<std::byte>&) { return std::as_bytes(std::span(values)); }});
  };
  add_table("steps", steps, kStepColumns);
  add_table("evaluations", evaluations, kEvaluationColumns);
  std::vector<double> accepted;  // drafts only
  for (const EvaluationReport& e : s.evaluations) accepted.push_back(e.tokens_per_pass);
  if (s.draft != nullptr) add_table("tokens_per_pass", accepted, 1);
  std::map<std::string, std::string> metadata = {{"format", kFormat},
                                                 {"done", std::to_string(s.done)}};
  for (const auto& [key, value] : s.decisions()) {
    metadata["run." + key] = value;
  }
  std::vector<std::byte> scratch;
  for (const io::OutputTensor& tensor : tensors) {
    metadata[sum_key(tensor.name)] = sum_text(tensor.data(scratch));
  }
  io::write_safetensors(path, tensors, {.metadata = metadata, .durable = true});
}

void Trainer::load(const std::filesystem::path& path) {
  State& s = *state_;
  const Reader file(path);
  for (const auto& [key, value] : s.decisions()) {
    const std::string saved = file.value("run." + key);
    if (saved != value) {
      throw InvalidArgument(fmt::format("{}: {}: the run was begun with {}, not with {}",
                                        path.string(), key, saved, value));
    }
  }
  Parameters& p = s.trainee->parameters();
  struct Restored {
    TensorView to;
    std::span<const std::byte> from;
  };
  std::vector<Restored> restored;
  const auto find = [&](const char* name, const TensorView& to) {
    restored.push_back({to, file.tensor(name, name_of(to.dtype), to.elements()).data});
  };
  find("weights", p.weights());
  find("m", p.m());
  find("v", p.v());
  if (p.averaged()) find("average", p.average());
  const std::vector<double> steps = file.table("steps", kStepColumns);
  const std::vector<double> evaluations = file.table("evaluations", kEvaluationColumns);
  std::int64_t matrix_values = 0;
  for (const Parameter& parameter : p.list()) {
    if (parameter.matrix) matrix_values += parameter.shape[0] * parameter.shape[1];
  }
  std::vector<std::int8_t> codes;
  std::vector<std::int8_t> alive;
  if (s.options.ternary && !evaluations.empty()) {
    codes = file.bytes("codes", matrix_values);
    alive = file.bytes("alive", matrix_values);
  }
  const std::vector<double> accepted =
      s.draft != nullptr ? file.table("tokens_per_pass", 1) : std::vector<double>{};
  if (s.draft != nullptr && accepted.size() * kEvaluationColumns != evaluations.size()) {
    throw CorruptData(path.string() + ": tokens_per_pass: wrong size");
  }
  // Everything is read and checked: nothing below can fail.
  for (const Restored& tensor : restored) {
    const StreamLocation here{tensor.to.device, s.context.stream()};
    queue_copy(here, tensor.to.data, {}, tensor.from.data(), std::ssize(tensor.from));
    wait_for(here);
  }
  s.history.clear();
  for (std::size_t i = 0; i < steps.size(); i += kStepColumns) {
    s.history.push_back({.step = static_cast<std::int64_t>(steps[i]),
                         .loss = steps[i + 1],
                         .norm = steps[i + 2],
                         .learning_rate = steps[i + 3],
                         .tokens = static_cast<std::int64_t>(steps[i + 4])});
  }
  s.evaluations.clear();
  for (std::size_t i = 0; i < evaluations.size(); i += kEvaluationColumns) {
    s.evaluations.push_back(
        {.step = static_cast<std::int64_t>(evaluations[i]),
         .loss = evaluations[i + 1],
         .bits_per_byte = evaluations[i + 2],
         .zero_share = evaluations[i + 3],
         .flip_share = evaluations[i + 4],
         .dead_share = evaluations[i + 5],
         .ternary_groups = static_cast<std::int64_t>(evaluations[i + 6]),
         .tokens_per_pass = accepted.empty() ? 0 : accepted[i / kEvaluationColumns]});
  }
  s.done = std::ssize(s.history);
  s.codes = std::move(codes);
  s.alive = std::move(alive);
}

}  // namespace touchstone::inline v0::train
