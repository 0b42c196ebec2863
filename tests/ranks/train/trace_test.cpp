// SPDX-License-Identifier: Apache-2.0
// What `log.trace` recorded on all ranks: that the engine gathered, reduced and copied when and where it
// should.
#include <map>
#include <set>

#include "llampi/comm/comm.hpp"
#include "llampi/device/sum_of_squares.hpp"
#include "llampi/fsdp/streams.hpp"
#include "ranks/train/recorded.hpp"
#include "ranks/train/run_fixture.hpp"

namespace llampi::test {
namespace {

using namespace train;

constexpr int kMicroBatches = 2;

struct Case {
  std::string name;
  std::function<void(Config&)> apply;
  std::set<std::string> extra = {};  ///< units beyond the limit, where they are sharded or offloaded
  std::set<int> ranks = {1, 2, 4};
};

const std::set<std::string> kBlocks = {"model.layers.0", "model.layers.1", "model.layers.2"};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"plain", [](Config&) {}},
      {"limit_1_full",
       [](Config& c) {
         c.fsdp.limit_all_gathers = 1, c.activation.checkpointing = fsdp::Checkpointing::full;
       }},
      {"limit_3",
       [](Config& c) { c.fsdp.limit_all_gathers = 3, c.fsdp.accumulate = GradientAccumulation::unsharded; }},
      {"no_prefetch",
       [](Config& c) { c.fsdp.backward_prefetch = fsdp::Prefetch::none, c.fsdp.forward_prefetch = false; }},
      {"post_full",
       [](Config& c) {
         c.fsdp.backward_prefetch = fsdp::Prefetch::post, c.fsdp.limit_all_gathers = 3;
         c.activation.checkpointing = fsdp::Checkpointing::full;
       }},
      {"selective", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::selective; }},
      {"narrow_full",
       [](Config& c) {
         c.fsdp.param_dtype = c.fsdp.reduce_dtype = DType::bfloat16;
         c.activation.checkpointing = fsdp::Checkpointing::full;
       }},
      {"narrow_reduce",
       [](Config& c) {
         c.fsdp.reduce_dtype = DType::bfloat16, c.fsdp.backward_prefetch = fsdp::Prefetch::none;
       }},
      {"shard_grad_op_full",
       [](Config& c) {
         c.fsdp.strategy = fsdp::Strategy::shard_grad_op,
         c.activation.checkpointing = fsdp::Checkpointing::full;
       },
       kBlocks},
      {"no_shard", [](Config& c) { c.fsdp.strategy = fsdp::Strategy::no_shard; }},
      {"modules",
       [](Config& c) {
         c.fsdp.wrap = fsdp::WrapPolicy::modules, c.fsdp.wrap_modules = {"LlamaAttention", "\\.mlp$"};
       },
       {"root"}},
      {"modules_full",  // attention runs again before the MLP, and its backward behind the MLP's
       [](Config& c) {
         c.fsdp.wrap = fsdp::WrapPolicy::modules, c.fsdp.wrap_modules = {"LlamaAttention", "\\.mlp$"};
         c.activation.checkpointing = fsdp::Checkpointing::full;
       },
       {"root", "model.layers.0.self_attn", "model.layers.1.self_attn", "model.layers.2.self_attn"}},
      {"size",
       [](Config& c) {
         c.fsdp.wrap = fsdp::WrapPolicy::size, c.fsdp.wrap_min_params = 1000, c.fsdp.limit_all_gathers = 3;
         c.activation.checkpointing = fsdp::Checkpointing::selective;
       },
       {"root"}},
      {"one_unit",
       [](Config& c) {
         c.fsdp.wrap = fsdp::WrapPolicy::none, c.activation.checkpointing = fsdp::Checkpointing::full;
       }},
      {"hybrid",
       [](Config& c) { c.fsdp.strategy = fsdp::Strategy::hybrid_shard, c.fsdp.shard_group_size = 2; },
       {},
       {4}},
      {"hybrid_zero2_unsharded",
       [](Config& c) {
         c.fsdp.strategy = fsdp::Strategy::hybrid_shard_zero2, c.fsdp.shard_group_size = 2;
         c.fsdp.accumulate = GradientAccumulation::unsharded,
         c.fsdp.reduce_dtype = c.optimizer.gradient_dtype = DType::bfloat16;
         c.fsdp.all_reduce_stream = true;
       },
       kBlocks,
       {4}},
      {"hybrid_of_one",
       [](Config& c) { c.fsdp.strategy = fsdp::Strategy::hybrid_shard, c.fsdp.shard_group_size = 1; },
       {},
       {2, 4}},
      {"hybrid_of_one_unsharded",
       [](Config& c) {
         c.fsdp.strategy = fsdp::Strategy::hybrid_shard_zero2, c.fsdp.shard_group_size = 1,
         c.fsdp.accumulate = GradientAccumulation::unsharded;
       },
       {},
       {2, 4}},
      {"frozen",
       [](Config& c) {
         c.optimizer.frozen = "embed_tokens|layers\\.0\\.|k_proj|norm";
         c.activation.checkpointing = fsdp::Checkpointing::full;
       }},
      {"offload_optimizer", [](Config& c) { c.fsdp.cpu_offload = CpuOffload::optimizer; }},
      {"offload_residuals",
       [](Config& c) {
         c.activation.offload = ActivationOffload::residuals;
         c.activation.checkpointing =
             fsdp::BlockCheckpointing(fsdp::Checkpointing::full, 1, fsdp::Checkpointing::none);
       }},
      {"offload_saved", [](Config& c) { c.activation.checkpointing = fsdp::Checkpointing::offload; }},
      {"offload_optimizer_narrow",
       [](Config& c) {
         c.fsdp.cpu_offload = CpuOffload::optimizer,
         c.fsdp.param_dtype = c.optimizer.moment_dtype = DType::bfloat16;
       }},
      {"offload_optimizer_host",
       [](Config& c) {
         c.fsdp.cpu_offload = CpuOffload::optimizer, c.fsdp.offload_step = OffloadStep::host;
         c.optimizer.frozen = "q_proj|norm";
       }},
      {"offload_params_full",
       [](Config& c) {
         c.fsdp.cpu_offload = CpuOffload::params, c.activation.checkpointing = fsdp::Checkpointing::full;
       }},
      {"offload_params_narrow",
       [](Config& c) {
         c.fsdp.cpu_offload = CpuOffload::params, c.fsdp.param_dtype = DType::bfloat16;
         c.fsdp.backward_prefetch = fsdp::Prefetch::post, c.fsdp.forward_prefetch = false;
       }},
      {"offload_params_host",
       [](Config& c) {
         c.fsdp.cpu_offload = CpuOffload::params, c.fsdp.offload_step = OffloadStep::host,
         c.fsdp.limit_all_gathers = 1;
       }},
      {"offload_hybrid_host",
       [](Config& c) {
         c.fsdp.strategy = fsdp::Strategy::hybrid_shard, c.fsdp.shard_group_size = 2;
         c.fsdp.cpu_offload = CpuOffload::optimizer, c.fsdp.offload_step = OffloadStep::host,
         c.fsdp.param_dtype = DType::bfloat16;
       },
       {},
       {4}},
  };
  return kCases;
}

class Traces : public Train {
 protected:
  Traces() {
    auto model = nlohmann::json::parse(model_json());
    model["num_hidden_layers"] = 3;
    if (world().rank() == 0) std::ofstream(folder_ / "deep.json") << model;
    world().barrier();
  }

  /// Two steps of a model with three blocks; the second is traced.
  Config config_of(const Case& choice, const std::string& run) const {
    auto c = config(run);
    c.model.config = (folder_ / "deep.json").string();
    c.train.steps = 2;
    c.train.global_batch = kMicroBatches * world().size();
    c.checkpoint.every = 0;
    c.log.trace = {2, 2};
    choice.apply(c);
    return c;
  }

  Recorded record(const Config& c) const {
    EXPECT_EQ(run(c), Outcome::done);
    world().barrier();
    Recorded recorded{c, compile_run(c, {.ranks = world().size()}), {}};
    for (int rank = 0; rank < world().size(); ++rank)
      recorded.ranks.push_back(
          read_trace(fs::path(c.run.dir) / "trace" / fmt::format("rank-{:05}.json", rank)));
    return recorded;
  }

  /// Calls `check` on rank 0 with what each case has recorded. To save time, a case runs once for all tests.
  void for_each_case(const std::function<void(const Case&, const Recorded&)>& check) const {
    static std::map<std::string, Recorded> known;
    for (const auto& choice : cases()) {
      if (!choice.ranks.count(world().size())) continue;
      auto found = known.find(choice.name);
      if (found == known.end())
        found = known.emplace(choice.name, record(config_of(choice, choice.name))).first;
      SCOPED_TRACE(choice.name);
      if (world().rank() == 0) check(choice, found->second);
    }
  }
  void for_each_trace(const std::function<void(const Recorded&, const Events&, int rank)>& check) const {
    for_each_case([&](const Case&, const Recorded& recorded) {
      for (int rank = 0; rank < recorded.world_size(); ++rank) {
        SCOPED_TRACE(fmt::format("trace of rank {}", rank));
        check(recorded, recorded.ranks[rank], rank);
      }
    });
  }
};

template <class Condition>
int count(const Events& events, int begin, int end, const Condition& condition) {
  return static_cast<int>(std::count_if(events.begin() + begin, events.begin() + end, condition));
}

TEST_F(Traces, StreamsAreRowsAndEventsStandInOrder) {
  for_each_trace([](const Recorded& recorded, const Events& events, int) {
    const bool apart = recorded.config.fsdp.all_reduce_stream;
    for (std::size_t i = 0; i < events.size(); ++i) {
      EXPECT_GE(events[i].end, events[i].begin) << events[i].name;
      if (i > 0) {
        EXPECT_GE(events[i].begin, events[i - 1].begin) << events[i].name;
      }
      if (events[i].op == "unshard") {
        EXPECT_EQ(events[i].stream, fsdp::kUnshardStream.number());
      }
      if (events[i].reduces()) {
        const bool joins = apart && events[i].op == "all_reduce";
        EXPECT_EQ(events[i].stream, (joins ? fsdp::kAllReduceStream : fsdp::kReduceStream).number());
      }
      if (events[i].computes()) {
        EXPECT_EQ(events[i].stream, device::Stream::compute.number());
      }
    }
  });
}

TEST_F(Traces, TheNextGatherIsIssuedWhereThePrefetchModeSays) {
  const auto computes = [](const TraceEvent& e) { return e.computes(); };
  const auto reduces = [](const TraceEvent& e) { return e.reduces(); };
  std::map<std::string, int> seen;
  for_each_trace([&](const Recorded& recorded, const Events& events, int) {
    const auto& fsdp = recorded.config.fsdp;
    const auto all = stays(recorded, events);
    for (std::size_t k = 1; k < all.size(); ++k) {
      const Stay &next = all[k], &current = all[k - 1];
      if (events[next.issued].op == "cast_params" || next.first_use == current.first_use) continue;
      SCOPED_TRACE(events[next.issued].name);
      int before = next.first_use - 1;  // the computation before the one that needs it
      while (!events[before].computes()) --before;
      const fsdp::Prefetch mode = next.in_backward
                                      ? fsdp.backward_prefetch
                                      : (fsdp.forward_prefetch ? fsdp::Prefetch::pre : fsdp::Prefetch::none);
      if (mode != fsdp::Prefetch::pre) {
        EXPECT_EQ(count(events, next.issued, next.first_use, computes), 0);
        EXPECT_LE(events[before].end, events[next.issued].begin);
        const int reduced_first = count(events, before, next.issued, reduces);
        const int reduced_later = count(events, next.issued, next.first_use, reduces);
        EXPECT_EQ(mode == fsdp::Prefetch::post ? reduced_first : reduced_later, 0);
        ++seen[word_of(mode)];
        seen[std::string(word_of(mode)) + " beside a reduction"] += reduced_first + reduced_later > 0 ? 1 : 0;
      } else if (fsdp.limit_all_gathers == 1) {
        if (!current.extra) {
          EXPECT_GT(next.issued, current.given_up);
        }
      } else {
        const auto own =
            std::find_if(all.begin(), all.end(), [&](const Stay& s) {  // the one memory of its copy
              return s.unit == next.unit && events[s.issued].pass == events[next.issued].pass &&
                     s.given_up < next.issued && s.given_up > current.first_use;
            });
        if (own != all.end()) {
          EXPECT_EQ(count(events, own->given_up, next.issued, computes), 0);
          continue;
        }
        // Units that stay for the backward pass leave no room for those of the next micro-batch before that.
        if (!fsdp::reshards_after_forward(fsdp.strategy) &&
            events[next.issued].micro_batch != events[current.issued].micro_batch) {
          EXPECT_GT(count(events, next.issued, next.first_use, computes), 0);
          continue;
        }
        EXPECT_LT(events[next.issued].begin, events[current.first_use].begin);
        ++seen[next.in_backward ? "pre in backward" : "pre in forward"];
      }
    }
  });
  if (world().rank() != 0) return;
  for (const auto* what : {"pre in forward", "pre in backward", "none", "none beside a reduction", "post",
                           "post beside a reduction"}) {
    const bool reduction = std::string(what).ends_with("reduction");
    if (world().size() > 1 || !reduction) {
      EXPECT_GT(seen[what], 0) << what;
    }
  }
}

TEST_F(Traces, NeverAreMoreUnitsGatheredThanTheLimit) {
  for_each_case([&](const Case& choice, const Recorded& recorded) {
    for (const auto& events : recorded.ranks) {
      auto all = stays(recorded, events);
      if (all.empty()) continue;
      std::set<std::string> extra;
      for (const auto& stay : all) {
        EXPECT_EQ(
            count(events, stay.last_use + 1, stay.given_up, [](const TraceEvent& e) { return e.computes(); }),
            0)
            << "given up late: " << events[stay.issued].name;
        if (stay.extra) extra.insert(recorded.units()[stay.unit].name);
      }
      EXPECT_EQ(extra, choice.extra);
      std::erase_if(all, [](const Stay& stay) { return stay.extra; });
      int most = 0;
      for (const auto& stay : all) {
        most = std::max(most, static_cast<int>(std::count_if(all.begin(), all.end(), [&](const Stay& other) {
                          return other.issued <= stay.issued && stay.issued < other.given_up;
                        })));
      }
      const auto& fsdp = recorded.config.fsdp;
      EXPECT_LE(most, fsdp.limit_all_gathers);
      const bool gathers =
          std::any_of(events.begin(), events.end(), [](const TraceEvent& e) { return e.op == "unshard"; });
      if (gathers && fsdp.wrap == fsdp::WrapPolicy::transformer) {
        EXPECT_EQ(most, fsdp.forward_prefetch ? fsdp.limit_all_gathers : 1) << "the limit is made use of";
      }
    }
  });
}

TEST_F(Traces, GradientsAreReducedInTheRightGroupsAndOrder) {
  for_each_trace([](const Recorded& recorded, const Events& events, int rank) {
    const auto shards = recorded.shard_group(rank), replicas = recorded.replicas(rank);
    const bool sharded = shards.size() > 1, replicated = replicas.size() > 1;
    const int per_step =
        recorded.config.fsdp.accumulate == GradientAccumulation::unsharded ? 1 : kMicroBatches;
    std::map<int, std::vector<const TraceEvent*>> reductions, joins;  // per unit
    const TraceEvent* norm = nullptr;
    std::vector<const TraceEvent*> all_reductions;
    int squares = 0;
    for (const auto& e : events) {
      if (e.op == "unshard" || e.op == "reduce" || e.op == "all_reduce_squares") {
        EXPECT_EQ(e.ranks, shards) << e.name;
      }
      if (e.op == "all_reduce") {
        EXPECT_EQ(e.ranks, replicas) << e.name;
      }
      if (e.op == "reduce") reductions[e.unit].push_back(&e);
      if (e.op == "all_reduce") joins[e.unit].push_back(&e);
      if (e.reduces()) {
        EXPECT_EQ(norm, nullptr) << e.name << " behind the norm";
        all_reductions.push_back(&e);
      }
      squares += e.op == "all_reduce_squares" ? 1 : 0;
      if (e.op == "norm") norm = &e;
      if (e.op == "update") {
        EXPECT_TRUE(norm != nullptr && norm->end <= e.begin) << e.name;
      }
    }
    ASSERT_NE(norm, nullptr);
    EXPECT_EQ(squares, sharded ? 1 : 0);
    for (const auto* e : all_reductions) EXPECT_LE(e->end, norm->begin) << e->name;
    for (int u = 0; u < static_cast<int>(recorded.units().size()); ++u) {
      SCOPED_TRACE(recorded.units()[u].name);
      const int reduced = recorded.trained(u) && sharded ? per_step : 0;
      // The sharded gradient once, at the end; where a unit has one shard, each whole gradient.
      const int joined = recorded.trained(u) && replicated ? (sharded ? 1 : per_step) : 0;
      ASSERT_EQ(reductions[u].size(), reduced);
      ASSERT_EQ(joins[u].size(), joined);
      if (joined > 0) {
        EXPECT_EQ(joins[u].back()->micro_batch, kMicroBatches - 1);
      }
      if (reduced == 0) continue;
      EXPECT_EQ(reductions[u].back()->micro_batch, kMicroBatches - 1);
      if (joined == 0) continue;
      EXPECT_LT(reductions[u].back()->begin, joins[u].back()->begin) << "on one stream";
    }
  });
}

TEST_F(Traces, AllRanksIssueTheCollectivesOfAStreamInOneOrder) {
  for_each_case([](const Case&, const Recorded& recorded) {
    const auto order = [](const Events& events) {
      std::map<int, std::vector<std::string>> names;  // per stream
      for (const auto& e : events) {
        if (e.op == "unshard" || e.reduces())
          names[e.stream].push_back(fmt::format("{} {} {} {}", e.name, e.pass, e.micro_batch, e.bytes));
      }
      return names;
    };
    for (const auto& events : recorded.ranks) EXPECT_EQ(order(events), order(recorded.ranks.front()));
  });
}

TEST_F(Traces, RecomputationRepeatsNoGather) {
  const auto gathers = [](const Events& events) {
    std::vector<std::string> names;
    for (const auto& e : events) {
      if (e.op == "unshard" || e.payload == "shard")
        names.push_back(fmt::format("{} {} of micro-batch {}", e.name, e.pass, e.micro_batch));
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  std::map<std::string, Recorded> keeping;  // the same runs without recomputation
  for (const auto& choice : cases()) {
    auto c = config_of(choice, "keeping-" + choice.name);
    if (c.activation.checkpointing == fsdp::Checkpointing::none || !choice.ranks.count(world().size()))
      continue;
    c.activation.checkpointing = fsdp::Checkpointing::none;
    keeping.emplace(choice.name, record(c));
  }
  for_each_case([&](const Case& choice, const Recorded& recorded) {
    if (!keeping.count(choice.name)) return;
    for (std::size_t rank = 0; rank < recorded.ranks.size(); ++rank) {
      const auto& events = recorded.ranks[rank];
      EXPECT_EQ(gathers(events), gathers(keeping.at(choice.name).ranks[rank]));
      const auto all = stays(recorded, events);
      int recomputed = 0;
      for (int i = 0; i < static_cast<int>(events.size()); ++i) {
        if (events[i].op != "recompute") continue;
        ++recomputed;
        int backward = i;
        while (events[backward].op != "backward" || events[backward].layer != events[i].layer) ++backward;
        for (int u = 0; u < static_cast<int>(recorded.units().size()); ++u) {
          const auto of_unit = [&](const Stay& stay) { return stay.unit == u; };
          if (!recorded.reads(events[i], u) || std::none_of(all.begin(), all.end(), of_unit)) continue;
          const auto serves_both = [&](const Stay& stay) {
            return stay.unit == u && stay.first_use <= i && backward <= stay.last_use;
          };
          EXPECT_EQ(std::count_if(all.begin(), all.end(), serves_both), 1)
              << events[i].name << " and its backward, with " << recorded.units()[u].name;
        }
      }
      // What is selected, the backward passes recompute themselves.
      const auto& checkpointing = recorded.config.activation.checkpointing;
      const bool selective =
          checkpointing == fsdp::Checkpointing::selective || checkpointing == fsdp::Checkpointing::offload;
      EXPECT_EQ(recomputed > 0, !selective);
    }
  });
}

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int bytes_of(DType dtype) { return static_cast<int>(size_of(dtype)); }

/// What the header of units says, counted again: parameters start at multiples of 64 elements unless they
/// join the one before them, and so do shards.
std::int64_t shard_elements(const Recorded& recorded, int unit) {
  std::int64_t end = 0;
  for (const auto& member : recorded.units()[unit].parameters) {
    const auto& parameter = recorded.run.model->parameters()[member.parameter];
    if (!parameter.fused_with_previous) end = round_up(end, 64);
    end += parameter.elements();
  }
  const int shards = recorded.group_size();
  return round_up((end + shards - 1) / shards, 64);
}

/// Per element of a shard, the bytes of an optimizer's state that are in host memory and pass through the
/// device.
int state_bytes(const Config& c, bool out) {
  const DType param_dtype = c.fsdp.param_dtype.value_or(DType::float32);
  const int param = bytes_of(param_dtype), master = bytes_of(c.optimizer.master_dtype);
  const bool shard_is_master = param_dtype == c.optimizer.master_dtype,
             params = c.fsdp.cpu_offload == CpuOffload::params;
  const int moments = 2 * bytes_of(c.optimizer.moment_dtype);
  if (shard_is_master) return moments + (params ? param : 0);
  return moments + master + (params && out ? param : 0);
}

TEST_F(Traces, BytesAreThoseOfPaddedUnits) {
  std::map<std::string, int> seen;
  for_each_trace([&](const Recorded& recorded, const Events& events, int) {
    const auto& c = recorded.config;
    const int param = bytes_of(c.fsdp.param_dtype.value_or(DType::float32)),
              reduce = bytes_of(c.fsdp.reduce_dtype), gradient = bytes_of(c.optimizer.gradient_dtype);
    const int shards = recorded.group_size();
    for (const auto& e : events) {
      const std::int64_t shard = e.unit < 0 ? 0 : shard_elements(recorded, e.unit);
      std::int64_t expected = 0;
      if (e.payload == "inputs")
        expected = (4 * *c.train.micro_batch * c.data.seq_len + 3) * 4;  // a HostBatch
      if (e.op == "unshard") expected = shards * shard * param;
      if (e.op == "reduce") expected = shards * shard * reduce;
      if (e.op == "all_reduce_squares") expected = sizeof(std::int64_t) * device::kSumOfSquaresNumbers;
      if (e.op == "all_reduce") expected = shard * (shards > 1 ? gradient : reduce);
      if (e.payload == "shard" || e.payload == "new_shard") expected = shard * param;
      if (e.payload == "gradient") expected = shard * gradient;
      if (e.payload == "scalars")  // with the loss of each micro-batch
        expected = sizeof(optim::StepScalars) + 8 * kMicroBatches;
      if (e.payload == "state") expected = shard * state_bytes(c, e.op == "d2h");
      if (e.payload == "residual")
        expected = recorded.run.compiled.specs[e.layer].output.rows *
                   recorded.run.compiled.specs[e.layer].output.cols * 4;
      if (e.payload == "saved") {
        for (const auto& item : recorded.run.compiled.specs[e.layer].saved)
          expected += item.recomputed ? 0 : item.bytes();
      }
      EXPECT_EQ(e.bytes, expected) << e.name;
      if (expected > 0) ++seen[e.payload.empty() ? e.op : e.payload];
    }
  });
  if (world().rank() != 0) return;
  std::vector<std::string> all = {"inputs",  "shard", "new_shard", "gradient",
                                  "scalars", "state", "residual",  "saved"};
  if (world().size() > 1) all.insert(all.end(), {"unshard", "reduce", "all_reduce"});
  for (const auto& what : all) EXPECT_GT(seen[what], 0) << what;
}

TEST_F(Traces, UpdatesStandBetweenTheCopiesThatTheyNeed) {
  std::map<std::string, int> seen;
  for_each_trace([&](const Recorded& recorded, const Events& events, int) {
    const auto& fsdp = recorded.config.fsdp;
    const bool on_host = fsdp.cpu_offload != CpuOffload::none && fsdp.offload_step == OffloadStep::host;
    const bool streamed = fsdp.cpu_offload != CpuOffload::none && !on_host,
               params = fsdp.cpu_offload == CpuOffload::params;
    std::map<std::string, std::vector<const TraceEvent*>> of_step;  // by operation and payload
    std::map<std::pair<std::string, int>, const TraceEvent*> by_unit;
    for (const auto& e : events) {
      if (e.op != "update" && e.op != "norm" && e.op != "h2d" && e.op != "d2h") continue;
      const auto key = e.op + (e.payload.empty() ? "" : " " + e.payload);
      of_step[key].push_back(&e);
      by_unit[{key, e.unit}] = &e;
      ++seen[key];
    }
    std::vector<int> trained;
    for (int u = 0; u < static_cast<int>(recorded.units().size()); ++u) {
      if (recorded.trained(u)) trained.push_back(u);
    }
    const auto n = trained.size();
    ASSERT_EQ(of_step["update"].size(), n);
    ASSERT_EQ(of_step["h2d state"].size(), streamed ? n : 0);
    ASSERT_EQ(of_step["d2h state"].size(), streamed ? n : 0);
    ASSERT_EQ(of_step["d2h gradient"].size(), on_host ? n : 0);
    ASSERT_EQ(of_step["d2h scalars"].size(), on_host ? 1 : 0);
    ASSERT_EQ(of_step["h2d new_shard"].size(), on_host && !params ? n : 0);
    const auto in_this_order = [&](const TraceEvent* earlier, const TraceEvent* later) {
      ASSERT_TRUE(earlier != nullptr && later != nullptr);
      EXPECT_LE(earlier->end, later->begin) << earlier->name << ", " << later->name;
    };
    const TraceEvent* norm = of_step["norm"].front();
    for (std::size_t k = 0; k < n; ++k) {
      const int u = trained[k];
      const TraceEvent* update = by_unit[{"update", u}];
      in_this_order(norm, update);
      ASSERT_NE(update, nullptr);
      EXPECT_EQ(update->stream, (on_host ? device::Stream::host : device::Stream::compute).number());
      if (streamed) {
        in_this_order(by_unit[{"h2d state", u}], update);
        in_this_order(update, by_unit[{"d2h state", u}]);
        if (k >= 2) in_this_order(by_unit[{"d2h state", trained[k - 2]}], by_unit[{"h2d state", u}]);
      }
      if (!on_host) continue;
      in_this_order(norm, by_unit[{"d2h gradient", u}]);
      in_this_order(of_step["d2h scalars"].front(), update);
      in_this_order(by_unit[{"d2h gradient", u}], update);
      if (!params) in_this_order(update, by_unit[{"h2d new_shard", u}]);
    }
    // A shard in host memory comes to the device once for each gather, and before it.
    std::map<std::tuple<int, std::string, int>, const TraceEvent*> came;
    for (const auto& e : events) {
      const std::tuple key{e.unit, e.pass, e.micro_batch};
      if (e.payload == "shard") {
        EXPECT_TRUE(came.emplace(key, &e).second) << e.name;
      }
      if (params && e.op == "unshard") in_this_order(came[key], &e);
    }
    EXPECT_EQ(came.empty(), !params);
  });
  if (world().rank() != 0) return;
  for (const auto* what :
       {"h2d state", "d2h state", "d2h gradient", "d2h scalars", "h2d new_shard", "h2d shard"})
    EXPECT_GT(seen[what], 0) << what;
}

TEST_F(Traces, RecordingDoesNotChangeTheRun) {
  const std::set<std::string> spread = {"plain",    "post_full",         "modules_full",
                                        "hybrid",   "hybrid_of_one",     "frozen",
                                        "one_unit", "offload_optimizer", "offload_params_host"};
  for (const auto& choice : cases()) {
    if (!choice.ranks.count(world().size()) || !spread.count(choice.name)) continue;
    SCOPED_TRACE(choice.name);
    const auto traced = "traced-" + choice.name, plain = "plain-" + choice.name;
    auto c = config_of(choice, traced);
    c.log.trace = {1, 2};
    EXPECT_EQ(run(c), Outcome::done);
    c = config_of(choice, plain);
    c.log.trace.reset();
    EXPECT_EQ(run(c), Outcome::done);
    EXPECT_TRUE(fs::exists(folder_ / traced / "trace"));
    EXPECT_FALSE(fs::exists(folder_ / plain / "trace"));
    EXPECT_EQ(curve(traced), curve(plain));
    EXPECT_EQ(tensors(traced, 2), tensors(plain, 2));
  }
}

TEST_F(Train, TheTraceHoldsWhatTheEngineDidInTheStepsAskedFor) {
  auto c = config("a");
  c.log.trace = {3, 4};
  run(c);
  world().barrier();
  for (int rank = 0; rank < world().size(); ++rank) {
    const auto file = folder_ / "a" / "trace" / fmt::format("rank-{:05}.json", rank);
    std::map<std::string, int> count;
    for (const auto& event : read_trace(file)) ++count[event.op];
    // Two steps of 12 / ranks micro-batches; embedding, two layers per block and the loss; four units.
    const int micro_batches = 2 * 12 / world().size();
    EXPECT_EQ(count["forward"], 5 * micro_batches);
    EXPECT_EQ(count["backward"], 6 * micro_batches);
    EXPECT_EQ(count["reduce"], world().size() > 1 ? 4 * micro_batches : 0);
    EXPECT_EQ(count["update"], 2 * 4);
    std::ifstream in(file);
    std::map<int, std::string> rows;
    const auto trace = nlohmann::json::parse(in);
    for (const auto& event : trace["traceEvents"]) {
      EXPECT_EQ(event["pid"], rank);
      if (event["name"] == "thread_name") rows[event["tid"]] = event["args"]["name"];
    }
    for (const device::Stream stream : fsdp::kAllStreams) EXPECT_EQ(rows[stream.number()], stream.name());
  }
}

TEST_F(Train, ATraceThatCannotBeWrittenDoesNotEndTheRun) {
  const auto of_rank_0 = folder_ / "a" / "trace" / "rank-00000.json";
  if (world().rank() == 0) fs::create_directories(of_rank_0);
  world().barrier();
  auto c = config("a");
  c.log.trace = {1, 2};
  EXPECT_EQ(run(c), Outcome::done);
  EXPECT_TRUE(fs::exists(folder_ / "a/checkpoints" / "step-00000012.h5"));
  EXPECT_TRUE(fs::is_empty(of_rank_0)) << "nothing is left";
}

}  // namespace
}  // namespace llampi::test
