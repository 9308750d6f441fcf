#include "bench/generate_bench.h"

#include <algorithm>
#include <string>

#include "bench/cuda_tools.h"
#include "machine/statistics.h"
#include "machine/stopwatch.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "touchstone/decode/scheduler.h"
#include "touchstone/ops/linear.h"

namespace touchstone::bench {
namespace {

std::vector<std::int32_t> random_prompt(std::int64_t request, std::int64_t length,
                                        std::int64_t vocabulary) {
  std::vector<std::int32_t> prompt;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::uint32_t word = random_words(request, i, RandomPurpose::shuffle).word[0];
    prompt.push_back(static_cast<std::int32_t>(word % static_cast<std::uint64_t>(vocabulary)));
  }
  return prompt;
}

struct Run {
  double first_tokens = 0;      // seconds until every request has one
  std::vector<double> steps{};  // seconds of those in which each request had one row
};

Run run(Context& context, decode::Scheduler& scheduler, const GenerateCase& item,
        std::int64_t vocabulary, std::int64_t max_tokens) {
  Run result;
  std::vector<decode::RequestId> ids;
  std::int64_t begun = 0;
  const machine::Stopwatch whole;
  for (std::int64_t r = 0; r < item.batch; ++r) {
    decode::Request request{.prompt = random_prompt(r, item.context, vocabulary),
                            .sampling = item.sampling,
                            .stop = {.max_tokens = max_tokens, .ignore_eos = true}};
    request.sampling.seed += r;
    ids.push_back(scheduler.submit(std::move(request),
                                   [&, first = true](const decode::TokenEvent& event) mutable {
                                     if (!first || event.token < 0) return;
                                     first = false;
                                     if (++begun == item.batch)
                                       result.first_tokens = whole.seconds();
                                   }));
  }
  for (bool more = true; more;) {
    const decode::SchedulerStatistics before = scheduler.statistics();
    const machine::Stopwatch step;
    more = scheduler.step(context);
    const double seconds = step.seconds();
    const decode::SchedulerStatistics after = scheduler.statistics();
    if (after.decode_rows - before.decode_rows == item.batch &&
        after.prompt_rows == before.prompt_rows) {
      result.steps.push_back(seconds);
    }
  }
  for (const decode::RequestId id : ids) scheduler.take(id);
  return result;
}

// Of the matrices of the layers for each token, of attention, and of the head for each request.
double prefill_flops(const io::ModelDescription& d, const GenerateCase& item) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  const double q = number(d.heads * d.head_size);
  const double k = number(d.kv_heads * d.head_size);
  const double width = number(d.width);
  const double matrices =
      width * (q + 2 * k) + q * width + (d.gated ? 3 : 2) * width * number(d.ffn_width);
  const double tokens = number(item.context);
  double flops = 0;
  for (const io::LayerDescription& layer : d.layers) {
    const double seen = layer.window > 0 ? std::min(number(layer.window), tokens / 2) : tokens / 2;
    flops += tokens * (2 * matrices + 4 * q * seen);
  }
  return number(item.batch) * (flops + 2 * width * number(d.vocabulary));
}

// A sequence for each request, with its prompt read.
class Prompts {
 public:
  Prompts(model::Model& model, const GenerateCase& item) : model_(model) {
    for (std::int64_t r = 0; r < item.batch; ++r) {
      sequences_.push_back(model.open(random_prompt(r, item.context, model.shape().vocabulary)));
    }
  }
  ~Prompts() {
    for (const decode::ScorerSequence sequence : sequences_) model_.release(sequence);
  }
  Prompts(const Prompts&) = delete;
  Prompts& operator=(const Prompts&) = delete;

  const std::vector<decode::ScorerSequence>& sequences() const { return sequences_; }

 private:
  model::Model& model_;
  std::vector<decode::ScorerSequence> sequences_;
};

// A tree of nodes behind each prompt, in which a node's parent is the root or any before it.
class ScoredTrees {
 public:
  ScoredTrees(model::Model& model, const Prompts& prompts, std::int64_t nodes) : model_(model) {
    for (const decode::ScorerSequence sequence : prompts.sequences()) {
      const std::int64_t first = std::ssize(rows_);
      const std::int64_t length = model.length(sequence);
      for (std::int64_t i = 0; i < nodes; ++i) {
        const PhiloxWords words = random_words(first, i, RandomPurpose::draft);
        const std::int64_t parent = words.word[0] % (i + 1) - 1;
        decode::ScoreRow row{
            .sequence = sequence,
            .token = static_cast<std::int32_t>(
                words.word[1] % static_cast<std::uint64_t>(model.shape().vocabulary)),
            .position = length};
        if (parent >= 0) {
          row.parent = static_cast<std::int32_t>(first + parent);
          row.position = rows_[static_cast<std::size_t>(row.parent)].position + 1;
        }
        all_.push_back(static_cast<std::int32_t>(rows_.size()));
        rows_.push_back(row);
      }
    }
    logits_ = Tensor::empty({std::ssize(rows_), model.shape().vocabulary}, DType::f32,
                            model.shape().device);
  }

  double pass_us(Context& context) {
    const machine::Stopwatch watch;
    model_.score(context, {.rows = rows_, .logit_rows = all_, .logits = logits_});
    context.synchronize();
    return watch.microseconds();
  }

 private:
  model::Model& model_;
  std::vector<decode::ScoreRow> rows_;
  std::vector<std::int32_t> all_;
  Tensor logits_;
};

// Of each, in turns.
std::vector<double> median_us(Context& context, const std::vector<ScoredTrees*>& trees) {
  constexpr int kWarm = 2;
  std::vector<std::vector<double>> us(trees.size());
  for (int round = 0; round < kWarm + 10; ++round) {
    for (std::size_t i = 0; i < trees.size(); ++i) {
      const double pass = trees[i]->pass_us(context);
      if (round >= kWarm) us[i].push_back(pass);
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& of_tree : us) {
    medians.push_back(machine::summarize(of_tree).median);
  }
  return medians;
}

}  // namespace

double GenerateRow::prefill_rate() const {
  return static_cast<double>(prefill_tokens) / prefill_seconds;
}

double GenerateRow::decode_rate() const {
  return static_cast<double>(steps * item.batch) / decode_seconds;
}

std::int64_t cache_bytes_per_token(const model::Model& model) {
  std::int64_t bytes = 0;
  for (const cache::GroupStatistics& group : model.cache_statistics().groups) {
    bytes += group.page_bytes;
  }
  return bytes / model.options().page_tokens;
}

GenerateRow measure_generate(Context& context, model::Model& model, const io::Tokenizer* tokenizer,
                             const GenerateCase& item, const std::function<double()>& read_gbs) {
  const decode::SchedulerOptions options{
      .max_rows = item.max_rows, .max_running = item.batch, .tokenizer = tokenizer};
  const std::int64_t vocabulary = model.shape().vocabulary;
  GenerateRow row{.item = item};
  {
    // Kernels are loaded, graphs recorded and threads awake before anything is timed.
    decode::Scheduler scheduler(model, options);
    GenerateCase little = item;
    little.batch = 1;
    run(context, scheduler, little, vocabulary, 4);
    model.clear_prefixes();
  }
  row.prefill_tokens = item.batch * item.context;
  row.prefill_flops = prefill_flops(model.description(), item);
  {
    decode::Scheduler scheduler(model, options);
    row.prefill_seconds = run(context, scheduler, item, vocabulary, 1).first_tokens;
  }
  decode::Scheduler scheduler(model, options);
  const double before = read_gbs();
  const Run decoded = run(context, scheduler, item, vocabulary, item.tokens + 2);
  row.read_gbs = (before + read_gbs()) / 2;
  if (decoded.steps.size() < 3) {
    throw InvalidArgument("bench: generate: too few decode steps to time: more --tokens");
  }
  const std::vector<double> timed(decoded.steps.begin() + 2, decoded.steps.end());
  row.steps = std::ssize(timed);
  for (const double seconds : timed) row.decode_seconds += seconds;
  row.step_us = 1e6 * machine::summarize(timed).median;
  row.weight_bytes = model.weight_bytes();
  row.cache_bytes = item.batch * (item.context + item.tokens / 2) * cache_bytes_per_token(model);
  row.floor_us = static_cast<double>(row.weight_bytes + row.cache_bytes) / (row.read_gbs * 1e3);
  return row;
}

GenerateProfile profile_generate(Context& context, model::Model& model, const GenerateCase& item) {
  const Prompts prompts(model, item);
  GenerateProfile profile{.parts = model.profile_step(context, prompts.sequences())};
  ScoredTrees step(model, prompts, 1);
  profile.score_us = median_us(context, {&step}).front();
  return profile;
}

TreePass measure_tree_pass(Context& context, model::Model& model, const GenerateCase& item,
                           std::int64_t nodes) {
  const Prompts prompts(model, item);
  ScoredTrees tree(model, prompts, nodes);
  ScoredTrees step(model, prompts, 1);
  const std::vector<double> us = median_us(context, {&tree, &step});
  return {.nodes = nodes, .pass_us = us[0], .step_us = us[1]};
}

double cublaslt_rate(Device device) {
  constexpr std::int64_t kSize = 8192;
  const CudaStream stream(device.index);
  Context context({.device = device, .stream = stream.get()});
  Tensor host = Tensor::empty({kSize, kSize}, DType::bf16);
  std::int64_t i = 0;
  for (Bf16& value : host.values<Bf16>()) {
    const std::uint32_t bits = static_cast<std::uint32_t>(++i) * 2654435761U;
    value = convert<Bf16>(static_cast<float>(bits >> 8) * 0x1p-23F - 1);
  }
  const Tensor a = host.to(device);
  const Tensor b = host.to(device);
  Tensor c = Tensor::empty({kSize, kSize}, DType::bf16, device);
  const auto product = [&](int) {
    linear(context, {.x = a,
                     .weight = b,
                     .y = c,
                     .bits_may_depend_on_batch = true,
                     .implementation = "cublaslt"});
  };
  product(0);
  context.synchronize();
  CudaGraph graph(context, 5, product);
  graph.replay_us();
  std::vector<double> us;
  for (int round = 0; round < 5; ++round) us.push_back(graph.replay_us());
  return 2.0 * kSize * kSize * kSize / (1e-6 * machine::summarize(us).median);
}

}  // namespace touchstone::bench
