// Beam search in float64, one plain function per dialect: whole vocabularies are sorted, whole
// paths are copied, the dialects share only the expansion of beams. Also an exhaustive search.
// Written from the documentation and behavior of the engines, not from the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace touchstone::oracle {

struct BeamProblem {
  std::string dialect = "canonical";  // hf_true, hf_false, hf_never, fairseq, ctranslate2, vllm
  std::int64_t vocabulary = 0;
  std::int64_t beams = 1;
  std::int64_t results = 0;  // 0 = beams
  double length_penalty = 1;
  double patience = 1;
  std::int64_t max_tokens = 1;
  std::int64_t prompt_tokens = 1;
  std::vector<std::int32_t> eos;
  // Logits after the generated tokens; -inf is no continuation.
  std::function<void(const std::vector<std::int32_t>& text, std::span<double> logits)> logits;
  // Whether a token may follow; empty = always.
  std::function<bool(const std::vector<std::int32_t>& text, std::int32_t token)> allowed;
};

struct BeamText {
  std::vector<std::int32_t> tokens;  // with the ending one
  double log_probability = 0;
  double score = 0;
  bool ended = false;  // by an eos token
};

struct BeamAnswer {
  std::vector<BeamText> texts;  // best first
  // The smallest distance of two numbers whose order decided the result.
  double margin = std::numeric_limits<double>::infinity();
};

class BeamReference {
 public:
  explicit BeamReference(BeamProblem problem) : p_(std::move(problem)) {}

  BeamAnswer search() {
    answer_ = {};
    if (p_.dialect == "fairseq") {
      fairseq();
    } else if (p_.dialect == "ctranslate2") {
      ctranslate2();
    } else if (p_.dialect == "vllm") {
      vllm();
    } else {
      pool_of_k();
    }
    rank(answer_.texts);
    const std::int64_t wanted = p_.results == 0 ? p_.beams : p_.results;
    if (std::ssize(answer_.texts) > wanted) answer_.texts.resize(static_cast<std::size_t>(wanted));
    return answer_;
  }

  // The best `count` of all texts there are: ended anywhere, or as long as allowed.
  std::vector<BeamText> exhaustive(std::int64_t count) {
    std::vector<BeamText> all;
    std::vector<BeamText> open{{}};
    for (std::int64_t g = 1; g <= p_.max_tokens; ++g) {
      std::vector<BeamText> next;
      for (const BeamText& text : expand(open, false)) {
        if (text.ended || g == p_.max_tokens) {
          all.push_back(scored(text, g));
        } else {
          next.push_back(text);
        }
      }
      open = std::move(next);
    }
    rank(all);
    if (std::ssize(all) > count) all.resize(static_cast<std::size_t>(count));
    return all;
  }

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  bool is_eos(std::int32_t token) const { return std::ranges::find(p_.eos, token) != p_.eos.end(); }
  BeamText scored(BeamText text, std::int64_t length) const {
    text.score = text.log_probability / std::pow(static_cast<double>(length), p_.length_penalty);
    return text;
  }
  void order_matters(double a, double b) {
    answer_.margin = std::min(answer_.margin, std::abs(a - b));
  }

  // Every continuation of every beam, best first; equal ones by parent, then by token.
  // `only_eos`: the last step of fairseq. `over_allowed`: normalized after masking.
  std::vector<BeamText> expand(const std::vector<BeamText>& beams, bool over_allowed,
                               bool only_eos = false) {
    std::vector<BeamText> all;
    std::vector<double> logits(static_cast<std::size_t>(p_.vocabulary));
    for (const BeamText& beam : beams) {
      p_.logits(beam.tokens, logits);
      const auto masked = [&](std::size_t t) {
        return (p_.allowed && !p_.allowed(beam.tokens, static_cast<std::int32_t>(t))) ||
               (only_eos && !is_eos(static_cast<std::int32_t>(t)));
      };
      double largest = -kInfinity;
      for (const double v : logits) largest = std::max(largest, v);
      if (largest == -kInfinity) continue;
      double sum = 0;
      for (std::size_t t = 0; t < logits.size(); ++t) {
        if (!over_allowed || !masked(t)) sum += std::exp(logits[t] - largest);
      }
      for (std::size_t t = 0; t < logits.size(); ++t) {
        if (masked(t) || logits[t] == -kInfinity) continue;
        BeamText next = beam;
        next.tokens.push_back(static_cast<std::int32_t>(t));
        next.log_probability += logits[t] - largest - std::log(sum);
        next.ended = is_eos(next.tokens.back());
        all.push_back(std::move(next));
      }
    }
    std::ranges::stable_sort(all, std::ranges::greater{}, &BeamText::log_probability);
    return all;
  }
  // The first `count`; records each distance down to the first one that is left out.
  std::vector<BeamText> best(std::vector<BeamText> all, std::int64_t count) {
    const auto kept = std::min(all.size(), static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < kept && i + 1 < all.size(); ++i) {
      order_matters(all[i].log_probability, all[i + 1].log_probability);
    }
    all.resize(kept);
    return all;
  }
  void rank(std::vector<BeamText>& texts) {
    std::ranges::stable_sort(texts, std::ranges::greater{}, &BeamText::score);
    for (std::size_t i = 0; i + 1 < texts.size(); ++i) {
      order_matters(texts[i].score, texts[i + 1].score);
    }
  }

  // canonical and transformers.
  void pool_of_k() {
    const auto k = static_cast<std::size_t>(p_.beams);
    const std::int64_t count = (1 + std::max<std::int64_t>(1, std::ssize(p_.eos))) * p_.beams;
    std::vector<BeamText> running{{}};
    std::vector<BeamText>& pool = answer_.texts;
    for (std::int64_t g = 1; g <= p_.max_tokens && !running.empty(); ++g) {
      const std::vector<BeamText> candidates = best(expand(running, false), count);
      running.clear();
      for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
        const BeamText& c = candidates[rank];
        if (c.ended || g == p_.max_tokens) {
          if (rank < k) pool.push_back(scored(c, g));
        } else if (running.size() < k) {
          running.push_back(c);
        }
      }
      rank(pool);
      if (pool.size() > k) pool.resize(k);
      if (pool.size() < k || running.empty()) continue;
      if (p_.dialect == "hf_true") return;
      const bool far = p_.length_penalty > 0 && p_.dialect != "hf_false";
      const double reachable = scored(running[0], far ? p_.max_tokens : g).score;
      order_matters(reachable, pool.back().score);
      if (reachable <= pool.back().score) return;
    }
  }

  void fairseq() {
    std::vector<BeamText> running{{}};
    std::vector<BeamText>& done = answer_.texts;
    for (std::int64_t g = 1; g <= p_.max_tokens && !running.empty(); ++g) {
      const bool last = g == p_.max_tokens;
      const std::vector<BeamText> candidates =
          best(expand(running, false, last && !p_.eos.empty()), 2 * p_.beams);
      running.clear();
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        const bool first_k = i < static_cast<std::size_t>(p_.beams);
        if ((candidates[i].ended || last) && first_k && std::ssize(done) < p_.beams) {
          done.push_back(scored(candidates[i], g));
        }
        if (!candidates[i].ended && !last && std::ssize(running) < p_.beams) {
          running.push_back(candidates[i]);
        }
      }
      if (std::ssize(done) == p_.beams) return;
    }
  }

  void ctranslate2() {
    std::vector<BeamText> running{{}};
    std::vector<BeamText>& done = answer_.texts;
    bool top_ended = false;
    const std::int64_t wanted = p_.results == 0 ? p_.beams : p_.results;
    for (std::int64_t g = 1; g <= p_.max_tokens && !running.empty(); ++g) {
      const std::vector<BeamText> candidates = best(expand(running, true), 2 * p_.beams);
      std::vector<BeamText> next;
      auto spare = static_cast<std::size_t>(p_.beams);
      for (std::size_t i = 0; i < candidates.size() && i < static_cast<std::size_t>(p_.beams);
           ++i) {
        if (!candidates[i].ended && g < p_.max_tokens) {
          next.push_back(candidates[i]);
          continue;
        }
        top_ended = top_ended || i == 0;
        done.push_back(scored(candidates[i], g));
        while (spare < candidates.size() && candidates[spare].ended) ++spare;
        if (spare < candidates.size()) next.push_back(candidates[spare++]);
      }
      running = std::move(next);
      if (p_.length_penalty == 0
              ? top_ended && std::ssize(done) >= wanted
              : std::ssize(done) >= std::llround(static_cast<double>(p_.beams) * p_.patience)) {
        return;
      }
    }
  }

  void vllm() {
    std::vector<BeamText> running{{}};
    for (std::int64_t g = 1; g <= p_.max_tokens && !running.empty(); ++g) {
      std::vector<BeamText> open;
      for (const BeamText& beam : running) {
        for (BeamText& c : best(expand({beam}, false), 2 * p_.beams)) {
          if (c.ended) {
            answer_.texts.push_back(scored(c, p_.prompt_tokens + g - 1));
          } else {
            open.push_back(std::move(c));
          }
        }
      }
      std::ranges::stable_sort(open, std::ranges::greater{}, &BeamText::log_probability);
      running = best(std::move(open), p_.beams);
    }
    for (const BeamText& beam : running) {
      if (std::ssize(beam.tokens) < p_.max_tokens) continue;
      answer_.texts.push_back(scored(beam, p_.prompt_tokens + p_.max_tokens));
    }
  }

  BeamProblem p_;
  BeamAnswer answer_;
};

}  // namespace touchstone::oracle
