// Acceptance of drafts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "c_api/border.h"
#include "touchstone/decode/acceptance.h"
#include "touchstone/touchstone_c_speculative.h"

namespace touchstone::c_api {
namespace {

using decode::AcceptanceRule;
using decode::NodeState;
using decode::ProposalKind;

static_assert(TS_ACCEPT_REJECTION == static_cast<int>(AcceptanceRule::rejection));
static_assert(TS_PROPOSAL_WITHOUT_REPLACEMENT ==
              static_cast<int>(ProposalKind::without_replacement));
static_assert(TS_NODE_SKIPPED == static_cast<int>(NodeState::skipped));

// The offsets of a list of lists: ascending from 0.
std::span<const std::int64_t> checked_offsets(const std::int64_t* data, std::int64_t count,
                                              const char* name) {
  const std::span<const std::int64_t> offsets = list(data, count + 1, name);
  if (offsets[0] != 0 || !std::ranges::is_sorted(offsets)) {
    throw InvalidArgument(std::string(name) + ": expected ascending numbers from 0");
  }
  return offsets;
}

decode::TokenDistribution distribution_of(const float* row, std::int64_t vocabulary) {
  decode::TokenDistribution d;
  double sum = 0;
  for (std::int64_t t = 0; t < vocabulary; ++t) {
    if (!(row[t] >= 0) || std::isinf(row[t])) {
      throw InvalidArgument("accept: draft: expected finite probabilities >= 0");
    }
    if (row[t] == 0) continue;
    d.tokens.push_back(static_cast<std::int32_t>(t));
    d.probabilities.push_back(static_cast<double>(row[t]));
    sum += d.probabilities.back();
  }
  for (double& p : d.probabilities) p /= sum;
  return d;
}

// The drafts and histories of a call, as the C++ API takes them.
struct Call {
  std::vector<decode::Request> requests;
  std::vector<decode::Draft> drafts;
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<decode::DraftedSequence> sequences;
  std::span<const std::int64_t> offsets;
};

decode::Draft draft_of(const ts_accept_args& args, std::int64_t vocabulary, std::int64_t first,
                       std::int64_t rows) {
  const std::int64_t nodes = rows - 1;
  const std::span tokens = nodes == 0 ? std::span<const std::int32_t>()
                                      : list(args.node_tokens, first + rows, "accept: node_tokens")
                                            .subspan(static_cast<std::size_t>(first) + 1);
  const std::span parents = nodes == 0
                                ? std::span<const std::int32_t>()
                                : list(args.node_parents, first + rows, "accept: node_parents")
                                      .subspan(static_cast<std::size_t>(first) + 1);
  decode::Draft draft{.tree = decode::TokenTree::from_parents(tokens, parents, vocabulary, nodes)};
  if (args.token_masks != nullptr) {
    const std::int64_t words = (vocabulary + 31) / 32;
    draft.token_masks.assign(args.token_masks + first * words,
                             args.token_masks + (first + rows) * words);
  }
  if (args.proposal == TS_PROPOSAL_CHOSEN) return draft;
  checked(args.draft, "accept: draft");
  for (std::int64_t row = first; row < first + rows; ++row) {
    auto& proposal = draft.proposals.emplace_back();
    proposal.kind = static_cast<ProposalKind>(args.proposal);
    // Where there are no children nothing was drawn.
    const auto node = static_cast<std::int32_t>(row - first) - 1;
    const std::int32_t child = node < 0 ? draft.tree.first_root() : draft.tree[node].first_child;
    if (child != decode::kNoNode) {
      proposal.distribution = distribution_of(args.draft + row * vocabulary, vocabulary);
    }
  }
  return draft;
}

Call call_of(const ts_accept_args& args, std::int64_t vocabulary, std::int64_t rows) {
  Call call;
  call.offsets = checked_offsets(args.offsets, args.sequences, "accept: offsets");
  if (call.offsets.back() != rows) {
    throw InvalidArgument(fmt::format("accept: offsets: expected the last to be {} rows, got {}",
                                      rows, call.offsets.back()));
  }
  const auto histories =
      checked_offsets(args.history_offsets, args.sequences, "accept: history_offsets");
  const auto history = list(args.history, histories.back(), "accept: history");
  const auto n = static_cast<std::size_t>(args.sequences);
  if (n > 0) checked(args.seeds, "accept: seeds");
  call.requests.resize(n);
  call.drafts.resize(n);
  call.tokens.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::int64_t count = call.offsets[i + 1] - call.offsets[i];
    if (count < 1) throw InvalidArgument("accept: offsets: expected a row for every sequence");
    call.drafts[i] = draft_of(args, vocabulary, call.offsets[i], count);
    const auto own = history.subspan(static_cast<std::size_t>(histories[i]),
                                     static_cast<std::size_t>(histories[i + 1] - histories[i]));
    // Numbers belong to positions: a history that begins later is padded.
    const std::int64_t position = args.positions == nullptr ? std::ssize(own) : args.positions[i];
    if (position < std::ssize(own) || position > (std::int64_t{1} << 30)) {
      throw InvalidArgument(
          fmt::format("accept: positions: expected at least {}, the length of the history, got {}",
                      own.size(), position));
    }
    call.tokens[i].assign(static_cast<std::size_t>(position - std::ssize(own)), -1);
    const std::int64_t prompt = args.prompt_lengths == nullptr ? 0 : args.prompt_lengths[i];
    if (prompt < 0 || prompt > std::ssize(own)) {
      throw InvalidArgument("accept: prompt_lengths: expected 0 to the length of the history");
    }
    decode::Request& request = call.requests[i];
    request.prompt.resize(call.tokens[i].size() + static_cast<std::size_t>(prompt));
    call.tokens[i].insert(call.tokens[i].end(), own.begin(), own.end());
    request.sampling = {.temperature = args.temperature,
                        .top_k = args.top_k,
                        .top_p = args.top_p,
                        .min_p = args.min_p,
                        .repetition_penalty = args.repetition_penalty,
                        .frequency_penalty = args.frequency_penalty,
                        .presence_penalty = args.presence_penalty};
    request.top_log_probabilities = 0;
    call.sequences.push_back({.request = &request,
                              .seed = args.seeds[i],
                              .tokens = call.tokens[i],
                              .draft = &call.drafts[i]});
  }
  return call;
}

void write_result(const ts_accept_args& args, const decode::Acceptance& found, std::size_t sequence,
                  std::int64_t first, std::int64_t rows) {
  args.accepted[sequence] = static_cast<std::int32_t>(found.nodes.size());
  std::fill_n(args.path + first, rows, -1);
  std::fill_n(args.tokens + first, rows, -1);
  std::ranges::copy(found.nodes, args.path + first);
  std::ranges::copy(found.tokens, args.tokens + first);
  for (std::size_t i = 0; args.log_probabilities != nullptr && i < found.tokens.size(); ++i) {
    args.log_probabilities[static_cast<std::size_t>(first) + i] = found.log_probabilities[i].own;
  }
  if (args.states == nullptr) return;
  args.states[first] = TS_NODE_ACCEPTED;  // the sequence itself
  for (std::size_t i = 0; i < found.verdicts.size(); ++i) {
    args.states[static_cast<std::size_t>(first) + 1 + i] =
        static_cast<ts_node_state>(found.verdicts[i].state);
  }
}

}  // namespace
}  // namespace touchstone::c_api

ts_status ts_accept(ts_context* context, const ts_accept_args* given) {
  using namespace touchstone;
  return c_api::guarded([&] {
    Context& running = c_api::checked(context, "context").context;
    const ts_accept_args args =
        c_api::current(given, "accept", sizeof(ts_accept_args), ts_accept_args TS_ACCEPT_ARGS);
    const TensorView logits = c_api::view(args.logits, "accept: logits");
    if (logits.rank != 2 || logits.shape[1] < 1) {
      throw InvalidArgument("accept: logits: expected [rows, V]");
    }
    if (args.sequences < 0) throw InvalidArgument("accept: sequences: expected a number >= 0");
    if (args.proposal < TS_PROPOSAL_CHOSEN || args.proposal > TS_PROPOSAL_WITHOUT_REPLACEMENT) {
      throw InvalidArgument("accept: proposal: " + std::to_string(args.proposal) + " is not known");
    }
    const c_api::Call call = c_api::call_of(args, logits.shape[1], logits.shape[0]);
    if (args.sequences > 0) {
      c_api::checked(args.accepted, "accept: accepted");
      c_api::checked(args.path, "accept: path");
      c_api::checked(args.tokens, "accept: tokens");
    }
    for (const decode::Request& request : call.requests) {
      decode::Request valid = request;
      valid.prompt = {0};
      decode::check_request(valid, {.vocabulary = logits.shape[1], .max_length = 2});
    }
    decode::Acceptor acceptor(logits.shape[1]);
    const std::vector<decode::Acceptance> found = acceptor.run(
        running, logits, call.sequences, static_cast<decode::AcceptanceRule>(args.rule));
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].nan) {
        throw CorruptData("accept: sequence " + std::to_string(i) + ": the logits are NaN");
      }
    }
    for (std::size_t i = 0; i < found.size(); ++i) {
      c_api::write_result(args, found[i], i, call.offsets[i],
                          call.offsets[i + 1] - call.offsets[i]);
    }
  });
}
