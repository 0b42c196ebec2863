// SPDX-License-Identifier: Apache-2.0
#include "support/documents_apart.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "llampi/comm/comm.hpp"
#include "llampi/device/host_batch.hpp"
#include "support/expect_trajectory.hpp"

namespace llampi::test {
namespace {

using namespace fsdp;

bool in_second(std::int64_t at, std::int64_t seq_len) { return at >= seq_len / 3 && at < 2 * seq_len / 3; }

void cut_into_three(device::HostBatch& batch, std::int64_t seq_len) {
  batch.documents = 0;
  batch.valid_labels = 0;
  for (std::int64_t t = 0; t < batch.token_count(); ++t) {
    const auto at = t % seq_len;
    const bool begins = at == 0 || at == seq_len / 3 || at == 2 * seq_len / 3;
    if (begins)
      batch.cu_seqlens()[static_cast<std::size_t>(batch.documents++)] = static_cast<std::int32_t>(t);
    const auto begin = batch.cu_seqlens()[static_cast<std::size_t>(batch.documents - 1)];
    batch.positions()[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t) - begin;
    auto& label = batch.labels()[static_cast<std::size_t>(t)];
    if (!in_second(at, seq_len) || !in_second(at + 1, seq_len)) label = -1;
    batch.valid_labels += label >= 0 ? 1 : 0;
  }
  batch.cu_seqlens()[static_cast<std::size_t>(batch.documents)] =
      static_cast<std::int32_t>(batch.token_count());
}

Trajectory one_step(comm::World& world, const oracle::Fixture& fixture, const TrajectoryOptions& options,
                    const TrainingRun::Inputs& inputs) {
  TrainingRun run(world, fixture, options);
  const auto result = run.step(inputs);
  return {{result.loss}, {result.grad_norm}, whole_parameters(world, run.device(), run.engine())};
}

}  // namespace

void expect_documents_apart(comm::World& world, const oracle::Fixture& fixture,
                            const TrajectoryOptions& options) {
  auto inputs = TrainingRun(world, fixture, options).inputs(1);
  inputs.step.valid_labels = 0;
  for (auto& batch : inputs.micro_batches) {
    cut_into_three(batch, fixture.seq_len);
    inputs.step.valid_labels += batch.valid_labels;
  }
  world.sum(std::span(&inputs.step.valid_labels, 1));
  ASSERT_GT(inputs.step.valid_labels, 0);
  const auto with_other_tokens = [&](bool of_second) {
    auto changed = inputs;
    for (auto& batch : changed.micro_batches) {
      for (std::int64_t t = 0; t < batch.token_count(); ++t) {
        auto& token = batch.tokens()[static_cast<std::size_t>(t)];
        if (in_second(t % fixture.seq_len, fixture.seq_len) == of_second) {
          token = static_cast<std::int32_t>((token + 5) % fixture.config.vocab_size);
        }
      }
    }
    return one_step(world, fixture, options, changed);
  };
  const auto base = one_step(world, fixture, options, inputs);
  expect_same_bits(base, with_other_tokens(false), "other tokens in documents without labels");
  EXPECT_FALSE(same_bits(base, with_other_tokens(true))) << "a comparison that sees nothing";
}

}  // namespace llampi::test
