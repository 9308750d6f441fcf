#include "touchstone/io/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "io/fuzz/allocation_count.h"
#include "io/json_document.h"

namespace touchstone::io {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kNow = 1783155903;  // 2026-07-04 09:05:03, as in the golden file

TemplateValue value_of(const JsonValue& json) {
  switch (json.kind()) {
    case JsonKind::boolean:
      return json.as_bool();
    case JsonKind::number:
      return json.is_integer() ? TemplateValue(json.as_int()) : TemplateValue(json.as_double());
    case JsonKind::string:
      return std::string(json.as_string());
    case JsonKind::array: {
      TemplateValue::Array elements;
      for (const JsonValue element : json) elements.push_back(value_of(element));
      return elements;
    }
    case JsonKind::object: {
      TemplateValue::Object members;
      for (const JsonValue member : json) {
        members.emplace_back(std::string(member.key()), value_of(member));
      }
      return members;
    }
    case JsonKind::null:
      break;
  }
  return nullptr;
}

std::string rendered(std::string_view source, const ChatTemplateArgs& args = {},
                     const TemplateLimits& limits = {}) {
  return ChatTemplate(source, limits).render(args);
}

// The error of parsing or rendering; a test fails where there is none.
TemplateError error_of(std::string_view source, const ChatTemplateArgs& args = {},
                       const TemplateLimits& limits = {}) {
  try {
    const std::string text = rendered(source, args, limits);
    ADD_FAILURE() << "rendered '" << text.substr(0, 100) << "'";
  } catch (const TemplateError& error) {
    return error;
  }
  return {TemplateFault::syntax, 0, 0, ""};
}

TEST(ChatTemplate, RendersAsJinja2Does) {
  std::ostringstream text;
  text << std::ifstream(TOUCHSTONE_CHAT_TESTDATA "/golden.json", std::ios::binary).rdbuf();
  const JsonDocument golden("golden.json", text.str());
  ChatTemplateArgs args;
  args.add_generation_prompt = true;
  args.variables = value_of(golden.root().at("context"));
  args.now = kNow;
  int compared = 0;
  for (const JsonValue entry : golden.root().at("cases")) {
    const std::string source(entry.at("template").as_string());
    SCOPED_TRACE(source);
    ++compared;
    if (entry.at("output").is_null()) {
      EXPECT_THROW(rendered(source, args), TemplateError);
    } else {
      EXPECT_EQ(rendered(source, args), entry.at("output").as_string());
    }
  }
  EXPECT_GT(compared, 180);
}

// What jinja2 has and this subset has not must not pass for undefined.
TEST(ChatTemplate, RefusesWhatWouldBeUndefined) {
  for (const char* source :
       {"{{ self }}", "{{ joiner is defined }}", "{{ cycler }}", "{{ lipsum is defined }}",
        "{% macro m() %}{% endmacro %}{{ m.arguments }}", "{{ '\uff11\uff12' | int }}",
        "{{ '\u0661' | float }}"}) {
    EXPECT_EQ(error_of(source).fault(), TemplateFault::unsupported) << source;
  }
  EXPECT_EQ(error_of("a\n{{ x }}{{ self }}").column(), 11);
  EXPECT_EQ(rendered("{% set self = 1 %}{{ self }}{{ joiner }}",
                     {.variables = TemplateValue::Object{{"joiner", "j"}}}),
            "1j");
  EXPECT_EQ(rendered("{{ '\u00e9' | int }}{{ '\u00bd' | int(7) }}"), "07");
}

TEST(ChatTemplate, TakesItsArguments) {
  const std::string_view source =
      "{{ bos_token }}|{{ eos_token is defined }}|{{ tools }}|{{ messages[0].n }}|{{ x }}|"
      "{{ add_generation_prompt }}";
  EXPECT_EQ(rendered(source, {.messages = TemplateValue::Array{TemplateValue::Object{{"n", 5}}},
                              .bos_token = "<s>",
                              .variables = TemplateValue::Object{{"x", "y"}}}),
            "<s>|False|None|5|y|False");
  EXPECT_EQ(rendered("{{ bos_token }}",
                     {.bos_token = "a", .variables = TemplateValue::Object{{"bos_token", "b"}}}),
            "b");
  EXPECT_THROW(rendered("x", {.variables = TemplateValue::Array{}}), InvalidArgument);
  EXPECT_THROW(rendered("x{{ v }}", {.variables = TemplateValue::Object{{"v", "\xff"}}}),
               InvalidArgument);
  TemplateValue nested = 1;
  for (int i = 0; i < 200; ++i) nested = TemplateValue::Array{nested};
  EXPECT_THROW(rendered("{{ messages }}", {.messages = nested}), InvalidArgument);
  EXPECT_EQ(ChatTemplate("a\r\nb\n").source(), "a\r\nb\n");
}

TEST(ChatTemplate, ReadsJson) {
  const TemplateValue value = TemplateValue::from_json(R"({"b": [1, 2.5, null], "a": "\u00e9"})");
  EXPECT_EQ(rendered("{{ messages | tojson }}", {.messages = value}),
            R"({"b": [1, 2.5, null], "a": "é"})");
  EXPECT_THROW(TemplateValue::from_json("[1,"), CorruptData);
}

struct Refused {
  const char* source;
  TemplateFault fault;
  int line;
  int column;
  const char* part;
};

TEST(ChatTemplate, RefusesWithAPlace) {
  const Refused cases[] = {
      {"a\n{{ x | shout }}", TemplateFault::unsupported, 2, 8, "unknown filter 'shout'"},
      {"{{ x is odd_ish }}", TemplateFault::unsupported, 1, 9, "unknown test 'odd_ish'"},
      {"{{ x | map('shout') }}", TemplateFault::unsupported, 1, 12, "unknown filter 'shout'"},
      {"{{ x | groupby('a') }}", TemplateFault::unsupported, 1, 8, "'groupby'"},
      {"\n\n {% include 'x' %}", TemplateFault::unsupported, 3, 5, "'include' is not supported"},
      {"{% import 'x' as y %}", TemplateFault::unsupported, 1, 4, "'import'"},
      {"{% do x %}", TemplateFault::unsupported, 1, 4, "'do'"},
      {"{% nonsense %}", TemplateFault::syntax, 1, 4, "unknown tag 'nonsense'"},
      {"{{ 99999999999999999999 }}", TemplateFault::unsupported, 1, 4, "64 bits"},
      {"{{ 'a\\N{DASH}' }}", TemplateFault::unsupported, 1, 7, "by name"},
      {"{{ 'x'.encode() }}", TemplateFault::unsupported, 1, 8, "'encode'"},
      {"{{ 9223372036854775807 + 1 }}", TemplateFault::unsupported, 1, 24, "64 bits"},
      {"{{ '{:>5}'.format(1) }}", TemplateFault::unsupported, 1, 18, "format specifications"},
      {"{% if x %}", TemplateFault::syntax, 1, 11, "before 'endif'"},
      {"x{{ 1 ? 2 }}", TemplateFault::syntax, 1, 7, "unexpected character '?'"},
      {"{{ raise_exception('no') }}", TemplateFault::raised, 1, 19, "the template raised: no"},
      {"{{ strftime_now('%Y') }}", TemplateFault::runtime, 1, 16, "the time was not given"},
      {"a\n  {{ messages.x.y }}", TemplateFault::runtime, 2, 17, "'x' is undefined"},
      {"\xff", TemplateFault::syntax, 1, 1, "not UTF-8"}};
  for (const Refused& expected : cases) {
    SCOPED_TRACE(expected.source);
    const TemplateError error = error_of(expected.source);
    EXPECT_EQ(error.fault(), expected.fault);
    EXPECT_EQ(error.line(), expected.line);
    EXPECT_EQ(error.column(), expected.column);
    EXPECT_THAT(error.what(), HasSubstr(expected.part));
    EXPECT_THAT(error.what(), HasSubstr("chat template:" + std::to_string(expected.line) + ":"));
  }
}

std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(ChatTemplate, EndsHostileTemplatesWithOneError) {
  const std::vector<std::string> hostile = {
      repeated("{% for i in range(99999) %}", 9) + repeated("{% endfor %}", 9),
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(s=[0]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(s=[]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}",
      "{% set ns = namespace(s='a') %}{% for i in range(9999) %}{% set ns.s = ns.s | map('upper') "
      "%}"
      "{% endfor %}",
      "{{ 'a' * 999999999999 }}",
      "{{ [1] * 999999999999 }}",
      "{{ 'a' | center(999999999999) }}",
      "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}",
      "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
      "{{ [[1]] | tojson(indent=999999999) }}",
      "{{ [['a' * 100000] * 100] * 100 }}",
      "{{ ('a' * 100000) | list | join('b' * 100000) }}",
      "{{ ('\\n' * 100000) | indent('b' * 100000, blank=true) }}",
      "{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}",
      "{{ " + repeated("[", 5000) + repeated("]", 5000) + " }}",
      "{{ " + repeated("-", 5000) + "1 }}",
      "{{ " + repeated("not ", 5000) + "1 }}",
      "{{ 1" + repeated(" + 1", 5000) + " }}",
      "{{ x" + repeated(".y", 5000) + " }}",
      "{{ x" + repeated("|upper", 5000) + " }}",
      "{{ f" + repeated("(x=1" + repeated("+1", 500), 150) + repeated(")", 150) + " }}",
      repeated("{% if 1 %}", 5000) + repeated("{% endif %}", 5000),
      "{% for a" + repeated(", (a", 5000) + repeated(")", 5000) + " in [] %}{% endfor %}",
  };
  for (const std::string& source : hostile) {
    SCOPED_TRACE(source.substr(0, 120));
    EXPECT_EQ(error_of(source, {}, {.max_steps = 1'000'000}).fault(), TemplateFault::limit);
  }
  EXPECT_EQ(error_of(std::string(100, 'x'), {}, {.max_source_bytes = 99}).fault(),
            TemplateFault::limit);
  EXPECT_EQ(error_of(std::string(100, 'x'), {}, {.max_output_bytes = 99}).fault(),
            TemplateFault::limit);
}

// With the limits that callers have, and fewer steps where that takes nothing away. What is allocated counts whether it is released or not, so that
// the time it takes is bounded with it.
TEST(ChatTemplate, BoundsMemoryAndTime) {
  const std::string name(200'000, 'n');
  std::string variables;
  for (int i = 0; i < 20'000; ++i) variables += "{% set v" + std::to_string(i) + "=1 %}";
  std::string parameters;
  std::string keywords;
  for (int i = 0; i < 30'000; ++i) {
    parameters += (i == 0 ? "p" : ",p") + std::to_string(i);
    keywords += (i == 0 ? "p" : ",p") + std::to_string(i) + "=1";
  }
  const std::string often = "{% for i in range(1000) %}{% for j in range(1000) %}";
  const std::string ends = "{% endfor %}{% endfor %}";
  const std::vector<std::string> hostile = {
      "{{ range(100) | list | tojson(separators=('x' * 60000000, ':')) | length }}",
      "{{ {'a': 1, 'b': {'c': 2}} | tojson(separators=(',', ':' * 6000000)) }}",
      "{{ range(100) | list | tojson(indent='x' * 6000000) }}",
      "{% set s = 'x' * 6000000 %}" + often + "{{ 1 | tojson(separators=(s, s)) }}" + ends,
      "{% set " + name + " = namespace() %}{{ [" + name + "] * 10000 }}" + often + "{{ [" + name +
          "] * 10000 }}" + ends,
      "{% macro " + name + "() %}{% endmacro %}" + often + "{{ " + name + " }}" + ends,
      "{% macro " + name + "() %}{% endmacro %}" + often + "{% set x = " + name + "() %}" + ends,
      "{% set ns = namespace() %}{% set ns." + name + " = 1 %}" + often + "{{ ns }}" + ends,
      "{% set ns = namespace() %}{% set ns." + name + " = 1 %}" + often + "{% set x = ns." + name +
          " %}" + ends,
      "{% set d = {'n' * 200000: 1} %}{% set k = 'n' * 200000 %}" + often + "{% set x = d[k] %}" +
          ends,
      "{% set d = {'n' * 6000000: 1} %}" + often + "{% set x = namespace(d) %}" + ends,
      "{% set d = {'n' * 6000000: 1} %}" + often + "{% set x = dict(**d) %}" + ends,
      variables + often + "{% set x = v19999 %}" + ends,
      "{% macro m(" + parameters + ") %}{% endmacro %}" + often + "{% set x = m() %}" + ends,
      "{% macro m(" + parameters + ") %}{% endmacro %}{{ m(" + keywords + ") }}",
      "{% set ns = namespace(t=(1,)) %}{% for i in range(90) %}{% set ns.t = (ns.t, ns.t) %}"
      "{% endfor %}{{ {ns.t: 1} }}",
      "{{ ('a' * 6000000).split('a') | length }}",
      "{{ ('\\n' * 6000000).splitlines() | length }}",
      "{{ [1] | sort(attribute=',' * 6000000) }}",
      "{{ [1] | map(attribute='.' * 6000000) | list }}",
      "{{ ('{p29999}' * 1000000).format(" + keywords + ") }}",
      "{% set s = 'a' * 6000000 %}" + often + "{% set x = 'b'.strip(s) %}" + ends,
      "{% set s = 'a' * 6000000 %}" + often + "{% set x = 'b'.rfind(s) %}" + ends,
      "{% set s = 'a' * 6000000 %}" + often + "{% set x = s is sameas('a' * 6000000) %}" + ends,
  };
  for (const std::string& source : hostile) {
    TemplateLimits limits;
    if (source.find("60000000") == std::string::npos) limits.max_steps = 2'000'000;
    SCOPED_TRACE(source.substr(0, 60) + " ... " + source.substr(source.size() - 30));
    const ChatTemplate chat(source, limits);
    reset_allocated_bytes();
    const std::clock_t start = std::clock();
    try {
      chat.render({});
      ADD_FAILURE() << "rendered";
    } catch (const TemplateError& error) {
      EXPECT_EQ(error.fault(), TemplateFault::limit) << error.what();
    }
    EXPECT_LE(allocated_bytes(),
              kTemplateBytesPerStep * static_cast<std::size_t>(limits.max_steps) +
                  2 * limits.max_output_bytes);
    // Under a second; a sanitizer's code takes many times as long.
    EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
  }
}

// What a parsed template takes is at most what parsing allocates, released or not.
TEST(ChatTemplate, ParsesInBoundedMemory) {
  for (const char* piece :
       {"{{a}}", "{{1}}", "{{''}}", "{{[]}}", "{{a.b}}", "{{-a}}", "{{a|e}}", "{{a(b=1)}}",
        "{{a()}}", "{{a[::]}}", "{%if a%}{%endif%}", "{%set a=1%}", "{%for a in b%}{%endfor%}",
        "{%macro a()%}{%endmacro%}", "{{a<b<c}}", "{{a~b~c}}", "{{ {1:2} }}", "x{#x#}"}) {
    const std::string source = repeated(piece, 10'000);
    reset_allocated_bytes();
    const ChatTemplate chat(source);
    EXPECT_LE(allocated_bytes(), 2 * 256 * source.size())
        << piece << " " << allocated_bytes() / source.size();
  }
}

TEST(ChatTemplate, RaisesOneLine) {
  EXPECT_STREQ(error_of("{{ raise_exception('a\\nb\\x1b[2J\\u202e\u009b' ~ '\u00e9') }}").what(),
               "chat template:1:19: the template raised: a\\nb\\x1b[2J\\u202e\\x9bé");
  EXPECT_LT(std::string(error_of("{{ raise_exception('é' * 100000) }}").what()).size(), 5000U);
}

// A text that is searched for in a text full of near misses.
TEST(ChatTemplate, SearchesInLinearTime) {
  EXPECT_EQ(rendered("{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 ~ 'b' %}"
                     "{{ b in a }}{{ a.find(b) }}{{ a.rfind(b) }}{{ a.count(b) }}"
                     "{{ a.split(b) | length }}{{ a.replace(b, '') | length }}"),
            "False-1-1011000000");
}

TEST(ChatTemplate, RendersOnManyThreads) {
  const ChatTemplate chat(
      "{% macro m(x) %}{{ x ~ 'é' }}{% endmacro %}{% for i in range(50) %}{{ m(i) }}{% endfor %}");
  const std::string expected = chat.render({});
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  for (std::string& text : texts) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) text = chat.render({});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, expected);
}

}  // namespace
}  // namespace touchstone::io
