// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/exchange_levels.hpp"

#include <algorithm>
#include <cstring>

#include "comm/mpi/check.hpp"
#include "comm/mpi/tree_order.hpp"

namespace llampi::comm {
namespace {

// Collectives of a communicator are one after another, and between two ranks messages keep their order.
constexpr int kLevelsTag = 0;

/// What a message is made of, as MPI's arguments.
struct Shape {
  int count = 0;
  MPI_Datatype type = MPI_BYTE;
};

Shape shape_of(const ByteBlock& block) { return {block.count(), block.type()}; }
Shape shape_of(const ScatteredBlocks& blocks) { return {1, blocks.type()}; }

void start_send(const Endpoints& endpoints, const void* data, Shape shape, int rank, Requests& requests) {
  check_mpi(
      MPI_Isend(data, shape.count, shape.type, rank, kLevelsTag, endpoints.communicator, requests.add()),
      "MPI_Isend");
}
void start_receive(const Endpoints& endpoints, void* data, Shape shape, int rank, Requests& requests) {
  check_mpi(
      MPI_Irecv(data, shape.count, shape.type, rank, kLevelsTag, endpoints.communicator, requests.add()),
      "MPI_Irecv");
}

ByteBlock contiguous(const Endpoints& endpoints, std::int64_t bytes) { return {bytes, endpoints.max_count}; }

/// The parts of these ranks, in `whole`.
ScatteredBlocks blocks_of(const Endpoints& endpoints, std::int64_t part_bytes,
                          const std::vector<int>& ranks) {
  return {contiguous(endpoints, part_bytes), part_bytes, ranks};
}

std::byte* at(void* data, std::int64_t part, std::int64_t part_bytes) {
  return static_cast<std::byte*>(data) + part * part_bytes;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// `bytes` to rank `to[i]` from leaves(i), and from rank `from[i]` to arrives(i). What this rank sends to itself is copied.
template <class Leaves, class Arrives>
void start_exchange(const Endpoints& endpoints, const std::vector<int>& to, const std::vector<int>& from,
                    std::int64_t bytes, Leaves leaves, Arrives arrives, Requests& requests) {
  const Shape shape = shape_of(requests.keep(contiguous(endpoints, bytes)));
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i] != endpoints.rank) start_receive(endpoints, arrives(i), shape, from[i], requests);
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i] != endpoints.rank) {
      start_send(endpoints, leaves(i), shape, to[i], requests);
    } else {
      const auto own = static_cast<std::size_t>(std::ranges::find(from, endpoints.rank) - from.begin());
      copy_bytes(arrives(own), leaves(i), bytes);
    }
  }
}

/// `values` to the ranks `to`; what rank from[i] has arrives at room[i].
void start_share(const Endpoints& endpoints, const std::vector<int>& to, const std::vector<int>& from,
                 Tensor values, Room room, Requests& requests) {
  start_exchange(
      endpoints, to, from, room.bytes, [&](std::size_t) { return values.data; },
      [&](std::size_t i) { return at(room.data, static_cast<std::int64_t>(i), room.bytes); }, requests);
}

}  // namespace

void start_scatter_in_node(const Endpoints& endpoints, Tensor whole, Room room, int round,
                           Requests& requests) {
  const Levels& levels = *endpoints.levels;
  if (levels.places() == 1) return;  // its parts are the node's sums
  const std::vector<int> mine = levels.parts_of(levels.place, round);
  const std::int64_t row = std::ssize(mine) * room.bytes;
  const Shape arriving = shape_of(requests.keep(contiguous(endpoints, row)));
  for (int place = 0; place < levels.places(); ++place) {
    std::byte* const arrives = at(room.data, place, row);
    if (place == levels.place) {
      for (std::size_t n = 0; n < mine.size(); ++n)
        copy_bytes(at(arrives, static_cast<std::int64_t>(n), room.bytes), at(whole.data, mine[n], room.bytes),
                   room.bytes);
      continue;
    }
    const int rank = levels.own_node()[static_cast<std::size_t>(place)];
    const std::vector<int> theirs = levels.parts_of(place, round);
    if (!mine.empty()) start_receive(endpoints, arrives, arriving, rank, requests);
    if (!theirs.empty())
      start_send(endpoints, whole.data, shape_of(requests.keep(blocks_of(endpoints, room.bytes, theirs))),
                 rank, requests);
  }
}

void combine_in_node(const Endpoints& endpoints, Tensor whole, Room room, int round, ReduceOp op) {
  const Levels& levels = *endpoints.levels;
  if (levels.places() == 1) return;
  const std::vector<int> mine = levels.parts_of(levels.place, round);
  const std::int64_t elements = room.bytes / size_of(whole.dtype), parts = std::ssize(mine);
  for (std::int64_t n = 0; n < parts; ++n) {
    const std::int64_t owner = mine[static_cast<std::size_t>(n)];
    combine_in_tree_order(
        {at(room.data, n, room.bytes), whole.dtype, levels.places(), elements, parts * elements}, op,
        Accumulate::no, whole.slice(owner * elements, (owner + 1) * elements));
  }
}

void start_scatter_between_nodes(const Endpoints& endpoints, Tensor whole, Room room, Requests& requests) {
  const std::vector<int>& owners = endpoints.levels->own_parts();
  start_exchange(
      endpoints, owners, endpoints.levels->through, room.bytes,
      [&](std::size_t i) { return at(whole.data, owners[i], room.bytes); },
      [&](std::size_t n) { return at(room.data, static_cast<std::int64_t>(n), room.bytes); }, requests);
}

void start_gather_between_nodes(const Endpoints& endpoints, Tensor own, void* whole, Requests& requests) {
  const std::vector<int>& owners = endpoints.levels->own_parts();
  start_exchange(
      endpoints, endpoints.levels->through, owners, own.bytes(), [&](std::size_t) { return own.data; },
      [&](std::size_t i) { return at(whole, owners[i], own.bytes()); }, requests);
}

void start_gather_in_node(const Endpoints& endpoints, std::int64_t part_bytes, void* whole,
                          Requests& requests) {
  const Levels& levels = *endpoints.levels;
  const Shape leaving = shape_of(requests.keep(blocks_of(endpoints, part_bytes, levels.own_parts())));
  for (int place = 0; place < levels.places(); ++place) {
    if (place == levels.place) continue;
    const int rank = levels.own_node()[static_cast<std::size_t>(place)];
    const auto& parts = levels.parts_of_place[static_cast<std::size_t>(place)];
    start_receive(endpoints, whole, shape_of(requests.keep(blocks_of(endpoints, part_bytes, parts))), rank,
                  requests);
    start_send(endpoints, whole, leaving, rank, requests);
  }
}

void start_share_in_node(const Endpoints& endpoints, Tensor values, Room room, Requests& requests) {
  start_share(endpoints, endpoints.levels->own_node(), endpoints.levels->own_node(), values, room, requests);
}

void start_share_between_nodes(const Endpoints& endpoints, Tensor values, Room room, Requests& requests) {
  start_share(endpoints, endpoints.levels->own_parts(), endpoints.levels->through, values, room, requests);
}

}  // namespace llampi::comm
