#include "touchstone/version.h"

#define TOUCHSTONE_STRING_OF(token) #token
#define TOUCHSTONE_STRING(macro) TOUCHSTONE_STRING_OF(macro)

namespace touchstone::inline v0 {

const char* version() noexcept {
  return TOUCHSTONE_STRING(TOUCHSTONE_VERSION_MAJOR) "." TOUCHSTONE_STRING(
      TOUCHSTONE_VERSION_MINOR) "." TOUCHSTONE_STRING(TOUCHSTONE_VERSION_PATCH);
}

}  // namespace touchstone::inline v0
