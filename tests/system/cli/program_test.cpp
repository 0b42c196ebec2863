// SPDX-License-Identifier: Apache-2.0
// The built program as a user meets it, on one process and without MPI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/option_table.hpp"
#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Program : public ::testing::Test {
 protected:
  Ending run(const std::string& arguments) const {
    return shell(folder_.path(), std::string(LLAMPI_PROGRAM) + " " + arguments);
  }
  /// Status 2, nothing on standard output, and exactly this line on standard error.
  void expect_refused(const std::string& arguments, const std::string& sentence) const {
    const Ending ending = run(arguments);
    EXPECT_EQ(ending.status, 2) << arguments;
    EXPECT_EQ(ending.out, "") << arguments;
    EXPECT_EQ(ending.err, "llampi: " + sentence + "\n") << arguments;
  }
  ScratchFolder folder_;
};

TEST_F(Program, TellsItsVersions) {
  const Ending ending = run("--version");
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.err, "");
  EXPECT_THAT(ending.out, ContainsRegex("^llampi [0-9]+\\.[0-9]+\\.[0-9]+ \\([0-9a-z-]+\\)\n"));
  for (const char* part : {"\nMPI +[^ \n]", "\nmatrix products +[^ \n]", "\nHDF5 +[0-9]+\\.[0-9]+\\.[0-9]+\n",
                           "\ncompiler +[^ \n]"}) {
    EXPECT_THAT(ending.out, ContainsRegex(part));
  }
}

TEST_F(Program, HelpsItself) {
  const Ending help = run("--help"), nothing = run("");
  EXPECT_EQ(help.status, 0);
  EXPECT_EQ(nothing.status, 2);
  EXPECT_EQ(help.out, nothing.out);
  EXPECT_EQ(help.err, "");
  EXPECT_EQ(nothing.err, "llampi: no command given; llampi train --help shows how to start\n");
  EXPECT_EQ(run("help plan").out, run("plan --help").out);
  EXPECT_EQ(run("help nothing").status, 2);
  for (const auto& command : cli::commands()) EXPECT_THAT(help.out, HasSubstr("\n  " + command.name + " "));
}

TEST_F(Program, FailsWhereItsOutputCannotBeWritten) {
  for (const char* command : {" --version", " plan --help", " man"}) {
    const Ending ending = shell(folder_.path(), std::string(LLAMPI_PROGRAM) + command + " > /dev/full");
    EXPECT_EQ(ending.status, 1) << command;
    EXPECT_EQ(ending.err, "llampi: cannot write to standard output: No space left on device\n") << command;
  }
}

/// As GNU's OpenMP library shows it when it is loaded, of which the last time counts.
TEST_F(Program, ThreadsThatWaitSleepSoonUnlessTheUserWantsOtherwise) {
  const auto shown = [&](const std::string& before) {
    const Ending ending =
        shell(folder_.path(), "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose " + before +
                                  " " + LLAMPI_PROGRAM + " --version");
    EXPECT_EQ(ending.status, 0);
    return ending.err.substr(
        std::min(ending.err.size(), ending.err.rfind("OPENMP DISPLAY ENVIRONMENT BEGIN")));
  };
  const std::string own = shown("");
  if (own.find("GOMP_SPINCOUNT") == std::string::npos) GTEST_SKIP() << "another OpenMP library";
  EXPECT_THAT(own, HasSubstr("OMP_WAIT_POLICY = 'PASSIVE'"));
  EXPECT_THAT(own, HasSubstr("GOMP_SPINCOUNT = '1000'"));
  EXPECT_THAT(shown("OMP_WAIT_POLICY=active"), HasSubstr("OMP_WAIT_POLICY = 'ACTIVE'"));
  EXPECT_THAT(shown("GOMP_SPINCOUNT=77"), HasSubstr("GOMP_SPINCOUNT = '77'"));
}

/// Also where it has started itself again. The configuration is what the kernel calls the process.
TEST_F(Program, HasItsNameInListsOfProcesses) {
  const Ending ending = shell(folder_.path(), std::string("env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT ") +
                                                  LLAMPI_PROGRAM + " train --config /proc/self/comm");
  EXPECT_THAT(ending.err, HasSubstr("line 1: \"llampi\" is neither"));
}

TEST_F(Program, EveryCommandHelpsItself) {
  for (const auto& command : cli::commands()) {
    const Ending ending = run(command.name + " --bogus --help");
    EXPECT_EQ(ending.status, 0);
    EXPECT_EQ(ending.err, "");
    EXPECT_THAT(ending.out, StartsWith("Usage: "));
    EXPECT_THAT(ending.out, HasSubstr("llampi " + command.name + " "));
  }
  const Ending help = run("train --help");
  EXPECT_THAT(help.out, ContainsRegex("send SIGUSR1 to all ranks \\(mpirun forwards it\\)"));
  train::Config defaults;
  for (const auto& option : cli::option_table(defaults))
    EXPECT_THAT(help.out, HasSubstr("--" + option.key + " "));
}

TEST_F(Program, RefusesUnknownCommands) {
  expect_refused("trian", "unknown command \"trian\"; did you mean train?");
}

TEST_F(Program, RefusesWrongOptions) {
  expect_refused("tokenize", "tokenize needs --tokenizer; see llampi tokenize --help");
  expect_refused("tokenize --tokenizer bytes", "tokenize needs --output; see llampi tokenize --help");
  expect_refused("tokenize --tokenizer bytes --output x.h5",
                 "tokenize needs at least one input file; see llampi tokenize --help");
  expect_refused("tokenize --tokenizer bytes --format csv --output x.h5 y",
                 "--format csv is not known; use text, jsonl or chat");
  expect_refused("tokenize --tokenizer bytes --format chat --output x.h5 y",
                 "tokenize --format chat needs --seq-len; see llampi tokenize --help");
  expect_refused(
      "tokenize --tokenizer bytes --seq-len 128 --output x.h5 y",
      "--seq-len cannot be used with --format text: texts are cut into sequences when they are read; "
      "remove it");
  expect_refused("tokenize --tokenizer bytes --loss all --format jsonl --output x.h5 y",
                 "--loss cannot be used with --format jsonl: only conversations have it; remove it");
  expect_refused(
      "tokenize --tokenizer bytes --held-out 0.1 --output x.h5 y",
      "tokenize needs both --held-out and --held-out-output for a held-out part; --held-out-output is "
      "missing");
  expect_refused("tokenize --tokenizer bytes --held-out 1 --output x.h5 y",
                 "--held-out 1 is out of range; it must be at least 0 and below 1");
  expect_refused(
      "tokenize --tokenizer bytes --print y",
      "tokenize --print reads standard input, writes standard output and needs only --tokenizer; remove y");
  expect_refused("tokenize --tokenizer bytes --decode --seed=0",
                 "tokenize --decode reads standard input, writes standard output and needs only --tokenizer; "
                 "remove --seed");
  expect_refused("tokenize --tokenizer bytes --print --decode", "--print and --decode cannot be combined");
  expect_refused("tokenize --tokeniser bytes",
                 "unknown option --tokeniser on the command line; did you mean --tokenizer?");
  expect_refused("inspect", "inspect needs a file; see llampi inspect --help");
  expect_refused("check --confg x", "unknown option --confg on the command line; did you mean --config?");
  expect_refused("tokenize --threads 4097 x",
                 "--threads 4097 is out of range; it must be at least 0 and at most 4096");
  expect_refused("inspect --units --verify x.h5", "--units and --verify cannot be combined");
  expect_refused(
      "inspect a b",
      "unexpected argument \"b\" after \"a\": at most one can be given; options are written --name=value");
}

// These start MPI, alone.
TEST_F(Program, RefusesWrongOptionsOfRanks) {
  expect_refused("train --train.stepz=5",
                 "unknown option --train.stepz on the command line; did you mean --train.steps?");
  expect_refused(
      "import llama3",
      "unexpected argument \"llama3\"; options are written --name=value, for example --weights=llama3");
  expect_refused("import --weights w w.h5",
                 "unexpected argument \"w.h5\"; options are written --name=value, for example --output=w.h5");
  expect_refused("export weights=w", "unexpected argument \"weights=w\"; options are written --name=value");
  expect_refused("train --lr=1e-3", "unknown option --lr on the command line; did you mean --optimizer.lr?");
  expect_refused("evaluate --weights w",
                 "give --data or --questions, and not both; see llampi evaluate --help");
  expect_refused("evaluate --weights w --questions q --data d",
                 "give --data or --questions, and not both; see llampi evaluate --help");
  expect_refused("evaluate --weights w --data d --seq-len 8 --answers a",
                 "--answers requires --questions; remove it");
  expect_refused("evaluate --weights w --questions q --seq-len 8", "--seq-len requires --data; remove it");
  expect_refused("evaluate --weights w --questions q --micro-batch 7",
                 "--micro-batch requires --data; remove it");
  for (const auto* prompt : {"", " --prompt="}) {
    expect_refused(std::string("generate --weights w") + prompt,
                   "generate needs a --prompt that is not empty; see llampi generate --help");
  }
  expect_refused("generate --weights w --prompt p --system s", "--system requires --chat");
  expect_refused("generate --weights w --prompt p --template llama3", "--template requires --chat");
  expect_refused("generate --weights w --prompt p --top-p=0",
                 "--top-p 0 is out of range; it must be above 0 and at most 1");
  expect_refused("generate --weights w --prompt p --max-tokens=1000001",
                 "--max-tokens 1000001 is out of range; it must be at least 1 and at most "
                 "1000000");
}

TEST_F(Program, RefusesToBeOneOfSeveralThatDoNotKnowOfEachOther) {
  const std::string step = "env SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=";
  const auto start = [&](const char* task) {
    return shell(folder_.path(), step + task + " " + LLAMPI_PROGRAM + " train --train.steps=1");
  };
  EXPECT_EQ(start("0").status, 2);
  EXPECT_THAT(start("0").err,
              StartsWith("llampi: srun started 2 processes, but each has an MPI_COMM_WORLD of size 1"));
  EXPECT_EQ(start("1").status, 2);
  EXPECT_EQ(start("1").err, "");
}

TEST_F(Program, PrintsTheConfigurationOfARun) {
  folder_.write("run.ini", "[run]\ndir = mine\nseed = 0\n[model]\nconfig = c.json\n[data]\ntrain = t.h5\n");
  const Ending ending =
      shell(folder_.path(), std::string("LLAMPI_TRAIN_STEPS=7 ") + LLAMPI_PROGRAM +
                                " train --config run.ini --optimizer.lr=2e-3 --print-config");
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "");
  for (const auto* given : {"[run]\ndir = mine\n", "\nseed = 0\n", "\nsteps = 7\n", "\nlr = 0.002\n"})
    EXPECT_THAT(ending.out, HasSubstr(given));
  for (const auto* not_given : {"\n# resume = auto\n", "\n# weights = random\n", "\n# min_lr = 0\n"})
    EXPECT_THAT(ending.out, HasSubstr(not_given));
  // It is a configuration file itself.
  folder_.write("printed.ini", ending.out);
  EXPECT_EQ(run("train --print-config --config printed.ini").out, ending.out);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "mine"));
  expect_refused("train --print-config --config printed.ini --train.steps=0",
                 "neither train.steps nor train.epochs is given; say how long the run is with one of them");
}

TEST_F(Program, PrintsAndDecodesTokens) {
  folder_.write("text", "Hi!\n\nÄ\n");
  const Ending ids = run("tokenize --tokenizer bytes --print <text");
  EXPECT_EQ(ids.status, 0);
  EXPECT_EQ(ids.err, "");
  EXPECT_EQ(ids.out, "72 105 33\n\n195 132\n");
  folder_.write("ids", ids.out);
  EXPECT_EQ(run("tokenize --tokenizer bytes --decode <ids").out, "Hi!\n\nÄ\n");
  folder_.write("ids", "72\n72 x\n");
  const Ending wrong = run("tokenize --tokenizer bytes --decode <ids");
  EXPECT_EQ(wrong.status, 2);
  EXPECT_EQ(wrong.err, "llampi: line 2 of standard input holds \"x\", which is not a token id\n");
  folder_.write("ids", "72\n\n256\n");
  EXPECT_THAT(run("tokenize --tokenizer bytes --decode <ids").err,
              StartsWith("llampi: line 3 of standard input: token 256 cannot be turned into text"));
}

TEST_F(Program, WritesAndInspectsTokenFiles) {
  folder_.write("a.txt", "first text");
  folder_.write("b.txt", "second");
  const Ending written = run("tokenize --tokenizer bytes --output t.h5 a.txt b.txt --json");
  EXPECT_EQ(written.status, 0) << written.err;
  EXPECT_EQ(written.err, "");
  const auto said = nlohmann::json::parse(written.out);
  EXPECT_EQ(said["documents"], 2);
  EXPECT_EQ(said["tokens"], 16);
  EXPECT_EQ(said["bytes"], 16);
  EXPECT_THAT(run("tokenize --tokenizer bytes --output t.h5 a.txt b.txt").out,
              StartsWith("t.h5: 16 tokens in 2 documents\n"));
  const auto seen = nlohmann::json::parse(run("inspect t.h5 --json").out);
  EXPECT_EQ(seen["kind"], "tokens");
  EXPECT_EQ(seen["tokens"], 16);
  EXPECT_EQ(seen["documents"], 2);
  EXPECT_EQ(seen["vocab_size"], 256);
  EXPECT_EQ(seen["tokenizer"], "bytes");
  EXPECT_EQ(seen["loss_mask"], false);
  EXPECT_EQ(seen["loss_tokens"], said["loss_tokens"]);
  EXPECT_EQ(seen["loss_tokens"], 14);
  EXPECT_FALSE(seen.contains("seq_len"));
  EXPECT_THAT(run("inspect t.h5").out, ContainsRegex("\n  tokens +16\n"));
  folder_.write("one.txt", "1");
  EXPECT_THAT(run("tokenize --tokenizer bytes --output one.h5 one.txt").out,
              StartsWith("one.h5: 1 token in 1 document\n"));
  expect_refused("inspect --verify t.h5",
                 "t.h5 is not a checkpoint, and other files have no checksums; leave --verify out");
}

TEST_F(Program, CountsConversationsAlikeWhereverItCounts) {
  std::string lines;
  for (int i = 0; i < 5; ++i)
    lines += R"({"prompt": "What is )" + std::to_string(i) + R"(?", "completion": "A number."})" + "\n";
  folder_.write("chat.jsonl", lines);
  const Ending written =
      run(std::string("tokenize --format chat --seq-len 200 --json --output t.h5 --tokenizer ") +
          LLAMPI_TEST_DATA + "/fixtures/tokenizers/llama2 --template llama2 chat.jsonl");
  ASSERT_EQ(written.status, 0) << written.err;
  const auto said = nlohmann::json::parse(written.out);
  const auto seen = nlohmann::json::parse(run("inspect t.h5 --json").out);
  for (const char* key : {"documents", "tokens", "loss_tokens", "sequences", "seq_len"})
    EXPECT_EQ(seen[key], said[key]) << key;
  EXPECT_EQ(seen["documents"], 5);
  EXPECT_EQ(seen["seq_len"], 200);
  EXPECT_EQ(seen["padding_tokens"].get<int>(),
            200 * seen["sequences"].get<int>() + 1 - seen["tokens"].get<int>());
}

TEST_F(Program, KeepsATextWhereTheOutputIsForgotten) {
  folder_.write("a.txt", "a text");
  folder_.write("b.txt", "another");
  expect_refused("tokenize --tokenizer bytes --output *.txt",
                 "the output a.txt already exists and looks like an input, not like a token file: give the "
                 "output's name before the inputs, or replace the file with --overwrite");
  EXPECT_EQ(read_text(folder_.path() / "a.txt"), "a text");
  EXPECT_EQ(run("tokenize --tokenizer bytes --overwrite --output a.txt b.txt").status, 0);
  EXPECT_EQ(nlohmann::json::parse(run("inspect a.txt --json").out)["tokens"], 7);
}

TEST_F(Program, RefusesJsonWithoutAFormat) {
  folder_.write("a.jsonl", "{\"text\": \"one\"}\n");
  const std::string command = "tokenize --tokenizer bytes --output t.h5 a.jsonl";
  expect_refused(
      command,
      "JSON is in 1 of 1 input (the first is a.jsonl): give --format jsonl or --format chat for lines "
      "of JSON, or --format text to train on the JSON itself");
  const Ending asked = run(command + " --format text");
  EXPECT_EQ(asked.status, 0);
  EXPECT_EQ(asked.err,
            "warning: JSON is in 1 of 1 input (the first is a.jsonl): --format text takes it as it is\n");
}

TEST_F(Program, NamesMetasOwnTokenizerFile) {
  folder_.write("tokenizer.model", "IQ== 0\nIg== 1\nIw== 2\n");
  folder_.write("a.txt", "text");
  const Ending ending = run("tokenize --tokenizer tokenizer.model --output t.h5 a.txt");
  EXPECT_EQ(ending.status, 2);
  EXPECT_THAT(ending.err,
              HasSubstr("is Meta's own file of Llama 3's tokenizer (tiktoken), which is not read: "
                        "give the tokenizer.json"));
}

// What launchers set. Rank 0 alone works, so that no two processes write one file or print a plan twice.
TEST_F(Program, UsesRankZeroAloneWhereItIsOneOfSeveral) {
  folder_.write("a.txt", "text");
  const auto rank = [&](const std::string& environment, const std::string& arguments) {
    return shell(folder_.path(), environment + " " + LLAMPI_PROGRAM + " " + arguments);
  };
  const std::string make = "tokenize --tokenizer bytes --output t.h5 a.txt";
  for (const std::string other : {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2", "PMI_RANK=1 PMI_SIZE=2",
                                  "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2"}) {
    for (const std::string& command : {make, std::string("inspect t.h5"), std::string("plan")}) {
      const Ending ending = rank(other, command);
      EXPECT_EQ(ending.status, 0) << other << " " << command;
      EXPECT_EQ(ending.out + ending.err, "") << other << " " << command;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "t.h5"));
  // mpirun's daemons on other nodes may have been started by srun.
  const Ending first = rank(
      "SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3",
      make);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(first.err,
            "warning: tokenize uses one process: rank 0 of 3 does the work, the other ranks do "
            "nothing; in scripts where each rank works on a part of its own, unset OMPI_COMM_WORLD_SIZE\n");
  EXPECT_THAT(first.out, StartsWith("t.h5: 4 tokens"));
  const Ending alone = rank("SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", "inspect t.h5");
  EXPECT_EQ(alone.status, 0);
  EXPECT_EQ(alone.err, "");
}

TEST_F(Program, TokenizesJsonLines) {
  std::string lines = "{\"text\": \"one\"}\n{\"text\": 2}\n";
  for (int i = 0; i < 40; ++i) lines += "{\"text\": \"more\"}\n";
  folder_.write("a.jsonl", lines);
  const std::string command = "tokenize --tokenizer bytes --format jsonl --output t.h5 a.jsonl";
  expect_refused(
      command,
      "a.jsonl:2: \"text\" is of type number; it must be a string; fix the line, or skip bad lines with "
      "--on-error skip");
  const Ending ending =
      run(command + " --on-error skip --held-out 0.3 --held-out-output e.h5 --threads 2 --json");
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.err,
            "warning: a.jsonl:2: \"text\" is of type number; it must be a string; the line is skipped\n");
  const auto said = nlohmann::json::parse(ending.out);
  EXPECT_EQ(said["documents"].get<int>() + said["held_out"]["documents"].get<int>(), 41);
  EXPECT_EQ(said["tokens"].get<int>() + said["held_out"]["tokens"].get<int>(), 163);
  EXPECT_EQ(said["bytes"], 163);
  EXPECT_EQ(said["skipped"], 1);
  EXPECT_EQ(nlohmann::json::parse(run("inspect e.h5 --json").out)["documents"],
            said["held_out"]["documents"]);
  const Ending table = run(command + " --on-error skip");
  EXPECT_THAT(table.out, StartsWith("t.h5: 163 tokens in 41 documents\n"));
  EXPECT_THAT(table.out, ContainsRegex("\n  skipped +1 file or line that could not be used"));
}

TEST_F(Program, WarnsOfTokensWithoutALoss) {
  folder_.write("a.jsonl", "{\"text\": \"a\"}\n");
  const Ending ending = run("tokenize --tokenizer bytes --format jsonl --output t.h5 a.jsonl");
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.err, "warning: no token of t.h5 has a loss: training on it changes nothing\n");
}

TEST_F(Program, NeedsATokenizerWithAChatTemplate) {
  folder_.write("a.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  const Ending ending = run("tokenize --tokenizer bytes --format chat --seq-len 64 --output t.h5 a.jsonl");
  EXPECT_EQ(ending.status, 2);
  EXPECT_THAT(ending.err, StartsWith("llampi: the tokenizer bytes comes with no chat template"));
}

TEST_F(Program, InspectsHuggingFaceFolders) {
  std::filesystem::create_directory(folder_.path() / "model");
  folder_.write("model/config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "hidden_act": "silu"})");
  const Ending ending = run("inspect model --json");
  ASSERT_EQ(ending.status, 0) << ending.err;
  const auto seen = nlohmann::json::parse(ending.out);
  EXPECT_EQ(seen["kind"], "Hugging Face folder");
  // embedding 256*16; per layer q and o 16*16, k and v 8*16, three of 32*16, two norms; last norm
  EXPECT_EQ(seen["model"]["parameters"],
            256 * 16 + 2 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 32 * 16 + 2 * 16) + 16);
  EXPECT_EQ(seen["model"]["num_key_value_heads"], 1);

  const auto weights = [&] {
    return nlohmann::json::parse(run("inspect model --json").out)["weights_bytes"];
  };
  EXPECT_TRUE(weights().is_null());
  folder_.write("model/model.safetensors.index.json",
                R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
  folder_.write("model/consolidated.safetensors", "not read");
  folder_.write("model/2.safetensors", "12345");
  std::filesystem::create_symlink("gone", folder_.path() / "model/1.safetensors");
  EXPECT_TRUE(weights().is_null()) << "one is missing";
  folder_.write("model/gone", "123");
  EXPECT_EQ(weights(), 8);
  folder_.write("model/model.safetensors", "1234");
  EXPECT_EQ(weights(), 4) << "which is read alone";
}

TEST_F(Program, SaysWhyItCannotInspect) {
  std::filesystem::create_symlink("loop", folder_.path() / "loop");
  expect_refused("inspect loop", "loop cannot be read: Too many levels of symbolic links");
  expect_refused("evaluate --weights loop --data a.h5",
                 "--weights loop cannot be read: Too many levels of symbolic links");
}

// Open MPI has one for all processes without mpirun, which fail if another one removes it while they begin.
TEST_F(Program, AProcessByItselfHasNoSessionDirectory) {
  const Ending ending =
      shell(folder_.path(), "TMPDIR=/proc/none " LLAMPI_PROGRAM " evaluate --weights x --data a.h5");
  EXPECT_EQ(ending.status, 2);
  EXPECT_THAT(ending.err, StartsWith("llampi: --weights x: no such file or folder"));
}

TEST_F(Program, RefusesToInspectWhatIsNone) {
  folder_.write("x.h5", "no HDF5 file");
  for (const char* file : {"x.h5", "missing.h5", "."}) {
    const Ending ending = run(std::string("inspect ") + file);
    EXPECT_EQ(ending.status, 2) << file;
    EXPECT_EQ(ending.complaints().size(), 1U) << ending.err;
    EXPECT_EQ(std::count(ending.err.begin(), ending.err.end(), '\n'), 1) << ending.err;
  }
}

}  // namespace
}  // namespace llampi::test
