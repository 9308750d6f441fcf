#include "judge/measure.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>

#include "bench/ceiling.h"
#include "fmt/format.h"
#include "judge/examine.h"
#include "judge/pairs.h"
#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::judge {
namespace {

constexpr int kLeastBlocks = 15;
constexpr int kMostBlocks = 150;
// An interval of the twin this narrow is enough; the rest of the time is saved.
constexpr double kNarrow = 0.008;
// One that is so many times slower than the fastest sits out most blocks: what is far apart needs
// few samples, and the others need the time.
constexpr double kPatience = 6.0;
constexpr int kMostStride = 8;
// Reads are cheaper than writes, and a roof is itself a measurement. Only what is beyond any doubt
// is called impossible.
constexpr double kImpossible = 0.45;

struct Entrant {
  std::string name;
  Record* record = nullptr;  // null for peers and the twin
  bool gpu = false;          // the floor of the host's memory says nothing about it
  std::unique_ptr<Stage> stage;
  std::string wrong;  // what was wrong with a timed answer; it is out then
  CaseSpec wrong_case;
  const Examination* from = nullptr;
  double warm_seconds = 0.0;  // over all shapes
};

struct Shape {
  CaseSpec spec;
  double bytes = 0.0;
  double flops = 0.0;
  double floor = 0.0;
  std::vector<int> stride;                   // by entrant
  std::vector<std::vector<double>> seconds;  // by entrant, then block; NaN where it sat out
};

class Measurer {
 public:
  Measurer(const Task& task, std::vector<Examination>& examined, std::vector<Examination>& peers,
           const JudgeOptions& options)
      : task_(task), options_(options), random_(std::random_device{}()) {
    // The judge has a core of its own, so that its watching takes nothing from the contender.
    cpus_ = usable_cpus();
    if (cpus_.size() > 1) {
      own_cpu_ = {cpus_.front()};
      cpus_.erase(cpus_.begin());
    }
    for (Examination& e : examined) {
      if (e.record.verdict == Verdict::pass) enter(e, e.record.contender, &e.record);
    }
    if (entrants_.empty()) return;
    for (Examination& e : peers) enter(e, e.record.contender, nullptr);
  }

  bool anyone() const { return !entrants_.empty(); }

  void run();
  void write();

 private:
  void enter(const Examination& e, const std::string& name, Record* record);
  void warm_up(Shape& shape);
  void add_twin();
  void block(Shape& shape, int number);
  double timed_run(Entrant& entrant, const Case& c, Placement placement,
                   std::vector<std::vector<Reply>>& right);
  void rounds(double budget, int blocks_before);
  void look_again(Shape& shape);
  Interval twin_ratio() const;
  std::size_t twin() const { return entrants_.size() - 1; }
  bool twin_is_right() const {
    return entrants_[model_].wrong.empty() && entrants_[twin()].wrong.empty();
  }
  bool usable(const Shape& shape, std::size_t i) const;
  void write_speed(Shape& shape, std::size_t number, std::size_t i) const;

  const Task& task_;
  const JudgeOptions& options_;
  std::mt19937_64 random_;
  std::vector<Entrant> entrants_;
  std::size_t model_ = 0;  // whose code the twin runs
  std::vector<Shape> shapes_;
  int blocks_ = 0;
  std::vector<int> cpus_;  // of the contenders
  std::vector<int> own_cpu_;
};

void Measurer::enter(const Examination& e, const std::string& name, Record* record) {
  Entrant entrant;
  entrant.name = name;
  entrant.record = record;
  entrant.from = &e;
  entrant.gpu = e.contender.language == Language::cuda;
  Limits limits = options_.limits;
  limits.cpus = cpus_;
  entrant.stage = std::make_unique<Stage>(e.contender, e.record.build, task_,
                                          probe_sandbox(options_.sandbox), limits);
  entrants_.push_back(std::move(entrant));
}

// One timed case. Its answer is right when it is bit for bit one that was found right in this
// block; the oracle is asked only where it is not.
double Measurer::timed_run(Entrant& entrant, const Case& c, Placement placement,
                           std::vector<std::vector<Reply>>& right) {
  std::vector<Reply> replies = entrant.stage->run(c, placement, random_());
  const double seconds = timed_seconds(c, replies);
  const bool known = std::ranges::any_of(
      right, [&](const std::vector<Reply>& other) { return same_outputs(other, replies); });
  if (known) return seconds;
  CaseCheck check;
  if (const Reply* bad = first_bad(replies); bad != nullptr) {
    check.reason = fmt::format("{}: {}", name_of(bad->ending), bad->detail);
  } else {
    check = task_.check(c, replies);
  }
  if (!check.passed) {
    entrant.wrong = check.reason;
    entrant.wrong_case = c.spec;
    return std::numeric_limits<double>::quiet_NaN();
  }
  right.push_back(std::move(replies));
  return seconds;
}

void Measurer::warm_up(Shape& shape) {
  std::vector<double> seconds(entrants_.size(), 0.0);
  for (int round = 0; round < 2; ++round) {
    shape.spec.seed = random_();
    const Case c = task_.build(shape.spec);
    if (round == 0) {
      shape.bytes = task_.bytes(c);
      shape.flops = task_.flops(c);
      shape.floor = copy_floor_seconds(shape.bytes, cpus_);
    }
    std::vector<std::vector<Reply>> right;
    for (std::size_t i = 0; i < entrants_.size(); ++i) {
      if (!entrants_[i].wrong.empty()) continue;
      seconds[i] = timed_run(entrants_[i], c, Placement::end_flush, right);
    }
  }
  double fastest = std::numeric_limits<double>::infinity();
  for (const double s : seconds) {
    if (s > 0.0) fastest = std::min(fastest, s);
  }
  for (std::size_t i = 0; i < entrants_.size(); ++i) {
    const double times = seconds[i] > 0.0 ? seconds[i] / (kPatience * fastest) : 1.0;
    shape.stride.push_back(std::clamp(static_cast<int>(times), 1, kMostStride));
    entrants_[i].warm_seconds += seconds[i];
  }
  shape.seconds.resize(entrants_.size());
}

// The quickest sits out no block, so its twin says most about the noise of the session.
void Measurer::add_twin() {
  for (std::size_t i = 0; i < entrants_.size(); ++i) {
    if (!entrants_[i].wrong.empty()) continue;
    if (!entrants_[model_].wrong.empty() ||
        entrants_[i].warm_seconds < entrants_[model_].warm_seconds) {
      model_ = i;
    }
  }
  enter(*entrants_[model_].from, "twin", nullptr);
  for (Shape& shape : shapes_) {
    shape.stride.push_back(shape.stride[model_]);
    shape.seconds.emplace_back();
    shape.spec.seed = random_();
    std::vector<std::vector<Reply>> right;
    timed_run(entrants_[twin()], task_.build(shape.spec), Placement::end_flush, right);
  }
}

void Measurer::block(Shape& shape, int number) {
  shape.spec.seed = random_();
  const Case c = task_.build(shape.spec);
  const Placement placement = number % 2 == 0 ? Placement::end_flush : Placement::start_flush;
  std::vector<std::size_t> order(entrants_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, random_);
  std::vector<std::vector<Reply>> right;
  for (const std::size_t i : order) {
    const bool sits_out = number % shape.stride[i] != 0 || !entrants_[i].wrong.empty();
    shape.seconds[i].push_back(sits_out ? std::numeric_limits<double>::quiet_NaN()
                                        : timed_run(entrants_[i], c, placement, right));
  }
}

Interval Measurer::twin_ratio() const {
  std::vector<Interval> ratios;
  for (const Shape& shape : shapes_) {
    ratios.push_back(paired_ratio(shape.seconds[model_], shape.seconds[twin()]));
  }
  return mean_ratio(ratios);
}

void Measurer::rounds(double budget, int blocks_before) {
  const auto begin = Clock::now();
  while (blocks_ < kMostBlocks) {
    for (Shape& shape : shapes_) block(shape, blocks_);
    ++blocks_;
    if (options_.progress) {
      options_.progress(fmt::format("{}: timing, block {}", task_.card().id, blocks_));
    }
    if (!twin_is_right()) return;
    if (blocks_ - blocks_before < kLeastBlocks) continue;
    if (seconds_since(begin) > budget) return;
    const Interval ratio = twin_ratio();
    if (ratio.high - ratio.low < 2 * kNarrow && blocks_ >= 2 * kLeastBlocks) return;
  }
}

// A time under the floor is taken again before anything is said about it.
void Measurer::look_again(Shape& shape) {
  bool suspicious = false;
  for (std::size_t i = 0; i < entrants_.size(); ++i) {
    if (!usable(shape, i) || entrants_[i].gpu) continue;
    std::vector<double> seconds;
    std::ranges::copy_if(shape.seconds[i], std::back_inserter(seconds),
                         [](double s) { return s > 0.0; });
    if (median(seconds) < kImpossible * shape.floor) {
      suspicious = true;
    }
  }
  if (!suspicious) return;
  shape.floor = copy_floor_seconds(shape.bytes, cpus_);
  for (std::vector<double>& seconds : shape.seconds) seconds.clear();
  for (int number = 0; number < kLeastBlocks * kMostStride / 4; ++number) block(shape, number);
}

bool Measurer::usable(const Shape& shape, std::size_t i) const {
  return entrants_[i].wrong.empty() &&
         std::ranges::any_of(shape.seconds[i], [](double s) { return s > 0.0; });
}

void Measurer::run() {
  const Pinned pinned(own_cpu_);
  const uint64_t seed = random_();
  for (const CaseSpec& spec : task_.timed(seed, options_.small)) {
    Shape shape;
    shape.spec = spec;
    shapes_.push_back(std::move(shape));
  }
  for (Shape& shape : shapes_) warm_up(shape);
  add_twin();
  const double budget = (options_.small ? 2.0 : 4.0) + 0.8 * static_cast<double>(entrants_.size());
  rounds(budget, 0);
  // A twin that is off may be bad luck: as many blocks again, and then it is not.
  if (twin_is_right() && !twin_fault(twin_ratio()).empty()) rounds(budget, blocks_);
  for (Shape& shape : shapes_) look_again(shape);
}

void Measurer::write_speed(Shape& shape, std::size_t number, std::size_t i) const {
  SpeedRecord speed;
  speed.id = fmt::format("s{}", number + 1);
  speed.shape = shape.spec;
  std::vector<double> seconds;
  for (const double s : shape.seconds[i]) {
    if (s > 0.0) seconds.push_back(s);
  }
  speed.seconds = median_interval(seconds);
  speed.fastest_seconds = speed.seconds.value;
  for (std::size_t k = 0; k < twin(); ++k) {
    if (k == i || !usable(shape, k)) continue;
    const Interval ratio = paired_ratio(shape.seconds[i], shape.seconds[k]);
    speed.ratio_to[entrants_[k].name] = ratio;
    speed.fastest_seconds = std::min(speed.fastest_seconds, speed.seconds.value / ratio.value);
  }
  speed.bytes = shape.bytes;
  speed.flops = shape.flops;
  if (!entrants_[i].gpu) {
    speed.floor_seconds = shape.floor;
    speed.roof = "copy";
    speed.share_of_roof = shape.floor / speed.seconds.value;
    speed.impossible = speed.seconds.value < kImpossible * shape.floor;
  }
  entrants_[i].record->speeds.push_back(std::move(speed));
}

void Measurer::write() {
  std::string withheld;
  std::optional<Interval> ratio;
  if (twin_is_right()) {
    ratio = twin_ratio();
    withheld = twin_fault(*ratio);
  } else {
    withheld = "the contender with the twin gave a wrong answer";
  }
  for (std::size_t i = 0; i < twin(); ++i) {
    const Entrant& entrant = entrants_[i];
    if (entrant.record == nullptr) continue;
    entrant.record->twin = ratio;
    entrant.record->facts["timed on"] =
        fmt::format("{} core{}", cpus_.size(), cpus_.size() == 1 ? "" : "s");
    if (!entrant.wrong.empty()) {
      CaseRecord timed;
      timed.id = "t1";
      timed.spec = entrant.wrong_case;
      timed.check.reason = fmt::format("while timed: {}", entrant.wrong);
      entrant.record->witnesses.push_back(
          {"t1", entrant.wrong_case, timed.check.reason,
           replay_command(entrant.record->path, entrant.record->task, entrant.wrong_case)});
      entrant.record->cases.push_back(std::move(timed));
      continue;
    }
    entrant.record->speeds_withheld = withheld;
    if (!withheld.empty()) continue;
    for (std::size_t s = 0; s < shapes_.size(); ++s) {
      if (usable(shapes_[s], i)) write_speed(shapes_[s], s, i);
    }
  }
}

}  // namespace

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

namespace {

void set_cpus(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  // A refusal costs precision, which the twin will show.
  if (!cpus.empty()) (void)sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

Pinned::Pinned(const std::vector<int>& cpus) : before_(usable_cpus()) { set_cpus(cpus); }

Pinned::~Pinned() { set_cpus(before_); }

double copy_floor_seconds(double bytes, const std::vector<int>& cpus) {
  constexpr int64_t kPage = 4096;
  constexpr int64_t kMost = int64_t{64} << 20;
  const Pinned pinned(cpus);
  const auto half = static_cast<int64_t>(bytes / 2);
  const int64_t size = std::clamp(half / kPage * kPage, kPage, kMost);
  Context context({.threads = static_cast<int>(std::max<std::size_t>(1, cpus.size()))});
  Tensor from = Tensor::empty({size / 4}, DType::f32);
  Tensor to = Tensor::empty({size / 4}, DType::f32);
  std::ranges::fill(from.values<float>(), 1.0F);
  std::ranges::fill(to.values<float>(), 0.0F);
  // Small copies are over before a clock is read twice: several are timed as one.
  const int repeats = static_cast<int>(std::clamp<int64_t>((1 << 20) / size, 1, 64));
  double best = std::numeric_limits<double>::infinity();
  for (const bench::CpuCopy& copy : bench::cpu_copies()) {
    for (int round = 0; round < 8; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < repeats; ++i) {
        bench::parallel_copy(context, copy, to.data(), from.data(), size);
      }
      best = std::min(best, seconds_since(begin) / repeats);
    }
  }
  return best * static_cast<double>(half) / static_cast<double>(size);
}

void measure_speeds(const Task& task, std::vector<Examination>& examined,
                    std::vector<Examination>& peers, const JudgeOptions& options) {
  Measurer measurer(task, examined, peers, options);
  if (!measurer.anyone()) return;
  measurer.run();
  measurer.write();
}

}  // namespace touchstone::judge
