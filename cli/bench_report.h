// How a benchmark is told: a header, a line per row while the measurement goes on, and JSON.
#pragma once

#include <string>
#include <vector>

#include "bench/session.h"
#include "cli/output.h"

namespace touchstone::cli {

std::string machine_name(Device device);

Json row_json(const bench::BenchRow& row);
Json ceiling_json(const bench::Ceiling& ceiling);

// `peers` as they are to be named, with their versions.
void print_bench_header(const bench::Session& session, const std::vector<std::string>& peers);
void print_headings();
void print_row(const bench::BenchRow& row);

}  // namespace touchstone::cli
