// The problem list of the forward and backward tests.
#include "ops/norm/norm_test_support.h"

namespace touchstone::test {
namespace {

std::vector<std::int64_t> widths() {
  std::vector<std::int64_t> all = {1, 2, 3, 7, 64, 65, 768, 1023, 1024, 4096, 8192, 65537};
  // Where GPU kernels change their way of holding a row, and an awkward number beyond it.
  if (on_gpu()) all.insert(all.end(), {12288, 16384, 20000});
  return all;
}

// Sets everything that is optional from the bits of `choice`, so that a running number visits all
// combinations, neighbors in the list differ in many of them, and a failure can be repeated.
void rotate(Problem& p, std::uint64_t choice) {
  const std::uint64_t bits = Random(77).bits(static_cast<std::int64_t>(choice));
  const auto bit = [&](int i) { return ((bits >> i) & 1) != 0; };
  p.weight = bit(0);
  p.bias = bit(1);
  p.fused = bit(2);
  p.statistics = bit(3) || bit(4);
  p.weight_grads = bit(5) || bit(6);
  p.weight_zeros = bit(7);
  p.layout.row_gap = bit(8) && bit(9) ? 5 : 0;
  p.layout.offset = bit(10) && bit(11) ? 1 : 0;
  p.eps = bit(12) ? 1e-5 : 1e-3;
  p.weight_offset = p.kind == Kind::rms && bit(13) ? 1 : 0;
  p.before_weight = p.kind == Kind::rms && bit(14);
  p.x.center = bit(15) ? 0 : 3;
  p.seed = choice + 1;
}

void cross_widths(std::vector<Problem>& list) {
  std::uint64_t choice = 0;
  for (const std::int64_t cols : widths()) {
    for (const DTypes& dtypes : all_dtypes()) {
      for (const Kind kind : kBothKinds) {
        const std::int64_t several = cols > 8000 ? sanitized_size(7, 2) : 7;
        for (const std::int64_t rows : {std::int64_t{1}, several}) {
          Problem p{.kind = kind, .dtypes = dtypes, .lead = {rows}, .cols = cols};
          rotate(p, ++choice);
          list.push_back(p);
        }
      }
    }
  }
}

// All combinations of the optional arguments, at sizes below, at and above a vector or a warp.
void cross_options(std::vector<Problem>& list) {
  for (const std::int64_t cols : {std::int64_t{7}, std::int64_t{65}, sanitized_size(1024, 256)}) {
    for (const DTypes& dtypes : all_dtypes()) {
      for (unsigned options = 0; options < 32; ++options) {
        for (const Kind kind : kBothKinds) {
          Problem p{.kind = kind, .dtypes = dtypes, .lead = {3}, .cols = cols};
          p.weight = (options & 1) != 0;
          p.fused = (options & 2) != 0;
          p.statistics = (options & 4) != 0;
          p.weight_grads = (options & 8) != 0;
          p.bias = (options & 16) != 0;
          if (kind == Kind::rms) {
            p.weight_offset = p.statistics ? 1 : 0;
            p.before_weight = p.bias;
          }
          p.seed = options + 1;
          list.push_back(p);
        }
      }
    }
  }
}

// Enough rows that every thread and every block has many.
void many_rows(std::vector<Problem>& list) {
  std::uint64_t choice = 1000;
  for (const std::int64_t cols : {1, 2, 3, 7, 64, 65}) {
    for (const DTypes& dtypes : all_dtypes()) {
      Problem p{.kind = kBothKinds[choice % 2], .dtypes = dtypes, .lead = {4096}, .cols = cols};
      rotate(p, ++choice);
      list.push_back(p);
    }
  }
  const DTypes f32;
  const DTypes bf16{DType::bf16, DType::bf16, DType::bf16};
  const DTypes f16{DType::f16, DType::f32, DType::f32};
  const std::int64_t rows = sanitized_size(4096, 400);
  list.push_back({.kind = Kind::layer, .dtypes = bf16, .lead = {rows}, .cols = 768});
  list.push_back({.kind = Kind::layer, .dtypes = f32, .lead = {rows}, .cols = 1023});
  list.push_back({.kind = Kind::rms, .dtypes = f16, .lead = {rows}, .cols = 1023});
  list.push_back({.kind = Kind::layer, .dtypes = f32, .lead = {rows}, .cols = 1024, .fused = true});
  list.push_back({.kind = Kind::rms, .dtypes = f32, .lead = {rows}, .cols = 1024});
  if (on_gpu()) {
    list.push_back({.kind = Kind::layer, .dtypes = f32, .lead = {1000}, .cols = 4096});
    list.push_back({.kind = Kind::layer, .dtypes = bf16, .lead = {1000}, .cols = 8192});
    list.push_back({.kind = Kind::rms, .dtypes = f16, .lead = {300}, .cols = 20000});
    list.push_back({.kind = Kind::layer, .dtypes = f32, .lead = {300}, .cols = 16384});
  }
}

}  // namespace

std::vector<DTypes> all_dtypes() {
  std::vector<DTypes> all;
  if (!on_gpu()) all.push_back({DType::f64, DType::f64, DType::f64});
  all.push_back({DType::f32, DType::f32, DType::f32});
  for (const DType half : {DType::bf16, DType::f16}) {
    for (const DType weight : {half, DType::f32}) {
      for (const DType weight_grad : {half, DType::f32}) all.push_back({half, weight, weight_grad});
    }
  }
  return all;
}

std::vector<Problem> sweep() {
  std::vector<Problem> list;
  cross_widths(list);
  cross_options(list);
  many_rows(list);
  return list;
}

}  // namespace touchstone::test
