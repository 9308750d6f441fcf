// A task of three lines, for tests of what runs contenders.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "judge/run/runner.h"
#include "judge/sandbox/work_folder.h"
#include "judge/task/task.h"

namespace touchstone::judge::test {

class TestTask : public Task {
 public:
  explicit TestTask(std::vector<Function> functions) {
    card_.id = "test";
    card_.functions = std::move(functions);
    card_.devices = {"cpu"};
  }
  TaskCard& edit() { return card_; }

  const TaskCard& card() const override { return card_; }
  Plan plan(uint64_t, bool) const override { return {}; }
  CaseCheck check_with(const Case&, const std::vector<Reply>&, Memo&) const override { return {}; }
  CaseCheck check_relation(const Relation&, const Case&, const std::vector<Reply>&, const Case&,
                           const std::vector<Reply>&) const override {
    return {};
  }
  std::vector<Reply> answer_in_bits(const Case&, int) const override { return {}; }
  std::vector<CaseSpec> smaller(const CaseSpec&) const override { return {}; }
  std::vector<CaseSpec> timed(uint64_t, bool) const override { return {}; }
  double bytes(const Case&) const override { return 0; }
  double flops(const Case&) const override { return 0; }

 protected:
  Case make_case(const CaseSpec&) const override { return {}; }

 private:
  TaskCard card_;
};

// int scale(int64_t n, float factor, const float* x, float* y): y = factor * x
inline Function scale_function() {
  return {.name = "scale",
          .arguments = {{"n", ArgumentKind::i64},
                        {"factor", ArgumentKind::f32},
                        {"x", ArgumentKind::input, DType::f32, "n"},
                        {"y", ArgumentKind::output, DType::f32, "n"}}};
}

inline std::vector<std::byte> bytes_of_floats(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  if (!bytes.empty()) memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

inline std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!bytes.empty()) memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline Call scale_call(const std::vector<float>& x, double factor) {
  const auto n = static_cast<int64_t>(x.size());
  Call call;
  call.function = "scale";
  call.scalars = {n, factor};
  call.inputs = {{"x", DType::f32, {n}, bytes_of_floats(x)}};
  call.outputs = {{"y", DType::f32, {n}}};
  return call;
}

// An empty folder that goes with the test.
class Folder : public WorkFolder {
 public:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path() / name).parent_path());
    std::ofstream(path() / name) << text;
    return path() / name;
  }
};

}  // namespace touchstone::judge::test
