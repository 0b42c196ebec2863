// SPDX-License-Identifier: Apache-2.0
// What a run's checkpoints have and how they are written: checkpoint.io, .content, .state_dtype, .writers_per_node.
#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/io/hdf5.hpp"
#include "llampi/train/stop.hpp"
#include "ranks/train/run_fixture.hpp"

namespace llampi::test {
namespace {

using namespace train;

class CheckpointOptions : public Train {
 protected:
  checkpoint::CheckpointSummary summary(const Config& c, int step) const {
    return checkpoint::read_checkpoint_summary(checkpoint::checkpoint_path(c.run.dir, step));
  }
};

TEST_F(CheckpointOptions, TheSameBitsHoweverTheyAreWritten) {
  const Config whole = config("whole");
  run(whole);
  for (const bool async : {false, true}) {
    for (const auto io : {checkpoint::FileIo::direct, checkpoint::FileIo::hdf5}) {
      if (io == checkpoint::FileIo::hdf5 && !io::hdf5::is_parallel()) continue;
      const auto name = fmt::format("{}-{}", async ? "async" : "waits", word_of(io));
      SCOPED_TRACE(name);
      Config c = config(name);
      c.checkpoint.async = async;
      c.checkpoint.io = io;
      c.checkpoint.writers_per_node = 1;
      c.checkpoint.stripe_bytes = 4096;
      ASSERT_EQ(run(c, at_step(6, 0, [] { request_stop(); })), Outcome::stopped);
      ASSERT_EQ(run(c), Outcome::done);
      for (const int step : {4, 8, 12}) EXPECT_EQ(tensors(name, step), tensors("whole", step)) << step;
      EXPECT_EQ(curve(name), curve("whole"));
    }
  }
}

TEST_F(CheckpointOptions, WeightsAloneBeginARunAndDoNotContinueOne) {
  Config c = config("weights");
  c.checkpoint.content = CheckpointContent::weights;
  ASSERT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("after a crash, this run cannot continue from its checkpoints"));
  for (const int step : {4, 8, 12}) EXPECT_FALSE(summary(c, step).has_optimizer) << step;
  EXPECT_TRUE(summary(c, 12).has_checksums);
  EXPECT_EQ(run(c), Outcome::done) << "nothing was left to do";

  c.train.steps = 16;
  c.run.resume_with_changes = true;  // not even then
  const auto sentence = refusal(c);
  EXPECT_NE(sentence.find("has weights only, no optimizer state to continue with; start a run with it as"),
            std::string::npos)
      << sentence;
  EXPECT_TRUE(sentence.starts_with(c.run.dir)) << "as on one rank: " << sentence;
  Config fresh = config("fresh");
  fresh.model.weights = checkpoint::checkpoint_path(c.run.dir, 12).string();
  EXPECT_EQ(run(fresh), Outcome::done);
}

// Also where its weights have just been saved.
TEST_F(CheckpointOptions, AStoppedRunSavesAllAndContinuesExactly) {
  run(config("whole"));
  for (const int step : {5, 8}) {
    SCOPED_TRACE(step);
    const auto name = fmt::format("stopped-{}", step);
    Config c = config(name);
    c.checkpoint.content = CheckpointContent::weights;
    ASSERT_EQ(run(c, at_step(step, 0, [] { request_stop(); })), Outcome::stopped);
    expect_stopped_soon_after(step, c);
    EXPECT_TRUE(checkpoint::read_checkpoint_summary(newest(c)).has_optimizer);
    EXPECT_FALSE(summary(c, 4).has_optimizer);
    wait_for_all_ranks();
    ASSERT_EQ(run(c), Outcome::done);
    EXPECT_EQ(curve(name), curve("whole"));
  }
}

// It is never deleted, and a run that ended on the way continues from there rather than not at all.
TEST_F(CheckpointOptions, TheNewestFileWithAllStateIsKeptAndContinuedFrom) {
  run(config("whole"));
  Config c = config("killed");
  c.checkpoint.content = CheckpointContent::weights;
  c.checkpoint.keep = 2;
  ASSERT_EQ(run(c, at_step(5, 0, [] { request_stop(); })), Outcome::stopped);
  const auto whole = checkpoint::list_checkpoints(c.run.dir).back();
  ASSERT_EQ(run(c), Outcome::done);
  const auto of_step = [&](int step) { return checkpoint::checkpoint_path(c.run.dir, step); };
  wait_for_all_ranks();
  EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir), (std::vector{whole, of_step(8), of_step(12)}));
  wait_for_all_ranks();
  if (test_rank() == 0) std::filesystem::remove(of_step(12));
  wait_for_all_ranks();
  ASSERT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged(of_step(8).string() + " has weights only; the run continues from " + whole.string()));
  EXPECT_EQ(curve("killed"), curve("whole"));
}

// Files of weights that an earlier job saved later on are no reason to delete what this one saves.
TEST_F(CheckpointOptions, ARunThatWentBackKeepsWhatItSaves) {
  run(config("whole"));
  Config c = config("back");
  c.checkpoint.content = CheckpointContent::weights;
  c.checkpoint.keep = 1;
  ASSERT_EQ(run(c, at_step(2, 0, [] { request_stop(); })), Outcome::stopped);
  const auto first = checkpoint::list_checkpoints(c.run.dir).back();
  c.checkpoint.keep = 2;
  wait_for_all_ranks();
  ASSERT_EQ(run(c), Outcome::done);
  const auto of_step = [&](int step) { return checkpoint::checkpoint_path(c.run.dir, step); };
  wait_for_all_ranks();
  if (test_rank() == 0) {
    std::filesystem::remove(of_step(12));  // as if the job had been killed
    std::filesystem::copy_file(of_step(8), of_step(11));
  }
  wait_for_all_ranks();
  for (const auto content : {CheckpointContent::all, CheckpointContent::weights}) {
    SCOPED_TRACE(word_of(content));
    c.checkpoint.content = content;
    c.checkpoint.keep = 1;
    const int step = content == CheckpointContent::all ? 5 : 8;
    ASSERT_EQ(run(c, at_step(step, 0, [] { request_stop(); })), Outcome::stopped);
    const auto files = checkpoint::list_checkpoints(c.run.dir);
    EXPECT_EQ(std::ranges::count_if(files, checkpoint::has_optimizer), 1);
    EXPECT_EQ(std::ranges::count(files, first), 0) << "a newer one is there";
    wait_for_all_ranks();
  }
  ASSERT_EQ(run(c), Outcome::done);
  EXPECT_EQ(curve("back"), curve("whole"));
}

// A file instead of the folder stands for a run.dir without room.
TEST_F(CheckpointOptions, TheNewestFileWithAllStateIsKeptInTheFallbackFolderToo) {
  Config c = config("moved");
  c.checkpoint.async = false;
  c.checkpoint.content = CheckpointContent::weights;
  c.checkpoint.fallback_dir = (folder_ / "elsewhere").string();
  const fs::path folder = fs::path(c.run.dir) / "checkpoints", aside = folder_ / "aside";
  const auto without_room = [&](int step, const std::function<void()>& then) {
    return at_step(step, 0, [&folder, &aside, then] {
      fs::rename(folder, aside);
      std::ofstream(folder) << "no folder";
      then();
    });
  };
  const auto make_room = [&] {
    wait_for_all_ranks();
    if (test_rank() == 0) fs::remove(folder), fs::rename(aside, folder);
    wait_for_all_ranks();
  };
  ASSERT_EQ(run(c, without_room(5, [] { request_stop(); })), Outcome::stopped);
  const auto kept = folder_ / "elsewhere" / fs::weakly_canonical(c.run.dir).relative_path();
  const auto whole = checkpoint::list_checkpoints(kept).back();
  EXPECT_TRUE(checkpoint::read_checkpoint_summary(whole).has_optimizer);
  make_room();
  ASSERT_EQ(run(c, without_room(11, [] {})), Outcome::done);
  make_room();
  EXPECT_EQ(checkpoint::list_checkpoints(kept), (std::vector{whole, checkpoint::checkpoint_path(kept, 12)}));
}

TEST_F(CheckpointOptions, ADamagedFileWithAllStateIsNotTheOneThatIsKept) {
  Config c = config("damaged");
  c.checkpoint.content = CheckpointContent::weights;
  c.checkpoint.keep = 1;
  ASSERT_EQ(run(c, at_step(5, 0, [] { request_stop(); })), Outcome::stopped);
  const auto good = checkpoint::list_checkpoints(c.run.dir).back();
  c.checkpoint.keep = 3;
  ASSERT_EQ(run(c, at_step(9, 0, [] { request_stop(); })), Outcome::stopped);
  wait_for_all_ranks();
  if (test_rank() == 0) change_a_value(checkpoint::list_checkpoints(c.run.dir).back());
  wait_for_all_ranks();
  c.checkpoint.keep = 1;
  ASSERT_EQ(run(c), Outcome::done);
  EXPECT_TRUE(std::filesystem::exists(good)) << "all that the run could continue from";
}

// The same command, of a run that began from a file and has saved weights since.
TEST_F(CheckpointOptions, WeightsThatFollowAGivenFileAreNotContinuedFromButThatFileIs) {
  run(config("whole"));
  Config c = config("branch");
  const auto given = checkpoint::checkpoint_path(config("whole").run.dir, 4);
  c.run.resume = {ResumeFrom::Mode::file, given.string()};
  c.checkpoint.content = CheckpointContent::weights;
  ASSERT_EQ(run(c), Outcome::done);
  wait_for_all_ranks();
  const auto of_step = [&](int step) { return checkpoint::checkpoint_path(c.run.dir, step); };
  if (test_rank() == 0) std::filesystem::remove(of_step(12));
  wait_for_all_ranks();
  ASSERT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged(of_step(8).string() + " has weights only; the run continues from " + given.string()));
  EXPECT_EQ(tensors("branch", 12).front(), tensors("whole", 12).front());
}

TEST_F(CheckpointOptions, MomentsAreStoredAsTheyAreKept) {
  Config kept = config("kept");
  kept.optimizer.moment_dtype = DType::bfloat16;
  run(kept);
  EXPECT_EQ(summary(kept, 4).moments, DType::bfloat16);
  Config stopped = kept, wide = kept;
  stopped.run.dir = (folder_ / "stopped").string();
  run(stopped, at_step(6, 0, [] { request_stop(); }));
  run(stopped);
  EXPECT_EQ(curve("stopped"), curve("kept"));
  EXPECT_EQ(tensors("stopped", 12), tensors("kept", 12));
  wide.run.dir = (folder_ / "wide").string();
  wide.checkpoint.state_dtype = DType::float32;
  run(wide);
  EXPECT_EQ(summary(wide, 4).moments, DType::float32);
  EXPECT_EQ(tensors("wide", 12), tensors("kept", 12)) << "widened, which is exact";
}

// A run that continues from narrower moments goes on, near the one that it was.
TEST_F(CheckpointOptions, NarrowerMomentsContinueNearby) {
  const Config whole = config("whole");
  run(whole);
  EXPECT_EQ(summary(whole, 4).moments, DType::float32);
  Config c = config("narrow");
  c.checkpoint.state_dtype = DType::bfloat16;
  ASSERT_EQ(run(c, at_step(6, 0, [] { request_stop(); })), Outcome::stopped);
  EXPECT_EQ(summary(c, 4).moments, DType::bfloat16);
  ASSERT_EQ(run(c), Outcome::done);
  // Moments are off by 2^-9 of themselves, updates by as much, and the loss falls by a few tenths in these six steps.
  const double exact = metrics("whole").back()["loss"], near = metrics("narrow").back()["loss"];
  EXPECT_NEAR(near, exact, 0.01);
  EXPECT_NE(curve("narrow"), curve("whole"));
}

}  // namespace
}  // namespace llampi::test
