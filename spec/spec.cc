#include "spec/spec.h"

#include <algorithm>

#include "spec/operators.h"

namespace touchstone::spec {
namespace {

constexpr auto kNarrow = {DType::f32, DType::bf16, DType::f16};

void add(std::vector<Operator>& list, Operator op) {
  if (op.list.empty()) op.list = op.name;
  if (op.page.empty()) op.page = op.name;
  list.push_back(std::move(op));
}

// The operator and its backward, which has the cases, the page, the dtypes and the options of its
// forward.
void add_pair(std::vector<Operator>& list, Operator op,
              std::unique_ptr<Problem> (*make)(const cases::Case&, bool backward)) {
  op.make = [make](const cases::Case& item) { return make(item, false); };
  add(list, std::move(op));
  Operator backward = list.back();
  backward.name += "_backward";
  backward.make = [make](const cases::Case& item) { return make(item, true); };
  backward.note.clear();
  list.push_back(std::move(backward));
}

}  // namespace

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
  static const std::vector<Operator> kAll = [] {
    std::vector<Operator> list;
    add_pair(list, {.name = "layer_norm"}, make_layer_norm);
    add_pair(list, {.name = "rms_norm", .page = "layer_norm"}, make_rms_norm);
    add_pair(list,
             {.name = "linear",
              .shape = "RxC/C",
              .options = {"weight"},
              .note = "weights in f32 bf16 f16 fp8 int8 int4 and GGUF blocks"},
             make_linear);
    add_pair(list,
             {.name = "embedding",
              .shape = "RxC/32000",
              .options = {"weight"},
              .note = "tables in f32 bf16 f16 fp8 int8 int4 and GGUF blocks"},
             make_embedding);
    list.back().options.clear();  // the gradient does not depend on the table
    add_pair(list,
             {.name = "rope",
              .shape = "Rx8xC",
              .options = {"pairs", "rotary"},
              .note = "linear, NTK, YaRN and Llama 3 scaling"},
             make_rope);
    add_pair(
        list,
        {.name = "activation", .options = {"kind"}, .note = "SiLU, GELU exact and tanh, ReLU^2"},
        make_activation);
    add_pair(list,
             {.name = "gate",
              .page = "activation",
              .options = {"kind"},
              .note = "the same times another tensor"},
             make_gate);
    add_pair(list,
             {.name = "cross_entropy",
              .shape = "RxC/32000",
              .note = "over the output head, in tiles of the vocabulary"},
             make_cross_entropy);
    add(list,
        {.name = "softmax_topk", .cpu = kNarrow, .make = make_softmax_topk, .options = {"k"}});
    add(list,
        {.name = "sample", .cpu = kNarrow, .make = make_sample, .options = {"k", "controls"}});
    add_pair(list, {.name = "attention", .shape = "1x8xRxC", .options = {"causal"}},
             make_attention);
    add(list, {.name = "cached_attention",
               .cpu = kNarrow,
               .make = make_cached_attention,
               .options = {"heads", "format"},
               .note = "stored in f32 bf16 f16 int8 int4 fp8"});
    add(list, {.name = "kv_append",
               .cpu = kNarrow,
               .make = make_kv_append,
               .options = {"format"},
               .note = "into f32 bf16 f16 int8 int4 fp8"});
    add(list, {.name = "rope_append",
               .cpu = kNarrow,
               .make = make_rope_append,
               .shape = "Rx8xC",
               .options = {"format", "pairs"},
               .note = "norms of q and k, rope and kv_append in one"});
    add(list, {.name = "ternary_project",
               .cpu = {DType::f64, DType::f32},
               .cuda = {DType::f32},
               .make = make_ternary_project,
               .note = "codes -1, 0, 1 and a scale per group"});
    return list;
  }();
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
