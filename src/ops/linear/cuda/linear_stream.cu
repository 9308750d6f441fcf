// Chooses ring and grid for linear_stream.cuh; the kernels of plain weights and fp8.
#include <algorithm>

#include "core/context_access.h"
#include "ops/linear/cuda/linear_stream.cuh"
#include "ops/linear/linear_tuning.h"

namespace touchstone::linear_layer {
namespace {

constexpr int kMaxRows = 16;
constexpr std::int64_t kMaxWholeBytes = 24 * 1024;

std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// Rows end in different banks: 16 bytes after a multiple of 128.
std::int64_t banked_pitch(std::int64_t bytes) {
  return round_up(std::max<std::int64_t>(bytes - 16, 0), 128) + 16;
}

bool has_source(const Forward& p) {
  using Id = WeightFormatId;
  const Id id = p.weight.format->id;
  if (p.weight.format->dtype == p.dtype) return true;
  return id == Id::fp8_e4m3 || (id >= Id::int8_g32 && id <= Id::q4_1) || id == Id::q4_k ||
         id == Id::q6_k;
}

bool aligned_rows(const Forward& p) {
  return reinterpret_cast<std::uintptr_t>(p.weight.data) % 16 == 0 && p.weight.row_bytes % 16 == 0;
}

// Whether tiles of eight rows are one aligned piece of memory each.
bool whole_tiles(const Forward& p) {
  return reinterpret_cast<std::uintptr_t>(p.weight.data) % 16 == 0 &&
         p.weight.row_bytes == weight_bytes(*p.weight.format, p.in) &&
         p.weight.row_bytes % 2 == 0 && p.columns() % kStreamRows == 0 &&
         kStreamRows * p.weight.row_bytes <= kMaxWholeBytes;
}

struct Plan {
  StreamParams params;
  cuda::LaunchShape shape;
};

// A stage of about so many bytes of each row, in whole blocks.
void set_slices(const Forward& p, std::int64_t wanted, StreamParams& s) {
  const WeightFormat& format = *p.weight.format;
  s.whole = !aligned_rows(p);
  s.row_bytes = static_cast<int>(weight_bytes(format, p.in));
  const std::int64_t unit = weight_bytes(format, tuning::kStreamSliceUnit);
  const std::int64_t units = std::max<std::int64_t>(1, (wanted + unit / 2) / unit);
  s.slice = s.whole ? s.in : static_cast<int>(tuning::kStreamSliceUnit * units);
  s.slice_bytes = s.whole ? s.row_bytes : static_cast<int>(units * unit);
  // Where slices do not begin at multiples of 16 bytes, copies begin before and end after them.
  const std::int64_t bytes = s.slice_bytes + (s.slice_bytes % 16 == 0 ? 0 : 32);
  s.row_pitch = static_cast<int>(
      s.whole ? s.row_bytes : banked_pitch(std::min<std::int64_t>(bytes, s.row_bytes + 16)));
}

// Warps and stages: as many warps as a multiprocessor has tiles, in as few rounds as leave every warp a
// ring. stages = 0 where x leaves no room.
void set_rings(const Forward& p, std::int64_t processors, StreamParams& s) {
  const std::int64_t tiles = (s.tiles + processors - 1) / processors;
  const std::int64_t x_bytes = std::int64_t{s.rows} * s.x_pitch + kStreamSlack;
  for (std::int64_t rounds = (tiles + kStreamMaxWarps - 1) / kStreamMaxWarps;; ++rounds) {
    s.warps = static_cast<int>((tiles + rounds - 1) / rounds);
    const bool two = s.warps <= kStreamMaxWarps / 2;  // CTAs a multiprocessor, by their registers
    set_slices(p, two ? tuning::kStreamSliceBytes : tuning::kStreamShortSliceBytes, s);
    const auto stages = [&](std::int64_t shared) {
      return static_cast<int>(std::clamp<std::int64_t>(
          (shared - x_bytes) / (std::int64_t{s.warps} * kStreamRows * s.row_pitch), 0,
          kStreamMaxStages));
    };
    s.stages = two ? stages(tuning::kStreamSharedOfTwo) : 0;
    if (s.stages < tuning::kStreamMinStages) s.stages = stages(tuning::kStreamSharedOfOne);
    if (s.stages >= tuning::kStreamMinStages) return;
    s.stages = 0;
    if (s.warps == 1) return;
  }
}

Plan plan(const Context& context, const Forward& p) {
  Plan result;
  StreamParams& s = result.params;
  s.weight = stored(p.weight);
  s.rows = static_cast<int>(p.rows);
  s.in = static_cast<int>(p.in);
  s.tiles = (p.columns() + kStreamRows - 1) / kStreamRows;
  s.x_pitch = static_cast<int>(banked_pitch(round_up(p.in, 32) * 2));
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  set_rings(p, processors, s);
  result.shape = {.blocks = static_cast<unsigned>(std::min(s.tiles, processors)),
                  .threads = static_cast<unsigned>(std::max(s.warps * 32, kStreamMinThreads)),
                  .shared_bytes = std::int64_t{s.stages} * s.warps * kStreamRows * s.row_pitch +
                                  std::int64_t{s.rows} * s.x_pitch + kStreamSlack,
                  .pdl = true};
  return result;
}

template <class T>
bool launch_plain(Context& context, const cuda::LaunchShape& shape, const StreamParams& p) {
  if (p.weight.id == WeightFormatId::fp8_e4m3) {
    launch_stream<T, Fp8Source<T>>(context, shape, p);
    return true;
  }
  if (p.weight.block_elements != 1) return false;
  launch_stream<T, PlainSource>(context, shape, p);
  return true;
}

}  // namespace

bool launch_stream_plain(Context& context, DType dtype, const cuda::LaunchShape& shape,
                         const StreamParams& p) {
  return dtype == DType::bf16 ? launch_plain<Bf16>(context, shape, p)
                              : launch_plain<F16>(context, shape, p);
}

std::string stream_refuses(const Context& context, const Forward& p) {
  if (!cuda::is_hopper(context)) return "needs Hopper";
  if (p.dtype == DType::f32) return "x of f32, needs bf16 or f16";
  if (p.rows > kMaxRows) return std::to_string(p.rows) + " rows, needs at most 16";
  if (!has_source(p)) return "no kernel for weights in " + std::string(p.weight.format->name);
  if (p.in == 0 || p.in > (1 << 20)) return "in is 0 or above 1048576";
  if (p.in % 8 != 0) return "in is no multiple of 8";
  if (!aligned_rows(p) && !whole_tiles(p)) {
    return "weight: rows are not aligned to 16 bytes, nor tiles of 8 rows";
  }
  if (!p.int8_activations &&
      (reinterpret_cast<std::uintptr_t>(p.x.data) % 16 != 0 || p.x.stride % 8 != 0)) {
    return "x: data or strides are no multiples of 16 bytes";
  }
  if (plan(context, p).params.stages == 0) return "x does not fit in shared memory";
  return {};
}

void forward_stream(Context& context, const Forward& p) {
  auto* const workspace =
      static_cast<std::byte*>(detail::ContextAccess::workspace(context, activation_bytes(p)));
  const Activations x = prepare_activations(context, p, workspace);
  const cuda::DeviceScope scope(context.device().index);
  Plan chosen = plan(context, p);
  StreamParams& params = chosen.params;
  params.x = static_cast<const std::uint16_t*>(x.x.data);
  params.x_stride = x.x.stride;
  params.ahead = p.constant_weight;
  params.sink = forward_sink(p, x.scales);
  if (!launch_stream_plain(context, p.dtype, chosen.shape, params)) {
    launch_stream_blocks(context, p.dtype, chosen.shape, params);
  }
}

}  // namespace touchstone::linear_layer
