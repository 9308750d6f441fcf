#include "tests/support/runners.h"

#include <gtest/gtest.h>

#include "touchstone/core/testing.h"

namespace touchstone::test {
namespace {

Device g_device = Device::cpu();

// Races do not depend on the width of a vector, and the targets are one source: a sanitizer finds
// the best of them.
constexpr bool kEveryTarget = !kSanitized;

// Puts the process-wide SIMD target back, also when a body throws.
class TargetScope {
 public:
  explicit TargetScope(const std::string& target) : before_(simd_target()) {
    testing::set_simd_target(target);
  }
  ~TargetScope() { testing::set_simd_target(before_); }
  TargetScope(const TargetScope&) = delete;
  TargetScope& operator=(const TargetScope&) = delete;

 private:
  std::string before_;
};

// Compiled once, not for every SIMD target.
bool has_no_targets(const std::string& implementation) {
  return implementation == "plain" || implementation == "amx";
}

void run_one(const std::string& implementation, const std::function<void(Runner&)>& body,
             int threads) {
  Runner runner({.device = g_device, .threads = threads, .implementation = implementation});
  body(runner);
}

void run_all(const std::vector<std::string>& implementations,
             const std::function<void(Runner&)>& body, int threads, bool every_target) {
  ASSERT_FALSE(implementations.empty()) << "no implementation to test";
  for (const std::string& name : implementations) {
    if (!every_target || g_device.is_cuda() || has_no_targets(name)) {
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, "implementation " + name);
      run_one(name, body, threads);
      continue;
    }
    for (const std::string& target : simd_targets()) {
      std::string where = "implementation " + name;
      where += ", SIMD target " + target;
      const ::testing::ScopedTrace trace(__FILE__, __LINE__, where);
      const TargetScope scope(target);
      run_one(name, body, threads);
    }
  }
}

}  // namespace

Runner::Runner(RunnerOptions options)
    : Context({.device = options.device,
               .threads = options.threads,
               .stream = options.stream,
               .workspace_bytes = options.workspace_bytes}),
      implementation_(std::move(options.implementation)) {}

Device test_device() { return g_device; }
void set_test_device(Device device) { g_device = device; }

void for_each_runner(const std::vector<std::string>& implementations,
                     const std::function<void(Runner&)>& body, int threads) {
  run_all(implementations, body, threads, kEveryTarget);
}

void for_each_implementation(const std::vector<std::string>& implementations,
                             const std::function<void(Runner&)>& body, int threads) {
  run_all(implementations, body, threads, false);
}

void for_each_on(Targets targets, const std::vector<std::string>& implementations,
                 const std::function<void(Runner&)>& body, int threads) {
  run_all(implementations, body, threads, targets == Targets::all && kEveryTarget);
}

}  // namespace touchstone::test
