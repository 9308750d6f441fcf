// The checks that layer norm and RMS norm share.
#pragma once

#include <span>
#include <vector>

#include "core/checks.h"
#include "ops/norm/norm.h"

namespace touchstone::norm {

struct ForwardArguments {
  Argument x;
  Argument residual;
  Argument weight;
  Argument bias;
  Argument y;
  Argument sum;
  Argument mean;
  Argument rstd;
  double eps;
  double weight_offset;
  bool round_before_weight;
};

struct BackwardArguments {
  Argument dy;
  Argument x;
  Argument mean;
  Argument rstd;
  Argument weight;
  Argument dsum;
  Argument dx;
  Argument dweight;
  Argument dbias;
  double weight_offset;
};

// Throws on bad arguments. rows or cols may be 0 in the result; nothing is to be computed then.
Forward check_forward(const char* op, const Context& context, Kind kind,
                      const ForwardArguments& args);
Backward check_backward(const char* op, const Context& context, Kind kind,
                        const BackwardArguments& args);

// Checks done: runs the problem, empty ones included, on the named implementation ("" = choose).
void run_forward(const char* op, Context& context, const Forward& problem,
                 const std::string& implementation);
void run_backward(const char* op, Context& context, const Backward& problem,
                  const std::string& implementation);

std::vector<ImplementationReport> report(const Context& context, const Forward& problem);
std::vector<ImplementationReport> report(const Context& context, const Backward& problem);

}  // namespace touchstone::norm
