// The weights of a model in the form that operators read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/model_file.h"
#include "touchstone/model/model.h"

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
  // q, k and v in one, where they have one format and are copied anyway; the three are absent then.
  Matrix qkv{};
  Matrix q{};
  Matrix k{};
  Matrix v{};
  Matrix output{};
  Matrix gate_up{};  // the same of gate and up
  Matrix gate{};     // absent without a gate
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

// Views of the weights of a model, and the memory of those that had to be copied: to the device, to
// a format that models run from, side by side with the matrices that read the same input, or into
// huge pages.
class LoadedWeights {
 public:
  // `file` must outlive it. `expanded`: the dtype that formats of blocks are decoded to. `copied`:
  // no weight stays where the file is mapped.
  LoadedWeights(Context& context, const io::ModelFile& file, std::optional<DType> expanded,
                bool copied);
  // Takes the weights, which lie on the device of the context. InvalidArgument names the weight
  // that is missing, unknown, on another device or of another shape; Unsupported a format that
  // models do not run from there.
  LoadedWeights(Context& context, const io::ModelDescription& description,
                std::vector<io::UploadedWeight> weights);

  const Weights& get() const { return weights_; }

 private:
  // A weight before its final memory is allocated: bytes of a file, a converted copy, or a tensor
  // on the device.
  struct Piece {
    const WeightFormat* format = nullptr;
    std::vector<std::int64_t> shape{};
    const void* data = nullptr;
    std::int64_t bytes = 0;
    Device device{};
    io::Weight mapped{};  // what keeps the data alive ...
    Tensor owned{};       // ... or this
  };
  struct Stored {
    ConstTensorView view{};
    std::string format{};
  };
  void load_all(const io::ModelDescription& description);
  bool has(const std::string& name) const;
  // Of a matrix, once it is loaded.
  const WeightFormat* format_of(const std::string& name) const;
  Piece piece(const std::string& name);
  // Where the piece stays, or a copy of it on the device.
  Stored store(Piece piece);
  // Host memory, aligned as a tensor is. Matrices of a small model are smaller than a huge page, so
  // they share large tensors.
  std::byte* allocate(std::int64_t bytes);
  // Rows of all pieces one after another.
  Stored stack(std::vector<Piece> pieces);
  ConstTensorView vector(const std::string& name);
  Matrix matrix(const std::string& name);
  // One matrix of the rows of all; absent where they are not copied, or
  // their formats differ.
  Matrix stacked(const std::vector<std::string>& names);
  NormWeights norm(const std::string& name);
  Matrix table(const std::string& name);  // looked up, not multiplied
  LayerWeights layer(std::int64_t index, bool gated);

  Context& context_;           // of the constructor only
  const io::ModelFile* file_;  // null: given_
  std::optional<DType> expanded_{};
  std::map<std::string, io::UploadedWeight> given_{};
  Weights weights_{};
  std::vector<io::Weight> mapped_{};
  std::vector<Tensor> copies_{};
  bool copied_ = false;
  std::span<std::byte> unused_{};  // of the tensor that allocate() hands out
};

// The weights of a file: on CUDA through page-locked memory, unless some are decoded or converted
// on the way.
LoadedWeights load_weights(Context& context, const io::ModelFile& file,
                           const ModelOptions& options);

// The first weight of the file with a value that is not finite, "" if there is none.
std::string first_nonfinite_weight(const io::ModelFile& file);

}  // namespace touchstone::inline v0::model
