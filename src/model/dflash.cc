#include "touchstone/model/dflash.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/copy.h"
#include "core/index.h"
#include "decode/speculative/likeliest_tokens.h"
#include "decode/step_arrays.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/attention.h"
#include "touchstone/ops/gate.h"
#include "touchstone/ops/linear.h"
#include "touchstone/ops/rms_norm.h"
#include "touchstone/ops/rope.h"

namespace touchstone::inline v0::model {
namespace {

struct DraftLayer {
  Tensor input_norm, mlp_norm, q, k, v, output, q_norm, k_norm, gate, up, down;
};

// Weights in f32 on the device.
Tensor draft_weight(Context& context, const io::TensorFile& file, const std::string& name,
                    std::int64_t first_column = 0, std::int64_t columns = 0) {
  const io::TensorInfo& info = file.tensor(name);
  std::vector<float> values(at(info.elements()));
  decode_weights(*info.format, info.data, values);
  std::vector<std::int64_t> shape = info.shape;
  if (columns > 0) {
    const std::int64_t all = shape[1];
    std::vector<float> cut;
    for (std::int64_t row = 0; row < shape[0]; ++row) {
      const auto from = values.begin() + row * all + first_column;
      cut.insert(cut.end(), from, from + columns);
    }
    values = std::move(cut);
    shape[1] = columns;
  }
  Tensor host = Tensor::empty(shape, DType::f32);
  std::ranges::copy(values, host.values<float>().begin());
  return host.to(context.device());
}

}  // namespace

struct DFlash::State {
  // Keys and values of the committed tokens, and behind them those of a block: [tokens, kv heads *
  // head].
  struct Sequence {
    std::vector<Tensor> keys{};
    std::vector<Tensor> values{};
    std::int64_t length = 0;
    std::int64_t capacity = 0;
    // Hidden states of the tokens after them, not yet projected: [taps, kPending, width].
    Tensor pending{};
    std::int64_t pending_rows = 0;
    std::int64_t observed() const { return length + pending_rows; }
  };
  // While speculation pauses, rows arrive one by one and may never be needed: they are buffered,
  // and projected together at the cost of a prompt.
  static constexpr std::int64_t kPending = 256;

  State(Context& context, const std::filesystem::path& folder, Model& model,
        const DFlashOptions& given)
      : target(model), d(io::read_block_draft(folder)), options(given), device(context.device()) {
    const decode::ScorerShape& shape = model.shape();
    const auto same = [](const char* what, std::int64_t own, std::int64_t targets) {
      if (own == targets) return;
      throw InvalidArgument(
          fmt::format("dflash: {}: expected {}, that of the target, got {}", what, targets, own));
    };
    same("width", d.width, shape.hidden_size);
    same("vocabulary", d.vocabulary, shape.vocabulary);
    if (d.taps.back() >= shape.layers) {
      throw InvalidArgument(fmt::format("dflash: layer {} is not one of {} layers of the target",
                                        d.taps.back(), shape.layers));
    }
    if (options.block == 0) options.block = d.block;
    if (options.block < 2 || options.block > d.block || options.candidates < 1 ||
        options.candidates > d.vocabulary) {
      throw InvalidArgument(
          fmt::format("dflash: expected a block of 2 to {} and at least one candidate", d.block));
    }
    load(context, io::TensorFile::open(folder));
    // Output of layer i, counted from 0, is hidden state i + 1.
    for (const std::int64_t tap : d.taps) taps.push_back(static_cast<std::int32_t>(tap + 1));
  }

  void load(Context& context, const io::TensorFile& file);
  TensorView grown(Tensor& buffer, std::int64_t rows, std::int64_t columns);
  TensorView slot(Tensor& cache, std::int64_t first, std::int64_t rows) const;
  void reserve(Context& context, Sequence& s, std::int64_t tokens) const;
  void set_positions(Context& context, std::int64_t first, std::int64_t rows);
  void normed(Context& context, const ConstTensorView& x, const Tensor& weight,
              const TensorView& y) const;
  void rotated_heads(Context& context, const ConstTensorView& x, const Tensor& weight,
                     const Tensor& norm, std::int64_t heads, const TensorView& y);
  void append(Context& context, Sequence& s, const ConstTensorView& hidden, std::int64_t first_row,
              std::int64_t rows);
  void add_features(Context& context, Sequence& s);
  void run_layer(Context& context, Sequence& s, std::size_t layer, const TensorView& x);
  void run_block(Context& context, Sequence& s, std::int32_t token, const TensorView& logits);

  Model& target;
  io::BlockDraftDescription d;
  DFlashOptions options;
  Device device;
  std::vector<std::int32_t> taps{};
  std::vector<Tensor> fusion{};  // fc, the columns of each tap
  Tensor hidden_norm{}, final_norm{}, frequencies{};
  std::vector<DraftLayer> layers{};
  std::unordered_map<std::int64_t, Sequence> sequences{};
  decode::StepArrays arrays{}, block_tokens{};
  decode::LikeliestTokens likeliest{};
  ConstTensorView positions{};
  // Scratch, by rows.
  Tensor fused{}, feature{}, heads{}, normed_heads{}, queries{}, attended{}, input{}, gated{},
      lifted{}, product{}, stream{}, logits{};
};

void DFlash::State::load(Context& context, const io::TensorFile& file) {
  io::check_block_draft(d, file);
  for (std::size_t i = 0; i < d.taps.size(); ++i) {
    fusion.push_back(
        draft_weight(context, file, "fc.weight", static_cast<std::int64_t>(i) * d.width, d.width));
  }
  const auto weight = [&](const std::string& name) {
    return draft_weight(context, file, name + ".weight");
  };
  hidden_norm = weight("hidden_norm");
  final_norm = weight("norm");
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const std::string name = fmt::format("layers.{}.", i);
    layers.push_back({.input_norm = weight(name + "input_layernorm"),
                      .mlp_norm = weight(name + "post_attention_layernorm"),
                      .q = weight(name + "self_attn.q_proj"),
                      .k = weight(name + "self_attn.k_proj"),
                      .v = weight(name + "self_attn.v_proj"),
                      .output = weight(name + "self_attn.o_proj"),
                      .q_norm = weight(name + "self_attn.q_norm"),
                      .k_norm = weight(name + "self_attn.k_norm"),
                      .gate = weight(name + "mlp.gate_proj"),
                      .up = weight(name + "mlp.up_proj"),
                      .down = weight(name + "mlp.down_proj")});
  }
  const RopeFrequencies computed = rope_frequencies(d.head_size, d.rope_base);
  Tensor host = Tensor::empty({std::ssize(computed.values)}, DType::f64);
  std::ranges::copy(computed.values, host.values<double>().begin());
  frequencies = host.to(context.device());
}

TensorView DFlash::State::grown(Tensor& buffer, std::int64_t rows, std::int64_t columns) {
  if (buffer.elements() < rows * columns) {
    buffer = Tensor::empty({rows, columns}, DType::f32, device);
  }
  const std::int64_t shape[] = {rows, columns};
  return make_view(buffer.data(), shape, DType::f32, device);
}

TensorView DFlash::State::slot(Tensor& cache, std::int64_t first, std::int64_t rows) const {
  const std::int64_t columns = d.kv_heads * d.head_size;
  const std::int64_t shape[] = {rows, columns};
  return make_view(static_cast<void*>(static_cast<float*>(cache.data()) + first * columns), shape,
                   DType::f32, device);
}

void DFlash::State::reserve(Context& context, Sequence& s, std::int64_t tokens) const {
  if (tokens <= s.capacity) return;
  const std::int64_t capacity = std::max<std::int64_t>(tokens, 2 * s.capacity + 64);
  const std::int64_t columns = d.kv_heads * d.head_size;
  const StreamLocation here{device, context.stream()};
  for (std::vector<Tensor>* side : {&s.keys, &s.values}) {
    side->resize(layers.size());
    for (Tensor& old : *side) {
      Tensor larger = Tensor::empty({capacity, columns}, DType::f32, device);
      if (s.length > 0) {
        queue_copy(here, larger.data(), here, old.data(), 4 * s.length * columns);
        wait_for(here);  // the old one is freed
      }
      old = std::move(larger);
    }
  }
  s.capacity = capacity;
}

void DFlash::State::set_positions(Context& context, std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < rows; ++i) values.push_back(first + i);
  arrays.clear();
  const std::size_t index = arrays.add(std::span<const std::int64_t>(values), {rows});
  arrays.finish(context);
  positions = arrays.view(index);
}

void DFlash::State::normed(Context& context, const ConstTensorView& x, const Tensor& weight,
                           const TensorView& y) const {
  rms_norm(context, {.x = x, .weight = weight, .y = y, .eps = d.norm_eps});
}

// y = rope(norm(weight x)), per head.
void DFlash::State::rotated_heads(Context& context, const ConstTensorView& x, const Tensor& weight,
                                  const Tensor& norm, std::int64_t count, const TensorView& y) {
  const std::int64_t rows = x.shape[0];
  const TensorView flat = grown(heads, rows, count * d.head_size);
  linear(context, {.x = x, .weight = weight, .y = flat});
  const std::int64_t shape[] = {rows, count, d.head_size};
  const TensorView each = make_view(flat.data, shape, DType::f32, device);
  const TensorView even =
      make_view(grown(normed_heads, rows, count * d.head_size).data, shape, DType::f32, device);
  normed(context, each, norm, even);
  rope(context, {.x = even,
                 .positions = positions,
                 .frequencies = frequencies,
                 .y = make_view(y.data, shape, DType::f32, device)});
}

// Buffers rows [first_row, first_row + rows) of the hidden states.
void DFlash::State::append(Context& context, Sequence& s, const ConstTensorView& hidden,
                           std::int64_t first_row, std::int64_t rows) {
  if (s.pending.elements() == 0) {
    s.pending = Tensor::empty({std::ssize(fusion), kPending, d.width}, DType::f32, device);
  }
  const StreamLocation here{device, context.stream()};
  for (std::int64_t taken = 0; taken < rows;) {
    const std::int64_t count = std::min(rows - taken, kPending - s.pending_rows);
    for (std::int64_t tap = 0; tap < std::ssize(fusion); ++tap) {
      queue_copy(
          here, static_cast<float*>(s.pending.data()) + (tap * kPending + s.pending_rows) * d.width,
          here,
          static_cast<const float*>(hidden.data) +
              (tap * hidden.shape[1] + first_row + taken) * d.width,
          count * d.width * 4);
    }
    s.pending_rows += count;
    taken += count;
    if (s.pending_rows == kPending) add_features(context, s);
  }
}

// Keys and values of the buffered rows.
void DFlash::State::add_features(Context& context, Sequence& s) {
  const std::int64_t rows = s.pending_rows;
  if (rows == 0) return;
  reserve(context, s, s.length + rows + options.block);
  const TensorView sum = grown(fused, rows, d.width);
  for (std::size_t tap = 0; tap < fusion.size(); ++tap) {
    const std::int64_t offset = static_cast<std::int64_t>(tap) * kPending * d.width;
    const std::int64_t shape[] = {rows, d.width};
    const ConstTensorView x =
        make_view(static_cast<const void*>(static_cast<const float*>(s.pending.data()) + offset),
                  shape, DType::f32, device);
    linear(context, {.x = x,
                     .weight = fusion[tap],
                     .residual = tap == 0 ? ConstTensorView{} : ConstTensorView(sum),
                     .y = sum});
  }
  const TensorView features = grown(feature, rows, d.width);
  normed(context, sum, hidden_norm, features);
  set_positions(context, s.length, rows);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    rotated_heads(context, features, layers[i].k, layers[i].k_norm, d.kv_heads,
                  slot(s.keys[i], s.length, rows));
    linear(context, {.x = features, .weight = layers[i].v, .y = slot(s.values[i], s.length, rows)});
  }
  s.length += rows;
  s.pending_rows = 0;
}

void DFlash::State::run_layer(Context& context, Sequence& s, std::size_t index,
                              const TensorView& x) {
  const DraftLayer& w = layers[index];
  const std::int64_t rows = x.shape[0];
  const TensorView in = grown(input, rows, d.width);
  normed(context, x, w.input_norm, in);
  const TensorView q = grown(queries, rows, d.query_heads * d.head_size);
  rotated_heads(context, in, w.q, w.q_norm, d.query_heads, q);
  rotated_heads(context, in, w.k, w.k_norm, d.kv_heads, slot(s.keys[index], s.length, rows));
  linear(context, {.x = in, .weight = w.v, .y = slot(s.values[index], s.length, rows)});
  const TensorView out = grown(attended, rows, d.query_heads * d.head_size);
  const std::int64_t of_queries[] = {1, rows, d.query_heads, d.head_size};
  const std::int64_t of_keys[] = {1, s.length + rows, d.kv_heads, d.head_size};
  // The whole block attends to the whole block: no mask.
  attention(context, {.q = make_view(q.data, of_queries, DType::f32, device),
                      .k = make_view(s.keys[index].data(), of_keys, DType::f32, device),
                      .v = make_view(s.values[index].data(), of_keys, DType::f32, device),
                      .output = make_view(out.data, of_queries, DType::f32, device)});
  linear(context, {.x = out, .weight = w.output, .residual = x, .y = x});
  normed(context, x, w.mlp_norm, in);
  const TensorView gates = grown(gated, rows, d.mlp_width);
  const TensorView ups = grown(lifted, rows, d.mlp_width);
  linear(context, {.x = in, .weight = w.gate, .y = gates});
  linear(context, {.x = in, .weight = w.up, .y = ups});
  const TensorView both = grown(product, rows, d.mlp_width);
  gate(context, {.gate = gates, .up = ups, .y = both});
  linear(context, {.x = both, .weight = w.down, .residual = x, .y = x});
}

void DFlash::State::run_block(Context& context, Sequence& s, std::int32_t token,
                              const TensorView& out) {
  add_features(context, s);
  const std::int64_t rows = options.block;
  reserve(context, s, s.length + rows);
  std::vector<std::int32_t> tokens(at(rows), d.mask_token);
  tokens[0] = token;
  block_tokens.clear();
  const std::size_t ids = block_tokens.add(std::span<const std::int32_t>(tokens), {rows});
  block_tokens.finish(context);
  set_positions(context, s.length, rows);
  const TensorView x = grown(stream, rows, d.width);
  target.embed(context, block_tokens.view(ids), x);
  for (std::size_t i = 0; i < layers.size(); ++i) run_layer(context, s, i, x);
  const TensorView last = grown(input, rows, d.width);
  normed(context, x, final_norm, last);
  const std::int64_t shape[] = {rows - 1, d.width};
  const ConstTensorView masked =
      make_view(static_cast<const void*>(static_cast<const float*>(last.data) + d.width), shape,
                DType::f32, device);
  target.head(context, masked, out);
}

DFlash::DFlash(Context& context, const std::filesystem::path& folder, Model& target,
               const DFlashOptions& options)
    : state_(std::make_unique<State>(context, folder, target, options)) {}
DFlash::~DFlash() = default;

std::string DFlash::name() const { return "dflash"; }
std::int64_t DFlash::vocabulary() const { return state_->d.vocabulary; }
std::span<const std::int32_t> DFlash::hidden_layers() const { return state_->taps; }
const io::BlockDraftDescription& DFlash::description() const { return state_->d; }

std::int64_t DFlash::observed(std::int64_t id) const {
  const auto found = state_->sequences.find(id);
  return found == state_->sequences.end() ? 0 : found->second.observed();
}

void DFlash::observe(Context& context, const decode::ObservedRows& rows) {
  State::Sequence& s = state_->sequences[rows.id];
  if (rows.position > s.observed()) {
    throw InvalidArgument(fmt::format("dflash: rows from position {} after {} that are known",
                                      rows.position, s.observed()));
  }
  // Scored again after a preemption: later rows are dropped.
  s.length = std::min(s.length, rows.position);
  s.pending_rows = rows.position - s.length;
  // Neighbors are copied together.
  for (std::size_t first = 0; first < rows.rows.size();) {
    std::size_t end = first + 1;
    while (end < rows.rows.size() && rows.rows[end] == rows.rows[end - 1] + 1) ++end;
    state_->append(context, s, rows.hidden, rows.rows[first],
                   static_cast<std::int64_t>(end - first));
    first = end;
  }
  // A prompt is projected in the pass that scores it, or its first draft would include that time.
  constexpr std::size_t kPromptRows = 32;
  if (rows.rows.size() >= kPromptRows) state_->add_features(context, s);
}

void DFlash::copy(Context& context, std::int64_t from, std::int64_t to) {
  const auto found = state_->sequences.find(from);
  if (found == state_->sequences.end()) return;
  State::Sequence& source = found->second;
  state_->add_features(context, source);
  State::Sequence made{.length = source.length, .capacity = source.capacity};
  context.synchronize();
  for (const Tensor& keys : source.keys) made.keys.push_back(keys.to(state_->device));
  for (const Tensor& values : source.values) made.values.push_back(values.to(state_->device));
  state_->sequences[to] = std::move(made);
}

void DFlash::forget(std::int64_t id) { state_->sequences.erase(id); }

void DFlash::block_logits(Context& context, std::int64_t id, std::int32_t token,
                          const TensorView& logits) {
  state_->run_block(context, state_->sequences[id], token, logits);
}

void DFlash::draft(Context& context, std::span<decode::DraftRequest> requests) {
  State& s = *state_;
  const std::int64_t count = s.options.block - 1;
  for (decode::DraftRequest& request : requests) {
    const auto found = s.sequences.find(request.id);
    // All but the last token, which is the first of the block.
    if (found == s.sequences.end() || request.tokens.empty() ||
        found->second.observed() != std::ssize(request.tokens) - 1 ||
        request.limits.max_nodes < 1 || request.limits.max_depth < 1) {
      continue;
    }
    s.run_block(context, found->second, request.tokens.back(),
                s.grown(s.logits, count, s.d.vocabulary));
    const auto positions =
        s.likeliest.run(context, s.grown(s.logits, count, s.d.vocabulary), s.options.candidates);
    request.draft.tree = decode::best_first_tree(positions, request.limits);
  }
}

}  // namespace touchstone::inline v0::model
