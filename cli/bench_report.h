// The report of a benchmark: a header, a line per row while the measurement goes on, and JSON.
#pragma once

#include <string>
#include <vector>

#include "bench/session.h"
#include "cli/output.h"

namespace touchstone::cli {

std::string machine_name(Device device);

// `fma_gflops`: f32 multiplications and additions in registers, 0 where it was not measured.
Json row_json(const bench::BenchRow& row, double fma_gflops);
Json ceiling_json(const machine::Ceiling& ceiling);

// `peers` as they are to be named, with their versions.
void print_bench_header(const bench::Session& session, const std::vector<std::string>& peers,
                        const std::string& explanation, double fma_gflops);

// Rows as they are measured. Operators that move bytes and those that multiply have columns of
// their own; headings are printed where these change.
class BenchTable {
 public:
  explicit BenchTable(double fma_gflops) : fma_gflops_(fma_gflops) {}
  void print_row(const bench::BenchRow& row);

 private:
  double fma_gflops_;
  int printed_ = -1;  // which headings
};

}  // namespace touchstone::cli
