#include "touchstone/decode/acceptance.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/copy.h"
#include "core/index.h"
#include "decode/sampler.h"
#include "decode/speculative/distribution.h"
#include "decode/speculative/rejection.h"
#include "decode/speculative/verification_rows.h"
#include "touchstone/core/convert.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {
namespace {

constexpr std::string_view kRuleNames[] = {"greedy", "target_only", "rejection"};
constexpr std::string_view kStateNames[] = {"accepted", "rejected", "skipped"};

// Where the walk through the draft of one sequence stands.
struct Walk {
  const DraftedSequence* sequence = nullptr;
  std::int64_t first_row = 0;           // of the logits
  std::vector<std::int32_t> history{};  // the tokens and those of the path
  // Nodes with the tokens of the path: several where siblings have the same token.
  std::vector<std::int32_t> here = {kNoNode};
  Acceptance result{};
  bool done = false;

  const TokenTree& tree() const { return sequence->draft->tree; }
  std::int64_t row() const { return first_row + 1 + here.front(); }
  std::vector<std::int32_t> children() const {
    std::vector<std::int32_t> list;
    for (const std::int32_t node : here) {
      std::int32_t child = node == kNoNode ? tree().first_root() : tree()[node].first_child;
      for (; child != kNoNode; child = tree()[child].next_sibling) list.push_back(child);
    }
    return list;
  }
  // The target chose a token after the path; `matching` are the nodes that have it.
  void take(std::int32_t token, bool nan, TokenLogProbabilities log_probabilities,
            std::span<const std::int32_t> verified, std::vector<std::int32_t> matching) {
    for (const std::int32_t child : verified) {
      result.verdicts[at(child)] = {NodeState::rejected, token, log_probabilities.own};
    }
    for (const std::int32_t child : matching) result.verdicts[at(child)].state = NodeState::skipped;
    result.tokens.push_back(token);
    result.log_probabilities.push_back(std::move(log_probabilities));
    result.nan = nan;
    history.push_back(token);
    if (matching.empty() || token < 0) {
      finish();
    } else {
      here = std::move(matching);
    }
  }
  void finish() {
    done = true;
    result.nodes = tree().path(here.front());
    for (const std::int32_t node : result.nodes) {
      result.verdicts[at(node)].state = NodeState::accepted;
    }
  }
};

void take_sample(Walk& walk, const SampledToken& sampled) {
  const std::vector<std::int32_t> children = walk.children();
  std::vector<std::int32_t> matching;
  for (const std::int32_t child : children) {
    if (walk.tree()[child].token == sampled.token) matching.push_back(child);
  }
  walk.take(sampled.token, has_any(sampled.status, RowStatus::has_nan), sampled.log_probabilities,
            children, std::move(matching));
}

}  // namespace

std::string_view name_of(AcceptanceRule rule) {
  const auto index = static_cast<std::size_t>(rule);
  return index < std::size(kRuleNames) ? kRuleNames[index] : "unknown";
}

AcceptanceRule parse_acceptance_rule(std::string_view name) {
  const auto* const found = std::ranges::find(kRuleNames, name);
  if (found == std::end(kRuleNames)) {
    throw InvalidArgument(fmt::format("acceptance rule: expected one of {}, got '{}'",
                                      fmt::join(kRuleNames, ", "), name));
  }
  return static_cast<AcceptanceRule>(found - std::begin(kRuleNames));
}

std::string_view name_of(NodeState state) {
  const auto index = static_cast<std::size_t>(state);
  return index < std::size(kStateNames) ? kStateNames[index] : "unknown";
}

struct Acceptor::State {
  explicit State(std::int64_t tokens) : vocabulary(tokens), sampler(tokens) {}

  std::vector<Walk> start(const ConstTensorView& logits, const Device& device,
                          std::span<const DraftedSequence> sequences, AcceptanceRule rule) const;
  ConstTensorView gathered(const ConstTensorView& logits, std::span<Walk* const> walks);
  void sample_all(Context& context, const ConstTensorView& logits, std::span<Walk> walks);
  void sample_levels(Context& context, const ConstTensorView& logits, std::span<Walk> walks);
  void reject(Context& context, const ConstTensorView& logits, Walk& walk);
  void read_row(Context& context, const ConstTensorView& logits, std::int64_t row);

  std::int64_t vocabulary;
  Sampler sampler;
  Tensor gathered_rows{};        // of a level
  std::vector<std::byte> raw{};  // a row as it is stored
  std::vector<float> host_logits{};
  AcceptorChance::Make chance{};  // empty: the numbers of the position
};

void AcceptorChance::set(Acceptor& acceptor, Make make) {
  acceptor.state_->chance = std::move(make);
}

Acceptor::Acceptor(std::int64_t vocabulary) : state_(std::make_unique<State>(vocabulary)) {}
Acceptor::~Acceptor() = default;
Acceptor::Acceptor(Acceptor&&) noexcept = default;
Acceptor& Acceptor::operator=(Acceptor&&) noexcept = default;

std::vector<Walk> Acceptor::State::start(const ConstTensorView& logits, const Device& device,
                                         std::span<const DraftedSequence> sequences,
                                         AcceptanceRule rule) const {
  std::vector<Walk> walks;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const DraftedSequence& sequence = sequences[i];
    if (sequence.request == nullptr || sequence.draft == nullptr) {
      throw InvalidArgument(fmt::format("accept: sequence {}: request or draft is null", i));
    }
    check_draft(*sequence.draft, vocabulary, {});
    check_sampling(sequence.request->sampling, vocabulary);
    if (rule == AcceptanceRule::greedy && sequence.request->sampling.temperature != 0) {
      throw InvalidArgument(
          fmt::format("accept: sequence {}: the rule greedy takes temperature 0, got {}", i,
                      sequence.request->sampling.temperature));
    }
    Walk& walk = walks.emplace_back();
    walk.sequence = &sequence;
    walk.first_row = count;
    walk.history.assign(sequence.tokens.begin(), sequence.tokens.end());
    walk.result.verdicts.resize(at(sequence.draft->tree.size()));
    count += 1 + sequence.draft->tree.size();
  }
  const std::int64_t shape[] = {count, vocabulary};
  if (!logits.contiguous() || !std::ranges::equal(logits.sizes(), shape) ||
      logits.device != device) {
    throw InvalidArgument(
        fmt::format("accept: logits: expected a contiguous tensor of shape [{}, {}] on the device "
                    "of the context, got {}",
                    count, vocabulary, shape_string(logits.sizes())));
  }
  return walks;
}

std::vector<Acceptance> Acceptor::run(Context& context, const ConstTensorView& logits,
                                      std::span<const DraftedSequence> sequences,
                                      AcceptanceRule rule) {
  State& s = *state_;
  if (static_cast<std::size_t>(rule) >= std::size(kRuleNames)) {
    throw InvalidArgument(fmt::format("accept: rule {} is not one of {}", static_cast<int>(rule),
                                      fmt::join(kRuleNames, ", ")));
  }
  std::vector<Walk> walks = s.start(logits, context.device(), sequences, rule);
  if (rule == AcceptanceRule::rejection) {
    for (Walk& walk : walks) s.reject(context, logits, walk);
  } else if (context.device().is_cuda()) {
    s.sample_all(context, logits, walks);
  } else {
    s.sample_levels(context, logits, walks);
  }
  std::vector<Acceptance> results;
  results.reserve(walks.size());
  for (Walk& walk : walks) results.push_back(std::move(walk.result));
  return results;
}

// One call over all rows, so that a GPU is waited for once.
void Acceptor::State::sample_all(Context& context, const ConstTensorView& logits,
                                 std::span<Walk> walks) {
  VerificationRows rows;
  for (const Walk& walk : walks) add_verification_rows(*walk.sequence, vocabulary, rows);
  const std::vector<SampledToken> tokens = sampler.run(context, logits, rows.rows);
  for (Walk& walk : walks) {
    while (!walk.done) take_sample(walk, tokens[at(walk.row())]);
  }
}

// Level by level, only the rows that a walk reaches: on the CPU each row costs its own time.
void Acceptor::State::sample_levels(Context& context, const ConstTensorView& logits,
                                    std::span<Walk> walks) {
  while (true) {
    std::vector<Walk*> active;
    for (Walk& walk : walks) {
      if (!walk.done) active.push_back(&walk);
    }
    if (active.empty()) return;
    std::vector<SampleRow> rows;
    for (const Walk* walk : active) {
      rows.push_back({.request = walk->sequence->request,
                      .seed = walk->sequence->seed,
                      .tokens = walk->history,
                      .mask = node_mask(*walk->sequence, walk->here.front(), vocabulary)});
    }
    const std::vector<SampledToken> tokens = sampler.run(context, gathered(logits, active), rows);
    for (std::size_t i = 0; i < active.size(); ++i) take_sample(*active[i], tokens[i]);
  }
}

ConstTensorView Acceptor::State::gathered(const ConstTensorView& logits,
                                          std::span<Walk* const> walks) {
  const std::int64_t bytes = vocabulary * size_of(logits.dtype);
  const std::int64_t shape[] = {std::ssize(walks), vocabulary};
  const auto* const from = static_cast<const std::byte*>(logits.data);
  const auto neighbors = [&] {
    for (std::size_t i = 1; i < walks.size(); ++i) {
      if (walks[i]->row() != walks[i - 1]->row() + 1) return false;
    }
    return true;
  };
  if (neighbors()) {
    return make_view(static_cast<const void*>(from + walks[0]->row() * bytes), shape, logits.dtype);
  }
  if (gathered_rows.elements() < std::ssize(walks) * bytes) {
    gathered_rows = Tensor::empty({std::ssize(walks) * bytes}, DType::u8);
  }
  auto* const to = static_cast<std::byte*>(gathered_rows.data());
  for (std::size_t i = 0; i < walks.size(); ++i) {
    std::copy_n(from + walks[i]->row() * bytes, bytes, to + static_cast<std::int64_t>(i) * bytes);
  }
  return make_view(static_cast<const void*>(to), shape, logits.dtype);
}

void Acceptor::State::read_row(Context& context, const ConstTensorView& logits, std::int64_t row) {
  const std::int64_t bytes = vocabulary * size_of(logits.dtype);
  raw.resize(at(bytes));
  host_logits.resize(at(vocabulary));
  const StreamLocation there{logits.device, context.stream()};
  queue_copy({}, raw.data(), there, static_cast<const std::byte*>(logits.data) + row * bytes,
             bytes);
  wait_for(there);
  visit_float_dtype(logits.dtype, [&]<class T>() {
    const auto* const values = reinterpret_cast<const T*>(raw.data());
    for (std::size_t i = 0; i < host_logits.size(); ++i) host_logits[i] = convert<float>(values[i]);
  });
}

void Acceptor::State::reject(Context& context, const ConstTensorView& logits, Walk& walk) {
  const DraftedSequence& sequence = *walk.sequence;
  const Request& request = *sequence.request;
  static const Proposal kChosen{};
  while (!walk.done) {
    read_row(context, logits, walk.row());
    const std::int32_t node = walk.here.front();
    TargetDistribution target =
        target_distribution({.logits = host_logits,
                             .controls = &request.sampling,
                             .tokens = walk.history,
                             .prompt_length = std::ssize(request.prompt),
                             .mask = node_mask(*walk.sequence, node, vocabulary)});
    if (target.drawn.tokens.empty()) {
      walk.take(-1, target.has_nan, {}, {}, {});
      continue;
    }
    const std::vector<std::int32_t> children = walk.children();
    std::vector<std::int32_t> tokens;
    for (const std::int32_t child : children) tokens.push_back(walk.tree()[child].token);
    const auto& proposals = sequence.draft->proposals;
    const std::int64_t position = std::ssize(walk.history);
    PositionChance numbers(sequence.seed, position);
    const std::unique_ptr<RejectionChance> replaced = chance ? chance(position) : nullptr;
    const RejectionResult result =
        reject_children(target.drawn, proposals.empty() ? kChosen : proposals[at(node + 1)], tokens,
                        replaced ? *replaced : numbers);
    std::vector<std::int32_t> accepted;
    if (result.child >= 0) accepted.push_back(children[at(result.child)]);
    walk.take(result.token, false,
              target.report(result.token, std::max(request.top_log_probabilities, 0)), children,
              std::move(accepted));
  }
}

void mask_draft(Draft& draft, const TokenMaskArgs& args) {
  check_draft(draft, args.vocabulary, {});
  for (const std::int32_t token : args.forbidden) {
    if (token >= 0 && token < args.vocabulary) continue;
    throw InvalidArgument(
        fmt::format("draft: forbidden: token {} is outside [0, {})", token, args.vocabulary));
  }
  const std::size_t words = at((args.vocabulary + 31) / 32);
  const TokenTree& tree = draft.tree;
  std::vector<std::unique_ptr<TokenConstraint>> states(at(tree.size()));
  std::vector<std::int32_t> moved(at(tree.size()), kNoNode);
  Draft kept;
  // The mask after a node, which is `depth` nodes deep.
  const auto add_mask = [&](const TokenConstraint* state, std::int64_t depth) {
    const std::size_t first = kept.token_masks.size();
    kept.token_masks.resize(first + words, -1);
    const std::span own = std::span(kept.token_masks).subspan(first);
    if (state != nullptr) state->allowed(own);
    if (depth >= args.forbidden_depth) return;
    for (const std::int32_t token : args.forbidden) {
      const std::uint32_t bit = std::uint32_t{1} << (token % 32);
      own[at(token / 32)] =
          static_cast<std::int32_t>(static_cast<std::uint32_t>(own[at(token / 32)]) & ~bit);
    }
  };
  const bool drawn = !draft.proposals.empty();
  if (drawn) kept.proposals.push_back(draft.proposals[0]);
  add_mask(args.constraint, 0);
  for (std::int32_t i = 0; i < tree.size(); ++i) {
    const TreeNode& node = tree[i];
    const bool root = node.parent == kNoNode;
    if (!root && moved[at(node.parent)] == kNoNode) continue;
    const std::int32_t parent = root ? kNoNode : moved[at(node.parent)];
    const auto word =
        static_cast<std::uint32_t>(kept.token_masks[at(parent + 1) * words + at(node.token / 32)]);
    const bool allowed = (word >> (node.token % 32) & 1U) != 0;
    // Masked draws are kept as leaves: they affect the acceptance probability of their siblings.
    const bool stays = drawn && draft.proposals[at(node.parent + 1)].kind != ProposalKind::chosen;
    if (!allowed && !stays) continue;
    const std::int32_t copy = kept.tree.add({.parent = parent,
                                             .token = node.token,
                                             .log_probability = node.log_probability,
                                             .source = node.source});
    if (drawn) kept.proposals.push_back(draft.proposals[at(i + 1)]);
    if (!allowed) {
      kept.token_masks.resize(kept.token_masks.size() + words, 0);
      continue;
    }
    if (std::ranges::find(args.ends, node.token) != args.ends.end()) {
      // The text ends here: plain decoding computes no mask, and no node that follows can be kept.
      kept.token_masks.resize(kept.token_masks.size() + words, 0);
      continue;
    }
    moved[at(i)] = copy;
    if (args.constraint != nullptr) {
      states[at(i)] = root ? args.constraint->copy() : states[at(node.parent)]->copy();
      states[at(i)]->accept(node.token);
    }
    add_mask(states[at(i)].get(), node.depth);
  }
  draft = std::move(kept);
}

std::string format_trace(const TokenTree& tree, const Acceptance& acceptance,
                         const std::function<std::string(std::int32_t token)>& text) {
  if (std::ssize(acceptance.verdicts) != tree.size()) {
    throw InvalidArgument(fmt::format("trace: verdicts: expected {}, one per node, got {}",
                                      tree.size(), acceptance.verdicts.size()));
  }
  std::string out;
  std::vector<std::int32_t> stack;
  const auto push = [&](std::int32_t first) {
    std::vector<std::int32_t> list;
    for (std::int32_t node = first; node != kNoNode; node = tree[node].next_sibling) {
      list.push_back(node);
    }
    stack.insert(stack.end(), list.rbegin(), list.rend());
  };
  push(tree.first_root());
  while (!stack.empty()) {
    const std::int32_t node = stack.back();
    stack.pop_back();
    const NodeVerdict& verdict = acceptance.verdicts[at(node)];
    const char mark = verdict.state == NodeState::accepted   ? '+'
                      : verdict.state == NodeState::rejected ? '-'
                                                             : ' ';
    out += fmt::format("{} {:{}}{} {} '{}' log q {:.2f} source {}", mark, "",
                       2 * (tree[node].depth - 1), node, tree[node].token, text(tree[node].token),
                       tree[node].log_probability, tree[node].source);
    if (verdict.state == NodeState::skipped) {
      out += ", skipped\n";
    } else {
      out += fmt::format(", {}: target {} '{}' log p {:.2f}\n", name_of(verdict.state),
                         verdict.target_token,
                         verdict.target_token < 0 ? "" : text(verdict.target_token),
                         verdict.target_log_probability);
    }
    push(tree[node].first_child);
  }
  if (!acceptance.tokens.empty() && acceptance.tokens.back() >= 0) {
    out += fmt::format("= {} accepted, then {} '{}' log p {:.2f}\n", acceptance.nodes.size(),
                       acceptance.tokens.back(), text(acceptance.tokens.back()),
                       acceptance.log_probabilities.back().own);
  }
  return out;
}

}  // namespace touchstone::inline v0::decode
