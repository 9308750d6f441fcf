// llama.cpp's own benchmark of the same file, as a peer: `llama-bench` where it is installed.
#pragma once

#include <cstdint>
#include <string>

namespace touchstone::bench {

struct LlamaBenchRates {
  double prefill = 0;  // tokens per second
  double decode = 0;   // after a context of as many tokens
};

// The program on PATH, "" if there is none.
std::string find_llama_bench();

// One run of each. Unsupported with the last line that the program printed where it fails.
LlamaBenchRates run_llama_bench(const std::string& program, const std::string& model, int threads,
                                std::int64_t context, std::int64_t tokens);

}  // namespace touchstone::bench
