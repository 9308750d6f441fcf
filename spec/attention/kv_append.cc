// kv_append: tokens x (kv_heads * 128), appended to one sequence. Stored bytes are exact.
#include "touchstone/ops/kv_append.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "cache/codec.h"
#include "cache/rotation.h"
#include "spec/attention/kv_append.h"
#include "spec/attention/paged.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::spec {
namespace {

constexpr std::int64_t kHeadSize = 128;

class KvAppend : public Problem {
 public:
  explicit KvAppend(const cases::Case& item) : format_(item.text("format", "bf16")) {
    item.check_options({"format", "page", "gap", "offset"});
    const std::vector<std::int64_t> dims = item.dims("x");
    tokens_ = dims[0], cols_ = dims[1];
    if (cols_ % kHeadSize != 0) {
      throw InvalidArgument("columns: expected a multiple of " + std::to_string(kHeadSize) +
                            ", got " + std::to_string(cols_));
    }
    dtype_ = item.dtype;
    layers_ = layers_of(format_, cols_ / kHeadSize, kHeadSize, item.integer("page", 16));
    for (auto* format : {&layers_.k, &layers_.v}) {
      if (format->dtype == DType::i8) format->group_size = 32;
    }
    layers_.rotate_keys = layers_.v.dtype == DType::i4;
    table_ = {.rows = 1, .each = ceil_div(tokens_, layers_.page_tokens)};
  }

  enum : std::size_t { kPages, kTable, kLengths, kReserved, kK, kV, kRows, kPositions, kCount };

  std::vector<Operand> operands() const override {
    const std::vector<std::int64_t> shape{tokens_, layers_.kv_heads, kHeadSize};
    std::vector<Operand> list(kCount);
    list[kPages] = untouched_pages(layers_, table_.pages());
    list[kTable] = table_.operand();
    list[kLengths] = control_operand("lengths", DType::i64, {1}, [](auto) { return 0; });
    list[kReserved] =
        control_operand("reserved", DType::i64, {1}, [n = tokens_](auto) { return n; });
    list[kK] = {.name = "k", .dtype = dtype_, .shape = shape};
    list[kV] = {.name = "v", .dtype = dtype_, .shape = shape};
    list[kRows] = control_operand("rows", DType::i32, {tokens_}, [](auto) { return 0; });
    list[kPositions] = control_operand("positions", DType::i64, {tokens_}, std::identity());
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    const PagedView paged(layers_, v[kPages], v[kTable], v[kLengths], v[kReserved]);
    return invoke(kv_append, args(paged, v, implementation));
  }

  // All bytes of the pages, or those of some tokens.
  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    const std::int64_t page_bytes = cache::page_bytes(layers_);
    PagesReference pages(kPages, table_.pages() * page_bytes, sample == kAllRows);
    for (const std::int64_t token : spread_sample(tokens_, sample)) {
      const std::int64_t page = table_.page(0, token / layers_.page_tokens) * page_bytes;
      for (std::int64_t head = 0; head < layers_.kv_heads; ++head) {
        const auto key = reader.row(kK, token * layers_.kv_heads + head);
        const auto value = reader.row(kV, token * layers_.kv_heads + head);
        for (const StoredBytes& part :
             stored_vectors(layers_, 0, head, token % layers_.page_tokens, key, value)) {
          pages.add(page, part);
        }
      }
    }
    return {pages.take()};
  }

  Cost cost() const override {
    const std::int64_t in = checked_mul(cols_, 2 * size_of(dtype_), "bytes");
    const std::int64_t token = checked_add(in, cache::token_bytes_per_layer(layers_));
    return {.bytes = checked_mul(tokens_, token, "bytes")};
  }
  Labels labels() const override { return {.rows = tokens_, .cols = cols_, .format = format_}; }

 private:
  KvAppendArgs args(const PagedView& paged, Views v, const std::string& implementation) const {
    KvAppendArgs args;
    args.cache = paged.view;
    args.k = v[kK], args.v = v[kV], args.rows = v[kRows], args.positions = v[kPositions];
    args.implementation = implementation;
    return args;
  }

  std::string format_;
  std::int64_t tokens_ = 0;
  std::int64_t cols_ = 0;
  DType dtype_ = DType::bf16;
  cache::LayerGroup layers_{};
  PageTable table_{};
};

}  // namespace

Operand untouched_pages(const cache::LayerGroup& layers, std::int64_t pages) {
  return {.name = "pages",
          .dtype = DType::u8,
          .shape = {pages, cache::page_bytes(layers)},
          .output = true,
          .write = [](std::span<std::byte> to) { std::ranges::fill(to, kUntouched); }};
}

std::vector<StoredBytes> stored_vectors(const cache::LayerGroup& layers, std::int64_t layer,
                                        std::int64_t head, std::int64_t slot,
                                        const std::vector<double>& key,
                                        const std::vector<double>& value) {
  const auto to = cache::token_offsets(layers, cache::page_geometry(layers), layer, head, slot);
  std::vector<StoredBytes> result;
  const auto add = [&](const auto& format, std::vector<float> x, std::int64_t values_at,
                       std::int64_t scales_at) {
    const std::int64_t dim = std::ssize(x);
    StoredBytes values{values_at, {}}, scales{scales_at, {}};
    values.bytes.resize(static_cast<std::size_t>(cache::value_bytes(format, dim)));
    scales.bytes.resize(static_cast<std::size_t>(cache::scale_bytes(format, dim)));
    cache::encode(format, dim, x.data(), values.bytes.data(), scales.bytes.data());
    result.push_back(std::move(values));
    result.push_back(std::move(scales));
  };
  const auto narrowed = [](const std::vector<double>& x) {
    std::vector<float> numbers;
    for (const double number : x) numbers.push_back(static_cast<float>(number));
    return numbers;
  };
  std::vector<float> rotated = narrowed(key);
  if (layers.rotate_keys) cache::rotate(rotated.data(), layers.k_dim);
  add(layers.k, std::move(rotated), to.k_values, to.k_scales);
  if (!layers.k_is_v) add(layers.v, narrowed(value), to.v_values, to.v_scales);
  return result;
}

PagesReference::PagesReference(std::size_t operand, std::int64_t bytes, bool all)
    : pages_{.operand = operand} {
  if (all) all_.assign(static_cast<std::size_t>(bytes), static_cast<double>(kUntouched));
}

void PagesReference::add(std::int64_t page_at, const StoredBytes& part) {
  for (std::size_t i = 0; i < part.bytes.size(); ++i) {
    const std::int64_t to = page_at + part.offset + static_cast<std::int64_t>(i);
    const auto byte = static_cast<double>(part.bytes[i]);
    if (!all_.empty()) {
      all_[static_cast<std::size_t>(to)] = byte;
    } else {
      pages_.add(to, byte, 0);
    }
  }
}

OutputReference PagesReference::take() {
  if (!all_.empty()) {
    pages_.expected.bound.assign(all_.size(), 0);
    pages_.expected.value = std::move(all_);
  }
  return std::move(pages_);
}

std::unique_ptr<Problem> make_kv_append(const cases::Case& item) {
  return std::make_unique<KvAppend>(item);
}

}  // namespace touchstone::spec
