// Bad arguments: one exception of the right class, whose message names the operator and the
// argument, and nothing written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "ops/softmax_topk/softmax_topk_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::test {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kTokens = 96;
constexpr std::int64_t kPlaces = 4;

using Mistake = test::Mistake<SoftmaxTopkArgs>;
using Mistakes = std::vector<Mistake>;

TensorView writable(const ConstTensorView& view) {
  TensorView result =
      make_view(const_cast<void*>(view.data), view.sizes(), view.dtype, view.device);
  result.stride = view.stride;
  return result;
}

// Memory of one argument in the shape and type of another.
template <class View>
View placed_on(View view, const void* data) {
  if constexpr (std::is_same_v<View, TensorView>) {
    view.data = const_cast<void*>(data);
  } else {
    view.data = data;
  }
  return view;
}

// Mistakes with one tensor argument, whatever it is.
template <class View>
void common(Mistakes& list, const std::string& name, View SoftmaxTopkArgs::*member) {
  const auto wrong = [&](const std::string& what, auto edit) {
    list.push_back({name + " " + what, name, [=](SoftmaxTopkArgs& a) { edit(a.*member); }});
  };
  wrong("on the wrong device", [](View& v) { v.device = other_device(); });
  wrong("with null data", [](View& v) { v.data = nullptr; });
  wrong("of type f64", [](View& v) { v.dtype = DType::f64; });
  wrong("of type u8", [](View& v) { v.dtype = DType::u8; });
  wrong("with a negative extent", [](View& v) { v.shape[0] = -1; });
  wrong("with an extent beyond 64 bits",
        [](View& v) { v.shape[0] = std::numeric_limits<std::int64_t>::max() / 2; });
  wrong("of rank 0", [](View& v) { v.rank = 0; });
}

// Mistakes beside logits [kRows, kTokens].
template <class View>
void beside_logits(Mistakes& list, const std::string& name, View SoftmaxTopkArgs::*member,
                   bool written) {
  common(list, name, member);
  const auto wrong = [&](const std::string& what, auto edit) {
    list.push_back({name + " " + what, name, [=](SoftmaxTopkArgs& a) { edit(a.*member); }});
  };
  wrong("with a row more", [](View& v) { v.shape[0] += 1; });
  wrong("of a higher rank", [](View& v) {
    const auto end = static_cast<std::size_t>(v.rank++);
    v.shape[end] = v.stride[end] = 1;
  });
  if (written) wrong("not contiguous", [](View& v) { v.stride[0] += 1; });
}

// The last extent of a matrix argument, and its strides.
template <class View>
void matrix(Mistakes& list, const std::string& name, View SoftmaxTopkArgs::*member) {
  const auto wrong = [&](const std::string& what, auto edit) {
    list.push_back({name + " " + what, name, [=](SoftmaxTopkArgs& a) { edit(a.*member); }});
  };
  wrong("with a last stride of 2", [](View& v) { v.stride[1] = 2; });
  wrong("with a last stride of 0", [](View& v) { v.stride[1] = 0; });
  wrong("with a negative row stride", [](View& v) { v.stride[0] = -v.stride[0]; });
}

void overlaps(Mistakes& list) {
  using A = SoftmaxTopkArgs;
  const auto overlap = [&](const char* what, const char* argument, std::function<void(A&)> make) {
    list.push_back({what, argument, std::move(make)});
  };
  overlap("probabilities in logits", "probabilities",
          [](A& a) { a.probabilities = placed_on(a.probabilities, a.logits.data); });
  overlap("probabilities in bias", "probabilities",
          [](A& a) { a.probabilities = placed_on(a.probabilities, a.bias.data); });
  overlap("indices in logits", "indices",
          [](A& a) { a.indices = placed_on(a.indices, a.logits.data); });
  overlap("indices on probabilities", "probabilities",
          [](A& a) { a.indices = placed_on(a.indices, a.probabilities.data); });
  overlap("log_probabilities on probabilities", "probabilities",
          [](A& a) { a.log_probabilities = a.probabilities; });
  overlap("log_probabilities on indices", "indices",
          [](A& a) { a.log_probabilities = placed_on(a.log_probabilities, a.indices.data); });
  overlap("log_sum_exp on temperature", "log_sum_exp",
          [](A& a) { a.log_sum_exp = writable(a.temperature); });
  overlap("status on log_sum_exp", "log_sum_exp",
          [](A& a) { a.status = placed_on(a.status, a.log_sum_exp.data); });
  overlap("status on token_mask", "status",
          [](A& a) { a.status = placed_on(a.status, a.token_mask.data); });
  overlap("logits one row into probabilities", "probabilities", [](A& a) {
    a.logits = placed_on(a.logits, static_cast<std::byte*>(a.probabilities.data) + 4 * kPlaces);
  });
}

Mistakes all_mistakes() {
  using A = SoftmaxTopkArgs;
  Mistakes list;
  common(list, "logits", &A::logits);
  matrix(list, "logits", &A::logits);
  beside_logits(list, "temperature", &A::temperature, false);
  beside_logits(list, "bias", &A::bias, false);
  matrix(list, "bias", &A::bias);
  beside_logits(list, "token_mask", &A::token_mask, false);
  matrix(list, "token_mask", &A::token_mask);
  beside_logits(list, "probabilities", &A::probabilities, true);
  beside_logits(list, "indices", &A::indices, true);
  beside_logits(list, "log_probabilities", &A::log_probabilities, true);
  beside_logits(list, "log_sum_exp", &A::log_sum_exp, false);
  beside_logits(list, "status", &A::status, false);
  const auto add = [&](const char* what, const char* argument, std::function<void(A&)> make) {
    list.push_back({what, argument, std::move(make)});
  };
  add("no logits", "logits", [](A& a) { a.logits = {}; });
  add("no probabilities", "probabilities", [](A& a) { a.probabilities = {}; });
  add("no indices", "indices", [](A& a) { a.indices = {}; });
  add("logits of integers", "logits", [](A& a) { a.logits.dtype = DType::i32; });
  add("no tokens", "logits", [](A& a) { a.logits.shape[1] = 0; });
  add("k of 0", "probabilities", [](A& a) { a.probabilities.shape[1] = 0; });
  add("k below 0", "probabilities", [](A& a) { a.probabilities.shape[1] = -3; });
  add("k above the vocabulary", "probabilities",
      [](A& a) { a.probabilities.shape[1] = a.probabilities.stride[0] = kTokens + 1; });
  add("fewer indices than k", "indices", [](A& a) { a.indices.shape[1] = kPlaces - 1; });
  add("indices of type f32", "indices", [](A& a) { a.indices.dtype = DType::f32; });
  add("fewer log-probabilities than k", "log_probabilities",
      [](A& a) { a.log_probabilities.shape[1] = kPlaces - 1; });
  add("a bias of the wrong width", "bias", [](A& a) { a.bias.shape[1] = kTokens - 1; });
  add("a mask of the wrong width", "token_mask", [](A& a) { a.token_mask.shape[1] += 1; });
  add("a shared mask of the wrong width", "token_mask", [](A& a) {
    a.token_mask.rank = 1;
    a.token_mask.shape[0] = kTokens;
    a.token_mask.stride[0] = 1;
  });
  add("temperature apart", "temperature", [](A& a) { a.temperature.stride[0] = 2; });
  add("status apart", "status", [](A& a) { a.status.stride[0] = 2; });
  for (const double t : {0.0, -1.0, -0.0, kNan, kInfinity, -kInfinity}) {
    list.push_back({"temperature_scale " + std::to_string(t), "temperature_scale",
                    [=](A& a) { a.temperature_scale = t; }});
  }
  overlaps(list);
  return list;
}

TopkProblem good_problem() {
  return {.lead = {kRows},
          .vocabulary = kTokens,
          .k = kPlaces,
          .bias = PerToken::rows,
          .token_mask = PerToken::rows,
          .temperature = {1, 2}};
}

TEST(SoftmaxTopkErrors, EveryMistake) {
  const TopkProblem p = good_problem();
  TopkRun run(p, make_data(p));
  Runner context({.device = test_device(), .threads = 2});
  for (const Mistake& mistake : all_mistakes()) {
    SCOPED_TRACE(mistake.name);
    SoftmaxTopkArgs args = run.args;
    mistake.make(args);
    const std::string prefix = "softmax_topk: " + mistake.argument + ": ";
    expect_refusal(prefix, [&] { softmax_topk(context, args); });
    // Asking which implementation would run is held to the same standard.
    expect_refusal(prefix, [&] { explain(context, args); });
    context.synchronize();
    for (const Guarded* buffer :
         {&run.logits, &run.temperature, &run.bias, &run.token_mask, &run.probabilities,
          &run.indices, &run.log_probabilities, &run.log_sum_exp, &run.status}) {
      EXPECT_TRUE(buffer->unchanged());
    }
  }
  // The arguments were good before they were spoilt, or the mistakes prove nothing.
  EXPECT_NO_THROW(run.run(context));
}

TEST(SoftmaxTopkErrors, MessagesSayWhatWasExpected) {
  const TopkProblem p = good_problem();
  TopkRun run(p, make_data(p));
  Context context({.device = test_device(), .threads = 1});
  SoftmaxTopkArgs args = run.args;
  args.probabilities.shape[1] = kTokens + 1;
  expect_refusal("softmax_topk: probabilities: expected a last extent of 1 to 96, got 97",
                 [&] { softmax_topk(context, args); });
  args = run.args;
  args.status.dtype = DType::i64;
  expect_refusal("softmax_topk: status: expected dtype i32, got i64",
                 [&] { softmax_topk(context, args); });
}

// 2^31 tokens do not fit an i32. Nothing is read: the memory is not there.
TEST(SoftmaxTopkErrors, IndicesTooNarrow) {
  const TopkProblem p{.lead = {1}, .vocabulary = 8, .k = 2, .extras = false};
  TopkRun run(p, make_data(p));
  Context context({.device = test_device(), .threads = 1});
  SoftmaxTopkArgs args = run.args;
  args.logits.shape[1] = std::int64_t{1} << 31;
  // Far from the outputs, which would seem to lie inside it.
  args.logits.data = reinterpret_cast<const void*>(std::uintptr_t{1} << 40);
  expect_refusal("softmax_topk: indices: ", [&] { softmax_topk(context, args); });
}

// A grid has fewer CTAs than 2^31: kernels with one per row refuse more rows, and one is left that
// takes them. Nothing is read: the memory is not there.
TEST(SoftmaxTopkErrors, RowsBeyondAGrid) {
  Context context({.device = test_device(), .threads = 1});
  const auto memory = [](int terabyte) {
    return reinterpret_cast<void*>(std::uintptr_t{static_cast<unsigned>(terabyte)} << 40);
  };
  constexpr std::int64_t kMany = std::int64_t{1} << 33;
  const std::int64_t shape[] = {kMany, 1};
  for (const bool masked : {false, true}) {
    SoftmaxTopkArgs args;
    args.logits = with_stride(make_view(memory(1), shape, DType::f32, test_device()), 0, 0);
    args.probabilities = make_view(memory(2), shape, DType::f32, test_device());
    args.indices = make_view(memory(3), shape, DType::i32, test_device());
    const std::int64_t word[] = {1};
    if (masked) args.token_mask = make_view(memory(4), word, DType::i32, test_device());
    std::string accepting;
    for (const ImplementationReport& report : explain(context, args)) {
      if (report.accepted) accepting += report.name + std::string(" ");
    }
    EXPECT_EQ(accepting, on_gpu() ? "sort " : "simd plain ");
  }
}

TEST(SoftmaxTopkErrors, UnknownImplementation) {
  const TopkProblem p = good_problem();
  TopkRun run(p, make_data(p));
  Context context({.device = test_device(), .threads = 1});
  run.args.implementation = "abacus";
  EXPECT_THROW(softmax_topk(context, run.args), Unsupported);
  EXPECT_TRUE(run.probabilities.unchanged());
}

}  // namespace
}  // namespace touchstone::test
