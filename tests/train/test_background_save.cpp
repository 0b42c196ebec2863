// Checkpoints that are written while training goes on.
#include "run_fixture.hpp"
#include "support/world_over.hpp"

namespace llampi {
namespace {

TEST_F(Train, SavesTheSameBitsInTheBackground) {
  for (const auto* strategy : {"full_shard", "no_shard", "hybrid_shard"}) {
    for (const auto* dtype : {"float32", "bfloat16"}) {
      if (std::string(strategy) == "hybrid_shard" && world().size() == 1) continue;  // needs replicas
      const std::string name = fmt::format("{}-{}", strategy, dtype);
      SCOPED_TRACE(name);
      Config c = config(name);
      c.fsdp.strategy = strategy;
      if (std::string(strategy) == "hybrid_shard")
        c.fsdp.shard_group_size = std::to_string(world().size() / 2);
      c.fsdp.param_dtype = c.optimizer.moment_dtype = dtype;
      c.optimizer.frozen = "layers.0.mlp";
      ASSERT_EQ(run(c), Outcome::done);
      c.run.dir = (folder_ / (name + "-async")).string();
      c.checkpoint.async = true;
      ASSERT_EQ(run(c), Outcome::done);
      for (const int step : {4, 8, 12})
        EXPECT_EQ(tensors(name + "-async", step), tensors(name, step)) << step;
      EXPECT_EQ(curve(name + "-async"), curve(name));
    }
  }
}

TEST_F(Train, SavesInTheForegroundWhereMpiIsForOneThread) {
  const Config whole = config("whole");
  run(whole);
  Config c = config("async");
  c.checkpoint.async = true;
  WorldOfOneThread one_thread(world());
  ASSERT_EQ(train(one_thread, c, {"resolved\n"}, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("checkpoint.async: an MPI for one thread does not let several threads call it"));
  EXPECT_EQ(curve("async"), curve("whole"));
  EXPECT_EQ(tensors("async", 12), tensors("whole", 12));
}

TEST_F(Train, TellsHowLongASaveHeldItUp) {
  Config c = config("async");
  c.checkpoint.async = true;
  c.train.steps = 9;
  ASSERT_EQ(run(c), Outcome::done);
  const auto lines = metrics("async");
  ASSERT_EQ(lines.size(), 9);
  for (const auto& line : lines) {
    const bool after_save = line["step"] == 5 || line["step"] == 9;
    EXPECT_EQ(line["checkpoint_stall_seconds"] > 0, after_save) << line;
  }
}

TEST_F(Train, AStopWhileASaveIsUnderWayLosesNoStep) {
  const Config whole = config("whole");
  run(whole);
  Config c = config("stopped");
  c.checkpoint.async = true;
  for (const int step : {4, 5}) {
    c.run.dir = (folder_ / fmt::format("stopped-{}", step)).string();
    ASSERT_EQ(run(c, at_step(step, world().size() - 1, [] { request_stop(); })), Outcome::stopped);
    EXPECT_EQ(list_checkpoints(c.run.dir).back(), checkpoint_path(c.run.dir, step));
    ASSERT_EQ(run(c), Outcome::done);
    EXPECT_EQ(curve(fmt::format("stopped-{}", step)), curve("whole"));
    EXPECT_EQ(tensors(fmt::format("stopped-{}", step), 12), tensors("whole", 12));
  }
}

TEST_F(Train, ASaveThatFailsInTheBackgroundEndsTheRunOnAllRanks) {
  Config c = config("fails");
  c.checkpoint.async = true;
  c.train.steps = 200;
  c.checkpoint.every = 2;
  const auto folder = folder_ / "fails/checkpoints", aside = folder_ / "aside";
  std::string sentence = "not refused";
  try {
    run(c, keeping_log([&](const std::string& line) {
          if (world().rank() != 0 || line.find("step-00000006.h5 in ") == std::string::npos) return;
          fs::rename(folder, aside);
          std::ofstream(folder) << "no folder";
        }));
  } catch (const UserError& error) {
    sentence = error.what();
  }
  EXPECT_TRUE(sentence.find("cannot write the checkpoint") != std::string::npos) << sentence;
  EXPECT_TRUE(sentence.find("step-00000008.h5") != std::string::npos) << sentence;
  EXPECT_LT(metrics("fails").size(), 200);
  if (world().rank() == 0) {
    fs::remove(folder);
    fs::rename(aside, folder);
  }
  world().barrier();
  EXPECT_EQ(list_checkpoints(c.run.dir).size(), 3);
  c.train.steps = 6;
  run(c, keeping_log());
  EXPECT_TRUE(logged("run already complete"));
}

}  // namespace
}  // namespace llampi
