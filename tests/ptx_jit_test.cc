// What runs on GPUs after Hopper, on any GPU: with CUDA_FORCE_PTX_JIT=1 the driver ignores the code
// for the GPU at hand and compiles the PTX of compute_90. Kernels that need sm_90a must refuse by
// name, and what is chosen in their place must give the answer of the CPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/touchstone.h"

namespace touchstone::inline v0 {
namespace {

class PtxJit : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* forced = std::getenv("CUDA_FORCE_PTX_JIT");
    if (!test::on_gpu() || forced == nullptr || std::strcmp(forced, "1") != 0) {
      GTEST_SKIP() << "for a GPU and CUDA_FORCE_PTX_JIT=1";
    }
  }
};

template <class T>
Tensor random_tensor(std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(shape, dtype_of<T>);
  const std::vector<double> values = test::random_values({}, tensor.elements(), seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.values<T>()[i] = T(static_cast<float>(values[i]));
  }
  return tensor;
}

template <class T>
void expect_near(const Tensor& on_gpu, const Tensor& on_cpu, float tolerance) {
  const Tensor copy = on_gpu.to(Device::cpu());
  const auto got = copy.values<T>();
  const auto expected = on_cpu.values<T>();
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<float>(got[i]), static_cast<float>(expected[i]), tolerance) << i;
  }
}

TEST_F(PtxJit, LayerNormAgreesWithTheCpu) {
  const Tensor x = random_tensor<float>({64, 4096}, 1);
  Tensor y = Tensor::empty({64, 4096}, DType::f32);
  Context cpu;
  layer_norm(cpu, {.x = x, .y = y});
  Context gpu({.device = Device::cuda()});
  const Tensor gpu_x = x.to(Device::cuda());
  Tensor gpu_y = Tensor::empty({64, 4096}, DType::f32, Device::cuda());
  layer_norm(gpu, {.x = gpu_x, .y = gpu_y});
  gpu.synchronize();
  expect_near<float>(gpu_y, y, 1e-5F);
}

TEST_F(PtxJit, SoftmaxTopkAgreesWithTheCpu) {
  for (const std::int64_t rows : {1, 256}) {
    const Tensor logits = random_tensor<float>({rows, 32000}, 2);
    Tensor p = Tensor::empty({rows, 50}, DType::f32);
    Tensor indices = Tensor::empty({rows, 50}, DType::i32);
    Context cpu;
    softmax_topk(cpu, {.logits = logits, .probabilities = p, .indices = indices});
    Context gpu({.device = Device::cuda()});
    const Tensor gpu_logits = logits.to(Device::cuda());
    Tensor gpu_p = Tensor::empty({rows, 50}, DType::f32, Device::cuda());
    Tensor gpu_indices = Tensor::empty({rows, 50}, DType::i32, Device::cuda());
    softmax_topk(gpu, {.logits = gpu_logits, .probabilities = gpu_p, .indices = gpu_indices});
    gpu.synchronize();
    expect_near<float>(gpu_p, p, 1e-6F);
    const Tensor copy = gpu_indices.to(Device::cpu());
    for (std::size_t i = 0; i < 50U * static_cast<std::size_t>(rows); ++i) {
      ASSERT_EQ(copy.values<std::int32_t>()[i], indices.values<std::int32_t>()[i]) << i;
    }
  }
}

TEST_F(PtxJit, AttentionRefusesWgmmaByNameAndAgreesWithTheCpu) {
  const std::initializer_list<std::int64_t> shape = {1, 256, 2, 128};
  const Tensor q = random_tensor<Bf16>(shape, 3);
  const Tensor k = random_tensor<Bf16>(shape, 4);
  const Tensor v = random_tensor<Bf16>(shape, 5);
  Tensor output = Tensor::empty(shape, DType::bf16);
  Context cpu;
  attention(cpu, {.q = q, .k = k, .v = v, .output = output});
  Context gpu({.device = Device::cuda()});
  const Tensor gpu_q = q.to(Device::cuda());
  const Tensor gpu_k = k.to(Device::cuda());
  const Tensor gpu_v = v.to(Device::cuda());
  Tensor gpu_output = Tensor::empty(shape, DType::bf16, Device::cuda());
  AttentionArgs args{.q = gpu_q, .k = gpu_k, .v = gpu_v, .output = gpu_output};
  bool found = false;
  for (const ImplementationReport& report : explain(gpu, args)) {
    if (report.name != "wgmma") continue;
    found = true;
    EXPECT_FALSE(report.accepted);
    EXPECT_NE(report.refusal.find("needs sm_90a code, device is sm_"), std::string::npos)
        << report.refusal;
  }
  EXPECT_TRUE(found);
  attention(gpu, args);
  gpu.synchronize();
  expect_near<Bf16>(gpu_output, output, 0.02F);
  args.implementation = "wgmma";
  EXPECT_THROW(attention(gpu, args), Unsupported);
}

}  // namespace
}  // namespace touchstone::inline v0
