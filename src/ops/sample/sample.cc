// Checks and choice of implementation for sample; nothing else.
#include "touchstone/ops/sample.h"

#include <array>
#include <limits>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/sample/sample_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0 {
namespace {

using sampling::SampleProblem;

constexpr char kName[] = "sample";

constexpr Implementation<SampleProblem> kImplementations[] = {
    {"simd", DeviceKind::cpu, sampling::sample_simd_refuses, sampling::sample_simd},
    {"plain", DeviceKind::cpu, nullptr, sampling::sample_plain},
    {"subwarp", DeviceKind::cuda, sampling::sample_subwarp_refuses, sampling::sample_subwarp},
    {"cluster", DeviceKind::cuda, sampling::sample_cluster_refuses, sampling::sample_cluster},
    {"two_phase", DeviceKind::cuda, sampling::sample_two_phase_refuses, sampling::sample_two_phase},
    {"streaming_block", DeviceKind::cuda, sampling::sample_streaming_block_refuses,
     sampling::sample_streaming_block},
    {"streaming", DeviceKind::cuda, sampling::sample_streaming_refuses, sampling::sample_streaming},
};

using Shape = std::vector<std::int64_t>;

// The arguments by the names that messages use.
struct Arguments {
  explicit Arguments(const SampleArgs& a)
      : logits{"logits", a.logits},
        bias{"bias", a.bias},
        token_mask{"token_mask", a.token_mask},
        temperature{"temperature", a.temperature},
        top_k{"top_k", a.top_k},
        top_p{"top_p", a.top_p},
        min_p{"min_p", a.min_p},
        repetition_penalty{"repetition_penalty", a.repetition_penalty},
        frequency_penalty{"frequency_penalty", a.frequency_penalty},
        presence_penalty{"presence_penalty", a.presence_penalty},
        history{"history", a.history},
        prompt_length{"prompt_length", a.prompt_length},
        history_row{"history_row", a.history_row},
        parent{"parent", a.parent},
        tree_token{"tree_token", a.tree_token},
        seed{"seed", a.seed},
        position{"position", a.position},
        token{"token", a.token},
        log_probability{"log_probability", a.log_probability},
        top_tokens{"top_tokens", a.top_tokens},
        top_log_probabilities{"top_log_probabilities", a.top_log_probabilities},
        status{"status", a.status} {}

  Argument logits, bias, token_mask, temperature, top_k, top_p, min_p, repetition_penalty,
      frequency_penalty, presence_penalty, history, prompt_length, history_row, parent, tree_token,
      seed, position;
  Argument token, log_probability, top_tokens, top_log_probabilities, status;

  std::array<const Argument*, 17> inputs() const {
    return {&logits,
            &bias,
            &token_mask,
            &temperature,
            &top_k,
            &top_p,
            &min_p,
            &history,
            &repetition_penalty,
            &frequency_penalty,
            &presence_penalty,
            &seed,
            &prompt_length,
            &history_row,
            &parent,
            &tree_token,
            &position};
  }
  std::array<const Argument*, 5> outputs() const {
    return {&token, &log_probability, &top_tokens, &top_log_probabilities, &status};
  }
};

class SampleChecks : public Checks {
 public:
  SampleChecks(const Context& context, const Argument& logits) : Checks(kName, context) {
    present(logits);
    dtype(logits, {DType::f32, DType::bf16, DType::f16});
    layout_ = rows(logits, false);
    if (layout_.cols == 0) {
      fail("logits", "at least one token", "shape " + shape_string(logits.view.sizes()));
    }
    const auto sizes = logits.view.sizes();
    lead_.assign(sizes.begin(), sizes.end() - 1);
  }

  const RowLayout& layout() const { return layout_; }

  // One element per row. Null when an optional one is absent.
  template <class T>
  const T* per_row(const Argument& a, bool optional = true) const {
    if (optional && !a.view.defined()) return nullptr;
    present(a);
    dtype(a, {dtype_of<T>});
    shape(a, lead_);
    contiguous(a);
    return static_cast<const T*>(a.view.data);
  }

  // [.., cols] at some row stride, or, where `shared` allows it, [cols] for all rows: stride 0.
  std::int64_t matrix(const Argument& a, DType type, std::int64_t cols, bool shared) const {
    present(a);
    dtype(a, {type});
    if (shared && a.view.rank == 1) {
      shape(a, Shape{cols});
      rows(a, false);
      return 0;
    }
    shape(a, with_lead(cols));
    return rows(a, false).stride;
  }

  // [.., cols], contiguous, to be written.
  void output(const Argument& a, std::initializer_list<DType> types, std::int64_t cols) const {
    present(a);
    dtype(a, types);
    shape(a, with_lead(cols));
    contiguous(a);
    rows(a, true);
  }

  DType tokens(const Argument& a) const {
    dtype(a, {DType::i32, DType::i64});
    if (a.view.dtype == DType::i32 && layout_.cols > std::numeric_limits<std::int32_t>::max()) {
      fail(a.name, "dtype i64 for a vocabulary of " + std::to_string(layout_.cols), "i32");
    }
    return a.view.dtype;
  }

  Shape with_lead(std::int64_t cols) const {
    Shape result = lead_;
    result.push_back(cols);
    return result;
  }

 private:
  RowLayout layout_;
  Shape lead_;
};

template <class T>
T* writable(const T* data) {
  return const_cast<T*>(data);
}

void check_values(const SampleChecks& checks, const Arguments& a, SampleProblem& p) {
  p.logits = a.logits.view.data;
  p.logits_stride = checks.layout().stride;
  if (a.bias.view.defined()) {
    p.bias_stride = checks.matrix(a.bias, DType::f32, p.vocabulary, true);
    p.bias = static_cast<const float*>(a.bias.view.data);
  }
  if (a.token_mask.view.defined()) {
    p.token_mask_stride = checks.matrix(a.token_mask, DType::i32, ceil_div(p.vocabulary, 32), true);
    p.token_mask = static_cast<const std::uint32_t*>(a.token_mask.view.data);
  }
}

void check_controls(const SampleChecks& checks, const Arguments& a, SampleProblem& p) {
  p.temperature = checks.per_row<float>(a.temperature);
  p.top_k = checks.per_row<std::int32_t>(a.top_k);
  p.top_p = checks.per_row<float>(a.top_p);
  p.min_p = checks.per_row<float>(a.min_p);
  p.repetition_penalty = checks.per_row<float>(a.repetition_penalty);
  p.frequency_penalty = checks.per_row<float>(a.frequency_penalty);
  p.presence_penalty = checks.per_row<float>(a.presence_penalty);
  p.prompt_length = checks.per_row<std::int32_t>(a.prompt_length);
  p.seed = checks.per_row<std::int64_t>(a.seed, false);
  p.position = checks.per_row<std::int64_t>(a.position, false);
  if (a.history.view.defined()) {
    checks.present(a.history);
    checks.dtype(a.history, {DType::i32});
    const RowLayout layout = checks.rows(a.history, false);
    p.history_length = layout.cols;
    p.history_rows = layout.rows;
    p.history_stride = layout.stride;
    p.history_row = checks.per_row<std::int32_t>(a.history_row);
    if (p.history_row == nullptr) checks.matrix(a.history, DType::i32, p.history_length, false);
    p.history = static_cast<const std::int32_t*>(a.history.view.data);
    return;
  }
  for (const Argument* user : {&a.repetition_penalty, &a.frequency_penalty, &a.presence_penalty,
                               &a.prompt_length, &a.history_row, &a.parent, &a.tree_token}) {
    if (user->view.defined()) {
      checks.fail("history", std::string("a tensor, since ") + user->name + " is given", "none");
    }
  }
}

void check_tree(const SampleChecks& checks, const Arguments& a, std::int64_t max_depth,
                SampleProblem& p) {
  const bool has_parent = a.parent.view.defined();
  if (has_parent != a.tree_token.view.defined()) {
    checks.fail(
        has_parent ? "tree_token" : "parent",
        std::string("a tensor, since ") + (has_parent ? "parent" : "tree_token") + " is given",
        "none");
  }
  if (!has_parent) {
    if (max_depth != 0) checks.fail("max_depth", "0 without parent", std::to_string(max_depth));
    return;
  }
  p.parent = checks.per_row<std::int32_t>(a.parent);
  p.tree_token = checks.per_row<std::int32_t>(a.tree_token);
  p.max_depth = max_depth;
  if (p.rows > 0 && (max_depth < 1 || max_depth > p.rows)) {
    checks.fail("max_depth", "1 to " + std::to_string(p.rows) + " with parent",
                std::to_string(max_depth));
  }
}

// What the arrays hold. Only on the CPU, where looking at them costs nothing.
void check_contents(const SampleChecks& checks, const SampleProblem& p) {
  std::vector<std::int64_t> depths;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::string of_row = " for row " + std::to_string(row);
    if (p.history_row != nullptr) {
      const std::int64_t from = p.history_row[row];
      if (from < 0 || from >= p.history_rows) {
        checks.fail("history_row", "0 to " + std::to_string(p.history_rows - 1) + of_row,
                    std::to_string(from));
      }
    }
    if (p.parent == nullptr) continue;
    const std::int64_t parent = p.parent[row];
    if (parent < -1 || parent >= row) {
      checks.fail("parent", "-1 to " + std::to_string(row - 1) + of_row, std::to_string(parent));
    }
    depths.push_back(parent < 0 ? 1 : depths[static_cast<std::size_t>(parent)] + 1);
    if (depths.back() > p.max_depth) {
      checks.fail("max_depth", "at least " + std::to_string(depths.back()) + of_row,
                  std::to_string(p.max_depth));
    }
  }
}

void check_outputs(const SampleChecks& checks, const Arguments& a, SampleProblem& p) {
  checks.present(a.token);
  p.token_dtype = checks.tokens(a.token);
  p.token = writable(p.token_dtype == DType::i32
                         ? static_cast<const void*>(checks.per_row<std::int32_t>(a.token, false))
                         : checks.per_row<std::int64_t>(a.token, false));
  p.log_probability = writable(checks.per_row<float>(a.log_probability));
  p.status = writable(checks.per_row<std::int32_t>(a.status));
  if (a.top_tokens.view.defined() != a.top_log_probabilities.view.defined()) {
    const bool tokens = a.top_tokens.view.defined();
    checks.fail(tokens ? "top_log_probabilities" : "top_tokens",
                std::string("a tensor, since ") +
                    (tokens ? "top_tokens" : "top_log_probabilities") + " is given",
                "none");
  }
  if (!a.top_tokens.view.defined()) return;
  checks.present(a.top_tokens);
  p.top_token_dtype = checks.tokens(a.top_tokens);
  p.top_count = checks.rows(a.top_tokens, true).cols;
  checks.output(a.top_tokens, {p.top_token_dtype}, p.top_count);
  if (p.top_count < 1 || p.top_count > p.vocabulary) {
    checks.fail("top_tokens", "a last extent of 1 .. " + std::to_string(p.vocabulary),
                std::to_string(p.top_count));
  }
  checks.output(a.top_log_probabilities, {DType::f32}, p.top_count);
  p.top_tokens = writable(a.top_tokens.view.data);
  p.top_log_probabilities = static_cast<float*>(writable(a.top_log_probabilities.view.data));
}

// rows may be 0 in the result; nothing is to be computed then.
SampleProblem checked(const Context& context, const SampleArgs& args) {
  const Arguments a(args);
  const SampleChecks checks(context, a.logits);
  SampleProblem p;
  p.dtype = args.logits.dtype;
  p.rows = checks.layout().rows;
  p.vocabulary = checks.layout().cols;
  check_values(checks, a, p);
  check_controls(checks, a, p);
  check_tree(checks, a, args.max_depth, p);
  if (!context.device().is_cuda()) check_contents(checks, p);
  check_outputs(checks, a, p);
  const auto outputs = a.outputs();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const Argument* input : a.inputs()) checks.disjoint(*outputs[i], *input, false);
    for (std::size_t j = i + 1; j < outputs.size(); ++j) {
      checks.disjoint(*outputs[i], *outputs[j], false);
    }
  }
  return p;
}

}  // namespace

void sample(Context& context, const SampleArgs& args) {
  const SampleProblem problem = checked(context, args);
  if (problem.rows == 0) return;
  run_first<SampleProblem>(kName, kImplementations, context, problem, args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const SampleArgs& args) {
  return report_implementations<SampleProblem>(kImplementations, context, checked(context, args));
}

}  // namespace touchstone::inline v0
