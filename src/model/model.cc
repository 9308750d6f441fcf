#include "touchstone/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/copy.h"
#include "core/index.h"
#include "decode/step_arrays.h"
#include "model/decode_graphs.h"
#include "model/host_cache.h"
#include "model/layers.h"
#include "model/options.h"
#include "model/rotation.h"
#include "model/row_order.h"
#include "model/step_timer.h"
#include "model/weights.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::model {
namespace {

using decode::KeptRows;
using decode::ScoreArgs;
using decode::ScoreRow;
using decode::ScorerSequence;

cache::KvCacheOptions cache_options(const CachePlan& plan, const ModelOptions& options) {
  return {.layout = plan.layout,
          .pool_pages = cache::pool_pages_for(plan.layout, options.max_length, options.sequences,
                                              std::min(options.max_rows, options.max_length))};
}

// Results are f64 on the CPU alone.
void check_narrow(Device device, const char* name, const TensorView& result) {
  if (!device.is_cuda() || !result.defined() || result.dtype == DType::f32) return;
  throw Unsupported(fmt::format("score: {}: on CUDA f32, got {}", name, name_of(result.dtype)));
}

// [rows, columns] of f32, bf16 or f16 to f32 or f64, on the CPU.
void widen(const ConstTensorView& from, void* to, DType dtype) {
  visit_float_dtype(from.dtype, [&]<class From>() {
    visit_float_dtype(dtype, [&]<class To>() {
      const auto* source = static_cast<const From*>(from.data);
      auto* out = static_cast<To*>(to);
      for (std::int64_t i = 0; i < from.elements(); ++i) out[i] = convert<To>(source[i]);
    });
  });
}

}  // namespace

struct Model::State {
  struct Sequence {
    cache::SequenceId cached{};
    std::vector<std::int32_t> tokens{};             // committed
    std::optional<cache::SequenceId> swapped = {};  // in the host cache, instead of `cached`
  };

  // Of `opened`, or of `uploaded` where there is no file.
  State(Context& context, std::optional<io::ModelFile> opened, io::ModelDescription described,
        std::vector<io::UploadedWeight> uploaded, const ModelOptions& given)
      : file(std::move(opened)),
        description(std::move(described)),
        options(checked_options(given, description)),
        weights(file ? load_weights(context, *file, options)
                     : LoadedWeights(context, description, std::move(uploaded))),
        plan(plan_cache(description, options)),
        layers(context, description, weights.get(), plan, options, options.max_length),
        cache(context, cache_options(plan, options)),
        views(cache),
        shape{.vocabulary = description.vocabulary,
              .max_length = options.max_length,
              .layers = std::ssize(description.layers),
              .hidden_size = description.width,
              .device = context.device()} {
    if (options.host_sequences > 0) {
      host = std::make_unique<HostCache>(
          plan.layout,
          cache::pool_pages_for(plan.layout, options.max_length, options.host_sequences,
                                std::min(options.max_rows, options.max_length)),
          shape.device);
    }
    if (shape.device.is_cuda() && options.graphs) {
      graphs = std::make_unique<DecodeGraphs>(shape.device, cache, layers, options.max_rows,
                                              options.max_length);
    }
  }

  Sequence& find(ScorerSequence sequence) {
    const auto found = sequences.find(sequence.id);
    if (found == sequences.end()) {
      throw InvalidArgument(fmt::format("model: sequence {} does not exist", sequence.id));
    }
    return found->second;
  }
  // One that is not swapped out.
  Sequence& find_here(ScorerSequence sequence) {
    Sequence& found = find(sequence);
    if (found.swapped) {
      throw InvalidArgument(fmt::format("model: sequence {} is swapped out", sequence.id));
    }
    return found;
  }
  ScorerSequence add(Sequence sequence) {
    sequences.emplace(next_id, std::move(sequence));
    return {next_id++};
  }
  // Drops the pending rows of one sequence.
  void forget(ScorerSequence sequence) {
    for (ScoreRow& row : pending) {
      if (row.sequence == sequence) row.sequence = {};
    }
  }
  void drop_pending() {
    for (const ScoreRow& row : pending) {
      if (const auto found = sequences.find(row.sequence.id); found != sequences.end()) {
        const cache::SequenceId id = found->second.cached;
        if (cache.reserved(id) > cache.length(id)) cache.truncate(id, cache.length(id));
      }
    }
    pending.clear();
  }

  void run(Context& context, const ScoreArgs& args, const RowOrder& order,
           const cache::CacheView& view);
  // One row of each sequence, as many as fit in one chunk, and graphs are enabled.
  bool is_decode_step(const ScoreArgs& args) const {
    return graphs && std::ssize(args.rows) <= options.max_rows &&
           std::ranges::all_of(args.rows,
                               [](const ScoreRow& row) { return row.parent == decode::kNoNode; });
  }
  void run_graph(Context& context, const ScoreArgs& args, const RowOrder& order,
                 std::span<const cache::SequenceId> ids);
  Chunk chunk(Context& context, std::span<const ScoreRow> rows, const RowOrder& order,
              const cache::CacheView& view, std::int64_t begin, std::int64_t end);
  void write_hidden(Context& context, const ScoreArgs& args, const RowOrder& order,
                    std::int64_t begin, std::int64_t layer, const ConstTensorView& output);
  void write_logits(Context& context, const ScoreArgs& args, const RowOrder& order,
                    std::int64_t begin, const ConstTensorView& hidden);
  ConstTensorView gather(Context& context, const ConstTensorView& hidden,
                         std::span<const std::int32_t> from);
  void commit(const KeptRows& kept, std::span<const ScoreRow> rows);

  std::optional<io::ModelFile> file;
  io::ModelDescription description;
  ModelOptions options;
  LoadedWeights weights;
  CachePlan plan;
  Layers layers;
  cache::KvCache cache;
  cache::CacheViewBuilder views;
  decode::ScorerShape shape;
  decode::StepArrays arrays{};
  decode::StepArrays head_rows{};
  std::unique_ptr<HostCache> host{};       // absent without host_sequences
  std::unique_ptr<DecodeGraphs> graphs{};  // absent where steps are not recorded
  Tensor narrow{};                         // logits before they are widened to f64
  std::unordered_map<std::int64_t, Sequence> sequences{};
  std::int64_t next_id = 0;
  std::vector<ScoreRow> pending{};
};

Model::Model(Context& context, io::ModelFile file, const ModelOptions& options) {
  io::ModelDescription description = file.description();
  state_ = std::make_unique<State>(context, std::move(file), std::move(description),
                                   std::vector<io::UploadedWeight>(), options);
}
Model::Model(Context& context, io::ModelDescription description,
             std::vector<io::UploadedWeight> weights, const ModelOptions& options)
    : state_(std::make_unique<State>(context, std::nullopt, std::move(description),
                                     std::move(weights), options)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const decode::ScorerShape& Model::shape() const { return state_->shape; }

ScorerSequence Model::create() { return state_->add({.cached = state_->cache.create()}); }

ScorerSequence Model::open(std::span<const std::int32_t> tokens) {
  if (!state_->options.share_prefixes) return create();
  const cache::PrefixHit hit = state_->cache.open_prefix(tokens);
  return state_->add(
      {.cached = hit.sequence, .tokens = {tokens.begin(), tokens.begin() + hit.tokens}});
}

ScorerSequence Model::fork(ScorerSequence sequence) {
  State::Sequence& source = state_->find_here(sequence);
  state_->forget(sequence);
  return state_->add({.cached = state_->cache.fork(source.cached), .tokens = source.tokens});
}

void Model::truncate(ScorerSequence sequence, std::int64_t length) {
  State::Sequence& source = state_->find_here(sequence);
  if (length < 0 || length > std::ssize(source.tokens)) {
    throw InvalidArgument(
        fmt::format("truncate: length: expected 0 to {}, got {}", source.tokens.size(), length));
  }
  state_->cache.truncate(source.cached, length);
  state_->forget(sequence);
  source.tokens.resize(at(length));
}

void Model::release(ScorerSequence sequence) {
  const State::Sequence& source = state_->find(sequence);
  if (source.swapped) {
    state_->host->release(*source.swapped);
  } else {
    state_->cache.release(source.cached);
  }
  state_->forget(sequence);
  state_->sequences.erase(sequence.id);
}

std::int64_t Model::length(ScorerSequence sequence) const {
  return std::ssize(state_->find(sequence).tokens);
}

bool Model::swap_out(ScorerSequence sequence) {
  State& s = *state_;
  State::Sequence& source = s.find_here(sequence);
  if (!s.host) return false;
  const std::optional<cache::SequenceId> away = s.host->swap_out(s.cache, source.cached);
  if (!away) return false;
  s.forget(sequence);
  source.swapped = away;
  source.cached = {};
  return true;
}

bool Model::swap_in(ScorerSequence sequence) {
  State& s = *state_;
  State::Sequence& source = s.find(sequence);
  if (!source.swapped) {
    throw InvalidArgument(fmt::format("model: sequence {} is not swapped out", sequence.id));
  }
  const std::optional<cache::SequenceId> back = s.host->swap_in(s.cache, *source.swapped);
  if (!back) return false;
  source.cached = *back;
  source.swapped.reset();
  return true;
}

bool Model::fits(std::span<const decode::RowCount> counts) const {
  return fits_in_chunks(counts, std::numeric_limits<std::int64_t>::max());
}

// A sequence that is swapped out counts as a new one of its length.
bool Model::fits_in_chunks(std::span<const decode::RowCount> counts, std::int64_t chunk) const {
  State& s = *state_;
  std::vector<cache::TokenCount> tokens;
  std::vector<cache::SequenceId> made;
  tokens.reserve(counts.size());
  for (const decode::RowCount& count : counts) {
    const State::Sequence& source = s.find(count.sequence);
    if (source.swapped) made.push_back(s.cache.create());
    const std::int64_t before = source.swapped ? std::ssize(source.tokens) : 0;
    tokens.push_back({source.swapped ? made.back() : source.cached, before + count.rows});
  }
  const bool fits = s.cache.estimate_chunks(tokens, chunk).fits;
  for (const cache::SequenceId id : made) s.cache.release(id);
  return fits;
}

void Model::score(Context& context, const ScoreArgs& args) {
  decode::check_score_args(*this, args);
  State& s = *state_;
  check_narrow(s.shape.device, "logits", args.logits);
  check_narrow(s.shape.device, "hidden", args.hidden);
  s.drop_pending();
  if (args.rows.empty()) return;
  const RowOrder order(args.rows);
  std::vector<cache::TokenCount> counts;
  std::vector<cache::SequenceId> ids;
  for (const RowOrder::Sequence& sequence : order.sequences) {
    ids.push_back(s.find_here(sequence.id).cached);
    counts.push_back({ids.back(), sequence.count});
  }
  s.cache.reserve(counts);
  s.pending.assign(args.rows.begin(), args.rows.end());
  try {
    if (s.is_decode_step(args) && order.sequences.size() == args.rows.size()) {
      s.run_graph(context, args, order, ids);
    } else {
      s.run(context, args, order, s.views.build(context, ids));
    }
  } catch (...) {
    s.drop_pending();
    throw;
  }
}

void Model::State::run(Context& context, const ScoreArgs& args, const RowOrder& order,
                       const cache::CacheView& view) {
  const auto rows = static_cast<std::int64_t>(args.rows.size());
  for (std::int64_t begin = 0; begin < rows; begin += options.max_rows) {
    const std::int64_t end = std::min(rows, begin + options.max_rows);
    HiddenHook hook;
    if (!args.hidden_layers.empty()) {
      hook = [&, begin](std::int64_t layer, const ConstTensorView& output) {
        write_hidden(context, args, order, begin, layer, output);
      };
    }
    const ConstTensorView hidden =
        layers.run(context, chunk(context, args.rows, order, view, begin, end), hook);
    write_logits(context, args, order, begin, hidden);
  }
}

void Model::State::run_graph(Context& context, const ScoreArgs& args, const RowOrder& order,
                             std::span<const cache::SequenceId> ids) {
  std::vector<DecodeRow> rows;
  for (const std::int32_t row : order.rows) {
    rows.push_back({args.rows[at(row)].token, args.rows[at(row)].position});
  }
  const DecodeGraphs::Result result = graphs->run(context, ids, rows, args.hidden_layers);
  for (std::size_t i = 0; i < args.hidden_layers.size(); ++i) {
    write_hidden(context, args, order, 0, args.hidden_layers[i], result.outputs[i]);
  }
  write_logits(context, args, order, 0, result.hidden);
}

Chunk Model::State::chunk(Context& context, std::span<const ScoreRow> rows, const RowOrder& order,
                          const cache::CacheView& view, std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> cache_rows;
  std::vector<std::int64_t> positions;
  std::vector<std::int64_t> slots;
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> offsets = {0};
  for (const RowOrder::Sequence& sequence : order.sequences) {
    starts.push_back(std::ssize(find(sequence.id).tokens));
    const std::int64_t last = std::clamp(sequence.first + sequence.count, begin, end);
    offsets.push_back(last - begin);
  }
  for (std::int64_t i = begin; i < end; ++i) {
    const ScoreRow& row = rows[at(order.rows[at(i)])];
    tokens.push_back(row.token);
    positions.push_back(row.position);
    cache_rows.push_back(order.sequence[at(i)]);
    slots.push_back(starts[at(order.sequence[at(i)])] + order.slot[at(i)]);
  }
  const std::int64_t n = end - begin;
  arrays.clear();
  const std::size_t names[] = {arrays.add(tokens, {n}), arrays.add(positions, {n}),
                               arrays.add(slots, {n}), arrays.add(cache_rows, {n}),
                               arrays.add(offsets, {std::ssize(offsets)})};
  std::vector<std::size_t> bits;
  std::size_t tree_starts = 0;
  if (!order.all_chains()) {
    tree_starts = arrays.add(order.tree_starts(starts), {std::ssize(starts)});
    for (const cache::LayerGroup& group : plan.layout.groups) {
      bits.push_back(arrays.add(order.tree_bits(rows, begin, end, group), {n, order.tree_words()}));
    }
  }
  arrays.finish(context);
  std::vector<ConstTensorView> trees;
  for (const std::size_t array : bits) trees.push_back(arrays.view(array));
  return {.rows = n,
          .tokens = arrays.view(names[0]),
          .positions = arrays.view(names[1]),
          .slots = arrays.view(names[2]),
          .cache_rows = arrays.view(names[3]),
          .query_offsets = arrays.view(names[4]),
          .trees = std::move(trees),
          .tree_starts = bits.empty() ? ConstTensorView{} : arrays.view(tree_starts),
          .view = view};
}

// In runs of rows that are neighbors in the call too: a call whose rows are sorted by sequence has
// one.
void Model::State::write_hidden(Context& context, const ScoreArgs& args, const RowOrder& order,
                                std::int64_t begin, std::int64_t layer,
                                const ConstTensorView& output) {
  const auto found = std::ranges::lower_bound(args.hidden_layers, layer);
  if (found == args.hidden_layers.end() || *found != layer) return;
  const std::int64_t first_row = (found - args.hidden_layers.begin()) * std::ssize(order.rows);
  const std::int64_t width = output.shape[1];
  std::int64_t run = 0;
  for (std::int64_t i = 0; i < output.shape[0]; i += run) {
    const std::int64_t row = order.rows[at(begin + i)];
    for (run = 1; i + run < output.shape[0]; ++run) {
      if (order.rows[at(begin + i + run)] != row + run) break;
    }
    const std::int64_t sizes[] = {run, width};
    const auto* from =
        static_cast<const std::byte*>(output.data) + i * width * size_of(output.dtype);
    auto* const to = static_cast<std::byte*>(args.hidden.data) +
                     (first_row + row) * width * size_of(args.hidden.dtype);
    const ConstTensorView source =
        make_view(static_cast<const void*>(from), sizes, output.dtype, shape.device);
    if (shape.device.is_cuda()) {
      layers.widen(context, source,
                   make_view(static_cast<void*>(to), sizes, args.hidden.dtype, shape.device));
    } else {
      widen(source, to, args.hidden.dtype);
    }
  }
}

// The head for the rows of the chunk that need logits, in runs that are contiguous in the output:
// one run where the rows of the call are sorted by sequence.
void Model::State::write_logits(Context& context, const ScoreArgs& args, const RowOrder& order,
                                std::int64_t begin, const ConstTensorView& hidden) {
  struct LogitRow {
    std::int32_t out = 0;
    std::int32_t from = 0;
  };
  std::vector<LogitRow> logit_rows;
  for (std::int64_t i = 0; i < hidden.shape[0]; ++i) {
    const std::int32_t row = order.rows[at(begin + i)];
    const auto found = std::ranges::lower_bound(args.logit_rows, row);
    if (found == args.logit_rows.end() || *found != row) continue;
    logit_rows.push_back(
        {static_cast<std::int32_t>(found - args.logit_rows.begin()), static_cast<std::int32_t>(i)});
  }
  std::ranges::sort(logit_rows, {}, &LogitRow::out);
  const bool wide = args.logits.dtype == DType::f64;
  std::vector<std::int32_t> from;
  for (std::size_t first = 0; first < logit_rows.size(); first += from.size()) {
    from.clear();
    for (std::size_t i = first; i < logit_rows.size(); ++i) {
      if (logit_rows[i].out != logit_rows[first].out + std::ssize(from)) break;
      from.push_back(logit_rows[i].from);
    }
    const bool whole = std::ssize(from) == hidden.shape[0] && std::ranges::is_sorted(from);
    const ConstTensorView input = whole ? hidden : gather(context, hidden, from);
    const std::int64_t sizes[] = {std::ssize(from), shape.vocabulary};
    const std::int64_t offset = logit_rows[first].out * shape.vocabulary;
    auto* const out =
        static_cast<std::byte*>(args.logits.data) + offset * size_of(args.logits.dtype);
    if (wide && narrow.elements() < sizes[0] * sizes[1]) {
      narrow = Tensor::empty({sizes[0], sizes[1]}, DType::f32);
    }
    const TensorView logits =
        make_view(wide ? narrow.data() : static_cast<void*>(out), sizes, DType::f32, shape.device);
    layers.head(context, input, logits);
    if (wide) widen(logits, out, DType::f64);
  }
}

ConstTensorView Model::State::gather(Context& context, const ConstTensorView& hidden,
                                     std::span<const std::int32_t> from) {
  head_rows.clear();
  const std::size_t rows = head_rows.add(from, {std::ssize(from)});
  head_rows.finish(context);
  return layers.gather(context, hidden, head_rows.view(rows));
}

void Model::keep(std::span<const KeptRows> kept) {
  State& s = *state_;
  decode::check_kept_rows(s.pending, kept);
  const RowOrder order(s.pending);
  std::vector<std::int64_t> slot_of(s.pending.size());
  for (std::size_t i = 0; i < order.rows.size(); ++i) {
    slot_of[at(order.rows[i])] = order.slot[i];
  }
  std::vector<std::int64_t> slots;  // of all, one after another
  slots.reserve(s.pending.size());
  std::vector<cache::KeptSlots> moved;
  moved.reserve(kept.size());
  for (const KeptRows& one : kept) {
    if (one.rows.empty()) continue;
    const std::size_t first = slots.size();
    for (const std::int32_t row : one.rows) slots.push_back(slot_of[at(row)]);
    moved.push_back({s.find(one.sequence).cached, std::span(slots).subspan(first)});
  }
  s.cache.keep(moved);
  const std::vector<ScoreRow> rows = s.pending;
  s.drop_pending();
  for (const KeptRows& one : kept) s.commit(one, rows);
}

void Model::State::commit(const KeptRows& kept, std::span<const ScoreRow> rows) {
  if (kept.rows.empty()) return;
  Sequence& sequence = find(kept.sequence);
  const std::int64_t before = std::ssize(sequence.tokens);
  for (const std::int32_t row : kept.rows) sequence.tokens.push_back(rows[at(row)].token);
  const std::int64_t after = std::ssize(sequence.tokens);
  // Whole pages: one that is still written would have to be copied for every sequence, so that one
  // sequence could need more pages than its tokens do. Before the window moves on: see
  // KvCache::insert_prefix.
  if (options.share_prefixes && before / options.page_tokens != after / options.page_tokens) {
    const std::int64_t whole = after / options.page_tokens * options.page_tokens;
    cache.insert_prefix(sequence.cached, std::span(sequence.tokens).first(at(whole)));
  }
  cache.advance_window(sequence.cached);
}

void Model::clear_prefixes() {
  while (state_->cache.evict(std::numeric_limits<std::int32_t>::max()) > 0) {
  }
}

std::vector<StepPart> Model::profile_step(Context& context,
                                          std::span<const ScorerSequence> sequences) {
  State& s = *state_;
  std::vector<ScoreRow> rows;
  StepTrace trace;
  for (const ScorerSequence sequence : sequences) {
    rows.push_back({.sequence = sequence, .token = 1, .position = length(sequence)});
    trace.lengths.push_back(length(sequence) + 1);
  }
  require(!rows.empty() && std::ssize(rows) <= s.options.max_rows, "sequences",
          fmt::format("1 to {}, max_rows", s.options.max_rows), std::ssize(rows));
  decode::check_score_args(*this, {.rows = rows});
  s.drop_pending();
  const RowOrder order(rows);
  std::vector<cache::TokenCount> counts;
  std::vector<cache::SequenceId> ids;
  for (const RowOrder::Sequence& sequence : order.sequences) {
    ids.push_back(s.find_here(sequence.id).cached);
    counts.push_back({ids.back(), 1});
  }
  s.cache.reserve(counts);
  s.pending = rows;
  Tensor logits = Tensor::empty({std::ssize(rows), s.shape.vocabulary}, DType::f32, s.shape.device);
  std::vector<StepPart> parts;
  try {
    const Chunk chunk =
        s.chunk(context, rows, order, s.views.build(context, ids), 0, std::ssize(rows));
    const auto step = [&](Context& with) {
      s.layers.head(with, s.layers.run(with, chunk, {}), logits);
    };
    s.layers.set_trace(&trace);
    step(context);  // counts, and loads the kernels
    parts = trace.parts;
    for (StepPart& part : parts) {
      trace.only = part.name;
      part.us = 1e6 * seconds_of(context, step);
    }
    StepPart whole{.name = "whole step", .calls = 1};
    for (const StepPart& part : parts) whole.bytes += part.bytes;
    trace.only.clear();
    whole.us = 1e6 * seconds_of(context, step);
    parts.push_back(std::move(whole));
  } catch (...) {
    s.layers.set_trace(nullptr);
    s.drop_pending();
    throw;
  }
  s.layers.set_trace(nullptr);
  s.drop_pending();
  return parts;
}

void Model::embed(Context& context, const ConstTensorView& tokens, const TensorView& y) const {
  state_->layers.embed_tokens(context, tokens, y);
}
void Model::head(Context& context, const ConstTensorView& hidden, const TensorView& logits) const {
  state_->layers.head(context, hidden, logits);
}

const io::ModelDescription& Model::description() const { return state_->description; }

const io::ModelFile& Model::file() const {
  if (!state_->file) throw InvalidArgument("model: file: the model was made without one");
  return *state_->file;
}

const ModelOptions& Model::options() const { return state_->options; }
cache::Statistics Model::cache_statistics() const { return state_->cache.statistics(); }

std::int64_t Model::cache_bytes() const {
  std::int64_t bytes = 0;
  for (const cache::GroupStatistics& group : state_->cache.statistics().groups) {
    bytes += group.capacity * group.page_bytes;
  }
  return bytes;
}

std::int64_t Model::weight_bytes() const { return state_->weights.get().matrix_bytes; }

std::int64_t Model::graph_replays() const { return state_->graphs ? state_->graphs->replays() : 0; }

std::string Model::find_nonfinite_weight() const {
  return state_->file ? first_nonfinite_weight(*state_->file) : "";
}

}  // namespace touchstone::inline v0::model
