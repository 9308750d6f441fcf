// Activations as one would write them down: plain loops, one thread, f64. The reference to read
// first.
#include "ops/activation/activation_problem.h"
#include "touchstone/core/convert.h"

namespace touchstone::activation_op {

void run_plain(Context& /*context*/, const Problem& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    for (std::int64_t r = 0; r < p.rows; ++r) {
      for (std::int64_t c = 0; c < p.cols; ++c) {
        double in[kMaxInputs];
        double out[kMaxOutputs];
        for (std::size_t i = 0; i < static_cast<std::size_t>(inputs_of(p.function)); ++i) {
          in[i] = convert<double>(static_cast<const T*>(p.in[i].data)[r * p.in[i].stride + c]);
        }
        apply(p.function, p.kind, in, out);
        for (std::size_t i = 0; i < static_cast<std::size_t>(outputs_of(p.function)); ++i) {
          static_cast<T*>(p.out[i].data)[r * p.out[i].stride + c] = convert<T>(out[i]);
        }
      }
    }
  });
}

}  // namespace touchstone::activation_op
