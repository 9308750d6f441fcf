// Whether counts follow a distribution.
#pragma once

#include <cstdint>
#include <vector>

namespace touchstone::test {

// The probability of a chi-square statistic at least as large as that of `counts` under
// `probability`. A cell of probability 0 with counts gives 0. Cells expected less than ten
// times are put together.
double chi_square_p(const std::vector<std::int64_t>& counts,
                    const std::vector<double>& probability);

}  // namespace touchstone::test
