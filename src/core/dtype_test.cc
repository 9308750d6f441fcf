// Element types: names, dispatch, and conversions against an independent reference.
#include "touchstone/core/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "tests/support/random.h"
#include "touchstone/core/quant_format.h"

namespace touchstone::inline v0 {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(DTypeNames, RoundTrip) {
  std::set<std::string_view> names;
  for (const DType dtype : kAllDTypes) {
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
    names.insert(name_of(dtype));
  }
  EXPECT_EQ(names.size(), std::size(kAllDTypes));
  EXPECT_EQ(name_of(DType::bf16), "bf16");
}

TEST(DTypeNames, UnknownNamesAreRefusedWithAList) {
  for (const char* name : {"", "f31", "F32", "f32 ", "float", "bf16x"}) {
    try {
      parse_dtype(name);
      ADD_FAILURE() << "accepted '" << name << "'";
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("bf16"), std::string::npos) << message;
      EXPECT_NE(message.find("'" + std::string(name) + "'"), std::string::npos) << message;
    }
  }
}

TEST(DTypeSizes, BitsAndBytes) {
  for (const DType dtype : kNativeDTypes) EXPECT_EQ(bits_of(dtype), 8 * size_of(dtype));
  EXPECT_EQ(bits_of(DType::f8_e4m3), 8);
  EXPECT_EQ(size_of(DType::f8_e4m3), 1);
  EXPECT_EQ(bits_of(DType::i4), 4);
  try {
    size_of(DType::i4);
    ADD_FAILURE() << "i4 has a size in bytes";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "dtype: i4 has no size in bytes: it has 4 bits");
  }
}

TEST(DTypeVisit, StorageOnlyTypesAreRefused) {
  for (const DType dtype : {DType::f8_e4m3, DType::i4}) {
    EXPECT_THROW(visit_dtype(dtype, []<class T>() {}), Unsupported);
    EXPECT_THROW(visit_float_dtype(dtype, []<class T>() {}), Unsupported);
  }
}

TEST(QuantFormat, SaysWhichDtypesHaveScales) {
  EXPECT_FALSE(is_quantized(QuantFormat{}));
  for (const DType dtype : {DType::i8, DType::i4, DType::f8_e4m3}) EXPECT_TRUE(is_quantized(dtype));
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) EXPECT_FALSE(is_quantized(dtype));
}

TEST(DTypeVisit, GivesTheTypeOfTheDtype) {
  for (const DType dtype : kNativeDTypes) {
    visit_dtype(dtype, [&]<class T>() {
      EXPECT_EQ(dtype_of<T>, dtype);
      EXPECT_EQ(static_cast<std::int64_t>(sizeof(T)), size_of(dtype));
    });
  }
  EXPECT_EQ(visit_dtype(DType::i8, []<class T>() { return sizeof(T); }), 1U);
}

TEST(DTypeVisit, FloatsOnly) {
  int visited = 0;
  for (const DType dtype : kAllDTypes) {
    try {
      visit_float_dtype(dtype, [&]<class T>() { ++visited; });
    } catch (const Unsupported&) {
      EXPECT_TRUE(name_of(dtype)[0] != 'f' || dtype == DType::f8_e4m3) << name_of(dtype);
    }
  }
  EXPECT_EQ(visited, 4);
}

TEST(DTypeVisit, UnknownValue) {
  EXPECT_THROW(visit_dtype(static_cast<DType>(99), []<class T>() {}), InvalidArgument);
}

// ---- 16-bit floating point -----------------------------------------------------------------

struct Format {
  int exponent_bits;
  int mantissa_bits;
};
template <class T>
constexpr Format kFormat = std::is_same_v<T, F16> ? Format{5, 10} : Format{8, 7};

// What the bits mean, from the definition of the format and not from the code under test.
template <class T>
double meaning(std::uint16_t bits) {
  constexpr Format f = kFormat<T>;
  const int exponent = (bits & 0x7fff) >> f.mantissa_bits;
  const int fraction = bits & ((1 << f.mantissa_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  double magnitude = 0;
  if (exponent == (1 << f.exponent_bits) - 1) {
    magnitude = fraction == 0 ? kInfinity : kNan;
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - bias - f.mantissa_bits);
  } else {
    magnitude = std::ldexp(fraction + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// The nearest number of the format, ties to even, found by bisection over the numbers themselves.
// Past the middle between the largest number and the next power of two lies infinity.
template <class T>
std::uint16_t nearest(long double value) {
  constexpr Format f = kFormat<T>;
  const auto infinity = static_cast<std::uint16_t>(((1 << f.exponent_bits) - 1) << f.mantissa_bits);
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const long double magnitude = std::fabs(value);
  std::uint16_t low = 0;  // the largest number not above the magnitude
  std::uint16_t high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (static_cast<long double>(meaning<T>(middle)) <= magnitude ? low : high) = middle;
  }
  const auto below = static_cast<long double>(meaning<T>(low));
  const long double above = high == infinity ? std::ldexp(1.0L, 1 << (f.exponent_bits - 1))
                                             : static_cast<long double>(meaning<T>(high));
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  const long double to_below = magnitude - below;
  const long double to_above = above - magnitude;
  bool up = to_above < to_below;
  if (to_above == to_below) up = (low & 1) != 0;
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

template <class T>
class Half : public ::testing::Test {};
using HalfTypes = ::testing::Types<F16, Bf16>;
TYPED_TEST_SUITE(Half, HalfTypes);

TYPED_TEST(Half, WideningIsExactForAllBits) {
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const TypeParam half = TypeParam::from_bits(bits);
    const double expected = meaning<TypeParam>(bits);
    const auto narrow = static_cast<float>(half);
    const auto wide = static_cast<double>(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(narrow) && std::isnan(wide)) << i;
    } else {
      ASSERT_EQ(static_cast<double>(narrow), expected) << i;
      ASSERT_EQ(wide, expected) << i;
    }
    ASSERT_EQ(std::signbit(narrow), std::signbit(expected)) << i;
  }
}

TYPED_TEST(Half, EveryNumberSurvivesTheRoundTrip) {
  constexpr Format f = kFormat<TypeParam>;
  const auto quiet = static_cast<std::uint16_t>(1 << (f.mantissa_bits - 1));
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const TypeParam half = TypeParam::from_bits(bits);
    // A NaN comes back quiet, with its sign and payload.
    const auto expected =
        static_cast<std::uint16_t>(std::isnan(meaning<TypeParam>(bits)) ? bits | quiet : bits);
    ASSERT_EQ(TypeParam(static_cast<float>(half)).bits, expected) << i;
    ASSERT_EQ(TypeParam(static_cast<double>(half)).bits, expected) << i;
  }
}

// Every number, every middle between two neighbors, and the nearest floats and doubles on either
// side of each: all the points where the rounding direction changes.
TYPED_TEST(Half, NarrowingAroundEveryBoundary) {
  for (int i = 0; i < 0x7fff; ++i) {
    const double a = meaning<TypeParam>(static_cast<std::uint16_t>(i));
    const double b = meaning<TypeParam>(static_cast<std::uint16_t>(i + 1));
    if (!std::isfinite(a)) break;
    const double middle = std::isinf(b)
                              ? a + (a - meaning<TypeParam>(static_cast<std::uint16_t>(i - 1))) / 2
                              : (a + b) / 2;
    for (const double point : {a, middle}) {
      for (const double sign : {1.0, -1.0}) {
        const double exact = sign * point;
        for (const double value :
             {exact, std::nextafter(exact, kInfinity), std::nextafter(exact, -kInfinity)}) {
          ASSERT_EQ(TypeParam(value).bits, nearest<TypeParam>(static_cast<long double>(value)))
              << std::hexfloat << value;
        }
        const auto f = static_cast<float>(exact);
        for (const float value :
             {f, std::nextafterf(f, HUGE_VALF), std::nextafterf(f, -HUGE_VALF)}) {
          ASSERT_EQ(TypeParam(value).bits, nearest<TypeParam>(static_cast<long double>(value)))
              << std::hexfloat << value;
        }
      }
    }
  }
}

// Floats and doubles with random bits, so every exponent, and a dense walk through the floats.
TYPED_TEST(Half, NarrowingOfAnything) {
  const test::Random random(3);
  for (std::int64_t i = 0; i < 400000; ++i) {
    const auto word = static_cast<std::uint32_t>(random.bits(i));
    const auto single = std::bit_cast<float>(word);
    if (!std::isnan(single)) {
      ASSERT_EQ(TypeParam(single).bits, nearest<TypeParam>(static_cast<long double>(single)))
          << std::hexfloat << single;
    }
    // Exponents of doubles are drawn from the range that matters: most of theirs round to 0 or inf.
    const double wide =
        std::ldexp(1 + random.uniform(i), static_cast<int>(random.bits(~i) % 320) - 160) *
        random.sign(i);
    ASSERT_EQ(TypeParam(wide).bits, nearest<TypeParam>(static_cast<long double>(wide)))
        << std::hexfloat << wide;
  }
  for (std::uint64_t word = 0; word < 0x100000000ULL; word += 4099) {
    const auto single = std::bit_cast<float>(static_cast<std::uint32_t>(word));
    if (std::isnan(single)) continue;
    ASSERT_EQ(TypeParam(single).bits, nearest<TypeParam>(static_cast<long double>(single)))
        << std::hexfloat << single;
  }
}

// A detour through float rounds twice: these doubles lie just off a middle that float cannot tell
// from the middle itself.
TYPED_TEST(Half, DoublesAreRoundedOnce) {
  constexpr int kBits = kFormat<TypeParam>.mantissa_bits;
  int fooled = 0;
  for (int i = 0; i < 1000; ++i) {
    const double base = 1.0 + std::ldexp(i % 128, -kBits);
    const double middle = base + std::ldexp(1.0, -kBits - 1);
    for (const double off : {0x1p-40, -0x1p-40}) {
      const double value = middle + off;
      const std::uint16_t expected = nearest<TypeParam>(static_cast<long double>(value));
      ASSERT_EQ(TypeParam(value).bits, expected) << std::hexfloat << value;
      fooled += TypeParam(static_cast<float>(value)).bits != expected ? 1 : 0;
    }
  }
  EXPECT_GT(fooled, 0) << "no case told one rounding from two";
}

TYPED_TEST(Half, NotANumberStaysSo) {
  for (const std::uint32_t payload : {1U, 0x1fffU, 0x2000U, 0x400000U, 0x7fffffU}) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const auto value = std::bit_cast<float>(sign | 0x7f800000U | payload);
      const TypeParam half(value);
      EXPECT_TRUE(std::isnan(meaning<TypeParam>(half.bits))) << std::hex << payload;
      EXPECT_EQ(half.bits >> 15, static_cast<int>(sign >> 31));
    }
  }
  for (const std::uint64_t payload : {1ULL, 0x7ffffffffffffULL, 0x8000000000000ULL}) {
    const TypeParam half(std::bit_cast<double>(0x7ff0000000000000ULL | payload));
    EXPECT_TRUE(std::isnan(meaning<TypeParam>(half.bits))) << std::hex << payload;
  }
}

// ---- all pairs -----------------------------------------------------------------------------

// Numbers that every type can be asked about.
std::vector<double> probes() {
  std::vector<double> values = {
      0.0,     -0.0,  0.5,   -0.5,   0.999,  1.0,       -1.0,       1.5,    -1.5,    2.5,  100.25,
      127.0,   127.9, 128.0, -128.0, -128.9, -129.0,    255.0,      255.9,  256.0,   1e4,  65504,
      65519.9, 65520, 1e5,   1e9,    2.2e9,  -2.2e9,    1e18,       9.3e18, -9.3e18, 1e30, -1e30,
      3.5e38,  1e300, 1e-7,  6e-8,   2e-8,   kInfinity, -kInfinity, kNan};
  for (int e = 0; e < 66; ++e) {
    values.push_back(std::ldexp(1.0, e));
    values.push_back(-std::ldexp(1.0, e));
    values.push_back(std::ldexp(1.0, e) - 1);
  }
  return values;
}

template <class T>
constexpr bool kIsInteger = std::is_integral_v<T>;

// The documented rule, in long double, which holds every element of every type exactly.
template <class To>
long double rule(long double value) {
  if constexpr (kIsInteger<To>) {
    if (std::isnan(value)) return 0;
    const auto low = static_cast<long double>(std::numeric_limits<To>::min());
    const auto high = static_cast<long double>(std::numeric_limits<To>::max());
    return std::min(std::max(std::trunc(value), low), high) + 0.0L;  // integers have one zero
  } else if constexpr (std::is_same_v<To, F16> || std::is_same_v<To, Bf16>) {
    if (std::isnan(value)) return value;
    return static_cast<long double>(meaning<To>(nearest<To>(value)));
  } else {
    return static_cast<long double>(static_cast<To>(value));
  }
}

template <class T>
long double exact(T value) {
  if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, Bf16>) {
    return static_cast<long double>(meaning<T>(value.bits));
  } else {
    return static_cast<long double>(value);
  }
}

template <class From, class To>
void check_pair(From from) {
  const long double value = exact(from);
  if constexpr (kIsInteger<From> && kIsInteger<To>) {
    // Between integers only what fits is defined.
    if (rule<To>(value) != value) return;
  }
  const long double expected = rule<To>(value);
  const long double actual = exact(convert<To>(from));
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual));
  } else {
    EXPECT_EQ(actual, expected) << "from " << name_of(dtype_of<From>) << " "
                                << static_cast<double>(value) << " to " << name_of(dtype_of<To>);
    EXPECT_EQ(std::signbit(actual), std::signbit(expected));
  }
}

TEST(Convert, AllPairsOfTypes) {
  for (const DType from : kNativeDTypes) {
    for (const DType to : kNativeDTypes) {
      visit_dtype(from, [&]<class From>() {
        visit_dtype(to, [&]<class To>() {
          for (const double probe : probes()) check_pair<From, To>(convert<From>(probe));
          check_pair<From, To>(From{});
        });
      });
    }
  }
}

TEST(Convert, LongIntegersAreRoundedOnce) {
  // Just above a middle between two f16 or bf16 numbers, by an amount double cannot hold.
  for (const std::int64_t above : {1, 3}) {
    for (int e = 54; e < 63; ++e) {
      for (std::int64_t fraction = 0; fraction < 4; ++fraction) {
        const std::int64_t middle =
            (std::int64_t{1} << e) + (2 * fraction + 1) * (std::int64_t{1} << (e - 8));
        for (const std::int64_t value : {middle - above, middle, middle + above}) {
          EXPECT_EQ(convert<Bf16>(value).bits, nearest<Bf16>(static_cast<long double>(value)));
          EXPECT_EQ(convert<Bf16>(-value).bits, nearest<Bf16>(static_cast<long double>(-value)));
        }
      }
    }
  }
  for (std::int64_t i = -70000; i <= 70000; ++i) {
    ASSERT_EQ(convert<F16>(i).bits, nearest<F16>(static_cast<long double>(i))) << i;
  }
}

TEST(Convert, IntegersSaturate) {
  EXPECT_EQ(convert<std::int8_t>(1e9F), 127);
  EXPECT_EQ(convert<std::int8_t>(-1e9F), -128);
  EXPECT_EQ(convert<std::uint8_t>(-3.0), 0);
  EXPECT_EQ(convert<std::uint8_t>(300.0), 255);
  EXPECT_EQ(convert<std::int32_t>(2147483648.0), std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(convert<std::int32_t>(2147483647.0), std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(convert<std::int64_t>(9223372036854775808.0), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(convert<std::int64_t>(-9223372036854775808.0),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(convert<std::int64_t>(kNan), 0);
  EXPECT_EQ(convert<std::int32_t>(F16::from_bits(0x7c00)),
            std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(convert<std::int32_t>(std::numeric_limits<float>::quiet_NaN()), 0);
}

}  // namespace
}  // namespace touchstone::inline v0
