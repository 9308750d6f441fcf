// What dense attention refuses, in which words, and that nothing is written then.
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "ops/attention_dense/attention_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::test {
namespace {

const DenseProblem kDense{{.batch = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .queries = 5,
                           .keys = 7,
                           .k_dim = 8,
                           .v_dim = 6,
                           .bias = BiasKind::full,
                           .alibi = true,
                           .sink_logits = true,
                           .log_sum_exp_grad = true},
                          {.order = HeadOrder::tokens_first}};
const DenseProblem kPacked{{.heads = 4, .kv_heads = 2, .k_dim = 8, .packed = {{3, 4}, {2, 5}}},
                           {.order = HeadOrder::tokens_first}};

template <class View>
View resized(View view, int dim, std::int64_t extent) {
  view.shape[static_cast<std::size_t>(dim)] = extent;
  return view;
}

template <class View>
View as(View view, DType dtype) {
  view.dtype = dtype;
  return view;
}

template <class View>
View moved(View view, std::int64_t elements) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  view.data = static_cast<Byte*>(view.data) + elements * size_of(view.dtype);
  return view;
}

// A tensor may be written through the view of an input here: the call must refuse before.
TensorView writable(const ConstTensorView& view) {
  TensorView result;
  result.data = const_cast<void*>(view.data);
  result.dtype = view.dtype;
  result.device = view.device;
  result.rank = view.rank;
  result.shape = view.shape;
  result.stride = view.stride;
  return result;
}

template <class Run, class Call, class Args>
void expect_refused(const DenseProblem& p, const std::string& op, const Call& call,
                    const std::vector<Mistake<Args>>& mistakes) {
  Run run(p, make_data(p));
  Context context({.device = test_device(), .threads = 1});
  for (const auto& mistake : mistakes) {
    const testing::ScopedTrace trace(__FILE__, __LINE__, mistake.name);
    const auto before = run.bytes();
    Args args = run.args;
    mistake.make(args);
    expect_refusal(op + ": " + mistake.argument, [&] { call(context, args); });
    EXPECT_TRUE(run.bytes() == before) << "outputs were written";
  }
}

// What both directions refuse alike.
template <class A>
std::vector<Mistake<A>> shared_mistakes() {
  std::vector<Mistake<A>> list{
      {"no q", "q: expected a tensor, got none", [](A& a) { a.q = {}; }},
      {"no k", "k: expected a tensor, got none", [](A& a) { a.k = {}; }},
      {"no v", "v: expected a tensor, got none", [](A& a) { a.v = {}; }},
      {"q without data", "q: expected data", [](A& a) { a.q.data = nullptr; }},
      {"q of integers", "q: expected dtype", [](A& a) { a.q = as(a.q, DType::i32); }},
      {"k of another dtype", "k: expected dtype f32, got bf16",
       [](A& a) { a.k = as(a.k, DType::bf16); }},
      {"v of another dtype", "v: expected dtype f32", [](A& a) { a.v = as(a.v, DType::f16); }},
      {"q of rank 3", "q: expected shape [B, S, H, D]", [](A& a) { a.q.rank = 3; }},
      {"q of rank 5", "q: expected shape [B, S, H, D]", [](A& a) { a.q.rank = 5; }},
      {"a negative extent", "q: expected shape", [](A& a) { a.q = resized(a.q, 2, -1); }},
      {"another batch in k", "k: expected shape [2, S, H, 8], got [3, 7, 2, 8]",
       [](A& a) { a.k = resized(a.k, 0, 3); }},
      {"another size of heads in k", "k: expected shape", [](A& a) { a.k = resized(a.k, 3, 7); }},
      {"other tokens in v", "v: expected shape", [](A& a) { a.v = resized(a.v, 1, 6); }},
      {"other heads in v", "v: expected shape", [](A& a) { a.v = resized(a.v, 2, 4); }},
      {"heads that do not divide", "q: expected a multiple of 2 heads, got 3",
       [](A& a) { a.q = resized(a.q, 2, 3); }},
      {"no heads", "q: expected a multiple of 2 heads, got 0",
       [](A& a) { a.q = resized(a.q, 2, 0); }},
      {"no KV heads", "k: expected at least 1 head",
       [](A& a) { a.k = resized(a.k, 2, 0), a.v = resized(a.v, 2, 0); }},
      {"heads of nothing", "q: expected heads of at least 1 number",
       [](A& a) { a.q = resized(a.q, 3, 0), a.k = resized(a.k, 3, 0); }},
      {"a last dimension apart", "q: expected a last dimension of stride 1",
       [](A& a) { a.q = with_stride(a.q, 3, 2); }},
      {"a negative stride", "k: expected strides of at least 0",
       [](A& a) { a.k = with_stride(a.k, 2, -8); }},
      {"beyond 64 bits", "k: ", [](A& a) { a.k = with_stride(a.k, 0, std::int64_t{1} << 62); }},
      {"a bias of another dtype", "bias: expected dtype f32",
       [](A& a) { a.options.bias = as(a.options.bias, DType::bf16); }},
      {"a bias of another shape", "bias: expected shape [2, 4, 5, 7], the first two may be 1",
       [](A& a) { a.options.bias = resized(a.options.bias, 1, 2); }},
      {"dropout of all weights", "dropout: expected a probability",
       [](A& a) { a.options.dropout.probability = 1; }},
      {"dropout beyond the counter", "dropout: expected step < 2^23",
       [](A& a) {
         a.options.dropout.probability = 0.1;
         a.options.dropout.step = std::int64_t{1} << 23;
       }},
      {"slopes for other heads", "alibi_slopes: expected shape [4]",
       [](A& a) { a.options.alibi_slopes = resized(a.options.alibi_slopes, 0, 2); }},
      {"sinks for other heads", "sink_logits: expected shape [4]",
       [](A& a) { a.options.sink_logits = resized(a.options.sink_logits, 0, 5); }},
      {"starts of queries only", "key_offsets: expected a tensor",
       [](A& a) { a.options.query_offsets = a.options.sink_logits; }},
      {"starts of keys only", "query_offsets: expected a tensor",
       [](A& a) { a.options.key_offsets = a.options.sink_logits; }},
      {"a scale of NaN", "scale: expected a finite number", [](A& a) { a.options.scale = kNan; }},
      {"an infinite scale", "scale: ", [](A& a) { a.options.scale = -kInfinity; }},
      {"a scale beyond f32", "scale: ", [](A& a) { a.options.scale = 1e39; }},
      {"a negative cap", "soft_cap: expected 0 or a finite number above it",
       [](A& a) { a.options.soft_cap = -1; }},
      {"a cap of NaN", "soft_cap: ", [](A& a) { a.options.soft_cap = kNan; }},
      {"an infinite cap", "soft_cap: ", [](A& a) { a.options.soft_cap = kInfinity; }},
      {"a cap that f32 has not", "soft_cap: ", [](A& a) { a.options.soft_cap = 1e-300; }},
      {"a negative window", "window: expected at least 0, got -1",
       [](A& a) { a.options.window = -1; }},
      {"negative sinks", "sinks: expected at least 0", [](A& a) { a.options.sinks = -1; }},
      {"sinks without a window", "sinks: expected 0 without a window, got 2",
       [](A& a) { a.options.sinks = 2; }},
  };
  if (!on_gpu()) {
    list.push_back({"q elsewhere", "q: expected a tensor on cpu, got cuda:0",
                    [](A& a) { a.q.device = Device::cuda(0); }});
  } else {
    list.push_back({"f64", "q: expected dtype f32 or bf16 or f16 on cuda, got f64",
                    [](A& a) { a.q = as(a.q, DType::f64), a.k = as(a.k, DType::f64); }});
  }
  return list;
}

TEST(AttentionErrors, Forward) {
  using A = AttentionArgs;
  std::vector<Mistake<A>> list = shared_mistakes<A>();
  const std::vector<Mistake<A>> own{
      {"no output", "output: expected a tensor, got none", [](A& a) { a.output = {}; }},
      {"an output of the size of q", "output: expected shape [2, 5, 4, 6], got [2, 5, 4, 8]",
       [](A& a) { a.output = resized(a.output, 3, 8); }},
      {"an output of another dtype", "output: expected dtype f32",
       [](A& a) { a.output = as(a.output, DType::f16); }},
      {"an output whose rows coincide", "output: expected every element at an address of its own",
       [](A& a) { a.output = with_stride(a.output, 2, 5); }},
      {"an output that is broadcast", "output: expected every element at an address of its own",
       [](A& a) { a.output = with_stride(a.output, 0, 0); }},
      {"log_sum_exp of another shape", "log_sum_exp: expected shape [2, 5, 4]",
       [](A& a) { a.log_sum_exp = resized(a.log_sum_exp, 2, 5); }},
      {"log_sum_exp of another dtype", "log_sum_exp: expected dtype f32",
       [](A& a) { a.log_sum_exp = as(a.log_sum_exp, DType::f64); }},
      {"log_sum_exp whose rows coincide",
       "log_sum_exp: expected every element at an address of its own",
       [](A& a) { a.log_sum_exp = with_stride(a.log_sum_exp, 1, 3); }},
      {"output in v", "output: expected no overlap with v",
       [](A& a) {
         a.v = moved(ConstTensorView(a.output), 3), a.v.shape = {2, 7, 2, 6};
       }},
      {"log_sum_exp in the bias", "log_sum_exp: expected no overlap with bias",
       [](A& a) { a.log_sum_exp.data = writable(a.options.bias).data; }},
      {"log_sum_exp in the output", "output: expected no overlap with log_sum_exp",
       [](A& a) { a.log_sum_exp.data = a.output.data; }},
  };
  list.insert(list.end(), own.begin(), own.end());
  expect_refused<DenseForwardRun>(
      kDense, "attention", [](Context& c, const A& a) { attention(c, a); }, list);
  expect_refused<DenseForwardRun>(
      kDense, "attention", [](Context& c, const A& a) { explain(c, a); }, list);
}

TEST(AttentionErrors, Backward) {
  using A = AttentionBackwardArgs;
  std::vector<Mistake<A>> list = shared_mistakes<A>();
  const std::vector<Mistake<A>> own{
      {"no doutput", "doutput: expected a tensor, got none", [](A& a) { a.doutput = {}; }},
      {"no output", "output: expected a tensor, got none", [](A& a) { a.output = {}; }},
      {"no log_sum_exp", "log_sum_exp: expected a tensor, got none",
       [](A& a) { a.log_sum_exp = {}; }},
      {"doutput of another shape", "doutput: expected shape",
       [](A& a) { a.doutput = resized(a.doutput, 1, 4); }},
      {"dlog_sum_exp of another shape", "dlog_sum_exp: expected shape",
       [](A& a) { a.dlog_sum_exp = resized(a.dlog_sum_exp, 1, 4); }},
      {"no dq", "dq: expected a tensor, got none", [](A& a) { a.dq = {}; }},
      {"no dk", "dk: expected a tensor, got none", [](A& a) { a.dk = {}; }},
      {"no dv", "dv: expected a tensor, got none", [](A& a) { a.dv = {}; }},
      {"dk with the heads of q", "dk: expected shape [2, 7, 2, 8]",
       [](A& a) { a.dk = resized(a.dk, 2, 4); }},
      {"dq of another dtype", "dq: expected dtype f32", [](A& a) { a.dq = as(a.dq, DType::bf16); }},
      {"dbias without a bias", "dbias: expected none without a bias",
       [](A& a) { a.options.bias = {}; }},
      {"dbias of another shape", "dbias: expected shape [2, 4, 5, 7]",
       [](A& a) { a.dbias = resized(a.dbias, 0, 1); }},
      {"dsink_logits without sinks", "dsink_logits: expected none without sink_logits",
       [](A& a) { a.options.sink_logits = {}; }},
      {"dq in q", "dq: expected no overlap with q", [](A& a) { a.dq = writable(a.q); }},
      {"dk in v", "dk: expected no overlap with v", [](A& a) { a.dk.data = writable(a.v).data; }},
      {"dv in dk", "dk: expected no overlap with dv", [](A& a) { a.dv.data = a.dk.data; }},
      {"dq in doutput", "dq: expected no overlap with doutput",
       [](A& a) { a.dq.data = writable(a.doutput).data; }},
  };
  list.insert(list.end(), own.begin(), own.end());
  expect_refused<DenseBackwardRun>(
      kDense, "attention_backward", [](Context& c, const A& a) { attention_backward(c, a); }, list);
  expect_refused<DenseBackwardRun>(
      kDense, "attention_backward", [](Context& c, const A& a) { explain(c, a); }, list);
}

TEST(AttentionErrors, PackedSequences) {
  using A = AttentionArgs;
  DenseForwardRun run(kPacked, make_data(kPacked));
  std::vector<Mistake<A>> list{
      {"q of rank 4", "q: expected shape [N, H, D]",
       [](A& a) { a.q.rank = 4, a.q.shape[3] = 1, a.q.stride[3] = 1; }},
      {"starts of i32", "query_offsets: expected dtype i64, got i32",
       [](A& a) { a.options.query_offsets = as(a.options.query_offsets, DType::i32); }},
      {"starts of different lengths", "key_offsets: expected shape [3], got [2]",
       [](A& a) { a.options.key_offsets = resized(a.options.key_offsets, 0, 2); }},
      {"no starts", "query_offsets: expected shape",
       [](A& a) { a.options.query_offsets = resized(a.options.query_offsets, 0, 0); }},
      {"tokens of no sequence", "query_offsets: expected a sequence for the tokens, got none",
       [](A& a) {
         a.options.query_offsets = resized(a.options.query_offsets, 0, 1);
         a.options.key_offsets = resized(a.options.key_offsets, 0, 1);
       }},
      {"keys of no sequence", "query_offsets: expected a sequence for the tokens, got none",
       [](A& a) {
         a.options.query_offsets = resized(a.options.query_offsets, 0, 1);
         a.options.key_offsets = resized(a.options.key_offsets, 0, 1);
         a.q = resized(a.q, 0, 0);
       }},
      {"a bias", "bias: expected none with packed sequences, got a tensor",
       [&](A& a) { a.options.bias = run.q.view(); }},
  };
  expect_refused<DenseForwardRun>(
      kPacked, "attention", [](Context& c, const A& a) { attention(c, a); }, list);
  if (on_gpu()) return;  // nobody looks into the memory of a GPU
  const auto with_starts = [&](const Values& starts, const char* message) {
    Guarded wrong(test_device(), DType::i64, {std::ssize(starts)}, starts);
    for (const bool queries : {true, false}) {
      const std::string name = queries ? "query_offsets" : "key_offsets";
      A args = run.args;
      (queries ? args.options.query_offsets : args.options.key_offsets) = wrong;
      Context context({.threads = 1});
      expect_refusal("attention: " + name + ": " + message, [&] { attention(context, args); });
    }
  };
  with_starts({1, 3, 5}, "expected 0 first, got 1");
  with_starts({0, 4, 3}, "expected ascending numbers up to");
  with_starts({0, -1, 3}, "expected ascending numbers up to");
  with_starts({0, 3, 100}, "expected ascending numbers up to");
  with_starts({0, 1, 2}, "expected ");
}

// q, k and v side by side in one tensor, and their gradients in another.
TEST(AttentionErrors, InterleavedTensorsAreNoOverlap) {
  const std::int64_t tokens = 9;
  const std::int64_t heads = 2;
  const std::int64_t dim = 4;
  const DenseProblem p{{.batch = 2,
                        .heads = heads,
                        .kv_heads = heads,
                        .queries = tokens,
                        .keys = tokens,
                        .k_dim = dim}};
  DenseData data = make_data(p);
  Values mixed;
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (const Values* from : {&data.q, &data.k, &data.v}) {
        for (std::int64_t h = 0; h < heads; ++h) {
          const auto at = from->begin() + ((b * heads + h) * tokens + t) * dim;
          mixed.insert(mixed.end(), at, at + dim);
        }
      }
    }
  }
  Guarded together(test_device(), DType::f32, {2, tokens, 3 * heads, dim}, mixed);
  Guarded gradients(test_device(), DType::f32, {2, tokens, 3 * heads, dim});
  const auto part = [&](const Guarded& whole, std::int64_t which) {
    TensorView view = whole.view();
    view.shape[2] = heads;
    return moved(view, which * heads * dim);
  };
  DenseBackwardRun run(p, data);
  Runner context({.device = test_device(), .threads = 1});
  run.run(context);
  const Values expected = run.dk.values();
  AttentionBackwardArgs args = run.args;
  args.q = part(together, 0), args.k = part(together, 1), args.v = part(together, 2);
  args.dq = part(gradients, 0), args.dk = part(gradients, 1), args.dv = part(gradients, 2);
  attention_backward(context, args);
  context.synchronize();
  const Values all = gradients.values();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t d = 0; d < dim; ++d) {
      const std::int64_t at = (t * 3 * heads + heads) * dim + d;
      EXPECT_EQ(all[static_cast<std::size_t>(at)], expected[static_cast<std::size_t>(t * dim + d)]);
    }
  }
  // One head further and dq would lie on dk.
  args.dq = moved(args.dq, dim);
  expect_refusal("attention_backward: dq: expected no overlap with dk",
                 [&] { attention_backward(context, args); });
}

// A grid has fewer blocks than 2^31. Nothing is read: the memory is not there.
TEST(AttentionErrors, HeadsBeyondAGrid) {
  Context context({.device = test_device(), .threads = 1});
  const auto memory = [](int terabyte) {
    return reinterpret_cast<void*>(std::uintptr_t{static_cast<unsigned>(terabyte)} << 40);
  };
  for (const std::int64_t batch : {(std::int64_t{1} << 31) - 1, std::int64_t{1} << 32}) {
    const std::int64_t shape[] = {batch, 1, 1, 1};
    const auto tensor = [&](int terabyte) {
      return make_view(memory(terabyte), shape, DType::f32, test_device());
    };
    const AttentionArgs args{.q = tensor(1), .k = tensor(2), .v = tensor(3), .output = tensor(4)};
    const bool fits = batch < std::int64_t{1} << 31 || !on_gpu();
    EXPECT_EQ(explain(context, args).back().accepted, fits) << batch;
  }
  // The backward also has a warp per row, and a thread per number of dbias.
  const auto takes_backward = [&](std::int64_t batch, std::int64_t queries, std::int64_t keys,
                                  bool with_bias) {
    const std::int64_t query_shape[] = {batch, queries, 1, 1};
    const std::int64_t key_shape[] = {batch, keys, 1, 1};
    const std::int64_t bias_shape[] = {1, 1, queries, keys};
    const auto tensor = [&](int terabyte, std::span<const std::int64_t> shape) {
      return make_view(memory(terabyte), shape, DType::f32, test_device());
    };
    AttentionBackwardArgs args{.doutput = tensor(1, query_shape),
                               .q = tensor(2, query_shape),
                               .k = tensor(3, key_shape),
                               .v = tensor(4, key_shape),
                               .output = tensor(5, query_shape),
                               .log_sum_exp = tensor(6, std::span(query_shape).first(3)),
                               .dq = tensor(7, query_shape),
                               .dk = tensor(8, key_shape),
                               .dv = tensor(9, key_shape)};
    if (with_bias) {
      args.options.bias = tensor(16, bias_shape);
      args.dbias = tensor(32, bias_shape);
    }
    return explain(context, args).back().accepted;
  };
  constexpr std::int64_t kOne = 1;
  EXPECT_TRUE(takes_backward((kOne << 30) - 1, 16, 1, false));
  EXPECT_EQ(takes_backward((kOne << 30) + 1, 16, 1, false), !on_gpu());
  EXPECT_TRUE(takes_backward(1, kOne << 19, (kOne << 19) - 1, true));
  EXPECT_EQ(takes_backward(1, kOne << 19, (kOne << 19) + 1, true), !on_gpu());
}

}  // namespace
}  // namespace touchstone::test
