// What the tests of attention share: a scene of sequences with known keys and values, its pages in
// poisoned memory, the call on guarded buffers, and the oracle's answer.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/runners.h"
#include "touchstone/ops/cached_attention.h"

namespace touchstone::test {

// One sequence. Keys, values and queries are functions of a seed and a position, so that the same
// sequence can be met again in another batch, in other pages and with other queries.
struct SceneRow {
  std::int64_t length = 0;
  std::int64_t queries = 1;
  std::uint64_t seed = 1;
  // Tokens from here on have a seed of their own: a fork of every row of the same `seed`.
  std::int64_t forked_at = 0;
  std::uint64_t own_seed = 0;               // 0 = not a fork
  std::vector<std::int64_t> positions{};    // of the queries; empty: the last ones of the length
  std::vector<std::int64_t> query_slots{};  // whose query each one is; empty: its position's
  // [queries][tokens of the tree], and where the tree begins; none: there is no tree.
  std::vector<std::vector<bool>> tree{};
  std::int64_t tree_start = 0;
  // Positions that hold the token (and ask the query) of another position.
  std::map<std::int64_t, std::int64_t> stands_for{};
  // Positions whose bytes are poison: they must not be seen.
  std::set<std::int64_t> poisoned{};
  // The first number of the first head of a position's key or value, where it is not to be random.
  std::map<std::int64_t, float> keys{};
  std::map<std::int64_t, float> values{};

  std::int64_t position_of(std::int64_t query) const;
  std::int64_t query_source(std::int64_t query) const;
  std::int64_t source_of(std::int64_t position) const;
  std::uint64_t seed_at(std::int64_t position) const;
};

struct Scene {
  cache::LayerGroup layers{};
  std::int64_t query_heads = 1;
  std::vector<SceneRow> rows{};
  DType query_dtype = DType::f32;
  DType output_dtype = DType::f32;
  double key_scale = 1;
  double scale = 0;
  double soft_cap = 0;
  bool causal = true;
  bool sink_logits = false;
  bool log_sum_exp = true;
  bool give_tree_starts = false;
  Layout layout{};  // of query and output
  // What becomes of number i of a query vector, where it is not to be random.
  std::function<double(std::int64_t head, std::int64_t i, double x)> query_number{};

  std::int64_t queries() const;
};

// How the pages of a scene lie in the pool.
struct Placement {
  std::uint64_t seed = 1;        // of the shuffle
  std::int64_t spare_pages = 7;  // poison between the pages in use
  bool share = true;             // forks share the whole pages before they part
  bool give_up = false;          // pages without a token that is seen are not there
  std::int64_t first_page = 0;   // page numbers begin here; the memory before is not there
};

// The decoded keys and values of one row: what is in the pages.
struct StoredRow {
  std::vector<double> keys;    // [length, kv_heads, k_dim], rotated back
  std::vector<double> values;  // [length, kv_heads, v_dim]
  std::vector<double> sizes;   // what errors of values are relative to; empty: the values
};
StoredRow stored_row(const Scene& scene, const SceneRow& row);

// A scene in memory. run() poisons the outputs, calls the operator, waits, and expects that nothing
// but the outputs was written.
class AttentionRun {
 public:
  explicit AttentionRun(const Scene& scene, Placement placement = {});

  std::vector<std::string> accepting();  // implementations that take the call
  void run(Runner& context);
  // The bytes of output and log-sum-exp of one row, and of queries [first, first + count).
  std::vector<std::byte> row_bytes(std::int64_t row) const;
  std::vector<std::byte> query_bytes(std::int64_t first, std::int64_t count) const;
  // Within the header's bounds of the oracle.
  testing::AssertionResult is_right();

  Guarded query, query_offsets, positions, tree, tree_starts, sink_logits, output, log_sum_exp;
  CachedAttentionArgs args;

 private:
  void store_pages(const Scene& scene, const Placement& placement);
  void give_up_pages(const Scene& scene);
  void make_view(const Scene& scene);
  void make_expectation(const Scene& scene);

  Scene scene_;
  std::vector<std::byte> pages_;  // as written, to compare with afterwards
  std::vector<std::int32_t> table_;
  std::vector<std::int64_t> lengths_;
  std::int64_t table_stride_ = 0;
  std::int64_t first_page_ = 0;
  Tensor device_pages_;
  Tensor device_table_;
  Tensor device_lengths_;
  cache::GroupView group_;
  Expected expected_output_;
  Expected expected_log_sum_exp_;
};

// Runs a scene on every implementation and SIMD target and holds it against the oracle.
void check_scene(const Scene& scene, Placement placement = {});

// Row `row` of the scene, alone.
Scene only_row(const Scene& scene, std::int64_t row);

}  // namespace touchstone::test
