#include "touchstone/plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "plan/figures.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::plan {

using namespace cache;  // NOLINT: sizes of pages and tokens

namespace {

constexpr std::int64_t kMaxGpus = 1024;
// Values alive per token of a prefill, in widths of the residual stream: the stream itself, its
// normed copy, Q K V, the attention output, and about ten for the two halves of a feed-forward.
constexpr std::int64_t kActivationWidths = 16;
// Of these the stream and its normed copy are whole on every GPU.
constexpr std::int64_t kReplicatedWidths = 2;

struct NamedWeights {
  std::string_view name;
  QuantFormat format;
};
constexpr QuantFormat weights_of(DType dtype, std::int64_t group_size = 0, bool asymmetric = false,
                                 DType scale_dtype = DType::f16) {
  return {.dtype = dtype,
          .group_size = group_size,
          .asymmetric = asymmetric,
          .scale_dtype = scale_dtype};
}
// Codes of mxfp4 and nvfp4 are floats of four bits; i4 stands for their size.
constexpr std::array<NamedWeights, 8> kWeights = {
    {{"f32", weights_of(DType::f32)},
     {"bf16", weights_of(DType::bf16)},
     {"f16", weights_of(DType::f16)},
     {"int8", weights_of(DType::i8, 128)},
     {"int4", weights_of(DType::i4, 128, true)},
     {"fp8", weights_of(DType::f8_e4m3)},
     {"mxfp4", weights_of(DType::i4, 32, false, DType::u8)},
     {"nvfp4", weights_of(DType::i4, 16, false, DType::f8_e4m3)}}};

QuantFormat format_of(DType encoding) {
  QuantFormat format;
  format.dtype = encoding;
  if (encoding == DType::i4) {
    format.group_size = 32;
    format.asymmetric = true;
  }
  return format;
}

// "16" in "k16v8".
bool format_of_bits(std::string_view bits, QuantFormat& format) {
  constexpr std::array<std::pair<std::string_view, DType>, 4> kBits = {
      {{"32", DType::f32}, {"16", DType::bf16}, {"8", DType::i8}, {"4", DType::i4}}};
  for (const auto& [name, encoding] : kBits) {
    if (name != bits) continue;
    format = format_of(encoding);
    return true;
  }
  return false;
}

void require(std::int64_t value, std::int64_t least, std::int64_t most, const char* what) {
  if (value < least || value > most) {
    throw InvalidArgument(
        fmt::format("plan: {}: expected {} to {}, got {}", what, least, most, value));
  }
}

void check(const PlanRequest& request) {
  constexpr std::int64_t kMax = std::int64_t{1} << 48;
  const ModelSpec& model = request.model;
  if (model.cached.empty()) throw InvalidArgument("plan: model: expected layers with a cache");
  require(model.parameters, 1, std::int64_t{1} << 56, "parameters");
  require(model.active_parameters, 1, model.parameters, "active parameters");
  require(model.hidden, 1, 1 << 24, "hidden");
  require(model.vocabulary, 1, 1 << 28, "vocabulary");
  require(model.query_heads, 1, 1 << 20, "query heads");
  require(model.state_bytes, 0, kMax, "state bytes");
  require(request.context, 0, kMax, "context");
  if (request.context == 0 && model.native_context == 0) {
    throw InvalidArgument("plan: context: the model does not state its context; give one");
  }
  require(request.batch, 1, std::int64_t{1} << 32, "batch");
  require(request.gpus, 1, kMaxGpus, "gpus");
  require(request.chunk, 1, kMax, "chunk");
  require(request.prefill_tokens, 1, 1 << 24, "prefill tokens");
  for (const CachedLayers& cached : model.cached) {
    if (!cached.k_is_v && (cached.kv_heads < 1 || model.query_heads % cached.kv_heads != 0)) {
      throw InvalidArgument(
          fmt::format("plan: KV heads: expected a divisor of {} query heads, got {}",
                      model.query_heads, cached.kv_heads));
    }
  }
  require(request.runtime_bytes, 0, kMax, "reserve");
  require(request.gpu.memory_bytes, 1, std::int64_t{1} << 56, "GPU memory");
  if (!(request.gpu.bytes_per_second > 0)) {
    throw InvalidArgument("plan: bandwidth: expected a positive number");
  }
}

// A scale that is shared by more values than the vector has, or by a part that does not divide it,
// belongs to the whole vector.
QuantFormat fitted(QuantFormat format, std::int64_t dim) {
  if (format.group_size != 0 && dim % format.group_size != 0) format.group_size = 0;
  return format;
}

std::int64_t logits_row_bytes(const ModelSpec& model) { return model.vocabulary * 4; }

// Bytes on one GPU that do not depend on the number of sequences.
std::int64_t fixed_bytes(const PlanRequest& request) {
  const std::int64_t weights = planned_weight_bytes(request, request.model.parameters);
  return checked_add(ceil_div(weights, request.gpus),
                     checked_add(request.runtime_bytes, activation_bytes(request)));
}

std::int64_t state_bytes_per_gpu(const PlanRequest& request) {
  return ceil_div(request.model.state_bytes, request.gpus);
}

std::vector<GrowthPoint> growth_of(const PlanRequest& request, const Plan& plan) {
  // From a first page up to the context, by doubling; nine lines fit on a screen.
  const auto context = static_cast<std::uint64_t>(plan.context);
  std::int64_t tokens =
      static_cast<std::int64_t>(std::max<std::uint64_t>(std::bit_floor(context) >> 8, 1));
  std::vector<GrowthPoint> points;
  while (true) {
    tokens = std::min(tokens, plan.context);
    GrowthPoint point;
    point.tokens = tokens;
    point.sequence_bytes = checked_add(peak_bytes_for_tokens(plan.layout, tokens, request.chunk),
                                       state_bytes_per_gpu(request));
    point.batch_bytes = checked_mul(point.sequence_bytes, request.batch, "plan: cache");
    point.fits =
        plan.total_bytes - plan.cache_bytes <= request.gpu.memory_bytes - point.batch_bytes;
    points.push_back(point);
    if (tokens == plan.context) return points;
    tokens *= 2;
  }
}

bool fits_on(PlanRequest request, std::int64_t gpus) {
  request.gpus = gpus;
  const Layout layout =
      planned_layout(request.model, request.cache, request.page_tokens, request.gpus);
  const std::int64_t sequence = peak_bytes_for_tokens(layout, request.context, request.chunk);
  return checked_mul(sequence, request.batch, "plan: cache") <= page_budget(request);
}

}  // namespace

QuantFormat parse_weight_format(std::string_view name) {
  std::string known;
  for (const NamedWeights& format : kWeights) {
    if (format.name == name) return format.format;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format.name);
  }
  throw InvalidArgument(fmt::format("weights dtype: expected {}, got '{}'", known, name));
}

std::string weight_format_name(const QuantFormat& format) {
  for (const NamedWeights& known : kWeights) {
    if (known.format == format) return std::string(known.name);
  }
  const std::string_view name = format.dtype == DType::f8_e4m3 ? "fp8" : format_name(format.dtype);
  return format.group_size == 0 ? std::string(name)
                                : fmt::format("{} per {}", name, format.group_size);
}

std::int64_t weight_bytes(const QuantFormat& format, std::int64_t parameters) {
  const std::int64_t bytes =
      ceil_div(checked_mul(parameters, bits_of(format.dtype), "plan: weights"), 8);
  // Without groups scales belong to tensors: nothing beside them.
  if (!is_quantized(format) || format.group_size == 0) return bytes;
  const std::int64_t scale = size_of(format.scale_dtype) * (format.asymmetric ? 2 : 1);
  return checked_add(bytes, checked_mul(ceil_div(parameters, format.group_size), scale),
                     "plan: weights");
}

QuantFormat planned_weights(const PlanRequest& request) {
  if (request.weights) return *request.weights;
  return request.model.weights ? *request.model.weights : QuantFormat{};
}

std::int64_t planned_weight_bytes(const PlanRequest& request, std::int64_t parameters) {
  const QuantFormat format = planned_weights(request);
  if (request.weights || !request.model.weights) return weight_bytes(format, parameters);
  // As published: some parameters stay in 16 bits.
  const std::int64_t wide = std::min(request.model.unquantized_parameters, parameters);
  return checked_add(weight_bytes({}, wide), weight_bytes(format, parameters - wide));
}

std::int64_t activation_bytes(const PlanRequest& request) {
  const std::int64_t divided = ceil_div(kActivationWidths - kReplicatedWidths, request.gpus);
  return checked_mul(checked_mul(request.prefill_tokens, 2 * request.model.hidden),
                     kReplicatedWidths + divided, "plan: activations");
}

CacheFormat parse_cache_format(std::string_view name) {
  const std::size_t v = name.find('v');
  CacheFormat format;
  if (name.starts_with('k') && v != std::string_view::npos &&
      format_of_bits(name.substr(1, v - 1), format.k) &&
      format_of_bits(name.substr(v + 1), format.v)) {
    return format;
  }
  constexpr std::array<std::pair<std::string_view, DType>, 7> kNames = {
      {{"f32", DType::f32},
       {"bf16", DType::bf16},
       {"f16", DType::f16},
       {"int8", DType::i8},
       {"int4", DType::i4},
       {"fp8", DType::f8_e4m3},
       {"fp8_e4m3", DType::f8_e4m3}}};
  for (const auto& [known, encoding] : kNames) {
    if (known == name) return {format_of(encoding), format_of(encoding)};
  }
  throw InvalidArgument(fmt::format(
      "kv dtype: expected f32, bf16, f16, int8, int4, fp8, or K and V apart as in k8v4 (of 32, 16, "
      "8, 4), got '{}'",
      name));
}

Layout planned_layout(const ModelSpec& model, const CacheFormat& format, std::int64_t page_tokens,
                      std::int64_t gpus) {
  Layout layout;
  for (const CachedLayers& cached : model.cached) {
    LayerGroup group;
    group.layers = cached.layers;
    group.kv_heads = ceil_div(cached.kv_heads, gpus);
    group.k_dim = cached.k_dim;
    group.v_dim = cached.v_dim;
    group.k = fitted(format.k, cached.k_dim);
    group.v = fitted(format.v, cached.v_dim);
    group.page_tokens = page_tokens;
    group.window = cached.window;
    group.k_is_v = cached.k_is_v;
    layout.groups.push_back(group);
  }
  validate(layout);
  return layout;
}

std::int64_t page_budget(const PlanRequest& request) {
  const std::int64_t per_sequence =
      checked_add(state_bytes_per_gpu(request), logits_row_bytes(request.model));
  return request.gpu.memory_bytes -
         checked_add(fixed_bytes(request), checked_mul(per_sequence, request.batch, "plan: batch"));
}

Plan make_plan(const PlanRequest& given) {
  check(given);
  PlanRequest request = given;
  if (request.context == 0) request.context = request.model.native_context;
  Plan plan;
  plan.weights = planned_weights(request);
  plan.layout = planned_layout(request.model, request.cache, request.page_tokens, request.gpus);
  plan.context = request.context;
  plan.token_bytes = token_bytes(plan.layout);
  plan.weight_bytes =
      ceil_div(planned_weight_bytes(request, request.model.parameters), request.gpus);
  plan.overhead.runtime = request.runtime_bytes;
  plan.overhead.activations = activation_bytes(request);
  plan.overhead.logits = checked_mul(logits_row_bytes(request.model), request.batch);

  const std::int64_t state = state_bytes_per_gpu(request);
  const std::int64_t pages = peak_bytes_for_tokens(plan.layout, plan.context, request.chunk);
  const std::int64_t sequence = checked_add(pages, state);
  plan.state_bytes = checked_mul(state, request.batch, "plan: recurrent state");
  plan.cache_bytes = checked_mul(sequence, request.batch, "plan: cache");
  plan.total_bytes = checked_add(
      checked_add(fixed_bytes(request), plan.overhead.logits, "plan: total"), plan.cache_bytes);
  plan.fits = plan.total_bytes <= request.gpu.memory_bytes;
  plan.pages = pool_pages_for(plan.layout, plan.context, request.batch, request.chunk);

  const std::int64_t budget = page_budget(request);
  plan.max_context = budget > 0 ? max_tokens(plan.layout, budget, request.batch, request.chunk) : 0;
  const std::int64_t free = request.gpu.memory_bytes - fixed_bytes(request);
  plan.max_batch =
      std::max<std::int64_t>(free, 0) / checked_add(sequence, logits_row_bytes(request.model));
  for (std::int64_t gpus = 1; gpus <= kMaxGpus && plan.gpus_needed == 0; gpus *= 2) {
    if (fits_on(request, gpus)) plan.gpus_needed = gpus;
  }
  plan.growth = growth_of(request, plan);
  plan.decode = decode_step(request, plan.layout);
  plan.recomputation = recomputation(request);
  plan.alternatives = alternatives(request, plan);
  return plan;
}

}  // namespace touchstone::inline v0::plan
