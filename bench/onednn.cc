#include "bench/onednn.h"

#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "bench/openmp.h"

namespace touchstone::bench {
namespace {

using Arguments = std::unordered_map<int, dnnl::memory>;
using dnnl::memory;

Tensor as_f32(const Tensor& tensor) {
  Tensor result = Tensor::empty(tensor.sizes(), DType::f32);
  visit_float_dtype(tensor.dtype(), [&]<class T>() {
    const std::span<const T> from = tensor.values<T>();
    const std::span<float> to = result.values<float>();
    for (std::size_t i = 0; i < from.size(); ++i) to[i] = convert<float>(from[i]);
  });
  return result;
}

void convert_from_f32(const Tensor& from, Tensor& to) {
  visit_float_dtype(to.dtype(), [&]<class T>() {
    const std::span<const float> source = from.values<float>();
    const std::span<T> target = to.values<T>();
    for (std::size_t i = 0; i < source.size(); ++i) target[i] = convert<T>(source[i]);
  });
}

// One primitive and, for every set of operands, the arguments it runs on. oneDNN keeps variances
// where we keep 1 / sqrt(variance + eps), so it gets statistics of its own.
class OneDnnNorm {
 public:
  OneDnnNorm(const NormProblem& problem, NormData& data)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        gamma_(as_f32(data.gamma)),
        beta_(as_f32(data.beta)),
        dgamma_(Tensor::empty({problem.cols}, DType::f32)),
        dbeta_(Tensor::empty({problem.cols}, DType::f32)) {
    const bool backward = problem.direction == Direction::backward;
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
    for (NormSet& set : data.sets) {
      Tensor mean = Tensor::empty({problem.rows}, DType::f32);
      Tensor variance = Tensor::empty({problem.rows}, DType::f32);
      Arguments arguments = {
          {DNNL_ARG_SRC, wrap(matrix, set.x)},         {DNNL_ARG_MEAN, wrap(column, mean)},
          {DNNL_ARG_VARIANCE, wrap(column, variance)}, {DNNL_ARG_SCALE, wrap(vector, gamma_)},
          {DNNL_ARG_SHIFT, wrap(vector, beta_)},       {DNNL_ARG_DST, wrap(matrix, set.out)}};
      if (backward) {
        forward.execute(stream_, arguments);
        stream_.wait();
        arguments.erase(DNNL_ARG_DST);
        arguments.insert({{DNNL_ARG_DIFF_DST, wrap(matrix, set.dy)},
                          {DNNL_ARG_DIFF_SRC, wrap(matrix, set.out)},
                          {DNNL_ARG_DIFF_SCALE, wrap(vector, dgamma_)},
                          {DNNL_ARG_DIFF_SHIFT, wrap(vector, dbeta_)}});
      }
      arguments_[set.x.data()] = std::move(arguments);
      statistics_.push_back(std::move(mean));
      statistics_.push_back(std::move(variance));
    }
    if (backward) {
      primitive_ = dnnl::layer_normalization_backward(
          {{dnnl::prop_kind::backward, matrix, matrix, static_cast<float>(kEpsilon), flags},
           engine_,
           forward_desc});
    }
  }

  void run(NormSet& set) {
    primitive_.execute(stream_, arguments_.at(set.x.data()));
    stream_.wait();
  }

  void finish(NormSet& set) const {
    convert_from_f32(dgamma_, set.dgamma);
    convert_from_f32(dbeta_, set.dbeta);
  }

 private:
  memory wrap(const memory::desc& desc, Tensor& tensor) const {
    return {desc, engine_, tensor.data()};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::primitive primitive_;
  Tensor gamma_;
  Tensor beta_;
  Tensor dgamma_;
  Tensor dbeta_;
  std::vector<Tensor> statistics_;
  std::unordered_map<const void*, Arguments> arguments_;
};

}  // namespace

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

std::optional<OneDnnCalls> onednn_calls(Context& context, const NormProblem& problem,
                                        NormData& data) {
  const bool known_dtype = problem.dtype == DType::f32 || problem.dtype == DType::bf16;
  if (problem.kind != norm::Kind::layer || !known_dtype) return std::nullopt;
  set_openmp_threads(context.threads());
  try {
    auto peer = std::make_shared<OneDnnNorm>(problem, data);
    const bool backward = problem.direction == Direction::backward;
    return OneDnnCalls{.call = [peer](NormSet& set) { peer->run(set); },
                       .checked =
                           [peer, backward](NormSet& set) {
                             peer->run(set);
                             if (backward) peer->finish(set);
                           }};
  } catch (const dnnl::error&) {
    // No primitive for this dtype on this processor.
    return std::nullopt;
  }
}

}  // namespace touchstone::bench
