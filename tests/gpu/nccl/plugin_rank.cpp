// SPDX-License-Identifier: Apache-2.0
// Ranks on the GPUs of this machine, several on one where there are too few.
#include "gpu/nccl/nccl_fixture.hpp"

namespace llampi::test {

GpuRank make_gpu_rank(comm::World& mpi, std::string& why, const comm::NcclOptions& options) {
  GpuRank rank;
  if (make_gpu({}, why) == nullptr) return rank;
  const device::GpuLibrary& library = *device::gpu_library(why);
  const comm::GpuOfRank own = comm::gpu_of_rank(mpi, library.gpus(), true);
  rank.device = library.make_device({.gpu = own.index, .ranks = own.ranks});
  rank.world = comm::make_nccl_world(mpi, *rank.device, library, options);
  return rank;
}

}  // namespace llampi::test
