// The error of a rotation, shared by the operators that rotate.
#pragma once

#include "touchstone/core/dtype.h"

namespace touchstone::spec {

// Of a number by the angle position * frequency, before it is rounded to the dtype; `size` is the sum of
// the magnitudes of the pair, times the scale. Derived in rope.cc.
double rotation_error(DType dtype, double angle, double size);

}  // namespace touchstone::spec
