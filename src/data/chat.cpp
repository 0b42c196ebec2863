#include "llampi/data/chat.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "llampi/core/error.hpp"

namespace llampi {
namespace {

using Names = std::vector<std::string_view>;

/// The special tokens of a template, first the one that ends the assistant's turn.
Names special_tokens(ChatTemplate chat_template) {
  if (chat_template == ChatTemplate::llama2) return {"</s>", "<s>"};
  return {"<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"};
}

std::string_view missing_token(const Tokenizer& tokenizer, ChatTemplate chat_template) {
  for (const auto name : special_tokens(chat_template)) {
    if (!tokenizer.find(name)) return name;
  }
  return {};
}

std::int32_t find(const Tokenizer& tokenizer, std::string_view name) {
  const auto id = tokenizer.find(name);
  require(id.has_value(), "a chat template that does not go with the tokenizer");
  return *id;
}

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

class Encoder {
 public:
  explicit Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add_special(std::string_view name, bool learnt = false) {
    const auto id = find(tokenizer_, name);
    add({&id, 1}, learnt);
  }
  void add_text(const std::string& text) { add(tokenizer_.encode(text, SpecialText::text), false); }

  /// Two texts that stand between special tokens, the second of them learnt. They are encoded as one, as
  /// words may begin with the space before them; the first text's ids tell where the second begins.
  void add_texts(const std::string& before, const std::string& learnt) {
    const auto all = tokenizer_.encode(before + learnt, SpecialText::text);
    const auto first = tokenizer_.encode(before, SpecialText::text);
    const auto shared = std::mismatch(all.begin(), all.end(), first.begin(), first.end()).first;
    add({all.begin(), shared}, false);
    add({shared, all.end()}, true);
  }

  EncodedChat result;

 private:
  void add(std::span<const std::int32_t> ids, bool learnt) {
    result.ids.insert(result.ids.end(), ids.begin(), ids.end());
    result.mask.insert(result.mask.end(), ids.size(), learnt ? 1 : 0);
  }
  const Tokenizer& tokenizer_;
};

EncodedChat encode_llama3(const Tokenizer& tokenizer, const Conversation& conversation, ChatPurpose purpose) {
  Encoder encoder(tokenizer);
  const auto add_header = [&](ChatRole role) {
    encoder.add_special("<|start_header_id|>");
    encoder.add_text(to_string(role));
    encoder.add_special("<|end_header_id|>");
  };
  encoder.add_special("<|begin_of_text|>");
  for (const auto& message : conversation) {
    const bool learnt = message.role == ChatRole::assistant && message.trained;
    const std::string content(strip(message.content));
    add_header(message.role);
    if (learnt) {
      encoder.add_texts("\n\n", content);
    } else {
      encoder.add_text("\n\n" + content);
    }
    encoder.add_special("<|eot_id|>", learnt);
  }
  if (purpose == ChatPurpose::generation) {
    add_header(ChatRole::assistant);
    encoder.add_text("\n\n");
  }
  return encoder.result;
}

void check_llama2(const Conversation& conversation, std::size_t turns_begin, ChatPurpose purpose) {
  for (std::size_t i = turns_begin; i < conversation.size(); ++i) {
    const auto wanted = (i - turns_begin) % 2 == 0 ? ChatRole::user : ChatRole::assistant;
    if (conversation[i].role == wanted) continue;
    throw_user_error(
        "message {} is the {}'s where the template llama2 has the {}'s: user and assistant take turns, after "
        "at "
        "most one system message",
        i + 1, to_string(conversation[i].role), to_string(wanted));
  }
  if (turns_begin == conversation.size()) throw_user_error("there is no message of the user");
  if (purpose == ChatPurpose::generation && conversation.back().role != ChatRole::user) {
    throw_user_error("the last message must be the user's for the assistant to answer");
  }
}

EncodedChat encode_llama2(const Tokenizer& tokenizer, const Conversation& conversation, ChatPurpose purpose) {
  const bool has_system = !conversation.empty() && conversation.front().role == ChatRole::system;
  check_llama2(conversation, has_system ? 1 : 0, purpose);
  Encoder encoder(tokenizer);
  for (std::size_t i = has_system ? 1 : 0; i < conversation.size(); i += 2) {
    std::string user = conversation[i].content;
    if (i == 1) user = "<<SYS>>\n" + conversation[0].content + "\n<</SYS>>\n\n" + user;
    const std::string prompt = "[INST] " + std::string(strip(user)) + " [/INST]";
    encoder.add_special("<s>");
    if (i + 1 == conversation.size()) {
      encoder.add_text(prompt);
      break;
    }
    const auto& answer = conversation[i + 1];
    const std::string reply = " " + std::string(strip(answer.content)) + " ";
    if (answer.trained) {
      encoder.add_texts(prompt, reply);
    } else {
      encoder.add_text(prompt + reply);
    }
    encoder.add_special("</s>", answer.trained);
  }
  return encoder.result;
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

ChatTemplate choose_template(const Tokenizer& tokenizer, const std::string& name) {
  if (name == "auto") {
    for (const auto known : {ChatTemplate::llama3, ChatTemplate::llama2}) {
      if (missing_token(tokenizer, known).empty()) return known;
    }
    throw_user_error(
        "the tokenizer {} has neither the special tokens of Llama 3 (<|start_header_id|>, <|eot_id|>, ...) "
        "nor "
        "those of Llama 2 (<s>, </s>), so no chat template goes with it; give the tokenizer of a chat model",
        tokenizer.name());
  }
  if (name != "llama2" && name != "llama3") {
    throw_user_error("the chat template \"{}\" is not known; use auto, llama2 or llama3", name);
  }
  const auto chosen = name == "llama2" ? ChatTemplate::llama2 : ChatTemplate::llama3;
  if (const auto missing = missing_token(tokenizer, chosen); !missing.empty()) {
    throw_user_error("the chat template {} needs the token {}, which the tokenizer {} has not got", name,
                     missing, tokenizer.name());
  }
  return chosen;
}

EncodedChat encode_chat(const Tokenizer& tokenizer, ChatTemplate chat_template,
                        const Conversation& conversation, ChatPurpose purpose) {
  return chat_template == ChatTemplate::llama3 ? encode_llama3(tokenizer, conversation, purpose)
                                               : encode_llama2(tokenizer, conversation, purpose);
}

std::vector<std::int32_t> stop_tokens(const Tokenizer& tokenizer, ChatTemplate chat_template) {
  std::vector<std::int32_t> stops{find(tokenizer, special_tokens(chat_template).front())};
  if (const auto end = tokenizer.end(); end && *end != stops.front()) stops.push_back(*end);
  return stops;
}

}  // namespace llampi
