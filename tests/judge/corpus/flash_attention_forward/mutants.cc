// Attention forward, right except for one planted bug at a time; see
// layer_norm_backward/mutants.cc.
//
// The right code takes tiles of queries by tiles of keys with an online softmax: a running maximum
// m, a sum l and an output of each row, rescaled whenever the maximum grows. Tiles above the
// diagonal are not visited.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#define MUTANTS(MUTANT)                                                                      \
  MUTANT(none, "nothing: the right code")                                                    \
  MUTANT(rescale_inverted, "the correction is exp(new - old)")                               \
  MUTANT(sum_not_rescaled, "l is not rescaled when the maximum grows, the output is")        \
  MUTANT(output_not_rescaled, "the output is not rescaled when the maximum grows, l is")     \
  MUTANT(nothing_rescaled, "neither is rescaled")                                            \
  MUTANT(output_rescaled_twice, "the output is rescaled twice")                              \
  MUTANT(rescale_by_whole_max, "rescaled by exp(-new), as if the old maximum were 0")        \
  MUTANT(maximum_of_first_tile, "the maximum of the first tile for all, exp in float")       \
  MUTANT(maximum_from_zero, "the running maximum begins at 0, exp in float")                 \
  MUTANT(maximum_of_tile_end, "the maximum is the last score of the tile, exp in float")     \
  MUTANT(no_maximum, "exp in float without a maximum")                                       \
  MUTANT(mask_shifted_right, "a query sees one key too many")                                \
  MUTANT(mask_shifted_left, "a query does not see the key at its own place")                 \
  MUTANT(mask_top_left, "the mask is aligned at the first query instead of the last")        \
  MUTANT(mask_ignored, "there is no mask")                                                   \
  MUTANT(mask_flipped, "a query sees the keys from its own place on")                        \
  MUTANT(mask_by_tiles, "the tile on the diagonal is taken whole")                           \
  MUTANT(mask_always, "the mask is applied without being asked for")                         \
  MUTANT(masked_score_zero, "masked scores are 0")                                           \
  MUTANT(masked_minus_10000, "masked scores are -1e4: rows that see nothing see everything") \
  MUTANT(masked_by_factor, "masked weights are multiplied by 0: NaN stays NaN")              \
  MUTANT(masked_tile_nan, "exp(-inf - -inf) where a tile is masked for a row")               \
  MUTANT(diagonal_tile_skipped, "the tile on the diagonal is not visited")                   \
  MUTANT(sees_nothing_nan, "a row that sees nothing is 0 / 0")                               \
  MUTANT(sees_nothing_unwritten, "a row that sees nothing is not written")                   \
  MUTANT(sees_nothing_lse_zero, "a row that sees nothing has lse 0")                         \
  MUTANT(last_key_tile_lost, "a partial tile of keys is not looked at")                      \
  MUTANT(last_query_tile_lost, "a partial tile of queries is not written")                   \
  MUTANT(tile_end, "off by one: the last key of every whole tile is not looked at")          \
  MUTANT(first_key_lost, "off by one: keys begin at the second")                             \
  MUTANT(tail_as_zeros, "a partial tile is filled up with keys of zeros")                    \
  MUTANT(first_row_of_pair, "only even queries are written")                                 \
  MUTANT(sum_of_last_tile, "l is that of the last tile alone")                               \
  MUTANT(divided_per_tile, "every tile is normalised by itself, then averaged")              \
  MUTANT(not_divided, "the output is not divided by l")                                      \
  MUTANT(divided_by_count, "the output is divided by the number of keys")                    \
  MUTANT(lse_without_maximum, "lse is log(l)")                                               \
  MUTANT(lse_is_maximum, "lse is the maximum")                                               \
  MUTANT(lse_base_two, "lse is in powers of two")                                            \
  MUTANT(lse_not_logarithm, "lse is m + l")                                                  \
  MUTANT(scale_ignored, "scores are not scaled")                                             \
  MUTANT(scale_fixed, "the scale is 1 / sqrt(dim) whatever the caller says")                 \
  MUTANT(scale_twice, "queries and scores are both scaled")                                  \
  MUTANT(heads_modulo, "query head h reads head h % kv_heads")                               \
  MUTANT(heads_first, "all query heads read head 0")                                         \
  MUTANT(heads_by_kv, "query head h reads head h / kv_heads")                                \
  MUTANT(batch_first, "all batch items read the keys of the first")                          \
  MUTANT(values_are_keys, "keys are summed instead of values")                               \
  MUTANT(query_layout, "queries are read as [batch, queries, heads, dim]")                   \
  MUTANT(dim_multiple_8, "the end of a head that is no multiple of 8 is not multiplied")     \
  MUTANT(dim_at_most_128, "scores use at most 128 elements of a head")                       \
  MUTANT(half_inputs, "queries and keys are rounded to 16 bits")                             \
  MUTANT(half_weights, "weights are rounded to 16 bits")                                     \
  MUTANT(half_output, "the output accumulates in 16 bits")                                   \
  MUTANT(fast_exp, "exp by Schraudolph's bit trick")                                         \
  MUTANT(exp_cut_off, "weights below exp(-8) are not counted")                               \
  MUTANT(state_kept, "m and l of the tile before are not emptied")                           \
  MUTANT(output_adds, "the output is added to what was there")                               \
  MUTANT(not_checked, "heads that do not divide are accepted")                               \
  MUTANT(writes_past_end, "one lse too many is written")                                     \
  MUTANT(reads_past_end, "one value too many is read")                                       \
  MUTANT(input_overwritten, "a query is overwritten by its scaled self")                     \
  MUTANT(seen_before, "a second call with the same shape and first query is skipped")        \
  MUTANT(whole_matrix, "memory", "all scores of a head are held at once")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

constexpr int64_t kTile = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  double scale;
  const float *q, *k, *v;
  float *out, *lse;
};

double half(double x) {
  float f = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x8000u) & 0xffff0000u;
  std::memcpy(&f, &bits, 4);
  return f;
}

double exponential(double x) {
  if (bug(exp_cut_off) && x < -8) return 0;
  if (bug(fast_exp)) {
    if (x < -80) return 0;
    const auto bits = static_cast<int32_t>(12102203.0 * x + 1064866805.0);
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  const bool narrow = bug(no_maximum) || bug(maximum_from_zero) || bug(maximum_of_first_tile) ||
                      bug(maximum_of_tile_end);
  return narrow ? std::exp(static_cast<float>(x)) : std::exp(x);
}

// How many keys query i sees, from the first on.
int64_t seen(const Problem& p, int64_t i) {
  if (bug(mask_ignored) || !(p.causal || bug(mask_always))) return p.keys;
  int64_t last = i + p.keys - p.queries;
  if (bug(mask_top_left)) last = i;
  if (bug(mask_shifted_right)) ++last;
  if (bug(mask_shifted_left)) --last;
  if (bug(mask_by_tiles) && last >= 0) last = last / kTile * kTile + kTile - 1;
  if (bug(diagonal_tile_skipped) && last >= kTile) last = last / kTile * kTile - 1;
  return std::clamp<int64_t>(last + 1, 0, p.keys);
}

// One row of a tile: what it has gathered so far.
struct Row {
  double m = bug(maximum_from_zero) ? 0 : -kInfinity;
  double l = 0;
  int64_t tiles = 0;
  std::vector<double> out;
};

double score(const Problem& p, const float* q, const float* k) {
  int64_t dim = p.dim;
  if (bug(dim_multiple_8) && dim > 8) dim = dim / 8 * 8;
  if (bug(dim_at_most_128)) dim = std::min<int64_t>(dim, 128);
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) {
    sum += bug(half_inputs) ? half(q[d]) * half(k[d]) : static_cast<double>(q[d]) * k[d];
  }
  const double fixed = 1 / std::sqrt(static_cast<double>(p.dim));
  const double scale = bug(scale_ignored) ? 1 : bug(scale_fixed) ? fixed : p.scale;
  return sum * scale * (bug(scale_twice) ? scale : 1);
}

void add_tile(const Problem& p, Row& row, const std::vector<double>& s,
              const std::vector<char>& open, const float* v) {
  const bool any = std::find(open.begin(), open.end(), 1) != open.end();
  if (!any && !bug(masked_tile_nan)) return;
  double top = row.m;
  for (size_t t = 0; t < s.size(); ++t) {
    if (open[t] || (bug(masked_tile_nan) && any)) top = std::max(top, s[t]);
  }
  if (bug(maximum_of_first_tile) && row.tiles > 0) top = row.m;
  if (bug(maximum_of_tile_end)) top = std::isinf(s.back()) ? top : s.back();
  if (bug(no_maximum)) top = 0;
  const double difference = bug(rescale_inverted) ? top - row.m : row.m - top;
  double correction = row.l == 0 && !bug(masked_tile_nan) ? 0 : exponential(difference);
  if (bug(rescale_by_whole_max) && row.l != 0) correction = exponential(-std::fabs(top));
  if (bug(divided_per_tile) || bug(nothing_rescaled)) correction = 1;
  const double for_out = bug(output_not_rescaled) ? 1 : correction;
  if (bug(divided_per_tile)) row.l = 0;
  row.l *= bug(sum_not_rescaled) ? 1 : bug(sum_of_last_tile) ? 0 : correction;
  std::vector<double> out(row.out.size());
  double sum = 0;
  for (size_t t = 0; t < s.size(); ++t) {
    double w = open[t] ? exponential(s[t] - top) : 0;
    if (bug(masked_tile_nan) && !any) w = std::exp(s[t] - top);
    if (!open[t] && !bug(masked_by_factor) && !bug(masked_tile_nan)) continue;
    if (bug(half_weights)) w = half(w);
    sum += w;
    const float* value = v + static_cast<int64_t>(t) * p.dim;
    for (size_t d = 0; d < out.size(); ++d) out[d] += w * static_cast<double>(value[d]);
  }
  for (size_t d = 0; d < out.size(); ++d) {
    double& o = row.out[d];
    o = o * for_out * (bug(output_rescaled_twice) ? for_out : 1) +
        out[d] / (bug(divided_per_tile) ? sum : 1);
    if (bug(half_output)) o = half(o);
  }
  row.l += sum;
  row.m = top;
  ++row.tiles;
}

void write_row(const Problem& p, const Row& row, int64_t place) {
  float* out = p.out + place * p.dim;
  if (row.l == 0 && row.tiles == 0) {
    if (bug(sees_nothing_unwritten)) return;
    const float empty = bug(sees_nothing_nan) ? std::numeric_limits<float>::quiet_NaN() : 0;
    for (int64_t d = 0; d < p.dim; ++d) out[d] = empty;
    p.lse[place] = bug(sees_nothing_lse_zero) ? 0 : static_cast<float>(-kInfinity);
    return;
  }
  double by = row.l;
  if (bug(not_divided)) by = 1;
  if (bug(divided_by_count)) by = static_cast<double>(p.keys);
  if (bug(divided_per_tile)) by = static_cast<double>(row.tiles);
  for (int64_t d = 0; d < p.dim; ++d) {
    const double value = row.out[d] / by;
    out[d] = static_cast<float>(bug(output_adds) ? out[d] + value : value);
  }
  double lse = row.m + std::log(row.l);
  if (bug(lse_without_maximum)) lse = std::log(row.l);
  if (bug(lse_is_maximum)) lse = row.m;
  if (bug(lse_base_two)) lse /= std::log(2.0);
  if (bug(lse_not_logarithm)) lse = row.m + row.l;
  p.lse[place] = static_cast<float>(lse);
}

void one_head(const Problem& p, int64_t b, int64_t head) {
  int64_t kv = head / (p.query_heads / p.kv_heads);
  if (bug(heads_modulo)) kv = head % p.kv_heads;
  if (bug(heads_first)) kv = 0;
  if (bug(heads_by_kv)) kv = std::min(head / p.kv_heads, p.kv_heads - 1);
  const int64_t item = bug(batch_first) ? 0 : b;
  const float* k = p.k + (item * p.kv_heads + kv) * p.keys * p.dim;
  const float* v = bug(values_are_keys) ? k : p.v + (item * p.kv_heads + kv) * p.keys * p.dim;
  std::vector<double> matrix;
  if (bug(whole_matrix)) matrix.assign(static_cast<size_t>(p.queries * p.keys), 1.0);
  Row kept;
  for (int64_t first = 0; first < p.queries; first += kTile) {
    const int64_t end = std::min(first + kTile, p.queries);
    if (bug(last_query_tile_lost) && end - first < kTile && first > 0) break;
    std::vector<Row> rows(static_cast<size_t>(end - first));
    for (Row& row : rows) row.out.assign(static_cast<size_t>(p.dim), 0.0);
    if (bug(state_kept)) rows[0].l = kept.l, rows[0].m = kept.m;
    for (int64_t t0 = 0; t0 < p.keys; t0 += kTile) {
      const bool wanted = t0 < seen(p, end - 1) || bug(mask_flipped) || bug(masked_score_zero) ||
                          bug(masked_minus_10000);
      if (!wanted) break;
      int64_t t1 = std::min(t0 + kTile, p.keys);
      const bool whole = t1 - t0 == kTile;
      if (bug(last_key_tile_lost) && !whole && t0 > 0) break;
      if (bug(tile_end) && whole) --t1;
      const int64_t begin = t0 + (bug(first_key_lost) && t0 == 0 && p.keys > 1 ? 1 : 0);
      for (int64_t i = first; i < end; ++i) {
        const int64_t place = (b * p.query_heads + head) * p.queries + i;
        const int64_t other = (b * p.queries + i) * p.query_heads + head;
        const float* q = p.q + (bug(query_layout) ? other : place) * p.dim;
        std::vector<double> s;
        std::vector<char> open;
        for (int64_t t = begin; t < t1; ++t) {
          bool visible = t < seen(p, i);
          if (bug(mask_flipped) && p.causal) visible = t >= i + p.keys - p.queries;
          const double value = score(p, q, k + t * p.dim);
          s.push_back(visible                   ? value
                      : bug(masked_score_zero)  ? 0
                      : bug(masked_minus_10000) ? -1e4
                                                : -kInfinity);
          open.push_back(visible || bug(masked_score_zero) || bug(masked_minus_10000));
          if (!matrix.empty()) matrix[static_cast<size_t>(i * p.keys + t)] = value;
        }
        if (s.empty()) continue;
        if (bug(tail_as_zeros) && !whole && open[0]) {
          rows[static_cast<size_t>(i - first)].l +=
              exponential(-std::max(0.0, rows[static_cast<size_t>(i - first)].m));
        }
        add_tile(p, rows[static_cast<size_t>(i - first)], s, open, v + begin * p.dim);
      }
    }
    kept = rows[0];
    for (int64_t i = first; i < end; ++i) {
      if (bug(first_row_of_pair) && i % 2 == 1) continue;
      write_row(p, rows[static_cast<size_t>(i - first)],
                (b * p.query_heads + head) * p.queries + i);
    }
  }
}

int run(const Problem& p) {
  const bool divides = p.kv_heads >= 1 && p.query_heads % p.kv_heads == 0 && p.dim >= 1;
  if (!divides) return bug(not_checked) ? 0 : 1;
  const int64_t rows = p.batch * p.query_heads * p.queries;
  static Problem last{};
  static float last_first = 0;
  const bool same = rows > 0 && last.queries == p.queries && last.keys == p.keys &&
                    last.dim == p.dim && last.batch == p.batch && last_first == p.q[0];
  if (bug(seen_before) && same) return 0;
  if (rows > 0) last = p, last_first = p.q[0];
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t head = 0; head < p.query_heads; ++head) one_head(p, b, head);
  }
  if (rows == 0) return 0;
  if (bug(writes_past_end)) p.lse[rows] = 0;
  if (bug(reads_past_end)) {
    volatile float sink = p.v[p.batch * p.kv_heads * p.keys * p.dim];
    static_cast<void>(sink);
  }
  if (bug(input_overwritten)) const_cast<float*>(p.q)[0] *= static_cast<float>(p.scale);
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                       \
  extern "C" int flash_attention_forward__##name(                                               \
      int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries, int64_t keys,      \
      int64_t dim, int64_t causal, float scale, const float* q, const float* k, const float* v, \
      float* out, float* lse) {                                                                 \
    active = name;                                                                              \
    return run({batch, query_heads, kv_heads, queries, keys, dim, causal != 0, scale, q, k, v,  \
                out, lse});                                                                     \
  }
MUTANTS(EXPORT)
