#include "theirs.h"

#include <cmath>

void ln_fwd(float* out, RowStats& stats, const float* in, const float* weight, const float* bias,
            long rows, long width, float epsilon) {
  stats.mean.resize(rows);
  stats.rstd.resize(rows);
  for (long r = 0; r < rows; ++r) {
    const float* x = in + r * width;
    double mean = 0;
    for (long j = 0; j < width; ++j) mean += x[j];
    mean /= width;
    double variance = 0;
    for (long j = 0; j < width; ++j) variance += (x[j] - mean) * (x[j] - mean);
    const double rstd = 1 / std::sqrt(variance / width + epsilon);
    for (long j = 0; j < width; ++j) {
      out[r * width + j] = static_cast<float>((x[j] - mean) * rstd * weight[j] + bias[j]);
    }
    stats.mean[r] = static_cast<float>(mean);
    stats.rstd[r] = static_cast<float>(rstd);
  }
}

void ln_bwd(float* din, float* dweight, float* dbias, const float* dout, const float* in,
            const float* weight, const RowStats& stats, long rows, long width) {
  std::vector<double> gamma_sums(width);
  std::vector<double> beta_sums(width);
  for (long r = 0; r < rows; ++r) {
    const float* x = in + r * width;
    const float* g = dout + r * width;
    // The rounded mean is not quite the mean: what is left of it is taken out here.
    double left = 0;
    for (long j = 0; j < width; ++j) left += x[j] - double{stats.mean[r]};
    const double mean = stats.mean[r] + left / width;
    const double rstd = stats.rstd[r];
    double sum = 0;
    double dot = 0;
    for (long j = 0; j < width; ++j) {
      const double xhat = (x[j] - mean) * rstd;
      sum += double{g[j]} * weight[j];
      dot += double{g[j]} * weight[j] * xhat;
      gamma_sums[j] += g[j] * xhat;
      beta_sums[j] += g[j];
    }
    for (long j = 0; j < width; ++j) {
      const double xhat = (x[j] - mean) * rstd;
      din[r * width + j] =
          static_cast<float>(rstd * (double{g[j]} * weight[j] - sum / width - xhat * dot / width));
    }
  }
  for (long j = 0; j < width; ++j) {
    dweight[j] = static_cast<float>(gamma_sums[j]);
    dbias[j] = static_cast<float>(beta_sums[j]);
  }
}
