// A decode step of a small model, captured once and replayed while sequences grow: what it leaves
// is what the same operators leave when they are called step by step.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/check.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/touchstone.h"

namespace touchstone::test {
namespace {

using cache::CacheView;
using cache::CacheViewBuilder;
using cache::KvCache;
using cache::SequenceId;
using cuda::check;

constexpr std::int64_t kLayers = 3;
constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kKvHeads = 2;
constexpr std::int64_t kHeadDim = 64;
constexpr std::int64_t kSteps = 500;
// The first tokens of the sequences: none of them grows over a page border when another does.
constexpr std::int64_t kPrompts[] = {3, 29, 500};
constexpr std::int64_t kRows = 3;
constexpr std::int64_t kLongest = 500 + kSteps;

Tensor random_tensor(std::initializer_list<std::int64_t> shape, double scale, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(shape, DType::bf16);
  const Random random(seed);
  std::int64_t i = 0;
  for (Bf16& x : tensor.values<Bf16>()) {
    x = convert<Bf16>(static_cast<float>(scale * random.normal(i++)));
  }
  return tensor.to(Device::cuda());
}

// Weights that both models share.
struct Weights {
  struct Layer {
    Tensor norm, q, k, v, output;
  };
  std::vector<Layer> layers;
  Tensor frequencies;

  Weights() {
    constexpr double kScale = 0.06;
    for (std::uint64_t i = 0; i < kLayers; ++i) {
      layers.push_back({random_tensor({kHidden}, 1, 10 * i),
                        random_tensor({kHeads * kHeadDim, kHidden}, kScale, 10 * i + 1),
                        random_tensor({kKvHeads * kHeadDim, kHidden}, kScale, 10 * i + 2),
                        random_tensor({kKvHeads * kHeadDim, kHidden}, kScale, 10 * i + 3),
                        random_tensor({kHidden, kHeads * kHeadDim}, kScale, 10 * i + 4)});
    }
    const RopeFrequencies made = rope_frequencies(kHeadDim, 10000);
    frequencies = Tensor::empty({kHeadDim / 2}, DType::f64);
    std::memcpy(frequencies.data(), made.values.data(), sizeof(double) * made.values.size());
    frequencies = frequencies.to(Device::cuda());
  }
};

// A cache of its own and the buffers of a step of some tokens.
class Model {
 public:
  Model(Context& context, const Weights& weights, bool fixed)
      : context_(context), weights_(weights), cache_(context, options()) {
    builder_ = fixed ? std::make_unique<CacheViewBuilder>(
                           cache_, cache::ViewShape{.rows = kRows, .tokens = kLongest})
                     : std::make_unique<CacheViewBuilder>(cache_);
    for (std::int64_t row = 0; row < kRows; ++row) ids_.push_back(cache_.create());
  }

  struct Buffers {
    Tensor x, normed, q, k, v, attended, positions, offsets;

    explicit Buffers(std::int64_t tokens)
        : x(empty({tokens, kHidden})),
          normed(empty({tokens, kHidden})),
          q(empty({tokens, kHeads * kHeadDim})),
          k(empty({tokens, kKvHeads * kHeadDim})),
          v(empty({tokens, kKvHeads * kHeadDim})),
          attended(empty({tokens, kHeads * kHeadDim})),
          positions(Tensor::empty({tokens}, DType::i64, Device::cuda())),
          offsets(Tensor::empty({kRows + 1}, DType::i64, Device::cuda())) {}
    static Tensor empty(std::initializer_list<std::int64_t> shape) {
      return Tensor::empty(shape, DType::bf16, Device::cuda());
    }
  };

  // The prompts, in one call with a count for each row.
  void prefill() {
    std::vector<std::int64_t> positions, offsets{0};
    std::vector<std::int32_t> rows;
    std::vector<cache::TokenCount> counts;
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < kPrompts[row]; ++i) positions.push_back(i);
      rows.resize(positions.size(), static_cast<std::int32_t>(row));
      offsets.push_back(std::ssize(positions));
      counts.push_back({ids_[static_cast<std::size_t>(row)], kPrompts[row]});
    }
    Buffers buffers(std::ssize(positions));
    buffers.x = random_tensor({std::ssize(positions), kHidden}, 1, 99);
    upload(buffers.positions, positions);
    upload(buffers.offsets, offsets);
    Tensor of_row = Tensor::empty({std::ssize(rows)}, DType::i32);
    std::memcpy(of_row.data(), rows.data(), rows.size() * 4);
    of_row = of_row.to(Device::cuda());
    cache_.reserve(counts);
    layers(builder_->build(context_, ids_), buffers, of_row);
    context_.synchronize();
    cache_.commit(counts);
  }

  // Everything of a step that the host does.
  const CacheView& begin_step(Buffers& buffers) {
    std::vector<std::int64_t> positions;
    for (const SequenceId id : ids_) positions.push_back(cache_.length(id));
    upload(buffers.positions, positions);
    cache_.reserve(ids_, 1);
    return builder_->build(context_, ids_);
  }
  void end_step() { cache_.commit(ids_, 1); }

  // Everything that the device does: the hidden states of the tokens become those of the next.
  // Without rows of the tokens each row has one.
  void layers(const CacheView& view, Buffers& b, ConstTensorView rows = {}) {
    const ConstTensorView positions = rows.defined() ? ConstTensorView(b.positions) : rows;
    const auto heads = [](Tensor& tensor, std::int64_t count) {
      TensorView result = tensor;
      result.rank = 3;
      result.shape[1] = count;
      result.shape[2] = kHeadDim;
      result.stride[1] = kHeadDim;
      result.stride[2] = 1;
      return result;
    };
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const Weights::Layer& w = weights_.layers[static_cast<std::size_t>(layer)];
      rms_norm(context_, {.x = b.x, .weight = w.norm, .y = b.normed});
      linear(context_, {.x = b.normed, .weight = w.q, .y = b.q});
      linear(context_, {.x = b.normed, .weight = w.k, .y = b.k});
      linear(context_, {.x = b.normed, .weight = w.v, .y = b.v});
      for (const TensorView& x : {heads(b.q, kHeads), heads(b.k, kKvHeads)}) {
        rope(context_,
             {.x = x, .positions = b.positions, .frequencies = weights_.frequencies, .y = x});
      }
      kv_append(context_, {.cache = view,
                           .layer = layer,
                           .k = heads(b.k, kKvHeads),
                           .v = heads(b.v, kKvHeads),
                           .rows = rows,
                           .positions = positions});
      cached_attention(context_, {.q = heads(b.q, kHeads),
                                  .query_offsets = b.offsets,
                                  .cache = view,
                                  .layer = layer,
                                  .output = heads(b.attended, kHeads),
                                  .include_reserved = true});
      linear(context_, {.x = b.attended, .weight = w.output, .y = b.x});
    }
  }

  void upload(Tensor& to, const std::vector<std::int64_t>& values) {
    context_.synchronize();
    check(cudaMemcpy(to.data(), values.data(), values.size() * 8, cudaMemcpyHostToDevice), "copy");
  }

 private:
  static cache::KvCacheOptions options() {
    const cache::Layout layout{{{.layers = kLayers,
                                 .kv_heads = kKvHeads,
                                 .k_dim = kHeadDim,
                                 .v_dim = kHeadDim,
                                 .page_tokens = 16}}};
    return {.layout = layout, .pool_pages = cache::pool_pages_for(layout, kLongest, kRows)};
  }

  Context& context_;
  const Weights& weights_;
  KvCache cache_;
  std::unique_ptr<CacheViewBuilder> builder_;
  std::vector<SequenceId> ids_;
};

TEST(CapturedStep, EqualsTheEagerOneOver500Steps) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create");
  Context context({.device = Device::cuda(), .stream = stream});
  context.reserve_workspace(std::int64_t{64} << 20);
  const Weights weights;
  Model eager(context, weights, false);
  Model replayed(context, weights, true);
  Model::Buffers own(kRows), captured(kRows);
  for (Model::Buffers* b : {&own, &captured}) {
    b->x = random_tensor({kRows, kHidden}, 1, 7);
    eager.upload(b->offsets, {0, 1, 2, 3});
  }
  eager.prefill();
  replayed.prefill();

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    eager.layers(eager.begin_step(own), own);
    eager.end_step();

    const CacheView& view = replayed.begin_step(captured);
    if (step == 0) {
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
      replayed.layers(view, captured);
      check(cudaStreamEndCapture(stream, &graph), "end capture");
      check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    }
    check(cudaGraphLaunch(executable, stream), "launch");
    replayed.end_step();
    context.synchronize();
    const Tensor expected = own.x.to(Device::cpu());
    const Tensor got = captured.x.to(Device::cpu());
    ASSERT_EQ(std::memcmp(expected.data(), got.data(), kRows * kHidden * 2), 0) << "step " << step;
  }
  // Not all zeros, infinities or NaN: the states of the three rows differ.
  const Tensor last = own.x.to(Device::cpu());
  const auto* const values = static_cast<const std::uint16_t*>(last.data());
  EXPECT_NE(std::memcmp(values, values + kHidden, kHidden * 2), 0);
  for (std::int64_t i = 0; i < kRows * kHidden; ++i) EXPECT_NE(values[i] & 0x7f80, 0x7f80);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  check(cudaStreamDestroy(stream), "destroy");
}

}  // namespace
}  // namespace touchstone::test
