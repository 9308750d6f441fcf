// What the probes share: errors that end the program, and calls captured in a CUDA graph with the time of
// one of them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

// Statuses of CUDA and of its libraries: 0 is success.
#define CHECK(call)                                                      \
  do {                                                                   \
    const auto status = call;                                            \
    if (static_cast<int>(status) != 0) {                                 \
      std::fprintf(stderr, "%s: %d\n", #call, static_cast<int>(status)); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

namespace probe {

class GraphReplay {
 public:
  // Runs call(0), then captures call(0) ... call(calls - 1).
  GraphReplay(cudaStream_t stream, int calls, const std::function<void(int)>& call)
      : stream_(stream), calls_(calls) {
    call(0);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; ++i) call(i);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec_, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
  }
  ~GraphReplay() {
    cudaGraphExecDestroy(exec_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  GraphReplay(const GraphReplay&) = delete;
  GraphReplay& operator=(const GraphReplay&) = delete;

  void launch() { CHECK(cudaGraphLaunch(exec_, stream_)); }
  // Of one call, in `repeats` launches one after another.
  double microseconds(int repeats) {
    CHECK(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < repeats; ++i) launch();
    CHECK(cudaEventRecord(end_, stream_));
    CHECK(cudaEventSynchronize(end_));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return static_cast<double>(ms) * 1e3 / repeats / calls_;
  }

 private:
  cudaStream_t stream_;
  int calls_;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace probe
