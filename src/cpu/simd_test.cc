// Every conversion and every tail of cpu/simd.h, for every SIMD target, against the scalar types of
// half.h.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway asks.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::simd::HWY_NAMESPACE {

// dst[i] = src[i] in the same type: whole packs, then what is left, vector by vector.
template <class T, class C>
void copy_all(const T* src, T* dst, std::size_t n, bool streamed) {
  const hn::ScalableTag<C> d;
  hn::Vec<decltype(d)> pack[kPack<T>];
  std::size_t i = 0;
  for (; i + pack_columns<T>() <= n; i += pack_columns<T>()) {
    load_pack(d, src + i, pack);
    if (streamed) {
      stream_pack(pack, d, dst + i);
    } else {
      store_pack(pack, d, dst + i);
    }
  }
  for (; i < n; i += hn::Lanes(d)) {
    const std::size_t some = std::min(hn::Lanes(d), n - i);
    store_some(load_some(d, src + i, some), d, dst + i, some);
  }
  if (streamed) hwy::FlushStream();
}

// Widens by packs and again by vectors; the two must agree.
template <class T>
bool widen_all(const T* src, float* dst, std::size_t n) {
  const hn::ScalableTag<float> d;
  std::vector<float> packed(n);
  std::size_t i = 0;
  for (; i + pack_columns<T>() <= n; i += pack_columns<T>()) {
    hn::Vec<decltype(d)> pack[kPack<T>];
    load_pack(d, src + i, pack);
    for (std::size_t k = 0; k < kPack<T>; ++k) store(pack[k], d, &packed[i + k * hn::Lanes(d)]);
  }
  from_pack_order<T>(packed.data(), n, dst);
  bool same = true;
  for (std::size_t j = 0; j + hn::Lanes(d) <= i; j += hn::Lanes(d)) {
    store(load(d, src + j), d, &packed[j]);
  }
  for (std::size_t j = 0; j < i; ++j) {
    const auto a = std::bit_cast<std::uint32_t>(packed[j]);
    same = same && a == std::bit_cast<std::uint32_t>(dst[j]);
  }
  return same;
}

// Narrows by packs and, where `both`, again by vectors; the two must agree. n is a multiple of any
// pack.
template <class T>
bool narrow_all(const float* src, T* dst, std::size_t n, bool both) {
  const hn::ScalableTag<float> d;
  std::vector<float> packed(src, src + n);
  to_pack_order<T>(packed.data(), n);
  for (std::size_t i = 0; i < n; i += pack_columns<T>()) {
    hn::Vec<decltype(d)> pack[kPack<T>];
    for (std::size_t k = 0; k < kPack<T>; ++k) {
      pack[k] = load(d, &packed[i + k * hn::Lanes(d)]);
      if constexpr (kEvenOdd<T>) pack[k] = clean_nan(d, pack[k]);
    }
    store_pack(pack, d, dst + i);
  }
  if (!both) return true;
  std::vector<T> again(n);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) store(load(d, src + i), d, &again[i]);
  return std::memcmp(again.data(), dst, n * sizeof(T)) == 0;
}

void copy_f32_all(const float* src, float* dst, std::size_t n, bool streamed) {
  copy_all<float, float>(src, dst, n, streamed);
}
void copy_f64_all(const double* src, double* dst, std::size_t n, bool streamed) {
  copy_all<double, double>(src, dst, n, streamed);
}
void copy_f16_all(const F16* src, F16* dst, std::size_t n, bool streamed) {
  copy_all<F16, float>(src, dst, n, streamed);
}
void copy_bf16_all(const Bf16* src, Bf16* dst, std::size_t n, bool streamed) {
  copy_all<Bf16, float>(src, dst, n, streamed);
}
bool widen_f16_all(const F16* src, float* dst, std::size_t n) { return widen_all(src, dst, n); }
bool widen_bf16_all(const Bf16* src, float* dst, std::size_t n) { return widen_all(src, dst, n); }
bool narrow_f16_all(const float* src, F16* dst, std::size_t n, bool both) {
  return narrow_all(src, dst, n, both);
}
bool narrow_bf16_all(const float* src, Bf16* dst, std::size_t n, bool both) {
  return narrow_all(src, dst, n, both);
}
void stream_copy_all(const float* src, float* dst, std::size_t n) {
  stream_copy(src, dst, n);
  hwy::FlushStream();
}

template <class T>
void round_all(const float* src, float* dst, std::size_t n) {
  const hn::ScalableTag<float> d;
  for (std::size_t i = 0; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    store(round_to<T>(d, load(d, src + i)), d, dst + i);
  }
}
void round_f16_all(const float* src, float* dst, std::size_t n) { round_all<F16>(src, dst, n); }
void round_bf16_all(const float* src, float* dst, std::size_t n) { round_all<Bf16>(src, dst, n); }

float sum_one_vector(const float* src, std::size_t* lanes) {
  const hn::ScalableTag<float> d;
  *lanes = hn::Lanes(d);
  return sum_lanes(d, load(d, src));
}

}  // namespace touchstone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include "touchstone/core/device.h"
#include "touchstone/core/error.h"
#include "touchstone/core/testing.h"

namespace touchstone::simd {
namespace {

HWY_EXPORT(widen_f16_all);
HWY_EXPORT(widen_bf16_all);
HWY_EXPORT(narrow_f16_all);
HWY_EXPORT(narrow_bf16_all);
HWY_EXPORT(copy_f32_all);
HWY_EXPORT(copy_f64_all);
HWY_EXPORT(copy_f16_all);
HWY_EXPORT(copy_bf16_all);
HWY_EXPORT(round_f16_all);
HWY_EXPORT(round_bf16_all);
HWY_EXPORT(stream_copy_all);
HWY_EXPORT(sum_one_vector);

class EveryTarget : public ::testing::Test {
 protected:
  ~EveryTarget() override { testing::set_simd_target(""); }

  template <class Body>
  static void for_each_target(Body&& body) {
    for (const std::string& target : simd_targets()) {
      SCOPED_TRACE(target);
      testing::set_simd_target(target);
      ASSERT_EQ(simd_target(), target);
      body();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
};

// Hardware quiets a signalling NaN when it widens one; half.h keeps it. Both are NaNs of the same
// sign and payload.
std::uint32_t quieted(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x7fffffffU) > 0x7f800000U ? bits | 0x400000U : bits;
}

template <class T, class Widen>
void check_widening(Widen&& widen) {
  std::vector<T> src(65536);
  for (std::size_t i = 0; i < src.size(); ++i) {
    src[i] = T::from_bits(static_cast<std::uint16_t>(i));
  }
  std::vector<float> dst(src.size());
  ASSERT_TRUE(widen(src.data(), dst.data(), src.size()));
  for (std::size_t i = 0; i < src.size(); ++i) {
    ASSERT_EQ(quieted(dst[i]), quieted(static_cast<float>(src[i]))) << "bits " << i;
  }
}

template <class T>
std::vector<T> narrowed(const std::vector<float>& patterns) {
  std::vector<T> result(patterns.size());
  std::ranges::transform(patterns, result.begin(), [](float x) { return T(x); });
  return result;
}

// The same for floats whose bits count up without a change of sign. Narrowing is monotonic there, so
// between two equal values there are only equal ones.
template <class T>
void narrow_run(const std::vector<float>& patterns, std::size_t first, std::size_t last,
                std::vector<T>& result) {
  result[first] = T(patterns[first]);
  result[last] = T(patterns[last]);
  if (result[first].bits == result[last].bits) {
    std::fill(result.begin() + static_cast<std::ptrdiff_t>(first),
              result.begin() + static_cast<std::ptrdiff_t>(last), result[first]);
  } else if (last - first > 1) {
    narrow_run(patterns, first, (first + last) / 2, result);
    narrow_run(patterns, (first + last) / 2, last, result);
  }
}

// `patterns`, a multiple of 64 floats, narrowed by every target, against the scalar type.
void check_narrowing(const std::vector<float>& patterns, const std::vector<F16>& expected_f16,
                     const std::vector<Bf16>& expected_bf16, bool both = true) {
  const std::size_t n = patterns.size();
  std::vector<F16> f16(n);
  std::vector<Bf16> bf16(n);
  for (const std::string& target : simd_targets()) {
    testing::set_simd_target(target);
    ASSERT_TRUE(HWY_DYNAMIC_DISPATCH(narrow_f16_all)(patterns.data(), f16.data(), n, both))
        << target;
    ASSERT_TRUE(HWY_DYNAMIC_DISPATCH(narrow_bf16_all)(patterns.data(), bf16.data(), n, both))
        << target;
    if (std::memcmp(f16.data(), expected_f16.data(), n * sizeof(F16)) == 0 &&
        std::memcmp(bf16.data(), expected_bf16.data(), n * sizeof(Bf16)) == 0) {
      continue;
    }
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(f16[i].bits, expected_f16[i].bits)
          << target << " f16 of bits " << std::bit_cast<std::uint32_t>(patterns[i]);
      ASSERT_EQ(bf16[i].bits, expected_bf16[i].bits)
          << target << " bf16 of bits " << std::bit_cast<std::uint32_t>(patterns[i]);
    }
  }
}

// Every value of T, the points half way to its neighbors, and `reach` floats on either side of
// each: all the points where the rounding direction changes.
template <class T>
void add_boundaries(std::uint32_t reach, std::vector<float>* patterns) {
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto value = static_cast<float>(T::from_bits(static_cast<std::uint16_t>(i)));
    const auto next = static_cast<float>(T::from_bits(static_cast<std::uint16_t>(i ^ 1U)));
    for (const float center : {value, value / 2 + next / 2}) {
      const auto bits = std::bit_cast<std::uint32_t>(center);
      for (std::uint32_t k = 0; k <= 2 * reach; ++k) {
        patterns->push_back(std::bit_cast<float>(bits - reach + k));
      }
    }
  }
}

// Memory of which the last byte before an unreadable page is the end of the data.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    readable_ = (bytes / page + 1) * page;
    mapped_ = readable_ + page;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED ||
        mprotect(static_cast<char*>(base_) + readable_, page, PROT_NONE) != 0) {
      throw OutOfMemory("no guarded memory");
    }
  }
  ~GuardedBytes() { munmap(base_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(static_cast<char*>(base_) + readable_ - bytes_);
  }

 private:
  std::size_t bytes_;
  std::size_t readable_ = 0;
  std::size_t mapped_ = 0;
  void* base_ = nullptr;
};

// Copies n elements that end at an unreadable page, for every n up to five vectors' worth, and
// looks at the element before and after what was written.
template <class T, class Copy>
void check_tails(Copy&& copy) {
  constexpr std::size_t kMax = 5 * 16;
  for (std::size_t n = 0; n <= kMax; ++n) {
    const GuardedBytes src(n * sizeof(T));
    T* const from = src.data<T>();
    for (std::size_t i = 0; i < n; ++i) from[i] = T(static_cast<float>(i + 1));
    const GuardedBytes at_end((n + 1) * sizeof(T));
    std::vector<T> inside(n + 2, T(-1.0F));
    at_end.data<T>()[0] = T(-1.0F);
    copy(from, at_end.data<T>() + 1, n, false);
    copy(from, inside.data() + 1, n, false);
    ASSERT_EQ(static_cast<float>(at_end.data<T>()[0]), -1.0F);
    ASSERT_EQ(static_cast<float>(inside[0]), -1.0F);
    ASSERT_EQ(static_cast<float>(inside[n + 1]), -1.0F);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_EQ(static_cast<float>(at_end.data<T>()[i + 1]), static_cast<float>(i + 1)) << n;
      ASSERT_EQ(static_cast<float>(inside[i + 1]), static_cast<float>(i + 1)) << n;
    }
  }
}

template <class T, class Copy>
void check_streaming(Copy&& copy) {
  constexpr std::size_t kCount = 1024;
  std::vector<T> src(kCount);
  for (std::size_t i = 0; i < kCount; ++i) src[i] = T(static_cast<float>(i % 251));
  alignas(64) T dst[kCount];
  copy(src.data(), dst, kCount, true);
  // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): bits are what is meant
  ASSERT_EQ(std::memcmp(dst, src.data(), sizeof(dst)), 0);
}

TEST_F(EveryTarget, Widens16BitTypesExactly) {
  for_each_target([] {
    check_widening<F16>(HWY_DYNAMIC_DISPATCH(widen_f16_all));
    check_widening<Bf16>(HWY_DYNAMIC_DISPATCH(widen_bf16_all));
  });
}

TEST_F(EveryTarget, NarrowsAroundEveryRoundingBoundary) {
  std::vector<float> patterns;
  add_boundaries<F16>(2, &patterns);
  add_boundaries<Bf16>(2, &patterns);
  ASSERT_EQ(patterns.size() % 64, 0U);
  check_narrowing(patterns, narrowed<F16>(patterns), narrowed<Bf16>(patterns));
}

TEST_F(EveryTarget, NarrowsFloatsSpreadOverTheWholeRange) {
  constexpr std::uint64_t kStride = 1021;  // odd, so that all low bit patterns occur
  std::vector<float> patterns;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += kStride) {
    patterns.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  patterns.resize((patterns.size() + 63) / 64 * 64);
  check_narrowing(patterns, narrowed<F16>(patterns), narrowed<Bf16>(patterns));
}

// Minutes, not seconds: run by the test that carries the label slow.
TEST_F(EveryTarget, DISABLED_NarrowsEveryFloat) {
  constexpr std::uint64_t kBlock = std::uint64_t{1} << 14;
  std::vector<float> patterns(kBlock);
  std::vector<F16> f16(kBlock);
  std::vector<Bf16> bf16(kBlock);
  for (std::uint64_t start = 0; start < (std::uint64_t{1} << 32); start += kBlock) {
    for (std::uint64_t i = 0; i < kBlock; ++i) {
      patterns[i] = std::bit_cast<float>(static_cast<std::uint32_t>(start + i));
    }
    // The other tests narrow by vectors at every boundary; here one block in sixteen suffices.
    narrow_run(patterns, 0, kBlock - 1, f16);
    narrow_run(patterns, 0, kBlock - 1, bf16);
    check_narrowing(patterns, f16, bf16, start / kBlock % 16 == 0);
    if (HasFatalFailure()) return;
  }
}

TEST_F(EveryTarget, RoundsLikeNarrowingAndWidening) {
  std::vector<float> patterns;
  add_boundaries<F16>(1, &patterns);
  add_boundaries<Bf16>(1, &patterns);
  patterns.resize(patterns.size() / 64 * 64);
  for_each_target([&] {
    std::vector<float> f16(patterns.size());
    std::vector<float> bf16(patterns.size());
    HWY_DYNAMIC_DISPATCH(round_f16_all)(patterns.data(), f16.data(), patterns.size());
    HWY_DYNAMIC_DISPATCH(round_bf16_all)(patterns.data(), bf16.data(), patterns.size());
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      ASSERT_EQ(quieted(f16[i]), quieted(static_cast<float>(F16(patterns[i]))));
      ASSERT_EQ(quieted(bf16[i]), quieted(static_cast<float>(Bf16(patterns[i]))));
    }
  });
}

TEST_F(EveryTarget, TailsStayInsideTheirRow) {
  for_each_target([] {
    check_tails<float>(HWY_DYNAMIC_DISPATCH(copy_f32_all));
    check_tails<double>(HWY_DYNAMIC_DISPATCH(copy_f64_all));
    check_tails<F16>(HWY_DYNAMIC_DISPATCH(copy_f16_all));
    check_tails<Bf16>(HWY_DYNAMIC_DISPATCH(copy_bf16_all));
  });
}

TEST_F(EveryTarget, StreamsWhatItWouldStore) {
  for_each_target([] {
    check_streaming<float>(HWY_DYNAMIC_DISPATCH(copy_f32_all));
    check_streaming<double>(HWY_DYNAMIC_DISPATCH(copy_f64_all));
    check_streaming<F16>(HWY_DYNAMIC_DISPATCH(copy_f16_all));
    check_streaming<Bf16>(HWY_DYNAMIC_DISPATCH(copy_bf16_all));
  });
}

TEST_F(EveryTarget, StreamCopyTakesAnyAddress) {
  for_each_target([] {
    constexpr std::size_t kMax = 200;
    std::vector<float> src(kMax + 16);
    for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i + 1);
    for (std::size_t n = 0; n <= kMax; n += 7) {
      for (std::size_t shift = 0; shift < 16; ++shift) {
        std::vector<float> dst(n + 18, -1.0F);
        HWY_DYNAMIC_DISPATCH(stream_copy_all)(src.data() + shift / 2, dst.data() + 1 + shift, n);
        ASSERT_EQ(dst[shift], -1.0F);
        ASSERT_EQ(dst[1 + shift + n], -1.0F);
        ASSERT_EQ(std::memcmp(&dst[1 + shift], &src[shift / 2], n * sizeof(float)), 0);
      }
    }
  });
}

TEST_F(EveryTarget, SumsAllLanes) {
  for_each_target([] {
    std::vector<float> src(256);
    for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<float>(i + 1);
    std::size_t lanes = 0;
    const float sum = HWY_DYNAMIC_DISPATCH(sum_one_vector)(src.data(), &lanes);
    const std::size_t expected = lanes * (lanes + 1) / 2;
    EXPECT_EQ(sum, static_cast<float>(expected));
  });
}

TEST(SimdTarget, UnknownNameIsRefusedAndNamed) {
  const std::string before = simd_target();
  try {
    testing::set_simd_target("MMX");
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("MMX"), std::string::npos) << error.what();
  }
  EXPECT_EQ(simd_target(), before);
}

TEST(SimdTarget, EmptyNameMeansTheBest) {
  const std::vector<std::string> targets = simd_targets();
  ASSERT_FALSE(targets.empty());
  testing::set_simd_target(targets.back());
  EXPECT_EQ(simd_target(), targets.back());
  testing::set_simd_target("");
  EXPECT_EQ(simd_target(), targets.front());
}

}  // namespace
}  // namespace touchstone::simd

#endif  // HWY_ONCE
