#include "bench/operator_bench.h"

#include <algorithm>
#include <cmath>

#include "bench/peers.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {
namespace {

constexpr char kOurName[] = "touchstone";
// Rows of each output that are compared with the reference.
constexpr std::int64_t kSampledRows = 12;

// The relative error with which a peer still counts as right: far above rounding, far below any
// mistake. The operators themselves are held to the bounds of the reference.
double peer_error_bound(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-10;
    case DType::f16:
      return 4e-3;
    case DType::bf16:
      return 2e-2;
    default:
      return 1e-3;
  }
}

int sets_of(Device device, const cases::Case& item, const spec::Cost& cost) {
  // Arithmetic is what counts.
  return cost.flops > 0 ? 1 : sets_for(device, item.regime, cost.bytes);
}

// Right up to rounding, where one index in a hundred may differ: peers break ties as they like.
bool peer_is_right(const Subject& s, spec::Operands& set, const Peer& peer, double& error) {
  const spec::Reader reader(set.views());
  spec::Verdict verdict;
  std::int64_t integers = 0;
  std::int64_t wrong_integers = 0;
  for (const spec::OutputReference& reference : s.problem.reference(reader, kSampledRows)) {
    const spec::Operand& operand = set.list()[reference.operand];
    if (std::ranges::find(peer.not_written, operand.name) != peer.not_written.end()) continue;
    const std::vector<double> got = reference.index.empty()
                                        ? reader.all(reference.operand)
                                        : reader.gather(reference.operand, reference.index);
    const spec::Verdict one =
        spec::compare(got, reference.expected, operand.dtype, operand.name, reference.index);
    if (operand.dtype == DType::i32 || operand.dtype == DType::i64 || operand.dtype == DType::u8) {
      integers += one.compared;
      wrong_integers += one.outside;
    }
    verdict.merge(one);
  }
  error = wrong_integers * 100 > integers ? HUGE_VAL : verdict.relative_error();
  return error <= peer_error_bound(s.item.dtype);
}

void enter_peer(Session& session, const Subject& s, std::vector<Contender>& contenders,
                const BenchRow& row, const Peer& peer) {
  if (peer.check) {
    spec::Operands& set = s.sets.back();
    set.poison(session.context());
    (peer.checked ? peer.checked : peer.call)(std::ssize(s.sets) - 1);
    session.context().synchronize();
    double error = 0;
    if (!peer_is_right(s, set, peer, error)) {
      session.note(peer.name + ": " + row.describe() + ": wrong result, error " +
                   std::to_string(error) + "; left out");
      return;
    }
  }
  session.enter(contenders, peer.name, row, peer.call);
  if (peer.factor == 1) return;
  contenders.back().sample_us = [factor = peer.factor, timed = contenders.back().sample_us] {
    return factor * timed();
  };
}

BenchRow described(const spec::Operator& op, const cases::Case& item, Device device,
                   const spec::Problem& problem) {
  const spec::Labels labels = problem.labels();
  const spec::Cost cost = problem.cost();
  BenchRow row;
  row.op = op.name;
  row.dtype = item.dtype;
  row.device = device;
  row.rows = labels.rows;
  row.cols = labels.cols;
  row.k = labels.k;
  row.heads = labels.heads;
  row.format = labels.mask.empty() ? labels.format : labels.mask;
  row.regime = item.regime;
  row.bytes = cost.bytes;
  row.flops = cost.flops;
  row.only_reads = cost.only_reads;
  row.sets = sets_of(device, item, cost);
  return row;
}

}  // namespace

void check_implementation(Context& context, const spec::Operator& op, const cases::Case& item,
                          const std::string& implementation) {
  if (implementation.empty()) return;
  cases::Case small = item;
  small = op.of_rows(op.has_option("format") ? 1 : 2, op.name == "kv_append" ? 128 : 64, small);
  small.options.erase("k");
  const std::unique_ptr<spec::Problem> problem = op.make(small);
  const spec::Operands operands(context, problem->operands(), 1);
  std::string names;
  for (const ImplementationReport& report : problem->explain(context, operands.views())) {
    if (report.name == implementation) return;
    names += (names.empty() ? "" : ", ") + report.name;
  }
  throw InvalidArgument("bench: --impl: expected one of " + names + ", got '" + implementation +
                        "'");
}

void check_case_memory(const SessionOptions& options, const spec::Operator& op,
                       const cases::Case& item) {
  const std::unique_ptr<spec::Problem> problem = op.make(item);
  std::int64_t bytes = 0;
  for (const spec::Operand& operand : problem->operands()) {
    if (operand.defined()) bytes = checked_add(bytes, operand.bytes(), "bench: bytes");
  }
  bytes = checked_mul(bytes, sets_of(options.device, item, problem->cost()), "bench: bytes");
  bytes = checked_add(bytes, peer_bytes(options, op, *problem), "bench: bytes");
  check_memory(options, item.shape, bytes);
}

BenchRow measure(Session& session, const spec::Operator& op, const cases::Case& item) {
  Context& context = session.context();
  check_case_memory(session.options(), op, item);
  const std::unique_ptr<spec::Problem> problem = op.make(item);
  BenchRow row = described(op, item, context.device(), *problem);
  std::vector<spec::Operands> sets;
  sets.reserve(static_cast<std::size_t>(row.sets));  // later sets refer to the first
  for (int i = 0; i < row.sets; ++i) {
    sets.emplace_back(context, problem->operands(), static_cast<std::uint64_t>(i) + 1,
                      i == 0 ? nullptr : &sets.front());
    problem->prepare(context, sets.back().views());
  }
  const std::string& forced = session.options().implementation;
  row.implementation =
      forced.empty() ? spec::chosen(problem->explain(context, sets.front().views())) : forced;
  const auto ours = [&](std::int64_t i) {
    problem->call(context, sets[static_cast<std::size_t>(i) % sets.size()].views(), forced);
  };
  const spec::Verdict verdict = spec::check_call(
      *problem, context, sets.back(), [&] { ours(row.sets - 1); }, kSampledRows);
  row.error = verdict.relative_error();
  row.right = verdict.right();
  if (!row.right) {
    session.note(row.describe() + ": wrong result, " + verdict.where + "; left out");
    return row;
  }
  std::vector<Contender> contenders;
  session.enter(contenders, kOurName, row, ours);
  const Subject subject{op, item, *problem, sets};
  for (const Peer& peer : peers_of(session, subject)) {
    enter_peer(session, subject, contenders, row, peer);
  }
  for (const TorchPeerVariant& torch : torch_peers_of(session, subject)) {
    session.enter_torch(contenders, row, torch.operation, torch.variant, torch.name);
  }
  for (const TorchPeerVariant& torch : torch_compile_peers_of(subject)) {
    session.enter_torch_compile(contenders, row, torch.operation, torch.variant);
  }
  session.measure(row, contenders, kOurName);
  return row;
}

}  // namespace touchstone::bench
