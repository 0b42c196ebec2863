#include "comm/nccl/shared_gpu.hpp"

#include <cstdlib>
#include <set>

#include "device/cuda/common.hpp"

namespace llampi::nccl {
namespace {

bool some_share(World& mpi, int gpu) {
  char bus_id[32] = {};
  cuda::check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, gpu), "cudaDeviceGetPCIBusId");
  const auto all = mpi.all_gather(fmt::format("{} {}", mpi.topology().node, bus_id));
  return std::set<std::string>(all.begin(), all.end()).size() < all.size();
}

void set_default(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 0); }

}  // namespace

bool separate_ranks_that_share_a_gpu(World& mpi, int gpu) {
  if (!some_share(mpi, gpu)) return false;
  set_default("NCCL_HOSTID", fmt::format("{}-rank-{}", mpi.topology().host, mpi.rank()));
  set_default("NCCL_NET", "Socket");
  if (mpi.topology().nodes == 1) set_default("NCCL_SOCKET_IFNAME", "lo");
  return true;
}

}  // namespace llampi::nccl
