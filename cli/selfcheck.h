// What the parts of `touchstone selfcheck` share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "touchstone/core/context.h"

namespace touchstone::cli {

// One operator, device, implementation and dtype, over some shapes.
struct Outcome {
  std::string op;
  std::string device;
  std::string implementation;
  std::string dtype;
  int shapes = 0;
  double worst = 0;  // error over bound

  bool right() const { return worst <= 1; }
};

// Counts one more shape, with the error over bound `fresh.worst`, where NaN is worse than anything.
void add_outcome(std::vector<Outcome>& outcomes, const Outcome& fresh);

// softmax_topk and sample, every implementation and dtype on the context's device. `progress` is
// told what comes next.
void check_selections(std::vector<Outcome>& outcomes, Context& context,
                      const std::function<void(const std::string&)>& progress);

// attention and its backward, every implementation and dtype; cached_attention, every
// implementation and storage format.
void check_attention(std::vector<Outcome>& outcomes, Context& context,
                     const std::function<void(const std::string&)>& progress);

}  // namespace touchstone::cli
