#include "cli/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "touchstone/core/checked.h"

namespace touchstone::cli {
namespace {

using plan::Plan;
using plan::PlanRequest;

// "12.55 GiB": two digits, because a plan is compared with a limit.
std::string size_text(std::int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return value == std::floor(value) ? fmt::format("{:.0f} {}", value, kUnits[unit])
                                    : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string tokens_text(std::int64_t tokens) {
  return tokens == cache::kUnlimitedTokens ? "no limit" : fmt::format("{}", tokens);
}

// "bf16", "int4, scale and minimum per 32"
std::string format_text(const QuantFormat& format) {
  std::string text(format_name(format.dtype));
  if (!is_quantized(format.dtype)) return text;
  return text + (format.asymmetric ? ", scale and minimum per " : ", scale per ") +
         (format.group_size == 0 ? "vector" : fmt::format("{}", format.group_size));
}

// "1.7e+15" is not for people: "1.7 PFLOP".
std::string flops_text(double flops) {
  constexpr std::array<const char*, 7> kUnits = {"FLOP",  "KFLOP", "MFLOP", "GFLOP",
                                                 "TFLOP", "PFLOP", "EFLOP"};
  std::size_t unit = 0;
  while (flops >= 1000 && unit + 1 < kUnits.size()) {
    flops /= 1000;
    ++unit;
  }
  return fmt::format("{:.4g} {}", flops, kUnits[unit]);
}

std::string heading(const PlanRequest& request) {
  const plan::ModelSpec& model = request.model;
  return fmt::format("{} on {}{}: {} sequence{} of {} tokens\n", model.name,
                     request.gpus == 1 ? "" : fmt::format("{} x ", request.gpus), request.gpu.name,
                     request.batch, request.batch == 1 ? "" : "s", request.context);
}

// The model's own sizes: all heads, however many GPUs share them.
std::string token_section(const PlanRequest& request) {
  const cache::Layout whole =
      plan::planned_layout(request.model, request.cache, request.page_tokens, 1);
  Table table(
      {"layers", "KV heads", "K, V dims", "window", ">bytes/token/layer", ">in all", ">page"});
  for (const cache::LayerGroup& group : whole.groups) {
    table.add({fmt::format("{}", group.layers), fmt::format("{}", group.kv_heads),
               group.k_is_v ? fmt::format("{}, {} of it", group.k_dim, group.v_dim)
                            : fmt::format("{}, {}", group.k_dim, group.v_dim),
               group.window == 0 ? "-" : fmt::format("{}", group.window),
               fmt::format("{}", cache::token_bytes_per_layer(group)),
               fmt::format("{}", cache::token_bytes(group)), size_text(cache::page_bytes(group))});
  }
  std::string text = fmt::format("\nA token in the cache (K {}, V {}): {} bytes, {}\n",
                                 format_text(request.cache.k), format_text(request.cache.v),
                                 cache::token_bytes(whole), size_text(cache::token_bytes(whole)));
  text += table.text();
  std::int64_t lasting = 0;
  for (const cache::LayerGroup& group : whole.groups) {
    if (group.window == 0) lasting += cache::token_bytes(group);
  }
  if (lasting != cache::token_bytes(whole)) {
    text += fmt::format("once the windows are full, a token adds {} bytes\n", lasting);
  }
  if (request.model.other_layers > 0) {
    text += fmt::format("{} more layers keep {} per sequence, whatever its length\n",
                        request.model.other_layers, size_text(request.model.state_bytes));
  }
  return text;
}

std::string memory_section(const PlanRequest& request, const Plan& plan) {
  Table table({"each GPU", ">bytes", ">", ""});
  const auto row = [&](const char* name, std::int64_t bytes, std::string note,
                       Color color = Color::plain) {
    table.add({name, fmt::format("{}", bytes), size_text(bytes), std::move(note)}, color);
  };
  row("weights", plan.weight_bytes,
      fmt::format("{} parameters ({}) in {}", request.model.parameters,
                  request.model.parameters_basis, plan::weight_format_name(plan.weights)));
  std::int64_t pages = 0;
  for (const std::int64_t count : plan.pages) pages += count;
  row("KV cache", plan.cache_bytes,
      fmt::format("{} pages of {} tokens", pages, request.page_tokens) +
          (plan.state_bytes == 0
               ? ""
               : fmt::format(", {} of recurrent state", size_text(plan.state_bytes))));
  row("overhead", plan.overhead.runtime + plan.overhead.activations + plan.overhead.logits,
      fmt::format("estimate: runtime {}, activations {}, logits {}",
                  size_text(plan.overhead.runtime), size_text(plan.overhead.activations),
                  size_text(plan.overhead.logits)));
  row("total", plan.total_bytes, plan.fits ? "fits" : "does not fit",
      plan.fits ? Color::good : Color::bad);
  const std::int64_t left = request.gpu.memory_bytes - plan.total_bytes;
  row("memory", request.gpu.memory_bytes,
      left < 0 ? fmt::format("{} too little", size_text(-left))
               : fmt::format("{} left", size_text(left)));
  return fmt::format("\n{}", table.text());
}

std::string limits_section(const PlanRequest& request, const Plan& plan) {
  std::string text = fmt::format("\nLongest context for {} sequence{}: {} tokens", request.batch,
                                 request.batch == 1 ? "" : "s", tokens_text(plan.max_context));
  if (request.model.native_context > 0) {
    text += fmt::format(" (context of the model: {})", request.model.native_context);
  }
  text += fmt::format("\nMost sequences of {} tokens: {}\n", plan.context, plan.max_batch);
  if (!plan.fits) {
    text += plan.gpus_needed == 0
                ? "No number of these GPUs up to 1024 holds this.\n"
                : fmt::format("It takes {} of these GPUs (of 1, 2, 4, ...).\n", plan.gpus_needed);
  }
  return text;
}

std::string growth_section(const PlanRequest& request, const Plan& plan) {
  Table table({">tokens", ">one sequence", fmt::format(">batch of {}", request.batch), "fits"});
  for (const plan::GrowthPoint& point : plan.growth) {
    table.add({fmt::format("{}", point.tokens), size_text(point.sequence_bytes),
               size_text(point.batch_bytes), point.fits ? "yes" : "no"},
              point.fits ? Color::plain : Color::bad);
  }
  return fmt::format("\nThe cache on each GPU as sequences grow\n{}", table.text());
}

std::string speed_section(const PlanRequest& request, const Plan& plan) {
  const plan::DecodeStep& step = plan.decode;
  std::string text = fmt::format(
      "\nA decoding step reads {} of weights and {} of cache and does {}:\n"
      "  {:.2f} FLOP per byte{}\n  at most {:.1f} tokens/s at {:g} GB/s{}\n",
      size_text(step.weight_bytes), size_text(step.cache_bytes), flops_text(step.flops),
      step.intensity,
      step.ridge == 0
          ? ""
          : fmt::format("; {} is memory-bound below {:.0f}", request.gpu.name, step.ridge),
      step.tokens_per_second, request.gpu.bytes_per_second / 1e9,
      request.gpus == 1 ? "" : fmt::format(" x {}", request.gpus));
  const plan::Recomputation& saved = plan.recomputation;
  text += fmt::format(
      "\nWithout a cache, per sequence:\n"
      "  token {}: {} instead of {}, {:.0f} times as much\n"
      "  all {} tokens: {} instead of {}, {:.0f} times as much\n",
      plan.context, flops_text(saved.step_recomputed), flops_text(saved.step_cached),
      saved.step_recomputed / saved.step_cached, plan.context, flops_text(saved.all_recomputed),
      flops_text(saved.all_cached), saved.all_recomputed / saved.all_cached);
  return text;
}

std::string alternatives_section(const Plan& plan) {
  Table table({"with", ">cache", ">of planned", ">longest context"});
  for (const plan::Alternative& other : plan.alternatives) {
    table.add({other.name, size_text(other.cache_bytes), fmt::format("{:.3f}", other.ratio),
               tokens_text(other.max_context)});
  }
  return fmt::format("\n{}", table.text());
}

Json model_json(const plan::ModelSpec& model) {
  Json layers = Json::array();
  for (const plan::CachedLayers& cached : model.cached) {
    layers.push_back({{"layers", cached.layers},
                      {"kv_heads", cached.kv_heads},
                      {"k_dim", cached.k_dim},
                      {"v_dim", cached.v_dim},
                      {"window", cached.window},
                      {"k_is_v", cached.k_is_v}});
  }
  return {{"name", model.name},
          {"parameters", model.parameters},
          {"active_parameters", model.active_parameters},
          {"parameters_basis", model.parameters_basis},
          {"hidden", model.hidden},
          {"vocabulary", model.vocabulary},
          {"query_heads", model.query_heads},
          {"native_context", model.native_context},
          {"cached_layers", layers},
          {"other_layers", model.other_layers},
          {"state_bytes_per_sequence", model.state_bytes},
          {"source", model.source},
          {"note", model.note}};
}

Json limit_json(std::int64_t tokens) {
  return tokens == cache::kUnlimitedTokens ? Json(nullptr) : Json(tokens);
}

Json token_json(const PlanRequest& request, const Plan& plan) {
  const cache::Layout whole =
      plan::planned_layout(request.model, request.cache, request.page_tokens, 1);
  Json groups = Json::array();
  for (std::size_t i = 0; i < whole.groups.size(); ++i) {
    groups.push_back({{"layers", whole.groups[i].layers},
                      {"bytes_per_token_per_layer", cache::token_bytes_per_layer(whole.groups[i])},
                      {"bytes_per_token", cache::token_bytes(whole.groups[i])},
                      {"page_bytes_per_gpu", cache::page_bytes(plan.layout.groups[i])},
                      {"pages", plan.pages[i]}});
  }
  return {
      {"k", format_text(request.cache.k)},           {"v", format_text(request.cache.v)},
      {"page_tokens", request.page_tokens},          {"bytes_per_token", cache::token_bytes(whole)},
      {"bytes_per_token_per_gpu", plan.token_bytes}, {"groups", groups}};
}

// ---- tables of many plans -----------------------------------------------------------------------

constexpr std::int64_t kTableTokens[] = {1024, 8192, 32768};

std::int64_t cache_bytes(const PlanRow& row, std::int64_t tokens) {
  const std::int64_t sequence =
      cache::peak_bytes_for_tokens(row.plan.layout, tokens, row.request.chunk);
  return checked_add(checked_mul(sequence, row.request.batch, "plan: cache"), row.plan.state_bytes);
}

// Columns of numbers begin with '>', as in Table.
std::vector<std::string> headings() {
  return {"model",      "GPU",  ">batch",   ">weights",         ">cache 1K", ">cache 8K",
          ">cache 32K", "fits", ">step at", ">longest context", ">ms/step",  ">tokens/s"};
}

std::vector<std::string> cells_of(const PlanRow& row) {
  const plan::PlanRequest& request = row.request;
  const plan::Plan& plan = row.plan;
  std::vector<std::string> cells = {
      request.model.name,
      request.gpus == 1 ? request.gpu.name : fmt::format("{} x {}", request.gpus, request.gpu.name),
      fmt::format("{}", request.batch), size_text(plan.weight_bytes)};
  for (const std::int64_t tokens : kTableTokens)
    cells.push_back(size_text(cache_bytes(row, tokens)));
  cells.emplace_back(plan.fits ? "yes" : "no");
  cells.push_back(fmt::format("{}", plan.context));
  cells.push_back(tokens_text(plan.max_context));
  cells.push_back(plan.fits ? fmt::format("{:.2f}", plan.decode.seconds * 1e3) : "-");
  cells.push_back(plan.fits ? fmt::format("{:.0f}", plan.decode.tokens_per_second) : "-");
  return cells;
}

// What holds for every row.
std::string caption(const std::vector<PlanRow>& rows) {
  if (rows.empty()) return {};
  const plan::PlanRequest& request = rows.front().request;
  return fmt::format(
      "K {}, V {}; sizes of one GPU; ms and tokens/s are bounds of memory bandwidth\n",
      format_text(request.cache.k), format_text(request.cache.v));
}

}  // namespace

std::string plan_text(const PlanRequest& request, const Plan& plan) {
  std::string text = heading(request);
  if (!request.model.note.empty()) text += fmt::format("note: {}\n", request.model.note);
  if (!request.gpu.note.empty()) text += fmt::format("note: {}\n", request.gpu.note);
  return text + token_section(request) + memory_section(request, plan) +
         limits_section(request, plan) + growth_section(request, plan) +
         speed_section(request, plan) + alternatives_section(plan);
}

Json plan_json(const PlanRequest& request, const Plan& plan) {
  Json growth = Json::array();
  for (const plan::GrowthPoint& point : plan.growth) {
    growth.push_back({{"tokens", point.tokens},
                      {"sequence_bytes", point.sequence_bytes},
                      {"batch_bytes", point.batch_bytes},
                      {"fits", point.fits}});
  }
  Json others = Json::array();
  for (const plan::Alternative& other : plan.alternatives) {
    others.push_back({{"with", other.name},
                      {"cache_bytes", other.cache_bytes},
                      {"ratio", other.ratio},
                      {"max_context", limit_json(other.max_context)}});
  }
  const plan::Recomputation& saved = plan.recomputation;
  return {{"model", model_json(request.model)},
          {"gpu",
           {{"name", request.gpu.name},
            {"memory_bytes", request.gpu.memory_bytes},
            {"bytes_per_second", request.gpu.bytes_per_second},
            {"flops", request.gpu.flops},
            {"source", request.gpu.source},
            {"note", request.gpu.note}}},
          {"gpus", request.gpus},
          {"context", plan.context},
          {"batch", request.batch},
          {"chunk", request.chunk},
          {"weights_dtype", plan::weight_format_name(plan.weights)},
          {"cache", token_json(request, plan)},
          {"per_gpu",
           {{"weight_bytes", plan.weight_bytes},
            {"cache_bytes", plan.cache_bytes},
            {"recurrent_state_bytes", plan.state_bytes},
            {"runtime_bytes", plan.overhead.runtime},
            {"activation_bytes", plan.overhead.activations},
            {"logits_bytes", plan.overhead.logits},
            {"total_bytes", plan.total_bytes}}},
          {"fits", plan.fits},
          {"max_context", limit_json(plan.max_context)},
          {"max_batch", plan.max_batch},
          {"gpus_needed", plan.gpus_needed},
          {"growth", growth},
          {"decode",
           {{"flops", plan.decode.flops},
            {"weight_bytes_read", plan.decode.weight_bytes},
            {"cache_bytes_read", plan.decode.cache_bytes},
            {"flops_per_byte", plan.decode.intensity},
            {"ridge_flops_per_byte", plan.decode.ridge},
            {"most_tokens_per_second", plan.decode.tokens_per_second}}},
          {"recomputation",
           {{"step_cached_flops", saved.step_cached},
            {"step_recomputed_flops", saved.step_recomputed},
            {"all_cached_flops", saved.all_cached},
            {"all_recomputed_flops", saved.all_recomputed}}},
          {"alternatives", others}};
}

std::string plan_table_text(const std::vector<PlanRow>& rows) {
  Table table(headings());
  for (const PlanRow& row : rows) {
    table.add(cells_of(row), row.plan.fits ? Color::plain : Color::dim);
  }
  return caption(rows) + table.text();
}

std::string plan_table_markdown(const std::vector<PlanRow>& rows) {
  std::string names = "|";
  std::string rule = "|";
  for (const std::string& heading : headings()) {
    const bool right = heading.starts_with('>');
    names += fmt::format(" {} |", heading.substr(right ? 1 : 0));
    rule += right ? "---:|" : "---|";
  }
  std::string text = caption(rows) + "\n" + names + "\n" + rule + "\n";
  for (const PlanRow& row : rows) {
    text += fmt::format("| {} |\n", fmt::join(cells_of(row), " | "));
  }
  return text;
}

Json plan_table_json(const std::vector<PlanRow>& rows) {
  Json list = Json::array();
  for (const PlanRow& row : rows) {
    const plan::Plan& plan = row.plan;
    Json cache = Json::array();
    for (const std::int64_t tokens : kTableTokens) {
      cache.push_back({{"tokens", tokens}, {"bytes", cache_bytes(row, tokens)}});
    }
    list.push_back(
        {{"model", row.request.model.name},
         {"gpu", row.request.gpu.name},
         {"gpus", row.request.gpus},
         {"batch", row.request.batch},
         {"weights_dtype", plan::weight_format_name(plan.weights)},
         {"weight_bytes", plan.weight_bytes},
         {"cache", cache},
         {"context", plan.context},
         {"fits", plan.fits},
         {"max_context",
          plan.max_context == cache::kUnlimitedTokens ? Json(nullptr) : Json(plan.max_context)},
         {"step_milliseconds", plan.decode.seconds * 1e3},
         {"most_tokens_per_second", plan.decode.tokens_per_second}});
  }
  return {{"plans", list}};
}

}  // namespace touchstone::cli
