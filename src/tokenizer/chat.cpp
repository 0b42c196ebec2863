// SPDX-License-Identifier: Apache-2.0
#include "llampi/tokenizer/chat.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "llampi/core/error.hpp"
#include "tokenizer/chat_tokens.hpp"
#include "tokenizer/chat_writer.hpp"

namespace llampi::tokenizer {
namespace {

/// Length of the white space that a text begins with, as Python's str.strip and so the templates' trim have
/// it: Unicode's, and the separators 0x1C to 0x1F.
std::size_t white_space_at(std::string_view text) {
  static constexpr std::array<std::string_view, 19> kWide{
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
      "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  if (text.empty()) return 0;
  const char c = text.front();
  if (c == ' ' || (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= '\x1f')) return 1;
  for (const auto wide : kWide) {
    if (text.starts_with(wide)) return wide.size();
  }
  return 0;
}

const char* to_string(ChatRole role) {
  if (role == ChatRole::system) return "system";
  return role == ChatRole::user ? "user" : "assistant";
}

using Messages = std::span<const Message>;

/// One conversation on its way to ids.
struct Encoder {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat_template;
  ChatPurpose purpose;
  ChatWriter writer{tokenizer};

  void special(std::string_view name, bool learnt = false) {
    writer.special(token_of(tokenizer, chat_template.format, name), learnt);
  }
  /// The assistant's content.
  void content(std::string_view text, bool learnt) {
    if (learnt) {
      writer.learn(text);
    } else {
      writer.text(text);
    }
  }
};

bool is_learnt(const Message& message) { return message.role == ChatRole::assistant && message.trained; }

/// The system message with which a conversation begins; takes it away from the messages.
const Message* take_system(Messages& messages) {
  if (messages.empty() || messages.front().role != ChatRole::system) return nullptr;
  const auto* system = &messages.front();
  messages = messages.subspan(1);
  return system;
}

void add_llama3_header(Encoder& encoder, std::string_view role) {
  encoder.special("<|start_header_id|>");
  encoder.writer.text(role);
  encoder.special("<|end_header_id|>");
  encoder.writer.text("\n\n");
}

void add_llama3(Encoder& encoder, Messages messages) {
  for (const auto& message : messages) {
    add_llama3_header(encoder, to_string(message.role));
    encoder.content(strip(message.content), is_learnt(message));
    encoder.special("<|eot_id|>", is_learnt(message));
  }
  if (encoder.purpose == ChatPurpose::generation) add_llama3_header(encoder, "assistant");
}

void add_llama3_1(Encoder& encoder, Messages messages) {
  const auto* system = take_system(messages);
  add_llama3_header(encoder, "system");
  encoder.writer.text("Cutting Knowledge Date: December 2023\nToday Date: " + encoder.chat_template.date +
                      "\n\n");
  if (system) encoder.writer.text(strip(system->content));
  encoder.special("<|eot_id|>");
  add_llama3(encoder, messages);
}

void add_chatml(Encoder& encoder, Messages messages) {
  const auto begin_turn = [&](std::string_view role) {
    encoder.special("<|im_start|>");
    encoder.writer.text(std::string(role) + "\n");
  };
  const auto end_turn = [&](bool learnt) {
    encoder.special("<|im_end|>", learnt);
    encoder.writer.text("\n");
  };
  const auto& default_system = encoder.chat_template.default_system;
  if (!default_system.empty() && (messages.empty() || messages.front().role != ChatRole::system)) {
    begin_turn("system");
    encoder.writer.text(default_system);
    end_turn(false);
  }
  for (const auto& message : messages) {
    begin_turn(to_string(message.role));
    encoder.content(message.content, is_learnt(message));
    end_turn(is_learnt(message));
  }
  if (encoder.purpose == ChatPurpose::generation) begin_turn("assistant");
}

constexpr std::string_view kThoughtsBegin = "<think>", kThoughtsEnd = "</think>";

std::string_view without_line_ends(std::string_view text) {
  const auto first = text.find_first_not_of('\n');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of('\n') - first + 1);
}

std::string_view after_line_ends(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

/// An answer of qwen3, as the template divides it.
struct Answer {
  std::string_view thoughts, content;
};

Answer divide_answer(const Message& message) {
  if (message.reasoning) return {without_line_ends(*message.reasoning), message.content};
  const std::string_view text = message.content;
  const auto end = text.find(kThoughtsEnd);
  if (end == std::string_view::npos) return {{}, text};
  auto thoughts = text.substr(0, end);
  thoughts = thoughts.substr(0, thoughts.find_last_not_of('\n') + 1);
  if (const auto begin = thoughts.rfind(kThoughtsBegin); begin != std::string_view::npos)
    thoughts = thoughts.substr(begin + kThoughtsBegin.size());
  return {without_line_ends(thoughts),
          after_line_ends(text.substr(text.rfind(kThoughtsEnd) + kThoughtsEnd.size()))};
}

/// Index of the message that the last answers answer; that of the last message, if there is no question.
std::size_t last_question(Messages messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string_view text = messages[i].content;
    const bool of_tool = text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
    if (messages[i].role == ChatRole::user && !of_tool) return i;
  }
  return messages.empty() ? 0 : messages.size() - 1;
}

void add_qwen3(Encoder& encoder, Messages messages) {
  const auto begin_turn = [&](std::string_view role) {
    encoder.special("<|im_start|>");
    encoder.writer.text(std::string(role) + "\n");
  };
  const std::size_t question = last_question(messages);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& message = messages[i];
    begin_turn(to_string(message.role));
    if (message.role == ChatRole::assistant) {
      const auto [thoughts, content] = divide_answer(message);
      const bool is_last = i + 1 == messages.size();
      const bool given = message.reasoning ? !message.reasoning->empty() : !thoughts.empty();
      const bool thinks = i > question && (is_last || given);
      encoder.content(thinks ? fmt::format("{}\n{}\n{}\n\n{}", kThoughtsBegin, thoughts, kThoughtsEnd,
                                           after_line_ends(content))
                             : std::string(content),
                      is_learnt(message));
    } else {
      encoder.writer.text(message.content);
    }
    encoder.special("<|im_end|>", is_learnt(message));
    encoder.writer.text("\n");
  }
  if (encoder.purpose == ChatPurpose::generation) begin_turn("assistant");
}

void add_zephyr(Encoder& encoder, Messages messages) {
  const auto begin_turn = [&](std::string_view role) {
    encoder.writer.marker(fmt::format("<|{}|>", role));
    encoder.writer.text("\n");
  };
  for (const auto& message : messages) {
    begin_turn(to_string(message.role));
    encoder.content(message.content, is_learnt(message));
    encoder.special(kEos, is_learnt(message));
    encoder.writer.text("\n");
  }
  if (encoder.purpose == ChatPurpose::generation) begin_turn("assistant");
}

/// @param before messages of the conversation before these
void check_turns(const Encoder& encoder, Messages messages, std::size_t before) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto wanted = i % 2 == 0 ? ChatRole::user : ChatRole::assistant;
    if (messages[i].role == wanted) continue;
    throw_user_error(
        "message {} is the {}'s where the template {} has the {}'s: user and assistant take turns, after "
        "at most one system message",
        before + i + 1, to_string(messages[i].role), encoder.chat_template.name, to_string(wanted));
  }
  if (messages.empty()) throw_user_error("there is no user message");
  if (encoder.purpose == ChatPurpose::generation && messages.back().role != ChatRole::user) {
    throw_user_error("the last message must be the user's for the assistant to answer");
  }
}

void add_llama2(Encoder& encoder, Messages messages) {
  const auto* system = take_system(messages);
  check_turns(encoder, messages, system ? 1 : 0);
  for (const auto& message : messages) {
    if (message.role == ChatRole::user) {
      std::string content = message.content;
      if (system) content = "<<SYS>>\n" + system->content + "\n<</SYS>>\n\n" + content;
      system = nullptr;
      encoder.special(kBos);
      encoder.writer.marker("[INST]");
      encoder.writer.text(fmt::format(" {} ", strip(content)));
      encoder.writer.marker("[/INST]");
    } else {
      encoder.content(fmt::format(" {} ", strip(message.content)), is_learnt(message));
      encoder.special(kEos, is_learnt(message));
    }
  }
}

/// What stands around the messages of Mistral's versions.
struct MistralTexts {
  std::string_view before_turn, before_user, after_user, before_answer, after_answer;
};

MistralTexts mistral_texts(ChatFormat format) {
  switch (format) {
    case ChatFormat::mistral_v0_1:
      return {"", " ", " ", "", " "};
    case ChatFormat::mistral_v0_2:
      return {"", " ", " ", "", ""};
    case ChatFormat::mistral_v1:
      return {" ", " ", " ", " ", ""};
    case ChatFormat::mistral_v3_tekken:
      return {"", "", "", "", ""};
    default:
      return {"", " ", "", " ", ""};
  }
}

bool writes_system_last(ChatFormat format) {
  return format == ChatFormat::mistral_v3 || format == ChatFormat::mistral_v3_trim ||
         format == ChatFormat::mistral_v3_tekken;
}

/// The message of the user that the system message is written into; nullptr: the template has no place for
/// it.
const Message* bearer_of_system(const Encoder& encoder, Messages messages) {
  if (encoder.chat_template.format == ChatFormat::mistral_v1) return &messages.front();
  if (writes_system_last(encoder.chat_template.format) && messages.back().role == ChatRole::user)
    return &messages.back();
  return nullptr;
}

void add_mistral(Encoder& encoder, Messages messages) {
  const auto* system = take_system(messages);
  check_turns(encoder, messages, system ? 1 : 0);
  const auto* bearer = system ? bearer_of_system(encoder, messages) : nullptr;
  if (system && !bearer) {
    throw_user_error(
        "message 1 is the system's, and the template {} has no system message{}", encoder.chat_template.name,
        writes_system_last(encoder.chat_template.format) ? " in a conversation that ends with an answer"
                                                         : "");
  }
  const auto texts = mistral_texts(encoder.chat_template.format);
  encoder.special(kBos);
  for (const auto& message : messages) {
    if (message.role == ChatRole::user) {
      encoder.writer.text(texts.before_turn);
      encoder.writer.marker("[INST]");
      encoder.writer.text(texts.before_user);
      if (&message == bearer) encoder.writer.text(system->content + "\n\n");
      encoder.writer.text(message.content);
      encoder.writer.text(texts.after_user);
      encoder.writer.marker("[/INST]");
    } else {
      const bool trims = encoder.chat_template.format == ChatFormat::mistral_v3_trim;
      encoder.content(
          std::string(texts.before_answer).append(trims ? strip(message.content) : message.content),
          is_learnt(message));
      encoder.special(kEos, is_learnt(message));
      encoder.writer.text(texts.after_answer);
    }
  }
}

void check_reasoning(const ChatTemplate& chat_template, Messages messages) {
  if (chat_template.format == ChatFormat::qwen3) return;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].reasoning || messages[i].reasoning->empty()) continue;
    throw_user_error("message {} has reasoning_content, which the template {} does not write (qwen3 does)",
                     i + 1, chat_template.name);
  }
}

}  // namespace

std::string_view strip(std::string_view text) {
  while (const auto length = white_space_at(text)) text.remove_prefix(length);
  for (bool found = true; found;) {
    found = false;
    for (std::size_t length = 1; length <= std::min<std::size_t>(3, text.size()); ++length) {
      if (white_space_at(text.substr(text.size() - length)) != length) continue;
      text.remove_suffix(length);
      found = true;
      break;
    }
  }
  return text;
}

EncodedChat encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                        const Conversation& conversation, ChatPurpose purpose) {
  Encoder encoder{tokenizer, chat_template, purpose};
  check_reasoning(chat_template, conversation);
  switch (chat_template.format) {
    case ChatFormat::llama2:
      add_llama2(encoder, conversation);
      break;
    case ChatFormat::llama3:
      encoder.special(kBos);
      add_llama3(encoder, conversation);
      break;
    case ChatFormat::llama3_1:
      encoder.special(kBos);
      add_llama3_1(encoder, conversation);
      break;
    case ChatFormat::chatml:
      add_chatml(encoder, conversation);
      break;
    case ChatFormat::qwen3:
      add_qwen3(encoder, conversation);
      break;
    case ChatFormat::zephyr:
      add_zephyr(encoder, conversation);
      break;
    case ChatFormat::mistral_v0_1:
    case ChatFormat::mistral_v0_2:
    case ChatFormat::mistral_v1:
    case ChatFormat::mistral_v3:
    case ChatFormat::mistral_v3_trim:
    case ChatFormat::mistral_v3_tekken:
      add_mistral(encoder, conversation);
      break;
  }
  return encoder.writer.finish();
}

std::string_view without_thoughts(const ChatTemplate& chat_template, std::string_view text) {
  const auto end = text.rfind(kThoughtsEnd);
  if (chat_template.format != ChatFormat::qwen3 || end == std::string_view::npos) return text;
  return after_line_ends(text.substr(end + kThoughtsEnd.size()));
}

bool ends_in_thoughts(const ChatTemplate& chat_template, std::string_view text) {
  return chat_template.format == ChatFormat::qwen3 && text.find(kThoughtsBegin) != std::string_view::npos &&
         text.find(kThoughtsEnd) == std::string_view::npos;
}

std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
  std::vector<std::int32_t> stops{
      token_of(tokenizer, chat_template.format, special_tokens(chat_template.format).front())};
  if (const auto end = tokenizer.end(); end && *end != stops.front()) stops.push_back(*end);
  return stops;
}

}  // namespace llampi::tokenizer
