// Compares <v, J u> with the gradient under test, and finds the first block that is wrong.
// Part of touchstone/gradcheck.h; include that one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "touchstone/gradcheck/evaluators.h"

namespace touchstone::inline v0::gradcheck {
namespace detail {

constexpr int kFanOut = 8;  // blocks per step of the descent: one per lane

struct Pairing {
  double difference = 0.0;  // |<v, J u> - <J^T v, u>|
  double grad_norm = 0.0;   // of the gradient on the block
};

inline Pairing pair_with_gradient(const Input& in, const Probe& probe, double jvp) {
  Sum dot;
  Sum squares;
  for_each_run(in.shape, probe.block, 0, kAllRows, [&](int64_t offset, int64_t length) {
    const double* g = in.grad.data() + offset;
    dot.add(sum_over(length, [&](int64_t i) { return g[i] * uniform(probe.stream, offset + i); }));
    squares.add(sum_over(length, [&](int64_t i) { return g[i] * g[i]; }));
  });
  return {std::fabs(jvp - dot.value()), std::sqrt(squares.value())};
}

// Equal to zero counts as equal also where there is nothing to compare with.
inline double relative(double difference, double scale) {
  return difference == 0 ? 0.0 : difference / scale;
}

inline std::string location_text(const Input& in, const Block& block) {
  std::string text;
  for (size_t d = 0; d < in.shape.size(); ++d) {
    const int64_t begin = block.begin[d];
    const int64_t last = block.end[d] - 1;
    if (last - begin + 1 == in.shape[d] && in.shape[d] > 1) continue;
    const int64_t tile = in.tile.empty() ? 1 : in.tile[d];
    const bool one_tile = begin % tile == 0 && last < begin + tile;
    text += (text.empty() ? "" : ", ") + dim_name(in.dims, in.shape.size(), d) + " ";
    if (tile > 1 && one_tile) text += "tile " + std::to_string(begin / tile) + " (";
    text += std::to_string(begin);
    if (last > begin) text += ".." + std::to_string(last);
    if (tile > 1 && one_tile) text += ")";
  }
  return "d" + in.name + ": " + (text.empty() ? "no single block stands out" : text);
}

class Search {
 public:
  Search(const Problem& problem, Evaluator& evaluator, size_t input, double scale, double tolerance,
         uint64_t seed)
      : in_(problem.inputs[input]),
        evaluator_(evaluator),
        input_(input),
        scale_(scale),
        tolerance_(tolerance),
        seed_(seed) {}

  // Narrows one dimension after the other, so that the block found is the first in memory order.
  Location run() {
    Block block = whole(in_.shape);
    Location found{.input = in_.name};
    for (size_t d = 0; d < in_.shape.size(); ++d) {
      const int64_t tile = in_.tile.empty() ? 1 : in_.tile[d];
      while (block.end[d] - block.begin[d] > tile) {
        const std::optional<Block> next = first_wrong_part(block, d, tile, found);
        if (!next) return finish(block, found);
        block = *next;
      }
    }
    return finish(block, found);
  }

 private:
  std::optional<Block> first_wrong_part(const Block& block, size_t d, int64_t tile,
                                        Location& found) {
    const int64_t tiles = (block.end[d] - block.begin[d] + tile - 1) / tile;
    const int64_t parts = std::min<int64_t>(kFanOut, tiles);
    std::vector<Probe> probes;
    for (int64_t p = 0; p < parts; ++p) {
      Probe probe{.input = input_, .block = block, .stream = stream_of(seed_, probe_number_++)};
      probe.block.begin[d] = block.begin[d] + tiles * p / parts * tile;
      probe.block.end[d] = std::min(block.end[d], block.begin[d] + tiles * (p + 1) / parts * tile);
      probes.push_back(std::move(probe));
    }
    const std::vector<double> jvp = evaluator_.jvp(probes);
    std::optional<Block> first;
    int wrong = 0;
    for (size_t p = 0; p < probes.size(); ++p) {
      if (!is_wrong(probes[p], jvp[p])) continue;
      if (!first) first = probes[p].block;
      ++wrong;
    }
    if (found.blocks == 0) {
      found.blocks = static_cast<int>(parts);
      found.wrong_blocks = wrong;
    }
    return first;
  }

  // A block is held to its share of the whole gradient's norm, or to its own if that is larger.
  bool is_wrong(const Probe& probe, double jvp) const {
    const Pairing pairing = pair_with_gradient(in_, probe, jvp);
    const double share =
        static_cast<double>(probe.block.count()) / static_cast<double>(count_of(in_.shape));
    const double scale = std::max(scale_ * std::sqrt(share), pairing.grad_norm);
    return !(relative(pairing.difference, scale) <= tolerance_);
  }

  Location finish(const Block& block, Location found) {
    found.begin = block.begin;
    found.end = block.end;
    found.text = location_text(in_, block);
    if (block.count() == 1) {
      const Probe probe{.input = input_, .block = block, .stream = stream_of(seed_, probe_number_)};
      const double jvp = evaluator_.jvp({probe})[0];
      for_each_run(in_.shape, block, 0, kAllRows, [&](int64_t offset, int64_t) {
        found.claimed = in_.grad[to_size(offset)];
        found.expected = jvp / uniform(probe.stream, offset);
      });
    }
    return found;
  }

  const Input& in_;       // NOLINT: a search lives inside one call
  Evaluator& evaluator_;  // NOLINT
  size_t input_;
  double scale_;
  double tolerance_;
  uint64_t seed_;
  uint64_t probe_number_ = uint64_t{1} << 32;  // apart from the directions of the check itself
};

// ---- the check as a whole ---------------------------------------------------------------------

struct CheckSettings {
  uint64_t seed;
  int directions;
  double tolerance;
  double gradient_floor;
  bool locate;
};

// In words, the first NaN or infinity handed to the check; empty if all is finite.
inline std::string find_bad_argument(const Problem& problem) {
  const auto look = [](std::span<const double> data, const auto& array, const std::string& what) {
    for (int64_t i = 0; i < std::ssize(data); ++i) {
      const double x = data[to_size(i)];
      if (std::isfinite(x)) continue;
      return what + ": " + element_text(array.shape, array.dims, i) + " is " + format("%g", x);
    }
    return std::string();
  };
  for (const Input& in : problem.inputs) {
    if (std::string bad = look(in.value, in, in.name); !bad.empty()) return bad;
    if (std::string bad = look(in.grad, in, "d" + in.name); !bad.empty()) return bad;
  }
  for (const Output& out : problem.outputs) {
    std::string bad = look(out.cotangent, out, "cotangent of " + out.name);
    if (!bad.empty()) return bad;
  }
  return {};
}

inline double gradient_scale(const Input& in, const Evaluator& evaluator, double floor) {
  const double rms = norm(in.value) / std::sqrt(static_cast<double>(in.value.size()));
  const double natural = evaluator.output_scale() / (rms > 0 ? rms : 1.0);
  return std::max(norm(in.grad), std::isfinite(natural) ? floor * natural : 0.0);
}

inline void check_settings(const CheckSettings& settings) {
  if (settings.directions < 1) refuse("directions: expected at least 1");
  if (!(settings.tolerance >= 0)) refuse("tolerance: expected a number >= 0");
  if (!(settings.gradient_floor >= 0)) refuse("gradient_floor: expected a number >= 0");
}

inline Report run_check(const Problem& problem, Evaluator& evaluator,
                        const CheckSettings& settings) {
  Report report{.tolerance = settings.tolerance};
  report.problem = find_bad_argument(problem);
  if (!report.problem.empty()) return report;

  std::vector<Probe> probes;
  const size_t inputs = problem.inputs.size();
  const size_t directions = std::max(inputs, static_cast<size_t>(settings.directions));
  for (size_t k = 0; k < directions; ++k) {
    probes.push_back({.input = k % inputs,
                      .block = whole(problem.inputs[k % inputs].shape),
                      .stream = stream_of(settings.seed, k)});
  }
  const std::vector<double> jvp = evaluator.jvp(probes);
  report.problem = evaluator.bad_output();

  report.residual = 0.0;
  report.ok = report.problem.empty();
  for (size_t a = 0; a < inputs; ++a) {
    const Input& in = problem.inputs[a];
    const double scale = gradient_scale(in, evaluator, settings.gradient_floor);
    InputResult result{.name = in.name, .grad_norm = norm(in.grad)};
    for (size_t k = a; k < directions; k += inputs) {
      const double difference = pair_with_gradient(in, probes[k], jvp[k]).difference;
      result.residual = worse(result.residual, relative(difference, scale));
      ++result.directions;
    }
    report.residual = worse(report.residual, result.residual);
    const bool right = result.residual <= settings.tolerance;
    report.ok = report.ok && right;
    report.inputs.push_back(result);
    if (right || !settings.locate || !report.problem.empty()) continue;
    Search search(problem, evaluator, a, scale, settings.tolerance, settings.seed);
    report.locations.push_back(search.run());
  }
  return report;
}

}  // namespace detail

inline std::vector<double> random_values(int64_t count, uint64_t seed) {
  if (count < 0) detail::refuse("random_values: count is negative");
  std::vector<double> values(detail::to_size(count));
  const uint64_t stream = detail::stream_of(seed, ~uint64_t{0});
  for (int64_t i = 0; i < count; ++i) values[detail::to_size(i)] = detail::uniform(stream, i);
  return values;
}

inline Report check(const Problem& problem, const DualForward& forward, const Options& options) {
  const detail::CheckSettings settings{options.seed, options.directions, options.tolerance,
                                       options.gradient_floor, options.locate};
  detail::check_settings(settings);
  detail::check_problem(problem, true);
  detail::DualEvaluator evaluator(problem, forward, options.slice_bytes);
  return detail::run_check(problem, evaluator, settings);
}

inline Report check_differences(const Problem& problem, const BatchForward& forward,
                                const DifferenceOptions& options) {
  const detail::CheckSettings settings{options.seed, options.directions, options.tolerance,
                                       options.gradient_floor, options.locate};
  detail::check_settings(settings);
  if (!(options.step >= 0)) detail::refuse("step: expected a number >= 0");
  if (!(options.epsilon > 0)) detail::refuse("epsilon: expected a number > 0");
  detail::check_problem(problem, true);
  detail::DifferenceEvaluator evaluator(problem, forward, options);
  return detail::run_check(problem, evaluator, settings);
}

inline std::string Report::summary() const {
  using detail::format;
  std::string text = ok ? "ok" : "wrong";
  text += ": residual " + format("%.1e", residual) + ", tolerance " + format("%.1e", tolerance);
  if (!problem.empty()) return text + "; " + problem;
  for (const Location& location : locations) {
    text += "; " + location.text;
    if (std::isfinite(location.claimed)) {
      text += " is " + format("%.17g", location.claimed) + ", expected " +
              format("%.17g", location.expected);
    }
    if (location.blocks > 1) {
      text += " (" + std::to_string(location.wrong_blocks) + " of " +
              std::to_string(location.blocks) + " blocks wrong)";
    }
  }
  return text;
}

}  // namespace touchstone::inline v0::gradcheck
