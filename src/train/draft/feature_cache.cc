#include "train/draft/feature_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/copy.h"
#include "core/index.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/train/operators.h"
#include "train/layers.h"
#include "train/trainee.h"

namespace touchstone::inline v0::train {
namespace {

// An unlinked temporary file, removed on process exit.
int open_unnamed(const std::filesystem::path& folder) {
  std::string name = (folder / "features-XXXXXX").string();
  const int file = ::mkstemp(name.data());
  if (file < 0) throw FileError(fmt::format("{}: {}", folder.string(), std::strerror(errno)));
  ::unlink(name.c_str());
  return file;
}

// False where the disk is full.
bool write_all(int file, std::span<const std::byte> bytes, std::int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
  return true;
}

void read_all(int file, std::span<std::byte> bytes, std::int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(file, bytes.data(), bytes.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw FileError(fmt::format("train: features: {}", std::strerror(errno)));
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
}

}  // namespace

FeatureCache::FeatureCache(Context& context, model::Model& target, const Options& options)
    : target_(target), options_(options) {
  const decode::ScorerShape& shape = target.shape();
  if (options.layers.empty() || options.layers.back() > shape.layers) {
    throw InvalidArgument(
        fmt::format("train: taps: expected some of the target's {} layers", shape.layers));
  }
  if (shape.max_length < options.length) {
    throw InvalidArgument(fmt::format("train: target: expected a context of {} tokens, got {}",
                                      options.length, shape.max_length));
  }
  if (!(shape.device == context.device())) {
    throw InvalidArgument(fmt::format("train: target: expected it on {}, got {}",
                                      name_of(context.device()), name_of(shape.device)));
  }
  const std::int64_t taps = std::ssize(options.layers);
  window_bytes_ =
      checked_mul(options.length, taps * shape.hidden_size, "train") * size_of(options.dtype);
  hidden_ = Tensor::empty({taps, options.length, shape.hidden_size}, DType::f32, context.device());
  if (options.spill_bytes >= window_bytes_) file_ = open_unnamed(options.spill_folder);
}

FeatureCache::~FeatureCache() {
  if (file_ >= 0) ::close(file_);
}

void FeatureCache::compute(Context& context, const HostBatch& window, const TensorView& out) {
  const std::int64_t width = target_.shape().hidden_size;
  const std::int64_t taps = std::ssize(options_.layers);
  const std::int64_t length = std::ssize(window.tokens);
  std::vector<std::int64_t> ends = window.offsets;
  if (ends.empty()) ends = {0, length};
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    const std::int64_t count = ends[i + 1] - ends[i];
    const auto text = std::span(window.tokens).subspan(at(ends[i]), at(count));
    const decode::ScorerSequence sequence = target_.create();
    const std::vector<decode::ScoreRow> rows = decode::chain_rows(sequence, 0, text);
    const std::int64_t shape[] = {taps, count, width};
    const TensorView states = make_view(hidden_.data(), shape, DType::f32, hidden_.device());
    target_.score(context, {.rows = rows, .hidden_layers = options_.layers, .hidden = states});
    target_.release(sequence);
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t of_tap[] = {count, width};
      TensorView to = columns_of(out, tap * width, width);
      to.data = static_cast<std::byte*>(to.data) + ends[i] * to.stride[0] * size_of(to.dtype);
      to.shape[0] = count;
      cast(context,
           {.x = make_view(static_cast<const void*>(static_cast<const float*>(states.data) +
                                                    tap * count * width),
                           of_tap, DType::f32, hidden_.device()),
            .y = to});
    }
  }
  ++counts_.computed;
}

void FeatureCache::put(Context& context, std::span<const std::byte> bytes, const TensorView& out) {
  const StreamLocation here{out.device, context.stream()};
  queue_copy(here, out.data, {}, bytes.data(), std::ssize(bytes));
  if (out.device.is_cuda()) wait_for(here);  // the bytes may change
}

// Access is cyclic, so LRU would always miss: keep the first windows.
void FeatureCache::store(Context& context, std::int64_t key, const TensorView& out) {
  const bool in_memory = (std::ssize(kept_) + 1) * window_bytes_ <= options_.memory_bytes;
  const bool in_file =
      file_ >= 0 && (std::ssize(spilled_) + 1) * window_bytes_ <= options_.spill_bytes;
  if (!in_memory && !in_file) return;
  TensorView bytes = out;
  bytes.dtype = DType::u8;
  bytes.rank = 1;
  bytes.shape = {window_bytes_};
  bytes.stride = {1};
  std::vector<std::byte> values = download<std::byte>(context, bytes);
  if (in_memory) {
    kept_.emplace(key, std::move(values));
    return;
  }
  const std::int64_t slot = std::ssize(spilled_);
  if (write_all(file_, values, slot * window_bytes_)) {
    spilled_.emplace(key, slot);
  } else {
    options_.spill_bytes = slot * window_bytes_;  // the disk is full: no more of it
  }
}

void FeatureCache::fetch(Context& context, std::int64_t key, const HostBatch& window,
                         const TensorView& out) {
  if (const auto found = kept_.find(key); found != kept_.end()) {
    put(context, found->second, out);
    ++counts_.from_memory;
    return;
  }
  if (const auto found = spilled_.find(key); found != spilled_.end()) {
    page_.resize(at(window_bytes_));
    read_all(file_, page_, found->second * window_bytes_);
    put(context, page_, out);
    ++counts_.from_file;
    return;
  }
  compute(context, window, out);
  store(context, key, out);
}

}  // namespace touchstone::inline v0::train
