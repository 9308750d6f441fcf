// Linear from ternary weights with int8 activations above its kernels: rounding of x, tasks, the
// epilogue.
#include "ops/linear/linear_ternary.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/linear/linear_cpu.h"
#include "ops/linear/linear_epilogue.h"
#include "ops/linear/linear_tuning.h"
#include "touchstone/core/checked.h"

namespace touchstone::linear_layer {
namespace {

constexpr std::int64_t kUnit = 128;

void store_panel(const TernaryJob& job, std::int64_t panel, float* totals) {
  const Epilogue<float> epilogue(*job.p);
  const std::int64_t width = job.panel_columns();
  const std::int64_t first = panel * width;
  const std::int64_t columns = std::min(width, job.p->columns() - first);
  for (std::int64_t r = 0; r < job.rows; ++r) {
    float* const sums = totals + r * kTernaryPanel;
    for (std::int64_t o = 0; o < kTernaryPanel; ++o) sums[o] *= job.scales[r];
    epilogue.store(job.first + r, first, columns, sums, sums + width);
  }
}

}  // namespace

TernaryOrder ternary_order(const WeightFormat& format) {
  using Id = WeightFormatId;
  const bool planes =
      format.id == Id::ternary_g128 || format.id == Id::pq2_0 || format.id == Id::tq2_0;
  return planes ? TernaryOrder::planes : TernaryOrder::natural;
}

std::int64_t ternary_row_bytes(const Forward& p) {
  return ternary_sums_offset(p) + (p.in / kUnit * 4 + 63) / 64 * 64;
}

const std::byte* ternary_panel_row(const TernaryJob& job, std::int64_t panel, std::int64_t o) {
  const std::int64_t width = job.panel_columns();
  const std::int64_t column = std::min(panel * width + o % width, job.p->columns() - 1);
  return job.p->weight.row(column + o / width * job.p->columns());
}

std::string ternary_refuses_cpu(const Context& /*context*/, const Forward& p) {
  if (!p.weight.format->ternary) {
    return "weights in " + std::string(p.weight.format->name) + ", needs a ternary format";
  }
  if (!p.int8_activations) return "needs int8 activations";
  return {};
}

void forward_ternary_cpu(Context& context, const Forward& p) {
  // The same sums in the same order.
  if (p.in > 0 && ternary_order(*p.weight.format) == TernaryOrder::natural &&
      has_int8_kernel(*p.weight.format)) {
    return forward_int8(context, p);
  }
  const std::int64_t chunk = std::min(p.rows, kTernaryChunk);
  const std::int64_t stride = ternary_row_bytes(p);
  auto* const memory = static_cast<std::byte*>(detail::ContextAccess::workspace(
      context, checked_add(checked_mul(chunk, stride), checked_mul(p.in, 5))));
  auto* const values = reinterpret_cast<float*>(memory + chunk * stride);
  auto* const q = reinterpret_cast<std::int8_t*>(values + p.in);
  std::vector<float> scales(at(chunk));
  ThreadPool& pool = detail::ContextAccess::pool(context);
  const double work =
      static_cast<double>(p.rows) * static_cast<double>(p.in) * static_cast<double>(p.out);
  for (std::int64_t first = 0; first < p.rows; first += chunk) {
    const TernaryJob job{.p = &p,
                         .x = memory,
                         .x_stride = stride,
                         .scales = scales.data(),
                         .first = first,
                         .rows = std::min(chunk, p.rows - first)};
    for (std::int64_t r = 0; r < job.rows; ++r) {
      scales[at(r)] = round_ternary_row(p, first + r, values, q, memory + r * stride);
    }
    const std::int64_t panels = ceil_div(p.columns(), job.panel_columns());
    const auto run = [&](std::int64_t panel) {
      std::vector<float> totals(at(job.rows * kTernaryPanel));
      run_ternary_panel(job, panel, totals.data());
      store_panel(job, panel, totals.data());
    };
    if (work < tuning::kSerialWork) {
      for (std::int64_t panel = 0; panel < panels; ++panel) run(panel);
    } else {
      pool.run(panels, run);
    }
  }
}

}  // namespace touchstone::linear_layer
