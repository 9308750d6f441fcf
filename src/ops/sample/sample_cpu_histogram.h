// Kept sets beyond the sorted prefixes on the CPU: one histogram of the row's weights, then only
// the bins in which a cut or the draw falls are sorted.
//
// Weights are f64. A bin holds the sum of its weights; the borders inside a bin come from its
// tokens in order. Sums are right to some 1e-13 of the row, as those of the plain implementation
// are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/sample/sample_row.h"
#include "ops/selection/cpu/cpu_scratch.h"
#include "ops/selection/cpu/cpu_weights.h"

namespace touchstone::sampling {

// Arrays of a row of `vocabulary` tokens.
struct HistogramScratch {
  double* weights = nullptr;  // of one bin, in the order of the output
  std::uint16_t* bins = nullptr;
  std::uint32_t* tokens = nullptr;         // of one bin
  selection::Candidate* sorted = nullptr;  // the same in the order of the output
  double* masses = nullptr;                // running, per bin
  std::uint32_t* counts = nullptr;         // running, per bin
};
HistogramScratch partition_histogram(std::int64_t vocabulary, selection::WorkspacePartition& from);

// The draw of one row with a cut and finite values; masked tokens are -inf.
class HistogramDraw {
 public:
  HistogramDraw(std::span<const float> values, float largest, double temperature,
                const RowControls& controls, const HistogramScratch& scratch);

  // Sum of the weights; that of the largest value is 1.
  double total() const { return total_; }

  // The token that the uniform picks from the kept set.
  std::int64_t draw(double u);

 private:
  // A position in the order of the tokens.
  struct Border {
    std::size_t bin = 0;
    std::size_t index = 0;  // in the bin
    std::int64_t token = -1;
    double mass = 0;  // of this token and all before it

    bool before(const Border& other) const {
      return bin != other.bin ? bin < other.bin : index < other.index;
    }
  };

  void fill();
  void sort_bin(std::size_t bin);
  std::uint32_t token(std::size_t index) const {
    return selection::token_of(scratch_.sorted[index]);
  }
  // The token at an index of a bin.
  Border at_index(std::size_t bin, std::size_t index);
  Border at_count(std::int64_t count);
  // The last token that min_p keeps.
  Border at_min_p();
  // The first token at which the running mass reaches `mass`, or exceeds it.
  Border at_mass(double mass, bool exceeds);

  std::span<const float> values_;
  RowControls controls_;
  HistogramScratch scratch_;
  selection::Weighing how_;
  double total_ = 0;
  std::size_t sorted_bin_;  // the bin whose tokens are in order in scratch_.sorted
  std::size_t sorted_count_ = 0;
};

}  // namespace touchstone::sampling
