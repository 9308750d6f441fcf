// Block drafts in training: gradients against dual numbers, the sparse mask, the bits of the
// runtime, and whole runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "oracle/block_draft_loss.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "touchstone/core/error.h"
#include "touchstone/gradcheck.h"
#include "touchstone/model/dflash.h"
#include "touchstone/train/block_draft.h"
#include "touchstone/train/operators.h"
#include "touchstone/train/trainer.h"
#include "train/draft/blocks.h"
#include "train/draft/feature_cache.h"
#include "train/train_test_support.h"

namespace touchstone::train {
namespace {

namespace fs = std::filesystem;
using test::device_tensor;
using test::expect_refusal;
using test::host_values;
using test::test_device;

io::BlockDraftDescription small_draft(std::int64_t width = 16, std::int64_t vocabulary = 29) {
  return {.layers = 2,
          .width = width,
          .query_heads = 4,
          .kv_heads = 2,
          .head_size = 8,
          .mlp_width = 24,
          .vocabulary = vocabulary,
          .block = 4,
          .norm_eps = 1e-5,
          .mask_token = 5,
          .taps = {0, 1}};
}

// Two rows of seven tokens; the second has two documents. Five blocks, one without context, one
// whose last positions have no target.
std::vector<HostBatch> two_rows() {
  std::vector<HostBatch> rows(2);
  rows[0] = {.tokens = {1, 2, 3, 4, 6, 7, 8},
             .targets = {2, 3, 4, 6, 7, 8, 9},
             .positions = {0, 1, 2, 3, 4, 5, 6},
             .rows = 1,
             .counted = 7};
  rows[1] = {.tokens = {11, 12, 13, 14, 15, 16, 17},
             .targets = {12, 13, -100, 15, 16, 17, 18},
             .positions = {0, 1, 2, 0, 1, 2, 3},
             .offsets = {0, 3, 7},
             .rows = 1,
             .counted = 6};
  return rows;
}
const std::vector<std::vector<std::int64_t>> kAnchors = {{0, 3}, {1, 4, 6}};

// The batch above on a device, and the memory behind it.
struct OwnedBlocks {
  HostBlocks host;
  std::vector<double> hidden;
  std::vector<Tensor> tensors;
  BlockBatch view;

  OwnedBlocks(const io::BlockDraftDescription& d, DType compute, Device device) {
    const std::vector<HostBatch> rows = two_rows();
    host = make_blocks(d, rows, kAnchors, 2);
    const std::int64_t columns = std::ssize(d.taps) * d.width;
    hidden = gradcheck::random_values(14 * columns, 11);
    const bool wide = compute == DType::f64;
    view.hidden = keep(numbers(hidden, {14, columns}, compute, device));
    view.tokens = keep(device_tensor(host.tokens, device));
    view.targets = keep(device_tensor(host.targets, device));
    view.weights = keep(
        numbers(host.weights, {std::ssize(host.weights)}, wide ? DType::f64 : DType::f32, device));
    view.positions = keep(device_tensor(host.positions, device));
    view.keys = keep(device_tensor(host.keys, device));
    view.query_offsets = keep(device_tensor(host.query_offsets, device));
    view.key_offsets = keep(device_tensor(host.key_offsets, device));
  }
  static Tensor numbers(const std::vector<double>& values, std::vector<std::int64_t> shape,
                        DType dtype, Device device) {
    Tensor wide = Tensor::empty(shape, dtype == DType::f64 ? DType::f64 : DType::f32);
    if (dtype == DType::f64) {
      std::copy(values.begin(), values.end(), wide.values<double>().begin());
      return wide;
    }
    std::transform(values.begin(), values.end(), wide.values<float>().begin(),
                   [](double v) { return static_cast<float>(v); });
    Context cpu;
    Tensor narrow = Tensor::empty(shape, dtype);
    cast(cpu, {.x = wide, .y = narrow});
    return narrow.to(device);
  }
  ConstTensorView keep(Tensor tensor) {
    tensors.push_back(std::move(tensor));
    return tensors.back();
  }
};

// A draft on random weights that keep every layer alive, with random tables.
struct Draft {
  Context context;
  std::vector<double> table_values;
  Tensor embedding, head;
  BlockDraft draft;

  Draft(const io::BlockDraftDescription& d, BlockDraftOptions o, Device device = test_device())
      : context({.device = device}),
        table_values(gradcheck::random_values(2 * d.vocabulary * d.width, 7)),
        embedding(OwnedBlocks::numbers(table(0), {d.vocabulary, d.width}, o.compute, device)),
        head(OwnedBlocks::numbers(table(1), {d.vocabulary, d.width}, o.compute, device)),
        draft(context, d, {.embedding = embedding, .head = head}, sized(o)) {
    Parameters& p = draft.parameters();
    std::vector<double> values(static_cast<std::size_t>(p.elements()));
    const std::vector<double> noise = gradcheck::random_values(p.elements(), 3);
    for (const Parameter& parameter : p.list()) {
      std::int64_t count = 1;
      for (const std::int64_t extent : parameter.shape) count *= extent;
      for (std::int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<std::size_t>(parameter.offset + i);
        values[at] = parameter.matrix ? 0.2 * noise[at] : 1 + 0.2 * noise[at];
      }
    }
    const Tensor master =
        OwnedBlocks::numbers(values, {p.elements()}, p.options().master, Device::cpu());
    const StreamLocation here{device, context.stream()};
    queue_copy(here, p.weights().data, {}, master.data(), master.bytes());
    wait_for(here);
    p.prepare(context);
  }
  std::vector<double> table(std::size_t which) const {
    const auto half = static_cast<std::ptrdiff_t>(table_values.size() / 2);
    const auto first = table_values.begin() + static_cast<std::ptrdiff_t>(which) * half;
    return {first, first + half};
  }
  static BlockDraftOptions sized(BlockDraftOptions o) {
    o.max_context = 14;
    o.max_blocks = 6;
    o.max_keys = 60;
    return o;
  }
};

std::vector<std::vector<double>> rows_of_width(const std::vector<double>& values,
                                               std::int64_t width) {
  std::vector<std::vector<double>> rows;
  for (auto at = values.begin(); at != values.end(); at += width) rows.emplace_back(at, at + width);
  return rows;
}

// What each block sees, written down by hand and not by make_blocks.
oracle::BlockDraftLossBatch oracle_batch(const io::BlockDraftDescription& d, const OwnedBlocks& b,
                                         const Draft& draft) {
  oracle::BlockDraftLossBatch batch;
  batch.hidden = rows_of_width(b.hidden, std::ssize(d.taps) * d.width);
  batch.context_positions = {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 1, 2, 3};
  batch.embedding = rows_of_width(draft.table(0), d.width);
  batch.head = rows_of_width(draft.table(1), d.width);
  const std::vector<double> w = {0, 1, std::exp(-0.5), std::exp(-1.0)};
  batch.blocks = {{{}, {1, 5, 5, 5}, {-1, 2, 3, 4}, w, 0},
                  {{0, 1, 2}, {4, 5, 5, 5}, {-1, 6, 7, 8}, w, 3},
                  {{7}, {12, 5, 5, 5}, {-1, 13, -1, -1}, w, 1},
                  {{10}, {15, 5, 5, 5}, {-1, 16, 17, 18}, w, 1},
                  {{10, 11, 12}, {17, 5, 5, 5}, {-1, 18, -1, -1}, w, 3}};
  return batch;
}

TEST(BlockDraftTest, GradientsAgreeWithDualNumbers) {
  if (test_device().is_cuda()) GTEST_SKIP() << "f64 is on the CPU";
  const io::BlockDraftDescription d = small_draft();
  Draft model(d, {.compute = DType::f64});
  OwnedBlocks b(d, DType::f64, Device::cpu());
  Tensor loss = Tensor::zeros({1}, DType::f64);
  model.draft.backward(model.context, b.view, {}, loss);
  const oracle::DecoderLossShape shape{.layers = d.layers,
                                       .width = d.width,
                                       .heads = d.query_heads,
                                       .kv_heads = d.kv_heads,
                                       .head_size = d.head_size,
                                       .mlp_width = d.mlp_width,
                                       .vocabulary = d.vocabulary,
                                       .theta = d.rope_base,
                                       .epsilon = d.norm_eps};
  const oracle::BlockDraftLossBatch batch = oracle_batch(d, b, model);
  Parameters& p = model.draft.parameters();
  const test::LossGradients gradients(model.context, p);
  const gradcheck::Report report = gradients.check(
      [&](const auto& duals) {
        return oracle::block_draft_loss_of<gradcheck::DualScalar>(shape, batch, duals);
      },
      1e-10);
  EXPECT_TRUE(report.ok) << report.summary();
  const auto weights = [&](const std::string& name) { return gradients.value(name); };
  const double expected = oracle::block_draft_loss_of<double>(shape, batch, weights);
  EXPECT_NEAR(loss.values<double>()[0], expected, 1e-11);
}

// In f32 and bf16, and on the GPU, against f64 on the CPU, which the test above proves.
TEST(BlockDraftTest, NarrowGradientsAreThoseOfF64) {
  const io::BlockDraftDescription d = small_draft();
  const StepSeed seed{.seed = 4, .step = 3};
  const BlockDraftOptions dropped{.dropout = 0.25, .attention_dropout = 0.1};
  for (const BlockDraftOptions& options : {BlockDraftOptions{}, dropped}) {
    const auto with = [&](DType compute) {
      BlockDraftOptions o = options;
      o.compute = compute;
      return o;
    };
    Draft wide(d, with(DType::f64), Device::cpu());
    OwnedBlocks wide_blocks(d, DType::f64, Device::cpu());
    Tensor wide_loss = Tensor::zeros({1}, DType::f64);
    wide.draft.backward(wide.context, wide_blocks.view, seed, wide_loss);
    const double expected_loss = wide_loss.values<double>()[0];
    const std::vector<double> expected =
        host_values<double>(wide.context, wide.draft.parameters().gradients());
    for (const auto& [compute, tolerance] : {std::pair{DType::f32, 2e-6}, {DType::bf16, 0.05}}) {
      Draft model(d, with(compute));
      OwnedBlocks b(d, compute, test_device());
      Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
      model.draft.backward(model.context, b.view, seed, loss);
      EXPECT_NEAR(host_values<float>(model.context, loss)[0], expected_loss,
                  tolerance * expected_loss);
      const std::vector<float> got =
          host_values<float>(model.context, model.draft.parameters().gradients());
      EXPECT_LT(test::relative_l2(std::vector<double>(got.begin(), got.end()), expected), tolerance)
          << name_of(compute);
    }
  }
}

TEST(BlockDraftTest, ActivationCheckpointsChangeNoBit) {
  const io::BlockDraftDescription d = small_draft();
  std::vector<std::vector<std::uint32_t>> results;
  for (const bool checkpointed : {false, true}) {
    Draft model(d, {.checkpoint_activations = checkpointed, .dropout = 0.1});
    OwnedBlocks b(d, DType::f32, test_device());
    Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
    model.draft.backward(model.context, b.view, {.seed = 3}, loss);
    results.push_back(
        host_values<std::uint32_t>(model.context, model.draft.parameters().gradients()));
  }
  EXPECT_EQ(results[0], results[1]);
}

// A block's logits depend on its context and itself alone: not on later tokens, other documents or
// other blocks.
TEST(BlockDraftTest, ABlockSeesItsContextAndItself) {
  const io::BlockDraftDescription d = small_draft();
  Draft model(d, {});
  const auto logits_of = [&](const OwnedBlocks& b) {
    Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
    model.draft.loss(model.context, b.view, loss);
    Tensor logits = Tensor::empty({20, d.vocabulary}, DType::f32, test_device());
    model.draft.logits(model.context, 0, 20, logits);
    return host_values<std::uint32_t>(model.context, logits);
  };
  OwnedBlocks b(d, DType::f32, test_device());
  const std::vector<std::uint32_t> before = logits_of(b);
  const auto changed_blocks = [&](const std::vector<std::uint32_t>& after) {
    std::vector<int> changed;
    const auto size = static_cast<std::size_t>(4 * d.vocabulary);
    for (std::size_t i = 0; i < before.size(); i += size) {
      if (!std::equal(before.begin() + static_cast<std::ptrdiff_t>(i),
                      before.begin() + static_cast<std::ptrdiff_t>(i + size),
                      after.begin() + static_cast<std::ptrdiff_t>(i))) {
        changed.push_back(static_cast<int>(i / size));
      }
    }
    return changed;
  };
  const std::vector<std::vector<int>> seen_by = {{1}, {1}, {1}, {},     {},  {},  {},
                                                 {2}, {},  {},  {3, 4}, {4}, {4}, {}};
  const std::int64_t columns = 2 * d.width;
  for (std::size_t token = 0; token < seen_by.size(); ++token) {
    OwnedBlocks other(d, DType::f32, test_device());
    other.hidden[token * static_cast<std::size_t>(columns) + 3] += 0.5;
    other.view.hidden =
        other.keep(OwnedBlocks::numbers(other.hidden, {14, columns}, DType::f32, test_device()));
    EXPECT_EQ(changed_blocks(logits_of(other)), seen_by[token]) << token;
  }
  for (int block = 0; block < 5; ++block) {
    OwnedBlocks other(d, DType::f32, test_device());
    other.host.tokens[static_cast<std::size_t>(4 * block)] = 20;
    other.view.tokens = other.keep(device_tensor(other.host.tokens, test_device()));
    EXPECT_EQ(changed_blocks(logits_of(other)), std::vector<int>{block});
  }
}

TEST(BlockDraftTest, AnchorsAreDrawnOnePerPart) {
  const std::vector<HostBatch> rows = two_rows();
  EXPECT_THAT(possible_anchors(rows[1]), testing::ElementsAre(0, 1, 3, 4, 5, 6));
  std::vector<std::int64_t> possible(40);
  for (std::size_t i = 0; i < possible.size(); ++i) possible[i] = static_cast<std::int64_t>(i) + 3;
  std::map<std::int64_t, int> seen;
  for (std::int64_t draw = 0; draw < 400; ++draw) {
    const std::vector<std::int64_t> drawn = draw_anchors(possible, 4, 1, draw);
    ASSERT_EQ(drawn.size(), 4U);
    EXPECT_EQ(drawn, draw_anchors(possible, 4, 1, draw));
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ((drawn[i] - 3) / 10, static_cast<std::int64_t>(i));
      ++seen[drawn[i]];
    }
  }
  EXPECT_EQ(seen.size(), 40U);  // each about 40 times
  for (const auto& [token, count] : seen) EXPECT_NEAR(count, 40, 32) << token;
  EXPECT_EQ(draw_anchors(possible, 50, 1, 0), possible);
}

// Text with a rule: a token mostly follows the one before it by 3.
TokenData rule_text(std::int64_t count, std::int64_t seed) {
  TokenData data;
  std::uint64_t token = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const PhiloxWords words = random_words(seed, i, RandomPurpose::shuffle, 9);
    token = (words.word[0] % 16 == 0 ? words.word[1] : token + 3) % 29;
    data.tokens.push_back(static_cast<std::int32_t>(token));
  }
  data.starts = {0, count / 3, count};
  data.bytes = count;
  return data;
}

class DraftTrainerTest : public ::testing::Test {
 protected:
  DraftTrainerTest() {
    folder_ = fs::temp_directory_path() /
              ("touchstone_draft_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    // An untrained target will do: its states tell tokens and positions apart.
    Trainer target(context_, test::small_description(true, false), {.steps = 1, .length = 16},
                   training_, validation_);
    target.initialize();
    target.write_model(folder_ / "target", "");
    target_.emplace(context_, io::ModelFile::open(folder_ / "target"),
                    model::ModelOptions{.max_length = 64, .sequences = 2});
  }
  ~DraftTrainerTest() override { fs::remove_all(folder_); }

  static TrainingOptions options() {
    return {.steps = 8,
            .rows = 4,
            .rows_at_once = 2,
            .length = 16,
            .learning_rate = 0.01,
            .warm_up = 3,
            .dropout = 0.1,
            .average_decay = 0.9};
  }
  DraftTraining draft() {
    return {.description = small_draft(), .target = &*target_, .anchors = 6};
  }
  Trainer trainer(const TrainingOptions& o, const DraftTraining& d) {
    return Trainer(context_, d, o, training_, validation_);
  }
  std::vector<std::uint32_t> bits(Trainer& trainer) {
    return host_values<std::uint32_t>(context_, trainer.parameters().weights());
  }

  fs::path folder_;
  Context context_{{.device = test_device()}};
  TokenData training_ = rule_text(900, 1);
  TokenData validation_ = rule_text(200, 2);
  std::optional<model::Model> target_;
};

TEST_F(DraftTrainerTest, RunsAndResumedRunsHaveTheSameBits) {
  Trainer whole = trainer(options(), draft());
  whole.initialize();
  const fs::path path = folder_ / "last.safetensors";
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(whole.step().finite);
    if (i == 2) whole.evaluate(2);
    if (i == 4) whole.save(path);
  }
  Trainer resumed = trainer(options(), draft());
  resumed.load(path);
  EXPECT_EQ(resumed.steps_done(), 5);
  EXPECT_EQ(resumed.evaluations().at(0).tokens_per_pass, whole.evaluations()[0].tokens_per_pass);
  for (int i = 5; i < 8; ++i) resumed.step();
  EXPECT_EQ(bits(resumed), bits(whole));
  const EvaluationReport a = whole.evaluate();
  const EvaluationReport b = resumed.evaluate();
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.tokens_per_pass, b.tokens_per_pass);
  DraftTraining other = draft();
  other.anchors = 5;
  Trainer fewer = trainer(options(), other);
  expect_refusal(path.string() + ": anchors", [&] { fewer.load(path); });
  // Another target of the same shape: its hidden states are not those that the draft has learned.
  Trainer changed(context_, test::small_description(true, false),
                  {.steps = 1, .length = 16, .seed = 7}, training_, validation_);
  changed.initialize();
  changed.write_model(folder_ / "changed", "");
  model::Model changed_target(context_, io::ModelFile::open(folder_ / "changed"),
                              {.max_length = 64, .sequences = 2});
  other = draft();
  other.target = &changed_target;
  Trainer elsewhere = trainer(options(), other);
  expect_refusal(path.string() + ": target: the run was begun with weights",
                 [&] { elsewhere.load(path); });
}

// Nothing was weighed: no loss, least of all the best one.
TEST_F(DraftTrainerTest, EvaluationsWithoutAnAnchorAreRefused) {
  validation_.starts.resize(validation_.tokens.size() + 1);
  std::iota(validation_.starts.begin(), validation_.starts.end(), 0);
  Trainer t = trainer(options(), draft());
  t.initialize();
  expect_refusal("train: validation text", [&] { t.evaluate(); });
}

// What is kept of the target's states, and where, changes no bit.
TEST_F(DraftTrainerTest, FeaturesAreComputedOnceAndKeptWithinBounds) {
  const std::int64_t window = 16 * 2 * 16 * 4;
  const auto run = [&](std::int64_t memory, std::int64_t spill) {
    DraftTraining d = draft();
    d.memory_bytes = memory;
    d.spill_bytes = spill;
    d.spill_folder = folder_;
    TrainingOptions o = options();
    o.rows = o.rows_at_once = 11;  // five steps see each of the 55 windows once
    o.steps = 10;
    Trainer t = trainer(o, d);
    t.initialize();
    for (int i = 0; i < 10; ++i) t.step();
    return bits(t);
  };
  const std::vector<std::uint32_t> all = run(std::int64_t{1} << 30, 0);
  EXPECT_EQ(run(0, 0), all);
  EXPECT_EQ(run(20 * window, 20 * window), all);
  FeatureCache cache(context_, *target_,
                     {.layers = {1, 2},
                      .length = 16,
                      .memory_bytes = 3 * window + 5,
                      .spill_bytes = 2 * window,
                      .spill_folder = folder_});
  const BatchSource source(training_, 16, 1, true);
  Tensor out = Tensor::empty({16, 32}, DType::f32, test_device());
  std::vector<std::vector<float>> first;
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t i = 0; i < 7; ++i) {
      cache.fetch(context_, i, source.rows(i, 1), out);
      const std::vector<float> values = host_values<float>(context_, out);
      if (round == 0) first.push_back(values);
      EXPECT_EQ(values, first[static_cast<std::size_t>(i)]);
    }
  }
  EXPECT_EQ(cache.counts().computed, 7 + 2);
  EXPECT_EQ(cache.counts().from_memory, 3);
  EXPECT_EQ(cache.counts().from_file, 2);
  EXPECT_NE(first[0], first[1]);
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().filename(), "target");  // the file of states has no name
  }
}

TEST_F(DraftTrainerTest, AcceptanceRisesAndTheRuntimeHasTheSameBits) {
  TrainingOptions o = options();
  o.steps = 150;
  o.rows = o.rows_at_once = 8;
  o.dropout = 0;
  o.learning_rate = 0.01;
  Trainer t = trainer(o, draft());
  t.initialize();
  const EvaluationReport before = t.evaluate();
  EXPECT_LT(before.tokens_per_pass, 1.5);
  EXPECT_NEAR(before.loss, std::log(29.0), 0.3);
  for (int i = 0; i < 150; ++i) ASSERT_TRUE(t.step().finite);
  const EvaluationReport after = t.evaluate();
  // The rule holds for 15 of 16 tokens: at most 1 + q + q^2 + q^3 = 3.6 for blocks of 4.
  EXPECT_GT(after.tokens_per_pass, 2.5);
  EXPECT_LT(after.tokens_per_pass, 4);
  t.write_model(folder_ / "draft", "");
  model::DFlash runtime(context_, folder_ / "draft", *target_);

  const std::span<const std::int32_t> text = std::span(validation_.tokens).first(16);
  const decode::ScorerSequence sequence = target_->create();
  Tensor hidden = Tensor::empty({2, 16, 16}, DType::f32, test_device());
  target_->score(context_, {.rows = decode::chain_rows(sequence, 0, text),
                            .hidden_layers = runtime.hidden_layers(),
                            .hidden = hidden});
  std::vector<std::int32_t> rows = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  runtime.observe(context_, {.id = 1, .rows = rows, .hidden = hidden});
  Tensor logits = Tensor::empty({3, 29}, DType::f32, test_device());
  runtime.block_logits(context_, 1, text[9], logits);

  HostBatch row{.tokens = {text.begin(), text.end()},
                .targets = std::vector<std::int32_t>(16, 1),
                .positions = {},
                .rows = 1};
  for (std::int64_t i = 0; i < 16; ++i) row.positions.push_back(i);
  const std::vector<std::int64_t> anchors[] = {{4, 9, 12}};
  const HostBlocks host = make_blocks(small_draft(), {&row, 1}, anchors, 2);
  Tensor features = Tensor::empty({16, 32}, DType::f32, test_device());
  FeatureCache cache(context_, *target_, {.layers = {1, 2}, .length = 16});
  cache.fetch(context_, 0, row, features);
  const Tensor tokens = device_tensor(host.tokens);
  const Tensor targets = device_tensor(host.targets);
  const Tensor weights = device_tensor(std::vector<float>(12, 1));
  const Tensor positions = device_tensor(host.positions);
  const Tensor keys = device_tensor(host.keys);
  const Tensor query_offsets = device_tensor(host.query_offsets);
  const Tensor key_offsets = device_tensor(host.key_offsets);
  Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
  t.parameters().prepare(context_, true);
  t.draft().loss(context_,
                 {.hidden = features,
                  .tokens = tokens,
                  .targets = targets,
                  .weights = weights,
                  .positions = positions,
                  .keys = keys,
                  .query_offsets = query_offsets,
                  .key_offsets = key_offsets},
                 loss);
  Tensor own = Tensor::empty({3, 29}, DType::f32, test_device());
  t.draft().logits(context_, 5, 3, own);  // the masked positions of the second block
  EXPECT_EQ(host_values<std::uint32_t>(context_, own),
            host_values<std::uint32_t>(context_, logits));
}

TEST_F(DraftTrainerTest, RefusesByName) {
  const auto refused = [&](const char* message, const auto& change) {
    DraftTraining d = draft();
    TrainingOptions o = options();
    change(d, o);
    expect_refusal(message, [&] { trainer(o, d); });
  };
  using D = DraftTraining;
  using O = TrainingOptions;
  refused("train: draft: width: expected 16, that of the target, got 24",
          [](D& d, O&) { d.description.width = 24; });
  refused("train: draft: vocabulary: expected 29", [](D& d, O&) { d.description.vocabulary = 30; });
  refused("train: draft: mask_token: expected 0 to 28",
          [](D& d, O&) { d.description.mask_token = 29; });
  refused("train: draft: expected at least one anchor", [](D& d, O&) { d.anchors = 0; });
  refused("train: taps: expected some of the target's 2 layers", [](D& d, O&) {
    d.description.taps = {1, 2};
  });
  refused("train: target: expected a context of 65 tokens, got 64",
          [](D&, O& o) { o.length = 65; });
  refused("train: draft: expected a target", [](D& d, O&) { d.target = nullptr; });
  Trainer t = trainer(options(), draft());
  TrainingOptions ternary = options();
  ternary.ternary = TernaryRule{};
  EXPECT_THROW(trainer(ternary, draft()), Unsupported);
  EXPECT_THROW(t.decoder(), InvalidArgument);
  EXPECT_THROW(t.set_teacher(&*target_), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::train
