#include "touchstone/core/context.h"

#include <algorithm>

#include "core/context_access.h"
#include "core/cuda_runtime.h"
#include "core/thread_pool.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {
namespace {

constexpr std::int64_t kWorkspaceAlignment = 256;
// A loop of the pool counts its threads in 16 bits: with one more, it would wait for ever.
constexpr int kMaxThreads = 65535;

void check_options(const ContextOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    throw InvalidArgument("context: threads: expected 0 to " + std::to_string(kMaxThreads) +
                          ", got " + std::to_string(options.threads));
  }
  if (options.workspace_bytes < 0) {
    throw InvalidArgument("context: workspace_bytes: expected at least 0, got " +
                          std::to_string(options.workspace_bytes));
  }
  if (!options.device.is_cuda()) return;
  const auto count = static_cast<int>(cuda_devices().size());
  if (options.device.index < 0 || options.device.index >= count) {
    throw Unsupported("context: device: expected one of " + std::to_string(count) +
                      " CUDA devices, got " + name_of(options.device) +
                      (built_with_cuda() ? "" : " (this build has no CUDA code)"));
  }
}

}  // namespace

struct Context::State {
  ContextOptions options;
  std::unique_ptr<ThreadPool> pool;
  Tensor workspace;

  // Memory for `bytes`, and for moving the start up to the alignment.
  void grow(std::int64_t bytes) {
    if (bytes == 0 || bytes <= capacity()) return;
    const std::int64_t padded = checked_add(bytes, kWorkspaceAlignment, "workspace");
    const std::int64_t before = workspace.bytes();
    workspace = Tensor();  // release first: two live workspaces may not fit
    try {
      workspace = Tensor::empty({padded}, DType::u8, options.device);
    } catch (const OutOfMemory&) {
      if (before > 0) workspace = Tensor::empty({before}, DType::u8, options.device);
      throw;
    }
  }
  std::int64_t capacity() const {
    return std::max<std::int64_t>(0, workspace.bytes() - kWorkspaceAlignment);
  }
};

Context::Context(ContextOptions options) {
  check_options(options);
  state_ = std::make_unique<State>();
  state_->options = std::move(options);
  ContextOptions& kept = state_->options;
  if (kept.device.is_cuda()) {
    kept.threads = 1;
    state_->grow(kept.workspace_bytes);
  } else if (kept.threads == 0) {
    kept.threads = available_threads();
  }
  state_->pool = std::make_unique<ThreadPool>(kept.threads);
}

Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

Device Context::device() const { return state_->options.device; }
int Context::threads() const { return state_->options.threads; }
void* Context::stream() const { return state_->options.stream; }

void Context::synchronize() {
  if (device().is_cuda()) cuda::synchronize(device().index, stream());
}

void Context::reserve_workspace(std::int64_t bytes) {
  if (bytes < 0) {
    throw InvalidArgument("context: reserve_workspace: expected at least 0, got " +
                          std::to_string(bytes));
  }
  if (device().is_cuda() && bytes > workspace_bytes()) synchronize();  // it may still be in use
  state_->grow(bytes);
}

std::int64_t Context::workspace_bytes() const { return state_->capacity(); }

void* detail::ContextAccess::workspace(Context& context, std::int64_t bytes) {
  if (!context.device().is_cuda()) {
    context.state_->grow(bytes);
  } else if (bytes > context.workspace_bytes()) {
    throw OutOfMemory("context: workspace: this call needs " + std::to_string(bytes) +
                      " bytes and there are " + std::to_string(context.workspace_bytes()) +
                      "; call reserve_workspace(" + std::to_string(bytes) + ") first");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(context.state_->workspace.data());
  const auto mask = static_cast<std::uintptr_t>(kWorkspaceAlignment - 1);
  return reinterpret_cast<void*>((address + mask) & ~mask);
}

ThreadPool& detail::ContextAccess::pool(Context& context) { return *context.state_->pool; }

}  // namespace touchstone::inline v0
