#include "ops/attention_paged/paged_test_support.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "core/index.h"
#include "spec/attention/cached_attention.h"
#include "tests/support/guarded_call.h"
#include "touchstone/core/checked.h"

namespace touchstone::test {
namespace {

using Values = std::vector<double>;

// All bits set is NaN in every floating point format and in every scale.
constexpr std::byte kPoison{0xff};

// What the model would hand to the cache: one vector of one head, in f32.
std::vector<float> made_vector(std::uint64_t seed, std::int64_t position, std::int64_t head,
                               std::int64_t dim, double scale) {
  const Random random(seed);
  std::vector<float> result(at(dim));
  for (std::int64_t d = 0; d < dim; ++d) {
    result[at(d)] = static_cast<float>(scale * random.normal((position * 64 + head) * 1024 + d));
  }
  return result;
}

std::vector<float> made_key(const Scene& scene, const SceneRow& row, std::int64_t position,
                            std::int64_t head) {
  auto key = made_vector(row.seed_at(position) * 3, row.source_of(position), head,
                         scene.layers.k_dim, scene.key_scale);
  if (head == 0 && row.keys.contains(position)) key[0] = row.keys.at(position);
  return key;
}

std::vector<float> made_value(const Scene& scene, const SceneRow& row, std::int64_t position,
                              std::int64_t head) {
  auto value = made_vector(row.seed_at(position) * 3 + 1, row.source_of(position), head,
                           scene.layers.v_dim, 1);
  if (head == 0 && row.values.contains(position)) value[0] = row.values.at(position);
  return value;
}

Values made_queries(const Scene& scene) {
  Values result;
  for (const SceneRow& row : scene.rows) {
    for (std::int64_t query = 0; query < row.queries; ++query) {
      for (std::int64_t head = 0; head < scene.query_heads; ++head) {
        // Positions may be anything; data is made for those that a row can have.
        const auto position =
            std::clamp<std::int64_t>(row.query_source(query), 0, std::int64_t{1} << 20);
        auto q = made_vector(row.seed_at(position) * 3 + 2, row.source_of(position), head,
                             scene.layers.k_dim, 1);
        for (std::size_t i = 0; scene.query_number && i < q.size(); ++i) {
          q[i] = static_cast<float>(scene.query_number(head, static_cast<std::int64_t>(i), q[i]));
        }
        result.insert(result.end(), q.begin(), q.end());
      }
    }
  }
  return result;
}

// A Walsh-Hadamard transform by its definition: entry (i, j) is -1 to the number of ones of i & j.
Values rotated(const std::vector<float>& x) {
  const std::int64_t block = cache::rotation_block(std::ssize(x));
  Values result(x.size());
  for (std::int64_t i = 0; i < std::ssize(x); ++i) {
    for (std::int64_t j = i / block * block; j < (i / block + 1) * block; ++j) {
      const bool odd = std::popcount(static_cast<std::uint64_t>(i & j & (block - 1))) % 2 == 1;
      result[at(i)] += static_cast<double>(odd ? -x[at(j)] : x[at(j)]);
    }
    result[at(i)] /= std::sqrt(static_cast<double>(block));
  }
  return result;
}

// A vector as its format keeps it.
struct StoredVector {
  std::vector<std::byte> values;
  std::vector<std::byte> scales;

  StoredVector(const QuantFormat& format, const std::vector<float>& x)
      : values(at(cache::value_bytes(format, std::ssize(x)))),
        scales(at(cache::scale_bytes(format, std::ssize(x)))) {
    cache::encode(format, std::ssize(x), x.data(), values.data(), scales.data());
  }
  std::vector<float> decoded(const QuantFormat& format, std::int64_t dim) const {
    std::vector<float> x(at(dim));
    cache::decode(format, dim, values.data(), scales.data(), x.data());
    return x;
  }
};

StoredVector stored_key(const Scene& scene, const SceneRow& row, std::int64_t position,
                        std::int64_t head) {
  std::vector<float> key = made_key(scene, row, position, head);
  if (scene.layers.rotate_keys) cache::rotate(key.data(), scene.layers.k_dim);
  return {scene.layers.k, key};
}

Values tree_words(const Scene& scene) {
  std::int64_t words = 1;
  for (const SceneRow& row : scene.rows) {
    for (const auto& bits : row.tree) words = std::max(words, ceil_div(std::ssize(bits), 64));
  }
  Values result;
  for (const SceneRow& row : scene.rows) {
    for (std::int64_t query = 0; query < row.queries; ++query) {
      std::vector<std::uint64_t> mask(at(words));
      for (std::size_t j = 0; j < row.tree.at(at(query)).size(); ++j) {
        if (row.tree[at(query)][j]) mask[j / 64] |= std::uint64_t{1} << (j % 64);
      }
      for (const std::uint64_t word : mask) result.push_back(std::bit_cast<double>(word));
    }
  }
  return result;
}

void copy_into(std::vector<std::byte>& memory, std::int64_t offset,
               const std::vector<std::byte>& bytes) {
  std::ranges::copy(bytes, memory.begin() + offset);
}

Tensor on_test_device(const void* data, std::int64_t bytes) {
  Tensor tensor = Tensor::empty({bytes}, DType::u8);
  std::memcpy(tensor.data(), data, at(bytes));
  return test_device().is_cuda() ? tensor.to(test_device()) : std::move(tensor);
}

}  // namespace

std::int64_t SceneRow::position_of(std::int64_t query) const {
  return positions.empty() ? length - queries + query : positions[at(query)];
}

std::int64_t SceneRow::query_source(std::int64_t query) const {
  return query_slots.empty() ? position_of(query) : query_slots[at(query)];
}

std::int64_t SceneRow::source_of(std::int64_t position) const {
  const auto found = stands_for.find(position);
  return found == stands_for.end() ? position : found->second;
}

std::uint64_t SceneRow::seed_at(std::int64_t position) const {
  return own_seed != 0 && position >= forked_at ? own_seed : seed;
}

std::int64_t Scene::queries() const {
  std::int64_t result = 0;
  for (const SceneRow& row : rows) result += row.queries;
  return result;
}

StoredRow stored_row(const Scene& scene, const SceneRow& row) {
  const cache::LayerGroup& layers = scene.layers;
  StoredRow result;
  for (std::int64_t position = 0; position < row.length; ++position) {
    for (std::int64_t head = 0; head < layers.kv_heads; ++head) {
      const StoredVector stored = stored_key(scene, row, position, head);
      const auto key = stored.decoded(layers.k, layers.k_dim);
      const Values plain = layers.rotate_keys ? rotated(key) : Values(key.begin(), key.end());
      result.keys.insert(result.keys.end(), plain.begin(), plain.end());
      const QuantFormat& format = layers.k_is_v ? layers.k : layers.v;
      const StoredVector as_value =
          layers.k_is_v ? stored : StoredVector(format, made_value(scene, row, position, head));
      const auto value = as_value.decoded(format, layers.v_dim);
      result.values.insert(result.values.end(), value.begin(), value.end());
      if (on_gpu() && spec::decoded_with_offset(format)) {
        spec::append_group_sizes(format, layers.v_dim, as_value.scales.data(), result.sizes);
      }
    }
  }
  return result;
}

// Pages are dealt out in shuffled order. A fork takes those of the first row of its seed as far as
// they hold nothing of its own.
void AttentionRun::store_pages(const Scene& scene, const Placement& placement) {
  const cache::LayerGroup& layers = scene.layers;
  const std::int64_t page_tokens = layers.page_tokens;
  const cache::PageGeometry geometry = cache::page_geometry(layers);
  std::int64_t pages = placement.spare_pages;
  for (const SceneRow& row : scene.rows) {
    pages += ceil_div(row.length, page_tokens);
    table_stride_ = std::max(table_stride_, ceil_div(row.length, page_tokens) + 1);
    lengths_.push_back(row.length);
  }
  std::vector<std::int32_t> numbers(at(pages));
  std::iota(numbers.begin(), numbers.end(), static_cast<std::int32_t>(placement.first_page));
  for (std::int64_t i = pages - 1; i > 0; --i) {
    const auto j = Random(placement.seed).bits(i) % static_cast<std::uint64_t>(i + 1);
    std::swap(numbers[at(i)], numbers[j]);
  }
  first_page_ = placement.first_page;
  pages_.assign(at(pages * geometry.page_bytes), kPoison);
  table_.assign(at(std::ssize(scene.rows) * table_stride_), -1);

  std::map<std::uint64_t, std::size_t> first_of_seed;
  std::size_t next = 0;
  for (std::size_t r = 0; r < scene.rows.size(); ++r) {
    const SceneRow& row = scene.rows[r];
    const std::size_t model = first_of_seed.try_emplace(row.seed, r).first->second;
    const SceneRow& other = scene.rows[model];
    const std::int64_t alike = std::min(row.own_seed != 0 ? row.forked_at : row.length,
                                        other.own_seed != 0 ? other.forked_at : other.length);
    std::int32_t* const numbers_of_row = table_.data() + r * at(table_stride_);
    for (std::int64_t position = 0; position < row.length; ++position) {
      const std::int64_t page = position / page_tokens;
      if (placement.share && model != r && (page + 1) * page_tokens <= alike) {
        numbers_of_row[page] = table_[model * at(table_stride_) + at(page)];
        continue;
      }
      if (position % page_tokens == 0) numbers_of_row[page] = numbers[next++];
      if (row.poisoned.contains(position)) continue;
      const std::int64_t begin = (numbers_of_row[page] - first_page_) * geometry.page_bytes;
      for (std::int64_t head = 0; head < layers.kv_heads; ++head) {
        const auto to =
            cache::token_offsets(layers, geometry, args.layer, head, position % page_tokens);
        const StoredVector key = stored_key(scene, row, position, head);
        copy_into(pages_, begin + to.k_values, key.values);
        copy_into(pages_, begin + to.k_scales, key.scales);
        if (layers.k_is_v) continue;
        const StoredVector value(layers.v, made_value(scene, row, position, head));
        copy_into(pages_, begin + to.v_values, value.values);
        copy_into(pages_, begin + to.v_scales, value.scales);
      }
    }
  }
}

// With causality and no tree.
void AttentionRun::give_up_pages(const Scene& scene) {
  const cache::LayerGroup& layers = scene.layers;
  for (std::size_t r = 0; r < scene.rows.size(); ++r) {
    const SceneRow& row = scene.rows[r];
    for (std::int64_t page = 0; page < table_stride_; ++page) {
      bool seen = false;
      for (std::int64_t t = page * layers.page_tokens; t < (page + 1) * layers.page_tokens; ++t) {
        for (std::int64_t i = 0; i < row.queries; ++i) {
          const std::int64_t p = row.position_of(i);
          seen = seen || (t < row.length && t <= p &&
                          (layers.window == 0 || t > p - layers.window || t < layers.sinks));
        }
      }
      if (!seen) table_[r * at(table_stride_) + at(page)] = -1;
    }
  }
}

void AttentionRun::make_view(const Scene& scene) {
  const std::int64_t rows = std::ssize(scene.rows);
  const cache::PageGeometry geometry = cache::page_geometry(scene.layers);
  device_pages_ = on_test_device(pages_.data(), std::ssize(pages_));
  device_table_ = on_test_device(table_.data(), std::ssize(table_) * 4);
  device_lengths_ = on_test_device(lengths_.data(), rows * 8);
  group_ = {
      .memory = static_cast<std::byte*>(device_pages_.data()) - first_page_ * geometry.page_bytes,
      .pages = first_page_ + std::ssize(pages_) / geometry.page_bytes,
      .layer_group = scene.layers,
      .geometry = geometry,
      .page_tokens = scene.layers.page_tokens,
      .table_stride = table_stride_,
      .page_table = {static_cast<const std::int32_t*>(device_table_.data()), table_.size()}};
  args.cache = {.device = test_device(),
                .rows = rows,
                .lengths = {static_cast<const std::int64_t*>(device_lengths_.data()), at(rows)},
                .groups = {&group_, 1}};
}

AttentionRun::AttentionRun(const Scene& scene, Placement placement) : scene_(scene) {
  const cache::LayerGroup& layers = scene.layers;
  const Device device = test_device();
  const std::int64_t n = scene.queries();
  const auto rows = std::ssize(scene.rows);
  args.layer = layers.layers - 1;  // not the first, where there are more
  store_pages(scene, placement);
  if (placement.give_up) give_up_pages(scene);
  make_view(scene);

  Values starts{0};
  Values places;
  Values tree_begins;
  bool any_positions = false;
  bool any_tree = false;
  for (const SceneRow& row : scene.rows) {
    starts.push_back(starts.back() + static_cast<double>(row.queries));
    any_positions = any_positions || !row.positions.empty();
    any_tree = any_tree || !row.tree.empty();
    tree_begins.push_back(static_cast<double>(row.tree_start));
    for (std::int64_t i = 0; i < row.queries; ++i) {
      places.push_back(static_cast<double>(row.position_of(i)));
    }
  }
  query = Guarded(device, scene.query_dtype, {n, scene.query_heads * layers.k_dim},
                  made_queries(scene), scene.layout);
  query_offsets = Guarded(device, DType::i64, {rows + 1}, starts);
  if (any_positions) positions = Guarded(device, DType::i64, {n}, places);
  if (any_tree) {
    // As f64, so that all 64 bits arrive; then looked at as words.
    const Values words = tree_words(scene);
    tree =
        Guarded(device, DType::f64, {n, std::ssize(words) / std::max<std::int64_t>(n, 1)}, words);
    if (scene.give_tree_starts) tree_starts = Guarded(device, DType::i64, {rows}, tree_begins);
  }
  if (scene.sink_logits) {
    sink_logits =
        Guarded(device, DType::f32, {scene.query_heads}, random_values({}, scene.query_heads, 99));
  }
  output = Guarded(device, scene.output_dtype, {n, scene.query_heads * layers.v_dim}, scene.layout);
  if (scene.log_sum_exp) log_sum_exp = Guarded(device, DType::f32, {n, scene.query_heads});

  const auto heads_apart = [&](auto view, std::int64_t dim) {
    view.rank = 3;
    view.shape[1] = scene.query_heads;
    view.shape[2] = dim;
    view.stride[1] = dim;
    view.stride[2] = 1;
    return view;
  };
  args.q = heads_apart(query.view(), layers.k_dim);
  args.query_offsets = query_offsets;
  args.positions = positions;
  args.tree = tree;
  args.tree.dtype = DType::i64;
  args.tree_starts = tree_starts;
  args.sink_logits = sink_logits;
  args.output = heads_apart(output.view(), layers.v_dim);
  args.log_sum_exp = log_sum_exp;
  args.scale = scene.scale;
  args.soft_cap = scene.soft_cap;
  args.causal = scene.causal;
}

std::vector<std::string> AttentionRun::accepting() {
  Runner context({.device = test_device()});
  return accepting_names("cached_attention", explain(context, args));
}

void AttentionRun::run(Runner& context) {
  run_guarded(context, "cached_attention",
              {&query, &query_offsets, &positions, &tree, &tree_starts, &sink_logits},
              {&output, &log_sum_exp}, [&] { cached_attention(context, context.with(args)); });
  const Tensor pages = device_pages_.to(Device::cpu());
  EXPECT_EQ(std::memcmp(pages.data(), pages_.data(), pages_.size()), 0) << "pages were written";
}

std::vector<std::byte> AttentionRun::row_bytes(std::int64_t row) const {
  std::int64_t first = 0;
  for (std::int64_t r = 0; r < row; ++r) first += scene_.rows[at(r)].queries;
  return query_bytes(first, scene_.rows[at(row)].queries);
}

std::vector<std::byte> AttentionRun::query_bytes(std::int64_t first, std::int64_t count) const {
  std::vector<std::byte> result;
  for (const Guarded* from : {&output, &log_sum_exp}) {
    if (!from->defined()) continue;
    const std::vector<std::byte> bytes = from->bytes();
    const std::int64_t per_query = std::ssize(bytes) / scene_.queries();
    result.insert(result.end(), bytes.begin() + first * per_query,
                  bytes.begin() + (first + count) * per_query);
  }
  return result;
}

void AttentionRun::make_expectation(const Scene& scene) {
  const cache::LayerGroup& layers = scene.layers;
  const Values queries = query.values();
  const Values sinks = sink_logits.values();
  std::int64_t first = 0;
  for (const SceneRow& row : scene.rows) {
    const StoredRow stored = stored_row(scene, row);
    std::vector<unsigned char> seen;
    for (const auto& bits : row.tree) {
      for (std::int64_t t = 0; t < row.length - row.tree_start; ++t) {
        seen.push_back(t < std::ssize(bits) && bits[at(t)] ? 1 : 0);
      }
    }
    const std::int64_t width = scene.query_heads * layers.k_dim;
    const spec::CachedAttentionValues values{
        {queries.begin() + first * width, queries.begin() + (first + row.queries) * width},
        stored.keys,
        stored.values,
        stored.sizes};
    const spec::CachedAttentionReference expected = spec::cached_attention_reference(
        {.length = row.length,
         .queries = row.queries,
         .query_heads = scene.query_heads,
         .kv_heads = layers.kv_heads,
         .k_dim = layers.k_dim,
         .v_dim = layers.v_dim,
         .scale = scene.scale,
         .soft_cap = scene.soft_cap,
         .causal = scene.causal,
         .window = layers.window,
         .sinks = layers.sinks,
         .positions = row.positions.empty() ? nullptr : row.positions.data(),
         .tree = row.tree.empty() ? nullptr : seen.data(),
         .tree_start = row.tree_start,
         .sink_logits = sinks.empty() ? nullptr : sinks.data()},
        values, scene.output_dtype);
    const auto append = [](Expected& to, const Expected& from) {
      to.value.insert(to.value.end(), from.value.begin(), from.value.end());
      to.bound.insert(to.bound.end(), from.bound.begin(), from.bound.end());
    };
    append(expected_output_, expected.output);
    append(expected_log_sum_exp_, expected.log_sum_exp);
    first += row.queries;
  }
}

testing::AssertionResult AttentionRun::is_right() {
  if (expected_output_.value.empty()) make_expectation(scene_);
  const std::int64_t cols = scene_.query_heads * scene_.layers.v_dim;
  auto result = close(output.values(), expected_output_, scene_.output_dtype, cols);
  if (!result || !log_sum_exp.defined()) return result;
  return close(log_sum_exp.values(), expected_log_sum_exp_, DType::f32, scene_.query_heads)
         << " (log-sum-exp)";
}

void check_scene(const Scene& scene, Placement placement) {
  AttentionRun run(scene, placement);
  for_each_runner(run.accepting(), [&](Runner& context) {
    run.run(context);
    EXPECT_TRUE(run.is_right());
  });
}

Scene only_row(const Scene& scene, std::int64_t row) {
  Scene result = scene;
  result.rows = {scene.rows[at(row)]};
  return result;
}

}  // namespace touchstone::test
