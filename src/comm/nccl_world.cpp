// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_factory.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/nccl.hpp"
#include "llampi/device/gpu.hpp"

namespace llampi::comm {

std::unique_ptr<World> make_nccl_world(World& mpi, device::Device& gpu, const device::GpuLibrary& library,
                                       const NcclOptions& options) {
  auto* const make = reinterpret_cast<NcclWorldFactory*>(library.symbol(kNcclWorldFactory));
  std::unique_ptr<World> world;
  make(mpi, gpu, options, world);
  return world;
}

}  // namespace llampi::comm
