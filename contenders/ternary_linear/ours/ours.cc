// This library as a contender: ts_ternary_project, ts_linear on its 2-bit formats where the groups are one
// of theirs, else on the projected weights as floats, and ts_linear_backward.
#include <touchstone/touchstone_c.h>
#include <touchstone/touchstone_c_ternary.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace {

ts_context* context() {
  static ts_context* made = nullptr;  // makes threads once; calls come from one thread
  if (made == nullptr && ts_context_create(nullptr, &made) != TS_OK) return nullptr;
  return made;
}

ts_tensor tensor(const void* data, ts_dtype dtype, std::initializer_list<int64_t> shape) {
  return ts_make_tensor(data, dtype, ts_device{}, static_cast<int32_t>(shape.size()),
                        shape.begin());
}

struct Matrix {
  int64_t outputs, inputs, group, groups, words;
  const int32_t* packed;
  const float* scales;

  int64_t size() const { return group == 0 ? inputs : group; }
  uint32_t code(int64_t o, int64_t c) const {
    return static_cast<uint32_t>(packed[o * words + c / 16]) >> (2 * (c % 16)) & 3U;
  }
};

bool is_sound(const Matrix& m) {
  if (m.group != 0 && (m.group < 32 || m.group > 256)) return false;
  const auto last = static_cast<int>(m.inputs % 16 * 2);
  for (int64_t i = 0; i < m.outputs * m.words; ++i) {
    const auto word = static_cast<uint32_t>(m.packed[i]);
    uint32_t threes = word & word >> 1 & 0x55555555U;
    if ((i + 1) % m.words == 0 && last != 0) threes &= ~(~0U << last);
    if (threes != 0) return false;
  }
  return true;
}

std::vector<float> projected(const Matrix& m) {
  std::vector<float> values(static_cast<size_t>(m.outputs * m.inputs));
  for (int64_t o = 0; o < m.outputs; ++o) {
    for (int64_t c = 0; c < m.inputs; ++c) {
      const float scale = m.scales[o * m.groups + c / m.size()];
      values[static_cast<size_t>(o * m.inputs + c)] =
          scale * static_cast<float>(static_cast<int>(m.code(o, c)) - 1);
    }
  }
  return values;
}

// A half that a float holds exactly.
uint16_t half_bits(float value) {
  if (value < 0x1p-14F) return static_cast<uint16_t>(value * 0x1p24F);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits >> 13) - (112U << 10));
}

const char* format_of(int64_t group) {
  switch (group) {
    case 32:
      return "ternary_g32";
    case 64:
      return "ternary_g64";
    case 128:
      return "ternary_g128";
    case 256:
      return "ternary_g256";
    default:
      return nullptr;
  }
}

// Four codes of a byte, one in each byte of the result.
uint32_t spread(uint32_t four) {
  four = (four | four << 12) & 0x000f000fU;
  return (four | four << 6) & 0x03030303U;
}

// Blocks of the library's own form: byte i holds the values i, i + n / 4, i + n / 2 and i + 3 n / 4, then
// the scale. What is behind a row is 0.
std::vector<uint8_t> blocks_of(const Matrix& m) {
  const int64_t quarter = m.group / 4;
  const auto part = static_cast<size_t>(quarter / 4);  // bytes that hold the codes of a quarter
  std::vector<uint8_t> bytes(static_cast<size_t>(m.outputs * m.groups * (quarter + 2)));
  std::vector<uint32_t> row(static_cast<size_t>(m.groups * m.group / 16));
  uint8_t* to = bytes.data();
  for (int64_t o = 0; o < m.outputs; ++o) {
    std::fill(row.begin(), row.end(), 0x55555555U);
    std::copy_n(m.packed + o * m.words, m.words, row.begin());
    if (const auto used = static_cast<int>(m.inputs % 16 * 2); used != 0) {
      uint32_t& last = row[static_cast<size_t>(m.words) - 1];
      last = (last & ~(~0U << used)) | (0x55555555U & ~0U << used);
    }
    const auto* codes = reinterpret_cast<const uint8_t*>(row.data());
    for (int64_t g = 0; g < m.groups; ++g, codes += 4 * part) {
      for (size_t i = 0; i < part; ++i, to += 4) {
        const uint32_t four = spread(codes[i]) | spread(codes[part + i]) << 2 |
                              spread(codes[2 * part + i]) << 4 | spread(codes[3 * part + i]) << 6;
        std::memcpy(to, &four, sizeof(four));
      }
      const uint16_t scale = half_bits(m.scales[o * m.groups + g]);
      std::memcpy(to, &scale, sizeof(scale));
      to += sizeof(scale);
    }
  }
  return bytes;
}

// Rows with zeros behind them.
std::vector<float> widened(const float* x, int64_t rows, int64_t inputs, int64_t wide) {
  std::vector<float> out(static_cast<size_t>(rows * wide));
  for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * inputs, inputs, out.data() + r * wide);
  return out;
}

// What ts_linear makes of activations when they have 8 bits.
std::vector<float> rounded(const float* x, int64_t rows, int64_t inputs) {
  std::vector<float> out(x, x + rows * inputs);
  for (int64_t r = 0; r < rows; ++r) {
    float* const row = out.data() + r * inputs;
    float most = 0;
    for (int64_t c = 0; c < inputs; ++c) most = std::max(most, std::fabs(row[c]));
    if (most == 0) continue;
    const float step = most / 127;
    for (int64_t c = 0; c < inputs; ++c) row[c] = step * std::nearbyint(row[c] / step);
  }
  return out;
}

}  // namespace

extern "C" int ternary_project(int64_t outputs, int64_t inputs, int64_t group, int64_t groups,
                               int64_t words, int64_t absmax, const float* weight, int32_t* packed,
                               float* scales) {
  // The operator gives such a group a scale of NaN instead.
  const float* const end = weight + outputs * inputs;
  if (!std::all_of(weight, end, [](float w) { return std::isfinite(w); })) return 1;
  std::vector<int8_t> codes(static_cast<size_t>(outputs * inputs));
  ts_ternary_project_args args = TS_TERNARY_PROJECT_ARGS;
  args.weight = tensor(weight, TS_F32, {outputs, inputs});
  args.codes = tensor(codes.data(), TS_I8, {outputs, inputs});
  args.scales = tensor(scales, TS_F32, {outputs * groups});
  args.grouping = group == 0 ? TS_TERNARY_ROW : TS_TERNARY_GROUP;
  args.scale = absmax != 0 ? TS_TERNARY_ABSMAX : TS_TERNARY_MEAN;
  if (group != 0) args.group_size = group;
  if (ts_ternary_project(context(), &args) != TS_OK) return 1;
  std::fill_n(packed, outputs * words, 0);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t c = 0; c < inputs; ++c) {
      const auto code = static_cast<uint32_t>(codes[static_cast<size_t>(o * inputs + c)] + 1);
      int32_t& word = packed[o * words + c / 16];
      word = static_cast<int32_t>(static_cast<uint32_t>(word) | code << (2 * (c % 16)));
    }
  }
  return 0;
}

extern "C" int ternary_linear(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                              int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                              const float* scales, const float* x, float* y) {
  const Matrix m{outputs, inputs, group, groups, words, packed, scales};
  if (!is_sound(m)) return 1;
  ts_linear_args args = TS_LINEAR_ARGS;
  args.int8_activations = int8 != 0 ? 1 : 0;
  args.y = tensor(y, TS_F32, {rows, outputs});
  args.weight_format = format_of(group);
  if (args.weight_format == nullptr) {
    const std::vector<float> weight = projected(m);
    args.x = tensor(x, TS_F32, {rows, inputs});
    args.weight = tensor(weight.data(), TS_F32, {outputs, inputs});
    return ts_linear(context(), &args) == TS_OK ? 0 : 1;
  }
  const std::vector<uint8_t> blocks = blocks_of(m);
  const int64_t wide = groups * group;
  const std::vector<float> padded =
      wide == inputs ? std::vector<float>() : widened(x, rows, inputs, wide);
  args.x = tensor(wide == inputs ? x : padded.data(), TS_F32, {rows, wide});
  args.weight = tensor(blocks.data(), TS_U8, {outputs, groups * (group / 4 + 2)});
  return ts_linear(context(), &args) == TS_OK ? 0 : 1;
}

extern "C" int ternary_backward(int64_t rows, int64_t outputs, int64_t inputs, int64_t group,
                                int64_t groups, int64_t words, int64_t int8, const int32_t* packed,
                                const float* scales, const float* x, const float* dy, float* dx,
                                float* dweight) {
  const Matrix m{outputs, inputs, group, groups, words, packed, scales};
  if (!is_sound(m)) return 1;
  if (rows == 0) {
    std::fill_n(dweight, outputs * inputs, 0.0F);
    return 0;
  }
  const std::vector<float> weight = projected(m);
  const std::vector<float> seen = int8 != 0 ? rounded(x, rows, inputs) : std::vector<float>();
  ts_linear_backward_args args = TS_LINEAR_BACKWARD_ARGS;
  args.dy = tensor(dy, TS_F32, {rows, outputs});
  args.x = tensor(int8 != 0 ? seen.data() : x, TS_F32, {rows, inputs});
  args.weight = tensor(weight.data(), TS_F32, {outputs, inputs});
  args.dx = tensor(dx, TS_F32, {rows, inputs});
  args.dweight = tensor(dweight, TS_F32, {outputs, inputs});
  return ts_linear_backward(context(), &args) == TS_OK ? 0 : 1;
}
