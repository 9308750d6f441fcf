// A decoder-only transformer that runs: the weights of a model file over the operators of this
// library and a paged KV cache, as a Scorer.
//
//   Context context;
//   model::Model model(context, io::ModelFile::open("SmolLM2.gguf"), {.max_length = 2048});
//   decode::Scheduler scheduler(model, {});            // or beams, speculation, your own loop
//
// Models      What io::ModelDescription can say: RMS or layer norms before and after the blocks,
//             rotary (linear, YaRN, Llama 3, long) or learned positions, grouped heads, norms of q
//             and k, biases, windows with sinks per layer, soft caps, gated or plain MLPs, parallel
//             or sequential blocks, tied or untied heads. What the file reader refuses stays
//             refused.
// Weights     Used where the file is mapped (on CUDA, and with copy_weights, copied), in the format
//             of the file, by every format that linear runs from; f64 is narrowed to f32 when it is
//             loaded. Vectors are f32.
// Dtypes      Activations and the residual stream are `compute`: f32, bf16 or f16; logits are f32.
// Guarantees  Those of Scorer: the logits of a row depend on its path, the weights, `compute`, the
//             cache format and the kind of device alone, to the bit. Not on max_rows, page_tokens,
//             prefix sharing, sequences or threads.
// Memory      Activations for max_rows rows, pages for `sequences` sequences of max_length tokens:
//             allocated by the constructor. score() allocates no tensor. Layers with windows hold
//             their window and max_rows tokens of a sequence: more rows of one sequence in one call
//             may find no pages.
// Windows     Pages that no later token sees are freed by keep(), so a sequence of a model with
//             windows cannot be truncated to before what its next token would see.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/quant_format.h"
#include "touchstone/decode/scorer.h"
#include "touchstone/io/model_file.h"

namespace touchstone::inline v0::model {

struct ModelOptions {
  DType compute = DType::f32;
  // How keys and values are cached; absent = in the dtype of `compute`.
  std::optional<QuantFormat> keys{};
  std::optional<QuantFormat> values{};
  // Tokens of the longest sequence; 0 = the context of the model. Models with "longrope" rotate by
  // their long factors where this exceeds the length of training, whatever the length of a
  // sequence.
  std::int64_t max_length = 0;
  std::int64_t sequences = 1;  // of max_length tokens that the cache has pages for
  // Of max_length tokens that swap_out() has memory for, in the memory of the host (page-locked
  // beside a GPU); 0: it refuses.
  std::int64_t host_sequences = 0;
  std::int64_t page_tokens = 16;
  std::int64_t max_rows = 256;  // that pass through the layers at once; more are cut into chunks
  bool share_prefixes = true;   // open() finds the tokens of earlier sequences
  bool graphs = true;           // CUDA: steps of one row per sequence are recorded and replayed
  // Matrices and tables of a file in formats of blocks are decoded to `compute` when they are
  // loaded: more memory and other bits, less work for every product. On a GPU faster where weights
  // are small.
  bool expand_weights = false;
  // CPU: weights are copied from the file into huge pages: as much memory again, the same bits, and
  // reads that 4 KB pages do not slow down.
  bool copy_weights = false;
  bool int8_activations = false;       // LinearArgs::int8_activations, in every layer and the head
  io::UploadProgress load_progress{};  // called while weights are uploaded to a GPU
};

// One kind of operator of a decode step.
struct StepPart {
  std::string name{};
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  // that all calls read and write: weights, activations, cache
  double us = 0;           // of all calls
};

class TOUCHSTONE_API Model : public decode::Scorer {
 public:
  // On the device of the context. InvalidArgument names the option; Unsupported what this build or
  // device cannot run; OutOfMemory when activations and pages cannot be allocated.
  Model(Context& context, io::ModelFile file, const ModelOptions& options = {});
  // Of weights that are on the device already: those of io::weights_of(), under their names, in any
  // formats that linear runs from; vectors in f32. The model keeps them.
  Model(Context& context, io::ModelDescription description, std::vector<io::UploadedWeight> weights,
        const ModelOptions& options = {});
  ~Model() override;
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const decode::ScorerShape& shape() const override;
  decode::ScorerSequence create() override;
  decode::ScorerSequence open(std::span<const std::int32_t> tokens) override;
  decode::ScorerSequence fork(decode::ScorerSequence sequence) override;
  void truncate(decode::ScorerSequence sequence, std::int64_t length) override;
  void release(decode::ScorerSequence sequence) override;
  std::int64_t length(decode::ScorerSequence sequence) const override;
  // To the host cache, by asynchronous copies on the stream of the model. InvalidArgument for a
  // sequence that is there already, or not.
  bool swap_out(decode::ScorerSequence sequence) override;
  bool swap_in(decode::ScorerSequence sequence) override;
  bool fits(std::span<const decode::RowCount> counts) const override;
  bool fits_in_chunks(std::span<const decode::RowCount> counts, std::int64_t chunk) const override;
  // OutOfMemory when there are no pages for all rows: pending rows are dropped, nothing else
  // changed.
  void score(Context& context, const decode::ScoreArgs& args) override;
  void keep(std::span<const decode::KeptRows> kept) override;

  // The embedding of tokens [n] i32 to y [n, width] f32, and the head over hidden states [n, width]
  // f32 after a final norm, logits [n, vocabulary] f32: for drafts that share them.
  void embed(Context& context, const ConstTensorView& tokens, const TensorView& y) const;
  void head(Context& context, const ConstTensorView& hidden, const TensorView& logits) const;

  const io::ModelDescription& description() const;
  const io::ModelFile& file() const;    // InvalidArgument where the model has none
  const ModelOptions& options() const;  // max_length filled in
  cache::Statistics cache_statistics() const;
  std::int64_t cache_bytes() const;    // of all pages
  std::int64_t weight_bytes() const;   // that a decode step reads: every matrix once
  std::int64_t graph_replays() const;  // steps that were one launch of a graph and the head
  // Empties the prefix index: open() finds no tokens of released sequences.
  void clear_prefixes();
  // The operators of the next decode step of these sequences, in order, each kind once, and how
  // long it takes: that of steps that run this kind alone in every layer (on CUDA as a graph). Last
  // the whole step, whose time differs from the sum by overlaps and gaps. Leaves the sequences as
  // they were.
  std::vector<StepPart> profile_step(Context& context,
                                     std::span<const decode::ScorerSequence> sequences);
  // Name of the first weight of the file with a value that is NaN or infinite, "" if there is none.
  // Reads all of them: for the message when logits are NaN.
  std::string find_nonfinite_weight() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::model
