#include "io/tokenizer/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <cstdint>
#include <new>
#include <utility>

#include "io/json_document.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

// Patterns of real tokenizers need tens of steps for a word, and a few for each character of a run that
// they go back over: a megabyte of spaces is one match. So that a hostile pattern cannot take a long
// time at every position, an attempt has a few steps; one that needs more gets them from the budget of
// the whole text.
constexpr std::uint32_t kUsualSteps = 512;
constexpr std::uint32_t kMoreSteps = 4;  // times as many at the next attempt
constexpr std::int64_t kBudgetSteps = 10'000'000;
constexpr std::int64_t kBudgetStepsPerByte = 64;
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
    pcre2_set_depth_limit(context.get(), kDepthLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }

  int match(const pcre2_code* code, std::string_view text, std::size_t from, bool anchored,
            std::uint32_t steps) {
    pcre2_set_match_limit(context.get(), steps);
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK | (anchored ? PCRE2_ANCHORED : 0U), data.get(),
                       context.get());
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
  code_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                  // Repeats that are never gone back over would not count as steps.
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK |
                                      PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_POSSESS,
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
  const pcre2_code* const code = code_->code.get();
  const auto step_over = [&](std::size_t at) {
    return at + (at < text.size() ? utf8_length(text[at]) : 1);
  };
  std::int64_t budget = kBudgetSteps + kBudgetStepsPerByte * static_cast<std::int64_t>(text.size());
  std::size_t from = 0;
  std::size_t last_end = static_cast<std::size_t>(-1);
  bool anchored = false;  // one position at a time, since an attempt somewhere needs more steps
  while (from <= text.size()) {
    int found = matcher.match(code, text, from, anchored, kUsualSteps);
    if (found == PCRE2_ERROR_MATCHLIMIT && !anchored) {
      anchored = true;
      continue;
    }
    for (std::uint32_t steps = kUsualSteps * kMoreSteps;
         found == PCRE2_ERROR_MATCHLIMIT && budget >= steps; steps *= kMoreSteps) {
      budget -= steps;
      found = matcher.match(code, text, from, anchored, steps);
    }
    if (found == PCRE2_ERROR_NOMATCH) {
      if (!anchored) return;
      from = step_over(from);
      continue;
    }
    if (found < 0) {
      throw Unsupported(fmt::format("tokenizer: regular expression: {}", message_of(found)));
    }
    const std::size_t* ends = pcre2_get_ovector_pointer(matcher.data.get());
    const Span match{ends[0], ends[1]};
    if (match.begin == match.end && match.end == last_end) {
      from = step_over(from);
      continue;
    }
    matches.push_back(match);
    from = match.end;
    last_end = match.end;
    anchored = false;
  }
}

}  // namespace touchstone::inline v0::io
