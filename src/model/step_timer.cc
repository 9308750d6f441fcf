#include "model/step_timer.h"

#include <algorithm>
#include <chrono>

#include "core/cuda_graph.h"

namespace touchstone::inline v0::model {
namespace {

constexpr double kEnough = 0.02;  // seconds
constexpr int kMaxRepeats = 1000;

template <class Run, class Wait>
double seconds_per_run(const Run& run, const Wait& wait) {
  using Clock = std::chrono::steady_clock;
  const auto timed = [&](int repeats) {
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) run();
    wait();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  timed(2);
  const double once = timed(1);
  const int repeats = std::clamp(static_cast<int>(kEnough / std::max(once, 1e-9)), 3, kMaxRepeats);
  return timed(repeats) / repeats;
}

}  // namespace

double seconds_of(Context& context, const std::function<void(Context&)>& step) {
  if (!context.device().is_cuda()) {
    return seconds_per_run([&] { step(context); }, [] {});
  }
  const int device = context.device().index;
  void* const stream = cuda::create_stream(device);
  double seconds = 0;
  try {
    Context recorder({.device = context.device(),
                      .stream = stream,
                      .workspace_bytes = context.workspace_bytes()});
    context.synchronize();
    cuda::begin_capture(device, stream);
    try {
      step(recorder);
    } catch (...) {
      cuda::abandon_capture(device, stream);
      throw;
    }
    void* const graph = cuda::end_capture(device, stream);
    seconds = seconds_per_run([&] { cuda::launch_graph(device, graph, stream); },
                              [&] { recorder.synchronize(); });
    cuda::release_graph(device, graph);
  } catch (...) {
    cuda::release_stream(device, stream);
    throw;
  }
  cuda::release_stream(device, stream);
  return seconds;
}

}  // namespace touchstone::inline v0::model
