// SPDX-License-Identifier: Apache-2.0
// Checkpoints that are written while training goes on.
#include <fcntl.h>
#include <unistd.h>

#include <regex>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/fsdp/device_mesh.hpp"
#include "llampi/fsdp/dump.hpp"
#include "llampi/train/stop.hpp"
#include "ranks/train/run_fixture.hpp"
#include "support/world_over.hpp"
#include "train/spilled_metrics.hpp"

namespace llampi::test {
namespace {

using namespace train;

TEST_F(Train, SavesTheSameBitsInTheBackground) {
  for (const auto strategy :
       {fsdp::Strategy::full_shard, fsdp::Strategy::no_shard, fsdp::Strategy::hybrid_shard}) {
    for (const auto dtype : {DType::float32, DType::bfloat16}) {
      if (fsdp::is_hybrid(strategy) && world().size() == 1) continue;  // needs replicas
      const std::string name = fmt::format("{}-{}", fsdp::to_string(strategy), to_string(dtype));
      SCOPED_TRACE(name);
      Config c = config(name);
      c.fsdp.strategy = strategy;
      if (fsdp::is_hybrid(strategy)) c.fsdp.shard_group_size = world().size() / 2;
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
  ASSERT_EQ(train::train(one_thread, c, {"resolved\n"}, keeping_log()), Outcome::done);
  EXPECT_TRUE(
      logged("checkpoint.async has no effect: an MPI for one thread does not provide MPI_THREAD_MULTIPLE"));
  EXPECT_EQ(curve("async"), curve("whole"));
  EXPECT_EQ(tensors("async", 12), tensors("whole", 12));
}

TEST_F(Train, TellsHowLongASaveHeldItUp) {
  Config c = config("async");
  c.checkpoint.async = true;
  c.train.steps = 9;
  std::string memory;
  ASSERT_EQ(run(c, keeping_log([&](const std::string& line) {
                  if (line.starts_with("memory per rank: planned ")) memory = line;
                })),
            Outcome::done);
  std::smatch bytes;
  if (world().rank() == 0) {
    ASSERT_TRUE(std::regex_search(memory, bytes, std::regex("planned (.*), used (.*);")));
    EXPECT_EQ(bytes[2], bytes[1]) << "with the room for the copy";
  }
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
  // Step 4, at which a save begins, is told of at once; step 5 while step 6 runs.
  for (const int told : {4, 5}) {
    c.run.dir = (folder_ / fmt::format("stopped-{}", told)).string();
    ASSERT_EQ(run(c, at_step(told, world().size() - 1, [] { request_stop(); })), Outcome::stopped);
    expect_stopped_soon_after(told, c);
    ASSERT_EQ(run(c), Outcome::done);
    EXPECT_EQ(curve(fmt::format("stopped-{}", told)), curve("whole"));
    EXPECT_EQ(tensors(fmt::format("stopped-{}", told), 12), tensors("whole", 12));
  }
}

// Where run.dir has no room in the end; a file instead of the folder stands for that.
TEST_F(Train, TheLastCheckpointGoesElsewhereAndIsFoundThere) {
  const Config whole = config("whole");
  run(whole);
  for (const bool async : {false, true}) {
    SCOPED_TRACE(async);
    Config c = config(fmt::format("moved-{}", async));
    c.checkpoint.async = async;
    c.checkpoint.fallback_dir = (folder_ / "elsewhere").string();
    const fs::path folder = fs::path(c.run.dir) / "checkpoints", aside = folder_ / "aside";
    const auto obstruct = [&](const std::string& line) {
      const bool now =
          async ? line.find("step-00000008.h5 in ") != std::string::npos : line.starts_with("step 11/12 ");
      if (world().rank() != 0 || !now) return;
      fs::rename(folder, aside);
      std::ofstream(folder) << "no folder";
    };
    ASSERT_EQ(run(c, keeping_log(obstruct)), Outcome::done);
    const auto kept = folder_ / "elsewhere" / fs::weakly_canonical(c.run.dir).relative_path();
    EXPECT_TRUE(fs::exists(checkpoint::checkpoint_path(kept, 12)));
    EXPECT_TRUE(logged("the checkpoint of step 12 is in checkpoint.fallback_dir: " +
                       checkpoint::checkpoint_path(kept, 12).string()));
    world().barrier();
    if (world().rank() == 0) {
      fs::remove(folder);
      fs::rename(aside, folder);
    }
    world().barrier();
    run(c, keeping_log());
    EXPECT_TRUE(logged(checkpoint::checkpoint_path(kept, 12).string()));
    EXPECT_EQ(metrics(fmt::format("moved-{}", async)).size(), 12) << "nothing was left to do";
    c.checkpoint.fallback_dir.clear();
    run(c, keeping_log());
    EXPECT_TRUE(logged("already complete: " + checkpoint::checkpoint_path(kept, 12).string()));
    world().barrier();
    if (world().rank() == 0) fs::remove_all(kept);  // lost: from step 8 on
    world().barrier();
    run(c, keeping_log());
    EXPECT_TRUE(logged("is gone; taking "));
    EXPECT_EQ(tensors(fmt::format("moved-{}", async), 12), tensors("whole", 12));
  }
}

/// Whatever is written to the open file from now on finds no room.
void fill_the_disk_of(const fs::path& file) {
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (fs::read_symlink(entry.path(), ignored) != fs::canonical(file)) continue;
    ASSERT_GE(::dup2(full, std::stoi(entry.path().filename())), 0);
  }
  ::close(full);
}

TEST_F(Train, LinesOfMetricsThatAreElsewhereReturnWithTheCheckpointThere) {
  run(config("whole"));
  Config c = config("spilled");
  c.checkpoint.async = false;
  c.checkpoint.fallback_dir = (folder_ / "elsewhere").string();
  const fs::path kept = folder_ / "elsewhere" / fs::weakly_canonical(c.run.dir).relative_path();
  const auto spilled = [&] {
    world().barrier();
    return list_spilled_metrics(kept);
  };
  ASSERT_EQ(run(c, keeping_log([&](const std::string& line) {
                  if (world().rank() != 0) return;
                  if (line.starts_with("step  5/12 "))
                    fill_the_disk_of(fs::path(c.run.dir) / "metrics.jsonl");
                  if (line.starts_with("step  9/12 ")) request_stop();
                })),
            Outcome::stopped);
  const auto step = checkpoint::checkpoint_step(checkpoint::list_checkpoints(kept).back()).value();
  EXPECT_GE(step, 9);
  const auto files = spilled();
  ASSERT_EQ(files.size(), 1U) << "that of step 8 has nothing that this one has not";
  EXPECT_EQ(files.begin()->first, step);
  EXPECT_LT(metrics("spilled").size(), 9U);
  world().barrier();
  ASSERT_EQ(run(c), Outcome::done);
  EXPECT_EQ(curve("spilled"), curve("whole"));
  EXPECT_TRUE(spilled().empty());
}

TEST_F(Train, LinesOfMetricsThatAreElsewhereReturnToARunThatIsComplete) {
  run(config("whole"));
  Config c = config("spilled");
  c.checkpoint.async = false;
  c.checkpoint.fallback_dir = (folder_ / "elsewhere").string();
  const fs::path kept = folder_ / "elsewhere" / fs::weakly_canonical(c.run.dir).relative_path();
  ASSERT_EQ(run(c, at_step(5, 0, [&] { fill_the_disk_of(fs::path(c.run.dir) / "metrics.jsonl"); })),
            Outcome::done);
  EXPECT_TRUE(logged("make room in " + c.run.dir +
                     ". The same command continues from it, and appends the lines in " +
                     spilled_metrics(kept, 12).string() + " to metrics.jsonl"));
  EXPECT_LT(metrics("spilled").size(), 12U);
  world().barrier();
  ASSERT_EQ(run(c, keeping_log()), Outcome::done);
  EXPECT_TRUE(logged("run already complete"));
  EXPECT_EQ(curve("spilled"), curve("whole"));
  EXPECT_TRUE(list_spilled_metrics(kept).empty());
}

TEST_F(Train, ASaveWaitsForRoomAndIsMadeThen) {
  const Config whole = config("whole");
  run(whole);
  Config c = config("waits");
  const fs::path folder = fs::path(c.run.dir) / "checkpoints", aside = folder_ / "aside";
  const auto obstruct = [&](const std::string& line) {
    if (world().rank() != 0) return;
    if (line.starts_with("step 11/12 ")) {
      fs::rename(folder, aside);
      std::ofstream(folder) << "no folder";
    } else if (line.find("The state stays in memory") != std::string::npos) {
      fs::remove(folder);
      fs::rename(aside, folder);
    }
  };
  ASSERT_EQ(run(c, keeping_log(obstruct)), Outcome::done);
  EXPECT_TRUE(logged("waiting up to 1h 00m (checkpoint.wait_minutes, run.max_hours; a signal or the file " +
                     c.run.dir + "/stop ends the wait and the run)"));
  EXPECT_EQ(tensors("waits", 12), tensors("whole", 12));
  EXPECT_EQ(curve("waits"), curve("whole"));
}

TEST_F(Train, TheFolderOfCheckpointsIsMadeAgainWhereItWasDeleted) {
  for (const bool async : {false, true}) {
    Config c = config(fmt::format("deleted-{}", async));
    c.checkpoint.async = async;
    c.checkpoint.wait_minutes = 0;
    const fs::path folder = fs::path(c.run.dir) / "checkpoints";
    EXPECT_EQ(run(c, keeping_log([&](const std::string& line) {
                    if (world().rank() == 0 && line.find("step-00000004.h5 in ") != std::string::npos)
                      fs::remove_all(folder);
                  })),
              Outcome::done);
    EXPECT_TRUE(logged(folder.string() +
                       " and the checkpoints in it have been deleted; the folder is created again"));
    EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir).back(), checkpoint::checkpoint_path(c.run.dir, 12));
  }
}

// Its disk may be gone, and what would be made in its place is on another.
TEST_F(Train, NoFolderIsMadeWhereAllOfTheRunIsGone) {
  Config c = config("unmounted");
  c.checkpoint.async = false;
  c.checkpoint.wait_minutes = 0;
  const fs::path dir = c.run.dir;
  EXPECT_THROW(run(c, keeping_log([&](const std::string& line) {
                     if (world().rank() != 0 || line.find("step-00000004.h5 in ") == std::string::npos)
                       return;
                     fs::rename(dir, folder_ / "aside");
                     fs::create_directory(dir);  // where it was mounted
                   })),
               UserError);
  world().barrier();
  EXPECT_FALSE(fs::exists(dir / "checkpoints"));
}

TEST_F(Train, AStopEndsAWaitForRoom) {
  for (const std::string way : {"signal", "file"}) {
    Config c = config("stopped-by-" + way);
    const fs::path dir = c.run.dir;
    std::string sentence = "not refused";
    try {
      run(c, keeping_log([&](const std::string& line) {
            if (line.starts_with("step 11/12 ") && world().rank() == 0) {
              fs::rename(dir / "checkpoints", dir / "aside");
              std::ofstream(dir / "checkpoints") << "no folder";
            }
            if (line.find("The state stays in memory") == std::string::npos) return;
            if (way == "signal") return request_stop();
            std::ofstream(dir / "stop") << "";
          }));
    } catch (const UserError& error) {
      sentence = error.what();
    }
    EXPECT_TRUE(sentence.find("cannot write the checkpoint") != std::string::npos) << sentence;
    world().barrier();
    EXPECT_FALSE(fs::exists(dir / "stop")) << "it would stop what continues the run";
    EXPECT_EQ(fs::exists(dir / "stopped"), way == "file");
  }
}

/// With room nowhere, which is known only when it is written.
class FailsInTheBackground : public Train {
 protected:
  Config config_that_fails(const std::string& name) const {
    Config c = config(name);
    c.checkpoint.async = true;
    c.checkpoint.every = 2;
    c.checkpoint.wait_minutes = 0;
    return c;
  }
  /// From the moment when step 6 is saved.
  std::function<void(const std::string&)> obstructing(const Config& c) {
    return
        [folder = fs::path(c.run.dir) / "checkpoints", aside = folder_ / "aside"](const std::string& line) {
          if (world().rank() != 0 || line.find("step-00000006.h5 in ") == std::string::npos) return;
          fs::rename(folder, aside);
          std::ofstream(folder) << "no folder";
        };
  }
};

TEST_F(FailsInTheBackground, SavesAgainWhereTheFallbackIs) {
  const Config whole = config("whole");
  run(whole);
  Config c = config_that_fails("again");
  c.checkpoint.fallback_dir = (folder_ / "elsewhere").string();
  ASSERT_EQ(run(c, keeping_log(obstructing(c))), Outcome::done);
  EXPECT_TRUE(logged("cannot write the checkpoint"));
  const auto kept = folder_ / "elsewhere" / fs::weakly_canonical(c.run.dir).relative_path();
  EXPECT_EQ(tensors_of(checkpoint::checkpoint_path(kept, 12)), tensors("whole", 12));
  EXPECT_EQ(curve("again"), curve("whole"));
}

TEST_F(FailsInTheBackground, EndsTheRunOnAllRanksWhereThereIsNoRoomAtAll) {
  Config c = config_that_fails("fails");
  c.train.steps = 200;
  const auto folder = folder_ / "fails/checkpoints", aside = folder_ / "aside";
  std::string sentence = "not refused";
  try {
    run(c, keeping_log(obstructing(c)));
  } catch (const UserError& error) {
    sentence = error.what();
  }
  EXPECT_TRUE(sentence.find("cannot write the checkpoint") != std::string::npos) << sentence;
  EXPECT_TRUE(logged("step-00000008.h5"));
  EXPECT_LT(metrics("fails").size(), 200);
  if (world().rank() == 0) {
    fs::remove(folder);
    fs::rename(aside, folder);
  }
  world().barrier();
  EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir).size(), 3);
  c.train.steps = 6;
  run(c, keeping_log());
  EXPECT_TRUE(logged("run already complete"));
}

}  // namespace
}  // namespace llampi::test
