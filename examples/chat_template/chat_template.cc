// A conversation rendered by a chat template, and a template that is refused: the example in
// docs/chat_templates.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <iostream>

int main() {
  using namespace touchstone;
  const io::ChatTemplate chat(R"({{ bos_token }}{% for message in messages %}
<|{{ message.role }}|>{{ message.content | trim }}<|end|>
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{%- endif %})");
  std::cout << chat.render({.messages = io::TemplateValue::from_json(
                                R"([{"role": "system", "content": "Be brief."},
                                    {"role": "user", "content": " Hello! "}])"),
                            .add_generation_prompt = true,
                            .bos_token = "<s>"})
            << '\n';

  try {
    const io::ChatTemplate refused("{% for m in messages %}\n{{ m.content | shout }}{% endfor %}");
  } catch (const io::TemplateError& error) {
    std::cout << error.what() << '\n';  // chat template:2:16: unknown filter 'shout'
  }
}
// [snippet]
