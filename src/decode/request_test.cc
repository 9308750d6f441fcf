#include "touchstone/decode/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "touchstone/core/error.h"

namespace touchstone::decode {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr RequestLimits kLimits{.vocabulary = 100, .max_length = 8};

TEST(Request, AcceptsWhatCanBeServed) {
  EXPECT_NO_THROW(check_request({.prompt = {1, 2}}, kLimits));
  EXPECT_NO_THROW(check_request({.prompt = {0, 99, 1, 1, 1, 1, 1}}, kLimits));
  // Nothing to generate: the prompt may fill the context (scoring).
  EXPECT_NO_THROW(
      check_request({.prompt = {0, 1, 2, 3, 4, 5, 6, 7}, .stop = {.max_tokens = 0}}, kLimits));
}

TEST(Request, RefusesByField) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto refused = [](const std::string& message, auto change) {
    Request request{.prompt = {1, 2}};
    change(request);
    EXPECT_THAT([&] { check_request(request, kLimits); },
                ThrowsMessage<InvalidArgument>(HasSubstr("request: " + message)));
  };
  refused("prompt: expected at least one token", [](Request& r) { r.prompt.clear(); });
  refused("prompt: expected a token in [0, 100), got 100", [](Request& r) { r.prompt[1] = 100; });
  refused("prompt: expected a token in [0, 100), got -1", [](Request& r) { r.prompt[1] = -1; });
  refused("prompt: expected fewer than 8 tokens", [](Request& r) { r.prompt.assign(8, 1); });
  for (const double bad : {-0.5, kNan, kInfinity, 1e39}) {
    refused("temperature", [=](Request& r) { r.sampling.temperature = bad; });
  }
  refused("top_k", [](Request& r) { r.sampling.top_k = -1; });
  for (const double bad : {-0.1, 1.1, kNan}) {
    refused("top_p", [=](Request& r) { r.sampling.top_p = bad; });
    refused("min_p", [=](Request& r) { r.sampling.min_p = bad; });
  }
  for (const double bad : {0.0, -1.0, kNan, kInfinity, 1e39, 1e-50}) {
    refused("repetition_penalty", [=](Request& r) { r.sampling.repetition_penalty = bad; });
  }
  for (const double bad : {kNan, kInfinity, 1e39, -1e39}) {
    refused("frequency_penalty", [=](Request& r) { r.sampling.frequency_penalty = bad; });
    refused("presence_penalty", [=](Request& r) { r.sampling.presence_penalty = bad; });
  }
  refused("bias", [](Request& r) { r.sampling.bias = {{100, 1.0F}}; });
  refused("bias", [](Request& r) {
    r.sampling.bias = {{1, std::numeric_limits<float>::quiet_NaN()}};
  });
  refused("max_tokens", [](Request& r) { r.stop.max_tokens = -1; });
  refused("min_tokens", [](Request& r) { r.stop.min_tokens = 17; });
  refused("stop token", [](Request& r) { r.stop.tokens = {100}; });
  refused("stop string", [](Request& r) { r.stop.strings = {"a", ""}; });
  refused("samples", [](Request& r) { r.samples = 0; });
  refused("top_log_probabilities", [](Request& r) { r.top_log_probabilities = 101; });
}

TEST(Request, CancellationReachesCopies) {
  const Request request{.prompt = {1}};
  const Request copy = request;
  EXPECT_FALSE(copy.cancellation.cancelled());
  std::thread([&] { request.cancellation.cancel(); }).join();
  EXPECT_TRUE(copy.cancellation.cancelled());
}

TEST(Request, ReasonsHaveNames) {
  EXPECT_EQ(name_of(FinishReason::eos), "eos");
  EXPECT_EQ(name_of(FinishReason::no_token), "no_token");
  EXPECT_EQ(name_of(FinishReason::failed), "failed");
}

}  // namespace
}  // namespace touchstone::decode
