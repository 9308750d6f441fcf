// The values of a row: logits + bias, -inf where masked. No #pragma once: read once per target,
// after cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <limits>

#if defined(TOUCHSTONE_SELECTION_CPU_VALUES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_SELECTION_CPU_VALUES_H_
#undef TOUCHSTONE_SELECTION_CPU_VALUES_H_
#else
#define TOUCHSTONE_SELECTION_CPU_VALUES_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;

// The next two vectors of elements, for bf16 the even and the odd ones: widening needs no shuffle
// then, and maxima and sums need a fixed order only.
template <class T>
HWY_INLINE void load_two(const T* p, Vector* two) {
  const Tag d;
  sd::load_pack(d, p, two);
  if constexpr (sd::kPack<T> == 1) sd::load_pack(d, p + hn::Lanes(d), two + 1);
}

// The maxima of the fine groups of a block, from its vectors in pairs as load_two() returns them.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// A group is two runs of four consecutive tokens, so that re-reading it takes two cache lines, not
// eight: for bf16, whose consecutive tokens share a lane, two lanes of two pairs of vectors; else
// four lanes of one pair. Lane 4q + i has the maximum of the group with these pairs and, of lanes
// 4q to 4q + 3, those from kFirstOfLane on.
template <class T>
constexpr std::size_t kPairOfLane[4] = {0, 2, 1, 3};
template <>
constexpr std::size_t kPairOfLane<Bf16>[4] = {0, 0, 2, 2};
template <class T>
constexpr std::size_t kFirstOfLane[4] = {0, 0, 0, 0};
template <>
constexpr std::size_t kFirstOfLane<Bf16>[4] = {0, 2, 0, 2};

template <class T>
class GroupMaxima {
 public:
  HWY_INLINE void add(std::size_t vector, const Vector* two) {
    pairs_[vector / 2] = hn::Max(two[0], two[1]);
  }
  HWY_INLINE Vector maxima() const {
    if constexpr (sd::kEvenOdd<T>) {
      const auto a = hn::Max(pairs_[0], pairs_[1]).raw;
      const auto b = hn::Max(pairs_[2], pairs_[3]).raw;
      return hn::Max(Vector{_mm512_shuffle_ps(a, b, 0x88)}, Vector{_mm512_shuffle_ps(a, b, 0xdd)});
    }
    return halve(halve(pairs_[0], pairs_[1]), halve(pairs_[2], pairs_[3]));
  }

 private:
  // Pairwise maxima of the lanes of a and of b.
  static HWY_INLINE Vector halve(Vector a, Vector b) {
    return hn::Max(hn::InterleaveLower(Tag(), a, b), hn::InterleaveUpper(Tag(), a, b));
  }

  static_assert(kBlockVectors == 8);
  Vector pairs_[4];
};
#else
// A group is a lane: bringing consecutive tokens together costs more than it saves here.
template <class T>
class GroupMaxima {
 public:
  HWY_INLINE void add(std::size_t vector, const Vector* two) {
    for (std::size_t i = 0; i < 2; ++i) {
      maxima_[i] = vector == 0 ? two[i] : hn::Max(two[i], maxima_[i]);
    }
  }
  HWY_INLINE Vector maxima() const { return hn::Max(maxima_[0], maxima_[1]); }

 private:
  Vector maxima_[2];
};
#endif

// The first n > 0 elements at p, padded with -inf to a vector.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_or_lowest(D d, const T* p, std::size_t n) {
  if (n >= hn::Lanes(d)) return sd::load(d, p);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  return hn::IfThenElse(hn::FirstN(d, n), sd::load_partial(d, p, n), lowest);
}

// Lanes whose token, from `token` on, is not masked.
template <class D>
HWY_INLINE hn::Mask<D> unmasked_lanes(D d, const std::uint32_t* token_mask, std::size_t token) {
  const hn::RebindToUnsigned<D> du;
  // A vector starts at a multiple of its lanes, which divide 32: one word covers it.
  const std::uint32_t word = token_mask[token / 32] >> (token % 32);
  alignas(64) constexpr std::uint32_t kBit[16] = {
      1U << 0, 1U << 1, 1U << 2,  1U << 3,  1U << 4,  1U << 5,  1U << 6,  1U << 7,
      1U << 8, 1U << 9, 1U << 10, 1U << 11, 1U << 12, 1U << 13, 1U << 14, 1U << 15};
  static_assert(hn::MaxLanes(D()) <= 16);
  return hn::RebindMask(d, hn::TestBit(hn::Set(du, word), hn::Load(du, kBit)));
}

// Tokens [first, first + n) of a row; first is a multiple of the lanes. `values` holds whole
// vectors.
template <class T>
HWY_INLINE void load_values(const LogitRows& p, std::int64_t row, std::size_t first, std::size_t n,
                            float* values) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const T* const x = static_cast<const T*>(p.logits) + row * p.logits_stride + first;
  const float* const bias = p.bias == nullptr ? nullptr : p.bias + row * p.bias_stride + first;
  const std::uint32_t* const token_mask =
      p.token_mask == nullptr ? nullptr : p.token_mask + row * p.token_mask_stride;
  for (std::size_t i = 0; i < n; i += lanes) {
    auto v = load_or_lowest(d, x + i, n - i);
    if (bias != nullptr) v = hn::Add(v, sd::load_some(d, bias + i, std::min(lanes, n - i)));
    if (token_mask != nullptr) {
      v = hn::IfThenElse(unmasked_lanes(d, token_mask, first + i), v, lowest);
    }
    hn::StoreU(v, d, values + i);
  }
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
