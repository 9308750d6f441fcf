// What the tasks flash_attention_forward and flash_attention_backward share: the numbers of a case,
// and what the oracle says of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/task.h"

namespace touchstone::judge::attention {

struct Shape {
  int64_t batch = 1;
  int64_t kv_heads = 1;
  int64_t query_heads = 1;
  int64_t queries = 1;
  int64_t keys = 1;
  int64_t dim = 1;
  bool causal = false;
  double scale = 1;  // as the contender gets it, in f32

  int64_t group() const { return query_heads / kv_heads; }
  // Query i sees the keys below this; the last query stands at the last key.
  int64_t seen(int64_t i) const {
    return causal ? std::clamp<int64_t>(i + keys - queries + 1, 0, keys) : keys;
  }
  int64_t query_elements() const { return batch * query_heads * queries * dim; }
  int64_t key_elements() const { return batch * kv_heads * keys * dim; }
  int64_t rows() const { return batch * query_heads * queries; }
  double pairs() const;  // of a query and a key that it sees, over all heads
};

struct Problem {
  Shape shape;
  std::vector<float> q, k, v, dout;  // dout: for the backward
};

// The data family that a case of the family `mixed` hides in its seed; any other case as it is.
CaseSpec resolve(const CaseSpec& spec);
// InvalidArgument when it is not a case of these tasks.
Shape shape_of(const CaseSpec& spec);
Problem make_problem(const CaseSpec& spec, bool backward);

// Where batch item or key number i of the case after the relation comes from in the case before it.
std::vector<int64_t> batch_order(const CaseSpec& spec, const Shape& shape);  // -1: a new item
std::vector<int64_t> key_order(const CaseSpec& spec, const Shape& shape);
// The relation replaced the last key.
bool changed_last_key(const CaseSpec& spec);

struct ForwardAnswer {
  Expected out, lse;
};
ForwardAnswer expected_forward(const Problem& problem, const Tolerance& tolerance);

struct BackwardAnswer {
  Expected dq, dk, dv;
};
BackwardAnswer expected_backward(const Problem& problem, const Tolerance& tolerance);

}  // namespace touchstone::judge::attention
