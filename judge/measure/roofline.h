// The roofline of this machine: copy bandwidth and peak arithmetic rate, measured in the session
// that is judged, on the cores the contenders may use.
#pragma once

#include <vector>

namespace touchstone::judge {

// Holds the calling thread on some cores, and gives it back those it had.
class Pinned {
 public:
  explicit Pinned(const std::vector<int>& cpus);  // none: stays where it is
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  std::vector<int> before_;
};

// What moving `bytes` costs at least on these cores, half of them read and half of them written, by
// the fastest of several copies with buffers of that size.
double copy_floor_seconds(double bytes, const std::vector<int>& cpus);

// Multiplications and additions of float in a second, all cores at once: fused multiply-adds on
// registers alone, as wide as the machine has them. The best of several rounds.
double peak_flops(const std::vector<int>& cpus);

}  // namespace touchstone::judge
