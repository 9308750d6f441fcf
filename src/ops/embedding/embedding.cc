// Checks and choice of implementation for embedding; nothing else.
#include "touchstone/ops/embedding.h"

#include <cmath>
#include <vector>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/embedding/embedding_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace embedding_checks {
namespace {

using embedding_op::Backward;
using embedding_op::Forward;
using embedding_op::Tokens;

constexpr char kForwardName[] = "embedding";
constexpr char kBackwardName[] = "embedding_backward";

constexpr Implementation<Forward> kForward[] = {
    {"simd", DeviceKind::cpu, nullptr, embedding_op::forward_simd},
    {"plain", DeviceKind::cpu, nullptr, embedding_op::forward_plain},
    {"vectorized", DeviceKind::cuda, embedding_op::forward_vectorized_refuses,
     embedding_op::forward_vectorized},
    {"portable", DeviceKind::cuda, nullptr, embedding_op::forward_portable},
};
constexpr Implementation<Backward> kBackward[] = {
    {"simd", DeviceKind::cpu, nullptr, embedding_op::backward_simd},
    {"plain", DeviceKind::cpu, nullptr, embedding_op::backward_plain},
    {"sorted", DeviceKind::cuda, embedding_op::backward_sorted_refuses,
     embedding_op::backward_sorted},
    {"portable", DeviceKind::cuda, nullptr, embedding_op::backward_portable},
};

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

class EmbeddingChecks : public Checks {
 public:
  EmbeddingChecks(const char* op, const Context& context) : Checks(op, context), op_(op) {
    on_cuda_ = context.device().is_cuda();
  }

  Tokens tokens(const Argument& a) const {
    present(a);
    dtype(a, {DType::i32, DType::i64});
    contiguous(a);
    std::int64_t count = 1;
    for (const std::int64_t size : a.view.sizes()) count = checked_mul(count, size, "tokens");
    return {.data = a.view.data, .wide = a.view.dtype == DType::i64, .count = count};
  }

  // [.., E] beside tokens [..]; sets E. Returns the row stride.
  std::int64_t matrix(const Argument& a, const Argument& tokens, std::int64_t& dim,
                      bool writable) const {
    present(a);
    if (on_cuda_) {
      dtype(a, {DType::f32, DType::bf16, DType::f16});
    } else {
      dtype(a, {DType::f64, DType::f32, DType::bf16, DType::f16});
    }
    const auto given = a.view.sizes();
    std::vector<std::int64_t> expected(tokens.view.sizes().begin(), tokens.view.sizes().end());
    expected.push_back(given.empty() ? 0 : given.back());
    if (given.size() != expected.size()) {
      fail(a.name, "the shape of tokens and [.., E]", shape_string(given));
    }
    shape(a, expected);
    dim = expected.back();
    return rows(a, writable).stride;
  }

  const WeightFormat* format(const Argument& a, const std::string& name, DType y) const {
    if (name.empty()) {
      if (y == DType::f64) {
        dtype(a, {DType::f64});
      } else {
        dtype(a, {DType::f32, DType::bf16, DType::f16, DType::f8_e4m3});
      }
      return touchstone::weight_format(a.view.dtype);
    }
    const WeightFormat& found = touchstone::weight_format(std::string_view(name));
    if (found.dtype.has_value()) {
      fail("weight_format", "a block format, or none for weights of a dtype", name);
    }
    if (y == DType::f64) fail("weight_format", "none, since y is f64", name);
    dtype(a, {DType::u8});
    return &found;
  }

  void weight(const Argument& a, const std::string& format_name, Forward& p) const {
    present(a);
    if (a.view.rank != 2) fail(a.name, "[V, E]", shape_string(a.view.sizes()));
    p.format = format(a, format_name, p.dtype);
    p.vocabulary = a.view.shape[0];
    p.weight = static_cast<const std::byte*>(a.view.data);
    const std::int64_t columns = p.format->dtype.has_value()
                                     ? p.dim
                                     : weight_bytes(*p.format, p.dim, std::string(op_) + ": E");
    const std::int64_t expected[] = {p.vocabulary, columns};
    shape(a, expected);
    p.row_bytes = checked_mul(rows(a, false).stride, size_of(a.view.dtype), "weight bytes");
    const bool odd = reinterpret_cast<std::uintptr_t>(p.weight) % 2 != 0 || p.row_bytes % 2 != 0;
    if (on_cuda_ && !p.format->dtype.has_value() && odd) {
      fail(a.name, "blocks at even addresses", "an odd address or row stride");
    }
  }

  void scale(double value) const {
    if (!std::isfinite(value)) fail("scale", "a finite number", std::to_string(value));
  }

  // On CUDA the kernels look.
  void in_range(const Tokens& tokens, std::int64_t vocabulary) const {
    if (on_cuda_) return;
    for (std::int64_t n = 0; n < tokens.count; ++n) {
      if (tokens[n] >= 0 && tokens[n] < vocabulary) continue;
      fail(("tokens[" + std::to_string(n) + "]").c_str(),
           "0 <= token < " + std::to_string(vocabulary), std::to_string(tokens[n]));
    }
  }

 private:
  const char* op_;
  bool on_cuda_ = false;
};

Forward checked(const Context& context, const EmbeddingArgs& args) {
  const Argument tokens{"tokens", args.tokens};
  const Argument weight{"weight", args.weight};
  const Argument y{"y", args.y};
  const EmbeddingChecks checks(kForwardName, context);
  Forward p;
  p.tokens = checks.tokens(tokens);
  p.y_stride = checks.matrix(y, tokens, p.dim, true);
  p.dtype = args.y.dtype;
  p.y = args.y.data;
  checks.weight(weight, args.weight_format, p);
  checks.scale(args.scale);
  p.scale = args.scale;
  checks.disjoint(y, tokens, false);
  checks.disjoint(y, weight, false);
  checks.in_range(p.tokens, p.vocabulary);
  return p;
}

Backward checked(const Context& context, const EmbeddingBackwardArgs& args) {
  const Argument tokens{"tokens", args.tokens};
  const Argument dy{"dy", args.dy};
  const Argument dweight{"dweight", args.dweight};
  const EmbeddingChecks checks(kBackwardName, context);
  Backward p;
  p.tokens = checks.tokens(tokens);
  p.dy_stride = checks.matrix(dy, tokens, p.dim, false);
  p.dtype = args.dy.dtype;
  p.dy = args.dy.data;
  checks.present(dweight);
  if (args.accumulate) {
    checks.dtype(dweight, {wide(p.dtype)});
  } else {
    checks.dtype(dweight, {p.dtype, wide(p.dtype)});
  }
  if (args.dweight.rank != 2) {
    checks.fail("dweight", "[V, E]", shape_string(dweight.view.sizes()));
  }
  p.vocabulary = args.dweight.shape[0];
  const std::int64_t expected[] = {p.vocabulary, p.dim};
  checks.shape(dweight, expected);
  p.dweight_stride = checks.rows(dweight, true).stride;
  p.dweight_dtype = args.dweight.dtype;
  p.dweight = args.dweight.data;
  checks.scale(args.scale);
  p.scale = args.scale;
  p.accumulate = args.accumulate;
  checks.disjoint(dweight, tokens, false);
  checks.disjoint(dweight, dy, false);
  checks.in_range(p.tokens, p.vocabulary);
  return p;
}

}  // namespace
}  // namespace embedding_checks

void embedding(Context& context, const EmbeddingArgs& args) {
  using namespace embedding_checks;
  const Forward p = checked(context, args);
  if (p.tokens.count == 0 || p.dim == 0) return;
  run_first<Forward>(kForwardName, kForward, context, p, args.implementation);
}

void embedding_backward(Context& context, const EmbeddingBackwardArgs& args) {
  using namespace embedding_checks;
  const Backward p = checked(context, args);
  if (p.vocabulary == 0 || p.dim == 0) return;
  run_first<Backward>(kBackwardName, kBackward, context, p, args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const EmbeddingArgs& args) {
  using namespace embedding_checks;
  return report_implementations<Forward>(kForward, context, checked(context, args));
}

std::vector<ImplementationReport> explain(Context& context, const EmbeddingBackwardArgs& args) {
  using namespace embedding_checks;
  return report_implementations<Backward>(kBackward, context, checked(context, args));
}

}  // namespace touchstone::inline v0
