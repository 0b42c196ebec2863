// SPDX-License-Identifier: Apache-2.0
// What reductions between GPUs send, as emulated communicators count it: between nodes as many bytes as a ring over nodes, half in
// bfloat16, and to few peers.
#include "comm/levels.hpp"
#include "emulator/seams/communicators.hpp"
#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/comm/comm.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kShard = 1 << 10;  // elements

class NcclTraffic : public NcclTest, public ::testing::WithParamInterface<std::vector<int>> {
 protected:
  comm::NcclOptions options() const override {
    auto options = NcclTest::options();
    options.node_of_rank = GetParam();
    return options;
  }
  bool is_on_this_node(int rank) const {
    const auto& nodes = GetParam();
    return nodes[static_cast<std::size_t>(rank)] == nodes[static_cast<std::size_t>(mpi.rank())];
  }
  /// Of all ranks of this node, to other nodes. Collective.
  std::int64_t sent_by_node(const std::map<int, std::int64_t>& sent) {
    std::vector<std::int64_t> of_node(static_cast<std::size_t>(mpi.size()));
    for (const auto& [rank, bytes] : sent) {
      if (!is_on_this_node(rank)) of_node[static_cast<std::size_t>(mpi.rank())] += bytes;
    }
    mpi.sum(of_node);
    std::int64_t sum = 0;
    for (int rank = 0; rank < mpi.size(); ++rank)
      sum += is_on_this_node(rank) ? of_node[static_cast<std::size_t>(rank)] : 0;
    return sum;
  }
};
INSTANTIATE_TEST_SUITE_P(Nodes, NcclTraffic,
                         ::testing::Values(std::vector{0, 0, 1, 1}, std::vector{0, 1, 1, 0},
                                           std::vector{0, 0, 0, 1}, std::vector{0, 0, 1, 2}));

TEST_P(NcclTraffic, IsThatOfARingOverNodes) {
  const auto levels = comm::two_levels(GetParam(), mpi.rank());
  ASSERT_TRUE(levels);
  const auto here = std::ssize(levels->own_parts());  // parts that go through this rank
  const std::int64_t inside = levels->places() - 1;
  const auto group = group_of_all();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const std::int64_t part = kShard * size_of(dtype), in_all = kShard * mpi.size();
    const Buffer whole(device(), world(), dtype, in_all), shard(device(), world(), DType::float32, kShard),
        scatter_workspace = scatter_room(*group, in_all, dtype),
        reduce_workspace = reduce_room(*group, in_all, dtype);
    emulator::take_exchanged_bytes();
    group->reduce_scatter(whole.view(), shard.view(), Accumulate::no, scatter_workspace.view(), kReduce)
        ->wait(device::Stream::host);
    const auto scatter = emulator::take_exchanged_bytes();
    group
        ->all_reduce(whole.view(), whole.view(), comm::ReduceOp::sum, Accumulate::no, reduce_workspace.view(),
                     kReduce)
        ->wait(device::Stream::host);
    const auto reduce = emulator::take_exchanged_bytes();

    std::int64_t bytes = 0, peers_inside = 0;
    for (const auto& [rank, sent] : scatter) {
      bytes += sent;
      peers_inside += is_on_this_node(rank) ? 1 : 0;
    }
    // Inside the node all that does not go through this rank; between nodes one part to each owner elsewhere.
    EXPECT_EQ(bytes, (mpi.size() - here) * part + (here - 1) * part);
    EXPECT_EQ(peers_inside, inside);
    EXPECT_EQ(std::ssize(scatter), inside + here - 1);
    // Of a ring over nodes as large as this one, each sends all parts but its own.
    EXPECT_EQ(sent_by_node(scatter), (mpi.size() - levels->places()) * part);
    EXPECT_EQ(reduce, scatter) << "NCCL gathers the rest";
  }
}

}  // namespace
}  // namespace llampi::test
