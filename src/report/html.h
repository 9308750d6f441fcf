// Text in HTML, XML and SVG documents.
#pragma once

#include <string>
#include <string_view>

namespace touchstone::report {

// Text that is safe as content and as the value of an attribute, in HTML and in XML. Control
// characters and bytes that are not UTF-8 become U+FFFD: they make a document unreadable.
std::string escaped(std::string_view text);

}  // namespace touchstone::report
