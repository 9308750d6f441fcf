#include "text/shell_quote.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>

namespace touchstone::inline v0 {
namespace {

// What `sh` passes to a program for `word`.
std::string read_by_shell(const std::string& word) {
  const std::string command = "printf %s " + word;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  std::array<char, 256> buffer{};
  std::size_t got = 0;
  while ((got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0) text.append(buffer.data(), got);
  pclose(pipe);
  return text;
}

TEST(ShellQuote, PlainWords_StayAsTheyAre) {
  EXPECT_EQ(shell_quoted("--case"), "--case");
  EXPECT_EQ(shell_quoted("a/b.c-d_e,f:g=h"), "a/b.c-d_e,f:g=h");
}

TEST(ShellQuote, EmptyWord_IsQuoted) { EXPECT_EQ(shell_quoted(""), "''"); }

TEST(ShellQuote, AnyWord_IsReadBackByAShell) {
  for (const std::string word :
       {"it's", "'", "a b", "$HOME", "`id`", "a\\b", "\"", "*", "~", "#x", "a\nb", "!!", "{a,b}"}) {
    EXPECT_EQ(read_by_shell(shell_quoted(word)), word);
  }
}

}  // namespace
}  // namespace touchstone::inline v0
