// SPDX-License-Identifier: Apache-2.0
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.hpp"

#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/utf8.hpp"
#include "tokenizer/unicode_tables.hpp"

namespace llampi::tokenizer {
namespace {

// Steps of one search: backtracking over a run of spaces takes one per space; a pattern that needs many more
// would not end.
constexpr std::size_t kSteps = 10'000'000;
constexpr std::size_t kStepsPerByte = 8;
constexpr std::size_t kFirstStackBytes = std::size_t{32} << 10;
constexpr std::size_t kLastStackBytes = std::size_t{64} << 20;

struct Deleter {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T>
using Owned = std::unique_ptr<T, Deleter>;

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256];
  const int length = pcre2_get_error_message(error, buffer, sizeof(buffer));
  return length < 0 ? "error " + std::to_string(error) : reinterpret_cast<const char*>(buffer);
}

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Regex::Code {
  Owned<pcre2_code> code;
  bool compiled_to_machine_code = false;
};

struct Matcher::State {
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(kFirstStackBytes, kLastStackBytes, nullptr)};
};

namespace {

std::unique_ptr<Regex::Code> compile(std::string_view pattern, std::uint32_t options,
                                     const std::string& where) {
  const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto result = std::make_unique<Regex::Code>();
  result->code.reset(pcre2_compile(units(pattern), pattern.size(), options, &error, &at, context.get()));
  if (!result->code) {
    throw_user_error("{}: the regular expression is not accepted by PCRE2: {}, at byte {} of {}", where,
                     message_of(error), at, pattern);
  }
  // Where PCRE2 has no compiler for the processor, its interpreter does the same.
  result->compiled_to_machine_code = pcre2_jit_compile(result->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return result;
}

}  // namespace

Regex::Regex(std::unique_ptr<Code> code, bool has_properties)
    : code_(std::move(code)), has_properties_(has_properties) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex::Regex(std::string_view pattern, const std::string& where)
    : code_(compile(to_pcre2(pattern, where),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, where)),
      has_properties_(pattern.find('\\') != std::string_view::npos) {}

Regex Regex::literal(std::string_view text, const std::string& where) {
  return Regex(compile(text, PCRE2_UTF | PCRE2_LITERAL, where));
}

Regex Regex::digits() {
  return Regex(compile(std::string("[\\p{N}") + digits_since_14() + ']', PCRE2_UTF | PCRE2_UCP, "Digits"));
}

Matcher::Matcher() : state_(std::make_unique<State>()) {
  if (!state_->data || !state_->context || !state_->stack) throw std::bad_alloc();
  pcre2_jit_stack_assign(state_->context.get(), nullptr, state_->stack.get());
}
Matcher::~Matcher() = default;

std::optional<Span> Matcher::find(const Regex& regex, std::string_view text, std::size_t from) {
  const std::size_t steps = kSteps + kStepsPerByte * (text.size() - from);
  pcre2_set_match_limit(state_->context.get(),
                        static_cast<std::uint32_t>(std::min<std::size_t>(steps, UINT32_MAX)));
  const auto match = regex.code().compiled_to_machine_code ? pcre2_jit_match : pcre2_match;
  const int found = match(regex.code().code.get(), units(text), text.size(), from, PCRE2_NO_UTF_CHECK,
                          state_->data.get(), state_->context.get());
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) {
    throw_user_error("the regular expression of the tokenizer failed on a text of {} bytes: {}", text.size(),
                     message_of(found));
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(state_->data.get());
  return Span{ends[0], ends[1]};
}

std::optional<Span> Matches::next() {
  while (from_ <= text_.size()) {
    const auto match = matcher_.find(regex_, text_, from_);
    if (!match) break;
    if (match->begin == match->end && last_end_ == match->end) {
      from_ += from_ < text_.size() ? character_bytes(text_[from_]) : 1;
      continue;
    }
    from_ = match->end;
    last_end_ = match->end;
    return match;
  }
  from_ = text_.size() + 1;
  return std::nullopt;
}

}  // namespace llampi::tokenizer
