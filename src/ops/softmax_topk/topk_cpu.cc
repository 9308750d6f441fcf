// The SIMD implementation above its kernels: scratch memory, and who computes what. topk_cpu.h says
// why the bits do not depend on the latter.
#include "ops/softmax_topk/topk_cpu.h"

#include <algorithm>
#include <limits>

#include "core/thread_pool.h"
#include "touchstone/core/checked.h"

namespace touchstone::topk {
namespace {

// Work worth one more thread: at 20 GB/s per core some 10 us, twice the cost of waking it.
constexpr std::int64_t kBytesPerThread = std::int64_t{192} << 10;

// Cuts one allocation into the arrays of a row. Called with null first, to learn the size.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}

  // Room for `count` elements and a vector more: kernels store whole vectors.
  template <class Element>
  Element* take(std::size_t count) {
    constexpr std::size_t kVectorBytes = 64;
    char* const piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * sizeof(Element) + 2 * kVectorBytes - 1) / kVectorBytes * kVectorBytes;
    return reinterpret_cast<Element*>(piece);
  }
  std::size_t used() const { return used_; }

 private:
  char* base_;
  std::size_t used_ = 0;
};

RowScratch carve(const Topk& p, const ScratchSizes& s, Carver& from) {
  const auto k = static_cast<std::size_t>(p.k);
  RowScratch scratch;
  scratch.fine = from.take<float>(s.blocks * s.lanes);
  scratch.coarse = from.take<float>(s.coarse * s.lanes);
  scratch.segments = from.take<SegmentSum>(s.segments);
  scratch.maxima = from.take<float>(s.maxima);
  scratch.candidates = from.take<Candidate>(s.candidates + 1);
  scratch.sorted = from.take<Candidate>(s.candidates + 1);
  scratch.equals = from.take<std::uint32_t>(k + 1);
  scratch.top = from.take<float>(k);
  const bool combined = p.bias != nullptr || p.allowed != nullptr;
  scratch.values = from.take<float>(combined ? s.segment_tokens : 0);
  return scratch;
}

// Threads share a row: each scans some of its segments. Then one of them finishes it.
void run_by_segments(Context& context, const Topk& p, const ScratchSizes& s, std::size_t pieces,
                     std::size_t row_bytes, char* memory) {
  const auto rows = static_cast<std::size_t>(p.rows);
  // Pieces of a row use its arrays but their own values.
  const auto scratch_of = [&](std::size_t index) {
    Carver carver(memory + index * row_bytes);
    return carve(p, s, carver);
  };
  context.pool().run(p.rows * static_cast<std::int64_t>(pieces), [&](std::int64_t task) {
    const auto row = static_cast<std::size_t>(task) / pieces;
    const auto piece = static_cast<std::size_t>(task) % pieces;
    RowScratch scratch = scratch_of(row * pieces);
    scratch.values = scratch_of(row * pieces + piece).values;
    scan_segments(p, static_cast<std::int64_t>(row), piece * s.segments / pieces,
                  (piece + 1) * s.segments / pieces, scratch);
  });
  context.pool().run(p.rows, [&](std::int64_t row) {
    finish_row(p, row, s, scratch_of(static_cast<std::size_t>(row) * pieces));
  });
  (void)rows;
}

}  // namespace

std::string softmax_topk_simd_refuses(const Context& /*context*/, const Topk& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return p.vocabulary > kMost ? "more than 2^32 - 1 tokens" : "";
}

void softmax_topk_simd(Context& context, const Topk& p) {
  const ScratchSizes s = scratch_sizes(p);
  Carver measure(nullptr);
  carve(p, s, measure);
  const std::size_t row_bytes = measure.used();

  const std::int64_t row_work = p.vocabulary * size_of(p.dtype);
  const std::int64_t most = context.threads();
  const std::int64_t threads =
      row_work >= kBytesPerThread * most
          ? most
          : std::clamp<std::int64_t>(p.rows / ceil_div(kBytesPerThread, row_work), 1, most);
  // Rows that do not share out evenly, and are long enough to be shared themselves.
  const auto segments = static_cast<std::int64_t>(s.segments);
  if (p.rows < 4 * threads && p.rows % threads != 0 && segments >= 2 * threads) {
    const std::int64_t pieces = std::min(segments, ceil_div(4 * threads, p.rows));
    auto* const memory = static_cast<char*>(context.workspace(
        checked_mul(p.rows * pieces, static_cast<std::int64_t>(row_bytes), "softmax_topk")));
    run_by_segments(context, p, s, static_cast<std::size_t>(pieces), row_bytes, memory);
    return;
  }
  // A few tasks per thread, so that one that is held up does not hold up the rest.
  const std::int64_t tasks = threads == 1 ? 1 : std::min(p.rows, 4 * threads);
  auto* const memory = static_cast<char*>(
      context.workspace(checked_mul(tasks, static_cast<std::int64_t>(row_bytes), "softmax_topk")));
  context.pool().run(tasks, [&](std::int64_t task) {
    Carver carver(memory + static_cast<std::size_t>(task) * row_bytes);
    const RowScratch scratch = carve(p, s, carver);
    // Without the product task * rows, which may not fit.
    const auto begin = [&](std::int64_t t) {
      return p.rows / tasks * t + std::min(p.rows % tasks, t);
    };
    for (std::int64_t row = begin(task); row < begin(task + 1); ++row) {
      scan_segments(p, row, 0, s.segments, scratch);
      finish_row(p, row, s, scratch);
    }
  });
}

}  // namespace touchstone::topk
