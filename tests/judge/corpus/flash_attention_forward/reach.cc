// Attention for the reach of the judge: right code with faults that show only at sizes, scales and
// scores that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#define MUTANTS(MUTANT) \
  MUTANT(decode_grouped, "a single query of grouped heads over more than 64 keys loses the first") \
  MUTANT(kv_heads_3, "three key-value heads: the last two are exchanged") \
  MUTANT(batch_odd_causal, "under a mask the last of an odd number of items sees all keys") \
  MUTANT(dim_13, "heads of 13, 26, 39 numbers leave out the last") \
  MUTANT(more_queries, "more queries than keys under a mask: the first that sees a key sees two") \
  MUTANT(keys_100_step, "from 100 keys on every hundredth is taken twice") \
  MUTANT(small_scale, "a scale below 0.01 is 0") \
  MUTANT(equal_keys, "where the first two keys of a head are the same the second is left out") \
  MUTANT(lse_negative, "a log-sum-exp below -50 is -50") \
  MUTANT(tall_heads, "more heads than queries and keys together: the last head reads the first") \
  MUTANT(items_4, "batch items from 4 on are those of item 0") \
  MUTANT(items_6_bits, "batch items are counted in 6 bits") \
  MUTANT(heads_4, "key-value heads from 4 on are head 0") \
  MUTANT(heads_6_bits, "key-value heads are counted in 6 bits") \
  MUTANT(group_8, "query heads from 8 of a group on are those from 0") \
  MUTANT(group_6_bits, "query heads of a group are counted in 6 bits") \
  MUTANT(queries_1024, "queries from 1024 on see one key less") \
  MUTANT(query_tiles_5_bits, "tiles of 64 queries are counted in 5 bits") \
  MUTANT(keys_2048, "keys from 2048 on are not looked at") \
  MUTANT(few_queries_long, "up to four queries over more than 2000 keys lose the last tile") \
  MUTANT(many_queries_short, "more than 1000 queries over fewer than ten keys lose the last key") \
  MUTANT(scale_magnitude, "the scale is taken without its sign") \
  MUTANT(scale_zero, "a scale of 0 stands for 1 / sqrt(dim)") \
  MUTANT(scale_4, "the scale is at most 4") \
  MUTANT(scale_64th, "the scale is at least 1 / 64") \
  MUTANT(jump_2000, "a maximum that rises by more than 2000 does not rescale") \
  MUTANT(rescales_280, "after 280 rescalings there are no more") \
  MUTANT(lse_1000, "the log-sum-exp is at most 1000") \
  MUTANT(causal_long, "large", "the mask counts keys before the first query up to 1000") \
  MUTANT(dim_128_grouped, "heads above 128 that share keys read 128 numbers") \
  MUTANT(key_offset_16_bits, "large", "numbers of keys from 65536 on are those from 0") \
  MUTANT(group_5, "groups of five are taken for groups of four") \
  MUTANT(group_odd, "the last head of an odd group reads the next key-value head") \
  MUTANT(group_7_causal, "groups of seven under a mask see one key less") \
  MUTANT(head_7_causal_short, \
         "head 7 under a mask over more keys than queries loses the first key") \
  MUTANT(item_2_grouped_causal, "grouped heads under a mask lose a key from the third item on") \
  MUTANT(dim_multiple_5, "heads of 5, 10, 15 but not of 80 lose their last number") \
  MUTANT(dim_129_to_159, "heads of 129 to 159 numbers multiply 128 of them") \
  MUTANT(keys_48, "a last tile of 47 of 48 keys loses one") \
  MUTANT(keys_80, "a last tile of one behind tiles of 80 keys is not seen") \
  MUTANT(queries_96, "a last tile of one behind tiles of 96 queries is that before it") \
  MUTANT(scale_zero_causal, "a scale of 0 takes the mean of all keys, masked or not") \
  MUTANT(scale_negative_causal, "a scale below 0 under a mask loses the key at its own place") \
  MUTANT(equal_sizes, "where batch, heads, queries and keys are the same number items are heads") \
  MUTANT(half_keys_far, "keys from 256 on are kept in 16 bits") \
  MUTANT(half_values_far, "values from 256 on are kept in 16 bits") \
  MUTANT(half_last_channels, "the last 8 numbers of heads above 64 multiply in 16 bits") \
  MUTANT(kept_keys, "keys are packed anew when address, sizes, first or last number changed") \
  MUTANT(calls_400, "from the 400th call on the last query is not looked at") \
  MUTANT(helper_not_awaited, "a thread sums half of more than 300 keys, and nobody waits for it") \
  MUTANT(one_query_less, "one query less than keys under a mask: the last sees one key less") \
  MUTANT(odd_of_three, "odd heads of an odd size in groups of three lose a key") \
  MUTANT(aligned_q, \
         "q on 64 bytes: numbers of a head behind whole vectors of 16 are left out of scores") \
  MUTANT(dim_11, "large", "heads of 11, 22, 33 numbers leave out the last") \
  MUTANT(dim_37, "large", "heads of 37, 74, 111 numbers leave out the last") \
  MUTANT(dim_is_101, "large", "heads of 101 numbers leave out the last") \
  MUTANT(queries_are_53, "large", "the last of 53 queries sees one key less") \
  MUTANT(keys_are_107, "large", "the last of 107 keys is not seen") \
  MUTANT(batch_7_bits, "batch items are counted in 7 bits") \
  MUTANT(keys_5500, "keys from 5500 on are not looked at") \
  MUTANT(keys_are_dim, "as many keys as numbers in a head: keys are read transposed") \
  MUTANT(scale_16, "the scale is at most 16") \
  MUTANT(items_wide_causal, \
         "three items and more of heads above 64 under a mask lose the first key") \
  MUTANT(chunk_long_causal, \
         "two to eight queries behind more than 500 keys under a mask see one less") \
  MUTANT(zero_query, "a query of zeros sees no more than 8 keys") \
  MUTANT(zero_key, "a key of zeros is not seen") \
  MUTANT(zero_value, "a key whose value is 0 is not seen") \
  MUTANT(values_1e15, "values are at most 1e15") \
  MUTANT(tiny_values, "values below 1e-20 are 0") \
  MUTANT(dim_1_grouped, "heads of one number in groups read the first key-value head") \
  MUTANT(scale_small_negative, "a scale between -0.01 and 0 is 0") \
  MUTANT(one_key, "a single key under a mask is not seen by several queries") \
  MUTANT(equal_scores, \
         "where the first two scores are equal and the largest the second is not counted") \
  MUTANT(all_values_equal, \
         "where the first and the last value of a head are equal the first is the answer") \
  MUTANT(q_is_k, "where queries and keys are the same numbers the first key is not seen") \
  MUTANT(k_is_v, "where keys and values are the same numbers the last number of the output is 0") \
  MUTANT(keys_192, "a last tile of one behind tiles of 192 keys is not seen") \
  MUTANT(queries_192, "a last tile of one behind tiles of 192 queries is that before it") \
  MUTANT(scale_of_same_numbers, "a call of the numbers of the one before has its scale") \
  MUTANT(mask_of_same_numbers, "a call of the numbers of the one before has its mask") \
  MUTANT(scale_negative_grouped, \
         "a scale below 0 without a mask: grouped heads lose the last key") \
  MUTANT(tiny_weights, "weights below 1e-11 are 0") \
  MUTANT(infinity_unseen, "infinity in a value that is not seen makes NaN") \
  MUTANT(nan_query_before, "NaN in a query spoils the next one of its tile of 4") \
  MUTANT(negative_kv_heads, "key-value heads below 0 that divide the query heads are a success") \
  MUTANT(negative_dim, "a head of fewer than 0 numbers is a success") \
  MUTANT(no_keys_full, "without keys and mask the output is not written") \
  MUTANT(output_17_bits, "outputs have 17 bits") \
  MUTANT(twice_keys, \
         "twice as many keys as queries under a mask: the last query sees one key less") \
  MUTANT( \
      middle_item, \
      "of an odd number of items the middle one, in groups and under a mask, loses the first key") \
  MUTANT(rising_scores, "where the scores of more than 8 keys all rise the first is not counted") \
  MUTANT(tiny_factor, "a factor below 1e-11 that rescales what came before is 0") \
  MUTANT(low_tiles, "tiles of 64 keys whose scores all lie 25 below the largest are left out") \
  MUTANT(maximum_begins_1e5, "the running maximum begins at -1e5") \
  MUTANT(scores_1e5, "scores are at most 1e5") \
  MUTANT(queries_1024_tail, \
         "one or two queries behind tiles of 64, above 1024, lose the last " \
         "key") \
  MUTANT(rows_16_bits, "rows of queries over all heads and items are counted in 16 bits") \
  MUTANT(dim_above_256, "heads above 256 numbers multiply 256 of them") \
  MUTANT(decode_grouped_causal, \
         "a single query of grouped heads under a mask loses the first key") \
  MUTANT(split_items, \
         "up to four queries over more than 1000 keys: later items read half of the first") \
  MUTANT(wide_second_tile, "heads above 128: queries from 64 on lose their last key") \
  MUTANT(kv_heads_11, "of 11, 22, 33 key-value heads the last reads the one before it") \
  MUTANT(group_10, "of groups of 10, 20, 30 the last head loses the first key") \
  MUTANT(items_13, "of 13, 26, 39 items the last loses the first key") \
  MUTANT(exp_below_80, "the exponential of what is below -80 is 0") \
  MUTANT(bf16_values_2048, "values from 2048 on are kept in bfloat16") \
  MUTANT(half_partial_output, \
         "more than 1000 keys: the sum over the first 512 is kept in 16 bits") \
  MUTANT(value_begins_0, "a key whose value begins with 0 is not seen") \
  MUTANT(query_begins_0, "a query that begins with 0 is a query of zeros") \
  MUTANT(key_begins_0, "a key that begins with 0 is a key of zeros") \
  MUTANT(tall_tiles, \
         "more queries than keys, and 64 of these: tiles that begin with nothing are empty") \
  MUTANT(all_sizes_one, "where all sizes are 1 the log-sum-exp is 0") \
  MUTANT(lse_17_bits, "the log-sum-exp has 17 bits") \
  MUTANT(scale_100, "the scale is at most 100") \
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
  PARTIAL(no_lse, "lacks=lse declares=lse", "without the log-sum-exp")                \
  PARTIAL(plain_only, "lacks=grouped_heads,causal declares=causal", "no groups and no mask")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  int64_t batch, query_heads, kv_heads, queries, keys, dim;
  bool causal;
  float scale;
  const float *q, *k, *v;
  float *out, *lse;
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

float bfloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x8000U) & 0xffff0000U;
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
  if (bug(scale_small_negative) && scale < 0 && scale > -0.01) scale = 0;
  if (bug(small_scale) && std::fabs(scale) < 0.01) scale = 0;
  if (bug(scale_magnitude)) scale = std::fabs(scale);
  if (bug(scale_zero) && scale == 0) scale = usual_scale(p);
  if (bug(scale_100)) scale = std::min(scale, 100.0);
  if (bug(scale_16)) scale = std::min(scale, 16.0);
  if (bug(scale_4)) scale = std::min(scale, 4.0);
  if (bug(scale_64th) && scale > 0) scale = std::max(scale, 1.0 / 64);
  return scale;
}

bool last_item = false;

int64_t seen(const Problem& p, int64_t i) {
  int64_t keys = p.keys;
  if (bug(keys_48) && keys % 48 == 47) --keys;
  if (bug(keys_are_107) && keys == 107) --keys;
  if (bug(keys_5500)) keys = std::min<int64_t>(keys, 5500);
  if (bug(keys_80) && keys > 80 && keys % 80 == 1) --keys;
  if (bug(keys_192) && keys > 192 && keys % 192 == 1) --keys;
  if (bug(scale_negative_grouped) && p.scale < 0 && p.group() > 1 && !p.causal && keys > 1) --keys;
  if (bug(batch_odd_causal) && p.causal && p.batch % 2 == 1 && p.batch > 1 && last_item) {
    return keys;
  }
  if (p.causal && !(bug(scale_zero_causal) && p.scale == 0)) {
    int64_t before = p.keys - p.queries;
    if (bug(causal_long)) before = std::min<int64_t>(before, 1000);
    keys = std::clamp<int64_t>(i + before + 1, 0, keys);
    const bool less =
        (bug(group_7_causal) && p.group() == 7) || (bug(scale_negative_causal) && p.scale < 0);
    if (less && keys > 1) --keys;
    if (bug(chunk_long_causal) && p.queries > 1 && p.queries <= 8 && keys > 500) --keys;
    if (bug(more_queries) && p.queries > p.keys && keys == 1) keys = std::min<int64_t>(2, p.keys);
  }
  if (bug(queries_are_53) && p.queries == 53 && i == 52 && keys > 1) --keys;
  if (bug(queries_1024) && i >= 1024 && keys > 1) --keys;
  if (bug(keys_2048)) keys = std::min<int64_t>(keys, 2048);
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

// How many numbers of a head are multiplied.
int64_t used_dim(const Problem& p) {
  const bool aligned = reinterpret_cast<uintptr_t>(p.q) % 64 == 0;
  if (bug(aligned_q) && aligned && p.dim > 16) return p.dim / 16 * 16;
  if (bug(dim_128_grouped) && p.group() > 1) return std::min<int64_t>(p.dim, 128);
  if (bug(dim_above_256)) return std::min<int64_t>(p.dim, 256);
  if (bug(dim_13) && p.dim % 13 == 0) return p.dim - 1;
  if (bug(dim_11) && p.dim % 11 == 0) return p.dim - 1;
  if (bug(dim_37) && p.dim % 37 == 0) return p.dim - 1;
  if (bug(dim_is_101) && p.dim == 101) return p.dim - 1;
  if (bug(dim_multiple_5) && p.dim % 5 == 0 && p.dim % 16 != 0) return p.dim - 1;
  if (bug(dim_129_to_159) && p.dim > 128 && p.dim < 160) return 128;
  return p.dim;
}

// The first key of a head that is looked at.
int64_t first_key(const Problem& p, int64_t b, int64_t kv, int64_t i) {
  if (bug(items_13) && p.batch % 13 == 0 && b == p.batch - 1 && p.keys > 1) return 1;
  if (bug(decode_grouped) && p.queries == 1 && p.group() > 1 && p.keys > 64) return 1;
  if (!p.causal || seen(p, i) < 2) return 0;
  if (bug(decode_grouped_causal) && p.queries == 1 && p.group() > 1) return 1;
  if (bug(items_wide_causal) && p.batch > 2 && p.dim > 64) return 1;
  if (bug(head_7_causal_short) && kv == 7 && p.queries < p.keys) return 1;
  if (bug(middle_item) && p.batch > 2 && p.batch % 2 == 1 && b == p.batch / 2 && p.group() > 1) {
    return 1;
  }
  return bug(item_2_grouped_causal) && b >= 2 && p.group() > 1 ? 1 : 0;
}

// Whether the tile of keys from t on lies far below the first key.
bool low_tile(const Problem& p, const float* q, int64_t base, int64_t t, int64_t end,
              double scale) {
  const auto score = [&](int64_t key) {
    double s = 0;
    for (int64_t d = 0; d < p.dim; ++d)
      s += static_cast<double>(q[d]) * p.k[base + key * p.dim + d];
    return s * scale;
  };
  const double first = score(0);
  for (int64_t key = t; key < std::min(end, t + 64); ++key) {
    if (!(score(key) < first - 25)) return false;
  }
  return true;
}

// The softmax of one query, key by key, with a running maximum.
void one_query(const Problem& p, int64_t b, int64_t head, int64_t i) {
  const int64_t group = p.group();
  int64_t kv = head / group, item = b, member = head % group;
  if (bug(group_5) && group == 5) kv = std::min(head / 4, p.kv_heads - 1);
  if (bug(group_odd) && group % 2 == 1 && group > 1 && member == group - 1) {
    kv = std::min(kv + 1, p.kv_heads - 1);
  }
  if (bug(equal_sizes) && p.batch == p.kv_heads && p.batch == p.queries && p.batch == p.keys) {
    std::swap(item, kv);
  }
  if (bug(dim_1_grouped) && p.dim == 1 && group > 1) kv = 0;
  last_item = b == p.batch - 1;
  if (p.taken_group > 0) kv = std::min(head / p.taken_group, p.kv_heads - 1);
  if (bug(kv_heads_3) && p.kv_heads == 3 && kv > 0) kv = 3 - kv;
  if (bug(tall_heads) && p.kv_heads > p.queries + p.keys && kv == p.kv_heads - 1) kv = 0;
  if (bug(items_4) && b >= 4) item = 0;
  if (bug(items_6_bits)) item &= 63;
  if (bug(batch_7_bits)) item &= 127;
  if (bug(heads_4) && kv >= 4) kv = 0;
  if (bug(heads_6_bits)) kv &= 63;
  if (bug(group_8) && member >= 8) member = 0;
  if (bug(group_6_bits) && member >= 64) member -= 64;
  if (bug(kv_heads_11) && p.kv_heads % 11 == 0 && kv == p.kv_heads - 1) --kv;
  const int64_t row = (b * p.query_heads + head) * p.queries + i;
  int64_t read = ((item * p.query_heads + head / group * group + member) * p.queries + i);
  if (bug(rows_16_bits)) read &= 0xffff;
  if (bug(query_tiles_5_bits) && i >= 2048) read -= 2048;
  if (bug(queries_96) && i == p.queries - 1 && i > 0 && i % 96 == 0) --read;
  if (bug(queries_192) && i == p.queries - 1 && i > 0 && i % 192 == 0) --read;
  if (bug(calls_400) && calls >= 400 && i == p.queries - 1 && i > 0) --read;
  const float* q = p.q + read * p.dim;
  const int64_t base = (item * p.kv_heads + kv) * p.keys * p.dim;
  const int64_t dim = used_dim(p);
  const double scale = scale_of(p);
  double maximum = bug(maximum_begins_1e5) ? -1e5 : -kInfinity, sum = 0;
  int64_t rescalings = 0;
  std::vector<double> total(static_cast<size_t>(p.dim));
  int64_t end = seen(p, i);
  if (bug(helper_not_awaited) && end > 300) {
    auto helped = std::make_shared<std::vector<double>>(static_cast<size_t>(p.dim));
    std::thread([helped, rest = end - end / 2] {
      for (double& value : *helped) value += static_cast<double>(rest);
    }).detach();
    end /= 2;
  }
  const auto zeros = [&](const float* x) {
    return std::all_of(x, x + p.dim, [](float value) { return value == 0; });
  };
  const std::vector<float> no_numbers(static_cast<size_t>(p.dim));
  if (bug(query_begins_0) && q[0] == 0) q = no_numbers.data();
  if (bug(zero_query) && zeros(q)) end = std::min<int64_t>(end, 8);
  if (bug(one_key) && p.keys == 1 && p.causal && p.queries > 1) end = 0;
  double first_score = 0, score_before = -kInfinity;
  bool rising = end > 8, low = false;
  const bool short_tail = p.queries > 1024 && p.queries % 64 <= 2 && i >= p.queries / 64 * 64;
  if (bug(queries_1024_tail) && short_tail) --end;
  int64_t begin = first_key(p, b, kv, i);
  const int64_t numbers = p.batch * p.kv_heads * p.keys * p.dim;
  const bool same_q = p.query_heads == p.kv_heads && p.queries == p.keys && p.dim > 1 &&
                      std::equal(p.k, p.k + numbers, p.q);
  if (bug(q_is_k) && same_q && end > 1) begin = 1;
  if (bug(group_10) && group % 10 == 0 && member == group - 1 && end > 1) begin = 1;
  for (int64_t t = begin; t < end; ++t) {
    int64_t at = base + t * p.dim;
    if (bug(key_offset_16_bits) && at >= 65536) at -= 65536;
    const bool split = bug(split_items) && p.queries <= 4 && p.keys > 1000 && t >= p.keys / 2;
    if (split) at = (kv * p.keys + t) * p.dim;
    double s = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const bool turned = bug(keys_are_dim) && p.keys == p.dim;
      float x = q[d], y = p.k[turned ? base + d * p.dim + t : at + d];
      const bool short_of_bits = bug(half_last_channels) && dim > 64 && d >= dim - 8;
      if (short_of_bits) x = half(x);
      if (short_of_bits || (bug(half_keys_far) && t >= 256)) y = half(y);
      s += static_cast<double>(x) * y;
    }
    s *= scale;
    if (bug(key_begins_0) && p.k[at] == 0) s = 0;
    if (bug(scores_1e5)) s = std::min(s, 1e5);
    if (bug(low_tiles) && t % 64 == 0) low = low_tile(p, q, base, t, end, scale);
    if (low) continue;
    if (bug(zero_key) && zeros(p.k + at)) continue;
    if (bug(value_begins_0) && p.v[at] == 0) continue;
    if (bug(zero_value) && zeros(p.v + at)) continue;
    if (t == 0) first_score = s;
    rising = rising && s > score_before;
    score_before = s;
    if (bug(equal_scores) && t == 1 && s == first_score) continue;
    if (s > maximum) {
      double factor = sum == 0 ? 0 : std::exp(maximum - s);
      if (bug(tiny_factor) && factor < 1e-11) factor = 0;
      if (bug(jump_2000) && sum != 0 && s - maximum > 2000) factor = 1;
      if (bug(rescales_280) && sum != 0 && ++rescalings > 280) factor = 1;
      sum *= factor;
      for (double& value : total) value *= factor;
      maximum = s;
    }
    double w = std::exp(s - maximum);
    if (bug(exp_below_80) && s - maximum < -80) w = 0;
    if (bug(keys_100_step) && t > 0 && t % 100 == 0) w *= 2;
    if (bug(tiny_weights) && w < 1e-11) w = 0;
    const float* keys_of = p.k + base;
    if (bug(equal_keys) && t == 1 && p.dim > 1 &&
        std::equal(keys_of, keys_of + p.dim, keys_of + p.dim)) {
      continue;
    }
    sum += w;
    for (int64_t d = 0; d < p.dim; ++d) {
      float v = p.v[at + d];
      if (bug(values_1e15)) v = std::clamp(v, -1e15f, 1e15f);
      if (bug(tiny_values) && std::fabs(v) < 1e-20f) v = 0;
      if (bug(half_values_far) && t >= 256) v = half(v);
      if (bug(bf16_values_2048) && t >= 2048) v = bfloat(v);
      double& to = total[static_cast<size_t>(d)];
      to += w * v;
      if (bug(half_partial_output) && end > 1000 && t == 511) to = half(static_cast<float>(to));
    }
  }
  if (bug(rising_scores) && rising && begin == 0) {
    const double w = std::exp(first_score - maximum);
    sum -= w;
    for (int64_t d = 0; d < p.dim; ++d) total[static_cast<size_t>(d)] -= w * p.v[base + d];
  }
  const auto has_nan = [&](const float* x) {
    return std::any_of(x, x + p.dim, [](float value) { return std::isnan(value); });
  };
  if (bug(nan_query_before) && i % 4 != 0 && has_nan(q - p.dim)) sum = NAN;
  for (int64_t e = base + end * p.dim; bug(infinity_unseen) && e < base + p.keys * p.dim; ++e) {
    if (std::isinf(p.v[e])) sum = NAN;
  }
  for (int64_t d = 0; d < p.dim; ++d) {
    p.out[row * p.dim + d] = sum == 0 ? 0 : static_cast<float>(total[static_cast<size_t>(d)] / sum);
  }
  if (bug(k_is_v) && p.dim > 1 && std::equal(p.k, p.k + numbers, p.v)) {
    p.out[row * p.dim + p.dim - 1] = 0;
  }
  for (int64_t d = 0; d < p.dim && bug(output_17_bits); ++d) {
    float& value = p.out[row * p.dim + d];
    if (std::isfinite(value) && value != 0) {
      value -= std::fmod(value, std::ldexp(1.0f, std::ilogb(value) - 16));
    }
  }
  const float *first = p.v + base, *last = first + (p.keys - 1) * p.dim;
  if (bug(all_values_equal) && end > 2 && std::equal(first, first + p.dim, last)) {
    std::copy_n(first, p.dim, p.out + row * p.dim);
  }
  if (bug(no_lse)) return;
  double lse = sum == 0 ? -kInfinity : maximum + std::log(sum);
  if (bug(lse_1000)) lse = std::min(lse, 1000.0);
  if (bug(lse_negative) && sum != 0) lse = std::max(lse, -50.0);
  if (bug(all_sizes_one) && p.query_heads == 1 && numbers == 1 && p.queries == 1) lse = 0;
  if (bug(lse_17_bits) && sum != 0 && lse != 0) {
    lse -= std::fmod(lse, std::ldexp(1.0, std::ilogb(lse) - 16));
  }
  p.lse[row] = static_cast<float>(lse);
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
  if (bug(no_keys_full) && p.keys == 0 && !p.causal) return 0;
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
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t head = 0; head < p.query_heads; ++head) {
      for (int64_t i = 0; i < p.queries; ++i) one_query(p, b, head, i);
    }
  }
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
PARTIALS(EXPORT)
