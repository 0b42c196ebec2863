// Whole runs in a temporary folder: resuming, stopping, finishing, refusing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "llampi/checkpoint/checkpoint.hpp"
#include "llampi/data/token_file.hpp"
#include "llampi/train/train.hpp"
#include "support/mpi_test.hpp"

namespace llampi {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 61,
  "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
  "num_key_value_heads": 1, "max_position_embeddings": 64})";

class Train : public ::testing::Test {
 protected:
  Train() {
    folder_ = world().broadcast(
        (fs::temp_directory_path() / fmt::format("llampi-train-{}", ::getpid())).string(), 0);
    if (world().rank() == 0) {
      fs::create_directories(folder_);
      std::ofstream(folder_ / "config.json") << kModel;
      write_tokens("tokens.h5", 61, 3000);
      write_tokens("eval.h5", 61, 500);
    }
    world().barrier();
  }
  ~Train() override {
    world().barrier();
    if (world().rank() == 0) fs::remove_all(folder_);
  }

  static World& world() { return test_world(); }

  void write_tokens(const std::string& name, std::int32_t vocabulary, int count) const {
    TokenFileWriter writer(folder_ / name, vocabulary, "bytes");
    std::vector<std::int32_t> document;
    for (int i = 0; i < count; ++i) {
      document.push_back((i * i + i / 7) % vocabulary);
      if (i % 37 == 36) writer.append_document(document), document.clear();
    }
    if (!document.empty()) writer.append_document(document);
    writer.close();
  }

  /// Twelve steps with a checkpoint after every fourth.
  Config config(const std::string& run) const {
    Config c;
    c.run.dir = (folder_ / run).string();
    c.run.threads = 1;
    c.model.config = (folder_ / "config.json").string();
    c.data.train = (folder_ / "tokens.h5").string();
    c.data.seq_len = 16;
    c.train.steps = 12;
    c.train.micro_batch = 1;
    c.train.global_batch = 12;
    c.optimizer.lr = 1e-2;
    c.optimizer.warmup_steps = 3;
    c.checkpoint.every = 4;
    c.checkpoint.keep = 10;
    return c;
  }

  Outcome run(const Config& c) const { return train(world(), c, "resolved\n", Log()); }

  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::ifstream in(folder_ / run / "metrics.jsonl");
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  /// What must not depend on when a run was interrupted.
  std::vector<std::string> curve(const std::string& run) const {
    std::vector<std::string> values;
    for (auto& line : metrics(run)) {
      for (const auto* key : {"step_seconds", "data_seconds", "tokens_per_second",
                              "tokens_per_second_per_rank", "memory_bytes"}) {
        line.erase(key);
      }
      values.push_back(line.dump());
    }
    return values;
  }

  /// All tensors of a checkpoint, on one rank's memory.
  std::vector<std::vector<float>> tensors(const std::string& run, std::int64_t step) const {
    const auto file = checkpoint_path(folder_ / run, step);
    const auto infos = read_checkpoint_summary(file).tensors;
    std::vector<std::vector<float>> values;
    std::vector<TensorPiece> pieces;
    for (std::size_t t = 0; t < infos.size(); ++t) {
      std::int64_t n = 1;
      for (const auto extent : infos[t].shape) n *= extent;
      for (int k = 0; k < 3; ++k) values.emplace_back(n);
      const auto at = values.end() - 3;
      pieces.push_back({static_cast<int>(t), 0, n, at[0].data(), at[1].data(), at[2].data()});
    }
    load_checkpoint(world(), file, infos, pieces);
    return values;
  }

  void copy_checkpoint(const std::string& from, const std::string& to, std::int64_t step) const {
    if (world().rank() == 0) {
      fs::create_directories(folder_ / to / "checkpoints");
      fs::copy(checkpoint_path(folder_ / from, step), checkpoint_path(folder_ / to, step));
      fs::copy(folder_ / from / "metrics.jsonl", folder_ / to / "metrics.jsonl");
    }
    world().barrier();
  }

  fs::path folder_;
};

TEST_F(Train, WritesOneLinePerStepAndTheCheckpointsAskedFor) {
  EXPECT_EQ(run(config("a")), Outcome::done);
  const auto lines = metrics("a");
  ASSERT_EQ(lines.size(), 12U);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());
  std::vector<std::string> names;
  for (const auto& file : list_checkpoints(folder_ / "a")) names.push_back(file.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"step-00000004.h5", "step-00000008.h5", "step-00000012.h5"}));
  EXPECT_TRUE(fs::exists(folder_ / "a" / "config.ini"));
}

TEST_F(Train, AResumedRunHasTheBitsOfAnUninterruptedOne) {
  for (const auto* strategy : {"full_shard", "no_shard"}) {
    auto whole = config(std::string("whole-") + strategy);
    whole.fsdp.strategy = strategy;
    run(whole);
    for (const std::int64_t step : {4, 8}) {
      const std::string name = fmt::format("resumed-{}-{}", strategy, step);
      copy_checkpoint(std::string("whole-") + strategy, name, step);
      auto resumed = whole;
      resumed.run.dir = (folder_ / name).string();
      EXPECT_EQ(run(resumed), Outcome::done);
      EXPECT_EQ(curve(name), curve(std::string("whole-") + strategy));
      EXPECT_EQ(tensors(name, 12), tensors(std::string("whole-") + strategy, 12));
    }
  }
}

TEST_F(Train, AStopSavesAndTheNextRunContinues) {
  run(config("whole"));
  const auto stopped = config("stopped");
  // Rank size-1 alone is told to stop; at step 0 there is nothing to save.
  if (world().rank() == world().size() - 1) request_stop();
  EXPECT_EQ(run(stopped), Outcome::stopped);
  EXPECT_TRUE(list_checkpoints(folder_ / "stopped").empty());

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
  other.run.resume = checkpoint_path(folder_ / "a", 8).string();
  EXPECT_EQ(run(other), Outcome::done);
  const auto lines = metrics("b");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines.front()["step"], 9);
  EXPECT_EQ(tensors("b", 12), tensors("a", 12));
}

TEST_F(Train, RefusesWhatWouldMixRuns) {
  run(config("a"));
  auto never = config("a");
  never.run.resume = "never";
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

TEST_F(Train, EpochsCountWholeBatches) {
  auto c = config("a");
  c.train.steps = 0;
  c.train.epochs = 2;
  run(c);
  // floor(2999 / 16) = 187 samples, 15 steps of 12 per epoch.
  EXPECT_EQ(metrics("a").size(), 30U);
}

TEST_F(Train, EvaluatesHeldOutDataAndLeavesTheCurveAlone) {
  run(config("a"));
  auto c = config("b");
  c.data.eval = (folder_ / "eval.h5").string();
  c.train.eval_every = 5;
  run(c);
  std::vector<nlohmann::json> evaluations;
  std::vector<std::string> steps;
  for (const auto& line : metrics("b")) {
    if (line.contains("eval_loss")) evaluations.push_back(line);
  }
  ASSERT_EQ(evaluations.size(), 3U) << "steps 5, 10 and the last";
  EXPECT_EQ(evaluations[0]["step"], 5);
  EXPECT_LT(evaluations[2]["eval_loss"].get<double>(), evaluations[0]["eval_loss"].get<double>());
  EXPECT_EQ(tensors("a", 12), tensors("b", 12));

  // The same loss from the checkpoint, with another micro-batch.
  const auto result =
      evaluate(world(), checkpoint_path(folder_ / "b", 12), folder_ / "eval.h5", 16, 3, 1, Log());
  // Sums of about 500 float32 token losses of about 4 in another grouping.
  EXPECT_NEAR(result.loss, evaluations[2]["eval_loss"].get<double>(), 1e-6 * result.loss);
}

TEST_F(Train, AStepWithoutValidLabelsHasLossZeroAndNoUpdate) {
  // One token per document: no label belongs to its input's document.
  if (world().rank() == 0) {
    TokenFileWriter writer(folder_ / "singles.h5", 61, "bytes");
    const std::vector<std::int32_t> one = {7};
    for (int i = 0; i < 400; ++i) writer.append_document(one);
    writer.close();
  }
  world().barrier();
  auto c = config("a");
  c.data.train = (folder_ / "singles.h5").string();
  c.train.steps = 2;
  c.checkpoint.every = 1;
  EXPECT_EQ(run(c), Outcome::done);
  for (const auto& line : metrics("a")) {
    EXPECT_EQ(line["loss"], 0);
    EXPECT_EQ(line["tokens"], 0);
  }
  EXPECT_EQ(tensors("a", 1), tensors("a", 2));
}

TEST_F(Train, BadInputIsTheUsersMistakeOnEveryRank) {
  auto c = config("a");
  c.train.global_batch = 12 * world().size() + 1;
  if (world().size() > 1) {
    EXPECT_THROW(run(c), UserError);
  }
  c = config("a");
  c.train.global_batch = 1200;
  EXPECT_THROW(run(c), UserError) << "more samples than the file has";
  c = config("a");
  c.data.train = (folder_ / "config.json").string();
  EXPECT_THROW(run(c), UserError) << "no token file";
  c = config("a");
  c.data.seq_len = 128;
  EXPECT_THROW(run(c), UserError) << "longer than the model's positions";
  EXPECT_FALSE(fs::exists(folder_ / "a")) << "nothing is written before the input is known to be right";
}

}  // namespace
}  // namespace llampi
