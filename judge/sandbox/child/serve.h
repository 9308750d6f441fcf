// The native child: loads one shared library and serves the calls of the judge.
#pragma once

namespace touchstone::judge::child {

// `touchstone-child serve SHIM LIBRARY SYMBOL...`: one symbol for each function of the contract,
// "-" for an optional one that the contender does not have.
int serve(int count, char** words);

}  // namespace touchstone::judge::child
