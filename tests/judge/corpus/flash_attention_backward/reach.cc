// The backward of attention for the reach of the judge: right code with faults that show only at
// sizes, scales and scores that no fixed list of cases holds, and right code that refuses what it
// does not have.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#define MUTANTS(MUTANT) \
  MUTANT(decode_grouped, \
         "a single query of grouped heads over more than 64 keys is not in dk of the first") \
  MUTANT(kv_heads_3, "three key-value heads: the values of the last two are exchanged") \
  MUTANT(dim_11, "large", "heads of 11, 22, 33 numbers leave the last out of dP") \
  MUTANT(dim_37, "large", "heads of 37, 74, 111 numbers leave the last out of dP") \
  MUTANT(dim_is_149, "large", "heads of 149 numbers leave the last out of dP") \
  MUTANT(dim_13, "heads of 13, 26, 39 numbers leave the last out of dP") \
  MUTANT(keys_100_step, "from 100 keys on every hundredth counts twice in dq") \
  MUTANT(small_scale, "a scale below 0.01 is 0 in dq") \
  MUTANT(equal_keys, "where the first two keys of a head are the same the second has no dk") \
  MUTANT(delta_of_small, "a delta below 1e-3 counts as 0 where there are more than 32 keys") \
  MUTANT(more_queries, \
         "more queries than keys under a mask: the first that sees a key is not in dv") \
  MUTANT(last_item_odd, "the last of an odd number of items adds to dv half") \
  MUTANT(masked_queries, "queries that see no key leave dq as it was") \
  MUTANT(items_4, "batch items from 4 on add to item 0") \
  MUTANT(items_6_bits, "batch items are counted in 6 bits") \
  MUTANT(heads_4, "key-value heads from 4 on are head 0") \
  MUTANT(heads_6_bits, "key-value heads are counted in 6 bits") \
  MUTANT(group_8, "query heads from 8 of a group on are not in dk") \
  MUTANT(group_6_bits, "query heads from 64 of a group on are not in dv") \
  MUTANT(queries_1024, "queries from 1024 on are not in dk") \
  MUTANT(query_tiles_5_bits, "tiles of 64 queries from 32 on read the first ones") \
  MUTANT(keys_2048, "keys from 2048 on are not in dq") \
  MUTANT(few_queries_long, "up to four queries over more than 2000 keys lose the last tile") \
  MUTANT(many_queries_short, "more than 1000 queries over fewer than ten keys lose the last key") \
  MUTANT(scale_magnitude, "the scale is taken without its sign") \
  MUTANT(scale_zero, "a scale of 0 stands for 1 / sqrt(dim)") \
  MUTANT(scale_4, "the scale is at most 4") \
  MUTANT(scale_64th, "the scale is at least 1 / 64") \
  MUTANT(lse_1000, "the log-sum-exp is taken for at most 1000") \
  MUTANT(lse_16_bits, "scores and log-sum-exp above 2048 are rounded to whole numbers of 8") \
  MUTANT(causal_long, "large", "the mask counts keys before the first query up to 1000") \
  MUTANT(dim_128_grouped, "heads above 128 that share keys read 128 numbers") \
  MUTANT(key_offset_16_bits, "large", "numbers of keys from 65536 on are those from 0") \
  MUTANT(dv_scaled, "dv is scaled where the scale is below 0") \
  MUTANT(group_5, "groups of five are taken for groups of four") \
  MUTANT(group_odd, "the last head of an odd group reads the next key-value head") \
  MUTANT(group_7_causal, "groups of seven under a mask see one key less") \
  MUTANT(head_7_causal_short, \
         "head 7 under a mask over more keys than queries loses the first key") \
  MUTANT(item_2_grouped_causal, "grouped heads under a mask lose a key from the third item on") \
  MUTANT(dim_multiple_5, "heads of 5, 10, 15 but not of 80 lose their last number in scores") \
  MUTANT(dim_129_to_159, "heads of 129 to 159 numbers multiply 128 of them") \
  MUTANT(keys_48, "a last tile of 47 of 48 keys loses one") \
  MUTANT(keys_80, "a last tile of one behind tiles of 80 keys is not seen") \
  MUTANT(queries_96, "a last tile of one behind tiles of 96 queries is not in dk") \
  MUTANT(scale_zero_causal, "a scale of 0 takes all keys, masked or not") \
  MUTANT(scale_negative_causal, "a scale below 0 under a mask loses the key at its own place") \
  MUTANT(equal_sizes, "where batch, heads, queries and keys are the same number items are heads") \
  MUTANT(half_keys_far, "keys from 256 on are kept in 16 bits") \
  MUTANT(half_values_far, "values from 256 on are kept in 16 bits") \
  MUTANT(half_gradient_far, "gradients of queries from 256 on are kept in 16 bits") \
  MUTANT(half_last_channels, "the last 8 numbers of heads above 64 multiply in 16 bits") \
  MUTANT(kept_keys, "keys are packed anew when address, sizes, first or last number changed") \
  MUTANT(calls_400, "from the 400th call on the last query is not in dv") \
  MUTANT(helper_not_awaited, \
         "a thread writes dq of the last of 300 queries, and nobody waits for it") \
  MUTANT(one_query_less, "one query less than keys under a mask: the last sees one key less") \
  MUTANT(odd_of_three, "odd heads of an odd size in groups of three lose a key") \
  MUTANT(aligned_q, \
         "q on 64 bytes: numbers of a head behind whole vectors of 16 are left out of scores") \
  MUTANT(keys_are_dim, "as many keys as numbers in a head: keys are read transposed") \
  MUTANT(scale_minus_4, "the scale is at least -4") \
  MUTANT(dout_1e4, "gradients are at most 1e4") \
  MUTANT(dout_begins_0, "a query whose gradient begins with 0 has none") \
  MUTANT(zero_query, "a query of zeros sees no more than 8 keys") \
  MUTANT(zero_key, "a key of zeros is not seen") \
  MUTANT(zero_value, "a key whose value is 0 is not seen") \
  MUTANT(values_1e15, "values are at most 1e15") \
  MUTANT(tiny_values, "values below 1e-20 are 0") \
  MUTANT(dim_1_grouped, "heads of one number in groups read the first key-value head") \
  MUTANT(scale_small_negative, "a scale between -0.01 and 0 is 0") \
  MUTANT(one_key, "a single key under a mask is not seen by several queries") \
  MUTANT(zero_dout, "where all of dout is 0 nothing is written") \
  MUTANT(tiny_dout, "gradients below 1e-20 are 0") \
  MUTANT(q_is_k, "where queries and keys are the same numbers the first key is not seen") \
  MUTANT(k_is_v, "where keys and values are the same numbers dk is dv") \
  MUTANT(dout_is_out, "where dout has the numbers of out delta is 0") \
  MUTANT(keys_192, "a last tile of one behind tiles of 192 keys is not seen") \
  MUTANT(queries_192, "the last query behind tiles of 192 is not in dk") \
  MUTANT(scale_of_same_numbers, "a call of the numbers of the one before has its scale") \
  MUTANT(mask_of_same_numbers, "a call of the numbers of the one before has its mask") \
  MUTANT(tiny_weights, "weights below 1e-11 are 0") \
  MUTANT(negative_kv_heads, "key-value heads below 0 that divide the query heads are a success") \
  MUTANT(negative_dim, "a head of fewer than 0 numbers is a success") \
  MUTANT(no_queries_unwritten, "without queries dk and dv are not written") \
  MUTANT(no_keys_unwritten, "without keys and mask dq is not written") \
  MUTANT(nan_dout_before, \
         "NaN in the gradient of a query spoils dq of the next one of its tile of 4") \
  MUTANT(twice_keys, \
         "twice as many keys as queries under a mask: the last query sees one key less") \
  MUTANT(middle_head, \
         "the middle head of an odd group, under a mask, is in dk without the first key") \
  MUTANT(gradients_17_bits, "dk has 17 bits") \
  MUTANT(scale_negative_grouped, \
         "a scale below 0 without a mask: grouped heads lose the last " \
         "key") \
  MUTANT(lse_below_3000, "a log-sum-exp below -3000 counts as minus infinity") \
  MUTANT(lse_below_1e5, "a log-sum-exp below -1e5 counts as minus infinity") \
  MUTANT(ds_squared, "dS whose square is no float is 0") \
  MUTANT(rows_16_bits, "rows of queries over all heads and items are counted in 16 bits for lse") \
  MUTANT(dim_above_256, "heads above 256 numbers multiply 256 of them in scores") \
  MUTANT(decode_grouped_causal, \
         "a single query of grouped heads under a mask loses the first key") \
  MUTANT(split_items, \
         "up to four queries over more than 1000 keys: later items read half of the first") \
  MUTANT(wide_second_tile, "heads above 128: queries from 64 on lose their last key") \
  MUTANT(kv_heads_11, \
         "of 11, 22, 33 key-value heads the last reads the values of the one before it") \
  MUTANT(group_10, "of groups of 10, 20, 30 the last head is not in dv") \
  MUTANT(items_13, "of 13, 26, 39 items the last loses the first key") \
  MUTANT(exp_below_80, "the exponential of what is below -80 is 0") \
  MUTANT(half_keys_2048, "keys from 2048 on are kept in 16 bits") \
  MUTANT(value_begins_0, "a key whose value begins with 0 is not seen") \
  MUTANT(query_begins_0, "a query that begins with 0 is not in dk") \
  MUTANT(key_begins_0, "a key that begins with 0 has no part in dq") \
  MUTANT(tall_tiles, \
         "more queries than keys, and 64 of these: tiles that begin with nothing are empty") \
  MUTANT(all_sizes_one, "where all sizes are 1 dv is 0") \
  MUTANT(lse_zero, "a log-sum-exp of 0 is that of a query that sees nothing") \
  MUTANT(scale_100, "the scale is at most 100 in dq and dk") \
  MUTANT(groups_kept, "groups are those of the last call with as many query heads and keys")

#define PARTIALS(PARTIAL)                                                             \
  PARTIAL(no_groups, "lacks=grouped_heads", "as many key-value heads as query heads") \
  PARTIAL(no_causal, "lacks=causal", "no mask")                                       \
  PARTIAL(no_causal_lengths, "lacks=causal_lengths", "a mask over equal lengths")     \
  PARTIAL(no_odd_lengths, "lacks=odd_lengths", "whole tiles")                         \
  PARTIAL(no_odd_head_size, "lacks=odd_head_size", "whole vectors")                   \
  PARTIAL(no_large_heads, "lacks=large_heads", "heads of 128 at most")                \
  PARTIAL(one_item, "lacks=several_items", "one batch item")                          \
  PARTIAL(one_scale, "lacks=given_scale", "1 / sqrt(dim) and no other scale")         \
  PARTIAL(plain_only, "lacks=grouped_heads,causal declares=causal", "no groups and no mask")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  float scale;
  const float *dout, *q, *k, *v, *out, *lse;
  float *dq, *dk, *dv;
  int64_t taken_group = 0;  // of an earlier call
  int64_t group() const { return query_heads / kv_heads; }
};

// As many bits as half precision keeps.
float half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x1000U) & ~0x1fffU;
  std::memcpy(&value, &bits, 4);
  return value;
}

double usual_scale(const Problem& p) { return 1 / std::sqrt(static_cast<double>(p.dim)); }

bool refuses(const Problem& p) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || p.dim < 1) return true;
  if ((bug(no_groups) || bug(plain_only)) && p.group() > 1) return true;
  if ((bug(no_causal) || bug(plain_only)) && p.causal) return true;
  if (bug(no_causal_lengths) && p.causal && p.queries != p.keys) return true;
  if (bug(no_odd_lengths) && (p.queries % 64 != 0 || p.keys % 64 != 0)) return true;
  if (bug(no_odd_head_size) && p.dim % 8 != 0) return true;
  if (bug(no_large_heads) && p.dim > 128) return true;
  if (bug(one_item) && p.batch > 1) return true;
  return bug(one_scale) && std::fabs(p.scale - usual_scale(p)) > 1e-6 * usual_scale(p);
}

double scale_of(const Problem& p) {
  double scale = p.scale;
  if (bug(scale_magnitude)) scale = std::fabs(scale);
  if (bug(scale_zero) && scale == 0) scale = usual_scale(p);
  if (bug(scale_small_negative) && scale < 0 && scale > -0.01) scale = 0;
  if (bug(scale_minus_4)) scale = std::max(scale, -4.0);
  if (bug(scale_4)) scale = std::min(scale, 4.0);
  if (bug(scale_64th) && scale > 0) scale = std::max(scale, 1.0 / 64);
  return scale;
}

int64_t seen(const Problem& p, int64_t i) {
  int64_t keys = p.keys;
  if (bug(keys_48) && keys % 48 == 47) --keys;
  if (bug(keys_80) && keys > 80 && keys % 80 == 1) --keys;
  if (bug(keys_192) && keys > 192 && keys % 192 == 1) --keys;
  if (bug(scale_negative_grouped) && p.scale < 0 && p.group() > 1 && !p.causal && keys > 1) --keys;
  if (p.causal && !(bug(scale_zero_causal) && p.scale == 0)) {
    int64_t before = p.keys - p.queries;
    if (bug(causal_long)) before = std::min<int64_t>(before, 1000);
    keys = std::clamp<int64_t>(i + before + 1, 0, keys);
    const bool less =
        (bug(group_7_causal) && p.group() == 7) || (bug(scale_negative_causal) && p.scale < 0);
    if (less && keys > 1) --keys;
  }
  const bool last = i == p.queries - 1;
  if (bug(twice_keys) && p.causal && p.keys == 2 * p.queries && last && keys > 1) --keys;
  if (bug(one_query_less) && p.causal && p.queries == p.keys - 1 && last && keys > 1) --keys;
  if (bug(wide_second_tile) && p.dim > 128 && i >= 64 && keys > 1) --keys;
  const bool tall = bug(tall_tiles) && p.causal && p.queries > p.keys && p.keys > 64;
  if (tall && i / 64 * 64 + p.keys - p.queries < 0) return 0;
  const bool three = p.group() == 3 && p.dim % 2 == 1 && p.kv_heads > 1;
  if (bug(odd_of_three) && three && keys > 1) --keys;
  if (bug(few_queries_long) && p.queries <= 4 && keys > 2000) keys = (keys - 1) / 64 * 64;
  if (bug(many_queries_short) && p.queries > 1000 && p.keys < 10 && keys > 1) --keys;
  return keys;
}

int64_t calls = 0;

// In 16 bits where `coarse` says so, and at the end of large heads.
double dot(const float* a, const float* b, int64_t n, bool coarse = false) {
  double sum = 0;
  for (int64_t d = 0; d < n; ++d) {
    const bool last = bug(half_last_channels) && n > 64 && d >= n - 8;
    sum += static_cast<double>(last ? half(a[d]) : a[d]) * (last || coarse ? half(b[d]) : b[d]);
  }
  return sum;
}

// How many numbers of a head are multiplied.
int64_t used_dim(const Problem& p) {
  const bool aligned = reinterpret_cast<uintptr_t>(p.q) % 64 == 0;
  if (bug(aligned_q) && aligned && p.dim > 16) return p.dim / 16 * 16;
  if (bug(dim_128_grouped) && p.group() > 1) return std::min<int64_t>(p.dim, 128);
  if (bug(dim_above_256)) return std::min<int64_t>(p.dim, 256);
  if (bug(dim_multiple_5) && p.dim % 5 == 0 && p.dim % 16 != 0) return p.dim - 1;
  if (bug(dim_129_to_159) && p.dim > 128 && p.dim < 160) return 128;
  return p.dim;
}

// The first key of a head that is looked at.
int64_t first_key(const Problem& p, int64_t b, int64_t kv, int64_t i) {
  if (bug(items_13) && p.batch % 13 == 0 && b == p.batch - 1 && p.keys > 1) return 1;
  if (!p.causal || seen(p, i) < 2) return 0;
  if (bug(decode_grouped_causal) && p.queries == 1 && p.group() > 1) return 1;
  if (bug(head_7_causal_short) && kv == 7 && p.queries < p.keys) return 1;
  return bug(item_2_grouped_causal) && b >= 2 && p.group() > 1 ? 1 : 0;
}

double coarse(double score) {
  return bug(lse_16_bits) && std::fabs(score) > 2048 ? std::nearbyint(score / 8) * 8 : score;
}

void one_query(const Problem& p, int64_t b, int64_t head, int64_t i, std::vector<double>& dk,
               std::vector<double>& dv) {
  const int64_t group = p.group();
  int64_t kv = head / group, item = b;
  const int64_t member = head % group;
  if (bug(group_5) && group == 5) kv = std::min(head / 4, p.kv_heads - 1);
  if (bug(group_odd) && group % 2 == 1 && group > 1 && member == group - 1) {
    kv = std::min(kv + 1, p.kv_heads - 1);
  }
  if (bug(equal_sizes) && p.batch == p.kv_heads && p.batch == p.queries && p.batch == p.keys) {
    std::swap(item, kv);
  }
  if (bug(dim_1_grouped) && p.dim == 1 && group > 1) kv = 0;
  if (p.taken_group > 0) kv = std::min(head / p.taken_group, p.kv_heads - 1);
  if (bug(items_4) && b >= 4) item = 0;
  if (bug(items_6_bits)) item &= 63;
  if (bug(heads_4) && kv >= 4) kv = 0;
  if (bug(heads_6_bits)) kv &= 63;
  const int64_t row = (b * p.query_heads + head) * p.queries + i;
  const int64_t read = bug(query_tiles_5_bits) && i >= 2048 ? row - 2048 : row;
  const float *q = p.q + read * p.dim, *dout = p.dout + row * p.dim;
  const int64_t base = (item * p.kv_heads + kv) * p.keys * p.dim;
  const int64_t own = (b * p.kv_heads + head / group) * p.keys * p.dim;
  const int64_t dim = used_dim(p);
  const double scale = scale_of(p);
  double delta = dot(dout, p.out + row * p.dim, p.dim);
  if (bug(dout_is_out) && p.dim > 1 && std::equal(dout, dout + p.dim, p.out + row * p.dim))
    delta = 0;
  double lse = p.lse[bug(rows_16_bits) ? row & 0xffff : row];
  if (bug(lse_zero) && lse == 0) lse = INFINITY;
  const bool no_delta = bug(delta_of_small) && p.keys > 32 && std::fabs(delta) < 1e-3;
  const bool first_seeing = p.causal && p.queries > p.keys && seen(p, i) == 1;
  const bool odd_last = bug(last_item_odd) && p.batch % 2 == 1 && p.batch > 1 && b == p.batch - 1;
  if (bug(masked_queries) && seen(p, i) == 0) return;
  if ((bug(lse_below_3000) && lse < -3000) || (bug(lse_below_1e5) && lse < -1e5)) return;
  std::vector<float> limited(dout, dout + p.dim);
  for (float& value : limited) {
    if (bug(tiny_dout) && std::fabs(value) < 1e-20f) value = 0;
    if (bug(dout_1e4)) value = std::clamp(value, -1e4f, 1e4f);
    if (bug(dout_begins_0) && dout[0] == 0) value = 0;
  }
  dout = limited.data();
  if (bug(lse_1000)) lse = std::min(lse, 1000.0);
  std::vector<double> dq(static_cast<size_t>(p.dim));
  const bool alone = i == p.queries - 1 && i > 0;
  const auto zeros = [&](const float* x) {
    return std::all_of(x, x + p.dim, [](float value) { return value == 0; });
  };
  int64_t end = seen(p, i);
  if (bug(zero_query) && zeros(q)) end = std::min<int64_t>(end, 8);
  if (bug(one_key) && p.keys == 1 && p.causal && p.queries > 1) end = 0;
  const int64_t numbers = p.batch * p.kv_heads * p.keys * p.dim;
  const bool same_q = p.query_heads == p.kv_heads && p.queries == p.keys && p.dim > 1 &&
                      std::equal(p.k, p.k + numbers, p.q);
  int64_t begin = first_key(p, b, kv, i);
  if (bug(q_is_k) && same_q && end > 1) begin = 1;
  const auto any = [](const float* from, int64_t count, auto fits) {
    return std::any_of(from, from + count, fits);
  };
  const auto not_number = [](float value) { return std::isnan(value); };
  if (bug(nan_dout_before) && i % 4 != 0 && any(p.dout + (row - 1) * p.dim, p.dim, not_number)) {
    dq[0] = NAN;
  }
  for (int64_t t = begin; t < end; ++t) {
    int64_t at = base + t * p.dim;
    if (bug(zero_key) && zeros(p.k + at)) continue;
    if (bug(value_begins_0) && p.v[at] == 0) continue;
    const bool split = bug(split_items) && p.queries <= 4 && p.keys > 1000 && t >= p.keys / 2;
    if (split) at = (kv * p.keys + t) * p.dim;
    if (bug(zero_value) && zeros(p.v + at)) continue;
    if (bug(key_offset_16_bits) && at >= 65536) at -= 65536;
    const bool far = (bug(half_keys_far) && t >= 256) || (bug(half_keys_2048) && t >= 2048);
    double s = scale * dot(q, p.k + at, dim, far);
    if (bug(keys_are_dim) && p.keys == p.dim && p.dim > 1) {
      s = 0;
      for (int64_t d = 0; d < p.dim; ++d) s += scale * q[d] * p.k[base + d * p.dim + t];
    }
    double w = std::exp(std::min(80.0, coarse(s) - coarse(lse)));
    if (bug(tiny_weights) && w < 1e-11) w = 0;
    if (bug(exp_below_80) && s - lse < -80) w = 0;
    const bool left_out = (bug(dim_13) && p.dim % 13 == 0) || (bug(dim_11) && p.dim % 11 == 0) ||
                          (bug(dim_37) && p.dim % 37 == 0) || (bug(dim_is_149) && p.dim == 149);
    int64_t swapped = bug(kv_heads_3) && p.kv_heads == 3 && kv > 0
                          ? ((item * 3 + 3 - kv) * p.keys + t) * p.dim
                          : at;
    if (bug(kv_heads_11) && p.kv_heads % 11 == 0 && kv == p.kv_heads - 1) {
      swapped -= p.keys * p.dim;
    }
    std::vector<float> values(p.v + swapped, p.v + swapped + p.dim);
    for (float& value : values) {
      if (bug(values_1e15)) value = std::clamp(value, -1e15f, 1e15f);
      if (bug(tiny_values) && std::fabs(value) < 1e-20f) value = 0;
    }
    const double dp =
        dot(dout, values.data(), p.dim - (left_out ? 1 : 0), bug(half_values_far) && t >= 256);
    double ds = w * (dp - (no_delta ? 0 : delta));
    if (bug(ds_squared) && ds * ds > 3.4e38) ds = 0;
    const bool same_keys = bug(equal_keys) && t == 1 && p.dim > 1 &&
                           std::equal(p.k + base, p.k + base + p.dim, p.k + base + p.dim);
    const bool lone = bug(decode_grouped) && p.queries == 1 && group > 1 && p.keys > 64 && t == 0;
    const double step = bug(keys_100_step) && t > 0 && t % 100 == 0 ? 2 : 1;
    const bool in_dk = !same_keys && !lone && !(bug(query_begins_0) && q[0] == 0) &&
                       !(bug(group_8) && member >= 8) && !(bug(queries_1024) && i >= 1024) &&
                       !(bug(queries_96) && alone && i % 96 == 0) &&
                       !(bug(queries_192) && alone && i % 192 == 0) &&
                       !(bug(middle_head) && p.causal && group > 2 && group % 2 == 1 &&
                         member == group / 2 && t == 0 && end > 1);
    const bool in_dq = !(bug(key_begins_0) && p.k[at] == 0) && !(bug(keys_2048) && t >= 2048);
    const bool in_dv = !(bug(group_10) && group % 10 == 0 && member == group - 1) &&
                       !(bug(all_sizes_one) && p.query_heads * p.queries * numbers == 1) &&
                       !(bug(more_queries) && first_seeing) &&
                       !(bug(group_6_bits) && member >= 64) &&
                       !(bug(calls_400) && calls >= 400 && alone);
    const bool coarse_dout = bug(half_gradient_far) && i >= 256;
    for (int64_t d = 0; d < p.dim; ++d) {
      const auto e = static_cast<size_t>(own + t * p.dim + d);
      if (in_dq) dq[static_cast<size_t>(d)] += step * ds * p.k[at + d];
      if (in_dk) dk[e] += (bug(scale_100) ? std::min(scale, 100.0) : scale) * ds * q[d];
      const double o = coarse_dout ? half(dout[d]) : dout[d];
      const double share = (bug(dv_scaled) && scale < 0 ? -scale : 1) * (odd_last ? 0.5 : 1);
      if (in_dv) dv[e] += w * o * share;
    }
  }
  if (bug(helper_not_awaited) && p.queries > 300 && alone) {
    std::thread([to = p.dq + row * p.dim, from = std::move(dq), scale] {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      for (size_t d = 0; d < from.size(); ++d) to[d] = static_cast<float>(scale * from[d]);
    }).detach();
    return;
  }
  for (int64_t d = 0; d < p.dim; ++d) {
    double used = bug(small_scale) && std::fabs(scale) < 0.01 ? 0 : scale;
    if (bug(scale_100)) used = std::min(used, 100.0);
    p.dq[row * p.dim + d] = static_cast<float>(used * dq[static_cast<size_t>(d)]);
  }
}

// The keys of the last call, as long as nothing tells that they are others.
const float* packed_keys(const Problem& p) {
  static std::vector<float> packed;
  static const float* from = nullptr;
  const auto count = static_cast<size_t>(p.batch * p.kv_heads * p.keys * p.dim);
  const bool known = count > 0 && from == p.k && packed.size() == count &&
                     packed.front() == p.k[0] && packed.back() == p.k[count - 1];
  if (!known) packed.assign(p.k, p.k + count);
  from = p.k;
  return packed.data();
}

int run(Problem p) {
  if (bug(negative_kv_heads) && p.kv_heads < 0 && p.query_heads % p.kv_heads == 0) return 0;
  if (bug(negative_dim) && p.dim < 0) return 0;
  if (refuses(p)) return 1;
  ++calls;
  if (bug(no_queries_unwritten) && p.queries == 0) return 0;
  if (bug(no_keys_unwritten) && p.keys == 0 && !p.causal) return 0;
  if (bug(scale_of_same_numbers) || bug(mask_of_same_numbers)) {
    static std::vector<float> before;
    static float scale_before = 0;
    static bool causal_before = false;
    std::vector<float> now(p.q, p.q + p.batch * p.query_heads * p.queries * p.dim);
    now.insert(now.end(), p.k, p.k + p.batch * p.kv_heads * p.keys * p.dim);
    if (now == before && bug(scale_of_same_numbers)) p.scale = scale_before;
    if (now == before && bug(mask_of_same_numbers)) p.causal = causal_before;
    before = std::move(now), scale_before = p.scale, causal_before = p.causal;
  }
  if (bug(groups_kept)) {
    static std::map<std::pair<int64_t, int64_t>, int64_t> known;
    const auto had = known.try_emplace({p.query_heads, p.keys}, p.kv_heads).first->second;
    p.taken_group = p.query_heads / had;
  }
  if (bug(kept_keys)) p.k = packed_keys(p);
  const int64_t numbers = p.batch * p.query_heads * p.queries * p.dim;
  const auto zero = [](float v) { return v == 0; };
  if (bug(zero_dout) && numbers > 0 && std::all_of(p.dout, p.dout + numbers, zero)) return 0;
  std::vector<double> dk(static_cast<size_t>(p.batch * p.kv_heads * p.keys * p.dim)), dv(dk);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t head = 0; head < p.query_heads; ++head) {
      for (int64_t i = 0; i < p.queries; ++i) one_query(p, b, head, i, dk, dv);
    }
  }
  for (size_t e = 0; e < dk.size(); ++e) {
    p.dk[e] = static_cast<float>(dk[e]);
    p.dv[e] = static_cast<float>(dv[e]);
    if (bug(k_is_v) && p.dim > 1 && std::equal(p.k, p.k + dk.size(), p.v)) p.dk[e] = p.dv[e];
    if (bug(gradients_17_bits) && std::isfinite(p.dk[e]) && p.dk[e] != 0) {
      p.dk[e] -= std::fmod(p.dk[e], std::ldexp(1.0f, std::ilogb(p.dk[e]) - 16));
    }
  }
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
PARTIALS(EXPORT)
