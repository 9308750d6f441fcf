#include "io/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <cstdint>
#include <new>
#include <utility>

#include "io/json_document.h"
#include "io/tokenizer/text/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

// Patterns of real tokenizers need tens of steps; these bound what a hostile one can cost.
constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kDepthLimit = 10'000;
constexpr std::uint32_t kHeapLimitKib = 16 << 10;
constexpr std::size_t kJitStackMin = 32 << 10;
constexpr std::size_t kJitStackMax = 1 << 20;

template <auto kFree>
struct Freed {
  template <class T>
  void operator()(T* p) const {
    kFree(p);
  }
};
using Code8 = std::unique_ptr<pcre2_code, Freed<&pcre2_code_free>>;
using Context8 = std::unique_ptr<pcre2_match_context, Freed<&pcre2_match_context_free>>;
using Data8 = std::unique_ptr<pcre2_match_data, Freed<&pcre2_match_data_free>>;
using Stack8 = std::unique_ptr<pcre2_jit_stack, Freed<&pcre2_jit_stack_free>>;

std::string message_of(int error) {
  PCRE2_UCHAR text[200] = {};
  pcre2_get_error_message(error, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

// What a thread matches with; one for all patterns.
struct Matcher {
  Context8 context{pcre2_match_context_create(nullptr)};
  Data8 data{pcre2_match_data_create(1, nullptr)};
  Stack8 stack{pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr)};

  Matcher() {
    if (!context || !data || !stack) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_depth_limit(context.get(), kDepthLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

}  // namespace

struct Regex::Code {
  Code8 code;
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()) {
  const std::string text = translated_pattern(pattern);
  int error = 0;
  std::size_t where = 0;
  code_->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C,
      &error, &where, nullptr));
  if (!code_->code) {
    throw Unsupported(fmt::format("tokenizer: regular expression {}: {}",
                                  json_quote(pattern.substr(0, 80)), message_of(error)));
  }
  // Without JIT (another machine, no executable memory) it matches just the same, slower.
  pcre2_jit_compile(code_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

void Regex::find_all(std::string_view text, std::vector<Span>& matches) const {
  thread_local Matcher matcher;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t from = 0;
  std::size_t last_end = static_cast<std::size_t>(-1);
  while (from <= text.size()) {
    const int found = pcre2_match(code_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                  matcher.data.get(), matcher.context.get());
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      throw Unsupported(fmt::format("tokenizer: regular expression: {}", message_of(found)));
    }
    const std::size_t* ends = pcre2_get_ovector_pointer(matcher.data.get());
    const Span match{ends[0], ends[1]};
    if (match.begin == match.end && match.end == last_end) {
      from += from < text.size() ? utf8_length(text[from]) : 1;
      continue;
    }
    matches.push_back(match);
    from = match.end;
    last_end = match.end;
  }
}

}  // namespace touchstone::inline v0::io
