// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_group.hpp"

#include <cstring>

#include "comm/mpi/check.hpp"
#include "comm/mpi/tree_order.hpp"
#include "comm/split.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"

namespace llampi::comm {
namespace {

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

Tensor row(Tensor elements) { return elements.slice(0, elements.elements()); }

std::uint16_t* halves(Tensor elements) { return static_cast<std::uint16_t*>(elements.data); }

/// The steps of an all-reduce, with all arithmetic but the last addition done by the owner of a slice.
struct AllReduce {
  Ends ends;
  Tensor values;
  Tensor result;
  ReduceOp op;
  Accumulate accumulate;
  AllReduceSplit split;
  Tensor slices;  ///< [ranks, slice], the contributions to this rank's slice
  Tensor tails;   ///< [ranks, tail]

  bool adds() const { return accumulate == Accumulate::yes; }
  /// Sums that are to be added later travel in float32, so that they are rounded once. There is room for half
  /// of their bits where `values` were, and for the other half where the contributions were.
  bool in_halves() const { return adds() && is_narrow(values.dtype); }
  /// Where the combined slices are gathered: where they are wanted, or if they are to be added where `values`
  /// were.
  Tensor head() const { return (adds() ? values : result).slice(0, split.head); }
  Tensor lower_head() const { return row(slices); }
  Tensor own(Tensor whole) const {
    return whole.slice(ends.rank * split.slice, (ends.rank + 1) * split.slice);
  }

  void exchange(Requests& requests) const {
    if (split.head > 0) start_all_to_all(ends, values.slice(0, split.head), slices.data, requests);
    if (split.tail > 0) start_all_gather(ends, values.slice(split.head, values.cols), tails.data, requests);
  }
  void combine() const {
    if (in_halves()) {
      sum_to_halves(slices, halves(own(head())), halves(own(lower_head())));
    } else {
      combine_in_tree_order(slices, op, Accumulate::no, own(head()));
    }
    combine_in_tree_order(tails, op, accumulate, result.slice(split.head, result.cols));
  }
  void gather(Requests& requests) const {
    if (split.head == 0) return;
    start_all_gather(ends, own(head()), head().data, requests);
    if (in_halves()) start_all_gather(ends, own(lower_head()), lower_head().data, requests);
  }
  void add() const {
    const Tensor target = result.slice(0, split.head);
    if (in_halves()) {
      add_halves(halves(head()), halves(lower_head()), target);
    } else if (adds()) {
      combine_in_tree_order(head(), op, accumulate, target);
    }
  }
};

std::vector<Step> all_reduce_steps(const Ends& ends, Tensor values, Tensor result, ReduceOp op,
                                   Accumulate accumulate, Tensor workspace) {
  const AllReduceSplit split = split_all_reduce(values.cols, ends.ranks, values.dtype);
  const Tensor slices = {workspace.data, values.dtype, ends.ranks, split.slice};
  const Tensor tails = {static_cast<std::byte*>(workspace.data) + slices.bytes(), values.dtype, ends.ranks,
                        split.tail};
  const AllReduce all{ends, values, result, op, accumulate, split, slices, tails};
  return {{[=](Requests& requests) { all.exchange(requests); }, [=] { all.combine(); }},
          {[=](Requests& requests) { all.gather(requests); }, [=] { all.add(); }}};
}

}  // namespace

MpiGroup::MpiGroup(std::vector<int> members, int rank, const Communicator* communicator,
                   std::shared_ptr<Progress> progress, std::int64_t max_count)
    : members_(std::move(members)), rank_(rank), max_count_(max_count), progress_(std::move(progress)) {
  if (communicator == nullptr) return;
  for (auto& copy : communicators_) copy = std::make_shared<Communicator>(communicator->duplicate());
}

Ends MpiGroup::ends(device::Stream stream) const {
  const auto& communicator = communicators_[stream.index()];
  return {communicator == nullptr ? MPI_COMM_NULL : communicator->get(), rank_, size(), max_count_};
}

// Also a group of one waits for its turn on the stream: its buffers may be those of a collective before.
std::unique_ptr<Work> MpiGroup::issue_on(device::Stream stream, std::vector<Step> steps) {
  return issue(progress_, stream, std::move(steps), communicators_[stream.index()]);
}

std::unique_ptr<Work> MpiGroup::all_gather(Tensor shard, Tensor whole, device::Stream stream) {
  require(shard.dtype == whole.dtype && shard.elements() * size() == whole.elements(),
          "all_gather: whole is not `size` shards");
  Step gather;
  if (size() == 1) {
    gather.finish = [=] {
      if (shard.data == whole.data || whole.elements() == 0) return;
      std::memcpy(whole.data, shard.data, static_cast<std::size_t>(whole.bytes()));
    };
  } else {
    gather.start = [=, ends = ends(stream)](Requests& requests) {
      start_all_gather(ends, shard, whole.data, requests);
    };
  }
  return issue_on(stream, {gather});
}

std::unique_ptr<Work> MpiGroup::reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate,
                                               Tensor workspace, device::Stream stream) {
  require_reducible(whole.dtype, shard.dtype);
  require(shard.elements() * size() == whole.elements(), "reduce_scatter: whole is not `size` shards");
  require(workspace.bytes() >= reduce_scatter_workspace(whole.elements(), size(), whole.dtype),
          "reduce_scatter: workspace too small");
  void* received = size() == 1 ? whole.data : workspace.data;
  const Tensor contributions = {received, whole.dtype, size(), shard.elements()};
  Step exchange;
  if (size() > 1) {
    exchange.start = [=, ends = ends(stream)](Requests& requests) {
      start_all_to_all(ends, whole, received, requests);
    };
  }
  exchange.finish = [=] { combine_in_tree_order(contributions, ReduceOp::sum, accumulate, row(shard)); };
  return issue_on(stream, {exchange});
}

std::unique_ptr<Work> MpiGroup::all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                           Tensor workspace, device::Stream stream) {
  const std::int64_t elements = values.elements();
  const bool in_place = result.data == values.data && elements > 0;
  require_reducible(values.dtype, result.dtype);
  require(result.elements() == elements, "all_reduce: result is not like values");
  require(accumulate == Accumulate::no || op == ReduceOp::sum, "all_reduce: a maximum does not accumulate");
  require(!in_place || (accumulate == Accumulate::no && result.dtype == values.dtype),
          "all_reduce: values added to themselves, or widened in their place");
  require(workspace.bytes() >= all_reduce_workspace(elements, size(), values.dtype),
          "all_reduce: workspace too small");
  if (size() == 1) {
    Step combine;
    combine.finish = [=] { combine_in_tree_order(row(values), op, accumulate, row(result)); };
    return issue_on(stream, {combine});
  }
  return issue_on(stream,
                  all_reduce_steps(ends(stream), row(values), row(result), op, accumulate, workspace));
}

}  // namespace llampi::comm
