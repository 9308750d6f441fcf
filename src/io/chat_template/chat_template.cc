#include "touchstone/io/chat_template.h"

#include "io/chat_template/lexer.h"
#include "io/chat_template/parser.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"
#include "io/json_document.h"
#include "io/utf8.h"

namespace touchstone::inline v0::io {
namespace {

const char* fault_prefix(TemplateFault fault) {
  return fault == TemplateFault::raised ? "the template raised: " : "";
}

// Of raise_exception it is any text the template makes: one line that fits a terminal.
std::string shown(const std::string& problem) {
  constexpr std::size_t kMaxBytes = 4096;
  if (!is_valid_utf8(problem)) return "(not UTF-8)";
  const std::string line = chat::one_line(problem);
  if (line.size() <= kMaxBytes) return line;
  std::size_t end = kMaxBytes;
  while ((static_cast<unsigned char>(line[end]) & 0xc0u) == 0x80u) --end;
  return line.substr(0, end) + "...";
}

// JSON of a deeper nesting is refused when it is read; a tree built by hand is refused here.
constexpr int kMaxInputDepth = 80;

chat::Value converted(chat::Runtime& runtime, const TemplateValue& value, int depth);

struct Converter {
  chat::Runtime& runtime;
  int depth;

  chat::Value operator()(std::nullptr_t) const { return chat::Value::none(); }
  chat::Value operator()(bool value) const { return chat::Value::of(value); }
  chat::Value operator()(std::int64_t value) const { return chat::Value::of(value); }
  chat::Value operator()(double value) const { return chat::Value::of(value); }
  chat::Value operator()(const std::string& text) const {
    if (!is_valid_utf8(text)) throw InvalidArgument("chat template: a variable is not UTF-8");
    return chat::Value::of_text(text);
  }
  chat::Value operator()(const TemplateValue::Array& elements) const {
    std::vector<chat::Value> items;
    items.reserve(elements.size());
    for (const TemplateValue& element : elements) {
      items.push_back(converted(runtime, element, depth + 1));
    }
    return runtime.list(std::move(items));
  }
  chat::Value operator()(const TemplateValue::Object& members) const {
    std::vector<std::pair<chat::Value, chat::Value>> all;
    all.reserve(members.size());
    for (const auto& [key, member] : members) {
      all.emplace_back((*this)(key), converted(runtime, member, depth + 1));
    }
    return runtime.dict(std::move(all));
  }
};

chat::Value converted(chat::Runtime& runtime, const TemplateValue& value, int depth) {
  if (depth > kMaxInputDepth) {
    throw InvalidArgument("chat template: variables nested deeper than " +
                          std::to_string(kMaxInputDepth) + " levels");
  }
  return std::visit(Converter{runtime, depth}, value.get());
}

TemplateValue from_document(const JsonValue& value) {
  switch (value.kind()) {
    case JsonKind::boolean:
      return TemplateValue(value.as_bool());
    case JsonKind::number:
      return value.is_integer() ? TemplateValue(value.as_int()) : TemplateValue(value.as_double());
    case JsonKind::string:
      return TemplateValue(std::string(value.as_string()));
    case JsonKind::array: {
      TemplateValue::Array elements;
      elements.reserve(value.size());
      for (const JsonValue element : value) elements.push_back(from_document(element));
      return TemplateValue(std::move(elements));
    }
    case JsonKind::object: {
      TemplateValue::Object members;
      members.reserve(value.size());
      for (const JsonValue member : value) {
        members.emplace_back(std::string(member.key()), from_document(member));
      }
      return TemplateValue(std::move(members));
    }
    case JsonKind::null:
      break;
  }
  return TemplateValue();
}

}  // namespace

TemplateValue::TemplateValue() : value_(nullptr) {}
TemplateValue::TemplateValue(std::nullptr_t) : value_(nullptr) {}
TemplateValue::TemplateValue(bool value) : value_(value) {}
TemplateValue::TemplateValue(int value) : value_(std::int64_t{value}) {}
TemplateValue::TemplateValue(std::int64_t value) : value_(value) {}
TemplateValue::TemplateValue(double value) : value_(value) {}
TemplateValue::TemplateValue(const char* value) : value_(std::string(value)) {}
TemplateValue::TemplateValue(std::string value) : value_(std::move(value)) {}
TemplateValue::TemplateValue(Array elements) : value_(std::move(elements)) {}
TemplateValue::TemplateValue(Object members) : value_(std::move(members)) {}
TemplateValue::TemplateValue(const TemplateValue& other) = default;
TemplateValue::TemplateValue(TemplateValue&& other) noexcept = default;
TemplateValue& TemplateValue::operator=(const TemplateValue& other) = default;
TemplateValue& TemplateValue::operator=(TemplateValue&& other) noexcept = default;
TemplateValue::~TemplateValue() = default;

TemplateValue TemplateValue::from_json(std::string_view text) {
  const JsonDocument document("JSON", text);
  return from_document(document.root());
}

TemplateError::TemplateError(TemplateFault fault, int line, int column, const std::string& problem)
    : CorruptData("chat template:" + std::to_string(line) + ":" + std::to_string(column) + ": " +
                  fault_prefix(fault) + shown(problem)),
      fault_(fault),
      line_(line),
      column_(column) {}

struct ChatTemplate::State {
  std::string given;
  std::string source;  // with normalized line breaks
  TemplateLimits limits;
  chat::Program program;
};

ChatTemplate::ChatTemplate(std::string_view source, const TemplateLimits& limits) {
  if (source.size() > limits.max_source_bytes) {
    throw TemplateError(TemplateFault::limit, 1, 1,
                        "the template has " + std::to_string(source.size()) + " bytes > " +
                            std::to_string(limits.max_source_bytes));
  }
  if (!is_valid_utf8(source)) {
    throw TemplateError(TemplateFault::syntax, 1, 1, "the template is not UTF-8");
  }
  auto state = std::make_unique<State>();
  state->given = source;
  state->source = chat::normalize_source(source);
  state->limits = limits;
  state->program = chat::parse(state->source, limits.max_depth);
  state_ = std::move(state);
}

ChatTemplate::ChatTemplate(ChatTemplate&& other) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&& other) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source() const { return state_->given; }

std::string ChatTemplate::render(const ChatTemplateArgs& args) const {
  chat::Runtime runtime(state_->program, state_->source, state_->limits, args.now);
  const auto define = [&](std::string_view name, const TemplateValue& value) {
    runtime.define(name, converted(runtime, value, 0));
  };
  define("messages", args.messages);
  define("tools", args.tools);
  define("documents", args.documents);
  define("add_generation_prompt", args.add_generation_prompt);
  if (args.bos_token) define("bos_token", *args.bos_token);
  if (args.eos_token) define("eos_token", *args.eos_token);
  if (const auto* members = std::get_if<TemplateValue::Object>(&args.variables.get())) {
    for (const auto& [name, value] : *members) define(name, value);
  } else if (!args.variables.is_null()) {
    throw InvalidArgument("chat template: variables: expected an object");
  }
  return runtime.render();
}

}  // namespace touchstone::inline v0::io
