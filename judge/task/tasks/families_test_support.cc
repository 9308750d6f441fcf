#include "judge/task/tasks/families_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/generate.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge::families {

std::span<const float> values_of(const Case& c, const std::string& name) {
  for (const Call& call : c.calls) {
    for (const InputTensor& input : call.inputs) {
      if (input.name == name && !input.data.empty()) return as_f32(input);
    }
  }
  return {};
}

int64_t count_of(const Case& c, const std::string& name, const Number& fits) {
  return std::ranges::count_if(values_of(c, name), fits);
}

int64_t at(const Case& c, const std::string& name) { return parameter_or(c.spec, name, 0); }

double largest(const Case& c, const std::string& name) {
  double most = 0;
  for (const float v : values_of(c, name)) {
    if (std::isfinite(v)) most = std::max(most, std::fabs(static_cast<double>(v)));
  }
  return most;
}

double root_mean_square(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(std::max<size_t>(values.size(), 1)));
}

bool is_nan(float v) { return std::isnan(v); }

Fits has(const std::string& name, const Number& fits) {
  return [=](const Case& c) { return count_of(c, name, fits) > 0; };
}

Fits between(const std::string& parameter, int64_t least, int64_t most) {
  return [=](const Case& c) { return at(c, parameter) >= least && at(c, parameter) <= most; };
}

Fits magnitude(const std::string& name, double least, double most) {
  return [=](const Case& c) { return largest(c, name) >= least && largest(c, name) <= most; };
}

Fits ordinary(const std::string& name) {
  return [=](const Case& c) {
    const std::span<const float> v = values_of(c, name);
    const bool finite = std::ranges::all_of(v, [](float x) { return std::isfinite(x); });
    // Of very many numbers some are alike by chance: there are about half a million to draw from.
    const std::span<const float> part = v.first(std::min<size_t>(v.size(), 1 << 16));
    return finite && (v.size() < 16 || (largest(c, name) > 0.1 && largest(c, name) < 40)) &&
           std::set<float>(part.begin(), part.end()).size() * 2 >= part.size();
  };
}

Fits of_power(const std::string& name, const std::string& parameter) {
  return [=](const Case& c) {
    const double size = root_mean_square(values_of(c, name));
    const double power = power_of_ten(at(c, parameter));
    return values_of(c, name).size() < 16 || (size > 0.05 * power && size < 20 * power);
  };
}

Fits heavy(const std::string& name) {
  return [=](const Case& c) {
    const std::span<const float> v = values_of(c, name);
    std::vector<double> sizes;
    for (const float x : v) sizes.push_back(std::fabs(static_cast<double>(x)));
    if (sizes.size() < 500) return true;
    std::ranges::nth_element(sizes, sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2));
    return largest(c, name) > 6 * sizes[sizes.size() / 2];
  };
}

bool amplified_end(std::span<const float> v, size_t width, double factor) {
  if (width < 64 || v.size() < width) return true;  // fewer are too few for a mean square
  const size_t quarter = width / 4;
  return root_mean_square(v.subspan(width - quarter, quarter)) >
         factor * root_mean_square(v.first(width / 2));
}

void expect_fits(const std::string& id, const std::map<std::string, Fits>& families) {
  const Task& task = find_task(id);
  std::set<std::string> asked;
  for (const uint64_t seed : {3U, 4U}) {
    for (const CaseSpec& spec : task.plan(seed, true).cases) {
      asked.insert(spec.family);
      const auto family = families.find(spec.family);
      if (family == families.end()) {
        ADD_FAILURE() << id << ": nothing is known of " << spec.family;
        continue;
      }
      // What was replaced by hand is not what the family draws.
      if (!spec.edits.empty()) continue;
      EXPECT_TRUE(family->second(task.build(spec))) << id << ": " << format_spec(spec);
    }
  }
  for (const auto& [family, fits] : families) {
    EXPECT_TRUE(asked.contains(family) || family.starts_with("mixed")) << family;
  }
}

}  // namespace touchstone::judge::families
