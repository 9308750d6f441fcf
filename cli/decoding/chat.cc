// A conversation with a model: history, streaming, Ctrl-C.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>
#include <string>

#include "cli/decoding/generate.h"
#include "cli/decoding/speculate.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/core/error.h"
#include "touchstone/io/chat_template.h"

namespace touchstone::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int /*signal*/) { g_interrupted = 1; }

// Ctrl-C sets a flag while this lives; reading a line ends then.
class InterruptScope {
 public:
  InterruptScope() {
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptScope() { sigaction(SIGINT, &before_, nullptr); }
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction before_ = {};
};

// False at the end of input and after Ctrl-C. FileError.
bool read_line(std::string& line) {
  line.clear();
  for (;;) {
    char c = 0;
    const ssize_t got = ::read(STDIN_FILENO, &c, 1);
    if (got < 0 && errno == EINTR && g_interrupted == 0) continue;
    if (got < 0 && g_interrupted == 0) {
      throw FileError(fmt::format("standard input: {}", std::strerror(errno)));
    }
    if (got <= 0) return got == 0 && !line.empty();
    if (c == '\n') return true;
    line += c;
  }
}

class Conversation {
 public:
  Conversation(const GenerateOptions& o, const OpenedModel& opened, Context& context,
               model::Model& model, const ChatPrompts& prompts,
               const decode::SpeculationOptions& speculation)
      : o_(o),
        opened_(opened),
        context_(context),
        model_(model),
        prompts_(prompts),
        constraint_(constraint_of(o, opened)),
        scheduler_(model, scheduler_options(o, opened, 1, speculation)) {
    if (!o.system.empty()) add("system", o.system);
  }

  // Answers, and remembers both. A turn that does not fit is said and not remembered.
  void turn(const std::string& text) {
    add("user", text);
    try {
      const std::string answer = reply();
      add("assistant", answer);
    } catch (const InvalidArgument&) {
      messages_.pop_back();
      throw;
    }
  }

 private:
  void add(const char* role, const std::string& text) {
    messages_.push_back(chat_message(role, text));
  }

  // The tokens of the conversation. Where they leave no room for an answer, the oldest turns are
  // dropped, the system message and the last question never.
  std::vector<std::int32_t> prompt() {
    const std::int64_t length = model_.shape().max_length;
    const std::int64_t room = std::min(o_.max_tokens, length / 4);
    const std::size_t first = o_.system.empty() ? 0 : 1;
    const std::time_t now = std::time(nullptr);
    io::TemplateValue::Array kept = messages_;
    std::vector<std::int32_t> tokens = prompts_.render(kept, now);
    while (std::ssize(tokens) + room > length && kept.size() > first + 1) {
      const auto turn = kept.begin() + static_cast<std::ptrdiff_t>(first);
      kept.erase(turn, turn + 2);
      tokens = prompts_.render(kept, now);
    }
    if (kept.size() < messages_.size() && std::ssize(tokens) < length) {
      log(fmt::format("the context of {} tokens is full: {} of {} turns dropped", length,
                      (messages_.size() - kept.size()) / 2, (messages_.size() - first) / 2));
      messages_ = std::move(kept);
    }
    return tokens;
  }

  std::string reply() {
    decode::Request request = request_of(o_, opened_.tokenizer);
    request.prompt = prompt();
    request.constraint = constraint_;
    const decode::Cancellation cancellation = request.cancellation;
    TimedRun timing;
    g_interrupted = 0;
    const decode::RequestId id =
        scheduler_.submit(std::move(request), [&](const decode::TokenEvent& event) {
          timing.note(event);
          print(event.text);
        });
    timing.run(context_, model_, scheduler_, [&] {
      if (g_interrupted != 0) cancellation.cancel();
    });
    print("\n");
    if (!o_.quiet) {
      timing.report(model_);
      report_speculation(scheduler_.speculation());
    }
    g_interrupted = 0;
    const std::vector<decode::Completion> answers = scheduler_.take(id);
    check_constraint(constraint_.get(), answers);
    return answers[0].text;
  }

  const GenerateOptions& o_;
  const OpenedModel& opened_;
  Context& context_;
  model::Model& model_;
  const ChatPrompts& prompts_;
  std::shared_ptr<const decode::TokenConstraint> constraint_;
  decode::Scheduler scheduler_;
  io::TemplateValue::Array messages_;
};

}  // namespace

io::TemplateValue chat_message(const char* role, const std::string& text) {
  return io::TemplateValue(io::TemplateValue::Object{{"role", io::TemplateValue(role)},
                                                     {"content", io::TemplateValue(text)}});
}

ChatPrompts::ChatPrompts(const OpenedModel& opened, const std::string& path) : opened_(opened) {
  const auto source = io::read_chat_template(path);
  if (source) template_.emplace(*source);
}

std::optional<std::string> ChatPrompts::special(const std::optional<std::int64_t>& token) const {
  return token ? opened_.tokenizer.id_to_token(static_cast<io::Token>(*token)) : std::nullopt;
}

std::vector<std::int32_t> ChatPrompts::render(const io::TemplateValue::Array& messages,
                                              std::int64_t now) const {
  const io::ModelDescription& d = opened_.file.description();
  const std::optional<std::int64_t> eos =
      d.eos_tokens.empty() ? std::nullopt : std::optional(d.eos_tokens.front());
  const std::string rendered = template_->render({.messages = io::TemplateValue(messages),
                                                  .add_generation_prompt = true,
                                                  .bos_token = special(d.bos_token),
                                                  .eos_token = special(eos),
                                                  .now = now});
  return opened_.tokenizer.encode(rendered, {.add_special = false});
}

std::vector<std::int32_t> ChatPrompts::prompt(const std::string& system,
                                              const std::string& text) const {
  if (!template_) return encode_prompt(opened_, text, "generate: --corpus");
  io::TemplateValue::Array messages;
  if (!system.empty()) messages.push_back(chat_message("system", system));
  messages.push_back(chat_message("user", text));
  return render(messages, 0);
}

int chat(const GenerateOptions& o, const OpenedModel& opened, Context& context, model::Model& model,
         const decode::SpeculationOptions& speculation) {
  const ChatPrompts prompts(opened, o.model.path);
  if (!prompts.has_template()) {
    throw InvalidArgument(fmt::format("generate: --chat: {} has no chat template", o.model.path));
  }
  const InterruptScope interrupts;
  Conversation conversation(o, opened, context, model, prompts, speculation);
  if (!o.prompts.empty()) {
    conversation.turn(o.prompts.front());
    return kOk;
  }
  const bool terminal = ::isatty(STDIN_FILENO) == 1;
  if (terminal) log("Ctrl-C stops an answer, then the program; Ctrl-D ends it");
  for (std::string line;;) {
    if (terminal) std::fputs("> ", stderr);
    if (!read_line(line)) break;
    if (line.ends_with('\r')) line.pop_back();  // of a file of another system
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      conversation.turn(line);
    } catch (const InvalidArgument& error) {
      if (!terminal) throw;
      log(error.what());
    }
  }
  if (terminal) std::fputs("\n", stderr);
  return kOk;
}

}  // namespace touchstone::cli
