// Contenders in Python, behind the same interface.
#include <gtest/gtest.h>

#include "judge/contender/python.h"
#include "judge/run/runner_test_support.h"

namespace touchstone::judge {
namespace {

using test::all_functions;
using test::box_case;
using test::bytes_of_floats;
using test::expect_boxes;
using test::floats_of;
using test::Folder;
using test::plain_call;
using test::ramp;
using test::scale_call;
using test::TestTask;
using test::twice;

constexpr const char* kPython = R"(
import os, sys
import numpy as np
def scale(n, factor, x): return (np.float32(factor) * x).astype(np.float32)
def scale_raises(n, factor, x): raise ValueError("no such thing")
def scale_in_place(n, factor, x):
    x *= factor
    return x
def scale_unlocks(n, factor, x):
    x.flags.writeable = True
    x *= factor
    return x
def scale_shape(n, factor, x): return x[:-1]
def scale_leaves(n, factor, x): sys.exit(0)
def scale_forks(n, factor, x): os.fork()
def scale_hangs(n, factor, x):
    while True: pass
def pair_bytes(n): return 4 * n
def pair_forward(n, x): return np.zeros_like(x), (x, n)
class Lies(tuple):
    def __getitem__(self, index): raise RuntimeError("mine")
def pair_lies(n, x): return Lies((np.zeros_like(x), x))
def pair_backward(n, cache): return cache[0]
def box_create(n): return None if n < 0 else [np.zeros(n, np.float32)]
def box_add(box, n, x): box[0] = box[0] + x
def box_get(box, n): return box[0]
def box_destroy(box): box.clear()
)";

class PythonRunner : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!find_python()) GTEST_SKIP() << "no Python with NumPy here";
    sandbox_ = probe_sandbox(true);
    contender_ = read_contender(source_.write("answers.py", kPython), task_);
    build_ = build_contender(contender_, task_, work_.path(), sandbox_);
    ASSERT_TRUE(build_.built) << build_.log;
  }

  std::unique_ptr<Child> start(const std::string& name) {
    contender_.binding.functions["scale"] = name;
    Limits limits;
    limits.call_seconds = 0.5;
    return Child::start(contender_, build_, task_, sandbox_, limits);
  }
  Reply ask(const std::string& name) {
    const std::unique_ptr<Child> child = start(name);
    EXPECT_EQ(child->started().ending, Ending::ok) << child->started().detail;
    return child->call(scale_call(ramp(100), 2.0), Placement::end_flush, 17);
  }

  TestTask task_{all_functions()};
  Folder source_;
  Folder work_;
  Sandbox sandbox_;
  Contender contender_;
  BuildResult build_;
};

TEST_F(PythonRunner, AnswersLikeALibrary) {
  const std::unique_ptr<Child> child = start("scale");
  ASSERT_EQ(child->started().ending, Ending::ok) << child->started().detail;
  for (const int64_t n : {0, 1, 1025}) {
    const Reply reply = child->call(scale_call(ramp(n), 2.0), Placement::end_flush, 17);
    ASSERT_EQ(reply.ending, Ending::ok) << reply.detail;
    EXPECT_EQ(floats_of(reply.outputs.at(0)), twice(ramp(n)));
  }
  expect_boxes(child->run(box_case(), Placement::end_flush, 17));
  // A state that holds on to an input of an earlier call finds it unchanged.
  Case c;
  Call forward = plain_call("pair_forward", 7);
  forward.inputs = {{"x", DType::f32, {7}, bytes_of_floats(ramp(7))}};
  forward.outputs = {{"y", DType::f32, {7}}};
  Call backward = plain_call("pair_backward", 7);
  backward.outputs = {{"dx", DType::f32, {7}}};
  c.calls = {forward, backward};
  const std::vector<Reply> replies = child->run(c, Placement::end_flush, 17);
  ASSERT_EQ(replies.at(1).ending, Ending::ok) << replies[0].detail << replies[1].detail;
  EXPECT_EQ(floats_of(replies.at(1).outputs.at(0)), ramp(7));
  EXPECT_EQ(replies.at(0).state_bytes, 28);
}

TEST_F(PythonRunner, EndingsAreNamed) {
  Reply reply = ask("scale_raises");
  EXPECT_EQ(reply.ending, Ending::refused);
  EXPECT_EQ(reply.detail, "ValueError: no such thing");
  reply = ask("scale_shape");
  EXPECT_EQ(reply.ending, Ending::refused);
  EXPECT_NE(reply.detail.find("expected shape (100,), got (99,)"), std::string::npos);
  EXPECT_EQ(ask("scale_in_place").ending, Ending::wrote_input);
  EXPECT_EQ(ask("scale_unlocks").ending, Ending::wrote_input);
  EXPECT_EQ(ask("scale_leaves").ending, Ending::exited);
  EXPECT_EQ(ask("scale_hangs").ending, Ending::hung);
  if (sandbox_.seccomp) {
    EXPECT_EQ(ask("scale_forks").ending, Ending::forbidden);
  }
}

TEST_F(PythonRunner, ValuesThatCannotBeTakenAreRefused) {
  contender_.binding.functions["pair_forward"] = "pair_lies";
  const std::unique_ptr<Child> child = start("scale");
  Call forward = plain_call("pair_forward", 7);
  forward.inputs = {{"x", DType::f32, {7}, bytes_of_floats(ramp(7))}};
  forward.outputs = {{"y", DType::f32, {7}}};
  const Reply reply = child->call(forward, Placement::end_flush, 17);
  EXPECT_EQ(reply.ending, Ending::refused) << reply.detail;
  EXPECT_EQ(reply.detail, "RuntimeError: mine");
}

TEST_F(PythonRunner, WhatCannotBeLoadedDoesNotStart) {
  const std::unique_ptr<Child> child = start("no_such_function");
  EXPECT_EQ(child->started().ending, Ending::crashed);
  EXPECT_NE(child->started().detail.find("no function no_such_function"), std::string::npos)
      << child->started().detail;
  EXPECT_FALSE(child->alive());
}

}  // namespace
}  // namespace touchstone::judge
