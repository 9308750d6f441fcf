// Plans the memory of a GPU, and how fast it can decode: weights, KV cache and the rest, for
// one model, one kind of GPU, one cache format. Every byte of the cache comes from layout.h, so
// that a plan matches the page pool; weights come from the parameter count; the memory
// of runtimes and activations is an estimate, kept apart as `Overhead`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/cache/layout.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0::plan {

// Layers of a model that store keys and values alike. The cache format is chosen by the plan.
struct CachedLayers {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;
  std::int64_t window = 0;  // 0 = a token attends to everything before it
  bool k_is_v = false;      // MLA: the value is the first v_dim numbers of the key

  friend bool operator==(const CachedLayers&, const CachedLayers&) = default;
};

struct ModelSpec {
  std::string name;
  std::int64_t parameters = 0;
  std::int64_t active_parameters = 0;  // those one token passes through
  std::string parameters_basis;        // "counted", "stated" or "estimated"
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  std::int64_t query_heads = 0;
  std::int64_t native_context = 0;  // 0 = not known
  std::vector<CachedLayers> cached{};
  std::int64_t other_layers = 0;  // layers without keys and values
  std::int64_t state_bytes = 0;   // what those keep per sequence, of any length
  // The published weights where they are quantized, and the parameters that stay in 16 bits
  // (embeddings, output head, norms; of mxfp4 everything but experts).
  std::optional<QuantFormat> weights{};
  std::int64_t unquantized_parameters = 0;
  std::string source;
  std::string note;
};

struct GpuSpec {
  std::string name;
  std::int64_t memory_bytes = 0;
  double bytes_per_second = 0;
  double flops = 0;  // dense 16-bit; 0 = not published
  std::string source;
  std::string note;
};

// Formats of weights by name: "f32", "bf16", "f16", "int8" (one f16 scale per 128 weights), "int4"
// (a scale and a minimum per 128), "fp8" (scales of whole tensors or blocks, not counted), "mxfp4"
// (a one-byte scale per 32), "nvfp4" (a one-byte scale per 16). InvalidArgument lists the known
// names.
TOUCHSTONE_API QuantFormat parse_weight_format(std::string_view name);
// The name of a format: one of those above, or "int4 per 64" and the like for another group size.
TOUCHSTONE_API std::string weight_format_name(const QuantFormat& format);
// Scales included.
TOUCHSTONE_API std::int64_t weight_bytes(const QuantFormat& format, std::int64_t parameters);

struct CacheFormat {
  QuantFormat k{};
  QuantFormat v{};

  friend bool operator==(const CacheFormat&, const CacheFormat&) = default;
};
// "f32", "bf16", "f16", "int8" (symmetric, one scale per head and token), "int4" (a scale and a
// minimum per 32 values), "fp8" (one scale per head and token), or K and V apart: "k8v4", "k16v8".
// InvalidArgument lists the known names.
TOUCHSTONE_API CacheFormat parse_cache_format(std::string_view name);

struct PlanRequest {
  ModelSpec model;
  GpuSpec gpu;
  CacheFormat cache{};
  // Of all parameters. Absent: as the model is published, else bf16.
  std::optional<QuantFormat> weights{};
  std::int64_t context = 0;  // 0 = the model's own
  std::int64_t batch = 1;    // sequences at once, each of `context` tokens
  // Tensor parallelism: heads and weights are split among these GPUs. Pipeline and expert
  // parallelism are not modeled.
  std::int64_t gpus = 1;
  std::int64_t prefill_tokens = 2048;  // of one step of a prefill: what activations are sized for
  std::int64_t page_tokens = 16;
  std::int64_t chunk = 1;  // tokens appended per step; windows hold that many more
  // Memory of the driver, its context and library workspaces on each GPU.
  std::int64_t runtime_bytes = std::int64_t{1} << 30;
};

// Per GPU. An estimate: activations are those of prefill_tokens tokens at sixteen values of the
// residual width each, in 16 bits, of which the residual stream and its normed copy lie on every
// GPU and the rest is divided; logits are f32, one row per sequence.
struct Overhead {
  std::int64_t runtime = 0;
  std::int64_t activations = 0;
  std::int64_t logits = 0;
};

struct GrowthPoint {
  std::int64_t tokens = 0;
  std::int64_t sequence_bytes = 0;  // one sequence, per GPU, recurrent state included
  std::int64_t batch_bytes = 0;     // all sequences of the batch
  bool fits = false;
};

// One step of the whole batch at the planned context.
struct DecodeStep {
  double flops = 0;
  std::int64_t weight_bytes = 0;  // read, over all GPUs
  std::int64_t cache_bytes = 0;   // read, over all GPUs
  double intensity = 0;           // flops per byte read
  double ridge = 0;  // the intensity above which the GPU is compute bound; 0 = not known
  double tokens_per_second = 0;  // bytes read / bandwidth: no run is faster
  double seconds = 0;            // of the step, at that rate
};

// Floating point operations of one sequence with the cache and without it.
struct Recomputation {
  double step_cached = 0;      // the token after `context` others
  double step_recomputed = 0;  // the same by running all of them again
  double all_cached = 0;       // every token from the first to the last
  double all_recomputed = 0;
};

// The same plan with one thing changed.
struct Alternative {
  std::string name;
  std::int64_t cache_bytes = 0;  // per GPU, whole batch
  double ratio = 0;              // to the cache as planned
  std::int64_t max_context = 0;
};

struct Plan {
  QuantFormat weights{};         // as planned
  cache::Layout layout{};        // what one GPU stores
  std::int64_t context = 0;      // as planned
  std::int64_t token_bytes = 0;  // of all layers, over one GPU, while every window still fills
  std::int64_t weight_bytes = 0;
  Overhead overhead{};
  std::int64_t cache_bytes = 0;  // pages and recurrent state of the batch
  std::int64_t state_bytes = 0;  // the part of it that is recurrent state
  std::int64_t total_bytes = 0;
  bool fits = false;
  // The longest context for `batch` sequences: cache::kUnlimitedTokens when windows bound every
  // layer, 0 when not even the first page fits. The most sequences of `context` tokens.
  std::int64_t max_context = 0;
  std::int64_t max_batch = 0;
  std::vector<std::int64_t> pages{};  // per group of the layout, for batch x context
  std::int64_t gpus_needed = 0;  // the fewest that hold batch x context; 0 = no number up to 1024
  std::vector<GrowthPoint> growth{};
  DecodeStep decode{};
  Recomputation recomputation{};
  std::vector<Alternative> alternatives{};
};

// The layout of the cache on one of `gpus` GPUs: KV heads are split evenly, rounded up; the latent
// of MLA has one head and lies on every GPU.
TOUCHSTONE_API cache::Layout planned_layout(const ModelSpec& model, const CacheFormat& format,
                                            std::int64_t page_tokens, std::int64_t gpus);

// Bytes left for pages on one GPU once weights, overhead and recurrent state of `batch` sequences
// are placed; negative when they do not fit.
TOUCHSTONE_API std::int64_t page_budget(const PlanRequest& request);

// InvalidArgument when a number is out of range or a size does not fit in 64 bits.
TOUCHSTONE_API Plan make_plan(const PlanRequest& request);

}  // namespace touchstone::inline v0::plan
