// Do the bits of a tensor core's dot product depend on the instruction that computes it?
//
// One row of W and one row of x, both [kDepth], must give the same f32 sum however many other rows
// are computed beside them. This program multiplies one pair of matrices with wgmma of every n,
// with rows moved to other rows of the tile, with the operands exchanged, with the left operand
// in registers, with mma.sync, with a wait after each step and with the elements of a step
// permuted, and counts the sums whose bits differ from wgmma m64n8. docs/design/linear.md has the
// answer for the H200.
//
//   nvcc -std=c++20 -gencode arch=compute_90a,code=sm_90a tensor_core_bits.cu -o tensor_core_bits
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kStepBytes = 32;  // of one row in one instruction: 16 elements, or 32 of fp8
constexpr int kSteps = 16;
constexpr int kRows = 64;  // of the left operand
constexpr int kRowBytes = kSteps * kStepBytes;

enum class Type { bf16, f16, fp8 };
enum class Left { shared, registers };

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Tiles without swizzle: [step][row / 8][half of 16 bytes][8 rows][16 bytes].
__device__ std::uint64_t descriptor(const void* shared) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const std::uint64_t along_k = 128 / 16;
  const std::uint64_t along_rows = 256 / 16;
  return along_rows << 32 | along_k << 16 | (address & 0x3ffff) >> 4;
}
__device__ int tile_offset(int rows, int row, int byte) {
  const int step = byte / kStepBytes;
  const int half = byte % kStepBytes / 16;
  return ((step * (rows / 8) + row / 8) * 2 + half) * 128 + row % 8 * 16 + byte % 16;
}

#define F4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define F16(i) F4(i), F4((i) + 4), F4((i) + 8), F4((i) + 12)
#define F32(i) F16(i), F16((i) + 16)
#define G0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define G1 G0 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define G2 G1 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define G3 G2 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define G4 G3 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"
#define G5 G4 ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define G6 G5 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define G7 G6 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#define WGMMA_S(n, k, type, names, a, b, flags, ...)                                          \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." type "." type " {" names \
               "}, " a ", " b ", 1, 1, 1" flags ";"                                           \
               : __VA_ARGS__                                                                  \
               : "l"(left), "l"(right))
#define WGMMA_R(n, k, type, names, a0, a1, a2, a3, b, flags, ...)                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k" #k ".f32." type "." type " {" names \
               "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b ", 1, 1, 1" flags ";"                \
               : __VA_ARGS__                                                                  \
               : "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3]),      \
                 "l"(right))
#define WGMMA_ALL(n, names, a0, a1, a2, a3, a4, ...)                         \
  if constexpr (kN == n) {                                                   \
    if constexpr (kLeft == Left::shared) {                                   \
      if constexpr (kType == Type::bf16) {                                   \
        WGMMA_S(n, 16, "bf16", names, a0, a1, ", 0, 0", __VA_ARGS__);        \
      } else if constexpr (kType == Type::f16) {                             \
        WGMMA_S(n, 16, "f16", names, a0, a1, ", 0, 0", __VA_ARGS__);         \
      } else {                                                               \
        WGMMA_S(n, 32, "e4m3", names, a0, a1, "", __VA_ARGS__);              \
      }                                                                      \
    } else if constexpr (kType == Type::bf16) {                              \
      WGMMA_R(n, 16, "bf16", names, a0, a1, a2, a3, a4, ", 0", __VA_ARGS__); \
    } else if constexpr (kType == Type::f16) {                               \
      WGMMA_R(n, 16, "f16", names, a0, a1, a2, a3, a4, ", 0", __VA_ARGS__);  \
    } else {                                                                 \
      WGMMA_R(n, 32, "e4m3", names, a0, a1, a2, a3, a4, "", __VA_ARGS__);    \
    }                                                                        \
  }

template <Type kType, Left kLeft, int kN>
__device__ void wgmma(float* d, std::uint64_t left, const std::uint32_t* fragment,
                      std::uint64_t right) {
  WGMMA_ALL(8, "%0,%1,%2,%3", "%4", "%5", "%6", "%7", "%8", F4(0))
  WGMMA_ALL(16, "%0,%1,%2,%3,%4,%5,%6,%7", "%8", "%9", "%10", "%11", "%12", F4(0), F4(4))
  WGMMA_ALL(24, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", "%12", "%13", "%14", "%15", "%16", F4(0),
            F4(4), F4(8))
  WGMMA_ALL(32, G0, "%16", "%17", "%18", "%19", "%20", F16(0))
  WGMMA_ALL(64, G1, "%32", "%33", "%34", "%35", "%36", F32(0))
  WGMMA_ALL(96, G2, "%48", "%49", "%50", "%51", "%52", F32(0), F16(32))
  WGMMA_ALL(128, G3, "%64", "%65", "%66", "%67", "%68", F32(0), F32(32))
  WGMMA_ALL(192, G5, "%96", "%97", "%98", "%99", "%100", F32(0), F32(32), F32(64))
  WGMMA_ALL(256, G7, "%128", "%129", "%130", "%131", "%132", F32(0), F32(32), F32(64), F32(96))
}

// out[64, kN] = left[64, kDepth] * right[kN, kDepth]^T, one warpgroup. kWait: wait for each step.
template <Type kType, Left kLeft, int kN, bool kWait>
__global__ __launch_bounds__(128) void product(const unsigned char* left,
                                               const unsigned char* right, float* out) {
  extern __shared__ __align__(1024) unsigned char shared[];
  unsigned char* const tile_a = shared;
  unsigned char* const tile_b = shared + kRows * kRowBytes;
  for (int i = threadIdx.x; i < kRows * kRowBytes; i += 128) {
    tile_a[tile_offset(kRows, i / kRowBytes, i % kRowBytes)] = left[i];
  }
  for (int i = threadIdx.x; i < kN * kRowBytes; i += 128) {
    tile_b[tile_offset(kN, i / kRowBytes, i % kRowBytes)] = right[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  float d[kN / 2];
#pragma unroll
  for (float& sum : d) sum = 0;
  // A fragment's words: rows lane / 4 and + 8, bytes lane % 4 * 4 and + 16 of a step.
  std::uint32_t fragments[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int row = warp * 16 + lane / 4 + word % 2 * 8;
      const int byte = step * kStepBytes + lane % 4 * 4 + word / 2 * 16;
      fragments[step][word] =
          *reinterpret_cast<const std::uint32_t*>(left + row * kRowBytes + byte);
    }
  }
#pragma unroll
  for (float& sum : d) asm volatile("" : "+f"(sum)::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (kWait) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    wgmma<kType, kLeft, kN>(d, descriptor(tile_a + step * kRows * kStepBytes), fragments[step],
                            descriptor(tile_b + step * kN * kStepBytes));
    if (kWait) {
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
      for (float& sum : d) asm volatile("" : "+f"(sum)::"memory");
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (float& sum : d) asm volatile("" : "+f"(sum)::"memory");
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int row = warp * 16 + lane / 4 + i % 4 / 2 * 8;
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[row * kN + column] = d[i];
  }
}

// The same for [64, 8] with mma.sync: m16n8k16 (k32 for fp8), or two m16n8k8 in its place.
template <Type kType, bool kHalves>
__global__ void product_mma(const unsigned char* left, const unsigned char* right, float* out) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  float d[4] = {};
  for (int step = 0; step < kSteps; ++step) {
    std::uint32_t a[4];
    std::uint32_t b[2];
    for (int word = 0; word < 4; ++word) {
      const int row = warp * 16 + lane / 4 + word % 2 * 8;
      const int byte = step * kStepBytes + lane % 4 * 4 + word / 2 * 16;
      a[word] = *reinterpret_cast<const std::uint32_t*>(left + row * kRowBytes + byte);
    }
    for (int word = 0; word < 2; ++word) {
      const int byte = step * kStepBytes + lane % 4 * 4 + word * 16;
      b[word] = *reinterpret_cast<const std::uint32_t*>(right + lane / 4 * kRowBytes + byte);
    }
#define MMA_FULL(shape, type)                                               \
  asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type      \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : F4(0)                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define MMA_HALF(type, i)                                            \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." type "." type \
               ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"   \
               : F4(0)                                               \
               : "r"(a[2 * (i)]), "r"(a[2 * (i) + 1]), "r"(b[i]))
    if constexpr (kType == Type::bf16 && kHalves) {
      MMA_HALF("bf16", 0);
      MMA_HALF("bf16", 1);
    } else if constexpr (kType == Type::f16 && kHalves) {
      MMA_HALF("f16", 0);
      MMA_HALF("f16", 1);
    } else if constexpr (kType == Type::bf16) {
      MMA_FULL("m16n8k16", "bf16");
    } else if constexpr (kType == Type::f16) {
      MMA_FULL("m16n8k16", "f16");
    } else {
      MMA_FULL("m16n8k32", "e4m3");
    }
  }
  for (int i = 0; i < 4; ++i) {
    out[(warp * 16 + lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
}

// ---- host ---------------------------------------------------------------------------------------

using Matrix = std::vector<unsigned char>;  // [rows][kRowBytes]

int element_bytes(Type type) { return type == Type::fp8 ? 1 : 2; }

// Normal numbers times 2^[-spread, spread]: sums whose order and rounding show.
Matrix random_matrix(Type type, int rows, int spread, std::mt19937& engine) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-spread, spread);
  Matrix m(static_cast<std::size_t>(rows) * kRowBytes);
  for (std::size_t i = 0; i < m.size() / element_bytes(type); ++i) {
    const float value = std::ldexp(normal(engine), exponent(engine));
    if (type == Type::bf16) {
      const __nv_bfloat16 v = __float2bfloat16_rn(value);
      std::memcpy(&m[i * 2], &v, 2);
    } else if (type == Type::f16) {
      const __half v = __float2half_rn(value);
      std::memcpy(&m[i * 2], &v, 2);
    } else {
      const __nv_fp8_e4m3 v(value);
      std::memcpy(&m[i], &v, 1);
    }
  }
  return m;
}

Matrix rows_of(const Matrix& m, const std::vector<int>& which) {
  Matrix result;
  for (const int row : which) {
    result.insert(result.end(), m.begin() + row * kRowBytes, m.begin() + (row + 1) * kRowBytes);
  }
  return result;
}

// Elements of each step in another order, given as positions within the step.
Matrix permuted(const Matrix& m, Type type, const std::vector<int>& order) {
  Matrix result = m;
  const int bytes = element_bytes(type);
  for (std::size_t at = 0; at < m.size(); at += kStepBytes) {
    for (int i = 0; i < kStepBytes / bytes; ++i) {
      std::memcpy(&result[at + i * bytes], &m[at + order[i] * bytes], bytes);
    }
  }
  return result;
}

// Runs kernel(left, right) -> [64, n].
template <class Launch>
std::vector<float> run(const Matrix& left, const Matrix& right, int n, Launch launch) {
  unsigned char* a = nullptr;
  unsigned char* b = nullptr;
  float* out = nullptr;
  check(cudaMalloc(&a, left.size()));
  check(cudaMalloc(&b, right.size()));
  check(cudaMalloc(&out, sizeof(float) * kRows * n));
  check(cudaMemset(out, 0xff, sizeof(float) * kRows * n));
  check(cudaMemcpy(a, left.data(), left.size(), cudaMemcpyHostToDevice));
  check(cudaMemcpy(b, right.data(), right.size(), cudaMemcpyHostToDevice));
  launch(a, b, out);
  check(cudaGetLastError());
  std::vector<float> result(static_cast<std::size_t>(kRows) * n);
  check(cudaMemcpy(result.data(), out, sizeof(float) * result.size(), cudaMemcpyDeviceToHost));
  check(cudaFree(a));
  check(cudaFree(b));
  check(cudaFree(out));
  return result;
}

template <Type kType, Left kLeft, int kN, bool kWait>
std::vector<float> multiply(const Matrix& left, const Matrix& right) {
  return run(left, right, kN, [](auto* a, auto* b, float* out) {
    constexpr int kShared = (kRows + kN) * kRowBytes;
    const auto kernel = product<kType, kLeft, kN, kWait>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    kernel<<<1, 128, kShared>>>(a, b, out);
  });
}
template <Type kType, bool kHalves>
std::vector<float> multiply_mma(const Matrix& left, const Matrix& right) {
  return run(left, right, 8, [](auto* a, auto* b, float* out) {
    product_mma<kType, kHalves><<<1, 128>>>(a, b, out);
  });
}

int differing(float a, float b) { return std::memcmp(&a, &b, sizeof(float)) != 0 ? 1 : 0; }

struct Tally {
  std::string name;
  long differ = 0;
  long of = 0;
};

class Table {
 public:
  void add(const std::string& name, long differ, long of) {
    for (Tally& t : rows_) {
      if (t.name != name) continue;
      t.differ += differ;
      t.of += of;
      return;
    }
    rows_.push_back({name, differ, of});
  }
  const std::vector<Tally>& rows() const { return rows_; }

 private:
  std::vector<Tally> rows_;
};

// `wide` is [64, n] with column j of interest at columns[j] and row i at rows[i].
void compare(Table& table, const std::string& name, const std::vector<float>& base,
             const std::vector<float>& wide, int n, const std::vector<int>& rows,
             const std::vector<int>& columns) {
  long differ = 0;
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < 8; ++j)
      differ += differing(base[i * 8 + j], wide[rows[i] * n + columns[j]]);
  }
  table.add(name, differ, kRows * 8);
}

std::vector<int> range(int count) {
  std::vector<int> values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = i;
  return values;
}

// The 8 columns of interest at random positions among kN, the rest random neighbors.
template <Type kType, int kN>
void try_n(Table& table, const Matrix& a, const Matrix& b, int spread,
           const std::vector<float>& base, std::mt19937& engine) {
  Matrix wide = random_matrix(kType, kN, spread, engine);
  std::vector<int> columns = range(kN);
  std::shuffle(columns.begin(), columns.end(), engine);
  for (int j = 0; j < 8; ++j) {
    std::memcpy(&wide[columns[j] * kRowBytes], &b[j * kRowBytes], kRowBytes);
  }
  const std::string n = std::to_string(kN);
  compare(table, "wgmma n=" + n, base, multiply<kType, Left::shared, kN, false>(a, wide), kN,
          range(kRows), columns);
  compare(table, "wgmma n=" + n + ", left in registers", base,
          multiply<kType, Left::registers, kN, false>(a, wide), kN, range(kRows), columns);
  // The operands exchanged: W on the right, the 8 rows of interest among 64 on the left.
  if constexpr (kN >= kRows) {
    Matrix left = random_matrix(kType, kRows, spread, engine);
    std::vector<int> left_rows = range(kRows);
    std::shuffle(left_rows.begin(), left_rows.end(), engine);
    for (int j = 0; j < 8; ++j) {
      std::memcpy(&left[left_rows[j] * kRowBytes], &b[j * kRowBytes], kRowBytes);
    }
    Matrix right = random_matrix(kType, kN, spread, engine);
    std::memcpy(right.data(), a.data(), a.size());
    const auto swapped = multiply<kType, Left::shared, kN, false>(left, right);
    long differ = 0;
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < 8; ++j) {
        differ += differing(base[i * 8 + j], swapped[left_rows[j] * kN + i]);
      }
    }
    table.add("wgmma n=" + n + ", operands exchanged", differ, kRows * 8);
  }
}

template <Type kType>
void try_permutations(Table& table, const Matrix& a, const Matrix& b,
                      const std::vector<float>& base, std::mt19937& engine) {
  const int count = kStepBytes / element_bytes(kType);
  for (const int group : {4, 8, 16, 32}) {
    if (group > count) continue;
    std::vector<int> order = range(count);
    for (int at = 0; at < count; at += group) {
      std::shuffle(order.begin() + at, order.begin() + at + group, engine);
    }
    const Matrix pa = permuted(a, kType, order);
    const Matrix pb = permuted(b, kType, order);
    const std::string within = "k permuted within " + std::to_string(group);
    compare(table, "wgmma, " + within, base, multiply<kType, Left::shared, 8, false>(pa, pb), 8,
            range(kRows), range(8));
    compare(table, "mma, " + within, base, multiply_mma<kType, false>(pa, pb), 8, range(kRows),
            range(8));
  }
}

template <Type kType>
Table probe() {
  Table table;
  std::mt19937 engine(7);
  for (int round = 0; round < 12; ++round) {
    const int spread = kType == Type::fp8 ? round % 4 : round % 4 * 3;
    const Matrix a = random_matrix(kType, kRows, spread, engine);
    const Matrix b = random_matrix(kType, 8, spread, engine);
    const auto base = multiply<kType, Left::shared, 8, false>(a, b);
    try_n<kType, 8>(table, a, b, spread, base, engine);
    try_n<kType, 16>(table, a, b, spread, base, engine);
    try_n<kType, 24>(table, a, b, spread, base, engine);
    try_n<kType, 32>(table, a, b, spread, base, engine);
    try_n<kType, 64>(table, a, b, spread, base, engine);
    try_n<kType, 96>(table, a, b, spread, base, engine);
    try_n<kType, 128>(table, a, b, spread, base, engine);
    try_n<kType, 192>(table, a, b, spread, base, engine);
    try_n<kType, 256>(table, a, b, spread, base, engine);
    std::vector<int> order = range(kRows);
    std::shuffle(order.begin(), order.end(), engine);
    const auto moved = multiply<kType, Left::shared, 8, false>(rows_of(a, order), b);
    std::vector<int> where(kRows);
    for (int i = 0; i < kRows; ++i) where[static_cast<std::size_t>(order[i])] = i;
    compare(table, "wgmma n=8, rows of the left shuffled", base, moved, 8, where, range(8));
    compare(table, "wgmma n=8, wait after each step", base,
            multiply<kType, Left::shared, 8, true>(a, b), 8, range(kRows), range(8));
    compare(table, "mma.sync m16n8, one per step", base, multiply_mma<kType, false>(a, b), 8,
            range(kRows), range(8));
    if constexpr (kType != Type::fp8) {
      compare(table, "mma.sync m16n8k8, two per step", base, multiply_mma<kType, true>(a, b), 8,
              range(kRows), range(8));
    }
    try_permutations<kType>(table, a, b, base, engine);
  }
  return table;
}

// How far below the largest product of a step a product may lie and still count: the sum of
// 1, 2^-e and -1 is 2^-e exactly up to the exponent returned. `Multiply` is [64, 8] from [64], [8].
template <Type kType, class Multiply>
int kept_exponent(Multiply multiply_tiles) {
  const auto put = [](Matrix& m, int row, int at, float value) {
    const int bytes = element_bytes(kType);
    unsigned char* const to = &m[row * kRowBytes + at * bytes];
    if constexpr (kType == Type::bf16) {
      const __nv_bfloat16 v = __float2bfloat16_rn(value);
      std::memcpy(to, &v, 2);
    } else if constexpr (kType == Type::f16) {
      const __half v = __float2half_rn(value);
      std::memcpy(to, &v, 2);
    } else {
      const __nv_fp8_e4m3 v(value);
      std::memcpy(to, &v, 1);
    }
  };
  const int most = kType == Type::bf16 ? 63 : kType == Type::f16 ? 24 : 9;
  Matrix a(static_cast<std::size_t>(kRows) * kRowBytes);
  Matrix b(std::size_t{8} * kRowBytes);
  for (int i = 0; i < kRows; ++i) {
    put(a, i, 0, 1);
    put(a, i, 5, std::ldexp(1.0F, -std::min(i, most)));
    put(a, i, 11, 1);
  }
  for (int j = 0; j < 8; ++j) {
    put(b, j, 0, 1);
    put(b, j, 5, std::ldexp(1.0F, -j));
    put(b, j, 11, -1);
  }
  const std::vector<float> sums = multiply_tiles(a, b);
  int kept = most + 7;
  for (int i = 0; i <= most; ++i) {
    for (int j = 0; j < 8; ++j) {
      if (sums[i * 8 + j] != std::ldexp(1.0F, -(i + j))) kept = std::min(kept, i + j - 1);
    }
  }
  return kept;
}

template <Type kType>
void print_kept(const char* name) {
  std::printf("%-42s wgmma %d, mma.sync %d\n", name,
              kept_exponent<kType>(multiply<kType, Left::shared, 8, false>),
              kept_exponent<kType>(multiply_mma<kType, false>));
}

}  // namespace

int main() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, sm_%d%d; sums whose bits differ from wgmma m64n8 (of how many)\n",
              properties.name, properties.major, properties.minor);
  const Table tables[] = {probe<Type::bf16>(), probe<Type::f16>(), probe<Type::fp8>()};
  std::printf("%-42s %14s %14s %14s\n", "", "bf16", "f16", "fp8 e4m3");
  for (const Tally& first : tables[0].rows()) {
    std::printf("%-42s", first.name.c_str());
    for (const Table& table : tables) {
      bool found = false;
      for (const Tally& t : table.rows()) {
        if (t.name != first.name) continue;
        std::printf(" %6ld (%5ld)", t.differ, t.of);
        found = true;
      }
      if (!found) std::printf(" %14s", "-");
    }
    std::printf("\n");
  }
  for (const Tally& t : tables[2].rows()) {
    if (t.name.find("within 32") != std::string::npos) {
      std::printf("%-42s %14s %14s %6ld (%5ld)\n", t.name.c_str(), "-", "-", t.differ, t.of);
    }
  }
  std::printf("largest e with 1 + 2^-e - 1 = 2^-e within one step\n");
  print_kept<Type::bf16>("bf16");
  print_kept<Type::f16>("f16");
  print_kept<Type::fp8>("fp8 e4m3");
  return 0;
}
