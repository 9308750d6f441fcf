#include <algorithm>
#include <array>
#include <cstring>

#include "core/copy.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"
#include "touchstone/io/model_file.h"

namespace touchstone::inline v0::io {
namespace {

Tensor allocate(const WeightInfo& info, Device device) {
  if (info.format->dtype) return Tensor::empty(info.shape, *info.format->dtype, device);
  const std::int64_t row_bytes = weight_bytes(*info.format, info.shape.back());
  return Tensor::empty({info.shape[0], row_bytes}, DType::u8, device);
}

// Host memory to a stream through two buffers: while one is copied the other is filled.
class Staging {
 public:
  Staging(Context& context, std::int64_t chunk_bytes)
      : to_{context.device(), context.stream()},
        chunk_(chunk_bytes),
        buffers_{Tensor::page_locked({chunk_bytes}, DType::u8),
                 Tensor::page_locked({chunk_bytes}, DType::u8)} {}

  template <class Report>
  void copy(std::byte* to, std::span<const std::byte> from, Report report) {
    while (!from.empty()) {
      const std::size_t part = std::min(from.size(), static_cast<std::size_t>(chunk_));
      Tensor& buffer = buffers_[next_];
      next_ = 1 - next_;
      std::memcpy(buffer.data(), from.data(), part);
      wait_for(to_);  // the copy of the other buffer, which is filled next
      queue_copy(to_, to, {}, buffer.data(), static_cast<std::int64_t>(part));
      from = from.subspan(part);
      to += part;
      report(part);
    }
  }
  void finish() { wait_for(to_); }

 private:
  StreamLocation to_;
  std::int64_t chunk_;
  std::array<Tensor, 2> buffers_;
  std::size_t next_ = 0;
};

}  // namespace

std::vector<UploadedWeight> upload_weights(Context& context, const ModelFile& model,
                                           const UploadProgress& progress,
                                           std::int64_t chunk_bytes) {
  if (chunk_bytes < 1) {
    throw InvalidArgument("upload_weights: chunk_bytes: expected 1 or more, got " +
                          std::to_string(chunk_bytes));
  }
  std::vector<UploadedWeight> uploaded;
  std::uint64_t total = 0;
  for (const WeightInfo& info : model.weights()) {
    uploaded.push_back({info, allocate(info, context.device())});
    total += static_cast<std::uint64_t>(uploaded.back().data.bytes());
  }
  std::uint64_t done = 0;
  const auto report = [&](std::size_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  if (!context.device().is_cuda()) {
    for (UploadedWeight& weight : uploaded) {
      const Weight source = model.load(weight.info.name);
      if (!source.data.empty()) {
        std::memcpy(weight.data.data(), source.data.data(), source.data.size());
      }
      report(source.data.size());
    }
    return uploaded;
  }
  Staging staging(context, chunk_bytes);
  for (UploadedWeight& weight : uploaded) {
    const Weight source = model.load(weight.info.name);
    staging.copy(static_cast<std::byte*>(weight.data.data()), source.data, report);
  }
  staging.finish();
  return uploaded;
}

}  // namespace touchstone::inline v0::io
