// One warp's part of cached_attention on the tensor cores.
//
// The warps of a block take the tokens of its list in turns, a chunk at a time. Each copies the
// chunks ahead of it into shared memory of its own and never waits for another warp; running
// maxima, sums of weights and of weighted values are merged once, at the end.
//
// Scores are products of query vectors (rows) with 8 tokens (columns), so that a lane has scores of
// one vector, in the places where weights are operands of the second product: numbers of a value
// (rows) with 8 query vectors (columns), summed over 16 tokens. Factors are bf16, so what rounding
// takes away gets products of its own: weights are two bf16 (17 bits), queries that are not bf16
// already are three (all 24 bits), the second of which is in the rows that 8 vectors leave empty.
//
// Why the bits depend on so little: an element of a product depends on its own row and column only,
// and which token is in which place of which product on its number in the list only.
#pragma once

#include "ops/attention/attention_tensor_shared.cuh"

namespace touchstone::attend {

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
  static constexpr int kDim = Shared::kDim;
  static constexpr int kChunk = Shared::kChunk;
  static constexpr int kSlots = Shared::kSlots;
  static constexpr int kTokenTiles = kChunk / 8;
  static constexpr int kOwn = kChunk / 4;  // tokens of a lane
  static constexpr int kOutputTiles = kDim / 16;
  using KeySource = Source<Keys, kChunk, Block>;
  using ValueSource = Source<Values, kChunk, Block>;

  __device__ explicit WarpPass(Block& block)
      : block_(block),
        lane_(threadIdx.x % 32),
        keys_(block, block.work.keys, block.shared.bases[0]),
        values_(block, block.work.values, block.shared.bases[1]),
        ring_(block.shared.ring[threadIdx.x / 32]),
        scratch_(block.shared.scratch.of_warp[threadIdx.x / 32]) {}

  // Once for a block, by one thread.
  __device__ static void start(Block& block) {
    block.shared.bases[0] = KeySource::base_of(block, block.work.keys);
    block.shared.bases[1] = ValueSource::base_of(block, block.work.values);
  }

  template <bool kExact>
  __device__ void run() {
    const unsigned first = threadIdx.x / 32;
#pragma unroll 1
    for (int load = 0; load < kSlots; ++load) {
      ask(first + static_cast<unsigned>(load / 2 * kWarps), load % 2 == 0, ring_.slots[load]);
    }
#pragma unroll 1
    for (unsigned chunk = first; chunk * kChunk < count(); chunk += kWarps) {
      forget_lane();
      Slot& keys = next_slot();
      settle_keys(chunk, keys);
      float scores[kOwn];
      score<kExact>(keys, scores);
      refill<0>(chunk, keys);
      const float multiplier = finish_scores(chunk, scores);
      weigh(multiplier, scores);
      forget_lane();
      Slot& values = next_slot();
      settle_values(chunk, values);
      accumulate(values, scores);
      refill<1>(chunk, values);
    }
    cuda::wait_copies<0>();
    __syncwarp();
    leave_sums();
  }

 private:
  __device__ unsigned count() const { return static_cast<unsigned>(block_.shared.list.tokens); }
  __device__ unsigned lane() const { return lane_; }
  __device__ unsigned row() const { return lane() / 4; }
  __device__ unsigned column() const { return lane() % 4; }

  // What is computed from the lane's number is computed anew after this: kept from chunk to chunk
  // it would be more than there are registers, and what is spilled misses the little L1 that is
  // left.
  __device__ void forget_lane() { asm volatile("" : "+r"(lane_)); }

  // Nothing is asked for behind the end, but a group of copies is closed all the same.
  __device__ void ask(unsigned chunk, bool keys, Slot& slot) {
    if (chunk * kChunk < count()) {
      if (keys) {
        keys_.ask(lane(), chunk, count(), slot);
      } else {
        values_.ask(lane(), chunk, count(), slot);
      }
    }
    cuda::commit_copies();
  }

  // The slot whose copies are the oldest, when they have arrived.
  __device__ Slot& next_slot() {
    cuda::wait_copies<kSlots - 1>();
    __syncwarp();
    Slot& slot = ring_.slots[slot_];
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    return slot;
  }

  // What comes kSlots loads after the keys (0) or values (1) of a chunk takes their place.
  template <int kLoad>
  __device__ void refill(unsigned chunk, Slot& slot) {
    __syncwarp();
    constexpr int kNext = kLoad + kSlots;
    ask(chunk + kNext / 2 * kWarps, kNext % 2 == 0, slot);
  }

  __device__ void settle_keys(unsigned chunk, Slot& keys) {
    if constexpr (Keys::kScaling == Scaling::kNone) return;
    if constexpr (Keys::kScaling == Scaling::kGrouped) {
      keys_.settle_key_scales(lane(), keys.scales, scratch_);
    } else {
      keys_.settle_scales(lane(), chunk, count(), keys.scales, 0, scratch_);
    }
    __syncwarp();
  }

  __device__ void settle_values(unsigned chunk, Slot& values) {
    if constexpr (Values::kScaling == Scaling::kNone) return;
    float offset = 0;
    if constexpr (Values::kScaling == Scaling::kGrouped) {
      offset = Values::C::value_offset(values_.asymmetric());
    }
    values_.settle_scales(lane(), chunk, count(), values.scales, offset, scratch_);
    __syncwarp();
  }

  // Numbers of the lane's tokens in two tiles, from an array over the chunk.
  __device__ float4 own_four(const float* of_chunk, int tile) const {
    return *reinterpret_cast<const float4*>(of_chunk + kOwn * column() + 2 * tile);
  }
  // In all tiles.
  __device__ void load_own(const float* of_chunk, float (&x)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(of_chunk + kOwn * column() + i);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  }

  // 16 numbers of the queries, as operand.
  template <bool kExact>
  struct Query {
    std::uint32_t parts[4];
    std::uint32_t third[kExact ? 1 : 4] = {};

    __device__ Query(const Shared& shared, int m, unsigned lane) : parts{0, 0, 0, 0} {
      const typename Shared::QueryPart first = shared.first_part[m][lane];
      parts[0] = first.x;
      if constexpr (Shared::kWholeOperands) {
        parts[1] = first.y;
        parts[2] = first.z;
        parts[3] = first.w;
      } else {
        parts[2] = first.y;
      }
      if constexpr (!kExact) {
        if constexpr (!Shared::kWholeOperands) {
          const uint2 second = shared.rest[0][m][lane];
          parts[1] = second.x;
          parts[3] = second.y;
        }
        const uint2 last = shared.rest[1][m][lane];
        third[0] = last.x;
        third[2] = last.y;
      }
    }
  };

  // Products of 8 tokens with the parts of the queries.
  template <bool kExact>
  struct Dots {
    float parts[4];
    float third[kExact ? 1 : 4];

    template <bool kFirst>
    __device__ void add(const Query<kExact>& query, std::uint32_t b0, std::uint32_t b1) {
      if constexpr (kFirst) {
        cuda::multiply_bf16(parts, query.parts, b0, b1);
        if constexpr (!kExact) cuda::multiply_bf16(third, query.third, b0, b1);
      } else {
        cuda::multiply_add_bf16(parts, query.parts, b0, b1);
        if constexpr (!kExact) cuda::multiply_add_bf16(third, query.third, b0, b1);
      }
    }

    // Of the lane's token 0 or 1.
    __device__ float of(int i) const {
      if constexpr (kExact) return parts[i];
      // An infinity must not meet the zeros in the other parts.
      return fabsf(parts[i]) == -minus_infinity()
                 ? parts[i]
                 : __fadd_rn(parts[i], __fadd_rn(parts[i + 2], third[i]));
    }
  };

  // Where ldmatrix finds number lane() % 8 of a tile: unit 0 of it.
  template <class Op>
  __device__ std::uint32_t own_row(const std::byte* rows, unsigned tile) const {
    return cuda::shared_address(rows) + Op::at(token_of<kChunk>(tile, lane() % 8), 0);
  }
  // Rows begin on 128 bytes or a part of it, so that what at() does to a unit can be done later.
  __device__ static std::uint32_t unit_of(std::uint32_t row, int unit) {
    return (row ^ static_cast<std::uint32_t>(unit % 8 * 16)) + unit / 8 * 128;
  }

  template <bool kExact>
  __device__ void score(const Slot& keys, float (&scores)[kOwn]) const {
    if constexpr (Keys::kTiles == 1) {
      score_plain<kExact>(keys, scores);
    } else {
      score_codes<kExact>(keys, scores);
    }
  }

  template <bool kExact>
  __device__ void score_plain(const Slot& keys, float (&scores)[kOwn]) const {
    const unsigned matrix = lane() / 8;
    std::uint32_t rows[kTokenTiles / 2];
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      rows[t / 2] = own_row<Keys>(keys.rows, t + matrix / 2);
    }
    Dots<kExact> dots[kTokenTiles];
#pragma unroll
    for (int unit = 0; unit < Keys::kUnits; unit += 2) {
      const Query<kExact> query(block_.shared, unit / 2, lane());
#pragma unroll
      for (int t = 0; t < kTokenTiles; t += 2) {
        std::uint32_t words[4];  // two units of 8 tokens, then of 8 more
        cuda::load_matrices(unit_of(rows[t / 2] ^ matrix % 2 * 16, unit), words);
        if (unit == 0) {
          dots[t].template add<true>(query, words[0], words[1]);
          dots[t + 1].template add<true>(query, words[2], words[3]);
        } else {
          dots[t].template add<false>(query, words[0], words[1]);
          dots[t + 1].template add<false>(query, words[2], words[3]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) scores[i] = dots[i / 2].of(i % 2);
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
    const std::uint32_t row = own_row<Keys>(keys.rows, tile + lane() / 8 % 2) ^ lane() / 16 * 16;
    Dots<kExact> dots[2];
#pragma unroll
    for (int unit = 0; unit < Keys::kUnits; unit += 2) {
      std::uint32_t words[4];  // of each tile a unit, then of each the next
      cuda::load_matrices(unit_of(row, unit), words);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiply_unit<kExact>(unit + i, (unit + i) % kGroupUnits == 0, words[2 * i],
                              words[2 * i + 1], dots);
        if constexpr (Keys::kScaling == Scaling::kGrouped) {
          if ((unit + i + 1) % kGroupUnits == 0) {
            const float4 scales = own_four(scratch_ + (unit + i) / kGroupUnits * kChunk, tile);
            scores[2 * tile] = fmaf(dots[0].of(0), scales.x, scores[2 * tile]);
            scores[2 * tile + 1] = fmaf(dots[0].of(1), scales.y, scores[2 * tile + 1]);
            scores[2 * tile + 2] = fmaf(dots[1].of(0), scales.z, scores[2 * tile + 2]);
            scores[2 * tile + 3] = fmaf(dots[1].of(1), scales.w, scores[2 * tile + 3]);
          }
        }
      }
    }
    if constexpr (Keys::kScaling == Scaling::kWhole) {
      const float4 scales = own_four(reinterpret_cast<const float*>(keys.scales), tile);
      scores[2 * tile] = __fmul_rn(dots[0].of(0), scales.x);
      scores[2 * tile + 1] = __fmul_rn(dots[0].of(1), scales.y);
      scores[2 * tile + 2] = __fmul_rn(dots[1].of(0), scales.z);
      scores[2 * tile + 3] = __fmul_rn(dots[1].of(1), scales.w);
    }
  }

  template <bool kExact>
  __device__ void multiply_unit(int unit, bool first, std::uint32_t word, std::uint32_t next_word,
                                Dots<kExact> (&dots)[2]) const {
    constexpr int kProducts = Keys::kTiles / 2;  // of a unit
    std::uint32_t x[Keys::kTiles];
    std::uint32_t next[Keys::kTiles];
    Keys::C::decode_key(word, keys_.flip(), x);
    Keys::C::decode_key(next_word, keys_.flip(), next);
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const Query<kExact> query(block_.shared, unit * kProducts + i, lane());
      if (first && i == 0) {
        dots[0].template add<true>(query, x[2 * i], x[2 * i + 1]);
        dots[1].template add<true>(query, next[2 * i], next[2 * i + 1]);
      } else {
        dots[0].template add<false>(query, x[2 * i], x[2 * i + 1]);
        dots[1].template add<false>(query, next[2 * i], next[2 * i + 1]);
      }
    }
  }

  // What minima, and offsets of decoded numbers, add to the scores.
  __device__ void begin_scores(const Slot& keys, float (&scores)[kOwn]) const {
    const uint2 with = block_.shared.key_offsets[lane()];
    std::uint32_t records[4];  // of each tile
    cuda::load_matrices(cuda::shared_address(keys.scales) +
                            static_cast<std::uint32_t>(
                                KeySource::record_at(token_of<kChunk>(lane() / 8, lane() % 8))),
                        records);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      float result[4];
      cuda::multiply_f16(result, {with.x, 0, with.y, 0}, records[t], records[t]);
      scores[2 * t] = result[0];
      scores[2 * t + 1] = result[1];
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
        const float capped = __fmul_rn(cap, tanhf(__fmul_rn(scores[0], multiplier) / cap));
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
    constexpr float kSlack = 8;
    const float to_log2 = __fmul_rn(multiplier, kLog2E);
    float largest = scores[0];
#pragma unroll
    for (int i = 1; i < kOwn; ++i) largest = fmaxf(largest, scores[i]);
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    // Where nothing was seen yet the difference is infinite, or NaN if still nothing is.
    const bool moves = __fmul_rn(__fsub_rn(largest, largest_), to_log2) > kSlack;
    if (__any_sync(kAllLanes, static_cast<int>(moves)) != 0) {
      move_largest(moves ? largest : largest_, to_log2);
    }
    const float base = largest_ == minus_infinity() ? 0.0F : -__fmul_rn(largest_, to_log2);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      scores[i] = cuda::exp2_flushed(fmaf(scores[i], to_log2, base));
      sum_ = __fadd_rn(sum_, scores[i]);
    }
  }

  // Brings what there is already under it. Where it has not changed the factor is exactly 1.
  __device__ void move_largest(float largest, float to_log2) {
    const float factor =
        largest == largest_ ? 1.0F : exp2f(__fmul_rn(__fsub_rn(largest_, largest), to_log2));
    largest_ = largest;
    sum_ = __fmul_rn(sum_, factor);
#pragma unroll
    for (int g = 0; g < Values::kGroups; ++g) minima_[g] = __fmul_rn(minima_[g], factor);
    float factors[2];
#pragma unroll
    for (int x = 0; x < 2; ++x) factors[x] = of_vector(factor, 2 * column() + x);
#pragma unroll
    for (int n = 0; n < kOutputTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) output_[n][i] = __fmul_rn(output_[n][i], factors[i % 2]);
    }
  }

  // What the lanes of a query vector have.
  __device__ static float of_vector(float x, unsigned vector) {
    return __shfl_sync(kAllLanes, x, static_cast<int>(4 * vector));
  }

  // The lane's weights in two parts, in pairs of tokens.
  struct WeightOperands {
    std::uint32_t first[kTokenTiles];
    std::uint32_t second[kTokenTiles];
  };

  // Weights, times scales unless they have none.
  template <bool kScaled>
  __device__ static void arrange_weights(const float (&weights)[kOwn], const float (&scales)[kOwn],
                                         WeightOperands& operands) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      float x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x[i] = weights[2 * t + i];
        if constexpr (kScaled) x[i] = __fmul_rn(x[i], scales[2 * t + i]);
      }
      operands.first[t] = take_bf16(x[0], x[1]);
      operands.second[t] = pack_bf16(x[0], x[1]);
    }
  }

  __device__ void accumulate(const Slot& values, const float (&weights)[kOwn]) {
    WeightOperands operands;
    if constexpr (Values::kScaling == Scaling::kNone) {
      arrange_weights<false>(weights, weights, operands);
    } else if constexpr (Values::kScaling == Scaling::kWhole) {
      float scales[kOwn];
      load_own(reinterpret_cast<const float*>(values.scales), scales);
      arrange_weights<true>(weights, scales, operands);
    }
    if constexpr (Values::kTiles == 1) {
      accumulate_plain(values, operands);
    } else {
      const std::uint32_t row = own_row<Values>(values.rows, lane() / 8);
#pragma unroll
      for (int unit = 0; unit < Values::kUnits; ++unit) {
        if constexpr (Values::kScaling == Scaling::kGrouped) {
          constexpr int kGroupUnits = Values::kUnits / Values::kGroups;
          if (unit % kGroupUnits == 0) begin_group(unit / kGroupUnits, weights, operands);
        }
        accumulate_unit(unit, unit_of(row, unit), operands);
      }
    }
  }

  __device__ void begin_group(int group, const float (&weights)[kOwn], WeightOperands& operands) {
    float scales[kOwn];
    load_own(scratch_ + group * kChunk, scales);
    arrange_weights<true>(weights, scales, operands);
    float minima[kOwn];
    load_own(scratch_ + (Values::kGroups + group) * kChunk, minima);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) minima_[group] = fmaf(weights[i], minima[i], minima_[group]);
  }

  __device__ void accumulate_plain(const Slot& values, const WeightOperands& operands) {
    const unsigned matrix = lane() / 8;
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += 2) {
      const std::uint32_t row = own_row<Values>(values.rows, t + matrix / 2) ^ matrix % 2 * 16;
#pragma unroll
      for (int unit = 0; unit < Values::kUnits; unit += 2) {
        std::uint32_t words[4];  // two units of 8 tokens, then of 8 more
        cuda::load_transposed(unit_of(row, unit), words);
        multiply_weights(unit / 2, words, t, operands);
      }
    }
  }

  __device__ void accumulate_unit(int unit, std::uint32_t row, const WeightOperands& operands) {
    static_assert(kTokenTiles == 4);
    std::uint32_t words[4];  // of each tile
    cuda::load_transposed(row, words);
#pragma unroll
    for (int t = 0; t < 4; t += 2) {
      std::uint32_t x[Values::kTiles];
      std::uint32_t next[Values::kTiles];
      Values::C::decode_value(words[t], values_.flip(), x);
      Values::C::decode_value(words[t + 1], values_.flip(), next);
#pragma unroll
      for (int j = 0; j < Values::kTiles; j += 2) {
        multiply_weights((unit * Values::kTiles + j) / 2, {x[j], x[j + 1], next[j], next[j + 1]}, t,
                         operands);
      }
    }
  }

  // With the weights of two tiles of tokens.
  __device__ void multiply_weights(int tile, const std::uint32_t (&a)[4], int tokens,
                                   const WeightOperands& weights) {
    cuda::multiply_add_bf16(output_[tile], a, weights.first[tokens], weights.first[tokens + 1]);
    cuda::multiply_add_bf16(output_[tile], a, weights.second[tokens], weights.second[tokens + 1]);
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
      sums.weights[row()] = sum;
    }
    float minima[Values::kGroups][2] = {};
    if constexpr (Values::kScaling == Scaling::kGrouped) {
#pragma unroll
      for (int g = 0; g < Values::kGroups; ++g) {
        const float all = sum_of_vector(minima_[g]);
        minima[g][0] = of_vector(all, 2 * column());
        minima[g][1] = of_vector(all, 2 * column() + 1);
      }
    }
#pragma unroll
    for (int x = 0; x < 2; ++x) {
      float* const values = sums.values[2 * column() + x];
#pragma unroll
      for (int n = 0; n < 2 * kOutputTiles; ++n) {
        values[value_number<typename Values::C>(n, static_cast<int>(row()))] = __fadd_rn(
            output_[n / 2][n % 2 * 2 + x], minima[n * Values::kGroups / kOutputTiles / 2][x]);
      }
    }
  }

  Block& block_;
  unsigned lane_;
  KeySource keys_;
  ValueSource values_;
  typename Shared::Ring& ring_;
  float* scratch_;
  int slot_ = 0;
  float largest_ = minus_infinity();  // of scores that are not multiplied yet
  float sum_ = 0;
  float output_[kOutputTiles][4] = {};
  float minima_[Values::kGroups] = {};
};

}  // namespace touchstone::attend
