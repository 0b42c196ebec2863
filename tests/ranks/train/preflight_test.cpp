// SPDX-License-Identifier: Apache-2.0
// Checks before a run, with faults that can be planted in one process of a job.
#include "llampi/train/preflight.hpp"

#include <gmock/gmock.h>

#include "llampi/checkpoint/convert.hpp"
#include "llampi/comm/common_failure.hpp"
#include "ranks/train/run_fixture.hpp"
#include "support/simulated_nodes.hpp"
#include "train/preflight/checklist.hpp"
#include "train/preflight/speed.hpp"

namespace llampi::test {
namespace {

using namespace train;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class Preflight : public Train {
 protected:
  Config config() const {
    Config c = Train::config("run");
    c.fsdp.strategy = fsdp::Strategy::no_shard;
    return c;
  }
  Config config_of_new_run() const {
    Config c = config();
    c.run.dir = (folder_ / "new").string();
    return c;
  }
  PreflightResult check(const Config& c, const PreflightOptions& options = {}) const {
    return preflight(world(), c, {"resolved\n"}, options, Log());
  }
  static const PreflightCheck& of(const PreflightResult& result, const std::string& name) {
    const auto found = std::find_if(result.checks.begin(), result.checks.end(),
                                    [&](const auto& check) { return check.name == name; });
    if (found == result.checks.end()) throw Error("no check " + name);
    return *found;
  }
  /// The check that must fail, and no other of `healthy`: speeds are not judged where tests share the cores.
  std::string failure(const Config& c, const std::string& name, const PreflightOptions& options = {}) const {
    const PreflightResult result = check(c, options);
    EXPECT_FALSE(result.passed());
    EXPECT_EQ(of(result, name).verdict, Verdict::fail);
    for (const auto& other : result.checks) {
      if (other.name == name || other.name == "products" || other.name == "links") continue;
      EXPECT_NE(other.verdict, Verdict::fail) << other.name << ": " << other.text;
    }
    EXPECT_EQ(result.checks.size(), 11U);
    expect_unchanged();
    return of(result, name).text;
  }
  /// No folder of the run, and nothing beside it.
  void expect_unchanged() const {
    world().barrier();
    for (const auto& entry : fs::directory_iterator(folder_)) {
      EXPECT_THAT(entry.path().filename().string(),
                  ::testing::AnyOf("config.json", "tokens.h5", "eval.h5", "other.h5"));
    }
    world().barrier();
  }
  std::string rank_on_host(int rank) const {
    return fmt::format("rank {} on {}", rank, world().topology().host);
  }
};

TEST_F(Preflight, FindsNothingWrongAndLeavesNothing) {
  for (const auto strategy : {fsdp::Strategy::full_shard, fsdp::Strategy::no_shard}) {
    auto c = config();
    c.fsdp.strategy = strategy;
    std::vector<std::string> told;
    const auto result = check(c, {.program = "p",
                                  .tell = [&](const PreflightCheck& check) { told.push_back(check.name); },
                                  .complain = {}});
    EXPECT_THAT(told, ::testing::ElementsAre("program", "data", "weights", "products", "links", "steps",
                                             "replicas", "memory", "room", "checkpoint", "saving"));
    const bool has_replicas = strategy == fsdp::Strategy::no_shard && world().size() > 1;
    for (const auto& check : result.checks) {
      if (check.name == "products" || check.name == "links") continue;
      const bool skips = check.name == "weights" || (check.name == "replicas" && !has_replicas);
      EXPECT_EQ(check.verdict, skips ? Verdict::skip : Verdict::pass) << check.name << ": " << check.text;
    }
    const auto& figures = result.figures;
    EXPECT_EQ(std::ssize(figures.product_seconds), world().size());
    EXPECT_EQ(std::ssize(figures.links.inside_nodes), world().size() * (world().size() - 1) / 2);
    EXPECT_EQ(figures.losses.size(), 4U);
    EXPECT_GT(figures.checkpoint_bytes, 0);
    EXPECT_EQ(figures.planned_bytes, figures.used_bytes);
    expect_unchanged();
  }
}

TEST_F(Preflight, NamesTheRankWhoseCopiesAreSlow) {
  const ConfigError::Naming as_they_are;
  Checklist list(world(), {}, as_they_are);
  check_copies(list, {43e9, 50e9, 37e9});
  check_copies(list, {22e9, 22e9});
  check_copies(list, {30e9, 50e9, 70e9});
  check_copies(list, {24e9, 50e9, 50e9});
  EXPECT_EQ(list.checks()[0].verdict, Verdict::pass);
  EXPECT_EQ(list.checks()[0].text,
            "a GPU and its host exchange at least 37.00 GB/s in each direction at once");
  // As fast as PCIe 4 is: no fault, and no reason to refuse the run.
  EXPECT_EQ(list.checks()[1].verdict, Verdict::pass);
  EXPECT_EQ(
      list.checks()[1].text,
      "a GPU and its host exchange at least 22.00 GB/s in each direction at once, and activation.checkpointing = auto "
      "counts on 43.00 GB/s: what it keeps in host memory may be waited for");
  EXPECT_EQ(list.checks()[2].verdict, Verdict::pass);
  EXPECT_EQ(list.checks()[3].verdict, Verdict::fail);
  EXPECT_THAT(
      list.checks()[3].text,
      ::testing::StartsWith(
          rank_on_host(0) +
          " and its GPU exchange only 24.00 GB/s in each direction at once, where the median is 50.00 GB/s"));
}

TEST_F(Preflight, LeavesARunAsItWasAndStartsFromItsCheckpoint) {
  auto c = config();
  EXPECT_EQ(run(c), Outcome::done);
  c.train.steps = 20;
  const auto before = curve("run");
  const auto result = check(c);
  for (const auto* name : {"steps", "room", "checkpoint"})
    EXPECT_EQ(of(result, name).verdict, Verdict::pass) << name;
  world().barrier();
  EXPECT_EQ(curve("run"), before);
  EXPECT_EQ(checkpoint::list_checkpoints(c.run.dir).size(), 3U);
  EXPECT_LT(result.figures.losses.front(), check(config_of_new_run()).figures.losses.front());
  for (const auto& entry : fs::recursive_directory_iterator(folder_))
    EXPECT_THAT(entry.path().filename().string(), ::testing::Not(HasSubstr(".tmp")));
}

TEST_F(Preflight, NamesARankWithOtherData) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has nothing to compare with";
  if (world().rank() == 0) write_tokens("other.h5", 61, 2999);
  world().barrier();
  auto c = config();
  const int last = world().size() - 1;
  if (world().rank() == last) c.data.train = (folder_ / "other.h5").string();
  EXPECT_THAT(failure(c, "data"),
              AllOf(HasSubstr(rank_on_host(last) + " reads another data.train than the other ranks "
                                                   "(2,999 tokens in "),
                    HasSubstr("instead of 3,000 tokens in"), HasSubstr("give all nodes the same file")));
  if (world().rank() == last) c.data.train = (folder_ / "none.h5").string();
  EXPECT_THAT(failure(c, "data"), AllOf(HasSubstr(rank_on_host(last) + " cannot read what the others read: "),
                                        HasSubstr("none.h5")));
}

// The ranks of a node share a copy of the model, and the last node has another one.
TEST_F(Preflight, NamesANodeWithOtherWeights) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has nothing to compare with";
  EXPECT_EQ(run(Train::config("trained")), Outcome::done);
  const int last = world().size() - 1;
  for (const auto* node : {"here", "there"}) {
    const checkpoint::ExportRequest request{
        .checkpoint = checkpoint::checkpoint_path(folder_ / "trained", 12),
        .output = folder_ / node / "model",
        .tokenizers = {}};
    checkpoint::export_folder(world(), request, Log());
  }
  std::vector<int> nodes(static_cast<std::size_t>(world().size()), 0);
  nodes.back() = 1;
  SimulatedNodes simulated(world(), nodes);
  const auto before = fs::current_path();
  fs::current_path(folder_ / (world().rank() == last ? "there" : "here"));
  auto c = config();
  c.model.weights = "model";
  const auto compare = [&] {
    const auto result = preflight(simulated, c, {"resolved\n"}, {}, Log());
    world().barrier();
    return result;
  };
  const auto same = compare();
  EXPECT_EQ(of(same, "weights").verdict, Verdict::pass);
  EXPECT_THAT(of(same, "weights").text,
              MatchesRegex("the same bytes on 2 nodes: [0-9.]+ KiB in 1 file of model"));
  EXPECT_EQ(of(same, "checkpoint").verdict, Verdict::pass);

  const fs::path file = fs::path("model") / "model.safetensors";
  if (world().rank() == last) {
    std::fstream bytes(file, std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(static_cast<std::streamoff>(fs::file_size(file)) - 3);
    bytes.put('?');
  }
  world().barrier();
  const auto other = compare();
  EXPECT_EQ(of(other, "weights").verdict, Verdict::fail);
  EXPECT_THAT(of(other, "weights").text,
              HasSubstr("node node1 has other bytes in model/model.safetensors; copy the files there again"));
  EXPECT_EQ(of(other, "steps").text, "not checked after this failure");

  c.fsdp.sync_init = checkpoint::WeightsReading::broadcast;
  const auto broadcast = compare();
  EXPECT_EQ(of(broadcast, "weights").verdict, Verdict::skip);
  EXPECT_EQ(of(broadcast, "replicas").verdict, Verdict::pass);
  fs::current_path(before);
}

TEST_F(Preflight, RefusesTheFoldersThatARunRefuses) {
  const auto is_refused = [&](const Config& c, const std::string& sentence) {
    for (const bool checks : {true, false}) {
      try {
        checks ? (void)check(c) : (void)run(c);
        ADD_FAILURE() << sentence;
      } catch (const UserError& error) {
        EXPECT_THAT(error.what(), HasSubstr(sentence));
      }
    }
  };
  auto c = config_of_new_run();
  if (world().rank() == 0) {
    std::ofstream(folder_ / "file");
    fs::create_symlink(folder_ / "nowhere", folder_ / "link");
    fs::create_directories(folder_ / "half");
    std::ofstream(folder_ / "half/checkpoints");
    fs::create_directories(folder_ / "notes");
    std::ofstream(folder_ / "notes/config.ini") << "mine";
  }
  world().barrier();
  if (world().rank() == 0) {
    fs::create_directories(folder_ / "linked");
    fs::create_symlink(folder_ / "nowhere", folder_ / "linked/checkpoints");
  }
  world().barrier();
  c.run.dir = (folder_ / "linked").string();
  is_refused(c, "checkpoints");
  for (const auto* name : {"file", "link"}) {
    c.run.dir = (folder_ / name).string();
    is_refused(c, "run.dir = " + c.run.dir + " is not a folder");
  }
  c.run.dir = (folder_ / "half").string();
  is_refused(c, c.run.dir);
  c.run.dir = (folder_ / "notes").string();
  is_refused(c, "has no run but a config.ini");
  c = config_of_new_run();
  c.log.prometheus = (folder_ / "none/run.prom").string();
  is_refused(c, "log.prometheus");
}

// As a file system that is not mounted on one node: the same job succeeds elsewhere.
TEST_F(Preflight, AFileThatOneRankCannotReadIsNoMistakeOfTheUser) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has nothing to compare with";
  auto c = config_of_new_run();
  const int last = world().size() - 1;
  if (world().rank() == last) c.data.train = (folder_ / "none.h5").string();
  try {
    run(c);
    ADD_FAILURE() << "it was read";
  } catch (const comm::CommonError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr(rank_on_host(last)), HasSubstr("none.h5")));
  }
}

TEST_F(Preflight, WorkBeforeTheChecksIsWatchedAsTheyAre) {
  PreflightOptions options;
  bool begun = false;
  options.before = [&] {
    begun = true;
    throw UserError("not today");  // on all ranks: it is collective
  };
  options.tell = [&](const PreflightCheck& check) { ADD_FAILURE() << check.name << " was checked"; };
  EXPECT_THROW(check(config_of_new_run(), options), Error);
  EXPECT_TRUE(begun);
  expect_unchanged();
}

TEST_F(Preflight, RefusesWhatNoRankCanRead) {
  auto c = config();
  c.data.train = (folder_ / "none.h5").string();
  EXPECT_THROW(check(c), UserError);
  expect_unchanged();
}

TEST_F(Preflight, NamesARankWithAnotherProgram) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has nothing to compare with";
  const int last = world().size() - 1;
  const std::string version = world().rank() == last ? "2" : "1";
  EXPECT_THAT(
      failure(config(), "program", {.program = "llampi\nlibrary " + version, .tell = {}, .complain = {}}),
      AllOf(HasSubstr(rank_on_host(last) + " runs another program"),
            HasSubstr("\"library 2\" instead of \"library 1\"")));
}

// A seed of its own gives a rank other weights, as a fault would.
TEST_F(Preflight, NamesAReplicaThatDiffers) {
  if (world().size() == 1) GTEST_SKIP() << "one rank has no replicas";
  auto c = config();
  const int last = world().size() - 1;
  c.run.seed = world().rank() == last ? 1 : 0;
  const std::string text = failure(c, "replicas");
  EXPECT_THAT(
      text, AllOf(HasSubstr(rank_on_host(last)), HasSubstr(" from other replicas of the shard, first in ")));
  EXPECT_EQ(text.find(rank_on_host(0)) == std::string::npos, world().size() > 2) << text;
}

// The base is read again wherever a run starts, and is outside of checkpoints.
TEST_F(Preflight, ChecksARunOfAdapters) {
  auto c = config();
  c.train.steps = 4;
  EXPECT_EQ(run(c), Outcome::done);
  const std::string base = checkpoint::checkpoint_path(c.run.dir, 4).string();
  c = config_of_new_run();
  c.model.weights = base;
  c.lora.rank = 4;
  c.lora.targets = "proj";
  c.lora.dropout = 0.1;
  const auto result = check(c);
  for (const auto& check : result.checks) {
    if (check.name == "products" || check.name == "links") continue;
    const bool skips = check.name == "weights" || (check.name == "replicas" && world().size() == 1);
    EXPECT_EQ(check.verdict, skips ? Verdict::skip : Verdict::pass) << check.name << ": " << check.text;
  }
  EXPECT_EQ(result.figures.losses.size(), 4U);
  EXPECT_EQ(result.figures.planned_bytes, result.figures.used_bytes);
  EXPECT_FALSE(fs::exists(c.run.dir));

  // A seed of its own gives a rank other adapters of the same base.
  if (world().size() > 1) {
    const int last = world().size() - 1;
    auto other = c;
    other.run.seed = world().rank() == last ? 1 : 0;
    EXPECT_THAT(of(check(other), "replicas").text,
                AllOf(HasSubstr(rank_on_host(last)), HasSubstr(".lora_A.weight")));
  }

  // There is room for what a checkpoint takes.
  EXPECT_EQ(run(c), Outcome::done);
  const auto bytes = static_cast<std::int64_t>(fs::file_size(checkpoint::checkpoint_path(c.run.dir, 12)));
  EXPECT_LE(bytes, result.figures.checkpoint_bytes);
}

TEST_F(Preflight, NamesTheStepThatIsNotFinite) {
  auto c = config();
  c.optimizer.lr = 1e38;
  EXPECT_THAT(failure(c, "steps"), AllOf(HasSubstr("the loss or the gradient is not finite at step 2 of 4: "),
                                         HasSubstr("lower optimizer.lr")));
}

TEST_F(Preflight, SaysThatTheLossDoesNotFall) {
  auto c = config();
  c.optimizer.lr = 3;
  EXPECT_THAT(
      failure(c, "steps"),
      MatchesRegex("loss [0-9. ]+ in 4 steps on one batch does not fall at a learning rate that rises to "
                   "3; lower optimizer.lr.*"));
}

TEST_F(Preflight, TakesTheLearningRateThatTheScheduleHas) {
  auto c = config();
  c.optimizer.lr = 3;
  c.optimizer.warmup_steps = 1000 * c.train.steps;  // so that it ends at 0.003
  EXPECT_EQ(of(check(c), "steps").verdict, Verdict::pass);
}

TEST_F(Preflight, DoesNotAskThatTheLossFallsWhereTheRunIsFinished) {
  auto c = config();
  c.optimizer.lr = 0.01;
  EXPECT_EQ(run(c), Outcome::done);
  c.run.resume_with_changes = true;
  c.optimizer.lr = c.optimizer.min_lr = 3;
  EXPECT_EQ(of(check(c), "steps").verdict, Verdict::pass);
  c.train.steps += 4;
  EXPECT_EQ(of(check(c), "steps").verdict, Verdict::fail);
  c.optimizer.min_lr = 0;  // the last of many steps: nothing can be asked of 3e-12
  c.train.steps = 13;
  c.optimizer.lr = 1e-9;
  c.optimizer.schedule = optim::Decay::linear;
  EXPECT_EQ(of(check(c), "steps").verdict, Verdict::pass);
}

TEST_F(Preflight, SaysThatThereAreNoLabels) {
  write_singles();
  auto c = config();
  c.data.train = (folder_ / "singles.h5").string();
  c.data.document_mask = true;
  const auto result = check(c);
  EXPECT_THAT(of(result, "steps").text, HasSubstr("have no valid labels"));
  EXPECT_EQ(of(result, "steps").verdict, Verdict::fail);
  EXPECT_EQ(of(result, "checkpoint").verdict, Verdict::pass);
}

TEST_F(Preflight, ComparesWhatIsStoredNarrowerWithoutMoments) {
  auto c = config();
  c.checkpoint.state_dtype = DType::bfloat16;
  const auto result = check(c);
  EXPECT_EQ(of(result, "checkpoint").verdict, Verdict::pass);
  EXPECT_THAT(of(result, "checkpoint").text, HasSubstr("but for moments"));
}

}  // namespace
}  // namespace llampi::test
