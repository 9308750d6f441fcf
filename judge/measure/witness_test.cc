// Failures as they are reported: small, with a command that shows them again.
#include <gtest/gtest.h>

#include <set>

#include "judge/judge.h"
#include "judge/report/evidence.h"
#include "judge/run/test_task.h"
#include "judge/task/tasks/registry.h"

namespace touchstone::judge {
namespace {

// Right in every case by itself, to the last bit but one: large gradients come out one unit higher.
constexpr const char* kNotLinear = R"(
#include <math.h>
#include <stdint.h>
#include <stddef.h>
#include <stdlib.h>
size_t layer_norm_cache_size(int64_t rows, int64_t cols) { (void)rows; (void)cols; return 0; }
static double statistics(int64_t cols, float eps, const float* x, double* mean) {
  double sum = 0, squares = 0;
  for (int64_t j = 0; j < cols; ++j) sum += x[j];
  *mean = sum / cols;
  for (int64_t j = 0; j < cols; ++j) squares += (x[j] - *mean) * (x[j] - *mean);
  return 1 / sqrt(squares / cols + eps);
}
int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
                       const float* beta, float* y, void* cache) {
  (void)cache;
  for (int64_t i = 0; i < rows; ++i, x += cols, y += cols) {
    double mean, rstd = statistics(cols, eps, x, &mean);
    for (int64_t j = 0; j < cols; ++j) y[j] = (float)((x[j] - mean) * rstd * gamma[j] + beta[j]);
  }
  return 0;
}
int layer_norm_backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
                        const float* gamma, void* cache, float* dx, float* dgamma, float* dbeta) {
  (void)cache;
  double* sums = calloc(2 * cols, sizeof(double));
  for (int64_t i = 0; i < rows; ++i, x += cols, dy += cols, dx += cols) {
    double mean, rstd = statistics(cols, eps, x, &mean), c1 = 0, c2 = 0;
    for (int64_t j = 0; j < cols; ++j) c1 += (double)dy[j] * gamma[j];
    for (int64_t j = 0; j < cols; ++j) c2 += (double)dy[j] * gamma[j] * (x[j] - mean) * rstd;
    for (int64_t j = 0; j < cols; ++j) {
      double v = rstd * ((double)dy[j] * gamma[j] - c1 / cols - (x[j] - mean) * rstd * c2 / cols);
      dx[j] = (float)v * (fabsf(dy[j]) > 8 ? 1 + 0x1p-23f : 1);
      sums[j] += dy[j] * (x[j] - mean) * rstd;
      sums[cols + j] += dy[j];
    }
  }
  for (int64_t j = 0; j < cols; ++j) dgamma[j] = (float)sums[j], dbeta[j] = (float)sums[cols + j];
  free(sums);
  return 0;
}
)";

// Only the sum over all columns is wrong, from the seventh on.
constexpr const char* kSumsSix = R"(
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* v, float* p, int32_t* index) {
  if (k < 1 || k > vocab) return 1;
  for (int64_t r = 0; r < rows; ++r, v += vocab, p += k, index += k) {
    double sum = 0;
    char* taken = calloc(vocab, 1);
    for (int64_t j = 0; j < k; ++j) {
      int32_t best = -1;
      for (int32_t i = 0; i < vocab; ++i) if (!taken[i] && (best < 0 || v[i] > v[best])) best = i;
      taken[index[j] = best] = 1;
    }
    free(taken);
    for (int32_t i = 0; i < vocab; ++i) if (i != 6) sum += exp((double)v[i] - v[index[0]]);
    for (int64_t j = 0; j < k; ++j) p[j] = (float)(exp((double)v[index[j]] - v[index[0]]) / sum);
  }
  return 0;
}
)";

// NaN where there are many rows, a wrong place where there are few: two kinds.
constexpr const char* kTwoKinds = R"(
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
int softmax_topk(int64_t rows, int64_t vocab, int64_t k, const float* v, float* p, int32_t* index) {
  if (k < 1 || k > vocab) return 1;
  for (int64_t r = 0; r < rows; ++r, v += vocab, p += k, index += k) {
    double sum = 0;
    char* taken = calloc(vocab, 1);
    for (int64_t j = 0; j < k; ++j) {
      int32_t best = -1;
      for (int32_t i = 0; i < vocab; ++i) if (!taken[i] && (best < 0 || v[i] > v[best])) best = i;
      taken[index[j] = best] = 1;
    }
    free(taken);
    for (int32_t i = 0; i < vocab; ++i) sum += exp((double)v[i] - v[index[0]]);
    for (int64_t j = 0; j < k; ++j) p[j] = (float)(exp((double)v[index[j]] - v[index[0]]) / sum);
    if (rows > 5) p[0] = NAN;
    if (rows < 3 && vocab > 9) index[0] = -1;
  }
  return 0;
}
)";

class Witnesses : public testing::Test {
 protected:
  Record judged(const char* code, const char* task) {
    folder_.write("c.c", code);
    contender_ = read_contender(folder_.path() / "c.c", find_task(task));
    JudgeOptions options;
    options.small = true;
    options.seed = 11;
    options.sanitize = false;
    options.speed = false;
    return judge(contender_, find_task(task), options);
  }

  test::Folder folder_;
  Contender contender_;
};

TEST_F(Witnesses, OfARelationAreTwoSmallCases) {
  const Record record = judged(kNotLinear, "layer_norm_backward");
  EXPECT_EQ(record.verdict, Verdict::wrong) << record.verdict_because;
  for (const CaseRecord& c : record.cases) EXPECT_TRUE(c.check.passed) << c.check.reason;
  ASSERT_EQ(record.witnesses.size(), 1U);
  const Witness& witness = record.witnesses[0];
  EXPECT_NE(witness.reason.find("gradient times a power of two"), std::string::npos);
  EXPECT_EQ(witness.smallest.parameters.at("rows"), 1) << format_spec(witness.smallest);
  EXPECT_LE(witness.smallest.parameters.at("cols"), 8) << format_spec(witness.smallest);

  const size_t begin = witness.replay.find("--replay '") + 10;
  const std::string text = witness.replay.substr(begin, witness.replay.size() - 1 - begin);
  const Relation relation = parse_relation(text);
  EXPECT_EQ(relation.id, "scale_gradient");
  const Replay again = replay(contender_, find_task("layer_norm_backward"), relation, {});
  EXPECT_FALSE(again.check.passed);
  EXPECT_NE(again.check.reason.find("dx"), std::string::npos) << again.check.reason;
  // Each of the two alone is right.
  const Replay alone = replay(contender_, find_task("layer_norm_backward"), relation.second, {});
  EXPECT_TRUE(alone.check.passed) << alone.check.reason;
}

TEST_F(Witnesses, HaveFewNumbersLeft) {
  const Record record = judged(kSumsSix, "softmax_topk");
  EXPECT_EQ(record.verdict, Verdict::wrong) << record.verdict_because;
  ASSERT_FALSE(record.witnesses.empty());
  const CaseSpec& smallest = record.witnesses[0].smallest;
  EXPECT_EQ(smallest.parameters.at("rows"), 1) << format_spec(smallest);
  EXPECT_EQ(smallest.parameters.at("vocab"), 7) << format_spec(smallest);
  // Equal logits show it, so nothing that was drawn is needed.
  ASSERT_EQ(smallest.edits.size(), 1U) << format_spec(smallest);
  EXPECT_EQ(smallest.edits[0], (Edit{0, "logits", 0, 6, 0.0F}));
  const Replay again = replay(contender_, find_task("softmax_topk"), smallest, {});
  EXPECT_FALSE(again.check.passed);
}

TEST_F(Witnesses, KeepTheKindOfTheirFailure) {
  const Record record = judged(kTwoKinds, "softmax_topk");
  EXPECT_EQ(record.verdict, Verdict::wrong) << record.verdict_because;
  std::set<std::string> shown;
  for (const FailureGroup& group : failure_groups(record)) {
    for (const Witness* witness : group.witnesses) {
      shown.insert(group.kind);
      const Replay again =
          replay(contender_, find_task("softmax_topk"), witness->smallest, JudgeOptions());
      EXPECT_EQ(failure_kind(Ending::ok, again.check), group.kind)
          << format_spec(witness->smallest) << ": " << again.check.reason;
    }
  }
  EXPECT_TRUE(shown.contains("no number in probabilities"));
  EXPECT_TRUE(shown.contains("wrong indices"));
}

}  // namespace
}  // namespace touchstone::judge
