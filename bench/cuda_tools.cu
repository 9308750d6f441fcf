#include <algorithm>
#include <iterator>
#include <vector>

#include "bench/cuda_tools.h"
#include "cuda/check.h"
#include "machine/statistics.h"
#include "spec/operand.h"
#include "touchstone/core/checked.h"

namespace touchstone::bench {
namespace {

constexpr int kThreads = 256;

cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream());
}

// `kUnroll` independent 16-byte loads in flight per thread; `kStream` marks the data as used once.
// Which of them is fastest depends on the memory, so the ceiling is the best of several.
template <int kUnroll, bool kStream>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(uint4* to, const uint4* from, std::int64_t count) {
  const std::int64_t base =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads * kUnroll) + threadIdx.x;
  uint4 values[kUnroll];
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (base + i * kThreads >= count) continue;
    const uint4* at = from + base + i * kThreads;
    values[i] = kStream ? __ldcs(at) : *at;
  }
#pragma unroll
  for (int i = 0; i < kUnroll; ++i) {
    if (base + i * kThreads >= count) continue;
    uint4* at = to + base + i * kThreads;
    if (kStream) {
      __stcs(at, values[i]);
    } else {
      *at = values[i];
    }
  }
}

constexpr int kAddUnroll = 4;

__device__ float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(float4* to, const float4* a, const float4* b, std::int64_t count) {
  const std::int64_t base =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads * kAddUnroll) + threadIdx.x;
  float4 left[kAddUnroll];
  float4 right[kAddUnroll];
#pragma unroll
  for (int i = 0; i < kAddUnroll; ++i) {
    if (base + i * kThreads < count) {
      left[i] = __ldcs(a + base + i * kThreads);
      right[i] = __ldcs(b + base + i * kThreads);
    }
  }
#pragma unroll
  for (int i = 0; i < kAddUnroll; ++i) {
    if (base + i * kThreads < count) __stcs(to + base + i * kThreads, add(left[i], right[i]));
  }
}

constexpr int kReadUnroll = 8;

// Reads everything and writes next to nothing: a thread whose sum is NaN, which none is, would.
__global__ void __launch_bounds__(kThreads)
    read_kernel(float* sink, const float4* from, std::int64_t count) {
  const std::int64_t base =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads * kReadUnroll) + threadIdx.x;
  float4 values[kReadUnroll] = {};
#pragma unroll
  for (int i = 0; i < kReadUnroll; ++i) {
    if (base + i * kThreads < count) values[i] = __ldcs(from + base + i * kThreads);
  }
  float sum = 0;
#pragma unroll
  for (const float4& value : values) sum += (value.x + value.y) + (value.z + value.w);
  if (sum != sum) *sink = sum;
}

unsigned blocks_for(std::int64_t count, int per_thread) {
  return static_cast<unsigned>(ceil_div(count, std::int64_t{kThreads} * per_thread));
}

template <int kUnroll, bool kStream>
void launch_copy(const Context& context, void* to, const void* from, std::int64_t bytes) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t count = bytes / 16;
  copy_kernel<kUnroll, kStream><<<blocks_for(count, kUnroll), kThreads, 0, stream_of(context)>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), count);
  cuda::check_launch("copy_kernel");
}

void launch_memcpy(const Context& context, void* to, const void* from, std::int64_t bytes) {
  cuda::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                              stream_of(context)),
              "cudaMemcpyAsync");
}

struct Copy {
  const char* name;
  void (*launch)(const Context& context, void* to, const void* from, std::int64_t bytes);
};

constexpr Copy kCopies[] = {{"copy kernel, 4 x 16 bytes, streaming", launch_copy<4, true>},
                            {"copy kernel, 8 x 16 bytes, streaming", launch_copy<8, true>},
                            {"copy kernel, 4 x 16 bytes", launch_copy<4, false>},
                            {"cudaMemcpyAsync", launch_memcpy}};

void launch_add(cudaStream_t stream, Tensor& to, const Tensor& a, const Tensor& b) {
  const std::int64_t count = to.bytes() / 16;
  add_kernel<<<blocks_for(count, kAddUnroll), kThreads, 0, stream>>>(
      static_cast<float4*>(to.data()), static_cast<const float4*>(a.data()),
      static_cast<const float4*>(b.data()), count);
  cuda::check_launch("add_kernel");
}

void launch_read(cudaStream_t stream, Tensor& sink, const Tensor& from) {
  const std::int64_t count = from.bytes() / 16;
  read_kernel<<<blocks_for(count, kReadUnroll), kThreads, 0, stream>>>(
      static_cast<float*>(sink.data()), static_cast<const float4*>(from.data()), count);
  cuda::check_launch("read_kernel");
}

class Event {
 public:
  Event() { cuda::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

CudaStream::CudaStream(int device) {
  const cuda::DeviceScope scope(device);
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_ = stream;
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

struct CudaGraph::State {
  int device = 0;
  cudaStream_t stream = nullptr;
  int launches = 0;
  cudaGraphExec_t executable = nullptr;
  Event start;
  Event stop;

  ~State() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
  }
};

CudaGraph::CudaGraph(Context& context, int launches, const std::function<void(int)>& launch) {
  const cuda::DeviceScope scope(context.device().index);
  state_ = std::make_unique<State>();
  state_->device = context.device().index;
  state_->stream = stream_of(context);
  state_->launches = launches;
  cuda::check(cudaStreamBeginCapture(state_->stream, cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    for (int i = 0; i < launches; ++i) launch(i);
  } catch (...) {
    cudaStreamEndCapture(state_->stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  cuda::check(cudaStreamEndCapture(state_->stream, &graph), "cudaStreamEndCapture");
  const cudaError_t status = cudaGraphInstantiate(&state_->executable, graph, 0);
  cudaGraphDestroy(graph);
  cuda::check(status, "cudaGraphInstantiate");
}

CudaGraph::~CudaGraph() = default;
CudaGraph::CudaGraph(CudaGraph&&) noexcept = default;
CudaGraph& CudaGraph::operator=(CudaGraph&&) noexcept = default;

double CudaGraph::replay_us() {
  const cuda::DeviceScope scope(state_->device);
  cuda::check(cudaEventRecord(state_->start.get(), state_->stream), "cudaEventRecord");
  cuda::check(cudaGraphLaunch(state_->executable, state_->stream), "cudaGraphLaunch");
  cuda::check(cudaEventRecord(state_->stop.get(), state_->stream), "cudaEventRecord");
  cuda::check(cudaEventSynchronize(state_->stop.get()), "cudaEventSynchronize");
  float milliseconds = 0;
  cuda::check(cudaEventElapsedTime(&milliseconds, state_->start.get(), state_->stop.get()),
              "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e3 / state_->launches;
}

void cuda_copy(Context& context, void* to, const void* from, std::int64_t bytes) {
  launch_copy<4, true>(context, to, from, bytes);
}

machine::Ceiling measure_cuda_ceiling(Context& context, int rounds) {
  constexpr std::int64_t kMax = std::int64_t{2} << 30;
  constexpr int kLaunches = 4;
  const Device device = context.device();
  const std::int64_t memory = cuda_devices()[static_cast<std::size_t>(device.index)].memory_bytes;
  const std::int64_t bytes = std::min(kMax, memory / 16) / 4096 * 4096;
  Tensor a = Tensor::empty({bytes / 4}, DType::f32, device);
  Tensor b = Tensor::empty({bytes / 4}, DType::f32, device);
  Tensor c = Tensor::empty({bytes / 4}, DType::f32, device);
  spec::fill_random_cuda(a, 0.0F, 1.0F, 1, context.stream());
  spec::fill_random_cuda(b, 0.0F, 1.0F, 2, context.stream());
  context.synchronize();
  std::vector<CudaGraph> graphs;
  for (const Copy& copy : kCopies) {
    graphs.emplace_back(context, kLaunches,
                        [&](int) { copy.launch(context, c.data(), a.data(), bytes); });
  }
  graphs.emplace_back(context, kLaunches, [&](int) { launch_add(stream_of(context), c, a, b); });
  graphs.emplace_back(context, kLaunches, [&](int) { launch_read(stream_of(context), c, a); });
  std::vector<std::vector<double>> us(graphs.size());
  for (int round = -1; round < rounds; ++round) {  // round -1 warms up
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      const double time = graphs[i].replay_us();
      if (round >= 0) us[i].push_back(time);
    }
  }
  machine::Ceiling ceiling;
  ceiling.buffer_bytes = bytes;
  const double kilobytes = static_cast<double>(bytes) * 1e-3;  // per microsecond: GB/s
  for (std::size_t i = 0; i < std::size(kCopies); ++i) {
    const machine::Summary summary = machine::summarize(us[i]);
    if (2 * kilobytes / summary.median <= ceiling.copy_gbs) continue;
    ceiling.copy_name = kCopies[i].name;
    ceiling.copy_gbs = 2 * kilobytes / summary.median;
    ceiling.copy_best_gbs = 2 * kilobytes / summary.best;
  }
  ceiling.triad_gbs = 3 * kilobytes / machine::summarize(us[std::size(kCopies)]).median;
  ceiling.read_gbs = kilobytes / machine::summarize(us.back()).median;
  return ceiling;
}

}  // namespace touchstone::bench
