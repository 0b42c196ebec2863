// SPDX-License-Identifier: Apache-2.0
#include "emulator/seams/emulated_nccl.hpp"

#include <cuda_runtime.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "emulator/capture.hpp"
#include "emulator/memory.hpp"
#include "emulator/seams/emulated_exchange.hpp"
#include "emulator/seams/ring_sums.hpp"
#include "emulator/streams.hpp"
#include "llampi/core/error.hpp"

namespace llampi::emulated_nccl {
namespace {

constexpr int kUsualDelay = 2;
constexpr std::uintptr_t kPage = std::uintptr_t{2} << 20;

struct State {
  int delay = kUsualDelay;
  std::string failing;
  ncclResult_t failure = ncclSuccess;
  bool misaligned = false;
  bool chained = true;
  std::shared_ptr<emulator::Point> last;  ///< collective that was issued
  std::atomic<int> open = 0, destroyed = 0, aborted = 0;
  bool grouped = false;  ///< between ncclGroupStart and ncclGroupEnd
  int ids = 0;
  std::map<void*, void*> memory;  ///< what cudaMalloc gave for it
};

State& state() {
  static State state;
  return state;
}

}  // namespace
}  // namespace llampi::emulated_nccl

using namespace llampi;
using namespace llampi::emulated_nccl;

struct ncclComm {
  std::shared_ptr<Link> link = std::make_shared<Link>();
  std::function<void()> pending;  ///< what the last call has still to do
  int polls = 0;                  ///< until it does it; -1: never
  ncclResult_t error = ncclSuccess;
  bool blocking = true;
  bool finalized = false;
  bool connects = true;                       ///< in its next collective, the first
  MPI_Request connection = MPI_REQUEST_NULL;  ///< complete when all ranks have come there
};

namespace llampi::emulated_nccl {
namespace {

std::vector<ncclComm*>& communicators() {
  static std::vector<ncclComm*> all;
  return all;
}

ncclResult_t failure_of(const std::string& function) {
  if (state().failing != function) return ncclSuccess;
  state().failing.clear();
  return state().failure;
}

/// Begins a call: `work` is done later.
ncclResult_t begin(ncclComm* communicator, const std::string& function, std::function<void()> work) {
  if (communicator->pending) return ncclInvalidUsage;  // "before the previous operation returned ncclSuccess"
  if (communicator->error != ncclSuccess) return communicator->error;
  if (const ncclResult_t failure = failure_of(function); failure != ncclSuccess)
    work = [=] { communicator->error = failure; };
  communicator->pending = std::move(work);
  communicator->polls = state().delay;
  if (!communicator->blocking) return ncclInProgress;
  communicator->polls = 0;
  ncclResult_t result = ncclInProgress;
  while (result == ncclInProgress) ncclCommGetAsyncError(communicator, &result);
  return result;
}

// ---- collectives ----

/// Buffers are a GPU's, and apart, or `receive` lies in `send` (or the other way round) just where it may.
void check_buffers(const void* send, std::size_t send_bytes, const void* receive, std::size_t receive_bytes,
                   std::ptrdiff_t place) {
  for (const auto& [data, bytes] : {std::pair{send, send_bytes}, std::pair{receive, receive_bytes}}) {
    require(emulator::device_memory().contains(data), "NCCL works on memory that is no GPU's");
    emulator::device_memory().check(data, bytes, "NCCL");
  }
  const auto *const s = static_cast<const std::byte*>(send), *const r =
                                                                 static_cast<const std::byte*>(receive);
  const bool apart = s + send_bytes <= r || r + receive_bytes <= s;
  require(apart || r - s == place, "NCCL's buffers overlap");
}

/// Puts it into the stream when NCCL comes to it: `finish(link, received)` with what all ranks have in
/// `send`.
template <class Finish>
ncclResult_t collective(ncclComm* communicator, const char* function, const void* send, std::size_t bytes,
                        cudaStream_t stream, Finish finish) {
  if (std::exchange(communicator->connects, false))
    check_mpi(MPI_Ibarrier(communicator->link->mpi, &communicator->connection));
  return begin(communicator, function, [=, link = communicator->link] {
    // A graph has an order of its own.
    const auto& last = state().last;
    if (state().chained && last && last->capture.get() == emulator::capture_of(stream))
      emulator::wait_for(stream, last);
    exchange(link, send, bytes, stream, [=](Received& received) { finish(*link, received); });
    state().last = emulator::mark(stream);
  });
}

}  // namespace

Counts counts() {
  return {state().open, state().destroyed, state().aborted, static_cast<int>(state().memory.size())};
}
void set_delay(int polls) { state().delay = polls; }
void fail_next(const std::string& function, ncclResult_t result) {
  state().failing = function;
  state().failure = result;
}
void lose_a_rank() {
  for (ncclComm* communicator : communicators()) {
    communicator->error = ncclRemoteError;
    communicator->link->dead = true;
  }
}
void chain_collectives(bool wanted) { state().chained = wanted; }
void misalign_memory(bool wanted) { state().misaligned = wanted; }
void reset() {
  state().delay = kUsualDelay;
  state().failing.clear();
  state().misaligned = false;
  state().chained = true;
}

}  // namespace llampi::emulated_nccl

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an emulated error";
}
const char* ncclGetLastError(ncclComm_t) { return "emulated words"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Id content{.root = 0, .serial = state().ids++};
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &content.root));
  std::memcpy(id, &content, sizeof content);
  return failure_of("ncclGetUniqueId");
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int ranks, ncclUniqueId bytes, int rank,
                                    ncclConfig_t* config) {
  auto made = std::make_unique<ncclComm>();
  made->blocking = config->blocking != 0;
  made->link->rank = rank;
  made->link->ranks = ranks;
  Id id{};
  std::memcpy(&id, &bytes, sizeof id);
  ncclComm* const communicator = *result = made.release();
  communicators().push_back(communicator);
  ++state().open;
  return begin(communicator, "ncclCommInitRankConfig",
               [=, link = communicator->link] { link->mpi = connect(id, rank, ranks); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* result) {
  if (communicator->pending && communicator->error == ncclSuccess) {
    int connected = 0;
    check_mpi(MPI_Test(&communicator->connection, &connected, MPI_STATUS_IGNORE));
    if (connected == 0) emulator::run_some();  // which other ranks may wait for before they come
    if (communicator->polls != 0 || connected == 0) {
      if (communicator->polls > 0) --communicator->polls;
      *result = ncclInProgress;
      return ncclSuccess;
    }
    std::exchange(communicator->pending, nullptr)();
  }
  *result = communicator->error;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  return begin(communicator, "ncclCommFinalize", [=] {
    emulator::run_all();
    check_mpi(MPI_Barrier(communicator->link->mpi));
    communicator->finalized = true;
  });
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  const std::unique_ptr<ncclComm> owned(communicator);
  std::erase(communicators(), communicator);
  require(owned->finalized, "a communicator is destroyed before it is finalized");
  require(owned->link.use_count() == 1,
          "a communicator is destroyed before a graph that has its collectives");
  check_mpi(MPI_Comm_free(&owned->link->mpi));
  --state().open;
  ++state().destroyed;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  state().grouped = true;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  state().grouped = false;
  return ncclSuccess;
}
/// From any thread, so without MPI. NCCL frees memory here, which waits for whatever is on the GPU: outside
/// of a group it could wait for the kernels of other communicators for ever, and nothing is aborted.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (!state().grouped && state().open > 1) return ncclInternalError;
  const std::unique_ptr<ncclComm> owned(communicator);
  std::erase(communicators(), communicator);
  owned->link->dead = true;
  --state().open;
  ++state().aborted;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  const auto& link = *communicator->link;
  check_buffers(send, bytes, receive, bytes * static_cast<std::size_t>(link.ranks),
                -link.rank * static_cast<std::ptrdiff_t>(bytes));
  return collective(communicator, "ncclAllGather", send, bytes, stream,
                    [=](const Link&, const Received& all) { std::memcpy(receive, all.data(), all.size()); });
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  const std::size_t all_bytes = bytes * static_cast<std::size_t>(communicator->link->ranks);
  const auto place = communicator->link->rank * static_cast<std::ptrdiff_t>(bytes);
  check_buffers(send, all_bytes, receive, bytes, place);
  return collective(
      communicator, "ncclReduceScatter", send, all_bytes, stream, [=](const Link& link, const Received& all) {
        // NCCL uses the rest of an operand in place as it likes.
        if (static_cast<const std::byte*>(send) + place == receive)
          std::memset(const_cast<void*>(send), 0xEE, all_bytes);
        combine_round_the_ring(type, op, all.data(), count * static_cast<std::size_t>(link.ranks), link.ranks,
                               link.rank, static_cast<std::size_t>(link.rank) * count, count,
                               static_cast<std::byte*>(receive));
      });
}
ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  check_buffers(send, bytes, receive, bytes, 0);
  return collective(
      communicator, "ncclAllReduce", send, bytes, stream, [=](const Link& link, const Received& all) {
        const auto ranks = static_cast<std::size_t>(link.ranks);
        for (std::size_t owner = 0; owner < ranks; ++owner) {
          const std::size_t begin = count * owner / ranks, end = count * (owner + 1) / ranks;
          combine_round_the_ring(type, op, all.data(), count, link.ranks, static_cast<int>(owner), begin,
                                 end - begin, static_cast<std::byte*>(receive) + begin * size_of(type));
        }
      });
}

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  if (const ncclResult_t failure = failure_of("ncclMemAlloc"); failure != ncclSuccess) return failure;
  void* base = nullptr;
  if (cudaMalloc(&base, bytes + kPage) != cudaSuccess) return ncclUnhandledCudaError;
  const auto address = (reinterpret_cast<std::uintptr_t>(base) + kPage - 1) / kPage * kPage;
  *data = state().misaligned ? static_cast<std::byte*>(base) + 256 : reinterpret_cast<void*>(address);
  state().memory[*data] = base;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* data) {
  const auto block = state().memory.find(data);
  require(block != state().memory.end(), "ncclMemFree of other memory");
  cudaFree(block->second);
  state().memory.erase(block);
  return ncclSuccess;
}

}  // extern "C"
