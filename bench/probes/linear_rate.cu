// Speed of `linear` on a GPU beside cuBLASLt, as a decoder meets it: weights rotate through more than
// four times the L2, calls follow each other in one CUDA graph, ours and the library's in turns. Ternary
// weights are multiplied with int8 activations, to which x is rounded in the call, and held against bf16.
//
//   nvcc -std=c++20 -O3 -Iinclude linear_rate.cu build/cuda/libtouchstone.a -lhwy -lcublasLt -o linear_rate
//   ./linear_rate [ternary | ROWS IN OUT FORMAT]
#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "graph_replay.cuh"
#include "touchstone/touchstone.h"

namespace {

using probe::GraphReplay;
using touchstone::ConstTensorView;
using touchstone::Device;
using touchstone::DType;
using touchstone::TensorView;

constexpr double kRotated = 240e6;  // bytes
constexpr int kRounds = 9;
constexpr int kRepeats = 3;
constexpr double kReadRate = 4.57e12;  // bytes a second, of a long read on the H200

__global__ void fill(unsigned char* to, std::size_t bytes, unsigned mask) {
  std::size_t i = blockIdx.x * std::size_t{256} + threadIdx.x;
  for (; i < bytes / 2; i += std::size_t{256} * gridDim.x) {
    unsigned h = static_cast<unsigned>(i) * 2654435761U;
    h ^= h >> 15;
    h *= 2246822519U;
    h ^= h >> 13;
    // bf16 of either sign between 2^-4 and 2^-1; of blocks and fp8 any bytes of small magnitude.
    reinterpret_cast<unsigned short*>(to)[i] =
        static_cast<unsigned short>(mask == 0 ? (h & 0x807fU) | 0x3d80U | (h & 0x100U) : h & mask);
  }
}

// Ternary blocks with codes of -1, 0 and 1 and, at byte `scale`, a scale between 2^-7 and 2^-6.
__global__ void fill_ternary(unsigned char* to, std::size_t blocks, int bytes, int scale) {
  for (std::size_t b = blockIdx.x * std::size_t{256} + threadIdx.x; b < blocks;
       b += std::size_t{256} * gridDim.x) {
    unsigned state = static_cast<unsigned>(b) * 2654435761U + 1U;
    for (int i = 0; i < bytes; ++i) {
      unsigned byte = 0;
      for (int k = 0; k < 4; ++k) {
        state = state * 1664525U + 1013904223U;
        byte |= (state >> 20) % 3U << (2 * k);
      }
      to[b * bytes + i] = static_cast<unsigned char>(byte);
    }
    to[b * bytes + scale] = static_cast<unsigned char>(state >> 24);
    to[b * bytes + scale + 1] = 0x20;
  }
}

struct Buffer {
  unsigned char* data = nullptr;
  Buffer(std::size_t bytes, unsigned mask) {
    CHECK(cudaMalloc(&data, bytes + 64));
    fill<<<1024, 256>>>(data, bytes, mask);
    CHECK(cudaDeviceSynchronize());
  }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

cudaStream_t stream;

// C (m x n, column-major) = op(A) op(B) in bf16, f32 sums.
class Lt {
 public:
  Lt() {
    CHECK(cublasLtCreate(&handle_));
    CHECK(cudaMalloc(&workspace_, kWorkspace));
  }
  std::function<void(const void*, const void*, void*)> product(bool ta, bool tb, int m, int n,
                                                               int k, int lda, int ldb) {
    cublasLtMatmulDesc_t op;
    CHECK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t a = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a)));
    CHECK(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b)));
    cublasLtMatrixLayout_t la, lb, lc;
    CHECK(cublasLtMatrixLayoutCreate(&la, CUDA_R_16BF, ta ? k : m, ta ? m : k, lda));
    CHECK(cublasLtMatrixLayoutCreate(&lb, CUDA_R_16BF, tb ? n : k, tb ? k : n, ldb));
    CHECK(cublasLtMatrixLayoutCreate(&lc, CUDA_R_16BF, m, n, m));
    cublasLtMatmulPreference_t preference;
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const std::size_t bytes = kWorkspace;
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &bytes, sizeof(bytes)));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle_, op, la, lb, lc, lc, preference, 1, &result,
                                         &found));
    return [=, this](const void* x, const void* y, void* c) {
      const float one = 1;
      const float zero = 0;
      CHECK(cublasLtMatmul(handle_, op, &one, x, la, y, lb, &zero, c, lc, c, lc, &result.algo,
                           workspace_, kWorkspace, stream));
    };
  }

 private:
  static constexpr std::size_t kWorkspace = std::size_t{64} << 20;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

TensorView view(void* data, std::vector<std::int64_t> shape, DType dtype = DType::bf16) {
  return touchstone::make_view(data, shape, dtype, Device::cuda());
}

struct Timing {
  double ours;
  double library;
};
Timing in_turns(GraphReplay& ours, GraphReplay* library) {
  const auto timed = [](GraphReplay& replay) {
    replay.launch();
    return replay.microseconds(kRepeats);
  };
  std::vector<double> a, b;
  for (int i = 0; i < kRounds; ++i) {
    a.push_back(timed(ours));
    if (library != nullptr) b.push_back(timed(*library));
  }
  return {probe::median(a), b.empty() ? 0 : probe::median(b)};
}

// Copies of a matrix, to rotate through.
struct Weights {
  std::int64_t bytes;  // of one
  int copies;
  Buffer all;

  Weights(const touchstone::WeightFormat& format, std::int64_t in, std::int64_t out)
      : bytes(out * touchstone::weight_bytes(format, in)),
        copies(static_cast<int>(kRotated / static_cast<double>(bytes)) + 1),
        // Scales of blocks lie anywhere among the bytes: small magnitudes make f16 of at most 2^-7 or so.
        all(static_cast<std::size_t>(bytes * copies), format.name == "bf16" ? 0 : 0x1f3f) {
    if (!format.ternary) return;
    const auto block = static_cast<int>(format.block_bytes);
    const bool scale_first = format.name == "q2_0" || format.name == "pq2_0";
    fill_ternary<<<1024, 256>>>(all.data, static_cast<std::size_t>(bytes * copies / block), block,
                                scale_first ? 0 : block - 2);
    CHECK(cudaDeviceSynchronize());
  }
  unsigned char* of(int call) const { return all.data + call % copies * bytes; }
  int calls() const { return std::max(copies, 20); }
};

void forward(touchstone::Context& context, Lt& lt, std::int64_t rows, std::int64_t in,
             std::int64_t out, const std::string& format_name) {
  const touchstone::WeightFormat& format = touchstone::weight_format(format_name);
  const Weights weights(format, in, out);
  Buffer x(static_cast<std::size_t>(rows * in) * 2, 0);
  Buffer y(static_cast<std::size_t>(rows * out) * 2, 0);
  GraphReplay ours(stream, weights.calls(), [&](int i) {
    touchstone::LinearArgs args;
    args.x = view(x.data, {rows, in});
    if (format.dtype.has_value()) {
      args.weight = view(weights.of(i), {out, in}, *format.dtype);
    } else {
      args.weight = view(weights.of(i), {out, weights.bytes / out}, DType::u8);
      args.weight_format = format_name;
    }
    args.y = view(y.data, {rows, out});
    args.int8_activations = format.ternary;
    args.constant_weight = true;
    touchstone::linear(context, args);
  });
  std::unique_ptr<Weights> wide;
  std::unique_ptr<GraphReplay> library;
  if (format_name == "bf16" || format.ternary) {
    wide = std::make_unique<Weights>(touchstone::weight_format("bf16"), in, out);
    const auto product =
        lt.product(true, false, static_cast<int>(out), static_cast<int>(rows), static_cast<int>(in),
                   static_cast<int>(in), static_cast<int>(in));
    library = std::make_unique<GraphReplay>(stream, wide->calls(),
                                            [&](int i) { product(wide->of(i), x.data, y.data); });
  }
  const Timing t = in_turns(ours, library.get());
  const double tflops = 2.0 * static_cast<double>(rows * in * out) / t.ours / 1e6;
  std::printf("%-13s %5lld x %5lld / %5lld  %9.2f us  of read rate %5.2f  %6.1f TFLOP/s",
              format_name.c_str(), static_cast<long long>(rows), static_cast<long long>(in),
              static_cast<long long>(out), t.ours,
              static_cast<double>(weights.bytes) / kReadRate * 1e6 / t.ours, tflops);
  if (t.library > 0) std::printf("  cublaslt bf16 %9.2f us  %5.2fx", t.library, t.library / t.ours);
  std::printf("\n");
  std::fflush(stdout);
}

void backward(touchstone::Context& context, Lt& lt, std::int64_t rows, std::int64_t in,
              std::int64_t out) {
  Buffer weight(static_cast<std::size_t>(in * out) * 2, 0);
  Buffer x(static_cast<std::size_t>(rows * in) * 2, 0);
  Buffer dy(static_cast<std::size_t>(rows * out) * 2, 0);
  Buffer dx(static_cast<std::size_t>(rows * in) * 2, 0);
  Buffer dw(static_cast<std::size_t>(in * out) * 2, 0);
  GraphReplay ours(stream, 3, [&](int) {
    touchstone::linear_backward(context, {.dy = view(dy.data, {rows, out}),
                                          .x = view(x.data, {rows, in}),
                                          .weight = view(weight.data, {out, in}),
                                          .dx = view(dx.data, {rows, in}),
                                          .dweight = view(dw.data, {out, in})});
  });
  const int n = static_cast<int>(rows), i = static_cast<int>(in), o = static_cast<int>(out);
  const auto for_dx = lt.product(false, false, i, n, o, i, o);
  const auto for_dw = lt.product(false, true, i, o, n, i, o);
  GraphReplay library(stream, 3, [&](int) {
    for_dx(weight.data, dy.data, dx.data);
    for_dw(x.data, dy.data, dw.data);
  });
  const Timing t = in_turns(ours, &library);
  std::printf("dx + dweight %5d x %5d / %5d  %9.2f us  %6.1f TFLOP/s  cublaslt %9.2f us  %5.2fx\n",
              n, i, o, t.ours, 4.0 * static_cast<double>(rows * in * out) / t.ours / 1e6, t.library,
              t.library / t.ours);
}

void all_plain(touchstone::Context& context, Lt& lt) {
  const std::int64_t outs[] = {4096, 6144, 14336};
  for (const std::int64_t rows : {1, 8, 64}) {
    for (const std::int64_t out : outs) forward(context, lt, rows, 4096, out, "bf16");
  }
  forward(context, lt, 1, 14336, 4096, "bf16");
  forward(context, lt, 8, 14336, 4096, "bf16");
  forward(context, lt, 1, 4096, 1024, "bf16");
  for (const char* format :
       {"fp8_e4m3", "int8_g128", "q8_0", "int4_g128", "q4_0", "q4_1", "q4_k", "q6_k"}) {
    forward(context, lt, 1, 4096, 14336, format);
  }
  forward(context, lt, 8, 4096, 14336, "int4_g128");
  forward(context, lt, 16, 4096, 14336, "int4_g128");
  for (const std::int64_t rows : {16, 32, 128, 256, 512, 4096}) {
    forward(context, lt, rows, 4096, 4096, "bf16");
  }
  forward(context, lt, 512, 4096, 14336, "bf16");
  forward(context, lt, 4096, 4096, 14336, "bf16");
  forward(context, lt, 512, 4096, 4096, "q4_0");
  backward(context, lt, 4096, 4096, 4096);
  backward(context, lt, 512, 4096, 4096);
}

void all_ternary(touchstone::Context& context, Lt& lt) {
  for (const char* format : {"ternary_g128", "pq2_0"}) {
    for (const std::int64_t out : {4096, 12288, 24576}) forward(context, lt, 1, 4096, out, format);
  }
  forward(context, lt, 1, 12288, 4096, "ternary_g128");
  for (const std::int64_t rows : {2, 4, 8, 16, 17, 64, 512, 4096}) {
    forward(context, lt, rows, 4096, 12288, "ternary_g128");
  }
  forward(context, lt, 1, 4096, 4096, "tq2_0");
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(cudaStreamCreate(&stream));
  touchstone::Context context({.device = Device::cuda(), .stream = stream});
  Lt lt;
  if (argc == 5) {
    forward(context, lt, std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]), argv[4]);
  } else if (argc == 2 && std::string(argv[1]) == "ternary") {
    all_ternary(context, lt);
  } else {
    all_plain(context, lt);
  }
}
