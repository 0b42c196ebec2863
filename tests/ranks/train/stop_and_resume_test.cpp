// SPDX-License-Identifier: Apache-2.0
// Runs that stop, continue, or are finished already.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "llampi/comm/comm.hpp"
#include "llampi/train/stop.hpp"
#include "ranks/train/run_fixture.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Train, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const auto strategy : {fsdp::Strategy::full_shard, fsdp::Strategy::no_shard}) {
    auto whole = config(std::string("whole-") + fsdp::to_string(strategy));
    whole.fsdp.strategy = strategy;
    run(whole);
    for (const std::int64_t step : {4, 8}) {
      const std::string name = fmt::format("resumed-{}-{}", fsdp::to_string(strategy), step);
      copy_checkpoint(std::string("whole-") + fsdp::to_string(strategy), name, step);
      auto resumed = whole;
      resumed.run.dir = (folder_ / name).string();
      EXPECT_EQ(run(resumed), Outcome::done);
      EXPECT_EQ(curve(name), curve(std::string("whole-") + fsdp::to_string(strategy)));
      EXPECT_EQ(tensors(name, 12), tensors(std::string("whole-") + fsdp::to_string(strategy), 12));
    }
  }
}

TEST_F(Train, AStopSavesAndTheNextRunContinues) {
  run(config("whole"));
  const auto stopped = config("stopped");
  // Rank size-1 alone is told to stop; at step 0 there is nothing to save.
  if (world().rank() == world().size() - 1) request_stop();
  EXPECT_EQ(run(stopped), Outcome::stopped);
  EXPECT_TRUE(checkpoint::list_checkpoints(folder_ / "stopped").empty());

  auto hurried = config("stopped");
  hurried.run.max_hours = 1e-9;
  EXPECT_EQ(run(hurried), Outcome::stopped);

  EXPECT_EQ(run(stopped), Outcome::done);
  EXPECT_EQ(curve("stopped"), curve("whole"));
}

TEST_F(Train, AFinishedRunSaysSoAndChangesNothing) {
  run(config("a"));
  world().barrier();
  const auto before = fs::last_write_time(folder_ / "a" / "metrics.jsonl");
  EXPECT_EQ(run(config("a")), Outcome::done);
  EXPECT_EQ(fs::last_write_time(folder_ / "a" / "metrics.jsonl"), before);
}

TEST_F(Train, ResumingFromAFileBeginsANewFolderAtTheStepAfterIt) {
  run(config("a"));
  auto other = config("b");
  other.run.resume = {ResumeFrom::Mode::file, checkpoint::checkpoint_path(folder_ / "a", 8).string()};
  EXPECT_EQ(run(other), Outcome::done);
  const auto lines = metrics("b");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines.front()["step"], 9);
  EXPECT_EQ(tensors("b", 12), tensors("a", 12));

  // Where what it has saved since is purged, it begins from there again, and what its steps were is kept.
  world().barrier();
  if (world().rank() == 0) fs::remove(checkpoint::checkpoint_path(folder_ / "b", 12));
  world().barrier();
  EXPECT_EQ(run(other, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("is gone; taking " + other.run.resume.file));
  EXPECT_EQ(metrics("b").size(), 4U);
  EXPECT_TRUE(fs::exists(folder_ / "b" / "metrics-lost-1.jsonl"));
  auto folder = config("c");
  folder.run.resume = {ResumeFrom::Mode::file, (folder_ / "a").string()};
  world().barrier();
  if (world().rank() == 0) fs::remove(checkpoint::checkpoint_path(folder_ / "a", 12));
  world().barrier();
  EXPECT_EQ(run(folder, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("is gone; taking " + checkpoint::checkpoint_path(folder_ / "a", 8).string()));
}

TEST_F(Train, RefusesWhatWouldMixRuns) {
  run(config("a"));
  auto never = config("a");
  never.run.resume = {ResumeFrom::Mode::never};
  EXPECT_THROW(run(never), UserError);

  auto longer = config("a");
  longer.train.steps = 16;
  auto other_batch = longer;
  other_batch.train.global_batch = 24;
  EXPECT_THROW(run(other_batch), UserError);
  other_batch.run.resume_with_changes = true;
  EXPECT_EQ(run(other_batch), Outcome::done);
  EXPECT_EQ(metrics("a").size(), 16U);
}

TEST_F(Train, ASignalInTheMiddleLeavesNoTrace) {
  for (const auto strategy : {fsdp::Strategy::full_shard, fsdp::Strategy::no_shard}) {
    const std::string whole = std::string("whole-") + fsdp::to_string(strategy),
                      name = std::string("stopped-") + fsdp::to_string(strategy);
    auto c = config(whole);
    c.fsdp.strategy = strategy;
    run(c);
    c.run.dir = (folder_ / name).string();
    // Only the last rank gets the signal, when step 5 is told of: after step 6. It tells the others during step 7, in which the
    // ranks do not ask each other, unless the machine was so slow that step 6 was a long one: then step 7 is dropped.
    EXPECT_EQ(run(c, at_step(5, world().size() - 1, request_stop)), Outcome::stopped);
    const auto lines = metrics(name);
    const std::size_t steps = lines.size();
    if (lines.at(5)["step_seconds"] < 0.25) {
      EXPECT_EQ(steps, 7);
    } else {
      EXPECT_THAT(steps, AnyOf(6U, 7U));
    }
    EXPECT_TRUE(logged(fmt::format("stopped after step {} by a signal", steps)));
    EXPECT_EQ(newest(c), checkpoint::checkpoint_path(c.run.dir, static_cast<std::int64_t>(steps)));
    EXPECT_EQ(run(c), Outcome::done);
    EXPECT_EQ(curve(name), curve(whole));
    EXPECT_EQ(tensors(name, 12), tensors(whole, 12));
  }
}

// Step 6 takes long, so in step 8 the ranks ask each other before each micro-batch, and do not finish it: or in step 7, if the machine
// was so slow that step 5 was a long one.
TEST_F(Train, ASignalInALongStepDropsIt) {
  run(config("whole"));
  auto c = config("stopped");
  const int last = world().size() - 1;
  const Log log = keeping_log([=](const std::string& line) {
    if (world().rank() != last) return;
    if (line.starts_with("step  5/12 ")) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    if (line.starts_with("step  6/12 ")) request_stop();
  });
  EXPECT_EQ(run(c, log), Outcome::stopped);
  const auto lines = metrics("stopped");
  if (lines.at(4)["step_seconds"] < 0.25) {
    EXPECT_EQ(lines.size(), 7);
  } else {
    EXPECT_THAT(lines.size(), AnyOf(6U, 7U));
  }
  EXPECT_TRUE(logged(fmt::format("stopped after step {} by a signal", lines.size())));
  EXPECT_EQ(run(c), Outcome::done);
  EXPECT_EQ(curve("stopped"), curve("whole"));
  EXPECT_EQ(tensors("stopped", 12), tensors("whole", 12));
}

TEST_F(Train, AStopFileStopsOnce) {
  const auto c = config("a");
  const auto file = folder_ / "a" / "stop";
  EXPECT_EQ(run(c, at_step(5, 0, [&] { std::ofstream(file) << ""; })), Outcome::stopped);
  expect_stopped_soon_after(5, c);
  const auto last = checkpoint::read_checkpoint_summary(newest(c)).state.step;
  EXPECT_TRUE(logged(fmt::format("stopped after step {} because of the file {}", last, file.string())));
  world().barrier();
  EXPECT_EQ(reason_of_end("a"), "because of the file " + file.string());
  EXPECT_FALSE(fs::exists(file));
  // One that comes too late is not kept for the next run.
  EXPECT_EQ(run(c, at_step(12, 0, [&] { std::ofstream(file) << ""; })), Outcome::done);
  world().barrier();
  EXPECT_FALSE(fs::exists(file));
  EXPECT_EQ(reason_of_end("a"), "");
}

TEST_F(Train, AnEvaluationThatAStopBrokeOffIsMadeUpFor) {
  Config c = config("whole");
  c.data.eval = (folder_ / "eval.h5").string();
  c.train.eval_every = 4;
  run(c);
  c.run.dir = (folder_ / "stopped").string();
  ASSERT_EQ(run(c, at_step(8, 0, [] { request_stop(); })), Outcome::stopped);  // before the evaluation begins
  EXPECT_TRUE(logged("stopped after step 8 by a signal"));
  EXPECT_EQ(metrics("stopped").back()["step"], 8);
  EXPECT_FALSE(metrics("stopped").back().contains("eval_loss"));
  c.run.max_hours = 1.0 / 3600;  // too little, as below
  ASSERT_EQ(run(c, keeping_log()), Outcome::stopped);
  EXPECT_TRUE(logged("left no time for a step"));
  EXPECT_TRUE(logged(": the start and the evaluation of step 8, which the last job did not finish, took "));
  c.run.max_hours = 0;
  ASSERT_EQ(run(c), Outcome::done);
  EXPECT_EQ(curve("stopped"), curve("whole"));
}

TEST_F(Train, TooLittleTimeForAStepIsSaid) {
  auto c = config("a");
  c.run.max_hours =
      1.0 / 3600;  // the start alone is less, but two saves are taken to be more than two seconds
  EXPECT_EQ(run(c, keeping_log()), Outcome::stopped);
  EXPECT_TRUE(logged("left no time for a step"));
  EXPECT_TRUE(logged("stopped after step 0 because of run.max_hours"));
  EXPECT_TRUE(checkpoint::list_checkpoints(c.run.dir).empty());
}

// Other ranks may be on nodes whose view of the file system is older.
TEST_F(Train, RankZeroAloneLooksForCheckpoints) {
  run(config("a"));
  auto c = config(world().rank() == 0 ? "a" : "elsewhere");
  EXPECT_EQ(run(c), Outcome::done);
  EXPECT_FALSE(fs::exists(folder_ / "elsewhere"));

  c = config("b");
  if (world().rank() == 0)
    c.run.resume = {ResumeFrom::Mode::file, checkpoint::checkpoint_path(folder_ / "a", 8).string()};
  EXPECT_EQ(run(c), Outcome::done);
  EXPECT_EQ(metrics("b").size(), 4U);
  EXPECT_EQ(tensors("b", 12), tensors("a", 12));
}

TEST_F(Train, TheSameCommandContinuesARunThatBeganFromAFile) {
  run(config("a"));
  auto c = config("b");
  c.run.resume = {ResumeFrom::Mode::file, checkpoint::checkpoint_path(folder_ / "a", 4).string()};
  EXPECT_EQ(run(c, at_step(8, 0, request_stop)), Outcome::stopped);
  const fs::path last = newest(c);
  EXPECT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("resumed from " + last.string()));
  EXPECT_TRUE(logged("continues from its own newest"));
  EXPECT_EQ(metrics("b").size(), 8U);
  EXPECT_EQ(tensors("b", 12), tensors("a", 12));
  if (world().rank() == 0) std::ofstream(folder_ / "b/stop") << "";
  EXPECT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("run already complete"));
  EXPECT_FALSE(fs::exists(folder_ / "b/stop")) << "it would stop a longer run";
}

TEST_F(Train, AFileAtTheEndOfTheRunIsFinishedToo) {
  run(config("a"));
  auto c = config("b");
  c.run.resume = {ResumeFrom::Mode::file, checkpoint::checkpoint_path(folder_ / "a", 12).string()};
  EXPECT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("run already complete"));
  wait_for_all_ranks();  // rank 0 has had the folder locked
  EXPECT_FALSE(fs::exists(folder_ / "b"));
}

// All ranks have finished the same step when they learn of it, so nothing of it is lost.
TEST_F(Train, DataThatCannotBeReadAnyMoreEndTheRunWithACheckpoint) {
  run(config("a"));
  auto c = config("b");
  c.checkpoint.every = 0;
  const fs::path tokens = c.data.train, aside = folder_ / "aside.h5";
  if (world().rank() == 0) fs::copy_file(tokens, aside);
  world().barrier();
  std::string message;
  try {
    run(c, at_step(5, 0, [&] { fs::resize_file(tokens, 100); }));
  } catch (const UserError& error) {
    message = error.what();
  }
  ASSERT_FALSE(checkpoint::list_checkpoints(c.run.dir).empty()) << message;
  const auto step = checkpoint::read_checkpoint_summary(newest(c)).state.step;
  EXPECT_GE(step, 5);
  EXPECT_LE(step, 8) << "the data of two steps are read ahead, and a step is reported during the next";
  EXPECT_THAT(message, HasSubstr("tokens.h5 is truncated"));
  EXPECT_THAT(message, HasSubstr(fmt::format("; the newest checkpoint is of step {}", step)));
  EXPECT_EQ(reason_of_end("b"), message.substr(0, message.find('\n')));
  EXPECT_EQ(metrics("b").size(), static_cast<std::size_t>(step));
  world().barrier();
  if (world().rank() == 0) fs::copy_file(aside, tokens, fs::copy_options::overwrite_existing);
  world().barrier();
  EXPECT_EQ(run(c), Outcome::done);
  EXPECT_EQ(curve("b"), curve("a"));
  EXPECT_EQ(tensors("b", 12), tensors("a", 12));
}

TEST_F(Train, AnEvaluationThatCannotBeReadLosesNothing) {
  auto c = config("a");
  c.checkpoint.every = 0;
  c.train.eval_every = 8;  // and after the last step
  const fs::path eval = folder_ / "eval.h5", aside = folder_ / "aside.h5";
  c.data.eval = eval.string();
  if (world().rank() == 0) fs::copy_file(eval, aside);
  world().barrier();
  for (const int step : {8, 12}) {
    std::string message;
    try {
      run(c, at_step(step - 3, 0, [&] { fs::resize_file(eval, 100); }));
    } catch (const UserError& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr("eval.h5 is truncated"));
    EXPECT_THAT(message, HasSubstr(fmt::format("; the newest checkpoint is of step {}", step)));
    EXPECT_EQ(newest(c), checkpoint::checkpoint_path(c.run.dir, step));
    EXPECT_TRUE(step == 8 || logged("the last step is not evaluated"));
    world().barrier();
    if (world().rank() == 0) fs::copy_file(aside, eval, fs::copy_options::overwrite_existing);
    world().barrier();
  }
}

TEST_F(Train, TheLastStepIsSavedBeforeItIsEvaluated) {
  auto c = config("a");
  c.checkpoint.every = 0;
  c.train.eval_every = 12;
  c.data.eval = (folder_ / "eval.h5").string();
  EXPECT_EQ(run(c, at_step(12, 0, [] { request_stop(); })), Outcome::done);
  const std::string advice = "the last step is not evaluated; this does it: llampi evaluate --weights " +
                             c.run.dir + " --data " + c.data.eval;
  EXPECT_TRUE(logged(advice));
  EXPECT_EQ(newest(c), checkpoint::checkpoint_path(c.run.dir, 12));
  // As of a job that was killed then.
  EXPECT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("run already complete"));
  EXPECT_TRUE(logged(advice));
}

TEST_F(Train, AStopFileIsPutAsideIfTheStateCannotBeSavedToo) {
  auto c = config("a");
  c.checkpoint.every = 0;
  c.checkpoint.wait_minutes = 0;
  const fs::path run_dir = folder_ / "a";
  const auto stop_without_folder = [&] {
    fs::remove_all(run_dir / "checkpoints");
    std::ofstream(run_dir / "checkpoints") << "";
    std::ofstream(run_dir / "stop") << "";
  };
  EXPECT_THROW(run(c, at_step(5, 0, stop_without_folder)), UserError);
  world().barrier();
  EXPECT_FALSE(fs::exists(run_dir / "stop"));
}

TEST_F(Train, AnUnreadableCheckpointIsSkippedForAnOlderOne) {
  run(config("a"));
  const auto whole = curve("a");
  const auto last = tensors("a", 12);
  const auto truncate = [&](std::int64_t step) {
    world().barrier();
    if (world().rank() == 0) fs::resize_file(checkpoint::checkpoint_path(folder_ / "a", step), 3000);
    world().barrier();
  };
  truncate(12);
  EXPECT_EQ(run(config("a"), keeping_log()), Outcome::done);
  EXPECT_TRUE(
      logged("warning: skipped a checkpoint: " + checkpoint::checkpoint_path(folder_ / "a", 12).string()));
  EXPECT_TRUE(logged("at step 8"));
  EXPECT_EQ(curve("a"), whole);
  EXPECT_EQ(tensors("a", 12), last);

  for (const std::int64_t step : {4, 8, 12}) truncate(step);
  EXPECT_THAT(refusal(config("a")), HasSubstr("a has no checkpoint that can be read: "));
  EXPECT_THAT(refusal(config("a")), HasSubstr("step-00000012.h5"));
}

TEST_F(Train, AChangedCheckpointIsSkippedForAnOlderOne) {
  run(config("a"));
  const auto whole = curve("a");
  const auto last = tensors("a", 12);
  const auto file = [&](std::int64_t step) { return checkpoint::checkpoint_path(folder_ / "a", step); };
  const auto change = [&](std::int64_t step) {
    world().barrier();
    if (world().rank() == 0) change_a_value(file(step));
    world().barrier();
  };
  if (world().rank() == 0) fs::remove(file(12));  // the run is not finished
  change(8);
  auto c = config("a");
  c.checkpoint.keep = 1;
  // It is not one of the kept, or nothing whole would stay.
  EXPECT_EQ(run(c, at_step(5, 0, request_stop)), Outcome::stopped);
  const auto kept = checkpoint::list_checkpoints(c.run.dir);
  EXPECT_THAT(kept, ElementsAre(AnyOf(file(5), file(6)), file(8)));
  c.checkpoint.async = true;
  EXPECT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("warning: skipped a checkpoint: "));
  EXPECT_TRUE(logged(file(8).string() + " is damaged: elements 0 to "));
  EXPECT_TRUE(logged("do not fit their checksum"));
  EXPECT_TRUE(logged("resumed from " + kept.front().string()));
  EXPECT_EQ(curve("a"), whole);
  EXPECT_EQ(tensors("a", 12), last);
  EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir), (std::vector{file(12)}))
      << "what was damaged has been replaced";

  c.train.steps = 16;
  change(12);
  EXPECT_THAT(refusal(c), AllOf(HasSubstr((folder_ / "a").string() + " has no checkpoint that can be read"),
                                HasSubstr("step-00000012.h5 is damaged"),
                                HasSubstr("do not fit their checksum; restore one from a backup"),
                                Not(HasSubstr("rank "))));
  EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir), (std::vector{file(12)}));

  c = config("b");
  c.run.resume = {ResumeFrom::Mode::file, file(12).string()};
  c.train.steps = 16;
  EXPECT_THAT(refusal(c), AllOf(HasSubstr("is damaged"), HasSubstr("; use another checkpoint"),
                                Not(HasSubstr("no checkpoint that can be read"))));
}

TEST_F(Train, AModelThatComputesDifferentlyIsRefused) {
  run(config("a"));
  if (world().rank() == 0) {
    fs::create_directory(folder_ / "hf");
    std::ofstream(folder_ / "hf" / "config.json") << model_json(R"(, "rope_theta": 500000)");
  }
  world().barrier();
  auto c = config("a");
  c.model.config = (folder_ / "hf").string();
  c.train.steps = 13;
  const auto refused = refusal(c);
  EXPECT_THAT(refused, HasSubstr("rope_theta = 500000"));
  EXPECT_THAT(refused, HasSubstr("has 10000;"));
  EXPECT_THAT(refused, HasSubstr("run.resume_with_changes"));
  c.run.resume_with_changes = true;
  EXPECT_EQ(run(c), Outcome::done);

  c = config("b");
  c.model.weights = (folder_ / "hf").string();
  EXPECT_THAT(refusal(c), HasSubstr("rope_theta = 10000"));
  c.model.weights = checkpoint::checkpoint_path(folder_ / "a", 13).string();  // of rope_theta 500000
  EXPECT_THAT(refusal(c), HasSubstr("rope_theta = 10000"));
  c.model.weights = checkpoint::checkpoint_path(folder_ / "a", 12).string();
  EXPECT_EQ(run(c), Outcome::done);
}

TEST_F(Train, AChangedBatchGoesOnInTheSameEpoch) {
  auto c = config("a");
  c.train.steps = 0;
  c.train.epochs = 1;
  run(c);  // 187 samples: 15 steps of 12
  c.train.epochs = 2;
  c.train.global_batch = 24;
  c.run.resume_with_changes = true;
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(run(c), Outcome::done);
    EXPECT_EQ(metrics("a").size(), 15U + 7U) << "one more epoch, of 7 steps of 24";
  }
  const auto state =
      checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(folder_ / "a", 22)).state;
  EXPECT_EQ(state.epoch, 2);
  EXPECT_EQ(state.samples_consumed, 2 * 7 * 24);

  c.run.resume_with_changes = false;  // the changes are the run's own now
  c.train.epochs = 3;
  EXPECT_EQ(run(c), Outcome::done);
  EXPECT_EQ(metrics("a").size(), 15U + 7U + 7U);
}

}  // namespace
}  // namespace llampi::test
