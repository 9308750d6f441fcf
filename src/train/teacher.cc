#include "train/teacher.h"

#include <fmt/format.h>

#include <numeric>

#include "core/index.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::train {

TeacherLogits::TeacherLogits(Context& context, decode::Scorer& teacher, std::int64_t vocabulary,
                             std::int64_t length, std::int64_t max_tokens)
    : teacher_(&teacher) {
  const decode::ScorerShape& shape = teacher.shape();
  if (shape.vocabulary != vocabulary) {
    throw InvalidArgument(
        fmt::format("train: teacher: expected a vocabulary of {} tokens, as the model has, got {}",
                    vocabulary, shape.vocabulary));
  }
  if (shape.max_length < length) {
    throw InvalidArgument(fmt::format("train: teacher: expected a context of {} tokens, got {}",
                                      length, shape.max_length));
  }
  if (!(shape.device == context.device())) {
    throw InvalidArgument(fmt::format("train: teacher: expected it on {}, got {}",
                                      name_of(context.device()), name_of(shape.device)));
  }
  logits_ = Tensor::empty({max_tokens, vocabulary}, DType::f32, context.device());
}

ConstTensorView TeacherLogits::score(Context& context, const HostBatch& batch) {
  const std::int64_t vocabulary = teacher_->shape().vocabulary;
  const std::int64_t tokens = std::ssize(batch.tokens);
  std::vector<std::int64_t> ends = batch.offsets;
  if (ends.empty()) {
    for (std::int64_t row = 0; row <= batch.rows; ++row) ends.push_back(row * tokens / batch.rows);
  }
  std::vector<std::int32_t> rows(batch.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    const std::int64_t count = ends[i + 1] - ends[i];
    const auto text = std::span(batch.tokens).subspan(at(ends[i]), at(count));
    const decode::ScorerSequence sequence = teacher_->create();
    const std::int64_t shape[] = {count, vocabulary};
    const std::vector<decode::ScoreRow> chain = decode::chain_rows(sequence, 0, text);
    teacher_->score(
        context,
        {.rows = chain,
         .logit_rows = std::span(rows).first(at(count)),
         .logits = make_view(static_cast<float*>(logits_.data()) + ends[i] * vocabulary,
                             std::span<const std::int64_t>(shape), DType::f32, logits_.device())});
    teacher_->release(sequence);
  }
  const std::int64_t shape[] = {tokens, vocabulary};
  return make_view(static_cast<const void*>(logits_.data()), shape, DType::f32, logits_.device());
}

}  // namespace touchstone::inline v0::train
