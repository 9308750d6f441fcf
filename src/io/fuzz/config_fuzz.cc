// libFuzzer: config.json. Corpus: src/io/testdata/seeds.
#include <cstdint>

#include "io/fuzz/exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  touchstone::io::exercise_config({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
