// The steps of a decoder on rows of numbers, one row per token. Deliberately naive and templated on the
// scalar; see norm.h. Matrices are [out, in], row-major.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace touchstone::oracle::decoder_parts {

template <class S>
using Rows = std::vector<std::vector<S>>;

// The rows of a table for the tokens.
template <class S, class Tokens>
Rows<S> embedded(std::span<const S> table, const Tokens& tokens, std::int64_t width) {
  Rows<S> x;
  for (const auto token : tokens) {
    const S* const from = table.data() + token * width;
    x.emplace_back(from, from + width);
  }
  return x;
}

template <class S>
Rows<S> product(std::span<const S> weight, const Rows<S>& x) {
  const std::size_t in = x[0].size();
  const std::size_t out = weight.size() / in;
  Rows<S> y(x.size(), std::vector<S>(out, S(0.0)));
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t o = 0; o < out; ++o) {
      for (std::size_t i = 0; i < in; ++i) y[r][o] += weight[o * in + i] * x[r][i];
    }
  }
  return y;
}

// Over as many neighbors as there are weights: rows, or the heads of a row.
template <class S>
Rows<S> normed(std::span<const S> weight, const Rows<S>& x, double epsilon) {
  using std::sqrt;
  const std::size_t size = weight.size();
  Rows<S> y = x;
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t first = 0; first < x[r].size(); first += size) {
      S square = 0.0;
      for (std::size_t i = 0; i < size; ++i) square += x[r][first + i] * x[r][first + i];
      const S rstd = S(1.0) / sqrt(square / static_cast<double>(size) + epsilon);
      for (std::size_t i = 0; i < size; ++i) y[r][first + i] = x[r][first + i] * rstd * weight[i];
    }
  }
  return y;
}

// RoPE over the halves of each head.
template <class S>
void rotate(Rows<S>& x, std::span<const std::int64_t> positions, std::int64_t head_size,
            double theta) {
  const auto size = static_cast<std::size_t>(head_size);
  for (std::size_t r = 0; r < x.size(); ++r) {
    for (std::size_t first = 0; first < x[r].size(); first += size) {
      for (std::size_t i = 0; i < size / 2; ++i) {
        const double angle =
            static_cast<double>(positions[r]) *
            std::pow(theta, -2 * static_cast<double>(i) / static_cast<double>(size));
        const S a = x[r][first + i];
        const S b = x[r][first + i + size / 2];
        x[r][first + i] = a * std::cos(angle) - b * std::sin(angle);
        x[r][first + i + size / 2] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }
}

// mask(query, key) says whether a row of q attends to one of k; kept(query, head, key) is a factor of the
// weight that it gives, after the softmax.
template <class S, class Mask, class Kept>
Rows<S> attend(const Rows<S>& q, const Rows<S>& k, const Rows<S>& v, std::int64_t head_size,
               const Mask& mask, const Kept& kept) {
  using std::exp;
  const auto size = static_cast<std::size_t>(head_size);
  const std::size_t group = q[0].size() / k[0].size();
  Rows<S> y(q.size(), std::vector<S>(q[0].size(), S(0.0)));
  for (std::size_t r = 0; r < q.size(); ++r) {
    for (std::size_t head = 0; head < q[r].size() / size; ++head) {
      const std::size_t own = head * size;
      const std::size_t shared = head / group * size;
      std::vector<S> weights(k.size(), S(0.0));
      S sum = 0.0;
      for (std::size_t t = 0; t < k.size(); ++t) {
        if (!mask(r, t)) continue;
        S score = 0.0;
        for (std::size_t i = 0; i < size; ++i) score += q[r][own + i] * k[t][shared + i];
        weights[t] = exp(score / std::sqrt(static_cast<double>(size)));
        sum += weights[t];
      }
      for (std::size_t t = 0; t < k.size(); ++t) {
        if (!mask(r, t)) continue;
        for (std::size_t i = 0; i < size; ++i) {
          y[r][own + i] += weights[t] / sum * kept(r, head, t) * v[t][shared + i];
        }
      }
    }
  }
  return y;
}
inline double keep_all(std::size_t /*query*/, std::size_t /*head*/, std::size_t /*key*/) {
  return 1;
}

// silu(gate) * up
template <class S>
Rows<S> gated(Rows<S> gate, const Rows<S>& up) {
  using std::exp;
  for (std::size_t r = 0; r < gate.size(); ++r) {
    for (std::size_t i = 0; i < gate[r].size(); ++i) {
      gate[r][i] = gate[r][i] / (S(1.0) + exp(-gate[r][i])) * up[r][i];
    }
  }
  return gate;
}

template <class S>
void add(Rows<S>& to, const Rows<S>& from) {
  for (std::size_t r = 0; r < to.size(); ++r) {
    for (std::size_t c = 0; c < to[r].size(); ++c) to[r][c] += from[r][c];
  }
}

// log(sum exp(logits)) - logits[target]
template <class S>
S loss(const std::vector<S>& logits, std::int64_t target) {
  using std::exp;
  using std::log;
  S total = 0.0;
  for (const S& logit : logits) total += exp(logit);
  return log(total) - logits[static_cast<std::size_t>(target)];
}

}  // namespace touchstone::oracle::decoder_parts
