#include "judge/task/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

template <class T>
InputTensor input(std::string name, std::vector<int64_t> shape, std::span<const T> values) {
  InputTensor tensor{std::move(name), dtype_of<T>, std::move(shape), {}};
  tensor.data.resize(values.size_bytes());
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), values.size_bytes());
  return tensor;
}

template <class T>
std::span<const T> numbers(const InputTensor& tensor) {
  if (tensor.dtype != dtype_of<T> ||
      tensor.data.size() != static_cast<size_t>(element_count(tensor.shape)) * sizeof(T)) {
    throw InvalidArgument(fmt::format("case: input {}: bytes and shape disagree", tensor.name));
  }
  return {reinterpret_cast<const T*>(tensor.data.data()), tensor.data.size() / sizeof(T)};
}

}  // namespace

// The finalizer of SplitMix64: every input bit changes every output bit with probability near 1/2.
uint64_t mix_bits(uint64_t value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9ULL;
  value ^= value >> 27;
  value *= 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

uint64_t derive_seed(uint64_t seed, uint64_t part) {
  return mix_bits(mix_bits(seed + kGolden) ^ mix_bits(part * kGolden + 0x632be59bd9b4e019ULL));
}

uint64_t Stream::bits(int64_t element) const {
  return mix_bits(key_ + kGolden * (static_cast<uint64_t>(element) + 1));
}

double Stream::uniform(int64_t element) const {
  return static_cast<double>(bits(element) >> 11) * 0x1p-53;
}

// The sum of eight uniform numbers of 16 bits: near enough to normal, and exact.
double Stream::normal(int64_t element) const {
  const uint64_t first = bits(2 * element);
  const uint64_t second = bits(2 * element + 1);
  uint64_t sum = 0;
  for (int shift = 0; shift < 64; shift += 16) {
    sum += ((first >> shift) & 0xffff) + ((second >> shift) & 0xffff);
  }
  // Mean 4 * 65535, variance 8 * (2^32 - 1) / 12.
  constexpr double kDeviation = 53509.9;
  return (static_cast<double>(sum) - 4 * 65535.0) / kDeviation;
}

double Stream::heavy(int64_t element) const {
  const int exponent = std::min(std::countl_zero(bits(~element)), 12);
  return std::ldexp(normal(element), exponent);
}

double Stream::sign(int64_t element) const { return (bits(element) & 1) != 0 ? 1.0 : -1.0; }

int64_t Stream::index(int64_t element, int64_t count) const {
  return static_cast<int64_t>(uniform(element) * static_cast<double>(count));
}

double power_of_ten(int64_t exponent) {
  // Exact up to 10^22, and the quotient of two exact numbers is rounded once.
  double power = 1;
  for (int64_t i = 0; i < std::abs(exponent); ++i) power *= 10;
  return exponent < 0 ? 1 / power : power;
}

float special_nan(int64_t which) {
  constexpr std::array<uint32_t, 4> kBits = {0x7fc00000, 0x7f800001, 0xffc00000, 0xff800001};
  return std::bit_cast<float>(kBits[static_cast<size_t>(which) % kBits.size()]);
}

double shift_of(const CaseSpec& spec) {
  if (!spec.parameters.contains("shift10")) return 0;
  const int64_t exponent = optional_parameter(spec, "shift10", -12, 12);
  return exponent < 0 ? -power_of_ten(-exponent) : power_of_ten(exponent);
}

std::vector<int64_t> permutation(uint64_t seed, int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  const Stream random(seed, 0x7065726d);
  for (int64_t i = count - 1; i > 0; --i) {
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(random.index(i, i + 1))]);
  }
  return order;
}

int64_t parameter(const CaseSpec& spec, const std::string& name, int64_t least, int64_t most) {
  const auto found = spec.parameters.find(name);
  if (found == spec.parameters.end()) {
    throw InvalidArgument(fmt::format("case: {}: {} is missing", spec.family, name));
  }
  if (found->second < least || found->second > most) {
    throw InvalidArgument(fmt::format("case: {}: {}: expected {} to {}, got {}", spec.family, name,
                                      least, most, found->second));
  }
  return found->second;
}

int64_t parameter_or(const CaseSpec& spec, const std::string& name, int64_t otherwise) {
  const auto found = spec.parameters.find(name);
  return found == spec.parameters.end() ? otherwise : found->second;
}

int64_t optional_parameter(const CaseSpec& spec, const std::string& name, int64_t least,
                           int64_t most, int64_t otherwise) {
  return spec.parameters.contains(name) ? parameter(spec, name, least, most) : otherwise;
}

CaseSpec drawn_family(const CaseSpec& spec, uint64_t stream, std::span<const char* const> hostile) {
  CaseSpec drawn = spec;
  const Stream random(spec.seed, stream);
  const auto which = random.index(1, static_cast<int64_t>(hostile.size()));
  drawn.family = random.uniform(0) < 0.75 ? "nominal" : hostile[static_cast<size_t>(which)];
  return drawn;
}

std::vector<int64_t> order_after(Moved moved, uint64_t seed, int64_t count) {
  if (moved == Moved::permuted) return permutation(seed, count);
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    order[static_cast<size_t>(i)] = moved == Moved::neighbors_replaced && i % 2 == 1 ? -1 : i;
  }
  return order;
}

void check_parameter_names(const CaseSpec& spec, std::span<const char* const> known) {
  for (const auto& [name, value] : spec.parameters) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw InvalidArgument(fmt::format("case: {}: no parameter {}; there are {}", spec.family, name,
                                      fmt::join(known, ", ")));
  }
}

std::vector<int64_t> order_after(const CaseSpec& spec, uint64_t seed, int64_t count) {
  const int64_t relation = parameter_or(spec, "relation", 0);
  const Moved moved = relation == 1   ? Moved::permuted
                      : relation == 2 ? Moved::neighbors_replaced
                                      : Moved::nowhere;
  return order_after(moved, seed, count);
}

InputTensor f32_input(std::string name, std::vector<int64_t> shape, std::span<const float> values) {
  return input(std::move(name), std::move(shape), values);
}

InputTensor i32_input(std::string name, std::vector<int64_t> shape,
                      std::span<const int32_t> values) {
  return input(std::move(name), std::move(shape), values);
}

std::span<const float> as_f32(const InputTensor& tensor) { return numbers<float>(tensor); }
std::span<const int32_t> as_i32(const InputTensor& tensor) { return numbers<int32_t>(tensor); }

std::vector<float> floats_of(const InputTensor& tensor) {
  return {as_f32(tensor).begin(), as_f32(tensor).end()};
}
std::vector<int32_t> ints_of(const InputTensor& tensor) {
  return {as_i32(tensor).begin(), as_i32(tensor).end()};
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

float round_to_bits(float value, int bits) {
  if (!std::isfinite(value) || bits >= 24) return value;
  const int dropped = 24 - bits;
  uint32_t pattern = std::bit_cast<uint32_t>(value);
  pattern += (uint32_t{1} << (dropped - 1)) - 1 + ((pattern >> dropped) & 1U);
  return std::bit_cast<float>(pattern & ~((uint32_t{1} << dropped) - 1));
}

void round_to_bits(std::span<float> values, int bits) {
  for (float& value : values) value = round_to_bits(value, bits);
}

std::vector<CaseSpec> smaller_parameters(const CaseSpec& spec, std::span<const Shrinkable> list) {
  std::vector<CaseSpec> found;
  const auto offer = [&](const char* name, int64_t value) {
    CaseSpec next = spec;
    next.parameters[name] = value;
    found.push_back(std::move(next));
  };
  const auto value_of = [&](const Shrinkable& s) { return parameter_or(spec, s.name, s.least); };
  for (const Shrinkable& s : list) {
    if (value_of(s) > s.least) offer(s.name, s.least);
  }
  for (const Shrinkable& s : list) {
    if (value_of(s) / 2 > s.least) offer(s.name, value_of(s) / 2);
  }
  for (const Shrinkable& s : list) {
    if (value_of(s) - 1 > s.least) offer(s.name, value_of(s) - 1);
  }
  return found;
}

}  // namespace touchstone::judge
