#include "cli/training/draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

// Layers whose outputs are read, spread evenly; in models of 8 and more from the second to the
// third from the last.
std::vector<std::int64_t> taps_of(std::int64_t layers, std::int64_t wanted) {
  const std::int64_t first = layers >= 8 ? 1 : 0;
  const std::int64_t last = layers >= 8 ? layers - 3 : layers - 1;
  const std::int64_t count = std::clamp<std::int64_t>(wanted, 1, last - first + 1);
  if (count == 1) return {layers / 2};
  std::vector<std::int64_t> taps;
  for (std::int64_t i = 0; i < count; ++i) {
    taps.push_back(
        std::llround(static_cast<double>(first) +
                     static_cast<double>(i * (last - first)) / static_cast<double>(count - 1)));
  }
  return taps;
}

std::int32_t rarest_token(const train::TokenData& text, std::int64_t vocabulary) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(vocabulary));
  for (const std::int32_t token : text.tokens) ++counts.at(static_cast<std::size_t>(token));
  std::size_t rarest = counts.size() - 1;
  for (std::size_t i = counts.size(); i-- > 0;) {
    if (counts[i] < counts[rarest]) rarest = i;
  }
  return static_cast<std::int32_t>(rarest);
}

}  // namespace

train::DraftTraining draft_training(const TrainSettings& settings, model::Model& target,
                                    const train::TokenData& text, const std::string& out) {
  const io::ModelDescription& t = target.description();
  const auto own = [&](const char* name, std::int64_t otherwise) {
    return settings.given(name) && settings.integer(name) > 0 ? settings.integer(name) : otherwise;
  };
  io::BlockDraftDescription d;
  d.layers = own("layers", 2);
  d.width = t.width;
  if (settings.given("width") && settings.integer("width") != t.width) {
    throw InvalidArgument(fmt::format("train: width: expected {}, that of the target, got {}",
                                      t.width, settings.integer("width")));
  }
  d.query_heads = own("heads", t.heads);
  d.kv_heads = own("kv_heads", settings.given("heads") ? d.query_heads : t.kv_heads);
  d.head_size = own("head_size", t.head_size);
  d.mlp_width = own("ffn", t.ffn_width);
  d.vocabulary = t.vocabulary;
  d.block = settings.integer("block");
  d.norm_eps = t.norm_epsilon;
  d.rope_base = settings.given("theta") ? settings.number("theta") : t.rope.theta;
  if (d.query_heads % d.kv_heads != 0 || d.head_size % 2 != 0 || d.block < 2 || d.block > 256) {
    throw InvalidArgument(fmt::format(
        "train: expected blocks of 2 to 256, a multiple of kv_heads as heads, of even size; got "
        "{}, {} / {} of size {}",
        d.block, d.query_heads, d.kv_heads, d.head_size));
  }
  d.taps = taps_of(std::ssize(t.layers), settings.integer("taps"));
  d.mask_token = settings.given("mask_token")
                     ? static_cast<std::int32_t>(settings.integer("mask_token"))
                     : rarest_token(text, d.vocabulary);
  constexpr std::int64_t kMiB = std::int64_t{1} << 20;
  return {.description = d,
          .target = &target,
          .anchors = settings.integer("anchors"),
          .decay = settings.number("decay"),
          .memory_bytes = settings.integer("feature_memory") * kMiB,
          .spill_bytes = settings.integer("feature_disk") * kMiB,
          .spill_folder = out};
}

}  // namespace touchstone::cli
