// The prefill kernel of cached_attention over bf16.
#pragma once

#include "ops/attention_paged/cuda/paged_cuda.cuh"

namespace touchstone::paged_attention {

// Why it takes no rows of a problem that the decode kernel takes: it has bf16 queries without a
// tree, on Hopper, in pages of whole groups of 8 tokens.
std::string prefill_bf16_refusal(const Context& context, const PagedAttentionProblem& p);

// Attends for all rows with tuning::kPrefillQueries queries and more.
void prefill_bf16(Context& context, const SplitWork& work);

}  // namespace touchstone::paged_attention
