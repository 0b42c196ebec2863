// Ranks on the GPUs of this machine, several on one where there are too few.
#include "gpu/nccl/nccl_test.hpp"

namespace llampi::test {

GpuRank make_gpu_rank(World& mpi, std::string& why) {
  GpuRank rank;
  if (make_gpu({}, why) == nullptr) return rank;
  const GpuLibrary& library = *gpu_library(why);
  const GpuOfRank own = gpu_of_rank(mpi, library.gpus(), true);
  rank.device = library.make_device({.gpu = own.index, .ranks = own.ranks});
  rank.world = make_nccl_world(mpi, *rank.device, library, std::chrono::minutes(1));
  return rank;
}

}  // namespace llampi::test
