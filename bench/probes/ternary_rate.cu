// Speed of `linear` from ternary weights with int8 activations beside cuBLASLt in bf16, as a decoder meets
// it: weights rotate through more than four times the L2, calls follow each other in one CUDA graph, ours
// and the library's in turns. Rounding x to int8 is part of ours.
//
//   nvcc -std=c++20 -O3 -Iinclude ternary_rate.cu build/cuda/libtouchstone.a -lhwy -lcublasLt -o ternary_rate
//   ./ternary_rate [ROWS IN OUT FORMAT]
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "graph_replay.cuh"
#include "touchstone/touchstone.h"

namespace {

using probe::GraphReplay;
using touchstone::Context;
using touchstone::DType;

constexpr double kRotated = 240e6;     // bytes, 4 times the L2 of the H200
constexpr double kReadRate = 4.57e12;  // bytes a second, of a long read on the H200
constexpr int kRounds = 9;
constexpr int kRepeats = 3;

// Blocks with scales between 2^-7 and 2^-6 and codes of -1, 0 and 1.
__global__ void fill_blocks(unsigned char* to, std::size_t blocks, int bytes, int scale) {
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
// bf16 of either sign between 2^-4 and 2^-1.
__global__ void fill_bf16(unsigned short* to, std::size_t count) {
  for (std::size_t i = blockIdx.x * std::size_t{256} + threadIdx.x; i < count;
       i += std::size_t{256} * gridDim.x) {
    const unsigned h = static_cast<unsigned>(i) * 2654435761U;
    to[i] = static_cast<unsigned short>((h >> 16 & 0x807fU) | 0x3d80U | (h >> 8 & 0x100U));
  }
}

struct Memory {
  unsigned char* data = nullptr;
  explicit Memory(std::size_t bytes) { CHECK(cudaMalloc(&data, bytes + 256)); }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

void measure(Context& context, cudaStream_t stream, std::int64_t rows, std::int64_t in,
             std::int64_t out, const std::string& name) {
  const touchstone::WeightFormat& format = touchstone::weight_format(std::string_view(name));
  const std::int64_t row_bytes = touchstone::weight_bytes(format, in);
  const std::int64_t bytes = out * row_bytes;
  const int copies = static_cast<int>(kRotated / static_cast<double>(bytes)) + 1;
  const std::int64_t wide_bytes = 2 * out * in;
  const int wide_copies = static_cast<int>(kRotated / static_cast<double>(wide_bytes)) + 1;
  Memory packed(static_cast<std::size_t>(bytes * copies));
  Memory wide(static_cast<std::size_t>(wide_bytes * wide_copies));
  Memory x(static_cast<std::size_t>(rows * in * 2));
  Memory y(static_cast<std::size_t>(rows * out * 2));
  const bool first = name == "q2_0" || name == "pq2_0";
  fill_blocks<<<1024, 256>>>(
      packed.data, static_cast<std::size_t>(bytes * copies / format.block_bytes),
      static_cast<int>(format.block_bytes), first ? 0 : static_cast<int>(format.block_bytes) - 2);
  fill_bf16<<<1024, 256>>>(reinterpret_cast<unsigned short*>(wide.data),
                           static_cast<std::size_t>(out * in) * wide_copies);
  fill_bf16<<<1024, 256>>>(reinterpret_cast<unsigned short*>(x.data),
                           static_cast<std::size_t>(rows * in));
  CHECK(cudaDeviceSynchronize());
  const auto view = [](void* data, std::vector<std::int64_t> shape, DType dtype) {
    return touchstone::make_view(data, shape, dtype, touchstone::Device::cuda());
  };
  const auto ours = [&](int i) {
    touchstone::LinearArgs args;
    args.x = view(x.data, {rows, in}, DType::bf16);
    args.weight = view(packed.data + i % copies * bytes, {out, row_bytes}, DType::u8);
    args.weight_format = name;
    args.y = view(y.data, {rows, out}, DType::bf16);
    args.int8_activations = true;
    args.constant_weight = true;
    touchstone::linear(context, args);
  };
  const auto library = [&](int i) {
    touchstone::LinearArgs args;
    args.x = view(x.data, {rows, in}, DType::bf16);
    args.weight = view(wide.data + i % wide_copies * wide_bytes, {out, in}, DType::bf16);
    args.y = view(y.data, {rows, out}, DType::bf16);
    args.bits_may_depend_on_batch = true;
    args.implementation = "cublaslt";
    touchstone::linear(context, args);
  };
  GraphReplay a(stream, std::max(copies, 20), ours);
  GraphReplay b(stream, std::max(wide_copies, 20), library);
  std::vector<double> times_a, times_b;
  for (int i = 0; i < kRounds; ++i) {
    a.launch();
    times_a.push_back(a.microseconds(kRepeats));
    b.launch();
    times_b.push_back(b.microseconds(kRepeats));
  }
  const double t = probe::median(times_a);
  std::printf(
      "%-13s %5lld x %5lld / %5lld  %8.2f us  of read rate %5.2f  cublaslt bf16 %8.2f us  %5.2fx\n",
      name.c_str(), static_cast<long long>(rows), static_cast<long long>(in),
      static_cast<long long>(out), t, static_cast<double>(bytes) / kReadRate * 1e6 / t,
      probe::median(times_b), probe::median(times_b) / t);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreate(&stream));
  Context context({.device = touchstone::Device::cuda(), .stream = stream});
  if (argc == 5) {
    measure(context, stream, std::atoll(argv[1]), std::atoll(argv[2]), std::atoll(argv[3]),
            argv[4]);
    return 0;
  }
  for (const char* name : {"ternary_g128", "pq2_0"}) {
    for (const std::int64_t out : {4096, 12288, 24576})
      measure(context, stream, 1, 4096, out, name);
  }
  measure(context, stream, 1, 12288, 4096, "ternary_g128");
  for (const std::int64_t rows : {2, 4, 8, 16, 17, 64, 512, 4096}) {
    measure(context, stream, rows, 4096, 12288, "ternary_g128");
  }
  measure(context, stream, 1, 4096, 4096, "tq2_0");
  return 0;
}
