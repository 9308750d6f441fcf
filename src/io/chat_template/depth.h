// Counts the levels of a rendering's recursion, while it lives.
#pragma once

#include <string>

#include "io/chat_template/runtime.h"

namespace touchstone::inline v0::io::chat {

class Runtime::Depth {
 public:
  explicit Depth(Runtime& runtime) : runtime_(runtime) {
    if (runtime_.depth_ >= runtime_.limits_.max_depth) {
      runtime_.fail(TemplateFault::limit,
                    "nested deeper than " + std::to_string(runtime_.limits_.max_depth) + " levels");
    }
    ++runtime_.depth_;
  }
  ~Depth() { --runtime_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Runtime& runtime_;
};

}  // namespace touchstone::inline v0::io::chat
