#include "tests/support/run_log.h"

#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "tests/support/runners.h"
#include "touchstone/core/device.h"

namespace touchstone::test {
namespace {

class RunLog : public testing::Environment {
 public:
  static RunLog& instance() {
    static auto* log =
        static_cast<RunLog*>(testing::AddGlobalTestEnvironment(new RunLog));  // gtest owns it
    return *log;
  }

  std::map<std::string, int> runs;

  void TearDown() override {
    if (testing::GTEST_FLAG(filter) != "*") return;
    const bool may_refuse = on_gpu() && cuda_devices().at(0).compute_major < 9;
    for (const auto& [name, count] : runs) {
      std::cout << name << ": " << count << " calls\n";
      if (!may_refuse) {
        EXPECT_GT(count, 0) << name << " was offered and never accepted a problem";
      }
    }
  }
};

// Registered before main() runs the tests.
[[maybe_unused]] RunLog& g_run_log = RunLog::instance();

}  // namespace

void log_offered(const std::string& what, const std::string& implementation) {
  RunLog::instance().runs[what + " " + implementation] += 0;
}

void log_ran(const std::string& what, const std::string& implementation) {
  if (!implementation.empty()) ++RunLog::instance().runs[what + " " + implementation];
}

}  // namespace touchstone::test
