#include "cli/plan_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/plan_report.h"
#include "touchstone/cache/layout.h"
#include "touchstone/core/checked.h"

namespace touchstone::cli {
namespace {

constexpr std::int64_t kTokens[] = {1024, 8192, 32768};

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
  for (const std::int64_t tokens : kTokens) cells.push_back(size_text(cache_bytes(row, tokens)));
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

std::string plan_table_text(const std::vector<PlanRow>& rows) {
  Table table(headings());
  for (const PlanRow& row : rows) {
    table.add(cells_of(row), row.plan.fits ? Tone::plain : Tone::dim);
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
    for (const std::int64_t tokens : kTokens) {
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
