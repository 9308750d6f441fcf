// The rows of sample() that verify a draft, as plain decoding would draw them.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "decode/sampler.h"
#include "touchstone/decode/acceptance.h"

namespace touchstone::inline v0::decode {

// The mask after a node (kNoNode: after the sequence); empty where plain decoding has none. Without
// a constraint it has one before min_tokens only, and then some token is forbidden: so a row that
// allows every token is no mask, though other rows of the draft have one.
std::span<const std::int32_t> node_mask(const DraftedSequence& sequence, std::int32_t node,
                                        std::int64_t vocabulary);

struct VerificationRows {
  std::vector<SampleRow> rows{};
  std::deque<std::vector<std::int32_t>> histories{};  // of rows with a history of their own
};

// One row after the sequence and one after each node. Rows share the tokens of the sequence and
// name their parents; but sample() is called once for masked and once for other rows, so a row
// below one of the other kind has the tokens of its whole path.
void add_verification_rows(const DraftedSequence& sequence, std::int64_t vocabulary,
                           VerificationRows& result);

}  // namespace touchstone::inline v0::decode
