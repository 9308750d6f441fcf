// Runs of training: the same bits again, resumed and with checkpoints that were damaged; weights
// from a file; a teacher; the model that is written.
#include "touchstone/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <tuple>

#include "oracle/path_scorer.h"
#include "tests/support/refusal.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/model/model.h"
#include "train/train_test_support.h"

namespace touchstone::train {
namespace {

namespace fs = std::filesystem;
using test::expect_refusal;
using test::host_values;
using test::small_description;
using test::test_device;

// Text with a rule that can be learned: a token often follows the one before it by 3.
TokenData rule_text(std::int64_t count, std::int64_t vocabulary, std::int64_t seed) {
  TokenData data;
  std::int64_t token = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const PhiloxWords words = random_words(seed, i, RandomPurpose::shuffle, 9);
    token = (words.word[0] % 4 == 0 ? words.word[1] : static_cast<std::uint64_t>(token) + 3) %
            static_cast<std::uint64_t>(vocabulary);
    data.tokens.push_back(static_cast<std::int32_t>(token));
  }
  data.starts = {0, count / 3, count};
  data.bytes = count;
  return data;
}

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    folder_ = fs::temp_directory_path() /
              ("touchstone_trainer_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  ~TrainerTest() override { fs::remove_all(folder_); }

  static TrainingOptions options() {
    return {.steps = 12,
            .rows = 4,
            .rows_at_once = 2,
            .length = 8,
            .learning_rate = 0.01,
            .warm_up = 3,
            .dropout = 0.1,
            .average_decay = 0.9};
  }
  Trainer trainer(const TrainingOptions& o, const io::ModelDescription& d) {
    return Trainer(context_, d, o, training_, validation_);
  }
  std::vector<std::uint32_t> bits(Trainer& trainer) {
    return host_values<std::uint32_t>(context_, trainer.decoder().parameters().weights());
  }

  fs::path folder_;
  Context context_{{.device = test_device()}};
  TokenData training_ = rule_text(900, 29, 1);
  TokenData validation_ = rule_text(100, 29, 2);
};

TEST_F(TrainerTest, RunsAndResumedRunsHaveTheSameBits) {
  for (const bool ternary : {false, true}) {
    TrainingOptions o = options();
    if (ternary) o.ternary = TernaryRule{.geometry = {.size = 32}};
    const io::ModelDescription d = small_description(true, true);
    Trainer whole = trainer(o, d);
    whole.initialize();
    const fs::path path = folder_ / "last.safetensors";
    for (int i = 0; i < 12; ++i) {
      ASSERT_TRUE(whole.step().finite);
      if (i == 2) whole.evaluate();
      if (i == 4) whole.save(path);
    }
    const double loss = whole.evaluate().loss;
    Trainer again = trainer(o, d);
    again.initialize();
    for (int i = 0; i < 12; ++i) again.step();
    EXPECT_EQ(bits(again), bits(whole));
    Trainer resumed = trainer(o, d);
    resumed.load(path);
    EXPECT_EQ(resumed.steps_done(), 5);
    ASSERT_EQ(resumed.steps().size(), 5U);
    for (int i = 5; i < 12; ++i) resumed.step();
    EXPECT_EQ(bits(resumed), bits(whole));
    EXPECT_EQ(resumed.evaluate().loss, loss);
    // What was evaluated, codes that flipped since then among it.
    ASSERT_EQ(resumed.evaluations().size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      const EvaluationReport& a = resumed.evaluations()[i];
      const EvaluationReport& b = whole.evaluations()[i];
      EXPECT_EQ(std::tuple(a.step, a.loss, a.bits_per_byte, a.zero_share, a.flip_share,
                           a.dead_share, a.ternary_groups),
                std::tuple(b.step, b.loss, b.bits_per_byte, b.zero_share, b.flip_share,
                           b.dead_share, b.ternary_groups));
    }
    if (ternary) {
      EXPECT_GT(whole.evaluations()[1].flip_share, 0);
      // Rows of 16 and 24 columns are one group each, and of 32 too.
      EXPECT_EQ(whole.evaluations()[1].ternary_groups, 29 + 2 * (32 + 16 + 16 + 16 + 24 + 24 + 16));
    }
    for (std::size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(resumed.steps()[i].loss, whole.steps()[i].loss) << i;
      EXPECT_EQ(resumed.steps()[i].norm, whole.steps()[i].norm) << i;
    }
  }
}

TEST_F(TrainerTest, TrainingLearnsTheRule) {
  for (const bool ternary : {false, true}) {
    TrainingOptions o = options();
    o.steps = 150;
    o.rows_at_once = 0;
    o.rows = 8;
    o.dropout = 0;
    o.learning_rate = 0.02;
    if (ternary) o.ternary = TernaryRule{.geometry = {.size = 32}};
    Trainer t = trainer(o, small_description(false, false));
    t.initialize();
    const double before = t.evaluate().loss;
    for (int i = 0; i < 150; ++i) t.step();
    const EvaluationReport after = t.evaluate();
    EXPECT_NEAR(before, std::log(29.0), 0.3);
    EXPECT_LT(after.loss, before - 0.8) << (ternary ? "ternary" : "full precision");
    if (ternary) {
      EXPECT_GT(after.zero_share, 0.1);
      EXPECT_LT(after.zero_share, 0.6);
      EXPECT_GT(after.flip_share, 0);
    }
  }
}

// In every dtype that products can have.
TEST_F(TrainerTest, EvaluationsTakeTernaryWeightsApart) {
  for (const DType compute : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    if (compute == DType::f64 && test_device().is_cuda()) continue;
    TrainingOptions o = options();
    o.compute = compute;
    o.ternary = TernaryRule{.geometry = {.grouping = TernaryGrouping::row},
                            .scale_type = TernaryScaleType::f16_bf16};
    Trainer t = trainer(o, small_description(false, true));
    t.initialize();
    t.step();
    EXPECT_EQ(t.evaluate().ternary_groups, 29 + 2 * (32 + 16 + 16 + 16 + 24 + 24 + 16))
        << name_of(compute);
  }
}

TEST_F(TrainerTest, CheckpointsOfOtherRunsAndDamagedOnesAreRefused) {
  const io::ModelDescription d = small_description(false, true);
  Trainer t = trainer(options(), d);
  t.initialize();
  t.step();
  const fs::path path = folder_ / "last.safetensors";
  t.save(path);
  TrainingOptions other = options();
  other.learning_rate = 0.02;
  Trainer faster = trainer(other, d);
  expect_refusal(path.string() + ": learning_rate", [&] { faster.load(path); });
  training_.tokens[500] = (training_.tokens[500] + 1) % 29;
  Trainer reads_other = trainer(options(), d);
  expect_refusal(path.string() + ": text: the run was begun with 900 tokens",
                 [&] { reads_other.load(path); });
  training_.tokens[500] = (training_.tokens[500] + 28) % 29;
  t.write_model(folder_ / "teacher", "{}");
  model::Model teacher(context_, io::ModelFile::open(folder_ / "teacher"), {.max_length = 8});
  Trainer taught = trainer(options(), d);
  taught.set_teacher(&teacher);
  expect_refusal(path.string() + ": teacher: the run was begun with none",
                 [&] { taught.load(path); });
  // The same teacher, then one whose weights are a step further.
  taught.initialize();
  taught.save(folder_ / "taught.safetensors");
  taught.load(folder_ / "taught.safetensors");
  t.step();
  t.write_model(folder_ / "other_teacher", "{}");
  model::Model other_teacher(context_, io::ModelFile::open(folder_ / "other_teacher"),
                             {.max_length = 8});
  taught.set_teacher(&other_teacher);
  expect_refusal(
      (folder_ / "taught.safetensors").string() + ": teacher: the run was begun with weights",
      [&] { taught.load(folder_ / "taught.safetensors"); });
  Trainer larger = trainer(options(), small_description(true, true));
  expect_refusal(path.string() + ": model", [&] { larger.load(path); });
  const auto refused_model = [&](const auto& change) {
    io::ModelDescription changed = d;
    change(changed);
    Trainer same_tensors = trainer(options(), changed);
    expect_refusal(path.string() + ": model", [&] { same_tensors.load(path); });
  };
  refused_model([](io::ModelDescription& x) { x.norm_epsilon *= 2; });
  refused_model([](io::ModelDescription& x) { x.layers[1].window = 4; });
  refused_model([](io::ModelDescription& x) {
    x.rope.scaling = io::RopeScaling::linear;
    x.rope.factor = 2;
  });
  EXPECT_THROW(t.load(folder_ / "missing.safetensors"), FileError);
  // Half of the file: refused, and nothing changed.
  const std::vector<std::uint32_t> before = bits(t);
  fs::copy_file(path, folder_ / "half.safetensors");
  fs::resize_file(folder_ / "half.safetensors", fs::file_size(path) / 2);
  EXPECT_THROW(t.load(folder_ / "half.safetensors"), CorruptData);
  // One bit of any tensor.
  const io::TensorFile file = io::TensorFile::open(path);
  std::ifstream stream(path, std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(stream)), {});
  const std::byte* end = nullptr;  // of the file, which is mapped
  for (const io::TensorInfo& tensor : file.tensors()) {
    end = std::max(end, tensor.data.data() + tensor.data.size());
  }
  for (const io::TensorInfo& tensor : file.tensors()) {
    if (tensor.data.empty()) continue;
    std::string bad = good;
    bad[good.size() - static_cast<std::size_t>(end - tensor.data.data())] ^= 4;
    std::ofstream(folder_ / "bit.safetensors", std::ios::binary) << bad;
    EXPECT_THAT([&] { t.load(folder_ / "bit.safetensors"); },
                ::testing::ThrowsMessage<CorruptData>(
                    ::testing::HasSubstr("bit.safetensors: " + tensor.name + " is damaged")));
  }
  EXPECT_EQ(bits(t), before);
}

TEST_F(TrainerTest, ASaveThatFailsLeavesTheCheckpointBefore) {
  const io::ModelDescription d = small_description(false, true);
  Trainer t = trainer(options(), d);
  t.initialize();
  t.step();
  const fs::path path = folder_ / "last.safetensors";
  t.save(path);
  const auto before = fs::file_size(path);
  t.step();
  EXPECT_THROW(t.save("/dev/full/last.safetensors"), FileError);
  // Runs that were killed: while they wrote a model, and while they wrote a checkpoint.
  fs::create_directories(folder_ / "model");
  std::ofstream(folder_ / "model" / "model.safetensors.partial.1") << "half";
  t.write_model(folder_ / "model", "{}");
  EXPECT_FALSE(fs::exists(folder_ / "model" / "model.safetensors.partial.1"));
  std::ofstream(path.string() + ".partial.1") << "half";
  t.save(folder_ / "other.safetensors");
  EXPECT_TRUE(fs::exists(path.string() + ".partial.1"));
  Trainer second = trainer(options(), d);
  second.load(path);
  second.save(path);
  EXPECT_FALSE(fs::exists(path.string() + ".partial.1"));
  EXPECT_EQ(fs::file_size(path), before);
  Trainer again = trainer(options(), d);
  again.load(path);
  EXPECT_EQ(again.steps_done(), 1);
}

// What is written runs, and scores as the evaluation said; read back it is all of the parameters.
TEST_F(TrainerTest, TheWrittenModelIsTheTrainedOne) {
  for (const bool ternary : {false, true}) {
    TrainingOptions o = options();
    o.dropout = 0;
    if (ternary) o.ternary = TernaryRule{.geometry = {.size = 32}};
    const io::ModelDescription d = small_description(true, false);
    Trainer t = trainer(o, d);
    t.initialize();
    for (int i = 0; i < 12; ++i) t.step();
    t.evaluate();
    const fs::path out = folder_ / (ternary ? "ternary" : "full");
    t.write_model(out, "{}");
    const io::ModelFile file = io::ModelFile::open(out);
    EXPECT_EQ(file.description().family, io::ModelFamily::qwen3);
    model::Model model(context_, io::ModelFile::open(out), {.max_length = 8});
    const decode::ScorerSequence sequence = model.create();
    const std::vector<std::int32_t> tokens(validation_.tokens.begin(),
                                           validation_.tokens.begin() + 8);
    std::vector<std::int32_t> rows = {0, 1, 2, 3, 4, 5, 6, 7};
    Tensor logits = Tensor::empty({8, 29}, DType::f32, test_device());
    model.score(
        context_,
        {.rows = decode::chain_rows(sequence, 0, tokens), .logit_rows = rows, .logits = logits});
    const std::vector<float> got = host_values<float>(context_, logits);
    // The decoder's own logits of the same row.
    t.decoder().parameters().prepare(context_, true);
    const Tensor device_tokens = test::device_tensor(tokens);
    const Tensor positions = test::device_tensor(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
    Tensor loss = Tensor::zeros({1}, DType::f32, test_device());
    t.decoder().loss(context_,
                     {.tokens = device_tokens, .targets = device_tokens, .positions = positions},
                     loss);
    Tensor own = Tensor::empty({8, 29}, DType::f32, test_device());
    t.decoder().logits(context_, 0, 8, own);
    const std::vector<float> expected = host_values<float>(context_, own);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], expected[i], 2e-5 * (1 + std::abs(static_cast<double>(expected[i]))))
          << i;
    }
    // From the file again.
    TrainingOptions plain = o;
    plain.ternary.reset();
    plain.average_decay = 0;
    Trainer from = trainer(plain, d);
    from.copy_weights(file);
    const std::vector<float> copied =
        host_values<float>(context_, from.decoder().parameters().weights());
    Parameters& p = t.decoder().parameters();
    p.prepare(context_, true);
    for (const Parameter& parameter : p.list()) {
      const ConstTensorView view =
          parameter.matrix ? p.compute({parameter.offset, parameter.shape[0], parameter.shape[1]})
                           : p.vector(parameter.offset, parameter.shape[0]);
      const std::vector<float> values = host_values<float>(context_, view);
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(copied[static_cast<std::size_t>(parameter.offset) + i], values[i])
            << parameter.name << " " << i;
      }
    }
  }
}

TEST_F(TrainerTest, WeightsOfAnotherModelAreRefusedByName) {
  TrainingOptions o = options();
  Trainer t = trainer(o, small_description(true, false));
  t.initialize();
  t.write_model(folder_ / "qwen", "{}");
  const io::ModelFile file = io::ModelFile::open(folder_ / "qwen");
  // One without norms of q and k does not use all of its tensors; a wider vocabulary does not fit.
  Trainer plain = trainer(o, small_description(false, false));
  expect_refusal("train: from: blk.0.attn_k_norm.weight of the model has no place here",
                 [&] { plain.copy_weights(file); });
  io::ModelDescription wide = small_description(true, false);
  wide.vocabulary = 31;
  Trainer wider = trainer(o, wide);
  expect_refusal("train: from: token_embd.weight: expected [31, 16], got [29, 16]",
                 [&] { wider.copy_weights(file); });
  Trainer again = trainer(o, small_description(true, true));
  expect_refusal("train: from: output.weight of the model has no place here",
                 [&] { again.copy_weights(file); });
  // One number that is none.
  const std::vector<float> nan = {NAN};
  Parameters& p = t.decoder().parameters();
  const StreamLocation here{context_.device(), context_.stream()};
  for (const TensorView& values : {p.weights(), p.average()}) {
    queue_copy(here, static_cast<float*>(values.data) + p.list()[2].offset, {}, nan.data(), 4);
  }
  wait_for(here);
  t.write_model(folder_ / "nan", "{}");
  Trainer same = trainer(o, small_description(true, false));
  expect_refusal("train: from: " + p.list()[2].name + " of the model holds NaN",
                 [&] { same.copy_weights(io::ModelFile::open(folder_ / "nan")); });
}

// With all weight on the teacher a student moves toward its distribution.
TEST_F(TrainerTest, ATeacherIsFollowed) {
  TrainingOptions o = options();
  o.dropout = 0;
  o.average_decay = 0;
  o.learning_rate = 0.02;
  o.steps = 100;
  Trainer first = trainer(o, small_description(false, true));
  first.initialize();
  for (int i = 0; i < 100; ++i) first.step();
  first.write_model(folder_ / "teacher", "{}");
  model::Model teacher(context_, io::ModelFile::open(folder_ / "teacher"), {.max_length = 8});
  o.steps = 40;
  o.teacher_weight = 1;
  o.seed = 5;
  Trainer student = trainer(o, small_description(false, true));
  student.initialize();
  student.set_teacher(&teacher);
  const double before = student.step().loss;  // the divergence alone
  double after = 0;
  for (int i = 1; i < 40; ++i) after = student.step().loss;
  EXPECT_GT(before, 0.3);
  EXPECT_LT(after, 0.6 * before);
  io::ModelDescription other = small_description(false, true);
  other.vocabulary = 31;
  Trainer wrong = trainer(o, other);
  expect_refusal("train: teacher: expected a vocabulary of 31",
                 [&] { wrong.set_teacher(&teacher); });
}

// Gradients are finite, the loss is not: it is the divergence times the temperature squared, and
// the divergence is what rounding leaves of it.
TEST_F(TrainerTest, AnInfiniteLossChangesNothing) {
  if (test_device().is_cuda()) GTEST_SKIP() << "the teacher is on the CPU";
  oracle::TableScorer teacher(29, 8,
                              [](const std::vector<std::int32_t>& path, std::span<double> logits) {
                                for (std::size_t i = 0; i < logits.size(); ++i) {
                                  logits[i] = 1e13 * static_cast<double>((i + path.size()) % 3);
                                }
                              });
  TrainingOptions o = options();
  o.teacher_temperature = 1e28;
  Trainer t = trainer(o, small_description(false, true));
  t.initialize();
  t.set_teacher(&teacher);
  const std::vector<std::uint32_t> before = bits(t);
  const StepReport report = t.step();
  ASSERT_TRUE(std::isfinite(report.norm));
  ASSERT_FALSE(std::isfinite(report.loss));
  EXPECT_FALSE(report.finite);
  EXPECT_EQ(bits(t), before);
  EXPECT_EQ(t.steps_done(), 0);
}

// Documents of one token have no targets: a step learns nothing, and an evaluation has nothing to
// weigh.
TEST_F(TrainerTest, TextWithoutTargets) {
  for (TokenData* const data : {&training_, &validation_}) {
    data->starts.resize(data->tokens.size() + 1);
    std::iota(data->starts.begin(), data->starts.end(), 0);
  }
  Trainer t = trainer(options(), small_description(false, true));
  t.initialize();
  const StepReport report = t.step();
  EXPECT_TRUE(report.finite);
  EXPECT_EQ(report.loss, 0);
  EXPECT_EQ(report.norm, 0);
  expect_refusal("train: validation text", [&] { t.evaluate(); });
}

// A step of 8192 tokens: without a scale of the loss most gradients would be below what f16 holds.
TEST_F(TrainerTest, GradientsInF16AreThoseOfF32) {
  TrainingOptions o = options();
  o.rows = 256;
  o.rows_at_once = 0;
  o.length = 32;
  o.dropout = 0;
  const auto run = [&](DType compute) {
    o.compute = compute;
    Trainer t = trainer(o, small_description(false, true));
    t.initialize();
    const StepReport report = t.step();
    EXPECT_TRUE(report.finite);
    return std::tuple(host_values<float>(context_, t.parameters().gradients()), report.norm,
                      bits(t));
  };
  const auto [exact, norm, weights] = run(DType::f32);
  const auto [scaled, scaled_norm, scaled_weights] = run(DType::f16);
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(scaled[i]) / 8192 - static_cast<double>(exact[i]);
    error += difference * difference;
  }
  EXPECT_LE(std::sqrt(error), 2e-3 * norm);
  EXPECT_NEAR(scaled_norm, norm, 2e-3 * norm) << "as reported, without the scale";
  // The update is the same too: AdamW's first step is the learning rate along the sign.
  const double rate = rates_at(o, 0).learning_rate;
  std::int64_t apart = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float a = std::bit_cast<float>(weights[i]);
    const float b = std::bit_cast<float>(scaled_weights[i]);
    apart += std::abs(static_cast<double>(a - b)) > 0.1 * rate ? 1 : 0;
  }
  EXPECT_LE(apart, std::ssize(weights) / 50);
}

TEST_F(TrainerTest, SchedulesHaveTheirShapes) {
  TrainingOptions o;
  o.steps = 110;
  o.warm_up = 10;
  o.learning_rate = 1;
  o.final_rate = 0.1;
  o.second_rate = 0.5;
  o.schedule = Schedule::cosine;
  EXPECT_DOUBLE_EQ(rates_at(o, 0).learning_rate, 0.1);
  EXPECT_DOUBLE_EQ(rates_at(o, 9).learning_rate, 1);
  EXPECT_DOUBLE_EQ(rates_at(o, 60).learning_rate, 0.55);
  EXPECT_DOUBLE_EQ(rates_at(o, 110).learning_rate, 0.1);
  o.schedule = Schedule::two_phase;
  EXPECT_DOUBLE_EQ(rates_at(o, 35).learning_rate, 0.75);
  EXPECT_DOUBLE_EQ(rates_at(o, 35).weight_decay, 0.1);
  EXPECT_DOUBLE_EQ(rates_at(o, 60).learning_rate, 0.25);
  EXPECT_DOUBLE_EQ(rates_at(o, 60).weight_decay, 0);
  EXPECT_EQ(parse_schedule("linear"), Schedule::linear);
  expect_refusal("schedule: expected one of", [] { parse_schedule("cosin"); });
}

TEST_F(TrainerTest, BadOptionsAreRefused) {
  const io::ModelDescription d = small_description(false, true);
  const auto refused = [&](const char* message, const auto& change) {
    TrainingOptions wrong = options();
    change(wrong);
    expect_refusal(message, [&] { check_options(wrong); });
    expect_refusal(message, [&] { trainer(wrong, d); });
  };
  using O = TrainingOptions;
  refused("train: steps", [](O& x) { x.steps = 0; });
  refused("train: beta1", [](O& x) { x.beta1 = 1; });
  refused("train: beta2", [](O& x) { x.beta2 = -0.1; });
  refused("train: epsilon", [](O& x) { x.epsilon = -1; });
  refused("train: clip", [](O& x) { x.clip = NAN; });
  refused("train: weight_decay", [](O& x) { x.weight_decay = -1; });
  refused("train: average_decay", [](O& x) { x.average_decay = 1; });
  refused("train: dropout", [](O& x) { x.dropout = 1 - 1e-9; });
  refused("train: attention_dropout", [](O& x) { x.attention_dropout = 1; });
  refused("train: teacher", [](O& x) { x.teacher_weight = 1.5; });
  refused("train: teacher", [](O& x) { x.teacher_temperature = 0; });
  TrainingOptions o = options();
  o.rows_at_once = 3;
  expect_refusal("train: rows_at_once", [&] { trainer(o, d); });
  o = options();
  o.length = 65;
  expect_refusal("train: length", [&] { trainer(o, d); });
  o = options();
  o.compute = DType::bf16;
  o.ternary = TernaryRule{};
  expect_refusal("train: ternary", [&] { trainer(o, d); });
  o = options();
  io::ModelDescription small = d;
  small.vocabulary = 10;
  expect_refusal("train: text: expected tokens of a vocabulary of 10", [&] { trainer(o, small); });
  // What is written at the first evaluation would not read back.
  io::ModelDescription endless = d;
  endless.context = std::int64_t{1} << 41;
  expect_refusal("train: the model could not be read back: config.json: max_position_embeddings",
                 [&] { trainer(o, endless); });
  io::ModelDescription steep = d;
  steep.attention_scale *= 2;
  EXPECT_THROW(trainer(o, steep), Unsupported);
}

}  // namespace
}  // namespace touchstone::train
