#include "train/distill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "touchstone/core/error.h"
#include "touchstone/ops/linear.h"
#include "train/data/no_target.h"
#include "train/operators/distill_problem.h"

namespace touchstone::inline v0::train {
namespace {

// Elements of the logits buffer: tokens are processed in chunks of this size.
constexpr std::int64_t kLogitsAtOnce = std::int64_t{1} << 26;

template <class View>
View rows_from(View view, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  view.data = static_cast<Byte*>(view.data) + first * view.stride[0] * size_of(view.dtype);
  view.shape[0] = count;
  return view;
}

void check(const DistillArgs& args, std::int64_t tokens, std::int64_t vocabulary) {
  const ConstTensorView& logits = args.teacher.logits;
  if (logits.dtype != DType::f32 || logits.rank != 2 || !logits.contiguous() ||
      logits.shape[0] != tokens || logits.shape[1] != vocabulary) {
    throw InvalidArgument(fmt::format("distill: logits: expected f32 [{}, {}], got {} {}", tokens,
                                      vocabulary, name_of(logits.dtype),
                                      shape_string(logits.sizes())));
  }
  const double weight = args.teacher.weight;
  if (!(weight >= 0 && weight <= 1)) {
    throw InvalidArgument(fmt::format("distill: weight: expected 0 to 1, got {}", weight));
  }
  const double temperature = args.teacher.temperature;
  if (!(temperature > 0) || !std::isfinite(temperature)) {
    throw InvalidArgument(
        fmt::format("distill: temperature: expected a number above 0, got {}", temperature));
  }
}

void grow(Tensor& tensor, std::int64_t elements, DType dtype, Device device) {
  if (tensor.elements() < elements) tensor = Tensor::empty({elements}, dtype, device);
}

}  // namespace

void distill_backward(Context& context, DistillBuffers& buffers, const DistillArgs& args) {
  const std::int64_t tokens = args.hidden.shape[0];
  const std::int64_t vocabulary = args.weight.shape[0];
  check(args, tokens, vocabulary);
  const DType compute = args.hidden.dtype;
  const DType wide = compute == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t chunk =
      std::min(tokens, std::max<std::int64_t>(1, kLogitsAtOnce / vocabulary));
  const Device device = context.device();
  grow(buffers.logits, chunk * vocabulary, wide, device);
  grow(buffers.dlogits, chunk * vocabulary, compute, device);
  grow(buffers.losses, tokens, wide, device);
  for (std::int64_t first = 0; first < tokens; first += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - first);
    const std::int64_t shape[] = {rows, vocabulary};
    const TensorView logits = make_view(buffers.logits.data(), shape, wide, device);
    const TensorView dlogits = make_view(buffers.dlogits.data(), shape, compute, device);
    const ConstTensorView hidden = rows_from(args.hidden, first, rows);
    linear(context, {.x = hidden, .weight = args.weight, .y = logits});
    const DistillProblem p{
        .rows = rows,
        .vocabulary = vocabulary,
        .logits = logits.data,
        .teacher = static_cast<const float*>(args.teacher.logits.data) + first * vocabulary,
        .targets = rows_from(args.targets, first, rows).data,
        .dloss = rows_from(args.dloss, first, rows).data,
        .losses = static_cast<std::byte*>(buffers.losses.data()) + first * size_of(wide),
        .dlogits = dlogits.data,
        .compute = compute,
        .wide_targets = args.targets.dtype == DType::i64,
        .ignore = kNoTarget,
        .weight = args.teacher.weight,
        .temperature = args.teacher.temperature};
    device.is_cuda() ? distill_rows_cuda(context, p) : distill_rows_cpu(context, p);
    linear_backward(context, {.dy = dlogits,
                              .x = hidden,
                              .weight = args.weight,
                              .dx = rows_from(args.dhidden, first, rows),
                              .dweight = args.dweight,
                              .accumulate = true});
  }
  const MeanProblem mean{.count = tokens,
                         .losses = buffers.losses.data(),
                         .targets = args.targets.data,
                         .mean = args.mean_loss.data,
                         .dtype = wide,
                         .wide_targets = args.targets.dtype == DType::i64,
                         .ignore = kNoTarget};
  device.is_cuda() ? mean_loss_cuda(context, mean) : mean_loss_cpu(context, mean);
}

}  // namespace touchstone::inline v0::train
