// Text as Python sees it: a sequence of code points, here as UTF-8 that is valid everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone::inline v0::io::chat {

// The code point at `at`, which moves behind it.
char32_t next_code_point(std::string_view text, std::size_t& at);
std::size_t count_code_points(std::string_view text);
// Where code point number `index` begins; the end of the text for an index beyond it.
std::size_t offset_of(std::string_view text, std::size_t index);

// Where `wanted` begins, npos where it does not occur: in linear time, whatever the two are.
std::size_t find_text(std::string_view text, std::string_view wanted, std::size_t from = 0);
std::size_t find_last_text(std::string_view text, std::string_view wanted);

// str.isspace, which is also \s of the lexer.
bool is_space(char32_t code);
// str.isprintable: what repr leaves as it is.
bool is_printable(char32_t code);

// Whether a decimal digit beyond ASCII is in the text.
bool has_foreign_digit(std::string_view text);

// Without `chars`: white space.
std::string_view strip_left(std::string_view text, std::optional<std::string_view> chars = {});
std::string_view strip_right(std::string_view text, std::optional<std::string_view> chars = {});

// str.split and str.rsplit; no separator: runs of white space. limit < 0: none.
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, std::int64_t limit);
std::vector<std::string_view> split_from_right(std::string_view text,
                                               std::optional<std::string_view> separator,
                                               std::int64_t limit);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);
// count < 0: all. An empty `from` lies between all code points.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t count);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);         // str.title
std::string title_filter(std::string_view text);  // the filter of that name, which differs
bool is_lower(std::string_view text);
bool is_upper(std::string_view text);

// repr of Python.
std::string python_repr(std::string_view text);
// With escapes, as in repr, for what would break the line or steer a terminal.
std::string one_line(std::string_view text);
std::string format_double(double value);
// markupsafe.escape.
std::string escape_markup(std::string_view text);

}  // namespace touchstone::inline v0::io::chat
