// SPDX-License-Identifier: Apache-2.0
// Generation and accuracy with a model whose answers are known: each token has one successor, whatever stands
// before it.
#include "llampi/infer/generate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "infer/continuation.hpp"
#include "infer/sampling.hpp"
#include "infer/text_model.hpp"
#include "llampi/checkpoint/convert.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/infer/session.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/tokenizer/chat.hpp"
#include "llampi/tokenizer/make_tokenizer.hpp"
#include "support/mpi_test.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

using namespace infer;

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// In the alphabet of byte-level BPE "Ġ" is a space and "Ċ" a line's end.
const std::vector<std::string> kTokens{"Ġ",
                                       "Ċ",
                                       "?",
                                       "0",
                                       "1",
                                       "2",
                                       "3",
                                       "4",
                                       "a",
                                       "b",
                                       "c",
                                       "d",
                                       "e",
                                       "h",
                                       "i",
                                       "m",
                                       "n",
                                       "o",
                                       "r",
                                       "s",
                                       "t",
                                       "u",
                                       "w",
                                       "y",
                                       "<|begin_of_text|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<|eot_id|>",
                                       "<|im_start|>",
                                       "<|im_end|>",
                                       "<think>",
                                       "</think>"};
constexpr int kVocabulary = 36;  // the last have no name

int id_of(const std::string& token) {
  return static_cast<int>(std::ranges::find(kTokens, token) - kTokens.begin());
}

std::string tokenizer_json() {
  json vocabulary = json::object(), added = json::array();
  for (int id = 0; id < std::ssize(kTokens); ++id) {
    if (kTokens[id].starts_with("<")) {
      added.push_back({{"id", id},
                       {"content", kTokens[id]},
                       {"special", kTokens[id].starts_with("<|")},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false}});
    } else {
      vocabulary[kTokens[id]] = id;
    }
  }
  const json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return json{{"version", "1.0"},
              {"added_tokens", added},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
      .dump();
}

using Head = std::map<std::pair<int, int>, float>;  ///< logits by (token, next token), where they are not 0

/// Each token of a chain is followed by the next one.
Head chains(const std::vector<std::vector<std::string>>& tokens) {
  Head head;
  for (const auto& chain : tokens) {
    for (std::size_t i = 1; i < chain.size(); ++i) head[{id_of(chain[i - 1]), id_of(chain[i])}] = 2;
  }
  return head;
}

/// The weights of a model of one block that adds nothing, so that the logits are those of the last token
/// alone.
std::string safetensors(const Head& head) {
  constexpr int kV = kVocabulary;
  const std::string block = "model.layers.0.";
  const std::vector<std::pair<std::string, std::vector<int>>> shapes{
      {"model.embed_tokens.weight", {kV, kV}},
      {"lm_head.weight", {kV, kV}},
      {"model.norm.weight", {kV}},
      {block + "input_layernorm.weight", {kV}},
      {block + "post_attention_layernorm.weight", {kV}},
      {block + "self_attn.q_proj.weight", {4, kV}},
      {block + "self_attn.k_proj.weight", {4, kV}},
      {block + "self_attn.v_proj.weight", {4, kV}},
      {block + "self_attn.o_proj.weight", {kV, 4}},
      {block + "mlp.gate_proj.weight", {4, kV}},
      {block + "mlp.up_proj.weight", {4, kV}},
      {block + "mlp.down_proj.weight", {kV, 4}}};
  json header;
  std::vector<float> values;
  for (const auto& [name, shape] : shapes) {
    const auto begin = values.size();
    values.resize(begin + shape[0] * (shape.size() == 2 ? shape[1] : 1),
                  name.ends_with("norm.weight") ? 1.F : 0.F);
    if (name.starts_with("model.embed")) {
      for (int token = 0; token < kV; ++token) values[begin + token * kV + token] = 1;
    }
    if (name.starts_with("lm_head")) {
      for (const auto& [pair, logit] : head) values[begin + pair.second * kV + pair.first] = logit;
    }
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {4 * begin, 4 * values.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text +
         std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

/// A Hugging Face folder, made by rank 0. "\n" is followed by " ", then "4", "2" and the end of the answer;
/// "s" by "o", "m", "e" for ever.
class Generate : public ::testing::Test {
 protected:
  Generate() {
    if (world().rank() == 0) {
      made_ = std::make_unique<TemporaryFolder>();
      auto head = chains({{"Ċ", "Ġ", "4", "2", "<|eot_id|>"}, {"s", "o", "m", "e", "s"}});
      head[{id_of("4"), kVocabulary - 1}] = 3;  // the most likely one, which has no name
      write("config.json", json{{"model_type", "llama"},
                                {"architectures", {"LlamaForCausalLM"}},
                                {"vocab_size", kVocabulary},
                                {"hidden_size", kVocabulary},
                                {"intermediate_size", 4},
                                {"num_hidden_layers", 1},
                                {"num_attention_heads", 1},
                                {"head_dim", 4},
                                {"max_position_embeddings", 96},
                                {"tie_word_embeddings", false}}
                               .dump());
      write("tokenizer.json", tokenizer_json());
      write("tokenizer_config.json", json{{"chat_template", chat_template("llama3")}}.dump());
      write("model.safetensors", safetensors(head));
    }
    folder_ = world().broadcast(made_ ? made_->path().string() : "", 0);
  }
  ~Generate() override { world().barrier(); }

  static comm::World& world() { return test_world(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(*made_ / name) << text; }

  static std::string chat_template(const std::string& name) {
    const TemporaryFolder folder;
    std::ofstream(folder / "tokenizer.json") << tokenizer_json();
    return tokenizer::choose_template(*tokenizer::make_tokenizer(folder.path().string()), {.name = name})
        .text;
  }

  static GenerateOptions greedy(const std::string& prompt) {
    return {
        .prompt = prompt, .temperature = 0, .compute = {.device = device::DeviceChoice::cpu, .threads = 1}};
  }
  Generation run(const GenerateOptions& options) const { return generate(world(), folder_, options, {}, {}); }
  std::string refused(const GenerateOptions& options) const {
    try {
      run(options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing";
  }
  /// @param lines of the file of questions
  Accuracy ask(const std::string& lines, const std::string& answers = "", const Log& log = {},
               std::int64_t max_tokens = 0) const {
    if (world().rank() == 0) write("questions.jsonl", lines);
    world().barrier();
    QuestionOptions options{.questions = folder_ / "questions.jsonl",
                            .max_tokens = max_tokens,
                            .compute = {.device = device::DeviceChoice::cpu, .threads = 1}};
    if (!answers.empty()) options.answers = folder_ / answers;
    return answer_questions(world(), folder_, options, log);
  }

  fs::path folder_;

 private:
  std::unique_ptr<TemporaryFolder> made_;
};

TEST_F(Generate, ContinuesATextUpToTheLimit) {
  auto options = greedy("yes");
  options.max_tokens = 9;
  std::string pieces;
  const auto made =
      generate(world(), folder_, options, [&](const std::string& piece) { pieces += piece; }, {});
  EXPECT_EQ(made.completion, "omesomeso");
  EXPECT_EQ(made.tokens, 9);
  EXPECT_FALSE(made.stopped);
  EXPECT_EQ(pieces, world().rank() == 0 ? made.completion : "");
}

TEST_F(Generate, WritesNoIdThatTheTokenizerLeavesUnused) {
  if (world().rank() == 0) {
    json tokenizer = json::parse(tokenizer_json());
    tokenizer["model"]["vocab"]["m"] = kVocabulary - 2;  // which leaves its id, and others before this one
    write("tokenizer.json", tokenizer.dump());
  }
  world().barrier();
  auto options = greedy("o");
  options.max_tokens = 3;
  const auto made = run(options);
  EXPECT_EQ(made.tokens, 3);
  EXPECT_EQ(made.completion.size(), 3U) << "of a character each: " << made.completion;
}

TEST_F(Generate, HasTheWholeModelOnEachRankWhereItFits) {
  const auto session = open_for_inference(world(), folder_, generation_shape(8),
                                          {.device = device::DeviceChoice::cpu, .threads = 1}, {});
  if (world().size() > 1) {
    EXPECT_EQ(session.engine->options().strategy, fsdp::Strategy::no_shard);
  }
}

TEST_F(Generate, EndsAtTheModelsLength) {
  auto options = greedy("yes");
  options.max_tokens = 1000;
  EXPECT_EQ(run(options).tokens, 96 - 3);  // no token begins a text here: no file says which
}

TEST_F(Generate, EndsAtTokensThatAreNamed) {
  auto options = greedy("yes");
  options.stop = "u " + std::to_string(id_of("e"));
  const auto made = run(options);
  EXPECT_EQ(made.completion, "om");
  EXPECT_TRUE(made.stopped);
  options.stop = std::to_string(kVocabulary);
  EXPECT_THAT(refused(options), HasSubstr("--stop has \"36\", which tokenizer.json"));
  options.stop = "<|nothing|>";
  EXPECT_THAT(refused(options), HasSubstr("--stop has \"<|nothing|>\", which tokenizer.json"));
}

TEST_F(Generate, RefusesEndTokensThatTheModelLacks) {
  if (world().rank() == 0) {
    json tokenizer = json::parse(tokenizer_json());
    for (int id = static_cast<int>(std::ssize(kTokens)); id <= kVocabulary; ++id)
      tokenizer["added_tokens"].push_back({{"id", id},
                                           {"content", "<" + std::to_string(id) + ">"},
                                           {"special", true},
                                           {"single_word", false},
                                           {"lstrip", false},
                                           {"rstrip", false},
                                           {"normalized", false}});
    write("tokenizer.json", tokenizer.dump());
  }
  world().barrier();
  auto options = greedy("yes");
  for (const char* last : {"<36>", "36"}) {
    options.stop = std::string("<35> ") + last;
    EXPECT_THAT(refused(options), AllOf(HasSubstr("--stop has the token 36, but the vocabulary of"),
                                        HasSubstr("ends at 35: its tokenizer")));
  }
  options.stop = "<35>";
  options.max_tokens = 3;
  EXPECT_EQ(run(options).completion, "ome");
}

TEST_F(Generate, TakesNumbersForIdsWhereTokensHaveTheirNames) {
  auto options = greedy("yes\n");  // continues with " 42"
  options.max_tokens = 3;
  options.stop = "4";  // the id of "1"
  EXPECT_EQ(run(options).completion, " 42");
  options.stop = std::to_string(id_of("4"));
  EXPECT_EQ(run(options).completion, " ");
}

TEST_F(Generate, EndsAtEveryTokenThatTheFilesName) {
  if (world().rank() == 0) {
    write("generation_config.json", json{{"eos_token_id", {id_of("u"), id_of("e")}}}.dump());
  }
  world().barrier();
  auto options = greedy("yes");
  EXPECT_EQ(run(options).completion, "om");
  options = greedy("what?");
  options.chat = true;
  EXPECT_EQ(run(options).completion, "42");
  if (world().rank() == 0) write("generation_config.json", json{{"eos_token_id", id_of("4")}}.dump());
  world().barrier();
  EXPECT_EQ(run(options).completion, "");
  EXPECT_EQ(ask(json{{"prompt", "what?"}, {"completion", "42"}}.dump() + "\n").correct, 0);
}

TEST_F(Generate, EndsAtTheTokensThatTheModelOfACheckpointNames) {
  const auto write_config = [&](const json& end) {
    if (world().rank() == 0) {
      json config = json::parse(std::ifstream(folder_ / "config.json"));
      config["eos_token_id"] = end;
      write("config.json", config.dump());
    }
    world().barrier();
  };
  write_config({id_of("u"), id_of("e")});
  checkpoint::import_folder(world(), folder_, folder_ / "weights.h5", false, {});
  write_config(nullptr);
  auto options = greedy("yes");
  options.text.tokenizer = folder_.string();
  EXPECT_EQ(generate(world(), folder_ / "weights.h5", options, {}, {}).completion, "om");
}

TEST_F(Generate, AnswersInTheTemplateAndStopsAtTheEndOfTheTurn) {
  auto options = greedy("what is that?");
  options.chat = true;
  options.system = "yes";
  std::string pieces;
  const auto made =
      generate(world(), folder_, options, [&](const std::string& piece) { pieces += piece; }, {});
  EXPECT_EQ(made.completion, "42");  // "\n\n", " " and then it; never the token without a name behind "4"
  EXPECT_EQ(made.tokens, 3);
  EXPECT_TRUE(made.stopped);
  EXPECT_EQ(pieces, world().rank() == 0 ? "42" : "");
}

TEST_F(Generate, RefusesWhatItCannotRead) {
  auto options = greedy("x");  // not in the vocabulary, and there is no unk_token: nothing is left
  options.text.tokenizer = "bytes";
  EXPECT_THAT(
      refused(options),
      AllOf(
          HasSubstr("--prompt has the token 120"),
          HasSubstr(
              "ends at 35: its tokenizer bytes belongs to another model; give the right one with --tokenizer")));
  options.chat = true;
  EXPECT_THAT(refused(options), HasSubstr("bytes"));
  options = greedy(std::string(96, 's'));
  EXPECT_THAT(refused(options), HasSubstr("--prompt has 96 tokens, but"));
  if (world().rank() == 0) fs::remove(folder_ / "tokenizer.json");
  world().barrier();
  EXPECT_THAT(refused(greedy("yes")), AllOf(HasSubstr("no tokenizer is found"), HasSubstr("--tokenizer")));
}

TEST_F(Generate, FindsTheTokenizerWhereItIsToldToLook) {
  if (world().rank() == 0) {
    fs::create_directories(folder_ / "empty");
    fs::create_directories(folder_ / "other");
    fs::rename(folder_ / "tokenizer.json", folder_ / "other/tokenizer.json");
  }
  world().barrier();
  auto options = greedy("yes");
  options.max_tokens = 3;
  options.text.folders = {folder_ / "empty", folder_ / "other"};
  EXPECT_EQ(run(options).completion, "ome");
}

std::string question(const std::string& text, const std::string& right) {
  return json{{"prompt", text}, {"completion", right}}.dump() + "\n";
}

TEST_F(Generate, CountsRightAnswers) {
  const std::string turns = json{{"messages",
                                  {{{"role", "user"}, {"content", "what?"}},
                                   {{"role", "assistant"}, {"content", "some"}},
                                   {{"role", "user"}, {"content", "and this?"}},
                                   {{"role", "assistant"}, {"content", "42"}}}}}
                                .dump() +
                            "\n";
  const auto result = ask(question("what?", "42") + question("what is it?", "41") +
                              question("is this right?", " 42\n") + "\n" + question("and 4?", "4") + turns,
                          "answers.jsonl");
  EXPECT_EQ(result.questions, 5);
  EXPECT_EQ(result.correct, 3);
  EXPECT_DOUBLE_EQ(result.accuracy(), 0.6);
  std::ifstream answers(folder_ / "answers.jsonl");
  std::vector<json> lines;
  for (std::string line; std::getline(answers, line);) lines.push_back(json::parse(line));
  ASSERT_EQ(lines.size(), 5);
  EXPECT_EQ(lines[1],
            (json{{"question", "what is it?"}, {"right", "41"}, {"answer", "42"}, {"correct", false}}));
  EXPECT_EQ(lines[4],
            (json{{"question", "and this?"}, {"right", "42"}, {"answer", "42"}, {"correct", true}}));
}

/// The thoughts of the right answer count in the limit of its tokens: with 18, which are enough for "42", the model would not
/// come to its answer.
TEST_F(Generate, LeavesRoomForThoughts) {
  const std::string thoughts = "abcdehimnorstuwy013?";
  if (world().rank() == 0) {
    std::vector<std::string> chain{"Ċ", "<think>"};
    for (const char c : thoughts) chain.emplace_back(1, c);
    for (const char* token : {"</think>", "4", "2", "<|im_end|>"}) chain.emplace_back(token);
    write("model.safetensors", safetensors(chains({chain})));
    write("tokenizer_config.json", json{{"chat_template", chat_template("qwen3")}}.dump());
  }
  std::string logged;
  const Log log([&](const std::string& line) { logged += line + "\n"; });
  const auto ask_with = [&](const json& answer) {
    return ask(json{{"messages", {{{"role", "user"}, {"content", "what?"}}, answer}}}.dump(), "", log)
        .correct;
  };
  EXPECT_EQ(ask_with({{"role", "assistant"}, {"content", "42"}, {"reasoning_content", thoughts}}), 1);
  EXPECT_EQ(ask_with({{"role", "assistant"}, {"content", "<think>" + thoughts + "</think>42"}}), 1);
  EXPECT_THAT(logged, Not(HasSubstr("thinking")));
  EXPECT_EQ(ask_with({{"role", "assistant"}, {"content", "42"}}), 0);
  EXPECT_THAT(
      logged,
      HasSubstr(
          "warning: 1 answer reached the limit of tokens while the model was still thinking, and counts as "
          "wrong; raise --max-tokens, as far as"));
}

TEST_F(Generate, WarnsOfAnswersThatHaveNoRoom) {
  std::string logged;
  const Log log([&](const std::string& line) { logged += line + "\n"; });
  const std::string questions = question("what?", "42") + question("what?", "4") + question("what?", "123");
  EXPECT_EQ(ask(questions, "", log, 4).correct, 1);  // " ", "4", "2" and the end
  EXPECT_THAT(logged, Not(HasSubstr("warning")));
  EXPECT_EQ(ask(questions, "", log, 3).correct, 0);
  EXPECT_THAT(
      logged,
      HasSubstr("warning: 1 expected answer does not fit into --max-tokens 3 or the model's context of "
                "96 tokens, and counts as wrong\n"));
  logged.clear();
  const auto of_length = [](std::size_t length) { return question(std::string(length, 'a'), "42"); };
  std::size_t longest = 1;  // of a question after which the answer still fits
  const auto room = [&](std::size_t length) {
    const auto tokenizer = tokenizer::make_tokenizer(folder_.string());
    const auto chosen = tokenizer::choose_template(*tokenizer);
    return 96 - std::ssize(tokenizer::encode_chat(*tokenizer, chosen,
                                                  {{tokenizer::ChatRole::user, std::string(length, 'a')}},
                                                  tokenizer::ChatPurpose::generation)
                               .ids);
  };
  while (room(longest + 1) >= 3) ++longest;
  ask(of_length(longest), "", log);
  EXPECT_THAT(logged, Not(HasSubstr("warning")));
  ask(of_length(longest + 1) + of_length(longest + 2), "", log);
  EXPECT_THAT(
      logged,
      HasSubstr(
          "warning: 2 expected answers do not fit into the model's context of 96 tokens, and count as wrong\n"));
}

/// On all ranks, also on those that have no question.
TEST_F(Generate, RefusesLogitsThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    if (world().rank() == 0) {
      Head head = chains({{"Ċ", "Ġ"}});
      head[{id_of("Ġ"), id_of("4")}] = bad;
      write("model.safetensors", safetensors(head));
    }
    world().barrier();
    EXPECT_THAT(refused(greedy("a ")), HasSubstr("logits that are NaN or infinite"));
    EXPECT_THROW(ask(question("what?", "42")), UserError);
  }
}

TEST_F(Generate, ReplacesAnswersAndNothingElse) {
  const auto file = folder_ / "notes.txt";
  if (world().rank() == 0) std::ofstream(file) << "my notes\n";
  const auto refusal = [&] {
    try {
      ask(question("what?", "42"), "notes.txt");
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_EQ(refusal(), file.string() +
                           " already exists and is not a file of answers: name another file, or "
                           "replace it with --overwrite");
  world().barrier();
  const auto lines_of = [&](const std::string& name) {
    std::ifstream in(folder_ / name);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  };
  EXPECT_EQ(lines_of("notes.txt"), std::vector<std::string>{"my notes"});
  ask(question("what?", "42") + question("what is it?", "41"), "answers.jsonl");
  ask(question("what?", "42"), "answers.jsonl");
  world().barrier();
  EXPECT_EQ(lines_of("answers.jsonl").size(), 1U);
  // Found before anything else is, the model and the questions.
  const auto complaint = [&](const std::string& answers) {
    try {
      ask("", answers);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_NE(complaint("absent/answers.jsonl").find("absent/answers.jsonl"), std::string::npos);
  EXPECT_NE(complaint("no-answers.jsonl").find("has no questions"), std::string::npos);
  world().barrier();
  for (const auto& entry : fs::directory_iterator(folder_))
    EXPECT_EQ(entry.path().filename().string().find("no-answers"), std::string::npos) << "left behind";
}

TEST_F(Generate, RefusesWhatAreNoQuestions) {
  const auto message = [&](const std::string& lines) {
    try {
      ask(lines);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  EXPECT_THAT(message(question("what?", "42") + "{\"prompt\": 1}\n"), HasSubstr("questions.jsonl, line 2: "));
  EXPECT_THAT(message(R"({"messages": [{"role": "assistant", "content": "42"}]})"),
              HasSubstr("line 1: there is no message before"));
  EXPECT_THAT(
      message(
          R"({"messages": [{"role": "assistant", "content": "42"}, {"role": "user", "content": "what?"}]})"),
      HasSubstr("line 1: the last message must be the assistant's"));
  EXPECT_THAT(message("\n"), HasSubstr("has no questions"));
  if (world().rank() == 0)
    write("tokenizer_config.json", json{{"chat_template", chat_template("qwen3")}}.dump());
  EXPECT_THAT(message(question("what?", "42") + question("what?", "<think>some</think>\n\n")),
              HasSubstr("line 2: the expected answer is empty without its thoughts"));
}

/// A weight is for training.
TEST_F(Generate, AsksAlsoWhatIsNotTrainedOn) {
  const json line{{"prompt", "what?"}, {"completion", "42"}, {"weight", 0}};
  EXPECT_EQ(ask(line.dump()).correct, 1);
}

/// Where an adapter is in PEFT's folder, its template counts and not that of the weights' folder.
TEST_F(Generate, TakesTheTemplateOfAnAdaptersFolder) {
  const auto chosen = [&] {
    TextOptions options;
    options.adapter = folder_ / "adapter";
    return TextModel::open(folder_, options, true, "26 Jul 2024").chat_template.name;
  };
  const auto write_there = [&](const std::string& name, const std::string& text) {
    world().barrier();
    if (world().rank() == 0) write("adapter/" + name, text);
    world().barrier();
  };
  if (world().rank() == 0) fs::create_directories(folder_ / "adapter");
  world().barrier();
  EXPECT_EQ(chosen(), "llama3");
  write_there("tokenizer_config.json", json{{"chat_template", chat_template("qwen3")}}.dump());
  EXPECT_EQ(chosen(), "qwen3");
  write_there("chat_template.jinja", chat_template("chatml"));
  EXPECT_EQ(chosen(), "chatml");
}

/// Ranks with sequences of different lengths get what each would get if all had its.
TEST(ContinueSequence, MayDifferByRank) {
  constexpr const char* kGeneratedModel =
      R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 24, "intermediate_size": 40,
    "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 64,
    "initializer_range": 0.5})";
  comm::World& world = test_world();
  const auto model = model::make_llama(model::LlamaConfig::parse(kGeneratedModel, "model"));
  const auto device = device::make_cpu_device(1);
  fsdp::EngineOptions options;
  options.batch = generation_shape(60);
  options.training = false;
  fsdp::Engine engine(*model, *device, world, options);
  engine.initialise(3);

  const auto beginning_of = [](int rank) {
    Beginning beginning{.tokens = {}, .most = 5 + 7 * rank};
    for (int i = 0; i < 40 - 19 * rank; ++i) beginning.tokens.push_back((7 * i * i + rank) % 61);
    return beginning;
  };
  const auto greedy = [](const std::vector<double>& logits, std::int64_t) { return draw(logits, 0, 1, 0); };
  const std::vector<std::int32_t> stop{5};
  const auto mine = continue_sequence(world, engine, beginning_of(world.rank()), stop, greedy);
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto its = continue_sequence(world, engine, beginning_of(rank), stop, greedy);
    if (rank != world.rank()) continue;
    EXPECT_EQ(mine.tokens, its.tokens);
    EXPECT_EQ(mine.stopped, its.stopped);
    EXPECT_TRUE(mine.stopped || std::ssize(mine.tokens) == 5 + 7 * rank);
    EXPECT_EQ(std::ranges::count(mine.tokens, 5), 0);
  }
}

}  // namespace
}  // namespace llampi::test
