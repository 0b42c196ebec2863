// SPDX-License-Identifier: Apache-2.0
// What a run that continues was asked to do otherwise, from the texts of two configurations.
#include "train/changed_keys.hpp"
#include "train/decisions.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "llampi/core/error.hpp"
#include "llampi/data/content.hpp"
#include "llampi/train/run_text.hpp"
#include "support/temporary_folder.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr const char* kDefaults =
    "[run]\nresume = auto\n[model]\nweights = random\n[data]\ntrain =\n[train]\nsteps = 0\nepochs = 0\n"
    "[optimizer]\nlr = 0.0003\nmin_lr = 0\nschedule = cosine\nwarmup_steps = 0\nbeta2 = 0.95\nfrozen =\n"
    "loss_scale = 65536\n[fsdp]\nparam_dtype = auto\nstrategy = full_shard\n";

/// Eight steps of twelve are done; 187 samples are 15 steps of an epoch.
class ChangedKeys : public ::testing::Test {
 protected:
  ChangedKeys() {
    saved_.state = {
        .step = 8, .samples_consumed = 96, .seq_len = 16, .global_batch = 12, .data_tokens = 3000};
    fresh_ = {.seq_len = 16, .global_batch = 12, .data_tokens = 3000};
    config_.train.steps = 12;
    config_.optimizer.lr = 0.01;
    saved_.texts.run_config = text("");
  }

  /// Of a run of twelve steps; later lines count.
  static std::string text(const std::string& more) {
    return "[run]\ndir = a\n[model]\nweights = hf\n[data]\ntrain = t.h5\n[train]\nsteps = "
           "12\n[optimizer]\nlr = 0.01\n" +
           more;
  }
  Continuing continuing(const std::string& resolved) {
    texts_ = {resolved, kDefaults};
    return {saved_, config_, texts_, fresh_, data_};
  }
  /// "optimizer.lr 0.01 -> 0.02 curve"
  std::vector<std::string> changes(const std::string& resolved) {
    constexpr const char* kNames[] = {"free", "curve", "beginning", "length"};
    std::vector<std::string> lines;
    for (const auto& c : changes_of(continuing(resolved)))
      lines.push_back(c.key + " " + c.then + " -> " + c.now + " " + kNames[static_cast<int>(c.effect)]);
    return lines;
  }
  std::vector<std::string> report(const std::string& resolved) {
    std::vector<std::string> lines;
    const auto run = continuing(resolved);
    report_changes(run, changes_of(run), Log([&](const std::string& line) { lines.push_back(line); }));
    return lines;
  }

  checkpoint::CheckpointSummary saved_;
  Config config_;
  ConfigTexts texts_;
  checkpoint::TrainingState fresh_;
  std::string data_ = "3000 tokens in 82 documents, crc32 00c0ffee, tokenizer bytes";
};

TEST_F(ChangedKeys, TheSameCommandHasNone) {
  EXPECT_THAT(changes(text("")), IsEmpty());
  EXPECT_THAT(report(text("")), IsEmpty());
}

TEST_F(ChangedKeys, WhereARunIsAndHowAJobBeginsItIsNoChange) {
  EXPECT_THAT(changes(text("[run]\ndir = elsewhere\nresume = b.h5\nresume_with_changes = true\n")),
              IsEmpty());
}

TEST(ChangeOfMicroBatch, IsToldWhereThereIsOne) {
  EXPECT_EQ(change_of_micro_batch(4, 4, 2), "");
  EXPECT_THAT(change_of_micro_batch(4, 2, 2), HasSubstr("had 4 so far, which does not divide the 2"));
  EXPECT_THAT(change_of_micro_batch(4, 2, 8), HasSubstr("had 4 so far, which does not fit in memory here"));
}

// Of 32 and 8 heads: dP of four heads of 8192 tokens takes 512 MiB, of 2048 tokens 32 MiB, of 512 tokens 2 MiB.
TEST(ChangeOfAttention, IsToldWhereOtherKernelsCompute) {
  const device::AttentionShape shape{32, 8, 128};
  model::BatchShape batch{.sequences = 1, .seq_len = 8192};
  EXPECT_EQ(change_of_attention(shape, batch, 4096, 4096), "");
  EXPECT_EQ(change_of_attention(shape, batch, 4096, 512), "");  // smaller pieces
  EXPECT_THAT(
      change_of_attention(shape, batch, 512, 511),
      HasSubstr(
          "had 512 MiB so far, which does not fit in memory here. Attention of documents of more than 2048"));
  EXPECT_EQ(change_of_attention(shape, batch, 511, 32), "");
  EXPECT_THAT(change_of_attention(shape, batch, 4096, 31), HasSubstr("more than 512 tokens"));
  EXPECT_THAT(change_of_attention(shape, batch, 31, 0), HasSubstr("more than 0 tokens"));
  batch.documents = false;
  EXPECT_THAT(change_of_attention(shape, batch, 4096, 511), HasSubstr("more than 0 tokens"));
  EXPECT_EQ(change_of_attention(shape, batch, 511, 31), "");
}

TEST_F(ChangedKeys, AreListedWithWhatTheyMean) {
  EXPECT_THAT(
      changes(text("beta2 = 0.99\nlr = 0.02\n[fsdp]\nstrategy = no_shard\n[model]\nweights = other\n")),
      ElementsAre("fsdp.strategy full_shard -> no_shard free", "model.weights hf -> other beginning",
                  "optimizer.beta2 0.95 -> 0.99 curve", "optimizer.lr 0.01 -> 0.02 curve"));
}

TEST_F(ChangedKeys, AreComparedByWhatTheyMean) {
  const auto here = std::filesystem::current_path().string();
  EXPECT_THAT(changes(text("lr = 1e-2\n[run]\ndir = ./a/\n[model]\nweights = " + here + "/hf\n")), IsEmpty());
  EXPECT_TRUE(same_place("x/config.json", "x"));
  EXPECT_FALSE(same_place("x", ""));
  // "auto" may have been bfloat16; float32 was not.
  EXPECT_THAT(changes(text("[fsdp]\nparam_dtype = bfloat16\n")),
              ElementsAre("fsdp.param_dtype auto -> bfloat16 free"));
  saved_.texts.run_config = text("[fsdp]\nparam_dtype = float32\n");
  EXPECT_THAT(changes(text("[fsdp]\nparam_dtype = bfloat16\n")),
              ElementsAre("fsdp.param_dtype float32 -> bfloat16 curve"));
}

TEST_F(ChangedKeys, LargeIntegersAreComparedToTheLastDigit) {
  saved_.state.seed = 9007199254740992;  // 2^53, the same double as the next one
  fresh_.seed = 9007199254740993;
  EXPECT_THAT(changes(text("")), ElementsAre("run.seed 9007199254740992 -> 9007199254740993 curve"));
  saved_.state.seed = -1;
  fresh_.seed = -2;
  EXPECT_THAT(changes(text("")), ElementsAre("run.seed 18446744073709551615 -> 18446744073709551614 curve"));
  fresh_.seed = -1;
  EXPECT_THAT(changes(text("")), IsEmpty());
}

TEST_F(ChangedKeys, AKeyThatAnOlderRunDidNotHaveWasAtItsDefault) {
  EXPECT_THAT(changes(text("[optimizer]\nfrozen = embed\n")),
              ElementsAre("optimizer.frozen  -> embed curve"));
  saved_.texts.run_config = text("[optimizer]\nof_old = 3\n");
  EXPECT_THAT(changes(text("")), IsEmpty()) << "a key that there is no more";
}

TEST_F(ChangedKeys, ACheckpointWithoutAConfigurationHasItsState) {
  saved_.texts.run_config = "";
  EXPECT_THAT(changes(text("[model]\nweights = other\n")), IsEmpty());
  fresh_.global_batch = 24;
  EXPECT_THAT(changes(text("")), ElementsAre("train.global_batch 12 -> 24 curve"));
}

TEST_F(ChangedKeys, DataAreWhatIsInTheFile) {
  const std::string moved = text("[data]\ntrain = elsewhere/t.h5\n");
  config_.data.train = "elsewhere/t.h5";
  saved_.texts.run_config = with_note(text(""), "data.train", data_);
  EXPECT_THAT(changes(moved), ElementsAre("data.train t.h5 -> elsewhere/t.h5 free"));
  data_ = "3000 tokens in 82 documents, crc32 00c0ffee, tokenizer tokenizer.json (BPE, 256)";
  EXPECT_THAT(changes(moved), ElementsAre("data.train t.h5 -> elsewhere/t.h5 free"))
      << "only the name differs";
  data_ = "3000 tokens in 82 documents, crc32 0badf00d, tokenizer bytes";
  config_.data.train = "t.h5";
  EXPECT_THAT(
      changes(text("")),
      ElementsAre("data.train t.h5 (3000 tokens in 82 documents, crc32 00c0ffee, tokenizer bytes) -> t.h5 "
                  "(3000 tokens in 82 documents, crc32 0badf00d, tokenizer bytes) curve"));
  // An older run has noted no content, but its length.
  saved_.texts.run_config = text("");
  EXPECT_THAT(changes(text("")), IsEmpty());
  saved_.state.data_tokens = 2999;
  EXPECT_THAT(changes(text("")),
              ElementsAre(HasSubstr("data.train t.h5 (2999 tokens) -> t.h5 (3000 tokens in")));
}

TEST_F(ChangedKeys, ARunMayGrowAndSaysWhereItsScheduleBends) {
  config_.train.steps = 24;
  const std::string longer = text("[train]\nsteps = 24\n");
  EXPECT_THAT(changes(longer), ElementsAre("train.steps 12 -> 24 free"));
  // Cosine from 0.01 to 0: at 8 of 12 cos(2 pi / 3) = -1/2, at 9 of 24 cos(3 pi / 8) = 0.3827.
  EXPECT_THAT(report(longer),
              ElementsAre("changed since step 8: train.steps = 24, was 12",
                          AllOf(HasSubstr("warning: the schedule is not the one that steps 1 to 8 had"),
                                HasSubstr("was 0.0025 at step 8, and is 0.00691 at step 9"),
                                HasSubstr("(of 24 steps, formerly of 12)"))));
  const std::string constant = "[optimizer]\nschedule = constant\n";
  saved_.texts.run_config = text(constant);
  config_.optimizer.schedule = optim::Decay::constant;
  EXPECT_THAT(report(longer + constant), ElementsAre("changed since step 8: train.steps = 24, was 12"));
}

TEST_F(ChangedKeys, OfAScheduleThatHardlyBendsNothingIsSaid) {
  const auto lines = [&](double lr) {
    config_.optimizer.lr = lr;
    return report(text(fmt::format("[optimizer]\nlr = {}\n", lr)));
  };
  EXPECT_THAT(lines(0.010005), ElementsAre("changed since step 8: optimizer.lr = 0.010005, was 0.01"));
  EXPECT_THAT(lines(0.0101), SizeIs(2));
}

TEST_F(ChangedKeys, AShorterRunWouldHaveHadAnotherSchedule) {
  const auto shortened = [&](std::int64_t steps, const std::string& more = "") {
    config_.train.steps = steps;
    return changes(text(fmt::format("[train]\nsteps = {}\n", steps) + more));
  };
  EXPECT_THAT(shortened(10), ElementsAre("train.steps 12 -> 10 curve"));
  EXPECT_THAT(shortened(8), ElementsAre("train.steps 12 -> 8 free")) << "nothing is left to do";
  const std::string warm = "[optimizer]\nwarmup_steps = 9\n";
  saved_.texts.run_config = text(warm);
  EXPECT_THAT(shortened(10, warm), ElementsAre("train.steps 12 -> 10 free")) << "nothing has fallen yet";
}

TEST_F(ChangedKeys, EpochsAreComparedAsSteps) {
  config_.train.steps = 0;
  config_.train.epochs = 0.8;  // of 15 steps
  const std::string same = text("[train]\nsteps = 0\nepochs = 0.8\n");
  EXPECT_THAT(report(same), ElementsAre("changed since step 8: train.epochs = 0.8, was 0",
                                        "changed since step 8: train.steps = 0, was 12"));
  config_.train.epochs = 2;
  EXPECT_THAT(report(text("[train]\nsteps = 0\nepochs = 2\n")),
              ElementsAre(testing::_, testing::_, HasSubstr("(of 30 steps")));
}

TEST_F(ChangedKeys, WhatBendsTheCurveOrHasNoEffectIsRefusedByName) {
  const auto refusal = [&](const std::string& resolved) -> std::string {
    try {
      refuse_changes(config_, changes_of(continuing(resolved)), "step-8.h5");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  const std::string changed = text("beta2 = 0.99\n[fsdp]\nstrategy = no_shard\n[model]\nweights = other\n");
  EXPECT_THAT(refusal(changed),
              AllOf(HasSubstr("step-8.h5 was saved with model.weights = hf, now other, and optimizer.beta2 "
                              "= 0.95, now 0.99;"),
                    HasSubstr("run.resume_with_changes = true"), Not(HasSubstr("strategy"))));
  EXPECT_EQ(refusal(text("[fsdp]\nstrategy = no_shard\n")), "");
  config_.run.resume_with_changes = true;
  EXPECT_EQ(refusal(changed), "");
  EXPECT_THAT(
      report(changed),
      testing::Contains(
          "changed since step 8: model.weights = other, was hf; without effect on a run that has begun"));
}

TEST_F(ChangedKeys, ABaseOfAdaptersIsReadWhereverItIs) {
  config_.lora.rank = 4;
  EXPECT_THAT(
      report(text("[model]\nweights = other\n")),
      testing::Contains(
          "changed since step 8: model.weights = other, was hf; the next steps read the base from there, and its "
          "checksums must be the same"));
}

TEST_F(ChangedKeys, AGivenCheckpointHasItsOwnWeights) {
  config_.run.resume = {ResumeFrom::Mode::file, "other/step-8.h5"};
  EXPECT_THAT(changes(text("[model]\nweights = random\n")), ElementsAre("model.weights hf -> random free"));
}

TEST_F(ChangedKeys, WhatIsRecordedIsWhatIsTrue) {
  saved_.texts.run_config = with_note(text(""), "model.weights", "read from hf/step-4.h5");
  saved_.state.loss_scale = fresh_.loss_scale = 1024;
  const std::string resolved = text("lr = 0.02\nloss_scale = 8\n[model]\nweights = other\n");
  const auto recorded = read_run_text(recorded_text(continuing(resolved)));
  EXPECT_EQ(recorded.value("model.weights"), "hf");
  EXPECT_EQ(recorded.note("model.weights"), "read from hf/step-4.h5");
  EXPECT_EQ(recorded.value("optimizer.lr"), "0.02");
  EXPECT_EQ(recorded.note("data.train"), data_);

  // Of a run that begins from a checkpoint, the command is what later runs are compared with.
  config_.run.resume = {ResumeFrom::Mode::file, "other/step-8.h5"};
  const auto own = read_run_text(recorded_text(continuing(resolved)));
  EXPECT_EQ(own.value("model.weights"), "other");
  EXPECT_EQ(own.note("model.weights"), "");
  EXPECT_EQ(own.note("data.train"), data_);
}

TEST(ChangedPlaces, ThatCannotBeLookedAtAreNotTheSame) {
  const TemporaryFolder folder;
  for (const auto* loop : {"one", "other"}) std::filesystem::create_symlink(loop, folder / loop);
  EXPECT_FALSE(same_place((folder / "one/a").string(), (folder / "other/b").string()));
  EXPECT_TRUE(same_place((folder / "one/a").string(), (folder / "one/a").string()));
}

TEST(RunText, IsReadAsItIsWritten) {
  const std::string text =
      "# of a run\n[run]\ndir = a b  # where\nresume =\n\n[optimizer]\nno_decay = [a=b]\nbroken\n";
  const auto read = read_run_text(with_note(text, "data.train", "3 tokens: all\nof them"));
  EXPECT_EQ(read.values.size(), 3U);
  EXPECT_EQ(read.value("run.dir"), "a b");
  EXPECT_EQ(read.value("run.resume"), "");
  EXPECT_EQ(read.value("optimizer.no_decay"), "[a=b]");
  EXPECT_EQ(read.note("data.train"), "3 tokens: all of them");
  EXPECT_EQ(read.notes.size(), 1U);
  const auto changed = read_run_text(with_value(text, "run.dir", "c"));
  EXPECT_EQ(changed.value("run.dir"), "c");
  EXPECT_EQ(changed.value("optimizer.no_decay"), "[a=b]");
  EXPECT_THAT(read_run_text(std::string("\x89HDF\r\n\x1a\n=\0[", 12)).value("run.dir"), "");
}

/// A file of `count` tokens in documents of `document` tokens, of which one may be another.
std::string content_of(const std::filesystem::path& path, int count, int document, int changed = -1,
                       std::int32_t vocabulary = 61) {
  {
    data::TokenFileWriter writer(path, vocabulary, "a tokenizer");
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      tokens.push_back(i == changed ? 60 : i % 59);
      if (std::ssize(tokens) < document && i + 1 < count) continue;
      writer.append_document(tokens);
      tokens.clear();
    }
    writer.close();
  }
  return data::describe_content(data::TokenFile(path));
}

TEST(DataContent, TellsFilesApart) {
  const TemporaryFolder folder;
  const auto content = content_of(folder / "a.h5", 10'000, 100);
  EXPECT_THAT(content, HasSubstr("10000 tokens in 100 documents, crc32 "));
  EXPECT_THAT(data::content_in_words(content), HasSubstr("10,000 tokens in 100 documents, crc32 "));
  EXPECT_EQ(data::content_in_words(
                "1234567 tokens in 8200 documents, crc32 12345678, tokenizer t.json (BPE, 1256)"),
            "1,234,567 tokens in 8,200 documents, crc32 12345678, tokenizer t.json (BPE, 1256)");
  EXPECT_EQ(data::tokenizer_in(content), "a tokenizer");
  EXPECT_EQ(content_of(folder / "b.h5", 10'000, 100, -1, 70'000), content) << "stored in more bytes";
  EXPECT_FALSE(data::same_content(content_of(folder / "c.h5", 10'000, 100, 7000), content));
  EXPECT_FALSE(data::same_content(content_of(folder / "d.h5", 10'000, 10), content));
  EXPECT_FALSE(data::same_content(content_of(folder / "e.h5", 9'999, 100), content));
}

TEST(DataContent, ReadsAPartOfALargeFile) {
  const TemporaryFolder folder;
  constexpr int kCount = 64 * 4096 + 100'000;
  const auto content = content_of(folder / "a.h5", kCount, 1000);
  for (const int changed : {0, kCount / 63, kCount - 1})  // the second part begins a little before
    EXPECT_FALSE(data::same_content(content_of(folder / "b.h5", kCount, 1000, changed), content)) << changed;
}

}  // namespace
}  // namespace llampi::test
