// Ranks with an emulated GPU each.
#include "comm/nccl/nccl_world.hpp"
#include "gpu/nccl/nccl_test.hpp"

namespace llampi::test {

GpuRank make_gpu_rank(World& mpi, std::string& why) {
  GpuRank rank;
  rank.device = make_gpu({}, why);
  rank.world = std::make_unique<nccl::NcclWorld>(mpi, dynamic_cast<cuda::CudaDevice&>(*rank.device),
                                                 std::chrono::minutes(10));
  return rank;
}

}  // namespace llampi::test
