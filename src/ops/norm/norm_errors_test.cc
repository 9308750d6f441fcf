// Bad arguments: one exception of the right class, whose message names the operator and the
// argument, and nothing written.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "ops/norm/norm_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::test {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kCols = 32;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class View>
View reshaped(View view, std::vector<std::int64_t> shape) {
  const View fresh = make_view(view.data, shape, view.dtype, view.device);
  return fresh;
}

template <class View>
View moved(View view, std::int64_t elements) {
  using Bytes = std::conditional_t<std::is_same_v<View, TensorView>, std::byte*, const std::byte*>;
  view.data = static_cast<Bytes>(view.data) + elements * size_of(view.dtype);
  return view;
}

TensorView writable(const ConstTensorView& view) {
  TensorView result =
      make_view(const_cast<void*>(view.data), view.sizes(), view.dtype, view.device);
  result.stride = view.stride;
  return result;
}

// Whether an argument is held against x, is x itself, or is held against x and written.
enum class Role : std::uint8_t { reference, input, output };

// Collects the mistakes that can be made with one tensor argument.
template <class Args, class View>
struct Maker {
  std::vector<Mistake<Args>>& list;
  std::string name;
  View Args::*member;
  Role role = Role::input;
  bool not_for_all = false;

  // Wrong on its own.
  template <class Edit>
  void wrong(const std::string& what, Edit edit) {
    list.push_back(
        {name + " " + what, name, [m = member, edit](Args& a) { edit(a.*m); }, not_for_all});
  }
  // Wrong beside the other arguments; when x differs from the rest, any of the rest may be named.
  template <class Edit>
  void misfit(const std::string& what, Edit edit) {
    wrong(what, edit);
    if (role == Role::reference) list.back().argument.clear();
  }

  void common() {
    wrong("on the wrong device", [](View& v) { v.device = other_device(); });
    wrong("with null data", [](View& v) { v.data = nullptr; });
    wrong("of type i32", [](View& v) { v.dtype = DType::i32; });
    wrong("of type u8", [](View& v) { v.dtype = DType::u8; });
    wrong("with a negative extent", [](View& v) { v.shape[0] = -1; });
    wrong("of rank 0", [](View& v) { v.rank = 0; });
    wrong("with an extent beyond 64 bits",
          [](View& v) { v.shape[0] = std::numeric_limits<std::int64_t>::max() / 2; });
    misfit("of another floating point type", [](View& v) { v.dtype = DType::f64; });
    misfit("with another extent", [](View& v) { v.shape[0] += 1; });
    misfit("of a higher rank", [](View& v) {
      const auto end = static_cast<std::size_t>(v.rank++);
      v.shape[end] = v.stride[end] = 1;
    });
  }

  void vector() {
    common();
    wrong("with a stride", [](View& v) { v.stride[0] = 2; });
  }

  void matrix() {
    common();
    misfit("with one column less", [](View& v) { v.shape[1] -= 1; });
    wrong("with a last stride of 2", [](View& v) { v.stride[1] = 2; });
    wrong("with a last stride of 0", [](View& v) { v.stride[1] = 0; });
    wrong("with a negative last stride", [](View& v) { v.stride[1] = -1; });
    wrong("with a negative row stride", [](View& v) { v.stride[0] = -kCols; });
    wrong("transposed", [](View& v) { std::swap(v.stride[0], v.stride[1]); });
    if (role == Role::output) {
      wrong("with overlapping rows", [](View& v) { v.stride[0] = kCols - 1; });
      wrong("with all rows in one place", [](View& v) { v.stride[0] = 0; });
    }
  }

  void required() {
    wrong("absent", [](View& v) { v = {}; });
  }
};

template <class Args>
using Mistakes = std::vector<Mistake<Args>>;

template <class Args>
Maker<Args, ConstTensorView> reference(Mistakes<Args>& list, ConstTensorView Args::*member) {
  return {list, "x", member, Role::reference};
}
template <class Args>
Maker<Args, ConstTensorView> input(Mistakes<Args>& list, const char* name,
                                   ConstTensorView Args::*member, bool not_for_all = false) {
  return {list, name, member, Role::input, not_for_all};
}
template <class Args>
Maker<Args, TensorView> output(Mistakes<Args>& list, const char* name, TensorView Args::*member,
                               bool not_for_all = false) {
  return {list, name, member, Role::output, not_for_all};
}

Mistakes<ForwardArgs> forward_mistakes() {
  using A = ForwardArgs;
  Mistakes<A> list;
  reference<A>(list, &A::x).matrix();
  input<A>(list, "x", &A::x).required();
  input<A>(list, "residual", &A::residual).matrix();
  output<A>(list, "y", &A::y).matrix();
  output<A>(list, "y", &A::y).required();
  output<A>(list, "sum", &A::sum).matrix();
  input<A>(list, "weight", &A::weight).vector();
  input<A>(list, "bias", &A::bias, true).vector();
  output<A>(list, "mean", &A::mean, true).vector();
  output<A>(list, "rstd", &A::rstd).vector();
  for (const double eps : {-1e-5, -0.5, kNan, kInfinity, -kInfinity}) {
    list.push_back({"eps " + std::to_string(eps), "eps", [=](A& a) { a.eps = eps; }});
  }
  list.push_back(
      {"weight and bias of different types", "bias",
       [](A& a) { a.bias.dtype = a.weight.dtype == DType::f32 ? DType::bf16 : DType::f32; }, true});
  const auto overlap = [&](const char* what, const char* argument, std::function<void(A&)> make,
                           bool not_for_all = false) {
    list.push_back({what, argument, std::move(make), not_for_all});
  };
  overlap("y one element into x", "y", [](A& a) { a.y = writable(moved(a.x, 1)); });
  overlap("y one row into x", "y", [](A& a) { a.y = writable(moved(a.x, kCols)); });
  overlap("x one row into y", "y", [](A& a) { a.x = moved(ConstTensorView(a.y), kCols); });
  overlap("y on sum", "y", [](A& a) { a.y = a.sum; });
  overlap("y and sum both on x", "y", [](A& a) { a.y = a.sum = writable(a.x); });
  overlap("y over weight", "y", [](A& a) { a.weight = reshaped(ConstTensorView(a.y), {kCols}); });
  overlap(
      "y over bias", "y", [](A& a) { a.bias = reshaped(ConstTensorView(a.y), {kCols}); }, true);
  overlap("rstd in y", "y", [](A& a) { a.rstd = reshaped(a.y, {kRows}); });
  overlap("rstd in x", "rstd", [](A& a) { a.rstd = reshaped(writable(a.x), {kRows}); });
  overlap(
      "mean is rstd", "mean", [](A& a) { a.mean = a.rstd; }, true);
  overlap(
      "mean in weight", "mean", [](A& a) { a.mean = reshaped(writable(a.weight), {kRows}); }, true);
  overlap("sum one element into residual", "sum",
          [](A& a) { a.sum = writable(moved(a.residual, 1)); });
  return list;
}

Mistakes<BackwardArgs> backward_mistakes() {
  using A = BackwardArgs;
  Mistakes<A> list;
  input<A>(list, "dy", &A::dy).matrix();
  input<A>(list, "dy", &A::dy).required();
  reference<A>(list, &A::x).matrix();
  input<A>(list, "x", &A::x).required();
  input<A>(list, "dsum", &A::dsum).matrix();
  output<A>(list, "dx", &A::dx).matrix();
  output<A>(list, "dx", &A::dx).required();
  input<A>(list, "mean", &A::mean, true).vector();
  input<A>(list, "mean", &A::mean, true).required();
  input<A>(list, "rstd", &A::rstd).vector();
  input<A>(list, "rstd", &A::rstd).required();
  input<A>(list, "weight", &A::weight).vector();
  output<A>(list, "dweight", &A::dweight).vector();
  output<A>(list, "dbias", &A::dbias, true).vector();
  list.push_back({"dweight and dbias of different types", "dbias",
                  [](A& a) { a.dbias.dtype = DType::bf16; }, true});
  list.push_back({"dx one element into dy", "dx", [](A& a) { a.dx = writable(moved(a.dy, 1)); }});
  list.push_back({"dx one row into x", "dx", [](A& a) { a.dx = writable(moved(a.x, kCols)); }});
  list.push_back({"dx on an expanded dy", "dx",
                  [](A& a) { a.dy = with_stride(ConstTensorView(a.dx), 0, 0); }});
  list.push_back(
      {"dx over rstd", "dx", [](A& a) { a.rstd = reshaped(ConstTensorView(a.dx), {kRows}); }});
  list.push_back({"dweight in dx", "dx", [](A& a) { a.dweight = reshaped(a.dx, {kCols}); }});
  list.push_back({"dweight is weight", "dweight", [](A& a) { a.dweight = writable(a.weight); }});
  list.push_back({"dweight is dbias", "dweight", [](A& a) { a.dbias = a.dweight; }, true});
  list.push_back(
      {"dweight in dy", "dweight", [](A& a) { a.dweight = reshaped(writable(a.dy), {kCols}); }});
  return list;
}

// RMS norm calls its arguments differently.
std::string argument_name(Kind kind, const std::string& argument) {
  if (kind == Kind::rms && argument == "weight") return "weight";
  if (kind == Kind::rms && argument == "dweight") return "dweight";
  return argument;
}

std::string operator_name(Kind kind, const ForwardArgs&) {
  return kind == Kind::layer ? "layer_norm" : "rms_norm";
}
std::string operator_name(Kind kind, const BackwardArgs&) {
  return kind == Kind::layer ? "layer_norm_backward" : "rms_norm_backward";
}

template <class Run, class Args>
void check_mistakes(Run& run, const Args& good, Kind kind, const Mistakes<Args>& mistakes,
                    std::initializer_list<const Guarded*> everything) {
  Runner context({.device = test_device(), .threads = 2});
  for (const Mistake<Args>& mistake : mistakes) {
    if (mistake.not_for_all && kind == Kind::rms) continue;
    SCOPED_TRACE(operator_name(kind, good) + ": " + mistake.name);
    Args args = good;
    mistake.make(args);
    std::string prefix = operator_name(kind, good) + ": ";
    if (!mistake.argument.empty()) prefix += argument_name(kind, mistake.argument) + ": ";
    expect_refusal(prefix, [&] { call(context, kind, args); });
    // Asking which implementation would run is held to the same standard.
    expect_refusal(prefix, [&] { reports(context, kind, args); });
    context.synchronize();
    for (const Guarded* buffer : everything) EXPECT_TRUE(buffer->unchanged());
  }
  // The arguments were good before they were spoilt, or the mistakes prove nothing.
  EXPECT_NO_THROW(run.run(context));
}

Problem error_problem(Kind kind) {
  Problem p;
  p.kind = kind;
  p.lead = {kRows};
  p.cols = kCols;
  p.fused = true;
  return p;
}

TEST(NormErrors, Forward) {
  for (const Kind kind : kBothKinds) {
    const Problem p = error_problem(kind);
    ForwardRun run(p, make_data(p));
    check_mistakes(
        run, run.args, kind, forward_mistakes(),
        {&run.x, &run.residual, &run.weight, &run.bias, &run.y, &run.sum, &run.mean, &run.rstd});
  }
}

TEST(NormErrors, Backward) {
  for (const Kind kind : kBothKinds) {
    const Problem p = error_problem(kind);
    BackwardRun run(p, make_data(p));
    check_mistakes(run, run.args, kind, backward_mistakes(),
                   {&run.dy, &run.x, &run.mean, &run.rstd, &run.weight, &run.dsum, &run.dx,
                    &run.dweight, &run.dbias});
  }
}

TEST(NormErrors, ResidualAndSumComeTogether) {
  Context context({.device = test_device()});
  for (const Kind kind : kBothKinds) {
    const Problem p = error_problem(kind);
    ForwardRun run(p, make_data(p));
    ForwardArgs args = run.args;
    args.sum = {};
    expect_refusal(operator_name(kind, args) + ": sum: ", [&] { call(context, kind, args); });
    args = run.args;
    args.residual = {};
    expect_refusal(operator_name(kind, args) + ": sum: ", [&] { call(context, kind, args); });
    EXPECT_TRUE(run.y.unchanged());
    EXPECT_TRUE(run.sum.unchanged());
  }
}

TEST(NormErrors, LeadingDimensionsMustCollapse) {
  Context context({.device = test_device()});
  Problem p = error_problem(Kind::layer);
  p.lead = {2, 3};
  ForwardRun run(p, make_data(p));
  ForwardArgs args = run.args;
  args.x.stride[0] += 1;
  expect_refusal("layer_norm: x: ", [&] { call(context, Kind::layer, args); });
  args = run.args;
  std::swap(args.x.stride[0], args.x.stride[1]);
  expect_refusal("layer_norm: x: ", [&] { call(context, Kind::layer, args); });
  args = run.args;
  args.y.stride[0] += 64;
  expect_refusal("layer_norm: y: ", [&] { call(context, Kind::layer, args); });
  EXPECT_TRUE(run.y.unchanged());
}

// The stride of a dimension of one element does not matter.
TEST(NormErrors, StridesOfSingleElementsAreIgnored) {
  Context context({.device = test_device()});
  Problem p = error_problem(Kind::layer);
  p.lead = {1, 3, 1};
  ForwardRun run(p, make_data(p));
  ForwardArgs args = run.args;
  for (const std::size_t dim : {std::size_t{0}, std::size_t{2}}) {
    args.x.stride[dim] = -12345;
    args.y.stride[dim] = 1;
  }
  EXPECT_NO_THROW(call(context, Kind::layer, args));
  context.synchronize();
}

TEST(NormErrors, WeightOffsetMustBeFinite) {
  Context context({.device = test_device()});
  const Problem p = error_problem(Kind::rms);
  for (const double offset : {kNan, kInfinity, -kInfinity}) {
    ForwardRun forward(p, make_data(p));
    forward.args.weight_offset = offset;
    expect_refusal("rms_norm: weight_offset: ", [&] { call(context, Kind::rms, forward.args); });
    EXPECT_TRUE(forward.y.unchanged());
    BackwardRun backward(p, make_data(p));
    backward.args.weight_offset = offset;
    expect_refusal("rms_norm_backward: weight_offset: ",
                   [&] { call(context, Kind::rms, backward.args); });
    EXPECT_TRUE(backward.dx.unchanged());
  }
}

// 16-bit data takes weights of its own type or f32, nothing else; 16-bit types do not mix.
TEST(NormErrors, WeightsOfHalves) {
  Context context({.device = test_device()});
  for (const DType half : {DType::bf16, DType::f16}) {
    Problem p = error_problem(Kind::layer);
    p.bias = false;
    p.dtypes = {half, half, half};
    ForwardRun run(p, make_data(p));
    ForwardArgs args = run.args;
    args.weight.dtype = half == DType::bf16 ? DType::f16 : DType::bf16;
    expect_refusal("layer_norm: weight: ", [&] { call(context, Kind::layer, args); });
    EXPECT_TRUE(run.y.unchanged());
  }
}

TEST(NormErrors, DoublesAreForTheCpu) {
  if (!on_gpu()) GTEST_SKIP() << "f64 works here";
  Context context({.device = test_device()});
  Problem p = error_problem(Kind::layer);
  p.dtypes = {DType::f64, DType::f64, DType::f64};
  ForwardRun forward(p, make_data(p));
  expect_refusal("layer_norm: x: ", [&] { call(context, Kind::layer, forward.args); });
  EXPECT_TRUE(forward.y.unchanged());
  BackwardRun backward(p, make_data(p));
  expect_refusal("layer_norm_backward: x: ", [&] { call(context, Kind::layer, backward.args); });
  EXPECT_TRUE(backward.dx.unchanged());
}

TEST(NormErrors, UnknownImplementation) {
  Context context({.device = test_device()});
  for (const Kind kind : kBothKinds) {
    const Problem p = error_problem(kind);
    ForwardRun forward(p, make_data(p));
    forward.args.implementation = "fastest";
    EXPECT_THROW(call(context, kind, forward.args), Unsupported);
    EXPECT_TRUE(forward.y.unchanged());
    BackwardRun backward(p, make_data(p));
    backward.args.implementation = "fastest";
    EXPECT_THROW(call(context, kind, backward.args), Unsupported);
    EXPECT_TRUE(backward.dx.unchanged());
  }
}

}  // namespace
}  // namespace touchstone::test
