// SPDX-License-Identifier: Apache-2.0
// Ranks with an emulated GPU each.
#include "comm/nccl/nccl_world.hpp"
#include "gpu/nccl/nccl_fixture.hpp"

namespace llampi::test {

GpuRank make_gpu_rank(comm::World& mpi, std::string& why, const comm::NcclOptions& options) {
  GpuRank rank;
  rank.device = make_gpu({}, why);
  rank.world = std::make_unique<comm::nccl::NcclWorld>(
      mpi, comm::nccl::Gpu{*rank.device, dynamic_cast<device::CudaInterop&>(*rank.device)}, options);
  return rank;
}

}  // namespace llampi::test
