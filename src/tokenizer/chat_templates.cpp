// SPDX-License-Identifier: Apache-2.0
// Which chat templates are known, by name and by text, and the text of each for transformers.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "llampi/core/error.hpp"
#include "llampi/tokenizer/chat.hpp"
#include "tokenizer/chat_tokens.hpp"
#include "tokenizer/jinja_outline.hpp"

namespace llampi::tokenizer {
namespace {

/// A date that stands for the one of the clock.
constexpr std::string_view kToday = "today";

struct Known {
  std::string_view name;
  ChatFormat format;
  std::string_view date = {};  ///< that the template has where nobody gives one
};

constexpr std::string_view kLlama31Date = "26 Jul 2024";
constexpr std::array<Known, 14> kKnown{{{"llama2", ChatFormat::llama2},
                                        {"llama3", ChatFormat::llama3},
                                        {"llama3.1", ChatFormat::llama3_1, kLlama31Date},
                                        {"llama3.2", ChatFormat::llama3_1, kToday},
                                        {"llama3.3", ChatFormat::llama3_1, kLlama31Date},
                                        {"chatml", ChatFormat::chatml},
                                        {"qwen3", ChatFormat::qwen3},
                                        {"mistral-v0.1", ChatFormat::mistral_v0_1},
                                        {"mistral-v0.2", ChatFormat::mistral_v0_2},
                                        {"mistral-v1", ChatFormat::mistral_v1},
                                        {"mistral-v3", ChatFormat::mistral_v3},
                                        {"mistral-v3-trim", ChatFormat::mistral_v3_trim},
                                        {"mistral-v3-tekken", ChatFormat::mistral_v3_tekken},
                                        {"zephyr", ChatFormat::zephyr}}};

const Known* find_known(std::string_view name) {
  const auto* found = std::ranges::find(kKnown, name, &Known::name);
  return found == kKnown.end() ? nullptr : found;
}

/// Each compared with transformers by what it renders (tests/fixtures/chat/make_chat_text_fixtures.py).
constexpr std::array<PublishedTemplate, 26> kPublished{{
    {0x3bab79bda6ef11c0, "chatml"},          {0x6d3742d07bd8a569, "chatml"},
    {0xaeb437eaf4d6ebd3, "chatml"},          {0xc1de520cba0fcf01, "chatml"},
    {0xc4c8b31ecba04cae, "chatml"},          {0xc7d592b96ca68f2b, "chatml"},
    {0xe5c6207090219476, "chatml"},          {0x0bfc8df1cad9c901, "llama2"},
    {0x61546e4b193e56ef, "llama2"},          {0x226351df7058766f, "llama3"},
    {0x5db2c903bd80759e, "llama3"},          {0x808c9bdf0da26d06, "llama3"},
    {0xc2d2a4a16c7219a3, "llama3"},          {0x625b12686c25bf4d, "llama3.1"},
    {0xdbd7d338e321d1ea, "llama3.2"},        {0xbf224eb53951a652, "mistral-v0.1"},
    {0x0bc349d6506a922f, "mistral-v0.2"},    {0x42f692773944aa0a, "mistral-v1"},
    {0x702aacbd3455a84b, "mistral-v1"},      {0x330cf3fa88f42299, "mistral-v3"},
    {0xcfd7ca292748da31, "mistral-v3-trim"}, {0xbfaf9ccde88ad0a8, "mistral-v3-tekken"},
    {0x135eeb678d259dce, "qwen3"},           {0xc90b1b1690a7e435, "qwen3"},
    {0x453394b353729228, "zephyr"},          {0xd603d8f8614b09f3, "zephyr"},
}};

/// With `date` as the text of a date, or as an expression.
std::string llama3_1_text(const std::string& date) {
  return "{% if date_string is not defined %}{% set date_string = " + date +
         " %}{% endif %}{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | "
         "trim %}"
         "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
         "{{ bos_token + '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December "
         "2023\\n"
         "Today Date: ' + date_string + '\\n\\n' + system + '<|eot_id|>' }}{% for message in turns %}"
         "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim "
         "+ "
         "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
         "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";
}

constexpr std::string_view kLlama3Text =
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
    "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

constexpr std::string_view kTakeSystem =
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set turns = messages[1:] %}{% else %}{% set turns = messages %}{% endif %}";
constexpr std::string_view kCheckTurn =
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must take turns') }}{% endif %}";

std::string llama2_text() {
  return fmt::format(
      "{}{{% for message in turns %}}{}{{% set content = message['content'] %}}"
      "{{% if loop.first and system is defined %}}"
      "{{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + content %}}{{% endif %}}"
      "{{% if message['role'] == 'user' %}}{{{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}}}"
      "{{% else %}}{{{{ ' ' + content | trim + ' ' + eos_token }}}}{{% endif %}}{{% endfor %}}",
      kTakeSystem, kCheckTurn);
}

std::string chatml_text() {
  return "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
         "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% "
         "endif %}";
}

constexpr std::string_view kQwen3Text =
    "{% set ns = namespace(question=messages | length - 1, found=false) %}{% for message in messages[::-1] %}"
    "{% if not ns.found and message['role'] == 'user' and not (message['content'].startswith('<tool_response>') "
    "and message['content'].endswith('</tool_response>')) %}{% set ns.found = true %}"
    "{% set ns.question = loop.revindex0 %}{% endif %}{% endfor %}"
    "{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'assistant' %}{% set thoughts = '' %}"
    "{% if message['reasoning_content'] is string %}{% set thoughts = message['reasoning_content'] %}"
    "{% elif '</think>' in content %}"
    "{% set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.question and (loop.last or thoughts) %}"
    "{% set content = '<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') %}{% endif %}"
    "{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    "{% endif %}";

std::string zephyr_text() {
  return "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token "
         "+ '\\n' }}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";
}

/// Of Mistral's versions: what the user's and the assistant's turns are.
std::string mistral_text(std::string_view user, std::string_view assistant) {
  return fmt::format(
      "{}{{{{ bos_token }}}}{{% for message in turns %}}{}{{% set content = message['content'] %}}"
      "{{% if message['role'] == 'user' %}}{}{{% else %}}{{{{ {} }}}}{{% endif %}}{{% endfor %}}",
      kTakeSystem, kCheckTurn, user, assistant);
}

std::string mistral_text_without_system(std::string_view assistant) {
  return mistral_text(
      "{% if system is defined %}{{ raise_exception('there is no place for a system message') }}{% endif %}"
      "{{ '[INST] ' + content + ' [/INST]' }}",
      assistant);
}

std::string mistral_v3_text(std::string_view answer) {
  return mistral_text(
      "{% if loop.last and system is defined %}{% set content = system + '\\n\\n' + content %}{% endif %}"
      "{{ '[INST] ' + content + '[/INST]' }}",
      fmt::format("' ' + {} + eos_token", answer));
}

std::string in_jinja_quotes(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\\' || c == '\'') result += '\\';
    result += c;
  }
  return result + "'";
}

/// The shortest text that renders a template of this name.
std::string text_of(const Known& known, const std::string& date) {
  switch (known.format) {
    case ChatFormat::llama2:
      return llama2_text();
    case ChatFormat::llama3:
      return std::string(kLlama3Text);
    case ChatFormat::llama3_1:
      return llama3_1_text(date == kToday ? "strftime_now('%d %b %Y')" : in_jinja_quotes(date));
    case ChatFormat::chatml:
      return chatml_text();
    case ChatFormat::mistral_v0_1:
      return mistral_text_without_system("content + eos_token + ' '");
    case ChatFormat::mistral_v0_2:
      return mistral_text_without_system("content + eos_token");
    case ChatFormat::mistral_v1:
      return mistral_text(
          "{% if loop.first and system is defined %}{% set content = system + '\\n\\n' + content %}{% endif "
          "%}"
          "{{ ' [INST] ' + content + ' [/INST]' }}",
          "' ' + content + eos_token");
    case ChatFormat::mistral_v3:
      return mistral_v3_text("content");
    case ChatFormat::mistral_v3_trim:
      return mistral_v3_text("content | trim");
    case ChatFormat::mistral_v3_tekken:
      return mistral_text(
          "{% if loop.last and system is defined %}{% set content = system + '\n\n' + content %}{% endif %}"
          "{{ '[INST]' + content + '[/INST]' }}",
          "content + eos_token");
    case ChatFormat::qwen3:
      return std::string(kQwen3Text);
    case ChatFormat::zephyr:
      return zephyr_text();
  }
  return {};
}

/// What the models of a format call one of special_tokens().
std::string_view usual_name(ChatFormat format, std::string_view token) {
  const bool is_llama3 = format == ChatFormat::llama3 || format == ChatFormat::llama3_1;
  if (token == kBos) return is_llama3 ? "<|begin_of_text|>" : "<s>";
  return token == kEos ? "</s>" : token;
}

std::string missing_token(const Tokenizer& tokenizer, ChatFormat format) {
  for (const auto name : special_tokens(format)) {
    if (!find_token(tokenizer, format, name)) return std::string(name);
  }
  return {};
}

std::string names_for_messages() { return fmt::format("{}", fmt::join(template_names(), ", ")); }

/// The template by name, with the name's date.
ChatTemplate named_template(const std::string& name) {
  const auto* known = find_known(name);
  if (!known)
    throw_user_error("the chat template \"{}\" is not known; use auto, {}", name, names_for_messages());
  const std::string date(known->date);
  return {.format = known->format,
          .name = name,
          .date = date == kToday ? "" : date,
          .text = text_of(*known, date)};
}

ChatTemplate template_of(const ChatTemplateText& given) {
  auto found = recognise_template(given.text);
  if (found) return *found;
  throw_user_error(
      "the chat template in {} is not one that llampi knows (fingerprint {:016x}); give --template with one "
      "that "
      "writes conversations as the model expects: {}",
      given.source, outline_of(given.text).fingerprint, names_for_messages());
}

/// The names of the templates whose tokens this tokenizer has.
std::string names_that_fit(const Tokenizer& tokenizer) {
  std::vector<std::string> fitting;
  for (const auto& name : template_names()) {
    if (missing_token(tokenizer, named_template(name).format).empty()) fitting.push_back(name);
  }
  if (fitting.empty())
    return "it has no tokens that mark whose turn it is; use a chat model with its own tokenizer";
  return fmt::format("name a chat template with --template: {}", fmt::join(fitting, ", "));
}

ChatTemplate automatic_template(const Tokenizer& tokenizer, const ChatTemplateText& trained_with) {
  if (!trained_with.text.empty()) return template_of(trained_with);
  if (const auto own = tokenizer.chat_template()) return template_of(*own);
  throw_user_error(
      "the tokenizer {} comes with no chat template (\"chat_template\" in tokenizer_config.json, or "
      "chat_template.jinja): {}",
      tokenizer.name(), names_that_fit(tokenizer));
}

void set_date(ChatTemplate& chosen, const TemplateChoice& choice) {
  if (chosen.format != ChatFormat::llama3_1) {
    if (choice.date != "auto") {
      throw_user_error(
          "--template-date cannot be combined with the template {}, which writes no date; leave it out",
          chosen.name);
    }
    return;
  }
  if (choice.date != "auto") {
    chosen.date = choice.date;
    chosen.text = llama3_1_text(in_jinja_quotes(choice.date));
  } else if (chosen.date.empty()) {
    chosen.date = choice.today.empty() ? date_of_today() : choice.today;
  }
}

}  // namespace

std::vector<std::string_view> special_tokens(ChatFormat format) {
  switch (format) {
    case ChatFormat::llama3:
    case ChatFormat::llama3_1:
      return {"<|eot_id|>", kBos, "<|start_header_id|>", "<|end_header_id|>"};
    case ChatFormat::chatml:
    case ChatFormat::qwen3:
      return {"<|im_end|>", "<|im_start|>"};
    case ChatFormat::zephyr:
      return {kEos};
    default:
      return {kEos, kBos};
  }
}

std::optional<std::int32_t> find_token(const Tokenizer& tokenizer, ChatFormat format, std::string_view name) {
  if (name == kBos && tokenizer.bos_token()) return tokenizer.bos_token();
  if (name == kEos && tokenizer.end()) return tokenizer.end();
  return tokenizer.find(usual_name(format, name));
}

bool is_chat_token(std::string_view name) {
  return std::ranges::any_of(kKnown, [&](const Known& known) {
    return std::ranges::any_of(special_tokens(known.format), [&](std::string_view token) {
      return usual_name(known.format, token) == name;
    });
  });
}

std::int32_t token_of(const Tokenizer& tokenizer, ChatFormat format, std::string_view name) {
  const auto id = find_token(tokenizer, format, name);
  require(id.has_value(), "a chat template that does not match the tokenizer");
  return *id;
}

std::span<const PublishedTemplate> published_templates() { return kPublished; }

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& known : kKnown) names.emplace_back(known.name);
  return names;
}

std::string date_of_today() {
  static constexpr std::array<const char*, 12> kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:02} {} {}", local.tm_mday, kMonths.at(static_cast<std::size_t>(local.tm_mon)),
                     1900 + local.tm_year);
}

std::optional<ChatTemplate> recognise_template(const std::string& text) {
  const auto outline = outline_of(text);
  std::string_view name;
  for (const auto& known : kKnown) {
    if (outline_of(text_of(known, std::string(known.date))).fingerprint == outline.fingerprint) {
      name = known.name;
      break;
    }
  }
  const auto* published = std::ranges::find(kPublished, outline.fingerprint, &PublishedTemplate::fingerprint);
  if (name.empty() && published != kPublished.end()) name = published->name;
  if (name.empty()) return std::nullopt;
  ChatTemplate found = named_template(std::string(name));
  if (!found.date.empty()) found.date = outline.date;
  if (found.format == ChatFormat::chatml) found.default_system = outline.default_system;
  found.text = text;
  return found;
}

ChatTemplate choose_template(const Tokenizer& tokenizer, const TemplateChoice& choice) {
  ChatTemplate chosen = choice.name == "auto" ? automatic_template(tokenizer, choice.trained_with)
                                              : named_template(choice.name);
  // The folder's may have a default system message, as Qwen2's has.
  if (const auto own = tokenizer.chat_template();
      own && choice.name != "auto" && chosen.format == ChatFormat::chatml) {
    if (const auto found = recognise_template(own->text); found && found->format == ChatFormat::chatml)
      chosen = *found;
  }
  if (const auto missing = missing_token(tokenizer, chosen.format); !missing.empty()) {
    throw_user_error("the chat template {} needs the token {}, which the tokenizer {} does not have",
                     chosen.name, missing, tokenizer.name());
  }
  set_date(chosen, choice);
  return chosen;
}

}  // namespace llampi::tokenizer
