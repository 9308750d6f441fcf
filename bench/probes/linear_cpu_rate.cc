// Speed of `linear` on the CPU as a decoder meets it: calls follow each other, weights rotate through
// more than the caches hold. Prints the median and the weights' bytes a second, and a second of CPU time:
// what to compare, with one thread, where other programs share the machine.
//
//   g++ -std=c++20 -O2 -Iinclude linear_cpu_rate.cc build/release/libtouchstone.a -lhwy -lpthread -ldl
//   ./a.out ROWS IN OUT FORMAT [MEGABYTES=600] [THREADS=0] [int8 | f32 | bf16] [IMPLEMENTATION]
//
// The last but one is how x is multiplied: rounded to int8, or in its dtype (f32).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <span>
#include <string_view>
#include <vector>

#include "touchstone/touchstone.h"

namespace {

using touchstone::DType;

// Bytes that are numbers of moderate size in every format: scales and bf16 have their exponent in the
// odd ones, and subnormal numbers would be slow.
void fill(std::span<std::byte> bytes) {
  unsigned state = 1;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    state = state * 1664525U + 1013904223U;
    bytes[i] = static_cast<std::byte>(i % 2 == 0 ? state >> 24 : 0x3c + (state >> 31));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(
        stderr,
        "usage: %s ROWS IN OUT FORMAT [MEGABYTES] [THREADS] [int8|f32|bf16] [IMPLEMENTATION]\n",
        argv[0]);
    return 2;
  }
  const std::int64_t rows = std::atoll(argv[1]);
  const std::int64_t in = std::atoll(argv[2]);
  const std::int64_t out = std::atoll(argv[3]);
  const touchstone::WeightFormat& format = touchstone::weight_format(argv[4]);
  const double rotated = 1e6 * (argc > 5 ? std::atof(argv[5]) : 600);
  const std::int64_t row_bytes = touchstone::weight_bytes(format, in);
  const std::int64_t bytes = row_bytes * out;
  const int copies = static_cast<int>(rotated / static_cast<double>(bytes)) + 1;
  // A tensor has huge pages where the system grants them, as weights have that a model does not map.
  touchstone::Tensor memory = touchstone::Tensor::empty({bytes * copies}, DType::u8);
  const std::span<std::byte> weights = std::as_writable_bytes(memory.values<std::uint8_t>());
  fill(weights);
  const std::string_view activations = argc > 7 ? argv[7] : "f32";
  const DType dtype = activations == "bf16" ? DType::bf16 : DType::f32;
  touchstone::Tensor x = touchstone::Tensor::empty({rows, in}, dtype);
  fill({static_cast<std::byte*>(x.data()), static_cast<std::size_t>(rows * in * size_of(dtype))});
  touchstone::Tensor y = touchstone::Tensor::empty({rows, out}, dtype);
  touchstone::Context context({.threads = argc > 6 ? std::atoi(argv[6]) : 0});

  const std::int64_t plain_shape[] = {out, in};
  const std::int64_t block_shape[] = {out, row_bytes};
  const auto call = [&](int i) {
    std::byte* const w = weights.data() + i % copies * bytes;
    touchstone::LinearArgs args;
    args.x = x;
    args.y = y;
    if (format.dtype.has_value()) {
      args.weight = touchstone::make_view(w, plain_shape, *format.dtype, touchstone::Device::cpu());
    } else {
      args.weight = touchstone::make_view(w, block_shape, DType::u8, touchstone::Device::cpu());
      args.weight_format = argv[4];
    }
    args.int8_activations = activations == "int8";
    if (argc > 8) args.implementation = argv[8];
    touchstone::linear(context, args);
  };
  for (int i = 0; i < 3; ++i) call(i);
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;
  for (int i = 0; i < std::max(2 * copies, 40); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t cpu_begin = std::clock();
    call(i);
    cpu_seconds.push_back(static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC);
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  std::sort(cpu_seconds.begin(), cpu_seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double cpu_median = cpu_seconds[cpu_seconds.size() / 2];
  std::printf(
      "%-10s %lld x %lld / %lld  %9.1f us (best %9.1f)  %6.1f GB/s of W (CPU %6.1f)  %7.1f "
      "GFLOP/s\n",
      argv[4], static_cast<long long>(rows), static_cast<long long>(in),
      static_cast<long long>(out), median * 1e6, seconds.front() * 1e6,
      static_cast<double>(bytes) / median / 1e9, static_cast<double>(bytes) / cpu_median / 1e9,
      2e-9 * static_cast<double>(rows) * static_cast<double>(in * out) / median);
  return 0;
}
