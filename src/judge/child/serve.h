// The native child: loads one shared library and makes the calls the judge asks for.
#pragma once

namespace touchstone::judge::child {

// `touchstone-child serve LIBRARY`
int serve(const char* library);

}  // namespace touchstone::judge::child
