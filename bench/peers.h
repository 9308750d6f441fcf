// The peers of each operator: its own simplest implementation, oneDNN, std::partial_sort, PyTorch, or
// the operator itself in another setting.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "bench/session.h"
#include "spec/spec.h"

namespace touchstone::bench {

// One case of one operator, with its sets of operands.
struct Subject {
  const spec::Operator& op;
  const cases::Case& item;
  const spec::Problem& problem;
  std::vector<spec::Operands>& sets;

  // An operand by name; undefined when the argument is not given.
  const TensorView& operand(const spec::Operands& set, std::string_view name) const;
};

struct Peer {
  std::string name;
  std::function<void(std::int64_t set)> call;
  // What is checked before it is timed: call itself if empty.
  std::function<void(std::int64_t set)> checked{};
  bool check = true;
  std::vector<std::string> not_written{};  // outputs that it has no use for
  double factor = 1;                       // what a sample is multiplied with
};

struct TorchPeerVariant {
  std::string operation;
  std::string variant;
  std::string name;
};

// Those that take part in a session, that support the case.
std::vector<Peer> peers_of(Session& session, const Subject& subject);
std::vector<TorchPeerVariant> torch_peers_of(const Session& session, const Subject& subject);
// The variant for torch.compile; none when the operator has none.
std::vector<TorchPeerVariant> torch_compile_peers_of(const Subject& subject);
// Memory they take beside the operands.
std::int64_t peer_bytes(const SessionOptions& options, const spec::Operator& op,
                        const spec::Problem& problem);
// "naive", "torch 2.11.0", ...
std::vector<std::string> peer_names(const Session& session, const spec::Operator& op);
// What a reader has to know about them, in words; empty: nothing.
std::string peer_explanation(const spec::Operator& op);

}  // namespace touchstone::bench
