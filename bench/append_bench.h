// The benchmark of append: a batch of tokens into an otherwise empty cache, one layer, K and V.
#pragma once

#include <string>
#include <vector>

#include "bench/session.h"
#include "cases/cases.h"
#include "touchstone/cache/layout.h"

namespace touchstone::bench {

// A name such as "append_int8", and what is stored.
struct AppendFormat {
  std::string name;
  QuantFormat k;
  QuantFormat v;
  bool rotate_keys = false;
};
const std::vector<AppendFormat>& append_formats();

// InvalidArgument when the shape is no number of heads, or the machine has not the memory for it.
void check_append_memory(const SessionOptions& session, const std::string& name,
                         const cases::Case& item);

class AppendBench {
 public:
  // InvalidArgument when no implementation has the name asked for.
  explicit AppendBench(Session& session);

  // "naive": the implementation that takes everything, loops on the CPU.
  std::vector<std::string> peers() const;

  // After check_append_memory. `name` is that of a format.
  BenchRow measure(const std::string& name, const cases::Case& item);

 private:
  Session& session_;
};

}  // namespace touchstone::bench
