#include "decode/sampler.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "core/copy.h"
#include "core/index.h"
#include "touchstone/ops/sample.h"

namespace touchstone::inline v0::decode {
namespace {

bool has_penalty(const SamplingControls& c) {
  return c.repetition_penalty != 1 || c.frequency_penalty != 0 || c.presence_penalty != 0;
}

}  // namespace

// Words of allowed tokens; empty where every row allows all.
std::vector<std::int32_t> Sampler::masks(std::span<const SampleRow> rows) const {
  const bool needed = std::ranges::any_of(rows, [](const SampleRow& row) {
    return row.constraint != nullptr || !row.forbidden.empty() || !row.mask.empty();
  });
  if (!needed) return {};
  const std::int64_t words = (vocabulary_ + 31) / 32;
  std::vector<std::int32_t> mask(rows.size() * at(words), -1);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::span own = std::span(mask).subspan(r * at(words), at(words));
    if (!rows[r].mask.empty()) {
      std::ranges::copy(rows[r].mask, own.begin());
      continue;
    }
    if (rows[r].constraint != nullptr) rows[r].constraint->allowed(own);
    for (const std::int32_t token : rows[r].forbidden) {
      const std::uint32_t bit = std::uint32_t{1} << (token % 32);
      std::int32_t& word = own[at(token / 32)];
      word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) & ~bit);
    }
  }
  return mask;
}

// Rows of one draft share its tokens. In a tree the row after the tokens is the root of its nodes,
// with no token of its own.
Sampler::Histories Sampler::add_histories(std::span<const SampleRow> rows, std::int64_t longest,
                                          std::int64_t deepest) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> history_rows;
  std::vector<std::int32_t> parents;
  std::vector<std::int32_t> tree_tokens;
  const std::int32_t* last = nullptr;
  std::int32_t count = 0;
  for (const SampleRow& row : rows) {
    if (count == 0 || row.tokens.data() != last) {
      tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
      tokens.resize(at(++count * longest), -1);
      last = row.tokens.data();
    }
    history_rows.push_back(count - 1);
    parents.push_back(row.depth > 0 ? row.parent : -1);
    tree_tokens.push_back(row.depth > 0 ? row.token : -1);
  }
  const std::int64_t n = std::ssize(rows);
  Histories result{.tokens = arrays_.add(tokens, {count, longest}),
                   .row = arrays_.add(history_rows, {n})};
  if (deepest > 0) {
    result.parent = arrays_.add(parents, {n});
    result.tree_token = arrays_.add(tree_tokens, {n});
  }
  return result;
}

std::size_t Sampler::add_bias(std::span<const SampleRow> rows) {
  std::vector<float> values(rows.size() * at(vocabulary_));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (const auto& [token, value] : rows[r].request->sampling.bias) {
      values[r * at(vocabulary_) + at(token)] += value;
    }
  }
  return arrays_.add(std::span<const float>(values), {std::ssize(rows), vocabulary_});
}

SampleArgs Sampler::build(Context& context, std::span<const SampleRow> rows) {
  const std::int64_t n = std::ssize(rows);
  const auto controls = [&](auto field) {
    std::vector<float> values;
    for (const SampleRow& row : rows) {
      values.push_back(static_cast<float>(field(row.request->sampling)));
    }
    return arrays_.add(std::span<const float>(values), {n});
  };
  std::vector<std::int32_t> top_k;
  std::vector<std::int32_t> prompt_lengths;
  std::vector<std::int64_t> seeds;
  std::vector<std::int64_t> positions;
  std::int64_t longest = 0;
  std::int64_t deepest = 0;
  bool penalties = false;
  bool biased = false;
  for (const SampleRow& row : rows) {
    top_k.push_back(row.request->sampling.top_k);
    prompt_lengths.push_back(static_cast<std::int32_t>(row.request->prompt.size()));
    seeds.push_back(row.seed);
    positions.push_back(std::ssize(row.tokens) + row.depth);
    deepest = std::max<std::int64_t>(deepest, row.depth);
    longest = std::max(longest, std::ssize(row.tokens));
    penalties |= has_penalty(row.request->sampling);
    biased |= !row.request->sampling.bias.empty();
  }
  arrays_.clear();
  const std::size_t temperature = controls([](const auto& c) { return c.temperature; });
  const std::size_t top_p = controls([](const auto& c) { return c.top_p; });
  const std::size_t min_p = controls([](const auto& c) { return c.min_p; });
  const std::size_t repetition = controls([](const auto& c) { return c.repetition_penalty; });
  const std::size_t frequency = controls([](const auto& c) { return c.frequency_penalty; });
  const std::size_t presence = controls([](const auto& c) { return c.presence_penalty; });
  const std::size_t k = arrays_.add(top_k, {n});
  const std::size_t seed = arrays_.add(seeds, {n});
  const std::size_t position = arrays_.add(positions, {n});
  const std::size_t prompt_length = arrays_.add(prompt_lengths, {n});
  const std::vector<std::int32_t> mask = masks(rows);
  const std::size_t token_mask = arrays_.add(mask, {n, std::ssize(mask) / n});
  const Histories history = penalties ? add_histories(rows, longest, deepest) : Histories{};
  const std::size_t bias = biased ? add_bias(rows) : 0;
  arrays_.finish(context);
  const auto view = [&](std::size_t array) { return arrays_.view(array); };
  return {.bias = biased ? view(bias) : ConstTensorView{},
          .token_mask = mask.empty() ? ConstTensorView{} : view(token_mask),
          .temperature = view(temperature),
          .top_k = view(k),
          .top_p = view(top_p),
          .min_p = view(min_p),
          .repetition_penalty = penalties ? view(repetition) : ConstTensorView{},
          .frequency_penalty = penalties ? view(frequency) : ConstTensorView{},
          .presence_penalty = penalties ? view(presence) : ConstTensorView{},
          .history = penalties ? view(history.tokens) : ConstTensorView{},
          .prompt_length = penalties ? view(prompt_length) : ConstTensorView{},
          .history_row = penalties ? view(history.row) : ConstTensorView{},
          .parent = penalties && deepest > 0 ? view(history.parent) : ConstTensorView{},
          .tree_token = penalties && deepest > 0 ? view(history.tree_token) : ConstTensorView{},
          .max_depth = penalties && deepest > 0 ? deepest + 1 : 0,
          .seed = view(seed),
          .position = view(position)};
}

// Which of sample()'s optional arguments a row needs. On CUDA they choose the kernel, and with it
// the last bits of log-probabilities: rows that need different ones are drawn in calls of their
// own, so that the bits of a row do not depend on the others.
std::int32_t Sampler::kind_of(const SampleRow& row) {
  const bool masked = row.constraint != nullptr || !row.forbidden.empty() || !row.mask.empty();
  return (has_penalty(row.request->sampling) ? 1 : 0) |
         (row.request->sampling.bias.empty() ? 0 : 2) | (masked ? 4 : 0);
}

std::vector<SampledToken> Sampler::run(Context& context, const ConstTensorView& logits,
                                       std::span<const SampleRow> rows) {
  std::map<std::int32_t, std::vector<std::size_t>> kinds;
  for (std::size_t r = 0; r < rows.size(); ++r) kinds[kind_of(rows[r])].push_back(r);
  if (kinds.size() < 2) return run_alike(context, logits, rows);
  std::vector<SampledToken> all(rows.size());
  const std::int64_t bytes = vocabulary_ * size_of(logits.dtype);
  const StreamLocation here{logits.device, context.stream()};
  for (const auto& [kind, members] : kinds) {
    const std::int64_t n = std::ssize(members);
    if (gathered_.elements() < n * bytes) {
      gathered_ = Tensor::empty({n * bytes}, DType::u8, logits.device);
    }
    std::vector<SampleRow> own;
    std::vector<std::int32_t> place(rows.size(), -1);
    for (std::size_t i = 0; i < members.size(); ++i) {
      place[members[i]] = static_cast<std::int32_t>(i);
      own.push_back(rows[members[i]]);
      // Rows that name a parent are of its kind.
      if (own.back().depth > 0) own.back().parent = place[at(own.back().parent)];
      queue_copy(here,
                 static_cast<std::byte*>(gathered_.data()) + static_cast<std::int64_t>(i) * bytes,
                 here,
                 static_cast<const std::byte*>(logits.data) +
                     static_cast<std::int64_t>(members[i]) * bytes,
                 bytes);
    }
    const std::int64_t shape[] = {n, vocabulary_};
    const std::vector<SampledToken> found = run_alike(
        context,
        make_view(static_cast<const void*>(gathered_.data()), shape, logits.dtype, logits.device),
        own);
    for (std::size_t i = 0; i < members.size(); ++i) all[members[i]] = found[i];
  }
  return all;
}

std::vector<SampledToken> Sampler::run_alike(Context& context, const ConstTensorView& logits,
                                             std::span<const SampleRow> rows) {
  const std::int64_t n = std::ssize(rows);
  if (n == 0) return {};
  std::int32_t top = 0;
  for (const SampleRow& row : rows) top = std::max(top, row.request->top_log_probabilities);
  // Five arrays of 32-bit values, one after another.
  const std::int64_t bytes = 4 * n * (3 + 2 * std::int64_t{top});
  const Device device = context.device();
  if (results_.elements() < bytes) results_ = Tensor::empty({bytes}, DType::u8, device);
  auto* const base = static_cast<std::byte*>(results_.data());
  const auto one = [&](std::int64_t index, DType dtype) {
    const std::int64_t shape[] = {n};
    return make_view(static_cast<void*>(base + 4 * n * index), shape, dtype, device);
  };
  const auto many = [&](std::int64_t index, DType dtype) {
    const std::int64_t shape[] = {n, top};
    return make_view(static_cast<void*>(base + 4 * n * (3 + index * top)), shape, dtype, device);
  };
  SampleArgs args = build(context, rows);
  args.logits = logits;
  args.token = one(0, DType::i32);
  args.status = one(1, DType::i32);
  args.log_probability = one(2, DType::f32);
  if (top > 0) {
    args.top_tokens = many(0, DType::i32);
    args.top_log_probabilities = many(1, DType::f32);
  }
  sample(context, args);
  host_.resize(at(bytes));
  const StreamLocation here{device, context.stream()};
  queue_copy({}, host_.data(), here, base, bytes);
  wait_for(here);

  const auto value = [&]<class T>(T /*type*/, std::int64_t index) {
    T out{};
    std::memcpy(&out, host_.data() + 4 * index, 4);
    return out;
  };
  std::vector<SampledToken> tokens(rows.size());
  for (std::int64_t r = 0; r < n; ++r) {
    SampledToken& token = tokens[at(r)];
    token.token = value(std::int32_t{}, r);
    token.status = static_cast<RowStatus>(value(std::int32_t{}, n + r));
    token.log_probabilities.own = value(float{}, 2 * n + r);
    for (std::int64_t i = 0; i < rows[at(r)].request->top_log_probabilities; ++i) {
      const std::int64_t index = 3 * n + r * top + i;
      const auto id = value(std::int32_t{}, index);
      if (id >= 0) token.log_probabilities.top.emplace_back(id, value(float{}, index + n * top));
    }
  }
  return tokens;
}

}  // namespace touchstone::inline v0::decode
