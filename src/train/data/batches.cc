// Batch sampling: windows, shuffling, documents.
#include <fmt/format.h>

#include <algorithm>

#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/core/random.h"
#include "touchstone/train/data.h"
#include "train/data/no_target.h"
#include "train/data/shuffle_draws.h"

namespace touchstone::inline v0::train {
namespace {

// A permutation of [0, count) by an index, without a table: four rounds of a Feistel network on the
// next even number of bits, walked until the result is below count.
std::int64_t permuted(std::int64_t index, std::int64_t count, std::int64_t seed,
                      std::int64_t epoch) {
  int half = 1;
  while ((std::int64_t{1} << (2 * half)) < count) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (int round = 0; round < 4; ++round) {
      const auto position =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(epoch) << 34 |
                                    static_cast<std::uint64_t>(round) << 32 | right);
      const std::uint64_t mixed =
          left ^
          (random_words(seed, position, RandomPurpose::shuffle, kShuffleOrder).word[0] & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

}  // namespace

BatchSource::BatchSource(const TokenData& data, std::int64_t length, std::int64_t seed, bool fixed)
    : data_(&data), length_(length), seed_(seed), fixed_(fixed) {
  if (length < 1 || data.size() < length + 1) {
    throw InvalidArgument(
        fmt::format("train: text: expected more than {} tokens, the length of a row, got {}",
                    length, data.size()));
  }
  // From every start below `length` this many windows fit, and a target after the last.
  windows_ = std::max<std::int64_t>(1, (data.size() - length) / length);
}

std::int64_t BatchSource::start_of(std::int64_t index) const {
  const std::int64_t epoch = index / windows_;
  const std::int64_t room =
      std::min(length_, data_->size() - windows_ * length_);  // starts that fit
  const std::int64_t start = static_cast<std::int64_t>(
      random_words(seed_, epoch, RandomPurpose::shuffle, kShuffleStart).word[0] %
      static_cast<std::uint64_t>(room));
  return (fixed_ ? 0 : start) + permuted(index % windows_, windows_, seed_, epoch) * length_;
}

void BatchSource::append(HostBatch& batch, std::int64_t start) const {
  const auto next = std::upper_bound(data_->starts.begin(), data_->starts.end(), start);
  std::int64_t document_end = next == data_->starts.end() ? data_->size() : *next;
  auto following = next;
  std::int64_t position = 0;
  batch.offsets.push_back(std::ssize(batch.tokens));
  for (std::int64_t i = start; i < start + length_; ++i) {
    if (i >= document_end && i < data_->size()) {
      while (following != data_->starts.end() && *following <= i) ++following;
      document_end = following == data_->starts.end() ? data_->size() : *following;
      position = 0;
      batch.offsets.push_back(std::ssize(batch.tokens));
    }
    const bool inside = i < data_->size();
    const bool followed = i + 1 < document_end;
    batch.tokens.push_back(inside ? data_->tokens[at(i)] : 0);
    batch.targets.push_back(inside && followed ? data_->tokens[at(i + 1)] : kNoTarget);
    batch.positions.push_back(position++);
    batch.counted += inside && followed ? 1 : 0;
  }
  ++batch.rows;
}

namespace {
// One document per row needs no offsets.
HostBatch finished(HostBatch batch) {
  if (std::ssize(batch.offsets) == batch.rows) {
    batch.offsets.clear();
  } else {
    batch.offsets.push_back(std::ssize(batch.tokens));
  }
  return batch;
}
}  // namespace

HostBatch BatchSource::rows(std::int64_t first, std::int64_t count) const {
  HostBatch batch;
  for (std::int64_t i = 0; i < count; ++i) append(batch, start_of(first + i));
  return finished(std::move(batch));
}

std::int64_t BatchSource::sequential_rows() const { return ceil_div(data_->size() - 1, length_); }

HostBatch BatchSource::sequential(std::int64_t first, std::int64_t count) const {
  HostBatch batch;
  for (std::int64_t i = 0; i < count; ++i) append(batch, (first + i) * length_);
  return finished(std::move(batch));
}

}  // namespace touchstone::inline v0::train
