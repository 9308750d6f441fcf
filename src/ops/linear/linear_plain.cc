// Linear as one would write it down: plain loops, one thread, f64 sums. The reference to read
// first.
#include <vector>

#include "ops/linear/linear_epilogue.h"
#include "ops/linear/linear_problem.h"

namespace touchstone::linear_layer {
namespace {

// Row o of W.
std::vector<double> weight_row(const Weight& w, std::int64_t o, std::int64_t in) {
  if (w.format->dtype == DType::f64) {
    const auto* const row = reinterpret_cast<const double*>(w.row(o));
    return {row, row + in};
  }
  std::vector<float> values(at(in));
  w.format->decode(w.row(o), in / w.format->block_elements, values.data());
  return {values.begin(), values.end()};
}

// Row r of a matrix.
std::vector<double> row_of(ConstRows rows, DType dtype, std::int64_t r, std::int64_t cols) {
  std::vector<double> values(at(cols));
  visit_float_dtype(dtype, [&]<class T>() {
    const T* const from = static_cast<const T*>(rows.data) + r * rows.stride;
    for (std::int64_t c = 0; c < cols; ++c) values[at(c)] = convert<double>(from[c]);
  });
  return values;
}

double element(ConstRows rows, DType dtype, std::int64_t r, std::int64_t c) {
  return visit_float_dtype(dtype, [&]<class T>() {
    return convert<double>(static_cast<const T*>(rows.data)[r * rows.stride + c]);
  });
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// round_to_int8 in the type of the sums, whose division decides between two integers.
double rounded_to_int8(std::vector<double>& x, DType dtype) {
  if (dtype == DType::f64) return round_to_int8(x.data(), std::ssize(x));
  std::vector<float> values(x.begin(), x.end());
  const double scale = static_cast<double>(round_to_int8(values.data(), std::ssize(values)));
  x.assign(values.begin(), values.end());
  return scale;
}

// to[i] = values[i], or the sum of both.
void store_gradient(const std::vector<double>& values, DType dtype, void* to, std::int64_t first,
                    bool accumulate) {
  visit_float_dtype(dtype, [&]<class T>() {
    T* const row = static_cast<T*>(to) + first;
    for (std::size_t i = 0; i < values.size(); ++i) {
      row[i] = convert<T>(accumulate ? convert<double>(row[i]) + values[i] : values[i]);
    }
  });
}

void backward_weight(const Backward& p) {
  std::vector<double> sums(at(p.in));
  std::vector<double> bias_sums(at(p.out));
  for (std::int64_t o = 0; o < p.out; ++o) {
    sums.assign(sums.size(), 0);
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const double dy = element(p.dy, p.dtype, r, o);
      bias_sums[at(o)] += dy;
      if (p.dweight.data == nullptr) continue;
      const std::vector<double> x = row_of(p.x, p.dtype, r, p.in);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += dy * x[i];
    }
    if (p.dweight.data != nullptr) {
      store_gradient(sums, p.dweight_dtype, p.dweight.data, o * p.dweight.stride, p.accumulate);
    }
  }
  if (p.dbias != nullptr) store_gradient(bias_sums, p.dbias_dtype, p.dbias, 0, p.accumulate);
}

}  // namespace

void forward_plain(Context& context, const Forward& p) {
  (void)context;
  const Epilogue<double> epilogue(p);
  for (std::int64_t c = 0; c < p.columns(); ++c) {
    const std::vector<double> w = weight_row(p.weight, c, p.in);
    const std::vector<double> up =
        p.gate == LinearGate::none ? w : weight_row(p.weight, c + p.columns(), p.in);
    for (std::int64_t r = 0; r < p.rows; ++r) {
      std::vector<double> x = row_of(p.x, p.dtype, r, p.in);
      const double scale = p.int8_activations ? rounded_to_int8(x, p.dtype) : 1;
      double sum = scale * dot(x, w);
      double of_up = p.gate == LinearGate::none ? 0 : scale * dot(x, up);
      epilogue.store(r, c, 1, &sum, &of_up);
    }
  }
}

void backward_plain(Context& context, const Backward& p) {
  (void)context;
  if (p.dx.data != nullptr) {
    std::vector<std::vector<double>> weight;
    for (std::int64_t o = 0; o < p.out; ++o) weight.push_back(weight_row(p.weight, o, p.in));
    for (std::int64_t r = 0; r < p.rows; ++r) {
      const std::vector<double> dy = row_of(p.dy, p.dtype, r, p.out);
      std::vector<double> sums(at(p.in));
      for (std::size_t o = 0; o < dy.size(); ++o) {
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += dy[o] * weight[o][i];
      }
      store_gradient(sums, p.dtype, p.dx.data, r * p.dx.stride, false);
    }
  }
  if (p.dweight.data != nullptr || p.dbias != nullptr) backward_weight(p);
}

}  // namespace touchstone::linear_layer
