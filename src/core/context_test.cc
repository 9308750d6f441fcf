// Devices and contexts: options, workspace, SIMD targets.
#include "touchstone/core/context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "tests/support/runners.h"
#include "touchstone/core/error.h"
#include "touchstone/core/testing.h"

namespace touchstone::inline v0 {
namespace {

using test::test_device;

TEST(Devices, Names) {
  EXPECT_EQ(name_of(Device::cpu()), "cpu");
  EXPECT_EQ(name_of(Device::cuda()), "cuda:0");
  EXPECT_EQ(name_of(Device::cuda(3)), "cuda:3");
  EXPECT_NE(Device::cuda(0), Device::cuda(1));
  EXPECT_NE(Device::cuda(0), Device::cpu());
}

TEST(Devices, CudaListIsConsistent) {
  EXPECT_TRUE(built_with_cuda() || cuda_devices().empty());
  for (const CudaDeviceInfo& info : cuda_devices()) {
    EXPECT_FALSE(info.name.empty());
    EXPECT_GT(info.compute_major, 0);
    EXPECT_GT(info.multiprocessors, 0);
    EXPECT_GT(info.memory_bytes, 0);
    EXPECT_GT(info.l2_bytes, 0);
  }
}

TEST(SimdTargets, CanEachBeChosen) {
  const std::vector<std::string> targets = simd_targets();
  ASSERT_FALSE(targets.empty());
  for (const std::string& target : targets) {
    testing::set_simd_target(target);
    EXPECT_EQ(simd_target(), target);
    EXPECT_EQ(simd_targets(), targets) << "the choice does not change what there is";
  }
  testing::set_simd_target("");
  EXPECT_EQ(simd_target(), targets.front());
  EXPECT_THROW(testing::set_simd_target("MMX"), InvalidArgument);
  EXPECT_EQ(simd_target(), targets.front()) << "a refused choice changes nothing";
}

TEST(ContextOptionsTest, AreKept) {
  const Context context({.threads = 3});
  EXPECT_EQ(context.device(), Device::cpu());
  EXPECT_EQ(context.threads(), 3);
  EXPECT_EQ(context.stream(), nullptr);
}

TEST(ContextOptionsTest, DefaultUsesEveryCore) {
  const Context context;
  EXPECT_EQ(context.threads(), available_threads());
  EXPECT_GE(context.threads(), 1);
}

TEST(ContextOptionsTest, BadOnesAreRefused) {
  EXPECT_THROW(Context({.threads = -1}), InvalidArgument);
  EXPECT_THROW(Context({.threads = 65536}), InvalidArgument);
  EXPECT_THROW(Context({.workspace_bytes = -1}), InvalidArgument);
  EXPECT_THROW(Context({.device = Device::cuda(-1)}), Unsupported);
  EXPECT_THROW(Context({.device = Device::cuda(1000)}), Unsupported);
  if (cuda_devices().empty()) {
    try {
      Context context({.device = Device::cuda()});
      ADD_FAILURE() << "a context on a GPU that is not there";
    } catch (const Unsupported& error) {
      EXPECT_NE(std::string(error.what()).find("cuda:0"), std::string::npos) << error.what();
    }
  }
}

TEST(ContextTest, Moves) {
  Context first({.device = test_device(), .threads = 2});
  void* scratch = detail::ContextAccess::workspace(first, 1000);
  Context second(std::move(first));
  EXPECT_EQ(detail::ContextAccess::workspace(second, 1000), scratch);
  Context third({.device = test_device()});
  third = std::move(second);
  EXPECT_EQ(third.device(), test_device());
  EXPECT_EQ(detail::ContextAccess::workspace(third, 1000), scratch);
  third.synchronize();
}

TEST(Workspace, GrowsOnTheCpuAndIsAligned) {
  Context context;
  for (const std::int64_t bytes : {1, 255, 256, 257, 10000, 5, 1 << 20}) {
    void* scratch = detail::ContextAccess::workspace(context, bytes);
    ASSERT_NE(scratch, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch) % 256, 0U) << bytes;
    EXPECT_GE(context.workspace_bytes(), bytes);
    std::memset(scratch, 0xee, static_cast<std::size_t>(bytes));
  }
  const std::int64_t before = context.workspace_bytes();
  detail::ContextAccess::workspace(context, 100);
  EXPECT_EQ(context.workspace_bytes(), before) << "it does not shrink";
}

TEST(Workspace, Reserve) {
  Context context({.device = test_device()});
  context.reserve_workspace(100 << 20);
  EXPECT_GE(context.workspace_bytes(), 100 << 20);
  void* scratch = detail::ContextAccess::workspace(context, 100 << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch) % 256, 0U);
  context.reserve_workspace(1);
  EXPECT_GE(context.workspace_bytes(), 100 << 20);
  EXPECT_THROW(context.reserve_workspace(-1), InvalidArgument);
  EXPECT_THROW(context.reserve_workspace(std::int64_t{1} << 60), OutOfMemory);
}

TEST(Workspace, SurvivesAFailedReservation) {
  Context context({.device = test_device()});
  context.reserve_workspace(1000);
  const std::int64_t before = context.workspace_bytes();
  EXPECT_THROW(context.reserve_workspace(std::int64_t{1} << 60), OutOfMemory);
  EXPECT_EQ(context.workspace_bytes(), before);
  EXPECT_NE(detail::ContextAccess::workspace(context, 1000), nullptr);
}

TEST(Workspace, OnTheGpuDoesNotGrowByItself) {
  if (!test::on_gpu()) GTEST_SKIP() << "CPU scratch grows";
  Context context({.device = test_device(), .workspace_bytes = 4096});
  EXPECT_GE(context.workspace_bytes(), 4096);
  EXPECT_NE(detail::ContextAccess::workspace(context, 4096), nullptr);
  try {
    detail::ContextAccess::workspace(context, 1 << 20);
    ADD_FAILURE() << "grew";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("1048576"), std::string::npos) << error.what();
  }
}

TEST(ContextTest, OnePerThread) {
  std::vector<std::thread> threads;
  threads.reserve(8);
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      Context context({.device = test_device(), .threads = 2, .workspace_bytes = 4096});
      for (int round = 0; round < 50; ++round) {
        auto* scratch =
            static_cast<unsigned char*>(detail::ContextAccess::workspace(context, 4096));
        if (context.device().is_cuda()) continue;
        std::memset(scratch, i, 4096);
        std::this_thread::yield();
        // No other context has the same memory.
        EXPECT_EQ(std::count(scratch, scratch + 4096, static_cast<unsigned char>(i)), 4096);
      }
      context.synchronize();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace touchstone::inline v0
