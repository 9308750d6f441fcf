// Drafts: tokens that may follow a sequence, proposed as a tree and verified by the target in one
// pass. A chain is a tree without branches.
//
//   TokenTree tree = chain_tree({.tokens = {5, 9, 2}});
//   tree = best_first_tree(marginals, {.max_nodes = 32});       // of a block draft
//   tree = merge_trees({{&ngram, &suffix}}, {.max_nodes = 32}); // two sources, duplicates folded
//
// Order       Every builder returns the nodes likeliest path first: node 0 is the best root, node 1
//             its best child, and so on to the end of that path; then the other branches, best
//             first. When the target follows the likeliest path, the accepted nodes are the first
//             ones, and Scorer::keep has nothing to move. Ties go to the node that was added first.
// Budget      max_nodes and max_depth cut by path probability: what is left is closed under
//             parents.
//
// check_draft() validates drafts from untrusted sources.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/decode/tree.h"

namespace touchstone::inline v0::decode {

// Probabilities of tokens: tokens ascending, each above 0, together 1; all other tokens have 0.
struct TokenDistribution {
  std::vector<std::int32_t> tokens{};
  std::vector<double> probabilities{};

  double probability(std::int32_t token) const;  // 0 where it is not listed
};

// How the children of a node were proposed: rejection sampling depends on it.
enum class ProposalKind : std::int32_t {
  chosen = 0,               // deterministically: the likeliest, a match in a text
  with_replacement = 1,     // independent draws; siblings may have the same token
  without_replacement = 2,  // each from the rest of the distribution, renormalized
};

struct Proposal {
  ProposalKind kind = ProposalKind::chosen;
  TokenDistribution distribution{};  // that the children were drawn from; not of `chosen`
};

struct Draft {
  TokenTree tree{};
  // Of the roots, then of the children of every node: tree.size() + 1 entries. Empty: all chosen.
  std::vector<Proposal> proposals{};
  // Tokens that may follow the sequence, then those after every node: tree.size() + 1 rows of
  // (vocabulary + 31) / 32 words, bits as sample's token_mask. Empty: all tokens everywhere.
  std::vector<std::int32_t> token_masks{};
};

// Whether any of its children were drawn at random.
TOUCHSTONE_API bool is_drawn(const Draft& draft);

struct DraftLimits {
  std::int64_t max_nodes = std::numeric_limits<std::int32_t>::max();
  std::int64_t max_depth = std::numeric_limits<std::int32_t>::max();
};

// InvalidArgument, `draft: ..`, for a parent that is not an earlier node (so for every cycle), a
// token outside [0, vocabulary), a log-probability that is NaN or above 0, more nodes or levels
// than the limits, or lists of another size than the tree needs.
TOUCHSTONE_API void check_draft(const Draft& draft, std::int64_t vocabulary,
                                const DraftLimits& limits);

struct ChainArgs {
  std::span<const std::int32_t> tokens{};
  std::span<const float> log_probabilities{};  // of each after the ones before; empty: 0
  std::int32_t source = 0;
};
TOUCHSTONE_API TokenTree chain_tree(const ChainArgs& args, const DraftLimits& limits = {});

// A token that may come next and its log-probability.
struct TokenCandidate {
  std::int32_t token = 0;
  float log_probability = 0;
};

// The best paths through independent distributions of the positions: [d] are the candidates of
// depth d + 1 in any order, no token twice. Takes the max_nodes likeliest paths.
TOUCHSTONE_API TokenTree best_first_tree(std::span<const std::vector<TokenCandidate>> positions,
                                         const DraftLimits& limits, std::int32_t source = 0);

// Level by level: the `width` likeliest nodes of a level are continued by `expand`, which is given
// the tree so far and those nodes (kNoNode alone: the sequence) and returns the candidates of each.
// At the end the likeliest max_nodes of all nodes stay.
using ExpandNodes = std::function<std::vector<std::vector<TokenCandidate>>(
    const TokenTree& tree, std::span<const std::int32_t> nodes)>;
struct BeamTreeArgs {
  std::int64_t width = 4;   // nodes of a level that are continued
  std::int64_t branch = 4;  // children of a node, at most
  std::int32_t source = 0;
};
TOUCHSTONE_API TokenTree beam_tree(const BeamTreeArgs& args, const ExpandNodes& expand,
                                   const DraftLimits& limits);

// The union of trees: paths with the same tokens are one, with the source and the log-probability
// of the tree that finds it likelier.
TOUCHSTONE_API TokenTree merge_trees(std::span<const TokenTree* const> trees,
                                     const DraftLimits& limits);

// The likeliest max_nodes nodes of a tree, likeliest path first; duplicates are not folded.
TOUCHSTONE_API TokenTree trim_tree(const TokenTree& tree, const DraftLimits& limits);

// The same of a draft, masks included, its nodes in their order. InvalidArgument where children
// were drawn: a selection of draws by their probability would change the distribution of the text.
TOUCHSTONE_API void cut_draft(Draft& draft, std::int64_t max_nodes, std::int64_t vocabulary);

// The nodes in the order in which budgets select them: by path log-probability, parents first.
TOUCHSTONE_API std::vector<std::int32_t> likeliest_nodes(const TokenTree& tree);

}  // namespace touchstone::inline v0::decode
