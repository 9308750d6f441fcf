// Options of `touchstone bench generate`, and the run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "json/json.h"

namespace touchstone::cli {

struct BenchGenerateOptions {
  std::string model = "llama-100m";  // a shape by name, or a path
  std::string format = "bf16";       // of random weights
  std::string compute = "bf16";
  std::string cache;
  std::string activations = "compute";
  std::string weights = "file";
  std::vector<std::string> batches = {"1"};
  std::vector<std::string> contexts = {"512"};
  std::int64_t tokens = 64;
  std::int64_t max_rows = 0;  // 0: 2048 on CUDA, 512 on the CPU
  std::int64_t page_tokens = 16;
  double temperature = 0;
  std::string llama_bench;
  std::int64_t nodes = 0;  // 0: no pass over trees
  bool profile = false;
};

void add_bench_generate_options(Options& verb, BenchGenerateOptions& options);

// Adds its rows to the document, and prints tables unless `quiet`.
void bench_generate(const BenchGenerateOptions& options, const std::string& device, int threads,
                    int rounds, bool quiet, Json& document);

}  // namespace touchstone::cli
