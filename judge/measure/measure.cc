#include "judge/measure/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

#include "judge/contender/commands.h"
#include "judge/measure/paired_stats.h"
#include "judge/measure/roofline.h"
#include "judge/measure/session.h"
#include "judge/measure/timed_cases.h"
#include "judge/report/text_format.h"
#include "machine/cpu_info.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// A period: new processes, a warm-up, and this many timed rounds of each shape. Where memory lies
// moves a process by some percent for as long as it lives, so many short lives tell more than a few
// long ones.
constexpr int kRounds = 4;
constexpr int kMinPeriods = 8;
constexpr int kMaxPeriods = 100;
// Interpreters and drivers are slow to start: starting one contender takes at most this share of
// the time.
constexpr double kStartShare = 0.2;
// An interval of the twin this narrow (to each side) is enough; the rest of the time is saved.
constexpr double kNarrow = 0.008;
// One wider than this, or off, is measured for up to this many times the usual time.
constexpr double kWide = 0.02;
constexpr double kPatientBudget = 1.5;
// How often that is looked at.
constexpr int kLookPeriods = 2;
// One that is slower than the fastest by this factor is skipped in most rounds: what is far apart needs
// few samples, and the others need the time.
constexpr double kPatience = 6.0;
constexpr int kMaxStride = 6;
// Reads are cheaper than writes, and a roof is itself a measurement. Only what is beyond any doubt
// is called impossible.
constexpr double kImpossible = 0.45;

struct Entrant {
  std::string name;
  Record* record = nullptr;  // null for peers and the twin
  bool gpu = false;          // the floor of the host's memory says nothing about it
  std::unique_ptr<ContenderProcess> process;
  std::string wrong;  // what was wrong with a timed answer; it is out then
  CaseSpec wrong_case;
  const Examination* from = nullptr;
  std::size_t shapes = 0;       // that need nothing it lacks
  double warm_seconds = 0.0;    // over all shapes
  double start_seconds = 0.0;   // of its last process
  double starts_seconds = 0.0;  // of all of them
  int period = 0;               // in which its process was started
  int life = 0;                 // of its process: the number of starts
};

struct Shape {
  CaseSpec spec;
  double bytes = 0.0;
  double flops = 0.0;
  double copy_floor = 0.0;
  double compute_floor = 0.0;
  double floor() const { return std::max(copy_floor, compute_floor); }
  int rounds = 0;            // timed so far
  std::vector<int> stride;   // by entrant
  std::vector<Times> times;  // by entrant, round by round
};

// One case, answered by everybody who takes part in it.
struct Round {
  std::size_t shape = 0;
  std::shared_ptr<TimedCase> timed;
  std::vector<std::size_t> order;  // of entrants
  bool fresh = false;              // nobody was ever asked its case
  bool warm_up = false;
  Placement placement = Placement::end_flush;
  std::vector<Sample> samples;  // by entrant
  // Bit for bit the same answers stand here once, with all who gave them.
  struct Answer {
    std::vector<Reply> replies;
    std::vector<std::size_t> by;
  };
  std::vector<Answer> answers;
};

class Measurer {
 public:
  Measurer(const Task& task, std::vector<Examination>& examined, std::vector<Examination>& peers,
           const JudgeOptions& options)
      : task_(task),
        options_(options),
        random_(std::random_device{}()),
        cases_(task),
        all_cpus_(machine::usable_cpus()) {
    // The judge has a core of its own, so that its watching takes nothing from the contender.
    cpus_ = all_cpus_;
    if (cpus_.size() > 1) {
      own_cpu_ = {cpus_.front()};
      cpus_.erase(cpus_.begin());
    }
    for (Examination& e : examined) {
      if (can_be_timed(e.record, task, options)) enter(e, e.record.contender, &e.record);
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
  void survey();
  void add_twin();
  Round new_round(std::size_t shape, bool warm_up, std::vector<std::size_t> order) const;
  bool takes_part(std::size_t i, const Shape& shape) const {
    return lacked_by(entrants_[i].from->record, task_, shape.spec).empty();
  }
  std::vector<std::size_t> everybody() const;
  void fill_cases(std::vector<Round>& rounds);
  static Reply begin(const Entrant& entrant, Placement placement);
  Reply call_one(const Entrant& entrant, const Call& call, Placement placement);
  std::vector<std::vector<Reply>> ask(const Round& round);
  void play(Round& round);
  void check_answers(std::vector<Round>& rounds);
  template <class Do>
  void on_all_cores(std::size_t count, const Do& work) const;
  std::vector<std::size_t> start_processes(int number);
  void period(int number, const std::vector<std::size_t>& shapes, int rounds);
  void periods(double budget);
  bool enough(double seconds, double budget, int done) const;
  void remeasure_below_roof(std::size_t shape);
  Interval twin_ratio() const;
  std::size_t twin() const { return entrants_.size() - 1; }
  bool twin_is_right() const {
    return entrants_[model_].wrong.empty() && entrants_[twin()].wrong.empty();
  }
  bool usable(const Shape& shape, std::size_t i) const;
  void write_speed(Shape& shape, std::size_t number, std::size_t i, const Interval& control) const;
  void write_wrong(const Entrant& entrant) const;

  const Task& task_;
  const JudgeOptions& options_;
  std::mt19937_64 random_;
  std::vector<Entrant> entrants_;
  TimedCases cases_;
  std::size_t model_ = 0;  // whose code the twin runs
  std::vector<Shape> shapes_;
  int period_ = 0;
  Clock::time_point begin_ = Clock::now();
  double peak_flops_ = 0.0;    // of all cores of the contenders
  std::vector<int> all_cpus_;  // of both below, for what is not timed
  std::vector<int> cpus_;      // of the contenders
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
  entrant.process = std::make_unique<ContenderProcess>(e.contender, e.record.build, task_,
                                                       probe_sandbox(options_.sandbox), limits);
  entrants_.push_back(std::move(entrant));
}

// Cases and references are not timed: all cores compute them while nothing is measured.
template <class Do>
void Measurer::on_all_cores(std::size_t count, const Do& work) const {
  std::atomic<std::size_t> next = 0;
  const auto take = [&] {
    const Pinned anywhere(all_cpus_);
    for (std::size_t i; (i = next++) < count;) work(i);
  };
  std::vector<std::jthread> others;
  for (std::size_t core = 1; core < std::min(all_cpus_.size(), count); ++core) {
    others.emplace_back(take);
  }
  take();
}

void Measurer::fill_cases(std::vector<Round>& rounds) {
  std::vector<int> lives;
  for (const Entrant& entrant : entrants_) lives.push_back(entrant.life);
  std::vector<TimedCase*> chosen;
  for (Round& round : rounds) {
    round.timed = cases_.choose(round.shape, shapes_[round.shape].spec, round.order, lives,
                                round.fresh, random_);
    if (std::ranges::find(chosen, round.timed.get()) == chosen.end()) {
      chosen.push_back(round.timed.get());
    }
  }
  on_all_cores(chosen.size(), [&](std::size_t i) { cases_.build(*chosen[i]); });
}

Round Measurer::new_round(std::size_t shape, bool warm_up, std::vector<std::size_t> order) const {
  Round round;
  round.shape = shape;
  round.warm_up = warm_up;
  round.order = std::move(order);
  std::erase_if(round.order, [&](std::size_t i) { return !takes_part(i, shapes_[shape]); });
  round.samples.resize(entrants_.size());
  return round;
}

// What goes wrong with one of them is its own affair: the others are measured all the same.
Reply Measurer::begin(const Entrant& entrant, Placement placement) {
  Reply reply;
  try {
    Child* child = entrant.process->child();
    reply = entrant.process->started();
    if (child != nullptr && child->begin(placement, reply)) reply.ending = Ending::ok;
  } catch (const Error& error) {
    reply.ending = Ending::crashed;
    reply.detail = error.what();
  }
  return reply;
}

Reply Measurer::call_one(const Entrant& entrant, const Call& call, Placement placement) {
  try {
    return entrant.process->child()->call(call, placement, random_());
  } catch (const Error& error) {
    Reply reply;
    reply.ending = Ending::crashed;
    reply.detail = error.what();
    return reply;
  }
}

// One call after the other, each made by all who take part, so that what disturbs the machine for
// some milliseconds disturbs the same call of everybody.
std::vector<std::vector<Reply>> Measurer::ask(const Round& round) {
  std::vector<std::vector<Reply>> replies(entrants_.size());
  std::vector<std::size_t> order = round.order;
  std::erase_if(order, [&](std::size_t i) { return !entrants_[i].wrong.empty(); });
  for (const std::size_t i : order) {
    const Reply lost = begin(entrants_[i], round.placement);
    if (lost.ending != Ending::ok) replies[i].push_back(lost);
  }
  for (const Call& call : round.timed->asked().calls) {
    for (const std::size_t i : order) {
      if (first_bad(replies[i]) != nullptr) continue;
      replies[i].push_back(call_one(entrants_[i], call, round.placement));
    }
    std::ranges::reverse(order);  // who came first comes last
  }
  return replies;
}

void Measurer::play(Round& round) {
  std::vector<std::vector<Reply>> all = ask(round);
  for (const std::size_t i : round.order) {
    Entrant& entrant = entrants_[i];
    std::vector<Reply>& replies = all[i];
    if (replies.empty()) continue;
    if (const Reply* bad = first_bad(replies); bad != nullptr) {
      entrant.wrong = fmt::format("{}: {}", name_of(bad->ending), bad->detail);
      entrant.wrong_case = round.timed->spec();
      continue;
    }
    round.samples[i] = {timed_seconds(round.timed->asked(), replies),
                        std::ranges::any_of(replies, &Reply::disturbed), entrant.period};
    const auto known = std::ranges::find_if(round.answers, [&](const Round::Answer& other) {
      return same_outputs(other.replies, replies);
    });
    if (known == round.answers.end()) {
      round.answers.push_back({std::move(replies), {i}});
    } else {
      known->by.push_back(i);
    }
  }
}

// Every answer is held against the oracle, once for all who gave it.
void Measurer::check_answers(std::vector<Round>& rounds) {
  std::mutex mutex;
  on_all_cores(rounds.size(), [&](std::size_t r) {
    Round& round = rounds[r];
    for (Round::Answer& answer : round.answers) {
      const CaseCheck check = round.timed->check(std::move(answer.replies));
      if (check.passed) continue;
      const std::lock_guard lock(mutex);
      for (const std::size_t i : answer.by) {
        // Which kind of data a timed case has is hidden, and may be one that is refused.
        if (check.refused && !entrants_[i].from->record.lacks.empty()) {
          round.samples[i] = {};
          continue;
        }
        entrants_[i].wrong = check.reason;
        entrants_[i].wrong_case = round.timed->spec();
      }
    }
  });
}

void Measurer::find_floor(Shape& shape) {
  peak_flops_ = std::max(peak_flops_, peak_flops(cpus_));
  shape.copy_floor = copy_floor_seconds(shape.bytes, cpus_);
  shape.compute_floor = shape.flops / peak_flops_;
}

std::vector<std::size_t> Measurer::everybody() const {
  std::vector<std::size_t> all(entrants_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

// A first look at every shape: what it costs at least, and who is how fast.
void Measurer::survey() {
  std::vector<Round> rounds;
  for (std::size_t s = 0; s < shapes_.size(); ++s) {
    rounds.push_back(new_round(s, true, everybody()));
    rounds.push_back(new_round(s, false, everybody()));
  }
  fill_cases(rounds);
  for (Round& round : rounds) {
    Shape& shape = shapes_[round.shape];
    if (round.warm_up) {
      shape.bytes = task_.bytes(round.timed->asked());
      shape.flops = task_.flops(round.timed->asked());
      find_floor(shape);
    }
    play(round);
  }
  check_answers(rounds);
  for (const Round& round : rounds) {
    if (round.warm_up) continue;
    Shape& shape = shapes_[round.shape];
    double fastest = std::numeric_limits<double>::infinity();
    for (const Sample& sample : round.samples) {
      if (sample.seconds > 0.0) fastest = std::min(fastest, sample.seconds);
    }
    for (std::size_t i = 0; i < entrants_.size(); ++i) {
      const double seconds = round.samples[i].seconds;
      const double times = seconds > 0.0 ? seconds / (kPatience * fastest) : 1.0;
      shape.stride.push_back(std::clamp(static_cast<int>(times), 1, kMaxStride));
      entrants_[i].warm_seconds += seconds;
    }
    shape.times.resize(entrants_.size());
  }
}

// The quickest sits out no round, so its twin says most about the noise of the session. Those that
// take part in more shapes come first.
void Measurer::add_twin() {
  const auto rank = [&](std::size_t i) {
    const Entrant& e = entrants_[i];
    return std::tuple(e.wrong.empty(), e.shapes, -e.warm_seconds);
  };
  for (std::size_t i = 0; i < entrants_.size(); ++i) {
    if (rank(i) > rank(model_)) model_ = i;
  }
  enter(*entrants_[model_].from, "twin", nullptr);
  for (Shape& shape : shapes_) {
    shape.stride.push_back(shape.stride[model_]);
    shape.times.emplace_back();
  }
}

Interval Measurer::twin_ratio() const {
  std::vector<Interval> ratios;
  for (const Shape& shape : shapes_) {
    if (!usable(shape, model_) || !usable(shape, twin())) continue;
    ratios.push_back(paired_ratio(shape.times[model_], shape.times[twin()]));
  }
  if (ratios.empty()) return {1.0, 0.5, 2.0, 0};  // not known: speeds are withheld
  return mean_ratio(ratios);
}

// Whose process is new, and has to be warmed up. In random order: memory that one gave back is the
// next one's.
std::vector<std::size_t> Measurer::start_processes(int number) {
  std::vector<std::size_t> fresh;
  std::vector<std::size_t> order = everybody();
  std::ranges::shuffle(order, random_);
  for (const std::size_t i : order) {
    Entrant& entrant = entrants_[i];
    const bool due =
        entrant.starts_seconds + entrant.start_seconds < kStartShare * seconds_since(begin_);
    const bool never = entrant.starts_seconds == 0.0;
    if (!(due || never) || !entrant.wrong.empty()) continue;
    const auto begin = Clock::now();
    entrant.process->restart();
    entrant.process->child();  // started now, for the clock
    entrant.start_seconds = seconds_since(begin);
    entrant.starts_seconds += entrant.start_seconds;
    entrant.period = number;
    ++entrant.life;
    fresh.push_back(i);
  }
  return fresh;
}

void Measurer::period(int number, const std::vector<std::size_t>& shapes, int rounds_each) {
  const std::vector<std::size_t> fresh = start_processes(number);
  std::vector<Round> rounds;
  rounds.reserve(shapes.size() * static_cast<std::size_t>(1 + rounds_each));
  // The first call of a process pays for pages and pools; it is checked, and not timed.
  for (const std::size_t s : shapes) rounds.push_back(new_round(s, true, fresh));
  std::vector<std::size_t> order = everybody();
  for (int r = 0; r < rounds_each; ++r) {
    // In order and in reverse, so that a drift affects all alike.
    if (r % 2 == 0) {
      std::ranges::shuffle(order, random_);
    } else {
      std::ranges::reverse(order);
    }
    for (const std::size_t s : shapes) {
      Round round = new_round(s, false, order);
      if ((number + r) % 2 == 1) round.placement = Placement::start_flush;
      round.fresh = r + 1 == rounds_each;  // new content in every period
      const Shape& shape = shapes_[s];
      std::erase_if(round.order,
                    [&](std::size_t i) { return (shape.rounds + r) % shape.stride[i] != 0; });
      rounds.push_back(std::move(round));
    }
  }
  fill_cases(rounds);
  for (Round& round : rounds) play(round);
  check_answers(rounds);
  for (const Round& round : rounds) {
    if (round.warm_up) continue;
    Shape& shape = shapes_[round.shape];
    ++shape.rounds;
    for (std::size_t i = 0; i < entrants_.size(); ++i) shape.times[i].push_back(round.samples[i]);
  }
}

bool Measurer::enough(double seconds, double budget, int done) const {
  if (seconds > kPatientBudget * budget) return true;
  if (done < kMinPeriods) return false;
  if (seconds < budget && done % kLookPeriods != 0) return false;
  const Interval ratio = twin_ratio();
  const double width = ratio.high - ratio.low;
  // A twin that is off may be bad luck, and a wide interval a bad hour: both get more time.
  const bool good = twin_fault(ratio).empty();
  if (seconds > budget) return good && width < 2 * kWide;
  return good && width < 2 * kNarrow;
}

void Measurer::periods(double budget) {
  const auto begin = Clock::now();
  std::vector<std::size_t> shapes(shapes_.size());
  std::iota(shapes.begin(), shapes.end(), std::size_t{0});
  for (int done = 0; done < kMaxPeriods;) {
    period(period_++, shapes, kRounds);
    ++done;
    if (options_.progress) {
      options_.progress(fmt::format("{}: timing, round {}", task_.card().id, done * kRounds));
    }
    if (!twin_is_right() || enough(seconds_since(begin), budget, done)) return;
  }
}

// A time under the floor is taken again before anything is said about it.
void Measurer::remeasure_below_roof(std::size_t number) {
  Shape& shape = shapes_[number];
  bool suspicious = false;
  for (std::size_t i = 0; i < entrants_.size(); ++i) {
    if (!usable(shape, i) || entrants_[i].gpu) continue;
    suspicious = suspicious || median(own_seconds(shape.times[i])) < kImpossible * shape.floor();
  }
  if (!suspicious) return;
  find_floor(shape);
  for (Times& times : shape.times) times.clear();
  for (int k = 0; k < kMinPeriods; ++k) period(period_++, {number}, kRounds);
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
    bool anyone = false;
    for (std::size_t i = 0; i < entrants_.size(); ++i) {
      const bool part = takes_part(i, shape);
      entrants_[i].shapes += part ? 1 : 0;
      anyone = anyone || part;
      if (part || entrants_[i].record == nullptr) continue;
      std::string& fact = entrants_[i].record->facts["shapes not timed"];
      fact += fact.empty() ? "they need what it lacks: " : "; ";
      fact += format_shape(spec);
    }
    if (anyone) shapes_.push_back(std::move(shape));
  }
  survey();
  add_twin();
  periods((options_.small ? 1.5 : 2.5) + 0.5 * static_cast<double>(entrants_.size()));
  for (std::size_t s = 0; s < shapes_.size(); ++s) remeasure_below_roof(s);
}

void Measurer::write_speed(Shape& shape, std::size_t number, std::size_t i,
                           const Interval& control) const {
  // Contenders that differ by less than the twin cannot be told apart.
  const double margin = std::abs(std::log(control.value));
  SpeedRecord speed;
  speed.id = fmt::format("s{}", number + 1);
  speed.shape = shape.spec;
  speed.seconds = widened(median_interval(own_seconds(shape.times[i])), margin);
  speed.fastest_seconds = speed.seconds.value;
  for (std::size_t k = 0; k < twin(); ++k) {
    if (k == i || !usable(shape, k)) continue;
    const Interval ratio = widened(paired_ratio(shape.times[i], shape.times[k]), margin);
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
    // A verdict requires a tighter control than an interval does.
    speed.impossible =
        twin_fault(control).empty() && speed.seconds.value < kImpossible * shape.floor();
  }
  entrants_[i].record->speeds.push_back(std::move(speed));
}

// A timed answer that is wrong counts as a case that is.
void Measurer::write_wrong(const Entrant& entrant) const {
  Record& record = *entrant.record;
  CaseRecord timed;
  timed.id = "t1";
  timed.spec = entrant.wrong_case;
  timed.check.reason = fmt::format("while timed: {}", entrant.wrong);
  record.witnesses.push_back({"t1", entrant.wrong_case, timed.check.reason,
                              replay_command(record.path, record.task, entrant.wrong_case)});
  record.cases.push_back(std::move(timed));
}

void Measurer::write() {
  std::string withheld;
  std::optional<Interval> control;
  if (twin_is_right()) {
    control = twin_ratio();
    withheld = twin_failure(*control);
  } else {
    withheld = "the contender with the twin gave a wrong answer";
  }
  for (std::size_t i = 0; i < twin(); ++i) {
    const Entrant& entrant = entrants_[i];
    if (entrant.record == nullptr) continue;
    entrant.record->twin = control;
    entrant.record->facts["timed on"] =
        fmt::format("{} core{}", cpus_.size(), cpus_.size() == 1 ? "" : "s");
    entrant.record->facts["arithmetic peak"] =
        fmt::format("{:.0f} GFLOP/s of float, measured in the session", 1e-9 * peak_flops_);
    if (!entrant.wrong.empty()) {
      write_wrong(entrant);
      continue;
    }
    entrant.record->speeds_withheld = withheld;
    if (!withheld.empty()) continue;
    for (std::size_t s = 0; s < shapes_.size(); ++s) {
      if (usable(shapes_[s], i)) write_speed(shapes_[s], s, i, *control);
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
