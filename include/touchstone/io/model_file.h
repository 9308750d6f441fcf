// A model on disk: its description and its weights under one set of names and in one layout,
// whichever container they come from, so that the same model has the same bits from both.
//
// Names are those of GGUF: token_embd, position_embd, output_norm, output, and per layer N
// blk.N.attn_norm, attn_q, attn_k, attn_v, attn_output, attn_q_norm, attn_k_norm,
// post_attention_norm, ffn_norm, ffn_gate, ffn_up, ffn_down, post_ffw_norm, each with .weight or
// .bias. Layout:
// - matrices are [out, in], row-major, in the format of the file; fused ones are split by rows;
// - rows of q and k (their biases, q and k norms too) are in the order of halves: a rotation turns
//   the pair (i, i + D/2) of a head. GGUF files of the llama architecture store pairs side by side;
// - vectors are f32, and norms hold the factor itself (Gemma's files leave out a 1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/io/model_description.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

struct WeightInfo {
  std::string name;
  const WeightFormat* format = nullptr;
  std::vector<std::int64_t> shape;
};

// The weights that a model of this description has, layer by layer: matrices in `format`,
// vectors in f32. Of a tied head output.weight is left out.
TOUCHSTONE_API std::vector<WeightInfo> weights_of(const ModelDescription& description,
                                                  const WeightFormat& format);

// The bytes of a weight: in the mapped file where it is stored as it is used, else in memory of its
// own (`owner`). Aligned to its elements.
struct TOUCHSTONE_API Weight {
  const WeightFormat* format = nullptr;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
  std::shared_ptr<const std::byte[]> owner;

  // Of plain formats; InvalidArgument for blocks.
  ConstTensorView view() const;
};

class TOUCHSTONE_API ModelFile {
 public:
  // A folder with config.json and safetensors, a file of such a folder, a GGUF file, or a folder
  // with one. Checks that every tensor is there in its shape, that none is left over, that all
  // types are known. Reads no weights.
  static ModelFile open(const std::filesystem::path& path);
  // The same of a GGUF file that is open already; InvalidArgument for safetensors.
  static ModelFile from_gguf(TensorFile file);

  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  const ModelDescription& description() const;
  const TensorFile& file() const;
  // All weights; of a tied head output.weight is left out, though load() accepts it.
  std::span<const WeightInfo> weights() const;
  bool has(std::string_view name) const;
  // InvalidArgument for a name that the model does not have. The mapping outlives the result only
  // as long as this object.
  Weight load(std::string_view name) const;

 private:
  struct State;
  explicit ModelFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Bytes copied so far and the whole.
using UploadProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;

// The weights, one tensor each: plain formats in their dtype and shape, blocks as u8 [rows, bytes
// of a row]. On the device of the context, by chunks through two page-locked buffers of
// `chunk_bytes`, so that reading the disk and copying overlap. On the CPU a copy. Complete when the
// call returns.
struct UploadedWeight {
  WeightInfo info;
  Tensor data;
};
TOUCHSTONE_API std::vector<UploadedWeight> upload_weights(Context& context, const ModelFile& model,
                                                          const UploadProgress& progress = {},
                                                          std::int64_t chunk_bytes = std::int64_t{8}
                                                                                     << 20);

}  // namespace touchstone::inline v0::io
