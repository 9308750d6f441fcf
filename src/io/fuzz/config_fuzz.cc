// libFuzzer: config.json and the other texts beside tensors. Corpus: src/io/testdata/seeds.
#include <cstdint>

#include "io/fuzz/exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  touchstone::io::exercise_config({reinterpret_cast<const std::byte*>(data), size});
  touchstone::io::exercise_side_text({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
