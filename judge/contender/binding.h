// Which function of a contender stands for which function of the contract.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "judge/contender/contender.h"
#include "judge/contender/signatures.h"
#include "judge/contender/symbols.h"

namespace touchstone::judge {

// A name that could be bound.
struct Candidate {
  std::string name;
  int arguments = -1;  // -1: unknown
};

// How many arguments a function has in C (with `stream` on cuda) or in Python. In Python a function
// with a state may or may not take it: -1.
int argument_count(const Function& function, Language language);

// Whether a function only says how large the state of another one is. Python has no use for it.
bool is_sizer(const TaskCard& card, const Function& function);
// Whether a contender may lack it.
bool is_optional(const TaskCard& card, const Function& function, Language language);

// The best candidate for every function of the contract; names that were written down stay.
// InvalidArgument says which function has no implementation, and what was found.
std::map<std::string, std::string> propose_binding(
    const TaskCard& card, Language language, const std::vector<Candidate>& candidates,
    const std::map<std::string, std::string>& written, const std::string& contender);

// Names of the linker for the functions of the contract, in their order; "-" for an optional one
// that is not there. InvalidArgument.
std::vector<std::string> resolve_symbols(const TaskCard& card, const Contender& contender,
                                         const std::vector<Symbol>& symbols);

}  // namespace touchstone::judge
