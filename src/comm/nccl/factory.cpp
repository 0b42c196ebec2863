// SPDX-License-Identifier: Apache-2.0
// The plugin's way to NCCL; see comm/nccl_factory.hpp.
#include "comm/nccl/nccl_world.hpp"
#include "comm/nccl_factory.hpp"

extern "C" __attribute__((visibility("default"))) void llampi_make_nccl_world(
    llampi::comm::World& mpi, llampi::device::Device& gpu, const llampi::comm::NcclOptions& options,
    std::unique_ptr<llampi::comm::World>& result) {
  auto* const cuda = dynamic_cast<llampi::device::CudaInterop*>(&gpu);
  llampi::require(cuda != nullptr, "the device is not a GPU of this plugin");
  result = std::make_unique<llampi::comm::nccl::NcclWorld>(mpi, llampi::comm::nccl::Gpu{gpu, *cuda}, options);
}

static_assert(std::is_same_v<decltype(llampi_make_nccl_world), llampi::comm::NcclWorldFactory>);
