// What layer norm and RMS norm have to compute: the oracle's values with the bounds an
// implementation must keep. RMS norm is layer norm without mean and bias.
#pragma once

#include <cstdint>
#include <vector>

#include "oracle/norm.h"
#include "spec/bounds.h"

namespace touchstone::spec {

struct NormProblem {
  bool layer = true;  // false: RMS norm
  DType dtype = DType::f32;
  DType grad_dtype = DType::f32;  // of dweight and dbias
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  double eps = 1e-5;
  double weight_offset = 0;    // RMS norm only
  bool before_weight = false;  // RMS norm only: rounded to the dtype before the weight
};

inline oracle::Norm oracle_norm(const NormProblem& p) {
  return p.layer ? oracle::Norm::layer : oracle::Norm::rms;
}

// Inputs as float64. `h` is what gets normalized: x, or the rounded x + residual. Absent arguments
// are empty.
struct NormValues {
  std::vector<double> h, weight, bias, dy, dsum;
};

// RMS norm has no mean.
struct NormStatistics {
  std::vector<double> mean, rstd;
};
NormStatistics norm_statistics(const NormProblem& problem, const NormValues& values);

struct NormForwardReference {
  Expected y, mean, rstd;
};
struct NormBackwardReference {
  Expected dx, dweight, dbias;
};
NormForwardReference norm_forward_reference(const NormProblem& problem, const NormValues& values);
NormBackwardReference norm_backward_reference(const NormProblem& problem, const NormValues& values);

// One column of dweight and dbias from given statistics, for problems too large for the above.
class NormColumn {
 public:
  explicit NormColumn(const NormProblem& problem) : problem_(problem) {}
  void add(double dy, double h, double mean, double rstd);
  void finish(Expected& dweight, Expected& dbias) const;

 private:
  const NormProblem& problem_;
  double dweight_ = 0;
  double dweight_size_ = 0;
  double dbias_ = 0;
  double dbias_size_ = 0;
};

}  // namespace touchstone::spec
