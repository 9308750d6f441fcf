#include "touchstone/decode/scorer.h"

#include <fmt/format.h>

#include <algorithm>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {

Scorer::~Scorer() = default;

ScorerSequence Scorer::open(std::span<const std::int32_t> /*tokens*/) { return create(); }

bool Scorer::swap_out(ScorerSequence /*sequence*/) { return false; }
bool Scorer::swap_in(ScorerSequence /*sequence*/) { return false; }

bool Scorer::fits(std::span<const RowCount> /*counts*/) const { return true; }
bool Scorer::fits_in_chunks(std::span<const RowCount> counts, std::int64_t /*chunk*/) const {
  return fits(counts);
}

std::vector<ScoreRow> chain_rows(ScorerSequence sequence, std::int64_t length,
                                 std::span<const std::int32_t> tokens, std::int32_t first) {
  std::vector<ScoreRow> rows;
  rows.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    rows.push_back({.sequence = sequence,
                    .token = tokens[i],
                    .position = length + index,
                    .parent = i == 0 ? kNoNode : first + index - 1});
  }
  return rows;
}

std::vector<ScoreRow> tree_rows(ScorerSequence sequence, std::int64_t length, const TokenTree& tree,
                                std::int32_t first) {
  std::vector<ScoreRow> rows;
  rows.reserve(static_cast<std::size_t>(tree.size()));
  for (const TreeNode& node : tree.nodes()) {
    rows.push_back({.sequence = sequence,
                    .token = node.token,
                    .position = length + node.depth - 1,
                    .parent = node.parent == kNoNode ? kNoNode : first + node.parent});
  }
  return rows;
}

namespace {

void check_row(const Scorer& scorer, std::span<const ScoreRow> rows, std::size_t i) {
  const ScoreRow& row = rows[i];
  const ScorerShape& shape = scorer.shape();
  if (row.token < 0 || row.token >= shape.vocabulary) {
    throw InvalidArgument(
        fmt::format("score: row {}: token {} is outside [0, {})", i, row.token, shape.vocabulary));
  }
  std::int64_t position = scorer.length(row.sequence);
  if (row.parent != kNoNode) {
    if (row.parent < 0 || row.parent >= static_cast<std::int64_t>(i) ||
        rows[static_cast<std::size_t>(row.parent)].sequence != row.sequence) {
      throw InvalidArgument(fmt::format(
          "score: row {}: parent {} is not an earlier row of its sequence", i, row.parent));
    }
    position = rows[static_cast<std::size_t>(row.parent)].position + 1;
  }
  if (row.position != position) {
    throw InvalidArgument(
        fmt::format("score: row {}: expected position {}, got {}", i, position, row.position));
  }
  if (row.position >= shape.max_length) {
    throw InvalidArgument(fmt::format("score: row {}: position {} is beyond the context of {}", i,
                                      row.position, shape.max_length));
  }
}

void check_indices(std::string_view name, std::span<const std::int32_t> indices,
                   std::int64_t limit) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= limit || (i > 0 && indices[i] <= indices[i - 1])) {
      throw InvalidArgument(fmt::format("score: {}: expected ascending numbers in [0, {}), got {}",
                                        name, limit, indices[i]));
    }
  }
}

void check_output(std::string_view name, const TensorView& view, const Scorer& scorer,
                  std::vector<std::int64_t> shape) {
  const bool empty = std::ranges::find(shape, 0) != shape.end();
  if (empty && !view.defined()) return;
  if (view.dtype != DType::f32 && view.dtype != DType::f64) {
    throw InvalidArgument(
        fmt::format("score: {}: expected f32 or f64, got {}", name, name_of(view.dtype)));
  }
  if (view.device != scorer.shape().device) {
    throw InvalidArgument(fmt::format("score: {}: not on the device of the scorer", name));
  }
  if (!view.contiguous() || !std::ranges::equal(view.sizes(), shape)) {
    throw InvalidArgument(fmt::format("score: {}: expected a contiguous tensor of shape [{}]", name,
                                      fmt::join(shape, ", ")));
  }
}

}  // namespace

void check_score_args(const Scorer& scorer, const ScoreArgs& args) {
  const auto rows = static_cast<std::int64_t>(args.rows.size());
  for (std::size_t i = 0; i < args.rows.size(); ++i) check_row(scorer, args.rows, i);
  check_indices("logit_rows", args.logit_rows, rows);
  check_output("logits", args.logits, scorer,
               {static_cast<std::int64_t>(args.logit_rows.size()), scorer.shape().vocabulary});
  const ScorerShape& shape = scorer.shape();
  check_indices("hidden_layers", args.hidden_layers, shape.hidden_size == 0 ? 0 : shape.layers + 1);
  check_output("hidden", args.hidden, scorer,
               {static_cast<std::int64_t>(args.hidden_layers.size()), rows, shape.hidden_size});
}

void check_kept_rows(std::span<const ScoreRow> rows, std::span<const KeptRows> kept) {
  std::vector<std::int64_t> ids;
  ids.reserve(kept.size());
  for (const KeptRows& one : kept) ids.push_back(one.sequence.id);
  std::ranges::sort(ids);
  if (const auto twice = std::ranges::adjacent_find(ids); twice != ids.end()) {
    throw InvalidArgument(fmt::format("keep: sequence {} appears twice", *twice));
  }
  for (std::size_t k = 0; k < kept.size(); ++k) {
    std::int32_t parent = kNoNode;
    for (const std::int32_t row : kept[k].rows) {
      if (row < 0 || row >= static_cast<std::int64_t>(rows.size()) ||
          rows[static_cast<std::size_t>(row)].sequence != kept[k].sequence) {
        throw InvalidArgument(fmt::format("keep: row {} is not a pending row of sequence {}", row,
                                          kept[k].sequence.id));
      }
      if (rows[static_cast<std::size_t>(row)].parent != parent) {
        throw InvalidArgument(
            fmt::format("keep: row {}: its parent {} is not the row kept before it, {}", row,
                        rows[static_cast<std::size_t>(row)].parent, parent));
      }
      parent = row;
    }
  }
}

}  // namespace touchstone::inline v0::decode
