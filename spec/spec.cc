#include "spec/spec.h"

#include <algorithm>

#include "spec/operators.h"

namespace touchstone::spec {

Verdict check(const std::vector<OutputReference>& reference, const std::vector<Operand>& list,
              const Reader& reader) {
  Verdict verdict;
  for (const OutputReference& output : reference) {
    const Operand& operand = list[output.operand];
    const std::vector<double> got = output.index.empty()
                                        ? reader.all(output.operand)
                                        : reader.gather(output.operand, output.index);
    verdict.merge(compare(got, output.expected, operand.dtype, operand.name, output.index));
  }
  return verdict;
}

Verdict check(const Problem& problem, const std::vector<Operand>& list, const Reader& reader,
              std::int64_t sample) {
  return check(problem.reference(reader, sample), list, reader);
}

Verdict check_call(const Problem& problem, Context& context, Operands& operands,
                   const std::function<void()>& call, std::int64_t sample) {
  operands.poison(context);
  call();
  context.synchronize();
  return check(problem, operands.list(), Reader(operands.views()), sample);
}

std::string chosen(const std::vector<ImplementationReport>& reports) {
  const auto found = std::ranges::find_if(reports, &ImplementationReport::accepted);
  return found == reports.end() ? "none" : found->name;
}

bool Operator::supports(Device device, DType dtype) const {
  return std::ranges::find(dtypes(device), dtype) != dtypes(device).end();
}

bool Operator::has_option(std::string_view option) const {
  return std::ranges::find(options, option) != options.end();
}

std::string Operator::forward_name() const {
  return is_backward() ? name.substr(0, name.size() - std::string("_backward").size()) : name;
}

cases::Case Operator::of_rows(std::int64_t rows, std::int64_t cols, cases::Case item) const {
  item.shape.clear();
  for (const char c : shape) {
    item.shape += c == 'R'   ? std::to_string(rows)
                  : c == 'C' ? std::to_string(cols)
                             : std::string(1, c);
  }
  std::erase_if(item.options, [&](const auto& option) { return !has_option(option.first); });
  return item;
}

std::string support_table() {
  const auto names = [](const std::vector<DType>& dtypes) {
    std::string text;
    for (const DType dtype : dtypes) {
      if (!text.empty()) text += ' ';
      text += name_of(dtype);
    }
    return text;
  };
  std::string table = "| Operator | CPU | CUDA | Contract |\n|---|---|---|---|\n";
  for (const Operator& op : all()) {
    if (op.is_backward()) continue;  // in the row of its forward
    table += "| [" + op.name + "](docs/ops/" + op.page + ".md)" +
             (find(op.name + "_backward") != nullptr ? ", forward and backward" : "") +
             (op.note.empty() ? "" : ", " + op.note) + " | " + names(op.cpu) + " | " +
             names(op.cuda) + " | [" + op.name + ".h](include/touchstone/ops/" + op.name +
             ".h) |\n";
  }
  return table;
}

const std::vector<Operator>& all() {
  static const std::vector<DType> kWide = {DType::f64, DType::f32, DType::bf16, DType::f16};
  static const std::vector<DType> kNarrow = {DType::f32, DType::bf16, DType::f16};
  static const std::vector<Operator> kAll = {
      {"layer_norm", "layer_norm", "layer_norm", kWide, kNarrow, make_layer_norm},
      {"layer_norm_backward", "layer_norm", "layer_norm", kWide, kNarrow, make_layer_norm_backward},
      {"rms_norm", "rms_norm", "layer_norm", kWide, kNarrow, make_rms_norm},
      {"rms_norm_backward", "rms_norm", "layer_norm", kWide, kNarrow, make_rms_norm_backward},
      {"linear",
       "linear",
       "linear",
       kWide,
       kNarrow,
       make_linear,
       "RxC/C",
       {"weight"},
       "weights in f32 bf16 f16 fp8 int8 int4 and GGUF blocks"},
      {"linear_backward",
       "linear",
       "linear",
       kWide,
       kNarrow,
       make_linear_backward,
       "RxC/C",
       {"weight"}},
      {"embedding",
       "embedding",
       "embedding",
       kWide,
       kNarrow,
       make_embedding,
       "RxC/32000",
       {"weight"},
       "tables in f32 bf16 f16 fp8 int8 int4 and GGUF blocks"},
      {"embedding_backward",
       "embedding",
       "embedding",
       kWide,
       kNarrow,
       make_embedding_backward,
       "RxC/32000",
       {}},
      {"rope",
       "rope",
       "rope",
       kWide,
       kNarrow,
       make_rope,
       "Rx8xC",
       {"pairs", "rotary"},
       "linear, NTK, YaRN and Llama 3 scaling"},
      {"rope_backward",
       "rope",
       "rope",
       kWide,
       kNarrow,
       make_rope_backward,
       "Rx8xC",
       {"pairs", "rotary"}},
      {"activation",
       "activation",
       "activation",
       kWide,
       kNarrow,
       make_activation,
       "RxC",
       {"kind"},
       "SiLU, GELU exact and tanh, ReLU^2"},
      {"activation_backward",
       "activation",
       "activation",
       kWide,
       kNarrow,
       make_activation_backward,
       "RxC",
       {"kind"}},
      {"gate",
       "gate",
       "activation",
       kWide,
       kNarrow,
       make_gate,
       "RxC",
       {"kind"},
       "the same times another tensor"},
      {"gate_backward", "gate", "activation", kWide, kNarrow, make_gate_backward, "RxC", {"kind"}},
      {"cross_entropy",
       "cross_entropy",
       "cross_entropy",
       kWide,
       kNarrow,
       make_cross_entropy,
       "RxC/32000",
       {},
       "over the output head, in tiles of the vocabulary"},
      {"cross_entropy_backward",
       "cross_entropy",
       "cross_entropy",
       kWide,
       kNarrow,
       make_cross_entropy_backward,
       "RxC/32000",
       {}},
      {"softmax_topk",
       "softmax_topk",
       "softmax_topk",
       kNarrow,
       kNarrow,
       make_softmax_topk,
       "RxC",
       {"k"}},
      {"sample", "sample", "sample", kNarrow, kNarrow, make_sample, "RxC", {"k", "controls"}},
      {"attention",
       "attention",
       "attention",
       kWide,
       kNarrow,
       make_attention,
       "1x8xRxC",
       {"causal"}},
      {"attention_backward",
       "attention",
       "attention",
       kWide,
       kNarrow,
       make_attention_backward,
       "1x8xRxC",
       {"causal"}},
      {"cached_attention",
       "cached_attention",
       "cached_attention",
       kNarrow,
       kNarrow,
       make_cached_attention,
       "RxC",
       {"heads", "format"},
       "stored in f32 bf16 f16 int8 int4 fp8"},
      {"kv_append",
       "kv_append",
       "kv_append",
       kNarrow,
       kNarrow,
       make_kv_append,
       "RxC",
       {"format"},
       "into f32 bf16 f16 int8 int4 fp8"},
      {"rope_append",
       "rope_append",
       "rope_append",
       kNarrow,
       kNarrow,
       make_rope_append,
       "Rx8xC",
       {"format", "pairs"},
       "norms of q and k, rope and kv_append in one"},
      {"ternary_project",
       "ternary_project",
       "ternary_project",
       {DType::f64, DType::f32},
       {DType::f32},
       make_ternary_project,
       "RxC",
       {},
       "codes -1, 0, 1 and a scale per group"},
  };
  return kAll;
}

const Operator* find(std::string_view name) {
  const auto found = std::ranges::find(all(), name, &Operator::name);
  return found == all().end() ? nullptr : &*found;
}

std::vector<cases::Case> select(const Operator& op, const cases::Selection& selection) {
  std::vector<cases::Case> result = cases::select(op.list, selection);
  const Device device{.kind = selection.device};
  std::erase_if(result, [&](const cases::Case& item) { return !op.supports(device, item.dtype); });
  return result;
}

}  // namespace touchstone::spec
