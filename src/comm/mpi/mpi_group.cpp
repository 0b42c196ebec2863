// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_group.hpp"

#include <algorithm>
#include <cstring>

#include "comm/mpi/check.hpp"
#include "comm/mpi/exchange_levels.hpp"
#include "comm/mpi/tree_order.hpp"
#include "comm/operands.hpp"
#include "comm/split.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"

namespace llampi::comm {
namespace {

/// whole[r] = own of rank r.
void start_all_gather(const Endpoints& endpoints, Tensor own, void* whole, Requests& requests) {
  const ByteBlock& block = requests.keep(ByteBlock(own.bytes(), endpoints.max_count));
  const bool in_place = own.data == static_cast<std::byte*>(whole) + endpoints.rank * own.bytes();
  check_mpi(MPI_Iallgather(in_place ? MPI_IN_PLACE : own.data, block.count(), block.type(), whole,
                           block.count(), block.type(), endpoints.communicator, requests.add()),
            "MPI_Iallgather");
}

/// received[r] = whole[own rank] of rank r.
void start_all_to_all(const Endpoints& endpoints, Tensor whole, void* received, Requests& requests) {
  const ByteBlock& block = requests.keep(ByteBlock(whole.bytes() / endpoints.ranks, endpoints.max_count));
  check_mpi(MPI_Ialltoall(whole.data, block.count(), block.type(), received, block.count(), block.type(),
                          endpoints.communicator, requests.add()),
            "MPI_Ialltoall");
}

Tensor row(Tensor elements) { return elements.slice(0, elements.elements()); }

std::uint16_t* halves(Tensor elements) { return static_cast<std::uint16_t*>(elements.data); }

/// The steps of an all-reduce, with all arithmetic but the last addition done by the owner of a slice. Over two levels the ranks
/// of a node combine what they have first, then nodes do.
struct AllReduce {
  Endpoints endpoints;
  Tensor values;
  Tensor result;
  ReduceOp op;
  Accumulate accumulate;
  AllReduceSplit split;
  void* workspace;  ///< the contributions to this rank's slice, then those to the tail

  bool adds() const { return accumulate == Accumulate::yes; }
  /// Sums that are to be added later travel in float32, so that they are rounded once. There is room for half
  /// of their bits where `values` were, and for the other half where the contributions were.
  bool in_halves() const { return adds() && is_half(values.dtype); }
  /// Where the combined slices are gathered: where they are wanted, or if they are to be added where `values`
  /// were.
  Tensor head() const { return (adds() ? values : result).slice(0, split.head); }
  Tensor lower_head() const { return {workspace, values.dtype, 1, split.head}; }
  Tensor own(Tensor whole) const {
    return whole.slice(endpoints.rank * split.slice, (endpoints.rank + 1) * split.slice);
  }
  Tensor values_head() const { return values.slice(0, split.head); }
  Tensor values_tail() const { return values.slice(split.head, values.cols); }
  /// [contributors, slice] and [contributors, tail] of the last that are combined: ranks, or nodes.
  Tensor slices() const { return {workspace, values.dtype, contributors(), split.slice}; }
  Tensor tails() const {
    return {static_cast<std::byte*>(workspace) + lower_head().bytes(), values.dtype, contributors(),
            split.tail};
  }
  std::int64_t contributors() const {
    return endpoints.levels ? endpoints.levels->node_count() : endpoints.ranks;
  }
  Room slice_room() const { return {workspace, split.slice * size_of(values.dtype)}; }
  Room tail_room() const { return {tails().data, split.tail * size_of(values.dtype)}; }

  void exchange(Requests& requests) const {
    if (split.head > 0) start_all_to_all(endpoints, values_head(), workspace, requests);
    if (split.tail > 0) start_all_gather(endpoints, values_tail(), tails().data, requests);
  }
  void exchange_in_node(int round, Requests& requests) const {
    if (split.head > 0) start_scatter_in_node(endpoints, values_head(), slice_room(), round, requests);
    if (split.tail > 0 && round == 0) start_share_in_node(endpoints, values_tail(), tail_room(), requests);
  }
  void combine_node(int round) const {
    if (split.head > 0) combine_in_node(endpoints, values_head(), slice_room(), round, op);
    if (round > 0) return;
    const Tensor of_ranks = {tails().data, values.dtype, endpoints.levels->places(), split.tail};
    combine_in_tree_order(of_ranks, op, Accumulate::no, values_tail());
  }
  void exchange_between_nodes(Requests& requests) const {
    if (split.head > 0) start_scatter_between_nodes(endpoints, values_head(), slice_room(), requests);
    if (split.tail > 0) start_share_between_nodes(endpoints, values_tail(), tail_room(), requests);
  }
  void combine() const {
    if (in_halves()) {
      sum_to_halves(slices(), halves(own(head())), halves(own(lower_head())));
    } else {
      combine_in_tree_order(slices(), op, Accumulate::no, own(head()));
    }
    combine_in_tree_order(tails(), op, accumulate, result.slice(split.head, result.cols));
  }
  /// Calls `start(own slice, whole)` for what is gathered.
  template <class Start>
  void for_each_gathered(Start start) const {
    if (split.head == 0) return;
    start(own(head()), head());
    if (in_halves()) start(own(lower_head()), lower_head());
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

std::vector<Step> all_reduce_steps(const AllReduce& all) {
  const auto gather = [=](Requests& requests) {
    all.for_each_gathered(
        [&](Tensor own, Tensor whole) { start_all_gather(all.endpoints, own, whole.data, requests); });
  };
  return {{[=](Requests& requests) { all.exchange(requests); }, [=] { all.combine(); }},
          {gather, [=] { all.add(); }}};
}

std::vector<Step> all_reduce_steps_of_levels(const AllReduce& all) {
  const auto gather_between_nodes = [=](Requests& requests) {
    all.for_each_gathered([&](Tensor own, Tensor whole) {
      start_gather_between_nodes(all.endpoints, own, whole.data, requests);
    });
  };
  const auto gather_in_node = [=](Requests& requests) {
    all.for_each_gathered([&](Tensor own, Tensor whole) {
      start_gather_in_node(all.endpoints, own.bytes(), whole.data, requests);
    });
  };
  std::vector<Step> steps;
  for (int round = 0; round < all.endpoints.levels->rounds; ++round) {
    steps.push_back({[=](Requests& requests) { all.exchange_in_node(round, requests); },
                     [=] { all.combine_node(round); }});
  }
  steps.push_back(
      {[=](Requests& requests) { all.exchange_between_nodes(requests); }, [=] { all.combine(); }});
  steps.push_back({gather_between_nodes, {}});
  steps.push_back({gather_in_node, [=] { all.add(); }});
  return steps;
}

/// whole[r] = shard of rank r.
std::vector<Step> all_gather_steps(const Endpoints& endpoints, Tensor shard, Tensor whole) {
  if (!endpoints.levels)
    return {{[=](Requests& requests) { start_all_gather(endpoints, shard, whole.data, requests); }, {}}};
  return {
      {[=](Requests& requests) { start_gather_between_nodes(endpoints, shard, whole.data, requests); }, {}},
      {[=](Requests& requests) { start_gather_in_node(endpoints, shard.bytes(), whole.data, requests); },
       {}}};
}

/// shard (+)= sum over ranks of their whole[own rank].
std::vector<Step> reduce_scatter_steps(const Endpoints& endpoints, Tensor whole, Tensor shard,
                                       Accumulate accumulate, void* workspace) {
  const auto finish = [=](std::int64_t contributors) {
    return [=] {
      combine_in_tree_order({workspace, whole.dtype, contributors, shard.elements(), shard.elements()},
                            ReduceOp::sum, accumulate, row(shard));
    };
  };
  if (!endpoints.levels) {
    return {{[=](Requests& requests) { start_all_to_all(endpoints, whole, workspace, requests); },
             finish(endpoints.ranks)}};
  }
  const Room room{workspace, whole.bytes() / endpoints.ranks};
  std::vector<Step> steps;
  for (int round = 0; round < endpoints.levels->rounds; ++round) {
    steps.push_back(
        {[=](Requests& requests) { start_scatter_in_node(endpoints, whole, room, round, requests); },
         [=] { combine_in_node(endpoints, whole, room, round, ReduceOp::sum); }});
  }
  steps.push_back({[=](Requests& requests) { start_scatter_between_nodes(endpoints, whole, room, requests); },
                   finish(endpoints.levels->node_count())});
  return steps;
}

}  // namespace

MpiGroup::MpiGroup(std::vector<int> members, int rank, const Communicator* communicator,
                   std::shared_ptr<Progress> progress, std::shared_ptr<const Levels> levels,
                   const MpiGroupOptions& options)
    : members_(std::move(members)),
      rank_(rank),
      max_count_(options.max_count),
      progress_(std::move(progress)),
      levels_(std::move(levels)) {
  if (communicator == nullptr) return;
  const auto make_for = [&](device::Stream stream) {
    if (options.streams.empty() || std::ranges::find(options.streams, stream) != options.streams.end())
      communicators_[stream.index()] = std::make_shared<Communicator>(communicator->duplicate());
  };
  for (const device::Stream stream : device::kDeviceStreams) make_for(stream);
  make_for(device::Stream::host);
}

Endpoints MpiGroup::endpoints(device::Stream stream) const {
  const auto& communicator = communicators_[stream.index()];
  return {communicator == nullptr ? MPI_COMM_NULL : communicator->get(), rank_, size(), max_count_, levels_};
}

// Also a group of one waits for its turn on the stream: its buffers may be those of a collective before.
std::unique_ptr<Work> MpiGroup::issue_on(device::Stream stream, std::vector<Step> steps) {
  require(size() == 1 || communicators_[stream.index()] != nullptr,
          "a collective on a stream that the group was not made for");
  return issue(progress_, stream, std::move(steps), communicators_[stream.index()]);
}

std::unique_ptr<Work> MpiGroup::all_gather(Tensor shard, Tensor whole, device::Stream stream) {
  require_all_gather(shard, whole, size());
  if (size() > 1) return issue_on(stream, all_gather_steps(endpoints(stream), row(shard), row(whole)));
  Step gather;
  gather.finish = [=] {
    if (shard.data == whole.data || whole.elements() == 0) return;
    std::memcpy(whole.data, shard.data, static_cast<std::size_t>(whole.bytes()));
  };
  return issue_on(stream, {gather});
}

std::unique_ptr<Work> MpiGroup::reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate,
                                               Tensor workspace, device::Stream stream) {
  require_reduce_scatter(whole, shard, size());
  require(workspace.bytes() >= reduce_scatter_workspace(whole.elements(), size(), whole.dtype),
          "reduce_scatter: workspace too small");
  if (size() > 1) {
    return issue_on(
        stream, reduce_scatter_steps(endpoints(stream), row(whole), row(shard), accumulate, workspace.data));
  }
  Step combine;
  combine.finish = [=] { combine_in_tree_order(row(whole), ReduceOp::sum, accumulate, row(shard)); };
  return issue_on(stream, {combine});
}

std::unique_ptr<Work> MpiGroup::all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                           Tensor workspace, device::Stream stream) {
  const std::int64_t elements = values.elements();
  require_all_reduce(values, result, op, accumulate);
  require(workspace.bytes() >= all_reduce_workspace(elements, size(), values.dtype),
          "all_reduce: workspace too small");
  if (size() == 1) {
    Step combine;
    combine.finish = [=] { combine_in_tree_order(row(values), op, accumulate, row(result)); };
    return issue_on(stream, {combine});
  }
  const AllReduce all{endpoints(stream), row(values),
                      row(result),       op,
                      accumulate,        split_all_reduce(elements, size(), values.dtype),
                      workspace.data};
  return issue_on(stream, levels_ ? all_reduce_steps_of_levels(all) : all_reduce_steps(all));
}

}  // namespace llampi::comm
