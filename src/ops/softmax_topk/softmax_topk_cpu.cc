// softmax_topk on the CPU by the selection engine: distribution of rows and segments over threads.
// cpu_select.h says why the bits do not depend on it.
#include "ops/softmax_topk/softmax_topk_cpu.h"

#include <algorithm>
#include <limits>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/selection/cpu/cpu_scratch.h"
#include "ops/softmax_topk/softmax_topk_tuning.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::topk {
namespace {

using selection::RowScratch;
using selection::ScratchSizes;

double row_temperature(const SoftmaxTopkProblem& p, std::int64_t row) {
  double temperature = p.temperature_scale;
  if (p.temperature != nullptr) temperature *= static_cast<double>(p.temperature[row]);
  return temperature;
}

void scan(const SoftmaxTopkProblem& p, std::int64_t row, std::size_t begin, std::size_t end,
          const RowScratch& scratch) {
  const double temperature = row_temperature(p, row);
  if (!selection::is_fast_temperature(temperature)) return;
  selection::scan_segments(p, row, temperature, begin, end, scratch);
}

// The outputs of a row whose segments are scanned.
void finish(const SoftmaxTopkProblem& p, std::int64_t row, const ScratchSizes& sizes,
            const RowScratch& scratch) {
  const double temperature = row_temperature(p, row);
  if (!selection::is_fast_temperature(temperature)) return plain_row(p, row);
  const selection::RowSum sum = selection::merge_segments(scratch.segments, sizes.segments);
  if (!(sum.sum > 0)) {  // NaN, +inf, or all masked
    plain_row(p, row);
    if (p.status != nullptr) p.status[row] |= to_int(RowStatus::two_pass);
    return;
  }
  const selection::SelectedTokens tokens =
      selection::select_tokens(p, row, p.k, sizes, sum.largest, scratch);
  store_row(p, row, temperature, sum, tokens, scratch.top);
}

// Partitions the scratch of a row.
struct RowLayout {
  const SoftmaxTopkProblem& p;
  const ScratchSizes& sizes;

  RowScratch operator()(selection::WorkspacePartition& from) const {
    return selection::partition_row(p, sizes, from);
  }
};
using Scratch = selection::ScratchPool<RowLayout>;

// Threads share a row: each scans some of its segments. Then one of them finishes it.
void run_by_segments(Context& context, const SoftmaxTopkProblem& p, const ScratchSizes& s,
                     std::int64_t threads) {
  const auto segments = static_cast<std::int64_t>(s.segments);
  const std::int64_t pieces = std::min(segments, ceil_div(4 * threads, p.rows));
  Scratch scratch(context, "softmax_topk", RowLayout{p, s}, context.threads(), p.rows);
  ThreadPool& pool = detail::ContextAccess::pool(context);
  pool.run(p.rows * pieces, [&](std::int64_t task) {
    const Scratch::ScratchLease lease(scratch);
    const std::int64_t row = task / pieces;
    const std::int64_t piece = task % pieces;
    // The arrays of the row, with a segment of values of this task.
    RowScratch shared = scratch.reserved(row);
    shared.values = lease.scratch().values;
    scan(p, row, static_cast<std::size_t>(piece * segments / pieces),
         static_cast<std::size_t>((piece + 1) * segments / pieces), shared);
  });
  pool.run(p.rows, [&](std::int64_t row) { finish(p, row, s, scratch.reserved(row)); });
}

}  // namespace

std::string softmax_topk_simd_refuses(const Context& /*context*/, const SoftmaxTopkProblem& p) {
  constexpr std::int64_t kMax = std::numeric_limits<std::uint32_t>::max();
  return p.vocabulary > kMax ? "V " + std::to_string(p.vocabulary) + " > " + std::to_string(kMax)
                             : "";
}

void softmax_topk_simd(Context& context, const SoftmaxTopkProblem& p) {
  const ScratchSizes s = selection::scratch_sizes(p, p.k);
  const std::int64_t max_threads = context.threads();
  const std::int64_t threads = selection::useful_threads(p, max_threads);
  // Rows that do not divide evenly among threads and are long enough to be shared.
  const auto segments = static_cast<std::int64_t>(s.segments);
  if (p.rows < 4 * threads && p.rows % threads != 0 && segments >= 2 * threads) {
    run_by_segments(context, p, s, threads);
    return;
  }
  const std::int64_t tasks = threads == 1 ? 1 : std::min(p.rows, kTasksPerThread * threads);
  Scratch scratch(context, "softmax_topk", RowLayout{p, s}, std::min(tasks, max_threads), 0);
  detail::ContextAccess::pool(context).run(tasks, [&](std::int64_t task) {
    const Scratch::ScratchLease lease(scratch);
    // Without the product task * rows, which may overflow.
    const auto begin = [&](std::int64_t t) {
      return p.rows / tasks * t + std::min(p.rows % tasks, t);
    };
    const RowScratch own = lease.scratch();
    for (std::int64_t row = begin(task); row < begin(task + 1); ++row) {
      scan(p, row, 0, s.segments, own);
      finish(p, row, s, own);
    }
  });
}

}  // namespace touchstone::topk
