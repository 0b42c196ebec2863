// The engine's choices, asked for as a user does: each continues with equal bits and learns; the trace opens.
#include <gmock/gmock.h>

#include <fstream>
#include <set>

#include "train/run_fixture.hpp"

namespace llampi {
namespace {

struct Choice {
  std::string name;
  std::function<void(Config&)> apply;
};

std::vector<Choice> choices() {
  return {
      {"shard_grad_op", [](Config& c) { c.fsdp.strategy = "shard_grad_op"; }},
      {"hybrid", [](Config& c) { c.fsdp.strategy = "hybrid_shard", c.fsdp.shard_group_size = "2"; }},
      {"hybrid_zero2",
       [](Config& c) { c.fsdp.strategy = "hybrid_shard_zero2", c.fsdp.shard_group_size = "1"; }},
      {"wrap_size", [](Config& c) { c.fsdp.wrap = "size", c.fsdp.wrap_min_params = 1000; }},
      {"wrap_modules",
       [](Config& c) { c.fsdp.wrap = "modules", c.fsdp.wrap_modules = "LlamaAttention \\.mlp$"; }},
      {"wrap_none", [](Config& c) { c.fsdp.wrap = "none"; }},
      {"unsharded", [](Config& c) { c.fsdp.accumulate = "unsharded"; }},
      {"bfloat16", [](Config& c) { c.fsdp.param_dtype = c.fsdp.reduce_dtype = "bfloat16"; }},
      {"full", [](Config& c) { c.activation.checkpointing = "full"; }},
      {"selective", [](Config& c) { c.activation.checkpointing = "selective"; }},
  };
}

bool possible(const Choice& choice, int ranks) {
  if (choice.name == "hybrid") return ranks % 2 == 0 && ranks > 2;
  return choice.name != "hybrid_zero2" || ranks > 1;
}

TEST_F(Train, EveryChoiceContinuesWithEqualBits) {
  for (const auto& choice : choices()) {
    if (!possible(choice, world().size())) continue;
    SCOPED_TRACE(choice.name);
    const auto whole_name = fmt::format("whole-{}", choice.name),
               name = fmt::format("resumed-{}", choice.name);
    auto whole = config(whole_name);
    choice.apply(whole);
    EXPECT_EQ(run(whole), Outcome::done);
    const auto lines = metrics(whole_name);
    EXPECT_LT(lines.back()["loss"].get<double>(), lines.front()["loss"].get<double>());

    copy_checkpoint(whole_name, name, 8);
    auto resumed = whole;
    resumed.run.dir = (folder_ / name).string();
    EXPECT_EQ(run(resumed), Outcome::done);
    EXPECT_EQ(curve(name), curve(whole_name));
    EXPECT_EQ(tensors(name, 12), tensors(whole_name, 12));
  }
}

TEST_F(Train, SchedulingAloneDoesNotChangeTheRun) {
  run(config("plain"));
  for (const auto& choice : choices()) {
    const std::set<std::string> scheduling = {"shard_grad_op", "wrap_size", "wrap_modules",
                                              "wrap_none",     "full",      "selective"};
    if (!scheduling.count(choice.name)) continue;
    SCOPED_TRACE(choice.name);
    auto c = config(choice.name);
    choice.apply(c);
    run(c);
    EXPECT_EQ(curve(choice.name), curve("plain"));
    EXPECT_EQ(tensors(choice.name, 12), tensors("plain", 12));
  }
}

TEST_F(Train, ACheckpointOfOneStrategyContinuesInAnother) {
  auto first = config("first");
  first.fsdp.wrap = "none";
  run(first);
  copy_checkpoint("first", "second", 8);
  auto second = config("second");
  second.fsdp.strategy = "no_shard";
  second.activation.checkpointing = "full";
  EXPECT_EQ(run(second), Outcome::done);
  EXPECT_EQ(tensors("second", 12), tensors("first", 12));
}

TEST_F(Train, TheTraceHoldsWhatTheEngineDidInTheStepsAskedFor) {
  auto c = config("a");
  c.log.trace = "3-4";
  run(c);
  world().barrier();
  for (int rank = 0; rank < world().size(); ++rank) {
    std::ifstream in(folder_ / "a" / "trace" / fmt::format("rank-{:05}.json", rank));
    const auto trace = nlohmann::json::parse(in);
    std::map<std::string, int> count;
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      ++count[event["cat"]];
      EXPECT_GE(event["dur"].get<double>(), 0);
      EXPECT_EQ(event["pid"], rank);
    }
    // Two steps of 12 / ranks micro-batches; embedding, two stages per block and the loss; four units.
    const int micro_batches = 2 * 12 / world().size();
    EXPECT_EQ(count["forward"], 5 * micro_batches);
    EXPECT_EQ(count["backward"], 6 * micro_batches);
    EXPECT_EQ(count["reduce"], world().size() > 1 ? 4 * micro_batches : 0);
    EXPECT_EQ(count["update"], 2 * 4);
  }
}

TEST_F(Train, RefusesWhatItCannotDoAsAsked) {
  auto c = config("a");
  c.fsdp.strategy = "hybrid_shard";
  EXPECT_THROW(run(c), UserError) << "all ranks are on one node";
  c.fsdp.shard_group_size = "two";
  EXPECT_THROW(run(c), UserError);
  c = config("a");
  c.fsdp.wrap = "modules";
  EXPECT_THROW(run(c), UserError) << "names no modules";
  c.fsdp.wrap_modules = "NoSuchModule";
  EXPECT_THROW(run(c), UserError);
  for (const auto* steps : {"x", "4-2", "-3", "1-"}) {
    c = config("a");
    c.log.trace = steps;
    EXPECT_THROW(run(c), UserError) << steps;
  }
}

}  // namespace
}  // namespace llampi
