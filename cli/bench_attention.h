// touchstone bench attention: arithmetic, not bytes, is what counts there.
#pragma once

#include <vector>

#include "bench/dense_attention_bench.h"
#include "cli/output.h"

namespace touchstone::cli {

// Measures and prints, or fills in `document`. False when a result was wrong.
bool bench_dense_attention(const bench::SessionOptions& session_options,
                           std::vector<bench::DenseAttentionProblem> problems, bool backward,
                           bool json, Json& document);

}  // namespace touchstone::cli
