// The loss of three tokens over an output head, and its gradients, in one call.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kTokens = 3, kWidth = 64, kVocabulary = 1000;
  Tensor x = Tensor::zeros({kTokens, kWidth}, DType::bf16);  // the last hidden states
  Tensor head = Tensor::zeros({kVocabulary, kWidth}, DType::bf16);
  std::ranges::fill(x.values<touchstone::Bf16>(), touchstone::Bf16(0.5F));
  Tensor targets = Tensor::empty({kTokens}, DType::i64);
  std::ranges::copy(std::vector<std::int64_t>{17, 999, -100},  // -100: not counted
                    targets.values<std::int64_t>().begin());

  Tensor dx = Tensor::empty({kTokens, kWidth}, DType::bf16);
  Tensor dhead = Tensor::empty({kVocabulary, kWidth}, DType::f32);
  Tensor mean = Tensor::empty({1}, DType::f32);
  touchstone::Context ctx;  // the CPU, all cores
  touchstone::cross_entropy_backward(ctx, {.x = x,
                                           .weight = head,
                                           .targets = targets,
                                           .dx = dx,  // of the mean, since there is no dloss
                                           .dweight = dhead,
                                           .mean_loss = mean});
  std::cout << "loss " << mean.values<float>()[0] << " = log " << kVocabulary << '\n';
}
// [snippet]
