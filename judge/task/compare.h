// Compares what a contender answered with what the oracle knows. Every element has its own bound,
// and a NaN is never within it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "judge/task/task.h"

namespace touchstone::judge {

inline constexpr double kUnit = 0x1p-24;             // unit roundoff of f32
inline constexpr double kSmallestNormal = 0x1p-126;  // results below may be flushed to zero

// Growth of the rounding error of a sum of n terms, in units of the sum of magnitudes; see
// docs/judge_tolerances.md.
double growth_of(Growth growth, int64_t n);
// The same for one running sum over all terms. Only for errors that all elements of a row share, and
// that compare_apart() takes off before it looks at the digits of each.
double running_growth_of(Growth growth, int64_t n);

// What a case grants: a factor on derived bounds, and to the sums; `stable`: formulas that lose digits
// are outside.
struct Tolerance {
  double factor = 4;
  Growth growth = Growth::random;
  bool stable = false;
};

// What one running sum of positive terms may cost, in units of it: a term of a few roundings of the sum
// is not rounded at random but may be lost, the others count.
double running_sum_units(const Tolerance& tolerance, std::span<const double> terms, double sum);

// What the oracle says of one output tensor.
struct Expected {
  std::vector<double> value;
  std::vector<double> bound;  // largest allowed error
  std::vector<double> scale;  // magnitude in whose roundings errors are reported

  Expected() = default;
  explicit Expected(int64_t count)
      : value(static_cast<size_t>(count)),
        bound(static_cast<size_t>(count)),
        scale(static_cast<size_t>(count)) {}
};

// What may stand where the oracle has NaN or infinity.
enum class Special {
  same,        // NaN for NaN, the same infinity for an infinity
  not_finite,  // anything that is no number: orders of operation differ in which
};

// A part of an output: elements that are not selected are not looked at.
struct Elements {
  std::vector<bool> selected;  // empty: all
  bool contains(size_t element) const { return selected.empty() || selected[element]; }
};

OutputError compare_values(const std::string& output, int call, std::span<const float> got,
                           const Expected& expected, Special special,
                           const Elements& elements = {});
// Bit for bit; NaN equals NaN.
OutputError compare_bits(const std::string& output, int call, std::span<const float> got,
                         std::span<const float> expected);

// Errors that the elements of a row share are multiples of known vectors: an error of its sum scales
// all of it, one of its mean shifts it. They are fitted and taken off, row by row; what is left must
// be within `bound`, which has no sum in it.
struct Shared {
  int64_t rows = 0;
  int64_t cols = 0;
  // basis(row, vectors): fills one vector of `cols` for each error that is shared; false leaves the
  // row out.
  std::function<bool(int64_t, std::vector<std::vector<double>>&)> basis;
};
OutputError compare_apart(const std::string& output, int call, std::span<const float> got,
                          const Expected& expected, const Shared& shared);

std::span<const float> as_f32(std::span<const std::byte> bytes);
std::span<const int32_t> as_i32(std::span<const std::byte> bytes);
std::vector<std::byte> bytes_of(std::span<const float> values);
std::vector<std::byte> bytes_of(std::span<const int32_t> values);
// The values as f32: what an implementation that computes exactly would answer.
std::vector<std::byte> bytes_of(const Expected& expected);

// Gathers what is wrong with the replies to one case; the first complaint becomes the reason.
class Checker {
 public:
  Checker(const Case& asked, const std::vector<Reply>& replies);

  // The call returned success and its outputs have the right sizes. Complains otherwise.
  bool answered(size_t call);
  // The contender left this output out, and it may be: nothing to compare.
  bool omitted(size_t call, size_t output) const;
  // The call must have been refused by its own status; `untouched`: nothing may have been written.
  bool refused(size_t call, bool untouched = false);
  // What the call returned.
  void returned(size_t call, int64_t expected);
  void add(const OutputError& error, const std::vector<int64_t>& shape);
  // Draws, as compare_draws() saw them; an empty reason is none.
  void add_drawn(const OutputError& error, const std::string& reason);
  void complain(const std::string& reason);

  const Reply& reply(size_t call) const { return replies_[call]; }
  CaseCheck finish() const { return check_; }

 private:
  std::string label(size_t call) const;

  const Case& asked_;
  const std::vector<Reply>& replies_;
  CaseCheck check_;
};

// "[3, 17]" for a flat index.
std::string place(int64_t flat, const std::vector<int64_t>& shape);

}  // namespace touchstone::judge
