// SPDX-License-Identifier: Apache-2.0
// A rank that is lost while the GPU waits for it is noticed by the host that waits for the GPU.
#include "comm/nccl/nccl_world.hpp"
#include "device/cuda/cuda_device.hpp"
#include "emulator/control.hpp"
#include "emulator/seams/communicators.hpp"
#include "gpu/nccl/nccl_fixture.hpp"
#include "support/trajectory.hpp"

namespace llampi::test {
namespace {

/// What the last of some steps says, during which NCCL loses a rank.
std::string error_of_last_step(bool graph) {
  const auto fixture = oracle::load("one_layer_one_head");
  device::cuda::CudaDevice gpu{device::GpuOptions{}};
  const auto host = device::make_cpu_device(1);
  comm::nccl::NcclWorld world(test_world(), comm::nccl::Gpu{gpu, gpu},
                              {.patience = std::chrono::seconds(30)});
  Machine machine{gpu, *host, world};
  TrainingRun run(test_world(), fixture, {.machine = &machine, .graph = graph});
  for (int t = 1; t <= 2; ++t) run.step(t);
  EXPECT_EQ(run.engine().graph_counts().replays, graph ? 1 : 0);
  const auto inputs = run.inputs(3);
  emulator::set_stream_order(emulator::StreamOrder::lazy);  // the host comes to wait before the GPU is done
  emulator::lose_a_rank();
  try {
    run.engine().step(inputs.micro_batches, inputs.step);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class LostRank : public ::testing::Test {
 protected:
  void TearDown() override {
    emulator::set_stream_order(emulator::StreamOrder::eager);
    emulator::reset_communicators();
  }
};

TEST_F(LostRank, EndsAReplay) {
  EXPECT_NE(error_of_last_step(true).find("remote process exited"), std::string::npos);
}

TEST_F(LostRank, EndsAStep) {
  EXPECT_NE(error_of_last_step(false).find("remote process exited"), std::string::npos);
}

}  // namespace
}  // namespace llampi::test
