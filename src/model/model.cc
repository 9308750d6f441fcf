#include "touchstone/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/copy.h"
#include "core/index.h"
#include "decode/step_arrays.h"
#include "model/decode_graphs.h"
#include "model/layers.h"
#include "model/rotation.h"
#include "model/row_order.h"
#include "model/weights.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::model {
namespace {

using decode::KeptRows;
using decode::ScoreArgs;
using decode::ScoreRow;
using decode::ScorerSequence;

void require(bool holds, const char* option, const std::string& expected, std::int64_t got) {
  if (holds) return;
  throw InvalidArgument(fmt::format("model: {}: expected {}, got {}", option, expected, got));
}

ModelOptions checked(ModelOptions options, const io::ModelDescription& description) {
  const std::int64_t longest = longest_sequence(description);
  if (options.max_length == 0) options.max_length = longest;
  require(options.max_length > 0 && options.max_length <= longest, "max_length",
          fmt::format("1 to {}, the context of the model", longest), options.max_length);
  require(options.sequences > 0, "sequences", "at least 1", options.sequences);
  require(options.page_tokens > 0, "page_tokens", "at least 1", options.page_tokens);
  require(options.max_rows > 0, "max_rows", "at least 1", options.max_rows);
  if (options.compute != DType::f32 && options.compute != DType::bf16 &&
      options.compute != DType::f16) {
    throw InvalidArgument(
        fmt::format("model: compute: expected f32, bf16 or f16, got {}", name_of(options.compute)));
  }
  return options;
}

cache::KvCacheOptions cache_options(const CachePlan& plan, const ModelOptions& options) {
  return {.layout = plan.layout,
          .pool_pages = cache::pool_pages_for(plan.layout, options.max_length, options.sequences,
                                              std::min(options.max_rows, options.max_length))};
}

// [rows, columns] of the dtype of the model to f32 or f64, on the CPU.
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
    std::vector<std::int32_t> tokens{};  // committed
  };

  State(Context& context, io::ModelFile opened, const ModelOptions& given)
      : file(std::move(opened)),
        options(checked(given, file.description())),
        weights(context, file),
        plan(plan_cache(file.description(), options)),
        layers(context, file.description(), weights.get(), plan, options, options.max_length),
        cache(context, cache_options(plan, options)),
        views(cache),
        shape{.vocabulary = file.description().vocabulary,
              .max_length = options.max_length,
              .layers = std::ssize(file.description().layers),
              .hidden_size = file.description().width,
              .device = context.device()} {
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
  ScorerSequence add(Sequence sequence) {
    sequences.emplace(next_id, std::move(sequence));
    return {next_id++};
  }
  // The pending rows of one sequence are gone.
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
  // One row of each sequence, as many as run at once, and graphs are wanted.
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
                    std::int64_t begin, std::int64_t layer, const ConstTensorView& output) const;
  void write_logits(Context& context, const ScoreArgs& args, const RowOrder& order,
                    std::int64_t begin, const ConstTensorView& hidden);
  ConstTensorView gather(Context& context, const ConstTensorView& hidden,
                         std::span<const std::int32_t> from);
  void commit(const KeptRows& kept, std::span<const ScoreRow> rows);

  io::ModelFile file;
  ModelOptions options;
  LoadedWeights weights;
  CachePlan plan;
  Layers layers;
  cache::KvCache cache;
  cache::CacheViewBuilder views;
  decode::ScorerShape shape;
  decode::StepArrays arrays{};
  decode::StepArrays head_rows{};
  std::unique_ptr<DecodeGraphs> graphs{};  // absent where steps are not recorded
  Tensor narrow{};                         // logits before they are widened to f64
  std::unordered_map<std::int64_t, Sequence> sequences{};
  std::int64_t next_id = 0;
  std::vector<ScoreRow> pending{};
};

Model::Model(Context& context, io::ModelFile file, const ModelOptions& options)
    : state_(std::make_unique<State>(context, std::move(file), options)) {}
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
  State::Sequence& source = state_->find(sequence);
  state_->forget(sequence);
  return state_->add({.cached = state_->cache.fork(source.cached), .tokens = source.tokens});
}

void Model::truncate(ScorerSequence sequence, std::int64_t length) {
  State::Sequence& source = state_->find(sequence);
  if (length < 0 || length > std::ssize(source.tokens)) {
    throw InvalidArgument(
        fmt::format("truncate: length: expected 0 to {}, got {}", source.tokens.size(), length));
  }
  state_->cache.truncate(source.cached, length);
  state_->forget(sequence);
  source.tokens.resize(at(length));
}

void Model::release(ScorerSequence sequence) {
  state_->cache.release(state_->find(sequence).cached);
  state_->forget(sequence);
  state_->sequences.erase(sequence.id);
}

std::int64_t Model::length(ScorerSequence sequence) const {
  return std::ssize(state_->find(sequence).tokens);
}

bool Model::fits(std::span<const decode::RowCount> counts) const {
  std::vector<cache::TokenCount> tokens;
  tokens.reserve(counts.size());
  for (const decode::RowCount& count : counts) {
    tokens.push_back({state_->find(count.sequence).cached, count.rows});
  }
  return state_->cache.estimate_reserve(tokens).fits;
}

void Model::score(Context& context, const ScoreArgs& args) {
  decode::check_score_args(*this, args);
  State& s = *state_;
  if (s.shape.device.is_cuda() &&
      (args.logits.dtype != DType::f32 || !args.hidden_layers.empty())) {
    throw Unsupported("score: on CUDA logits are f32, and there are no hidden states");
  }
  s.drop_pending();
  if (args.rows.empty()) return;
  const RowOrder order(args.rows);
  std::vector<cache::TokenCount> counts;
  std::vector<cache::SequenceId> ids;
  for (const RowOrder::Sequence& sequence : order.sequences) {
    ids.push_back(s.find(sequence.id).cached);
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
  write_logits(context, args, order, 0, graphs->run(context, ids, rows));
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
  std::size_t tree[2] = {};
  const bool chains = order.all_chains();
  if (!chains) {
    tree[0] = arrays.add(order.tree_bits(rows, begin, end), {n, order.tree_words()});
    tree[1] = arrays.add(starts, {std::ssize(starts)});
  }
  arrays.finish(context);
  return {.rows = n,
          .tokens = arrays.view(names[0]),
          .positions = arrays.view(names[1]),
          .slots = arrays.view(names[2]),
          .cache_rows = arrays.view(names[3]),
          .query_offsets = arrays.view(names[4]),
          .tree = chains ? ConstTensorView{} : arrays.view(tree[0]),
          .tree_starts = chains ? ConstTensorView{} : arrays.view(tree[1]),
          .view = view};
}

void Model::State::write_hidden(Context& /*context*/, const ScoreArgs& args, const RowOrder& order,
                                std::int64_t begin, std::int64_t layer,
                                const ConstTensorView& output) const {
  const auto found = std::ranges::lower_bound(args.hidden_layers, layer);
  if (found == args.hidden_layers.end() || *found != layer) return;
  const std::int64_t index = found - args.hidden_layers.begin();
  const std::int64_t width = output.shape[1];
  const std::int64_t all = std::ssize(order.rows);
  auto* out = static_cast<std::byte*>(args.hidden.data);
  for (std::int64_t i = 0; i < output.shape[0]; ++i) {
    const std::int64_t row = index * all + order.rows[at(begin + i)];
    const std::int64_t one[] = {1, width};
    const auto* from =
        static_cast<const std::byte*>(output.data) + i * width * size_of(output.dtype);
    widen(make_view(static_cast<const void*>(from), one, output.dtype),
          out + row * width * size_of(args.hidden.dtype), args.hidden.dtype);
  }
}

// Rows of the chunk whose logits are wanted, in runs that are neighbors in the output too: a call
// whose rows are sorted by sequence has one.
void Model::State::write_logits(Context& context, const ScoreArgs& args, const RowOrder& order,
                                std::int64_t begin, const ConstTensorView& hidden) {
  struct Wanted {
    std::int32_t out = 0;
    std::int32_t from = 0;
  };
  std::vector<Wanted> wanted;
  for (std::int64_t i = 0; i < hidden.shape[0]; ++i) {
    const std::int32_t row = order.rows[at(begin + i)];
    const auto found = std::ranges::lower_bound(args.logit_rows, row);
    if (found == args.logit_rows.end() || *found != row) continue;
    wanted.push_back(
        {static_cast<std::int32_t>(found - args.logit_rows.begin()), static_cast<std::int32_t>(i)});
  }
  std::ranges::sort(wanted, {}, &Wanted::out);
  const bool wide = args.logits.dtype == DType::f64;
  std::vector<std::int32_t> from;
  for (std::size_t first = 0; first < wanted.size(); first += from.size()) {
    from.clear();
    for (std::size_t i = first; i < wanted.size(); ++i) {
      if (wanted[i].out != wanted[first].out + std::ssize(from)) break;
      from.push_back(wanted[i].from);
    }
    const bool whole = std::ssize(from) == hidden.shape[0] && std::ranges::is_sorted(from);
    const ConstTensorView input = whole ? hidden : gather(context, hidden, from);
    const std::int64_t sizes[] = {std::ssize(from), shape.vocabulary};
    const std::int64_t offset = wanted[first].out * shape.vocabulary;
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
  std::vector<std::vector<std::int64_t>> slots(kept.size());
  std::vector<cache::KeptSlots> moved;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    for (const std::int32_t row : kept[i].rows) slots[i].push_back(slot_of[at(row)]);
    if (!slots[i].empty()) moved.push_back({s.find(kept[i].sequence).cached, slots[i]});
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

const io::ModelDescription& Model::description() const { return state_->file.description(); }
const io::ModelFile& Model::file() const { return state_->file; }
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

std::string Model::find_nonfinite_weight() const { return first_nonfinite_weight(state_->file); }

}  // namespace touchstone::inline v0::model
