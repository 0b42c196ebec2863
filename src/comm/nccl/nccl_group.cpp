// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_group.hpp"

#include <algorithm>
#include <cstring>

#include "comm/nccl/nccl_work.hpp"
#include "comm/reducible.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm::nccl {
namespace {

constexpr std::size_t kNamedRanks = 16;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return ncclFloat64;
    case DType::float32:
      return ncclFloat32;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::float16:
      return ncclFloat16;
    case DType::int64:
      return ncclInt64;
    case DType::int32:
      return ncclInt32;
  }
  throw Error("internal error: a dtype that NCCL does not have");
}

std::string name_of(const std::vector<int>& members) {
  std::string ranks;
  for (std::size_t i = 0; i < std::min(members.size(), kNamedRanks); ++i)
    ranks += fmt::format("{}{}", i == 0 ? "" : ", ", members[i]);
  if (members.size() > kNamedRanks) ranks += fmt::format(", ... ({} in all)", members.size());
  return "the group of ranks " + ranks;
}

/// Rank 0 of the group makes an id, and the others learn it. Collective.
ncclUniqueId agree_on_id(Group& host) {
  ncclUniqueId id{};
  if (host.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess)
      throw Error(
          fmt::format("ncclGetUniqueId: {} ({})", ncclGetErrorString(result), ncclGetLastError(nullptr)));
  }
  constexpr std::size_t kWords = sizeof(id) / sizeof(std::int32_t);
  std::vector<std::int32_t> own(kWords), all(kWords * static_cast<std::size_t>(host.size()));
  std::memcpy(own.data(), &id, sizeof(id));
  host.all_gather(tensor(own.data(), 1, kWords), tensor(all.data(), host.size(), kWords),
                  device::Stream::host)
      ->wait(device::Stream::host);
  std::memcpy(&id, all.data(), sizeof(id));
  return id;
}

bool is_direct(Tensor from, Tensor result, Accumulate accumulate) {
  return from.dtype == result.dtype && accumulate == Accumulate::no;
}

/// What NCCL leaves is cast or added by a kernel of ours.
void require_kernel(Tensor from, Tensor result, Accumulate accumulate) {
  if (is_direct(from, result, accumulate) || from.dtype == DType::float32 || is_narrow(from.dtype)) return;
  throw Error(fmt::format("internal error: sums of {} cannot be added on the GPU", to_string(from.dtype)));
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<Session> session, Gpu gpu, std::unique_ptr<Group> host)
    : session_(std::move(session)), gpu_(gpu), host_(std::move(host)) {
  if (size() == 1) return;
  for (int i = 0; i < device::kUrgentStreams; ++i) {
    communicators_[device::Stream::urgent(i, "").index()] =
        std::make_shared<Communicator>(session_, agree_on_id(*host_), size(), rank(), name_of(members()), i);
  }
}

void NcclGroup::issue(const Operation& operation,
                      const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call) {
  if (size() == 1 || operation.elements == 0) return;
  require(communicator(operation.stream) != nullptr, "collectives between GPUs are on urgent streams");
  const cudaStream_t stream = gpu_.stream(operation.stream);
  communicator(operation.stream)->issue(operation, [&](ncclComm_t handle) { return call(handle, stream); });
}

void NcclGroup::finish(Tensor sum, Tensor result, Accumulate accumulate, device::Stream stream) const {
  if (!is_direct(sum, result, accumulate)) {
    gpu_.cuda.add_cast(sum, result, accumulate, stream);
  } else if (sum.data != result.data) {
    gpu_.device.upload(result, sum.data, stream);
  }
}

std::unique_ptr<Work> NcclGroup::work(const Operation& operation) {
  return std::make_unique<NcclWork>(gpu_, session_, communicator(operation.stream), operation);
}

std::unique_ptr<Work> NcclGroup::all_gather(Tensor shard, Tensor whole, device::Stream stream) {
  require(shard.dtype == whole.dtype && shard.elements() * size() == whole.elements(),
          "all_gather: whole is not `size` shards");
  const Operation operation{"all_gather", shard.elements(), shard.dtype, stream};
  issue(operation, [&](ncclComm_t handle, cudaStream_t on) {
    return ncclAllGather(shard.data, whole.data, static_cast<std::size_t>(shard.elements()),
                         type_of(shard.dtype), handle, on);
  });
  if (size() == 1) finish(shard, whole, Accumulate::no, stream);
  return work(operation);
}

std::unique_ptr<Work> NcclGroup::reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate,
                                                Tensor /*workspace*/, device::Stream stream) {
  require_reducible(whole.dtype, shard.dtype);
  require(shard.elements() * size() == whole.elements(), "reduce_scatter: whole is not `size` shards");
  require_kernel(whole, shard, accumulate);
  const Operation operation{"reduce_scatter", shard.elements(), whole.dtype, stream};
  const std::int64_t begin = rank() * shard.elements();
  const Tensor own = whole.slice(begin, begin + shard.elements());
  const Tensor sum = size() > 1 && is_direct(whole, shard, accumulate) ? shard : own;
  issue(operation, [&](ncclComm_t handle, cudaStream_t on) {
    return ncclReduceScatter(whole.data, sum.data, static_cast<std::size_t>(shard.elements()),
                             type_of(whole.dtype), ncclSum, handle, on);
  });
  finish(sum, shard, accumulate, stream);
  return work(operation);
}

std::unique_ptr<Work> NcclGroup::all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                            Tensor /*workspace*/, device::Stream stream) {
  const bool in_place = result.data == values.data && values.elements() > 0;
  require_reducible(values.dtype, result.dtype);
  require(result.elements() == values.elements(), "all_reduce: result is not like values");
  require(accumulate == Accumulate::no || op == ReduceOp::sum, "all_reduce: a maximum does not accumulate");
  require(!in_place || is_direct(values, result, accumulate),
          "all_reduce: values added to themselves, or widened in their place");
  require_kernel(values, result, accumulate);
  const Operation operation{"all_reduce", values.elements(), values.dtype, stream};
  const Tensor sum = size() > 1 && is_direct(values, result, accumulate) ? result : values;
  issue(operation, [&](ncclComm_t handle, cudaStream_t on) {
    return ncclAllReduce(values.data, sum.data, static_cast<std::size_t>(values.elements()),
                         type_of(values.dtype), op == ReduceOp::sum ? ncclSum : ncclMax, handle, on);
  });
  finish(sum, result, accumulate, stream);
  return work(operation);
}

}  // namespace llampi::comm::nccl
