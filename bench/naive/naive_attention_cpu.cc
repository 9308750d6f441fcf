// Attention as one writes it first: the whole matrix of scores of a head in memory, one loop after
// another. Heads are dealt out to the threads.
#include <cmath>
#include <vector>

#include "bench/naive/naive.h"
#include "core/context_access.h"
#include "core/thread_pool.h"
#include "touchstone/core/convert.h"

namespace touchstone::bench {
namespace {

struct Matrix {
  std::int64_t rows;
  std::int64_t cols;
  std::vector<float> values;

  Matrix(std::int64_t r, std::int64_t c)
      : rows(r), cols(c), values(static_cast<std::size_t>(r * c)) {}
  float* row(std::int64_t i) { return values.data() + i * cols; }
  const float* row(std::int64_t i) const { return values.data() + i * cols; }
};

template <class T>
Matrix head_of(const void* tensor, std::int64_t head, std::int64_t tokens, std::int64_t dim) {
  Matrix result(tokens, dim);
  const T* const from = static_cast<const T*>(tensor) + head * tokens * dim;
  for (std::size_t i = 0; i < result.values.size(); ++i) result.values[i] = convert<float>(from[i]);
  return result;
}

template <class T>
void add_head(const Matrix& matrix, std::int64_t head, bool first, void* tensor) {
  T* const to = static_cast<T*>(tensor) + head * matrix.rows * matrix.cols;
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    to[i] = convert<T>(matrix.values[i] + (first ? 0.0F : convert<float>(to[i])));
  }
}

// a b^T.
Matrix times_transposed(const Matrix& a, const Matrix& b, float scale) {
  Matrix result(a.rows, b.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.rows; ++j) {
      float sum = 0;
      for (std::int64_t d = 0; d < a.cols; ++d) sum += a.row(i)[d] * b.row(j)[d];
      result.row(i)[j] = sum * scale;
    }
  }
  return result;
}

// a b.
Matrix times(const Matrix& a, const Matrix& b, float scale) {
  Matrix result(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.cols; ++k) {
      for (std::int64_t j = 0; j < b.cols; ++j) {
        result.row(i)[j] += scale * a.row(i)[k] * b.row(k)[j];
      }
    }
  }
  return result;
}

// a^T b.
Matrix transposed_times(const Matrix& a, const Matrix& b, float scale) {
  Matrix result(a.cols, b.cols);
  for (std::int64_t k = 0; k < a.rows; ++k) {
    for (std::int64_t i = 0; i < a.cols; ++i) {
      for (std::int64_t j = 0; j < b.cols; ++j) {
        result.row(i)[j] += scale * a.row(k)[i] * b.row(k)[j];
      }
    }
  }
  return result;
}

void softmax(Matrix& scores, bool causal) {
  for (std::int64_t i = 0; i < scores.rows; ++i) {
    const std::int64_t end = causal ? i + 1 : scores.cols;
    float* const row = scores.row(i);
    float most = row[0];
    for (std::int64_t j = 0; j < end; ++j) most = row[j] > most ? row[j] : most;
    float sum = 0;
    for (std::int64_t j = 0; j < end; ++j) sum += row[j] = std::exp(row[j] - most);
    for (std::int64_t j = 0; j < end; ++j) row[j] /= sum;
    for (std::int64_t j = end; j < scores.cols; ++j) row[j] = 0;
  }
}

template <class T>
void naive_head(const AttentionOperands& p, std::int64_t head, std::int64_t kv_head, bool first) {
  const float scale = 1 / std::sqrt(static_cast<float>(p.dim));
  const Matrix q = head_of<T>(p.q, head, p.tokens, p.dim);
  const Matrix k = head_of<T>(p.k, kv_head, p.tokens, p.dim);
  const Matrix v = head_of<T>(p.v, kv_head, p.tokens, p.dim);
  Matrix weights = times_transposed(q, k, scale);
  softmax(weights, p.causal);
  if (!p.backward) return add_head<T>(times(weights, v, 1), head, true, p.output);
  const Matrix doutput = head_of<T>(p.doutput, head, p.tokens, p.dim);
  Matrix dscores = times_transposed(doutput, v, 1);
  for (std::int64_t i = 0; i < p.tokens; ++i) {
    float sum = 0;
    for (std::int64_t j = 0; j < p.tokens; ++j) sum += weights.row(i)[j] * dscores.row(i)[j];
    for (std::int64_t j = 0; j < p.tokens; ++j) {
      dscores.row(i)[j] = weights.row(i)[j] * (dscores.row(i)[j] - sum);
    }
  }
  add_head<T>(times(dscores, k, scale), head, true, p.dq);
  add_head<T>(transposed_times(dscores, q, scale), kv_head, first, p.dk);
  add_head<T>(transposed_times(weights, doutput, 1), kv_head, first, p.dv);
}

}  // namespace

NaiveAttention naive_attention_cpu(Context& context, const AttentionOperands& like) {
  return visit_float_dtype(like.dtype, [&]<class T>() -> NaiveAttention {
    return [&context](const AttentionOperands& p) {
      const std::int64_t group = p.heads / p.kv_heads;
      detail::ContextAccess::pool(context).run(p.batch * p.kv_heads, [&](std::int64_t kv_head) {
        for (std::int64_t h = 0; h < group; ++h) {
          naive_head<T>(p, kv_head * group + h, kv_head, h == 0);
        }
      });
    };
  });
}

}  // namespace touchstone::bench
