#include "comm/mpi/mpi_group.hpp"

#include <algorithm>

#include "comm/mpi/check.hpp"
#include "comm/mpi/rank_order.hpp"
#include "comm/split.hpp"

namespace llampi {
namespace {

/// What an exchange needs to know of its group. A copy: an operation may outlive the group.
struct Ends {
  MPI_Comm communicator = MPI_COMM_NULL;
  int rank = 0;
  int ranks = 1;
  std::int64_t max_count = kMaxCount;
};

/// whole[r] = own of rank r.
void start_all_gather(const Ends& ends, Tensor own, void* whole, Requests& requests) {
  const ByteBlock& block = requests.keep(ByteBlock(own.bytes(), ends.max_count));
  const bool in_place = own.data == static_cast<std::byte*>(whole) + ends.rank * own.bytes();
  check_mpi(MPI_Iallgather(in_place ? MPI_IN_PLACE : own.data, block.count(), block.type(), whole,
                           block.count(), block.type(), ends.communicator, requests.add()),
            "MPI_Iallgather");
}

/// received[r] = whole[own rank] of rank r.
void start_all_to_all(const Ends& ends, Tensor whole, void* received, Requests& requests) {
  const ByteBlock& block = requests.keep(ByteBlock(whole.bytes() / ends.ranks, ends.max_count));
  check_mpi(MPI_Ialltoall(whole.data, block.count(), block.type(), received, block.count(), block.type(),
                          ends.communicator, requests.add()),
            "MPI_Ialltoall");
}

}  // namespace

MpiGroup::MpiGroup(std::vector<int> members, int rank, const Communicator* communicator,
                   std::shared_ptr<Progress> progress, std::int64_t max_count)
    : members_(std::move(members)), rank_(rank), max_count_(max_count) {
  if (communicator == nullptr) return;
  for (auto& lane : lanes_) lane = std::make_shared<Lane>(progress, communicator->duplicate());
}

std::unique_ptr<Work> MpiGroup::all_gather(Tensor shard, Tensor whole, Stream stream) {
  require(shard.dtype == whole.dtype && shard.elements() * size() == whole.elements(),
          "all_gather: whole is not `size` shards");
  if (size() == 1) {
    if (shard.data != whole.data)
      std::copy_n(static_cast<const std::byte*>(shard.data), whole.bytes(),
                  static_cast<std::byte*>(whole.data));
    return done_work();
  }
  const Ends ends{lane(stream)->communicator(), rank_, size(), max_count_};
  Step gather;
  gather.start = [=](Requests& requests) { start_all_gather(ends, shard, whole.data, requests); };
  return issue(lane(stream), {gather});
}

std::unique_ptr<Work> MpiGroup::reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate,
                                               Tensor workspace, Stream stream) {
  require(shard.dtype == whole.dtype && shard.elements() * size() == whole.elements(),
          "reduce_scatter: whole is not `size` shards");
  require(workspace.bytes() >= reduce_scatter_workspace(whole.elements(), size(), whole.dtype),
          "reduce_scatter: workspace too small");
  require_reducible(whole.dtype);
  const auto sum = [shard, accumulate, ranks = size()](const void* contributions) {
    combine_in_rank_order(contributions, shard.elements(), ranks, shard.elements(), shard.dtype,
                          ReduceOp::sum, accumulate, shard.data);
  };
  if (size() == 1) {
    sum(whole.data);
    return done_work();
  }
  const Ends ends{lane(stream)->communicator(), rank_, size(), max_count_};
  Step exchange;
  exchange.start = [=](Requests& requests) { start_all_to_all(ends, whole, workspace.data, requests); };
  exchange.finish = [sum, workspace] { sum(workspace.data); };
  return issue(lane(stream), {exchange});
}

std::unique_ptr<Work> MpiGroup::all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                           Tensor workspace, Stream stream) {
  const DType dtype = values.dtype;
  const std::int64_t elements = values.elements();
  require(result.dtype == dtype && result.elements() == elements, "all_reduce: result is not like values");
  require(accumulate == Accumulate::no || op == ReduceOp::sum, "all_reduce: a maximum does not accumulate");
  require(accumulate == Accumulate::no || result.data != values.data || elements == 0,
          "all_reduce: values added to themselves");
  require(workspace.bytes() >= all_reduce_workspace(elements, size(), dtype),
          "all_reduce: workspace too small");
  require_reducible(dtype);
  if (size() == 1) {
    combine_in_rank_order(values.data, 0, 1, elements, dtype, op, accumulate, result.data);
    return done_work();
  }
  const Ends ends{lane(stream)->communicator(), rank_, size(), max_count_};
  const AllReduceSplit split = split_all_reduce(elements, size(), dtype);
  // The combined slices are gathered where they are wanted, or where `values` were if they are to be added.
  const Tensor head = (accumulate == Accumulate::yes ? values : result).slice(0, split.head);
  const Tensor own = head.slice(rank_ * split.slice, (rank_ + 1) * split.slice);
  const Tensor tail = result.slice(split.head, elements);
  const Tensor slices = {workspace.data, dtype, size(), split.slice};
  const Tensor tails = {static_cast<std::byte*>(workspace.data) + slices.bytes(), dtype, size(), split.tail};

  Step exchange;
  exchange.start = [=](Requests& requests) {
    if (split.head > 0) start_all_to_all(ends, values.slice(0, split.head), slices.data, requests);
    if (split.tail > 0) start_all_gather(ends, values.slice(split.head, elements), tails.data, requests);
  };
  exchange.finish = [=, ranks = size()] {
    combine_in_rank_order(slices.data, slices.cols, ranks, slices.cols, dtype, op, Accumulate::no, own.data);
    combine_in_rank_order(tails.data, tails.cols, ranks, tails.cols, dtype, op, accumulate, tail.data);
  };
  Step gather;
  gather.start = [=](Requests& requests) {
    if (split.head > 0) start_all_gather(ends, own, head.data, requests);
  };
  gather.finish = [=] {
    if (accumulate == Accumulate::no) return;
    combine_in_rank_order(head.data, 0, 1, head.elements(), dtype, op, accumulate, result.data);
  };
  return issue(lane(stream), {exchange, gather});
}

}  // namespace llampi
