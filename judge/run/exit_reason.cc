#include "judge/run/exit_reason.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>

namespace touchstone::judge {
namespace {

// The contender may have written it: characters that are shown, and not too many.
std::string quoted(std::string line) {
  constexpr std::size_t kMost = 300;
  if (line.size() > kMost) line.resize(kMost);
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 32 || c > 126; }, '?');
  return line;
}

std::string line_with(const std::string& log, const std::string& mark) {
  const std::size_t at = log.find(mark);
  if (at == std::string::npos) return {};
  const std::size_t begin = log.rfind('\n', at) == std::string::npos ? 0 : log.rfind('\n', at) + 1;
  return log.substr(begin, std::min(log.find('\n', at), log.size()) - begin);
}

// File names alone: the directory of the judge is not reported.
std::string without_folders(std::string text) {
  static constexpr std::string_view kMark = "/source/";
  for (std::size_t at = 0; (at = text.find(kMark)) != std::string::npos;) {
    const std::size_t space = text.rfind(' ', at);
    const std::size_t begin = space == std::string::npos ? 0 : space + 1;
    text.erase(begin, at + kMark.size() - begin);
  }
  return quoted(text);
}

// What a sanitizer printed, in one line; empty when it printed nothing.
std::string sanitizer_line(const std::string& log, bool& memory) {
  const std::string summary = line_with(log, "SUMMARY: AddressSanitizer: ");
  if (!summary.empty()) {
    std::string text = without_folders(summary.substr(strlen("SUMMARY: AddressSanitizer: ")));
    memory =
        text.find("overflow") != std::string::npos || text.find("underflow") != std::string::npos ||
        text.find("poison") != std::string::npos || text.find("use-after") != std::string::npos;
    return text;
  }
  memory = false;
  const std::string error = line_with(log, "ERROR: AddressSanitizer: ");
  if (!error.empty()) return without_folders(error.substr(error.find("AddressSanitizer: ")));
  return without_folders(line_with(log, "runtime error: "));
}

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string last_line(const std::string& log) {
  std::size_t end = log.find_last_not_of("\n ");
  if (end == std::string::npos) return {};
  const std::size_t begin = log.rfind('\n', end);
  std::string line = log.substr(begin == std::string::npos ? 0 : begin + 1);
  line.erase(std::min<std::size_t>(line.find_last_not_of("\n ") + 1, 200));
  return quoted(line);
}

void explain_signal(const ExitEvidence& death, int signal, Reply& reply) {
  const protocol::Control& c = *death.control;
  const bool fault = signal == SIGSEGV || signal == SIGBUS;
  reply.ending = Ending::crashed;
  reply.detail = signal_text(signal);
  if (signal == SIGSYS) {
    reply.ending = Ending::forbidden;
    reply.detail = "a system call the sandbox refuses";
  } else if (signal == SIGKILL) {
    reply.ending = Ending::out_of_memory;
    reply.detail = "ended by the system, most likely for memory";
  } else if (fault && death.function != nullptr && c.outcome == protocol::kInputFault) {
    reply.ending = Ending::wrote_input;
    reply.detail = fmt::format("wrote to its input {}, {} bytes from the start",
                               buffer_name(*death.function, c.fault_buffer), c.fault_offset);
  } else if (fault && death.function != nullptr && c.outcome == protocol::kGuardFault) {
    const uint32_t buffer = c.fault_buffer;
    reply.ending = Ending::wrote_outside;
    const int64_t bytes =
        buffer < protocol::kMaxBuffers ? static_cast<int64_t>(c.buffers[buffer].data_bytes) : -1;
    reply.detail = "touched " + describe_write_outside(buffer_name(*death.function, buffer),
                                                       c.fault_offset, bytes);
    if (buffer == protocol::kEarlierCall) {
      reply.detail = "touched an array of an earlier call, which was gone by then";
    }
  } else if (fault && c.outcome == protocol::kHeapFault) {
    reply.ending = Ending::wrote_outside;
    reply.detail = "touched heap memory beside a block of its own, or after giving it back";
  } else if (fault && c.outcome == protocol::kOtherFault) {
    reply.detail +=
        c.fault_offset >= 0 && c.fault_offset < 4096 ? ", a null pointer" : ", a bad address";
  }
}

}  // namespace

std::string buffer_name(const Function& function, uint32_t buffer) {
  uint32_t i = 0;
  for (const Argument& argument : function.arguments) {
    if (argument.kind == ArgumentKind::state && buffer == protocol::kStateBuffer) {
      return argument.name;
    };
    if (argument.kind != ArgumentKind::input && argument.kind != ArgumentKind::output) continue;
    if (i++ == buffer) return argument.name;
  }
  return "a buffer of an earlier call";
}

std::string describe_write_outside(const std::string& name, int64_t offset, int64_t bytes) {
  if (offset < 0) return fmt::format("memory {} bytes before {}", -offset, name);
  if (bytes >= 0 && offset >= bytes) {
    return fmt::format("memory {} bytes behind the end of {}", offset - bytes, name);
  }
  return fmt::format("memory beside {}", name);
}

void explain_exit(const ExitEvidence& death, const Limits& limits, Reply& reply) {
  reply.outputs.clear();
  bool memory = false;
  if (death.waited == Waited::late && death.refused_call.empty()) {
    reply.ending = Ending::hung;
    reply.detail = death.function == nullptr
                       ? fmt::format("not loaded after {:g} s", limits.start_seconds)
                       : fmt::format("no answer after {:g} s", limits.call_seconds);
  } else if (death.waited == Waited::over_memory) {
    reply.ending = Ending::out_of_memory;
    reply.detail = fmt::format("held more than {} MiB", limits.memory_bytes >> 20);
  } else if (death.waited == Waited::over_threads) {
    reply.ending = Ending::forbidden;
    reply.detail = fmt::format("more than {} threads", limits.threads);
  } else if (!death.refused_call.empty()) {
    reply.ending = Ending::forbidden;
    reply.detail = death.refused_call;
  } else if (death.waited == Waited::leader_gone) {
    reply.ending = Ending::forbidden;
    reply.detail = "ended its first thread, by which memory is counted";
  } else if (death.sanitized && !sanitizer_line(death.log, memory).empty()) {
    reply.detail = sanitizer_line(death.log, memory);
    reply.ending = memory ? Ending::wrote_outside : Ending::crashed;
  } else if (WIFSIGNALED(death.status)) {
    explain_signal(death, WTERMSIG(death.status), reply);
  } else {
    reply.ending = Ending::exited;
    reply.detail =
        fmt::format("left with exit code {} instead of answering", WEXITSTATUS(death.status));
  }
  // What the child printed last often says more; it is quoted, never believed.
  if (reply.ending == Ending::crashed || reply.ending == Ending::exited) {
    const std::string said = death.sanitized ? "" : last_line(death.log);
    if (!said.empty()) reply.detail += fmt::format(" (it printed: {})", said);
  }
}

}  // namespace touchstone::judge
