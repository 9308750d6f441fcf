// One entry of explain(): an implementation of an operator and whether it accepts a call.
//
// Each operator header declares
//   std::vector<ImplementationReport> explain(Context& context, const XArgs& args);
// which lists the implementations for the context's device in order of preference. The first that
// accepts runs, unless args.implementation names another. explain() checks the arguments as the
// call itself does, throws what it throws, and ignores args.implementation.
#pragma once

#include <string>

namespace touchstone::inline v0 {

struct ImplementationReport {
  std::string name;
  bool accepted = false;
  std::string refusal;  // the limit that the call is outside of; empty when accepted
};

}  // namespace touchstone::inline v0
