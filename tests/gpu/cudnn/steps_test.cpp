// SPDX-License-Identifier: Apache-2.0
// Steps of packed documents: what is compiled for them is compiled before the first.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <utility>

#include "emulator/seams/attention_graphs.hpp"
#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/core/philox.hpp"
#include "support/expect_trajectory.hpp"

namespace llampi::test {
namespace {

using device::cuda::CudnnProblem;
using device::cuda::Direction;
using ::testing::IsEmpty;

constexpr std::int64_t kSeqLen = 136;  // documents are of two classes
constexpr int kSteps = 6;

/// Documents of these lengths, which are those of whole sequences.
void pack(device::HostBatch& batch, const std::vector<std::int64_t>& lengths) {
  batch.documents = 0;
  std::int64_t end = 0;
  for (const std::int64_t length : lengths) {
    for (std::int64_t t = 0; t < length; ++t)
      batch.positions()[static_cast<std::size_t>(end + t)] = static_cast<std::int32_t>(t);
    end += length;
    batch.cu_seqlens()[static_cast<std::size_t>(++batch.documents)] = static_cast<std::int32_t>(end);
  }
  ASSERT_EQ(end, batch.token_count());
}

/// Other numbers and lengths in each; whole sequences in the third and the last, and one document of the longer
/// class beside short ones in the second.
std::vector<std::int64_t> lengths_of_step(std::int64_t sequences, int step) {
  const RandomStream random(static_cast<std::uint64_t>(step), "lengths");
  std::vector<std::int64_t> lengths;
  for (std::int64_t s = 0; s < sequences; ++s) {
    std::int64_t left = kSeqLen;
    if (step == 3 || step == kSteps) lengths.push_back(std::exchange(left, 0));
    if (step == 2 && s == 0) {
      lengths.push_back(kSeqLen - 2);
      left = 2;
    }
    const std::int64_t most = std::max(kSeqLen >> step, std::int64_t{24});  // ever more of them
    while (left > 0) {
      const auto bits = random.bits(lengths.size()) % static_cast<std::uint64_t>(most);
      lengths.push_back(std::min(left, 1 + static_cast<std::int64_t>(bits)));
      left -= lengths.back();
    }
  }
  return lengths;
}

class PackedSteps : public ::testing::Test {
 protected:
  struct Outcome {
    std::vector<std::vector<CudnnProblem>> graphs;  ///< that were built before the first step, and in each
    std::vector<CudnnProblem> launches;
    std::vector<double> losses, grad_norms;
    std::int64_t replays = 0, captures = 0;
  };

  PackedSteps() {
    fixture_.seq_len = kSeqLen;
    fixture_.global_batch = 2;
  }

  Outcome run(bool prepares, bool graph, std::int64_t attention_room = std::int64_t{1} << 20) {
    std::string why;
    GpuRank rank = make_gpu_rank(test_world(), why);
    const auto host = device::make_cpu_device(1);
    Machine machine{*rank.device, *host, *rank.world};
    TrainingRun run(test_world(), fixture_,
                    {.precision = {.param = DType::bfloat16, .compute = DType::bfloat16},
                     .machine = &machine,
                     .graph = graph,
                     .attention_room = attention_room});
    Outcome outcome;
    emulator::take_attention_graphs();
    emulator::take_attention_launches();
    if (prepares) run.engine().prepare_for_documents();
    EXPECT_THAT(emulator::take_attention_launches(), IsEmpty()) << "preparing computes";
    outcome.graphs.push_back(emulator::take_attention_graphs());
    for (int t = 1; t <= kSteps; ++t) {
      auto inputs = run.inputs(t);
      auto& batch = inputs.micro_batches.front();
      // Ranks have different documents; those of the fifth step are the fourth's.
      const int as_step = t == 3 || t == kSteps ? t : t == 5 ? 4 : std::max(t - test_world().rank(), 1);
      pack(batch, lengths_of_step(batch.token_count() / kSeqLen, as_step));
      inputs.step.learning_rate = 1e-3;
      const auto result = run.step(inputs);
      outcome.losses.push_back(result.loss);
      outcome.grad_norms.push_back(result.grad_norm);
      if (t % 3 == 0) outcome.losses.push_back(run.engine().evaluate(batch));
      outcome.graphs.push_back(emulator::take_attention_graphs());
    }
    EXPECT_EQ(run.engine().memory().used(), run.engine().compiled().arena_bytes) << "the plan is exact";
    outcome.launches = emulator::take_attention_launches();
    outcome.replays = run.engine().graph_counts().replays;
    outcome.captures = run.engine().graph_counts().captures;
    return outcome;
  }

  oracle::Fixture fixture_ = oracle::load("one_layer_one_head");
};

TEST_F(PackedSteps, BuildNoGraphOnceTheyArePrepared) {
  const Outcome prepared = run(true, true);
  // Of each direction: whole sequences, and documents of each class.
  const auto& first = prepared.graphs.front();
  EXPECT_EQ(first.size(), 6U);
  EXPECT_EQ(std::ranges::count(first, Direction::forward, &CudnnProblem::direction), 3);
  for (int t = 1; t <= kSteps; ++t)
    EXPECT_THAT(prepared.graphs[static_cast<std::size_t>(t)], IsEmpty()) << "in step " << t;
  const std::set<CudnnProblem> used(prepared.launches.begin(), prepared.launches.end());
  EXPECT_EQ(used, std::set(first.begin(), first.end())) << "steps did not use all that was built";
  EXPECT_EQ(prepared.captures, 2) << "of documents, and of whole sequences";
  EXPECT_EQ(prepared.replays, 2);

  const Outcome without = run(false, false);
  EXPECT_THAT(without.graphs[0], IsEmpty());
  EXPECT_EQ(without.graphs[1].size(), 4U) << "of documents, of all classes at once";
  EXPECT_EQ(without.graphs[3].size(), 2U) << "of whole sequences";
  EXPECT_EQ(without.losses, prepared.losses);
  EXPECT_EQ(without.grad_norms, prepared.grad_norms);
}

// The gradients of longer documents and of whole sequences are computed by the native kernels then.
TEST_F(PackedSteps, AreReplayedWhereOnlyShortDocumentsHaveRoom) {
  constexpr std::int64_t kOfShort = std::int64_t{2} * 128 * 128 * 2;  // dP of two
  const Outcome replayed = run(true, true, kOfShort), issued = run(false, false, kOfShort);
  for (const CudnnProblem& launch : replayed.launches) {
    if (launch.direction == Direction::backward) {
      EXPECT_LE(launch.longest, 128);
    }
  }
  const auto backward = std::ranges::count(replayed.launches, Direction::backward, &CudnnProblem::direction);
  EXPECT_GT(backward, 0);
  EXPECT_EQ(replayed.replays, 2);
  EXPECT_EQ(issued.losses, replayed.losses);
  EXPECT_EQ(issued.grad_norms, replayed.grad_norms);
  const Outcome all = run(true, true);
  EXPECT_GT(std::ranges::count(all.launches, Direction::backward, &CudnnProblem::direction), backward);
  for (std::size_t i = 0; i < all.losses.size(); ++i)
    EXPECT_NEAR(all.losses[i], replayed.losses[i], 1e-2 * all.losses[i]) << "of rounding alone";
}

}  // namespace
}  // namespace llampi::test
