// A block draft as a source of drafts: DFlash. Each round fills a block of masked positions after
// the text in one pass; the candidates of every position make a tree of the likeliest paths.
//
//   context keys and values   of every committed token: rms_norm(fc(hidden states of chosen target
//                             layers)), projected by each draft layer; they stay
//   block                     embedding of [last token, mask, mask, ..] of the target, at their own
//                             positions; attends to all context and to the whole block
//   result                    the target's head over the masked positions: tokens at these
//                             positions
//
// The scheduler forwards the target's hidden states through DraftSource::observe, so prefixes are
// not shared while it drafts. Hidden states are buffered, at most 256 rows of a continuation, and
// projected in batches when the next draft needs them. Arithmetic is f32. Embedding and head are
// the target's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/draft_source.h"
#include "touchstone/io/block_draft.h"
#include "touchstone/model/model.h"

namespace touchstone::inline v0::model {

struct DFlashOptions {
  std::int64_t block = 0;       // positions of a pass, at most those it was trained with; 0 = those
  std::int64_t candidates = 8;  // of a position
};

class TOUCHSTONE_API DFlash final : public decode::DraftSource {
 public:
  // The target outlives it. InvalidArgument where width, vocabulary or layers are not the target's;
  // the errors of io::read_block_draft.
  DFlash(Context& context, const std::filesystem::path& folder, Model& target,
         const DFlashOptions& options = {});
  ~DFlash() override;
  DFlash(const DFlash&) = delete;
  DFlash& operator=(const DFlash&) = delete;

  std::string name() const override;
  std::int64_t vocabulary() const override;
  std::span<const std::int32_t> hidden_layers() const override;
  void observe(Context& context, const decode::ObservedRows& rows) override;
  void copy(Context& context, std::int64_t from, std::int64_t to) override;
  void draft(Context& context, std::span<decode::DraftRequest> requests) override;
  void forget(std::int64_t id) override;

  const io::BlockDraftDescription& description() const;
  // Logits [block - 1, vocabulary] f32 of the tokens after `token`, which follows all that was
  // observed of the continuation.
  void block_logits(Context& context, std::int64_t id, std::int32_t token,
                    const TensorView& logits);
  std::int64_t observed(std::int64_t id) const;  // tokens whose hidden states are known

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::model
