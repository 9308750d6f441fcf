// What the data of a family can be asked about.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "judge/task/task.h"

namespace touchstone::judge::families {

using Fits = std::function<bool(const Case&)>;
using Number = std::function<bool(float)>;

// The first input of this name that has numbers.
std::span<const float> values_of(const Case& c, const std::string& name);
int64_t count_of(const Case& c, const std::string& name, const Number& fits);
int64_t at(const Case& c, const std::string& name);  // a parameter; 0 where there is none
double largest(const Case& c, const std::string& name);
double root_mean_square(std::span<const float> values);
bool is_nan(float v);

Fits has(const std::string& name, const Number& fits);
Fits between(const std::string& parameter, int64_t least, int64_t most);
Fits magnitude(const std::string& name, double least, double most);
// Finite numbers near 1, no two of them alike by design.
Fits ordinary(const std::string& name);
// The size of the numbers is that of a power of ten among the parameters.
Fits of_power(const std::string& name, const std::string& parameter);
// A few numbers far above the others.
Fits heavy(const std::string& name);
// Of the first `width` numbers, the last quarter is that much larger than the first half.
bool amplified_end(std::span<const float> v, size_t width, double factor);

// Each case of a family must fit, for two seeds, and every family must be known.
void expect_fits(const std::string& id, const std::map<std::string, Fits>& families);

}  // namespace touchstone::judge::families
