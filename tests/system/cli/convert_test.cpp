// SPDX-License-Identifier: Apache-2.0
// From a run to a Hugging Face folder and back, as a user does it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kModel =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";

class Convert : public ::testing::Test {
 protected:
  Ending run(int ranks, const std::string& arguments) const {
    const std::string start = ranks == 1 ? "" : std::string(MPIRUN) + " -n " + std::to_string(ranks) + " ";
    return shell(folder_.path(), start + LLAMPI_PROGRAM + " " + arguments);
  }
  void expect_done(int ranks, const std::string& arguments) const {
    const Ending ending = run(ranks, arguments);
    EXPECT_EQ(ending.status, 0) << arguments << "\n" << ending.err;
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  double loss_of(const std::string& weights, const std::string& more = " --seq-len 32") const {
    const Ending ending = run(1, "evaluate --json --data text.h5 --weights " + weights + more);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return json::parse(ending.out)["loss"];
  }
  /// A checkpoint of a model that has learnt for two steps; its folder also holds a tokenizer's file.
  std::string checkpoint() const {
    fs::create_directories(path("model"));
    folder_.write("model/config.json", kModel);
    folder_.write("model/tokenizer.json", "{}");
    std::string text;
    for (int i = 0; i < 200; ++i) text += "line " + std::to_string(i * i) + "\n";
    folder_.write("text", text);
    expect_done(1, "tokenize --tokenizer bytes --output text.h5 text");
    expect_done(
        1,
        "train --run.dir=run --model.config=model --data.train=text.h5 --data.seq_len=32 --train.steps=2 "
        "--train.global_batch=2 --run.threads=1");
    return "run/checkpoints/step-00000002.h5";
  }

  ScratchFolder folder_;
};

TEST_F(Convert, ThereAndBackWithTheSameLoss) {
  const std::string saved = checkpoint();
  const double loss = loss_of(saved);
  expect_done(2, "export --checkpoint " + saved + " --output whole");
  EXPECT_EQ(loss_of("whole"), loss);
  EXPECT_EQ(loss_of(saved, ""), loss) << "with the sequence length of its run";
  EXPECT_NE(loss_of(saved, " --seq-len 16"), loss);
  EXPECT_TRUE(fs::exists(path("whole/tokenizer.json")));
  const auto config = json::parse(read_text(path("whole/config.json")));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["hidden_size"], 32);

  expect_done(1, "export --checkpoint " + saved + " --output sharded --max-shard-size 20KB");
  EXPECT_TRUE(fs::exists(path("sharded/model.safetensors.index.json")));
  EXPECT_EQ(loss_of("sharded"), loss);
  expect_done(2, "import --weights sharded --output imported.h5");
  EXPECT_EQ(loss_of("imported.h5"), loss);
  EXPECT_THAT(run(1, "inspect imported.h5").out, ContainsRegex("\n    optimizer_dtype +none\n"));
  EXPECT_EQ(run(1, "evaluate --data text.h5 --weights imported.h5").status, 2)
      << "no run, no sequence length";

  // Started from the folder, read in either way, a run takes the same first step.
  const auto first_loss = [&](int ranks, const std::string& way) {
    const std::string dir = "from_" + way;
    expect_done(
        ranks,
        "train --run.dir=" + dir +
            " --model.config=sharded --model.weights=sharded --data.train=text.h5 "
            "--data.seq_len=32 --train.steps=1 --train.global_batch=2 --run.threads=1 --fsdp.sync_init=" +
            way);
    return read_text(path(dir + "/metrics.jsonl"));
  };
  EXPECT_EQ(json::parse(first_loss(2, "read"))["loss"], json::parse(first_loss(2, "broadcast"))["loss"]);
}

TEST_F(Convert, AModelOverBytesNeedsNoTokenizer) {
  const std::string saved = checkpoint();
  fs::remove(path("model/tokenizer.json"));
  const Ending exported = run(1, "export --checkpoint " + saved + " --output whole");
  EXPECT_THAT(exported.out, HasSubstr("tokenizer: none, the tokens of the model are bytes\n"));
  expect_done(1, "import --weights whole --output imported.h5");  // nothing says what it was trained on
  const Ending again = run(1, "export --checkpoint imported.h5 --output again");
  EXPECT_THAT(again.out + again.err,
              HasSubstr("warning: no tokenizer was found for the model: copy its files into again"));
}

TEST_F(Convert, AdaptersGoToPeftAndIntoTheModel) {
  expect_done(1, "export --checkpoint " + checkpoint() + " --output base");
  const Ending trained = run(
      2,
      "train --run.dir=lora --model.config=base --model.weights=base --data.train=text.h5 --data.seq_len=32 "
      "--train.steps=2 --train.global_batch=2 --run.threads=1 --lora.rank=2 --lora.targets=proj --optimizer.lr=1e-2");
  EXPECT_EQ(trained.status, 0) << trained.err;
  EXPECT_THAT(trained.out, ::testing::HasSubstr(" trained; the others frozen, in bfloat16), "));
  EXPECT_EQ(json::parse(run(1, "inspect --json lora").out)["adapter"]["base_dtype"], "bfloat16");
  const double loss = loss_of("lora");
  EXPECT_LT(loss, loss_of("base"));
  expect_done(1, "export --checkpoint lora --adapter --output peft");
  const std::string in_peft = read_text(path("peft/adapter_model.safetensors")),
                    config_in_peft = read_text(path("peft/adapter_config.json"));
  const Ending full = shell(folder_.path(), "ulimit -f 4; " LLAMPI_PROGRAM
                                            " export --checkpoint lora --adapter --output peft --overwrite");
  EXPECT_EQ(full.status, 2) << full.err;
  EXPECT_TRUE(read_text(path("peft/adapter_model.safetensors")) == in_peft);
  EXPECT_EQ(read_text(path("peft/adapter_config.json")), config_in_peft);
  EXPECT_EQ(std::distance(fs::directory_iterator(path("peft")), {}), 2);
  EXPECT_EQ(loss_of("base --adapter peft"), loss);
  EXPECT_EQ(loss_of("base --adapter lora"), loss);
  expect_done(2, "export --checkpoint lora --output merged");
  EXPECT_EQ(loss_of("merged"), loss);
  const auto generated = [&](int ranks, const std::string& model) {
    return run(ranks, "generate --tokenizer bytes --prompt line --max-tokens 4 --weights " + model).out;
  };
  EXPECT_NE(generated(1, "merged"), "");
  EXPECT_EQ(generated(2, "base --adapter peft"), generated(1, "merged"));

  const auto refuses = [&](const std::string& arguments, const std::string& words) {
    const Ending ending = run(2, arguments);
    EXPECT_EQ(ending.status, 2) << arguments;
    EXPECT_THAT(ending.err, HasSubstr(words));
  };
  for (const char* how : {"", " --overwrite"})
    refuses(std::string("export --checkpoint lora --adapter --output merged") + how,
            "merged holds a model (config.json)");
  EXPECT_FALSE(fs::exists(path("merged/adapter_model.safetensors")));
  for (const char* how : {"", " --overwrite"})
    refuses("export --checkpoint " + checkpoint() + " --output peft" + how,
            "peft holds an adapter (adapter_config.json)");
  EXPECT_FALSE(fs::exists(path("peft/config.json")));
  refuses("export --checkpoint " + checkpoint() + " --adapter --output other", "leave out --adapter");
  for (const char* checkpoint : {"lora", "peft"})
    refuses(std::string("export --base base --overwrite --output base --checkpoint ") + checkpoint,
            "base is the model that the adapters belong to; choose another folder");
  refuses("evaluate --data text.h5 --weights lora --adapter peft", "holds adapters, and so does --adapter");
  fs::rename(path("base"), path("moved"));
  refuses("evaluate --data text.h5 --weights lora", "the model that they belong to is not where it was");
  refuses("export --checkpoint lora --output refused",
          "the model that they belong to is not where it was (base)");
  refuses("export --checkpoint lora --base merged --output refused/too",
          "give that model, which was read from base, no longer there (seen from ");
  EXPECT_FALSE(fs::exists(path("refused")));
  EXPECT_EQ(loss_of("moved --adapter lora"), loss);
  expect_done(1, "export --checkpoint lora --base moved --output merged_again");
  EXPECT_EQ(loss_of("merged_again"), loss);
  refuses("export --checkpoint peft --output refused", "name it with --base\n");
  refuses("export --checkpoint lora --adapter --output refused --max-shard-size 1KB",
          "--max-shard-size cannot be used with --adapter");

  auto weights = read_text(path("peft/adapter_model.safetensors"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  weights.replace(weights.size() - 4, 4, reinterpret_cast<const char*>(&nan), 4);
  folder_.write("peft/adapter_model.safetensors", weights);
  EXPECT_THAT(run(1, "export --checkpoint peft --base moved --output not_finite").out,
              HasSubstr(" weights of moved/model.safetensors with the adapters of peft are NaN or infinite"));
}

/// A base model whose tokenizer has the tokens of ChatML, and no template.
void write_chatml_base(const ScratchFolder& folder) {
  json tokenizer = json::parse(
      read_text(fs::path(LLAMPI_TEST_DATA) / "fixtures" / "tokenizers" / "llama3" / "tokenizer.json"));
  std::int64_t next = 0;
  for (const auto& token : tokenizer["added_tokens"])
    next = std::max(next, token["id"].get<std::int64_t>() + 1);
  for (const char* name : {"<|im_start|>", "<|im_end|>"}) {
    json token = tokenizer["added_tokens"][0];
    token["id"] = next++;
    token["content"] = name;
    tokenizer["added_tokens"].push_back(token);
  }
  auto config = json::parse(kModel);
  config["vocab_size"] = next;
  config["eos_token_id"] = 1501;
  fs::create_directories(folder.path() / "base");
  folder.write("base/config.json", config.dump());
  folder.write("base/tokenizer.json", tokenizer.dump());
  folder.write("base/tokenizer_config.json",
               R"({"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"})");
  folder.write("chat.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
}

TEST_F(Convert, TakesTheChatTemplateAlong) {
  write_chatml_base(folder_);
  const std::string tokenize =
      "tokenize --format chat --seq-len 16 --output chat.h5 chat.jsonl --json --tokenizer ";
  EXPECT_EQ(run(1, tokenize + "base").status, 2) << "which template is not said";
  expect_done(1, tokenize + "base --template chatml");
  expect_done(
      1,
      "train --run.dir=run --model.config=base --data.train=chat.h5 --data.seq_len=16 --train.steps=1 "
      "--train.global_batch=1 --run.threads=1");
  const std::string saved = "run/checkpoints/step-00000001.h5";
  const std::string ask = "generate --prompt a --chat --max-tokens 2 --temperature 0 --weights ";
  const Ending answer = run(1, ask + saved);
  EXPECT_EQ(answer.status, 0) << answer.err;

  for (const std::string& file : {std::string("chat.h5"), saved})
    EXPECT_EQ(json::parse(run(1, "inspect --json " + file).out)["chat_template"], "chatml");
  EXPECT_THAT(run(1, "export --checkpoint " + saved + " --output out").out,
              HasSubstr("chat template: chatml; a text ends at <|end_of_text|> or <|im_end|>\n"));
  for (const char* name : {"config.json", "generation_config.json"})
    EXPECT_EQ(json::parse(read_text(path("out") / name))["eos_token_id"], json({1501, 1507})) << name;
  const auto config = json::parse(read_text(path("out/tokenizer_config.json")));
  EXPECT_THAT(config["chat_template"].get<std::string>(), HasSubstr("'<|im_start|>' + message['role']"));
  EXPECT_EQ(config["eos_token"], "<|end_of_text|>");
  const Ending again = run(1, tokenize + "out");
  EXPECT_EQ(json::parse(again.out)["template"], "chatml") << again.err;
  EXPECT_EQ(run(1, ask + "out").out, answer.out);

  // A class that transformers 5 builds itself, and the one that follows the file.
  folder_.write("base/tokenizer_config.json",
                R"({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|end_of_text|>"})");
  const std::string warning = "transformers 5 reads this tokenizer.json as GPT2Tokenizer";
  const Ending warned = run(1, "export --checkpoint " + saved + " --output warned");
  EXPECT_THAT(warned.out + warned.err, HasSubstr(warning));
  folder_.write("base/tokenizer_config.json",
                R"({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end_of_text|>"})");
  const Ending followed = run(1, "export --checkpoint " + saved + " --output followed");
  EXPECT_EQ(followed.status, 0) << followed.err;
  EXPECT_THAT(followed.out + followed.err, Not(HasSubstr("transformers 5")));
  folder_.write("base/tokenizer_config.json", R"({"eos_token": "<|end_of_text|>", "pad_token": "[PAD]"})");
  const Ending padded = run(1, "export --checkpoint " + saved + " --output padded");
  EXPECT_THAT(padded.out + padded.err, HasSubstr("transformers 5 adds [PAD] to this tokenizer.json"));

  // Without a tokenizer at hand, for who adds one later.
  fs::rename(path("base"), path("elsewhere"));
  const Ending bare = run(1, "export --checkpoint " + saved + " --output bare");
  EXPECT_EQ(bare.status, 0);
  EXPECT_THAT(bare.out + bare.err, HasSubstr("the chat template is in chat_template.jinja"));
  EXPECT_EQ(read_text(path("bare/chat_template.jinja")), config["chat_template"].get<std::string>());
}

/// A chat model that is trained further on plain text, whole or with adapters, stays a chat model. The tokenizer's folder has no template.
TEST_F(Convert, KeepsTheChatTemplateOfWhatItStartedFrom) {
  write_chatml_base(folder_);
  expect_done(
      1,
      "tokenize --format chat --seq-len 16 --output chat.h5 chat.jsonl --tokenizer base --template chatml");
  folder_.write("text.txt", std::string(200, 'a'));
  expect_done(1, "tokenize --output text.h5 text.txt --tokenizer base");
  const std::string train =
      "train --data.seq_len=16 --train.steps=1 --train.global_batch=1 --run.threads=1 --data.train=";
  expect_done(1, train + "chat.h5 --run.dir=run --model.config=base");
  expect_done(1, train + "text.h5 --run.dir=text --model.config=base --model.weights=run");
  expect_done(1, train + "text.h5 --run.dir=lora --model.config=base --model.weights=run --lora.rank=2");
  // Adapters that were trained with a template, of a base that has none.
  expect_done(1, train + "text.h5 --run.dir=plain --model.config=base");
  expect_done(1, train + "chat.h5 --run.dir=chats --model.config=base --model.weights=plain --lora.rank=2");
  expect_done(
      1,
      train +
          "text.h5 --run.dir=more --model.config=base --model.weights=plain --lora.rank=2 --lora.weights=chats");
  for (const std::string& trained : {std::string("text"), std::string("lora"), std::string("more")})
    EXPECT_EQ(json::parse(run(1, "inspect --json " + trained).out)["chat_template"], "chatml") << trained;

  // An adapter that is not known to have one: its base has.
  expect_done(1, "export --checkpoint lora --adapter --output peft");
  fs::remove(path("peft/chat_template.jinja"));
  const std::string ask = "generate --prompt a --chat --max-tokens 2 --temperature 0 --weights run ";
  const Ending answer = run(1, ask + "--adapter lora"), same = run(1, ask + "--adapter peft");
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(same.out, answer.out);
  expect_done(1, "export --checkpoint peft --base run --output merged --tokenizer base");
  EXPECT_THAT(read_text(path("merged/tokenizer_config.json")), HasSubstr("<|im_start|>"));
}

/// The adapter was trained with another template than the base has, where that has one.
TEST_F(Convert, AdaptersTakeTheChatTemplateAlong) {
  write_chatml_base(folder_);
  expect_done(
      1,
      "tokenize --format chat --seq-len 16 --output chat.h5 chat.jsonl --tokenizer base --template chatml");
  const std::string train =
      "train --data.train=chat.h5 --data.seq_len=16 --train.steps=1 --train.global_batch=1 --run.threads=1 ";
  expect_done(1, train + "--run.dir=run --model.config=base");
  expect_done(1, "export --checkpoint run --output weights --tokenizer base");
  auto config = json::parse(read_text(path("weights/tokenizer_config.json")));
  const std::string chatml = config["chat_template"];
  const auto texts =
      json::parse(read_text(fs::path(LLAMPI_TEST_DATA) / "fixtures" / "chat" / "chat_texts.json"));
  config["chat_template"] = texts["own"]["llama3"]["text"];
  folder_.write("weights/tokenizer_config.json", config.dump());
  expect_done(1, train + "--run.dir=lora --model.config=weights --model.weights=weights --lora.rank=2");

  expect_done(1, "export --checkpoint lora --adapter --output peft");
  EXPECT_EQ(read_text(path("peft/chat_template.jinja")), chatml);
  const auto answers_of = [&](const std::string& adapter) {
    const Ending ending = run(1, "evaluate --weights weights --questions chat.jsonl --answers " + adapter +
                                     ".jsonl --adapter " + adapter);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return read_text(path(adapter + ".jsonl"));
  };
  EXPECT_EQ(answers_of("peft"), answers_of("lora"));
  expect_done(1, "export --checkpoint peft --base weights --output merged");
  EXPECT_EQ(json::parse(read_text(path("merged/tokenizer_config.json")))["chat_template"], chatml);

  // A template that is there is not replaced.
  fs::create_directories(path("mine"));
  folder_.write("mine/chat_template.jinja", "mine");
  const Ending refused = run(1, "export --checkpoint lora --adapter --output mine");
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("mine/chat_template.jinja is there already; choose another folder"));
  EXPECT_EQ(read_text(path("mine/chat_template.jinja")), "mine");
  EXPECT_FALSE(fs::exists(path("mine/adapter_config.json")));
  expect_done(1, "export --checkpoint lora --adapter --output mine --overwrite");
  EXPECT_EQ(read_text(path("mine/chat_template.jinja")), chatml);

  // Names that begin as that of the weights does.
  const Ending absent =
      run(1, "evaluate --weights weights --template chatml --questions weights_questions.jsonl");
  EXPECT_EQ(absent.status, 2);
  EXPECT_THAT(absent.err, HasSubstr("llampi: --questions weights_questions.jsonl cannot be read"));
  const Ending nowhere =
      run(1, "evaluate --weights weights --questions chat.jsonl --answers weights_none/a.jsonl");
  EXPECT_EQ(nowhere.status, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("llampi: --answers weights_none/a.jsonl: there is no folder"));
}

TEST_F(Convert, RefusesTheLossOfWeightsThatAreNotFinite) {
  const std::string saved = checkpoint();
  expect_done(1, "export --checkpoint " + saved + " --output whole");
  auto weights = read_text(path("whole/model.safetensors"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t at = weights.size() / 2 / 4 * 4; at < weights.size(); at += 4)
    weights.replace(at, 4, reinterpret_cast<const char*>(&nan), 4);
  folder_.write("whole/model.safetensors", weights);
  for (const char* how : {"", " --json"}) {
    const Ending ending = run(2, std::string("evaluate --data text.h5 --seq-len 32 --weights whole") + how);
    EXPECT_EQ(ending.status, 2);
    EXPECT_EQ(ending.out, "");
    EXPECT_THAT(
        ending.complaints(),
        ElementsAre(
            "llampi: the model computes logits that are NaN or infinite, so there is no loss: its weights "
            "are not finite, or too large; take an earlier checkpoint"));
  }
}

TEST_F(Convert, WarnsOfWeightsThatAreNotFinite) {
  const std::string saved = checkpoint();
  expect_done(1, "export --checkpoint " + saved + " --output whole");
  auto weights = read_text(path("whole/model.safetensors"));
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::size_t at : {weights.size() - 4, weights.size() - 8})
    weights.replace(at, 4, reinterpret_cast<const char*>(&infinity), 4);
  folder_.write("whole/model.safetensors", weights);
  const Ending imported = run(2, "import --weights whole --output imported.h5");
  EXPECT_EQ(imported.status, 0);
  const Ending exported = run(2, "export --checkpoint imported.h5 --output again --dtype bfloat16");
  EXPECT_EQ(exported.status, 0);
  const std::string found =
      " are NaN or infinite, the first in model.norm.weight; a model with such weights computes NaN";
  EXPECT_THAT(imported.out, HasSubstr("warning: 2 weights of whole/model.safetensors" + found));
  EXPECT_THAT(exported.out, HasSubstr("warning: 2 weights of imported.h5" + found));
}

TEST_F(Convert, VerifiesCheckpoints) {
  const std::string saved = checkpoint();
  const Ending whole = run(1, "inspect --verify " + saved);
  EXPECT_EQ(whole.status, 0) << whole.err;
  for (const char* line :
       {"\n  checksums +true\n", "\nevery checksum of what llampi reads is right: .* of values, and names",
        "\n    tokens_seen +128 \\(labels\\)\n", "\n    data_tokens +[0-9,]+ \\(with padding\\)\n"})
    EXPECT_THAT(whole.out, ContainsRegex(line));
  const auto seen = json::parse(run(1, "inspect --verify --json " + saved).out);
  EXPECT_EQ(seen["verified"]["compared_bytes"], seen["tensors"]["bytes"]);
  EXPECT_FALSE(json::parse(run(1, "inspect --json " + saved).out).contains("verified"));

  std::string bytes = read_text(path(saved));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  folder_.write(saved, bytes);
  EXPECT_EQ(run(1, "inspect " + saved).status, 0) << "which reads no values";
  const Ending damaged = run(1, "inspect --verify --json " + saved);
  EXPECT_EQ(damaged.status, 2);
  EXPECT_EQ(damaged.out, "");
  ASSERT_EQ(damaged.complaints().size(), 1U) << damaged.err;
  EXPECT_THAT(damaged.complaints()[0], AllOf(HasSubstr(saved + " is damaged: elements "),
                                             HasSubstr(" of /optimizer/exp_avg_sq/model."),
                                             HasSubstr("do not fit their checksum; use another checkpoint")));
}

TEST_F(Convert, ARunsFolderStandsForItsNewestCheckpoint) {
  const std::string saved = checkpoint();
  const std::string said = "run: its newest checkpoint is " + saved + "\n";
  const Ending evaluated = run(1, "evaluate --json --data text.h5 --weights run");
  EXPECT_EQ(json::parse(evaluated.out)["loss"], loss_of(saved, ""));
  EXPECT_EQ(evaluated.err.substr(0, said.size()), said);
  const auto text_of = [&](const std::string& weights) {
    return run(2, "generate --prompt ab --max-tokens 4 --tokenizer bytes --weights " + weights).out;
  };
  EXPECT_EQ(text_of("run"), text_of(saved));
  EXPECT_EQ(run(1, "inspect --json run").out, run(1, "inspect --json " + saved).out);
  EXPECT_THAT(run(2, "export --checkpoint run --output from_run").out, HasSubstr(said));
  EXPECT_EQ(loss_of("from_run"), loss_of(saved));

  const std::string next =
      "train --run.dir=next --model.config=model --model.weights=run --data.train=text.h5 "
      "--data.seq_len=32 --train.steps=1 --train.global_batch=2 --run.threads=1";
  EXPECT_THAT(run(1, next).out, HasSubstr(said));
  EXPECT_THAT(
      read_text(path("next/config.ini")),
      AllOf(HasSubstr("\nweights = run\n"), HasSubstr("\n# model.weights: read from " + saved + "\n")));
  // Where run.dir had no room for the newest one.
  fs::create_directories(path("next/more/checkpoints"));
  std::string history = read_text(path("next/history.jsonl"));
  const std::string place = "checkpoints/step-00000001.h5", file = path("next/more/" + place).string();
  ASSERT_NE(history.find(place), std::string::npos) << history;
  history.replace(history.find(place), place.size(), file);
  std::ofstream(path("next/history.jsonl")) << history;
  fs::rename(path("next/" + place), file);
  EXPECT_THAT(run(1, "inspect next").err, HasSubstr("its newest checkpoint is " + file));
  EXPECT_THAT(run(1, next).out, HasSubstr("already complete: " + file));
  fs::remove(file);
  EXPECT_THAT(run(1, "inspect next").err, HasSubstr("is gone, and no other one is left"));
  EXPECT_THAT(run(1, next).out, HasSubstr("the run begins again at step 1: its newest checkpoint, "));

  fs::create_directories(path("empty/checkpoints"));
  EXPECT_THAT(run(1, "inspect empty").err,
              HasSubstr("empty is the folder of a run that has not saved a checkpoint yet"));
  // Of two the newest that can be read.
  folder_.write("run/checkpoints/step-00000003.h5", "torn");
  EXPECT_THAT(run(1, "inspect run").err, AllOf(HasSubstr("warning: skipped a checkpoint: "),
                                               HasSubstr("step-00000003.h5"), HasSubstr(said)));
}

TEST_F(Convert, Bfloat16IsSmallerAndNear) {
  const std::string saved = checkpoint();
  expect_done(1, "export --checkpoint " + saved + " --output narrow --dtype bfloat16");
  EXPECT_EQ(json::parse(read_text(path("narrow/config.json")))["torch_dtype"], "bfloat16");
  EXPECT_LT(fs::file_size(path("narrow/model.safetensors")), 256 * 32 * 2 + 40'000);
  // Parameters are off by up to 2^-9 of their size; a loss near log(256) then by much less than 1e-2.
  EXPECT_NEAR(loss_of("narrow"), loss_of(saved), 1e-2);
  EXPECT_NE(loss_of("narrow"), loss_of(saved));
}

// As older programs exported into the folder of a run.
TEST_F(Convert, WarnsWhereAModelHidesCheckpoints) {
  const std::string saved = checkpoint();
  expect_done(1, "export --checkpoint run --output there");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(path("there") / name, path("run") / name);
  const Ending ending = run(1, "inspect run");
  EXPECT_EQ(ending.status, 0);
  EXPECT_THAT(ending.err,
              HasSubstr("run holds a model (config.json) and checkpoints of a run: the model is taken"));
  EXPECT_THAT(ending.err, HasSubstr(saved));
}

TEST_F(Convert, SaysWhatIsWrong) {
  const std::string saved = checkpoint();
  const auto complaint = [&](int ranks, const std::string& arguments) {
    const Ending ending = run(ranks, arguments);
    EXPECT_EQ(ending.status, 2) << arguments;
    return ending.complaints().empty() ? "" : ending.complaints().front();
  };
  expect_done(1, "export --checkpoint " + saved + " --output there");
  EXPECT_THAT(complaint(2, "export --checkpoint " + saved + " --output there"),
              HasSubstr("already holds a model (config.json)"));
  for (const char* how : {"", " --overwrite"})
    EXPECT_THAT(complaint(1, std::string("export --checkpoint run --output run") + how),
                HasSubstr("run is the folder of a run"));
  fs::create_directory_symlink(path("run/checkpoints"), path("link"));
  for (const char* folder : {"run/checkpoints", "run/checkpoints/", "link"})
    EXPECT_THAT(complaint(1, "export --checkpoint " + saved + " --output " + folder),
                HasSubstr("holds the checkpoints of a run"));
  EXPECT_FALSE(fs::exists(path("run/config.json")));
  EXPECT_THAT(complaint(1, "export --checkpoint text.h5 --output new"),
              HasSubstr("text.h5 is not a checkpoint"));
  EXPECT_THAT(complaint(1, "export --checkpoint absent.h5 --output new"),
              HasSubstr("absent.h5: no such file or folder"));
  EXPECT_THAT(complaint(1, "export --checkpoint " + saved + " --output new --max-shard-size 5apples"),
              HasSubstr("write for example 5GB"));
  EXPECT_THAT(
      complaint(1, "evaluate --weights there --data text.h5"),
      HasSubstr("neither there nor text.h5 says with which sequence length to evaluate; give --seq-len"));
  EXPECT_FALSE(fs::exists(path("new")));
  EXPECT_THAT(complaint(1, "import --weights " + saved + " --output new.h5"),
              HasSubstr("is not a Hugging Face folder"));
  EXPECT_THAT(complaint(1, "import --weights model --output new.h5"),
              HasSubstr("there is no model.safetensors"));
  folder_.write("model/pytorch_model.bin", "");
  EXPECT_THAT(
      complaint(1, "import --weights model --output new.h5"),
      AllOf(HasSubstr("model holds pytorch_model.bin but no model.safetensors, and .bin files are not read"),
            HasSubstr("from_pretrained(\"model\").save_pretrained(FOLDER)")));
  fs::remove(path("model/pytorch_model.bin"));
  EXPECT_THAT(complaint(1, "evaluate --weights there --data text --seq-len 8"),
              HasSubstr("make a token file with `llampi tokenize`"));
  const Ending limited =
      shell(folder_.path(), "ulimit -f 4; " LLAMPI_PROGRAM " import --weights there --output new.h5");
  EXPECT_EQ(limited.status, 2) << limited.err;
  EXPECT_THAT(limited.err,
              HasSubstr("and no file of this process may be larger than 2.00 KiB; raise the limit with "
                        "`ulimit -f unlimited`\n"));
  EXPECT_THAT(complaint(2, "import --weights there --output absent/new.h5"),
              HasSubstr("there is no folder absent; create it, or name another file"));
  std::string other = kModel;
  other.replace(other.find("\"intermediate_size\": 48"), 23, "\"intermediate_size\": 52");
  folder_.write("there/config.json", other);
  EXPECT_THAT(complaint(2, "import --weights there --output new.h5"),
              AllOf(HasSubstr("does not fit the model"), HasSubstr("mlp.down_proj.weight ([32, 48] where")));
  EXPECT_FALSE(fs::exists(path("new.h5")));
}

TEST_F(Convert, ReplacesNothingThatIsAnothers) {
  const std::string saved = checkpoint();
  const auto refused = [&](const std::string& arguments, const std::string& file,
                           const std::string& sentence) {
    const std::string before = read_text(path(file));
    const Ending ending = run(2, arguments);
    EXPECT_EQ(ending.status, 2) << arguments;
    EXPECT_THAT(ending.complaints(), ElementsAre(HasSubstr(sentence))) << ending.err;
    EXPECT_TRUE(read_text(path(file)) == before) << file << " has changed";
  };
  expect_done(1, "export --checkpoint " + saved + " --output folder --max-shard-size 20KB");
  EXPECT_EQ(run(1, "inspect folder").err, "");
  // Of a folder that was fetched in part.
  std::vector<fs::path> shards;
  for (const auto& entry : fs::directory_iterator(path("folder"))) {
    if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
  }
  ASSERT_GE(shards.size(), 2U);
  fs::rename(shards[0], path("aside"));
  EXPECT_THAT(run(1, "inspect folder").err,
              HasSubstr("warning: folder is incomplete: " + shards[0].filename().string() +
                        " is not there; fetch the folder again\n"));
  fs::rename(path("aside"), shards[0]);
  // import: onto the checkpoint of a run, a token file, a text; then onto what import wrote.
  const std::string import = "import --weights folder --output ";
  const std::string not_imported =
      " already exists and is not a checkpoint that llampi import wrote: name another "
      "file, or replace it with --overwrite";
  for (const std::string& file : {saved, std::string("text.h5"), std::string("text")})
    refused(import + file, file, file + not_imported);
  for (int twice = 0; twice < 2; ++twice) expect_done(2, import + "imported.h5");
  fs::copy_file(path(saved), path("copy.h5"));
  expect_done(2, import + "copy.h5 --overwrite");
  EXPECT_EQ(read_text(path("copy.h5")).size(), read_text(path("imported.h5")).size());
  const std::string weights = shards[0].string(), into = "import --weights folder --output folder/";
  refused("import --weights folder --overwrite --output " + weights, weights,
          "the output " + weights + " is a file of the model that is imported");
  fs::create_symlink(path(weights), path("weights.h5"));
  refused("import --weights folder --overwrite --output weights.h5", weights,
          "the output weights.h5 is a file of the model that is imported");
  for (const char* how : {"", " --overwrite"}) expect_done(1, into + "own.h5" + how);
  fs::remove(path("folder/own.h5"));
  // export: onto weights, a config.json, files of a tokenizer that the model's has not.
  const std::string onto = "export --checkpoint " + saved + " --output ";
  refused(
      onto + "folder", "folder/config.json",
      "folder already holds a model (config.json); choose another folder, or replace it with --overwrite");
  fs::create_directories(path("mine"));
  folder_.write("mine/generation_config.json", "{\"eos_token_id\": 7}");
  refused(onto + "mine", "mine/generation_config.json", "mine already holds generation_config.json");
  folder_.write("mine/tokenizer.json", "{\"mine\": 1}");
  refused(onto + "mine --tokenizer mine", "mine/tokenizer.json", "mine already holds tokenizer.json");
  refused(onto + "other --tokenizer nowhere", "text", "--tokenizer nowhere is not a folder with a tokenizer");
  folder_.write("mine/notes", "stay");
  folder_.write("mine/model-00007-of-00009.safetensors", "of another model");
  folder_.write("mine/model-before.safetensors", "under a name of the user's");
  expect_done(2, onto + "mine --overwrite");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path("mine"))) names.push_back(entry.path().filename());
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("config.json", "model.safetensors",
                                                     "model-before.safetensors", "notes", "tokenizer.json"));
  EXPECT_EQ(read_text(path("mine/tokenizer.json")), "{}") << "of the model";
  expect_done(2, onto + "folder --overwrite");
  EXPECT_FALSE(fs::exists(path("folder/model.safetensors.index.json"))) << "of the model before";
  EXPECT_EQ(loss_of("folder"), loss_of(saved));
}

TEST_F(Convert, WritesOneTokenFileUnderMpirun) {
  folder_.write("a.txt", "text");
  for (int i = 0; i < 3; ++i) {
    const Ending ending = run(2, "tokenize --tokenizer bytes --output t.h5 a.txt");
    EXPECT_EQ(ending.status, 0) << ending.err;
    const auto first = ending.out.find("t.h5: 4 tokens");
    EXPECT_NE(first, std::string::npos) << ending.out;
    EXPECT_EQ(first, ending.out.rfind("t.h5: 4 tokens")) << "each rank tokenizes";
  }
  EXPECT_EQ(json::parse(run(2, "inspect --json t.h5").out)["tokens"], 4);
}

}  // namespace
}  // namespace llampi::test
