// The weights of a model as operators take them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/model_file.h"

namespace touchstone::inline v0::model {

struct Matrix {
  ConstTensorView weight{};  // [out, in], or bytes [out, bytes of a row]
  std::string format{};      // of bytes; "" = the dtype of `weight`
  ConstTensorView bias{};    // [out], may be absent
};

struct NormWeights {
  ConstTensorView weight{};
  ConstTensorView bias{};
};

struct LayerWeights {
  NormWeights attention_norm{};
  NormWeights mlp_norm{};
  NormWeights post_attention_norm{};  // absent without post_norms
  NormWeights post_mlp_norm{};
  NormWeights q_norm{};  // absent without qk_norm
  NormWeights k_norm{};
  Matrix q{};
  Matrix k{};
  Matrix v{};
  Matrix output{};
  Matrix gate{};  // absent without a gate
  Matrix up{};
  Matrix down{};
};

struct Weights {
  Matrix embedding{};
  Matrix positions{};  // absent without learned positions
  std::vector<LayerWeights> layers{};
  NormWeights final_norm{};
  Matrix head{};
  std::int64_t matrix_bytes = 0;  // of all matrices of the layers and the head
};

// Views of the weights of `file`, and the memory of those that had to be copied: to the device, or to
// a format that linear runs from.
class LoadedWeights {
 public:
  // `file` must outlive it.
  LoadedWeights(Context& context, const io::ModelFile& file);

  const Weights& get() const { return weights_; }

 private:
  struct Stored {
    ConstTensorView view{};
    std::string format{};
  };
  Stored store(const std::string& name);
  ConstTensorView vector(const std::string& name);
  Matrix matrix(const std::string& name);
  NormWeights norm(const std::string& name);
  Matrix table(const std::string& name);  // looked up, not multiplied
  LayerWeights layer(std::int64_t index);

  Context& context_;  // of the constructor only
  const io::ModelFile& file_;
  Weights weights_{};
  std::vector<io::Weight> mapped_{};
  std::vector<Tensor> copies_{};
};

// The first weight of the file with a value that is not finite, "" if there is none.
std::string first_nonfinite_weight(const io::ModelFile& file);

}  // namespace touchstone::inline v0::model
