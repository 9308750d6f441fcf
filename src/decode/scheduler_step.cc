// One step: drafts, rows, the choice of tokens, what is kept.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/copy.h"
#include "core/index.h"
#include "decode/log_softmax.h"
#include "decode/scheduler_state.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {

TensorView Scheduler::State::grown(Tensor& buffer, std::int64_t rows) const {
  const std::int64_t columns = scorer.shape().vocabulary;
  if (buffer.elements() < rows * columns) {
    buffer = Tensor::empty({rows, columns}, DType::f32, scorer.shape().device);
  }
  const std::int64_t shape[] = {rows, columns};
  return make_view(buffer.data(), shape, DType::f32, scorer.shape().device);
}

// The layers that the source observes in a step; none while that costs more than it may.
std::span<const std::int32_t> Scheduler::State::observed_layers(
    std::span<const SchedulerShare> shares) const {
  const bool any =
      speculator && std::ranges::any_of(shares, [&](const SchedulerShare& share) {
        return speculator->observes(share.entry->order, share.entry->length, std::ssize(shares));
      });
  return any ? hidden_layers() : std::span<const std::int32_t>();
}

TensorView Scheduler::State::hidden_view(std::int64_t layers, std::int64_t rows) {
  if (layers == 0) return {};
  const std::int64_t shape[] = {layers, rows, scorer.shape().hidden_size};
  if (hidden.elements() < layers * rows * shape[2]) {
    hidden = Tensor::empty(shape, DType::f32, scorer.shape().device);
  }
  return make_view(hidden.data(), shape, DType::f32, scorer.shape().device);
}

// Drafts for the continuations of a step, within the remaining rows and pages.
void Scheduler::State::propose(Context& context, std::vector<SchedulerShare>& shares) {
  drafts.clear();
  if (!speculator) return;
  std::int64_t rows = options.max_rows;
  std::vector<std::size_t> drafting;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    rows -= shares[i].rows;
    const SchedulerEntry& entry = *shares[i].entry;
    if (shares[i].rows != 1 || !shares[i].last() || entry.text.generated() == 0) continue;
    drafting.push_back(i);
    drafts.push_back({.text = &entry.text, .id = entry.order});
  }
  speculator->propose(context, drafts, rows);
  for (std::size_t i = 0; i < drafting.size(); ++i) {
    shares[drafting[i]].draft = static_cast<std::int32_t>(i);
  }
  if (!fits(shares)) {
    for (DraftedContinuation& one : drafts) one.draft = {};
  }
  // An empty draft is a plain decode step.
  for (SchedulerShare& share : shares) {
    if (share.draft >= 0 && drafts[at(share.draft)].draft.tree.empty()) share.draft = -1;
  }
  std::stable_partition(shares.begin(), shares.end(),
                        [](const SchedulerShare& share) { return share.draft < 0; });
}

// Appends the rows of a share; returns those that need logits.
std::vector<std::int32_t> Scheduler::State::add_rows(const SchedulerShare& share,
                                                     std::vector<ScoreRow>& rows) const {
  const SchedulerEntry& entry = *share.entry;
  const auto tokens = entry.text.tokens().subspan(at(entry.length), at(share.rows));
  const auto first = static_cast<std::int32_t>(rows.size());
  const auto chain = chain_rows(*entry.sequence, entry.length, tokens, first);
  rows.insert(rows.end(), chain.begin(), chain.end());
  std::vector<std::int32_t> logit_rows;
  const bool all = entry.text.request().prompt_log_probabilities && entry.text.sample() == 0 &&
                   entry.text.generated() == 0;
  for (std::int64_t i = 0; i < share.rows; ++i) {
    if (all || (share.last() && i + 1 == share.rows)) {
      logit_rows.push_back(first + static_cast<std::int32_t>(i));
    }
  }
  if (share.draft < 0) return logit_rows;
  // The draft follows the last row: its roots are the children of that row.
  const auto root = static_cast<std::int32_t>(rows.size()) - 1;
  const std::vector<ScoreRow> nodes = tree_rows(*entry.sequence, rows.back().position + 1,
                                                drafts[at(share.draft)].draft.tree, root + 1);
  for (ScoreRow node : nodes) {
    if (node.parent == kNoNode) node.parent = root;
    logit_rows.push_back(static_cast<std::int32_t>(rows.size()));
    rows.push_back(node);
  }
  return logit_rows;
}

// Scores the shares together. Where that throws, one by one: the scorer is as it was before, the
// bits of a row do not depend on the others, and the error ends the request that it belongs to.
void Scheduler::State::score(Context& context, std::vector<SchedulerShare>& shares) {
  ScoredStep scored;
  try {
    scored = forward(context, shares);
  } catch (const Error& error) {
    if (shares.size() == 1 && shares[0].draft < 0) {
      fail(*shares[0].entry, error);
      return;
    }
    drafts.clear();
    for (SchedulerShare share : shares) {
      share.draft = -1;
      std::vector<SchedulerShare> alone = {share};
      score(context, alone);
    }
    return;
  }
  commit(context, shares, scored);
}

// The logits of all rows. Changes nothing that commit() does not complete.
ScoredStep Scheduler::State::forward(Context& context, std::vector<SchedulerShare>& shares) {
  ScoredStep scored;
  std::vector<ScoreRow> rows;
  for (SchedulerShare& share : shares) {
    share.first = std::ssize(rows);
    share.complete = share.last();
    const std::vector<std::int32_t> logit_rows = add_rows(share, rows);
    scored.logit_rows.insert(scored.logit_rows.end(), logit_rows.begin(), logit_rows.end());
    if (share.draft < 0) scored.plain_logits = std::ssize(scored.logit_rows);
  }
  scored.rows = std::ssize(rows);
  const std::span<const std::int32_t> layers = observed_layers(shares);
  scored.hidden = hidden_view(std::ssize(layers), scored.rows);
  scorer.score(context, {.rows = rows,
                         .logit_rows = scored.logit_rows,
                         .logits = grown(logits, std::ssize(scored.logit_rows)),
                         .hidden_layers = layers,
                         .hidden = scored.hidden});
  for (const SchedulerShare& share : shares) {
    const SchedulerEntry& entry = *share.entry;
    const bool decoding = entry.remaining() == 1 && entry.text.generated() > 0;
    scored.prompts |= !decoding;
    (decoding ? statistics.decode_rows : statistics.prompt_rows) += share.rows;
  }
  for (const DraftedContinuation& one : drafts) statistics.draft_rows += one.draft.tree.size();
  return scored;
}

// Chooses tokens, keeps the rows that lead to them, and lets other samples join.
void Scheduler::State::commit(Context& context, std::span<const SchedulerShare> shares,
                              const ScoredStep& scored) {
  std::vector<std::vector<std::int32_t>> indices;
  std::int64_t tokens = 0;
  for (const SchedulerShare& share : shares) {
    auto& own = indices.emplace_back();
    for (std::int64_t i = 0; i < share.rows; ++i) {
      own.push_back(static_cast<std::int32_t>(share.first + i));
    }
    tokens -= share.entry->text.generated();
  }
  sample(context, shares, std::span(scored.logit_rows).first(at(scored.plain_logits)));
  // The other samples of a request have a token now. What throws below must find them in the queue:
  // beside their leader they would draw another one, from its next logits.
  std::vector<std::vector<SchedulerEntry*>> followers(shares.size());
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (!shares[i].complete || !shares[i].entry->text.generates_tokens()) continue;
    followers[i] = std::exchange(shares[i].entry->followers, {});
    for (SchedulerEntry* const entry : followers[i]) {
      entry->leader = nullptr;
      waiting.emplace(entry->order, entry);
    }
  }
  verify_drafts(context, shares, scored, indices);
  std::vector<KeptRows> kept;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    kept.push_back({*shares[i].entry->sequence, indices[i]});
  }
  scorer.keep(kept);
  // What the scorer holds is noted for all before anything else can throw.
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i].entry->length += std::ssize(indices[i]);
    tokens += shares[i].entry->text.generated();
  }
  for (std::size_t i = 0; i < shares.size(); ++i) {
    SchedulerEntry& entry = *shares[i].entry;
    const std::int64_t before = entry.length - std::ssize(indices[i]);
    if (scored.hidden.defined() && speculator->observes(entry.order, before, std::ssize(shares))) {
      speculator->observe(
          context,
          {.id = entry.order, .position = before, .rows = indices[i], .hidden = scored.hidden});
    }
    follow(context, entry, followers[i]);
  }
  if (speculator && !scored.prompts) {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - step_start;
    speculator->note_step(std::ssize(shares), tokens, passed.count());
  }
}

// Log-probabilities of the prompt tokens after the rows of this step.
void Scheduler::State::read_prompt_logits(Context& context, const SchedulerShare& share,
                                          std::span<const std::int32_t> logit_rows) {
  Continuation& text = share.entry->text;
  if (!text.request().prompt_log_probabilities || text.sample() != 0 || text.generated() > 0)
    return;
  const std::int64_t columns = scorer.shape().vocabulary;
  const StreamLocation here{scorer.shape().device, context.stream()};
  host_logits.resize(at(columns));
  const std::int64_t begin = std::ranges::lower_bound(logit_rows, share.first) - logit_rows.begin();
  for (std::int64_t i = 0; i < share.rows; ++i) {
    const std::int64_t next = share.entry->length + i + 1;
    if (next >= std::ssize(text.tokens())) break;
    const auto* from = static_cast<const float*>(logits.data()) + (begin + i) * columns;
    queue_copy({}, host_logits.data(), here, from, columns * 4);
    wait_for(here);
    auto& list = text.completion().prompt_log_probabilities;
    // A prompt that is read again after a preemption is in the list already.
    if (std::ssize(list) >= next) continue;
    const double value = log_softmax(host_logits, text.tokens()[at(next)]);
    if (std::isnan(value)) {
      fail(*share.entry, CorruptData("the logits of the model are NaN"));
      return;
    }
    list.push_back(static_cast<float>(value));
  }
}

// Draws the next token of every share without a draft.
void Scheduler::State::sample(Context& context, std::span<const SchedulerShare> shares,
                              std::span<const std::int32_t> logit_rows) {
  struct Draw {
    SchedulerEntry* entry = nullptr;
    std::int64_t row = 0;  // of the logits
  };
  std::vector<Draw> draws;
  for (const SchedulerShare& share : shares) {
    if (share.draft >= 0) continue;
    read_prompt_logits(context, share, logit_rows);
    if (!share.complete || share.entry->text.finished()) continue;
    if (!share.entry->text.generates_tokens()) {
      end(*share.entry, FinishReason::length);
      continue;
    }
    const auto row = static_cast<std::int32_t>(share.first + share.rows - 1);
    const std::int64_t logit_index = std::ranges::lower_bound(logit_rows, row) - logit_rows.begin();
    draws.push_back({share.entry, logit_index});
    for (SchedulerEntry* const other : share.entry->followers)
      draws.push_back({other, logit_index});
  }
  // Masks first: where a constraint throws, nothing is drawn for its entry.
  std::vector<std::vector<std::int32_t>> masks;
  std::erase_if(draws, [&](const Draw& draw) {
    try {
      masks.push_back(draw.entry->text.constraint_mask(scorer.shape().vocabulary));
      return false;
    } catch (const Error& error) {
      if (!draw.entry->text.finished()) fail(*draw.entry, error);
      return true;
    }
  });
  if (draws.empty()) return;
  const std::int64_t columns = scorer.shape().vocabulary;
  TensorView drawn = grown(logits, std::ssize(logit_rows));
  const bool neighbors = std::ssize(draws) == std::ssize(logit_rows);
  if (!neighbors || std::ranges::adjacent_find(draws, {}, &Draw::row) != draws.end()) {
    drawn = grown(to_sample, std::ssize(draws));
    const StreamLocation here{scorer.shape().device, context.stream()};
    for (std::size_t i = 0; i < draws.size(); ++i) {
      queue_copy(here, static_cast<float*>(drawn.data) + static_cast<std::int64_t>(i) * columns,
                 here, static_cast<const float*>(logits.data()) + draws[i].row * columns,
                 columns * 4);
    }
  }
  drawn.shape[0] = std::ssize(draws);
  std::vector<SampleRow> rows;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    rows.push_back(draws[i].entry->text.sample_row());
    rows.back().mask = masks[i];
  }
  const std::vector<SampledToken> tokens = sampler.run(context, drawn, rows);
  for (std::size_t i = 0; i < draws.size(); ++i) take(*draws[i].entry, tokens[i]);
}

// A token of an entry, or the end where none may follow.
void Scheduler::State::take(SchedulerEntry& entry, const SampledToken& sampled) {
  if (entry.text.finished()) return;  // a sample that failed with its leader
  try {
    if (sampled.token >= 0) {
      std::string text = entry.text.take(sampled);
      note(entry, sampled.token, std::move(text));
    } else if (has_any(sampled.status, RowStatus::has_nan)) {
      fail(entry, CorruptData("the logits of the model are NaN"));
    } else {
      end(entry, entry.text.complete() ? FinishReason::stop : FinishReason::no_token);
    }
  } catch (const Error& error) {
    fail(entry, error);
  }
}

// The paths of the drafts; their nodes are added to the rows that are kept. A text that ends inside
// its path keeps nothing from there on, as in plain decoding, where the last token is never scored.
void Scheduler::State::verify_drafts(Context& context, std::span<const SchedulerShare> shares,
                                     const ScoredStep& scored,
                                     std::vector<std::vector<std::int32_t>>& kept) {
  std::vector<DraftedContinuation> drafted;
  std::vector<std::size_t> of_share;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].draft < 0) continue;
    drafted.push_back(std::move(drafts[at(shares[i].draft)]));
    of_share.push_back(i);
  }
  if (drafted.empty()) return;
  const std::int64_t shape[] = {std::ssize(scored.logit_rows) - scored.plain_logits,
                                scorer.shape().vocabulary};
  const ConstTensorView view =
      make_view(static_cast<const void*>(static_cast<const float*>(logits.data()) +
                                         scored.plain_logits * shape[1]),
                shape, DType::f32, scorer.shape().device);
  const std::vector<Acceptance> paths = speculator->verify(context, view, drafted);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const SchedulerShare& share = shares[of_share[i]];
    SchedulerEntry& entry = *share.entry;
    std::size_t taken = 0;
    while (taken < paths[i].tokens.size() && !entry.text.finished()) {
      take(entry, {.token = paths[i].tokens[taken],
                   .status = paths[i].nan ? RowStatus::has_nan : RowStatus::ok,
                   .log_probabilities = paths[i].log_probabilities[taken]});
      ++taken;
    }
    for (std::size_t node = 0; node + 1 < taken; ++node) {
      kept[of_share[i]].push_back(
          static_cast<std::int32_t>(share.first + share.rows + paths[i].nodes[node]));
    }
  }
}

// The other samples of a request, which wait, fork the leader's sequence once it has read the prompt.
void Scheduler::State::follow(Context& context, const SchedulerEntry& leader,
                              std::span<SchedulerEntry* const> followers) {
  for (SchedulerEntry* const entry : followers) {
    if (std::ssize(running) >= options.max_running) return;
    try {
      start(*entry, scorer.fork(*leader.sequence), leader.length);
    } catch (const Error&) {
      continue;  // it reads the prompt itself, to the same bits
    }
    if (speculator) speculator->copy(context, leader.order, entry->order);
  }
}

}  // namespace touchstone::inline v0::decode
