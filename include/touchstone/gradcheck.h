// Gradient checking of real sizes in seconds, for any operator with a forward and a backward.
//
// A backward computes J^T v for a cotangent v. For any direction u the numbers <v, J u> and
// <J^T v, u> must agree; J u comes from the forward alone, so one pass over the forward checks
// every element of every gradient at once. To check an operator:
//
//   template <class S>  // the forward: S is double or a dual number
//   void scale_rows(int64_t rows, int64_t cols, const S* x, const S* w, S* y);
//
//   namespace gc = touchstone::gradcheck;
//   std::vector<double> dy = gc::random_values(rows * cols, 7);
//   my_backward(dy, x, w, dx, dw);  // the code under test
//   gc::Report report = gc::check(
//       {.inputs = {{.name = "x", .shape = {rows, cols}, .value = x, .grad = dx, .per_row = true},
//                   {.name = "w", .shape = {cols}, .value = w, .grad = dw}},
//        .outputs = {{.name = "y", .shape = {rows, cols}, .cotangent = dy}},
//        .independent_rows = rows},
//       [&](const gc::DualSlice& s) {
//         scale_rows(s.rows, cols, s.in[0].data(), s.in[1].data(), s.out[0].data());
//       });
//   std::puts(report.summary().c_str());  // "wrong: residual 1e-03 ... dx: row 17, col 5 ..."
//
// A complete program is examples/check_my_backward. Three functions:
//
//   check()              forward templated on the scalar: dual numbers, 8 directions in one pass
//   check_differences()  forward a black box: central differences, all copies in one batched call
//   check_jacobian()     every entry of the Jacobian, where rows are independent: small sizes
//
// The measurements. Directions go to the inputs round-robin, so that each gradient has a residual
// of its own: max over its directions of |<v, J u> - <J^T v, u>| / ||J^T v||. Elements of u are
// independent, uniform with mean 0 and variance 1, so the numerator has the size of the 2-norm of
// the gradient's error. An error of relative size e is missed by one direction with probability at
// most 0.82 tolerance / e, whatever its shape (Ball's cube slicing theorem bounds the density of
// <error, u>; normal directions give 0.80). Doubling one element in 4 million is e = 5e-4.
//
// A wrong gradient is then located: blocks are split in eight, one direction per block, and the
// first wrong one is split again, down to one element or to the requested tile size.
//
// Everything is deterministic: u and random_values come from a counter-based generator.
// NaN and infinity, wherever they come from, make a check fail. Misuse throws InvalidArgument.
#pragma once

#include <cstdint>
#include <vector>

#include "touchstone/gradcheck/problem.h"

namespace touchstone::inline v0::gradcheck {

// `count` independent values, uniform with mean 0 and variance 1: cotangents, test inputs.
inline std::vector<double> random_values(int64_t count, uint64_t seed);

inline Report check(const Problem& problem, const DualForward& forward,
                    const Options& options = {});

inline Report check_differences(const Problem& problem, const BatchForward& forward,
                                const DifferenceOptions& options = {});

// Coloring: rows are independent, so column j of all rows is perturbed at once, and the backward
// is run on unit cotangents for one output column of all rows at once. Entries of shared inputs are
// compared summed over rows, as the backward returns them. Grads and cotangents in `problem` are
// not used. Passes when the largest difference is at most tolerance x the largest entry of that
// input. Memory: one gradient per output column.
inline JacobianReport check_jacobian(const Problem& problem, const DualForward& forward,
                                     const Backward& backward, const Options& options = {});

}  // namespace touchstone::inline v0::gradcheck

// The implementation: all of it is inline, so that this header works without the library.
#include "touchstone/gradcheck/check.h"
#include "touchstone/gradcheck/jacobian.h"
