#include "ops/attention_dense/dense_key_tile.h"

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::dense_attention {
namespace {

thread_local std::int64_t current = 0;

}  // namespace

std::int64_t key_tile() { return current; }

ScopedKeyTile::ScopedKeyTile(std::int64_t tile) : before_(current) {
  if (tile < 0 || tile > kMaxKeyTile) {
    throw InvalidArgument("attention: key tile: expected 0 to " + std::to_string(kMaxKeyTile) +
                          ", got " + std::to_string(tile));
  }
  current = tile;
}

ScopedKeyTile::~ScopedKeyTile() { current = before_; }

}  // namespace touchstone::dense_attention
