// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_group.hpp"

#include <algorithm>

#include "comm/nccl/nccl_work.hpp"
#include "comm/reducible.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::comm::nccl {
namespace {

constexpr std::size_t kNamedRanks = 16;

std::string name_of(const std::vector<int>& members) {
  std::string ranks;
  for (std::size_t i = 0; i < std::min(members.size(), kNamedRanks); ++i)
    ranks += fmt::format("{}{}", i == 0 ? "" : ", ", members[i]);
  if (members.size() > kNamedRanks) ranks += fmt::format(", ... ({} in all)", members.size());
  return "the group of ranks " + ranks;
}

/// Rank 0 of the group makes an id, and the others learn it. Collective.
UniqueId agree_on_id(Group& host) {
  UniqueId id;
  if (host.rank() == 0) {
    const Result result = library().make_id(id);
    if (!result.is_done())
      throw Error(fmt::format("ncclGetUniqueId: {} ({})", result.words, library().last_error(nullptr)));
  }
  const auto words = static_cast<std::int64_t>(id.words.size());
  std::vector<std::int32_t> all(id.words.size() * static_cast<std::size_t>(host.size()));
  host.all_gather(tensor(id.words.data(), 1, words), tensor(all.data(), host.size(), words),
                  device::Stream::host)
      ->wait(device::Stream::host);
  std::copy_n(all.begin(), id.words.size(), id.words.begin());
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
    communicators_[device::Stream::urgent(i, "").index()] = std::make_shared<Communicator>(
        session_, Membership{agree_on_id(*host_), size(), rank()}, name_of(members()), i);
  }
}

void NcclGroup::issue(const Operation& operation, Collective collective) {
  if (size() == 1 || operation.elements == 0) return;
  require(communicator(operation.stream) != nullptr, "collectives between GPUs are on urgent streams");
  collective.elements = operation.elements;
  collective.dtype = operation.dtype;
  collective.stream = gpu_.stream(operation.stream);
  communicator(operation.stream)->issue(operation, collective);
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
  issue(operation, {.kind = Collective::Kind::all_gather, .send = shard.data, .receive = whole.data});
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
  issue(operation, {.kind = Collective::Kind::reduce_scatter, .send = whole.data, .receive = sum.data});
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
  issue(operation,
        {.kind = Collective::Kind::all_reduce, .send = values.data, .receive = sum.data, .op = op});
  finish(sum, result, accumulate, stream);
  return work(operation);
}

}  // namespace llampi::comm::nccl
