#include "bench/peers.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "bench/onednn.h"
#include "bench/partial_sort.h"

namespace touchstone::bench {
namespace {

// Beyond this simple loops take seconds.
constexpr double kMaxNaiveCpuFlops = 1e9;
constexpr double kMaxNaiveCudaFlops = 1e12;
// Query tokens for which the time without a cache is measured.
constexpr std::int64_t kNaiveQueries = 16;

bool is_norm(const spec::Operator& op) { return op.forward_name().ends_with("_norm"); }
bool is_selection(const spec::Operator& op) {
  return op.name == "softmax_topk" || op.name == "sample";
}
bool is_attention(const spec::Operator& op) { return op.forward_name() == "attention"; }
// Whether torch_peers_of() may have one.
bool has_torch_peer(const spec::Operator& op) {
  const std::string name = op.forward_name();
  return is_norm(op) || is_selection(op) || is_attention(op) || name == "embedding" ||
         name == "cross_entropy" || name == "cached_attention";
}

// The peers have the usual arguments only.
bool has_options(const cases::Case& item, std::initializer_list<std::string_view> known) {
  return std::ranges::any_of(item.options, [&](const auto& option) {
    return std::ranges::find(known, option.first) == known.end();
  });
}

NormOperands norm_operands(const Subject& s, const spec::Operands& set) {
  const auto data = [&](const char* name) { return s.operand(set, name).data; };
  const spec::Labels labels = s.problem.labels();
  const bool backward = s.op.is_backward();
  return {.dtype = s.item.dtype,
          .layer = s.op.forward_name() == "layer_norm",
          .backward = backward,
          .rows = labels.rows,
          .cols = labels.cols,
          .x = data("x"),
          .dy = data("dy"),
          .weight = data("weight"),
          .bias = data("bias"),
          .out = data(backward ? "dx" : "y"),
          .dweight = data("dweight"),
          .dbias = data("dbias")};
}

SelectionOperands selection_operands(const Subject& s, const spec::Operands& set) {
  const spec::Labels labels = s.problem.labels();
  const bool sampled = s.op.name == "sample";
  const auto data = [&](const char* name) { return s.operand(set, name).data; };
  return {.dtype = s.item.dtype,
          .sampled = sampled,
          .rows = labels.rows,
          .cols = labels.cols,
          .k = labels.k,
          .logits = data("logits"),
          .seed = static_cast<const std::int64_t*>(data("seed")),
          .position = static_cast<const std::int64_t*>(data("position")),
          .values = static_cast<float*>(data(sampled ? "log_probability" : "probabilities")),
          .tokens = static_cast<std::int32_t*>(data(sampled ? "token" : "indices"))};
}

// A peer on the operands of every set, collected once.
template <class PeerOperands>
Peer on_sets(const std::string& name, std::vector<PeerOperands> sets,
             const std::function<void(const PeerOperands&)>& call,
             const std::function<void(const PeerOperands&)>& checked = {}) {
  const auto on_set = [&](const std::function<void(const PeerOperands&)>& body) {
    return [sets, body](std::int64_t i) { body(sets[static_cast<std::size_t>(i) % sets.size()]); };
  };
  Peer peer{.name = name, .call = on_set(call)};
  if (checked) peer.checked = on_set(checked);
  peer.not_written = {"mean", "rstd", "log_sum_exp"};
  return peer;
}

template <class PeerOperands>
std::vector<PeerOperands> all_sets(const Subject& s,
                                   PeerOperands (*of)(const Subject&, const spec::Operands&)) {
  std::vector<PeerOperands> result;
  for (const spec::Operands& set : s.sets) result.push_back(of(s, set));
  return result;
}

void add_onednn(Session& session, const Subject& s, std::vector<Peer>& peers) {
  if (!session.options().onednn || session.cuda() || has_options(s.item, {})) return;
  const std::vector<NormOperands> sets = all_sets(s, norm_operands);
  const std::optional<OneDnnCalls> calls = onednn_calls(session.context(), sets);
  if (calls) peers.push_back(on_sets("onednn", sets, calls->call, calls->checked));
}

void add_partial_sort(Session& session, const Subject& s, std::vector<Peer>& peers) {
  if (!session.options().partial_sort || session.cuda() || has_options(s.item, {"k"})) return;
  const std::vector<SelectionOperands> sets = all_sets(s, selection_operands);
  peers.push_back(
      on_sets("partial_sort", sets, partial_sort_selection(session.context(), sets[0])));
}

// The operator itself on data of its own, made from the case with other options.
struct OwnData {
  std::unique_ptr<spec::Problem> problem;
  std::vector<spec::Operands> sets;

  OwnData(Session& session, const Subject& s, const std::string& option, const std::string& value,
          std::size_t count) {
    cases::Case item = s.item;
    item.options[option] = value;
    problem = s.op.make(item);
    for (std::size_t i = 0; i < count; ++i) {
      sets.emplace_back(session.context(), problem->operands(), 1000 + i);
    }
  }
};

Peer own_peer(Session& session, const Subject& s, const std::string& name,
              const std::string& option, const std::string& value, std::size_t count) {
  auto data = std::make_shared<OwnData>(session, s, option, value, count);
  Context& context = session.context();
  return {.name = name,
          .call =
              [data, &context](std::int64_t i) {
                const auto set = static_cast<std::size_t>(i) % data->sets.size();
                data->problem->call(context, data->sets[set].views(), "");
              },
          .check = false};
}

void add_cached_attention_peers(Session& session, const Subject& s, std::vector<Peer>& peers) {
  if (!session.options().naive) return;
  const std::int64_t tokens = s.problem.labels().cols;
  const std::int64_t queries = std::min(kNaiveQueries, tokens);
  peers.push_back(own_peer(session, s, "naive", "queries", std::to_string(queries), 1));
  peers.back().factor = static_cast<double>(tokens) / static_cast<double>(queries);
  peers.push_back(own_peer(session, s, "contiguous", "page", "0", s.sets.size()));
}

// The implementation to read first: the simplest one, which takes every problem.
bool is_naive(const std::string& implementation) {
  return implementation == "plain" || implementation == "portable" || implementation == "sort";
}

// The operator's own simplest code, and a library behind it, on the same operands.
void add_own_implementations(Session& session, const Subject& s, std::vector<Peer>& peers) {
  if (!session.options().naive) return;
  Context& context = session.context();
  cases::Case item = s.item;
  if (s.op.forward_name() == "linear") item.options["library"] = "1";
  const std::shared_ptr<spec::Problem> problem = s.op.make(item);
  const double most = session.cuda() ? kMaxNaiveCudaFlops : kMaxNaiveCpuFlops;
  for (const ImplementationReport& report : problem->explain(context, s.sets[0].views())) {
    const bool naive = is_naive(report.name) && s.problem.cost().flops <= most;
    const bool library = report.name == "openblas" || report.name == "cublaslt";
    if (!report.accepted || (!naive && !library)) continue;
    peers.push_back({.name = naive ? "naive" : report.name,
                     .call = [&s, &context, problem, name = report.name](std::int64_t i) {
                       const auto set = static_cast<std::size_t>(i) % s.sets.size();
                       problem->call(context, s.sets[set].views(), name);
                     }});
  }
}

}  // namespace

const TensorView& Subject::operand(const spec::Operands& set, std::string_view name) const {
  static const TensorView kAbsent;
  const std::vector<spec::Operand>& list = set.list();
  const auto found = std::ranges::find(list, name, &spec::Operand::name);
  return found == list.end() ? kAbsent
                             : set.views()[static_cast<std::size_t>(found - list.begin())];
}

std::vector<Peer> peers_of(Session& session, const Subject& s) {
  std::vector<Peer> peers;
  if (s.op.name == "cached_attention") {
    add_cached_attention_peers(session, s, peers);
  } else {
    add_own_implementations(session, s, peers);
  }
  if (is_norm(s.op)) add_onednn(session, s, peers);
  if (is_selection(s.op)) add_partial_sort(session, s, peers);
  return peers;
}

std::vector<TorchPeerVariant> torch_peers_of(const Session& session, const Subject& s) {
  const std::string name = s.op.forward_name();
  const std::string direction = s.op.is_backward() ? "backward" : "forward";
  if (is_norm(s.op)) {
    if (has_options(s.item, {})) return {};
    return {{name, direction, "torch"}};
  }
  if (is_selection(s.op) && has_options(s.item, {"k"})) return {};
  if (s.op.name == "softmax_topk") {
    return {{name, "softmax", "torch"}, {name, "lse", "torch_lse"}};
  }
  if (s.op.name == "sample") return {{name, "masks", "torch"}, {name, "topk_first", "torch_topk"}};
  const spec::Labels labels = s.problem.labels();
  if (is_attention(s.op) && !has_options(s.item, {"causal"})) {
    const std::string variant = direction + " " + labels.heads + " " + labels.mask + " ";
    if (!session.cuda()) return {{"attention", variant + "any", "torch"}};
    return {{"attention", variant + "flash", "torch flash"},
            {"attention", variant + "cudnn", "torch cudnn"}};
  }
  if (name == "embedding" || name == "cross_entropy") {
    if (has_options(s.item, {"dloss"})) return {};
    const bool table = s.op.name == "embedding_backward";
    const std::int64_t rows = s.operand(s.sets[0], table ? "dweight" : "weight").shape[0];
    return {{name, direction + " " + std::to_string(rows), "torch"}};
  }
  // It has no quantized cache, no latent and no sharing.
  const bool plain = labels.format == "bf16" || labels.format == "f32" || labels.format == "f16";
  if (s.op.name == "cached_attention" && plain && !has_options(s.item, {"heads", "format"})) {
    return {{"cached_attention", labels.heads, "torch"}};
  }
  return {};
}

std::vector<TorchPeerVariant> torch_compile_peers_of(const Subject& s) {
  if (is_norm(s.op)) {
    return {{s.op.forward_name(), s.op.is_backward() ? "backward" : "forward", "torch_compile"}};
  }
  if (s.op.name == "softmax_topk") return {{s.op.name, "softmax", "torch_compile"}};
  if (s.op.name == "sample") return {{s.op.name, "topk_first", "torch_compile"}};
  return {};
}

std::int64_t peer_bytes(const SessionOptions& options, const spec::Operator& op,
                        const spec::Problem& problem) {
  // Sets of its own.
  return options.naive && op.name == "cached_attention" ? problem.cost().bytes : 0;
}

std::vector<std::string> peer_names(const Session& session, const spec::Operator& op) {
  const SessionOptions& options = session.options();
  const std::string torch =
      session.torch_version().empty() ? "" : "torch " + session.torch_version();
  std::vector<std::string> names;
  if (options.naive) names.emplace_back("naive");
  if (options.naive && op.name == "cached_attention") names.emplace_back("contiguous");
  if (options.partial_sort && !session.cuda() && is_selection(op)) {
    names.emplace_back("partial_sort");
  }
  if (is_norm(op) && options.onednn && !session.cuda() && !onednn_version().empty()) {
    names.push_back("onednn " + onednn_version() + " (layer norm)");
  }
  if (op.forward_name() == "linear") {
    if (options.naive) names.emplace_back(session.cuda() ? "cublaslt" : "openblas");
    return names;
  }
  if (torch.empty() || !has_torch_peer(op)) return names;
  if (is_attention(op) && session.cuda()) {
    names.push_back(torch + " flash");
    names.push_back(torch + " cudnn");
  } else {
    names.push_back(torch);
  }
  return names;
}

std::string peer_explanation(const spec::Operator& op) {
  if (is_attention(op)) {
    return "TFLOP/s count 4 B H S S D forward, 2.5 times that backward, half of it when causal";
  }
  if (op.name != "cached_attention") return {};
  return "cached_attention: one decoding step; naive: without a cache, attention of every token "
         "again (our kernel, " +
         std::to_string(kNaiveQueries) + " tokens spread over the sequence, times tokens / " +
         std::to_string(kNaiveQueries) +
         "; projections not counted); contiguous: our kernel, one page per sequence, nothing "
         "shared; torch: scaled_dot_product_attention on dense K and V";
}

}  // namespace touchstone::bench
