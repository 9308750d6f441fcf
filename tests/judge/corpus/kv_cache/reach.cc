// A cache for the reach of the judge: right code with faults that show only at sizes, scales and in
// sessions that no fixed list of cases holds, and right code that refuses what it does not have.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#define MUTANTS(MUTANT)                                                                            \
  MUTANT(kv_heads_3, "three key-value heads: the keys of the last two are exchanged")              \
  MUTANT(dim_37, "large", "heads of 37, 74, 111 numbers leave the last out of scores")             \
  MUTANT(dim_is_199, "large", "heads of 199 numbers leave the last out of scores")                 \
  MUTANT(tokens_are_47, "large", "over 47 tokens the first is not seen")                           \
  MUTANT(tokens_3800, "large", "tokens from 3800 on are not seen")                                 \
  MUTANT(dim_13, "heads of 13, 26, 39 numbers leave the last out of scores")                       \
  MUTANT(chunk_of_7, "a chunk of seven tokens or a multiple loses its last key")                   \
  MUTANT(length_33, "from 33 tokens on the length is one too short")                               \
  MUTANT(fork_then_append, "the first append to a fork after its parent grew goes to the parent")  \
  MUTANT(reused_sequence,                                                                          \
         "a sequence that was freed and used again begins at its old second token")                \
  MUTANT(last_layer_limit, "the last of several layers holds one token less than the limit")       \
  MUTANT(attend_none, "an attend with a row of no tokens skips the row behind it")                 \
  MUTANT(small_scale, "a scale below 0.01 is 0")                                                   \
  MUTANT(decode_after_prefill,                                                                     \
         "a single token behind a chunk of more than 16 sees one token less")                      \
  MUTANT(layers_8, "layers from 8 on are layer 0")                                                 \
  MUTANT(layers_5_bits, "layers are counted in 5 bits")                                            \
  MUTANT(sequences_16, "sequences from 16 on attend to sequence 0 where it is long enough")        \
  MUTANT(sequences_6_bits, "sequences are counted in 6 bits")                                      \
  MUTANT(heads_8, "key-value heads from 8 on are head 0")                                          \
  MUTANT(heads_4_bits, "key-value heads are counted in 4 bits")                                    \
  MUTANT(group_8, "query heads from 8 of a group on read the head of the first")                   \
  MUTANT(group_4_bits, "query heads from 16 of a group on are those from 0")                       \
  MUTANT(tokens_512, "tokens from 512 on are not seen")                                            \
  MUTANT(tokens_1500, "tokens before the last 1500 are not seen")                                  \
  MUTANT(scale_magnitude, "the scale is taken without its sign")                                   \
  MUTANT(scale_zero, "a scale of 0 stands for 1 / sqrt(head_dim)")                                 \
  MUTANT(scale_4, "the scale is at most 4")                                                        \
  MUTANT(jump_2000, "a maximum that rises by more than 2000 does not rescale")                     \
  MUTANT(fall_500, "a fall by more than 500 from the token before ends the look")                  \
  MUTANT(fork_of_empty, "a fork of an empty sequence leaves the child as it was")                  \
  MUTANT(forks_8, "after eight forks children share the last token with their parents")            \
  MUTANT(third_free, "a sequence that is freed for the third time keeps its tokens")               \
  MUTANT(appends_7_bits, "the appends of a sequence are counted in 7 bits")                        \
  MUTANT(attend_beyond_append, "queries before the last append see one token too many")            \
  MUTANT(shape_of_last_cache, "tokens are as wide as those of the cache made last")                \
  MUTANT(destroy_empties_all, "destroying a cache empties the others")                             \
  MUTANT(caches_6, "the seventh cache alive is the first one")                                     \
  MUTANT(made_of_destroyed, "a cache made after one was destroyed begins with its lengths")        \
  MUTANT(first_scale, "the scale of the first attend is that of all")                              \
  MUTANT(first_query_heads, "the number of query heads of the first attend is that of all")        \
  MUTANT(group_5, "groups of five are taken for groups of four")                                   \
  MUTANT(group_odd, "the last head of an odd group reads the next key-value head")                 \
  MUTANT(tokens_48, "the last of 47 tokens of a page of 48 is not seen")                           \
  MUTANT(page_of_freed, "a page that is not full is summed whole, times 0, over what was freed")   \
  MUTANT(fork_counts_twice, "tokens that a fork took over count twice for the limit")              \
  MUTANT(fork_unchecked, "a fork of what does not exist is called a success")                      \
  MUTANT(fork_of_fork, "a fork of a fork of a fork shares its last token")                         \
  MUTANT(free_then_fork, "a fork into a sequence that was freed lacks the last token")             \
  MUTANT(free_layer_5, "free leaves layers from 5 on as they were")                                \
  MUTANT(asked_twice, "tokens that are asked about again see one token less")                      \
  MUTANT(falling_order, "sequences in falling order are answered in rising order")                 \
  MUTANT(empty_row_ends, "a row of no tokens ends an append")                                      \
  MUTANT(half_keys_far, "keys from 200 on are kept in 16 bits")                                    \
  MUTANT(half_values_far, "values from 200 on are kept in 16 bits")                                \
  MUTANT(half_decoded, "keys that come one at a time are kept in 16 bits")                         \
  MUTANT(refused_then_short,                                                                       \
         "after a refused append the next one loses the value of its last token")                  \
  MUTANT(limit_of_one, "caches of one token cannot be made")                                       \
  MUTANT(fork_into_longer, "a fork into a longer sequence keeps the longer length for the limit")  \
  MUTANT(length_cut_to_layer_0, "a layer that is longer than layer 0 answers with its length")     \
  MUTANT(unaligned_k, "keys that do not begin on 16 bytes lose the last number")                   \
  MUTANT(count_above_8, "from the ninth sequence of a call on queries are those of the first")     \
  MUTANT(whole_64, "a prefill of whole tiles of 64 sees no mask in the last")                      \
  MUTANT(free_in_between, "after a free the next attend skips its last sequence")                  \
  MUTANT(limit_16_bits, "the limit is kept in 16 bits")                                            \
  MUTANT(free_of_empty, "freeing an empty sequence empties the one behind it")                     \
  MUTANT(query_heads_grow, "query heads beyond those of the first attend are 0")                   \
  MUTANT(empty_call_layer, "an empty call for a layer behind the first takes its last token away") \
  MUTANT(free_uneven, "a free of a sequence whose layers differ in length leaves the last layer")  \
  MUTANT(fork_uneven,                                                                              \
         "a fork of a sequence whose layers differ in length lacks the last token of the longer")  \
  MUTANT(full_page_limit,                                                                          \
         "a cache whose limit is a multiple of 64 loses the value of its last token")              \
  MUTANT(zero_value_token, "a token whose value is 0 is not counted")                              \
  MUTANT(zero_key_token, "a token whose key is 0 is not counted")                                  \
  MUTANT(part_of_append,                                                                           \
         "queries that are fewer than the last append, which had more than 4, see one token less") \
  MUTANT(values_1e15, "values are at most 1e15")                                                   \
  MUTANT(zero_query, "a query of zeros sees the last token only")                                  \
  MUTANT(grown_once,                                                                               \
         "a sequence that grew past twice its first length loses the value of its first token")    \
  MUTANT(freed_parent, "a fork whose parent is freed loses the value of its last token")           \
  MUTANT(empty_row_unchecked,                                                                      \
         "a row of no tokens for a sequence that does not exist is a success")                     \
  MUTANT(empty_call_unchecked, "an empty append to a layer that does not exist is a success")      \
  MUTANT(stale_24, "a sequence that was freed and grew past 24 tokens again has an old key there") \
  MUTANT(shared_page_96,                                                                           \
         "beyond 96 tokens the first token behind a fork is written to the parent, too")           \
  MUTANT(pair_in_call, "a fork that is asked right behind its parent answers with its tokens")     \
  MUTANT(value_is_key,                                                                             \
         "where keys and values of an append are the same numbers the last value is 0")            \
  MUTANT(attends_300, "after 300 attends a cache does not see its first token")                    \
  MUTANT(negative_sequence, "a sequence below 0 has length 0")                                     \
  MUTANT(negative_free, "a free of a sequence below 0 is a success")                               \
  MUTANT(limit_of_layer_0, "the limit is compared with the length of layer 0")                     \
  MUTANT(too_many_in_last, "too many queries of the last of several sequences are no error")       \
  MUTANT(tokens_192, "a last tile of one behind tiles of 192 tokens is not seen")                  \
  MUTANT(scale_of_same_query, "queries of the numbers of the attend before have its scale")        \
  MUTANT(tiny_weights, "weights below 1e-11 are 0")                                                \
  MUTANT(negative_layer, "an empty attend of a layer below 0 is a success")

#define PARTIALS(PARTIAL)                                                             \
  PARTIAL(no_groups, "lacks=grouped_heads", "as many key-value heads as query heads") \
  PARTIAL(one_layer, "lacks=several_layers", "one layer")                             \
  PARTIAL(one_sequence, "lacks=several_sequences", "one sequence")                    \
  PARTIAL(one_kv_head, "lacks=several_kv_heads", "one key-value head")                \
  PARTIAL(no_odd_head_size, "lacks=odd_head_size", "whole vectors")                   \
  PARTIAL(no_large_heads, "lacks=large_heads", "heads of 128 at most")                \
  PARTIAL(one_cache, "lacks=several_caches", "one cache at a time")                   \
  PARTIAL(one_scale, "lacks=given_scale", "1 / sqrt(head_dim) and no other scale")

namespace {

#define NAME(name, ...) name,
enum Variant { MUTANTS(NAME) PARTIALS(NAME) };
#undef NAME
Variant active;
bool bug(Variant name) { return active == name; }
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Stored {
  std::vector<float> k, v;  // [length, heads, dim]
  int64_t length = 0, last_append = 0, appends = 0, before_last = 0;
  int64_t depth = 0, taken_over = 0, asked_at = -1, longer = 0;
  int64_t first_append = 0, parent = -1;
  std::vector<float> old;  // keys before the last free
};

struct Cache {
  int64_t layers, sequences, heads, dim, limit;
  std::vector<Stored> stored;
  std::vector<int64_t> frees;
  int64_t forks = 0;
  float scale = 0;  // of the first attend, as is the next
  int64_t query_heads = 0;
  int64_t attends = 0;
  float scale_before = 0;
  std::vector<float> queries_before = {};
  bool freed_nan = false, refused = false, freed = false;

  bool has(int64_t layer, int64_t sequence) const {
    return layer >= 0 && layer < layers && sequence >= 0 && sequence < sequences;
  }
  Stored& at(int64_t layer, int64_t sequence) {
    if (bug(layers_8) && layer >= 8) layer = 0;
    if (bug(layers_5_bits)) layer &= 31;
    if (bug(sequences_6_bits)) sequence &= 63;
    return stored[static_cast<size_t>(layer * sequences + sequence)];
  }
  int64_t width() const { return heads * dim; }
};
int64_t alive = 0;
std::vector<Cache*> caches;
std::vector<int64_t> lengths_of_destroyed;

// As many bits as half precision keeps.
float half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x1000U) & ~0x1fffU;
  std::memcpy(&value, &bits, 4);
  return value;
}

Cache* create(int64_t layers, int64_t sequences, int64_t heads, int64_t dim, int64_t limit) {
  if (bug(limit_of_one) && limit == 1) return nullptr;
  if (bug(one_layer) && layers > 1) return nullptr;
  if (bug(one_sequence) && sequences > 1) return nullptr;
  if (bug(one_kv_head) && heads > 1) return nullptr;
  if (bug(no_odd_head_size) && dim % 8 != 0) return nullptr;
  if (bug(no_large_heads) && dim > 128) return nullptr;
  if (bug(one_cache) && alive > 0) return nullptr;
  ++alive;
  if (bug(limit_16_bits)) limit &= 0xffff;
  auto* cache = new Cache{layers, sequences, heads, dim, limit, {}, {}};
  cache->stored.resize(static_cast<size_t>(layers * sequences));
  cache->frees.resize(static_cast<size_t>(sequences));
  caches.push_back(cache);
  if (bug(caches_6) && caches.size() > 6) return caches.front();
  const size_t known = std::min(cache->stored.size(), lengths_of_destroyed.size());
  for (size_t i = 0; i < known && bug(made_of_destroyed); ++i) {
    Stored& to = cache->stored[i];
    to.length = std::min(lengths_of_destroyed[i], limit);
    to.k.resize(static_cast<size_t>(to.length * heads * dim)), to.v = to.k;
  }
  return cache;
}

int append(Cache& cache, int64_t layer, int64_t count, const int32_t* sequence,
           const int32_t* tokens, const float* k, const float* v) {
  if (bug(empty_call_unchecked) && count == 0) return 0;
  if (!cache.has(layer, 0)) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (bug(empty_row_unchecked) && tokens[i] == 0) continue;
    if (!cache.has(layer, sequence[i]) || tokens[i] < 0) return 1;
    const Stored& to = cache.at(layer, sequence[i]);
    int64_t twice = bug(fork_counts_twice) ? to.taken_over : 0;
    if (bug(fork_into_longer)) twice = to.longer;
    const bool less = bug(last_layer_limit) && cache.layers > 1 && layer == cache.layers - 1;
    const int64_t known = bug(limit_of_layer_0) ? cache.at(0, sequence[i]).length : to.length;
    if (known + twice + tokens[i] > cache.limit - (less ? 1 : 0)) {
      cache.refused = true;
      return 1;
    }
  }
  if (bug(empty_call_layer) && count == 0 && layer > 0) {
    for (int64_t s = 0; s < cache.sequences; ++s) {
      Stored& to = cache.at(layer, s);
      if (to.length > 0) std::fill(to.v.end() - cache.width(), to.v.end(), 0.0f);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.has(layer, sequence[i])) continue;
    Stored& to = cache.at(layer, sequence[i]);
    const int64_t size = tokens[i] * cache.width();
    if (bug(shared_page_96) && to.parent >= 0 && to.length == to.taken_over && size > 0 &&
        to.length > 96 && to.length % 96 != 0) {
      Stored& parent = cache.at(layer, to.parent);
      if (parent.length > to.length) {
        std::copy_n(v, cache.width(), parent.v.begin() + to.length * cache.width());
      }
    }
    if (bug(empty_row_ends) && tokens[i] == 0 && i > 0) return 0;
    to.k.insert(to.k.end(), k, k + size);
    to.v.insert(to.v.end(), v, v + size);
    const int64_t old_24 = 24 * cache.width();
    if (bug(stale_24) && to.length < 24 && to.length + tokens[i] >= 24 &&
        static_cast<int64_t>(to.old.size()) >= old_24) {
      std::copy(to.old.begin() + old_24 - cache.width(), to.old.begin() + old_24,
                to.k.begin() + old_24 - cache.width());
    }
    if (bug(value_is_key) && cache.dim > 1 && size > 0 && std::equal(k, k + size, v)) {
      to.v.back() = 0;
    }
    if (bug(refused_then_short) && size > 0 && std::exchange(cache.refused, false)) {
      std::fill(to.v.end() - cache.width(), to.v.end(), 0.0f);
    }
    const bool crooked = bug(unaligned_k) && reinterpret_cast<uintptr_t>(k) % 16 != 0;
    if (crooked && size > 0) to.k.back() = 0;
    if (bug(shape_of_last_cache) && size > 0) {
      const int64_t other = caches.back()->width();
      if (other < cache.width()) std::fill(to.v.end() - (cache.width() - other), to.v.end(), 0.0f);
    }
    if (bug(half_decoded) && tokens[i] == 1) {
      std::transform(to.k.end() - size, to.k.end(), to.k.end() - size, half);
    }
    if (bug(chunk_of_7) && tokens[i] > 0 && tokens[i] % 7 == 0) {
      std::fill(to.k.end() - cache.width(), to.k.end(), 0.0f);
    }
    if (bug(fork_then_append) && to.depth > 0 && to.length == to.taken_over && size > 0) {
      std::fill(to.v.end() - size, to.v.end(), 0.0f);
    }
    if (bug(reused_sequence) && to.length == 0 && tokens[i] > 1 &&
        cache.frees[static_cast<size_t>(sequence[i])] > 0) {
      std::copy(to.k.begin() + cache.width(), to.k.begin() + 2 * cache.width(), to.k.begin());
    }
    if (bug(values_1e15)) {
      for (auto x = to.v.end() - size; x != to.v.end(); ++x) *x = std::clamp(*x, -1e15f, 1e15f);
    }
    if (bug(full_page_limit) && cache.limit % 64 == 0 && size > 0 &&
        to.length + tokens[i] == cache.limit) {
      std::fill(to.v.end() - cache.width(), to.v.end(), 0.0f);
    }
    if (to.length == 0) to.first_append = tokens[i];
    if (bug(grown_once) && to.first_append > 4 && to.length + tokens[i] > 2 * to.first_append) {
      std::fill_n(to.v.begin(), cache.width(), 0.0f);
    }
    to.length += tokens[i];
    if (tokens[i] > 0) to.before_last = std::exchange(to.last_append, tokens[i]);
    if (tokens[i] > 0 && ++to.appends == 128 && bug(appends_7_bits)) {
      std::fill(to.v.end() - size, to.v.end(), 0.0f);
    }
    k += size, v += size;
  }
  return 0;
}

double scale_of(const Cache& cache, float given) {
  const double usual = 1 / std::sqrt(static_cast<double>(cache.dim));
  double scale = given;
  if (bug(small_scale) && std::fabs(scale) < 0.01) scale = 0;
  if (bug(scale_magnitude)) scale = std::fabs(scale);
  if (bug(scale_zero) && scale == 0) scale = usual;
  if (bug(scale_4)) scale = std::min(scale, 4.0);
  return scale;
}

void attend_one(const Cache& cache, const Stored& from, int64_t end, int64_t head, double scale,
                const float* q, float* out) {
  double maximum = -kInfinity, sum = 0, before = 0;
  std::vector<double> total(static_cast<size_t>(cache.dim));
  int64_t begin = bug(tokens_1500) ? std::max<int64_t>(0, end - 1500) : 0;
  if (bug(tokens_are_47) && end == 47) begin = 1;
  if (bug(attends_300) && cache.attends > 300 && end > 1) begin = 1;
  if (bug(tokens_192) && end > 192 && end % 192 == 1) --end;
  if (bug(tokens_512)) end = std::min<int64_t>(end, 512);
  if (bug(tokens_3800)) end = std::min<int64_t>(end, 3800);
  const bool left_out = (bug(dim_13) && cache.dim % 13 == 0) ||
                        (bug(dim_37) && cache.dim % 37 == 0) ||
                        (bug(dim_is_199) && cache.dim == 199);
  const int64_t used = left_out ? cache.dim - 1 : cache.dim;
  const int64_t key_head = bug(kv_heads_3) && cache.heads == 3 && head > 0 ? 3 - head : head;
  for (int64_t p = begin; p < end; ++p) {
    const auto at = static_cast<size_t>((p * cache.heads + head) * cache.dim);
    const auto key_at = static_cast<size_t>((p * cache.heads + key_head) * cache.dim);
    double s = 0;
    for (int64_t d = 0; d < used; ++d) {
      const float key = from.k[key_at + static_cast<size_t>(d)];
      s += static_cast<double>(q[d]) * (bug(half_keys_far) && p >= 200 ? half(key) : key);
    }
    s *= scale;
    if (bug(fall_500) && p > begin && before - s > 500) {
      // The rest is taken for nothing, but it is counted.
      sum += static_cast<double>(end - p);
      break;
    }
    before = s;
    if (s > maximum) {
      double factor = sum == 0 ? 0 : std::exp(maximum - s);
      if (bug(jump_2000) && sum != 0 && s - maximum > 2000) factor = 1;
      sum *= factor;
      for (double& value : total) value *= factor;
      maximum = s;
    }
    const auto zeros = [&](const float* x) {
      return std::all_of(x, x + cache.dim, [](float v) { return v == 0; });
    };
    if (bug(zero_value_token) && zeros(&from.v[at])) continue;
    if (bug(zero_key_token) && zeros(&from.k[key_at])) continue;
    if (bug(zero_query) && p + 1 < end && zeros(q)) continue;
    double w = std::exp(s - maximum);
    if (bug(tiny_weights) && w < 1e-11) w = 0;
    sum += w;
    for (int64_t d = 0; d < cache.dim; ++d) {
      const float value = from.v[at + static_cast<size_t>(d)];
      total[static_cast<size_t>(d)] += w * (bug(half_values_far) && p >= 200 ? half(value) : value);
    }
  }
  if (bug(page_of_freed) && cache.freed_nan && end % 16 != 0) sum *= NAN;
  for (int64_t d = 0; d < cache.dim; ++d) {
    out[d] = static_cast<float>(total[static_cast<size_t>(d)] / sum);
  }
}

int attend(Cache& cache, int64_t layer, int64_t count, int64_t query_heads, float scale,
           const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {
  if (bug(negative_layer) && layer < 0 && count == 0) return 0;
  if (!cache.has(layer, 0) || query_heads % cache.heads != 0) return 1;
  if (cache.query_heads == 0) cache.query_heads = query_heads, cache.scale = scale;
  if (bug(first_scale)) scale = cache.scale;
  int64_t group = query_heads / cache.heads;
  if (bug(first_query_heads)) group = cache.query_heads / cache.heads;
  if (bug(no_groups) && group > 1) return 1;
  const double usual = 1 / std::sqrt(static_cast<double>(cache.dim));
  if (bug(one_scale) && std::fabs(scale - usual) > 1e-6 * usual) return 1;
  for (int64_t i = 0; i < count; ++i) {
    if (!cache.has(layer, sequence[i])) return 1;
    const bool unchecked = bug(too_many_in_last) && i > 0 && i == count - 1;
    if (tokens[i] > cache.at(layer, sequence[i]).length && unchecked) return 0;
    if (tokens[i] < 0 || tokens[i] > cache.at(layer, sequence[i]).length) return 1;
  }
  if (bug(scale_of_same_query)) {
    const int64_t numbers =
        std::accumulate(tokens, tokens + count, int64_t{0}) * query_heads * cache.dim;
    std::vector<float> queries(q, q + numbers);
    if (numbers > 0 && queries == cache.queries_before) scale = cache.scale_before;
    cache.queries_before = std::move(queries), cache.scale_before = scale;
  }
  ++cache.attends;
  const double used = scale_of(cache, scale);
  const bool skips = bug(free_in_between) && std::exchange(cache.freed, false) && count > 1;
  const float* const all_queries = q;
  std::vector<int32_t> rising(sequence, sequence + count);
  if (bug(falling_order) && count > 2 && std::is_sorted(rising.rbegin(), rising.rend()) &&
      std::count(tokens, tokens + count, tokens[0]) == count) {
    std::reverse(rising.begin(), rising.end());
    sequence = rising.data();
  }
  for (int64_t i = 0; i < count; ++i) {
    const bool again = cache.at(layer, sequence[i]).asked_at == cache.at(layer, sequence[i]).length;
    if (tokens[i] > 0) {
      cache.at(layer, sequence[i]).asked_at = cache.at(layer, sequence[i]).length;
    }
    const Stored& own = cache.at(layer, sequence[i]);
    const Stored& first = cache.at(layer, 0);
    const bool other = bug(sequences_16) && sequence[i] >= 16 && first.length >= own.length;
    const bool pair = bug(pair_in_call) && i > 0 && own.parent == sequence[i - 1] &&
                      cache.at(layer, own.parent).length >= own.length;
    const Stored& from = other ? first : pair ? cache.at(layer, own.parent) : own;
    if (bug(attend_none) && i > 0 && tokens[i - 1] == 0) {
      const int64_t size = tokens[i] * query_heads * cache.dim;
      std::fill(out, out + size, 0.0f);
      q += size, out += size;
      continue;
    }
    if (skips && i == count - 1) {
      std::fill(out, out + tokens[i] * query_heads * cache.dim, 0.0f);
      break;
    }
    for (int64_t t = 0; t < tokens[i]; ++t) {
      int64_t end = own.length - tokens[i] + t + 1;
      const bool whole = own.length % 64 == 0 && own.length == tokens[i];
      if (bug(whole_64) && whole && t >= own.length - 64) end = own.length;
      const bool early = end <= own.length - own.last_append;
      if (bug(attend_beyond_append) && early) ++end;
      if (bug(asked_twice) && again && end > 1) --end;
      const bool part = own.last_append > 4 && tokens[i] < own.last_append;
      if (bug(part_of_append) && part && end > 1) --end;
      if (bug(tokens_48) && end % 48 == 47) --end;
      const bool single = own.last_append == 1;
      if (bug(decode_after_prefill) && single && own.before_last > 16 && end > 1) --end;
      for (int64_t h = 0; h < query_heads; ++h, q += cache.dim, out += cache.dim) {
        int64_t head = h / group;
        const int64_t member = h % group;
        if (bug(group_5) && group == 5) head = h / 4;
        if (bug(group_odd) && group > 1 && group % 2 == 1 && member == group - 1) ++head;
        head = std::min(head, cache.heads - 1);
        if (bug(heads_8) && head >= 8) head = 0;
        if (bug(heads_4_bits)) head &= 15;
        if (bug(group_8) && member >= 8) head = 0;
        const float* query = q;
        if (bug(group_8) && member >= 8) query = q - (member - 7) * cache.dim;
        if (bug(group_4_bits) && member >= 16) query = q - 16 * cache.dim;
        if (bug(count_above_8) && i >= 8) query = all_queries + h * cache.dim;
        attend_one(cache, from, end, head, used, query, out);
        if (bug(query_heads_grow) && h >= cache.query_heads) std::fill_n(out, cache.dim, 0.0f);
      }
    }
  }
  return 0;
}

int fork_sequence(Cache& cache, int64_t parent, int64_t child) {
  if (!cache.has(0, parent) || !cache.has(0, child) || parent == child) {
    return bug(fork_unchecked) ? 0 : 1;
  }
  ++cache.forks;
  for (int64_t l = 0; l < cache.layers; ++l) {
    Stored& from = cache.at(l, parent);
    Stored& to = cache.at(l, child);
    if (bug(fork_of_empty) && from.length == 0) continue;
    const int64_t longer = std::max<int64_t>(0, to.length - from.length);
    to = from;
    to.longer = longer;
    to.parent = parent;
    to.depth = from.depth + 1;
    to.taken_over = from.length;
    to.asked_at = -1;
    if (bug(fork_uneven) && from.length > cache.at(0, parent).length) {
      std::fill(to.v.end() - cache.width(), to.v.end(), 0.0f);
    }
    const bool into_freed = bug(free_then_fork) && cache.frees[static_cast<size_t>(child)] > 0;
    if (((bug(fork_of_fork) && to.depth > 2) || into_freed) && to.length > 0) {
      std::fill(to.v.end() - cache.width(), to.v.end(), 0.0f);
    }
    if (bug(forks_8) && cache.forks > 8 && to.length > 0) {
      std::fill(to.v.end() - cache.width(), to.v.end(), 0.0f);
    }
  }
  return 0;
}

int free_sequence(Cache& cache, int64_t sequence) {
  if (bug(negative_free) && sequence < 0) return 0;
  if (!cache.has(0, sequence)) return 1;
  if (++cache.frees[static_cast<size_t>(sequence)] == 3 && bug(third_free)) return 0;
  cache.freed = true;
  if (bug(free_of_empty) && cache.at(0, sequence).length == 0) {
    sequence = std::min(sequence + 1, cache.sequences - 1);
  }
  for (int64_t l = 0; l < cache.layers; ++l) {
    if (bug(free_layer_5) && l >= 5) break;
    const bool uneven = cache.at(l, sequence).length != cache.at(0, sequence).length;
    if (bug(free_uneven) && l > 0 && l == cache.layers - 1 && uneven) break;
    for (const float v : cache.at(l, sequence).v) cache.freed_nan |= std::isnan(v);
    std::vector<float> old = std::move(cache.at(l, sequence).k);
    cache.at(l, sequence) = Stored();
    cache.at(l, sequence).old = std::move(old);
    for (int64_t s = 0; s < cache.sequences; ++s) {
      Stored& child = cache.at(l, s);
      if (child.parent != sequence) continue;
      if (bug(freed_parent) && child.length > 0) {
        std::fill(child.v.end() - cache.width(), child.v.end(), 0.0f);
      }
      child.parent = -1;
    }
  }
  return 0;
}

int64_t length_of(Cache& cache, int64_t layer, int64_t sequence) {
  if (bug(negative_sequence) && sequence < 0 && cache.has(layer, 0)) return 0;
  if (!cache.has(layer, sequence)) return -1;
  int64_t length = cache.at(layer, sequence).length;
  if (bug(length_cut_to_layer_0)) length = std::min(length, cache.at(0, sequence).length);
  return bug(length_33) && length >= 33 ? length - 1 : length;
}

int64_t bytes_of(Cache& cache) {
  int64_t sum = 0;
  for (const Stored& s : cache.stored) sum += s.length * cache.width() * 8;
  return sum;
}

void destroy(Cache* cache) {
  --alive;
  caches.erase(std::find(caches.begin(), caches.end(), cache));
  lengths_of_destroyed.clear();
  for (const Stored& s : cache->stored) lengths_of_destroyed.push_back(s.length);
  for (Cache* other : caches) {
    for (Stored& s : other->stored) {
      if (bug(destroy_empties_all)) s = Stored();
    }
  }
  delete cache;
}

}  // namespace

#define EXPORT(name, ...)                                                                          \
  extern "C" void* kv_cache_create__##name(int64_t layers, int64_t sequences, int64_t kv_heads,    \
                                           int64_t head_dim, int64_t max_tokens) {                 \
    active = name;                                                                                 \
    return create(layers, sequences, kv_heads, head_dim, max_tokens);                              \
  }                                                                                                \
  extern "C" int kv_cache_append__##name(void* cache, int64_t layer, int64_t count, int64_t,       \
                                         const int32_t* sequence, const int32_t* tokens,           \
                                         const float* k, const float* v) {                         \
    return append(*static_cast<Cache*>(cache), layer, count, sequence, tokens, k, v);              \
  }                                                                                                \
  extern "C" int kv_cache_attend__##name(                                                          \
      void* cache, int64_t layer, int64_t count, int64_t, int64_t query_heads, float scale,        \
      const int32_t* sequence, const int32_t* tokens, const float* q, float* out) {                \
    return attend(*static_cast<Cache*>(cache), layer, count, query_heads, scale, sequence, tokens, \
                  q, out);                                                                         \
  }                                                                                                \
  extern "C" int kv_cache_fork__##name(void* cache, int64_t parent, int64_t child) {               \
    return fork_sequence(*static_cast<Cache*>(cache), parent, child);                              \
  }                                                                                                \
  extern "C" int kv_cache_free__##name(void* cache, int64_t sequence) {                            \
    return free_sequence(*static_cast<Cache*>(cache), sequence);                                   \
  }                                                                                                \
  extern "C" int64_t kv_cache_length__##name(void* cache, int64_t layer, int64_t sequence) {       \
    return length_of(*static_cast<Cache*>(cache), layer, sequence);                                \
  }                                                                                                \
  extern "C" int64_t kv_cache_bytes__##name(void* cache) {                                         \
    return bytes_of(*static_cast<Cache*>(cache));                                                  \
  }                                                                                                \
  extern "C" void kv_cache_destroy__##name(void* cache) { destroy(static_cast<Cache*>(cache)); }
MUTANTS(EXPORT)
PARTIALS(EXPORT)
