// libFuzzer: containers. Corpus: src/io/testdata/seeds and hostile.
#include <cstdint>

#include "io/fuzz/exercise.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  touchstone::io::exercise_tensor_file({reinterpret_cast<const std::byte*>(data), size});
  touchstone::io::exercise_vocabulary({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
