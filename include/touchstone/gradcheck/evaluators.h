// Two ways to get <v, J u> from a forward: dual numbers and central differences.
// Part of touchstone/gradcheck.h; include that one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "touchstone/gradcheck/arrays.h"

namespace touchstone::inline v0::gradcheck::detail {

constexpr int kLanes = DualScalar::kLanes;

// A direction: random values on one block of one input, zero elsewhere.
struct Probe {
  size_t input = 0;
  Block block;
  uint64_t stream = 0;
};

// Computes <v, J u> from the forward, and watches the outputs go by.
class Evaluator {
 public:
  explicit Evaluator(const Problem& problem)
      : problem_(problem), output_squares_(problem.outputs.size()) {}
  virtual ~Evaluator() = default;
  virtual std::vector<double> jvp(const std::vector<Probe>& probes) = 0;

  // The first output that was not finite, in words; empty if there was none.
  const std::string& bad_output() const { return bad_output_; }

  // sum over outputs of ||v|| rms(y).
  double output_scale() const {
    double scale = 0.0;
    for (size_t o = 0; o < problem_.outputs.size(); ++o) {
      const Output& out = problem_.outputs[o];
      const double rms =
          std::sqrt(output_squares_[o].value() / static_cast<double>(count_of(out.shape)));
      scale += norm(out.cotangent) * rms;
    }
    return scale;
  }

 protected:
  // Values are the same for all directions: seeing them once is enough.
  void stop_watching() { watching_ = false; }

  // Looks at elements [offset, offset + count) of output o.
  template <class Value>
  void watch(size_t o, int64_t offset, int64_t count, const Value& value) {
    if (!watching_) return;
    const double squares = sum_over(count, [&](int64_t i) { return value(i) * value(i); });
    output_squares_[o].add(squares);
    // Finite squares are the common case and prove finite values; huge values overflow the square.
    if (std::isfinite(squares) || !bad_output_.empty()) return;
    for (int64_t i = 0; i < count; ++i) {
      if (std::isfinite(value(i))) continue;
      const Output& out = problem_.outputs[o];
      bad_output_ = "forward: " + out.name + ": " + element_text(out.shape, out.dims, offset + i) +
                    " is " + format("%g", value(i));
      return;
    }
  }

  const Problem& problem_;  // NOLINT: an evaluator lives inside one call

 private:
  std::vector<Sum> output_squares_;
  std::string bad_output_;
  bool watching_ = true;
};

class DualEvaluator : public Evaluator {
 public:
  DualEvaluator(const Problem& problem, const DualForward& forward, int64_t slice_bytes)
      : Evaluator(problem), forward_(forward), slice_rows_(rows_per_slice(problem, slice_bytes)) {
    in_.resize(problem.inputs.size());
    out_.resize(problem.outputs.size());
  }

  std::vector<double> jvp(const std::vector<Probe>& probes) override {
    std::vector<double> result;
    for (size_t first = 0; first < probes.size(); first += kLanes) {
      const size_t count = std::min(probes.size() - first, to_size(kLanes));
      const std::span<const Probe> batch(probes.data() + first, count);
      Sum sums[kLanes];
      run_lanes(batch, sums);
      for (size_t k = 0; k < count; ++k) result.push_back(sums[k].value());
      stop_watching();
    }
    return result;
  }

 private:
  static int64_t rows_per_slice(const Problem& p, int64_t bytes) {
    if (p.independent_rows == 0) return 0;
    int64_t per_row = 0;
    for (const Input& in : p.inputs) per_row += in.per_row ? count_of(in.shape) : 0;
    for (const Output& out : p.outputs) per_row += count_of(out.shape);
    per_row = per_row / p.independent_rows * static_cast<int64_t>(sizeof(DualScalar));
    return std::clamp<int64_t>(bytes / per_row, 1, p.independent_rows);
  }

  // The rows that a set of directions reaches: all, as soon as one of them moves a shared input.
  void run_lanes(std::span<const Probe> probes, Sum* sums) {
    for (size_t a = 0; a < problem_.inputs.size(); ++a) {
      if (!problem_.inputs[a].per_row) fill(a, probes, 0, kAllRows);
    }
    if (problem_.independent_rows == 0) return run_slice(probes, 0, 0, sums);
    int64_t first = problem_.independent_rows;
    int64_t last = 0;
    for (const Probe& probe : probes) {
      const bool per_row = problem_.inputs[probe.input].per_row;
      first = std::min(first, per_row ? probe.block.begin[0] : 0);
      last = std::max(last, per_row ? probe.block.end[0] : problem_.independent_rows);
    }
    for (int64_t row = first; row < last; row += slice_rows_) {
      run_slice(probes, row, std::min(slice_rows_, last - row), sums);
    }
  }

  void fill(size_t a, std::span<const Probe> probes, int64_t first, int64_t last) {
    const Input& in = problem_.inputs[a];
    const int64_t row_size = in.per_row ? count_of(in.shape) / in.shape[0] : count_of(in.shape);
    const int64_t base = in.per_row ? first * row_size : 0;
    const int64_t count = in.per_row ? (last - first) * row_size : row_size;
    std::vector<DualScalar>& dual = in_[a];
    dual.resize(to_size(count));
    for (int64_t i = 0; i < count; ++i) dual[to_size(i)] = in.value[to_size(base + i)];
    for (size_t k = 0; k < probes.size(); ++k) {
      if (probes[k].input != a) continue;
      for_each_run(in.shape, probes[k].block, first, last, [&](int64_t offset, int64_t length) {
        DualScalar* run = dual.data() + (offset - base);
        for (int64_t i = 0; i < length; ++i) run[i].d[k] = uniform(probes[k].stream, offset + i);
      });
    }
  }

  void run_slice(std::span<const Probe> probes, int64_t first, int64_t rows, Sum* sums) {
    DualSlice slice{.first_row = first, .rows = rows};
    for (size_t a = 0; a < problem_.inputs.size(); ++a) {
      if (problem_.inputs[a].per_row) fill(a, probes, first, first + rows);
      slice.in.emplace_back(in_[a]);
    }
    for (size_t o = 0; o < problem_.outputs.size(); ++o) {
      const std::vector<int64_t>& shape = problem_.outputs[o].shape;
      out_[o].resize(to_size(rows > 0 ? count_of(shape) / shape[0] * rows : count_of(shape)));
      slice.out.emplace_back(out_[o]);
    }
    forward_(slice);
    for (size_t o = 0; o < problem_.outputs.size(); ++o) {
      const int64_t count = std::ssize(out_[o]);
      const int64_t base = rows > 0 ? count / rows * first : 0;
      const DualScalar* y = out_[o].data();
      contract(problem_.outputs[o].cotangent.data() + base, y, count, sums);
      watch(o, base, count, [y](int64_t i) { return y[i].value; });
    }
  }

  static void contract(const double* v, const DualScalar* y, int64_t count, Sum* sums) {
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const int64_t end = std::min(count, begin + kChunk);
      double part[kLanes] = {};
      for (int64_t i = begin; i < end; ++i) {
        for (int k = 0; k < kLanes; ++k) part[k] += v[i] * y[i].d[k];
      }
      for (int k = 0; k < kLanes; ++k) sums[k].add(part[k]);
    }
  }

  const DualForward& forward_;  // NOLINT: an evaluator lives inside one call
  int64_t slice_rows_;
  std::vector<std::vector<DualScalar>> in_;
  std::vector<std::vector<DualScalar>> out_;
};

class DifferenceEvaluator : public Evaluator {
 public:
  DifferenceEvaluator(const Problem& problem, const BatchForward& forward,
                      const DifferenceOptions& options)
      : Evaluator(problem), forward_(forward), richardson_(options.richardson) {
    const double exponent = options.richardson ? 0.2 : 1.0 / 3.0;
    const double step = options.step > 0 ? options.step : std::pow(options.epsilon, exponent);
    for (const Input& in : problem.inputs) {
      const double rms = norm(in.value) / std::sqrt(static_cast<double>(in.value.size()));
      steps_.push_back(rms > 0 && std::isfinite(rms) ? step * rms : step);
    }
    const int64_t wanted = options.max_copies / copies_per_probe();
    probes_per_call_ = options.max_copies > 0 ? std::max<int64_t>(1, wanted) : 0;
  }

  std::vector<double> jvp(const std::vector<Probe>& probes) override {
    std::vector<double> result;
    const size_t step = probes_per_call_ > 0 ? to_size(probes_per_call_) : probes.size();
    for (size_t first = 0; first < probes.size(); first += step) {
      const size_t count = std::min(step, probes.size() - first);
      run_call({probes.data() + first, count}, result);
      stop_watching();
    }
    return result;
  }

 private:
  int64_t copies_per_probe() const { return richardson_ ? 4 : 2; }

  // Copy c of a probe is displaced by +h, -h, +h/2, -h/2 in this order.
  double displacement(const Probe& probe, int64_t copy) const {
    const double h = steps_[probe.input] * (copy < 2 ? 1.0 : 0.5);
    return copy % 2 == 0 ? h : -h;
  }

  void run_call(std::span<const Probe> probes, std::vector<double>& result) {
    const int64_t copies = std::ssize(probes) * copies_per_probe();
    std::vector<std::vector<double>> in(problem_.inputs.size());
    std::vector<std::vector<double>> out(problem_.outputs.size());
    Batch batch{.copies = copies};
    for (size_t a = 0; a < in.size(); ++a) {
      const std::span<const double> value = problem_.inputs[a].value;
      for (int64_t c = 0; c < copies; ++c) in[a].insert(in[a].end(), value.begin(), value.end());
      batch.in.emplace_back(in[a]);
    }
    for (int64_t c = 0; c < copies; ++c) {
      displace(probes[to_size(c / copies_per_probe())], c, in);
    }
    for (size_t o = 0; o < out.size(); ++o) {
      out[o].resize(to_size(copies * count_of(problem_.outputs[o].shape)));
      batch.out.emplace_back(out[o]);
    }
    forward_(batch);
    for (size_t k = 0; k < probes.size(); ++k) {
      const int64_t copy = static_cast<int64_t>(k) * copies_per_probe();
      const double coarse = difference(out, copy, steps_[probes[k].input]);
      const double fine =
          richardson_ ? difference(out, copy + 2, 0.5 * steps_[probes[k].input]) : 0;
      result.push_back(richardson_ ? (4.0 * fine - coarse) / 3.0 : coarse);
    }
    for (size_t o = 0; o < out.size(); ++o) {
      const int64_t size = count_of(problem_.outputs[o].shape);
      watch(o, 0, size, [&](int64_t i) { return out[o][to_size(i)]; });
    }
  }

  void displace(const Probe& probe, int64_t copy, std::vector<std::vector<double>>& in) const {
    const Input& input = problem_.inputs[probe.input];
    const double h = displacement(probe, copy % copies_per_probe());
    double* base = in[probe.input].data() + copy * std::ssize(input.value);
    for_each_run(input.shape, probe.block, 0, kAllRows, [&](int64_t offset, int64_t length) {
      for (int64_t i = offset; i < offset + length; ++i) base[i] += h * uniform(probe.stream, i);
    });
  }

  double difference(const std::vector<std::vector<double>>& out, int64_t copy, double h) const {
    double total = 0.0;
    for (size_t o = 0; o < out.size(); ++o) {
      const std::span<const double> v = problem_.outputs[o].cotangent;
      const double* plus = out[o].data() + copy * std::ssize(v);
      const double* minus = plus + std::ssize(v);
      total +=
          sum_over(std::ssize(v), [&](int64_t i) { return v[to_size(i)] * (plus[i] - minus[i]); });
    }
    return total / (2.0 * h);
  }

  const BatchForward& forward_;  // NOLINT: an evaluator lives inside one call
  bool richardson_;
  int64_t probes_per_call_;
  std::vector<double> steps_;
};

}  // namespace touchstone::inline v0::gradcheck::detail
