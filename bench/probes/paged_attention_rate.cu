// Speed of `cached_attention` over bf16 pages of 16 tokens in random order, decode and prefill, as
// calls of one CUDA graph; a prefill beside dense `attention` of the same shape.
//
//   nvcc -std=c++20 -O3 -Iinclude paged_attention_rate.cu build/cuda/libtouchstone.a -lhwy -o rate
//   ./rate [part of a name]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "graph_replay.cuh"
#include "touchstone/touchstone.h"

namespace {

using namespace touchstone;

struct Shape {
  const char* name;
  std::int64_t rows, queries, length, query_heads, kv_heads, dim;
  std::int64_t shared = 0;  // tokens at the beginning whose pages all rows have in common
};

constexpr Shape kShapes[] = {
    {"decode 64x4096 32/8x128", 64, 1, 4096, 32, 8, 128},
    {"decode 64x1024 32/32x128", 64, 1, 1024, 32, 32, 128},
    {"decode 64x8192 64/8x64", 64, 1, 8192, 64, 8, 64},
    {"decode 64x512 32/8x128", 64, 1, 512, 32, 8, 128},
    {"decode 1x32768 32/8x128", 1, 1, 32768, 32, 8, 128},
    {"forks 64x4096 32/32x128", 64, 1, 4096, 32, 32, 128, 3584},
    {"verify 64x4096 32/8x128, 4 queries", 64, 4, 4096, 32, 8, 128},
    {"chunk 512 of 8192 32/8x128", 1, 512, 8192, 32, 8, 128},
    {"prefill 1x8192 32/8x128", 1, 8192, 8192, 32, 8, 128},
    {"prefill 1x8192 32/32x128", 1, 8192, 8192, 32, 32, 128},
    {"prefill 4x2048 32/8x128", 4, 2048, 2048, 32, 8, 128},
    {"prefill 1x8192 64/8x64", 1, 8192, 8192, 64, 8, 64},
};
constexpr std::int64_t kPageTokens = 16;

// Microseconds of a call, the best of five graphs of `count`.
double time_of(Context& context, int count, const std::function<void()>& call) {
  probe::GraphReplay replay(static_cast<cudaStream_t>(context.stream()), count,
                            [&](int) { call(); });
  double best = replay.microseconds(1);
  for (int round = 1; round < 5; ++round) best = std::min(best, replay.microseconds(1));
  return best;
}

void fill(void* to, std::int64_t bytes) {
  static const std::vector<Bf16> noise = [] {
    std::vector<Bf16> result(std::size_t{1} << 22);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (Bf16& x : result) x = Bf16(normal(random));
    return result;
  }();
  const auto all = static_cast<std::int64_t>(noise.size() * 2);
  for (std::int64_t at = 0; at < bytes; at += all) {
    CHECK(cudaMemcpy(static_cast<std::byte*>(to) + at, noise.data(),
                     static_cast<std::size_t>(std::min(all, bytes - at)), cudaMemcpyHostToDevice));
  }
}

Tensor random_tensor(std::initializer_list<std::int64_t> shape) {
  Tensor result = Tensor::empty(shape, DType::bf16, Device::cuda());
  std::int64_t bytes = 2;
  for (const std::int64_t n : shape) bytes *= n;
  fill(result.data(), bytes);
  return result;
}

template <class T>
Tensor uploaded(const std::vector<T>& values, DType dtype) {
  Tensor host = Tensor::empty({static_cast<std::int64_t>(values.size())}, dtype);
  std::memcpy(host.data(), values.data(), values.size() * sizeof(T));
  return host.to(Device::cuda());
}

void measure(Context& context, const Shape& s) {
  const cache::LayerGroup layers{.layers = 1,
                                 .kv_heads = s.kv_heads,
                                 .k_dim = s.dim,
                                 .v_dim = s.dim,
                                 .page_tokens = kPageTokens};
  const cache::PageGeometry geometry = cache::page_geometry(layers);
  const std::int64_t of_row = s.length / kPageTokens;
  const std::int64_t pages = of_row * s.rows;
  Tensor pool = Tensor::empty({pages * geometry.page_bytes}, DType::u8, Device::cuda());
  fill(pool.data(), pages * geometry.page_bytes);
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages)), table;
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t row = 0; row < s.rows; ++row) {
    offsets.push_back(offsets.back() + s.queries);
    for (std::int64_t i = 0; i < of_row; ++i) {
      const std::int64_t at = i < s.shared / kPageTokens ? i : row * of_row + i;
      table.push_back(order[static_cast<std::size_t>(at)]);
    }
  }
  const Tensor device_table = uploaded(table, DType::i32);
  const Tensor device_offsets = uploaded(offsets, DType::i64);
  const Tensor lengths =
      uploaded(std::vector<std::int64_t>(static_cast<std::size_t>(s.rows), s.length), DType::i64);
  const cache::GroupView group{
      .memory = static_cast<std::byte*>(pool.data()),
      .pages = pages,
      .layer_group = layers,
      .geometry = geometry,
      .page_tokens = kPageTokens,
      .table_stride = of_row,
      .page_table = {static_cast<const std::int32_t*>(device_table.data()), table.size()}};
  const cache::CacheView view{.device = Device::cuda(),
                              .rows = s.rows,
                              .lengths = {static_cast<const std::int64_t*>(lengths.data()),
                                          static_cast<std::size_t>(s.rows)},
                              .groups = {&group, 1}};
  const Tensor q = random_tensor({s.rows * s.queries, s.query_heads, s.dim});
  Tensor output = random_tensor({s.rows * s.queries, s.query_heads, s.dim});
  const int count = s.queries > 8 ? 3 : 10;
  const double us = time_of(context, count, [&] {
    cached_attention(context,
                     {.q = q, .query_offsets = device_offsets, .cache = view, .output = output});
  });
  const auto tokens =
      static_cast<double>(s.shared + s.rows * (s.length - s.shared));  // stored, once
  const auto numbers = static_cast<double>(2 * s.kv_heads * s.dim);
  const double pairs = static_cast<double>(s.rows * s.queries) *
                       (static_cast<double>(s.length) - static_cast<double>(s.queries - 1) / 2);
  const double flops = 4 * pairs * static_cast<double>(s.query_heads * s.dim);
  std::printf("%-36s %9.2f us %7.3f TB/s %7.1f TFLOP/s", s.name, us,
              tokens * numbers * 2 / us / 1e6, flops / us / 1e6);
  if (s.queries == s.length) {
    const Tensor dense_q = random_tensor({s.rows, s.queries, s.query_heads, s.dim});
    const Tensor k = random_tensor({s.rows, s.length, s.kv_heads, s.dim});
    const Tensor v = random_tensor({s.rows, s.length, s.kv_heads, s.dim});
    Tensor o = random_tensor({s.rows, s.queries, s.query_heads, s.dim});
    const double dense = time_of(context, count, [&] {
      attention(context, {.q = dense_q, .k = k, .v = v, .output = o, .options = {.causal = true}});
    });
    std::printf("   dense %9.2f us, %.3f of it", dense, dense / us);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Context context({.device = Device::cuda(), .stream = stream});
  context.reserve_workspace(std::int64_t{512} << 20);
  for (const Shape& shape : kShapes) {
    if (std::strstr(shape.name, argc > 1 ? argv[1] : "") != nullptr) measure(context, shape);
  }
}
