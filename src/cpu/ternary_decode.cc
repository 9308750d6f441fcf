// Ternary blocks to f32: codes as int8, widened and scaled in vectors.

#include "cpu/ternary_codec.h"
#include "cpu/ternary_layout.h"
#include "cpu/ternary_unpack.h"
#include "touchstone/core/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/ternary_decode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::inline v0::ternary::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using Signed = hn::Rebind<std::int8_t, D>;
using Ints = hn::Rebind<std::int32_t, D>;

template <WeightFormatId kId>
HWY_INLINE void decode_format(const std::byte* from, std::int64_t n, float* to) {
  constexpr Layout kLayout = layout_of(kId);
  constexpr std::size_t kCount = static_cast<std::size_t>(kLayout.elements);
  const D d;
  const std::int64_t bytes = weight_format(kId).block_bytes;
  HWY_ALIGN std::int8_t codes[kCount];
  for (std::int64_t b = 0; b < n; ++b, from += bytes, to += kCount) {
    unpack_block<kId>(reinterpret_cast<const std::uint8_t*>(from), codes);
    const auto scale = hn::Set(d, block_scale(kId, from));
    for (std::size_t i = 0; i < kCount; i += hn::Lanes(d)) {
      const auto code = hn::PromoteTo(Ints(), hn::Load(Signed(), codes + i));
      hn::StoreU(hn::Mul(scale, hn::ConvertTo(d, code)), d, to + i);
    }
  }
}

void decode_all(WeightFormatId id, const std::byte* from, std::int64_t n, float* to) {
  using Id = WeightFormatId;
  switch (id) {
    case Id::ternary_g32:
      return decode_format<Id::ternary_g32>(from, n, to);
    case Id::ternary_g64:
      return decode_format<Id::ternary_g64>(from, n, to);
    case Id::ternary_g128:
      return decode_format<Id::ternary_g128>(from, n, to);
    case Id::ternary_g256:
      return decode_format<Id::ternary_g256>(from, n, to);
    case Id::base3_g128:
      return decode_format<Id::base3_g128>(from, n, to);
    case Id::sherry_g128:
      return decode_format<Id::sherry_g128>(from, n, to);
    case Id::tq1_0:
      return decode_format<Id::tq1_0>(from, n, to);
    case Id::tq2_0:
      return decode_format<Id::tq2_0>(from, n, to);
    case Id::q2_0:
      return decode_format<Id::q2_0>(from, n, to);
    case Id::pq2_0:
      return decode_format<Id::pq2_0>(from, n, to);
    case Id::ptq1_0:
      return decode_format<Id::ptq1_0>(from, n, to);
    default:
      return;
  }
}

}  // namespace touchstone::inline v0::ternary::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::inline v0::ternary {

HWY_EXPORT(decode_all);

template <WeightFormatId kId>
void decode_blocks(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(decode_all)(kId, from, n, to);
}

template void decode_blocks<WeightFormatId::ternary_g32>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::ternary_g64>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::ternary_g128>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::ternary_g256>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::base3_g128>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::sherry_g128>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::tq1_0>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::tq2_0>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::q2_0>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::pq2_0>(const std::byte*, std::int64_t, float*);
template void decode_blocks<WeightFormatId::ptq1_0>(const std::byte*, std::int64_t, float*);

}  // namespace touchstone::inline v0::ternary
#endif
