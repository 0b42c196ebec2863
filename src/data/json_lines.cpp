// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/json_lines.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "llampi/core/error.hpp"
#include "llampi/core/text.hpp"

namespace llampi::data {
namespace {

using Json = nlohmann::json;

Json parse_object(std::string_view line) {
  // The JSON library takes it for the end, whatever follows.
  if (const auto at = line.find('\0'); at != std::string_view::npos)
    throw_user_error("the line is not valid JSON at byte {}: it holds a null byte", at + 1);
  Json json;
  try {
    json = Json::parse(line);
  } catch (const Json::parse_error& error) {
    const std::string_view what = error.what();
    if (what.find("UTF-8") != std::string_view::npos) {
      throw_user_error("the text is not valid UTF-8 at byte {} of the line", error.byte);
    }
    if (what.find("surrogate") != std::string_view::npos)
      throw_user_error("the line has half of a surrogate pair (\\ud800 to \\udfff) at byte {}", error.byte);
    if (what.find("unexpected end of input") != std::string_view::npos || error.byte > line.size()) {
      const auto text = without_byte_order_mark(line);
      const auto begin = text.find_first_not_of(" \t\r");
      if (begin != std::string_view::npos &&
          text.find_first_not_of(" \t\r", begin + 1) == std::string_view::npos)
        throw_user_error(
            "the line has only a bracket: this is JSON over several lines, and JSON lines are expected, one object on each "
            "(jq -c '.[]' makes them of an array)");
      throw_user_error("the line breaks off within its JSON, after {}; the file may be truncated",
                       count(std::ssize(line), "byte"));
    }
    const std::string_view at = line.substr(std::min(error.byte - 1, line.size()));
    if (error.byte > 0 && (at.starts_with("NaN") || at.starts_with("Infinity")))
      throw_user_error("the line has NaN or Infinity at byte {}, which are not JSON", error.byte);
    throw_user_error("the line is not valid JSON at byte {}", error.byte);
  } catch (const Json::exception&) {  // a number that no float64 can hold
    throw_user_error("the line holds a number that is out of range");
  }
  if (!json.is_object()) {
    throw_user_error(
        "the line is {} {} and not a JSON object{}", json.is_array() ? "an" : "a", json.type_name(),
        json.is_array() ? "; jq -c '.[]' writes what is in an array as one object on each line" : "");
  }
  return json;
}

std::string quoted(const std::string& text) {
  constexpr std::size_t kLongest = 40;
  return Json(text.substr(0, kLongest)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// `the keys are "id", "conversations"`, for who expects others.
std::string keys_found(const Json& object) {
  constexpr std::size_t kMost = 8;
  if (object.empty()) return "the object is empty";
  std::string text = object.size() == 1 ? "the only key is " : "the keys are ";
  std::size_t number = 0;
  for (const auto& [key, value] : object.items()) {
    if (number == kMost) return text + ", ...";
    text += (number++ == 0 ? "" : ", ") + quoted(key);
  }
  return text;
}

/// @param where of the object in the line, for messages: "", "message 3: "
std::string text_in(const Json& object, const std::string& key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw_user_error("{}\"{}\" is missing; {}", where, key, keys_found(object));
  if (!found->is_string()) {
    throw_user_error("{}\"{}\" is of type {}; it must be a string", where, key, found->type_name());
  }
  return found->get<std::string>();
}

std::string full_text_in(const Json& object, const std::string& key, const std::string& where = "") {
  auto text = text_in(object, key, where);
  if (tokenizer::strip(text).empty()) throw_user_error("{}\"{}\" is empty or only white space", where, key);
  return text;
}

tokenizer::ChatRole parse_role(const std::string& name, const std::string& where) {
  if (name == "system") return tokenizer::ChatRole::system;
  if (name == "user") return tokenizer::ChatRole::user;
  if (name == "assistant") return tokenizer::ChatRole::assistant;
  throw_user_error("{}the role {} is not known; use system, user or assistant", where, quoted(name));
}

/// The value of a key; nullptr if it is missing or null.
const Json* find_value(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool parse_weight(const Json& message, const std::string& where) {
  const auto* weight = find_value(message, "weight");
  if (!weight) return true;
  if (*weight != 0 && *weight != 1) throw_user_error("{}\"weight\" must be 0 or 1", where);
  return *weight == 1;
}

/// No template of this program writes tools or calls of them: a model trained without the calls would end its turn where
/// it is to call a tool, and one trained without the tools would answer as if it had none.
/// @param where of the object in the line, for messages: "", "message 3: "
void refuse_tools(const Json& object, std::initializer_list<const char*> keys, const std::string& where) {
  for (const char* key : keys) {
    const auto* found = find_value(object, key);
    if (!found || found->empty()) continue;
    throw_user_error("{}\"{}\" is not supported: no chat template here writes tools or their calls", where,
                     key);
  }
}

/// The keys that a message of the assistant may have in addition; a line of prompt and completion has them itself.
void read_options(const Json& object, const std::string& where, tokenizer::Message& message) {
  message.trained = parse_weight(object, where);
  if (find_value(object, "reasoning_content") && message.role == tokenizer::ChatRole::assistant)
    message.reasoning = text_in(object, "reasoning_content", where);
}

/// @param list ends with the message's number: "message ", "\"prompt\", message "
tokenizer::Message parse_message(const Json& json, const std::string& list, std::size_t number) {
  const std::string where = fmt::format("{}{}: ", list, number);
  if (!json.is_object()) throw_user_error("{}{} is not an object with role and content", list, number);
  tokenizer::Message message;
  message.role = parse_role(text_in(json, "role", where), where);
  refuse_tools(json, {"tool_calls", "function_call"}, where);
  message.content = message.role == tokenizer::ChatRole::system ? text_in(json, "content", where)
                                                                : full_text_in(json, "content", where);
  read_options(json, where, message);
  return message;
}

tokenizer::Conversation parse_messages(const Json& line, const char* key, const std::string& list) {
  const auto messages = line.find(key);
  if (messages == line.end() || !messages->is_array() || messages->empty())
    throw_user_error("\"{}\" must be a list that is not empty", key);
  tokenizer::Conversation conversation;
  for (const auto& message : *messages)
    conversation.push_back(parse_message(message, list, conversation.size() + 1));
  return conversation;
}

/// Keys of a line of prompt and completion: a model would silently be trained without what they say. They may say what the messages
/// say, or nothing.
void refuse_keys_of_prompt(const Json& line, const tokenizer::Conversation& conversation) {
  const auto refuse = [](const char* key, const char* remedy) {
    throw_user_error("\"{}\" is not supported in a line of messages: {}, or remove it", key, remedy);
  };
  const auto& first = conversation.front();
  const auto* const system = find_value(line, "system");
  if (system && *system != "" && (first.role != tokenizer::ChatRole::system || *system != first.content))
    refuse("system", "make it their first message, with the role system");
  const auto* const weight = find_value(line, "weight");
  if (weight && *weight != 1) refuse("weight", "give it, 0 or 1, to the messages it is meant for");
  const auto* const thoughts = find_value(line, "reasoning_content");
  if (thoughts && *thoughts != "") refuse("reasoning_content", "give it to the messages it is meant for");
}

/// Both are lists of messages, as the library TRL has them: the loss is on the completion alone.
tokenizer::Conversation parse_prompt_messages(const Json& json) {
  auto conversation = parse_messages(json, "prompt", "\"prompt\", message ");
  for (auto& message : conversation) message.trained = false;
  for (auto& message : parse_messages(json, "completion", "\"completion\", message "))
    conversation.push_back(std::move(message));
  refuse_keys_of_prompt(json, conversation);
  return conversation;
}

tokenizer::Conversation parse_prompt(const Json& json) {
  const auto *prompt = find_value(json, "prompt"), *completion = find_value(json, "completion");
  if (prompt && completion && prompt->is_array() != completion->is_array())
    throw_user_error("\"prompt\" and \"completion\" must both be texts, or both be lists of messages");
  if (prompt && prompt->is_array()) return parse_prompt_messages(json);
  tokenizer::Conversation conversation;
  if (const auto* system = find_value(json, "system"); system && *system != "")
    conversation.push_back({tokenizer::ChatRole::system, text_in(json, "system", "")});
  conversation.push_back({tokenizer::ChatRole::user, full_text_in(json, "prompt")});
  conversation.push_back({tokenizer::ChatRole::assistant, full_text_in(json, "completion")});
  read_options(json, "", conversation.back());
  return conversation;
}

/// Of a line in another usual form; as the end of a message.
const char* how_to_convert(const Json& object) {
  if (object.contains("text")) return ", and lines of texts are tokenized with --format jsonl";
  if (object.contains("conversations") || object.contains("instruction"))
    return ", and docs/prepare-data.md shows how such lines are converted with jq";
  return "";
}

}  // namespace

std::string parse_text_line(std::string_view line, const std::string& field) {
  return text_in(parse_object(line), field, "");
}

tokenizer::Conversation parse_conversation(std::string_view line) {
  const Json json = parse_object(line);
  refuse_tools(json, {"tools", "functions"}, "");
  const auto* messages = find_value(json, "messages");
  if (!messages && !find_value(json, "prompt") && !find_value(json, "completion"))
    throw_user_error("neither \"messages\" nor \"prompt\" and \"completion\" are there; {}{}",
                     keys_found(json), how_to_convert(json));
  if (!messages) return parse_prompt(json);
  auto conversation = parse_messages(json, "messages", "message ");
  refuse_keys_of_prompt(json, conversation);
  return conversation;
}

}  // namespace llampi::data
