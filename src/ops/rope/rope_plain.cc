// Rope as one would write it down: plain loops, one thread, f64. The reference to read first.
#include <vector>

#include "core/index.h"
#include "ops/rope/rope_problem.h"
#include "touchstone/core/convert.h"

namespace touchstone::rope_op {

void rope_plain(Context& /*context*/, const Problem& p) {
  std::vector<double> row(at(p.dim));
  visit_float_dtype(p.dtype, [&]<class T>() {
    for (std::int64_t n = 0; n < p.tokens; ++n) {
      for (std::int64_t h = 0; h < p.heads; ++h) {
        const T* const x = static_cast<const T*>(p.x) + n * p.x_token + h * p.x_head;
        T* const y = static_cast<T*>(p.y) + n * p.y_token + h * p.y_head;
        for (std::int64_t d = 0; d < p.dim; ++d) row[at(d)] = convert<double>(x[d]);
        for (std::int64_t i = 0; i < p.pairs; ++i) {
          const double angle = static_cast<double>(p.positions[n]) * p.frequencies[i];
          const double sine = p.scale * std::sin(p.inverse ? -angle : angle);
          const double cosine = p.scale * std::cos(angle);
          const double a = row[at(p.first(i))];
          const double b = row[at(p.second(i))];
          row[at(p.first(i))] = a * cosine - b * sine;
          row[at(p.second(i))] = b * cosine + a * sine;
        }
        for (std::int64_t d = 0; d < p.dim; ++d) y[d] = convert<T>(row[at(d)]);
      }
    }
  });
}

}  // namespace touchstone::rope_op
