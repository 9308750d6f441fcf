// Which SIMD target the dynamic dispatch uses, VNNI and AMX beside it.
#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/amx.h"
#include "cpu/vnni.h"
#include "hwy/highway.h"
#include "touchstone/core/device.h"
#include "touchstone/core/error.h"
#include "touchstone/core/testing.h"

namespace touchstone::inline v0 {
namespace {

// What this machine can run, whatever set_simd_target has chosen since the program started.
std::int64_t attainable_targets() {
  // The first call returns the unrestricted set: only set_simd_target restricts it, and calls this
  // function before it does.
  static const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets;
}

// Highway numbers targets so that a lower bit means a better one.
std::int64_t best_of(std::int64_t targets) { return targets & -targets; }

bool processor_has_vnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

std::atomic<bool> vnni_enabled = true;

// Linux saves tile registers across context switches only for processes that request it.
bool system_grants_amx_bf16() {
#if HWY_ARCH_X86_64 && defined(__linux__)
  constexpr unsigned kTile = 1U << 24, kBf16 = 1U << 22;  // EDX of leaf 7
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & (kTile | kBf16)) != (kTile | kBf16)) {
    return false;
  }
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

std::vector<std::string> simd_targets() {
  std::vector<std::string> names;
  for (std::int64_t rest = attainable_targets(); rest != 0; rest &= rest - 1) {
    names.emplace_back(hwy::TargetName(best_of(rest)));
  }
  return names;
}

std::string simd_target() {
  attainable_targets();
  return hwy::TargetName(best_of(hwy::SupportedTargets() & HWY_TARGETS));
}

bool uses_vnni() {
  static const bool has = processor_has_vnni();
  return has && vnni_enabled.load(std::memory_order_relaxed);
}

bool uses_amx_bf16() {
  static const bool granted = system_grants_amx_bf16();
  return granted && (hwy::SupportedTargets() & HWY_TARGETS & HWY_AVX3) != 0;
}

void testing::set_vnni(bool enabled) { vnni_enabled = enabled; }

void testing::set_simd_target(const std::string& target) {
  std::string known;
  for (std::int64_t rest = attainable_targets(); rest != 0; rest &= rest - 1) {
    const std::int64_t candidate = best_of(rest);
    if (target == hwy::TargetName(candidate)) {
      hwy::SetSupportedTargetsForTest(candidate);
      hwy::GetChosenTarget().Update(candidate);
      return;
    }
    known += (known.empty() ? "" : ", ") + std::string(hwy::TargetName(candidate));
  }
  if (!target.empty()) {
    throw InvalidArgument("set_simd_target: target: expected one of " + known + ", got " + target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace touchstone::inline v0
