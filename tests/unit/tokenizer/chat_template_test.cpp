// SPDX-License-Identifier: Apache-2.0
// Which template belongs to a tokenizer, and what each makes of random conversations.
#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "llampi/tokenizer/chat.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"
#include "support/fake_tokenizers.hpp"
#include "support/files.hpp"
#include "tokenizer/chat_tokens.hpp"
#include "tokenizer/jinja_outline.hpp"

namespace llampi::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

TEST(JinjaOutline, LooksAtWhatIsRenderedOnly) {
  const auto fingerprint = [](std::string_view text) { return tokenizer::outline_of(text).fingerprint; };
  const auto same = fingerprint("a{% for m in messages %}{{ m['role'] + '\n' }}{% endfor %}");
  for (const char* other :
       {"a{%for m in messages%}{{m[\"role\"]+\"\\n\"}}{%endfor%}",
        "a  {%- for m in messages -%} {{ m['role'] + '\\n' }}\n{%- endfor %}\n",
        "a{% for m in messages %}\n{{ m['role'] + '\n' }}{# of a turn #}\n  {% endfor %}\n",
        "a{%- for m in messages %}\r\n{{- m['role'] + '\\n' -}}\r\n\r\n{% endfor %}"}) {
    EXPECT_EQ(fingerprint(other), same) << other;
  }
  for (const char* other : {"a{% for m in messages %}{{ m['role'] + 'n' }}{% endfor %}",
                            "a {% for m in messages %}{{ m['role'] + '\n' }}{% endfor %}",
                            "a{% for m in messages %}{{ m['role'] + '\\\\n' }}{% endfor %}",
                            "a{% for m in messages %} {{ m['role'] + '\n' }}{% endfor %}",
                            "a{% for m in messages %}{{ m['role'] + '\n' }}\n{% endfor %}",
                            "a{% for m in messages %}{{ m['role'] + '\n' }}{% endfor %}\n\n\n",
                            "a{% for m inmessages %}{{ m['role'] + '\n' }}{% endfor %}",
                            "{% for m in messages %}a{{ m['role'] + '\n' }}{% endfor %}"}) {
    EXPECT_NE(fingerprint(other), same) << other;
  }
  for (const char* torn :
       {"{", "{{", "{% for", "{{ 'a", "{{ 'a\\", "{#", "{%-", "{{-", "a{{ b -", "{{ b }", ""})
    tokenizer::outline_of(torn);
}

TEST(ChatTemplates, AreRecognisedByTheTextThatTheyGive) {
  const BytesAndSpecials all({"</s>", "<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                              "<|im_start|>", "<|im_end|>"});
  for (const auto& name : tokenizer::template_names()) {
    const auto chosen = tokenizer::choose_template(all, {.name = name, .today = "05 Nov 2031"});
    const auto found = tokenizer::recognise_template(chosen.text);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(found->format, chosen.format) << name;
    EXPECT_EQ(chosen.name, name);
    EXPECT_EQ(found->name, name == "llama3.3" ? "llama3.1" : name);
    EXPECT_EQ(chosen.date, name == "llama3.2"            ? "05 Nov 2031"
                           : name.starts_with("llama3.") ? "26 Jul 2024"
                                                         : "");
    EXPECT_EQ(found->date, name == "llama3.2" ? "" : chosen.date);
  }
  const auto dated = tokenizer::choose_template(all, {.name = "llama3.2", .date = "1 o'clock"});
  EXPECT_EQ(dated.date, "1 o'clock");
  EXPECT_EQ(tokenizer::recognise_template(dated.text)->date, "1 o'clock");
  EXPECT_THAT(user_error([&] { tokenizer::choose_template(all, {.name = "llama3", .date = "1 May 2031"}); }),
              HasSubstr("the template llama3, which writes no date"));
}

TEST(ChatTemplates, AreRecognisedAsPublished) {
  EXPECT_EQ(tokenizer::recognise_template(kChatml)->name, "chatml");
  EXPECT_EQ(tokenizer::recognise_template(kChatml)->default_system, "");
  std::string text = kChatml;
  text.insert(text.find("{{"),
              "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe "
              "kind.<|im_end|>\\n' "
              "}}{% endif %}");
  const auto found = tokenizer::recognise_template(text);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->default_system, "Be kind.");
  EXPECT_EQ(found->text, text);
  EXPECT_FALSE(tokenizer::recognise_template(std::string(kChatml) + "!"));
  EXPECT_FALSE(tokenizer::recognise_template(""));
}

// ---- Texts and outlines, compared with what make_chat_text_fixtures.py keeps of transformers and Jinja's
// lexer. ----

Json known_texts() {
  std::ifstream file(fixture("chat/chat_texts.json"));
  return Json::parse(file);
}

std::string fingerprint_of(const std::string& text) {
  return fmt::format("{:016x}", tokenizer::outline_of(text).fingerprint);
}

/// The texts that exported folders get, by name of the template; llama3.2-dated with --template-date.
std::map<std::string, std::string> own_texts(const std::string& date) {
  const BytesAndSpecials all({"</s>", "<s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                              "<|im_start|>", "<|im_end|>"});
  std::map<std::string, std::string> texts;
  for (const auto& name : tokenizer::template_names())
    texts[name] = tokenizer::choose_template(all, {.name = name}).text;
  texts["llama3.2-dated"] = tokenizer::choose_template(all, {.name = "llama3.2", .date = date}).text;
  return texts;
}

/// transformers has rendered these very texts as it renders the published ones. If this fails, the texts were
/// changed: run the script, which reads the properties recorded here.
TEST(ChatTemplates, TextsAreThoseThatTransformersRendered) {
  const Json known = known_texts();
  const auto own = own_texts(known["own_date"]);
  EXPECT_EQ(own.size(), known["own"].size());
  for (const auto& [name, text] : own) {
    RecordProperty("text " + name, text);
    EXPECT_EQ(text, known["own"].value(name, Json{{"text", "none in chat_texts.json"}})["text"]) << name;
  }
}

TEST(ChatTemplates, PublishedOnesAreThoseThatTransformersRendered) {
  std::map<std::string, std::string> published;
  for (const auto& [fingerprint, name] : tokenizer::published_templates())
    published[fmt::format("{:016x}", fingerprint)] = name;
  EXPECT_EQ(published, known_texts()["published"].get<decltype(published)>());
}

/// The shapes are those of the published texts, each letter an x and each digit a 0.
TEST(JinjaOutline, IsThatOfJinjasLexer) {
  const Json known = known_texts();
  EXPECT_EQ(known["shapes"].size(), 31U);
  EXPECT_EQ(known["snippets"].size(), 12U);
  for (const char* kind : {"shapes", "snippets"}) {
    for (const auto& [text, fingerprint, date, default_system] :
         known[kind].get<std::vector<std::array<std::string, 4>>>()) {
      const auto outline = tokenizer::outline_of(text);
      EXPECT_EQ(fmt::format("{:016x}", outline.fingerprint), fingerprint) << text;
      EXPECT_EQ(outline.date, date) << text;
      EXPECT_EQ(outline.default_system, default_system) << text;
    }
  }
}

/// Laid out anew and with one byte erased, which now and then changes nothing that is rendered.
TEST(JinjaOutline, IsThatOfJinjasLexerForChangedTexts) {
  const Json known = known_texts();
  std::size_t same = 0, other = 0;
  for (const auto& [name, own] : known["own"].items()) {
    const std::string text = own["text"];
    EXPECT_EQ(fingerprint_of(text), own["fingerprint"]) << name;
    const auto compare = [&, &own = own](const std::string& changed, const std::string& fingerprint) {
      EXPECT_EQ(fingerprint_of(changed), fingerprint) << changed;
      const bool is_same = fingerprint == own["fingerprint"];
      EXPECT_EQ(tokenizer::recognise_template(changed).has_value(), is_same) << changed;
      ++(is_same ? same : other);
    };
    for (const auto& layout : own["layouts"]) compare(layout[0], layout[1]);
    for (const auto& erased : own["erased"])
      compare(std::string(text).erase(erased[0].get<std::size_t>(), 1), erased[1]);
  }
  EXPECT_GT(same, 50U);
  EXPECT_GT(other, 200U);
}

/// A folder with the small Llama 2 tokenizer; `config` is its tokenizer_config.json.
std::unique_ptr<tokenizer::Tokenizer> in_folder(const TemporaryFolder& folder, const Json& config) {
  const auto source =
      std::filesystem::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers" / "llama2" / "tokenizer.json";
  write_text(folder / "tokenizer.json", read_text(source));
  write_text(folder / "tokenizer_config.json", config.dump());
  return tokenizer::make_tokenizer(folder.path().string());
}

TEST(ChatTemplates, AreTheFoldersOwn) {
  const TemporaryFolder folder;
  const Json names{{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  const auto zephyr = tokenizer::choose_template(*in_folder(folder, names), {.name = "zephyr"}).text;
  const auto mistral = tokenizer::choose_template(*in_folder(folder, names), {.name = "mistral-v0.2"}).text;
  auto config = names;
  config["chat_template"] = zephyr;
  EXPECT_EQ(tokenizer::choose_template(*in_folder(folder, config)).name, "zephyr");
  EXPECT_EQ(tokenizer::choose_template(*in_folder(folder, config), {.name = "llama2"}).name, "llama2");
  EXPECT_EQ(tokenizer::choose_template(*in_folder(folder, config), {.trained_with = {mistral, "x.h5"}}).name,
            "mistral-v0.2");
  config["chat_template"] = {{{"name", "tools"}, {"template", "{{ tools }}"}},
                             {{"name", "default"}, {"template", zephyr}}};
  EXPECT_EQ(tokenizer::choose_template(*in_folder(folder, config)).text, zephyr);
  write_text(folder / "chat_template.jinja", mistral);
  EXPECT_EQ(tokenizer::choose_template(*in_folder(folder, config)).name, "mistral-v0.2");
}

TEST(ChatTemplates, AreNeverGuessed) {
  const TemporaryFolder folder;
  const Json names{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_THAT(user_error([&] { tokenizer::choose_template(*in_folder(folder, names)); }),
              AllOf(HasSubstr("comes with no chat template"), HasSubstr("--template"), HasSubstr("llama2, "),
                    ::testing::Not(HasSubstr("llama3"))));  // whose tokens it lacks
  auto config = names;
  config["chat_template"] = "{% for message in messages %}{{ message['content'] }}{% endfor %}";
  EXPECT_THAT(user_error([&] { tokenizer::choose_template(*in_folder(folder, config)); }),
              AllOf(HasSubstr((folder / "tokenizer_config.json").string() +
                              " is not one that llampi knows (fingerprint "),
                    HasSubstr("--template")));
  EXPECT_EQ(tokenizer::choose_template(*in_folder(folder, config), {.name = "llama2"}).name, "llama2");
  config["chat_template"] = 7;
  EXPECT_THAT(user_error([&] { in_folder(folder, config); }),
              HasSubstr("\"chat_template\" must be a string"));
  const auto llama2 = in_folder(folder, names);
  EXPECT_THAT(user_error([&] { tokenizer::choose_template(*llama2, {.name = "llama3"}); }),
              HasSubstr("needs the token <|eot_id|>"));
  EXPECT_THAT(user_error([&] { tokenizer::choose_template(*llama2, {.name = "alpaca"}); }),
              HasSubstr("\"alpaca\" is not known"));
  EXPECT_THAT(user_error([&] {
                tokenizer::choose_template(*tokenizer::make_tokenizer("bytes"), {.name = "zephyr"});
              }),
              HasSubstr("needs the token eos_token"));
}

TEST(ChatTemplates, EndTokensAreThoseOfAllFiles) {
  const TemporaryFolder folder;
  EXPECT_THAT(tokenizer::end_ids_of(folder.path()), ElementsAre());
  write_text(folder / "config.json", R"({"eos_token_id": 7})");
  EXPECT_THAT(tokenizer::end_ids_of(folder.path()), ElementsAre(7));
  write_text(folder / "generation_config.json", R"({"eos_token_id": [9, 7, -1, 8]})");
  EXPECT_THAT(tokenizer::end_ids_of(folder.path()), ElementsAre(9, 7, 8));
  write_text(folder / "generation_config.json", R"({"eos_token_id": null})");
  EXPECT_THAT(tokenizer::end_ids_of(folder.path()), ElementsAre(7));
  write_text(folder / "generation_config.json", R"({"eos_token_id": "</s>"})");
  EXPECT_THAT(user_error([&] { tokenizer::end_ids_of(folder.path()); }),
              HasSubstr("generation_config.json: \"eos_token_id\" is neither"));
}

// ---- Random conversations, compared with digests that make_chat_template_fixtures.py keeps of
// transformers'. ----

/// The same tokenizer as there.
std::unique_ptr<tokenizer::Tokenizer> random_tokenizer(const TemporaryFolder& folder,
                                                       const std::string& name) {
  const std::string source = name == "llama2-first" ? "llama2" : name;
  Json json = Json::parse(read_text(std::filesystem::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers" /
                                    source / "tokenizer.json"));
  std::set<std::string> known;
  std::int64_t next = 0;
  for (const auto& id : json["model"]["vocab"]) next = std::max(next, id.get<std::int64_t>() + 1);
  for (const auto& token : json["added_tokens"]) {
    known.insert(token["content"]);
    next = std::max(next, token["id"].get<std::int64_t>() + 1);
  }
  for (const char* token :
       {"<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|im_start|>", "<|im_end|>"}) {
    if (known.contains(token)) continue;
    json["added_tokens"].push_back({{"id", next++},
                                    {"content", token},
                                    {"special", true},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false}});
  }
  if (name == "llama2-first") {
    json["normalizer"] = nullptr;
    json["pre_tokenizer"] = {
        {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
  }
  const bool is_llama3 = name == "llama3", is_qwen = name == "qwen";
  const char* bos = is_llama3 ? "<|begin_of_text|>" : is_qwen ? "<|endoftext|>" : "<s>";
  const char* eos = is_llama3 ? "<|end_of_text|>" : is_qwen ? "<|im_end|>" : "</s>";
  write_text(folder / "tokenizer_config.json", Json{{"bos_token", bos}, {"eos_token", eos}}.dump());
  write_text(folder / "tokenizer.json", json.dump());
  return tokenizer::make_tokenizer(folder.path().string());
}

/// Of ids and mask; a prompt is not learnt.
std::string digest(const tokenizer::EncodedChat& chat, tokenizer::ChatPurpose purpose) {
  std::uint32_t value = 2166136261U;
  for (std::size_t i = 0; i < chat.ids.size(); ++i)
    value = value * 16777619U ^ (2 * static_cast<std::uint32_t>(chat.ids[i]) +
                                 (purpose == tokenizer::ChatPurpose::training ? chat.mask[i] : 0U));
  return fmt::format("{:08x}", value);
}

tokenizer::Conversation conversation_of_pairs(const Json& messages) {
  tokenizer::Conversation conversation;
  for (const auto& message : messages) {
    const std::string role = message[0];
    conversation.push_back({role == "system" ? tokenizer::ChatRole::system
                            : role == "user" ? tokenizer::ChatRole::user
                                             : tokenizer::ChatRole::assistant,
                            message[1].get<std::string>()});
    if (message.size() > 2) conversation.back().reasoning = message[2].get<std::string>();
  }
  return conversation;
}

/// Without the system messages but the first `kept` messages.
tokenizer::Conversation without_system(tokenizer::Conversation turns, std::ptrdiff_t kept) {
  turns.erase(
      std::remove_if(turns.begin() + kept, turns.end(),
                     [](const tokenizer::Message& m) { return m.role == tokenizer::ChatRole::system; }),
      turns.end());
  return turns;
}

std::string digest_of(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chosen,
                      const tokenizer::Conversation& turns, tokenizer::ChatPurpose purpose) {
  for (const auto& given : {turns, without_system(turns, 1)}) {
    try {
      return digest(tokenizer::encode_chat(tokenizer, chosen, given, purpose), purpose);
    } catch (const UserError&) {  // so does transformers, or the digests differ
    }
  }
  return digest(tokenizer::encode_chat(tokenizer, chosen, without_system(turns, 0), purpose), purpose);
}

// With its text, which token files and checkpoints record.
TEST(ChatTemplates, OfAFolderIsTakenWithItsDefaultSystemMessageWhereChatmlIsNamed) {
  const TemporaryFolder folder;
  random_tokenizer(folder, "qwen");
  std::string text = kChatml;
  text.insert(text.find("{{"),
              "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe "
              "kind.<|im_end|>\\n' }}{% endif %}");
  write_text(folder / "chat_template.jinja", text);
  const auto tokenizer = tokenizer::make_tokenizer(folder.path().string());
  for (const char* name : {"auto", "chatml"}) {
    const auto chosen = tokenizer::choose_template(*tokenizer, {.name = name});
    EXPECT_EQ(chosen.default_system, "Be kind.") << name;
    EXPECT_EQ(chosen.text, text) << name;
  }
}

TEST(ChatTemplates, GiveTheIdsAndMasksOfTransformers) {
  std::ifstream file(fixture("chat/chat_templates.json"));
  const Json known = Json::parse(file);
  std::size_t compared = 0;
  for (const auto& [name, templates] : known["cases"].items()) {
    const TemporaryFolder folder;
    const auto tokenizer = random_tokenizer(folder, name);
    for (const auto& [wanted_name, digests] : templates.items()) {
      SCOPED_TRACE(name + ", " + wanted_name);
      const bool has_default = wanted_name == "chatml-default";
      auto chosen = tokenizer::choose_template(
          *tokenizer, {.name = has_default ? "chatml" : wanted_name, .today = known["date"]});
      if (has_default) chosen.default_system = known["default_system"];
      std::size_t differ = 0;
      for (std::size_t i = 0; i < known["conversations"].size(); ++i) {
        auto turns = conversation_of_pairs(known["conversations"][i]);
        const auto whole = digest_of(*tokenizer, chosen, turns, tokenizer::ChatPurpose::training);
        turns.pop_back();
        const auto prompt = digest_of(*tokenizer, chosen, turns, tokenizer::ChatPurpose::generation);
        const bool same = whole == digests["whole"][i] && prompt == digests["prompt"][i];
        if (!same && differ++ == 0)
          ADD_FAILURE() << "conversation " << i << ": " << known["conversations"][i];
        ++compared;
      }
      EXPECT_EQ(differ, 0U) << "of " << known["conversations"].size() << " conversations";
    }
  }
  EXPECT_EQ(compared, 24U * 200U);
}

/// What make_chat_thinking_fixtures.py tries in turn: all; without system messages after the first; turns.
std::vector<tokenizer::Conversation> ends_of(const tokenizer::Conversation& all) {
  tokenizer::Conversation turns;
  for (const auto& message : all) {
    const auto wanted = turns.size() % 2 == 0 ? tokenizer::ChatRole::user : tokenizer::ChatRole::assistant;
    if (message.role == wanted) turns.push_back(message);
  }
  return {all, without_system(all, 1), turns};
}

std::string digest_of_thoughts(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chosen,
                               const tokenizer::Conversation& all, tokenizer::ChatPurpose purpose) {
  for (auto given : ends_of(all)) {
    if (purpose == tokenizer::ChatPurpose::generation && given.back().role == tokenizer::ChatRole::assistant)
      given.pop_back();
    try {
      return digest(tokenizer::encode_chat(tokenizer, chosen, given, purpose), purpose);
    } catch (const UserError&) {  // so does transformers, or the digests differ
    }
  }
  return "refused";
}

TEST(ChatTemplates, GiveTheIdsAndMasksOfTransformersWithThoughts) {
  const Json known = Json::parse(read_text(fixture("chat/chat_thinking.json")));
  std::size_t compared = 0;
  for (const auto& [name, templates] : known["cases"].items()) {
    const TemporaryFolder folder;
    const auto tokenizer = random_tokenizer(folder, name);
    for (const auto& [wanted_name, digests] : templates.items()) {
      SCOPED_TRACE(name + ", " + wanted_name);
      const auto chosen = tokenizer::choose_template(*tokenizer, {.name = wanted_name});
      std::size_t differ = 0;
      for (std::size_t i = 0; i < known["conversations"].size(); ++i) {
        auto all = conversation_of_pairs(known["conversations"][i]);
        if (wanted_name != "qwen3")
          for (auto& message : all) message.reasoning = {};
        const auto whole = digest_of_thoughts(*tokenizer, chosen, all, tokenizer::ChatPurpose::training);
        const auto prompt = digest_of_thoughts(*tokenizer, chosen, all, tokenizer::ChatPurpose::generation);
        const bool same = whole == digests["whole"][i] && prompt == digests["prompt"][i];
        if (!same && differ++ == 0)
          ADD_FAILURE() << "conversation " << i << ": " << known["conversations"][i];
        ++compared;
      }
      EXPECT_EQ(differ, 0U) << "of " << known["conversations"].size() << " conversations";
    }
  }
  EXPECT_EQ(compared, 6 * known["conversations"].size());
  EXPECT_GE(known["conversations"].size(), 150U);
}

}  // namespace
}  // namespace llampi::test
