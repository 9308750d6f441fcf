// Attention backward, right except for one planted bug at a time; see
// layer_norm_backward/mutants.cc.
//
// The right code precomputes delta = rowsum(dO * O), then takes tiles of queries by tiles of keys:
// P from the scores and lse, dP, dS, and sums for dQ, dK and dV, those of the keys over all query
// heads of a group.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#define MUTANTS(MUTANT)                                                                     \
  MUTANT(none, "nothing: the right code")                                                   \
  MUTANT(delta_missing, "dS = P * dP")                                                      \
  MUTANT(delta_per_tile, "delta is the sum of P * dP over the tile, not over the row")      \
  MUTANT(delta_added, "dS = P * (dP + delta)")                                              \
  MUTANT(delta_of_first_row, "all rows use the delta of the first")                         \
  MUTANT(delta_with_query, "delta is the product of dO and Q")                              \
  MUTANT(delta_mean, "delta is divided by dim")                                             \
  MUTANT(delta_without_p, "delta is the mean of dP over the keys")                          \
  MUTANT(delta_after_p, "dS = P * dP - delta")                                              \
  MUTANT(lse_ignored, "P = exp(s)")                                                         \
  MUTANT(lse_added, "P = exp(s + lse)")                                                     \
  MUTANT(lse_base_two, "lse is taken for a power of two")                                   \
  MUTANT(softmax_per_tile, "P is normalised within each tile")                              \
  MUTANT(dq_overwritten, "dQ is that of the last tile of keys")                             \
  MUTANT(dk_overwritten, "dK is that of the last tile of queries")                          \
  MUTANT(dv_overwritten, "dV is that of the last tile of queries")                          \
  MUTANT(dq_adds, "dQ is added to what was there")                                          \
  MUTANT(dk_adds, "dK is added to what was there")                                          \
  MUTANT(group_last_head, "dK and dV come from the last query head of a group")             \
  MUTANT(group_mean, "dK and dV are means over the group")                                  \
  MUTANT(heads_modulo, "query head h reads head h % kv_heads")                              \
  MUTANT(heads_first, "all query heads read head 0")                                        \
  MUTANT(gradient_heads_modulo, "reads the right head, adds to head h % kv_heads")          \
  MUTANT(scale_missing_dq, "dQ is not scaled")                                              \
  MUTANT(scale_missing_dk, "dK is not scaled")                                              \
  MUTANT(scale_twice_dk, "dK is scaled twice")                                              \
  MUTANT(scale_on_dv, "dV is scaled too")                                                   \
  MUTANT(scale_ignored, "scores are not scaled")                                            \
  MUTANT(scale_fixed, "the scale is 1 / sqrt(dim) whatever the caller says")                \
  MUTANT(dk_dv_exchanged, "dK and dV are exchanged")                                        \
  MUTANT(dv_from_ds, "dV uses dS instead of P")                                             \
  MUTANT(dk_from_p, "dK uses P instead of dS")                                              \
  MUTANT(dk_from_keys, "dK sums keys instead of queries")                                   \
  MUTANT(dp_from_output, "dP is the product of dO and O")                                   \
  MUTANT(dp_from_keys, "dP is the product of dO and the key")                               \
  MUTANT(mask_shifted_right, "a query sees one key too many")                               \
  MUTANT(mask_shifted_left, "a query does not see the key at its own place")                \
  MUTANT(mask_top_left, "the mask is aligned at the first query instead of the last")       \
  MUTANT(mask_ignored, "there is no mask")                                                  \
  MUTANT(mask_by_tiles, "the tile on the diagonal is taken whole")                          \
  MUTANT(mask_forgotten_in_dv, "dV counts what is masked")                                  \
  MUTANT(masked_by_factor, "P is computed first and multiplied by 0, in float")             \
  MUTANT(tail_as_zeros, "a partial tile is filled up with keys of zeros, exp in float")     \
  MUTANT(sees_nothing_nan, "a row that sees nothing has NaN for dQ")                        \
  MUTANT(sees_nothing_unwritten, "dQ of a row that sees nothing is not written")            \
  MUTANT(unseen_key_unwritten, "dK and dV of a key that nobody sees are not written")       \
  MUTANT(last_key_tile_lost, "a partial tile of keys is not looked at")                     \
  MUTANT(last_query_tile_lost, "a partial tile of queries is not looked at")                \
  MUTANT(key_tile_end, "off by one: the last key of every whole tile is not looked at")     \
  MUTANT(query_tile_end, "off by one: the last query of every whole tile is not looked at") \
  MUTANT(first_row_of_pair, "dQ of odd queries is not written")                             \
  MUTANT(batch_first, "all batch items read the keys of the first")                         \
  MUTANT(batch_shared_sums, "dK of an item goes on from that of the item before")           \
  MUTANT(dim_multiple_8, "the end of a head that is no multiple of 8 is not multiplied")    \
  MUTANT(dim_at_most_128, "scores use at most 128 elements of a head")                      \
  MUTANT(half_inputs, "queries, keys and values are rounded to 16 bits")                    \
  MUTANT(half_p, "P is rounded to 16 bits")                                                 \
  MUTANT(half_sums, "dK and dV accumulate in 16 bits")                                      \
  MUTANT(fast_exp, "exp by Schraudolph's bit trick")                                        \
  MUTANT(p_cut_off, "P below 1e-3 counts as 0")                                             \
  MUTANT(not_checked, "heads that do not divide are accepted")                              \
  MUTANT(writes_past_end, "one number too many is written behind dV")                       \
  MUTANT(reads_past_end, "one lse too many is read")                                        \
  MUTANT(input_overwritten, "delta is written into lse")                                    \
  MUTANT(seen_before, "a second call with the same shape and first query is skipped")       \
  MUTANT(whole_matrix, "memory", "P of a whole head is held at once")

namespace {

#define NAME(name, ...) name,
enum Bug { MUTANTS(NAME) };
#undef NAME
Bug active = none;
bool bug(Bug name) { return active == name; }

constexpr int64_t kTile = 16;

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  double scale;
  const float *dout, *q, *k, *v, *out, *lse;
  float *dq, *dk, *dv;
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
  if (bug(fast_exp)) {
    if (x < -80) return 0;
    const auto bits = static_cast<int32_t>(12102203.0 * x + 1064866805.0);
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
  }
  if (bug(masked_by_factor) || bug(tail_as_zeros)) return std::exp(static_cast<float>(x));
  return std::exp(x);
}

double dot(const float* a, const float* b, int64_t dim) {
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) {
    sum += bug(half_inputs) ? half(a[d]) * half(b[d]) : static_cast<double>(a[d]) * b[d];
  }
  return sum;
}

int64_t seen(const Problem& p, int64_t i) {
  if (bug(mask_ignored) || !p.causal) return p.keys;
  int64_t last = i + p.keys - p.queries;
  if (bug(mask_top_left)) last = i;
  if (bug(mask_shifted_right)) ++last;
  if (bug(mask_shifted_left)) --last;
  if (bug(mask_by_tiles) && last >= 0) last = last / kTile * kTile + kTile - 1;
  return std::clamp<int64_t>(last + 1, 0, p.keys);
}

// Sums of one key-value head, in 64 bits.
struct Sums {
  std::vector<double> dk, dv;
  std::vector<char> touched;
};

struct Place {
  int64_t b, head, kv, i;
  int64_t row(const Problem& p) const { return (b * p.query_heads + head) * p.queries + i; }
  int64_t keys(const Problem& p) const { return (b * p.kv_heads + kv) * p.keys; }
};

double delta_of(const Problem& p, const Place& at) {
  int64_t row = at.row(p);
  if (bug(delta_of_first_row)) row -= at.i;
  const float* other = bug(delta_with_query) ? p.q : p.out;
  const double delta = dot(p.dout + row * p.dim, other + row * p.dim, p.dim);
  if (bug(delta_missing)) return 0;
  return bug(delta_added) ? -delta : bug(delta_mean) ? delta / static_cast<double>(p.dim) : delta;
}

double score(const Problem& p, const float* q, const float* k) {
  int64_t dim = p.dim;
  if (bug(dim_multiple_8) && dim > 8) dim = dim / 8 * 8;
  if (bug(dim_at_most_128)) dim = std::min<int64_t>(dim, 128);
  const double fixed = 1 / std::sqrt(static_cast<double>(p.dim));
  return dot(q, k, dim) * (bug(scale_ignored) ? 1 : bug(scale_fixed) ? fixed : p.scale);
}

// One query against one tile of keys.
void add_tile(const Problem& p, const Place& at, int64_t t0, int64_t t1, int64_t visible,
              double delta, std::vector<double>& dq, Sums& sums) {
  const float* q = p.q + at.row(p) * p.dim;
  const float* dout = p.dout + at.row(p) * p.dim;
  const int64_t base = (bug(batch_first) ? at.kv * p.keys : at.keys(p));
  double lse = static_cast<double>(p.lse[at.row(p)]);
  if (bug(lse_ignored)) lse = 0;
  if (bug(lse_added)) lse = -lse;
  if (bug(lse_base_two)) lse *= std::log(2.0);
  std::vector<double> weight(static_cast<size_t>(t1 - t0)), dp(weight);
  double sum = 0, tile_delta = 0, plain = 0;
  for (int64_t t = t0; t < t1; ++t) {
    const auto n = static_cast<size_t>(t - t0);
    const float* key = p.k + (base + t) * p.dim;
    const bool open = t < visible;
    if (!open && !bug(masked_by_factor) && !bug(mask_forgotten_in_dv)) continue;
    const double s = score(p, q, key);
    weight[n] =
        bug(masked_by_factor) ? exponential(s - lse) * (open ? 1 : 0) : exponential(s - lse);
    if (bug(half_p)) weight[n] = half(weight[n]);
    if (bug(p_cut_off) && weight[n] < 1e-3) weight[n] = 0;
    const float* value = bug(dp_from_keys) ? key : p.v + (base + t) * p.dim;
    dp[n] =
        bug(dp_from_output) ? dot(dout, p.out + at.row(p) * p.dim, p.dim) : dot(dout, value, p.dim);
    if (!open) continue;
    sum += weight[n];
    tile_delta += weight[n] * dp[n];
    plain += dp[n] / static_cast<double>(visible);
  }
  if (bug(delta_per_tile)) delta = tile_delta;
  if (bug(delta_without_p)) delta = plain;
  for (int64_t t = t0; t < t1; ++t) {
    const auto n = static_cast<size_t>(t - t0);
    const bool open = t < visible;
    double w = weight[n];
    if (bug(softmax_per_tile)) w = sum > 0 ? w / sum : 0;
    if (!open && !bug(masked_by_factor) && !bug(mask_forgotten_in_dv)) continue;
    double ds = bug(delta_after_p) ? w * dp[n] - delta : w * (dp[n] - delta);
    if (!open && bug(mask_forgotten_in_dv)) ds = 0;
    const float* key = p.k + (base + t) * p.dim;
    sums.touched[static_cast<size_t>(t)] = 1;
    for (int64_t d = 0; d < p.dim; ++d) {
      const auto e = static_cast<size_t>(t * p.dim + d);
      dq[d] += ds * static_cast<double>(key[d]);
      const double from = static_cast<double>(bug(dk_from_keys) ? key[d] : q[d]);
      sums.dk[e] += (bug(dk_from_p) ? w : ds) * from;
      sums.dv[e] += (bug(dv_from_ds) ? ds : w) * static_cast<double>(dout[d]);
      if (bug(half_sums)) sums.dk[e] = half(sums.dk[e]), sums.dv[e] = half(sums.dv[e]);
    }
  }
  if (bug(tail_as_zeros) && t1 - t0 < kTile && t0 < visible) {
    // Zeros behind the end: their keys add nothing, unless exp(0 - lse) is infinite.
    const double w = exponential(-lse);
    for (int64_t d = 0; d < p.dim; ++d) dq[d] += w * (0 - delta) * 0.0;
  }
}

void one_head(const Problem& p, int64_t b, int64_t head, Sums& sums) {
  const int64_t group = p.query_heads / p.kv_heads;
  int64_t kv = head / group;
  if (bug(heads_modulo)) kv = head % p.kv_heads;
  if (bug(heads_first)) kv = 0;
  std::vector<double> matrix;
  if (bug(whole_matrix)) matrix.assign(static_cast<size_t>(p.queries * p.keys), 1.0);
  for (int64_t first = 0; first < p.queries; first += kTile) {
    int64_t end = std::min(first + kTile, p.queries);
    const bool whole = end - first == kTile;
    if (bug(last_query_tile_lost) && !whole && first > 0) break;
    if (bug(query_tile_end) && whole) --end;
    if (bug(dk_overwritten)) std::fill(sums.dk.begin(), sums.dk.end(), 0.0);
    if (bug(dv_overwritten)) std::fill(sums.dv.begin(), sums.dv.end(), 0.0);
    for (int64_t i = first; i < end; ++i) {
      const Place at{b, head, kv, i};
      const double delta = delta_of(p, at);
      std::vector<double> dq(static_cast<size_t>(p.dim));
      const int64_t visible = seen(p, i);
      for (int64_t t0 = 0; t0 < p.keys; t0 += kTile) {
        const bool all = bug(masked_by_factor) || bug(mask_forgotten_in_dv);
        if (t0 >= visible && !all) break;
        int64_t t1 = std::min(t0 + kTile, p.keys);
        const bool full = t1 - t0 == kTile;
        if (bug(last_key_tile_lost) && !full && t0 > 0) break;
        if (bug(key_tile_end) && full) --t1;
        if (bug(dq_overwritten)) std::fill(dq.begin(), dq.end(), 0.0);
        add_tile(p, at, t0, t1, visible, delta, dq, sums);
      }
      if (bug(first_row_of_pair) && i % 2 == 1) continue;
      if (bug(sees_nothing_unwritten) && visible == 0) continue;
      float* to = p.dq + at.row(p) * p.dim;
      for (int64_t d = 0; d < p.dim; ++d) {
        double value = dq[d] * (bug(scale_missing_dq) ? 1 : p.scale);
        if (bug(sees_nothing_nan) && visible == 0) value = NAN;
        to[d] = static_cast<float>(bug(dq_adds) ? to[d] + value : value);
      }
    }
  }
}

void write_sums(const Problem& p, int64_t b, int64_t kv, const Sums& sums) {
  const int64_t base = (b * p.kv_heads + kv) * p.keys * p.dim;
  float* dk = (bug(dk_dv_exchanged) ? p.dv : p.dk) + base;
  float* dv = (bug(dk_dv_exchanged) ? p.dk : p.dv) + base;
  const double scale = bug(scale_missing_dk) ? 1
                       : bug(scale_twice_dk) ? p.scale * p.scale
                                             : p.scale;
  const double share = bug(group_mean) ? static_cast<double>(p.kv_heads) / p.query_heads : 1;
  for (int64_t e = 0; e < p.keys * p.dim; ++e) {
    if (bug(unseen_key_unwritten) && !sums.touched[static_cast<size_t>(e / p.dim)]) continue;
    const auto n = static_cast<size_t>(e);
    const double for_dk = sums.dk[n] * scale * share;
    dk[e] = static_cast<float>(bug(dk_adds) ? dk[e] + for_dk : for_dk);
    dv[e] = static_cast<float>(sums.dv[n] * share * (bug(scale_on_dv) ? p.scale : 1));
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
  const auto size = static_cast<size_t>(p.keys * p.dim);
  const Sums empty{std::vector<double>(size), std::vector<double>(size),
                   std::vector<char>(static_cast<size_t>(p.keys))};
  const int64_t group = p.query_heads / p.kv_heads;
  std::vector<Sums> sums(static_cast<size_t>(p.kv_heads), empty);
  for (int64_t b = 0; b < p.batch; ++b) {
    if (!bug(batch_shared_sums)) std::fill(sums.begin(), sums.end(), empty);
    for (int64_t head = 0; head < p.query_heads; ++head) {
      const int64_t kv = bug(gradient_heads_modulo) ? head % p.kv_heads : head / group;
      Sums& own = sums[static_cast<size_t>(kv)];
      if (bug(group_last_head)) own = empty;
      one_head(p, b, head, own);
    }
    for (int64_t kv = 0; kv < p.kv_heads; ++kv) write_sums(p, b, kv, sums[static_cast<size_t>(kv)]);
  }
  const int64_t elements = p.batch * p.kv_heads * p.keys * p.dim;
  if (bug(writes_past_end)) p.dv[elements] = 0;
  if (bug(reads_past_end)) {
    volatile float sink = p.lse[rows];
    static_cast<void>(sink);
  }
  if (bug(input_overwritten) && rows > 0) const_cast<float*>(p.lse)[0] = 0;
  return 0;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" int flash_attention_backward__##name(                                                 \
      int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries, int64_t keys,         \
      int64_t dim, int64_t causal, float scale, const float* dout, const float* q, const float* k, \
      const float* v, const float* out, const float* lse, float* dq, float* dk, float* dv) {       \
    active = name;                                                                                 \
    return run({batch, query_heads, kv_heads, queries, keys, dim, causal != 0, scale, dout, q, k,  \
                v, out, lse, dq, dk, dv});                                                         \
  }
MUTANTS(EXPORT)
