#include "judge/task/case_store.h"

#include <utility>

namespace touchstone::judge {
namespace {

std::int64_t elements_of(const OutputTensor& output) {
  std::int64_t count = 1;
  for (const std::int64_t extent : output.shape) count *= extent;
  return count;
}

// A case with its right answers: of every output a value, a bound and a scale in float64.
std::int64_t bytes_with_answers(const Case& c) {
  std::int64_t bytes = 0;
  for (const Call& call : c.calls) {
    bytes += 1024;
    for (const InputTensor& input : call.inputs) {
      bytes += static_cast<std::int64_t>(input.data.size());
    }
    for (const OutputTensor& output : call.outputs) {
      bytes += 3 * static_cast<std::int64_t>(sizeof(double)) * elements_of(output);
    }
  }
  return bytes;
}

// An answer of the right sizes and nothing in it: whoever checks it computes the right one.
std::vector<Reply> blank_replies(const Case& c) {
  std::vector<Reply> replies;
  for (const Call& call : c.calls) {
    Reply reply;
    reply.ending = Ending::ok;
    for (const OutputTensor& output : call.outputs) {
      reply.outputs.emplace_back(
          static_cast<std::size_t>(size_of(output.dtype) * elements_of(output)));
    }
    replies.push_back(std::move(reply));
  }
  return replies;
}

}  // namespace

CaseCheck StoredCase::check(const std::vector<Reply>& replies) const {
  while (!ready_.load(std::memory_order_acquire)) {
    std::unique_lock lock(computing_, std::try_to_lock);
    if (!lock.owns_lock()) {
      if (store_.prepare_next()) continue;
      lock.lock();
    }
    if (ready_.load(std::memory_order_acquire)) break;
    CaseCheck check = store_.task().check_with(asked_, replies, memo_);
    // Nothing was computed where something else was wrong with the replies.
    if (!memo_.empty()) ready_.store(true, std::memory_order_release);
    return check;
  }
  return store_.task().check_with(asked_, replies, memo_);
}

void StoredCase::prepare() const {
  const std::unique_lock lock(computing_, std::try_to_lock);
  if (!lock.owns_lock() || ready_.load(std::memory_order_acquire)) return;
  store_.task().check_with(asked_, blank_replies(asked_), memo_);
  if (!memo_.empty()) ready_.store(true, std::memory_order_release);
}

std::shared_ptr<const StoredCase> CaseStore::get(const CaseSpec& spec) {
  std::shared_ptr<Slot> slot;
  {
    const std::lock_guard lock(mutex_);
    if (bytes_ < most_bytes_) {
      std::shared_ptr<Slot>& known = slots_[format_spec(spec)];
      if (known == nullptr) known = std::make_shared<Slot>();
      slot = known;
    } else if (const auto known = slots_.find(format_spec(spec)); known != slots_.end()) {
      slot = known->second;
    }
  }
  if (slot == nullptr) return std::make_shared<const StoredCase>(*this, task_.build(spec));
  const std::lock_guard building(slot->building);
  if (slot->built == nullptr) {
    slot->built = std::make_shared<const StoredCase>(*this, task_.build(spec));
    const std::lock_guard lock(mutex_);
    bytes_ += bytes_with_answers(slot->built->asked());
  }
  return slot->built;
}

void CaseStore::expect(std::span<const CaseSpec> cases) {
  const std::lock_guard lock(mutex_);
  expected_.assign(cases.begin(), cases.end());
}

bool CaseStore::prepare_next() {
  CaseSpec spec;
  {
    const std::lock_guard lock(mutex_);
    if (expected_.empty() || bytes_ >= most_bytes_) return false;
    spec = std::move(expected_.front());
    expected_.pop_front();
  }
  get(spec)->prepare();
  return true;
}

}  // namespace touchstone::judge
