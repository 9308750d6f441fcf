#include "judge/measure/timed_cases.h"

#include <algorithm>

#include "judge/run/contender_process.h"

namespace touchstone::judge {
namespace {

// Of one shape; of these the oldest make room. An interpreter lives for several periods and needs
// some for each.
constexpr std::size_t kMaxCases = 24;
// Answers of one case that are kept: of a few contenders, and only where they are small.
constexpr std::size_t kMaxKept = 6;
constexpr std::size_t kMaxKeptBytes = 8 << 20;

std::size_t output_bytes(const std::vector<Reply>& replies) {
  std::size_t bytes = 0;
  for (const Reply& reply : replies) {
    for (const auto& output : reply.outputs) bytes += output.size();
  }
  return bytes;
}

}  // namespace

CaseCheck TimedCase::check(std::vector<Reply>&& replies) {
  {
    const std::lock_guard lock(mutex_);
    const bool known = std::ranges::any_of(
        right_, [&](const std::vector<Reply>& right) { return same_outputs(right, replies); });
    if (known) return {.passed = true, .reason = ""};
  }
  CaseCheck check = stored_->check(replies);
  if (!check.passed || output_bytes(replies) > kMaxKeptBytes) return check;
  const std::lock_guard lock(mutex_);
  if (right_.size() < kMaxKept) right_.push_back(std::move(replies));
  return check;
}

std::shared_ptr<TimedCase> TimedCases::choose(std::size_t shape, const CaseSpec& spec,
                                              std::span<const std::size_t> contenders,
                                              std::span<const int> lives, bool fresh,
                                              std::mt19937_64& random) {
  if (by_shape_.size() <= shape) by_shape_.resize(shape + 1);
  std::deque<std::shared_ptr<TimedCase>>& cases = by_shape_[shape];
  std::shared_ptr<TimedCase> chosen;
  std::size_t fitting = 0;
  for (const std::shared_ptr<TimedCase>& known : cases) {
    if (fresh) break;
    known->asked_in_.resize(lives.size(), -1);
    const bool unseen = std::ranges::all_of(
        contenders, [&](std::size_t i) { return known->asked_in_[i] != lives[i]; });
    // Each with the same chance, without a list of them.
    if (unseen && random() % ++fitting == 0) chosen = known;
  }
  if (chosen == nullptr) {
    CaseSpec drawn = spec;
    drawn.seed = random();
    chosen = std::make_shared<TimedCase>(std::move(drawn));
    cases.push_back(chosen);
    if (cases.size() > kMaxCases) cases.pop_front();
  }
  chosen->asked_in_.resize(lives.size(), -1);
  for (const std::size_t i : contenders) chosen->asked_in_[i] = lives[i];
  return chosen;
}

}  // namespace touchstone::judge
