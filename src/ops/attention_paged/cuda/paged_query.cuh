// The queries as operands of the tensor cores, and products with them.
#pragma once

#include "ops/attention_paged/cuda/paged_tensor_core_smem.cuh"

namespace touchstone::paged_attention {

// c = a * b and c += a * b in f16 or bf16.
template <bool kHalf>
__device__ void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
  if constexpr (kHalf) {
    cuda::multiply_f16(c, a, b0, b1);
  } else {
    cuda::multiply_bf16(c, a, b0, b1);
  }
}
template <bool kHalf>
__device__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (kHalf) {
    cuda::multiply_add_f16(c, a, b0, b1);
  } else {
    cuda::multiply_add_bf16(c, a, b0, b1);
  }
}

// Twice 16 numbers of the queries, as operands. Where shared memory is short, those of one
// part are one operand, each in its half of the rows, and what the other half makes of a product
// stands for nothing.
template <class Shared, bool kExact>
struct QueryPair {
  static constexpr bool kShared = kExact && !Shared::kWholeOperands;
  std::uint32_t parts[kShared ? 1 : 2][4];
  std::uint32_t third[kExact ? 1 : 2][4];

  __device__ void load(const Shared& shared, int pair, unsigned lane) {
    if constexpr (Shared::kWholeOperands) {
#pragma unroll
      for (int i = 0; i < 2; ++i) read(shared.first_part[2 * pair + i][lane], parts[i]);
    } else {
      read(shared.first_part[pair][lane], parts[0]);
    }
    if constexpr (!kExact) load_rest(shared, pair, lane);
  }

 private:
  __device__ static void read(const uint4& from, std::uint32_t (&to)[4]) {
    to[0] = from.x;
    to[1] = from.y;
    to[2] = from.z;
    to[3] = from.w;
  }
  __device__ void load_rest(const Shared& shared, int pair, unsigned lane) {
    if constexpr (!Shared::kWholeOperands) {
      const uint2 second = shared.rest[0][2 * pair][lane];
      const uint2 next_second = shared.rest[0][2 * pair + 1][lane];
      const std::uint32_t next[4] = {parts[0][1], next_second.x, parts[0][3], next_second.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) parts[1][i] = next[i];
      parts[0][1] = second.x;
      parts[0][3] = second.y;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint2 last = shared.rest[1][2 * pair + i][lane];
      third[i][0] = last.x;
      third[i][1] = 0;
      third[i][2] = last.y;
      third[i][3] = 0;
    }
  }
};

// Products of 8 tokens with the parts of the queries.
template <class Shared, bool kExact>
struct Dots {
  using Pair = QueryPair<Shared, kExact>;
  static constexpr bool kShared = Pair::kShared;
  static constexpr bool kHalf = Shared::Keys::kHalf;
  float parts[kShared ? 2 : 1][4];
  float third[kExact ? 1 : 4];

  // With number `which` of a pair; of the first nothing is there yet to be added to.
  __device__ void add(const Pair& query, int which, bool first, std::uint32_t b0,
                      std::uint32_t b1) {
    float(&sum)[4] = parts[kShared ? which : 0];
    const std::uint32_t(&a)[4] = query.parts[kShared ? 0 : which];
    if (first && (kShared || which == 0)) {
      multiply<kHalf>(sum, a, b0, b1);
      if constexpr (!kExact) multiply<kHalf>(third, query.third[which], b0, b1);
    } else {
      multiply_add<kHalf>(sum, a, b0, b1);
      if constexpr (!kExact) multiply_add<kHalf>(third, query.third[which], b0, b1);
    }
  }

  // Of the lane's token 0 or 1.
  __device__ float of(int i) const {
    if constexpr (kShared) return __fadd_rn(parts[0][i], parts[1][i + 2]);
    if constexpr (kExact) return parts[0][i];
    // An infinity must not meet the zeros in the other parts.
    return fabsf(parts[0][i]) == -minus_infinity()
               ? parts[0][i]
               : __fadd_rn(parts[0][i], __fadd_rn(parts[0][i + 2], third[i]));
  }
};

}  // namespace touchstone::paged_attention
