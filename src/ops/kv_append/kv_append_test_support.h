// What the tests of append share: a cache with sequences of some lengths, new tokens for them, the
// call, and the comparison of every byte of the pool with what codec.h would have stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cache/cache_test_device.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/ops/kv_append.h"

namespace touchstone::inline v0::cache {

struct AppendProblem {
  LayerGroup group{.layers = 2, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .page_tokens = 8};
  DType k_dtype = DType::bf16;
  DType v_dtype = DType::bf16;
  std::int64_t layer = 1;
  // Of each sequence: tokens that are there, and new ones.
  std::vector<std::int64_t> committed = {0, 3, 8};
  std::vector<std::int64_t> added = {1, 1, 1};
  bool shuffled = false;     // tokens come in random order, not row by row
  test::Layout layout = {};  // of k and v, seen as one row per token
  // The number at an index of k, or of v (`part` 1), before it is rounded to the dtype.
  std::function<double(int part, std::int64_t index)> value = [](int part, std::int64_t index) {
    return test::Random(static_cast<std::uint64_t>(part)).normal(index);
  };

  std::string describe() const;
};

struct AppendRun {
  explicit AppendRun(const AppendProblem& problem);

  // For the context, with arrays where it runs. Good until the next call.
  KvAppendArgs args(Context& context);
  std::vector<std::string> accepting();
  // Fills the pool with a pattern, appends, and expects that the new tokens are stored as codec.h
  // says and that no other byte was written.
  void run(test::Runner& context);
  void fill_pool();
  std::vector<std::byte> pool_bytes() const;

  AppendProblem problem;
  KvCache cache;
  CacheViewBuilder builder;
  std::vector<SequenceId> ids;
  std::vector<std::int64_t> rows;       // of each token
  std::vector<std::int64_t> positions;  // of each token
  test::Guarded k, v, rows_tensor, positions_tensor;
  std::vector<std::byte> expected;  // the whole pool
};

// Runs the problem on every implementation and SIMD target.
void check_append(const AppendProblem& problem);

}  // namespace touchstone::inline v0::cache
