// Speed of rope, gate, activation, embedding and cross_entropy on a GPU, beside a copy that moves as many
// bytes: operands rotate through several times the L2, calls follow each other in one CUDA graph.
//
//   nvcc -std=c++20 -O3 -Iinclude token_rate.cu build/cuda/libtouchstone.a -lhwy -lpcre2-8 -lutf8proc -lfmt
//     -o token_rate && ./token_rate [rope] [gate] [embedding] [loss]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "graph_replay.cuh"
#include "touchstone/touchstone.h"

namespace {

using namespace touchstone;
constexpr std::int64_t kRotated = std::int64_t{400} << 20;  // bytes
cudaStream_t stream;

double graph_us(int calls, const std::function<void(int)>& call) {
  probe::GraphReplay replay(stream, calls, call);
  replay.launch();
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) times.push_back(replay.microseconds(1));
  return probe::median(times);
}

// Near-normal values that repeat after some millions.
Tensor noise(std::initializer_list<std::int64_t> shape, DType dtype, float scale) {
  static std::uint32_t seed = 1;
  std::uint32_t state = (seed += 77777) * 12345U;
  Tensor host = Tensor::empty({std::int64_t{5000011}}, dtype);
  for (std::int64_t i = 0; i < host.elements(); ++i) {
    float value = 0;
    for (int k = 0; k < 4; ++k) {
      state = state * 1664525U + 1013904223U;
      value += static_cast<float>(state >> 8) / (1 << 24) - 0.5F;
    }
    value *= 1.73F * scale;
    const auto at = static_cast<std::size_t>(i);
    if (dtype == DType::f32) {
      host.values<float>()[at] = value;
    } else {
      host.values<Bf16>()[at] = Bf16(value);
    }
  }
  Tensor result = Tensor::empty(shape, dtype, Device::cuda());
  for (std::int64_t at = 0; at < result.bytes(); at += host.bytes()) {
    cudaMemcpy(static_cast<std::byte*>(result.data()) + at, host.data(),
               static_cast<std::size_t>(std::min(host.bytes(), result.bytes() - at)),
               cudaMemcpyHostToDevice);
  }
  return result;
}

// Prints a time beside that of a copy which reads and writes `bytes` in all.
void report(const std::string& name, double us, std::int64_t bytes) {
  const std::int64_t sets = std::max<std::int64_t>(2, kRotated / bytes);
  Tensor memory = Tensor::zeros({sets * bytes}, DType::u8, Device::cuda());
  const double copy = graph_us(20, [&](int i) {
    std::byte* const at = static_cast<std::byte*>(memory.data()) + i % sets * bytes;
    cudaMemcpyAsync(at, at + bytes / 2, static_cast<std::size_t>(bytes / 2),
                    cudaMemcpyDeviceToDevice, stream);
  });
  std::printf("%-48s %8.1f us, copy %8.1f, fraction %.2f\n", name.c_str(), us, copy, copy / us);
  std::fflush(stdout);
}

struct RopeShape {
  std::int64_t tokens, heads, dim, rotated;
  RopePairs pairs;
  DType dtype;
};

void rate_rope(Context& context) {
  constexpr RopePairs kHalves = RopePairs::halves, kAdjacent = RopePairs::adjacent;
  for (const RopeShape& s : {RopeShape{16384, 8, 128, 128, kHalves, DType::bf16},
                             RopeShape{16384, 8, 128, 128, kAdjacent, DType::bf16},
                             RopeShape{8192, 32, 128, 128, kHalves, DType::bf16},
                             RopeShape{8192, 32, 128, 128, kAdjacent, DType::bf16},
                             RopeShape{8192, 32, 128, 64, kHalves, DType::bf16},
                             RopeShape{8192, 32, 64, 64, kHalves, DType::bf16},
                             RopeShape{8192, 32, 96, 96, kHalves, DType::bf16},
                             RopeShape{8192, 32, 128, 128, kHalves, DType::f32},
                             RopeShape{64, 32, 128, 128, kHalves, DType::bf16}}) {
    const std::int64_t bytes = 2 * s.tokens * s.heads * s.dim * size_of(s.dtype);
    const auto sets = std::clamp<std::int64_t>(kRotated / bytes, 2, 20);
    std::vector<Tensor> x, y;
    for (std::int64_t i = 0; i < sets; ++i) {
      x.push_back(noise({s.tokens, s.heads, s.dim}, s.dtype, 1));
      y.push_back(Tensor::empty({s.tokens, s.heads, s.dim}, s.dtype, Device::cuda()));
    }
    Tensor host = Tensor::empty({s.rotated / 2}, DType::f64);
    std::ranges::copy(rope_frequencies(s.rotated, 10000).values, host.values<double>().begin());
    const Tensor frequencies = host.to(Device::cuda());
    Tensor list = Tensor::empty({s.tokens}, DType::i64);
    for (std::int64_t i = 0; i < s.tokens; ++i) {
      list.values<std::int64_t>()[static_cast<std::size_t>(i)] = i * 7 % 5003;
    }
    const Tensor positions = list.to(Device::cuda());
    const double us = graph_us(20, [&](int i) {
      rope(context, {.x = x[static_cast<std::size_t>(i % sets)],
                     .positions = positions,
                     .frequencies = frequencies,
                     .y = y[static_cast<std::size_t>(i % sets)],
                     .pairs = s.pairs});
    });
    report("rope " + std::to_string(s.tokens) + "x" + std::to_string(s.heads) + "x" +
               std::to_string(s.dim) + " of it " + std::to_string(s.rotated) +
               (s.pairs == kHalves ? " halves " : " adjacent ") + std::string(name_of(s.dtype)),
           us, bytes);
  }
}

void rate_gate(Context& context) {
  constexpr std::int64_t kRows = 8192, kCols = 14336;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    std::vector<Tensor> gates, ups, outputs;
    for (int i = 0; i < 2; ++i) {
      gates.push_back(noise({kRows, kCols}, dtype, 2));
      ups.push_back(noise({kRows, kCols}, dtype, 1));
      outputs.push_back(Tensor::empty({kRows, kCols}, dtype, Device::cuda()));
    }
    Tensor dgate = Tensor::empty({kRows, kCols}, dtype, Device::cuda());
    Tensor dup = Tensor::empty({kRows, kCols}, dtype, Device::cuda());
    const std::int64_t one = kRows * kCols * size_of(dtype);
    for (const auto& [kind, name] : {std::pair{Activation::silu, "silu "},
                                     {Activation::gelu, "gelu "},
                                     {Activation::gelu_tanh, "gelu_tanh "},
                                     {Activation::relu_squared, "relu_squared "}}) {
      const std::string what = name + std::string(name_of(dtype));
      const auto set = [](int i) { return static_cast<std::size_t>(i % 2); };
      report("gate " + what,
             graph_us(8,
                      [&](int i) {
                        gate(context, {.gate = gates[set(i)],
                                       .up = ups[set(i)],
                                       .y = outputs[set(i)],
                                       .kind = kind});
                      }),
             3 * one);
      report("gate_backward " + what,
             graph_us(8,
                      [&](int i) {
                        gate_backward(context, {.dy = outputs[set(i)],
                                                .gate = gates[set(i)],
                                                .up = ups[set(i)],
                                                .dgate = dgate,
                                                .dup = dup,
                                                .kind = kind});
                      }),
             5 * one);
      report("activation " + what,
             graph_us(8,
                      [&](int i) {
                        activation(context,
                                   {.x = gates[set(i)], .y = outputs[set(i)], .kind = kind});
                      }),
             2 * one);
    }
  }
}

void rate_embedding(Context& context) {
  constexpr std::int64_t kTokens = 8192, kDim = 4096, kVocabulary = 128256;
  Tensor list = Tensor::empty({4, kTokens}, DType::i32);
  for (std::int64_t i = 0; i < list.elements(); ++i) {
    list.values<std::int32_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(i * 7919 % kVocabulary);
  }
  const Tensor tokens = list.to(Device::cuda());
  const auto batch = [&](int i) {
    return make_view(static_cast<const std::int32_t*>(tokens.data()) + i % 4 * kTokens, {kTokens},
                     Device::cuda());
  };
  for (const char* const name :
       {"f32", "bf16", "fp8_e4m3", "int8_g128", "int4_g128", "q8_0", "q4_k", "q6_k"}) {
    const WeightFormat& format = weight_format(std::string_view(name));
    const std::int64_t row = weight_bytes(format, kDim);
    const Tensor table = Tensor::zeros({kVocabulary, row}, DType::u8, Device::cuda());
    ConstTensorView view = table;
    if (format.dtype.has_value()) {
      view.dtype = *format.dtype;
      view.shape[1] = view.stride[0] = kDim;
    }
    const DType dtype = format.dtype == DType::f32 ? DType::f32 : DType::bf16;
    Tensor y[2] = {Tensor::empty({kTokens, kDim}, dtype, Device::cuda()),
                   Tensor::empty({kTokens, kDim}, dtype, Device::cuda())};
    const double us = graph_us(8, [&](int i) {
      embedding(context, {.tokens = batch(i),
                          .weight = view,
                          .weight_format = format.dtype.has_value() ? "" : name,
                          .y = y[i % 2]});
    });
    report("embedding " + std::string(name) + " to " + std::string(name_of(dtype)), us,
           kTokens * (row + kDim * size_of(dtype)));
  }
  const Tensor dy = noise({kTokens, kDim}, DType::bf16, 1);
  const Tensor same = Tensor::zeros({kTokens}, DType::i32, Device::cuda());
  Tensor dweight = Tensor::zeros({kVocabulary, kDim}, DType::f32, Device::cuda());
  report("embedding_backward accumulate, distinct tokens",
         graph_us(8,
                  [&](int i) {
                    embedding_backward(
                        context,
                        {.tokens = batch(i), .dy = dy, .dweight = dweight, .accumulate = true});
                  }),
         kTokens * kDim * (2 + 8));
  report("embedding_backward accumulate, one token",
         graph_us(4,
                  [&](int) {
                    embedding_backward(
                        context,
                        {.tokens = same, .dy = dy, .dweight = dweight, .accumulate = true});
                  }),
         kTokens * kDim * 2);
  Tensor narrow = Tensor::zeros({kVocabulary, kDim}, DType::bf16, Device::cuda());
  report("embedding_backward bf16",
         graph_us(4,
                  [&](int i) {
                    embedding_backward(context, {.tokens = batch(i), .dy = dy, .dweight = narrow});
                  }),
         kTokens * kDim * 2 + kVocabulary * kDim * 2);
}

void rate_loss(Context& context) {
  constexpr std::int64_t kTokens = 4096, kDim = 4096, kVocabulary = 128256;
  context.reserve_workspace(std::int64_t{560} << 20);
  const Tensor x = noise({kTokens, kDim}, DType::bf16, 3);
  const Tensor weight = noise({kVocabulary, kDim}, DType::bf16, 1.0F / 64);
  Tensor list = Tensor::empty({kTokens}, DType::i32);
  for (std::int64_t i = 0; i < kTokens; ++i) {
    list.values<std::int32_t>()[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(i * 7919 % kVocabulary);
  }
  const Tensor targets = list.to(Device::cuda());
  Tensor mean = Tensor::empty({1}, DType::f32, Device::cuda());
  Tensor dx = Tensor::empty({kTokens, kDim}, DType::bf16, Device::cuda());
  const auto print = [](const char* name, double us, int products) {
    std::printf("%-48s %8.1f us, %.0f TFLOP/s\n", name, us,
                products * 2.0 * kTokens * kDim * kVocabulary / us * 1e-6);
    std::fflush(stdout);
  };
  print("cross_entropy",
        graph_us(2,
                 [&](int) {
                   cross_entropy(context,
                                 {.x = x, .weight = weight, .targets = targets, .mean_loss = mean});
                 }),
        1);
  CrossEntropyBackwardArgs args{
      .x = x, .weight = weight, .targets = targets, .dx = dx, .mean_loss = mean};
  const auto backward = [&](int) { cross_entropy_backward(context, args); };
  print("cross_entropy_backward dx", graph_us(1, backward), 2);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    Tensor dweight = Tensor::zeros({kVocabulary, kDim}, dtype, Device::cuda());
    args.dweight = dweight;
    const std::string name = "cross_entropy_backward dx, dweight " + std::string(name_of(dtype));
    print(name.c_str(), graph_us(1, backward), 3);
  }
  std::printf("mean loss %.4f\n", mean.to(Device::cpu()).values<float>()[0]);
}

}  // namespace

int main(int argc, char** argv) {
  cudaStreamCreate(&stream);
  Context context({.device = Device::cuda(), .stream = stream});
  const auto wanted = [&](const char* name) {
    const auto same = [&](const char* given) { return std::strcmp(given, name) == 0; };
    return argc == 1 || std::any_of(argv + 1, argv + argc, same);
  };
  if (wanted("rope")) rate_rope(context);
  if (wanted("gate")) rate_gate(context);
  if (wanted("embedding")) rate_embedding(context);
  if (wanted("loss")) rate_loss(context);
  std::printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
