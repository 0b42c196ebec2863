// SPDX-License-Identifier: Apache-2.0
// What is counted of a step, against the model's own count.
#include "llampi/plan/compute_time.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "llampi/fsdp/added_work.hpp"
#include "llampi/model/llama.hpp"
#include "llampi/plan/step_time.hpp"

namespace llampi::test {
namespace {

using namespace plan;

struct CountedStep {
  explicit CountedStep(const fsdp::BlockCheckpointing& checkpointing = {}, int micro_batches = 1,
                       int ranks = 1, fsdp::Offload offload = {}) {
    model::LlamaConfig config;
    config.vocab_size = 1000;
    config.hidden_size = 64;
    config.intermediate_size = 128;
    config.layers = 3;
    config.query_heads = 4;
    config.key_value_heads = 2;
    config.head_dim = 16;
    config.max_position_embeddings = 64;
    model = model::make_llama(config);
    options.batch = {2, 16};
    options.micro_batches = micro_batches;
    options.checkpointing = checkpointing;
    options.offload = offload;
    options.parameter_groups = optim::parameter_groups(model->parameters(), {});
    mesh = fsdp::make_device_mesh(options.strategy, std::vector<int>(static_cast<std::size_t>(ranks)), 0);
    const auto sizes = device::make_cpu_sizes(1);
    compiled = fsdp::compile_model(*model, options, mesh, *sizes);
    work =
        work_of_step(*model, options, mesh, compiled, *sizes, comm::Backend::mpi, AttentionKernels::native);
    for (const auto& action : work) {
      sum += action.amounts;
      if (action.recomputes) recomputed += action.amounts;
    }
  }
  std::unique_ptr<model::Model> model;
  fsdp::EngineOptions options;
  fsdp::DeviceMesh mesh;
  fsdp::CompiledModel compiled;
  std::vector<ActionWork> work;
  Terms sum, recomputed;
};

TEST(ComputeTime, CountsTheOperationsThatTheModelHas) {
  for (const int micro_batches : {1, 3}) {
    const CountedStep step({}, micro_batches);
    // fsdp::flops_per_token() counts attention as three times its forward pass; the backward pass has five products for two.
    const double attention = step.sum[Term::attention_forward];
    EXPECT_DOUBLE_EQ(step.sum[Term::attention_native], 2.5 * attention);
    EXPECT_NEAR(step.sum[Term::product_float32] + 3 * attention,
                fsdp::flops_per_token(*step.model, step.options, step.compiled) * 32 * micro_batches, 1);
  }
}

// So smaller micro-batches cost more.
TEST(ComputeTime, ProductsThatAddToAGradientReadIt) {
  const Tensor x{nullptr, DType::bfloat16, 8, 64}, dy{nullptr, DType::bfloat16, 8, 32},
      weight{nullptr, DType::bfloat16, 32, 64}, labels{nullptr, DType::int32, 1, 8};
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const Tensor dweight{nullptr, dtype, 32, 64};
    const auto counted = [&](Accumulate accumulate) {
      const device::op::WeightGradient projection{
          .dy = dy, .x = x, .dweight = dweight, .accumulate_dweight = accumulate};
      const device::op::LinearCrossEntropyBackward head{.labels = labels,
                                                        .x = x,
                                                        .weight = weight,
                                                        .inverse_tokens = nullptr,
                                                        .loss_sum = nullptr,
                                                        .dx = x,
                                                        .dweight = dweight,
                                                        .accumulate_dweight = accumulate,
                                                        .workspace = {}};
      Terms both = amounts_of(projection, AttentionKernels::deterministic);
      both += amounts_of(head, AttentionKernels::deterministic);
      return both[Term::memory_bytes];
    };
    EXPECT_EQ(counted(Accumulate::yes) - counted(Accumulate::no), 2 * dweight.bytes());
  }
}

TEST(ComputeTime, RecomputationIsTheForwardPassOnceMore) {
  const CountedStep none, full(fsdp::Checkpointing::full), selective(fsdp::Checkpointing::selective);
  EXPECT_EQ(none.recomputed[Term::product_float32], 0);
  EXPECT_EQ(selective.sum[Term::product_float32], none.sum[Term::product_float32]);
  EXPECT_GT(selective.sum[Term::memory_bytes], none.sum[Term::memory_bytes]);
  EXPECT_DOUBLE_EQ(full.recomputed[Term::attention_forward], none.sum[Term::attention_forward]);
  EXPECT_DOUBLE_EQ(full.sum[Term::product_float32] - full.recomputed[Term::product_float32],
                   none.sum[Term::product_float32]);
}

// There is no link, and nothing that copies beside the computation.
TEST(ComputeTime, CpusCopyWhatIsOffloaded) {
  const CountedStep none, offloaded({}, 1, 1, {.optimizer = true, .params = true});
  double copied = 0;
  for (const fsdp::Action& action : offloaded.compiled.step.actions) {
    const bool copies = action.op == fsdp::Op::h2d || action.op == fsdp::Op::d2h;
    copied += copies ? static_cast<double>(action.bytes) : 0;
  }
  EXPECT_GT(copied, 0);
  EXPECT_NEAR(offloaded.sum[Term::array_bytes], none.sum[Term::array_bytes] + 2 * copied, 0.01 * copied);
  Speed speed;
  speed.node_of_rank = {0};
  speed.costs = Terms();
  speed.backend = comm::Backend::mpi;
  const auto phases = action_phases(*offloaded.model, offloaded.options, offloaded.mesh, offloaded.compiled,
                                    speed, offloaded.work);
  for (const Phases& of_action : phases) {
    for (const Phase& phase : of_action) EXPECT_NE(phase.resource, Resource::own);
  }
}

TEST(ComputeTime, AnUpdateIsOfTheShard) {
  const auto updated = [](const CountedStep& step) {
    double bytes = 0;
    for (std::size_t i = 0; i < step.work.size(); ++i) {
      if (step.compiled.step.actions[i].op == fsdp::Op::update)
        bytes += step.work[i].amounts[Term::array_bytes];
    }
    return bytes;
  };
  const CountedStep one, four({}, 1, 4);
  // Gradient read; master, exp_avg and exp_avg_sq read and written: float32.
  EXPECT_GE(updated(one), 28.0 * static_cast<double>(one.model->parameter_elements()));
  EXPECT_LE(updated(one), 28.5 * static_cast<double>(one.model->parameter_elements()));
  EXPECT_NEAR(updated(four), updated(one) / 4, updated(one) / 50);
}

// Whatever kernels attention is computed with.
TEST(ComputeTime, AnUpdateOnTheHostOfAGpuTakesTheHostsMemory) {
  CountedStep step;
  step.options.offload = {.optimizer = true, .host_step = true};
  const auto updates_take = [&](comm::Backend backend, AttentionKernels kernels) {
    const auto sizes = backend == comm::Backend::nccl ? device::make_gpu_sizes() : device::make_cpu_sizes(1);
    const auto compiled = fsdp::compile_model(*step.model, step.options, step.mesh, *sizes, backend);
    const auto work = work_of_step(*step.model, step.options, step.mesh, compiled, *sizes, backend, kernels);
    Terms updates;
    for (std::size_t i = 0; i < work.size(); ++i) {
      if (compiled.step.actions[i].op == fsdp::Op::update) updates += work[i].amounts;
    }
    return std::pair(updates[Term::host_memory_bytes] > 0, updates[Term::array_bytes] > 0);
  };
  using enum AttentionKernels;
  for (const AttentionKernels kernels : {native, deterministic, any_order})
    EXPECT_EQ(updates_take(comm::Backend::nccl, kernels), std::pair(true, false))
        << static_cast<int>(kernels);
  EXPECT_EQ(updates_take(comm::Backend::mpi, native), std::pair(false, true));
}

}  // namespace
}  // namespace llampi::test
