#include "judge/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "fmt/format.h"
#include "judge/examine.h"
#include "judge/pairs.h"
#include "judge/roof.h"

namespace touchstone::judge {
namespace {

constexpr int kLeastBlocks = 15;
constexpr int kMostBlocks = 200;
// An interval of the twin this narrow is enough; the rest of the time is saved.
constexpr double kNarrow = 0.008;
// One wider than this, or off, is worth up to so many times the usual time.
constexpr double kWide = 0.015;
constexpr double kPatientBudget = 2.5;
// How often that is looked at.
constexpr int kLookBlocks = 5;
// Where memory lies moves a process by some percent for as long as it lives. So all get new ones
// after so many blocks, those that are slow to start after as many more.
constexpr int kProcessBlocks = 5;
constexpr int kSlowStart = 6;
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
  bool slow_start = false;    // interpreters and drivers
};

struct Shape {
  CaseSpec spec;
  double bytes = 0.0;
  double flops = 0.0;
  double copy_floor = 0.0;
  double compute_floor = 0.0;
  double floor() const { return std::max(copy_floor, compute_floor); }
  std::vector<int> stride;   // by entrant
  std::vector<Times> times;  // by entrant
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
  void find_floor(Shape& shape);
  void warm_up(Shape& shape);
  void add_twin();
  void block(Shape& shape, int number);
  Sample timed_run(Entrant& entrant, const Case& c, Placement placement,
                   std::vector<std::vector<Reply>>& right);
  void new_processes();
  void rounds(double budget);
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
  int process_ = 0;          // how often all contenders were started anew
  double peak_flops_ = 0.0;  // of all cores of the contenders
  std::vector<int> cpus_;    // of the contenders
  std::vector<int> own_cpu_;
};

void Measurer::enter(const Examination& e, const std::string& name, Record* record) {
  Entrant entrant;
  entrant.name = name;
  entrant.record = record;
  entrant.from = &e;
  entrant.gpu = e.contender.language == Language::cuda;
  entrant.slow_start = entrant.gpu || e.contender.language == Language::numpy;
  Limits limits = options_.limits;
  limits.cpus = cpus_;
  entrant.stage = std::make_unique<Stage>(e.contender, e.record.build, task_,
                                          probe_sandbox(options_.sandbox), limits);
  entrants_.push_back(std::move(entrant));
}

// One timed case. Its answer is right when it is bit for bit one that was found right in this
// block; the oracle is asked only where it is not.
Sample Measurer::timed_run(Entrant& entrant, const Case& c, Placement placement,
                           std::vector<std::vector<Reply>>& right) {
  std::vector<Reply> replies = entrant.stage->run(c, placement, random_());
  const Sample sample{timed_seconds(c, replies), std::ranges::any_of(replies, &Reply::disturbed),
                      process_};
  const bool known = std::ranges::any_of(
      right, [&](const std::vector<Reply>& other) { return same_outputs(other, replies); });
  if (known) return sample;
  CaseCheck check;
  if (const Reply* bad = first_bad(replies); bad != nullptr) {
    check.reason = fmt::format("{}: {}", name_of(bad->ending), bad->detail);
  } else {
    check = task_.check(c, replies);
  }
  if (!check.passed) {
    entrant.wrong = check.reason;
    entrant.wrong_case = c.spec;
    return {};
  }
  right.push_back(std::move(replies));
  return sample;
}

void Measurer::find_floor(Shape& shape) {
  peak_flops_ = std::max(peak_flops_, peak_flops(cpus_));
  shape.copy_floor = copy_floor_seconds(shape.bytes, cpus_);
  shape.compute_floor = shape.flops / peak_flops_;
}

void Measurer::warm_up(Shape& shape) {
  std::vector<double> seconds(entrants_.size(), 0.0);
  for (int round = 0; round < 2; ++round) {
    shape.spec.seed = random_();
    const Case c = task_.build(shape.spec);
    if (round == 0) {
      shape.bytes = task_.bytes(c);
      shape.flops = task_.flops(c);
      find_floor(shape);
    }
    std::vector<std::vector<Reply>> right;
    for (std::size_t i = 0; i < entrants_.size(); ++i) {
      if (!entrants_[i].wrong.empty()) continue;
      seconds[i] = timed_run(entrants_[i], c, Placement::end_flush, right).seconds;
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
  shape.times.resize(entrants_.size());
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
    shape.times.emplace_back();
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
    shape.times[i].push_back(sits_out ? Sample{} : timed_run(entrants_[i], c, placement, right));
  }
}

Interval Measurer::twin_ratio() const {
  std::vector<Interval> ratios;
  for (const Shape& shape : shapes_) {
    ratios.push_back(paired_ratio(shape.times[model_], shape.times[twin()]));
  }
  return mean_ratio(ratios);
}

void Measurer::new_processes() {
  ++process_;
  std::vector<Entrant*> fresh;
  for (Entrant& entrant : entrants_) {
    const bool due = !entrant.slow_start || blocks_ % (kProcessBlocks * kSlowStart) == 0;
    if (!due || !entrant.wrong.empty()) continue;
    entrant.stage->restart();
    fresh.push_back(&entrant);
  }
  // The first call of a process pays for pages and pools; it is checked, and not timed.
  for (Shape& shape : shapes_) {
    shape.spec.seed = random_();
    const Case c = task_.build(shape.spec);
    std::vector<std::vector<Reply>> right;
    for (Entrant* entrant : fresh) {
      if (entrant->wrong.empty()) timed_run(*entrant, c, Placement::end_flush, right);
    }
  }
}

void Measurer::rounds(double budget) {
  const auto begin = Clock::now();
  while (blocks_ < kMostBlocks) {
    if (blocks_ > 0 && blocks_ % kProcessBlocks == 0) new_processes();
    for (Shape& shape : shapes_) block(shape, blocks_);
    ++blocks_;
    if (options_.progress) {
      options_.progress(fmt::format("{}: timing, block {}", task_.card().id, blocks_));
    }
    if (!twin_is_right()) return;
    const double seconds = seconds_since(begin);
    if (seconds > kPatientBudget * budget) return;
    if (blocks_ < kLeastBlocks) continue;
    if (seconds < budget && blocks_ % kLookBlocks != 0) continue;
    const Interval ratio = twin_ratio();
    const double width = ratio.high - ratio.low;
    // A twin that is off may be bad luck, and a wide interval a bad hour: both get more time.
    if (!twin_fault(ratio).empty()) continue;
    if (width < 2 * kNarrow && blocks_ >= 2 * kLeastBlocks) return;
    if (seconds > budget && width < 2 * kWide) return;
  }
}

// A time under the floor is taken again before anything is said about it.
void Measurer::look_again(Shape& shape) {
  bool suspicious = false;
  for (std::size_t i = 0; i < entrants_.size(); ++i) {
    if (!usable(shape, i) || entrants_[i].gpu) continue;
    suspicious = suspicious || median(own_seconds(shape.times[i])) < kImpossible * shape.floor();
  }
  if (!suspicious) return;
  find_floor(shape);
  for (Times& times : shape.times) times.clear();
  for (int number = 0; number < kLeastBlocks * kMostStride / 4; ++number) block(shape, number);
}

bool Measurer::usable(const Shape& shape, std::size_t i) const {
  return entrants_[i].wrong.empty() &&
         std::ranges::any_of(shape.times[i], [](const Sample& s) { return s.seconds > 0.0; });
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
  rounds(budget);
  for (Shape& shape : shapes_) look_again(shape);
}

void Measurer::write_speed(Shape& shape, std::size_t number, std::size_t i) const {
  SpeedRecord speed;
  speed.id = fmt::format("s{}", number + 1);
  speed.shape = shape.spec;
  speed.seconds = median_interval(own_seconds(shape.times[i]));
  speed.fastest_seconds = speed.seconds.value;
  for (std::size_t k = 0; k < twin(); ++k) {
    if (k == i || !usable(shape, k)) continue;
    const Interval ratio = paired_ratio(shape.times[i], shape.times[k]);
    speed.ratio_to[entrants_[k].name] = ratio;
    speed.fastest_seconds = std::min(speed.fastest_seconds, speed.seconds.value / ratio.value);
  }
  speed.bytes = shape.bytes;
  speed.flops = shape.flops;
  if (!entrants_[i].gpu) {
    speed.copy_seconds = shape.copy_floor;
    speed.compute_seconds = shape.compute_floor;
    speed.floor_seconds = shape.floor();
    speed.roof = shape.compute_floor > shape.copy_floor ? "peak" : "copy";
    speed.share_of_roof = shape.floor() / speed.seconds.value;
    speed.impossible = speed.seconds.value < kImpossible * shape.floor();
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
    entrant.record->facts["arithmetic peak"] =
        fmt::format("{:.0f} GFLOP/s of float, measured in the session", 1e-9 * peak_flops_);
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

void measure_speeds(const Task& task, std::vector<Examination>& examined,
                    std::vector<Examination>& peers, const JudgeOptions& options) {
  Measurer measurer(task, examined, peers, options);
  if (!measurer.anyone()) return;
  measurer.run();
  measurer.write();
}

}  // namespace touchstone::judge
