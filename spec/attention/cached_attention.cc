// cached_attention: sequences x tokens of each, some query tokens per sequence.
#include "touchstone/ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "cache/codec.h"
#include "core/index.h"
#include "oracle/cached_attention.h"
#include "spec/attention/cached_attention.h"
#include "spec/attention/paged.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::spec {
namespace {

// From this many queries of a row on arithmetic counts, not bytes.
constexpr std::int64_t kPrefillQueries = 16;

// MLA: a latent of 512 numbers, which are the value, and 64 rotated ones.
constexpr std::int64_t kLatentSize = 512;

class CachedAttention : public Problem {
 public:
  explicit CachedAttention(const cases::Case& item)
      : heads_text_(item.text("heads", "32/8x128")), format_(item.text("format", "bf16")) {
    item.check_options({"heads", "format", "mla", "shared", "page", "queries", "soft_cap", "scale",
                        "sink_logits", "window", "sinks", "output", "gap", "offset"});
    const std::vector<std::int64_t> dims = item.dims("x");
    rows_ = dims[0], length_ = dims[1];
    const HeadShape heads = parse_heads(heads_text_);
    query_heads_ = heads.query_heads;
    layers_ = layers_of(format_, heads.kv_heads, heads.dim, item.integer("page", 16));
    // One page per sequence: contiguous K and V.
    if (layers_.page_tokens == 0) layers_.page_tokens = length_;
    layers_.window = item.integer("window", 0);
    layers_.sinks = item.integer("sinks", 0);
    if (item.flag("mla", false)) {
      layers_.v_dim = kLatentSize;
      layers_.k_is_v = true;
      heads_text_ = "mla " + std::to_string(query_heads_);
    }
    shared_ = item.integer("shared", 0);
    if (shared_ > 0) heads_text_ += " fork";
    queries_ = std::min(item.integer("queries", 1), length_);
    soft_cap_ = item.number("soft_cap", 0);
    scale_ = item.number("scale", 0);
    sink_logits_ = item.flag("sink_logits", false);
    dtype_ = item.dtype;
    on_gpu_ = item.device == DeviceKind::cuda;
    output_ = item.dtype_option("output", DType::f32);
    table_ = {.rows = rows_,
              .each = ceil_div(length_, layers_.page_tokens),
              .shared = shared_ / layers_.page_tokens};
    // Queries spread over the sequence, or the last one: the work of a sequence without a cache.
    checked_mul(rows_, length_, "shape");
  }

  enum : std::size_t {
    kQuery,
    kOffsets,
    kPositions,
    kPages,
    kTable,
    kLengths,
    kSinks,
    kOutput,
    kLogSumExp,
    kCount
  };

  std::vector<Operand> operands() const override {
    const auto i64 = [](const char* name, std::int64_t count, auto value) {
      return control_operand(name, DType::i64, {count}, value);
    };
    const std::int64_t tokens = rows_ * queries_;
    std::vector<Operand> list(kCount);
    list[kQuery] = {.name = "q", .dtype = dtype_, .shape = {tokens, query_heads_, layers_.k_dim}};
    list[kOffsets] =
        i64("query_offsets", rows_ + 1, [n = queries_](std::int64_t i) { return i * n; });
    list[kPositions] = i64("positions", tokens, [n = queries_, length = length_](std::int64_t i) {
      return (i % n + 1) * length / n - 1;
    });
    list[kPages] = page_operand(layers_, table_.pages(), 10);
    list[kTable] = table_.operand();
    list[kLengths] = i64("lengths", rows_, [length = length_](std::int64_t) { return length; });
    if (sink_logits_) list[kSinks] = {.name = "sink_logits", .shape = {query_heads_}};
    list[kOutput] = {.name = "output",
                     .dtype = output_,
                     .shape = {tokens, query_heads_, layers_.v_dim},
                     .output = true};
    list[kLogSumExp] = {.name = "log_sum_exp", .shape = {tokens, query_heads_}, .output = true};
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    const PagedView paged(layers_, v[kPages], v[kTable], v[kLengths], v[kLengths]);
    return invoke(cached_attention, args(paged, v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    OutputReference output{kOutput, {}, {}}, lse{kLogSumExp, {}, {}};
    const std::int64_t pairs = rows_ * layers_.kv_heads;
    const std::int64_t group = query_heads_ / layers_.kv_heads;
    const std::vector<double> sinks = reader.all(kSinks);
    for (const std::int64_t pair : spread_sample(pairs, sample == kAllRows ? pairs : 2)) {
      const std::int64_t row = pair / layers_.kv_heads;
      const std::int64_t kv_head = pair % layers_.kv_heads;
      const CachedAttentionReference expected = head_reference(reader, row, kv_head, sinks);
      std::size_t from = 0;
      for (std::int64_t q = 0; q < queries_; ++q) {
        for (std::int64_t h = 0; h < group; ++h) {
          const std::int64_t to = (row * queries_ + q) * query_heads_ + kv_head * group + h;
          lse.add(to, expected.log_sum_exp.value[from / at(layers_.v_dim)],
                  expected.log_sum_exp.bound[from / at(layers_.v_dim)]);
          for (std::int64_t d = 0; d < layers_.v_dim; ++d, ++from) {
            output.add(to * layers_.v_dim + d, expected.output.value[from],
                       expected.output.bound[from]);
          }
        }
      }
    }
    return {std::move(output), std::move(lse)};
  }

  // The stored K and V, scales included, once; query and output.
  Cost cost() const override {
    const std::int64_t different = checked_add(shared_, checked_mul(rows_, length_ - shared_));
    const std::int64_t stored = checked_mul(cache::token_bytes_per_layer(layers_), different);
    const std::int64_t each =
        query_heads_ * (size_of(dtype_) * layers_.k_dim + size_of(output_) * layers_.v_dim);
    const std::int64_t bytes = checked_add(stored, checked_mul(rows_ * queries_, each), "bytes");
    if (queries_ < kPrefillQueries) return {.bytes = bytes, .only_reads = true};
    double attended = 0;
    for (std::int64_t q = 0; q < queries_; ++q) {
      attended += static_cast<double>((q + 1) * length_ / queries_);
    }
    const auto vectors = static_cast<double>(rows_ * query_heads_);
    const auto numbers = static_cast<double>(layers_.k_dim + layers_.v_dim);
    return {.bytes = bytes, .flops = 2 * vectors * numbers * attended};
  }
  Labels labels() const override {
    return {.rows = rows_, .cols = length_, .heads = heads_text_, .format = format_};
  }

 private:
  CachedAttentionReference head_reference(const Reader& reader, std::int64_t row,
                                          std::int64_t kv_head,
                                          const std::vector<double>& sinks) const {
    const std::int64_t group = query_heads_ / layers_.kv_heads;
    CachedAttentionValues values;
    std::vector<float> x(at(std::max(layers_.k_dim, layers_.v_dim)));
    const cache::PageGeometry geometry = cache::page_geometry(layers_);
    std::vector<std::byte> page;
    const auto& value_format = layers_.k_is_v ? layers_.k : layers_.v;
    for (std::int64_t t = 0; t < length_; ++t) {
      const std::int64_t slot = t % layers_.page_tokens;
      if (slot == 0) {
        page = reader.bytes(kPages, table_.page(row, t / layers_.page_tokens) * geometry.page_bytes,
                            geometry.page_bytes);
      }
      const auto from = cache::token_offsets(layers_, geometry, 0, kv_head, slot);
      cache::decode(layers_.k, layers_.k_dim, page.data() + from.k_values,
                    page.data() + from.k_scales, x.data());
      values.keys.insert(values.keys.end(), x.begin(), x.begin() + layers_.k_dim);
      cache::decode(value_format, layers_.v_dim, page.data() + from.v_values,
                    page.data() + from.v_scales, x.data());
      values.values.insert(values.values.end(), x.begin(), x.begin() + layers_.v_dim);
      if (on_gpu_ && decoded_with_offset(value_format)) {
        append_group_sizes(value_format, layers_.v_dim, page.data() + from.v_scales, values.sizes);
      }
    }
    std::vector<std::int64_t> positions;
    for (std::int64_t q = 0; q < queries_; ++q) {
      positions.push_back((q + 1) * length_ / queries_ - 1);
      for (std::int64_t h = 0; h < group; ++h) {
        const std::vector<double> query =
            reader.row(kQuery, (row * queries_ + q) * query_heads_ + kv_head * group + h);
        values.query.insert(values.query.end(), query.begin(), query.end());
      }
    }
    oracle::CachedAttention<double> a;
    a.length = length_, a.queries = queries_, a.query_heads = group, a.kv_heads = 1;
    a.k_dim = layers_.k_dim, a.v_dim = layers_.v_dim;
    a.scale = scale_, a.soft_cap = soft_cap_;
    a.window = layers_.window, a.sinks = layers_.sinks;
    a.positions = positions.data();
    a.sink_logits = sinks.empty() ? nullptr : sinks.data() + kv_head * group;
    return cached_attention_reference(a, values, output_);
  }

  CachedAttentionArgs args(const PagedView& paged, Views v,
                           const std::string& implementation) const {
    CachedAttentionArgs args;
    args.q = v[kQuery], args.query_offsets = v[kOffsets], args.positions = v[kPositions];
    args.cache = paged.view;
    args.sink_logits = v[kSinks];
    args.output = v[kOutput], args.log_sum_exp = v[kLogSumExp];
    args.scale = scale_, args.soft_cap = soft_cap_;
    args.implementation = implementation;
    return args;
  }

  std::string heads_text_;
  std::string format_;
  cache::LayerGroup layers_{};
  PageTable table_{};
  std::int64_t rows_ = 0;
  std::int64_t length_ = 0;
  std::int64_t queries_ = 1;
  std::int64_t query_heads_ = 0;
  std::int64_t shared_ = 0;
  double soft_cap_ = 0;
  double scale_ = 0;
  bool sink_logits_ = false;
  DType dtype_ = DType::bf16;
  DType output_ = DType::f32;
  bool on_gpu_ = false;
};

}  // namespace

bool decoded_with_offset(const QuantFormat& format) {
  return format.asymmetric || format.dtype == DType::i4;
}

void append_group_sizes(const QuantFormat& format, std::int64_t dim, const std::byte* scales,
                        std::vector<double>& sizes) {
  const std::int64_t length = cache::group_length(format, dim);
  for (std::int64_t i = 0; i < dim; ++i) {
    const cache::GroupScale group = cache::load_scale(format, scales, i / length);
    const auto scale = static_cast<double>(group.scale);
    const auto minimum = static_cast<double>(group.minimum);
    const double most = minimum + scale * static_cast<double>(cache::top_code(format));
    // Symmetric int4: the codes 0 .. 15 stand for -8 .. 7.
    sizes.push_back(format.asymmetric ? std::max(std::fabs(minimum), std::fabs(most)) : 8 * scale);
  }
}

CachedAttentionReference cached_attention_reference(oracle::CachedAttention<double> a,
                                                    const CachedAttentionValues& values,
                                                    DType output_dtype) {
  std::vector<double> output(at(a.queries * a.query_heads * a.v_dim));
  std::vector<double> magnitude(output.size());
  std::vector<double> sums(at(a.queries * a.query_heads));
  a.query = values.query.data(), a.keys = values.keys.data(), a.values = values.values.data();
  if (a.scale == 0) a.scale = 1 / std::sqrt(static_cast<double>(a.k_dim));
  a.output = output.data(), a.log_sum_exp = sums.data(), a.magnitude = magnitude.data();
  oracle::cached_attention(a);
  if (!values.sizes.empty()) {
    std::vector<double> unused(output.size());
    oracle::CachedAttention<double> of_sizes = a;
    of_sizes.values = values.sizes.data();
    of_sizes.output = unused.data(), of_sizes.log_sum_exp = nullptr;
    oracle::cached_attention(of_sizes);
  }
  CachedAttentionReference result;
  for (std::size_t i = 0; i < output.size(); ++i) {
    result.output.add(output[i], with_rounding(output_dtype, output[i], 1e-5 * magnitude[i]));
  }
  for (const double sum : sums) {
    result.log_sum_exp.add(sum, 1e-5 * std::max(1.0, std::fabs(sum)));
  }
  return result;
}

std::unique_ptr<Problem> make_cached_attention(const cases::Case& item) {
  return std::make_unique<CachedAttention>(item);
}

}  // namespace touchstone::spec
