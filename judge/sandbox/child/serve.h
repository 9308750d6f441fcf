// The native child: loads one shared library and makes the calls the judge asks for.
#pragma once

namespace touchstone::judge::child {

// `touchstone-child serve GLUE LIBRARY SYMBOL...`: one symbol for each function of the contract,
// "-" for an optional one that the contender does not have.
int serve(int count, char** words);

}  // namespace touchstone::judge::child
