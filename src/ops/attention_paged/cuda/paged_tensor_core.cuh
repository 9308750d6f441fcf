// One warp's part of cached_attention on the tensor cores.
//
// The warps of a block take the tokens of its list in turns, a chunk at a time. Each copies the
// chunks ahead of it into shared memory of its own and never waits for another warp; running
// maxima, sums of weights and of weighted values are merged once, at the end.
//
// Scores are products of query vectors (rows) with 8 tokens (columns), so that a lane has scores of
// one vector, laid out as weights are operands of the second product: numbers of a value
// (rows) with 8 query vectors (columns), summed over 16 tokens. Factors are bf16, or f16 for codes,
// so what rounding takes away gets products of its own: weights are in two parts (17 or 22 bits),
// queries that are not bf16 already in three (all 24 bits), the second of which is in the rows that
// 8 vectors leave empty.
//
// Determinism: an element of a product depends on its own row and column only,
// and the position of a token in a product depends on its number in the list only.
#pragma once

#include "ops/attention_paged/cuda/paged_values.cuh"

namespace touchstone::paged_attention {

// Out of line, like all that is long and rare: the mainloop has to fit in the cache for
// instructions.
__device__ __noinline__ inline float capped_score(float score, float cap) {
  return __fmul_rn(cap, tanhf(score / cap));
}

// One warp's way through its chunks. Lane 4 * n + c has the scores of query vector n for a quarter
// of a chunk, and of the output numbers n and n + 8 of every 16 for query vectors 2 * c and 2 * c
// + 1.
template <class Block>
class WarpPass {
 public:
  using Shared = typename Block::SharedMemory;
  using Keys = typename Shared::Keys;
  using Values = typename Shared::Values;
  using Slot = typename Shared::Slot;
  static constexpr int kChunk = Shared::kChunk;
  static constexpr int kSlots = Shared::kSlots;
  static constexpr int kTokenTiles = kChunk / 8;
  static constexpr int kOwn = kChunk / 4;  // tokens of a lane
  static constexpr int kLift = ValueSums<Block>::kLift;
  using KeySource = SectionLoader<Keys, kChunk, Block>;
  using ValueSource = SectionLoader<Values, kChunk, Block>;

  __device__ explicit WarpPass(Block& block)
      : block_(block),
        lane_(threadIdx.x % 32),
        list_{static_cast<unsigned>(block.shared.list.tokens),
              block.shared.list.dense ? static_cast<unsigned>(block.shared.list.tokens) : 0U},
        keys_(block, block.work.keys, block.shared.bases[0]),
        values_(block, block.work.values, block.shared.bases[1]),
        ring_(keep_address(block.shared.ring[threadIdx.x / 32])),
        scratch_(keep_address(block.shared.scratch.of_warp[threadIdx.x / 32])),
        sums_(values_, scratch_) {}

  // Once for a block, by one thread.
  __device__ static void start(Block& block) {
    block.shared.bases[0] = KeySource::base_of(block, block.work.keys);
    block.shared.bases[1] = ValueSource::base_of(block, block.work.values);
  }

  template <bool kExact>
  __device__ void run() {
    const unsigned first = threadIdx.x / 32;
#pragma unroll 1
    for (int load = 0; load < kLoads; ++load) issue_first(load);
#pragma unroll 1
    for (unsigned chunk = first; chunk * kChunk < count(); chunk += kWarps) {
      attend_chunk<kExact>(chunk);
    }
    cuda::wait_copies<0>();
    __syncwarp();
    leave_sums();
  }

 private:
  __device__ unsigned count() const { return list_.tokens; }
  __device__ unsigned lane() const { return lane_; }
  __device__ unsigned row() const { return lane() / 4; }
  __device__ unsigned column() const { return lane() % 4; }

  // What is computed from the lane's number is computed anew after this: kept from chunk to chunk
  // it would be more than there are registers, and what is spilled misses the little L1 that is
  // left.
  __device__ void forget_lane() { asm volatile("" : "+r"(lane_)); }

  template <bool kExact>
  __device__ void attend_chunk(unsigned chunk) {
    forget_lane();
    Slot& keys = next_slot<0>();
    settle_keys(chunk, keys);
    float scores[kOwn];
    score_codes<kExact>(keys, scores);
    refill<0>(chunk, keys);
    const float multiplier = finish_scores(chunk, scores);
    weigh(multiplier, scores);
    forget_lane();
    Slot& values = next_slot<1>();
    sums_.accumulate(lane(), chunk, list_, values, scores);
    refill<1>(chunk, values);
  }

  // Copies of keys and values alternate, or, with an even number of slots, are issued together:
  // then they are at the same positions of the list.
  static constexpr bool kTogether = kSlots % 2 == 0;
  static constexpr int kLoads = kTogether ? kSlots / 2 : kSlots;

  // No copies are issued behind the end, but a group of copies is committed all the same.
  __device__ void issue_loads(unsigned chunk, bool keys, Slot& slot) {
    if (chunk * kChunk < count()) {
      if constexpr (kTogether) {
        issue_both(chunk, slot, *(&slot + 1));
      } else if (keys) {
        keys_.issue_loads(lane(), chunk, list_, slot);
      } else {
        values_.issue_loads(lane(), chunk, list_, slot);
      }
    }
    cuda::commit_copies();
  }
  __device__ void issue_both(unsigned chunk, Slot& keys, Slot& values) {
    if (list_.template has_runs<kChunk>(chunk)) {
      const typename KeySource::RunSlots run_slots(block_.shared, chunk, lane());
      keys_.issue_runs(lane(), run_slots, keys);
      values_.issue_runs(lane(), run_slots, values);
    } else {
      keys_.issue_listed(lane(), chunk, list_, keys);
      values_.issue_listed(lane(), chunk, list_, values);
    }
  }
  // Load number `load` of the first ones.
  __device__ void issue_first(int load) {
    const auto chunk =
        threadIdx.x / 32 + static_cast<unsigned>(kTogether ? load : load / 2) * kWarps;
    issue_loads(chunk, load % 2 == 0, ring_.slots[kTogether ? 2 * load : load]);
  }

  // The slot of the keys (0) or values (1) of a chunk, when their copies, the oldest, have arrived.
  template <int kLoad>
  __device__ Slot& next_slot() {
    if constexpr (!kTogether || kLoad == 0) {
      cuda::wait_copies<kLoads - 1>();
      __syncwarp();
    }
    Slot& slot = ring_.slots[slot_];
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    return slot;
  }

  // What comes kLoads loads after the keys (0) or values (1) of a chunk reuses their slot.
  template <int kLoad>
  __device__ void refill(unsigned chunk, Slot& slot) {
    if constexpr (kTogether) {
      if constexpr (kLoad == 0) return;
      __syncwarp();
      issue_loads(chunk + kLoads * kWarps, true, *(&slot - 1));
    } else {
      __syncwarp();
      constexpr int kNext = kLoad + kSlots;
      issue_loads(chunk + kNext / 2 * kWarps, kNext % 2 == 0, slot);
    }
  }

  __device__ void settle_keys(unsigned chunk, Slot& keys) {
    if constexpr (Keys::kScaling == Scaling::kWhole) {
      const float scale = keys_.whole_scale(lane(), chunk, list_, keys.scales);
      reinterpret_cast<float*>(keys.scales)[lane()] = scale;
      __syncwarp();
    } else if constexpr (Keys::kScaling == Scaling::kGrouped) {
      constexpr float kUnit = power_of_two(Keys::C::kKeyExponent - kScoreExponent<Shared>);
      std::uint32_t words[4];
      keys_.settle_record(lane(), keys.scales, words);
#pragma unroll
      for (int g = 0; g < Keys::kGroups; ++g) {
        scratch_[g * kChunk + lane()] = __fmul_rn(low_f16(words[g]), kUnit);
      }
      __syncwarp();
    }
  }

  // Numbers of the lane's tokens in two tiles, from an array over the chunk.
  __device__ float4 own_four(const float* of_chunk, int tile) const {
    return *reinterpret_cast<const float4*>(of_chunk + kOwn * column() + 2 * tile);
  }
  // Two tiles after two others: all four at once would take more registers than there are.
  template <bool kExact>
  __device__ void score_codes(const Slot& keys, float (&scores)[kOwn]) const {
    static_assert(kTokenTiles == 4);
    if constexpr (Keys::kScaling == Scaling::kGrouped) begin_scores(keys, scores);
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) score_tiles<kExact>(keys, t, scores);
  }

  template <bool kExact>
  __device__ void score_tiles(const Slot& keys, int tile, float (&scores)[kOwn]) const {
    constexpr int kGroupUnits = Keys::kUnits / Keys::kGroups;
    // A unit is a pair of products, or two are. Of pairs that have groups of their own two are
    // taken in turns, where registers allow it: a product can be added to only when the one before
    // it is there.
    constexpr bool kPairs = Keys::kTiles == 4;
    static_assert(!kPairs || kGroupUnits == 1);
    constexpr int kAtOnce = kPairs && kExact ? 2 : 1;
    const std::uint32_t row =
        row_address<Keys, kChunk>(keys.rows, tile + lane() / 8 % 2, lane()) ^ lane() / 16 * 16;
    Dots<Shared, kExact> dots[kAtOnce][2];
#pragma unroll
    for (int unit = 0; unit < Keys::kUnits; unit += 2) {
      std::uint32_t words[4];  // of each tile a unit, then of each the next
      cuda::load_matrices(unit_address(row, unit), words);
#pragma unroll
      for (int first = 0; first < (kPairs ? 2 : 1); first += kAtOnce) {
        QueryPair<Shared, kExact> queries[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          queries[i].load(block_.shared, kPairs ? unit + first + i : unit / 2, lane());
        }
        constexpr int kWords = kPairs ? 2 * kAtOnce : 4;
        std::uint32_t x[kWords][Keys::kTiles];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
          Keys::C::decode_key(words[2 * first + i], keys_.asymmetric(), x[i]);
        }
#pragma unroll
        for (int i = 0; i < kWords * Keys::kTiles / 2; ++i) {
          const int which = kPairs ? i / kWords : i / 2;
          const int j = kPairs ? 2 * which : 0;
          const int u = kPairs ? i % kWords / 2 : 0;
          dots[u][i % 2].add(queries[u], which, unit % kGroupUnits == 0, x[i % kWords][j],
                             x[i % kWords][j + 1]);
        }
        if constexpr (Keys::kScaling == Scaling::kGrouped) {
          if (!kPairs && (unit + 2) % kGroupUnits != 0) continue;
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            add_group(kPairs ? unit + first + i : unit / kGroupUnits, tile, dots[i], scores);
          }
        }
      }
    }
    if constexpr (Keys::kScaling == Scaling::kWhole) {
      const float4 scales = own_four(reinterpret_cast<const float*>(keys.scales), tile);
      scores[2 * tile] = __fmul_rn(dots[0][0].of(0), scales.x);
      scores[2 * tile + 1] = __fmul_rn(dots[0][0].of(1), scales.y);
      scores[2 * tile + 2] = __fmul_rn(dots[0][1].of(0), scales.z);
      scores[2 * tile + 3] = __fmul_rn(dots[0][1].of(1), scales.w);
    }
  }

  template <bool kExact>
  __device__ void add_group(int group, int tile, const Dots<Shared, kExact> (&dots)[2],
                            float (&scores)[kOwn]) const {
    const float4 scales = own_four(scratch_ + group * kChunk, tile);
    scores[2 * tile] = fmaf(dots[0].of(0), scales.x, scores[2 * tile]);
    scores[2 * tile + 1] = fmaf(dots[0].of(1), scales.y, scores[2 * tile + 1]);
    scores[2 * tile + 2] = fmaf(dots[1].of(0), scales.z, scores[2 * tile + 2]);
    scores[2 * tile + 3] = fmaf(dots[1].of(1), scales.w, scores[2 * tile + 3]);
  }

  // What minima, and offsets of decoded numbers, add to the scores.
  __device__ void begin_scores(const Slot& keys, float (&scores)[kOwn]) const {
    const uint2 with = block_.shared.key_offsets[lane()];
    std::uint32_t records[4];  // of each tile
    cuda::load_matrices(record_address<kChunk>(keys.scales, lane()), records);
    // Of two tiles one is the upper half of the summed numbers; the other half of the rows is its.
    const std::uint32_t first[4] = {with.x, 0, 0, with.x};
    const std::uint32_t second[4] = {with.y, 0, 0, with.y};
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      float result[4];
      cuda::multiply_f16(result, first, records[t], records[t + 1]);
      cuda::multiply_add_f16(result, second, records[t], records[t + 1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[2 * t + i] = result[i];
    }
  }

  // Nothing behind the end of the list. Returns what scores are still to be multiplied with.
  __device__ float finish_scores(unsigned chunk, float (&scores)[kOwn]) const {
    float multiplier = block_.shared.multipliers[row()];
    const float cap = block_.p.soft_cap;
    if (cap > 0) {
#pragma unroll 1
      for (int i = 0; i < kOwn; ++i) {
        // Rolled: it is long. The numbers move on, so that none is named by a variable.
        const float capped = capped_score(__fmul_rn(scores[0], multiplier), cap);
#pragma unroll
        for (int k = 0; k + 1 < kOwn; ++k) scores[k] = scores[k + 1];
        scores[kOwn - 1] = capped;
      }
      multiplier = 1;
    }
    if ((chunk + 1) * kChunk > count()) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const bool there = chunk * kChunk + kOwn * column() + i < count();
        if (!there) scores[i] = minus_infinity();
      }
    }
    return multiplier;
  }

  // Turns scores into weights: 2 to the power of what they are above a maximum so far. That is
  // moved up when weights would become larger than 2^kSlack, which is seldom.
  __device__ void weigh(float multiplier, float (&scores)[kOwn]) {
    const float to_log2 = __fmul_rn(multiplier, kLog2E);
    float largest = scores[0];
#pragma unroll
    for (int i = 1; i < kOwn; ++i) largest = fmaxf(largest, scores[i]);
    if (__any_sync(kAllLanes, static_cast<int>(is_above(largest, to_log2))) != 0) {
#pragma unroll
      for (int offset = 1; offset < 4; offset *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
      }
      move_largest(is_above(largest, to_log2) ? largest : largest_, to_log2);
    }
    const float base = largest_ == minus_infinity() ? 0.0F : fmaf(-largest_, to_log2, kLift);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      scores[i] = cuda::exp2_flushed(fmaf(scores[i], to_log2, base));
      sum_ = __fadd_rn(sum_, scores[i]);
    }
  }

  // While fully masked the difference is infinite, or NaN if the tile is masked too.
  __device__ bool is_above(float score, float to_log2) const {
    constexpr float kSlack = 8;
    return __fmul_rn(__fsub_rn(score, largest_), to_log2) > kSlack;
  }

  // Brings what there is already under it. Where it has not changed the factor is exactly 1.
  __device__ void move_largest(float largest, float to_log2) {
    const float factor =
        largest == largest_ ? 1.0F : exp2f(__fmul_rn(__fsub_rn(largest_, largest), to_log2));
    largest_ = largest;
    sum_ = __fmul_rn(sum_, factor);
    float factors[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) factors[x] = of_vector(factor, 2 * column() + x);
    sums_.multiply_by(factors);
  }

  // What the lanes of a query vector have.
  __device__ static float of_vector(float x, unsigned vector) {
    return __shfl_sync(kAllLanes, x, static_cast<int>(4 * vector));
  }

  // Over the lanes of a query vector.
  __device__ static float sum_of_vector(float x) {
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, offset));
    }
    return x;
  }

  __device__ void leave_sums() {
    typename Shared::Sums& sums = block_.shared.sums(static_cast<int>(threadIdx.x / 32));
    const float sum = sum_of_vector(sum_);
    if (column() == 0) {
      sums.largest[row()] =
          block_.p.soft_cap > 0 ? largest_ : __fmul_rn(largest_, block_.shared.multipliers[row()]);
      sums.weights[row()] = __fmul_rn(sum, power_of_two(-kLift));
    }
    sums_.leave(lane(), sums);
  }

  Block& block_;
  unsigned lane_;
  ListLength list_;
  KeySource keys_;
  ValueSource values_;
  typename Shared::Ring& ring_;
  float* scratch_;
  int slot_ = 0;
  float largest_ = minus_infinity();  // of scores that are not multiplied yet
  float sum_ = 0;
  ValueSums<Block> sums_;
};

}  // namespace touchstone::paged_attention
