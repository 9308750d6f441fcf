// Bad arguments: one exception whose message names the operator and the argument, and nothing
// written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "ops/sample/sample_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kVocabulary = 40;

using Mistake = test::Mistake<SampleArgs>;

// The mistakes that can be made with any tensor.
template <class View>
void add_common(std::vector<Mistake>& list, const std::string& name, View SampleArgs::*member,
                bool matrix) {
  const auto add = [&](const char* what, auto edit) {
    list.push_back({name + " " + what, name, [member, edit](SampleArgs& a) { edit(a.*member); }});
  };
  add("on the wrong device", [](View& v) { v.device = other_device(); });
  add("with null data", [](View& v) { v.data = nullptr; });
  add("of type u8", [](View& v) { v.dtype = DType::u8; });
  add("of type f64", [](View& v) { v.dtype = DType::f64; });
  if (name == "logits") return;
  add("with another extent", [](View& v) { v.shape[0] += 1; });
  add("with a negative extent", [](View& v) { v.shape[0] = -1; });
  add("with an extent beyond 64 bits",
      [](View& v) { v.shape[0] = std::numeric_limits<std::int64_t>::max() / 2; });
  add("of a higher rank", [](View& v) {
    const auto end = static_cast<std::size_t>(v.rank++);
    v.shape[end] = v.stride[end] = 1;
  });
  if (!matrix) {
    add("with a stride", [](View& v) { v.stride[0] = 2; });
  } else {
    add("with a last stride of 2", [](View& v) { v.stride[1] = 2; });
    add("with a negative row stride", [](View& v) { v.stride[0] = -1; });
  }
}

std::vector<Mistake> mistakes() {
  using A = SampleArgs;
  std::vector<Mistake> list;
  add_common<ConstTensorView>(list, "logits", &A::logits, true);
  add_common<ConstTensorView>(list, "bias", &A::bias, true);
  add_common<ConstTensorView>(list, "token_mask", &A::token_mask, true);
  add_common<ConstTensorView>(list, "history", &A::history, true);
  add_common<ConstTensorView>(list, "temperature", &A::temperature, false);
  add_common<ConstTensorView>(list, "top_k", &A::top_k, false);
  add_common<ConstTensorView>(list, "top_p", &A::top_p, false);
  add_common<ConstTensorView>(list, "min_p", &A::min_p, false);
  add_common<ConstTensorView>(list, "repetition_penalty", &A::repetition_penalty, false);
  add_common<ConstTensorView>(list, "frequency_penalty", &A::frequency_penalty, false);
  add_common<ConstTensorView>(list, "presence_penalty", &A::presence_penalty, false);
  add_common<ConstTensorView>(list, "prompt_length", &A::prompt_length, false);
  add_common<ConstTensorView>(list, "seed", &A::seed, false);
  add_common<ConstTensorView>(list, "position", &A::position, false);
  add_common<TensorView>(list, "token", &A::token, false);
  add_common<TensorView>(list, "log_probability", &A::log_probability, false);
  add_common<TensorView>(list, "status", &A::status, false);
  add_common<TensorView>(list, "top_tokens", &A::top_tokens, true);
  add_common<TensorView>(list, "top_log_probabilities", &A::top_log_probabilities, true);

  const auto add = [&](const char* what, const char* argument, std::function<void(A&)> make) {
    list.push_back({what, argument, std::move(make)});
  };
  add("no logits", "logits", [](A& a) { a.logits = {}; });
  add("no seed", "seed", [](A& a) { a.seed = {}; });
  add("no position", "position", [](A& a) { a.position = {}; });
  add("no token", "token", [](A& a) { a.token = {}; });
  add("logits of rank 0", "logits", [](A& a) { a.logits.rank = 0; });
  add("logits with a last stride", "logits", [](A& a) { a.logits.stride[1] = 2; });
  add("logits turned round", "logits", [](A& a) { a.logits.stride[0] = -kVocabulary; });
  add("no vocabulary", "logits", [](A& a) { a.logits.shape[1] = 0; });
  add("a bias of another vocabulary", "bias", [](A& a) { a.bias.shape[1] -= 1; });
  add("a shared bias of another vocabulary", "bias",
      [](A& a) { a.bias.rank = 1, a.bias.shape[0] = kVocabulary + 1, a.bias.stride[0] = 1; });
  add("a mask one word short", "token_mask", [](A& a) { a.token_mask.shape[1] -= 1; });
  add("penalties without a history", "history", [](A& a) { a.history = {}; });
  add("a prompt length without a history", "history", [](A& a) {
    a.history = a.repetition_penalty = a.frequency_penalty = a.presence_penalty = {};
  });
  add("top tokens without log-probabilities", "top_log_probabilities",
      [](A& a) { a.top_log_probabilities = {}; });
  add("top log-probabilities without tokens", "top_tokens", [](A& a) { a.top_tokens = {}; });
  add("different n", "top_log_probabilities",
      [](A& a) { a.top_log_probabilities.shape[1] -= 1, a.top_log_probabilities.stride[0] -= 1; });
  add("no top tokens", "top_tokens",
      [](A& a) { a.top_tokens.shape[1] = a.top_log_probabilities.shape[1] = 0; });
  add("more top tokens than there are", "top_tokens", [](A& a) {
    a.top_tokens.shape[1] = a.top_log_probabilities.shape[1] = kVocabulary + 1;
    a.top_tokens.stride[0] = a.top_log_probabilities.stride[0] = kVocabulary + 1;
  });
  add("top tokens with gaps", "top_tokens", [](A& a) { a.top_tokens.stride[0] += 1; });
  add("a token that overwrites top_k", "token",
      [](A& a) { a.token.data = const_cast<void*>(a.top_k.data); });
  add("a status that overwrites the history", "status",
      [](A& a) { a.status.data = const_cast<void*>(a.history.data); });
  add("a log-probability in the logits", "log_probability",
      [](A& a) { a.log_probability.data = const_cast<void*>(a.logits.data); });
  add("a status in the tokens", "token", [](A& a) { a.status.data = a.token.data; });
  return list;
}

Batch full_batch() {
  Batch batch{.top_count = 4};
  for (std::uint64_t i = 0; i < kRows; ++i) {
    TestRow row;
    row.logits = random_logits(kVocabulary, 1, DType::f32, i);
    row.bias = random_logits(kVocabulary, 1, DType::f32, i + 50);
    row.token_mask.assign(kVocabulary, true);
    row.history.assign(8, 3);
    batch.rows.push_back(row);
  }
  batch.token_dtype = batch.top_token_dtype = DType::i32;
  return batch;
}

TEST(SampleErrors, NameTheArgumentAndWriteNothing) {
  SampleRun run(full_batch());
  Context context({.device = test_device(), .threads = 2});
  for (Guarded* output : run.outputs()) output->poison();
  for (const Mistake& mistake : mistakes()) {
    SCOPED_TRACE(mistake.name);
    SampleArgs args = run.args;
    mistake.make(args);
    try {
      sample(context, args);
      ADD_FAILURE() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), StartsWith("sample: " + mistake.argument));
      EXPECT_TRUE(std::string(error.what()).find(": expected ") != std::string::npos ||
                  std::string(error.what()).find("64 bits") != std::string::npos)
          << error.what();
    }
    EXPECT_THROW(explain(context, args), InvalidArgument);
  }
  context.synchronize();
  for (const Guarded* output : run.outputs()) EXPECT_TRUE(output->unchanged());
  for (const Guarded* input : run.inputs()) EXPECT_TRUE(input->unchanged());
}

TEST(SampleErrors, TheUntouchedCallIsFine) {
  SampleRun run(full_batch());
  Runner context({.device = test_device()});
  EXPECT_NO_THROW(run.run(context));
}

TEST(SampleErrors, AVocabularyBeyondI32NeedsI64Tokens) {
  SampleRun run(full_batch());
  SampleArgs args = run.args;
  // One row, said to be long; refused before anything is read.
  const std::int64_t huge = (std::int64_t{1} << 31) + 5;
  const std::int64_t shape[] = {kRows, huge};
  args.logits = with_stride(make_view(args.logits.data, shape, DType::f32, test_device()), 0, 0);
  args.bias = args.token_mask = {};
  Context context({.device = test_device()});
  try {
    sample(context, args);
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), StartsWith("sample: token: expected dtype i64"));
  }
}

TEST(SampleErrors, AnUnknownImplementationIsRefused) {
  SampleRun run(full_batch());
  Context context({.device = test_device()});
  run.args.implementation = "fastest";
  try {
    sample(context, run.args);
    FAIL() << "accepted";
  } catch (const Unsupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("fastest"));
  }
}

}  // namespace
}  // namespace touchstone::test
