// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/exchange_levels.hpp"

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

void start_send(const Ends& ends, const void* data, Shape shape, int rank, Requests& requests) {
  check_mpi(MPI_Isend(data, shape.count, shape.type, rank, kLevelsTag, ends.communicator, requests.add()),
            "MPI_Isend");
}
void start_receive(const Ends& ends, void* data, Shape shape, int rank, Requests& requests) {
  check_mpi(MPI_Irecv(data, shape.count, shape.type, rank, kLevelsTag, ends.communicator, requests.add()),
            "MPI_Irecv");
}

ByteBlock contiguous(const Ends& ends, std::int64_t bytes) { return {bytes, ends.max_count}; }

/// The parts of the ranks with one place, in `whole`.
ScatteredBlocks parts_of_place(const Ends& ends, std::int64_t part_bytes, int place) {
  return {contiguous(ends, part_bytes), part_bytes, ends.levels->same_place(place)};
}

std::byte* at(void* data, std::int64_t part, std::int64_t part_bytes) {
  return static_cast<std::byte*>(data) + part * part_bytes;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

/// `bytes` to and from these ranks, this one among them: to rank i of them what is at leaves(i), from it to arrives(i).
template <class Leaves, class Arrives>
void start_exchange(const Ends& ends, const std::vector<int>& ranks, std::int64_t bytes, Leaves leaves,
                    Arrives arrives, Requests& requests) {
  const Shape shape = shape_of(requests.keep(contiguous(ends, bytes)));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == ends.rank) {
      copy_bytes(arrives(i), leaves(i), bytes);
    } else {
      start_receive(ends, arrives(i), shape, ranks[i], requests);
      start_send(ends, leaves(i), shape, ranks[i], requests);
    }
  }
}

/// `values` to and from these ranks; what rank i of them has arrives at room[i].
void start_share(const Ends& ends, const std::vector<int>& ranks, Tensor values, Room room,
                 Requests& requests) {
  start_exchange(
      ends, ranks, room.bytes, [&](std::size_t) { return values.data; },
      [&](std::size_t i) { return at(room.data, static_cast<std::int64_t>(i), room.bytes); }, requests);
}

}  // namespace

void start_scatter_in_node(const Ends& ends, Tensor whole, Room room, Requests& requests) {
  const Levels& levels = *ends.levels;
  const std::int64_t row = levels.node_count() * room.bytes;
  const Shape arriving = shape_of(requests.keep(contiguous(ends, row)));
  for (int place = 0; place < levels.per_node(); ++place) {
    std::byte* const arrives = at(room.data, place, row);
    if (place == levels.place) {
      const std::vector<int> ranks = levels.same_place(place);
      for (std::size_t n = 0; n < ranks.size(); ++n)
        copy_bytes(at(arrives, static_cast<std::int64_t>(n), room.bytes),
                   at(whole.data, ranks[n], room.bytes), room.bytes);
      continue;
    }
    const int rank = levels.own_node()[static_cast<std::size_t>(place)];
    start_receive(ends, arrives, arriving, rank, requests);
    start_send(ends, whole.data, shape_of(requests.keep(parts_of_place(ends, room.bytes, place))), rank,
               requests);
  }
}

void combine_in_node(const Ends& ends, Tensor whole, Room room, ReduceOp op) {
  const Levels& levels = *ends.levels;
  const std::int64_t elements = room.bytes / size_of(whole.dtype);
  for (int n = 0; n < levels.node_count(); ++n) {
    const std::int64_t owner =
        levels.nodes[static_cast<std::size_t>(n)][static_cast<std::size_t>(levels.place)];
    combine_in_tree_order({at(room.data, n, room.bytes), whole.dtype, levels.per_node(), elements,
                           levels.node_count() * elements},
                          op, Accumulate::no, whole.slice(owner * elements, (owner + 1) * elements));
  }
}

void start_scatter_between_nodes(const Ends& ends, Tensor whole, Room room, Requests& requests) {
  const std::vector<int> ranks = ends.levels->same_place(ends.levels->place);
  start_exchange(
      ends, ranks, room.bytes, [&](std::size_t n) { return at(whole.data, ranks[n], room.bytes); },
      [&](std::size_t n) { return at(room.data, static_cast<std::int64_t>(n), room.bytes); }, requests);
}

void start_gather_between_nodes(const Ends& ends, Tensor own, void* whole, Requests& requests) {
  const std::vector<int> ranks = ends.levels->same_place(ends.levels->place);
  start_exchange(
      ends, ranks, own.bytes(), [&](std::size_t) { return own.data; },
      [&](std::size_t n) { return at(whole, ranks[n], own.bytes()); }, requests);
}

void start_gather_in_node(const Ends& ends, std::int64_t part_bytes, void* whole, Requests& requests) {
  const Levels& levels = *ends.levels;
  const Shape leaving = shape_of(requests.keep(parts_of_place(ends, part_bytes, levels.place)));
  for (int place = 0; place < levels.per_node(); ++place) {
    if (place == levels.place) continue;
    const int rank = levels.own_node()[static_cast<std::size_t>(place)];
    start_receive(ends, whole, shape_of(requests.keep(parts_of_place(ends, part_bytes, place))), rank,
                  requests);
    start_send(ends, whole, leaving, rank, requests);
  }
}

void start_share_in_node(const Ends& ends, Tensor values, Room room, Requests& requests) {
  start_share(ends, ends.levels->own_node(), values, room, requests);
}

void start_share_between_nodes(const Ends& ends, Tensor values, Room room, Requests& requests) {
  start_share(ends, ends.levels->same_place(ends.levels->place), values, room, requests);
}

}  // namespace llampi::comm
