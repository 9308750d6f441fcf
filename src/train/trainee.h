// The model that Trainer trains: a decoder on text, or a draft for a target. The loop, the
// optimizer, the schedules and the checkpoints are Trainer's.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/train/parameters.h"
#include "touchstone/train/trainer.h"

namespace touchstone::inline v0::train {

class Trainee {
 public:
  Trainee() = default;
  virtual ~Trainee() = default;
  Trainee(const Trainee&) = delete;
  Trainee& operator=(const Trainee&) = delete;

  virtual Parameters& parameters() = 0;
  // Host work of a step: called for the next one while the device works on the one before.
  virtual void plan(std::int64_t step) = 0;
  // Factor of the gradients: a power of two, so that it changes no bit but those that f16 would
  // lose.
  virtual double loss_scale() const = 0;
  // Queues forward and backward of a pass of the planned step; gradients are multiplied by
  // loss_scale(). Returns the share of `loss` [1] in the loss of the step.
  virtual double run(std::int64_t pass, const TensorView& loss) = 0;
  // Fills in what was measured on the validation text; the parameters are prepared.
  virtual void evaluate(std::int64_t max_rows, EvaluationReport& report) = 0;
  // Settings that decide the bits of a run beside TrainingOptions, by their names in messages.
  virtual std::map<std::string, std::string> decisions() const = 0;
  // Floating point operations of a step per token that StepReport counts.
  virtual double flops_per_token() const = 0;
  virtual std::int64_t tokens_of_step() const = 0;
  // The files of a model.
  virtual std::string stored_name(const std::string& parameter) const = 0;
  virtual std::string config_json(std::string_view torch_dtype) const = 0;
};

// A gradient of f16 underflows below 2^-24: the mean over `count` tokens is scaled so that each
// token counts 1/2 to 1. 1 in other dtypes.
double loss_scale_of(DType compute, std::int64_t count);

// The arrays of passes in memory of the device and, for the copy, page-locked on the host. A slot
// is not written again before the step has ended.
class StagingBuffers {
 public:
  StagingBuffers() = default;
  StagingBuffers(Context& context, std::int64_t slot_bytes, std::int64_t slots);

  void begin(std::int64_t slot);
  // Queues the copy of an array to the slot. [n]
  template <class T>
  ConstTensorView send(Context& context, std::span<const T> values) {
    return send_bytes(context, values.data(), std::ssize(values), dtype_of<T>);
  }
  template <class T>
  ConstTensorView send(Context& context, const std::vector<T>& values) {
    return send(context, std::span<const T>(values));
  }
  // Numbers as f32, or as f64.
  ConstTensorView send_wide(Context& context, std::span<const double> values, DType wide);
  // Bytes of a slot for this many values of each dtype.
  static std::int64_t bytes_of(std::initializer_list<std::pair<DType, std::int64_t>> arrays);

 private:
  ConstTensorView send_bytes(Context& context, const void* data, std::int64_t count, DType dtype);

  std::int64_t slot_bytes_ = 0;
  std::int64_t next_ = 0;
  Tensor host_, device_;
};

// The values of a device tensor.
template <class T>
std::vector<T> download(Context& context, const ConstTensorView& view);
// Of a tensor of f32 or f64.
std::vector<double> download_numbers(Context& context, const ConstTensorView& view);

// The name of a parameter in folders of Hugging Face, behind `prefix`.
std::string hugging_face_name(io::ModelFamily family, std::string_view prefix,
                              const std::string& name);

}  // namespace touchstone::inline v0::train
