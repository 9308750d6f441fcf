// The makers of the problems of each operator: what spec.cc lists.
#pragma once

#include <memory>

#include "spec/spec.h"

namespace touchstone::spec {

std::unique_ptr<Problem> make_layer_norm(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_rms_norm(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_linear(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_cross_entropy(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_embedding(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_rope(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_activation(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_gate(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_softmax_topk(const cases::Case& item);
std::unique_ptr<Problem> make_sample(const cases::Case& item);
std::unique_ptr<Problem> make_attention(const cases::Case& item, bool backward);
std::unique_ptr<Problem> make_cached_attention(const cases::Case& item);
std::unique_ptr<Problem> make_kv_append(const cases::Case& item);
std::unique_ptr<Problem> make_rope_append(const cases::Case& item);
std::unique_ptr<Problem> make_ternary_project(const cases::Case& item);

}  // namespace touchstone::spec
