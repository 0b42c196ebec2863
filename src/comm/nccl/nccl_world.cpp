// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_world.hpp"

#include <cstdlib>

#include "comm/levels.hpp"
#include "comm/nccl/environment.hpp"
#include "comm/nccl/nccl_group.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/comm/placement.hpp"

namespace llampi::comm::nccl {
namespace {

constexpr std::uintptr_t kAlignment =
    4096;  // promised by Memory; ncclMemAlloc's pages are larger, cudaMalloc's not

/// Where memory is freed; whoever issues a collective afterwards hears of a failure. While an exception unwinds the other ranks
/// may never come.
void close_quietly(Session& session, void* data) {
  if (std::uncaught_exceptions() > 0) return session.abort();
  try {
    session.close_windows(data);
  } catch (const std::exception&) {  // all is aborted
  }
}

/// Of the library that this process has loaded; empty: it is suitable.
std::string why_unsuitable(const NcclOptions& options) {
  if (!library().is_supported())
    return fmt::format("NCCL 2.27 or newer is needed, and {} was loaded; set LD_LIBRARY_PATH to a newer one",
                       library().version());
  if (options.resources.copy_engines && !library().has_copy_engines())
    return fmt::format("fsdp.nccl_copy_engines = true needs NCCL 2.28 or newer, and this is {}",
                       library().version());
  return {};
}

}  // namespace

NcclWorld::NcclWorld(World& mpi, Gpu gpu, const NcclOptions& options)
    : mpi_(mpi),
      gpu_(gpu),
      options_(options),
      session_(std::make_shared<Session>(gpu.cuda.gpu(), format_rank(mpi.rank(), mpi.topology().host),
                                         options.patience)) {
  for (const auto& why : mpi.all_gather(why_unsuitable(options)))  // nodes may have different libraries
    if (!why.empty()) throw_user_error("{}", why);
  if (set_environment(mpi, gpu.cuda.gpu())) note_ = ", over sockets because ranks share a GPU";
}

NcclWorld::~NcclWorld() {
  if (std::uncaught_exceptions() > exceptions_) session_->abort();
}

std::string NcclWorld::describe() const {
  return fmt::format("{}, {}{}", mpi_.describe(), library().version(), note_);
}

void NcclWorld::add_note(const std::string& note) {
  if (note_.find(note) == std::string::npos) note_ += note;
}

std::unique_ptr<Group> NcclWorld::group(const std::vector<int>& members,
                                        const std::vector<device::Stream>& streams) {
  std::unique_ptr<Group> host = mpi_.group(members, {device::Stream::host});
  const auto& node_of_rank =
      options_.node_of_rank.empty() ? mpi_.topology().node_of_rank : options_.node_of_rank;
  auto levels = two_levels(nodes_of_members(members, node_of_rank), host->rank());
  return std::make_unique<NcclGroup>(session_, gpu_, std::move(host), std::move(levels), streams, options_);
}

device::Memory NcclWorld::allocate(std::int64_t bytes) {
  require(bytes >= 0, "memory of negative size");
  if (bytes == 0) return {};
  void* const data = library().allocate(static_cast<std::size_t>(bytes));
  const bool registrable = data != nullptr && reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0;
  std::int64_t without = registrable ? 0 : 1;
  if (options_.resources.window) mpi_.sum(std::span(&without, 1));  // a window is one of all ranks
  const bool window = options_.resources.window && without == 0;
  if (options_.resources.window && !window) add_note(", without windows: NCCL has no memory for them");
  if (!registrable) {
    if (data != nullptr) library().free(data);
    cudaGetLastError();  // what NCCL left there is no error of the next launch
    device::Memory memory = gpu_.device.allocate(bytes);
    add_note(", buffers by cudaMalloc");
    return memory;
  }
  if (window) {
    std::int64_t missing = session_->open_windows(data, static_cast<std::size_t>(bytes)) ? 0 : 1;
    mpi_.sum(std::span(&missing, 1));
    if (missing > 0) add_note(", without all windows: NCCL has no use for some");
  }
  device::Memory memory(data, bytes, [session = window ? session_ : nullptr](void* begin) {
    if (session) close_quietly(*session, begin);
    library().free(begin);
  });
  nccl::check(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes), gpu_.stream(device::Stream::compute)),
              "cudaMemsetAsync");
  gpu_.device.synchronize(device::Stream::compute);
  return memory;
}

void NcclWorld::abort(int status) {
  session_->abort();
  mpi_.abort(status);
  std::abort();  // not reached, which g++ does not see through a virtual function
}

}  // namespace llampi::comm::nccl
