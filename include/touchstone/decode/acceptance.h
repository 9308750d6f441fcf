// Acceptance: which path of a draft the target follows, and the token after it.
//
//   rows of the logits     after the sequence   after node 0   after node 1   ...
//   verify                 the roots            children of 0  children of 1
//
// Verification uses the parent's logits, and for a root those after the last token of the
// sequence: never those of its own row (they verify its children), and never those of a depth
// (siblings share a depth, not a history). A rejected node rejects its subtree; its siblings may
// still be accepted. After the accepted path comes one token of the target: the correction where it
// left the draft, a bonus where the draft ended. So every pass yields at least one token.
//
// target_only   At each node the target draws its token as plain decoding does: sample() with the
//               number of that position, the history and the mask of that path. The child with this
//               token is accepted. The text is, token for token, that of plain decoding, at every
//               temperature and with every control. Of siblings with the same token the longest
//               matching branch is taken.
// greedy        The same for requests of temperature 0; refuses others.
// rejection     A drafted token x is accepted with probability min(1, p(x) / q(x)), several
//               branches in turn, each against the residual of those before (recursive rejection);
//               the correction comes from the residual. The text has the distribution of the
//               target, but is not the plain text. Numbers: purposes accept (draw = sibling) and
//               residual of core/random.h.
//
// Guarantees    The result of a sequence depends on its own tokens, controls, draft and logits
//               alone: not on the other sequences of the call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/draft.h"
#include "touchstone/decode/request.h"

namespace touchstone::inline v0::decode {

enum class AcceptanceRule : std::int32_t { greedy = 0, target_only = 1, rejection = 2 };
TOUCHSTONE_API std::string_view name_of(AcceptanceRule rule);
// InvalidArgument lists the names.
TOUCHSTONE_API AcceptanceRule parse_acceptance_rule(std::string_view name);

struct DraftedSequence {
  const Request* request = nullptr;  // controls, prompt length, log-probabilities to report
  std::int64_t seed = 0;
  // Prompt and text so far: what the draft follows. Negative entries are no tokens, but count for
  // the position.
  std::span<const std::int32_t> tokens{};
  const Draft* draft = nullptr;  // may be empty
};

enum class NodeState : std::int32_t {
  accepted = 0,
  rejected = 1,  // its parent was reached, and the target went elsewhere
  skipped = 2,   // its parent was not reached
};
TOUCHSTONE_API std::string_view name_of(NodeState state);

struct NodeVerdict {
  NodeState state = NodeState::skipped;
  // The token that the target chose at the parent, and its log-probability there. -1 where skipped.
  std::int32_t target_token = -1;
  float target_log_probability = 0;
};

struct Acceptance {
  std::vector<std::int32_t> nodes{};  // of the accepted path, from the root down
  // The tokens of those nodes, then the one of the target: -1 where it cannot choose one, because
  // of NaN in the logits (`nan`) or because every token is masked.
  std::vector<std::int32_t> tokens{};
  bool nan = false;
  std::vector<TokenLogProbabilities> log_probabilities{};  // of each token
  std::vector<NodeVerdict> verdicts{};                     // of each node
};

class TOUCHSTONE_API Acceptor {
 public:
  explicit Acceptor(std::int64_t vocabulary);
  ~Acceptor();
  Acceptor(Acceptor&&) noexcept;
  Acceptor& operator=(Acceptor&&) noexcept;

  // logits [rows, vocabulary] f32, bf16 or f16, contiguous, on the device of the context: of each
  // sequence one row after its tokens and one after each node of its draft, sequences one after the
  // other. Waits for the result: on CUDA one sample() over all rows and one read-back, for
  // rejection one row of logits per accepted token.
  // InvalidArgument: a draft that check_draft refuses, a wrong number of rows, greedy with a
  // temperature.
  std::vector<Acceptance> run(Context& context, const ConstTensorView& logits,
                              std::span<const DraftedSequence> sequences,
                              AcceptanceRule rule = AcceptanceRule::target_only);

 private:
  friend struct AcceptorChance;
  struct State;
  std::unique_ptr<State> state_;
};

// The masks of a draft: tokens that `constraint` (a state after the sequence; null: all) allows
// after each node, without the `forbidden` ones where fewer than `forbidden_depth` nodes precede.
// Nodes that are not allowed after their parents can never be accepted: chosen ones are removed
// with their subtrees; drawn ones stay as leaves, because they change the acceptance probability of
// their siblings. Nodes below one of `ends` are removed. The remaining nodes keep their proposals.
// InvalidArgument for a draft that check_draft refuses and for forbidden tokens outside of the
// vocabulary.
struct TokenMaskArgs {
  const TokenConstraint* constraint = nullptr;
  std::span<const std::int32_t> forbidden{};
  std::int64_t forbidden_depth = 0;
  std::span<const std::int32_t> ends{};  // tokens that end the text
  std::int64_t vocabulary = 0;
};
TOUCHSTONE_API void mask_draft(Draft& draft, const TokenMaskArgs& args);

// One line per node, indented by depth, with its verdict: what --trace prints. `text` names tokens.
TOUCHSTONE_API std::string format_trace(const TokenTree& tree, const Acceptance& acceptance,
                                        const std::function<std::string(std::int32_t token)>& text);

}  // namespace touchstone::inline v0::decode
