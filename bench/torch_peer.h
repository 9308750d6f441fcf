// PyTorch as a peer: a Python process that times one sample per request, so that it
// takes its turn in the rounds like every other contender. torch_peer.py, compiled into the
// program, is the other end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "touchstone/core/device.h"
#include "touchstone/core/dtype.h"

namespace touchstone::bench {

class TorchPeer {
 public:
  // `why_not` says what is wrong when the result is null. `threads`: of the CPU operators.
  static std::unique_ptr<TorchPeer> start(const std::string& python, int threads,
                                          std::string& why_not);
  ~TorchPeer();
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  const std::string& version() const;

  struct Request {
    std::string operation;  // "layer_norm", ..: a class of torch_peer.py knows it
    std::string variant;    // of the operation: "forward", "lse", ..
    DType dtype = DType::f32;
    Device device;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t k = 0;
    int sets = 1;
    int launches = 1;      // CUDA: in one graph
    double sample_us = 0;  // CPU: at least this long
    bool compile = false;  // torch.compile instead of the native operators
  };
  // A slot to be run and released. DeviceError says why there is none; the peer lives on unless
  // alive() says otherwise.
  int prepare(const Request& request);
  // Microseconds per call, from one sample.
  double run(int slot);
  void release(int slot) noexcept;

  bool alive() const;

 private:
  struct State;
  explicit TorchPeer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::bench
