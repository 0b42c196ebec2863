// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/environment.hpp"

#include <cstdlib>
#include <set>

#include "comm/nccl/gpu.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm::nccl {
namespace {

bool some_share(World& mpi, int gpu) {
  char bus_id[32] = {};
  check(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, gpu), "cudaDeviceGetPCIBusId");
  const auto all = mpi.all_gather(fmt::format("{} {}", mpi.topology().node, bus_id));
  return std::set<std::string>(all.begin(), all.end()).size() < all.size();
}

void set_default(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 0); }

}  // namespace

bool set_environment(World& mpi, int gpu) {
  // Gathers and reductions are two communicators on one GPU: they start in the order in which they are
  // issued, on all GPUs, or one could wait for room here and the other there.
  set_default("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  if (!some_share(mpi, gpu)) return false;
  set_default("NCCL_HOSTID", fmt::format("{}-rank-{}", mpi.topology().host, mpi.rank()));
  set_default("NCCL_NET", "Socket");
  set_default("NCCL_MNNVL_ENABLE", "0");  // NVLink between nodes, which would join them again
  if (mpi.topology().nodes == 1) set_default("NCCL_SOCKET_IFNAME", "lo");
  return true;
}

}  // namespace llampi::comm::nccl
