// Speculative decoding: what verifying a draft costs beside a plain step.
//   ninja -C build/release speculative_bench && build/release/speculative_bench [cuda] [SHAPE] [CONTEXT]
// - acceptance of 256 nodes (32 requests of 8), V = 151936, bf16 logits: the whole call, arrays up, one
//   sample() over all rows, results back, the walk
// - a model of random weights (SHAPE, bf16; llama3-8b on CUDA, smollm2-135m on the CPU): a decode step, and
//   passes with trees of 4 to 64 nodes, logits of every node included, and keep()
// Wall times of whole calls, medians.
//   build/release/speculative_bench text MODEL [SOURCE] [TOKENS] [SEEDS]
// - plain and speculative decoding (suffix, 256 tokens, 4 seeds) of the same requests in turns, a few tokens
//   each, one thread, controller on: the processor time of both, so that what else the machine does
//   meanwhile falls on both alike. Chunks of 16 tokens give a median and quartiles beside the sum.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "machine/statistics.h"
#include "machine/stopwatch.h"
#include "touchstone/touchstone.h"

namespace {

using namespace touchstone;

double median_us(Context& context, int rounds, const std::function<void()>& body) {
  std::vector<double> times;
  for (int round = 0; round < rounds + 3; ++round) {
    context.synchronize();
    const machine::Stopwatch watch;
    body();
    context.synchronize();
    if (round >= 3) times.push_back(watch.microseconds());
  }
  return machine::summarize(times).median;
}

std::int32_t random_token(std::int64_t index, std::int64_t vocabulary) {
  return static_cast<std::int32_t>(random_uniform(1, index) * static_cast<double>(vocabulary));
}

// A chain and branches of it, two children each.
decode::TokenTree bench_tree(std::int64_t nodes, std::int64_t vocabulary) {
  decode::TokenTree tree;
  const std::int64_t chain = std::max<std::int64_t>(1, nodes / 4);
  for (std::int32_t i = 0; i < nodes; ++i) {
    const std::int32_t parent = i < chain ? i - 1 : (i - static_cast<std::int32_t>(chain)) / 2;
    tree.add({.parent = parent, .token = random_token(i, vocabulary)});
  }
  return tree;
}

void measure_acceptance(Context& context, bool penalties) {
  constexpr std::int64_t kVocabulary = 151936;
  constexpr std::int64_t kRequests = 32;
  constexpr std::int64_t kNodes = 8;
  constexpr std::int64_t kRows = kRequests * (kNodes + 1);
  Tensor host = Tensor::empty({kRows, kVocabulary}, DType::bf16);
  std::int64_t i = 0;
  for (Bf16& v : host.values<Bf16>()) {
    const std::uint32_t bits = static_cast<std::uint32_t>(++i) * 2654435761U;
    v = Bf16(static_cast<float>(bits) * 0x1p-29F);
  }
  Tensor logits = host.to(context.device());
  decode::Draft draft{.tree = bench_tree(kNodes, kVocabulary)};
  std::vector<std::int32_t> tokens(1024);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    tokens[t] = random_token(static_cast<std::int64_t>(t), kVocabulary);
  }
  decode::Request request{.prompt = {1}, .sampling = {.temperature = 0.8}};
  if (penalties) request.sampling.repetition_penalty = 1.1;
  std::vector<decode::DraftedSequence> sequences;
  for (std::int64_t r = 0; r < kRequests; ++r) {
    sequences.push_back({.request = &request, .seed = r, .tokens = tokens, .draft = &draft});
  }
  decode::Acceptor acceptor(kVocabulary);
  const double us = median_us(context, 101, [&] { acceptor.run(context, logits, sequences); });
  fmt::print("acceptance of {} nodes, {} rows, V {}, bf16, T 0.8{}: {:.1f} us\n",
             kRequests * kNodes, kRows, kVocabulary, penalties ? ", penalty over 1024 tokens" : "",
             us);
}

struct Pass {
  double score_us = 0;
  double keep_us = 0;
};

Pass measure_pass(Context& context, model::Model& model, decode::ScorerSequence sequence,
                  std::int64_t nodes, int rounds) {
  const std::int64_t length = model.length(sequence);
  const std::int64_t vocabulary = model.shape().vocabulary;
  // The last token of the text and the tree behind it.
  decode::TokenTree tree;
  tree.add({.token = 7});
  const decode::TokenTree below = bench_tree(nodes, vocabulary);
  for (const decode::TreeNode& node : below.nodes()) {
    tree.add({.parent = node.parent + 1, .token = node.token});
  }
  const auto rows = decode::tree_rows(sequence, length, tree);
  std::vector<std::int32_t> all(rows.size());
  std::iota(all.begin(), all.end(), 0);
  Tensor logits = Tensor::empty({tree.size(), vocabulary}, DType::f32, model.shape().device);
  const auto score = [&] {
    model.score(context, {.rows = rows, .logit_rows = all, .logits = logits});
  };
  Pass pass;
  pass.score_us = median_us(context, rounds, score);
  // The first nodes are the accepted ones: nothing moves.
  std::vector<std::int32_t> kept(
      static_cast<std::size_t>(1 + std::min<std::int64_t>(nodes / 4, 4)));
  std::iota(kept.begin(), kept.end(), 0);
  const decode::KeptRows path[] = {{sequence, kept}};
  std::vector<double> times;
  for (int round = 0; round < 5; ++round) {
    score();
    context.synchronize();
    const machine::Stopwatch watch;
    model.keep(path);
    context.synchronize();
    times.push_back(watch.microseconds());
    model.truncate(sequence, length);
  }
  pass.keep_us = machine::summarize(times).median;
  return pass;
}

void measure_model(Context& context, const std::string& name, std::int64_t length) {
  const io::ModelDescription shape = model::shape_by_name(name);
  const bool cuda = context.device().is_cuda();
  model::Model model(context, shape, model::random_weights(context, shape, "bf16", 1),
                     {.compute = cuda ? DType::bf16 : DType::f32,
                      .max_length = length + 128,
                      .sequences = 1,
                      .max_rows = 256});
  std::vector<std::int32_t> prompt(static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = random_token(static_cast<std::int64_t>(i), shape.vocabulary);
  }
  const decode::ScorerSequence sequence = model.create();
  const auto rows = decode::chain_rows(sequence, 0, prompt);
  model.score(context, {.rows = rows});
  std::vector<std::int32_t> all(prompt.size());
  std::iota(all.begin(), all.end(), 0);
  const decode::KeptRows kept[] = {{sequence, all}};
  model.keep(kept);
  const int rounds = cuda ? 25 : 5;
  const double step = measure_pass(context, model, sequence, 0, rounds).score_us;
  fmt::print("{} at {} tokens: decode step {:.1f} us\n", name, length, step);
  for (const std::int64_t nodes : {1, 3, 7, 15, 31, 63, 64}) {
    const Pass pass = measure_pass(context, model, sequence, nodes, rounds);
    fmt::print("  {:>2} nodes: {:9.1f} us, {:.2f} steps; keep {:.1f} us\n", nodes, pass.score_us,
               pass.score_us / step, pass.keep_us);
  }
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// One request under way, and the processor time of its steps.
class Run {
 public:
  Run(Context& context, model::Model& model, const decode::Request& request,
      std::shared_ptr<decode::DraftSource> source)
      : context_(context), scheduler_(model, options(std::move(source))) {
    id_ = scheduler_.submit(request, [this](const decode::TokenEvent& event) {
      if (event.token >= 0) tokens.push_back(event.token);
    });
    scheduler_.step(context_);  // the prompt
  }
  // Runs until there are `count` tokens, and returns the seconds that took.
  double advance(std::int64_t count) {
    const double begin = processor_seconds();
    while (std::ssize(tokens) < count && scheduler_.step(context_)) {
    }
    const double took = processor_seconds() - begin;
    seconds += took;
    return took;
  }
  decode::SpeculationStatistics statistics() const { return scheduler_.speculation(); }

  std::vector<std::int32_t> tokens;
  double seconds = 0;

 private:
  static decode::SchedulerOptions options(std::shared_ptr<decode::DraftSource> source) {
    decode::SchedulerOptions o{.max_rows = 64};
    o.speculation = {.source = std::move(source), .tree_nodes = 16};
    return o;
  }
  Context& context_;
  decode::Scheduler scheduler_;
  decode::RequestId id_{};
};

std::shared_ptr<decode::DraftSource> source_by_name(const std::string& name) {
  if (name == "suffix") return decode::suffix_source();
  if (name == "ngram") return decode::ngram_source();
  if (name == "lookup") return decode::prompt_lookup_source();
  throw InvalidArgument("source: expected suffix, ngram or lookup, got '" + name + "'");
}

void measure_text(const std::string& path, const std::string& source, std::int64_t count,
                  std::int64_t seeds) {
  constexpr std::int64_t kChunk = 16;
  constexpr std::int64_t kTurn = 4;
  Context context({.threads = 1});
  const io::Tokenizer tokenizer = io::Tokenizer::from_file(path);
  const model::ModelOptions options{.max_length = count + 64, .max_rows = 64};
  model::Model plain_model(context, io::ModelFile::open(path), options);
  model::Model drafted_model(context, io::ModelFile::open(path), options);
  std::vector<double> ratios;
  double plain_total = 0;
  double drafted_total = 0;
  for (std::int64_t seed = 1; seed <= seeds; ++seed) {
    decode::Request request;
    request.prompt = tokenizer.encode("The harbor was quiet that morning, and the old keeper");
    request.sampling = {.temperature = 0.8, .seed = seed};
    request.stop = {.max_tokens = count, .ignore_eos = true};
    Run plain(context, plain_model, request, nullptr);
    Run drafted(context, drafted_model, request, source_by_name(source));
    double plain_chunk = 0;
    double drafted_chunk = 0;
    for (std::int64_t tokens = kTurn; tokens <= count; tokens += kTurn) {
      // Who goes first finds the caches as the other left them: in turns.
      const bool first = tokens / kTurn % 2 == 0;
      if (first) plain_chunk += plain.advance(tokens);
      drafted_chunk += drafted.advance(tokens);
      const bool whole = tokens % kChunk == 0;
      // At the end of a chunk both have as many tokens, whatever the last pass gave.
      if (!first || whole) {
        plain_chunk += plain.advance(whole ? std::ssize(drafted.tokens) : tokens);
      }
      if (!whole) continue;
      if (drafted_chunk > 0) ratios.push_back(plain_chunk / drafted_chunk);
      plain_chunk = drafted_chunk = 0;
    }
    if (plain.tokens != drafted.tokens) throw Error("the texts differ");
    const decode::SpeculationStatistics s = drafted.statistics();
    fmt::print(
        "seed {}: {:.3f} of plain decoding's speed; {:.2f} tokens per pass, {} of {} with "
        "drafts; {}\n",
        seed, plain.seconds / drafted.seconds,
        static_cast<double>(s.tokens) / static_cast<double>(s.passes), s.drafted_passes, s.passes,
        s.controller);
    plain_total += plain.seconds;
    drafted_total += drafted.seconds;
  }
  std::ranges::sort(ratios);
  const auto quantile = [&](std::size_t quarter) {
    return ratios[quarter * (ratios.size() - 1) / 4];
  };
  fmt::print(
      "{} tokens of {} seeds: {:.3f} of plain decoding's speed by processor time; chunks of "
      "{}: median {:.3f}, quartiles {:.3f} {:.3f}\n",
      count, seeds, plain_total / drafted_total, kChunk, quantile(2), quantile(1), quantile(3));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const auto argument = [&](std::size_t i, const char* otherwise) {
    return args.size() > i ? args[i] : std::string(otherwise);
  };
  if (args.size() > 1 && args[0] == "text") {
    try {
      measure_text(args[1], argument(2, "suffix"), std::stoll(argument(3, "256")),
                   std::stoll(argument(4, "4")));
      return 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      return 1;
    }
  }
  const bool cuda = !args.empty() && args[0] == "cuda";
  const std::size_t first = cuda ? 1 : 0;
  const std::string shape = args.size() > first ? args[first] : cuda ? "llama3-8b" : "smollm2-135m";
  const std::int64_t length = args.size() > first + 1 ? std::stoll(args[first + 1])
                              : cuda                  ? 8192
                                                      : 512;
  try {
    Context context({.device = cuda ? Device::cuda() : Device::cpu()});
    if (cuda) {
      for (const bool penalties : {false, true}) measure_acceptance(context, penalties);
    }
    measure_model(context, shape, length);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
