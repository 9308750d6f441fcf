// Chooses pipeline and grid for linear_stream.cuh; the kernels of plain weights and fp8.
#include <algorithm>

#include "core/context_access.h"
#include "ops/linear/cuda/linear_stream.cuh"
#include "ops/linear/linear_tuning.h"

namespace touchstone::linear_layer {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

// Eight rows begin in different banks: an odd multiple of 16 bytes.
std::int64_t banked_pitch(std::int64_t bytes) { return ((bytes + 15) / 16 | 1) * 16; }

bool has_source(const Forward& p) {
  using Id = WeightFormatId;
  const Id id = p.weight.format->id;
  if (p.weight.format->dtype == p.dtype) return true;
  return id == Id::fp8_e4m3 || (id >= Id::int8_g32 && id <= Id::q4_1) || id == Id::q4_k ||
         id == Id::q6_k || id == Id::ternary_g128 || id == Id::pq2_0;
}

// Copies of 16 bytes, none of which ends behind the last row.
bool aligned_rows(const Forward& p) {
  return reinterpret_cast<std::uintptr_t>(p.weight.data) % 16 == 0 &&
         p.weight.row_bytes % 16 == 0 && weight_bytes(*p.weight.format, p.in) % 16 == 0;
}

// Whether tiles are one aligned piece of memory each.
bool whole_tiles(const Forward& p) {
  return reinterpret_cast<std::uintptr_t>(p.weight.data) % 16 == 0 &&
         p.weight.row_bytes == weight_bytes(*p.weight.format, p.in) &&
         p.weight.row_bytes % 2 == 0 && p.columns() % kStreamRows == 0 &&
         kStreamRows * p.weight.row_bytes <= tuning::kStreamMaxWholeBytes;
}

struct Plan {
  StreamParams params;
  int stages = 0;  // of a ring; 0: x leaves no room
  cuda::LaunchShape shape;
};

// Chooses a stage of about kStreamSliceBytes of each row: whole blocks, or a unit of plain weights.
void set_slices(const Forward& p, StreamParams& s) {
  const WeightFormat& format = *p.weight.format;
  s.whole = !aligned_rows(p);
  s.row_bytes = static_cast<int>(weight_bytes(format, p.in));
  const bool plain = format.dtype == p.dtype;
  const std::int64_t least = plain ? kStreamUnit : tuning::kStreamSliceUnit;
  const std::int64_t unit = weight_bytes(format, least);
  const std::int64_t units =
      plain ? 1 : std::max<std::int64_t>(1, (tuning::kStreamSliceBytes + unit / 2) / unit);
  s.slice = s.whole ? s.in : static_cast<int>(least * units);
  s.slice_bytes = s.whole ? s.row_bytes : static_cast<int>(units * unit);
  // Where slices do not begin at multiples of 16 bytes, copies begin before and end after them.
  const std::int64_t bytes = s.slice_bytes + (s.slice_bytes % 16 == 0 ? 0 : 32);
  s.row_pitch = static_cast<int>(
      s.whole ? s.row_bytes : banked_pitch(std::min<std::int64_t>(bytes, s.row_bytes + 16)));
}

std::int64_t shared_bytes(const StreamParams& s, int stages) {
  const std::int64_t x = s.stage_rows > kStreamRows ? 0 : std::int64_t{s.rows} * s.x_pitch;
  return std::int64_t{stages} * s.warps * s.stage_rows * s.row_pitch + x + kStreamSlack;
}

// One warp for each tile of a CTA, or as many as fit with a pipeline each, in as few rounds. Where a CTA
// reads little of W and x is small, the deepest pipeline that leaves shared memory for a co-resident CTA
// of the next kernel (PDL); otherwise the deepest that fits. Returns the stages, 0 where nothing fits.
int set_warps(const Forward& p, StreamParams& s) {
  const bool plain = p.weight.format->dtype == p.dtype;
  const int tiles = (s.cta_rows + kStreamRows - 1) / kStreamRows;
  const int halves = p.gate == LinearGate::none ? 1 : 2;
  const bool of_two = std::int64_t{s.cta_rows} * halves * s.row_bytes <= tuning::kStreamSmallW &&
                      std::int64_t{s.rows} * s.x_pitch <= tuning::kStreamSmallX;
  const bool x_in_stages = s.stage_rows > kStreamRows;
  const auto fits = [&](std::int64_t shared) {
    for (const int stages : kStreamPlainStages) {
      if (!plain && stages != kStreamBlockStages) continue;
      if (x_in_stages && std::ranges::count(kStreamXStages, stages) == 0) continue;
      if (shared_bytes(s, stages) <= shared) return stages;
    }
    return 0;
  };
  for (int most = std::min(tiles, kStreamMaxWarps); most > 0; --most) {
    const int rounds = (tiles + most - 1) / most;
    s.warps = (tiles + rounds - 1) / rounds;
    if (of_two) {
      if (const int stages = fits(tuning::kStreamSharedOfTwo); stages > 0) return stages;
    }
    if (const int stages = fits(tuning::kStreamSharedOfOne); stages > 0) return stages;
  }
  return 0;
}

Plan plan(const Context& context, const Forward& p) {
  Plan result;
  StreamParams& s = result.params;
  s.weight = stored(p.weight);
  s.rows = static_cast<int>(p.rows);
  s.in = static_cast<int>(p.in);
  s.x_pitch = static_cast<int>(banked_pitch(round_up(p.in, 32) * 2));
  set_slices(p, s);
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const std::int64_t rows = std::max<std::int64_t>(1, (p.columns() + processors - 1) / processors);
  s.cta_rows = static_cast<int>(s.whole ? round_up(rows, kStreamRows) : rows);
  s.stage_rows = kStreamRows;
  result.stages = set_warps(p, s);
  // Slices of x in the stages where x as a whole leaves no room for as many warps.
  if (p.weight.format->dtype == p.dtype && !s.whole) {
    StreamParams sliced = s;
    sliced.stage_rows += s.rows;
    const int stages = set_warps(p, sliced);
    if (stages > 0 && (result.stages == 0 || sliced.warps > s.warps)) {
      s = sliced;
      result.stages = stages;
    }
  }
  // All warps bring x.
  const int warps =
      p.rows >= tuning::kStreamManyRows ? kStreamMaxWarps : std::max(s.warps, kStreamMinWarps);
  result.shape = {.blocks = static_cast<unsigned>((p.columns() + s.cta_rows - 1) / s.cta_rows),
                  .threads = static_cast<unsigned>(warps * 32),
                  .shared_bytes = shared_bytes(s, result.stages),
                  .pdl = true};
  return result;
}

template <class T>
bool launch_plain(Context& context, int stages, const cuda::LaunchShape& shape,
                  const StreamParams& p) {
  if (p.weight.id == WeightFormatId::fp8_e4m3) {
    launch_stream<T, Fp8Source<T>>(context, shape, p);
    return true;
  }
  if (p.weight.block_elements != 1) return false;
  if (p.stage_rows > kStreamRows) {
    stages == kStreamXStages[0]
        ? launch_stream<T, PlainSource, kStreamXStages[0], true>(context, shape, p)
        : launch_stream<T, PlainSource, kStreamXStages[1], true>(context, shape, p);
    return true;
  }
  switch (stages) {
    case kStreamPlainStages[0]:
      launch_stream<T, PlainSource, kStreamPlainStages[0]>(context, shape, p);
      break;
    case kStreamPlainStages[1]:
      launch_stream<T, PlainSource, kStreamPlainStages[1]>(context, shape, p);
      break;
    case kStreamPlainStages[2]:
      launch_stream<T, PlainSource, kStreamPlainStages[2]>(context, shape, p);
      break;
    default:
      launch_stream<T, PlainSource, kStreamPlainStages[3]>(context, shape, p);
  }
  return true;
}

}  // namespace

bool launch_stream_plain(Context& context, DType dtype, int stages, const cuda::LaunchShape& shape,
                         const StreamParams& p) {
  return dtype == DType::bf16 ? launch_plain<Bf16>(context, stages, shape, p)
                              : launch_plain<F16>(context, stages, shape, p);
}

std::string stream_refuses(const Context& context, const Forward& p) {
  if (!cuda::is_hopper(context)) return "needs Hopper";
  if (p.dtype == DType::f32) return "x of f32, needs bf16 or f16";
  if (p.rows > tuning::kStreamMaxRows) return std::to_string(p.rows) + " rows, needs at most 16";
  if (!has_source(p)) return "no kernel for weights in " + std::string(p.weight.format->name);
  if (p.in == 0 || p.in > (1 << 20)) return "in is 0 or above 1048576";
  if (p.in % 8 != 0) return "in is no multiple of 8";
  if (!aligned_rows(p) && !whole_tiles(p)) {
    return "weight: rows are not aligned to 16 bytes, nor tiles of 16 rows";
  }
  if (!p.int8_activations &&
      (reinterpret_cast<std::uintptr_t>(p.x.data) % 16 != 0 || p.x.stride % 8 != 0)) {
    return "x: data or strides are no multiples of 16 bytes";
  }
  if (plan(context, p).stages == 0) return "x does not fit in shared memory";
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
  params.plain_sink = is_identity_epilogue(params.sink) && params.sink.dtype == p.dtype;
  if (!launch_stream_plain(context, p.dtype, chosen.stages, chosen.shape, params)) {
    launch_stream_blocks(context, p.dtype, chosen.shape, params);
  }
}

}  // namespace touchstone::linear_layer
