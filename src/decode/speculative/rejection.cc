#include "decode/speculative/rejection.h"

#include <algorithm>

#include "core/index.h"
#include "touchstone/core/random.h"

namespace touchstone::inline v0::decode {
namespace {

void erase_zeros(TokenDistribution& d) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < d.tokens.size(); ++i) {
    if (!(d.probabilities[i] > 0)) continue;
    d.tokens[kept] = d.tokens[i];
    d.probabilities[kept++] = d.probabilities[i];
  }
  d.tokens.resize(kept);
  d.probabilities.resize(kept);
}

void normalize(TokenDistribution& d) {
  double sum = 0;
  for (const double p : d.probabilities) sum += p;
  for (double& p : d.probabilities) p /= sum;
}

// max(p - q, 0), normalized. Where rounding leaves nothing p is q, and stays.
TokenDistribution residual_of(const TokenDistribution& p, const TokenDistribution& q) {
  TokenDistribution residual = p;
  std::size_t j = 0;
  for (std::size_t i = 0; i < p.tokens.size(); ++i) {
    while (j < q.tokens.size() && q.tokens[j] < p.tokens[i]) ++j;
    if (j < q.tokens.size() && q.tokens[j] == p.tokens[i]) {
      residual.probabilities[i] -= q.probabilities[j];
    }
  }
  erase_zeros(residual);
  if (residual.tokens.empty()) return p;
  normalize(residual);
  return residual;
}

}  // namespace

void remove_token(TokenDistribution& d, std::int32_t token) {
  const auto found = std::ranges::lower_bound(d.tokens, token);
  if (found == d.tokens.end() || *found != token) return;
  d.probabilities[at(found - d.tokens.begin())] = 0;
  erase_zeros(d);
  if (!d.tokens.empty()) normalize(d);
}

std::int32_t token_at(const TokenDistribution& distribution, double u) {
  double sum = 0;
  for (std::size_t i = 0; i < distribution.tokens.size(); ++i) {
    sum += distribution.probabilities[i];
    if (sum > u) return distribution.tokens[i];
  }
  return distribution.tokens.empty() ? -1 : distribution.tokens.back();
}

bool PositionChance::accepts(double probability, std::int32_t sibling) {
  return random_uniform(seed_, position_, RandomPurpose::accept,
                        static_cast<std::uint32_t>(sibling)) < probability;
}

std::int32_t PositionChance::draw(const TokenDistribution& residual) {
  return token_at(residual, random_uniform(seed_, position_, RandomPurpose::residual));
}

RejectionResult reject_children(TokenDistribution target, const Proposal& proposal,
                                std::span<const std::int32_t> children, RejectionChance& chance) {
  TokenDistribution q = proposal.distribution;
  const bool chosen = proposal.kind == ProposalKind::chosen;
  for (std::size_t i = 0; i < children.size(); ++i) {
    const std::int32_t token = children[i];
    const double p = target.probability(token);
    const double drawn = chosen ? 1 : q.probability(token);
    // A child that its own distribution cannot have drawn says nothing about p: it is rejected, and
    // p stays.
    if (drawn == 0) continue;
    const auto sibling = static_cast<std::int32_t>(i);
    if (p > 0 && (p >= drawn || chance.accepts(p / drawn, sibling))) {
      return {.child = sibling, .token = token};
    }
    if (chosen) {
      remove_token(target, token);
    } else {
      target = residual_of(target, q);
      if (proposal.kind == ProposalKind::without_replacement) remove_token(q, token);
    }
  }
  return {.child = -1, .token = chance.draw(target)};
}

}  // namespace touchstone::inline v0::decode
