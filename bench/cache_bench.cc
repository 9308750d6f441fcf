#include "bench/cache_bench.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "cache/cache_state.h"
#include "machine/stopwatch.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/kv_cache.h"
#include "touchstone/cache/snapshot.h"
#include "touchstone/cache/transfer.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {
namespace {

using namespace cache;

template <class Body>
double microseconds(Body&& body) {
  const machine::Stopwatch watch;
  body();
  return watch.microseconds();
}

void need(bool right, const char* what) {
  if (!right) throw Error(std::string("bench kv_cache: wrong result: ") + what);
}

KvCache on_cpu(KvCacheOptions options) {
  Context context({.threads = 1});
  return {context, std::move(options)};
}

// Bookkeeping does not depend on the size of a page.
Layout tiny_pages() {
  return {{{.layers = 1,
            .kv_heads = 1,
            .k_dim = 16,
            .v_dim = 16,
            .k = {.dtype = DType::i8},
            .v = {.dtype = DType::i8},
            .page_tokens = 16}}};
}

// One contender: sample() prepares, times and cleans up.
class CacheCase {
 public:
  virtual ~CacheCase() = default;
  virtual CacheRow row() const = 0;  // without its times
  virtual double sample() = 0;       // microseconds of one operation
};

// All pages of a pool taken and released, the order of releases given.
class TakeAndRelease : public CacheCase {
 public:
  explicit TakeAndRelease(bool random) : random_(random), pool_(kPages) {
    std::iota(order_.begin(), order_.end(), 0U);
    std::ranges::reverse(order_);
    if (random_) std::ranges::shuffle(order_, std::mt19937_64(7));
  }
  CacheRow row() const override {
    return {.name = random_ ? "pages_random" : "pages_lifo",
            .what = std::string("take and release a page, 1M pages, ") +
                    (random_ ? "random order" : "last in, first out"),
            .amount = 1,
            .amount_name = "pages"};
  }
  double sample() override {
    pass();  // what other contenders left in the cache is not the subject
    double us = 0;
    for (int i = 0; i < kPasses; ++i) us += pass();
    need(pool_.free_pages() == kPages, "pages are missing");
    return us / kPasses / kPages;
  }

 private:
  double pass() {
    const double take_us = microseconds([&] { pool_.take(pages_); });
    for (std::size_t i = 0; i < order_.size(); ++i) leaving_[i] = pages_[order_[i]];
    return take_us + microseconds([&] {
             for (std::size_t i = 0; i < leaving_.size(); i += kSequencePages) {
               pool_.drop(std::span(leaving_).subspan(i, kSequencePages));
             }
           });
  }

  static constexpr std::int64_t kPages = 1 << 20;
  static constexpr std::size_t kSequencePages = 256;  // released at once
  static constexpr int kPasses = 3;
  bool random_;
  PagePool pool_;
  std::vector<PageHandle> pages_ = std::vector<PageHandle>(kPages);
  std::vector<PageHandle> leaving_ = std::vector<PageHandle>(kPages);
  std::vector<std::uint32_t> order_ = std::vector<std::uint32_t>(kPages);
};

// What a scheduler does for every token of a batch: reserve one each, the view, commit.
class DecodeStep : public CacheCase {
 public:
  DecodeStep()
      : cache_(on_cpu({.layout = tiny_pages(),
                       .pool_pages = pool_pages_for(tiny_pages(), kTokens + kSteps, kSequences)})),
        builder_(cache_) {
    for (int i = 0; i < kSequences; ++i) ids_.push_back(cache_.create());
    // In turns, so that the pages of a sequence are not neighbors.
    for (int done = 0; done < kTokens; done += 256) {
      cache_.reserve(ids_, 256);
      cache_.commit(ids_, 256);
    }
    builder_.build(ids_);
  }
  CacheRow row() const override {
    return {.name = "decode_step",
            .what = "reserve, view and commit a token of each of 256 sequences of 8K"};
  }
  double sample() override {
    const double us = microseconds([&] {
      for (int i = 0; i < kSteps; ++i) {
        cache_.reserve(ids_, 1);
        need(builder_.build(ids_).rows == kSequences, "rows of the view");
        cache_.commit(ids_, 1);
      }
    });
    for (const SequenceId id : ids_) cache_.truncate(id, kTokens);
    builder_.build(ids_);
    return us / kSteps;
  }

 private:
  static constexpr int kSequences = 256;
  static constexpr int kTokens = 8192;
  static constexpr int kSteps = 64;  // four pages of each
  KvCache cache_;
  CacheViewBuilder builder_;
  std::vector<SequenceId> ids_;
};

class Fork : public CacheCase {
 public:
  Fork()
      : cache_(on_cpu({.layout = tiny_pages(), .pool_pages = {kTokens / 16}})),
        parent_(cache_.create()) {
    cache_.reserve(parent_, kTokens);
    cache_.commit(parent_, kTokens);
  }
  CacheRow row() const override {
    return {.name = "fork", .what = "fork a sequence of 128K tokens, 8192 pages"};
  }
  double sample() override {
    std::vector<SequenceId> children;
    const double us = microseconds([&] {
      for (int i = 0; i < kForks; ++i) children.push_back(cache_.fork(parent_));
    });
    for (const SequenceId id : children) cache_.release(id);
    return us / kForks;
  }

 private:
  static constexpr std::int64_t kTokens = 128 << 10;
  static constexpr int kForks = 16;
  KvCache cache_;
  SequenceId parent_;
};

class PrefixLookup : public CacheCase {
 public:
  PrefixLookup() : cache_(on_cpu({.layout = tiny_pages(), .pool_pages = {kTokens / 16}})) {
    std::mt19937 random(11);
    for (std::int32_t& token : prompt_) token = static_cast<std::int32_t>(random() % 128000);
    const SequenceId id = cache_.create();
    cache_.reserve(id, kTokens);
    cache_.commit(id, kTokens);
    cache_.insert_prefix(id, prompt_);
    cache_.release(id);
  }
  CacheRow row() const override {
    return {.name = "prefix_lookup",
            .what = "find a prompt of 50K tokens, all there, compared token by token"};
  }
  double sample() override {
    double us = 0;
    for (int i = 0; i < kLookups; ++i) {
      PrefixHit hit;
      us += microseconds([&] { hit = cache_.open_prefix(prompt_); });
      need(hit.tokens == kTokens, "tokens of the prefix");
      cache_.release(hit.sequence);
    }
    return us / kLookups;
  }

 private:
  static constexpr std::int64_t kTokens = 50000;
  static constexpr int kLookups = 8;
  KvCache cache_;
  std::vector<std::int32_t> prompt_ = std::vector<std::int32_t>(kTokens);
};

// Sequences with pages of the size they have in Llama-3-8B (bf16): 2 MiB.
class Sequences {
 public:
  static constexpr std::int64_t kPages = 128;

  Sequences() : cache_(on_cpu(options())), other_(on_cpu(options())) {
    std::mt19937_64 random(3);
    const std::span memory(reinterpret_cast<std::uint64_t*>(state_of(cache_).memory_data(0)),
                           static_cast<std::size_t>(state_of(cache_).memory(0).bytes() / 8));
    std::ranges::generate(memory, random);
    for (int i = 0; i < 4; ++i) ids_.push_back(cache_.create());
    cache_.reserve(ids_, kPages / 4 * 16);
    cache_.commit(ids_, kPages / 4 * 16);
  }
  KvCache& cache() { return cache_; }
  KvCache& other() { return other_; }
  std::vector<SequenceId>& ids() { return ids_; }
  std::int64_t bytes() const { return state_of(cache_).memory(0).bytes(); }

 private:
  static KvCacheOptions options() {
    return {.layout = {{{.layers = 32, .kv_heads = 8, .k_dim = 128, .v_dim = 128}}},
            .pool_pages = {kPages}};
  }
  KvCache cache_;
  KvCache other_;
  std::vector<SequenceId> ids_;
};

enum class Move : std::uint8_t { save, restore, transfer };

class MoveSequences : public CacheCase {
 public:
  MoveSequences(std::shared_ptr<Sequences> sequences, Move move)
      : sequences_(std::move(sequences)), move_(move) {}
  CacheRow row() const override {
    static constexpr const char* kNames[] = {"save", "restore", "move"};
    static constexpr const char* kWhat[] = {
        "save 4 sequences, 256 MiB, to a file in the page cache, with checksums",
        "restore them from there", "move them to a second cache in host memory"};
    return {.name = kNames[static_cast<int>(move_)],
            .what = kWhat[static_cast<int>(move_)],
            .amount = static_cast<double>(sequences_->bytes()),
            .amount_name = "bytes"};
  }
  double sample() override {
    Sequences& all = *sequences_;
    if (move_ == Move::transfer) {
      std::vector<SequenceId> moved;
      const double us =
          microseconds([&] { moved = move_sequences(all.cache(), all.ids(), all.other()); });
      all.ids() = move_sequences(all.other(), moved, all.cache());
      return us;
    }
    const double save_us = microseconds([&] { save(all.cache(), all.ids(), file_.path); });
    if (move_ == Move::save) return save_us;
    std::vector<SequenceId> ids;
    const double us = microseconds([&] { ids = restore(all.other(), file_.path); });
    need(std::ranges::equal(state_of(all.other()).page_at(ids[3], 0, 100),
                            state_of(all.cache()).page_at(all.ids()[3], 0, 100)),
         "restored bytes");
    for (const SequenceId id : ids) all.other().release(id);
    return us;
  }

 private:
  struct File {
    std::filesystem::path path = std::filesystem::temp_directory_path() /
                                 ("touchstone_bench_" + std::to_string(::getpid()) + ".kv");
    File() = default;
    ~File() {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
  };
  std::shared_ptr<Sequences> sequences_;
  Move move_;
  File file_;
};

}  // namespace

std::vector<CacheRow> measure_cache(int rounds, const std::function<void(int round)>& progress) {
  std::vector<std::unique_ptr<CacheCase>> cases;
  for (const bool random : {false, true}) cases.push_back(std::make_unique<TakeAndRelease>(random));
  cases.push_back(std::make_unique<DecodeStep>());
  cases.push_back(std::make_unique<Fork>());
  cases.push_back(std::make_unique<PrefixLookup>());
  const auto sequences = std::make_shared<Sequences>();
  for (const Move move : {Move::save, Move::restore, Move::transfer}) {
    cases.push_back(std::make_unique<MoveSequences>(sequences, move));
  }
  std::vector<std::vector<double>> us(cases.size());
  for (std::unique_ptr<CacheCase>& item : cases) item->sample();  // touches all memory once
  for (int round = 0; round < rounds; ++round) {
    progress(round);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::size_t turn = (i + static_cast<std::size_t>(round)) % cases.size();
      us[turn].push_back(cases[turn]->sample());
    }
  }
  std::vector<CacheRow> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    rows.push_back(cases[i]->row());
    rows.back().us = machine::summarize(us[i]);
  }
  return rows;
}

}  // namespace touchstone::bench
