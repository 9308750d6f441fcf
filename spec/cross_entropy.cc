// cross_entropy and its backward. Bounds, with u the unit roundoff of the sums (f32, or f64 for f64):
//
//   logits     e(v) = G(E) u of the sum of magnitudes of the products. G is that of linear on the CPU; on
//              tensor cores every step of 16 costs 11 u (spec/linear.cc), in one chain; f32 on CUDA adds
//              an eighth of the products one by one. The soft cap has a slope of at most 1 and costs 8 u.
//   lse        moves by no more than the largest e. A term exp(l - m) costs 2 u |l - m| + 10 u of itself
//              (the exponentials of special function units 4 u); a sum of n terms is made by tiles of at
//              most 256 and a few per lane: S u. The logarithm turns relative errors into absolute ones.
//   losses     as the formula combines them
//   dl         softmax errs by a factor exp(e(v) + e(lse) + ..) - 1. On CUDA with 16 bits the distance of
//              a logit from the largest of its tile is kept in f16, 2^-11 of it, and dl is rounded to
//              the dtype; so it is on AMX
//   dx, dW     errors of dl times the other factor, and G u of the sum of magnitudes. A dweight of 16
//              bits is rounded after every chunk of tokens.
//
// and each output is rounded once to its dtype.
#include "oracle/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/index.h"
#include "cpu/amx.h"
#include "spec/operators.h"
#include "touchstone/core/checked.h"
#include "touchstone/ops/cross_entropy.h"

namespace touchstone::spec {
namespace {

// Products up to which everything is computed; beyond, a few rows.
constexpr std::int64_t kWholeHead = std::int64_t{1} << 28;
constexpr std::int64_t kSampledHeadTokens = 3;
constexpr std::int64_t kSampledHeadRows = 5;  // of dweight
// Tokens of a chunk whose sums are joined before a dweight of 16 bits is rounded, at least.
constexpr double kMinHeadChunk = 128;

struct Estimate {
  double value = 0;
  double error = 0;
};

// A token: its logits and gradients, each with what may be off.
struct TokenEstimate {
  std::vector<Estimate> logits{};
  std::vector<Estimate> dl{};
  double largest = 0;
  Estimate lse{};
  Estimate log_probability{};
  Estimate loss{};
};

class CrossEntropyProblem : public Problem {
 public:
  CrossEntropyProblem(const cases::Case& item, bool backward)
      : dtype_(item.dtype),
        grad_dtype_(item.dtype_option("grad_dtype", item.dtype)),
        target_dtype_(item.dtype_option("target_dtype", DType::i32)),
        target_(item.text("target", "any")),
        ignore_(item.text("ignore", "none")),
        spread_(item.number("spread", 3)),
        weight_scale_(item.number("weight_scale", 1)),
        dloss_(item.flag("dloss", true)),
        accumulate_(item.flag("accumulate", false)),
        only_(item.text("only", "")),
        backward_(backward) {
    item.check_options({"smoothing", "z_loss", "soft_cap", "grad_dtype", "target_dtype", "target",
                        "ignore", "spread", "weight_scale", "dloss", "accumulate", "only", "gap",
                        "offset"});
    options_ = {.label_smoothing = item.number("smoothing", 0),
                .z_loss = item.number("z_loss", 0),
                .soft_cap = item.number("soft_cap", 0)};
    const std::vector<std::int64_t> dims = item.dims("x/");
    tokens_ = dims[0], dim_ = dims[1], vocabulary_ = dims[2];
    if (accumulate_) grad_dtype_ = wide_dtype(dtype_);
    // Refuses other names.
    item.choice("target", {"any", "last", "first"});
    item.choice("ignore", {"none", "some", "all"});
    item.choice("only", {"dx", "dweight"});
  }

  enum : std::size_t {
    kX,
    kWeight,
    kTargets,
    kDloss,
    kDx,
    kDweight,
    kLoss,
    kLogProbability,
    kLse,
    kMean,
    kCount
  };

  std::vector<Operand> operands() const override {
    const DType wide = wide_dtype(dtype_);
    std::vector<Operand> list(kCount);
    list[kX] = {
        .name = "x", .dtype = dtype_, .shape = {tokens_, dim_}, .scale = spread_, .strided = true};
    list[kWeight] = {.name = "weight",
                     .dtype = dtype_,
                     .shape = {vocabulary_, dim_},
                     .scale = weight_scale_ / std::sqrt(static_cast<double>(dim_)),
                     .strided = true,
                     .shared = true};
    list[kTargets] = control_operand("targets", target_dtype_, {tokens_},
                                     [p = *this](std::int64_t n) { return p.target(n); });
    const auto per_token = [&](const char* name) {
      return Operand{.name = name, .dtype = wide, .shape = {tokens_}, .output = true};
    };
    list[kLoss] = per_token("loss");
    list[kLogProbability] = per_token("log_probability");
    list[kLse] = per_token("lse");
    if (whole()) list[kMean] = {.name = "mean_loss", .dtype = wide, .shape = {1}, .output = true};
    if (!backward_) return list;
    if (dloss_) {
      list[kDloss] = per_token("dloss");
      list[kDloss].output = false;
    }
    if (only_ != "dweight") {
      list[kDx] = {
          .name = "dx", .dtype = dtype_, .shape = {tokens_, dim_}, .output = true, .strided = true};
    }
    if (only_ != "dx") {
      list[kDweight] = {.name = "dweight",
                        .dtype = grad_dtype_,
                        .shape = {vocabulary_, dim_},
                        .output = true,
                        .strided = true};
      if (accumulate_) begin_with_initial_gradient(list[kDweight]);
    }
    return list;
  }

  // More than the default, where a chunk of logits needs it.
  void prepare(Context& context, Views /*views*/) const override {
    if (!context.device().is_cuda()) return;
    const std::int64_t logits = checked_mul(tokens_, vocabulary_, "logits");
    const std::int64_t bytes =
        std::min(logits * 4, std::int64_t{1} << 30) + logits / 16 + (std::int64_t{16} << 20);
    context.reserve_workspace(std::max(context.workspace_bytes(), bytes));
  }
  Reports apply(const Invoke& invoke, Views v, const std::string& implementation) const override {
    return backward_ ? invoke(cross_entropy_backward, backward_args(v, implementation))
                     : invoke(cross_entropy, forward_args(v, implementation));
  }

  std::vector<OutputReference> reference(const Reader& reader, std::int64_t sample) const override;
  // The gradient of a large table takes lse of all tokens from the output, of which a few are checked.
  bool reference_reads_outputs() const override { return backward_ && !whole(); }

  Cost cost() const override {
    const double products =
        static_cast<double>(tokens_) * static_cast<double>(dim_) * static_cast<double>(vocabulary_);
    const std::int64_t x = checked_mul(checked_mul(tokens_, dim_), size_of(dtype_), "bytes");
    const std::int64_t w = checked_mul(checked_mul(vocabulary_, dim_), size_of(dtype_), "bytes");
    return {.bytes = (x + w) * (backward_ ? 2 : 1), .flops = products * (backward_ ? 6 : 2)};
  }
  Labels labels() const override {
    return {.rows = tokens_, .cols = dim_, .format = "V = " + std::to_string(vocabulary_)};
  }

  std::optional<Gradients> gradients() const override {
    if (!backward_ || !dloss_ || only_ != "") return std::nullopt;
    Gradients result;
    result.inputs = {{"x", kX, kDx, true}, {"weight", kWeight, kDweight, false}};
    result.outputs = {{"loss", kDloss}};
    result.independent_rows = tokens_;
    result.dual = [p = *this](const gradcheck::DualSlice& s) {
      for (std::int64_t r = 0; r < s.rows; ++r) {
        const std::int64_t n = s.first_row + r;
        s.out[0][at(r)] = 0.0;
        if (p.ignored(n)) continue;
        s.out[0][at(r)] = oracle::cross_entropy_row<gradcheck::DualScalar>(
                              p.options_, p.vocabulary_, p.dim_, s.in[0].data() + r * p.dim_,
                              s.in[1].data(), p.target(n))
                              .loss;
      }
    };
    return result;
  }

 private:
  static constexpr std::int64_t kIgnoreIndex = -100;

  bool whole() const { return tokens_ * dim_ * vocabulary_ <= kWholeHead; }
  std::int64_t target(std::int64_t n) const {
    if (ignore_ == "all" || (ignore_ == "some" && n % 3 == 1)) return kIgnoreIndex;
    if (target_ == "last") return vocabulary_ - 1;
    return target_ == "first" ? 0 : (n * 7919 + 13) % vocabulary_;
  }
  bool ignored(std::int64_t n) const { return target(n) == kIgnoreIndex; }
  std::int64_t counted() const {
    std::int64_t count = 0;
    for (std::int64_t n = 0; n < tokens_; ++n) count += ignored(n) ? 0 : 1;
    return count;
  }

  template <class Args>
  void fill(Args& args, Views v, const std::string& implementation) const {
    args.x = v[kX], args.weight = v[kWeight], args.targets = v[kTargets];
    args.loss = v[kLoss], args.log_probability = v[kLogProbability];
    args.lse = v[kLse], args.mean_loss = v[kMean];
    args.label_smoothing = options_.label_smoothing;
    args.z_loss = options_.z_loss;
    args.soft_cap = options_.soft_cap;
    args.implementation = implementation;
  }
  CrossEntropyArgs forward_args(Views v, const std::string& implementation) const {
    CrossEntropyArgs args;
    fill(args, v, implementation);
    return args;
  }
  CrossEntropyBackwardArgs backward_args(Views v, const std::string& implementation) const {
    CrossEntropyBackwardArgs args;
    fill(args, v, implementation);
    args.dloss = v[kDloss], args.dx = v[kDx], args.dweight = v[kDweight];
    args.accumulate = accumulate_;
    return args;
  }

  double u() const { return unit_roundoff(wide_dtype(dtype_)); }
  static bool on_cuda(const Reader& reader) { return reader.view(kX).device.is_cuda(); }
  bool tensor_cores(const Reader& reader) const {
    return on_cuda(reader) && (dtype_ == DType::bf16 || dtype_ == DType::f16);
  }
  bool rounds_dl(const Reader& reader) const {
    return tensor_cores(reader) || (!on_cuda(reader) && dtype_ == DType::bf16 && uses_amx_bf16());
  }
  double sum_growth(const Reader& reader, std::int64_t n) const {
    const auto terms = static_cast<double>(n);
    const double cpu = std::min(terms, 1024.0) + terms / 256 + 2;
    if (!on_cuda(reader)) return cpu;
    return std::max(
        cpu, tensor_cores(reader) ? 11 * (terms / 16 + 1) + 8 : std::max(terms / 8, 512.0) + 80);
  }
  double lse_growth() const { return 256 + 3 * (static_cast<double>(vocabulary_) / 8192 + 6); }

  TokenEstimate token_of(const Reader& reader, const std::vector<double>& x,
                         const std::vector<double>& weight, std::int64_t n) const;
  void add_gradient(const Reader& reader, TokenEstimate& t, double g, std::int64_t n) const;
  // dl of a token at row v of W, given its lse.
  Estimate dl_of(const Reader& reader, const Estimate& logit, const Estimate& lse, double largest,
                 double g, bool is_target) const;
  double gradient_of_token(const std::vector<double>& dloss, std::int64_t n) const {
    if (ignored(n)) return 0;
    return dloss_ ? dloss[at(n)] : 1 / static_cast<double>(counted());
  }
  Estimate logit_of(const Reader& reader, const double* x, const double* w) const;
  void add(OutputReference& output, DType dtype, std::int64_t index, double value,
           double error) const {
    const double tiny = 4 * rounding_error(wide_dtype(dtype_), 0);
    output.add(index, value, with_rounding(dtype, value, error + tiny));
  }
  OutputReference dweight_of(const Reader& reader, const std::vector<double>& x,
                             const std::vector<std::int64_t>& rows,
                             const std::vector<std::vector<Estimate>>& dl) const;
  OutputReference sampled_dweight(const Reader& reader) const;

  DType dtype_;
  DType grad_dtype_;
  DType target_dtype_;
  std::string target_;
  std::string ignore_;
  double spread_;
  double weight_scale_;
  bool dloss_;
  bool accumulate_;
  std::string only_;
  bool backward_;
  oracle::CrossEntropyOptions options_{};
  std::int64_t tokens_ = 0;
  std::int64_t dim_ = 0;
  std::int64_t vocabulary_ = 0;
};

Estimate CrossEntropyProblem::logit_of(const Reader& reader, const double* x,
                                       const double* w) const {
  long double sum = 0;
  double size = 0;
  for (std::int64_t i = 0; i < dim_; ++i) {
    sum += static_cast<long double>(x[i]) * w[i];
    size += std::fabs(x[i] * w[i]);
  }
  Estimate v{
      .value = static_cast<double>(sum),
      .error = sum_growth(reader, dim_) * u() * size + rounding_error(wide_dtype(dtype_), 0)};
  if (options_.soft_cap > 0) {
    v.value = options_.soft_cap * std::tanh(v.value / options_.soft_cap);
    v.error += 8 * u() * std::fabs(v.value);
  }
  return v;
}

TokenEstimate CrossEntropyProblem::token_of(const Reader& reader, const std::vector<double>& x,
                                            const std::vector<double>& weight,
                                            std::int64_t n) const {
  const std::int64_t label = ignored(n) ? 0 : target(n);
  const auto row = oracle::cross_entropy_row<double>(options_, vocabulary_, dim_, x.data(),
                                                     weight.data(), label);
  TokenEstimate t;
  t.largest = row.largest;
  double error = 0, terms = 0, mean_error = 0, mean_size = 0, mean = 0;
  for (std::int64_t v = 0; v < vocabulary_; ++v) {
    const Estimate logit = logit_of(reader, x.data(), weight.data() + v * dim_);
    t.logits.push_back(logit);
    error = std::max(error, logit.error);
    const double distance = row.largest - logit.value;
    terms += std::exp(logit.value - row.lse) * (2 * distance + 10);
    mean += logit.value / static_cast<double>(vocabulary_);
    mean_error += logit.error / static_cast<double>(vocabulary_);
    mean_size += std::fabs(logit.value) / static_cast<double>(vocabulary_);
  }
  t.lse = {row.lse, error + (terms + lse_growth()) * u() +
                        3 * u() * (std::fabs(row.lse) + std::fabs(row.largest))};
  if (ignored(n)) return t;
  const Estimate& chosen = t.logits[at(label)];
  t.log_probability = {
      row.log_probability,
      t.lse.error + chosen.error + 2 * u() * (std::fabs(chosen.value) + std::fabs(row.lse))};
  const double s = options_.label_smoothing;
  const double z = options_.z_loss;
  const double smooth_error =
      t.lse.error + mean_error + u() * (lse_growth() * mean_size + 2 * std::fabs(row.lse));
  const double sizes = (1 - s) * std::fabs(row.log_probability) + s * std::fabs(row.lse - mean) +
                       z * row.lse * row.lse;
  t.loss = {row.loss, (1 - s) * t.log_probability.error + s * smooth_error +
                          z * t.lse.error * (2 * std::fabs(row.lse) + t.lse.error) +
                          8 * u() * sizes};
  return t;
}

Estimate CrossEntropyProblem::dl_of(const Reader& reader, const Estimate& logit,
                                    const Estimate& lse, double largest, double g,
                                    bool is_target) const {
  const double distance = std::max(largest - logit.value, 0.0);
  const double kept = tensor_cores(reader) ? 0x1p-11 * distance + 0x1p-24 : 0;
  const double p = std::exp(logit.value - lse.value);
  const double factor = g * (1 + 2 * options_.z_loss * lse.value);
  const double factor_error =
      std::fabs(g) * 2 * options_.z_loss * lse.error + 4 * u() * std::fabs(factor);
  const double p_error = p * std::expm1(logit.error + lse.error + kept +
                                        (2 * std::fabs(logit.value - lse.value) + 10) * u()) +
                         rounding_error(wide_dtype(dtype_), 0);
  const double uniform = g * options_.label_smoothing / static_cast<double>(vocabulary_);
  const double target = is_target ? g * (1 - options_.label_smoothing) : 0;
  double slope = 1, slope_error = 0;
  if (options_.soft_cap > 0) {
    const double ratio = logit.value / options_.soft_cap;
    slope = 1 - ratio * ratio;
    slope_error = 2 * std::fabs(ratio) / options_.soft_cap * (logit.error + kept) + 6 * u();
  }
  const double open = factor * p - uniform - target;
  Estimate dl{.value = open * slope};
  dl.error = (std::fabs(factor) * p_error + factor_error * (p + p_error) +
              4 * u() * (std::fabs(factor) * p + std::fabs(uniform) + std::fabs(target))) *
                 (std::fabs(slope) + slope_error) +
             std::fabs(open) * slope_error;
  if (rounds_dl(reader)) dl.error = with_rounding(dtype_, dl.value, dl.error);
  return dl;
}

void CrossEntropyProblem::add_gradient(const Reader& reader, TokenEstimate& t, double g,
                                       std::int64_t n) const {
  t.dl.resize(at(vocabulary_));
  if (ignored(n)) return;
  for (std::int64_t v = 0; v < vocabulary_; ++v) {
    t.dl[at(v)] = dl_of(reader, t.logits[at(v)], t.lse, t.largest, g, v == target(n));
  }
}

// Rows of dweight, from dl[row][token].
OutputReference CrossEntropyProblem::dweight_of(
    const Reader& reader, const std::vector<double>& x, const std::vector<std::int64_t>& rows,
    const std::vector<std::vector<Estimate>>& dl) const {
  OutputReference output{.operand = kDweight};
  const double growth = sum_growth(reader, tokens_) * u();
  const double chunks = tensor_cores(reader) && grad_dtype_ == dtype_
                            ? static_cast<double>(tokens_) / kMinHeadChunk
                            : 0;
  const std::vector<std::int64_t> columns = spread_sample(dim_, whole() ? dim_ : std::int64_t{8});
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (const std::int64_t i : columns) {
      double sum = 0, size = 0, error = 0;
      for (std::int64_t n = 0; n < tokens_; ++n) {
        const double factor = x[at(n * dim_ + i)];
        sum += dl[r][at(n)].value * factor;
        size += std::fabs(dl[r][at(n)].value * factor);
        error += dl[r][at(n)].error * std::fabs(factor);
      }
      const std::int64_t index = rows[r] * dim_ + i;
      const double before = accumulate_ ? initial_gradient(index) : 0;
      add(output, grad_dtype_, index, before + sum,
          error + growth * (size + error + std::fabs(before)) + 2 * u() * std::fabs(before) +
              chunks * unit_roundoff(grad_dtype_) * (size + error));
    }
  }
  return output;
}

OutputReference CrossEntropyProblem::sampled_dweight(const Reader& reader) const {
  const std::vector<double> x = reader.all(kX), lse = reader.all(kLse), dloss = reader.all(kDloss);
  std::vector<std::int64_t> rows = spread_sample(vocabulary_, kSampledHeadRows);
  rows.push_back(target(1));
  std::vector<std::vector<Estimate>> dl(rows.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::vector<double> w = reader.row(kWeight, rows[r]);
    for (std::int64_t n = 0; n < tokens_; ++n) {
      const Estimate logit = logit_of(reader, x.data() + n * dim_, w.data());
      // Distances from the largest logit: no more than from lse.
      const Estimate known{lse[at(n)], logit.error + lse_growth() * u()};
      dl[r].push_back(ignored(n) ? Estimate{}
                                 : dl_of(reader, logit, known, known.value,
                                         gradient_of_token(dloss, n), rows[r] == target(n)));
    }
  }
  return dweight_of(reader, x, rows, dl);
}

std::vector<OutputReference> CrossEntropyProblem::reference(const Reader& reader,
                                                            std::int64_t sample) const {
  const std::vector<std::int64_t> rows =
      spread_sample(tokens_, whole() ? tokens_ : std::min(sample, kSampledHeadTokens));
  const std::vector<double> weight = reader.all(kWeight), dloss = reader.all(kDloss);
  OutputReference loss{.operand = kLoss}, log_probability{.operand = kLogProbability};
  OutputReference lse{.operand = kLse}, dx{.operand = kDx};
  const DType wide = wide_dtype(dtype_);
  double total = 0, total_error = 0;
  std::vector<std::vector<Estimate>> dl(whole() && backward_ ? at(vocabulary_) : 0);
  for (const std::int64_t n : rows) {
    TokenEstimate t = token_of(reader, reader.row(kX, n), weight, n);
    add(loss, wide, n, t.loss.value, t.loss.error);
    add(log_probability, wide, n, t.log_probability.value, t.log_probability.error);
    add(lse, wide, n, t.lse.value, t.lse.error);
    total += t.loss.value;
    total_error += t.loss.error + 2 * u() * std::fabs(t.loss.value);
    if (!backward_) continue;
    add_gradient(reader, t, gradient_of_token(dloss, n), n);
    for (std::size_t v = 0; v < dl.size(); ++v) dl[v].push_back(t.dl[v]);
    for (std::int64_t i = 0; only_ != "dweight" && i < dim_; ++i) {
      double sum = 0, size = 0, error = 0;
      for (std::int64_t v = 0; v < vocabulary_; ++v) {
        const double w = weight[at(v * dim_ + i)];
        sum += t.dl[at(v)].value * w;
        size += std::fabs(t.dl[at(v)].value * w);
        error += t.dl[at(v)].error * std::fabs(w);
      }
      add(dx, dtype_, n * dim_ + i, sum,
          error + sum_growth(reader, vocabulary_) * u() * (size + error));
    }
  }
  std::vector<OutputReference> result{loss, log_probability, lse};
  if (whole()) {
    OutputReference mean{.operand = kMean};
    const double count = std::max<double>(static_cast<double>(counted()), 1);
    add(mean, wide, 0, total / count,
        (total_error + static_cast<double>(tokens_) * u() * std::fabs(total)) / count);
    result.push_back(mean);
  }
  if (!backward_) return result;
  if (only_ != "dweight") result.push_back(dx);
  if (only_ != "dx") {
    std::vector<std::int64_t> all = spread_sample(vocabulary_, vocabulary_);
    result.push_back(whole() ? dweight_of(reader, reader.all(kX), all, dl)
                             : sampled_dweight(reader));
  }
  return result;
}

}  // namespace

std::unique_ptr<Problem> make_cross_entropy(const cases::Case& item, bool backward) {
  return std::make_unique<CrossEntropyProblem>(item, backward);
}

}  // namespace touchstone::spec
