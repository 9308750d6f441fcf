// Chat templates.
#include "touchstone/io/chat_template.h"

#include "c_api/border.h"

struct ts_chat_template {
  touchstone::io::ChatTemplate value;
};

namespace touchstone::c_api {
namespace {

io::TemplateValue json(const char* text, const char* name) {
  if (text == nullptr) return {};
  try {
    return io::TemplateValue::from_json(text);
  } catch (const Error& error) {
    throw InvalidArgument("chat_template_render: " + std::string(name) + ": " + error.what());
  }
}

std::optional<std::string> token(const char* text) {
  return text == nullptr ? std::nullopt : std::optional<std::string>(text);
}

io::ChatTemplateArgs converted(const ts_chat_template_args* given) {
  const ts_chat_template_args args =
      current(given, "chat_template_render", sizeof(ts_chat_template_args), TS_CHAT_TEMPLATE_ARGS);
  checked(args.messages, "chat_template_render: messages");
  io::ChatTemplateArgs result;
  result.messages = json(args.messages, "messages");
  result.tools = json(args.tools, "tools");
  result.documents = json(args.documents, "documents");
  result.variables = json(args.variables, "variables");
  result.bos_token = token(args.bos_token);
  result.eos_token = token(args.eos_token);
  result.add_generation_prompt = flag(args.add_generation_prompt);
  if (flag(args.has_now)) result.now = args.now;
  return result;
}

}  // namespace
}  // namespace touchstone::c_api

using touchstone::c_api::checked;
using touchstone::c_api::guarded;

ts_status ts_chat_template_create(const char* source, int64_t bytes, ts_chat_template** result) {
  return guarded([&] {
    ts_chat_template*& place = checked(result, "chat_template_create: result");
    const auto text = touchstone::c_api::list(source, bytes, "chat_template_create: source");
    place = new ts_chat_template{touchstone::io::ChatTemplate({text.data(), text.size()})};
  });
}

ts_status ts_chat_template_open(const char* path, ts_chat_template** result) {
  return guarded([&] {
    ts_chat_template*& place = checked(result, "chat_template_open: result");
    checked(path, "chat_template_open: path");
    const std::optional<std::string> source = touchstone::io::read_chat_template(path);
    if (!source) throw touchstone::Unsupported(std::string(path) + ": no chat template");
    place = new ts_chat_template{touchstone::io::ChatTemplate(*source)};
  });
}

void ts_chat_template_destroy(ts_chat_template* chat_template) { delete chat_template; }

ts_status ts_chat_template_render(const ts_chat_template* chat_template,
                                  const ts_chat_template_args* args, ts_text text, void* user) {
  return guarded([&] {
    if (text == nullptr) {
      throw touchstone::InvalidArgument("chat_template_render: text: is NULL");
    }
    const std::string output = checked(chat_template, "chat_template_render: chat_template")
                                   .value.render(touchstone::c_api::converted(args));
    text(user, output.data(), static_cast<int64_t>(output.size()));
  });
}
