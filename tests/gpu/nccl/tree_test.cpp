// SPDX-License-Identifier: Apache-2.0
// Sums between GPUs have the bits of those over MPI, for numbers whose sums depend on their order.
#include <algorithm>
#include <cstring>

#include "comm/mpi/mpi_world.hpp"
#include "gpu/nccl/nccl_fixture.hpp"
#include "llampi/comm/comm.hpp"
#include "support/rank_values.hpp"
#include "support/streams.hpp"

namespace llampi::test {
namespace {

constexpr std::int64_t kTreeSizes[] = {1, 5, 64, 1000, 4099, 16384, 20011};

struct Case {
  DType dtype, result;
  Accumulate accumulate;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    all.push_back({DType::float32, DType::float32, accumulate});
    for (const DType narrow : {DType::bfloat16, DType::float16}) {
      all.push_back({narrow, narrow, accumulate});
      all.push_back({narrow, DType::float32, accumulate});
    }
  }
  return all;
}

/// In host memory.
struct HostRow {
  HostRow(DType dtype, std::int64_t elements) : bytes(static_cast<std::size_t>(elements * size_of(dtype))) {
    view = {bytes.data(), dtype, 1, elements};
  }
  std::vector<std::byte> bytes;
  Tensor view;
};

HostRow random_row(DType dtype, std::int64_t elements, int rank, std::uint64_t salt) {
  HostRow row(dtype, elements);
  for (std::int64_t i = 0; i < elements; ++i) {
    const float x = value<float>(rank, i, salt) * 0x1p-10F;  // within float16's range
    std::byte* const to = row.bytes.data() + i * size_of(dtype);
    if (dtype == DType::float32) {
      std::memcpy(to, &x, sizeof x);
    } else {
      const std::uint16_t bits = dtype == DType::bfloat16 ? to_bfloat16(x) : to_float16(x);
      std::memcpy(to, &bits, sizeof bits);
    }
  }
  return row;
}

struct TreeWay {
  const char* name;
  std::int64_t exchange_bytes;
  std::vector<int> nodes = {};  ///< of four ranks; none: all on one
};

class NcclTree : public NcclTest, public ::testing::WithParamInterface<TreeWay> {
 protected:
  void SetUp() override {
    if (!GetParam().nodes.empty() && mpi.size() != 4) GTEST_SKIP() << "for four ranks";
    NcclTest::SetUp();
  }
  comm::NcclOptions options() const override {
    auto options = NcclTest::options();
    options.exchange_bytes = GetParam().exchange_bytes;
    options.node_of_rank = node_of_rank();
    return options;
  }
  std::vector<int> node_of_rank() const {
    return GetParam().nodes.empty() ? std::vector<int>(all.size(), 0) : GetParam().nodes;
  }
  std::unique_ptr<comm::Group> group_over_mpi(const std::vector<int>& members) {
    return comm::make_mpi_group(mpi, members, {.node_of_rank = node_of_rank()});
  }

  /// The same numbers on the GPU.
  Buffer copy_of(const HostRow& row) {
    Buffer buffer(device(), world(), row.view.dtype, row.view.elements());
    device().upload(buffer.view(), row.bytes.data(), device::Stream::compute);
    device().synchronize(device::Stream::compute);
    return buffer;
  }
  void expect_bits(const HostRow& expected, const Buffer& buffer) {
    std::vector<std::byte> bytes(expected.bytes.size());
    device().download(bytes.data(), buffer.view(), device::Stream::compute);
    device().synchronize(device::Stream::compute);
    EXPECT_TRUE(bytes == expected.bytes);
    buffer.get();  // the element behind
  }

  /// Ranks on GPUs, and the same over MPI. Made once for many sums: a communicator of NCCL takes a part of a second.
  struct Groups {
    std::unique_ptr<comm::Group> on_gpus, over_mpi;
  };
  Groups groups_of(const std::vector<int>& members) {
    return {world().group(members, {kReduce}), group_over_mpi(members)};
  }

  void reduce_scatter(const Groups& groups, const Case& of, std::int64_t elements) {
    const auto& [group, over_mpi] = groups;
    const HostRow whole = random_row(of.dtype, elements * group->size(), mpi.rank(), 1),
                  shard = random_row(of.result, elements, mpi.rank(), 2);
    const Buffer whole_there = copy_of(whole), shard_there = copy_of(shard),
                 room = scatter_room(*group, whole.view.elements(), of.dtype);
    std::vector<std::int64_t> storage;
    const Tensor workspace = workspace_row(
        storage, comm::reduce_scatter_workspace(whole.view.elements(), group->size(), of.dtype));
    over_mpi->reduce_scatter(whole.view, shard.view, of.accumulate, workspace, kReduce)
        ->wait(device::Stream::host);
    group->reduce_scatter(whole_there.view(), shard_there.view(), of.accumulate, room.view(), kReduce)
        ->wait(device::Stream::compute);
    expect_bits(shard, shard_there);
    whole_there.get();
    room.get();
  }
  void all_reduce(const Groups& groups, const Case& of, std::int64_t elements) {
    const auto& [group, over_mpi] = groups;
    const HostRow values = random_row(of.dtype, elements, mpi.rank(), 3),
                  result = random_row(of.result, elements, mpi.rank(), 4);  // ranks add to other numbers
    const Buffer values_there = copy_of(values), result_there = copy_of(result),
                 room = reduce_room(*group, elements, of.dtype);
    std::vector<std::int64_t> storage;
    const Tensor workspace =
        workspace_row(storage, comm::all_reduce_workspace(elements, group->size(), of.dtype));
    over_mpi->all_reduce(values.view, result.view, comm::ReduceOp::sum, of.accumulate, workspace, kReduce)
        ->wait(device::Stream::host);
    group
        ->all_reduce(values_there.view(), result_there.view(), comm::ReduceOp::sum, of.accumulate,
                     room.view(), kReduce)
        ->wait(device::Stream::compute);
    expect_bits(result, result_there);
    values_there.get();
    room.get();
  }

  /// In every case and size, with one order of work after another.
  template <class Body>
  void for_all(Body body) {
    const auto orders = work_orders();
    std::size_t turn = 0;
    for (const Case& of : cases()) {
      for (const std::int64_t elements : kTreeSizes) {
        // Over levels and in pieces only what differs there: small, with a tail, and of several pieces.
        if (!GetParam().nodes.empty() && elements != 5 && elements != 1000 && elements != 4099) continue;
        const auto& order = orders[turn++ % orders.size()];
        SCOPED_TRACE(fmt::format("{}, {} {} to {}, {}", order.name, elements, to_string(of.dtype),
                                 to_string(of.result), of.accumulate == Accumulate::yes ? "added" : "alone"));
        order.set();
        body(of, elements);
      }
    }
  }
};
// All at once, and in pieces (the small sizes are one piece); over one level, and over two (with four ranks).
INSTANTIATE_TEST_SUITE_P(All, NcclTree,
                         ::testing::Values(TreeWay{"AtOnce", comm::kExchangeBytes}, TreeWay{"InPieces", 2048},
                                           TreeWay{"OverCrossedLevelsInPieces", 2048, {0, 1, 1, 0}},
                                           TreeWay{"OverUnevenLevelsInPieces", 2048, {0, 0, 0, 1}},
                                           TreeWay{"OverThreeNodesInPieces", 2048, {0, 0, 1, 2}}),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(NcclTree, ReduceScatterHasTheBitsOfMpi) {
  const auto groups = groups_of(all);
  for_all([&](const Case& of, std::int64_t elements) { reduce_scatter(groups, of, elements); });
}

TEST_P(NcclTree, AllReduceHasTheBitsOfMpi) {
  const auto groups = groups_of(all);
  for_all([&](const Case& of, std::int64_t elements) { all_reduce(groups, of, elements); });
}

// As hybrid sharding does, in one group after the other; and the ranks of a group are in falling order.
TEST_P(NcclTree, GroupsOfSomeRanksHaveTheBitsOfMpi) {
  std::vector<int> falling;
  for (int rank = mpi.size() - 1; rank >= 0; --rank) {
    if (rank % 2 == mpi.rank() % 2) falling.push_back(rank);
  }
  const int pair = mpi.rank() / 2 * 2;
  const std::vector<int> rising = pair + 1 < mpi.size() ? std::vector{pair, pair + 1} : std::vector{pair};
  const auto of_rising = groups_of(rising), of_falling = groups_of(falling);
  for_all([&](const Case& of, std::int64_t elements) {
    reduce_scatter(of_rising, of, elements);
    all_reduce(of_falling, of, elements);
  });
}

// Where they lie, as the sum of a loss or of a replicated gradient.
TEST_P(NcclTree, AllReduceInPlaceHasTheBitsOfMpi) {
  const auto group = group_of_all(), over_mpi = group_over_mpi(all);
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const std::int64_t elements : kTreeSizes) {
      SCOPED_TRACE(fmt::format("{} {}", elements, to_string(dtype)));
      const HostRow values = random_row(dtype, elements, mpi.rank(), 5);
      const Buffer there = copy_of(values), room = reduce_room(*group, elements, dtype);
      std::vector<std::int64_t> storage;
      const Tensor workspace =
          workspace_row(storage, comm::all_reduce_workspace(elements, mpi.size(), dtype));
      over_mpi->all_reduce(values.view, values.view, comm::ReduceOp::sum, Accumulate::no, workspace, kReduce)
          ->wait(device::Stream::host);
      group->all_reduce(there.view(), there.view(), comm::ReduceOp::sum, Accumulate::no, room.view(), kReduce)
          ->wait(device::Stream::compute);
      expect_bits(values, there);
      room.get();
    }
  }
}

}  // namespace
}  // namespace llampi::test
