// The selection of a beam search step: the best 2K continuations over K x V logits, softmax included.
//   ninja -C build/release beam_select_bench && build/release/beam_select_bench [cuda]
// On CUDA: device time from graph replay, cold (more logits than the L2 holds, in turn) and warm, and
// the wall time of the whole call with its upload and read-back. Median of the rounds.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "bench/cuda_tools.h"
#include "decode/beam/select.h"
#include "machine/statistics.h"
#include "machine/stopwatch.h"
#include "touchstone/core/random.h"

namespace {

using namespace touchstone;
using decode::BeamStatistics;
using decode::beam::Segment;
using decode::beam::SelectArgs;
using decode::beam::Selector;

constexpr std::int64_t kVocabulary = 151936;
constexpr int kRounds = 21;

double median(const std::vector<double>& times) { return machine::summarize(times).median; }

// Nearly normal logits: sums of four uniform numbers.
Tensor random_logits(std::int64_t rows, std::int64_t seed) {
  Tensor logits = Tensor::empty({rows, kVocabulary}, DType::f32);
  std::int64_t i = 0;
  for (float& v : logits.values<float>()) {
    const PhiloxWords words = random_words(seed, i++);
    double sum = 0;
    for (const std::uint32_t word : words.word) sum += static_cast<double>(word) * 0x1p-32 - 0.5;
    v = static_cast<float>(4 * sum);
  }
  return logits;
}

void measure(Context& context, std::int64_t beams) {
  const bool cuda = context.device().is_cuda();
  const std::int64_t bytes = beams * kVocabulary * 4;
  const std::int64_t copies = cuda ? std::clamp<std::int64_t>((200 << 20) / bytes, 1, 64) : 1;
  std::vector<Tensor> logits;
  logits.push_back(random_logits(beams, 1).to(context.device()));
  for (std::int64_t i = 1; i < copies; ++i) logits.push_back(logits[0].to(context.device()));
  std::vector<double> scores;
  for (std::int64_t b = 0; b < beams; ++b) scores.push_back(-0.01 * static_cast<double>(b));
  const Segment segment{0, beams, 2 * beams};
  SelectArgs args{.logits = logits[0],
                  .scores = scores,
                  .segments = {&segment, 1},
                  .tokens_per_row = 2 * beams};
  Selector selector;
  BeamStatistics statistics;
  std::int64_t nan_row = -1;
  std::vector<double> wall, cold, warm;
  for (int round = 0; round < kRounds; ++round) {
    const machine::Stopwatch watch;
    selector.select(context, args, nan_row, statistics);
    wall.push_back(watch.microseconds());
  }
  if (cuda) {
    const auto launches = static_cast<int>(std::max<std::int64_t>(copies, 4));
    bench::CudaGraph rotating(context, launches, [&](int i) {
      args.logits = logits[static_cast<std::size_t>(i) % logits.size()];
      selector.queue(context, args, statistics);
    });
    args.logits = logits[0];
    bench::CudaGraph resident(context, launches,
                              [&](int) { selector.queue(context, args, statistics); });
    for (int round = 0; round < kRounds; ++round) {
      cold.push_back(rotating.replay_us());
      warm.push_back(resident.replay_us());
    }
    fmt::print(
        "K {:>4}: device cold {:8.2f} us, warm {:8.2f} us, whole call {:8.1f} us, {:.2f} TB/s "
        "cold\n",
        beams, median(cold), median(warm), median(wall),
        static_cast<double>(bytes) / median(cold) * 1e-6);
  } else {
    fmt::print("K {:>4}: {:10.1f} us, {:.2f} GB/s\n", beams, median(wall),
               static_cast<double>(bytes) / median(wall) * 1e-3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool cuda = argc > 1 && std::string_view(argv[1]) == "cuda";
  fmt::print("V {}, f32, best 2K of K x V\n", kVocabulary);
  if (cuda) {
    const bench::CudaStream stream(0);
    Context context({.device = Device::cuda(), .stream = stream.get()});
    for (const std::int64_t beams : {1, 4, 16, 64, 256, 1024}) measure(context, beams);
  } else {
    Context context;
    for (const std::int64_t beams : {4, 64}) measure(context, beams);
  }
}
