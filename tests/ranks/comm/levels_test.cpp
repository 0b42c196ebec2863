// SPDX-License-Identifier: Apache-2.0
// Collectives over two levels, inside a node and between nodes, which here only a list says that there are: bits, and bytes that
// leave each node.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <algorithm>
#include <map>
#include <set>

#include "comm/levels.hpp"
#include "comm/mpi/mpi_world.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/placement.hpp"
#include "llampi/comm/workspace.hpp"
#include "llampi/core/half.hpp"
#include "support/mpi_test.hpp"
#include "support/rank_values.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

using namespace comm;

struct Sent {
  std::int64_t bytes = 0;
  std::map<int, std::int64_t> bytes_to;
  std::set<int> peers;  ///< in the communicator of the message
};
Sent* counted = nullptr;

}  // namespace
}  // namespace llampi::test

// In front of the library's own, for this program: counts what leaves the rank.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int rank, int tag,
                         MPI_Comm communicator, MPI_Request* request) {
  if (llampi::test::counted != nullptr) {
    int size = 0;
    MPI_Type_size(type, &size);
    llampi::test::counted->bytes += std::int64_t{count} * size;
    llampi::test::counted->bytes_to[rank] += std::int64_t{count} * size;
    llampi::test::counted->peers.insert(rank);
  }
  return PMPI_Isend(data, count, type, rank, tag, communicator, request);
}

namespace llampi::test {
namespace {

struct Format {
  DType dtype;
  float round(float x) const {
    if (dtype == DType::bfloat16) return from_bfloat16(to_bfloat16(x));
    if (dtype == DType::float16) return from_float16(to_float16(x));
    return x;
  }
};
constexpr Format kFormats[] = {{DType::float32}, {DType::bfloat16}, {DType::float16}};

/// A vector of floats as it is kept in this dtype.
class Stored {
 public:
  Stored(DType dtype, std::vector<float> values) : dtype_(dtype), wide_(std::move(values)) {
    for (const float x : wide_) narrow_.push_back(dtype == DType::float16 ? to_float16(x) : to_bfloat16(x));
  }
  Tensor view() {
    const auto elements = static_cast<std::int64_t>(wide_.size());
    if (dtype_ == DType::float32) return row(wide_);
    return {narrow_.data(), dtype_, 1, elements};
  }
  std::vector<float> values() const {
    if (dtype_ == DType::float32) return wide_;
    std::vector<float> all;
    for (const auto bits : narrow_)
      all.push_back(dtype_ == DType::float16 ? from_float16(bits) : from_bfloat16(bits));
    return all;
  }

 private:
  DType dtype_;
  std::vector<float> wide_;
  std::vector<std::uint16_t> narrow_;
};

class TwoLevels : public ::testing::Test {
 protected:
  World& world = test_world();
  std::vector<int> all = first_ranks(world.size());
  std::vector<std::int64_t> storage;

  /// Placements in which two levels are used.
  std::vector<std::vector<int>> placements() const {
    std::vector<std::vector<int>> lists;
    for (int nodes = 2; nodes * 2 <= world.size(); ++nodes) {
      if (world.size() % nodes != 0) continue;
      auto& consecutive = lists.emplace_back();
      for (const int rank : all) consecutive.push_back(rank * nodes / world.size());
      auto& in_turns = lists.emplace_back();
      for (const int rank : all) in_turns.push_back(rank % nodes);
    }
    if (world.size() < 3) return lists;
    auto& all_but_one = lists.emplace_back();  // on a node
    for (const int rank : all) all_but_one.push_back(rank == 1 ? 1 : 0);
    auto& halves = lists.emplace_back();  // as many as half of them, half of the others, ...
    for (int node = 0, left = world.size(); left > 0; ++node) {
      const int here = (left + 1) / 2;
      halves.insert(halves.end(), static_cast<std::size_t>(here), node);
      left -= here;
    }
    return lists;
  }
  static float number(int rank, std::int64_t index, Format format) {
    return format.round(value<float>(rank, index) * 0x1p-10F);  // within float16's range
  }
  std::vector<float> numbers(std::int64_t elements, Format format) const {
    std::vector<float> mine;
    for (std::int64_t i = 0; i < elements; ++i) mine.push_back(number(world.rank(), i, format));
    return mine;
  }
  float sum(const std::vector<int>& node_of_rank, std::int64_t index, Format format) const {
    std::vector<float> of_nodes;
    const auto levels = two_levels(node_of_rank, 0);
    for (const auto& node : levels->nodes) {
      std::vector<float> terms;
      for (const int rank : node) terms.push_back(number(rank, index, format));
      of_nodes.push_back(format.round(tree_sum(terms)));
    }
    return tree_sum(of_nodes);
  }

  /// Bytes that the ranks of this rank's node sent to others.
  std::int64_t sent_by_node(const Sent& sent, const std::vector<int>& placement) {
    const auto node_of = [&](int rank) {
      return static_cast<std::size_t>(placement[static_cast<std::size_t>(rank)]);
    };
    std::vector<std::int64_t> of_nodes(static_cast<std::size_t>(world.size()));
    for (const auto& [rank, bytes] : sent.bytes_to) {
      if (node_of(rank) != node_of(world.rank())) of_nodes[node_of(world.rank())] += bytes;
    }
    world.sum(of_nodes);
    return of_nodes[node_of(world.rank())];
  }

  template <class Body>
  void for_each_case(Body body) {
    for (const auto& placement : placements()) {
      const auto group = make_mpi_group(world, all, {.node_of_rank = placement});
      for (const Format format : kFormats) {
        for (const std::int64_t elements : {0, 1, 5, 1000, 2501}) {
          SCOPED_TRACE(
              fmt::format("nodes {}, {} {}", fmt::join(placement, " "), elements, to_string(format.dtype)));
          body(*group, placement, format, elements);
        }
      }
    }
  }
};

TEST_F(TwoLevels, ReduceScatterSumsNodesThenRanksOfDifferentNodes) {
  for_each_case([&](Group& group, const auto& placement, Format format, std::int64_t elements) {
    for (const DType kept : {DType::float32, format.dtype}) {
      const std::int64_t in_all = elements * world.size();
      Stored whole(format.dtype, numbers(in_all, format));
      Stored shard(kept, std::vector<float>(static_cast<std::size_t>(elements), 3.25F));
      group
          .reduce_scatter(
              whole.view(), shard.view(), Accumulate::yes,
              workspace_row(storage, reduce_scatter_workspace(in_all, world.size(), format.dtype)), kReduce)
          ->wait(device::Stream::host);
      std::vector<float> expected;
      for (std::int64_t i = 0; i < elements; ++i)
        expected.push_back(Format{kept}.round(3.25F + sum(placement, world.rank() * elements + i, format)));
      EXPECT_EQ(shard.values(), expected);
    }
  });
}

TEST_F(TwoLevels, AllReduceHasTheSameSums) {
  for_each_case([&](Group& group, const auto& placement, Format format, std::int64_t elements) {
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      for (const DType kept : {DType::float32, format.dtype}) {
        Stored values(format.dtype, numbers(elements, format));
        Stored result(kept, std::vector<float>(static_cast<std::size_t>(elements), 3.25F));
        group
            .all_reduce(values.view(), result.view(), ReduceOp::sum, accumulate,
                        workspace_row(storage, all_reduce_workspace(elements, world.size(), format.dtype)),
                        kReduce)
            ->wait(device::Stream::host);
        std::vector<float> expected;
        for (std::int64_t i = 0; i < elements; ++i) {
          const float one = sum(placement, i, format);
          expected.push_back(Format{kept}.round(accumulate == Accumulate::yes ? 3.25F + one : one));
        }
        EXPECT_EQ(result.values(), expected);
      }
    }
  });
}

TEST_F(TwoLevels, AllReduceInPlaceAndMaximum) {
  for_each_case([&](Group& group, const auto& placement, Format format, std::int64_t elements) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      Stored values(format.dtype, numbers(elements, format));
      group
          .all_reduce(values.view(), values.view(), op, Accumulate::no,
                      workspace_row(storage, all_reduce_workspace(elements, world.size(), format.dtype)),
                      kReduce)
          ->wait(device::Stream::host);
      std::vector<float> expected;
      for (std::int64_t i = 0; i < elements; ++i) {
        float largest = number(0, i, format);
        for (const int rank : all) largest = std::max(largest, number(rank, i, format));
        expected.push_back(op == ReduceOp::max ? largest : format.round(sum(placement, i, format)));
      }
      EXPECT_EQ(values.values(), expected);
    }
  });
}

TEST_F(TwoLevels, AllGatherBringsEveryShard) {
  for_each_case([&](Group& group, const auto&, Format format, std::int64_t elements) {
    for (const bool in_place : {false, true}) {
      Stored whole(format.dtype, std::vector<float>(static_cast<std::size_t>(elements * world.size()), -7));
      Stored own(format.dtype, numbers(elements, format));
      Tensor shard = own.view();
      if (in_place) {
        shard = whole.view().slice(world.rank() * elements, (world.rank() + 1) * elements);
        std::memcpy(shard.data, own.view().data, static_cast<std::size_t>(shard.bytes()));
      }
      group.all_gather(shard, whole.view(), kUnshard)->wait(device::Stream::host);
      std::vector<float> expected;
      for (const int rank : all) {
        for (std::int64_t i = 0; i < elements; ++i) expected.push_back(number(rank, i, format));
      }
      EXPECT_EQ(whole.values(), expected);
    }
  });
}

// The bits do not depend on the placement where sums_follow_placement() says so.
TEST_F(TwoLevels, AreTheTreeOverRanksWhereNodesArePartsOfIt) {
  const Format format{DType::float32};
  for (const auto& placement : placements()) {
    int differing = 0;
    for (std::int64_t i = 0; i < 1000; ++i) {
      std::vector<float> terms;
      for (const int rank : all) terms.push_back(number(rank, i, format));
      differing += tree_sum(terms) != sum(placement, i, format);
    }
    EXPECT_EQ(differing > 0, sums_follow_placement(placement))
        << fmt::format("{}", fmt::join(placement, " "));
  }
}

TEST_F(TwoLevels, MessagesMayBeLongerThanMpiCounts) {
  for (const auto& placement : placements()) {
    const auto group = make_mpi_group(world, all, {.node_of_rank = placement, .max_count = 1000});
    const Format format{DType::float32};
    const std::int64_t elements = 4099;
    Stored values(format.dtype, numbers(elements, format));
    group
        ->all_reduce(values.view(), values.view(), ReduceOp::sum, Accumulate::no,
                     workspace_row(storage, all_reduce_workspace(elements, world.size(), format.dtype)),
                     kReduce)
        ->wait(device::Stream::host);
    std::vector<float> expected;
    for (std::int64_t i = 0; i < elements; ++i) expected.push_back(sum(placement, i, format));
    EXPECT_EQ(values.values(), expected);
  }
}

// A part crosses to each other node once, as in a ring over nodes: where all have equally many ranks, of B bytes (nodes - 1) / nodes * B
// leave each; half in bfloat16. And peers are few.
TEST_F(TwoLevels, SendAsManyBytesBetweenNodesAsARing) {
  constexpr std::int64_t kShard = 1 << 10;
  const std::int64_t in_all = kShard * world.size();
  for (const auto& placement : placements()) {
    SCOPED_TRACE(fmt::format("nodes {}", fmt::join(placement, " ")));
    const auto levels = two_levels(placement, world.rank());
    const auto nodes = static_cast<std::int64_t>(levels->node_count());
    const auto here = std::ssize(levels->own_parts());  // parts that go through this rank
    const auto count = [&](auto collective) {
      Sent sent;
      counted = &sent;
      collective();
      counted = nullptr;
      return sent;
    };
    const auto peers_in_node = [&](const Sent& sent) {
      return std::ranges::count_if(sent.peers, [&](int rank) {
        return placement[static_cast<std::size_t>(rank)] == placement[static_cast<std::size_t>(world.rank())];
      });
    };
    for (const Format format : {kFormats[0], kFormats[1]}) {
      const auto group = make_mpi_group(world, all, {.node_of_rank = placement});
      Stored whole(format.dtype, numbers(in_all, format));
      Stored shard(format.dtype, std::vector<float>(static_cast<std::size_t>(kShard)));
      const Tensor workspace =
          workspace_row(storage, reduce_scatter_workspace(in_all, world.size(), format.dtype));
      const std::int64_t part = kShard * size_of(format.dtype), inside = levels->places() - 1;
      const Sent scatter = count([&] {
        group->reduce_scatter(whole.view(), shard.view(), Accumulate::no, workspace, kReduce)
            ->wait(device::Stream::host);
      });
      // Inside the node all that does not go through this rank; between nodes one part to each owner elsewhere.
      EXPECT_EQ(scatter.bytes, (world.size() - here) * part + (here - 1) * part);
      EXPECT_EQ(peers_in_node(scatter), inside);
      EXPECT_EQ(std::ssize(scatter.peers), inside + here - 1);
      const Sent gather =
          count([&] { group->all_gather(shard.view(), whole.view(), kUnshard)->wait(device::Stream::host); });
      // Between nodes its own part to each other node; inside all that went through this rank.
      EXPECT_EQ(gather.bytes, (nodes - 1) * part + inside * here * part);
      EXPECT_EQ(std::ssize(gather.peers), inside + nodes - 1);
      const Sent reduce = count([&] {
        group->all_reduce(whole.view(), whole.view(), ReduceOp::sum, Accumulate::no, workspace, kReduce)
            ->wait(device::Stream::host);
      });
      EXPECT_EQ(reduce.bytes, scatter.bytes + gather.bytes);
      // All ranks of a node send to others: in a reduction the sums that are not its own parts, in a gather its own parts to each node.
      const std::int64_t on_node = levels->places();
      EXPECT_EQ(sent_by_node(scatter, placement), (world.size() - on_node) * part);
      EXPECT_EQ(sent_by_node(gather, placement), on_node * (nodes - 1) * part);
    }
  }
}

}  // namespace
}  // namespace llampi::test
