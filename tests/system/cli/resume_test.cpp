// SPDX-License-Identifier: Apache-2.0
// A run that continues, as a user meets it: what was changed is said, and what would spoil the run is
// refused; and what a run is warned of when it begins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <nlohmann/json.hpp>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string model_json(int hidden) {
  return R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": )" +
         std::to_string(hidden) +
         R"(, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": true, "hidden_act": "silu", "initializer_range": 0.02})";
}

class Resume : public ::testing::Test {
 protected:
  Resume() {
    folder_.write("model.json", model_json(16));
    std::string text;
    for (int i = 0; i < 100; ++i) text += "the quick brown fox " + std::to_string(i) + "\n";
    folder_.write("text", text);
    expect_done("tokenize --tokenizer bytes --output tokens.h5 text");
  }

  Ending run(const std::string& arguments) const {
    return shell(folder_.path(), std::string(LLAMPI_PROGRAM) + " " + arguments);
  }
  Ending expect_done(const std::string& arguments) const {
    const Ending ending = run(arguments);
    EXPECT_EQ(ending.status, 0) << arguments << "\n" << ending.err;
    return ending;
  }
  /// Two steps with a checkpoint after each, in the folder `dir`, but for these options.
  Ending trained(const std::string& options, const std::string& dir = "run") const {
    configure(dir);
    return run("train --config run.ini " + options);
  }
  void expect_trained(const std::string& options, const std::vector<std::string>& parts,
                      const std::string& dir = "run") const {
    const Ending ending = trained(options, dir);
    EXPECT_EQ(ending.status, 0) << options << "\n" << ending.err;
    for (const auto& part : parts) EXPECT_THAT(ending.out, HasSubstr(part)) << options;
  }
  /// Status 2, and one line of complaint that holds all of `parts`.
  void expect_refused(const std::string& options, const std::vector<std::string>& parts,
                      const std::string& dir = "run") const {
    const Ending ending = trained(options, dir);
    EXPECT_EQ(ending.status, 2) << options << "\n" << ending.out;
    ASSERT_EQ(ending.complaints().size(), 1U) << options << "\n" << ending.err;
    for (const auto& part : parts) EXPECT_THAT(ending.complaints()[0], HasSubstr(part)) << options;
  }
  void configure(const std::string& dir) const {
    folder_.write(
        "run.ini",
        (dir.empty() ? "" : "[run]\ndir = " + dir + "\n") +
            "[model]\nconfig = model.json\n[data]\ntrain = tokens.h5\nseq_len = 16\n[train]\nsteps = 2\n"
            "global_batch = 2\n[optimizer]\nschedule = constant\n[checkpoint]\nevery = 1\nkeep = 9\n");
  }
  fs::path path(const std::string& name) const { return folder_.path() / name; }
  /// As if the run had been stopped before its last step.
  void remove_checkpoint(const std::string& dir, int step) const {
    ASSERT_TRUE(fs::remove(path(dir) / "checkpoints" / ("step-0000000" + std::to_string(step) + ".h5")));
  }
  /// A Hugging Face folder with the weights of the run and, if wished for, the tokenizer of a BPE.
  void export_model(const std::string& more = "") const {
    expect_done("export --checkpoint run --output hf" + more);
  }
  static std::string bpe() { return std::string(LLAMPI_TEST_DATA) + "/../input/sums"; }

  ScratchFolder folder_;
};

TEST_F(Resume, SaysWhatDiffersAndRefusesWhatWouldSpoilTheRun) {
  expect_trained("", {});
  // The folder does not even exist.
  expect_refused("--train.steps=3 --model.weights=other", {"model.weights = random, now other"});
  expect_refused("--train.steps=3 --optimizer.lr=5e-3 --optimizer.beta2=0.99",
                 {"run/checkpoints/step-00000002.h5", "optimizer.lr = 0.0003, now 0.005",
                  "optimizer.beta2 = 0.95, now 0.99", "run.resume_with_changes"});
  expect_refused("--data.seq_len=8", {"data.seq_len = 16, now 8"});
  EXPECT_FALSE(fs::exists(path("run/checkpoints/step-00000003.h5")));

  expect_trained("--train.steps=3 --log.every=2", {"changed since step 2: log.every = 2, was 1\n",
                                                   "changed since step 2: train.steps = 3, was 2\n"});
  // With its changes it goes on, and what it began with stays recorded as it was.
  expect_trained(
      "--train.steps=4 --model.weights=other --optimizer.lr=1e-3 --run.resume_with_changes=true",
      {"model.weights = other, was random; without effect", "changed since step 3: optimizer.lr = 0.001",
       "warning: the schedule is not the one that steps 1 to 3 had: the learning rate was 0.0003 at step 3, "
       "and is 0.001 at step 4"});
  EXPECT_THAT(
      read_text(path("run/config.ini")),
      AllOf(HasSubstr("\nweights = random\n"), HasSubstr("\nlr = 0.001\n"), HasSubstr("\n# data.train: 2")));
  const Ending same = run("train --config run/config.ini --run.resume_with_changes=false --train.steps=5");
  EXPECT_EQ(same.status, 0) << same.err;
  EXPECT_THAT(same.out, Not(HasSubstr("model.weights")));
}

TEST_F(Resume, WithoutAFolderOfItsOwnASecondExperimentIsRefused) {
  expect_trained("", {"run.dir is not given: the run is kept in runs/default\n"}, "");
  folder_.write("other.json", model_json(24));
  expect_refused("--model.config=other.json", {"hidden_size = 24", "use another run.dir"}, "");
  folder_.write("others", std::string(3000, 'x'));
  expect_done("tokenize --tokenizer bytes --output others.h5 others");
  expect_refused("--data.train=others.h5", {"data.train = tokens.h5 (", "now others.h5 (3000 tokens"}, "");
  // The same length does not make the same data.
  std::string text = read_text(path("text"));
  text[1000] = 'X';
  folder_.write("text", text);
  expect_done("tokenize --tokenizer bytes --output changed.h5 text");
  expect_refused("--data.train=changed.h5", {"data.train = tokens.h5 (", "now changed.h5 ("}, "");
  fs::rename(path("tokens.h5"), path("moved.h5"));
  expect_trained("--data.train=moved.h5 --train.steps=3",
                 {"changed since step 2: data.train = moved.h5, was tokens.h5\n"}, "");
}

TEST_F(Resume, TheSameCommandContinuesWhenWhatItBeganFromIsGone) {
  expect_trained("", {});
  export_model();
  const std::string from_folder = "--model.config=hf --model.weights=hf --train.steps=3";
  expect_trained(from_folder, {"step 3/3"}, "b");
  const std::string from_file = "--run.resume=run/checkpoints/step-00000002.h5 --train.steps=4";
  expect_trained(from_file, {"step 4/4"}, "c");
  for (const char* options :
       {"--run.resume=run/checkpoints/step-00000002.h5 --train.steps=3", "--train.steps=4",
        "--run.resume=run/checkpoints/step-00000002.h5 --train.steps=5"})
    expect_trained(options, {"step "}, "mixed");  // a job in between does not make it forget where it began
  expect_trained("--train.steps=3", {"step 3/3"}, "own");
  expect_refused(from_file,
                 {"own has a checkpoint of step 3 from a run that did not start from run.resume = "}, "own");
  remove_checkpoint("b", 3);
  remove_checkpoint("c", 4);
  folder_.write("run/checkpoints/step-00000002.h5", "a part of it");
  expect_trained(from_file,
                 {"run.resume = run/checkpoints/step-00000002.h5 cannot be read (",
                  "resumed from c/checkpoints/step-00000003.h5", "step 4/4"},
                 "c");
  expect_refused(from_file, {"run/checkpoints/step-00000002.h5"}, "d");
  remove_checkpoint("c", 4);
  fs::remove_all(path("hf"));
  fs::create_directory(path("hf"));  // as a disk that is not mounted
  fs::remove_all(path("run"));
  expect_trained(
      from_folder,
      {"model.config = hf no longer exists: the run continues with the model in b/checkpoints/step-00000002.h5",
       "resumed from b/checkpoints/step-00000002.h5", "step 3/3"},
      "b");
  expect_trained(from_file,
                 {"run.resume = run/checkpoints/step-00000002.h5 is gone",
                  "resumed from c/checkpoints/step-00000003.h5", "step 4/4"},
                 "c");
  expect_refused("--run.resume=run/checkpoints/step-00000001.h5", {"no such file"}, "c");
}

TEST_F(Resume, ARunsFolderStandsForItsNewestCheckpoint) {
  expect_trained("--checkpoint.every=1", {});
  const std::string from_run = "--run.resume=run --checkpoint.every=1 --train.steps=3";
  expect_trained(from_run, {"resumed from run/checkpoints/step-00000002.h5", "step 3/3"}, "b");
  expect_trained(from_run + " --train.steps=4", {"resumed from b/checkpoints/step-00000003.h5", "step 4/4"},
                 "b");
  folder_.write("run/checkpoints/step-00000002.h5", "a part of it");
  expect_trained(from_run,
                 {"skipped a checkpoint: run/checkpoints/step-00000002.h5",
                  "resumed from run/checkpoints/step-00000001.h5", "step 3/3"},
                 "c");
  folder_.write("run/checkpoints/step-00000001.h5", "likewise");
  expect_refused(from_run, {"run/checkpoints/step-00000002.h5"}, "d");
  fs::remove_all(path("run/checkpoints"));
  expect_refused(from_run, {"its newest checkpoint, run/checkpoints/step-00000002.h5 of step 2", "is gone"},
                 "d");
  fs::create_directory(path("no-run"));
  expect_refused("--run.resume=no-run", {"this folder holds no checkpoints of a run"}, "d");
  remove_checkpoint("c", 3);
  expect_trained(from_run,
                 {"run.resume = run has no checkpoint", "resumed from c/checkpoints/step-00000002.h5"}, "c");
}

TEST_F(Resume, ABranchGoesOnAsItselfHoweverFarTheOtherRunIsByNow) {
  expect_trained("--train.steps=1", {});
  const std::string from_run = "--run.resume=run --train.steps=4";
  expect_trained(from_run, {"resumed from run/checkpoints/step-00000001.h5", "step 4/4"}, "b");
  expect_trained("--run.resume=run --train.steps=3 --checkpoint.content=weights", {"step 3/3"}, "killed");
  remove_checkpoint("b", 4);
  expect_trained("--train.steps=6", {"resumed from run/checkpoints/step-00000001.h5"});
  expect_trained(
      from_run,
      {"run.resume = run is at step 6; the run continues from its own newest checkpoint in b/checkpoints, of step 3",
       "resumed from b/checkpoints/step-00000003.h5", "step 4/4"},
      "b");
  expect_trained(from_run, {"run already complete: b/checkpoints/step-00000004.h5 is at step 4 of 4\n"}, "b");
  // As if its newest had been lost, at a step that the other run has, too.
  fs::rename(path("b/checkpoints/step-00000004.h5"), path("aside"));
  expect_trained("--run.resume=run --train.steps=3", {"run already complete: b/checkpoints/step-00000003.h5"},
                 "b");
  fs::rename(path("aside"), path("b/checkpoints/step-00000004.h5"));
  // Its last files have weights only, the one before them is its own.
  expect_trained(from_run + " --train.steps=5 --checkpoint.content=weights",
                 {"resumed from b/checkpoints/step-00000004.h5"}, "b");
  expect_trained(
      from_run + " --train.steps=6",
      {"b/checkpoints/step-00000005.h5 has weights only; the run continues from b/checkpoints/step-00000004.h5",
       "resumed from b/checkpoints/step-00000004.h5"},
      "b");
  // Without an own one it is one of the other run, but none from after the branch.
  expect_trained(from_run,
                 {"killed/checkpoints/step-00000003.h5 has weights only; the run continues from "
                  "run/checkpoints/step-00000001.h5"},
                 "killed");
  expect_refused(
      "--run.resume=b/checkpoints/step-00000006.h5 --train.steps=9",
      {"run has a checkpoint of step 6 from a run that did not start from run.resume = b/checkpoints/step-00000006.h5 (step 6)"});
}

TEST_F(Resume, ACheckpointOfAnotherRunDoesNotReplaceAnEarlierOne) {
  expect_trained("--train.steps=3", {});
  expect_refused(
      "--run.resume=run/checkpoints/step-00000002.h5 --train.steps=4",
      {"run.resume = run/checkpoints/step-00000002.h5, but run has a later checkpoint, of step 3; move that away"});
  expect_trained("", {"step 2/2"}, "own");
  expect_refused("--run.resume=run/checkpoints/step-00000003.h5 --train.steps=4",
                 {"own has a checkpoint of step 2 from a run that did not start from run.resume = "}, "own");
  // Its own, from elsewhere.
  fs::rename(path("run/checkpoints/step-00000003.h5"), path("moved.h5"));
  expect_refused("--run.resume=moved.h5 --train.steps=4",
                 {"if this run saved moved.h5, move it to run/checkpoints"});
}

TEST_F(Resume, ACheckpointThatNoRunSavedIsNotContinued) {
  expect_trained("", {});
  export_model();
  fs::create_directories(path("b/checkpoints"));
  expect_done("import --weights hf --output b/checkpoints/step-00000000.h5");
  const std::vector<std::string> parts = {"b/checkpoints/step-00000000.h5 has seq_len = 0", "model.weights"};
  expect_refused("", parts, "b");
  expect_refused("--run.resume=b", parts, "c");
  expect_refused("--run.resume=b/checkpoints/step-00000000.h5", parts, "c");
  const Ending check = run("check --config run.ini --run.dir=b");
  EXPECT_EQ(check.status, 2) << check.err;
  EXPECT_THAT(check.err, HasSubstr(parts[0]));
}

TEST_F(Resume, ACheckpointLeftInTheFallbackFolderStartsNoNewRun) {
  expect_trained("", {});
  const fs::path elsewhere = path("elsewhere") / fs::canonical(path("run")).relative_path();
  fs::create_directories(elsewhere);
  fs::rename(path("run/checkpoints"), elsewhere / "checkpoints");
  const std::string fallback = "--checkpoint.fallback_dir=elsewhere", longer = fallback + " --train.steps=3";
  expect_trained(longer, {"resumed from elsewhere/", "step 3/3"});
  fs::remove_all(path("run"));
  expect_refused(
      longer,
      {"run.dir = run has no run, and checkpoint.fallback_dir has a checkpoint of one that had this run.dir (elsewhere/",
       "; move that to run/checkpoints to continue from it, or delete it to begin again"});
  EXPECT_FALSE(fs::exists(path("run")));
  expect_trained("", {}, "other");
  expect_refused(longer + " --run.resume=other",
                 {"run.dir = run has no run, and checkpoint.fallback_dir has a checkpoint"});
  // A run without its config.ini is there.
  fs::create_directories(path("run/checkpoints"));
  folder_.write("run/history.jsonl",
                R"({"event": "checkpoint", "time": 1, "step": 1, "file": "checkpoints/step-00000001.h5"})"
                "\n");
  expect_trained(fallback + " --train.steps=4", {"resumed from elsewhere/", "step 4/4"});
}

TEST_F(Resume, ARunThatWasMovedTogetherWithItsOriginGoesOn) {
  fs::create_directory(path("one"));
  for (const char* name : {"model.json", "tokens.h5"}) fs::rename(path(name), path("one") / name);
  const auto go_on = [&](const std::string& folder, const std::string& options) {
    configure("run");
    fs::copy_file(path("run.ini"), path(folder) / "run.ini", fs::copy_options::overwrite_existing);
    const Ending ending = shell(path(folder), LLAMPI_PROGRAM " train --config run.ini " + options);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out;
  };
  go_on("one", "");
  const std::string branch = "--run.dir=b --run.resume=run --train.steps=3";
  go_on("one", branch);
  fs::rename(path("one"), path("two"));
  EXPECT_THAT(go_on("two", branch + " --checkpoint.keep=8"),
              HasSubstr("run already complete: b/checkpoints/step-00000003.h5"));
}

TEST_F(Resume, OfARunsFolderTheNewestCheckpointWithAllStateIsTaken) {
  expect_trained("--train.steps=1", {});
  expect_trained("--checkpoint.content=weights", {});
  expect_trained("--run.resume=run --train.steps=3",
                 {"run/checkpoints/step-00000002.h5 has weights only; the run continues from "
                  "run/checkpoints/step-00000001.h5",
                  "resumed from run/checkpoints/step-00000001.h5", "step 3/3"},
                 "b");
}

TEST_F(Resume, SaysWhatIsDone) {
  expect_trained("", {});
  expect_trained("", {"run already complete: run/checkpoints/step-00000002.h5 is at step 2 of 2\n"});
  expect_trained("--train.steps=1",
                 {"warning: nothing to do: run/checkpoints/step-00000002.h5 is at step 2, and the "
                  "run ends at step 1; increase train.steps"});
}

TEST_F(Resume, WhoMovesTheCheckpointsAwayBeginsAnew) {
  expect_trained("", {});
  fs::rename(path("run/checkpoints"), path("moved"));
  expect_trained("", {"step 1/2", "step 2/2"});
  EXPECT_TRUE(fs::exists(path("run/checkpoints/step-00000002.h5")));
}

TEST_F(Resume, ABrokenAndAnOldConfigurationInACheckpointCanBeContinued) {
  expect_trained("", {});
  const hid_t file = H5Fopen(path("run/checkpoints/step-00000002.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t attribute = H5Aopen(file, "run_config", H5P_DEFAULT), type = H5Aget_type(attribute);
  ASSERT_FALSE(H5Tis_variable_str(type));
  std::string text(H5Tget_size(type), '\0');
  ASSERT_GE(H5Aread(attribute, type, text.data()), 0);
  // A key that there is no more, one that was not there yet, and a line that is none.
  const auto replace = [&](const std::string& from, std::string to) {
    ASSERT_NE(text.find(from), std::string::npos) << from;
    to.resize(from.size(), ' ');
    text.replace(text.find(from), from.size(), to);
  };
  replace("\nbeta2 = 0.95\n", "\nof_old = 1\n");
  replace("\nstripes = 0\n", "\nbroken\n");
  ASSERT_GE(H5Awrite(attribute, type, text.data()), 0);
  H5Aclose(attribute);
  ASSERT_GE(H5Adelete(file, "checksum_block_elements"), 0);  // it was changed on purpose
  ASSERT_GE(H5Fclose(file), 0);
  expect_done("evaluate --weights run --data tokens.h5");
  expect_refused("--train.steps=3 --optimizer.beta2=0.99", {"optimizer.beta2 = 0.95, now 0.99"});
  expect_trained("--train.steps=3", {"step 3/3"});
}

TEST_F(Resume, RowsOfConversationsAreNotCut) {
  const hid_t file = H5Fopen(path("tokens.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  const hid_t space = H5Screate(H5S_SCALAR);
  for (const auto& [name, value] : {std::pair("seq_len", std::int64_t{16}), {"padding_tokens", 5}}) {
    const hid_t attribute = H5Acreate2(file, name, H5T_NATIVE_INT64, space, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(H5Awrite(attribute, H5T_NATIVE_INT64, &value), 0);
    H5Aclose(attribute);
  }
  H5Sclose(space);
  ASSERT_GE(H5Fclose(file), 0);
  expect_trained("", {" tokens and 5 of padding, "});
  expect_refused(
      "--data.seq_len=8",
      {"tokens.h5 has sequences of 16 tokens, which data.seq_len = 8 would cut; use data.seq_len = 16"},
      "other");
  expect_refused("--data.eval=tokens.h5 --data.seq_len=24", {"tokens.h5 has sequences of 16 tokens"},
                 "other");
  const Ending evaluated = run("evaluate --weights run --data tokens.h5 --seq-len 24");
  EXPECT_EQ(evaluated.status, 2);
  EXPECT_THAT(evaluated.err, HasSubstr("has sequences of 16 tokens, which --seq-len = 24 would cut"));
}

TEST_F(Resume, DataOfAnotherTokenizerAreNotTrainedOn) {
  expect_trained("", {});
  export_model(" --tokenizer " + bpe());
  expect_done("tokenize --tokenizer hf --output bpe.h5 text");
  expect_refused("--model.config=hf --model.weights=hf",
                 {"data.train = tokens.h5 was made with the tokenizer bytes, but model.weights = hf has "
                  "tokenizer.json (BPE,"},
                 "b");
  // A checkpoint, too, that was trained on bytes.
  expect_refused(
      "--model.weights=run --data.train=bpe.h5",
      {"data.train = bpe.h5 was made with the tokenizer tokenizer.json (BPE,", "step-00000002.h5 has bytes"},
      "b");
  expect_refused("--data.eval=bpe.h5",
                 {"data.eval = bpe.h5 was made with the tokenizer tokenizer.json (BPE,",
                  "data.train = tokens.h5 has bytes"},
                 "b");
  EXPECT_FALSE(fs::exists(path("b")));
  // Weights that begin at random may learn any language.
  expect_trained(
      "--model.config=hf",
      {"warning: data.train = tokens.h5 was made with the tokenizer bytes, but model.config = hf has "}, "b");
  const Ending right = trained("--model.config=hf --model.weights=hf --data.train=bpe.h5", "c");
  EXPECT_EQ(right.status, 0) << right.err;
  EXPECT_THAT(right.out, Not(HasSubstr("tokenizer")));
  // One of the same name and size in which two ids are exchanged.
  std::string json = read_text(path("hf/tokenizer.json"));
  for (const auto& [from, to] : {std::pair{"\"Ho\": 266", "\"Ho\": 283"}, {"\"co\": 283", "\"co\": 266"}}) {
    ASSERT_NE(json.find(from), std::string::npos) << from;
    json.replace(json.find(from), std::string(from).size(), to);
  }
  folder_.write("hf/tokenizer.json", json);
  expect_refused("--model.config=hf --model.weights=hf --data.train=bpe.h5",
                 {"data.train = bpe.h5 was made with the tokenizer tokenizer.json (BPE,",
                  "but model.weights = hf has another with as many ids: their ids mean different texts"},
                 "d");
  // One whose special token has another name.
  auto renamed = nlohmann::json::parse(read_text(bpe() + "/tokenizer.json"));
  renamed["added_tokens"].back()["content"] = "<|renamed|>";
  renamed["added_tokens"].back()["special"] = false;
  folder_.write("hf/tokenizer.json", renamed.dump());
  expect_trained("--model.config=hf --model.weights=hf --data.train=bpe.h5",
                 {"warning: data.train = bpe.h5 was made with the tokenizer tokenizer.json (BPE,",
                  "in that of model.weights = hf some ids mean other texts"},
                 "d");
  // Nor are data evaluated on, of which the loss means nothing.
  const Ending evaluated = run("evaluate --weights run --data bpe.h5 --seq-len 16");
  EXPECT_EQ(evaluated.status, 2);
  EXPECT_THAT(evaluated.err,
              AllOf(HasSubstr("--data bpe.h5 was made with the tokenizer tokenizer.json (BPE,"),
                    HasSubstr("step-00000002.h5 has bytes")));
}

TEST_F(Resume, ALearningRateOfZeroIsSaid) {
  expect_trained("--train.steps=1 --optimizer.schedule=cosine",
                 {"warning: the only step to do has learning rate 0, so nothing is trained: set "
                  "optimizer.min_lr"});
  const Ending none = trained("--optimizer.schedule=linear", "b");  // its last step has it, as asked
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_THAT(none.out, Not(HasSubstr("learning rate")));
}

/// What a user does to save room: by HDF5's own tool.
TEST_F(Resume, GoesOnFromARepackedFileWithTheSameBits) {
  if (shell(folder_.path(), "command -v h5repack && command -v h5diff && command -v h5dump").status != 0)
    GTEST_SKIP() << "no h5repack or h5diff (Debian: hdf5-tools)";
  expect_trained("", {});
  for (const std::string io : {"direct", "hdf5"}) {
    const std::string dir = "repacked-" + io, first = dir + "/checkpoints/step-00000001.h5";
    fs::copy(path("run"), path(dir), fs::copy_options::recursive);
    remove_checkpoint(dir, 2);
    ASSERT_EQ(
        shell(folder_.path(), "h5repack -f SHUF -f GZIP=6 " + first + " packed && mv packed " + first).status,
        0);
    EXPECT_THAT(shell(folder_.path(), "h5dump -p -H " + first).out,
                AllOf(HasSubstr("CHUNKED"), HasSubstr("DEFLATE")));
    const Ending ending = trained("--checkpoint.io=" + io, dir);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_THAT(ending.out, HasSubstr("resumed from " + first));
    EXPECT_EQ(ending.out.find("is chunked, compressed or converted") != std::string::npos, io == "direct")
        << ending.out;
    for (const std::string group : {"model", "optimizer"}) {
      EXPECT_EQ(shell(folder_.path(), "h5diff " + dir +
                                          "/checkpoints/step-00000002.h5 run/checkpoints/step-00000002.h5 /" +
                                          group + " /" + group)
                    .status,
                0);
    }
    expect_done("inspect --verify " + first);
    expect_done("export --checkpoint " + first + " --output hf-" + io);
  }
}

}  // namespace
}  // namespace llampi::test
