// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json and the files beside it may say, and what is refused.
#include <nlohmann/json.hpp>

#include "llampi/tokenizer/make_tokenizer.hpp"
#include "support/files.hpp"
#include "tokenizer/files.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

json smallest() {
  return json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 4, "content": "<end>", "special": true, "single_word": false, "lstrip": false,
                      "rstrip": false, "normalized": false}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}})");
}

std::unique_ptr<tokenizer::FileTokenizer> parse(const json& file) {
  return tokenizer::parse_tokenizer_json(file.dump(), "t.json");
}

std::string refusal(const std::string& path, const json& value) {
  json file = smallest();
  file[json::json_pointer(path)] = value;
  return user_error([&] { parse(file); });
}

TEST(TokenizerJson, ReadsTheSmallest) {
  const auto tokenizer = parse(smallest());
  EXPECT_THAT(tokenizer->encode("cab<end>b"), ElementsAre(3, 2, 4, 1));
  EXPECT_THAT(tokenizer->encode("xcx"), ElementsAre(3));  // no unk_token: left out
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{3, 2, 4}), "cab<end>");
  EXPECT_EQ(tokenizer->vocabulary(), 5);
  EXPECT_TRUE(tokenizer->is_special(4));
}

TEST(TokenizerJson, ReadsMergesInBothForms) {
  json file = smallest();
  file["model"]["merges"] = json::parse(R"([["a", "b"]])");
  EXPECT_THAT(parse(file)->encode("ab"), ElementsAre(2));
  file["model"]["merges"] = json::parse(R"(["#version: 0.2", "a b"])");
  EXPECT_THAT(parse(file)->encode("ab"), ElementsAre(2));
}

TEST(TokenizerJson, SpecialTokensDoNotComeOutOfMerges) {
  json file = smallest();
  file["added_tokens"][0]["id"] = 2;
  file["added_tokens"][0]["content"] = "ab";
  const auto tokenizer = parse(file);
  EXPECT_THAT(tokenizer->encode("ab"), ElementsAre(2));
  EXPECT_THAT(tokenizer->encode("ab", tokenizer::SpecialText::text), ElementsAre(0, 1));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(parse(file)->encode("ab", tokenizer::SpecialText::text), ElementsAre(0, 1));
}

/// The smallest with one more token, which is not special by the file.
json with_token(const std::string& name, bool normalized) {
  json file = smallest();
  json token = file["added_tokens"][0];
  token["content"] = name;
  token["id"] = 5;
  token["special"] = false;
  token["normalized"] = normalized;
  file["added_tokens"].push_back(token);
  for (const char c : std::string("<|im_start>")) {
    auto& vocabulary = file["model"]["vocab"];
    if (!vocabulary.contains(std::string(1, c))) vocabulary[std::string(1, c)] = vocabulary.size();
  }
  int id = static_cast<int>(file["model"]["vocab"].size());
  for (auto& added : file["added_tokens"]) added["id"] = id++;
  return file;
}

TEST(TokenizerJson, TokensOfTurnsAreSpecialWhateverTheFileSays) {
  for (const bool normalized : {false, true}) {
    for (const std::string name : {"<|im_start|>", "<|im_end|>", "<|eot_id|>", "</s>"}) {
      const auto file = with_token(name, normalized);
      const auto id = file["added_tokens"][1]["id"].get<std::int32_t>();
      const auto tokenizer = parse(file);
      EXPECT_THAT(tokenizer->encode("a" + name), ElementsAre(0, id)) << name;
      EXPECT_THAT(tokenizer->encode("a" + name, tokenizer::SpecialText::text),
                  ::testing::Not(::testing::Contains(id)))
          << name;
      EXPECT_TRUE(tokenizer->is_special(id)) << name;
    }
    const auto other = with_token("<start>", normalized);
    const auto id = other["added_tokens"][1]["id"].get<std::int32_t>();
    EXPECT_THAT(parse(other)->encode("a<start>", tokenizer::SpecialText::text), ElementsAre(0, id));
    // The end of a text, by its id or by the name in another file.
    auto ended = parse(other);
    ended->set_end(id);
    EXPECT_THAT(ended->encode("a<start>", tokenizer::SpecialText::text),
                ::testing::Not(::testing::Contains(id)));
    EXPECT_THAT(ended->encode("a<start>"), ElementsAre(0, id));
  }
}

/// As tokenizers 0.23 decodes: 0.22 left the space out.
TEST(TokenizerJson, DecodesANormalizedTokenWithItsSpace) {
  json file = with_token("<im>", true);
  file["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]})");
  file["decoder"] = json::parse(R"({"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})");
  const auto tokenizer = parse(file);
  const auto id = file["added_tokens"][1]["id"].get<std::int32_t>();
  EXPECT_THAT(tokenizer->encode("a <im> a"), ::testing::Contains(id));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a <im> a")), "a <im> a");
  EXPECT_EQ(tokenizer->bytes_of(id), " <im>");
  EXPECT_EQ(tokenizer->find("<im>"), id);
}

TEST(TokenizerJson, KnowsWhichIdsAreUnused) {
  json file = smallest();
  file["model"]["vocab"]["d"] = 7;
  file["added_tokens"][0]["id"] = 5;
  const auto tokenizer = parse(file);
  std::vector<int> used;
  for (int id = -1; id < 10; ++id) {
    if (tokenizer->has(id)) used.push_back(id);
  }
  EXPECT_THAT(used, ElementsAre(0, 1, 2, 3, 5, 7));
}

/// The ids of tokenizers 0.23.
TEST(TokenizerJson, WhiteSpaceThatATokenHasTakenAlongIsNoTokenAgain) {
  json file = smallest();
  auto& tokens = file["added_tokens"];
  tokens.push_back(tokens[0]);
  tokens[0].update({{"content", "  "}, {"lstrip", true}, {"rstrip", true}});
  tokens[1].update({{"id", 5}, {"rstrip", true}});
  const auto tokenizer = parse(file);
  EXPECT_THAT(tokenizer->encode("a       b"), ElementsAre(0, 4, 1));
  EXPECT_THAT(tokenizer->encode("a<end>     b  "), ElementsAre(0, 5, 1, 4));
}

TEST(TokenizerJson, RefusesByNameWhatIsNotSupported) {
  EXPECT_THAT(refusal("/model/type", "WordPiece"),
              AllOf(StartsWith("t.json: model"), HasSubstr("\"WordPiece\"")));
  EXPECT_THAT(refusal("/model/dropout", 0.1), HasSubstr("\"dropout\""));
  EXPECT_THAT(refusal("/model/continuing_subword_prefix", "##"), HasSubstr("\"continuing_subword_prefix\""));
  EXPECT_THAT(refusal("/model/end_of_word_suffix", "</w>"), HasSubstr("\"end_of_word_suffix\""));
  EXPECT_THAT(refusal("/model/new_thing", 1), HasSubstr("\"new_thing\""));
  EXPECT_THAT(refusal("/new_thing", 1), HasSubstr("\"new_thing\""));
  EXPECT_THAT(refusal("/version", "2.0"), HasSubstr("\"2.0\""));
  for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    const auto message = refusal(std::string("/") + part, {{"type", "Nonsense"}});
    EXPECT_THAT(message, AllOf(StartsWith(std::string("t.json: ") + part), HasSubstr("\"Nonsense\"")));
  }
  EXPECT_THAT(refusal("/normalizer", {{"type", "NFKC"}}), HasSubstr("\"NFKC\""));
  EXPECT_THAT(refusal("/pre_tokenizer", json::parse(R"({"type": "Sequence", "pretokenizers": [
      {"type": "ByteLevel", "add_prefix_space": false}, {"type": "Digits"}]})")),
              AllOf(HasSubstr("pre_tokenizer[1]"), HasSubstr("after ByteLevel")));
  EXPECT_THAT(refusal("/pre_tokenizer", json::parse(R"({"type": "Split", "pattern": {"Regex": "a"},
      "behavior": "Twisted"})")),
              HasSubstr("\"Twisted\""));
  EXPECT_THAT(refusal("/pre_tokenizer", json::parse(R"({"type": "Split", "pattern": {"Regex": "("},
      "behavior": "Isolated"})")),
              AllOf(HasSubstr("pre_tokenizer"), HasSubstr("regular expression")));
}

TEST(TokenizerJson, RefusesEndlessSteps) {
  const json digits{{"type", "Digits"}};
  EXPECT_EQ(refusal("/pre_tokenizer",
                    {{"type", "Sequence"}, {"pretokenizers", std::vector<json>(100'000, digits)}}),
            "t.json: pre_tokenizer[32]: more than 32 such steps are not supported");
  // Each doubles the text.
  const json twice{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  const std::vector<json> often(31, twice);
  json file = smallest();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", often}};
  EXPECT_EQ(user_error([&] { parse(file)->encode("aa"); }),
            "the replacements of the tokenizer make more than 1048704 bytes of a text of 2");
  EXPECT_THAT(parse(file)->encode("b"), ElementsAre(1));
  file = smallest();
  file["decoder"] = {{"type", "Sequence"}, {"decoders", often}};
  EXPECT_THAT(user_error([&] {
                parse(file)->decode(std::vector<std::int32_t>{0, 0});
              }),
              HasSubstr("of a text of 2"));
  EXPECT_THAT(user_error([&] { parse(file)->bytes_of(0); }), HasSubstr("of a text of 1"));
}

TEST(TokenizerJson, RefusesVocabulariesThatContradictThemselves) {
  EXPECT_THAT(refusal("/model/vocab", json::object()), HasSubstr("empty"));
  EXPECT_THAT(refusal("/model/vocab", json::array()), HasSubstr("\"vocab\" must be an object"));
  EXPECT_THAT(refusal("/model/vocab/b", 0), HasSubstr("\"a\" and \"b\" have the same id 0"));
  for (const json& id : {json(-1), json(1.5), json("1"), json(4'000'000'000), json(100'000), json(nullptr)}) {
    EXPECT_THAT(refusal("/model/vocab/b", id), HasSubstr("the id of \"b\"")) << id;
  }
  EXPECT_THAT(refusal("/model/merges", {"a x"}),
              AllOf(HasSubstr("merge 0"), HasSubstr("needs the token \"x\"")));
  EXPECT_THAT(refusal("/model/merges", {"b a"}), HasSubstr("needs the token \"ba\""));
  EXPECT_THAT(refusal("/model/merges", {"ab"}), HasSubstr("one space"));
  EXPECT_THAT(refusal("/model/merges", {"a  b"}), HasSubstr("one space"));
  EXPECT_THAT(refusal("/model/merges", {"a b", {"a", "b"}}), HasSubstr("merge 1"));
  EXPECT_THAT(refusal("/model/merges", json::parse(R"([["a", 1]])")), HasSubstr("merge 0"));
  EXPECT_THAT(refusal("/model/merges", json::parse(R"([["a", "b", "c"]])")), HasSubstr("merge 0"));
  EXPECT_THAT(refusal("/model/unk_token", "<unk>"), HasSubstr("\"<unk>\""));
  EXPECT_THAT(refusal("/model/unk_token", 0), HasSubstr("\"unk_token\" must be a string"));
}

TEST(TokenizerJson, RefusesAddedTokensThatContradictTheVocabulary) {
  EXPECT_THAT(refusal("/added_tokens/0/id", 7),
              AllOf(HasSubstr("\"<end>\""), HasSubstr("7"), HasSubstr("number is 4")));
  EXPECT_THAT(refusal("/added_tokens/0/id", 3), HasSubstr("number is 4"));
  EXPECT_THAT(refusal("/added_tokens/0/id", -1), HasSubstr("\"id\""));
  EXPECT_THAT(refusal("/added_tokens/0/id", 4'000'000'000), HasSubstr("\"id\""));
  EXPECT_THAT(refusal("/added_tokens/0/content", "ab"),
              AllOf(HasSubstr("id 4"), HasSubstr("but 2 in the vocabulary")));
  EXPECT_THAT(refusal("/added_tokens/0/content", ""), HasSubstr("empty"));
  EXPECT_THAT(refusal("/added_tokens/0/lstrip", nullptr), HasSubstr("\"lstrip\" is missing"));
  json twice = smallest()["added_tokens"];
  twice.push_back(twice[0]);
  EXPECT_THAT(refusal("/added_tokens", twice), HasSubstr("twice"));
}

TEST(TokenizerJson, CountsTheEmptyTokenWhereAddedOnesAreNumbered) {
  json file = smallest();
  file["model"]["vocab"][""] = 4;
  file["added_tokens"][0]["id"] = 5;
  const auto tokenizer = parse(file);
  EXPECT_THAT(tokenizer->encode("ab<end>"), ElementsAre(2, 5));
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{0, 4, 5}), "a<end>");
  file["added_tokens"][0]["id"] = 4;
  EXPECT_THAT(user_error([&] { parse(file); }), HasSubstr("number is 5"));
}

TEST(TokenizerJson, RefusesTemplatesWithUnknownTokens) {
  const json good = json::parse(R"({"type": "TemplateProcessing", "pair": [],
      "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "<end>", "type_id": 0}}],
      "special_tokens": {"<end>": {"id": "<end>", "ids": [4], "tokens": ["<end>"]}}})");
  json file = smallest();
  file["post_processor"] = good;
  EXPECT_EQ(parse(file)->begin(), 4);
  EXPECT_EQ(parse(file)->end(), 4);
  const auto changed = [&](const std::string& path, const json& value) {
    json bad = good;
    bad[json::json_pointer(path)] = value;
    return refusal("/post_processor", bad);
  };
  EXPECT_THAT(changed("/special_tokens/<end>/ids/0", 5), HasSubstr("\"<end>\""));
  EXPECT_THAT(changed("/special_tokens", json::object()), HasSubstr("\"<end>\""));
  EXPECT_THAT(changed("/single", json::array()), HasSubstr("does not have the text"));
  EXPECT_THAT(changed("/special_tokens/<end>/ids", {4, 4}), HasSubstr("more than one"));
}

TEST(TokenizerJson, RefusesWhatIsNoSuchFile) {
  const auto message = [](const std::string& text) {
    return user_error([&] { tokenizer::parse_tokenizer_json(text, "t.json"); });
  };
  EXPECT_THAT(message(""), AllOf(StartsWith("t.json: "), HasSubstr("not JSON")));
  EXPECT_THAT(message("{\"a\": \"\xFF\"}"), HasSubstr("not JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("{}"), HasSubstr("\"model\" is missing"));
  EXPECT_THAT(message(R"({"model": {"type": "BPE"}})"), HasSubstr("\"vocab\" is missing"));
  EXPECT_THAT(message(std::string(1'000'000, '[')), HasSubstr("not JSON"));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"type": "Sequence", "decoders": [)";
  for (int i = 0; i < 100'000; ++i) deep += "]}";
  EXPECT_THAT(message(R"({"model": {}, "decoder": )" + deep + "}"), HasSubstr("more than 8 sequences"));
}

/// A folder with the smallest tokenizer and files beside it.
class TokenizerFolder : public ::testing::Test {
 protected:
  TokenizerFolder() { write("tokenizer.json", smallest()); }
  void write(const std::string& name, const json& contents) { write_text(folder_ / name, contents.dump()); }
  std::unique_ptr<tokenizer::Tokenizer> open() { return tokenizer::make_tokenizer(folder_.path().string()); }
  std::string refusal() {
    return user_error([&] { open(); });
  }
  TemporaryFolder folder_;
};

TEST_F(TokenizerFolder, SaysWhereTextsBeginAndEnd) {
  EXPECT_EQ(open()->begin(), std::nullopt);
  EXPECT_EQ(open()->end(), std::nullopt);
  write("config.json", {{"eos_token_id", 1}, {"hidden_size", 8}});
  EXPECT_EQ(open()->end(), 1);
  EXPECT_TRUE(open()->is_special(1));
  write("generation_config.json", {{"eos_token_id", -1}});  // none
  EXPECT_EQ(open()->end(), 1);
  write("generation_config.json", {{"eos_token_id", {3, 1}}});
  EXPECT_EQ(open()->end(), 3);
  write("special_tokens_map.json", {{"eos_token", "ab"}});
  EXPECT_EQ(open()->end(), 2);
  write("tokenizer_config.json",
        {{"eos_token", {{"content", "<end>"}, {"lstrip", false}}}, {"bos_token", "a"}});
  EXPECT_EQ(open()->end(), 4);
  EXPECT_EQ(open()->begin(), std::nullopt);
  write("tokenizer_config.json", {{"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", "a"}});
  EXPECT_EQ(open()->begin(), 0);
  write("tokenizer_config.json", {{"tokenizer_class", "CodeLlamaTokenizer"}, {"bos_token", "a"}});
  EXPECT_EQ(open()->begin(), 0);
  write("tokenizer_config.json", {{"add_bos_token", true}, {"bos_token", "a"}});
  EXPECT_EQ(open()->begin(), 0);
  EXPECT_EQ(tokenizer::make_tokenizer((folder_ / "tokenizer.json").string())->begin(), 0);
}

TEST_F(TokenizerFolder, RefusesTokensThatAreNone) {
  write("config.json", {{"eos_token_id", 5}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("config.json"), HasSubstr("\"eos_token_id\"")));
  write("tokenizer_config.json", {{"eos_token", "<none>"}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("\"<none>\"")));
  write("tokenizer_config.json", {{"eos_token", 3}});
  EXPECT_THAT(refusal(), HasSubstr("must be a string"));
  write("tokenizer_config.json", json::array());
  EXPECT_THAT(refusal(), HasSubstr("not a JSON object"));
}

TEST_F(TokenizerFolder, RefusesTokensOfAnotherFile) {
  write("added_tokens.json", {{"<end>", 4}});
  EXPECT_EQ(open()->vocabulary(), 5);
  write("added_tokens.json", {{"<pad>", 5}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("added_tokens.json"), HasSubstr("\"<pad>\"")));
}

TEST_F(TokenizerFolder, RefusesAddedTokensOfTheConfigurationThatTheTokenizerLacks) {
  const auto decoder = [&](const json& tokens) {
    write("tokenizer_config.json", {{"added_tokens_decoder", tokens}});
  };
  decoder({{"4", {{"content", "<end>"}, {"special", true}}}});
  EXPECT_EQ(open()->vocabulary(), 5);
  decoder(nullptr);
  EXPECT_EQ(open()->vocabulary(), 5);
  decoder({{"4", {{"content", "<end>"}, {"special", true}}}, {"5", {{"content", "<pad>"}}}});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("tokenizer_config.json: added_tokens_decoder: \"<pad>\" is not in"),
                               HasSubstr("save the tokenizer as tokenizer.json")));
  decoder({{"3", {{"content", "<end>"}}}});
  EXPECT_THAT(refusal(), HasSubstr("\"<end>\" is not in the tokenizer's own file with this id"));
  decoder({{"four", {{"content", "<end>"}}}});
  EXPECT_THAT(refusal(), HasSubstr("\"four\" is not an id"));
  decoder({{"4", "<end>"}});
  EXPECT_THAT(refusal(), HasSubstr("added_tokens_decoder must be an object"));
  decoder(json::array());
  EXPECT_THAT(refusal(), HasSubstr("\"added_tokens_decoder\" must be an object"));
}

/// Ids of transformers 5.24: it adds these tokens once more, with the flags that stand here.
TEST_F(TokenizerFolder, RefusesFlagsOfTheConfigurationThatTheTokenizerDoesNotHave) {
  const auto decoder = [&](json token) {
    token["content"] = "<end>";
    write("tokenizer_config.json", {{"added_tokens_decoder", {{"4", token}}}});
  };
  for (const bool own : {false, true}) {
    json file = smallest();
    json& token = file["added_tokens"][0];
    token["special"] = false;
    for (const char* flag : {"lstrip", "rstrip", "single_word", "normalized"}) token[flag] = own;
    write("tokenizer.json", file);
    json same = token;
    same.erase("id");
    decoder(same);
    EXPECT_FALSE(open()->is_special(4));
    for (const char* flag : {"lstrip", "rstrip", "single_word", "normalized"}) {
      json other = same;
      other[flag] = !own;
      decoder(other);
      EXPECT_THAT(refusal(),
                  HasSubstr(fmt::format(
                      "tokenizer_config.json: added_tokens_decoder: \"<end>\" has {} = {}, but {} in "
                      "the tokenizer's own file; give both",
                      flag, !own, own)));
    }
    same["special"] = true;
    decoder(same);
    EXPECT_TRUE(open()->is_special(4));
  }
  // Where they are missing, a special token is looked for in the text as it is, another one in the normalized text.
  write("tokenizer.json", smallest());
  decoder({{"special", true}});
  EXPECT_TRUE(open()->is_special(4));
  decoder(json::object());
  EXPECT_THAT(refusal(), HasSubstr("\"<end>\" has normalized = true unless it is given, but false in"));
  write("tokenizer_config.json", {{"added_tokens_decoder", {{"2", {{"content", "ab"}}}}}});
  EXPECT_THAT(refusal(), HasSubstr("\"ab\" is a token of the vocabulary only"));
}

/// Ids of transformers 5.24.
TEST_F(TokenizerFolder, FindsTheTokensThatBeginAndEndTextsInThem) {
  EXPECT_THAT(open()->encode("caab b"), ElementsAre(3, 0, 2, 1));
  write("tokenizer_config.json", {{"bos_token", "a"}, {"eos_token", "c"}});
  EXPECT_THAT(open()->encode("caab b"), ElementsAre(3, 0, 0, 1, 1));
  EXPECT_TRUE(open()->is_special(0));
  json eos{{"__type", "AddedToken"}, {"content", "ab"},     {"lstrip", false},
           {"rstrip", true},         {"normalized", false}, {"single_word", true}};
  write("tokenizer_config.json", {{"eos_token", eos}});
  EXPECT_TRUE(open()->strips(2).behind);
  EXPECT_FALSE(open()->strips(2).before);
  EXPECT_THAT(open()->encode("ab cab"), ElementsAre(2, 3, 2));
  // One that is an added token keeps its flags.
  eos["content"] = "<end>";
  write("tokenizer_config.json", {{"eos_token", eos}});
  EXPECT_FALSE(open()->strips(4).behind);
  // Others stay what they are, though not in transformers: one of them may be a character that is in many texts.
  write("tokenizer_config.json",
        {{"pad_token", "ab"}, {"unk_token", "a"}, {"sep_token", "<end>"}, {"mask_token", "<mask>"}});
  EXPECT_THAT(open()->encode("caab b"), ElementsAre(3, 0, 2, 1));
}

TEST_F(TokenizerFolder, RefusesToSplitSpecialTokens) {
  write("tokenizer_config.json", {{"split_special_tokens", false}});
  EXPECT_THAT(open()->encode("<end>"), ElementsAre(4));
  write("tokenizer_config.json", {{"split_special_tokens", true}});
  EXPECT_THAT(refusal(),
              HasSubstr("tokenizer_config.json: \"split_special_tokens\" = true is not supported"));
}

TEST_F(TokenizerFolder, NamesTheTokensThatTransformersAdds) {
  const auto added = [&] { return tokenizer::tokens_that_transformers_adds(folder_.path()); };
  write("special_tokens_map.json", {{"cls_token", {{"content", "<cls>"}}}, {"pad_token", "<end>"}});
  EXPECT_THAT(added(), ElementsAre("<cls>"));
  write("tokenizer_config.json", {{"bos_token", "a"},
                                  {"eos_token", {{"__type", "AddedToken"}, {"content", "c"}}},
                                  {"pad_token", "<end>"},
                                  {"unk_token", "b"},
                                  {"sep_token", nullptr},
                                  {"add_bos_token", false},
                                  {"image_token", "<image>"},
                                  {"model_specific_special_tokens", {{"fill", "<fill>"}}},
                                  {"added_tokens_decoder", json::object()}});
  EXPECT_THAT(added(), ElementsAre("<fill>", "<image>", "b"));
  for (const char* malformed : {"[", "{}", R"({"added_tokens": 7})", R"({"added_tokens": [7]})"}) {
    write_text(folder_ / "tokenizer.json", malformed);
    EXPECT_NO_THROW(added());
  }
  const TemporaryFolder empty;
  EXPECT_TRUE(tokenizer::tokens_that_transformers_adds(empty.path()).empty());
}

TEST_F(TokenizerFolder, RefusesSpecialTokensThatTheTokenizerLacks) {
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto with = [&](const json& tokens) { write("tokenizer_config.json", {{key, tokens}}); };
    for (const json& own :
         {json(nullptr), json::array(), json::object(), json{"<end>", "<end>"},
          json{{{"__type", "AddedToken"}, {"content", "<end>"}}}, json{{"image", "<end>"}}}) {
      with(own);
      EXPECT_EQ(open()->vocabulary(), 5) << own;
    }
    for (const json& other :
         {json{"<end>", "<pad>"}, json{{{"content", "<pad>"}}}, json{{"image", "<pad>"}}}) {
      with(other);
      EXPECT_THAT(refusal(),
                  AllOf(HasSubstr(std::string("tokenizer_config.json: ") + key + ": \"<pad>\" is not in"),
                        HasSubstr("save the tokenizer as tokenizer.json")));
    }
    with({"<end>", "ab"});
    EXPECT_THAT(refusal(),
                HasSubstr(std::string("tokenizer_config.json: ") + key +
                          ": \"ab\" is a token of the vocabulary only in the tokenizer's own file"));
    write("tokenizer_config.json", {{key, {"ab"}}, {"bos_token", "ab"}});
    EXPECT_EQ(open()->vocabulary(), 5) << "it is found in texts as a token that begins them";
    with("<end>");
    EXPECT_THAT(refusal(), HasSubstr(key));
    with(json::array({7}));
    EXPECT_THAT(refusal(), HasSubstr(key));
  }
  write("tokenizer_config.json", json::object());
  write("special_tokens_map.json", {{"additional_special_tokens", {"<pad>"}}});
  EXPECT_THAT(refusal(),
              HasSubstr("special_tokens_map.json: additional_special_tokens: \"<pad>\" is not in"));
  // transformers then takes nothing from the other file.
  write("tokenizer_config.json",
        {{"added_tokens_decoder", {{"4", {{"content", "<end>"}, {"special", true}}}}}});
  EXPECT_EQ(open()->vocabulary(), 5);
}

/// What transformers 5.24 does: these classes take add_prefix_space from tokenizer_config.json (without it, false), others
/// from tokenizer.json.
TEST_F(TokenizerFolder, RefusesAnAddPrefixSpaceThatContradictsTheClass) {
  const auto refusal_with = [&](const json& config, bool prefix) -> std::string {
    json file = smallest();
    file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}};
    write("tokenizer.json", file);
    write("tokenizer_config.json", config);
    try {
      open();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  for (const char* name : {"Qwen2Tokenizer", "Qwen2TokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast",
                           "GPTNeoXTokenizer", "GPTNeoXTokenizerFast"}) {
    const json plain{{"tokenizer_class", name}};
    for (const bool prefix : {false, true}) {
      json config = plain;
      config["add_prefix_space"] = prefix;
      EXPECT_EQ(refusal_with(config, prefix), "");
      EXPECT_THAT(refusal_with(config, !prefix),
                  AllOf(HasSubstr("tokenizer_config.json: "),
                        HasSubstr(fmt::format("add_prefix_space = {}", prefix))));
    }
    EXPECT_EQ(refusal_with(plain, false), "");
    EXPECT_THAT(refusal_with(plain, true), HasSubstr("add_prefix_space = false"));
  }
  EXPECT_EQ(refusal_with({{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_prefix_space", true}}, false),
            "");
  EXPECT_EQ(refusal_with({{"add_prefix_space", false}}, true), "");
  // For bytes transformers does not take this class, which is one of spaces written as "▁".
  EXPECT_EQ(
      refusal_with(
          {{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", false}, {"add_prefix_space", false}},
          true),
      "");
}

/// What transformers 5.24 does: LlamaTokenizer takes add_prefix_space from tokenizer_config.json if it is there.
TEST_F(TokenizerFolder, RefusesAnAddPrefixSpaceThatContradictsLlamaTokenizer) {
  const json prepend = {{"type", "Prepend"}, {"prepend", "▁"}};
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}, {"split", false}};
  const auto with_scheme = [&](const char* scheme) {
    json step = metaspace;
    step["prepend_scheme"] = scheme;
    return step;
  };
  struct Pipeline {
    const char* key;
    json step;
    bool adds;
  };
  for (const auto& [key, step, adds] : {Pipeline{"normalizer", prepend, true},
                                        {"pre_tokenizer", with_scheme("first"), true},
                                        {"pre_tokenizer", with_scheme("always"), true},
                                        {"pre_tokenizer", with_scheme("never"), false}}) {
    json file = smallest();
    file[key] = step;
    write("tokenizer.json", file);
    for (const char* name :
         {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "CodeLlamaTokenizerFast"}) {
      SCOPED_TRACE(name + step.dump());
      json config{{"tokenizer_class", name}, {"add_bos_token", false}};
      write("tokenizer_config.json", config);
      open();
      config["add_prefix_space"] = nullptr;
      write("tokenizer_config.json", config);
      open();
      config["add_prefix_space"] = adds;
      write("tokenizer_config.json", config);
      open();
      config["add_prefix_space"] = !adds;
      write("tokenizer_config.json", config);
      EXPECT_THAT(refusal(), HasSubstr(fmt::format(
                                 "tokenizer_config.json: {} has add_prefix_space = {}, but the tokenizer's "
                                 "own file puts {} space before a text",
                                 name, !adds, adds ? "a" : "no")));
    }
  }
}

/// Of transformers 5.24, by the ids of each of these with AutoTokenizer.
TEST_F(TokenizerFolder, NamesTheClassOfTransformersThatDoesNotFollowTheFile) {
  const auto overrides = [&](const std::string& fixture, const json& config, const std::string& model_type) {
    fs::copy_file(fs::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers" / fixture / "tokenizer.json",
                  folder_ / "tokenizer.json", fs::copy_options::overwrite_existing);
    write("tokenizer_config.json", config);
    return tokenizer::class_that_overrides(folder_.path(), model_type);
  };
  const auto named = [](const char* name) { return json{{"tokenizer_class", name}}; };
  struct Case {
    const char* fixture;
    json config;
    const char* model_type;
    const char* overrides;
  };
  const std::vector<Case> cases{
      {"llama2", named("LlamaTokenizer"), "llama", "LlamaTokenizer"},
      {"llama2", {{"tokenizer_class", "LlamaTokenizer"}, {"legacy", true}}, "llama", "LlamaTokenizer"},
      {"llama2", named("LlamaTokenizerFast"), "llama", "LlamaTokenizer"},
      {"llama2", named("LlamaTokenizer"), "mistral", ""},
      {"llama2", named("PreTrainedTokenizerFast"), "llama", ""},
      {"llama2", json::object(), "llama", ""},
      {"llama2", named("CodeLlamaTokenizer"), "llama", "CodeLlamaTokenizer"},
      {"llama2", named("CodeLlamaTokenizerFast"), "llama", "CodeLlamaTokenizer"},
      {"llama2", named("CodeLlamaTokenizer"), "mistral", ""},
      {"mistral-v3", {{"tokenizer_class", "CodeLlamaTokenizer"}, {"legacy", true}}, "llama", ""},
      {"mistral-v3",
       {{"tokenizer_class", "CodeLlamaTokenizer"}, {"add_prefix_space", false}},
       "llama",
       "CodeLlamaTokenizer"},
      {"gpt2", named("GPTNeoXTokenizerFast"), "llama", "GPTNeoXTokenizer"},
      {"gpt2",
       {{"tokenizer_class", "GPTNeoXTokenizer"}, {"add_prefix_space", true}},
       "llama",
       "GPTNeoXTokenizer"},
      {"mistral-v3", named("LlamaTokenizer"), "llama", ""},
      {"mistral-v3", {{"tokenizer_class", "LlamaTokenizer"}, {"legacy", true}}, "llama", "LlamaTokenizer"},
      {"mistral-v3",
       {{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", false}},
       "llama",
       "LlamaTokenizer"},
      {"llama3", named("LlamaTokenizer"), "llama", ""},
      {"llama3", named("GPT2Tokenizer"), "llama", "GPT2Tokenizer"},
      {"llama3", named("PreTrainedTokenizerFast"), "qwen2", "Qwen2Tokenizer"},
      {"llama3", named("PreTrainedTokenizerFast"), "qwen3", ""},
      {"llama3", json::object(), "qwen3", "Qwen2Tokenizer"},
      {"qwen", named("Qwen2Tokenizer"), "qwen2", ""},
      {"qwen", named("Qwen2Tokenizer"), "qwen3", ""},
      {"qwen", named("GPT2Tokenizer"), "qwen3", "GPT2Tokenizer"},
      {"gpt2", {{"tokenizer_class", "GPT2Tokenizer"}, {"add_prefix_space", true}}, "llama", ""},
      {"gpt2", named("GPT2Tokenizer"), "llama", "GPT2Tokenizer"}};
  for (const auto& known : cases) {
    EXPECT_EQ(overrides(known.fixture, known.config, known.model_type), known.overrides)
        << known.fixture << " " << known.config << " " << known.model_type;
  }
  for (const char* malformed :
       {"[", R"({"normalizer": {"type": 1}})", R"({"normalizer": {"normalizers": [7]}})"}) {
    write("tokenizer_config.json", named("GPT2Tokenizer"));
    write_text(folder_ / "tokenizer.json", malformed);
    EXPECT_NO_THROW(tokenizer::class_that_overrides(folder_.path(), "llama"));
  }
  const TemporaryFolder empty;
  EXPECT_EQ(tokenizer::class_that_overrides(empty.path(), "llama"), "");
}

TEST_F(TokenizerFolder, RefusesOtherNames) {
  const auto message = [](const std::string& name) {
    return user_error([&] { tokenizer::make_tokenizer(name); });
  };
  EXPECT_THAT(message((folder_ / "none.json").string()), HasSubstr("does not exist"));
  write_text(folder_ / "vocab.txt", "");
  EXPECT_THAT(message((folder_ / "vocab.txt").string()), HasSubstr("tokenizer.json or tokenizer.model"));
  const TemporaryFolder empty;
  EXPECT_THAT(message(empty.path().string()), HasSubstr("neither tokenizer.json nor tokenizer.model"));
}

}  // namespace
}  // namespace llampi::test
