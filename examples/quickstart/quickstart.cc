// The 50 most probable tokens of 64 rows of logits, on a GPU where there is one: the example in the
// README.
// [snippet]
#include <touchstone/touchstone.h>

#include <cstdint>
#include <iostream>

int main() {
  using namespace touchstone;
  const Device device = cuda_devices().empty() ? Device::cpu() : Device::cuda();
  Context ctx({.device = device});

  Tensor logits = Tensor::zeros({64, 128256}, DType::bf16, device);  // from the LM head
  Tensor probabilities = Tensor::empty({64, 50}, DType::f32, device);
  Tensor tokens = Tensor::empty({64, 50}, DType::i32, device);
  softmax_topk(ctx, {.logits = logits,
                     .probabilities = probabilities,
                     .indices = tokens,
                     .temperature_scale = 0.8});
  ctx.synchronize();

  const Tensor host = tokens.to(Device::cpu());
  std::cout << name_of(device) << ": token " << host.values<std::int32_t>().front() << '\n';
}
// [snippet]
