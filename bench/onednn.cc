#include "bench/onednn.h"

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "bench/openmp.h"
#include "touchstone/core/convert.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {
namespace {

using Arguments = std::unordered_map<int, dnnl::memory>;
using dnnl::memory;

constexpr double kEpsilon = 1e-5;  // as in the specification

Tensor as_f32(const void* data, std::int64_t count, DType dtype) {
  Tensor result = Tensor::empty({count}, DType::f32);
  visit_float_dtype(dtype, [&]<class T>() {
    const std::span<float> to = result.values<float>();
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] = convert<float>(static_cast<const T*>(data)[i]);
  });
  return result;
}

void convert_from_f32(const Tensor& from, void* to, DType dtype) {
  visit_float_dtype(dtype, [&]<class T>() {
    const std::span<const float> source = from.values<float>();
    for (std::size_t i = 0; i < source.size(); ++i) static_cast<T*>(to)[i] = convert<T>(source[i]);
  });
}

// One primitive and, for every set of operands, the arguments it runs on. oneDNN keeps variances
// where we keep 1 / sqrt(variance + eps), so it gets statistics of its own.
class OneDnnNorm {
 public:
  explicit OneDnnNorm(std::span<const NormOperands> sets)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        dweight_(Tensor::empty({sets[0].cols}, DType::f32)),
        dbias_(Tensor::empty({sets[0].cols}, DType::f32)) {
    const NormOperands& problem = sets.front();
    const bool backward = problem.backward;
    const auto dtype =
        problem.dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc matrix({problem.rows, problem.cols}, dtype, memory::format_tag::ab);
    const memory::desc column({problem.rows}, memory::data_type::f32, memory::format_tag::a);
    const memory::desc vector({problem.cols}, memory::data_type::f32, memory::format_tag::a);
    const auto flags = dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;
    const dnnl::layer_normalization_forward::primitive_desc forward_desc(
        {dnnl::prop_kind::forward_training, matrix, static_cast<float>(kEpsilon), flags}, engine_);
    const dnnl::layer_normalization_forward forward(forward_desc);
    primitive_ = forward;
    for (const NormOperands& set : sets) {
      Tensor weight = as_f32(set.weight, set.cols, set.dtype);
      // The backward has none, and its gradient does not depend on it.
      Tensor bias = set.bias ? as_f32(set.bias, set.cols, set.dtype)
                             : as_f32(set.weight, set.cols, set.dtype);
      Tensor mean = Tensor::empty({problem.rows}, DType::f32);
      Tensor variance = Tensor::empty({problem.rows}, DType::f32);
      Arguments arguments = {{DNNL_ARG_SRC, wrap(matrix, set.x)},
                             {DNNL_ARG_MEAN, wrap(column, mean.data())},
                             {DNNL_ARG_VARIANCE, wrap(column, variance.data())},
                             {DNNL_ARG_SCALE, wrap(vector, weight.data())},
                             {DNNL_ARG_SHIFT, wrap(vector, bias.data())},
                             {DNNL_ARG_DST, wrap(matrix, set.out)}};
      if (backward) {
        forward.execute(stream_, arguments);
        stream_.wait();
        arguments.erase(DNNL_ARG_DST);
        arguments.insert({{DNNL_ARG_DIFF_DST, wrap(matrix, set.dy)},
                          {DNNL_ARG_DIFF_SRC, wrap(matrix, set.out)},
                          {DNNL_ARG_DIFF_SCALE, wrap(vector, dweight_.data())},
                          {DNNL_ARG_DIFF_SHIFT, wrap(vector, dbias_.data())}});
      }
      arguments_[set.x] = std::move(arguments);
      for (Tensor* kept : {&mean, &variance, &weight, &bias}) kept_.push_back(std::move(*kept));
    }
    if (backward) {
      primitive_ = dnnl::layer_normalization_backward(
          {{dnnl::prop_kind::backward, matrix, matrix, static_cast<float>(kEpsilon), flags},
           engine_,
           forward_desc});
    }
  }

  void run(const NormOperands& set) {
    primitive_.execute(stream_, arguments_.at(set.x));
    stream_.wait();
  }

  void finish(const NormOperands& set) const {
    convert_from_f32(dweight_, set.dweight, set.dtype);
    convert_from_f32(dbias_, set.dbias, set.dtype);
  }

 private:
  memory wrap(const memory::desc& desc, const void* data) const {
    return {desc, engine_, const_cast<void*>(data)};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  Tensor dweight_;
  Tensor dbias_;
  std::vector<Tensor> kept_;  // statistics and f32 parameters of each set
  std::unordered_map<const void*, Arguments> arguments_;
};

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

std::optional<OneDnnCalls> onednn_calls(Context& context, std::span<const NormOperands> sets) {
  const NormOperands& like = sets.front();
  if (!like.layer || (like.dtype != DType::f32 && like.dtype != DType::bf16)) return std::nullopt;
  set_openmp_threads(context.threads());
  try {
    auto peer = std::make_shared<OneDnnNorm>(sets);
    return OneDnnCalls{.call = [peer](const NormOperands& set) { peer->run(set); },
                       .checked =
                           [peer](const NormOperands& set) {
                             peer->run(set);
                             if (set.backward) peer->finish(set);
                           }};
  } catch (const dnnl::error&) {
    // No primitive for this dtype on this processor.
    return std::nullopt;
  }
}

}  // namespace touchstone::bench
