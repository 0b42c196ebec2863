// SPDX-License-Identifier: Apache-2.0
// Slow ranks and links: a device that does all work several times, a network that waits.
#include "llampi/selfcheck/speed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

using namespace selfcheck;

TEST(Speed, ARankWhoseDeviceIsSlowIsFound) {
  comm::Compute compute;
  compute.mpi = &test_world();
  compute.host = device::make_cpu_device(1);
  const int last = test_ranks() - 1;
  if (test_rank() == last && last > 0) {
    compute.host->decorate([](const device::Operation& operation, const std::function<void()>& issue) {
      const int times = std::holds_alternative<device::op::Linear>(operation) ? 4 : 1;
      for (int i = 0; i < times; ++i) issue();
    });
  }
  const auto seconds = time_products(test_world(), compute, DType::float32);
  ASSERT_EQ(std::ssize(seconds), test_ranks());
  const auto slow = slow_ranks(seconds);
  EXPECT_EQ(std::count(slow.begin(), slow.end(), last), last > 0 ? 1 : 0);
}

/// Waits in each collective.
class SlowGroup final : public comm::Group {
 public:
  explicit SlowGroup(std::unique_ptr<comm::Group> group) : group_(std::move(group)) {}
  int size() const override { return group_->size(); }
  int rank() const override { return group_->rank(); }
  const std::vector<int>& members() const override { return group_->members(); }
  std::unique_ptr<comm::Work> all_gather(Tensor shard, Tensor whole, device::Stream stream) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return group_->all_gather(shard, whole, stream);
  }
  std::unique_ptr<comm::Work> reduce_scatter(Tensor whole, Tensor shard, Accumulate accumulate,
                                             Tensor workspace, device::Stream stream) override {
    return group_->reduce_scatter(whole, shard, accumulate, workspace, stream);
  }
  std::unique_ptr<comm::Work> all_reduce(Tensor values, Tensor result, comm::ReduceOp op,
                                         Accumulate accumulate, Tensor workspace,
                                         device::Stream stream) override {
    return group_->all_reduce(values, result, op, accumulate, workspace, stream);
  }

 private:
  std::unique_ptr<comm::Group> group_;
};

/// Ranks on a node each; the link between the first two is slow.
class WorldWithASlowLink final : public WorldOver {
 public:
  explicit WorldWithASlowLink(comm::World& nodes) : WorldOver(nodes) {}
  std::unique_ptr<comm::Group> group(const std::vector<int>& members,
                                     const std::vector<device::Stream>& streams) override {
    auto group = world_.group(members, streams);
    if (members != std::vector<int>{0, 1}) return group;
    return std::make_unique<SlowGroup>(std::move(group));
  }
};

TEST(Speed, ALinkBetweenNodesThatIsSlowIsFound) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < test_ranks(); ++rank) node_of_rank.push_back(rank);
  SimulatedNodes nodes(test_world(), node_of_rank);
  WorldWithASlowLink world(nodes);
  comm::Compute compute;
  compute.mpi = &world;
  compute.host = device::make_cpu_device(1);
  const LinkSpeeds speeds = measure_links(world, compute);
  EXPECT_TRUE(speeds.inside_nodes.empty());
  ASSERT_EQ(std::ssize(speeds.between_nodes), test_ranks() * (test_ranks() - 1) / 2);
  if (test_ranks() < 3) return;
  const auto slow = find_slow_links(speeds.between_nodes);
  const bool is_found = std::any_of(slow.links.begin(), slow.links.end(),
                                    [](const Link& link) { return link.a == 0 && link.b == 1; });
  EXPECT_TRUE(is_found);
  EXPECT_LT(speeds.between_nodes.front().bytes_per_second, kMessageBytes / 0.04);
}

TEST(Speed, LinksInsideANodeAreBetweenItsRanks) {
  comm::Compute compute;
  compute.mpi = &test_world();
  compute.host = device::make_cpu_device(1);
  const LinkSpeeds speeds = measure_links(test_world(), compute);
  EXPECT_TRUE(speeds.between_nodes.empty());
  EXPECT_EQ(std::ssize(speeds.inside_nodes), test_ranks() * (test_ranks() - 1) / 2);
  for (const auto& link : speeds.inside_nodes) EXPECT_GT(link.bytes_per_second, 0);
}

}  // namespace
}  // namespace llampi::test
