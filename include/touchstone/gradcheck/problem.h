// The inputs and results of a gradient check: the types of touchstone/gradcheck.h.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "touchstone/dual.h"

namespace touchstone::inline v0::gradcheck {

// One argument of the forward, and the gradient that the backward claims for it.
struct Input {
  std::string name = {};
  std::vector<int64_t> shape = {};
  std::span<const double> value = {};
  std::span<const double> grad = {};   // J^T v, the code under test
  bool per_row = false;                // the leading dimension counts the independent rows
  std::vector<std::string> dims = {};  // names of the dimensions, used to say where an error is
  std::vector<int64_t> tile = {};      // size of the smallest block worth locating; one element
};

struct Output {
  std::string name = {};
  std::vector<int64_t> shape = {};
  std::span<const double> cotangent = {};  // v, as given to the backward
  std::vector<std::string> dims = {};
};

// With independent_rows > 0 the forward is applied to slices of rows: then row r of every output
// depends on row r of the per-row inputs and on the shared inputs only. The dual numbers of a slice
// stay in cache (72 bytes per element would otherwise be 600 MB at 4096 x 1024), and locating an
// error evaluates only the rows concerned. Without it, each evaluation sees the whole problem.
struct Problem {
  std::vector<Input> inputs = {};
  std::vector<Output> outputs = {};
  int64_t independent_rows = 0;
};

using DualScalar = Dual<8>;

// The arguments of the forward: it reads `in` and writes all of `out`; same order as in the
// problem. With independent rows, per-row arrays hold `rows` rows from `first_row` on, shared ones
// are whole.
struct DualSlice {
  std::vector<std::span<const DualScalar>> in = {};
  std::vector<std::span<DualScalar>> out = {};
  int64_t first_row = 0;
  int64_t rows = 0;
};
using DualForward = std::function<void(const DualSlice&)>;

// The same for a black box: every array has an extra leading dimension `copies`, shared inputs too.
struct Batch {
  std::vector<std::span<const double>> in = {};
  std::vector<std::span<double>> out = {};
  int64_t copies = 0;
};
using BatchForward = std::function<void(const Batch&)>;

// The backward as a function, for check_jacobian: cotangents in, gradients of all inputs out.
using Backward = std::function<void(const std::vector<std::span<const double>>& cotangents,
                                    const std::vector<std::span<double>>& grads)>;

struct Options {
  uint64_t seed = 1;
  int directions = 8;             // in all; every input gets at least one
  double tolerance = 1e-11;       // on the residual
  bool locate = true;             // search for the first wrong block when the check fails
  int64_t slice_bytes = 1 << 19;  // dual numbers per slice: half of a typical level-2 cache
  // A gradient that vanishes (or nearly) leaves only rounding noise to compare. Below this fraction
  // of ||v|| rms(y) / rms(x), the size of a gradient of "relative change in, relative change out",
  // differences are measured against that fraction instead of against the gradient's own norm.
  double gradient_floor = 1e-2;
};

struct DifferenceOptions {
  uint64_t seed = 1;
  int directions = 8;
  double tolerance = 1e-7;
  bool locate = true;
  double gradient_floor = 1e-2;
  bool richardson = false;  // steps h and h/2 combined: the error falls from h^2 to h^4
  double step = 0.0;  // relative to rms(x); 0: epsilon^(1/3), or epsilon^(1/5) with richardson
  double epsilon = std::numeric_limits<double>::epsilon();  // precision the black box computes in
  int64_t max_copies = 0;                                   // per call; 0: all that are needed
};

struct InputResult {
  std::string name = {};
  double residual = 0.0;
  double grad_norm = 0.0;
  int directions = 0;
};

// The first wrong block: elements begin <= index < end of the gradient of `input`.
struct Location {
  std::string input = {};
  std::vector<int64_t> begin = {};
  std::vector<int64_t> end = {};
  std::string text = {};  // "dx: row 17, col 5"
  int wrong_blocks = 0;   // how many of the first `blocks` blocks were wrong: 8 of 8 is everywhere
  int blocks = 0;
  double claimed = std::numeric_limits<double>::quiet_NaN();  // if the block is one element
  double expected = std::numeric_limits<double>::quiet_NaN();
};

struct Report {
  bool ok = false;
  double residual = std::numeric_limits<double>::quiet_NaN();
  double tolerance = 0.0;
  std::vector<InputResult> inputs = {};
  std::vector<Location> locations = {};  // one for each wrong gradient
  std::string problem = {};              // what made the check meaningless, such as a NaN; or empty
  std::string summary() const;
};

struct JacobianReport {
  bool ok = false;
  double max_abs_difference = std::numeric_limits<double>::quiet_NaN();
  double max_abs_entry = 0.0;
  std::string where = {};  // "dy/dx: y row 3, col 2; x row 3, col 5"
  double claimed = 0.0;
  double expected = 0.0;
};

}  // namespace touchstone::inline v0::gradcheck
