// What a call that must be refused may do: throw InvalidArgument with one line that begins so.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>

#include "touchstone/core/error.h"

namespace touchstone::test {

// One wrong argument: what is wrong, what the message names or begins with, and how it is made.
template <class Args>
struct Mistake {
  std::string name;
  std::string argument;
  std::function<void(Args&)> make;
  bool not_for_all = false;  // of several operators in one test some have no such argument
};

template <class Call>
void expect_refusal(const std::string& prefix, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected InvalidArgument '" << prefix << "...'";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.substr(0, prefix.size()), prefix) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected InvalidArgument, got another exception: " << error.what();
  }
}

}  // namespace touchstone::test
