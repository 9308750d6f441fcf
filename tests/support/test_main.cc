// main() of tests that run on either device.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string_view>

#include "tests/support/runners.h"
#include "touchstone/core/testing.h"

// Tests request impossible amounts of memory on purpose; a sanitizer must then answer as malloc
// would, not end the process.
// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers chose the names.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }
// NOLINTEND(bugprone-reserved-identifier)

namespace {

constexpr int kSkipped = 77;

// 0 when the tests can run on the GPU. A GPU that is there but cannot be used is a failure: a
// broken driver must not look like a machine without one.
int check_gpu() {
  if (!touchstone::cuda_devices().empty()) return 0;
  if (touchstone::built_with_cuda() && std::filesystem::exists("/dev/nvidia0")) {
    std::printf("FAILED: /dev/nvidia0 exists, but CUDA reports no usable device\n");
    return 1;
  }
  std::printf("SKIPPED: NO GPU TEST RAN, %s\n", touchstone::built_with_cuda()
                                                    ? "there is no CUDA device on this machine"
                                                    : "this build has no CUDA code");
  return kSkipped;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--device=cuda") {
      if (const int status = check_gpu(); status != 0) return status;
      touchstone::test::set_test_device(touchstone::Device::cuda());
    } else if (argument == "--vnni=off") {
      touchstone::testing::set_vnni(false);
    } else if (argument != "--device=cpu") {
      std::fprintf(stderr, "expected --device=cpu, --device=cuda or --vnni=off, got '%s'\n",
                   argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
