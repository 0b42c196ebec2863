// SPDX-License-Identifier: Apache-2.0
// `llampi train` on two ranks: a user's mistakes, each with status 2 and one sentence, and a run that is
// stopped.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <chrono>

#include "support/shell.hpp"

namespace llampi::test {
namespace {

using ::testing::HasSubstr;

std::string model_json(int vocabulary) {
  return R"({"model_type": "llama", "vocab_size": )" + std::to_string(vocabulary) +
         R"(, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": true, "hidden_act": "silu", "initializer_range": 0.02})";
}

class Train : public ::testing::Test {
 protected:
  Train() {
    folder_.write("model.json", model_json(256));
    std::string text;
    for (int i = 0; i < 100; ++i) text += "the quick brown fox " + std::to_string(i) + "\n";
    tokenize("tokens.h5", "text", text);
  }

  /// Of the bytes of a file that is written for it.
  void tokenize(const std::string& output, const std::string& file, const std::string& text) const {
    folder_.write(file, text);
    const Ending ending =
        shell(folder_.path(),
              std::string(LLAMPI_PROGRAM) + " tokenize --tokenizer bytes --output " + output + " " + file);
    EXPECT_EQ(ending.status, 0) << ending.err;
  }

  /// Two steps on two ranks, but for these options.
  Ending train(const std::string& options) const {
    folder_.write("run.ini",
                  "[run]\ndir = run\n[model]\nconfig = model.json\n[data]\ntrain = tokens.h5\nseq_len = 16\n"
                  "[train]\nsteps = 2\nmicro_batch = 1\nglobal_batch = 4\n");
    return shell(folder_.path(),
                 std::string(MPIRUN) + " -n 2 " + LLAMPI_PROGRAM + " train --config run.ini " + options);
  }

  /// Status 2, and one line of complaint that holds all of `parts`.
  void expect_refused(const std::string& options, const std::vector<std::string>& parts) const {
    const Ending ending = train(options);
    EXPECT_EQ(ending.status, 2) << ending.err;
    ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
    for (const auto& part : parts) EXPECT_THAT(ending.complaints()[0], HasSubstr(part));
  }

  ScratchFolder folder_;
};

TEST_F(Train, Succeeds) {
  const Ending ending = train("");
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "");
  EXPECT_THAT(ending.out, HasSubstr("step 2/2"));
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "run/checkpoints/step-00000002.h5"));
  // The resolved configuration is one.
  const Ending again = shell(
      folder_.path(), std::string(MPIRUN) + " -n 2 " + LLAMPI_PROGRAM + " train --config run/config.ini");
  EXPECT_EQ(again.status, 0) << again.err;
}

TEST_F(Train, RefusesAMissingModelConfig) { expect_refused("--model.config=none.json", {"none.json"}); }

TEST_F(Train, RefusesAMissingConfigurationFile) {
  const Ending ending =
      shell(folder_.path(), std::string(MPIRUN) + " -n 2 " + LLAMPI_PROGRAM + " train --config none.ini");
  EXPECT_EQ(ending.status, 2);
  ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
  EXPECT_EQ(ending.complaints()[0],
            "llampi: the configuration file none.ini cannot be read: No such file or directory");
}

TEST_F(Train, RefusesAMalformedModelConfig) {
  folder_.write("torn.json", model_json(256).substr(0, 50));
  expect_refused("--model.config=torn.json", {"torn.json"});
}

TEST_F(Train, RefusesAnUnknownKey) {
  expect_refused("--train.step=5", {"--train.step ", "did you mean --train.steps?"});
}

TEST_F(Train, RefusesAnUnknownVariable) {
  const Ending ending = shell(folder_.path(), std::string("LLAMPI_RUN_SEEDS=1 ") + MPIRUN + " -n 2 " +
                                                  LLAMPI_PROGRAM + " train --train.steps=1");
  EXPECT_EQ(ending.status, 2);
  ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
  EXPECT_THAT(ending.complaints()[0], HasSubstr("did you mean LLAMPI_RUN_SEED?"));
}

TEST_F(Train, RefusesABatchThatDoesNotDivide) {
  expect_refused("--train.global_batch=5", {"global_batch", "5", "2"});
}

TEST_F(Train, RefusesTooLittleData) { expect_refused("--train.global_batch=4000", {"4000", "samples"}); }

TEST_F(Train, RefusesMissingData) { expect_refused("--data.train=none.h5", {"none.h5"}); }

TEST_F(Train, TrainsOnSeveralTokenFiles) {
  tokenize("more.h5", "more", std::string(330, 'x'));
  const Ending two = train("--data.train=tokens.h5,more.h5:2.5");
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_THAT(two.out,
              HasSubstr("\ndata: 2,620 tokens in 2 files, 193 samples of 16 tokens, 48 steps per epoch"));
  EXPECT_THAT(two.out, HasSubstr("\ndata: more.h5: 20 samples times 2.5, 25.9 % of an epoch\n"));
  const auto losses = [](const Ending& run) {
    std::vector<std::string> found;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("step ")) found.push_back(line.substr(0, line.find("  ", line.find("grad norm"))));
    return found;
  };
  const Ending one =
      shell(folder_.path(), std::string(LLAMPI_PROGRAM) +
                                " train --config run.ini --data.train='tokens.h5, more.h5:2.5' "
                                "--run.dir=one");
  EXPECT_EQ(losses(two).size(), 2U);
  EXPECT_EQ(losses(one), losses(two));
  const auto notes = "(2620 tokens in 2 documents of 2 files, crc32 ";
  expect_refused("--data.train=tokens.h5,more.h5:2",
                 {"data.train = tokens.h5,more.h5:2.5 " + std::string(notes),
                  "now tokens.h5,more.h5:2 " + std::string(notes)});
  expect_refused("--data.train=tokens.h5,,more.h5 --run.dir=new",
                 {"data.train = tokens.h5,,more.h5: a name between commas is empty"});
  expect_refused("--data.train=tokens.h5,none.h5:2 --run.dir=new", {"data.train = none.h5: no such file"});
}

TEST_F(Train, TrainsOnAFolderOfManyTokenFiles) {
  const Ending run = shell(
      folder_.path(),
      "mkdir shards; for i in $(seq 60); do cp tokens.h5 shards/$i.h5; done; ulimit -Sn 50; " LLAMPI_PROGRAM
      " train --model.config=model.json --data.train=shards:2 --data.seq_len=16 --train.steps=1 "
      "--train.global_batch=1 --run.dir=run");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("\ndata: 137,400 tokens in 60 files, 17,160 samples of 16 tokens"));
  EXPECT_THAT(run.out, ::testing::Not(HasSubstr("% of an epoch")));
}

TEST_F(Train, EvaluatesOnSeveralTokenFiles) {
  tokenize("more.h5", "more", std::string(330, 'x'));
  const Ending run = train("--data.eval=tokens.h5,more.h5 --train.eval_every=2 --log.tensorboard=true");
  EXPECT_EQ(run.status, 0) << run.err;
  const auto losses = [&](const std::string& of) {  // of one line: loss and labels
    double loss = 0;
    long long labels = 0;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("step 2  eval loss ") || !line.ends_with(of)) continue;
      std::erase(line, ',');
      EXPECT_EQ(std::sscanf(line.c_str(), "step 2  eval loss %lf  perplexity %*f  over %lld", &loss, &labels),
                2);
    }
    return std::pair(loss, labels);
  };
  EXPECT_THAT(run.out, HasSubstr("\nwarning: tokens.h5 is in data.train and in data.eval: "));
  EXPECT_THAT(run.out, ::testing::Not(HasSubstr("more.h5 is in data.train")));
  const auto [first, first_labels] = losses(" of tokens.h5");
  const auto [second, second_labels] = losses(" of more.h5");
  const auto [all, all_labels] = losses(" of 2 files");
  EXPECT_EQ(first_labels, 2288);
  EXPECT_EQ(second_labels, 320);
  EXPECT_EQ(all_labels, 2608);
  EXPECT_NEAR(all, (first * 2288 + second * 320) / 2608, 1e-4);
  const Ending metrics = shell(folder_.path(), "tail -n 1 run/metrics.jsonl");
  EXPECT_THAT(metrics.out,
              ::testing::MatchesRegex(
                  "\\{\"step\": 2, \"eval_loss\": [0-9.]+, \"eval_losses\": \\{\"tokens.h5\": [0-9.]+, "
                  "\"more.h5\": [0-9.]+\\}, \"time\": [0-9.]+\\}\n"));
  // As the command says it.
  const Ending alone = shell(folder_.path(), LLAMPI_PROGRAM " evaluate --weights run --data more.h5 --json");
  EXPECT_THAT(alone.out, HasSubstr("\"tokens\":320")) << alone.err;
  EXPECT_NEAR(std::strtod(alone.out.c_str() + alone.out.find(':') + 1, nullptr), second, 1e-4) << alone.out;
  expect_refused("--data.eval=tokens.h5,more.h5:2 --train.eval_every=2",
                 {"data.eval = tokens.h5,more.h5:2: an evaluation reads each file once; remove \":2\""});
  expect_refused("--data.eval=tokens.h5,none.h5 --train.eval_every=2", {"data.eval = none.h5: no such file"});
}

TEST_F(Train, RefusesATokenFileOfALargerVocabulary) {
  folder_.write("small.json", model_json(100));
  expect_refused("--model.config=small.json", {"tokens.h5", "ids up to ", "100"});
}

TEST_F(Train, RefusesATokenOutsideTheVocabulary) {
  // A file of another program, which does not say how large its vocabulary is.
  const hid_t file = H5Fopen((folder_.path() / "tokens.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  ASSERT_GE(H5Adelete(file, "vocab_size"), 0);
  ASSERT_GE(H5Adelete(file, "largest_id"), 0);
  ASSERT_GE(H5Fclose(file), 0);
  folder_.write("small.json", model_json(100));
  expect_refused("--model.config=small.json", {"tokens.h5", "100"});
}

TEST_F(Train, RefusesAFileOfAnotherType) {
  expect_refused("--data.train=text", {"text"});
  expect_refused("--data.train=model.json", {"model.json"});
}

TEST_F(Train, RefusesATruncatedTokenFile) {
  const std::string whole = read_text(folder_.path() / "tokens.h5");
  folder_.write("torn.h5", whole.substr(0, whole.size() / 2));
  expect_refused("--data.train=torn.h5", {"torn.h5"});
}

TEST_F(Train, RefusesAFolderThatCannotBeWritten) {
  expect_refused("--run.dir=text/run", {"text/run: Not a directory; choose another run.dir"});
  expect_refused("--checkpoint.fallback_dir=text/more",
                 {"checkpoint.fallback_dir = text/more cannot be written"});
}

TEST_F(Train, RefusesWhatIsNoCheckpoint) {
  expect_refused("--model.weights=tokens.h5", {"tokens.h5"});
  expect_refused("--run.resume=tokens.h5", {"tokens.h5"});
}

TEST_F(Train, RefusesATruncatedCheckpoint) {
  ASSERT_EQ(train("").status, 0);
  const std::string whole = read_text(folder_.path() / "run/checkpoints/step-00000002.h5");
  folder_.write("torn.h5", whole.substr(0, whole.size() / 2));
  expect_refused("--run.dir=other --run.resume=torn.h5", {"torn.h5"});
  expect_refused("--run.dir=other --model.weights=torn.h5", {"torn.h5"});
}

TEST_F(Train, RefusesBatchesThatNoNumberHolds) {
  expect_refused("--train.micro_batch=5", {"global_batch", "5"});
  expect_refused("--train.micro_batch=1000000000", {"global_batch", "1000000000"});
  for (const char* batch : {"4611686018427387904", "9223372036854775807"}) {
    expect_refused(std::string("--train.micro_batch=") + batch, {"use auto or a number of sequences", batch});
    expect_refused(std::string("--train.global_batch=") + batch, {"out of range", batch});
  }
}

TEST_F(Train, AnEvaluationWithoutValidLabelsIsSaid) {
  ASSERT_EQ(train("").status, 0);
  std::string inputs;  // one token per document: no label belongs to its input's document
  for (int i = 0; i < 9; ++i) inputs.append(" ").append(folder_.write("input" + std::to_string(i), "x"));
  ASSERT_EQ(
      shell(folder_.path(), LLAMPI_PROGRAM " tokenize --tokenizer bytes --output singles.h5" + inputs).status,
      0);
  const Ending ending =
      shell(folder_.path(), LLAMPI_PROGRAM
            " evaluate --weights run/checkpoints/step-00000002.h5 --data singles.h5 --seq-len 4 --json");
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.out, "{\"loss\":null,\"perplexity\":null,\"tokens\":0}\n");
  EXPECT_THAT(ending.err, HasSubstr("warning: singles.h5 has no valid labels"));
}

// The first job, killed say, still has the folder; the second one begins when it has ended, and a third one
// is told to stop while it waits.
TEST_F(Train, WaitsForTheJobThatHasItsFolderAndSaysWhichThatIs) {
  train("");  // makes run.ini
  const std::string job = std::string(MPIRUN) + " -n 2 " + LLAMPI_PROGRAM +
                          " train --config run.ini --run.dir=busy --log.every=100000 --train.steps=1000000";
  const Ending ending =
      shell(folder_.path(), "SLURM_JOB_ID=4711 " + job + " >first.log 2>&1 & first=$!\n" +
                                "until [ -e busy/metrics.jsonl ]; do sleep 0.02; done\n" + job +
                                " >second.log 2>&1 & second=$!\n" +
                                "until grep -q 'waiting up to' second.log; do sleep 0.02; done\n" + job +
                                " >third.log 2>&1 & third=$!\n"
                                "until grep -q 'waiting up to' third.log; do sleep 0.02; done\n"
                                "kill -USR1 $third; wait $third; echo third $?; cat third.log\n"
                                "touch busy/stop; wait $first; echo first $?\n"
                                "until grep -q 'resumed from' second.log; do sleep 0.02; done\n"
                                "touch busy/stop; wait $second; echo second $?; cat second.log");
  EXPECT_THAT(ending.out, HasSubstr("third 75\n"));
  EXPECT_THAT(ending.out,
              HasSubstr("\nstopped while waiting for busy, which is as it was; run the same command "
                        "again to continue\n"));
  EXPECT_THAT(ending.out, HasSubstr("first 75\n"));
  EXPECT_THAT(ending.out, HasSubstr("second 75\n"));
  EXPECT_THAT(ending.out,
              ::testing::ContainsRegex(
                  "\nbusy is in use by another job \\(Slurm job 4711, process [0-9]+ on [^ ]+, since "
                  "[0-9TZ:-]+\\); waiting up to 121 s for it to finish, then giving up\n"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "busy/running.json"));
}

// The signal goes to mpirun, as a user or a scheduler sends it.
TEST_F(Train, StopsAtASignalToMpirunAndContinuesToTheEnd) {
  const std::string command = std::string(MPIRUN) + " -n 2 " + LLAMPI_PROGRAM +
                              " train --model.config=model.json --data.train=tokens.h5 --run.dir=run"
                              " --data.seq_len=16 --train.global_batch=2 --train.steps=3000 --log.every=500";
  const Ending stopped = shell(folder_.path(), command +
                                                   " & job=$!;"
                                                   " until grep -q '\"step\": 5,' run/metrics.jsonl; do"
                                                   " kill -0 $job || exit 1; sleep 0.02; done 2>/dev/null;"
                                                   " kill -USR1 $job; wait $job");
  EXPECT_EQ(stopped.status, 75) << stopped.err;
  EXPECT_THAT(stopped.complaints(), ::testing::IsEmpty());
  EXPECT_THAT(stopped.out, HasSubstr("run the same command again to continue"));
  EXPECT_THAT(stopped.out, ::testing::Not(HasSubstr("step 3000/3000")));

  const Ending ended = shell(folder_.path(), command);
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("resumed from run/checkpoints/step-"));
  EXPECT_THAT(ended.out, HasSubstr("step 3000/3000"));
  const std::string metrics = read_text(folder_.path() / "run/metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 3000);
}

// Ranks that can no longer do what all must do: the job ends, with the name of the rank.
class TrainWatched : public Train {
 protected:
  /// Sends a signal to a rank of three, 1 unless said otherwise, in the middle of a run that would take much longer, a second after its first
  /// steps: its first heartbeats, which come every 0.2 seconds, have been heard.
  Ending end_rank(const std::string& signal, int rank = 1) const {
    return shell(folder_.path(),
                 std::string(MPIRUN) + " -n 3 " + LLAMPI_PROGRAM +
                     " train --model.config=model.json --data.train=tokens.h5 --run.dir=run"
                     " --data.seq_len=16 --train.global_batch=3 --train.steps=100000000 --log.every=1000000"
                     " --run.watchdog_seconds=2 & job=$!;"
                     " until grep -q '\"step\": 100,' run/metrics.jsonl; do"
                     " kill -0 $job || exit 99; sleep 0.02; done 2>/dev/null; sleep 1;"
                     " for rank in $(cat /proc/$job/task/$job/children); do"
                     " tr '\\0' '\\n' </proc/$rank/environ | grep -qx OMPI_COMM_WORLD_RANK=" +
                     std::to_string(rank) + " && kill -" + signal + " $rank; done; wait $job");
  }
};

TEST_F(TrainWatched, NamesARankThatIsStopped) {
  const Ending begun = shell(folder_.path(), LLAMPI_PROGRAM
                             " train --model.config=model.json --data.train=tokens.h5 --run.dir=run"
                             " --data.seq_len=16 --train.global_batch=3 --train.steps=1");
  EXPECT_EQ(begun.status, 0) << begun.err;
  const Ending ending = end_rank("STOP");
  EXPECT_EQ(ending.status, 1) << ending.err;
  ASSERT_EQ(ending.complaints().size(), 1U) << ending.err;
  EXPECT_THAT(ending.complaints()[0],
              ::testing::ContainsRegex("llampi: watchdog: rank 1 on .+ sent no heartbeat for [0-9.]+ s"));
  EXPECT_THAT(ending.err,
              ::testing::ContainsRegex("\n  rank 1 on .+: .*step [0-9]+.*; its process is stopped"));
  EXPECT_THAT(ending.err,
              ::testing::ContainsRegex("\n  ranks? [02].*: step [0-9]+.*: waiting for other ranks in "));
  EXPECT_THAT(ending.err, HasSubstr("\n  the same command continues from the checkpoint of step 1\n"));
  for (const char* record : {"run/flight/rank-00000.json", "run/flight/rank-00002.json"})
    EXPECT_THAT(read_text(folder_.path() / record), HasSubstr("\"operations\""));
}

TEST_F(TrainWatched, EndsWhenARankIsKilled) {
  const auto start = std::chrono::steady_clock::now();
  const Ending ending = end_rank("KILL");
  EXPECT_NE(ending.status, 0) << ending.err;
  EXPECT_LT(std::chrono::steady_clock::now() - start,
            std::chrono::seconds(60));  // it would not end by itself
  // By a rank that saw it, or by mpirun, which here leaves them no time to say so.
  EXPECT_THAT(ending.err, ::testing::ContainsRegex("rank 1 (with PID [0-9]+ )?on "));
}

// What SIGTERM has written is removed when there was time for a clean stop.
TEST_F(TrainWatched, LeavesNoRecordBehindAfterACleanStop) {
  const Ending ending = end_rank("TERM", 0);
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_THAT(ending.out, HasSubstr("mpirun's own exit status may be 1 instead of 75"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run/flight"));
}

// A pipe takes some hundred lines, and then holds up whoever writes to it.
TEST_F(Train, TellsThatItsOutputIsNotRead) {
  const Ending ending =
      shell(folder_.path(), "mkfifo pipe; exec 3<>pipe; " LLAMPI_PROGRAM
                            " train --model.config=model.json --data.train=tokens.h5 --run.dir=run"
                            " --data.seq_len=16 --train.global_batch=1 --train.steps=1000000"
                            " --log.every=1 --run.watchdog_seconds=1 >pipe");
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_THAT(ending.err,
              ::testing::ContainsRegex("watchdog: no progress for [0-9.]+ s\n  rank 0: step [0-9]+: "
                                       "printing the step \\(is the output read\\?\\), after "));
}

// A signal in the middle of a run that would take much longer, and once: a second SIGINT would end the program at once.
TEST_F(Train, StopsAtASignalAndContinues) {
  for (const char* signal : {"USR1", "TERM", "INT", "HUP"}) {
    const Ending ending = shell(
        folder_.path(),
        std::string("rm -rf run; env --default-signal=HUP,INT ") + LLAMPI_PROGRAM +
            " train --model.config=model.json --data.train=tokens.h5 --run.dir=run"
            " --data.seq_len=16 --train.global_batch=1 --train.steps=100000000"
            " --log.every=1000000 & until test \"$(wc -l <run/metrics.jsonl)\" -gt 20; do sleep 0.05; done "
            "2>waiting; kill -" +
            signal + " $!; wait $!");
    EXPECT_EQ(ending.status, 75) << signal << ": " << ending.err;
    EXPECT_THAT(ending.complaints(), ::testing::IsEmpty());
    EXPECT_FALSE(std::filesystem::is_empty(folder_.path() / "run/checkpoints")) << signal;
    EXPECT_THAT(ending.out, HasSubstr("warning: checkpoint.every = 0: nothing is saved for about "))
        << signal;
  }
}

// Which may take minutes, of reading weights above all.
TEST_F(Train, StopsBeforeItsFirstStep) {
  train("");
  const Ending ending =
      shell(folder_.path(),
            std::string("mkfifo late.ini; ") + LLAMPI_PROGRAM +
                " train --config late.ini --run.dir=new & sleep 0.5; kill $!; cat run.ini >late.ini; "
                "wait $!");
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_THAT(ending.out,
              HasSubstr("\nstopped before the first step of this job: nothing is done, and nothing lost\n"));
  EXPECT_THAT(ending.complaints(), ::testing::IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "new/checkpoints"));
  const Ending next = shell(folder_.path(), LLAMPI_PROGRAM " train --config run.ini --run.dir=new");
  EXPECT_EQ(next.status, 0) << next.err;
}

TEST_F(Train, GoesOnUnderNohup) {
  const Ending ending = shell(
      folder_.path(), std::string("nohup ") + LLAMPI_PROGRAM +
                          " train --model.config=model.json --data.train=tokens.h5 --run.dir=run"
                          " --data.seq_len=16 --train.global_batch=1 --train.steps=100000000 & pid=$!; "
                          "until test -s run/metrics.jsonl; do sleep 0.1; done; kill -HUP $pid; sleep 1; "
                          "kill -USR1 $pid || exit 3; wait $pid");
  EXPECT_EQ(ending.status, 75) << ending.err;
}

TEST_F(Train, OutlivesTheReaderOfItsOutput) {
  const Ending ending = shell(
      folder_.path(),
      std::string("{ ") + LLAMPI_PROGRAM +
          " train --model.config=model.json --data.train=tokens.h5 --run.dir=run"
          " --data.seq_len=16 --train.global_batch=1 --train.steps=200; echo $? >status; } | head -1; exit $(cat status)");
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "run/checkpoints/step-00000200.h5"));
}

}  // namespace
}  // namespace llampi::test
