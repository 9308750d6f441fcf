// The numbers of cases: pure functions of (seed, stream, element), so that any element of any case
// can be made again alone, on any machine. Nothing here calls a library function whose last bit
// depends on who wrote it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "judge/task/case.h"

namespace touchstone::judge {

uint64_t mix_bits(uint64_t value);

// A seed for part number `part` of whatever `seed` stands for.
uint64_t derive_seed(uint64_t seed, uint64_t part);

class Stream {
 public:
  Stream(uint64_t seed, uint64_t stream) : key_(derive_seed(seed, stream)) {}

  uint64_t bits(int64_t element) const;
  double uniform(int64_t element) const;  // [0, 1)
  double normal(int64_t element) const;   // mean 0, deviation 1, |value| < 5
  double heavy(int64_t element) const;    // normal times a power of two: one in 2^j has 2^j
  double sign(int64_t element) const;     // -1 or 1
  int64_t index(int64_t element, int64_t count) const;  // [0, count)

 private:
  uint64_t key_;
};

double power_of_ten(int64_t exponent);  // the double nearest to it

// NaN of four kinds by turns: with a sign, which as an integer is below all numbers, and without, each of
// them quiet and signaling, whose bits differ from infinity's in the last place only.
float special_nan(int64_t which);

// What the parameter shift10 of a case adds to its logits: 10^shift10, or -10^-shift10 where it is below
// 0. Nothing where there is none.
double shift_of(const CaseSpec& spec);

// A permutation of 0 .. count - 1.
std::vector<int64_t> permutation(uint64_t seed, int64_t count);

// A parameter of a case; the second form has a value for specs that do not name it. InvalidArgument
// when it is missing or out of range.
int64_t parameter(const CaseSpec& spec, const std::string& name, int64_t least, int64_t most);
int64_t parameter_or(const CaseSpec& spec, const std::string& name, int64_t otherwise);
// One that need not be there, but has a range where it is.
int64_t optional_parameter(const CaseSpec& spec, const std::string& name, int64_t least,
                           int64_t most, int64_t otherwise = 0);

// Refuses parameters that the task does not know: a misspelt one would silently do nothing.
void check_parameter_names(const CaseSpec& spec, std::span<const char* const> known);

// The case that one of a hidden family stands for: nominal data mostly, one of `hostile` now and
// then, so that a contender cannot afford to guess. Only the seed decides.
CaseSpec drawn_family(const CaseSpec& spec, uint64_t stream, std::span<const char* const> hostile);

// Where thing number i of a case comes from in the case before a relation: permuted, or with every
// second one replaced by a new one (-1).
enum class Moved { nowhere, permuted, neighbors_replaced };
std::vector<int64_t> order_after(Moved moved, uint64_t seed, int64_t count);
// The same by the parameter `relation` of a case: permuted (1), or neighbors replaced (2).
std::vector<int64_t> order_after(const CaseSpec& spec, uint64_t seed, int64_t count);

InputTensor f32_input(std::string name, std::vector<int64_t> shape, std::span<const float> values);
InputTensor i32_input(std::string name, std::vector<int64_t> shape,
                      std::span<const int32_t> values);

// The bytes of a tensor as numbers. Data of wrong size is a programming error of the judge.
std::span<const float> as_f32(const InputTensor& tensor);
std::span<const int32_t> as_i32(const InputTensor& tensor);
std::vector<float> floats_of(const InputTensor& tensor);
std::vector<int32_t> ints_of(const InputTensor& tensor);

int64_t element_count(const std::vector<int64_t>& shape);

// `value` rounded to `bits` significant bits, at most 24; 11 is what tensor cores read.
float round_to_bits(float value, int bits);
void round_to_bits(std::span<float> values, int bits);

// For each named parameter above its least value: that value, half, and one less. Biggest steps
// first.
struct Shrinkable {
  const char* name;
  int64_t least;
};
std::vector<CaseSpec> smaller_parameters(const CaseSpec& spec, std::span<const Shrinkable> list);

}  // namespace touchstone::judge
