// The plugin's way to NCCL; see comm/nccl_factory.hpp.
#include "comm/nccl/nccl_world.hpp"
#include "comm/nccl_factory.hpp"

extern "C" __attribute__((visibility("default"))) void llampi_make_nccl_world(
    llampi::World& mpi, llampi::Device& gpu, std::chrono::milliseconds patience,
    std::unique_ptr<llampi::World>& result) {
  auto* const device = dynamic_cast<llampi::cuda::CudaDevice*>(&gpu);
  llampi::require(device != nullptr, "the device is no GPU of this plugin");
  result = std::make_unique<llampi::nccl::NcclWorld>(mpi, *device, patience);
}

static_assert(std::is_same_v<decltype(llampi_make_nccl_world), llampi::NcclWorldFactory>);
