#include "model/options.h"

#include <fmt/format.h>

#include "model/rotation.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::model {

void require(bool holds, const char* option, const std::string& expected, std::int64_t got) {
  if (holds) return;
  throw InvalidArgument(fmt::format("model: {}: expected {}, got {}", option, expected, got));
}

ModelOptions checked_options(ModelOptions options, const io::ModelDescription& description) {
  const std::int64_t longest = longest_sequence(description);
  if (options.max_length == 0) options.max_length = longest;
  require(options.max_length > 0 && options.max_length <= longest, "max_length",
          fmt::format("1 to {}, the context of the model", longest), options.max_length);
  require(options.sequences > 0, "sequences", "at least 1", options.sequences);
  require(options.host_sequences >= 0, "host_sequences", "at least 0", options.host_sequences);
  require(options.page_tokens > 0, "page_tokens", "at least 1", options.page_tokens);
  require(options.max_rows > 0, "max_rows", "at least 1", options.max_rows);
  if (options.compute != DType::f32 && options.compute != DType::bf16 &&
      options.compute != DType::f16) {
    throw InvalidArgument(
        fmt::format("model: compute: expected f32, bf16 or f16, got {}", name_of(options.compute)));
  }
  return options;
}

}  // namespace touchstone::inline v0::model
