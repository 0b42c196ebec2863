// SPDX-License-Identifier: Apache-2.0
// The report of a plan against the compiled model that it reads, and against what can be counted by hand.
#include "llampi/plan/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "llampi/core/text.hpp"
#include "llampi/model/llama.hpp"

namespace llampi::test {
namespace {

using namespace plan;

using ::testing::HasSubstr;

struct Case {
  std::string name;
  int ranks = 3;
  int shard_group_size = 0;
  fsdp::EngineOptions options = {};
  std::string frozen = {};
};

struct Compiled {
  std::unique_ptr<model::Model> model;
  fsdp::EngineOptions options;
  fsdp::DeviceMesh mesh;
  fsdp::CompiledModel compiled;
  PlanReport report;
};

std::unique_ptr<model::Model> small_llama() {
  model::LlamaConfig config;
  config.vocab_size = 1001;
  config.hidden_size = 96;
  config.intermediate_size = 200;
  config.layers = 4;
  config.query_heads = 6;
  config.key_value_heads = 2;
  config.head_dim = 16;
  config.max_position_embeddings = 64;
  return model::make_llama(config);
}

Compiled compile(const Case& c) {
  Compiled result;
  result.model = small_llama();
  result.options = c.options;
  result.options.batch = {2, 16};
  result.options.parameter_groups = optim::parameter_groups(result.model->parameters(), {.frozen = c.frozen});
  result.mesh = fsdp::make_device_mesh(c.options.strategy, std::vector<int>(c.ranks, 0), c.shard_group_size);
  result.compiled =
      fsdp::compile_model(*result.model, result.options, result.mesh, *device::make_cpu_sizes(2));
  const Machine machine{.device = "cpu",
                        .shape = {.ranks = c.ranks, .ranks_per_node = c.ranks, .threads = 2}};
  result.report = make_report(*result.model, {machine, result.options, result.mesh}, result.compiled);
  return result;
}

fsdp::EngineOptions with(const std::function<void(fsdp::EngineOptions&)>& change) {
  fsdp::EngineOptions options;
  change(options);
  return options;
}

std::vector<Case> cases() {
  const fsdp::Precision narrow{.param = DType::bfloat16, .reduce = DType::bfloat16};
  const auto offload = [](bool params, bool host_step) {
    return with([&](auto& o) { o.offload = {true, params, host_step}; });
  };
  return {
      {"default"},
      {"one rank", 1},
      {"accumulation", 3, 0, with([](auto& o) { o.micro_batches = 3, o.accumulate_unsharded = true; })},
      {"no_shard", 3, 0, with([](auto& o) { o.strategy = fsdp::Strategy::no_shard; })},
      {"hybrid", 4, 2, with([](auto& o) { o.strategy = fsdp::Strategy::hybrid_shard; })},
      {"narrow", 3, 0, with([&](auto& o) { o.precision = narrow; })},
      {"recomputing", 2, 0, with([](auto& o) { o.checkpointing = fsdp::Checkpointing::full; })},
      {"optimizer in host memory", 2, 0, offload(false, false)},
      {"all in host memory", 2, 0, offload(true, false)},
      {"stepped on the host", 2, 0, offload(false, true)},
      {"frozen in part", 2, 0, {}, "embed|norm"},
  };
}

/// Bytes of the buffers for which `chosen`.
template <class Chosen>
std::int64_t bytes_of(const fsdp::Program& plan, const Chosen& chosen) {
  std::int64_t bytes = 0;
  for (const auto& buffer : plan.buffers) {
    if (chosen(buffer)) bytes += buffer.bytes;
  }
  return bytes;
}

std::int64_t bytes_of(const std::vector<fsdp::PurposeBytes>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& row) { return sum + row.bytes; });
}

bool alive(const fsdp::Buffer& buffer, int action) {
  for (const auto& range : buffer.live) {
    if (range.first <= action && action <= range.last) return true;
  }
  return buffer.persistent;
}

TEST(Report, HasTheCompiledArenas) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto [model, options, mesh, compiled, report] = compile(c);
    for (int a = 0; a < fsdp::kArenas; ++a) {
      EXPECT_EQ(report.memory.arenas[a].planned, compiled.arena_bytes[a]);
      EXPECT_EQ(report.memory.arenas[a].step, compiled.step.arena_bytes[a]);
      EXPECT_EQ(report.memory.arenas[a].evaluation, compiled.evaluation.arena_bytes[a]);
      EXPECT_EQ(report.memory.arenas[a].kept, bytes_of(compiled.step, [&](const fsdp::Buffer& b) {
                  return b.persistent && static_cast<int>(b.arena) == a;
                }));
    }
    EXPECT_EQ(report.memory.total().planned, compiled.arena_bytes[0] + compiled.arena_bytes[1]);
    EXPECT_EQ(report.memory.total().step, fsdp::total(compiled.step.arena_bytes));
    EXPECT_EQ(bytes_of(report.memory.purposes),
              bytes_of(compiled.step, [](const fsdp::Buffer&) { return true; }));
  }
}

TEST(Report, CountsWhatProcessesTakeOfAMachine) {
  const Machine cpus{.memory_bytes = 1 << 30, .shape = {.ranks = 3, .ranks_per_node = 2}};
  const fsdp::AvailableMemory of_cpus = cpus.memory();
  EXPECT_TRUE(of_cpus.one_memory);
  EXPECT_EQ(of_cpus.on_device, 1 << 30);
  EXPECT_EQ(of_cpus.on_host, std::nullopt) << "not known";
  EXPECT_EQ(of_cpus.process_on_device, kProcessBytes);
  const Machine gpus{.host_memory_bytes = 1 << 20,
                     .shape = {.ranks = 3, .ranks_per_node = 2, .backend = comm::Backend::nccl}};
  const fsdp::AvailableMemory of_gpus = gpus.memory();
  EXPECT_FALSE(of_gpus.one_memory);
  EXPECT_EQ(of_gpus.on_device, std::nullopt);
  EXPECT_EQ(of_gpus.on_host, 1 << 20);
  EXPECT_EQ(of_gpus.ranks_on_host, 2);
  EXPECT_EQ(of_gpus.process_on_device, context_bytes(comm::Backend::nccl));
  EXPECT_EQ(of_gpus.process_on_host, kProcessBytes);
}

TEST(Report, TheBusiestMomentIsTheBusiest) {
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto [model, options, mesh, compiled, report] = compile(c);
    std::int64_t most = -1;
    int busiest = -1;
    for (int i = 0; i < compiled.step.size(); ++i) {
      const auto live =
          bytes_of(compiled.step, [&](const fsdp::Buffer& b) { return !b.persistent && alive(b, i); });
      if (live > most) most = live, busiest = i;
    }
    EXPECT_EQ(report.memory.peak.transient_bytes(), most);
    EXPECT_EQ(report.memory.peak.action, busiest);
    EXPECT_EQ(bytes_of(report.memory.peak.purposes), most + report.memory.total().kept);
    EXPECT_LE(bytes_of(report.memory.peak.purposes), report.memory.total().step);
    EXPECT_THAT(report.memory.peak.description,
                ::testing::StartsWith(fsdp::to_string(compiled.step.actions[busiest].op)));
    std::int64_t kept = 0, peak = 0;
    for (int category = 0; category < fsdp::kCategories; ++category) {
      for (int a = 0; a < fsdp::kArenas; ++a) {
        const auto bytes =
            report.memory.total(static_cast<fsdp::Category>(category), static_cast<fsdp::Arena>(a));
        kept += bytes.kept, peak += bytes.peak;
      }
    }
    EXPECT_EQ(kept, report.memory.total().kept);
    EXPECT_EQ(peak, bytes_of(report.memory.peak.purposes));
  }
}

// Each of n ranks keeps 1/n of the parameters and moments. A unit is padded by less than n x kAlignment
// elements, each of 4 bytes of parameter and 8 of moments.
TEST(Report, ShardsShrinkWithTheRanks) {
  const auto kept = [](int ranks) {
    const MemoryReport memory = compile({"", ranks}).report.memory;
    return memory.total(fsdp::Category::parameters).kept + memory.total(fsdp::Category::optimizer).kept;
  };
  const std::int64_t one = kept(1);
  EXPECT_GE(one, 12 * compile({}).report.model.parameters());
  for (int ranks = 2; ranks <= 8; ++ranks) {
    const std::int64_t padding = 6 * ranks * fsdp::kAlignment * 12;  // embedding, 4 blocks, norm with head
    ASSERT_LT(padding, one / 8);
    EXPECT_NEAR(static_cast<double>(ranks * kept(ranks)), static_cast<double>(one),
                static_cast<double>(padding))
        << ranks << " ranks";
  }
}

TEST(Report, CountsWhatAStepMoves) {
  const auto flat_elements = [](const Compiled& c) {
    std::int64_t elements = 0;
    for (const auto& unit : c.compiled.units) elements += unit.flat_elements();
    return elements;
  };
  // Parameters stay from forward to backward: each unit is gathered once per micro-batch.
  const auto narrow = compile({"", 3, 0, with([](auto& o) {
                                 o.strategy = fsdp::Strategy::shard_grad_op;
                                 o.precision.param = o.precision.reduce = DType::bfloat16;
                                 o.micro_batches = 2;
                               })});
  EXPECT_EQ(narrow.report.traffic.gathered, 2 * 2 * flat_elements(narrow));
  EXPECT_EQ(narrow.report.traffic.reduced, 2 * 2 * flat_elements(narrow));
  EXPECT_EQ(narrow.report.traffic.replica_reduced, 0);
  EXPECT_EQ(narrow.report.traffic.device_to_host, 0);

  const auto replicas = compile({"", 3, 0, with([](auto& o) { o.strategy = fsdp::Strategy::no_shard; })});
  EXPECT_EQ(replicas.report.traffic.gathered, 0);
  EXPECT_EQ(replicas.report.traffic.reduced, 0);
  EXPECT_EQ(replicas.report.traffic.replica_reduced, 4 * flat_elements(replicas));

  const auto hybrid = compile(
      {"", 4, 2, with([](auto& o) { o.strategy = fsdp::Strategy::hybrid_shard, o.micro_batches = 2; })});
  EXPECT_EQ(hybrid.report.traffic.reduced, 2 * 4 * flat_elements(hybrid));
  EXPECT_EQ(hybrid.report.traffic.replica_reduced, 4 * flat_elements(hybrid) / 2);

  // Gradients of a rank's shard go out, with the scalars and the loss of a micro-batch, and new shards come in.
  const auto on_host = compile({"", 2, 0, with([](auto& o) { o.offload = {true, false, true}; })});
  const auto without = compile({"", 2});
  EXPECT_EQ(on_host.report.traffic.device_to_host,
            4 * flat_elements(on_host) / 2 + static_cast<std::int64_t>(sizeof(optim::StepScalars)) + 8);
  EXPECT_EQ(on_host.report.traffic.host_to_device - without.report.traffic.host_to_device,
            4 * flat_elements(on_host) / 2);
}

TEST(Report, ListsUnits) {
  const auto [model, options, mesh, compiled, report] =
      compile({"", 3, 0, with([](auto& o) { o.precision.param = DType::bfloat16; }), "layers.1.*proj"});
  ASSERT_EQ(report.model.units.size(), 7U);  // the frozen part of layer 1 follows it
  const auto& embedding = report.model.units[0];
  EXPECT_EQ(embedding.name, "model.embed_tokens");
  EXPECT_EQ(embedding.parameters, std::vector<std::string>{"model.embed_tokens.weight"});
  EXPECT_EQ(embedding.elements, 1001 * 96);
  EXPECT_EQ(embedding.float32_bytes, 4 * 1001 * 96);
  EXPECT_EQ(embedding.param_bytes, 2 * 1001 * 96);
  EXPECT_EQ(embedding.padding, 3 * embedding.shard_elements - embedding.elements);
  std::int64_t elements = 0, frozen = 0;
  for (const auto& unit : report.model.units) {
    elements += unit.elements;
    if (unit.frozen) frozen += unit.elements;
  }
  EXPECT_EQ(elements, report.model.parameters());
  // q and o of 96 x 96, k and v of 32 x 96, three of 200 x 96
  EXPECT_EQ(frozen, 96 * (2 * 96 + 2 * 32 + 3 * 200));
  EXPECT_EQ(report.model.trained_parameters(), report.model.parameters() - frozen);
}

TEST(Report, MemoryIsSpentOnWhatItsPurposeSays) {
  EXPECT_EQ(fsdp::Purpose::unsharded_params.category(), fsdp::Category::parameters);
  EXPECT_EQ(fsdp::Purpose::sharded_gradient.category(), fsdp::Category::gradients);
  EXPECT_EQ(fsdp::Purpose::exp_avg.category(), fsdp::Category::optimizer);
  EXPECT_EQ(fsdp::Purpose::saved.category(), fsdp::Category::activations);
  EXPECT_EQ(fsdp::Purpose::forward_scratch.category(), fsdp::Category::other);
}

TEST(Report, JsonHoldsEveryNumber) {
  const auto [model, options, mesh, compiled, report] = compile(
      {"", 4, 2,
       with([](auto& o) { o.strategy = fsdp::Strategy::hybrid_shard_zero2, o.offload.optimizer = true; })});
  const auto json = nlohmann::json::parse(to_json(report, compiled));
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_EQ(json["ranks_per_node"], 4);
  EXPECT_EQ(json["nodes"], 1);
  EXPECT_EQ(json["threads_per_rank"], 2);
  EXPECT_EQ(json["strategy"], "hybrid_shard_zero2");
  EXPECT_EQ(json["shard_ranks"], 2);
  EXPECT_EQ(json["replicas"], 2);
  EXPECT_EQ(json["groups"], "shards 0 1 | 2 3; replicas 0 2 | 1 3");
  EXPECT_EQ(json["micro_batch"], 2);
  EXPECT_EQ(json["seq_len"], 16);
  EXPECT_EQ(json["micro_batches"], 1);
  for (const char* key :
       {"param_dtype", "compute_dtype", "reduce_dtype", "gradient_dtype", "master_dtype", "moment_dtype"})
    EXPECT_EQ(json[key], "float32") << key;
  EXPECT_EQ(json["parameters"], report.model.parameters());
  EXPECT_EQ(json["trained_parameters"], report.model.parameters());
  EXPECT_EQ(json["process_bytes"], kProcessBytes);
  EXPECT_EQ(json["needed_bytes"], report.fit.needed_bytes);
  EXPECT_EQ(json["device_memory_bytes"], nullptr);
  EXPECT_EQ(json["fits"], nullptr);
  std::int64_t planned = 0;
  for (int a = 0; a < fsdp::kArenas; ++a) {
    const auto& arena = json["arenas"][fsdp::to_string(static_cast<fsdp::Arena>(a))];
    EXPECT_EQ(arena["planned_bytes"], compiled.arena_bytes[a]);
    EXPECT_EQ(arena["kept_bytes"], report.memory.arenas[a].kept);
    EXPECT_EQ(arena["step_bytes"], report.memory.arenas[a].step);
    EXPECT_EQ(arena["evaluation_bytes"], report.memory.arenas[a].evaluation);
    EXPECT_GT(arena["planned_bytes"], 0);
    planned += compiled.arena_bytes[a];
  }
  EXPECT_EQ(json["planned_bytes"], planned);
  std::int64_t kept = 0;
  for (const auto& role : json["roles"]) {
    EXPECT_EQ(role.size(), 5U);
    if (role["kept"].get<bool>()) kept += role["bytes"].get<std::int64_t>();
  }
  EXPECT_EQ(kept, report.memory.total().kept);
  EXPECT_EQ(json["busiest"]["action"], report.memory.peak.action);
  EXPECT_EQ(json["busiest"]["actions"], compiled.step.size());
  EXPECT_EQ(json["busiest"]["description"], report.memory.peak.description);
  EXPECT_EQ(json["busiest"]["transient_bytes"], report.memory.peak.transient_bytes());
  EXPECT_EQ(json["busiest"]["roles"].size(), report.memory.peak.purposes.size());
  for (const char* category : {"parameters", "gradients", "optimizer", "activations", "other"}) {
    EXPECT_TRUE(json["categories"][category]["kept_bytes"].is_number_integer()) << category;
    EXPECT_TRUE(json["categories"][category]["busiest_bytes"].is_number_integer()) << category;
  }
  for (const char* key : {"gathered_bytes", "reduced_bytes", "replica_reduced_bytes", "host_to_device_bytes",
                          "device_to_host_bytes"}) {
    EXPECT_GT(json["traffic"][key], 0) << key;
  }
  EXPECT_EQ(json["step_actions"], compiled.step.size());
  EXPECT_EQ(json["evaluation_actions"], compiled.evaluation.size());
  ASSERT_EQ(json["units"].size(), 6U);
  EXPECT_EQ(json["units"][0], (nlohmann::json{{"name", "model.embed_tokens"},
                                              {"parameters", {"model.embed_tokens.weight"}},
                                              {"elements", 1001 * 96},
                                              {"float32_bytes", 4 * 1001 * 96},
                                              {"param_dtype_bytes", 4 * 1001 * 96},
                                              {"shard_elements", report.model.units[0].shard_elements},
                                              {"padding", report.model.units[0].padding},
                                              {"frozen", false}}));
  EXPECT_EQ(nlohmann::json::parse(to_json(report.model.units)), json["units"]);
}

TEST(Report, TablesHoldWhatARunPrintsAndMore) {
  const auto [model, options, mesh, compiled, report] =
      compile({"", 4, 2, with([](auto& o) { o.strategy = fsdp::Strategy::hybrid_shard; })});
  const std::string text = format_report(report) + format_details(report, compiled);
  std::istringstream plan(fsdp::format_memory(compiled.step));
  for (std::string line; std::getline(plan, line);) EXPECT_THAT(text, HasSubstr("  " + line + "\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "hybrid_shard on 4 ranks, 1 node\ndevice mesh 2 x 2: 2 shard groups (0 1 | 2 3), 2 replicate groups (0 2 | 1 3)\n"));
  EXPECT_THAT(text, HasSubstr(" = " + count(report.memory.total().planned, "byte") + "\n"));
  EXPECT_THAT(text, HasSubstr("64.00 MiB, not part of what is planned\n"));
  EXPECT_THAT(text, HasSubstr(report.memory.peak.description));
  EXPECT_THAT(text, HasSubstr("a rank sends 2 x 1/2 of it\n"));
  EXPECT_THAT(text, HasSubstr("\n  device to host                  0 B\n"));
}

// A purpose may be kept by some units and not by others, and lie in two arenas.
TEST(MemoryReport, AddsUpByPurposeArenaAndLife) {
  fsdp::Program program;
  const auto add = [&](fsdp::Purpose purpose, fsdp::Arena arena, std::int64_t bytes,
                       std::vector<fsdp::LiveRange> live) {
    const bool persistent = live.empty();
    program.add({.purpose = purpose,
                 .arena = arena,
                 .bytes = bytes,
                 .persistent = persistent,
                 .live = std::move(live)});
  };
  add(fsdp::Purpose::inputs, fsdp::Arena::device, 1, {});
  add(fsdp::Purpose::inputs, fsdp::Arena::host, 10, {});
  add(fsdp::Purpose::inputs, fsdp::Arena::device, 100, {{0, 1}});
  add(fsdp::Purpose::saved, fsdp::Arena::device, 1000, {{1, 2}});
  add(fsdp::Purpose::inputs, fsdp::Arena::device, 5, {{0, 0}, {2, 2}});
  EXPECT_EQ(fsdp::peak_action(program), std::nullopt) << "no actions yet";
  for (int i = 0; i < 3; ++i) program.actions.push_back({.op = fsdp::Op::forward});
  const auto rows = fsdp::bytes_by_purpose(program);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].bytes, 1);
  EXPECT_EQ(rows[1].bytes, 10);
  EXPECT_EQ(rows[2].bytes, 105);
  EXPECT_EQ(rows[2].buffers, 2);
  EXPECT_EQ(rows[3].bytes, 1000);
  EXPECT_EQ(fsdp::peak_action(program), 1);
  EXPECT_EQ(bytes_of(fsdp::bytes_alive_at(program, 0)), 116);
  EXPECT_EQ(bytes_of(fsdp::bytes_alive_at(program, 1)), 1111);
  EXPECT_EQ(bytes_of(fsdp::bytes_alive_at(program, 2)), 1016);
}

}  // namespace
}  // namespace llampi::test
