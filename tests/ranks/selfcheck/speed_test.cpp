// SPDX-License-Identifier: Apache-2.0
// Slow ranks and links, found by a clock that the test moves.
#include "llampi/selfcheck/speed.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <variant>

#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"
#include "support/simulated_nodes.hpp"

namespace llampi::test {
namespace {

using namespace selfcheck;

/// Seconds that tests add: what takes how long does not depend on what else the machine does.
class SimulatedClock {
 public:
  void add(double seconds) { now_ += seconds; }
  Clock read() const {
    return [this] { return now_; };
  }

 private:
  double now_ = 0;
};

TEST(Speed, ARankWhoseDeviceIsSlowIsFound) {
  const int last = test_ranks() - 1;
  SimulatedClock clock;
  comm::Compute compute;
  compute.mpi = &test_world();
  compute.host = device::make_cpu_device(1);
  compute.host->decorate([&](const device::Operation& operation, const std::function<void()>& issue) {
    issue();
    if (std::holds_alternative<device::op::Linear>(operation))
      clock.add(test_rank() == last && last > 0 ? 4e-3 : 1e-3);
  });
  const auto seconds = time_products(test_world(), compute, DType::float32, clock.read());
  ASSERT_EQ(std::ssize(seconds), test_ranks());
  EXPECT_THAT(slow_ranks(seconds), last > 0 ? std::vector{last} : std::vector<int>());
}

/// Takes as long as it is told for each gathering.
class TimedGroup final : public comm::Group {
 public:
  TimedGroup(std::unique_ptr<comm::Group> group, SimulatedClock& clock, double seconds)
      : group_(std::move(group)), clock_(clock), seconds_(seconds) {}
  int size() const override { return group_->size(); }
  int rank() const override { return group_->rank(); }
  const std::vector<int>& members() const override { return group_->members(); }
  std::unique_ptr<comm::Work> all_gather(Tensor shard, Tensor whole, device::Stream stream) override {
    clock_.add(seconds_);
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
  SimulatedClock& clock_;
  double seconds_;
};

/// The link between ranks 0 and 1 is slow.
class WorldWithASlowLink final : public WorldOver {
 public:
  WorldWithASlowLink(comm::World& nodes, SimulatedClock& clock) : WorldOver(nodes), clock_(clock) {}
  std::unique_ptr<comm::Group> group(const std::vector<int>& members,
                                     const std::vector<device::Stream>& streams) override {
    const double seconds = members == std::vector<int>{0, 1} ? 40e-3 : 1e-3;
    return std::make_unique<TimedGroup>(world_.group(members, streams), clock_, seconds);
  }

 private:
  SimulatedClock& clock_;
};

TEST(Speed, ALinkBetweenNodesThatIsSlowIsFound) {
  std::vector<int> node_of_rank;
  for (int rank = 0; rank < test_ranks(); ++rank) node_of_rank.push_back(rank);
  SimulatedNodes nodes(test_world(), node_of_rank);
  SimulatedClock clock;
  WorldWithASlowLink world(nodes, clock);
  comm::Compute compute;
  compute.mpi = &world;
  compute.host = device::make_cpu_device(1);
  const LinkSpeeds speeds = measure_links(
      world, compute, [] {}, clock.read());
  EXPECT_TRUE(speeds.inside_nodes.empty());
  ASSERT_EQ(std::ssize(speeds.between_nodes), test_ranks() * (test_ranks() - 1) / 2);
  if (test_ranks() < 3) return;
  const auto slow = find_slow_links(speeds.between_nodes);
  EXPECT_TRUE(slow.ends.empty());
  ASSERT_EQ(std::ssize(slow.links), 1);
  EXPECT_EQ(std::pair(slow.links.front().a, slow.links.front().b), std::pair(0, 1));
  EXPECT_NEAR(slow.links.front().bytes_per_second, kMessageBytes / 40e-3, 1);
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

TEST(Speed, CopiesAreTimedOnEachRank) {
  const double seconds = test_rank() + 1;
  SimulatedClock clock;
  const auto each_reading_later = [&] {
    clock.add(seconds);
    return clock.read()();
  };
  comm::Compute compute;
  compute.mpi = &test_world();
  compute.host = device::make_cpu_device(1);
  const auto rates = measure_host_copies(test_world(), compute, each_reading_later);
  ASSERT_EQ(std::ssize(rates), test_ranks());
  for (int rank = 0; rank < test_ranks(); ++rank)
    EXPECT_DOUBLE_EQ(rates[static_cast<std::size_t>(rank)] * (rank + 1), 32 << 20);
}

}  // namespace
}  // namespace llampi::test
