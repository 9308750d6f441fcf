// Objects: properties in the order of the schema, each of them there or not.
#include <fmt/format.h>

#include <algorithm>

#include "decode/grammar/json_schema.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode::grammar {
namespace {

struct Property {
  std::string name;
  std::string rule;
  bool required = false;
};

// The characters of UTF-8 text, each as bytes.
std::vector<std::string> characters(std::string_view text) {
  std::vector<std::string> out;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) out.emplace_back();
    out.back() += c;
  }
  return out;
}

}  // namespace

std::string SchemaWriter::visit_object(const Value& schema, const std::string& hint) {
  if (options_.whitespace == JsonWhitespace::any) shared("json-space");
  std::vector<std::string> required;
  if (const auto list = schema.find("required")) {
    if (!list->is_array()) list->fail("expected a list of names");
    for (const Value name : *list) required.emplace_back(name.as_string());
  }
  std::vector<Property> properties;
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, const std::string& value, bool is_required) {
    names.push_back(name);
    const std::string rule =
        add_rule(hint + "-" + name,
                 fmt::format("{} {} {}", gbnf_literal(io::json_quote(name)), colon(), value));
    properties.push_back({name, rule, is_required});
  };
  if (const auto list = schema.find("properties")) {
    if (!list->is_object()) list->fail("expected an object");
    for (const Value property : *list) {
      const std::string name(property.key());
      add(name, visit(property, hint + "-" + name), std::ranges::count(required, name) != 0);
    }
  }
  const auto others = schema.find("additionalProperties");
  for (const std::string& name : required) {
    if (std::ranges::count(names, name) != 0) continue;
    if (others && others->is_bool() && !others->as_bool()) {
      schema.at("required").fail(fmt::format("'{}' is no property", shown_name(name)));
    }
    const bool any = !others || others->is_bool();
    add(name, any ? shared("json-value") : visit(*others, hint + "-" + name), true);
  }
  const std::string additional = additional_property(schema, names, hint);
  std::string first = R"("")";
  std::string rest;
  if (!additional.empty()) {
    rest = add_rule(hint + "-rest", fmt::format("({} {})*", comma(), additional));
    first = add_rule(hint + "-first", fmt::format("({} {})?", additional, rest));
  }
  // From the last to the first: what may follow with a comma, and what may come without one.
  for (auto property = properties.rbegin(); property != properties.rend(); ++property) {
    const std::string with_comma = fmt::format("({} {})", comma(), property->rule);
    const std::string begin = fmt::format("{} {}", property->rule, rest);
    first = property->required ? add_rule(hint + "-first", begin)
                               : add_rule(hint + "-first", fmt::format("{} | {}", begin, first));
    rest = add_rule(hint + "-rest",
                    fmt::format("{}{} {}", with_comma, property->required ? "" : "?", rest));
  }
  return add_rule(hint, fmt::format(R"("{{" {} {} {} "}}")", inside(), first, inside()));
}

std::string SchemaWriter::additional_property(const Value& schema,
                                              const std::vector<std::string>& names,
                                              const std::string& hint) {
  const auto others = schema.find("additionalProperties");
  if (others && others->is_bool() && !others->as_bool()) return "";
  if (!others && !names.empty()) return "";
  const std::string value =
      !others || others->is_bool() ? shared("json-value") : visit(*others, hint + "-other");
  const std::string key = names.empty() ? shared("json-string") : other_keys(names, hint);
  return add_rule(hint + "-other", fmt::format("{} {} {}", key, colon(), value));
}

// Keys that are none of the names: a trie of the names, left at any character. Without escapes, by
// which a name could be written in another way.
std::string SchemaWriter::other_keys(const std::vector<std::string>& names,
                                     const std::string& hint) {
  constexpr std::string_view kPlain = R"([^"\\\x00-\x1f])";
  struct Node {
    std::vector<std::pair<std::string, std::size_t>> next;
    bool is_name = false;
  };
  std::vector<Node> trie(1);
  for (const std::string& name : names) {
    std::size_t at = 0;
    for (const std::string& c : characters(name)) {
      const auto known =
          std::ranges::find(trie[at].next, c, &std::pair<std::string, std::size_t>::first);
      if (known != trie[at].next.end()) {
        at = known->second;
        continue;
      }
      trie[at].next.emplace_back(c, trie.size());
      at = trie.size();
      trie.emplace_back();
    }
    trie[at].is_name = true;
  }
  std::vector<std::string> rules(trie.size());
  for (std::size_t i = trie.size(); i-- > 0;) {  // children have larger numbers
    std::vector<std::string> parts;
    std::string taken;
    for (const auto& [c, child] : trie[i].next) {
      const auto byte = static_cast<unsigned char>(c[0]);
      if (c.size() == 1 && (byte < 0x20 || c == "\"" || c == "\\")) continue;  // only escaped
      parts.push_back(fmt::format("{} {}", gbnf_literal(c), rules[child]));
      if (c == "]" || c == "-" || c == "^" || c == "[") taken += '\\';
      taken += c;
    }
    parts.push_back(fmt::format(R"([^"\\\x00-\x1f{}] {}* "\"")", taken, kPlain));
    if (!trie[i].is_name) parts.emplace_back(R"("\"")");
    rules[i] = add_rule(hint + "-key", fmt::format("{}", fmt::join(parts, " | ")));
  }
  return fmt::format(R"("\"" {})", rules[0]);
}

}  // namespace touchstone::inline v0::decode::grammar
