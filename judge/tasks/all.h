// The tasks that are built into the program.
#pragma once

#include <memory>

#include "judge/task.h"

namespace touchstone::judge {

std::unique_ptr<Task> make_flash_attention_backward();
std::unique_ptr<Task> make_flash_attention_forward();
std::unique_ptr<Task> make_kv_cache();
std::unique_ptr<Task> make_layer_norm_backward();
std::unique_ptr<Task> make_softmax_topk();

}  // namespace touchstone::judge
