#include "touchstone/decode/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "core/context_access.h"
#include "core/copy.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "decode/log_softmax.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode {
namespace {

// Logits of all rows of a chain, in blocks of at most max_rows rows: visit(first row, logits [rows, V]).
template <class Visit>
void visit_logits(Context& context, Scorer& scorer, std::span<const std::int32_t> tokens,
                  std::int64_t max_rows, const Visit& visit) {
  const ScorerShape& shape = scorer.shape();
  max_rows = std::min(max_rows, std::ssize(tokens));
  Tensor logits = Tensor::empty({max_rows, shape.vocabulary}, DType::f32, shape.device);
  std::vector<float> host(shape.device.is_cuda() ? at(max_rows * shape.vocabulary) : 0);
  const StreamLocation here{shape.device, context.stream()};
  const ScorerSequence sequence = scorer.create();
  try {
    for (std::int64_t first = 0; first < std::ssize(tokens); first += max_rows) {
      const std::int64_t count = std::min(max_rows, std::ssize(tokens) - first);
      const auto rows = chain_rows(sequence, first, tokens.subspan(at(first), at(count)));
      std::vector<std::int32_t> all(at(count));
      std::iota(all.begin(), all.end(), 0);
      const std::int64_t sizes[] = {count, shape.vocabulary};
      scorer.score(context, {.rows = rows,
                             .logit_rows = all,
                             .logits = make_view(logits.data(), sizes, DType::f32, shape.device)});
      const KeptRows kept[] = {{sequence, all}};
      scorer.keep(kept);
      const std::size_t values = at(count * shape.vocabulary);
      std::span<const float> block(static_cast<const float*>(logits.data()), values);
      if (shape.device.is_cuda()) {
        queue_copy({}, host.data(), here, logits.data(), count * shape.vocabulary * 4);
        wait_for(here);
        block = std::span<const float>(host).first(values);
      }
      visit(first, block);
    }
  } catch (...) {
    scorer.release(sequence);
    throw;
  }
  scorer.release(sequence);
}

PerplexityOptions checked_options(const Scorer& scorer, std::span<const std::int32_t> tokens,
                                  PerplexityOptions options) {
  const auto refuse = [](const char* name, const std::string& expected, std::int64_t got) {
    throw InvalidArgument(fmt::format("perplexity: {}: expected {}, got {}", name, expected, got));
  };
  const std::int64_t longest = scorer.shape().max_length;
  if (tokens.size() < 2) refuse("tokens", "at least 2", std::ssize(tokens));
  if (options.window < 2 || options.window > longest) {
    refuse("window", fmt::format("2 to {}, the context", longest), options.window);
  }
  if (options.stride == 0) options.stride = options.window;
  if (options.stride < 1 || options.stride > options.window) {
    refuse("stride", fmt::format("1 to the window, {}", options.window), options.stride);
  }
  if (options.max_rows < 1) refuse("max_rows", "at least 1", options.max_rows);
  return options;
}

}  // namespace

Perplexity perplexity(Context& context, Scorer& scorer, std::span<const std::int32_t> tokens,
                      const PerplexityOptions& given) {
  const PerplexityOptions options = checked_options(scorer, tokens, given);
  const std::int64_t vocabulary = scorer.shape().vocabulary;
  // Logits are looked at on the host, for which the context of a GPU has one thread.
  std::optional<ThreadPool> of_host;
  if (context.device().is_cuda()) of_host.emplace(available_threads());
  ThreadPool& threads = of_host ? *of_host : detail::ContextAccess::pool(context);
  std::vector<double> values;
  Perplexity result;
  result.log_probabilities.assign(tokens.size(), std::numeric_limits<float>::quiet_NaN());
  const std::int64_t count = std::ssize(tokens);
  std::int64_t scored = 0;  // tokens before this one are done
  for (std::int64_t begin = 0; scored < count; begin += options.stride) {
    const std::int64_t end = std::min(begin + options.window, count);
    const auto text = tokens.subspan(at(begin), at(end - begin));
    if (text.size() < 2) break;
    Perplexity::Window window;
    visit_logits(context, scorer, text, options.max_rows,
                 [&](std::int64_t first, std::span<const float> logits) {
                   const std::int64_t rows = std::ssize(logits) / vocabulary;
                   // The last row of the window predicts a token that is not in it.
                   const std::int64_t last = std::min(begin + first + rows, end - 1);
                   const std::int64_t next = std::max(begin + first + 1, scored);
                   const std::int64_t due = std::max<std::int64_t>(0, last + 1 - next);
                   values.assign(at(due), 0);
                   threads.run(due, [&](std::int64_t i) {
                     const std::int64_t row = next + i - 1 - begin - first;
                     values[at(i)] =
                         log_softmax(logits.subspan(at(row * vocabulary), at(vocabulary)),
                                     tokens[at(next + i)]);
                   });
                   for (std::int64_t i = 0; i < due; ++i) {
                     const double value = values[at(i)];
                     if (std::isnan(value)) {
                       throw CorruptData("perplexity: the logits of the model are NaN");
                     }
                     result.log_probabilities[at(next + i)] = static_cast<float>(value);
                     ++window.tokens;
                     window.loss -= value;
                   }
                 });
    if (window.tokens > 0) result.windows.push_back(window);
    scored = end;
  }
  return result;
}

std::int64_t scored_bytes(const io::Tokenizer& tokenizer, std::span<const std::int32_t> tokens,
                          const Perplexity& result) {
  if (tokens.size() != result.log_probabilities.size()) {
    throw InvalidArgument(fmt::format("scored_bytes: tokens: expected {}, as were scored, got {}",
                                      result.log_probabilities.size(), tokens.size()));
  }
  io::TokenStream stream(tokenizer);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto piece = std::ssize(stream.next(tokens[i]));
    if (!std::isnan(result.log_probabilities[i])) bytes += piece;
  }
  return bytes;
}

bool check_causality(Context& context, Scorer& scorer, std::span<const std::int32_t> tokens) {
  if (tokens.empty()) return true;
  std::vector<float> known;
  std::vector<std::int32_t> changed(tokens.begin(), tokens.end());
  const auto rows = std::ssize(tokens);
  // All rows but the last, whose logits may differ.
  const std::int64_t compared = (rows - 1) * scorer.shape().vocabulary;
  visit_logits(context, scorer, tokens, rows, [&](std::int64_t, std::span<const float> logits) {
    known.assign(logits.begin(), logits.begin() + compared);
  });
  changed.back() = static_cast<std::int32_t>((changed.back() + 1) % scorer.shape().vocabulary);
  // NaN is found by perplexity(), which says so.
  const auto equal = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  bool same = true;
  visit_logits(context, scorer, changed, rows, [&](std::int64_t, std::span<const float> logits) {
    same = std::equal(known.begin(), known.end(), logits.begin(), equal);
  });
  return same;
}

std::int64_t Perplexity::tokens() const {
  std::int64_t count = 0;
  for (const Window& window : windows) count += window.tokens;
  return count;
}

double Perplexity::loss() const {
  double sum = 0;
  for (const Window& window : windows) sum += window.loss;
  return sum;
}

double Perplexity::value() const { return std::exp(loss() / static_cast<double>(tokens())); }

double Perplexity::half_interval() const {
  const auto count = static_cast<double>(tokens());
  const double mean = loss() / count;
  double squares = 0;
  double clusters = 0;
  if (windows.size() > 1) {
    for (const Window& window : windows) {
      const double off = window.loss - mean * static_cast<double>(window.tokens);
      squares += off * off;
    }
    clusters = static_cast<double>(windows.size());
  } else {
    for (const float value : log_probabilities) {
      if (std::isnan(value)) continue;
      const double off = -static_cast<double>(value) - mean;
      squares += off * off;
    }
    clusters = count;
  }
  if (clusters < 2) return std::numeric_limits<double>::infinity();
  return 1.96 * std::sqrt(squares * clusters / (clusters - 1)) / count;
}

}  // namespace touchstone::inline v0::decode
