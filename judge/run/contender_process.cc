#include "judge/run/contender_process.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

bool answered(Ending ending) { return ending == Ending::ok || ending == Ending::refused; }

}  // namespace

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const Reply* first_bad(const std::vector<Reply>& replies) {
  bool refused = false;
  for (const Reply& reply : replies) {
    refused = refused || reply.ending == Ending::refused;
    // Where no handle was made, what needs it cannot be called: the refusal is the answer.
    const bool without_handle = refused && reply.ending == Ending::not_reached;
    if (!answered(reply.ending) && !without_handle) return &reply;
  }
  return nullptr;
}

Ending ending_of(const std::vector<Reply>& replies) {
  const Reply* bad = first_bad(replies);
  return bad == nullptr ? Ending::ok : bad->ending;
}

namespace {

bool is_nan_word(uint32_t word) { return (word & 0x7fffffffU) > 0x7f800000U; }

// Four bytes at a time whatever the type. A NaN equals a NaN: its sign and payload are those of
// whichever operand came first, which no order of the same operations promises.
bool same_words(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  if (a == b) return true;
  if (a.size() != b.size() || a.size() % sizeof(uint32_t) != 0) return false;
  for (std::size_t at = 0; at < a.size(); at += sizeof(uint32_t)) {
    uint32_t x = 0, y = 0;
    std::memcpy(&x, a.data() + at, sizeof x);
    std::memcpy(&y, b.data() + at, sizeof y);
    if (x != y && !(is_nan_word(x) && is_nan_word(y))) return false;
  }
  return true;
}

}  // namespace

bool same_outputs(const std::vector<Reply>& a, const std::vector<Reply>& b) {
  return std::ranges::equal(a, b, [](const Reply& x, const Reply& y) {
    return x.ending == y.ending && std::ranges::equal(x.outputs, y.outputs, same_words);
  });
}

double timed_seconds(const Case& c, const std::vector<Reply>& replies) {
  double sum = 0.0;
  for (std::size_t i = 0; i < c.calls.size() && i < replies.size(); ++i) {
    if (c.calls[i].timed) sum += replies[i].seconds;
  }
  return sum;
}

ContenderProcess::ContenderProcess(const Contender& contender, BuildResult build, const Task& task,
                                   const Sandbox& sandbox, const Limits& limits)
    : contender_(contender),
      build_(std::move(build)),
      task_(task),
      sandbox_(sandbox),
      limits_(limits) {}

Child* ContenderProcess::child() {
  if (child_ != nullptr && child_->alive()) return child_.get();
  try {
    child_ = Child::start(contender_, build_, task_, sandbox_, limits_);
    started_ = child_->started();
  } catch (const Unsupported&) {
    throw;  // of the machine, not of the contender
  } catch (const Error& error) {
    started_ = {};
    started_.ending = Ending::crashed;
    started_.detail = error.what();
  }
  if (started_.ending != Ending::ok) child_.reset();
  return child_.get();
}

std::vector<Reply> ContenderProcess::run(const Case& c, Placement placement, uint64_t poison) {
  Child* running = child();
  if (running == nullptr) {
    std::vector<Reply> replies(c.calls.size());
    if (!replies.empty()) replies.front() = started_;
    return replies;
  }
  std::vector<Reply> replies = running->run(c, placement, poison);
  if (!running->alive()) ++deaths_;
  return replies;
}

template <class Compare>
CaseCheck ContenderProcess::run_and_check(const Case& c, Placement placement, uint64_t poison,
                                          std::vector<Reply>* kept, const Compare& compare) {
  std::vector<Reply> replies = run(c, placement, poison);
  CaseCheck check;
  if (const Reply* bad = first_bad(replies); bad != nullptr) {
    const auto at = static_cast<std::size_t>(bad - replies.data());
    check.reason = fmt::format("{}: {}{}{}", c.calls[at].function, name_of(bad->ending),
                               bad->detail.empty() ? "" : ": ", bad->detail);
  } else {
    check = compare(replies);
  }
  if (kept != nullptr) *kept = std::move(replies);
  return check;
}

CaseCheck ContenderProcess::check(const Case& c, Placement placement, uint64_t poison,
                                  std::vector<Reply>* kept) {
  return run_and_check(c, placement, poison, kept,
                       [&](const std::vector<Reply>& replies) { return task_.check(c, replies); });
}

CaseCheck ContenderProcess::check(const StoredCase& c, Placement placement, uint64_t poison,
                                  std::vector<Reply>* kept) {
  return run_and_check(c.asked(), placement, poison, kept,
                       [&](const std::vector<Reply>& replies) { return c.check(replies); });
}

}  // namespace touchstone::judge
