// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_group.hpp"

#include <algorithm>

#include "comm/nccl/nccl_work.hpp"
#include "comm/operands.hpp"
#include "comm/split.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/workspace.hpp"

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

/// Behind the first `bytes` of a workspace.
void* behind(Tensor workspace, std::int64_t bytes) { return static_cast<std::byte*>(workspace.data) + bytes; }

/// Elements beside each other on the GPU, by their positions.
struct Row {
  void* data;
  DType dtype;

  Row(void* first, DType of) : data(first), dtype(of) {}
  explicit Row(const Tensor& tensor) : Row(tensor.data, tensor.dtype) {}
  void* at(std::int64_t element) const { return static_cast<std::byte*>(data) + element * size_of(dtype); }
  Tensor row(std::int64_t begin, std::int64_t elements) const { return {at(begin), dtype, 1, elements}; }
};

/// From each of `ranks` but this one; what comes arrives one `stride` of elements after the other.
void receive_from_others(const std::vector<int>& ranks, int rank, Row received, std::int64_t stride,
                         std::vector<Transfer>& transfers) {
  std::int64_t arrived = 0;
  for (const int peer : ranks) {
    if (peer != rank) transfers.push_back({.peer = peer, .receive = received.at(arrived++ * stride)});
  }
}

/// What NCCL leaves is cast or added by a kernel of ours.
void require_kernel(Tensor from, Tensor result, Accumulate accumulate) {
  if (is_direct(from, result, accumulate) || from.dtype == DType::float32 || is_half(from.dtype)) return;
  throw Error(fmt::format("internal error: sums of {} cannot be added on the GPU", to_string(from.dtype)));
}

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<Session> session, Gpu gpu, std::unique_ptr<Group> host,
                     std::shared_ptr<const Levels> levels, const std::vector<device::Stream>& streams,
                     const NcclOptions& options)
    : session_(std::move(session)),
      gpu_(gpu),
      host_(std::move(host)),
      levels_(std::move(levels)),
      reduction_(options.reduction),
      exchange_bytes_(options.exchange_bytes) {
  if (size() == 1) return;
  std::shared_ptr<Communicator> first;
  for (int i = 0; i < device::kUrgentStreams; ++i) {
    const device::Stream stream = device::Stream::urgent(i, "");
    if (!streams.empty() && std::ranges::find(streams, stream) == streams.end()) continue;
    const bool splits = first != nullptr && options.resources.split_share;
    communicators_[stream.index()] =
        std::make_shared<Communicator>(session_,
                                       Membership{.id = splits ? UniqueId() : agree_on_id(*host_),
                                                  .ranks = size(),
                                                  .rank = rank(),
                                                  .max_ctas = options.resources.max_ctas,
                                                  .shares = options.resources.split_share,
                                                  .copy_engines = options.resources.copy_engines},
                                       name_of(members()), i, splits ? first : nullptr);
    if (first == nullptr) first = communicators_[stream.index()];
  }
}

void NcclGroup::issue(const CollectiveLabel& label, Collective collective) {
  if (size() == 1 || collective.elements == 0) return;
  require(communicator(label.stream) != nullptr,
          "collectives between GPUs are on urgent streams that the group was made for");
  collective.stream = gpu_.stream(label.stream);
  communicator(label.stream)->issue(label, collective);
}

void NcclGroup::finish(Tensor sum, Tensor result, Accumulate accumulate, device::Stream stream) const {
  if (!is_direct(sum, result, accumulate)) {
    gpu_.cuda.add_cast(sum, result, accumulate, stream);
  } else if (sum.data != result.data) {
    gpu_.device.upload(result, sum.data, stream);
  }
}

bool NcclGroup::is_summed_here(DType dtype, ReduceOp op) const {
  return size() > 1 && op == ReduceOp::sum && is_summed_in_tree(reduction_, dtype);
}

void NcclGroup::exchange(const CollectiveLabel& label, std::int64_t elements,
                         std::vector<Transfer> transfers) {
  issue(label, {.kind = Collective::Kind::exchange,
                .elements = elements,
                .dtype = label.dtype,
                .transfers = std::move(transfers)});
}

void NcclGroup::exchange_and_sum(const CollectiveLabel& label, Tensor whole, std::int64_t stride, Tensor sum,
                                 Accumulate accumulate, void* received, std::int64_t received_stride) {
  if (levels_) {
    return exchange_and_sum_over_levels(label, whole, stride, sum, accumulate, received, received_stride);
  }
  const Row parts{whole}, others{received, whole.dtype};
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    transfers.push_back({peer, parts.at(peer * stride), others.at(std::ssize(transfers) * received_stride)});
  }
  exchange(label, sum.elements(), std::move(transfers));
  const std::int64_t own = rank() * stride;
  gpu_.cuda.sum_parts({.own = whole.slice(own, own + sum.elements()),
                       .rank = rank(),
                       .ranks = size(),
                       .others = received,
                       .stride = received_stride},
                      sum, accumulate, label.stream);
}

// Inside the node this rank sums the parts that go through it, where they are in `whole`; between nodes it sends each owner its sum.
void NcclGroup::exchange_and_sum_over_levels(const CollectiveLabel& label, Tensor whole, std::int64_t stride,
                                             Tensor sum, Accumulate accumulate, void* received,
                                             std::int64_t received_stride) {
  const std::int64_t elements = sum.elements();
  const Row parts{whole}, others{received, whole.dtype};
  for (int round = 0; round < levels_->rounds; ++round) {
    const std::vector<int> mine = levels_->parts_of(levels_->place, round);
    std::vector<Transfer> transfers;
    std::int64_t arrived = 0;
    for (int place = 0; place < levels_->places(); ++place) {
      if (place == levels_->place) continue;
      const int peer = levels_->own_node()[static_cast<std::size_t>(place)];
      for (const int owner : levels_->parts_of(place, round))
        transfers.push_back({.peer = peer, .send = parts.at(owner * stride)});
      for (std::size_t n = 0; n < mine.size(); ++n)
        transfers.push_back({.peer = peer, .receive = others.at(arrived++ * received_stride)});
    }
    exchange(label, elements, std::move(transfers));
    if (levels_->places() == 1) continue;  // alone on its node, this rank's parts are the node's sums
    for (const EvenRun& run : even_runs(mine)) {
      const Tensor part = parts.row(run.first * stride, elements);
      gpu_.cuda.sum_parts({.own = part,
                           .rank = levels_->place,
                           .ranks = levels_->places(),
                           .others = others.at(run.begin * received_stride),
                           .stride = std::ssize(mine) * received_stride,
                           .sums = run.count,
                           .own_step = run.step * stride,
                           .others_step = received_stride},
                          part, Accumulate::no, label.stream);
    }
  }
  std::vector<Transfer> transfers;
  for (const int owner : levels_->own_parts()) {
    if (owner != rank()) transfers.push_back({.peer = owner, .send = parts.at(owner * stride)});
  }
  receive_from_others(levels_->through, rank(), others, received_stride, transfers);
  exchange(label, elements, std::move(transfers));
  gpu_.cuda.sum_parts({.own = parts.row(rank() * stride, elements),
                       .rank = levels_->node,
                       .ranks = levels_->node_count(),
                       .others = received,
                       .stride = received_stride},
                      sum, accumulate, label.stream);
}

void NcclGroup::share_and_sum(const CollectiveLabel& label, const std::vector<int>& to,
                              const std::vector<int>& from, Tensor values, Tensor sum, Accumulate accumulate,
                              void* received) {
  const std::int64_t elements = values.elements();
  std::vector<Transfer> transfers;
  for (const int peer : to) {
    if (peer != rank()) transfers.push_back({.peer = peer, .send = values.data});
  }
  receive_from_others(from, rank(), {received, values.dtype}, elements, transfers);
  exchange(label, elements, std::move(transfers));
  gpu_.cuda.sum_parts({.own = values,
                       .rank = static_cast<int>(std::ranges::find(from, rank()) - from.begin()),
                       .ranks = static_cast<int>(from.size()),
                       .others = received,
                       .stride = elements},
                      sum, accumulate, label.stream);
}

void NcclGroup::scatter_in_tree(const CollectiveLabel& label, Tensor whole, Tensor shard,
                                Accumulate accumulate, Tensor workspace) {
  require(workspace.bytes() >= reduce_scatter_workspace(Backend::nccl, whole.elements(), size(), whole.dtype,
                                                        reduction_, exchange_bytes_),
          "reduce_scatter: workspace too small");
  const std::int64_t elements = shard.elements();
  const auto pieces = split_reduce_scatter(elements, size(), whole.dtype, exchange_bytes_);
  for (std::int64_t begin = 0; begin < elements; begin += pieces.elements) {
    const std::int64_t end = std::min(begin + pieces.elements, elements);
    exchange_and_sum(label, whole.slice(begin, whole.elements()), elements, shard.slice(begin, end),
                     accumulate, workspace.data, pieces.stride);
  }
}

void NcclGroup::sum_in_tree(const CollectiveLabel& label, Tensor values, Tensor result, Accumulate accumulate,
                            Tensor workspace) {
  const std::int64_t elements = values.elements();
  require(workspace.bytes() >= all_reduce_workspace(Backend::nccl, elements, size(), values.dtype, reduction_,
                                                    exchange_bytes_),
          "all_reduce: workspace too small");
  const std::int64_t piece = all_reduce_piece(elements, size(), values.dtype, exchange_bytes_);
  for (std::int64_t begin = 0; begin < elements; begin += piece) {
    const std::int64_t end = std::min(begin + piece, elements);
    sum_piece_in_tree(label, values.slice(begin, end), result.slice(begin, end), accumulate, workspace);
  }
}

// Sums that are to be added are gathered in float32 and added by every rank, so that they are rounded once.
void NcclGroup::sum_piece_in_tree(const CollectiveLabel& label, Tensor values, Tensor result,
                                  Accumulate accumulate, Tensor workspace) {
  const AllReduceSplit split =
      split_all_reduce(values.elements(), size(), values.dtype, aligned_elements(values.dtype));
  if (split.head > 0) {
    const Tensor head = values.slice(0, split.head);
    const Tensor behind_parts{behind(workspace, (size() - 1) * split.slice * size_of(values.dtype)),
                              DType::float32, 1, split.head};
    const Tensor target = result.slice(0, split.head);
    const bool adds = accumulate == Accumulate::yes;
    const Tensor sums = !adds ? target : is_half(values.dtype) ? behind_parts : head;
    const Tensor own = sums.slice(rank() * split.slice, (rank() + 1) * split.slice);
    exchange_and_sum(label, head, split.slice, own, Accumulate::no, workspace.data, split.slice);
    issue(label, {.kind = Collective::Kind::all_gather,
                  .send = own.data,
                  .receive = sums.data,
                  .elements = split.slice,
                  .dtype = sums.dtype});
    if (adds) gpu_.cuda.add_cast(sums, target, accumulate, label.stream);
  }
  if (split.tail == 0) return;
  const Tensor tail = values.slice(split.head, values.elements());
  const Tensor tail_result = result.slice(split.head, result.elements());
  if (levels_) {
    const auto& node = levels_->own_node();
    share_and_sum(label, node, node, tail, tail, Accumulate::no, workspace.data);
    share_and_sum(label, levels_->own_parts(), levels_->through, tail, tail_result, accumulate,
                  workspace.data);
    return;
  }
  const Tensor tails{workspace.data, values.dtype, size(), split.tail};
  const auto of_rank = [&](int r) { return tails.slice_rows(r, r + 1); };
  issue(label, {.kind = Collective::Kind::all_gather,
                .send = tail.data,
                .receive = tails.data,
                .elements = split.tail,
                .dtype = values.dtype});
  gpu_.cuda.sum_parts(
      {.own = of_rank(0), .rank = 0, .ranks = size(), .others = of_rank(1).data, .stride = split.tail},
      tail_result, accumulate, label.stream);
}

std::unique_ptr<Work> NcclGroup::work(const CollectiveLabel& label) {
  return std::make_unique<NcclWork>(gpu_, session_, communicator(label.stream), label);
}

std::unique_ptr<Work> NcclGroup::all_gather(Tensor shard, Tensor whole, device::Stream stream) {
  require_all_gather(shard, whole, size());
  const CollectiveLabel label{"all_gather", shard.elements(), shard.dtype, stream};
  issue(label, {.kind = Collective::Kind::all_gather,
                .send = shard.data,
                .receive = whole.data,
                .elements = shard.elements(),
                .dtype = shard.dtype});
  if (size() == 1) finish(shard, whole, Accumulate::no, stream);
  return work(label);
}

std::unique_ptr<Work> NcclGroup::reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate,
                                                Tensor workspace, device::Stream stream) {
  require_reduce_scatter(whole, shard, size());
  require_kernel(whole, shard, accumulate);
  const CollectiveLabel label{"reduce_scatter", shard.elements(), whole.dtype, stream};
  if (is_summed_here(whole.dtype, ReduceOp::sum)) {
    scatter_in_tree(label, whole, shard, accumulate, workspace);
    return work(label);
  }
  const std::int64_t begin = rank() * shard.elements();
  const Tensor own = whole.slice(begin, begin + shard.elements());
  const Tensor sum = size() > 1 && is_direct(whole, shard, accumulate) ? shard : own;
  issue(label, {.kind = Collective::Kind::reduce_scatter,
                .send = whole.data,
                .receive = sum.data,
                .elements = shard.elements(),
                .dtype = whole.dtype});
  finish(sum, shard, accumulate, stream);
  return work(label);
}

std::unique_ptr<Work> NcclGroup::all_reduce(Tensor values, Tensor result, ReduceOp op, Accumulate accumulate,
                                            Tensor workspace, device::Stream stream) {
  require_all_reduce(values, result, op, accumulate);
  require_kernel(values, result, accumulate);
  const CollectiveLabel label{"all_reduce", values.elements(), values.dtype, stream};
  if (is_summed_here(values.dtype, op)) {
    sum_in_tree(label, values, result, accumulate, workspace);
    return work(label);
  }
  const Tensor sum = size() > 1 && is_direct(values, result, accumulate) ? result : values;
  issue(label, {.kind = Collective::Kind::all_reduce,
                .send = values.data,
                .receive = sum.data,
                .op = op,
                .elements = values.elements(),
                .dtype = values.dtype});
  finish(sum, result, accumulate, stream);
  return work(label);
}

}  // namespace llampi::comm::nccl
