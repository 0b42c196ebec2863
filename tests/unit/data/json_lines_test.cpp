// SPDX-License-Identifier: Apache-2.0
#include "llampi/data/json_lines.hpp"

#include "support/files.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;

TEST(TextLine, GivesTheText) {
  EXPECT_EQ(data::parse_text_line(R"({"text": "a\nb ä \u00e4 \ud83d\ude00", "id": 7})", "text"),
            "a\nb ä ä 😀");
  EXPECT_EQ(data::parse_text_line("  {\"content\": \"x\"}\r", "content"), "x");
  EXPECT_EQ(data::parse_text_line(R"({"text": ""})", "text"), "");
}

TEST(TextLine, SaysWhatIsWrong) {
  const auto message = [](std::string_view line) {
    return user_error([&] { data::parse_text_line(line, "text"); });
  };
  EXPECT_THAT(message(R"({"text": "cut of)"), HasSubstr("breaks off within its JSON, after 16 bytes"));
  EXPECT_THAT(message(R"({"text": "a")"), HasSubstr("breaks off within its JSON"));
  EXPECT_THAT(message(R"({"text": "a"} {)"), HasSubstr("not valid JSON at byte 15"));
  EXPECT_THAT(message(R"({"text": 'a'})"), HasSubstr("not valid JSON at byte 10"));
  EXPECT_THAT(message(std::string(R"({"text": "a"})").append(1, '\0').append("{}")),
              HasSubstr("not valid JSON at byte 14: it holds a null byte"));
  EXPECT_THAT(message("{\"text\": \"a\xff\"}"), HasSubstr("not valid UTF-8 at byte 12"));
  EXPECT_THAT(message(R"({"text": "a", "n": 1e999})"), HasSubstr("number that is out of range"));
  EXPECT_THAT(message(R"({"text": "\ud800"})"), HasSubstr("half of a surrogate pair"));
  for (const char* number : {"NaN", "Infinity", "-Infinity"}) {
    EXPECT_THAT(message(fmt::format(R"({{"text": "a", "n": {}}})", number)),
                HasSubstr("NaN or Infinity at byte 2"));
  }
  EXPECT_THAT(message(R"({"text": None})"), HasSubstr("not valid JSON at byte 10"));
  EXPECT_THAT(message(R"({"text": "Name is N)"), HasSubstr("breaks off"));
  for (const char* line : {"[", "{", "  [", "\xEF\xBB\xBF[", "\xEF\xBB\xBF {\r"})
    EXPECT_THAT(message(line), HasSubstr("only a bracket: this is JSON over several lines"));
  EXPECT_THAT(message(R"(["text"])"), HasSubstr("is an array and not a JSON object; jq -c '.[]' writes"));
  EXPECT_THAT(message(R"("text")"), HasSubstr("is a string and not a JSON object"));
  EXPECT_EQ(message(R"({"id": 1, "content": "a"})"), R"("text" is missing; the keys are "content", "id")");
  EXPECT_EQ(message("{}"), R"("text" is missing; the object is empty)");
  EXPECT_THAT(message(R"({"text": 7})"), HasSubstr("\"text\" is of type number"));
  EXPECT_THAT(message(std::string(100'000, '[')), HasSubstr("breaks off"));
}

TEST(ConversationLine, GivesTheMessages) {
  const auto turns = data::parse_conversation(
      R"({"id": 1, "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "a", "name": "x"},
          {"role": "assistant", "content": "b", "weight": 0}, {"role": "assistant", "content": " c ", "weight": 1}]})");
  ASSERT_EQ(turns.size(), 4U);
  EXPECT_EQ(turns[0].role, tokenizer::ChatRole::system);
  EXPECT_EQ(turns[1].role, tokenizer::ChatRole::user);
  EXPECT_EQ(turns[1].content, "a");
  EXPECT_EQ(turns[2].role, tokenizer::ChatRole::assistant);
  EXPECT_FALSE(turns[2].trained);
  EXPECT_EQ(turns[3].content, " c ");
  EXPECT_TRUE(turns[3].trained);
  EXPECT_FALSE(turns[3].reasoning);
  const auto thought = data::parse_conversation(
      R"({"messages": [{"role": "user", "content": "a", "reasoning_content": "not the assistant's"},
          {"role": "assistant", "content": "b", "reasoning_content": null},
          {"role": "assistant", "content": "c", "reasoning_content": "t"}]})");
  EXPECT_FALSE(thought[0].reasoning || thought[1].reasoning);
  EXPECT_EQ(thought[2].reasoning, "t");
  EXPECT_THAT(user_error([&] {
                data::parse_conversation(
                    R"({"messages": [{"role": "assistant", "content": "c", "reasoning_content": 7}]})");
              }),
              HasSubstr("message 1: \"reasoning_content\" is of type number; it must be a string"));
  EXPECT_THAT(user_error([&] {
                data::parse_conversation(
                    R"({"messages": [{"role": "user", "content": "a"},
                        {"role": "assistant", "content": "Let me look.", "tool_calls": [{"id": "1"}]}]})");
              }),
              HasSubstr("message 2: \"tool_calls\" is not supported"));
  EXPECT_THAT(
      user_error([&] {
        data::parse_conversation(
            R"({"tools": [{"type": "function"}], "messages": [{"role": "assistant", "content": "b"}]})");
      }),
      HasSubstr("\"tools\" is not supported"));
  EXPECT_EQ(data::parse_conversation(
                R"({"tools": [], "messages": [{"role": "assistant", "content": "b", "tool_calls": []}]})")
                .size(),
            1U);
  for (const char* key : {"system", "weight", "reasoning_content"}) {
    const auto line = [&](const char* value) {
      return fmt::format(R"({{"messages": [{{"role": "user", "content": "a"}}], "{}": {}}})", key, value);
    };
    EXPECT_EQ(data::parse_conversation(line("null")).size(), 1U);
    for (const char* value : {"0", R"("a")"}) {
      EXPECT_THAT(user_error([&] { data::parse_conversation(line(value)); }),
                  HasSubstr(fmt::format("\"{}\" is not supported in a line of messages", key)));
    }
  }
  for (const char* same : {R"("system": "s")", R"("system": "")", R"("weight": 1)",
                           R"("reasoning_content": "")", R"("prompt": "a")"}) {
    const auto line = fmt::format(
        R"({{{}, "messages": [{{"role": "system", "content": "s"}}, {{"role": "user", "content": "a"}}]}})",
        same);
    EXPECT_EQ(data::parse_conversation(line).size(), 2U) << "says nothing new: " << same;
  }
  const auto with_system = data::parse_conversation(R"({"system": "s", "prompt": "p", "completion": "c"})");
  ASSERT_EQ(with_system.size(), 3U);
  EXPECT_EQ(with_system[0].role, tokenizer::ChatRole::system);
  EXPECT_EQ(with_system[0].content, "s");
  for (const char* none : {"null", R"("")"}) {
    const auto line = fmt::format(R"({{"system": {}, "prompt": "p", "completion": "c"}})", none);
    EXPECT_EQ(data::parse_conversation(line).size(), 2U) << line;
  }
  const auto whole = data::parse_conversation(
      R"({"prompt": "p", "completion": "c", "weight": 1, "reasoning_content": "t"})");
  EXPECT_TRUE(whole[1].trained);
  EXPECT_FALSE(data::parse_conversation(R"({"prompt": "p", "completion": "c", "weight": 0})")[1].trained);
  EXPECT_EQ(whole[1].reasoning, "t");
  EXPECT_FALSE(whole[0].reasoning);
  const auto pair = data::parse_conversation(
      R"({"messages": null, "prompt": "p", "completion": "c", "weight": null, "reasoning_content": null})");
  ASSERT_EQ(pair.size(), 2U);
  EXPECT_EQ(pair[0].role, tokenizer::ChatRole::user);
  EXPECT_EQ(pair[0].content, "p");
  EXPECT_EQ(pair[1].role, tokenizer::ChatRole::assistant);
  EXPECT_EQ(pair[1].content, "c");
  EXPECT_FALSE(pair[1].reasoning);
  EXPECT_EQ(
      data::parse_conversation(
          R"({"messages": [{"role": "assistant", "content": "b"}], "prompt": null, "completion": null})")
          .size(),
      1U);
}

TEST(ConversationLine, MayBeAPromptAndACompletionOfMessages) {
  const auto conversation = data::parse_conversation(
      R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"},
                     {"role": "assistant", "content": "b", "weight": 1}, {"role": "user", "content": "c"}],
          "completion": [{"role": "assistant", "content": "d"}], "system": "s", "id": 7})");
  std::vector<std::string> contents;
  std::vector<bool> trained;
  for (const auto& message : conversation) {
    contents.push_back(message.content);
    trained.push_back(message.trained);
  }
  EXPECT_EQ(contents, (std::vector<std::string>{"s", "a", "b", "c", "d"}));
  EXPECT_EQ(trained, (std::vector<bool>{false, false, false, false, true}));
  const auto refusal = [](const std::string& prompt, const std::string& completion,
                          const std::string& more = "") {
    return user_error([&] {
      data::parse_conversation(
          fmt::format(R"({{"prompt": {}, "completion": {}{}}})", prompt, completion, more));
    });
  };
  const std::string user = R"([{"role": "user", "content": "a"}])",
                    assistant = R"([{"role": "assistant", "content": "b"}])";
  const std::string both = "\"prompt\" and \"completion\" must both be texts, or both be lists of messages";
  EXPECT_EQ(refusal(user, "\"b\""), both);
  EXPECT_EQ(refusal(user, "null"), "\"completion\" must be a list that is not empty");
  EXPECT_EQ(refusal(user, "[]"), "\"completion\" must be a list that is not empty");
  EXPECT_EQ(refusal("[]", assistant), "\"prompt\" must be a list that is not empty");
  EXPECT_EQ(refusal("\"a\"", assistant), both);
  EXPECT_EQ(refusal(user, R"([{"role": "assistant"}])"),
            "\"completion\", message 1: \"content\" is missing; the only key is \"role\"");
  EXPECT_EQ(refusal("[7]", assistant), "\"prompt\", message 1 is not an object with role and content");
  EXPECT_THAT(refusal(user, assistant, R"(, "weight": 0)"),
              HasSubstr("\"weight\" is not supported in a line of messages"));
}

TEST(ConversationLine, SaysWhatIsWrong) {
  const auto message = [](const std::string& line) {
    return user_error([&] { data::parse_conversation(line); });
  };
  const auto messages = [&](const std::string& list) { return message(R"({"messages": )" + list + "}"); };
  const std::string user = R"({"role": "user", "content": "a"}, )";
  EXPECT_EQ(
      message(R"({"id": 7, "conversations": []})"),
      R"(neither "messages" nor "prompt" and "completion" are there; the keys are "conversations", "id", and docs/prepare-data.md shows how such lines are converted with jq)");
  EXPECT_THAT(
      message(R"({"text": "a"})"),
      HasSubstr(
          R"(are there; the only key is "text", and lines of texts are tokenized with --format jsonl)"));
  EXPECT_THAT(message(R"({"messages": null, "prompt": null, "completion": null})"),
              HasSubstr(R"(neither "messages" nor "prompt")"));
  EXPECT_THAT(messages(R"([{"from": "human", "value": "a"}])"),
              HasSubstr(R"(message 1: "role" is missing; the keys are "from", "value")"));
  EXPECT_THAT(message(R"({"prompt": "a"})"), HasSubstr("\"completion\" is missing"));
  EXPECT_THAT(message(R"({"completion": "a"})"), HasSubstr("\"prompt\" is missing"));
  EXPECT_THAT(message(R"({"prompt": "a", "completion": 1})"), HasSubstr("\"completion\" is of type number"));
  EXPECT_THAT(message(R"({"prompt": "a", "completion": ""})"),
              HasSubstr("\"completion\" is empty or only white space"));
  EXPECT_THAT(message(R"({"prompt": null, "completion": "c"})"), HasSubstr("\"prompt\" is of type null"));
  EXPECT_THAT(message(R"({"prompt": "a", "completion": "c", "weight": 2})"),
              HasSubstr("\"weight\" must be 0 or 1"));
  EXPECT_THAT(message(R"({"prompt": "a", "completion": "c", "reasoning_content": 7})"),
              HasSubstr("\"reasoning_content\" is of type number"));
  EXPECT_THAT(messages("[]"), HasSubstr("list that is not empty"));
  EXPECT_THAT(messages("{}"), HasSubstr("list that is not empty"));
  EXPECT_THAT(messages("[1]"), HasSubstr("message 1 is not an object"));
  EXPECT_THAT(messages("[" + user + R"({"content": "b"}])"), HasSubstr("message 2: \"role\" is missing"));
  EXPECT_THAT(messages("[" + user + R"({"role": "tool", "content": "b"}])"),
              HasSubstr("message 2: the role \"tool\" is not known; use system, user or assistant"));
  EXPECT_THAT(messages("[" + user + R"({"role": "assistant", "content": null}])"),
              HasSubstr("message 2: \"content\" is of type null; it must be a string"));
  EXPECT_THAT(messages("[" + user + R"({"role": "assistant"}])"),
              HasSubstr("message 2: \"content\" is missing"));
  EXPECT_THAT(messages("[" + user + R"({"role": "assistant", "content": "\t"}])"),
              HasSubstr("message 2: \"content\" is empty"));
  EXPECT_THAT(messages("[" + user + R"({"role": "assistant", "content": "\u00a0\u3000\u2028"}])"),
              HasSubstr("message 2: \"content\" is empty or only white space"));
  EXPECT_THAT(messages("[" + user + R"({"role": "assistant", "content": "a", "weight": 0.5}])"),
              HasSubstr("message 2: \"weight\" must be 0 or 1"));
}

}  // namespace
}  // namespace llampi::test
