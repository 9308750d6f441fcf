// Cross entropy in tiles of the vocabulary, through the products of linear. All tokens go through a
// tile at a time: W is read once forward and once more backward, and rows of dweight are whole when
// their tile is done. Sums over the vocabulary run from tile to tile in order, in f64 for lse and
// in the type of the products for dx. On the tiles of AMX gradients of logits are rounded to bf16.
#include "ops/cross_entropy/cross_entropy_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/context_access.h"
#include "core/index.h"
#include "core/thread_pool.h"
#include "cpu/amx.h"
#include "ops/cross_entropy/cross_entropy_problem.h"
#include "ops/cross_entropy/cross_entropy_tuning.h"
#include "ops/linear/linear_problem.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/convert.h"

namespace touchstone::cross_entropy_op {
namespace {

// What is known of a token while its logits pass.
struct TokenState {
  double largest = -std::numeric_limits<double>::infinity();
  double sum = 0;     // of exp(l - largest)
  double logits = 0;  // sum of l
  double target = 0;  // l[target]
  double lse = 0;

  void add(const TileSums& tile) {
    const double most = std::max(largest, tile.largest);
    sum = rescaled(sum, largest, most) + rescaled(tile.sum, tile.largest, most);
    logits += tile.logits;
    largest = most;
  }

 private:
  static double rescaled(double sum, double from, double to) {
    return sum > 0 && from != to ? sum * std::exp(from - to) : sum;
  }
};

// C: the type of products, f32, or f64 for f64.
template <class T, class C>
class Tiled {
 public:
  Tiled(Context& context, const Problem& p, bool amx)
      : context_(context),
        p_(p),
        amx_(amx),
        formula_(p),
        states_(at(p.tokens)),
        tile_(at(checked_mul(p.tokens, std::min(kCpuTile, p.vocabulary), "cross_entropy tile"))) {
    for (std::int64_t n = 0; n < p.tokens; ++n) counted_ += p.targets[n] != p.ignore_index;
    if (amx_) rounded_.resize(p.backward ? tile_.size() : 0);
    if constexpr (!std::is_same_v<T, C>) {
      if (amx_) return;
      widened_.resize(at(p.tokens * p.dim));
      for_tokens([&](std::int64_t n) {
        const T* const from = static_cast<const T*>(p_.x.data) + n * p_.x.stride;
        for (std::int64_t i = 0; i < p_.dim; ++i) {
          widened_[at(n * p_.dim + i)] = convert<C>(from[i]);
        }
      });
    }
  }

  void forward() {
    for_tiles([&](std::int64_t first, std::int64_t count) {
      fill_tile(first, count);
      for_tokens([&](std::int64_t n) {
        const C* const logits = tile_.data() + n * count;
        states_[at(n)].add(sum_tile(logits, count));
        const std::int64_t target = p_.targets[n];
        if (target >= first && target < first + count) {
          states_[at(n)].target = static_cast<double>(logits[target - first]);
        }
      });
    });
    double total = 0;
    for (std::int64_t n = 0; n < p_.tokens; ++n) total += put_losses(n);
    if (p_.mean_loss != nullptr) {
      *static_cast<C*>(p_.mean_loss) =
          counted_ > 0 ? convert<C>(total / static_cast<double>(counted_)) : C{0};
    }
  }

  void backward() {
    std::vector<C> dx(p_.dx.data == nullptr ? 0 : at(p_.tokens * p_.dim));
    std::vector<C> part(dx.size());
    std::vector<C> gradient(p_.dweight.data == nullptr || direct() ? 0 : at(kCpuTile * p_.dim));
    for_tiles([&](std::int64_t first, std::int64_t count) {
      fill_tile(first, count);
      for_tokens([&](std::int64_t n) {
        to_gradient(n, first, count);
        for (std::int64_t i = n * count; amx_ && i < (n + 1) * count; ++i) {
          rounded_[at(i)] = convert<Bf16>(tile_[at(i)]);
        }
      });
      multiply(first, count, part, gradient);
      for_tokens([&](std::int64_t n) {
        for (std::int64_t i = 0; !dx.empty() && i < p_.dim; ++i) {
          dx[at(n * p_.dim + i)] += part[at(n * p_.dim + i)];
        }
      });
    });
    if (p_.dx.data == nullptr) return;
    for_tokens([&](std::int64_t n) {
      T* const to = static_cast<T*>(p_.dx.data) + n * p_.dx.stride;
      for (std::int64_t i = 0; i < p_.dim; ++i) to[i] = convert<T>(dx[at(n * p_.dim + i)]);
    });
  }

 private:
  template <class Body>
  void for_tiles(Body&& body) const {
    for (std::int64_t first = 0; first < p_.vocabulary; first += kCpuTile) {
      body(first, std::min(kCpuTile, p_.vocabulary - first));
    }
  }
  template <class Body>
  void for_tokens(Body&& body) {
    constexpr std::int64_t kTokensPerTask = 16;
    detail::ContextAccess::pool(context_).run(
        ceil_div(p_.tokens, kTokensPerTask), [&](std::int64_t task) {
          const std::int64_t end = std::min(p_.tokens, (task + 1) * kTokensPerTask);
          for (std::int64_t n = task * kTokensPerTask; n < end; ++n) body(n);
        });
  }

  // The dtype of the factors of a product, and x in it.
  DType factors() const { return amx_ ? p_.dtype : dtype_of<C>; }
  linear_layer::ConstRows x() const {
    if (factors() == p_.dtype) return {p_.x.data, p_.x.stride};
    return {widened_.data(), p_.dim};
  }
  linear_layer::Weight weight(std::int64_t first) const {
    const std::int64_t row_bytes = p_.weight.stride * size_of(p_.dtype);
    return {.data = static_cast<const std::byte*>(p_.weight.data) + first * row_bytes,
            .row_bytes = row_bytes,
            .format = weight_format(p_.dtype)};
  }
  // Whether rows of dweight come out of the product as they are stored.
  bool direct() const { return p_.dweight_dtype == dtype_of<C>; }

  // Capped logits of `count` rows of W, [tokens, count].
  void fill_tile(std::int64_t first, std::int64_t count) {
    if (p_.tokens == 0) return;
    linear_layer::Forward f;
    f.dtype = factors();
    f.y_dtype = dtype_of<C>;
    f.rows = p_.tokens;
    f.in = p_.dim;
    f.out = count;
    f.x = x();
    f.weight = weight(first);
    f.y = {tile_.data(), count};
    f.soft_cap = p_.soft_cap;
    (amx_ ? linear_layer::forward_amx : linear_layer::forward_simd)(context_, f);
  }

  double put_losses(std::int64_t n) {
    TokenState& s = states_[at(n)];
    const bool none = std::isinf(s.largest) && s.largest < 0;  // every logit is -inf
    s.lse = none ? std::numeric_limits<double>::quiet_NaN() : s.largest + std::log(s.sum);
    RowResult<double> row{0, 0};
    if (p_.targets[n] != p_.ignore_index) {
      row = finish_row(formula_, s.lse, s.target, s.logits / static_cast<double>(p_.vocabulary));
    }
    const auto put = [&](void* to, double value) {
      if (to != nullptr) static_cast<C*>(to)[n] = convert<C>(value);
    };
    put(p_.loss, row.loss);
    put(p_.log_probability, row.log_probability);
    put(p_.lse, s.lse);
    return row.loss;
  }

  void to_gradient(std::int64_t n, std::int64_t first, std::int64_t count) {
    C* const tile = tile_.data() + n * count;
    const std::int64_t target = p_.targets[n];
    if (target == p_.ignore_index) {
      std::fill(tile, tile + count, C{0});
      return;
    }
    const double g = p_.dloss != nullptr ? static_cast<double>(static_cast<const C*>(p_.dloss)[n])
                                         : 1 / static_cast<double>(counted_);
    const double lse = states_[at(n)].lse;
    const RowGradient<double> c = gradient_of(formula_, lse, g);
    const TileGradient all{lse, c.softmax, c.uniform, p_.soft_cap};
    const bool here = target >= first && target < first + count;
    double own = here ? static_cast<double>(tile[target - first]) : 0;
    to_tile_gradient(all, tile, count);
    if (here) {
      to_tile_gradient({lse, c.softmax, c.uniform + c.target, p_.soft_cap}, &own, 1);
      tile[target - first] = static_cast<C>(own);
    }
  }

  // The share of a tile in dx, and its rows of dweight.
  void multiply(std::int64_t first, std::int64_t count, std::vector<C>& dx,
                std::vector<C>& gradient) {
    linear_layer::Backward b;
    b.dtype = factors();
    b.dweight_dtype = b.dx_dtype = dtype_of<C>;
    b.rows = p_.tokens;
    b.in = p_.dim;
    b.out = count;
    b.dy = {tile_.data(), count};
    if (amx_) b.dy = {rounded_.data(), count};
    if (p_.dx.data != nullptr) {
      b.weight = weight(first);
      b.dx = {dx.data(), p_.dim};
    }
    if (p_.dweight.data != nullptr) {
      b.x = x();
      b.dweight =
          direct()
              ? linear_layer::Rows{static_cast<C*>(p_.dweight.data) + first * p_.dweight.stride,
                                   p_.dweight.stride}
              : linear_layer::Rows{gradient.data(), p_.dim};
      b.accumulate = p_.accumulate;
    }
    (amx_ ? linear_layer::backward_amx : linear_layer::backward_simd)(context_, b);
    if (p_.dweight.data == nullptr || direct()) return;
    for (std::int64_t v = 0; v < count; ++v) {
      T* const to = static_cast<T*>(p_.dweight.data) + (first + v) * p_.dweight.stride;
      for (std::int64_t i = 0; i < p_.dim; ++i) to[i] = convert<T>(gradient[at(v * p_.dim + i)]);
    }
  }

  Context& context_;
  const Problem& p_;
  bool amx_;
  Formula formula_;
  std::vector<TokenState> states_;
  std::vector<C> tile_;        // [tokens, columns of a tile]
  std::vector<C> widened_;     // x, where it is not of the type of products
  std::vector<Bf16> rounded_;  // a tile of gradients, on the tiles of AMX
  std::int64_t counted_ = 0;
};

template <class T, class C>
void run(Context& context, const Problem& p, bool amx) {
  Tiled<T, C> tiled(context, p, amx);
  tiled.forward();
  if (p.backward) tiled.backward();
}

}  // namespace

void run_simd(Context& context, const Problem& p) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    run<T, std::conditional_t<std::is_same_v<T, double>, double, float>>(context, p, false);
  });
}

std::string amx_refuses(const Context& /*context*/, const Problem& p) {
  if (!uses_amx_bf16()) return "no AMX tiles for bf16 on this processor";
  return p.dtype == DType::bf16 ? "" : "x is " + std::string(name_of(p.dtype)) + ", not bf16";
}
void run_amx(Context& context, const Problem& p) { run<Bf16, float>(context, p, true); }

}  // namespace touchstone::cross_entropy_op
