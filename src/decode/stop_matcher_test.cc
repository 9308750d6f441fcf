#include "decode/stop_matcher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace touchstone::decode {
namespace {

struct Found {
  std::string text;
  std::int32_t index = -1;
  friend bool operator==(const Found&, const Found&) = default;
};

// The text in pieces of `size` bytes; nothing that is shown may be taken back.
Found feed(const std::vector<std::string>& stops, const std::string& text, std::size_t size,
           bool include_stop = false) {
  StopMatcher matcher(stops, include_stop);
  Found found;
  for (std::size_t i = 0; i < text.size() && matcher.found() < 0; i += size) {
    found.text += matcher.next(text.substr(i, size));
  }
  found.text += matcher.finish();
  found.index = matcher.found();
  return found;
}

TEST(StopMatcher, TheSameForAnyPieces) {
  const std::vector<std::string> stops = {"\n\nUser:", "ababc", "abc", "END"};
  for (std::size_t size = 1; size < 12; ++size) {
    EXPECT_EQ(feed(stops, "abababc and more", size), (Found{"ab", 1})) << size;
    EXPECT_EQ(feed(stops, "abababc and more", size, true), (Found{"abababc", 1})) << size;
    EXPECT_EQ(feed(stops, "x abc END", size), (Found{"x ", 2})) << size;
    EXPECT_EQ(feed(stops, "fine.\n\nUser: hi", size), (Found{"fine.", 0})) << size;
    EXPECT_EQ(feed(stops, "fine.\n\nUse EN abab", size), (Found{"fine.\n\nUse EN abab", -1}))
        << size;
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  const std::vector<std::string> stops = {"stop"};
  StopMatcher matcher(stops, false);
  EXPECT_EQ(matcher.next("a st"), "a ");
  EXPECT_EQ(matcher.next("ay"), "stay");
  EXPECT_EQ(matcher.next("sto"), "");
  EXPECT_EQ(matcher.finish(), "sto");
}

}  // namespace
}  // namespace touchstone::decode
