// Drafts of a smaller model, which has its own KV cache. Every round prefills the new tokens of the
// sequence, then expands the draft level by level. A chain is decoded on a fork of the sequence,
// one row per level; each level of a tree is scored together with the tree above it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "core/copy.h"
#include "core/index.h"
#include "decode/speculative/distribution.h"
#include "decode/speculative/likeliest_tokens.h"
#include "decode/speculative/rejection.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "touchstone/decode/draft_source.h"

namespace touchstone::inline v0::decode {
namespace {

// A request whose draft is being expanded.
struct DraftState {
  DraftRequest* request = nullptr;
  ScorerSequence sequence{};
  std::optional<ScorerSequence> fork{};  // of a chain
  TokenTree tree{};
  std::vector<Proposal> proposals = {{}};
  std::vector<std::int32_t> level = {kNoNode};  // nodes whose successors come next
  bool done = false;
};

// The consumer of a row of logits: the node that its successors are added to.
struct PendingRow {
  DraftState* draft = nullptr;
  std::int32_t node = kNoNode;
};

// Depth first, siblings in their order, with the proposals beside the nodes.
void to_draft(DraftState& w) {
  Draft& draft = w.request->draft;
  draft = {};
  draft.proposals.push_back(w.proposals[0]);
  std::vector<std::pair<std::int32_t, std::int32_t>> stack;
  const auto push = [&](std::int32_t first, std::int32_t parent) {
    const std::size_t from = stack.size();
    for (std::int32_t node = first; node != kNoNode; node = w.tree[node].next_sibling) {
      stack.emplace_back(node, parent);
    }
    std::reverse(stack.begin() + static_cast<std::ptrdiff_t>(from), stack.end());
  };
  push(w.tree.first_root(), kNoNode);
  while (!stack.empty()) {
    const auto [old, parent] = stack.back();
    stack.pop_back();
    const std::int32_t node = draft.tree.add({.parent = parent,
                                              .token = w.tree[old].token,
                                              .log_probability = w.tree[old].log_probability});
    draft.proposals.push_back(std::move(w.proposals[at(old + 1)]));
    push(w.tree[old].first_child, node);
  }
}

class ModelSource final : public DraftSource {
 public:
  ModelSource(Scorer& model, std::int64_t target_vocabulary, const ModelSourceOptions& options)
      : model_(model), options_(options) {
    if (model.shape().vocabulary != target_vocabulary) {
      throw InvalidArgument(
          fmt::format("draft model: expected the vocabulary of the target, {} tokens, got {}",
                      target_vocabulary, model.shape().vocabulary));
    }
    if (options.width < 1 || options.branch < 1 || options.branch > target_vocabulary) {
      throw InvalidArgument("draft model: width, branch: expected at least 1");
    }
  }
  ~ModelSource() override {
    for (const auto& [id, sequence] : sequences_) model_.release(sequence);
  }
  ModelSource(const ModelSource&) = delete;
  ModelSource& operator=(const ModelSource&) = delete;

  std::string name() const override { return "draft model"; }
  std::int64_t vocabulary() const override { return model_.shape().vocabulary; }

  void draft(Context& context, std::span<DraftRequest> requests) override {
    std::vector<DraftState> drafts;
    for (DraftRequest& request : requests) {
      const std::int64_t length = std::ssize(request.tokens);
      request.limits.max_depth =
          std::min(request.limits.max_depth, model_.shape().max_length - length);
      if (request.limits.max_depth < 1 || request.limits.max_nodes < 1) continue;
      if (!sequences_.contains(request.id)) sequences_[request.id] = model_.create();
      drafts.push_back({.request = &request, .sequence = sequences_[request.id]});
    }
    if (drafts.empty()) return;
    try {
      expand(context, drafts);
    } catch (...) {
      release_forks(drafts);
      throw;
    }
    release_forks(drafts);
    for (DraftState& w : drafts) {
      if (options_.draw) {
        to_draft(w);
      } else {
        w.request->draft.tree = trim_tree(w.tree, w.request->limits);
      }
    }
  }

  void forget(std::int64_t id) override {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    model_.release(found->second);
    sequences_.erase(found);
  }

 private:
  bool chain() const { return options_.width == 1 && options_.branch == 1; }

  void release_forks(std::span<DraftState> drafts) {
    for (DraftState& w : drafts) {
      if (w.fork) model_.release(*w.fork);
      w.fork.reset();
    }
  }

  void expand(Context& context, std::span<DraftState> drafts) {
    std::vector<PendingRow> pending = prefill_new_tokens(context, drafts);
    while (!pending.empty()) {
      if (options_.draw) {
        draw_successors(context, pending);
      } else {
        likeliest_successors(context, pending);
      }
      pending = score_level(context, drafts);
    }
  }

  TensorView logits_view(std::int64_t rows) {
    if (logits_.elements() < rows * vocabulary()) {
      logits_ = Tensor::empty({rows, vocabulary()}, DType::f32, model_.shape().device);
    }
    const std::int64_t shape[] = {rows, vocabulary()};
    return make_view(logits_.data(), shape, DType::f32, model_.shape().device);
  }

  // Chunked prefill of all but the last tokens of a long prompt: models with windows have pages for
  // a window and a chunk only.
  bool prefill_prompt(Context& context, const DraftState& w) {
    constexpr std::int64_t kChunk = 128;
    while (std::ssize(w.request->tokens) - model_.length(w.sequence) > kChunk) {
      const std::int64_t known = model_.length(w.sequence);
      const RowCount count{w.sequence, kChunk};
      if (!model_.fits({&count, 1})) return false;
      const auto rows =
          chain_rows(w.sequence, known, w.request->tokens.subspan(at(known), at(kChunk)));
      model_.score(context, {.rows = rows});
      std::vector<std::int32_t> all(rows.size());
      std::iota(all.begin(), all.end(), 0);
      const KeptRows kept{w.sequence, all};
      model_.keep({&kept, 1});
    }
    return true;
  }

  // Prefills and commits the tokens that are not in the cache; logits after the last one of each.
  std::vector<PendingRow> prefill_new_tokens(Context& context, std::span<DraftState> drafts) {
    for (const DraftState& w : drafts) {
      if (!prefill_prompt(context, w)) return {};
    }
    std::vector<ScoreRow> rows;
    std::vector<std::int32_t> last;
    std::vector<std::vector<std::int32_t>> indices;
    std::vector<RowCount> counts;
    for (DraftState& w : drafts) {
      // The last token is scored again in every round, for its logits.
      const std::int64_t known =
          std::min(model_.length(w.sequence), std::ssize(w.request->tokens) - 1);
      if (known < model_.length(w.sequence)) model_.truncate(w.sequence, known);
      const auto more = chain_rows(w.sequence, known, w.request->tokens.subspan(at(known)),
                                   static_cast<std::int32_t>(rows.size()));
      auto& own = indices.emplace_back(more.size());
      std::iota(own.begin(), own.end(), static_cast<std::int32_t>(rows.size()));
      rows.insert(rows.end(), more.begin(), more.end());
      last.push_back(own.back());
      counts.push_back({w.sequence, std::ssize(more)});
    }
    if (!model_.fits(counts)) return {};
    model_.score(context,
                 {.rows = rows, .logit_rows = last, .logits = logits_view(std::ssize(last))});
    std::vector<KeptRows> kept;
    std::vector<PendingRow> pending;
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      kept.push_back({drafts[i].sequence, indices[i]});
      pending.push_back({&drafts[i], kNoNode});
    }
    model_.keep(kept);
    return pending;
  }

  // Scores the nodes of the current level; returns the rows whose logits give the next one.
  std::vector<PendingRow> score_level(Context& context, std::span<DraftState> drafts) {
    std::vector<ScoreRow> rows;
    std::vector<std::int32_t> logit_rows;
    std::vector<PendingRow> pending;
    std::vector<RowCount> counts;
    for (DraftState& w : drafts) {
      if (w.done || w.level.empty() || w.tree.size() >= w.request->limits.max_nodes ||
          w.tree[w.level.front()].depth >= w.request->limits.max_depth) {
        w.done = true;
        continue;
      }
      const auto first = static_cast<std::int32_t>(rows.size());
      if (chain()) {
        if (!w.fork) w.fork = model_.fork(w.sequence);
        const std::int32_t token = w.tree[w.level.front()].token;
        rows.push_back({.sequence = *w.fork, .token = token, .position = model_.length(*w.fork)});
        logit_rows.push_back(first);
        pending.push_back({&w, w.level.front()});
        counts.push_back({*w.fork, 1});
        continue;
      }
      const auto tree = tree_rows(w.sequence, std::ssize(w.request->tokens), w.tree, first);
      rows.insert(rows.end(), tree.begin(), tree.end());
      std::ranges::sort(w.level);
      for (const std::int32_t node : w.level) {
        logit_rows.push_back(first + node);
        pending.push_back({&w, node});
      }
      counts.push_back({w.sequence, std::ssize(tree)});
    }
    if (pending.empty() || !model_.fits(counts)) return {};
    model_.score(
        context,
        {.rows = rows, .logit_rows = logit_rows, .logits = logits_view(std::ssize(logit_rows))});
    if (chain()) {
      std::vector<KeptRows> kept;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        kept.push_back({rows[i].sequence, std::span(logit_rows).subspan(i, 1)});
      }
      model_.keep(kept);
    }
    return pending;
  }

  std::int32_t add(const PendingRow& pending, const TokenCandidate& candidate) {
    DraftState& w = *pending.draft;
    w.proposals.emplace_back();
    return w.tree.add({.parent = pending.node,
                       .token = candidate.token,
                       .log_probability = candidate.log_probability});
  }

  // The next level of a request: its `width` likeliest new nodes.
  void set_levels(std::span<const PendingRow> pending, std::span<const std::int32_t> firsts) {
    for (const PendingRow& one : pending) one.draft->level.clear();
    for (std::size_t i = 0; i < pending.size(); ++i) {
      DraftState& w = *pending[i].draft;
      if (!w.level.empty()) continue;
      for (std::int32_t node = firsts[i]; node < w.tree.size(); ++node) w.level.push_back(node);
      if (std::ssize(w.level) <= options_.width) continue;
      std::ranges::stable_sort(w.level, [&](std::int32_t a, std::int32_t b) {
        return w.tree[a].path_log_probability > w.tree[b].path_log_probability;
      });
      w.level.resize(at(options_.width));
    }
  }

  void likeliest_successors(Context& context, std::span<const PendingRow> pending) {
    const auto found = likeliest_.run(context, logits_view(std::ssize(pending)), options_.branch);
    std::vector<std::int32_t> firsts;
    for (const PendingRow& one : pending) firsts.push_back(one.draft->tree.size());
    for (std::size_t i = 0; i < pending.size(); ++i) {
      for (const TokenCandidate& candidate : found[i]) add(pending[i], candidate);
    }
    set_levels(pending, firsts);
  }

  // Distinct tokens, each from what the draws before it left.
  void draw_successors(Context& context, std::span<const PendingRow> pending) {
    std::vector<std::int32_t> firsts;
    for (const PendingRow& one : pending) firsts.push_back(one.draft->tree.size());
    const StreamLocation here{model_.shape().device, context.stream()};
    host_.resize(at(vocabulary()));
    std::unordered_map<const DraftState*, std::uint32_t> draws;
    for (std::size_t i = 0; i < pending.size(); ++i) {
      DraftState& w = *pending[i].draft;
      const auto* const row =
          static_cast<const float*>(logits_.data()) + static_cast<std::int64_t>(i) * vocabulary();
      queue_copy({}, host_.data(), here, row, 4 * vocabulary());
      wait_for(here);
      std::vector<std::int32_t> tokens(w.request->tokens.begin(), w.request->tokens.end());
      const std::vector<std::int32_t> path = w.tree.path_tokens(pending[i].node);
      tokens.insert(tokens.end(), path.begin(), path.end());
      TokenDistribution q =
          target_distribution({.logits = host_, .controls = w.request->controls, .tokens = tokens})
              .drawn;
      w.proposals[at(pending[i].node + 1)] = {ProposalKind::without_replacement, q};
      for (std::int64_t j = 0;
           j < options_.branch && !q.tokens.empty() && w.tree.size() < w.request->limits.max_nodes;
           ++j) {
        const std::int32_t token = token_at(q, random_uniform(w.request->seed, std::ssize(tokens),
                                                              RandomPurpose::draft, draws[&w]++));
        add(pending[i], {token, static_cast<float>(std::log(std::min(q.probability(token), 1.0)))});
        remove_token(q, token);
      }
    }
    set_levels(pending, firsts);
  }

  Scorer& model_;
  ModelSourceOptions options_;
  std::unordered_map<std::int64_t, ScorerSequence> sequences_;
  Tensor logits_{};
  LikeliestTokens likeliest_{};
  std::vector<float> host_{};
};

}  // namespace

std::unique_ptr<DraftSource> model_source(Scorer& model, std::int64_t target_vocabulary,
                                          const ModelSourceOptions& options) {
  return std::make_unique<ModelSource>(model, target_vocabulary, options);
}

}  // namespace touchstone::inline v0::decode
