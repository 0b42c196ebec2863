// SPDX-License-Identifier: Apache-2.0
// A run that does not fit: what the engine says, and that its advice is right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "device/cpu/cpu_device.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/device/gpu.hpp"
#include "llampi/fsdp/added_work.hpp"
#include "llampi/fsdp/engine.hpp"
#include "llampi/fsdp/fit_advice.hpp"
#include "llampi/fsdp/fit_decisions.hpp"
#include "llampi/model/llama.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A CPU with as much memory as the test says.
class SmallDevice final : public device::CpuDevice {
 public:
  explicit SmallDevice(std::int64_t available)
      : device::CpuDevice(1, *device::available_kernels().front()), available_(available) {}
  std::int64_t available_bytes(int) const override { return available_; }

 private:
  std::int64_t available_;
};

struct LlamaSize {
  std::int64_t hidden = 64, feed_forward = 128, layers = 4, heads = 4, key_value_heads = 4, vocabulary = 100;
};

std::unique_ptr<model::Model> llama(const LlamaSize& size = {},
                                    const std::optional<model::LoraConfig>& lora = {},
                                    const std::optional<model::Fp8Recipe>& fp8 = {}) {
  model::LlamaConfig config;
  config.vocab_size = size.vocabulary;
  config.hidden_size = size.hidden;
  config.intermediate_size = size.feed_forward;
  config.layers = size.layers;
  config.query_heads = size.heads;
  config.key_value_heads = size.key_value_heads;
  config.head_dim = size.hidden / size.heads;
  config.max_position_embeddings = 4096;
  return model::make_llama(config, fp8, lora);
}

/// So that smaller ones are not advised.
void has_smallest_units(EngineOptions& options) {
  options.limit_all_gathers = 1;
  options.wrap = {.policy = WrapPolicy::modules,
                  .modules = {"embed_tokens", "LlamaDecoderLayer", "LlamaAttention", "LlamaMLP", "lm_head"}};
}

class Fit : public ::testing::Test {
 protected:
  Fit() {
    use(*model_);
    options_.batch = {8, 64};
    mesh_ = make_device_mesh(options_.strategy, test_world().topology().node_of_rank, 0);
  }
  void use(const model::Model& model) {
    options_.parameter_groups = optim::parameter_groups(model.parameters(), {});
  }
  std::array<std::int64_t, kArenas> arenas(const EngineOptions& options) const {
    return compile_model(*model_, options, mesh_, *device::make_cpu_sizes(1)).arena_bytes;
  }
  static std::int64_t sum(const std::array<std::int64_t, kArenas>& arenas) { return arenas[0] + arenas[1]; }
  std::string refusal(device::Device& device, device::Device& host) const {
    try {
      const Engine engine(*model_, device, host, test_world(), options_);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  std::unique_ptr<model::Model> model_ = llama();
  EngineOptions options_;
  DeviceMesh mesh_;
};

TEST_F(Fit, IsKnownToTheByte) {
  const std::int64_t needed = sum(arenas(options_));
  SmallDevice enough(needed), less(needed - 1);
  EXPECT_EQ(refusal(enough, enough), "");
  EXPECT_NE(refusal(less, less), "");
}

TEST_F(Fit, AdvisesToDivideTheStateAmongReplicas) {
  if (test_ranks() == 1) GTEST_SKIP() << "needs replicas";
  options_.batch = {1, 16};
  options_.strategy = Strategy::no_shard;
  mesh_ = make_device_mesh(options_.strategy, test_world().topology().node_of_rank, 0);
  EngineOptions in_parts = options_;
  in_parts.shard_optimizer_over_replicas = true;
  ASSERT_LT(sum(arenas(in_parts)), sum(arenas(options_)));
  SmallDevice small(sum(arenas(in_parts)));
  EXPECT_THAT(refusal(small, small), EndsWith("it would fit with shard_optimizer_over_replicas = true"));
}

// Where neither of the two is enough, they are before another strategy than the one that was chosen.
TEST_F(Fit, AdvisesToDivideTheStateAndToRecompute) {
  options_.batch = {1, 512};
  options_.strategy = Strategy::hybrid_shard;
  options_.shard_group_size = 2;
  has_smallest_units(options_);
  const auto arena = [&](const EngineOptions& options) {
    return compile_model(*model_, options, make_device_mesh(options.strategy, {0, 0, 0, 0}, 2),
                         *device::make_cpu_sizes(1))
        .arena_bytes[0];
  };
  EngineOptions recomputed = options_, full = options_;
  recomputed.checkpointing = Checkpointing::full;
  full.strategy = Strategy::full_shard;
  EngineOptions both = recomputed;
  both.shard_optimizer_over_replicas = true;
  const std::int64_t most = arena(both);
  ASSERT_GT(arena(recomputed), most);
  ASSERT_GT(arena(full), most);
  mesh_ = make_device_mesh(options_.strategy, {0, 0, 0, 0}, 2);
  const auto fits = [&](const ArenaBytes& bytes, const DeviceMesh&, const EngineOptions&) {
    return bytes[0] <= most;
  };
  const auto sizes = device::make_cpu_sizes(1);
  const auto found = find_fit({*model_, options_, mesh_, *sizes, comm::Backend::mpi, fits});
  ASSERT_TRUE(found);
  std::string changes;
  for (const auto& [field, value] : found->changes) changes += field + " = " + value + "; ";
  EXPECT_EQ(changes, "checkpointing = full 3, feed_forward; shard_optimizer_over_replicas = true; ");
}

TEST_F(Fit, AdvisesFullShardWithoutWhatOnlyOtherStrategiesHave) {
  options_.batch = {1, 16};
  options_.strategy = Strategy::hybrid_shard;
  options_.shard_group_size = 2;
  options_.shard_optimizer_over_replicas = options_.all_reduce_stream = true;
  mesh_ = make_device_mesh(options_.strategy, {0, 0, 0, 0}, 2);
  const auto fits = [](const auto&, const DeviceMesh& mesh, const EngineOptions&) {
    return mesh.replica_count() == 1;
  };
  const auto sizes = device::make_cpu_sizes(1);
  const auto found = find_fit({*model_, options_, mesh_, *sizes, comm::Backend::mpi, fits});
  ASSERT_TRUE(found);
  std::string changes;
  for (const auto& [field, value] : found->changes) changes += field + " = " + value + "; ";
  EXPECT_EQ(
      changes,
      "strategy = full_shard; shard_optimizer_over_replicas = false; all_reduce_stream = false; shard_group_size = "
      "node; ");
}

// Of blocks that are larger than the embedding and the head. It is a plan of four ranks, whatever the test has.
TEST_F(Fit, AdvisesSmallerUnitsWhereOnlyTheyMakeItFit) {
  model_ = llama({.hidden = 128, .feed_forward = 512});
  use(*model_);
  options_.batch = {1, 16};
  mesh_ = make_device_mesh(options_.strategy, {0, 0, 0, 0}, 0);
  const auto sizes = device::make_cpu_sizes(1);
  const auto advised = [&](std::int64_t bytes) {
    const auto fits = [&](const auto& arenas, const DeviceMesh& mesh, const EngineOptions&) {
      return sum(arenas) <= bytes && mesh.shard_count() == 4;
    };
    const auto found = find_fit({*model_, options_, mesh_, *sizes, comm::Backend::mpi, fits});
    std::string changes;
    for (const auto& [field, value] : found ? found->changes : std::vector<OptionValue>{{"none", ""}})
      changes += field + " = " + value + "; ";
    return changes;
  };
  EngineOptions one = options_, parts = options_, both = options_;
  has_smallest_units(both);
  one.limit_all_gathers = both.limit_all_gathers;
  parts.wrap = both.wrap;
  const std::string in_parts =
      "wrap.policy = modules; wrap.modules = LlamaDecoderLayer embed_tokens LlamaAttention LlamaMLP lm_head; ";
  ASSERT_LT(sum(arenas(one)), sum(arenas(options_)));
  ASSERT_LT(sum(arenas(parts)), sum(arenas(one)));
  ASSERT_LT(sum(arenas(both)), sum(arenas(parts)));
  EXPECT_EQ(advised(sum(arenas(one))), "limit_all_gathers = 1; ");
  EXPECT_EQ(advised(sum(arenas(parts))), in_parts);
  EXPECT_EQ(advised(sum(arenas(both))), "limit_all_gathers = 1; " + in_parts);

  // One unit of everything: blocks are units that are small enough.
  EngineOptions blocks = options_;
  options_.wrap.policy = WrapPolicy::none;
  EXPECT_EQ(advised(sum(arenas(blocks))), "wrap.policy = transformer; ");
  // What is already so is not advised; here nothing else helps.
  options_ = both;
  options_.checkpointing = Checkpointing::full;
  EXPECT_THAT(advised(sum(arenas(options_)) - 1),
              Not(AllOf(HasSubstr("limit_all_gathers"), HasSubstr("wrap"))));
}

TEST_F(Fit, GivesAttentionAsMuchRoomAsThereIs) {
  const auto sizes = device::make_gpu_sizes();
  options_.batch = {4, 1024};
  options_.precision.param = options_.precision.compute = DType::bfloat16;
  const std::int64_t all = std::int64_t{4} * 4 * 1024 * 1024 * 2;  // dP of 4 sequences of 4 heads
  const auto arena_with = [&](std::int64_t attention_room) {
    EngineOptions options = options_;
    options.batch.attention_room = attention_room;
    return compile_model(*model_, options, mesh_, *sizes, comm::Backend::nccl).arena_bytes[0];
  };
  const auto room_in = [&](std::int64_t arena_bytes) {
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return arenas[0] <= arena_bytes;
    };
    return fitting_attention_room({*model_, options_, mesh_, *sizes, comm::Backend::nccl, fits}, all);
  };
  ASSERT_LT(arena_with(all / 4), arena_with(all));
  EXPECT_EQ(room_in(arena_with(all)), all);
  EXPECT_EQ(room_in(arena_with(all) - 1), all / 2);
  EXPECT_EQ(room_in(arena_with(all / 4)), all / 4);
  EXPECT_EQ(room_in(arena_with(0) - 1), 0);
}

TEST_F(Fit, KeepsRoomForDocumentsWhereWholeSequencesHaveNone) {
  const auto sizes = device::make_gpu_sizes();
  options_.batch = {1, 4096};
  options_.precision.param = options_.precision.compute = DType::bfloat16;
  const auto arena_with = [&](std::int64_t attention_room, bool documents) {
    EngineOptions options = options_;
    options.batch.attention_room = attention_room;
    options.batch.documents = documents;
    return compile_model(*model_, options, mesh_, *sizes, comm::Backend::nccl).arena_bytes[0];
  };
  const std::int64_t head = std::int64_t{2} * 4096 * 4096;  // of dP
  EXPECT_GT(arena_with(head - 1, true), arena_with(0, true)) << "documents of 2048 tokens";
  EXPECT_EQ(arena_with(head - 1, false), arena_with(0, false));
  EXPECT_EQ(arena_with(0, true), arena_with(0, false));
  EXPECT_EQ(arena_with(head, true), arena_with(head, false));
}

// A block that is recomputed may cost more than attention with fewer heads at a time, or less.
TEST_F(Fit, DividesMemoryBetweenAttentionAndActivations) {
  const auto sizes = device::make_gpu_sizes();
  const auto long_model =
      llama({.hidden = 1024, .feed_forward = 4096, .layers = 8, .heads = 16, .key_value_heads = 8});
  use(*long_model);
  options_.batch = {1, 4096};
  options_.precision.param = options_.precision.compute = DType::bfloat16;
  const std::int64_t most = std::int64_t{16} * 4096 * 4096 * 2;  // all of dP
  const auto arena_with = [&](const BlockCheckpointing& checkpointing, std::int64_t attention_room) {
    EngineOptions options = options_;
    options.checkpointing = checkpointing;
    options.batch.attention_room = attention_room;
    return compile_model(*long_model, options, mesh_, *sizes, comm::Backend::nccl).arena_bytes[0];
  };
  const std::int64_t least = arena_with(Checkpointing::full, 0), enough = arena_with({}, most);
  std::set<std::int64_t> rooms;
  for (int part = 0; part <= 10; ++part) {
    const std::int64_t bytes = least + (enough - least) * part / 10;
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return arenas[0] <= bytes;
    };
    const auto added = [&](const EngineOptions& options) {
      const auto compiled = compile_model(*long_model, options, mesh_, *sizes, comm::Backend::nccl);
      EXPECT_LE(compiled.arena_bytes[0], bytes);
      return added_seconds(*long_model, options, compiled).total() + seconds_of_pieces(options, compiled);
    };
    const EngineOptions chosen =
        decide_what_fits({*long_model, options_, mesh_, *sizes, comm::Backend::nccl, fits},
                         {.checkpointing = true, .offload = true, .most_attention_room = most});
    rooms.insert(chosen.batch.attention_room);
    for (int halvings = 0; halvings <= 5; ++halvings) {
      EngineOptions other = options_;
      other.batch.attention_room = halvings == 5 ? 0 : most >> halvings;
      const auto kept =
          fitting_activations({*long_model, other, mesh_, *sizes, comm::Backend::nccl, fits}, true);
      if (!kept.fits) continue;
      other.checkpointing = kept.checkpointing;
      other.offload.residuals = kept.offload_residuals;
      EXPECT_LE(added(chosen), added(other))
          << part << ": " << chosen.batch.attention_room << " or " << other.batch.attention_room;
    }
  }
  EXPECT_EQ(*rooms.rbegin(), most);
  EXPECT_GT(rooms.size(), 3U);
}

// Small micro-batches add to the gradients more often, large ones recompute more.
TEST_F(Fit, ChoosesMicroBatchesAndRecomputationTogether) {
  const auto sizes = device::make_gpu_sizes();
  const auto model =
      llama({.hidden = 256, .feed_forward = 1024, .layers = 4, .heads = 2, .key_value_heads = 1});
  use(*model);
  options_.batch = {1, 256};
  options_.micro_batches = 32;
  options_.precision.param = options_.precision.compute = DType::bfloat16;
  const auto compiled = [&](const EngineOptions& options) {
    return compile_model(*model, options, mesh_, *sizes, comm::Backend::nccl);
  };
  const auto divided = [&](std::int64_t sequences, const BlockCheckpointing& checkpointing) {
    EngineOptions options = options_;
    options.batch.sequences = sequences;
    options.micro_batches = static_cast<int>(32 / sequences);
    options.checkpointing = checkpointing;
    return options;
  };
  const auto cost = [&](const EngineOptions& options) {
    const auto program = compiled(options);
    return added_seconds(*model, options, program).total() +
           seconds_of_accumulation(options, program) * (options.micro_batches - 1);
  };
  const auto levels = checkpointing_levels(*model);
  const std::int64_t least = compiled(divided(1, Checkpointing::full)).arena_bytes[0];
  const std::int64_t enough = compiled(divided(32, Checkpointing::none)).arena_bytes[0];
  std::set<std::int64_t> sequences;
  std::set<std::string> recomputed;
  for (int part = 0; part <= 10; ++part) {
    const std::int64_t bytes = least + (enough - least) * part / 10;
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return arenas[0] <= bytes;
    };
    const EngineOptions chosen =
        decide_what_fits({*model, options_, mesh_, *sizes, comm::Backend::nccl, fits},
                         {.checkpointing = true, .micro_batch = true});
    EXPECT_EQ(chosen.batch.sequences * chosen.micro_batches, 32);
    EXPECT_LE(compiled(chosen).arena_bytes[0], bytes);
    sequences.insert(chosen.batch.sequences);
    recomputed.insert(to_string(chosen.checkpointing));
    for (const std::int64_t n : {1, 2, 4, 8, 16, 32}) {
      const auto level = std::ranges::find_if(
          levels, [&](const auto& l) { return compiled(divided(n, l)).arena_bytes[0] <= bytes; });
      if (level == levels.end()) continue;
      EXPECT_LE(cost(chosen), cost(divided(n, *level)) * (1 + 1e-12))
          << part << ": " << chosen.batch.sequences << " or " << n;
    }
  }
  // Where nothing fits, what needs least is advised.
  const auto never = [](const auto&, const DeviceMesh&, const EngineOptions&) { return false; };
  const EngineOptions chosen = decide_what_fits({*model, options_, mesh_, *sizes, comm::Backend::nccl, never},
                                                {.checkpointing = true, .micro_batch = true});
  EXPECT_EQ(chosen.batch.sequences, 1);
  EXPECT_GE(sequences.size(), 3U);
  EXPECT_GE(recomputed.size(), 3U);
}

// A number for each trained element, read and written; on several ranks written, and a shard read and written.
TEST_F(Fit, CountsWhatAMicroBatchMoreAdds) {
  const double ranks = test_world().size(),
               elements = 4 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 2 * 100 * 64 + 64;
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    options_.precision.reduce = options_.precision.gradient_shard = dtype;
    const auto compiled = compile_model(*model_, options_, mesh_, *device::make_cpu_sizes(1));
    const double bytes = elements * static_cast<double>(size_of(dtype));
    const double moved = ranks == 1 ? 2 * bytes : bytes + 2 * bytes / ranks;
    const double seconds = moved / 3e12;
    EXPECT_NEAR(seconds_of_accumulation(options_, compiled), seconds, 0.02 * seconds);
  }
}

TEST_F(Fit, ComputesAllLogitsOfAMicroBatchAtOnceIfTheyFit) {
  const auto sizes = device::make_gpu_sizes();
  model_ = llama({.vocabulary = 1 << 15});
  use(*model_);
  options_.batch = {32, 1024};  // rows of logits in 16 bits take 64 KiB, and 4 bytes for their losses
  options_.precision.param = options_.precision.compute = DType::bfloat16;
  constexpr std::int64_t kMib = 1 << 20, kAll = 2049 * kMib;
  const auto arena_with = [&](std::int64_t logits_bytes) {
    EngineOptions options = options_;
    options.batch.logits_bytes = logits_bytes;
    return compile_model(*model_, options, mesh_, *sizes, comm::Backend::nccl).arena_bytes[0];
  };
  const auto logits_in = [&](std::int64_t arena_bytes) {
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return arenas[0] <= arena_bytes;
    };
    return decide_what_fits({*model_, options_, mesh_, *sizes, comm::Backend::nccl, fits}, {.logits = true})
        .batch.logits_bytes;
  };
  ASSERT_LT(arena_with(device::kLogitsBytes), arena_with(kAll));
  EXPECT_EQ(logits_in(arena_with(kAll)), kAll);
  EXPECT_EQ(logits_in(arena_with(kAll) - 1), device::kLogitsBytes);
  options_.batch.sequences = 64;  // 2^31 of them, one more than a chunk can have
  EXPECT_EQ(logits_in(std::int64_t{1} << 60), 4089 * kMib) << "511 tiles of 128 rows, and their losses";
  options_.batch.sequences = 8;  // half of what is theirs in any case
  EXPECT_EQ(logits_in(arena_with(kAll)), device::kLogitsBytes);
}

TEST_F(Fit, RecomputesNoMoreThanItMust) {
  const auto sizes = device::make_cpu_sizes(1);
  const auto arena_with = [&](const BlockCheckpointing& checkpointing) {
    EngineOptions options = options_;
    options.checkpointing = checkpointing;
    return sum(arenas(options));
  };
  const auto chosen = [&](std::int64_t bytes) {
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return sum(arenas) <= bytes;
    };
    return to_string(fitting_checkpointing({*model_, options_, mesh_, *sizes, comm::Backend::mpi, fits}));
  };
  for (const char* text : {"none", "selective 1, none", "selective", "feed_forward 2, selective",
                           "feed_forward", "full 3, feed_forward"}) {
    const std::int64_t bytes = arena_with(*parse_checkpointing(text));
    const auto parsed = parse_checkpointing(chosen(bytes));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_LE(arena_with(*parsed), bytes) << text;
    EXPECT_NE(chosen(bytes - 1), text);
  }
  EXPECT_EQ(chosen(arena_with(Checkpointing::none)), "none");
  EXPECT_EQ(chosen(arena_with(Checkpointing::none) - 1), "selective 1, none");
  EXPECT_EQ(chosen(0), "full");
}

TEST_F(Fit, AdvisesNoMoreRecomputationThanIsNeeded) {
  options_.batch.sequences = 1;
  has_smallest_units(options_);
  const auto levels = checkpointing_levels(*model_);
  const auto arena_with = [&](const BlockCheckpointing& checkpointing) {
    EngineOptions options = options_;
    options.checkpointing = checkpointing;
    return sum(arenas(options));
  };
  for (const char* text : {"selective 1, none", "selective", "feed_forward 2, selective"}) {
    const std::int64_t bytes = arena_with(*parse_checkpointing(text));
    SmallDevice small(bytes);
    const std::string advice = refusal(small, small), before = "; it would fit with checkpointing = ";
    ASSERT_THAT(advice, HasSubstr(before));
    const auto advised = parse_checkpointing(advice.substr(advice.find(before) + before.size()));
    ASSERT_TRUE(advised.has_value()) << advice;
    const auto level = std::ranges::find(levels, *advised);
    ASSERT_NE(level, levels.end()) << advice;
    EXPECT_LE(arena_with(*level), bytes) << advice;
    EXPECT_GT(arena_with(*(level - 1)), bytes) << advice;
  }
}

/// Counted by hand: of one layer with weights of `elements`.
double forward_flops(double elements, double tokens) { return 2 * elements * tokens; }

// The backward pass has one product for each of a frozen weight.
TEST_F(Fit, CountsFewerProductsWhereWeightsAreFrozen) {
  options_.checkpointing = Checkpointing::full;
  const auto recomputed_part = [&] {
    const auto compiled = compile_model(*model_, options_, mesh_, *device::make_cpu_sizes(1));
    return added_seconds(*model_, options_, compiled).recomputed_part();
  };
  const double blocks = 4 * (4 * 64 * 64 + 3 * 64 * 128), head = 100 * 64;
  EXPECT_NEAR(recomputed_part(), blocks / (3 * (blocks + head)), 1e-9);
  for (std::size_t i = 0; i < options_.parameter_groups.size(); ++i)
    options_.parameter_groups[i].frozen = model_->parameters()[i].name.find("proj") != std::string::npos;
  EXPECT_NEAR(recomputed_part(), blocks / (2 * blocks + 3 * head), 1e-9);
}

TEST_F(Fit, CountsWhatRecomputationAndCopiesAdd) {
  const double tokens = 8 * 64, attention = 4 * 64 * 64, feed_forward = 3 * 64 * 128, head = 100 * 64;
  constexpr double kFlops = 685e12, kMemory = 3e12, kLink = 43e9;  // per second
  const double forward = forward_flops(4 * (attention + feed_forward) + head, tokens) / kFlops;
  const auto added = [&](const BlockCheckpointing& checkpointing, bool residuals) {
    EngineOptions options = options_;
    options.micro_batches = 2;
    options.checkpointing = checkpointing;
    options.offload.residuals = residuals;
    const auto compiled = compile_model(*model_, options, mesh_, *device::make_cpu_sizes(1));
    return added_seconds(*model_, options, compiled);
  };
  const auto none = added(Checkpointing::selective, false);
  EXPECT_DOUBLE_EQ(none.needed, 2 * 3 * forward);
  EXPECT_EQ(none.recomputed, 0);
  EXPECT_EQ(none.attention, 0);
  EXPECT_EQ(none.waiting, 0);
  // Two norms, and what goes into the last product: written by the backward pass, which reads in any case what they are made of.
  const double of_norm = 64, of_activation = 128;
  const auto memory = [&](double of_all) { return 2 * tokens * 4 * of_all / kMemory; };
  EXPECT_DOUBLE_EQ(none.memory, memory(4 * (2 * of_norm + of_activation)));
  const auto some = added({Checkpointing::full, 1, Checkpointing::feed_forward}, false);
  EXPECT_DOUBLE_EQ(some.recomputed, 2 * forward_flops(attention + 4 * feed_forward, tokens) / kFlops);
  const double scores =
      2 * 64 * 64 * tokens / kFlops;  // attention of a block, of which the causal half counts
  EXPECT_DOUBLE_EQ(some.attention, 2 * scores);
  // By forward passes, which read what they make it of: a norm as much as it writes, an activation twice that.
  EXPECT_DOUBLE_EQ(some.memory, memory((1 + 4) * 2 * of_norm + 3 * of_norm + 4 * 3 * of_activation));
  const auto copied = added(Checkpointing::selective, true);
  const double bytes = 6 * tokens * 64 * 4;  // into 3 of 4 blocks, twice in each, in float32
  // Copies take much longer than what is computed meanwhile, so each pass takes as long as they do, or a little less.
  const double both_ways = 2 * 2 * bytes / kLink;
  EXPECT_LT(copied.waiting, both_ways);
  const double norms_and_activations = tokens * 4 * 4 * (2 * 2 * of_norm + 3 * of_activation) / kMemory;
  EXPECT_GT(copied.waiting, both_ways - 2 * (3 * forward + 4 * 3.5 * scores + 2.7 * norms_and_activations));
  EXPECT_DOUBLE_EQ(copied.memory, none.memory + 2 * 2 * bytes / kMemory);
  EXPECT_DOUBLE_EQ(copied.total(), copied.memory + copied.waiting);
}

TEST_F(Fit, ResidualsGoToTheHostWhereThatAddsLess) {
  const auto sizes = device::make_gpu_sizes();
  options_.precision.param = options_.precision.compute = DType::bfloat16;
  const auto arena_with = [&](const model::Model& model, bool residuals) {
    EngineOptions options = options_;
    options.checkpointing = Checkpointing::selective;
    options.offload.residuals = residuals;
    return compile_model(model, options, mesh_, *sizes, comm::Backend::nccl).arena_bytes;
  };
  const auto chosen = [&](const model::Model& model, std::int64_t device_bytes, std::int64_t host_bytes) {
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return arenas[0] <= device_bytes && arenas[1] <= host_bytes;
    };
    const auto kept = fitting_activations({model, options_, mesh_, *sizes, comm::Backend::nccl, fits}, true);
    return to_string(kept.checkpointing) + (kept.offload_residuals ? ", residuals" : "");
  };
  const std::int64_t any = std::int64_t{1} << 40;
  const auto wide =
      llama({.hidden = 8192, .feed_forward = 28672, .layers = 16, .heads = 64, .key_value_heads = 8});
  use(*wide);
  options_.batch = {8, 4096};  // so that activations are most
  const auto with = arena_with(*wide, true);
  ASSERT_LT(with[0], arena_with(*wide, false)[0]);
  EXPECT_THAT(chosen(*wide, with[0], with[1]), AllOf(StartsWith("selective"), EndsWith(", residuals")));
  EXPECT_THAT(chosen(*wide, with[0], with[1] - 1), StartsWith("feed_forward "));
  EXPECT_EQ(chosen(*wide, any, any), "none");
  // Next what feed-forwards save, before they are recomputed.
  EngineOptions more = options_;
  more.offload.residuals = true;
  more.checkpointing = {Checkpointing::offload, 1, Checkpointing::selective};
  const auto with_more = compile_model(*wide, more, mesh_, *sizes, comm::Backend::nccl).arena_bytes;
  ASSERT_LT(with_more[0], with[0]);
  EXPECT_EQ(chosen(*wide, with_more[0], any), "offload 1, selective, residuals");
  EXPECT_THAT(chosen(*wide, with_more[0], with_more[1] - 1), StartsWith("feed_forward "));
  // So narrow a model's products are over long before its residuals have travelled.
  use(*model_);
  options_.batch = {8, 64};
  EXPECT_THAT(chosen(*model_, arena_with(*model_, true)[0], any), StartsWith("feed_forward "));
}

// Whatever may go to host memory, what fits with whole blocks recomputed and residuals there is found.
TEST_F(Fit, AutoFitsWheneverOneOfTheLevelsDoes) {
  const auto sizes = device::make_gpu_sizes();
  for (const std::int64_t layers : {4, 16}) {
    const auto model =
        llama({.hidden = 8192, .feed_forward = 28672, .layers = layers, .heads = 64, .key_value_heads = 8});
    use(*model);
    options_.batch = {8, 4096};
    options_.precision.param = options_.precision.compute = DType::bfloat16;
    const auto arena_with = [&](const BlockCheckpointing& checkpointing, bool residuals) {
      EngineOptions options = options_;
      options.checkpointing = checkpointing;
      options.offload.residuals = residuals;
      return compile_model(*model, options, mesh_, *sizes, comm::Backend::nccl).arena_bytes[0];
    };
    const auto added = [&](const KeptActivations& kept) {
      EngineOptions options = options_;
      options.checkpointing = kept.checkpointing;
      options.offload.residuals = kept.offload_residuals;
      return added_seconds(*model, options,
                           compile_model(*model, options, mesh_, *sizes, comm::Backend::nccl))
          .total();
    };
    const std::int64_t least = arena_with(Checkpointing::full, true),
                       most = arena_with(Checkpointing::none, false);
    std::set<std::string> chosen;
    for (int part = 0; part <= 20; ++part) {
      const std::int64_t bytes = least + (most - least) * part / 20;
      const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
        return arenas[0] <= bytes;
      };
      const FitQuestion question{*model, options_, mesh_, *sizes, comm::Backend::nccl, fits};
      const KeptActivations kept = fitting_activations(question, true);
      EXPECT_TRUE(kept.fits) << layers << " layers, " << part;
      EXPECT_LE(arena_with(kept.checkpointing, kept.offload_residuals), bytes);
      chosen.insert(to_string(kept.checkpointing));
      // Nor does what has been chosen take longer than without host memory.
      const KeptActivations without = fitting_activations(question, false);
      if (without.fits) {
        EXPECT_LE(added(kept), added(without));
      }
    }
    EXPECT_GT(chosen.size(), 5U);
  }
}

// Of a narrow model copies take longer than what they would save: but they make it fit.
TEST_F(Fit, ResidualsGoToTheHostWhereNothingElseFits) {
  const auto deep = llama({.layers = 24});
  use(*deep);
  options_.batch = {8, 1024};
  const auto sizes = device::make_cpu_sizes(1);
  const auto device_bytes = [&](bool residuals) {
    EngineOptions options = options_;
    options.checkpointing = Checkpointing::full;
    options.offload.residuals = residuals;
    return compile_model(*deep, options, mesh_, *sizes).arena_bytes[0];
  };
  const auto chosen = [&](std::int64_t bytes) {
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return arenas[0] <= bytes;
    };
    return fitting_activations({*deep, options_, mesh_, *sizes, comm::Backend::mpi, fits}, true);
  };
  ASSERT_LT(device_bytes(true), device_bytes(false));
  EXPECT_FALSE(chosen(device_bytes(false)).offload_residuals);
  const KeptActivations kept = chosen(device_bytes(true));
  EXPECT_TRUE(kept.offload_residuals);
  EXPECT_THAT(to_string(kept.checkpointing), StartsWith("full"));
}

TEST_F(Fit, MicroBatchesAreAsLargeAsFitsAndAsHelps) {
  const auto sizes = device::make_cpu_sizes(1);
  options_.batch.sequences = 1;
  options_.micro_batches = 12;
  const auto arena_with = [&](int sequences) {
    EngineOptions options = options_;
    options.batch.sequences = sequences;
    options.micro_batches = 12 / sequences;
    return sum(arenas(options));
  };
  const auto chosen = [&](std::int64_t bytes, std::int64_t enough) {
    const auto fits = [&](const auto& arenas, const DeviceMesh&, const EngineOptions&) {
      return sum(arenas) <= bytes;
    };
    return fitting_micro_batch({*model_, options_, mesh_, *sizes, comm::Backend::mpi, fits}, enough);
  };
  const std::int64_t length = options_.batch.seq_len, any = 1000 * length;
  for (const int sequences : {2, 3, 4, 6, 12}) {
    ASSERT_LT(arena_with(1), arena_with(sequences));
    EXPECT_EQ(chosen(arena_with(sequences), any), sequences);
    EXPECT_LT(chosen(arena_with(sequences) - 1, any), sequences);
  }
  EXPECT_EQ(chosen(arena_with(12), 4 * length), 4);
  EXPECT_EQ(chosen(arena_with(12), 4 * length + 1), 6);
  EXPECT_EQ(chosen(arena_with(3), 4 * length), 3);
  EXPECT_EQ(chosen(0, any), 1);
}

// Products in 8 bits take 16 tokens at a time.
TEST_F(Fit, MicroBatchesAreSuchAsProductsIn8BitsTake) {
  model_ = llama({}, {}, model::Fp8Recipe());
  use(*model_);
  const auto sizes = device::make_cpu_sizes(1);
  const auto chosen = [&](std::int64_t seq_len, std::int64_t enough) {
    options_.batch = {1, seq_len};
    options_.micro_batches = 12;
    const auto fits = [&](const auto&, const DeviceMesh&, const EngineOptions&) { return enough > 0; };
    return fitting_micro_batch({*model_, options_, mesh_, *sizes, comm::Backend::mpi, fits}, enough);
  };
  EXPECT_EQ(chosen(8, 1), 2);
  EXPECT_EQ(chosen(8, 17), 4);
  EXPECT_EQ(chosen(4, 0), 4) << "where nothing fits";
  EXPECT_EQ(chosen(16, 0), 1);

  options_.batch = {4, 264};
  options_.micro_batches = 1;
  EngineOptions smaller = options_;
  smaller.batch.sequences = smaller.micro_batches = 2;
  SmallDevice device(sum(arenas(smaller)));
  EXPECT_THAT(refusal(device, device), EndsWith("; it would fit with batch.sequences = 2"));
}

TEST_F(Fit, WithSumsInATreeWhatKeepsThemIsAdvised) {
  options_.sum_order = SumOrder::tree;
  EngineOptions smaller = options_;
  smaller.batch.sequences = 4;
  smaller.micro_batches = 2;
  SmallDevice device(sum(arenas(smaller)));
  EXPECT_THAT(refusal(device, device), EndsWith("; it would fit with batch.sequences = 4"));
  has_smallest_units(options_);
  options_.batch.sequences = 1;
  options_.checkpointing = Checkpointing::full;
  EngineOptions narrow = options_;
  narrow.precision.moment = DType::bfloat16;
  SmallDevice small(sum(arenas(narrow)));
  EXPECT_THAT(refusal(small, small), EndsWith("; it would fit with precision.moment = bfloat16"));
}

TEST_F(Fit, NamesWhatIsLargestAndWhatHelps) {
  EngineOptions smaller = options_;
  smaller.batch.sequences = 4;
  smaller.micro_batches = 2;
  SmallDevice device(sum(arenas(smaller)));
  const std::string text = refusal(device, device);
  EXPECT_THAT(text,
              ContainsRegex("^needs [0-9.]+ MiB of memory per rank, but .+ has about [0-9.]+ MiB for each of "
                            "its [0-9]+ ranks?; largest buffers: saved activation [0-9.]+ MiB, "));
  EXPECT_THAT(text, HasSubstr("; it would fit with batch.sequences = 4"));
  options_ = smaller;
  EXPECT_EQ(refusal(device, device), "");
}

// Device and host have memories of their own: offload fills the other one.
TEST_F(Fit, LooksAtBothMemories) {
  has_smallest_units(options_);
  options_.batch.sequences = 1;
  options_.checkpointing = Checkpointing::full;
  EngineOptions offloaded = options_;
  offloaded.offload.optimizer = true;
  const auto [on_device, on_host] = arenas(offloaded);
  SmallDevice device(on_device), host(on_host), small_host(on_host - 1);
  const std::string text = refusal(device, host);
  EXPECT_THAT(text, HasSubstr(" of GPU memory per rank"));
  EXPECT_THAT(text, HasSubstr("; it would fit with offload = optimizer"));
  EXPECT_THAT(refusal(device, small_host), HasSubstr("; it would fit on "));
  EngineOptions narrow = options_;
  narrow.precision.moment = DType::bfloat16;
  SmallDevice larger(arenas(narrow)[0]);
  EXPECT_THAT(refusal(larger, host), HasSubstr("; it would fit with offload = optimizer"));
  EXPECT_THAT(refusal(larger, small_host), HasSubstr("; it would fit with precision.moment = bfloat16"));
  options_ = offloaded;
  EXPECT_EQ(refusal(device, host), "");
  EXPECT_THAT(refusal(device, small_host), HasSubstr(" of host memory per rank"));
}

// What is advised is right: it fits with these options, and with one less it does not.
TEST_F(Fit, StateInBfloat16IsAdvisedWhereNothingElseHelps) {
  options_.batch.sequences = 1;
  options_.checkpointing = Checkpointing::full;
  options_.precision.param = DType::bfloat16;
  EngineOptions moments = options_, master, gradients;
  moments.precision.moment = DType::bfloat16;
  master = moments;
  master.precision.master = DType::bfloat16;
  gradients = master;
  gradients.precision.gradient_shard = gradients.precision.reduce = DType::bfloat16;
  const std::string words[] = {"precision.moment = bfloat16", " and precision.master = bfloat16",
                               " and precision.gradient_shard = bfloat16 and precision.reduce = bfloat16"};
  const EngineOptions original = options_;
  std::string advised;
  int i = 0;
  for (const auto& narrow : {moments, master, gradients}) {
    advised += words[i++];
    SmallDevice device(sum(arenas(narrow)));
    options_ = original;
    EXPECT_THAT(refusal(device, device), ::testing::EndsWith("; it would fit with " + advised));
    options_ = narrow;
    EXPECT_EQ(refusal(device, device), "");
  }
  // Whatever needs no other dtype comes first, several changes included.
  options_ = original;
  options_.micro_batches = 8;
  SmallDevice device(sum(arenas(options_)));
  options_.micro_batches = 1;
  options_.batch.sequences = 8;
  options_.checkpointing = Checkpointing::none;
  EXPECT_THAT(refusal(device, device),
              ::testing::EndsWith(
                  "; it would fit with batch.sequences = 1 and checkpointing = full 3, feed_forward"));
}

TEST_F(Fit, ABaseIn8BitsIsAdvisedBeforeAShorterState) {
  has_smallest_units(options_);
  options_.batch.sequences = 1;
  options_.checkpointing = Checkpointing::full;
  options_.precision.frozen = DType::bfloat16;
  options_.saves_frozen = false;
  const EngineOptions original = options_;
  // Of matrices of 1600 elements none is kept in whole blocks.
  for (const bool whole_blocks : {true, false}) {
    options_ = original;
    model_ = llama(whole_blocks ? LlamaSize{} : LlamaSize{.hidden = 40, .layers = 8},
                   model::LoraConfig{.rank = 2});
    use(*model_);
    EXPECT_EQ(parameter_without_whole_blocks(*model_, options_) < 0, whole_blocks);
    EngineOptions narrow = options_;
    if (whole_blocks) {
      narrow.precision.int8_base = true;
    } else {
      narrow.precision.moment = DType::bfloat16;
    }
    EXPECT_LT(sum(arenas(narrow)), sum(arenas(options_)));
    SmallDevice device(sum(arenas(narrow)));
    EXPECT_THAT(refusal(device, device),
                EndsWith(whole_blocks ? "; it would fit with precision.frozen = int8"
                                      : "; it would fit with precision.moment = bfloat16"));
    options_ = narrow;
    EXPECT_EQ(refusal(device, device), "");
  }
}

TEST_F(Fit, AdvisesNoCombinationThatIsRefused) {
  options_.batch.sequences = 1;
  options_.checkpointing = Checkpointing::full;
  options_.precision.param = options_.precision.reduce = DType::float16;
  EngineOptions moments = options_;
  moments.precision.moment = DType::bfloat16;
  SmallDevice device(sum(arenas(moments)) - 1);
  EXPECT_THAT(refusal(device, device), Not(HasSubstr("precision.master")));
  EXPECT_THAT(refusal(device, device), Not(HasSubstr("precision.gradient_shard")));
}

// Parameters that are gathered in float32 are the master themselves: another one would only be added.
TEST_F(Fit, ABfloat16MasterIsAdvisedBesideBfloat16ParametersOnly) {
  options_.batch.sequences = 1;
  options_.checkpointing = Checkpointing::full;
  EngineOptions narrow = options_;
  narrow.precision.moment = narrow.precision.gradient_shard = narrow.precision.reduce = DType::bfloat16;
  SmallDevice device(sum(arenas(narrow)));
  EXPECT_THAT(refusal(device, device),
              ::testing::EndsWith("; it would fit with precision.moment = bfloat16 and "
                                  "precision.gradient_shard = bfloat16 and precision.reduce = bfloat16"));
}

// A list grows with the micro-batches of a step: one of a million is not tried.
TEST_F(Fit, OfAHugeMicroBatchIsNotCutIntoAsManySteps) {
  options_.batch.sequences = 1 << 20;
  SmallDevice device(1000);
  EXPECT_THAT(refusal(device, device), HasSubstr("; neither 64 times as many ranks nor "));
}

TEST_F(Fit, EvaluationsHaveMicroBatchesOnly) {
  options_.training = false;
  options_.parameter_groups = {};
  EngineOptions smaller = options_;
  smaller.batch.sequences = 2;
  SmallDevice device(sum(arenas(smaller))), tiny(1000);
  EXPECT_THAT(refusal(device, device), HasSubstr("; it would fit with a micro-batch of 2"));
  EXPECT_THAT(refusal(tiny, tiny), HasSubstr("; neither 64 times as many ranks nor "));
}

}  // namespace
}  // namespace llampi::test
