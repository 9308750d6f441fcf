// The same bits as kv_append_plain.cc, a vector at a time. Groups, scales and everything that does
// not fill a vector go through codec.h.
#include "cache/codec.h"
#include "cache/rotation.h"
#include "core/context_access.h"
#include "core/thread_pool.h"
#include "ops/kv_append/kv_append_problem.h"
#include "touchstone/core/checked.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/kv_append/kv_append_cpu.cc"
#include "hwy/aligned_allocator.h"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::inline v0::cache::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::RebindToSigned<Floats>;
using Codes = hn::RebindToUnsigned<Floats>;

// ---- rotation ----------------------------------------------------------------------------------

// Pairs at a distance that is a multiple of the lanes of `d`.
template <class D>
HWY_INLINE void combine_apart(D d, float* x, std::size_t dim, std::size_t distance) {
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t first = 0; first < dim; first += 2 * distance) {
    for (std::size_t i = first; i < first + distance; i += lanes) {
      const auto a = hn::LoadU(d, x + i);
      const auto b = hn::LoadU(d, x + i + distance);
      hn::StoreU(hn::Add(a, b), d, x + i);
      hn::StoreU(hn::Sub(a, b), d, x + i + distance);
    }
  }
}

HWY_INLINE void rotate_vector(float* x, std::size_t dim) {
#if HWY_TARGET != HWY_SCALAR
  const auto block = static_cast<std::size_t>(rotation_block(static_cast<std::int64_t>(dim)));
  if (block >= 4) {
    // Distances 1 and 2 lie within four lanes.
    const hn::FixedTag<float, 4> d4;
    const hn::Repartition<double, decltype(d4)> d2;
    for (std::size_t i = 0; i < dim; i += 4) {
      auto v = hn::LoadU(d4, x + i);
      auto partner = hn::Reverse2(d4, v);
      v = hn::OddEven(hn::Sub(partner, v), hn::Add(v, partner));
      partner = hn::Shuffle1032(v);
      v = hn::BitCast(d4, hn::OddEven(hn::BitCast(d2, hn::Sub(partner, v)),
                                      hn::BitCast(d2, hn::Add(v, partner))));
      hn::StoreU(v, d4, x + i);
    }
    for (std::size_t distance = 4; distance < block; distance *= 2) {
      if (distance == 4) {
        combine_apart(d4, x, dim, distance);
      } else {
        combine_apart(hn::CappedTag<float, 8>(), x, dim, distance);
      }
    }
    const float factor = rotation_factor(static_cast<std::int64_t>(block));
    for (std::size_t i = 0; i < dim; i += 4) {
      hn::StoreU(hn::Mul(hn::LoadU(d4, x + i), hn::Set(d4, factor)), d4, x + i);
    }
    return;
  }
#endif
  rotate(x, static_cast<std::int64_t>(dim));
}

// ---- formats with scales -----------------------------------------------------------------------

template <bool kAsymmetric>
HWY_INLINE GroupExtremes extremes(const float* x, std::size_t count) {
  const Floats d;
  const Words di;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = count / lanes * lanes;
  if (whole == 0) return extremes_of(x, static_cast<std::int64_t>(count));
  auto magnitude = hn::Zero(di);  // without its sign a float orders like an integer
  auto least = hn::LoadU(d, x);
  auto most = least;
  for (std::size_t i = 0; i < whole; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    magnitude = hn::Max(magnitude, hn::BitCast(di, hn::Abs(v)));
    if constexpr (kAsymmetric) {
      least = hn::Min(least, v);
      most = hn::Max(most, v);
    }
  }
  GroupExtremes result;
  result.magnitude_bits = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, magnitude)));
  if constexpr (kAsymmetric) {
    result.least = hn::GetLane(hn::MinOfLanes(d, least));
    result.most = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  if (whole < count) {
    const GroupExtremes rest = extremes_of(x + whole, static_cast<std::int64_t>(count - whole));
    result.magnitude_bits = std::max(result.magnitude_bits, rest.magnitude_bits);
    result.least = std::min(result.least, rest.least);
    result.most = std::max(result.most, rest.most);
  }
  return result;
}

// nearest() of lanes below 2^22 in magnitude, in the low bits of each lane: a float of this size
// has no bits for a fraction, so the addition rounds.
template <int kOffset = 0>
HWY_INLINE hn::Vec<Codes> nearest_bits(hn::Vec<Floats> v) {
  constexpr float kNoFraction = 0x1.8p23F;
  return hn::BitCast(Codes(), hn::Add(v, hn::Set(Floats(), kNoFraction + kOffset)));
}

// encode_fp8_e4m3 of lanes that are not NaN, in the low 8 bits.
HWY_INLINE hn::Vec<Codes> fp8_codes(hn::Vec<Floats> v) {
  const Floats d;
  const Codes du;
  const auto magnitude = hn::BitCast(du, hn::Abs(v));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(du, v)), hn::Set(du, 0x80));
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0x7ffff)), odd);
  const auto normal = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(du, (127 - 7) << 3));
  const auto subnormal = nearest_bits(hn::Mul(hn::Abs(v), hn::Set(d, 0x1p9F)));
  const auto below = hn::Lt(hn::Abs(v), hn::Set(d, 0x1p-6F));
  const auto code =
      hn::IfThenElse(hn::RebindMask(du, below), subnormal, hn::Min(normal, hn::Set(du, 0x7e)));
  return hn::Or(code, sign);
}

// One byte for each value: encode_value of all of them.
template <DType kEncoding, bool kAsymmetric>
HWY_INLINE void group_codes(const float* x, std::size_t count, Quantizer with,
                            std::uint8_t* codes) {
  constexpr QuantFormat kFormat{.dtype = kEncoding, .asymmetric = kAsymmetric};
  constexpr int kOffset = kEncoding == DType::i4 && !kAsymmetric ? 8 : 0;
  if (!(with.reciprocal > 0)) {
    std::fill(codes, codes + count, encode_value(kFormat, with, 0));
    return;
  }
  const Floats d;
  const hn::Rebind<std::uint8_t, Floats> d8;
  const std::size_t lanes = hn::Lanes(d);
  const auto reciprocal = hn::Set(d, with.reciprocal);
  const auto minimum = hn::Set(d, with.minimum);
  const float top = top_code(kFormat);
  const auto ceiling = hn::Set(d, top);
  const auto floor = hn::Set(d, kAsymmetric ? 0.0F : -top);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    auto v = hn::LoadU(d, x + i);
    if constexpr (kAsymmetric) v = hn::Sub(v, minimum);
    v = hn::Mul(v, reciprocal);
    if constexpr (kEncoding == DType::f8_e4m3) {
      hn::StoreU(hn::TruncateTo(d8, fp8_codes(v)), d8, codes + i);
    } else {
      v = hn::Min(hn::Max(v, floor), ceiling);
      hn::StoreU(hn::TruncateTo(d8, nearest_bits<kOffset>(v)), d8, codes + i);
    }
  }
  for (; i < count; ++i) codes[i] = encode_value(kFormat, with, x[i]);
}

// Two codes of four bits to the byte, the first of them low.
HWY_INLINE void pack_halves(const std::uint8_t* codes, std::size_t count, std::byte* to) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<std::int16_t> d16;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  const std::size_t bytes = 2 * hn::Lanes(d16);
  for (; i + bytes <= count; i += bytes) {
    const auto pairs = hn::LoadU(d16, reinterpret_cast<const std::int16_t*>(codes + i));
    const auto joined = hn::And(hn::Or(pairs, hn::ShiftRight<4>(pairs)), hn::Set(d16, 0xff));
    hn::StoreU(hn::DemoteTo(d8, joined), d8, reinterpret_cast<std::uint8_t*>(to) + i / 2);
  }
#endif
  for (; i < count; i += 2) {
    to[i / 2] = std::byte{static_cast<std::uint8_t>(codes[i] | (codes[i + 1] << 4))};
  }
}

template <DType kEncoding, bool kAsymmetric>
HWY_INLINE void encode_groups(const KvAppendPart& part, const float* x, std::uint8_t* codes,
                              std::byte* values, std::byte* scales) {
  const auto length = static_cast<std::size_t>(group_length(part.format, part.dim));
  const auto dim = static_cast<std::size_t>(part.dim);
  constexpr bool kHalves = kEncoding == DType::i4;
  if constexpr (!kHalves) codes = reinterpret_cast<std::uint8_t*>(values);
  for (std::size_t first = 0, group = 0; first < dim; first += length, ++group) {
    const GroupScale scale = scale_of(part.format, extremes<kAsymmetric>(x + first, length));
    store_scale(part.format, scales, static_cast<std::int64_t>(group), scale);
    group_codes<kEncoding, kAsymmetric>(x + first, length, quantizer_of(scale), codes + first);
  }
  if constexpr (kHalves) pack_halves(codes, dim, values);
}

// ---- formats without ---------------------------------------------------------------------------

template <class T>
HWY_INLINE void store_values(const float* x, std::size_t dim, std::byte* values) {
  const Floats d;
  const auto nan = hn::BitCast(d, hn::Set(Words(), static_cast<std::int32_t>(kNanBits)));
  auto* to = reinterpret_cast<T*>(values);
  for (std::size_t i = 0; i < dim; i += hn::Lanes(d)) {
    const std::size_t count = std::min(hn::Lanes(d), dim - i);
    const auto v = simd::HWY_NAMESPACE::load_some(d, x + i, count);
    simd::HWY_NAMESPACE::store_some(hn::IfThenElse(hn::IsNaN(v), nan, v), d, to + i, count);
  }
}

// ---- vectors -----------------------------------------------------------------------------------

HWY_INLINE void store_vector(const KvAppendPart& part, const float* x, std::uint8_t* codes,
                             std::byte* values, std::byte* scales) {
  const auto dim = static_cast<std::size_t>(part.dim);
  const bool asymmetric = part.format.asymmetric;
  switch (part.format.dtype) {
    case DType::f32:
      return store_values<float>(x, dim, values);
    case DType::bf16:
      return store_values<Bf16>(x, dim, values);
    case DType::f16:
      return store_values<F16>(x, dim, values);
    case DType::i8:
      return asymmetric ? encode_groups<DType::i8, true>(part, x, codes, values, scales)
                        : encode_groups<DType::i8, false>(part, x, codes, values, scales);
    case DType::i4:
      return asymmetric ? encode_groups<DType::i4, true>(part, x, codes, values, scales)
                        : encode_groups<DType::i4, false>(part, x, codes, values, scales);
    case DType::f8_e4m3:
      return encode_groups<DType::f8_e4m3, false>(part, x, codes, values, scales);
    default:
      return;  // no format of a checked layout
  }
}

template <class T>
HWY_INLINE void widen_vector(const T* from, std::size_t dim, float* to) {
  const Floats d;
  for (std::size_t i = 0; i < dim; i += hn::Lanes(d)) {
    const std::size_t count = std::min(hn::Lanes(d), dim - i);
    const auto v = simd::HWY_NAMESPACE::load_some(d, from + i, count);
    simd::HWY_NAMESPACE::store_some(v, d, to + i, count);
  }
}

// The vectors of tokens [first, end), all heads.
void append_tokens(const KvAppendProblem& p, const KvAppendPart& part, std::int64_t first,
                   std::int64_t end) {
  const auto dim = static_cast<std::size_t>(part.dim);
  // On cache lines: a load that crosses one waits for the stores before it.
  const auto vector = hwy::AllocateAligned<float>(dim);
  const auto codes = hwy::AllocateAligned<std::uint8_t>(dim);
  for (std::int64_t token = first; token < end; ++token) {
    const PageSlot slot = p.slot_of(token);
    if (slot.page < 0) continue;
    std::byte* page = p.memory + slot.page * p.page_bytes;
    for (std::int64_t head = 0; head < p.kv_heads; ++head) {
      const std::int64_t from = token * part.stride + head * part.dim;
      if (part.dtype == DType::f32) {
        widen_vector(static_cast<const float*>(part.from) + from, dim, vector.get());
      } else if (part.dtype == DType::bf16) {
        widen_vector(static_cast<const Bf16*>(part.from) + from, dim, vector.get());
      } else {
        widen_vector(static_cast<const F16*>(part.from) + from, dim, vector.get());
      }
      if (part.rotated) rotate_vector(vector.get(), dim);
      const std::int64_t at = head * p.page_tokens + slot.slot;
      store_vector(part, vector.get(), codes.get(), page + part.values_at + at * part.value_bytes,
                   page + part.scales_at + at * part.scale_bytes);
    }
  }
}

}  // namespace touchstone::inline v0::cache::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::inline v0::cache {

HWY_EXPORT(append_tokens);

void append_simd(Context& context, const KvAppendProblem& p) {
  // Numbers worth a task: at 2 per ns some 8 us, twice the cost of waking a thread.
  constexpr std::int64_t kNumbersPerTask = 16384;
  const auto run = HWY_DYNAMIC_DISPATCH(append_tokens);
  const std::int64_t numbers = p.kv_heads * (p.part[0].dim + p.part[1].dim);
  const std::int64_t step = ceil_div(kNumbersPerTask, numbers);
  detail::ContextAccess::pool(context).run(ceil_div(p.tokens, step), [&](std::int64_t task) {
    const std::int64_t end = std::min(p.tokens, (task + 1) * step);
    for (const KvAppendPart& part : p.part) {
      if (part.from != nullptr) run(p, part, task * step, end);
    }
  });
}

}  // namespace touchstone::inline v0::cache
#endif
