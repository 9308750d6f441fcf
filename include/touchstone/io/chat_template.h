// Chat templates: the Jinja subset that the templates of published models are written in, parsed
// once and rendered for a conversation.
//
//   const io::ChatTemplate chat(template_text);
//   std::string prompt = chat.render({.messages = io::TemplateValue::from_json(messages),
//                                     .add_generation_prompt = true,
//                                     .bos_token = "<s>", .eos_token = "</s>"});
//
// The output is that of jinja2 3.1.6 with the settings of Hugging Face transformers
// (ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loop controls, the `generation` tag,
// its tojson, raise_exception, strftime_now), byte for byte. Where jinja2 raises, render throws.
// Constructs outside of the subset are refused with line and column, by the constructor where it
// can detect them, else by render. There is no fallback template.
//
// Templates may be hostile: sizes, nesting and work are limited (TemplateLimits), and exceeding a
// limit is one error. A template is immutable: any number of threads may render it at once.
// Nothing is read from the environment, the clock or the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "touchstone/core/error.h"
#include "touchstone/core/export.h"

namespace touchstone::inline v0::io {

// A variable of a template: a JSON value, with the members of objects in their order.
class TOUCHSTONE_API TemplateValue {
 public:
  using Array = std::vector<TemplateValue>;
  using Object = std::vector<std::pair<std::string, TemplateValue>>;
  using Variant =
      std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object>;

  TemplateValue();
  TemplateValue(std::nullptr_t);      // NOLINT(google-explicit-constructor): reads as literals
  TemplateValue(bool value);          // NOLINT(google-explicit-constructor)
  TemplateValue(int value);           // NOLINT(google-explicit-constructor)
  TemplateValue(std::int64_t value);  // NOLINT(google-explicit-constructor)
  TemplateValue(double value);        // NOLINT(google-explicit-constructor)
  TemplateValue(const char* value);   // NOLINT(google-explicit-constructor)
  TemplateValue(std::string value);   // NOLINT(google-explicit-constructor)
  TemplateValue(Array elements);      // NOLINT(google-explicit-constructor)
  TemplateValue(Object members);      // NOLINT(google-explicit-constructor)
  TemplateValue(const TemplateValue& other);
  TemplateValue(TemplateValue&& other) noexcept;
  TemplateValue& operator=(const TemplateValue& other);
  TemplateValue& operator=(TemplateValue&& other) noexcept;
  ~TemplateValue();

  // CorruptData for text that is not JSON, is not UTF-8, names a key twice or is nested deeper than
  // 64 levels. Whole numbers beyond 64 bits become floating point.
  static TemplateValue from_json(std::string_view text);

  const Variant& get() const { return value_; }
  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }

 private:
  Variant value_;
};

// Rendering allocates at most this many bytes per step, and twice the bytes of the output.
inline constexpr std::size_t kTemplateBytesPerStep = 64;

struct TemplateLimits {
  // A parsed template takes at most 256 bytes of memory per byte of its source.
  std::size_t max_source_bytes = std::size_t{1} << 20;
  // Of one rendering.
  std::size_t max_output_bytes = std::size_t{64} << 20;
  // One step is one evaluated node, or 16 bytes of text or of elements created.
  std::int64_t max_steps = 16'000'000;
  // Nested statements, expressions and calls of macros. One level takes at most 1 KB of stack.
  int max_depth = 1500;
};

enum class TemplateFault : std::uint8_t {
  syntax,       // not a template
  unsupported,  // a construct of Jinja or Python that this subset leaves out
  runtime,      // an operation on values that do not have it, where jinja2 raises, too
  raised,       // raise_exception of the template
  limit,        // one of TemplateLimits
};

// "chat template:12:5: unknown filter 'shout'". Line and column count from 1, columns in bytes of
// the text with every line break as one byte.
class TOUCHSTONE_API TemplateError : public CorruptData {
 public:
  TemplateError(TemplateFault fault, int line, int column, const std::string& problem);
  TemplateFault fault() const { return fault_; }
  int line() const { return line_; }
  int column() const { return column_; }

 private:
  TemplateFault fault_;
  int line_;
  int column_;
};

struct ChatTemplateArgs {
  TemplateValue messages = {};   // an array of objects with role, content, ...
  TemplateValue tools = {};      // null is none, as the templates expect it
  TemplateValue documents = {};  // null is none
  bool add_generation_prompt = false;
  // Absent: undefined in the template.
  std::optional<std::string> bos_token = {};
  std::optional<std::string> eos_token = {};
  // An object (or null): every other variable, such as enable_thinking. Overrides the fields
  // above.
  TemplateValue variables = {};
  // The time of strftime_now: seconds since 1970 in the local time zone. Without it a template that
  // calls strftime_now fails.
  std::optional<std::int64_t> now = {};
};

class TOUCHSTONE_API ChatTemplate {
 public:
  // TemplateError with the line and column of the fault.
  explicit ChatTemplate(std::string_view source, const TemplateLimits& limits = {});
  ChatTemplate(ChatTemplate&& other) noexcept;
  ChatTemplate& operator=(ChatTemplate&& other) noexcept;
  ~ChatTemplate();

  // TemplateError for faults of the template and exceeded limits; InvalidArgument for variables
  // that are not an object or text that is not UTF-8.
  std::string render(const ChatTemplateArgs& args) const;

  const std::string& source() const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

// The source of a model's template; nothing where it has none. Of a folder chat_template.jinja,
// else chat_template of tokenizer_config.json (of a list the one named "default"; Unsupported
// without); of a file of weights in such a folder the same; of a GGUF file the key
// tokenizer.chat_template. FileError, CorruptData.
TOUCHSTONE_API std::optional<std::string> read_chat_template(const std::filesystem::path& path);

}  // namespace touchstone::inline v0::io
