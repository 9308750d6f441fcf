// Rejection sampling over the children of one node: whatever the draft proposed, the token that
// comes out is distributed as the target's.
//
//   p: the target's distribution after the node, q: the one that the children were drawn from
//   for each child x, in order:
//     accept x with probability min(1, p(x) / q(x))
//     else p <- max(p - q, 0), normalized; and where the draws left no token twice, q <- q without
//     x
//   after the last child: a token from what p has become
//
// Children that were not drawn (a match in a text, the likeliest tokens) have q(x) = 1: x is
// accepted with probability p(x), and p loses x otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "touchstone/decode/acceptance.h"
#include "touchstone/decode/draft.h"

namespace touchstone::inline v0::decode {

// Random decisions, virtual so that tests can enumerate them.
class RejectionChance {
 public:
  virtual ~RejectionChance() = default;
  // Whether the sibling-th child is accepted, with this probability.
  virtual bool accepts(double probability, std::int32_t sibling) = 0;
  // A token of the residual, or of the target where there are no children.
  virtual std::int32_t draw(const TokenDistribution& residual) = 0;
};

// The numbers of a position: purposes accept and residual of core/random.h.
class PositionChance : public RejectionChance {
 public:
  PositionChance(std::int64_t seed, std::int64_t position) : seed_(seed), position_(position) {}
  bool accepts(double probability, std::int32_t sibling) override;
  std::int32_t draw(const TokenDistribution& residual) override;

 private:
  std::int64_t seed_;
  std::int64_t position_;
};

// Replaces the numbers of an Acceptor, for tests that enumerate its decisions.
struct AcceptorChance {
  using Make = std::function<std::unique_ptr<RejectionChance>(std::int64_t position)>;
  TOUCHSTONE_API static void set(Acceptor& acceptor, Make make);
};

struct RejectionResult {
  std::int32_t child = -1;  // that was accepted; -1: none
  std::int32_t token = -1;  // of that child, or drawn
};

RejectionResult reject_children(TokenDistribution target, const Proposal& proposal,
                                std::span<const std::int32_t> children, RejectionChance& chance);

// The distribution without a token, normalized.
void remove_token(TokenDistribution& distribution, std::int32_t token);

// The token at which the running sum first exceeds u.
std::int32_t token_at(const TokenDistribution& distribution, double u);

}  // namespace touchstone::inline v0::decode
