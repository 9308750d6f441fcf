// The SIMD implementation above its kernels: scratch memory, and who computes what. topk_cpu.h says
// why the bits do not depend on the latter.
#include "ops/softmax_topk/topk_cpu.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "core/context_access.h"
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
  scratch.coarse_list = from.take<std::uint32_t>(s.coarse);
  scratch.listed = from.take<std::uint32_t>(s.blocks * s.lanes);
  scratch.found_bits = from.take<std::uint32_t>(s.candidates);
  scratch.found_tokens = from.take<std::uint32_t>(s.candidates);
  scratch.bins = from.take<std::uint16_t>(s.candidates);
  scratch.candidates = from.take<Candidate>(s.candidates);
  scratch.sorted = from.take<Candidate>(s.candidates);
  scratch.equals = from.take<std::uint32_t>(k);
  scratch.top = from.take<float>(k);
  const bool combined = p.bias != nullptr || p.allowed != nullptr;
  scratch.values = from.take<float>(combined ? s.segment_tokens : 0);
  return scratch;
}

std::int64_t row_bytes(const Topk& p, const ScratchSizes& s) {
  Carver measure(nullptr);
  carve(p, s, measure);
  return static_cast<std::int64_t>(measure.used());
}

// Scratch: some to lend, to one task at a time, and some that is kept for rows. `lent` is at least
// the number of tasks that can run at a time, so one is always free.
class Scratch {
 public:
  Scratch(Context& context, const Topk& p, const ScratchSizes& s, std::int64_t lent,
          std::int64_t kept)
      : p_(p), s_(s), bytes_(row_bytes(p, s)), busy_(static_cast<std::size_t>(lent)) {
    const std::int64_t all = checked_mul(checked_add(lent, kept), bytes_, "softmax_topk");
    memory_ = static_cast<char*>(detail::ContextAccess::workspace(context, all));
  }

  // For the time of a task. The first choice is what this thread had last: it is in its cache.
  class Loan {
   public:
    explicit Loan(Scratch& from) : from_(from) {
      thread_local std::size_t last = 0;
      std::vector<std::atomic<bool>>& busy = from.busy_;
      slot_ = last % busy.size();
      while (busy[slot_].exchange(true, std::memory_order_acquire)) {
        slot_ = (slot_ + 1) % busy.size();
      }
      last = slot_;
    }
    ~Loan() { from_.busy_[slot_].store(false, std::memory_order_release); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

    RowScratch scratch() const { return from_.piece(slot_); }

   private:
    Scratch& from_;
    std::size_t slot_ = 0;
  };

  RowScratch kept(std::int64_t row) const {
    return piece(busy_.size() + static_cast<std::size_t>(row));
  }

 private:
  RowScratch piece(std::size_t index) const {
    Carver carver(memory_ + static_cast<std::int64_t>(index) * bytes_);
    return carve(p_, s_, carver);
  }

  const Topk& p_;
  const ScratchSizes& s_;
  std::int64_t bytes_;
  std::vector<std::atomic<bool>> busy_;
  char* memory_ = nullptr;
};

// Threads share a row: each scans some of its segments. Then one of them finishes it.
void run_by_segments(Context& context, const Topk& p, const ScratchSizes& s, std::int64_t threads) {
  const auto segments = static_cast<std::int64_t>(s.segments);
  const std::int64_t pieces = std::min(segments, ceil_div(4 * threads, p.rows));
  Scratch scratch(context, p, s, context.threads(), p.rows);
  detail::ContextAccess::pool(context).run(p.rows * pieces, [&](std::int64_t task) {
    const Scratch::Loan loan(scratch);
    const std::int64_t row = task / pieces;
    const std::int64_t piece = task % pieces;
    // The arrays of the row, but room of its own for values.
    RowScratch shared = scratch.kept(row);
    shared.values = loan.scratch().values;
    scan_segments(p, row, static_cast<std::size_t>(piece * segments / pieces),
                  static_cast<std::size_t>((piece + 1) * segments / pieces), shared);
  });
  detail::ContextAccess::pool(context).run(
      p.rows, [&](std::int64_t row) { finish_row(p, row, s, scratch.kept(row)); });
}

}  // namespace

std::string softmax_topk_simd_refuses(const Context& /*context*/, const Topk& p) {
  constexpr std::int64_t kMax = std::numeric_limits<std::uint32_t>::max();
  return p.vocabulary > kMax ? "more than 2^32 - 1 tokens" : "";
}

void softmax_topk_simd(Context& context, const Topk& p) {
  const ScratchSizes s = scratch_sizes(p);
  const std::int64_t row_work = p.vocabulary * size_of(p.dtype);
  const std::int64_t most = context.threads();
  const std::int64_t threads =
      row_work >= kBytesPerThread * most
          ? most
          : std::clamp<std::int64_t>(p.rows / ceil_div(kBytesPerThread, row_work), 1, most);
  // Rows that do not share out evenly, and are long enough to be shared themselves.
  const auto segments = static_cast<std::int64_t>(s.segments);
  if (p.rows < 4 * threads && p.rows % threads != 0 && segments >= 2 * threads) {
    run_by_segments(context, p, s, threads);
    return;
  }
  // Many tasks per thread, so that one that is held up does not hold up the rest.
  const std::int64_t tasks = threads == 1 ? 1 : std::min(p.rows, 32 * threads);
  Scratch scratch(context, p, s, std::min(tasks, most), 0);
  detail::ContextAccess::pool(context).run(tasks, [&](std::int64_t task) {
    const Scratch::Loan loan(scratch);
    // Without the product task * rows, which may not fit.
    const auto begin = [&](std::int64_t t) {
      return p.rows / tasks * t + std::min(p.rows % tasks, t);
    };
    const RowScratch own = loan.scratch();
    for (std::int64_t row = begin(task); row < begin(task + 1); ++row) {
      scan_segments(p, row, 0, s.segments, own);
      finish_row(p, row, s, own);
    }
  });
}

}  // namespace touchstone::topk
