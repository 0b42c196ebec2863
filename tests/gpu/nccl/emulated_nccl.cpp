#include "gpu/nccl/emulated_nccl.hpp"

#include <cuda_runtime.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "emulation/memory.hpp"
#include "emulation/streams.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/half.hpp"

namespace llampi::emulated_nccl {
namespace {

constexpr int kUsualDelay = 2;
constexpr int kFirstTag = 4000;
constexpr std::uintptr_t kPage = std::uintptr_t{2} << 20;

struct State {
  int delay = kUsualDelay;
  std::string failing;
  ncclResult_t failure = ncclSuccess;
  bool misaligned = false;
  bool chained = true;
  std::shared_ptr<emulation::Point> last;  ///< collective that was issued
  std::atomic<int> open = 0, destroyed = 0, aborted = 0;
  int ids = 0;
  std::map<void*, void*> memory;  ///< what cudaMalloc gave for it
};

State& state() {
  static State state;
  return state;
}

void check_mpi(int code) { require(code == MPI_SUCCESS, "MPI in the emulated NCCL"); }

/// Of a communicator and of what it has in streams.
struct Shared {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;
  std::atomic<bool> dead = false;  ///< kernels end without having done anything
};

struct Id {
  int root;  ///< world rank of the group's rank 0
  int serial;
};

/// The ranks of a group find each other through the one that made the id.
MPI_Comm connect(const Id& id, int rank, int ranks) {
  int self = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &self));
  const int tag = kFirstTag + id.serial;
  std::vector<int> members(static_cast<std::size_t>(ranks));
  const int own[2] = {rank, self};
  if (self == id.root) {
    members[static_cast<std::size_t>(rank)] = self;
    for (int i = 1; i < ranks; ++i) {
      int other[2] = {};
      check_mpi(MPI_Recv(other, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
      members[static_cast<std::size_t>(other[0])] = other[1];
    }
    for (const int member : members) {
      if (member != self) check_mpi(MPI_Send(members.data(), ranks, MPI_INT, member, tag, MPI_COMM_WORLD));
    }
  } else {
    check_mpi(MPI_Send(own, 2, MPI_INT, id.root, tag, MPI_COMM_WORLD));
    check_mpi(MPI_Recv(members.data(), ranks, MPI_INT, id.root, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  }
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  MPI_Comm communicator = MPI_COMM_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &all));
  check_mpi(MPI_Group_incl(all, ranks, members.data(), &some));
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, some, tag, &communicator));
  check_mpi(MPI_Group_free(&some));
  check_mpi(MPI_Group_free(&all));
  return communicator;
}

}  // namespace
}  // namespace llampi::emulated_nccl

using namespace llampi;
using namespace llampi::emulated_nccl;

struct ncclComm {
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::function<void()> pending;  ///< what the last call has still to do
  int polls = 0;                  ///< until it does it; -1: never
  ncclResult_t error = ncclSuccess;
  bool blocking = true;
  bool finalized = false;
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
  ncclResult_t result = ncclSuccess;
  ncclCommGetAsyncError(communicator, &result);
  return result;
}

// ---- numbers ----

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
    case ncclInt64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      throw Error("the emulated NCCL has no such type");
  }
}

template <class T>
struct Plain {
  using Stored = T;
  static T load(T x) { return x; }
  static T store(T x) { return x; }
};
struct Brain {
  using Stored = std::uint16_t;
  static float load(std::uint16_t x) { return from_bfloat16(x); }
  static std::uint16_t store(float x) { return to_bfloat16(x); }
};
struct Half {
  using Stored = std::uint16_t;
  static float load(std::uint16_t x) { return from_float16(x); }
  static std::uint16_t store(float x) { return to_float16(x); }
};

/// out[i] of `elements`, from row r of `all` [ranks, stride] on element `begin`: round the ring, beginning
/// behind `owner`, rounded at every station.
template <class Format>
void combine(const std::byte* all, std::size_t stride, std::size_t begin, std::size_t elements, int ranks,
             int owner, ncclRedOp_t op, std::byte* out) {
  using Stored = typename Format::Stored;
  const auto* const rows = reinterpret_cast<const Stored*>(all);
  auto* const target = reinterpret_cast<Stored*>(out);
  for (std::size_t i = 0; i < elements; ++i) {
    Stored sum = rows[static_cast<std::size_t>((owner + 1) % ranks) * stride + begin + i];
    for (int k = 2; k <= ranks; ++k) {
      const Stored next = rows[static_cast<std::size_t>((owner + k) % ranks) * stride + begin + i];
      const auto a = Format::load(sum), b = Format::load(next);
      sum = Format::store(op == ncclMax ? std::max(a, b) : static_cast<decltype(a + b)>(a + b));
    }
    target[i] = sum;
  }
}

using Combine = void (*)(const std::byte*, std::size_t, std::size_t, std::size_t, int, int, ncclRedOp_t,
                         std::byte*);
Combine combine_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return combine<Plain<double>>;
    case ncclFloat32:
      return combine<Plain<float>>;
    case ncclInt64:
      return combine<Plain<std::int64_t>>;
    case ncclInt32:
      return combine<Plain<std::int32_t>>;
    case ncclBfloat16:
      return combine<Brain>;
    case ncclFloat16:
      return combine<Half>;
    default:
      throw Error("the emulated NCCL has no such type");
  }
}

// ---- collectives ----

/// `bytes` of every rank, one after another, in host memory.
std::vector<std::byte> gather(const Shared& shared, const void* own, std::size_t bytes) {
  const std::vector<std::byte> copy(static_cast<const std::byte*>(own),
                                    static_cast<const std::byte*>(own) + bytes);
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(shared.ranks));
  check_mpi(MPI_Allgather(copy.data(), static_cast<int>(bytes), MPI_BYTE, all.data(), static_cast<int>(bytes),
                          MPI_BYTE, shared.mpi));
  return all;
}

/// Buffers are a GPU's, and apart, or `receive` lies in `send` (or the other way round) just where it may.
void check_buffers(const void* send, std::size_t send_bytes, const void* receive, std::size_t receive_bytes,
                   std::ptrdiff_t place) {
  for (const auto& [data, bytes] : {std::pair{send, send_bytes}, std::pair{receive, receive_bytes}}) {
    require(emulation::device_memory().contains(data), "NCCL works on memory that is no GPU's");
    emulation::device_memory().check(data, bytes, "NCCL");
  }
  const auto *const s = static_cast<const std::byte*>(send), *const r =
                                                                 static_cast<const std::byte*>(receive);
  const bool apart = s + send_bytes <= r || r + receive_bytes <= s;
  require(apart || r - s == place, "NCCL's buffers overlap");
}

template <class Work>
ncclResult_t collective(ncclComm* communicator, const char* function, cudaStream_t stream, Work work) {
  return begin(communicator, function, [=, shared = communicator->shared] {
    if (state().chained && state().last) emulation::wait_for(stream, state().last);
    emulation::enqueue(stream, [=] {
      if (!shared->dead) work(*shared);
    });
    state().last = emulation::mark(stream);
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
    communicator->shared->dead = true;
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
  made->shared->rank = rank;
  made->shared->ranks = ranks;
  Id id{};
  std::memcpy(&id, &bytes, sizeof id);
  ncclComm* const communicator = *result = made.release();
  communicators().push_back(communicator);
  ++state().open;
  return begin(communicator, "ncclCommInitRankConfig",
               [=, shared = communicator->shared] { shared->mpi = connect(id, rank, ranks); });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* result) {
  if (communicator->pending && communicator->error == ncclSuccess) {
    if (communicator->polls != 0) {
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
    emulation::run_all();
    check_mpi(MPI_Barrier(communicator->shared->mpi));
    communicator->finalized = true;
  });
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  const std::unique_ptr<ncclComm> owned(communicator);
  std::erase(communicators(), communicator);
  require(owned->finalized, "a communicator is destroyed before it is finalized");
  check_mpi(MPI_Comm_free(&owned->shared->mpi));
  --state().open;
  ++state().destroyed;
  return ncclSuccess;
}
/// From any thread, so without MPI.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  const std::unique_ptr<ncclComm> owned(communicator);
  std::erase(communicators(), communicator);
  owned->shared->dead = true;
  --state().open;
  ++state().aborted;
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return collective(communicator, "ncclAllGather", stream, [=](const Shared& shared) {
    const std::size_t all_bytes = bytes * static_cast<std::size_t>(shared.ranks);
    check_buffers(send, bytes, receive, all_bytes, -shared.rank * static_cast<std::ptrdiff_t>(bytes));
    const auto all = gather(shared, send, bytes);
    std::memcpy(receive, all.data(), all.size());
  });
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return collective(communicator, "ncclReduceScatter", stream, [=](const Shared& shared) {
    const auto ranks = static_cast<std::size_t>(shared.ranks), rank = static_cast<std::size_t>(shared.rank);
    check_buffers(send, bytes * ranks, receive, bytes, shared.rank * static_cast<std::ptrdiff_t>(bytes));
    const auto all = gather(shared, send, bytes * ranks);
    // NCCL uses the rest of an operand in place as it likes.
    if (static_cast<const std::byte*>(send) + rank * bytes == receive)
      std::memset(const_cast<void*>(send), 0xEE, bytes * ranks);
    combine_of(type)(all.data(), count * ranks, rank * count, count, shared.ranks, shared.rank, op,
                     static_cast<std::byte*>(receive));
  });
}
ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  const std::size_t bytes = count * size_of(type);
  return collective(communicator, "ncclAllReduce", stream, [=](const Shared& shared) {
    check_buffers(send, bytes, receive, bytes, 0);
    const auto all = gather(shared, send, bytes);
    const auto ranks = static_cast<std::size_t>(shared.ranks);
    for (std::size_t owner = 0; owner < ranks; ++owner) {
      const std::size_t begin = count * owner / ranks, end = count * (owner + 1) / ranks;
      combine_of(type)(all.data(), count, begin, end - begin, shared.ranks, static_cast<int>(owner), op,
                       static_cast<std::byte*>(receive) + begin * size_of(type));
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
