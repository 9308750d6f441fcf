// Decode steps on CUDA as graphs: one row per sequence, recorded once for each number of rows out of a
// few (1, 2, 4, ...; what is missing is padding) and replayed with one launch.
//
// A recorded step reads its tokens, positions and slots from arrays at fixed addresses and the cache
// through a view of fixed size; its scratch memory is that of a context of its own.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "decode/step_arrays.h"
#include "model/layers.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"

namespace touchstone::inline v0::model {

struct DecodeRow {
  std::int32_t token = 0;
  std::int64_t position = 0;
};

class DecodeGraphs {
 public:
  // CUDA only. Everything outlives it.
  DecodeGraphs(Device device, cache::KvCache& cache, Layers& layers, std::int64_t max_rows,
               std::int64_t max_length);
  ~DecodeGraphs();
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;

  struct Result {
    ConstTensorView hidden{};                // [rows, width], after the final norm
    std::vector<ConstTensorView> outputs{};  // [rows, width] of each requested layer
  };

  // Runs row i as the next token of ids[i], for which a slot is reserved. `hidden_layers` as in
  // ScoreArgs: steps with other layers are recorded apart. The result is valid until the next
  // call.
  Result run(Context& context, std::span<const cache::SequenceId> ids,
             std::span<const DecodeRow> rows, std::span<const std::int32_t> hidden_layers);
  std::int64_t replays() const { return replays_; }

 private:
  struct Bucket;
  // Rows and hidden layers of a recorded step.
  using Key = std::pair<std::int64_t, std::vector<std::int32_t>>;
  Bucket& bucket_for(std::int64_t rows, std::span<const std::int32_t> hidden_layers);
  Chunk fill(Context& context, Bucket& bucket, std::span<const cache::SequenceId> ids,
             std::span<const DecodeRow> rows);
  void record(Bucket& bucket, const Chunk& chunk);
  // As much scratch memory as the caller has reserved in the context: long sequences may need it. What
  // was recorded is forgotten.
  void grow_workspace(Context& context);

  Device device_;
  cache::KvCache& cache_;
  Layers& layers_;
  std::int64_t max_rows_;
  std::int64_t max_length_;
  void* stream_ = nullptr;  // that kernels are recorded on
  std::unique_ptr<Context> recorder_;
  std::map<Key, std::unique_ptr<Bucket>> buckets_;
  std::int64_t replays_ = 0;
};

}  // namespace touchstone::inline v0::model
