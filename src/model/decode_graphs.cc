#include "model/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "core/copy.h"
#include "core/cuda_graph.h"
#include "core/index.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::model {

struct DecodeGraphs::Bucket {
  Bucket(cache::KvCache& cache, std::int64_t count, std::int64_t max_length, Device where,
         std::span<const std::int32_t> wanted)
      : rows(count),
        views(cache, {.rows = count, .tokens = max_length}),
        device(where),
        hidden_layers(wanted.begin(), wanted.end()) {}
  ~Bucket() { forget_graph(); }
  Bucket(const Bucket&) = delete;
  Bucket& operator=(const Bucket&) = delete;

  std::int64_t rows;
  cache::CacheViewBuilder views;
  Device device;
  decode::StepArrays arrays{};
  std::vector<std::int32_t> hidden_layers;
  std::vector<Tensor> outputs{};  // of these layers, [rows, width] each
  std::int64_t uses = 0;
  void* graph = nullptr;

  // Copies the requested outputs, while layers run or are recorded on the stream of `context`.
  HiddenHook keep_outputs(Context& context);
  void forget_graph() {
    if (graph != nullptr) cuda::release_graph(device.index, std::exchange(graph, nullptr));
  }
};

HiddenHook DecodeGraphs::Bucket::keep_outputs(Context& context) {
  if (hidden_layers.empty()) return {};
  return [this, &context](std::int64_t layer, const ConstTensorView& output) {
    const auto found = std::ranges::lower_bound(hidden_layers, layer);
    if (found == hidden_layers.end() || *found != layer) return;
    const StreamLocation here{device, context.stream()};
    Tensor& to = outputs[at(found - hidden_layers.begin())];
    queue_copy(here, to.data(), here, output.data, to.bytes());
  };
}

DecodeGraphs::DecodeGraphs(Device device, cache::KvCache& cache, Layers& layers,
                           std::int64_t max_rows, std::int64_t max_length)
    : device_(device),
      cache_(cache),
      layers_(layers),
      max_rows_(max_rows),
      max_length_(max_length),
      stream_(cuda::create_stream(device.index)) {
  recorder_ = std::make_unique<Context>(ContextOptions{.device = device, .stream = stream_});
}

DecodeGraphs::~DecodeGraphs() {
  buckets_.clear();
  recorder_.reset();
  cuda::release_stream(device_.index, stream_);
}

DecodeGraphs::Bucket& DecodeGraphs::bucket_for(std::int64_t rows,
                                               std::span<const std::int32_t> hidden_layers) {
  const auto wide = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
  const std::int64_t count = std::min(wide, max_rows_);
  std::unique_ptr<Bucket>& bucket =
      buckets_[{count, std::vector(hidden_layers.begin(), hidden_layers.end())}];
  if (bucket) return *bucket;
  bucket = std::make_unique<Bucket>(cache_, count, max_length_, device_, hidden_layers);
  const ConstTensorView like = layers_.last(count);
  for (std::size_t i = 0; i < hidden_layers.size(); ++i) {
    bucket->outputs.push_back(Tensor::empty(like.sizes(), like.dtype, device_));
  }
  return *bucket;
}

Chunk DecodeGraphs::fill(Context& context, Bucket& bucket, std::span<const cache::SequenceId> ids,
                         std::span<const DecodeRow> rows) {
  // Padding: token 0 in a row of the view that is an empty sequence; nothing is stored for it.
  std::vector<std::int32_t> tokens(at(bucket.rows));
  std::vector<std::int32_t> cache_rows(at(bucket.rows), -1);
  std::vector<std::int64_t> positions(at(bucket.rows));
  std::vector<std::int64_t> offsets = {0};
  for (std::int64_t i = 0; i < bucket.rows; ++i) {
    offsets.push_back(i + 1);
    if (i >= std::ssize(rows)) continue;
    tokens[at(i)] = rows[at(i)].token;
    positions[at(i)] = rows[at(i)].position;
    cache_rows[at(i)] = static_cast<std::int32_t>(i);
  }
  const std::int64_t n = bucket.rows;
  decode::StepArrays& arrays = bucket.arrays;
  arrays.clear();
  const std::size_t names[] = {arrays.add(tokens, {n}), arrays.add(positions, {n}),
                               arrays.add(cache_rows, {n}), arrays.add(offsets, {n + 1})};
  arrays.finish(context);
  return {.rows = n,
          .tokens = arrays.view(names[0]),
          .positions = arrays.view(names[1]),
          .slots = arrays.view(names[1]),
          .cache_rows = arrays.view(names[2]),
          .query_offsets = arrays.view(names[3]),
          .view = bucket.views.build(context, ids)};
}

void DecodeGraphs::record(Bucket& bucket, const Chunk& chunk) {
  cuda::begin_capture(device_.index, stream_);
  try {
    layers_.run(*recorder_, chunk, bucket.keep_outputs(*recorder_));
  } catch (...) {
    cuda::abandon_capture(device_.index, stream_);
    throw;
  }
  bucket.graph = cuda::end_capture(device_.index, stream_);
}

void DecodeGraphs::grow_workspace(Context& context) {
  context.synchronize();  // recorded steps on its stream use the old memory
  for (auto& [key, bucket] : buckets_) bucket->forget_graph();
  recorder_->reserve_workspace(context.workspace_bytes());
}

DecodeGraphs::Result DecodeGraphs::run(Context& context, std::span<const cache::SequenceId> ids,
                                       std::span<const DecodeRow> rows,
                                       std::span<const std::int32_t> hidden_layers) {
  Bucket& bucket = bucket_for(std::ssize(rows), hidden_layers);
  const Chunk chunk = fill(context, bucket, ids, rows);
  Result result;
  // The first step of a bucket runs as it is: it loads the kernels, which a capture must not.
  if (bucket.uses++ == 0) {
    result.hidden = layers_.run(context, chunk, bucket.keep_outputs(context));
  } else {
    if (bucket.graph == nullptr) {
      try {
        record(bucket, chunk);
      } catch (const OutOfMemory&) {
        if (recorder_->workspace_bytes() >= context.workspace_bytes()) throw;
        grow_workspace(context);
        record(bucket, chunk);
      }
    }
    cuda::launch_graph(device_.index, bucket.graph, context.stream());
    ++replays_;
    result.hidden = layers_.last(bucket.rows);
  }
  for (const Tensor& output : bucket.outputs) result.outputs.push_back(output.view());
  result.hidden.shape[0] = std::ssize(rows);
  for (ConstTensorView& output : result.outputs) output.shape[0] = std::ssize(rows);
  return result;
}

}  // namespace touchstone::inline v0::model
