#include "bench/append_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/data.h"
#include "cache/codec.h"
#include "cache/rotation.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/kv_append.h"

namespace touchstone::bench {
namespace {

using cache::AppendArgs;
using cache::Encoding;

constexpr std::int64_t kHeadDim = 128;
constexpr std::int64_t kPageTokens = 16;

const AppendFormat& format_of(const std::string& name) {
  const std::vector<AppendFormat>& all = append_formats();
  return *std::ranges::find(all, name, &AppendFormat::name);
}

cache::LayerGroup group_of(const AppendFormat& format, const cases::Case& item) {
  return {.layers = 1,
          .kv_heads = item.cols / kHeadDim,
          .k_dim = kHeadDim,
          .v_dim = kHeadDim,
          .k = format.k,
          .v = format.v,
          .page_tokens = kPageTokens,
          .rotate_keys = format.rotate_keys};
}

// K and V in, what is stored out.
std::int64_t bytes_of(const AppendFormat& format, const cases::Case& item) {
  const std::int64_t in = checked_mul(item.cols, 2 * size_of(item.dtype), "bench: bytes");
  const std::int64_t token = checked_add(in, token_bytes_per_layer(group_of(format, item)));
  return checked_mul(item.rows, token, "bench: bytes");
}

// The operands of one call: tokens of their own for a sequence of its own.
struct AppendSet {
  Tensor k;
  Tensor v;
  Tensor rows;
  Tensor positions;
};

template <class T, class Value>
Tensor per_token(const cases::Case& item, Device device, const Value& value) {
  Tensor tensor = Tensor::empty({item.rows}, dtype_of<T>);
  const std::span<T> values = tensor.values<T>();
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(value(i));
  return tensor.to(device);
}

struct AppendData {
  AppendData(Context& context, const AppendFormat& format, const cases::Case& item, int count)
      : cache({.layout = {{group_of(format, item)}},
               .pool_pages = {ceil_div(item.rows, kPageTokens) * count},
               .device = context.device(),
               .stream = context.stream()}),
        builder(cache) {
    for (int i = 0; i < count; ++i) {
      ids.push_back(cache.create());
      cache.reserve(ids.back(), item.rows);
      const std::int64_t shape[] = {item.rows, item.cols / kHeadDim, kHeadDim};
      AppendSet set{
          .k = Tensor::empty(shape, item.dtype, context.device()),
          .v = Tensor::empty(shape, item.dtype, context.device()),
          .rows = per_token<std::int32_t>(item, context.device(), [&](std::size_t) { return i; }),
          .positions = per_token<std::int64_t>(item, context.device(),
                                               [](std::size_t token) { return token; })};
      const auto seed = static_cast<std::uint64_t>(i);
      fill_random(context, set.k, 0, 1, 2 * seed);
      fill_random(context, set.v, 0, 1, 2 * seed + 1);
      sets.push_back(std::move(set));
    }
    view = builder.build(context, ids);
    context.synchronize();
  }

  AppendArgs args(std::int64_t i, const std::string& implementation = {}) const {
    const AppendSet& set = sets[static_cast<std::size_t>(i) % sets.size()];
    return {.cache = view,
            .k = set.k,
            .v = set.v,
            .rows = set.rows,
            .positions = set.positions,
            .implementation = implementation};
  }

  cache::KvCache cache;
  cache::CacheViewBuilder builder;
  std::vector<cache::SequenceId> ids;
  std::vector<AppendSet> sets;
  cache::CacheView view;
};

// Whether some tokens of the last set are stored as codec.h says, to the bit.
bool stored_right(Context& context, const AppendData& data, const cases::Case& item,
                  const std::string& implementation) {
  append(context, data.args(std::ssize(data.sets) - 1, implementation));
  context.synchronize();
  const cache::LayerGroup& group = data.cache.layout().groups[0];
  const Tensor memory = data.cache.memory(0).to(Device::cpu());
  const cache::PageTable& table = data.cache.sequence(data.ids.back()).groups[0];
  const std::vector<std::int64_t> tokens = spread_sample(item.rows, 8);
  const auto right = [&](const Tensor& from, const cache::Format& format, bool is_key) {
    const std::vector<double> numbers = doubles(from);
    std::vector<std::byte> values(static_cast<std::size_t>(value_bytes(format, kHeadDim)));
    std::vector<std::byte> scales(static_cast<std::size_t>(scale_bytes(format, kHeadDim)));
    for (const std::int64_t token : tokens) {
      for (std::int64_t head = 0; head < group.kv_heads; ++head) {
        const auto first = numbers.begin() + token * item.cols + head * kHeadDim;
        std::vector<float> vector(kHeadDim);
        std::transform(first, first + kHeadDim, vector.begin(),
                       [](double x) { return static_cast<float>(x); });
        if (is_key && group.rotate_keys) cache::rotate(vector.data(), kHeadDim);
        cache::encode(format, kHeadDim, vector.data(), values.data(), scales.data());
        const cache::PageHandle page = table.pages[static_cast<std::size_t>(token / kPageTokens)];
        const auto* at = static_cast<const std::byte*>(memory.data()) +
                         page.index * data.cache.geometry(0).page_bytes;
        const cache::TokenOffsets offsets =
            token_offsets(group, data.cache.geometry(0), 0, head, token % kPageTokens);
        const std::byte* stored = at + (is_key ? offsets.k_values : offsets.v_values);
        const std::byte* scaled = at + (is_key ? offsets.k_scales : offsets.v_scales);
        if (!std::equal(values.begin(), values.end(), stored)) return false;
        if (!std::equal(scales.begin(), scales.end(), scaled)) return false;
      }
    }
    return true;
  };
  return right(data.sets.back().k, group.k, true) && right(data.sets.back().v, group.v, false);
}

int sets_of(const SessionOptions& session, const AppendFormat& format, const cases::Case& item) {
  return sets_for(session.device, item.regime, bytes_of(format, item));
}

}  // namespace

const std::vector<AppendFormat>& append_formats() {
  static const cache::Format int8{.encoding = Encoding::int8, .group = 32};
  static const cache::Format int4{.encoding = Encoding::int4, .group = 32, .asymmetric = true};
  static const cache::Format fp8{.encoding = Encoding::fp8_e4m3};
  static const std::vector<AppendFormat> formats = {{"append_bf16", {}, {}},
                                                    {"append_int8", int8, int8},
                                                    {"append_int4", int4, int4, true},
                                                    {"append_k8v4", int8, int4, true},
                                                    {"append_fp8", fp8, fp8}};
  return formats;
}

void check_append_memory(const SessionOptions& session, const std::string& name,
                         const cases::Case& item) {
  if (item.cols % kHeadDim != 0) {
    throw InvalidArgument("bench: --cols: expected a multiple of " + std::to_string(kHeadDim) +
                          ", got " + std::to_string(item.cols));
  }
  const AppendFormat& format = format_of(name);
  const std::int64_t bytes = bytes_of(format, item);
  check_memory(session, std::to_string(item.rows) + "x" + std::to_string(item.cols),
               checked_mul(bytes, sets_of(session, format, item), "bench: bytes"));
}

AppendBench::AppendBench(Session& session) : session_(session) {
  const cases::Case item{.dtype = DType::bf16, .rows = 1, .cols = kHeadDim};
  const AppendData data(session_.context(), append_formats().front(), item, 1);
  session_.check_implementation(explain(session_.context(), data.args(0)));
}

std::vector<std::string> AppendBench::peers() const {
  if (session_.options().naive) return {"naive"};
  return {};
}

BenchRow AppendBench::measure(const std::string& name, const cases::Case& item) {
  Context& context = session_.context();
  const AppendFormat& format = format_of(name);
  const AppendData data(context, format, item, sets_of(session_.options(), format, item));
  BenchRow row;
  row.op = name;
  row.dtype = item.dtype;
  row.device = context.device();
  row.rows = item.rows;
  row.cols = item.cols;
  row.regime = item.regime;
  row.bytes = bytes_of(format, item);
  row.sets = static_cast<int>(data.sets.size());
  const std::string& wanted = session_.options().implementation;
  for (const ImplementationReport& report : explain(context, data.args(0))) {
    if (!report.accepted || !(wanted.empty() || wanted == report.name)) continue;
    row.implementation = report.name;
    break;
  }
  row.right = stored_right(context, data, item, wanted);
  if (!row.right) {
    row.error = HUGE_VAL;
    session_.note(row.describe() + ": wrong bytes; left out");
    return row;
  }
  std::vector<Contender> contenders;
  session_.enter(contenders, "touchstone", row,
                 [&](std::int64_t i) { append(context, data.args(i, wanted)); });
  if (session_.options().naive) {
    session_.enter(contenders, "naive", row, [&](std::int64_t i) {
      append(context, data.args(i, session_.cuda() ? "portable" : "plain"));
    });
  }
  session_.measure(row, contenders, "touchstone");
  return row;
}

}  // namespace touchstone::bench
