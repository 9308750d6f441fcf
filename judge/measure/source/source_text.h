// What the text of C, C++ and CUDA sources says of itself, without a compiler: functions, branches,
// repeated lines, and operators that can be exchanged.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone::judge {

// The text with comments, literals and preprocessor lines blanked, every byte in its place.
std::string masked_source(const std::string& text);

struct FunctionText {
  std::string name;
  int lines = 0;
  int complexity = 1;  // 1 and one for each branch
};
std::vector<FunctionText> functions_of(const std::string& masked);

// Lines that stand in the sources more than once, in blocks of at least six that say something.
int duplicated_lines(const std::vector<std::string>& masked_sources);

// A place where one operator becomes another.
struct Mutation {
  std::size_t at = 0;
  std::size_t length = 0;
  std::string by;
};
std::vector<Mutation> mutations_of(const std::string& masked);
// At most `most`, spread over the file, the same ones every time.
std::vector<Mutation> spread(const std::vector<Mutation>& all, std::size_t most);

struct TestText {
  int tests = 0;
  int asserts = 0;  // places that can fail a test
};
TestText tests_of(const std::string& masked);

}  // namespace touchstone::judge
