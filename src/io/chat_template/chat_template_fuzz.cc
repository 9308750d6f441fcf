// The fuzz target: any bytes are a template, which is parsed and rendered with small limits.
// chat_template_mutation_test.cc calls it with mutations; under libFuzzer (preset fuzz, needs
// Clang):
//   cmake --preset fuzz && cmake --build --preset fuzz --target fuzz_chat_template
//   build/fuzz/fuzz_chat_template -timeout=1 -dict=src/io/chat_template/testdata/jinja.dict
//     -max_total_time=60 CORPUS src/io/chat_template/testdata/corpus
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "touchstone/io/chat_template.h"

namespace {

constexpr touchstone::io::TemplateLimits kLimits = {.max_source_bytes = 1 << 16,
                                                    .max_output_bytes = 1 << 20,
                                                    .max_steps = 100'000,
                                                    .max_depth = 400};

const touchstone::io::ChatTemplateArgs& arguments() {
  using touchstone::io::TemplateValue;
  static const touchstone::io::ChatTemplateArgs kArguments = {
      .messages = TemplateValue::from_json(R"([
          {"role": "system", "content": "S\u00e9 <&>"}, {"role": "user", "content": [{"text": "a"}]},
          {"role": "assistant", "content": null,
           "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, -2.5]}}}]}])"),
      .tools = TemplateValue::from_json(R"([{"function": {"name": "f", "description": "d\ne",
          "parameters": {"type": "object", "properties": {"x": {"type": "array",
          "items": {"type": "string"}}}, "required": ["x"]}}}])"),
      .documents = {},
      .add_generation_prompt = true,
      .bos_token = "<s>",
      .eos_token = {},
      .variables = {},
      .now = 1'780'000'000};
  return kArguments;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const touchstone::io::ChatTemplate chat(source, kLimits);
    const std::string text = chat.render(arguments());
    if (text.size() > kLimits.max_output_bytes) std::abort();
  } catch (const touchstone::io::TemplateError& error) {
    // One line that names a place within the template.
    if (error.line() < 1 || error.column() < 1) std::abort();
  }
  return 0;
}
