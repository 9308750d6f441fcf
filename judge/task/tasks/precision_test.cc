// Bounds at the largest sizes: what a long sum may cost must not pay for digits that were never
// computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "judge/task/compare.h"
#include "judge/task/generate.h"
#include "judge/task/task.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

// The right answer of inputs in `bits`, written in `bits`.
std::vector<Reply> short_answer(const Task& task, const Case& asked, int bits) {
  std::vector<Reply> replies = task.answer_in_bits(asked, bits);
  for (size_t call = 0; call < replies.size(); ++call) {
    for (size_t i = 0; i < replies[call].outputs.size(); ++i) {
      if (asked.calls[call].outputs[i].dtype != DType::f32) continue;
      const std::span<const float> values = as_f32(replies[call].outputs[i]);
      std::vector<float> rounded(values.begin(), values.end());
      for (float& value : rounded) value = round_to_bits(value, bits);
      replies[call].outputs[i] = bytes_of(rounded);
    }
  }
  return replies;
}

void expect_controls_fail(const std::string& id, const std::string& spec) {
  const Task& task = find_task(id);
  const Case asked = task.build(parse_spec(spec));
  for (int bits = 14; bits <= 16; ++bits) {
    EXPECT_FALSE(task.check(asked, short_answer(task, asked, bits)).passed)
        << id << " " << spec << ": " << bits << " bits pass";
  }
  const CaseCheck whole = task.check(asked, short_answer(task, asked, 24));
  EXPECT_TRUE(whole.passed) << id << " " << spec << ": " << whole.reason;
}

TEST(LargestSizes, FewBitsFail) {
  expect_controls_fail("softmax_topk", "sizes:k=40,rows=1,vocab=128256:5");
  expect_controls_fail("softmax_topk", "sizes:k=12,rows=1,vocab=2000003:6");
  expect_controls_fail("layer_norm_backward", "wide:cols=131073,rows=2:7");
  expect_controls_fail("layer_norm_backward", "sizes:cols=300007,rows=1:8");
  expect_controls_fail("layer_norm_backward", "long_columns:cols=2,rows=200003:9");
  expect_controls_fail("flash_attention_forward",
                       "sizes:batch=1,causal=0,dim=32,group=1,keys=4096,kv_heads=1,queries=24:10");
  expect_controls_fail("flash_attention_backward",
                       "sizes:batch=1,causal=0,dim=32,group=1,keys=4096,kv_heads=1,queries=24:11");
  expect_controls_fail("flash_attention_backward",
                       "sizes:batch=1,causal=1,dim=32,group=1,keys=3500,kv_heads=1,queries=40:12");
  expect_controls_fail("beam_search", "large:beams=4,prompts=1,tokens=4,vocab=128256,width=2:15");
  expect_controls_fail("tree_verify", "large:nodes=4,requests=1,temp100=80,vocab=128256:16");
  expect_controls_fail("ternary_linear",
                       "wide:absmax=0,group=128,inputs=9000,int8=0,outputs=30,rows=4:13");
  expect_controls_fail("ternary_linear",
                       "tall:absmax=0,group=32,inputs=40,int8=0,outputs=3000,rows=3:14");
  expect_controls_fail("kv_cache",
                       "sizes:group=1,head_dim=32,kv_heads=1,layers=1,prompt=600,sequences=1,"
                       "steps=2:12");
}

// Sums in an order that a careful float implementation has: pairwise, as NumPy does, or in blocks.
float pairwise(std::span<const float> terms) {
  if (terms.size() <= 128) {
    float sum = 0;
    for (const float term : terms) sum += term;
    return sum;
  }
  const size_t half = terms.size() / 2;
  return pairwise(terms.first(half)) + pairwise(terms.subspan(half));
}

float in_blocks(std::span<const float> terms) {
  float sum = 0;
  for (size_t at = 0; at < terms.size(); at += 1024) {
    float block = 0;
    for (const float term : terms.subspan(at, std::min<size_t>(1024, terms.size() - at))) {
      block += term;
    }
    sum += block;
  }
  return sum;
}

TEST(LargestSizes, BlockedSumsPass) {
  const Task& task = find_task("softmax_topk");
  for (const char* spec : {"sizes:k=40,rows=1,vocab=128256:5", "ties:k=40,rows=1,vocab=128256:5",
                           "sizes:k=12,rows=1,vocab=2000003:6"}) {
    const Case asked = task.build(parse_spec(spec));
    const std::span<const float> logits = as_f32(asked.calls[0].inputs[0]);
    const float largest = *std::ranges::max_element(logits);
    std::vector<float> terms;
    for (const float v : logits) terms.push_back(std::exp(v - largest));
    for (const bool blocks : {false, true}) {
      std::vector<Reply> replies = task.answer_in_bits(asked, 24);
      const float sum = blocks ? in_blocks(terms) : pairwise(terms);
      std::vector<float> probabilities;
      for (const int32_t index : as_i32(replies[0].outputs[1])) {
        probabilities.push_back(terms[static_cast<size_t>(index)] / sum);
      }
      replies[0].outputs[0] = bytes_of(probabilities);
      const CaseCheck check = task.check(asked, replies);
      EXPECT_TRUE(check.passed) << spec << ": " << check.reason;
    }
  }
}

}  // namespace
}  // namespace touchstone::judge
