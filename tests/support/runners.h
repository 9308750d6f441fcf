// Which device the tests run on, and the loops over everything that can run an operator there.
//
// A test binary linked with this library takes --device=cpu (default) or --device=cuda; the same
// test bodies run on both. Without a GPU --device=cuda says so and exits with 77, which ctest
// reports as skipped.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "touchstone/core/context.h"

namespace touchstone::test {

struct RunnerOptions {
  Device device = Device::cpu();
  int threads = 0;
  void* stream = nullptr;
  std::int64_t workspace_bytes = std::int64_t{64} << 20;
  std::string implementation{};  // "" = chosen by the operator
};

// A context and the implementation that the calls of a test run on.
class Runner : public Context {
 public:
  explicit Runner(RunnerOptions options = {});

  const std::string& implementation() const { return implementation_; }
  void set_implementation(std::string name) { implementation_ = std::move(name); }

  // The arguments of a call on that implementation.
  template <class Args>
  Args with(Args args) const {
    args.implementation = implementation_;
    return args;
  }

 private:
  std::string implementation_;
};

Device test_device();
void set_test_device(Device device);

inline bool on_gpu() { return test_device().is_cuda(); }
// A device that the operands of a call are not on.
inline Device other_device() { return on_gpu() ? Device::cpu() : Device::cuda(); }

// More threads than cores and not a power of two, so that shares are uneven and tasks get stolen.
inline constexpr int kTestThreads = 3;

// A sanitizer makes code ten times slower and learns nothing from the same loop over more data.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
constexpr std::int64_t sanitized_size(std::int64_t size, std::int64_t smaller) {
  return kSanitized ? smaller : size;
}

// Calls body(runner) for each implementation and, unless it is `plain` or `amx`, each SIMD target of
// this machine; on the GPU for each implementation. Failures name both. The SIMD target is put back.
void for_each_runner(const std::vector<std::string>& implementations,
                     const std::function<void(Runner&)>& body, int threads = kTestThreads);

// The same for the best SIMD target only: for tests whose subject is not arithmetic.
void for_each_implementation(const std::vector<std::string>& implementations,
                             const std::function<void(Runner&)>& body, int threads = kTestThreads);

// One or the other. Sizes that repeat the arithmetic of smaller ones need the best target only.
enum class Targets : std::uint8_t { all, best };
void for_each_on(Targets targets, const std::vector<std::string>& implementations,
                 const std::function<void(Runner&)>& body, int threads = kTestThreads);

}  // namespace touchstone::test
