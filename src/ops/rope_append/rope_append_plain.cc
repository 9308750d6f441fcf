#include <cmath>
#include <limits>
#include <vector>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "ops/rope_append/rope_append_problem.h"
#include "touchstone/core/convert.h"

namespace touchstone::rope_append_op {
namespace {

template <class T>
float rounded(float value) {
  return convert<float>(convert<T>(value));
}

template <class T>
void normalize(std::vector<float>& x, const float* weight, const Problem& p) {
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
  // NaN for an infinity too: the whole head is NaN.
  const double mean_square = squares / static_cast<double>(x.size()) + p.eps;
  const float rstd = std::isfinite(mean_square) ? static_cast<float>(1 / std::sqrt(mean_square))
                                                : std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float unit = p.round_before_weight ? rounded<T>(x[i] * rstd) : x[i] * rstd;
    x[i] = rounded<T>(unit * weight[i]);
  }
}

// The sines and cosines of a token, times the scale.
std::vector<rope_op::SinCos> angles_of(const rope_op::Problem& rope, std::int64_t token) {
  std::vector<rope_op::SinCos> angles(at(rope.pairs));
  const auto scale = static_cast<float>(rope.scale);
  for (std::int64_t i = 0; i < rope.pairs; ++i) {
    const rope_op::SinCos both =
        rope_op::sin_cos_turns(rope_op::turns_of(rope.positions[token], rope.frequencies[i]));
    angles[at(i)] = {both.sin * scale, both.cos * scale};
  }
  return angles;
}

template <class T>
void rotate(std::vector<float>& x, const rope_op::Problem& rope,
            const std::vector<rope_op::SinCos>& angles) {
  for (std::int64_t i = 0; i < rope.pairs; ++i) {
    const rope_op::SinCos angle = angles[at(i)];
    float& first = x[at(rope.first(i))];
    float& second = x[at(rope.second(i))];
    const float a = first;
    first = rounded<T>(a * angle.cos - second * angle.sin);
    second = rounded<T>(second * angle.cos + a * angle.sin);
  }
}

template <class T>
void run_token(const Problem& p, std::int64_t token) {
  const std::vector<rope_op::SinCos> angles = angles_of(p.rope, token);
  const cache::PageSlot slot = p.append.slot_of(token);
  std::vector<float> x;
  const auto load = [&](const void* from, std::int64_t at_element, std::int64_t dim) {
    x.resize(at(dim));
    const T* const values = static_cast<const T*>(from) + at_element;
    for (std::int64_t i = 0; i < dim; ++i) x[at(i)] = convert<float>(values[i]);
  };
  const auto turn = [&](const float* weight) {
    if (weight != nullptr) normalize<T>(x, weight, p);
    rotate<T>(x, p.rope, angles);
  };
  for (std::int64_t head = 0; head < p.rope.heads; ++head) {
    load(p.rope.x, token * p.rope.x_token + head * p.rope.x_head, p.rope.dim);
    turn(p.weight[0]);
    T* const y = static_cast<T*>(p.rope.y) + token * p.rope.y_token + head * p.rope.y_head;
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = convert<T>(x[i]);
  }
  if (slot.page < 0) return;
  std::byte* const page = p.append.memory + slot.page * p.append.page_bytes;
  for (const bool keys : {true, false}) {
    const cache::KvAppendPart& part = p.append.part[keys ? 0 : 1];
    for (std::int64_t head = 0; head < p.append.kv_heads; ++head) {
      load(part.from, token * part.stride + head * part.dim, part.dim);
      if (keys) turn(p.weight[1]);
      if (part.rotated) cache::rotate(x.data(), part.dim);
      const std::int64_t row = head * p.append.page_tokens + slot.slot;
      cache::encode(part.format, part.dim, x.data(), page + part.values_at + row * part.value_bytes,
                    page + part.scales_at + row * part.scale_bytes);
    }
  }
}

}  // namespace

void rope_append_plain(Context& context, const Problem& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      detail::ContextAccess::pool(context).run(p.rope.tokens,
                                               [&](std::int64_t token) { run_token<T>(p, token); });
    }
  });
}

}  // namespace touchstone::rope_append_op
