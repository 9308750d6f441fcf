// Dense attention needs a few tiles and a few numbers per query, never a matrix of all queries by
// all keys. On the CPU every allocation is counted; on a GPU the smallest workspace that serves is
// found, since operators allocate nothing there.
#include <malloc.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>

#include "ops/attention_dense/attention_test_support.h"
#include "tests/support/run_log.h"

namespace {

std::atomic<std::int64_t> g_live{0};
std::atomic<std::int64_t> g_peak{0};

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::int64_t live = g_live += static_cast<std::int64_t>(malloc_usable_size(memory));
  std::int64_t peak = g_peak;
  while (live > peak && !g_peak.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void uncounted(void* memory) noexcept {
  if (memory == nullptr) return;
  g_live -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

// NOLINTBEGIN(misc-new-delete-overloads): all of them, below.
void* operator new(std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new[](std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return operator new(bytes);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto a = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(a, (bytes + a - 1) / a * a));
}
void* operator new(std::size_t bytes, std::align_val_t alignment,
                   const std::nothrow_t& /*tag*/) noexcept {
  return operator new(bytes, alignment);
}
void operator delete(void* memory) noexcept { uncounted(memory); }
void operator delete[](void* memory) noexcept { uncounted(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { uncounted(memory); }
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { uncounted(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { uncounted(memory); }
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  uncounted(memory);
}
// NOLINTEND(misc-new-delete-overloads)

namespace touchstone::test {
namespace {

// One head, small enough that even plain loops take a moment only.
class MemoryProblem {
 public:
  MemoryProblem(std::int64_t tokens, bool backward)
      : backward_(backward), dtype_(on_gpu() ? DType::bf16 : DType::f32) {
    const std::int64_t dim = on_gpu() ? 64 : 4;
    for (Tensor* tensor : {&q_, &k_, &v_, &output_, &doutput_, &dq_, &dk_, &dv_}) {
      *tensor = Tensor::zeros({1, tokens, 1, dim}, dtype_, test_device());
    }
    log_sum_exp_ = Tensor::zeros({1, tokens, 1}, DType::f32, test_device());
  }

  void run(Runner& context) {
    if (backward_) {
      attention_backward(context, {.doutput = doutput_,
                                   .q = q_,
                                   .k = k_,
                                   .v = v_,
                                   .output = output_,
                                   .log_sum_exp = log_sum_exp_,
                                   .dq = dq_,
                                   .dk = dk_,
                                   .dv = dv_,
                                   .implementation = context.implementation()});
    } else {
      attention(context, {.q = q_,
                          .k = k_,
                          .v = v_,
                          .output = output_,
                          .log_sum_exp = log_sum_exp_,
                          .implementation = context.implementation()});
    }
    context.synchronize();
    log_ran(backward_ ? "attention_backward" : "attention", context.implementation());
  }

  std::int64_t element_bytes() const { return size_of(dtype_); }

 private:
  bool backward_;
  DType dtype_;
  Tensor q_, k_, v_, output_, doutput_, dq_, dk_, dv_, log_sum_exp_;
};

std::int64_t cpu_peak(const std::string& implementation, MemoryProblem& problem) {
  Runner context({.threads = 2, .implementation = implementation});
  const std::int64_t before = g_live;
  g_peak = before;
  problem.run(context);
  return g_peak - before;
}

std::int64_t gpu_workspace(const std::string& implementation, MemoryProblem& problem) {
  std::int64_t enough = std::int64_t{1} << 30;
  std::int64_t too_little = -1;
  while (enough - too_little > 4096) {
    const std::int64_t bytes = too_little + (enough - too_little) / 2;
    Runner context(
        {.device = test_device(), .workspace_bytes = bytes, .implementation = implementation});
    try {
      problem.run(context);
      enough = bytes;
    } catch (const OutOfMemory&) {
      too_little = bytes;
    }
  }
  return enough;
}

std::vector<std::string> implementations(bool backward) {
  const DenseProblem p{{.queries = 64,
                        .keys = 64,
                        .k_dim = on_gpu() ? 64 : 4,
                        .dtype = on_gpu() ? DType::bf16 : DType::f32}};
  const DenseData data = make_data(p);
  return backward ? DenseBackwardRun(p, data).accepting() : DenseForwardRun(p, data).accepting();
}

TEST(AttentionMemory, IsLinearInTheLength) {
  const std::int64_t longest = sanitized_size(4096, 512);
  const std::array<std::int64_t, 3> lengths{longest / 4, longest / 2, longest};
  for (const bool backward : {false, true}) {
    for (const std::string& name : implementations(backward)) {
      const testing::ScopedTrace trace(__FILE__, __LINE__, name);
      std::array<double, 3> bytes{};
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        MemoryProblem problem(lengths[i], backward);
        const std::int64_t extra =
            on_gpu() ? gpu_workspace(name, problem) : cpu_peak(name, problem);
        bytes[i] = static_cast<double>(std::max<std::int64_t>(extra, 1));
        const double matrix = static_cast<double>(lengths[i]) * static_cast<double>(lengths[i]) *
                              static_cast<double>(problem.element_bytes());
        if (lengths[i] == 4096) {
          EXPECT_LT(bytes[i], 0.2 * matrix);
        }
      }
      // Lengths double each time: the fitted exponent is the slope between the ends.
      EXPECT_LT(std::log2(bytes[2] / bytes[0]) / 2, 1.1)
          << bytes[0] << " " << bytes[1] << " " << bytes[2];
      if (!on_gpu()) {
        EXPECT_GT(bytes[2], 100) << "the counter sees nothing";
      }
    }
  }
}

}  // namespace
}  // namespace touchstone::test
