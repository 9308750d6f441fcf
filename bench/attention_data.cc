#include "bench/attention_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "bench/data.h"
#include "cache/codec.h"
#include "oracle/cached_attention.h"
#include "touchstone/cache/planner.h"
#include "touchstone/core/checked.h"

namespace touchstone::bench {
namespace {

// Pages of different content; the pool repeats them, since encoding all of it would take minutes.
constexpr std::int64_t kDistinctPages = 32;
// One (sequence, KV head) of so many is compared with float64.
constexpr std::int64_t kChecked = 2;

cache::LayerGroup layers_of(const std::string& format, std::int64_t kv_heads, std::int64_t dim) {
  const cache::CacheFormat formats = cache::parse_cache_format(format);
  return {.layers = 1,
          .kv_heads = kv_heads,
          .k_dim = dim,
          .v_dim = dim,
          .k = formats.k,
          .v = formats.v,
          .page_tokens = 16};
}

AttentionProblem gqa(Device device, const std::string& format, std::int64_t query_heads,
                     std::int64_t kv_heads, std::int64_t dim, std::int64_t batch,
                     std::int64_t tokens) {
  return {.format = format,
          .heads = std::to_string(query_heads) + "/" + std::to_string(kv_heads) + "x" +
                   std::to_string(dim),
          .layers = layers_of(format, kv_heads, dim),
          .query_heads = query_heads,
          .batch = batch,
          .tokens = tokens,
          .device = device};
}

// DeepSeek's: a latent of 512 and 64 rotated numbers; 16 heads are those of one of eight GPUs.
AttentionProblem mla(Device device, std::int64_t batch, std::int64_t tokens) {
  AttentionProblem problem = gqa(device, "bf16", 16, 1, 576, batch, tokens);
  problem.heads = "mla 16";
  problem.layers.v_dim = 512;
  problem.layers.k_is_v = true;
  return problem;
}

// Forks of one sequence.
AttentionProblem forks(Device device, std::int64_t batch, std::int64_t tokens,
                       std::int64_t shared) {
  AttentionProblem problem = gqa(device, "bf16", 32, 32, 128, batch, tokens);
  problem.heads += " fork";
  problem.shared = shared;
  return problem;
}

// One page with random content, encoded.
std::vector<std::byte> random_page(const cache::LayerGroup& layers, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  const cache::PageGeometry geometry = cache::page_geometry(layers);
  std::vector<std::byte> page(static_cast<std::size_t>(geometry.page_bytes));
  std::vector<float> x(static_cast<std::size_t>(std::max(layers.k_dim, layers.v_dim)));
  for (std::int64_t head = 0; head < layers.kv_heads; ++head) {
    for (std::int64_t slot = 0; slot < layers.page_tokens; ++slot) {
      const auto at = cache::token_offsets(layers, geometry, 0, head, slot);
      std::ranges::generate(x, [&] { return normal(random); });
      cache::encode(layers.k, layers.k_dim, x.data(), page.data() + at.k_values,
                    page.data() + at.k_scales);
      if (layers.k_is_v) continue;
      std::ranges::generate(x, [&] { return normal(random); });
      cache::encode(layers.v, layers.v_dim, x.data(), page.data() + at.v_values,
                    page.data() + at.v_scales);
    }
  }
  return page;
}

template <class T, class Value>
Tensor integers(Device device, std::int64_t count, const Value& value) {
  Tensor tensor = Tensor::empty({count}, dtype_of<T>);
  for (std::int64_t i = 0; i < count; ++i) {
    tensor.values<T>()[static_cast<std::size_t>(i)] = static_cast<T>(value(i));
  }
  return device.is_cuda() ? tensor.to(device) : std::move(tensor);
}

}  // namespace

std::int64_t AttentionProblem::minimal_bytes() const {
  const std::int64_t different =
      checked_add(shared, checked_mul(batch, tokens - shared, "bench: tokens"));
  const std::int64_t stored = checked_mul(cache::token_bytes_per_layer(layers), different);
  const std::int64_t each = query_heads * (2 * layers.k_dim + 4 * layers.v_dim);
  return checked_add(stored, checked_mul(batch, each), "bench: bytes");
}

std::vector<AttentionProblem> attention_problems(Device device, cases::Tier tier) {
  // A GPU has ten times the cache and a hundred times the bandwidth.
  const std::int64_t batch = device.is_cuda() ? 64 : 1;
  const std::int64_t tokens = device.is_cuda() ? 4096 : 32768;
  std::vector<AttentionProblem> list = {gqa(device, "bf16", 32, 8, 128, batch, tokens),
                                        gqa(device, "int8", 32, 8, 128, batch, 2 * tokens)};
  if (tier == cases::Tier::smoke) return list;
  list.push_back(gqa(device, "int4", 32, 8, 128, batch, 4 * tokens));
  list.push_back(gqa(device, "k8v4", 32, 8, 128, batch, 2 * tokens));
  list.push_back(gqa(device, "fp8", 32, 8, 128, batch, 2 * tokens));
  list.push_back(gqa(device, "bf16", 32, 32, 128, batch, tokens / 4));
  list.push_back(gqa(device, "int8", 32, 32, 128, batch, tokens / 2));
  list.push_back(gqa(device, "f32", 32, 8, 128, batch, tokens / 2));
  list.push_back(gqa(device, "bf16", 64, 8, 64, batch, 2 * tokens));
  list.push_back(gqa(device, "bf16", 32, 8, 128, 64, 512));
  if (device.is_cuda()) list.push_back(gqa(device, "bf16", 32, 8, 128, 1, 32768));
  list.push_back(mla(device, batch, 2 * tokens));
  list.push_back(device.is_cuda() ? forks(device, 64, 4096, 3584) : forks(device, 16, 2048, 1536));
  return list;
}

void set_shape(std::vector<AttentionProblem>& problems, std::int64_t batch, std::int64_t tokens,
               cases::Regime regime) {
  std::vector<AttentionProblem> result;
  for (AttentionProblem& problem : problems) {
    const bool known = std::ranges::any_of(result, [&](const AttentionProblem& other) {
      return other.heads == problem.heads && other.format == problem.format;
    });
    if (known || problem.shared > 0) continue;
    problem.batch = batch;
    problem.tokens = tokens;
    problem.regime = regime;
    result.push_back(problem);
  }
  problems = result;
}

AttentionData::AttentionData(const AttentionProblem& problem, std::int64_t page_tokens,
                             std::int64_t queries, std::uint64_t seed)
    : problem_(problem) {
  problem_.layers.page_tokens = page_tokens > 0 ? page_tokens : problem.tokens;
  std::mt19937_64 random(seed);
  make_pages(random);
  make_table(random);
  make_operands(queries, random);
}

// A page of a whole sequence is put together from the vectors of small ones, too.
void AttentionData::make_pages(std::mt19937_64& random) {
  const cache::LayerGroup& layers = problem_.layers;
  const cache::PageGeometry geometry = cache::page_geometry(layers);
  const std::int64_t pages = problem_.batch * ceil_div(problem_.tokens, layers.page_tokens);
  cache::LayerGroup small = layers;
  small.page_tokens = std::min<std::int64_t>(layers.page_tokens, 64);
  const cache::PageGeometry part = cache::page_geometry(small);
  std::vector<std::vector<std::byte>> distinct;
  for (std::int64_t i = 0; i < std::min(kDistinctPages, pages); ++i) {
    distinct.push_back(random_page(small, random));
  }
  host_pages_ = Tensor::empty({pages, geometry.page_bytes}, DType::u8);
  for (std::int64_t page = 0; page < pages; ++page) {
    std::byte* const to = static_cast<std::byte*>(host_pages_.data()) + page * geometry.page_bytes;
    for (std::int64_t slot = 0; slot < layers.page_tokens; slot += small.page_tokens) {
      const auto which = static_cast<std::size_t>(page * 7 + slot / 64) % distinct.size();
      const std::int64_t count = std::min(small.page_tokens, layers.page_tokens - slot);
      for (std::int64_t head = 0; head < layers.kv_heads; ++head) {
        const auto into = cache::token_offsets(layers, geometry, 0, head, slot);
        const auto from = cache::token_offsets(small, part, 0, head, 0);
        const auto copy = [&](std::int64_t t, std::int64_t f, std::int64_t bytes) {
          std::memcpy(to + t, distinct[which].data() + f, static_cast<std::size_t>(bytes * count));
        };
        copy(into.k_values, from.k_values, cache::value_bytes(layers.k, layers.k_dim));
        copy(into.k_scales, from.k_scales, cache::scale_bytes(layers.k, layers.k_dim));
        if (layers.k_is_v) continue;
        copy(into.v_values, from.v_values, cache::value_bytes(layers.v, layers.v_dim));
        copy(into.v_scales, from.v_scales, cache::scale_bytes(layers.v, layers.v_dim));
      }
    }
  }
  if (problem_.device.is_cuda()) device_pages_ = host_pages_.to(problem_.device);
}

// Shuffled, but for what sequences share.
void AttentionData::make_table(std::mt19937_64& random) {
  const cache::LayerGroup& layers = problem_.layers;
  const std::int64_t batch = problem_.batch;
  const std::int64_t each = ceil_div(problem_.tokens, layers.page_tokens);
  numbers_.resize(static_cast<std::size_t>(batch * each));
  std::iota(numbers_.begin(), numbers_.end(), 0);
  std::ranges::shuffle(numbers_, random);
  for (std::int64_t row = 1; row < batch; ++row) {
    std::copy_n(numbers_.begin(), problem_.shared / layers.page_tokens,
                numbers_.begin() + row * each);
  }
  table_ = integers<std::int32_t>(problem_.device, batch * each, [&](std::int64_t i) {
    return numbers_[static_cast<std::size_t>(i)];
  });
  lengths_ =
      integers<std::int64_t>(problem_.device, batch, [&](std::int64_t) { return problem_.tokens; });
  Tensor& pages = problem_.device.is_cuda() ? device_pages_ : host_pages_;
  group_ = {.memory = static_cast<std::byte*>(pages.data()),
            .pages = batch * each,
            .layer_group = layers,
            .geometry = cache::page_geometry(layers),
            .page_tokens = layers.page_tokens,
            .table_stride = each,
            .page_table = {static_cast<const std::int32_t*>(table_.data()), numbers_.size()}};
  args_.cache = {.device = problem_.device,
                 .rows = batch,
                 .lengths = {static_cast<const std::int64_t*>(lengths_.data()),
                             static_cast<std::size_t>(batch)},
                 .groups = {&group_, 1}};
}

void AttentionData::make_operands(std::int64_t queries, std::mt19937_64& random) {
  const cache::LayerGroup& layers = problem_.layers;
  const std::int64_t batch = problem_.batch;
  const Device device = problem_.device;
  query_offsets_ =
      integers<std::int64_t>(device, batch + 1, [&](std::int64_t i) { return i * queries; });
  positions_ = integers<std::int64_t>(device, batch * queries, [&](std::int64_t i) {
    return (i % queries + 1) * problem_.tokens / queries - 1;
  });
  query_ = Tensor::empty({batch * queries, problem_.query_heads, layers.k_dim}, DType::bf16);
  std::normal_distribution<float> normal;
  std::ranges::generate(query_.values<Bf16>(), [&] { return Bf16(normal(random)); });
  if (device.is_cuda()) query_ = query_.to(device);
  output_ =
      Tensor::empty({batch * queries, problem_.query_heads, layers.v_dim}, DType::f32, device);
  args_.q = query_;
  args_.query_offsets = query_offsets_;
  args_.positions = positions_;
  args_.output = output_;
}

AttentionData::Head AttentionData::head(std::int64_t row, std::int64_t kv_head) const {
  const cache::LayerGroup& layers = problem_.layers;
  const cache::Format& value_format = layers.k_is_v ? layers.k : layers.v;
  const auto* const memory = static_cast<const std::byte*>(host_pages_.data());
  Head result;
  std::vector<float> x(static_cast<std::size_t>(std::max(layers.k_dim, layers.v_dim)));
  for (std::int64_t t = 0; t < problem_.tokens; ++t) {
    const std::int64_t number =
        numbers_[static_cast<std::size_t>(row * group_.table_stride + t / layers.page_tokens)];
    const std::byte* const page = memory + number * group_.geometry.page_bytes;
    const auto at =
        cache::token_offsets(layers, group_.geometry, 0, kv_head, t % layers.page_tokens);
    cache::decode(layers.k, layers.k_dim, page + at.k_values, page + at.k_scales, x.data());
    result.keys.insert(result.keys.end(), x.begin(), x.begin() + layers.k_dim);
    cache::decode(value_format, layers.v_dim, page + at.v_values, page + at.v_scales, x.data());
    result.values.insert(result.values.end(), x.begin(), x.begin() + layers.v_dim);
  }
  return result;
}

double attention_error(Context& context, const AttentionProblem& problem, AttentionData& data,
                       const std::function<void()>& call) {
  poison(context, data.output());
  call();
  context.synchronize();
  const cache::LayerGroup& layers = problem.layers;
  const std::int64_t each = problem.query_heads / layers.kv_heads;
  const std::vector<double> output = doubles(data.output());
  const std::vector<double> queries = doubles(data.query());
  const std::int64_t pairs = problem.batch * layers.kv_heads;
  double error = 0;
  for (const std::int64_t pair : spread_sample(pairs, kChecked)) {
    const AttentionData::Head head = data.head(pair / layers.kv_heads, pair % layers.kv_heads);
    std::vector<double> expected(static_cast<std::size_t>(each * layers.v_dim));
    oracle::cached_attention<double>({.length = problem.tokens,
                                      .queries = 1,
                                      .query_heads = each,
                                      .kv_heads = 1,
                                      .k_dim = layers.k_dim,
                                      .v_dim = layers.v_dim,
                                      .query = queries.data() + pair * each * layers.k_dim,
                                      .keys = head.keys.data(),
                                      .values = head.values.data(),
                                      .scale = 1 / std::sqrt(static_cast<double>(layers.k_dim)),
                                      .output = expected.data()});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto at = static_cast<std::size_t>(pair * each * layers.v_dim) + i;
      const double off = std::fabs(output[at] - expected[i]);
      error = std::isnan(off) || off > error ? off : error;
    }
  }
  return error;
}

}  // namespace touchstone::bench
