// rope_append: tokens x kv_heads x head dim, `group` query heads per KV head, appended to one sequence.
//
// Bounds: the norm errs by growth(dim) + 8 roundings of f32 and is rounded to the dtype; the rotation
// carries the errors of both numbers of a pair, adds its own (rope.cc) and is rounded once more. Keys
// in the pages may be any within their bound, rounded to the format, values are exact.
#include "touchstone/ops/rope_append.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "cache/codec.h"
#include "core/index.h"
#include "oracle/norm.h"
#include "oracle/rope.h"
#include "spec/attention/kv_append.h"
#include "spec/attention/paged.h"
#include "spec/operators.h"
#include "spec/rope.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/ops/rope.h"

namespace touchstone::spec {
namespace {

class RopeAppend : public Problem {
 public:
  explicit RopeAppend(const cases::Case& item)
      : dtype_(item.dtype),
        format_(item.text("format", "bf16")),
        adjacent_(item.choice("pairs", {"halves", "adjacent"}) == 1),
        norm_(item.flag("norm", true)) {
    item.check_options({"format", "page", "group", "norm", "pairs", "rotary"});
    const std::vector<std::int64_t> dims = item.dims("xx");
    tokens_ = dims[0], dim_ = dims[2];
    query_heads_ = checked_mul(dims[1], item.integer("group", 4));
    layers_ = layers_of(format_, dims[1], dim_, item.integer("page", 16));
    if (is_quantized(layers_.k.dtype)) {
      throw InvalidArgument("format: expected f32, bf16 or f16, got " + format_);
    }
    frequencies_ = rope_frequencies(item.integer("rotary", dim_), 10000).values;
    table_ = {.rows = 1, .each = ceil_div(tokens_, layers_.page_tokens)};
  }

  enum : std::size_t {
    kPages,
    kTable,
    kLengths,
    kReserved,
    kQ,
    kK,
    kV,
    kQWeight,
    kKWeight,
    kPositions,
    kFrequencies,
    kRows,
    kSlots,
    kY,
    kCount
  };

  std::vector<Operand> operands() const override {
    std::vector<Operand> list(kCount);
    list[kPages] = untouched_pages(layers_, table_.pages());
    list[kTable] = table_.operand();
    list[kLengths] = control_operand("lengths", DType::i64, {1}, [](auto) { return 0; });
    list[kReserved] =
        control_operand("reserved", DType::i64, {1}, [n = tokens_](auto) { return n; });
    list[kQ] = {.name = "q", .dtype = dtype_, .shape = {tokens_, query_heads_, dim_}};
    list[kK] = {.name = "k", .dtype = dtype_, .shape = {tokens_, layers_.kv_heads, dim_}};
    list[kV] = {.name = "v", .dtype = dtype_, .shape = {tokens_, layers_.kv_heads, dim_}};
    if (norm_) {
      list[kQWeight] = {.name = "q_weight", .shape = {dim_}, .center = 1, .scale = 0.1};
      list[kKWeight] = {.name = "k_weight", .shape = {dim_}, .center = 1, .scale = 0.1};
    }
    list[kPositions] = control_operand("positions", DType::i64, {tokens_}, position);
    list[kFrequencies] = {.name = "frequencies",
                          .dtype = DType::f64,
                          .shape = {std::ssize(frequencies_)},
                          .write = values_of<double>([f = frequencies_](std::int64_t i) {
                            return f[static_cast<std::size_t>(i)];
                          }),
                          .control = true};
    list[kRows] = control_operand("rows", DType::i32, {tokens_}, [](auto) { return 0; });
    list[kSlots] = control_operand("slots", DType::i64, {tokens_}, std::identity());
    list[kY] = {
        .name = "y", .dtype = dtype_, .shape = {tokens_, query_heads_, dim_}, .output = true};
    return list;
  }

  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    const PagedView paged(layers_, v[kPages], v[kTable], v[kLengths], v[kReserved]);
    return invoke(rope_append, args(paged, v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override {
    const std::int64_t page_bytes = cache::page_bytes(layers_);
    const std::int64_t heads = layers_.kv_heads;
    PagesReference pages(kPages, table_.pages() * page_bytes, sample == kAllRows);
    OutputReference y{.operand = kY};
    for (const std::int64_t token : spread_sample(tokens_, sample)) {
      for (std::int64_t head = 0; head < query_heads_; ++head) {
        const std::int64_t row = token * query_heads_ + head;
        const Expected turned = turn(reader, kQWeight, reader.row(kQ, row), token);
        for (std::int64_t d = 0; d < dim_; ++d) {
          y.add(row * dim_ + d, turned.value[at(d)], turned.bound[at(d)]);
        }
      }
      const std::int64_t page = table_.page(0, token / layers_.page_tokens) * page_bytes;
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t row = token * heads + head;
        const Expected key = turn(reader, kKWeight, reader.row(kK, row), token);
        auto parts = stored_vectors(layers_, 0, head, token % layers_.page_tokens, key.value,
                                    reader.row(kV, row));
        accept_keys(reader, page, key, parts.front());
        for (const StoredBytes& part : parts) pages.add(page, part);
      }
    }
    return {pages.take(), y};
  }
  // Of the keys that are within their bounds one is as right as another.
  bool reference_reads_outputs() const override { return true; }

  Cost cost() const override {
    const std::int64_t heads = checked_add(2 * query_heads_, 2 * layers_.kv_heads);
    const std::int64_t in = checked_mul(checked_mul(heads, dim_), size_of(dtype_), "bytes");
    const std::int64_t token = checked_add(in, cache::token_bytes_per_layer(layers_));
    return {.bytes = checked_mul(tokens_, token, "bytes")};
  }
  Labels labels() const override {
    return {.rows = tokens_, .cols = layers_.kv_heads * dim_, .format = format_};
  }

 private:
  static std::int64_t position(std::int64_t token) { return token * 7 % 5003; }

  RopeAppendArgs args(const PagedView& paged, Views v, const std::string& implementation) const {
    RopeAppendArgs args;
    args.cache = paged.view;
    args.q = v[kQ], args.k = v[kK], args.v = v[kV], args.y = v[kY];
    args.q_weight = v[kQWeight], args.k_weight = v[kKWeight];
    args.positions = v[kPositions], args.frequencies = v[kFrequencies];
    args.pairs = adjacent_ ? RopePairs::adjacent : RopePairs::halves;
    args.rows = v[kRows], args.slots = v[kSlots];
    args.implementation = implementation;
    return args;
  }

  // One head, normalized and rotated.
  Expected turn(const Reader& reader, std::size_t weight, std::vector<double> x,
                std::int64_t token) const {
    std::vector<double> error(x.size(), 0.0);
    if (norm_) {
      const std::vector<double> from = x;
      const std::vector<double> factors = reader.all(weight);
      oracle::norm_forward<double>({.norm = oracle::Norm::rms,
                                    .rows = 1,
                                    .cols = dim_,
                                    .eps = RopeAppendArgs{}.eps,
                                    .x = from.data(),
                                    .weight = factors.data(),
                                    .y = x.data()});
      const double relative = (growth(dim_) + 8) * unit_roundoff(DType::f32);
      for (std::size_t i = 0; i < x.size(); ++i) {
        error[i] = with_rounding(dtype_, x[i], relative * std::fabs(x[i]));
      }
    }
    const std::int64_t turned_by = position(token);
    const std::int64_t pairs = std::ssize(frequencies_);
    Expected result;
    result.value.resize(x.size());
    oracle::rope_forward<double>({.tokens = 1,
                                  .heads = 1,
                                  .dim = dim_,
                                  .pairs = pairs,
                                  .adjacent = adjacent_,
                                  .positions = &turned_by,
                                  .frequencies = frequencies_.data(),
                                  .x = x.data(),
                                  .y = result.value.data()});
    result.bound = error;
    for (std::int64_t d = 0; d < 2 * pairs; ++d) {
      const std::int64_t pair = adjacent_ ? d / 2 : d % pairs;
      const std::int64_t other = adjacent_ ? d ^ 1 : (d + pairs) % (2 * pairs);
      const double carried = error[at(d)] + error[at(other)];
      const double size = std::fabs(x[at(d)]) + std::fabs(x[at(other)]) + carried;
      const double angle = static_cast<double>(turned_by) * frequencies_[at(pair)];
      result.bound[at(d)] =
          with_rounding(dtype_, result.value[at(d)], carried + rotation_error(dtype_, angle, size));
    }
    return result;
  }

  // Takes the bytes of the pages for the numbers that are within their bounds.
  void accept_keys(const Reader& reader, std::int64_t page, const Expected& key,
                   StoredBytes& part) const {
    const std::vector<std::byte> got =
        reader.bytes(kPages, page + part.offset, std::ssize(part.bytes));
    std::vector<float> numbers(key.value.size());
    cache::decode(layers_.k, dim_, got.data(), nullptr, numbers.data());
    const std::size_t width = part.bytes.size() / numbers.size();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double bound = with_rounding(layers_.k.dtype, key.value[i], key.bound[i]);
      if (!(std::fabs(static_cast<double>(numbers[i]) - key.value[i]) <= bound)) continue;
      std::copy_n(got.begin() + static_cast<std::ptrdiff_t>(i * width), width,
                  part.bytes.begin() + static_cast<std::ptrdiff_t>(i * width));
    }
  }

  DType dtype_;
  std::string format_;
  bool adjacent_;
  bool norm_;
  std::int64_t tokens_ = 0;
  std::int64_t query_heads_ = 0;
  std::int64_t dim_ = 0;
  cache::LayerGroup layers_{};
  PageTable table_{};
  std::vector<double> frequencies_;
};

}  // namespace

std::unique_ptr<Problem> make_rope_append(const cases::Case& item) {
  return std::make_unique<RopeAppend>(item);
}

}  // namespace touchstone::spec
