#include "plan/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "touchstone/core/checked.h"

namespace touchstone::inline v0::plan {

using namespace cache;  // NOLINT: sizes of pages and tokens

namespace {

// The context a window is tried with on models that have none.
constexpr std::int64_t kTriedWindow = 4096;
// KV heads that grouped models of this decade mostly have.
constexpr std::int64_t kTriedKvHeads = 8;

std::int64_t attended_tokens(std::int64_t tokens, std::int64_t window) {
  return window == 0 ? tokens : std::min(tokens, window);
}

// Operations per token that a token of all these layers attends to: one multiply and one add for
// each number of the key and of the value, for each query head. In MLA the query is first projected
// into the latent space, and attends to the latent itself.
double attention_flops(const ModelSpec& model, const CachedLayers& cached) {
  return 2.0 * static_cast<double>(cached.layers) * static_cast<double>(model.query_heads) *
         static_cast<double>(cached.k_dim + cached.v_dim);
}

// Sum of min(t, w) for t from 1 to n.
double sum_attended(double n, double w) {
  if (w == 0 || n <= w) return n * (n + 1) / 2;
  return w * (w + 1) / 2 + (n - w) * w;
}

// Sum of sum_attended(t, w) for t from 1 to n.
double sum_sum_attended(double n, double w) {
  if (w == 0 || n <= w) return n * (n + 1) * (n + 2) / 6;
  const double beyond = n - w;
  return w * (w + 1) * (w + 2) / 6 + beyond * w * (w + 1) / 2 + w * beyond * (beyond + 1) / 2;
}

Alternative variant(const PlanRequest& request, const Plan& plan, std::string name) {
  const Layout layout =
      planned_layout(request.model, request.cache, request.page_tokens, request.gpus);
  Alternative result;
  result.name = std::move(name);
  result.cache_bytes =
      checked_add(checked_mul(peak_bytes_for_tokens(layout, request.context, request.chunk),
                              request.batch, "plan: cache"),
                  plan.state_bytes);
  result.ratio = static_cast<double>(result.cache_bytes) / static_cast<double>(plan.cache_bytes);
  const std::int64_t budget = page_budget(request);
  result.max_context = budget > 0 ? max_tokens(layout, budget, request.batch, request.chunk) : 0;
  return result;
}

bool any_layers(const ModelSpec& model, const std::function<bool(const CachedLayers&)>& holds) {
  return std::ranges::any_of(model.cached, holds);
}

PlanRequest with_layers(PlanRequest request, const std::function<void(CachedLayers&)>& change) {
  std::ranges::for_each(request.model.cached, change);
  return request;
}

void add_heads(const PlanRequest& request, const Plan& plan, std::vector<Alternative>& list) {
  const ModelSpec& model = request.model;
  // The latent of MLA is no set of heads; what heads would cost depends on sizes it replaced.
  if (any_layers(model, [](const CachedLayers& layers) { return layers.k_is_v; })) return;
  if (any_layers(model,
                 [&](const CachedLayers& layers) { return layers.kv_heads < model.query_heads; })) {
    const PlanRequest mha =
        with_layers(request, [&](CachedLayers& layers) { layers.kv_heads = model.query_heads; });
    list.push_back(variant(mha, plan, fmt::format("MHA: {} KV heads", model.query_heads)));
  } else if (model.query_heads > kTriedKvHeads && model.query_heads % kTriedKvHeads == 0) {
    const PlanRequest gqa =
        with_layers(request, [](CachedLayers& layers) { layers.kv_heads = kTriedKvHeads; });
    list.push_back(variant(gqa, plan, fmt::format("GQA: {} KV heads", kTriedKvHeads)));
  }
}

void add_windows(const PlanRequest& request, const Plan& plan, std::vector<Alternative>& list) {
  const auto windowed = [](const CachedLayers& layers) { return layers.window != 0; };
  if (any_layers(request.model, windowed)) {
    const PlanRequest full = with_layers(request, [](CachedLayers& layers) { layers.window = 0; });
    list.push_back(variant(full, plan, "no windows: every layer sees all"));
  } else if (request.context > kTriedWindow) {
    const PlanRequest narrow =
        with_layers(request, [](CachedLayers& layers) { layers.window = kTriedWindow; });
    list.push_back(variant(narrow, plan, fmt::format("window of {} on every layer", kTriedWindow)));
  }
}

}  // namespace

DecodeStep decode_step(const PlanRequest& request, const cache::Layout& layout) {
  const ModelSpec& model = request.model;
  const auto batch = static_cast<double>(request.batch);
  DecodeStep step;
  double token_flops = 2.0 * static_cast<double>(model.active_parameters);
  double cache_bytes = 0;
  for (std::size_t i = 0; i < model.cached.size(); ++i) {
    const auto attended =
        static_cast<double>(attended_tokens(request.context, model.cached[i].window));
    token_flops += attention_flops(model, model.cached[i]) * attended;
    cache_bytes += static_cast<double>(token_bytes(layout.groups[i])) * attended;
  }
  step.flops = token_flops * batch;
  // Sequences of a mixture of experts choose apart: at worst none shares an expert with another.
  const bool all = model.active_parameters > model.parameters / request.batch;
  step.weight_bytes = planned_weight_bytes(
      request, all ? model.parameters : model.active_parameters * request.batch);
  const double read = cache_bytes * batch * static_cast<double>(request.gpus);
  step.cache_bytes = read < 9e18 ? static_cast<std::int64_t>(read) : kUnlimitedTokens;
  const double bytes = static_cast<double>(step.weight_bytes) + read;
  step.intensity = step.flops / bytes;
  step.ridge = request.gpu.flops / request.gpu.bytes_per_second;
  step.tokens_per_second =
      batch * request.gpu.bytes_per_second * static_cast<double>(request.gpus) / bytes;
  step.seconds = batch / step.tokens_per_second;
  return step;
}

Recomputation recomputation(const PlanRequest& request) {
  const ModelSpec& model = request.model;
  const auto tokens = static_cast<double>(request.context);
  const double dense = 2.0 * static_cast<double>(model.active_parameters);
  Recomputation result;
  result.step_cached = dense;
  result.all_cached = result.step_recomputed = dense * tokens;
  result.all_recomputed = dense * tokens * (tokens + 1) / 2;
  for (const CachedLayers& cached : model.cached) {
    const double flops = attention_flops(model, cached);
    const auto window = static_cast<double>(cached.window);
    result.step_cached +=
        flops * static_cast<double>(attended_tokens(request.context, cached.window));
    // To compute one token anew is to compute all before it, each attending to those before.
    result.step_recomputed += flops * sum_attended(tokens, window);
    result.all_cached += flops * sum_attended(tokens, window);
    result.all_recomputed += flops * sum_sum_attended(tokens, window);
  }
  return result;
}

std::vector<Alternative> alternatives(const PlanRequest& request, const Plan& plan) {
  std::vector<Alternative> list;
  list.push_back(variant(request, plan, "as planned"));
  // bf16 beside f16 would say nothing.
  const bool sixteen_bits =
      value_bytes(request.cache.k, 1) == 2 && value_bytes(request.cache.v, 1) == 2;
  for (const char* name : {"bf16", "int8", "fp8", "k8v4", "int4"}) {
    PlanRequest changed = request;
    changed.cache = parse_cache_format(name);
    if (changed.cache == request.cache || (sixteen_bits && std::string_view(name) == "bf16")) {
      continue;
    }
    list.push_back(variant(changed, plan, fmt::format("cache in {}", name)));
  }
  add_heads(request, plan, list);
  add_windows(request, plan, list);
  return list;
}

}  // namespace touchstone::inline v0::plan
