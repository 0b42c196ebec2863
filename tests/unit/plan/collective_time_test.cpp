// SPDX-License-Identifier: Apache-2.0
// The formula against times that can be counted by hand, and against simulated ones.
#include "llampi/plan/collective_time.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace llampi::test {
namespace {

using namespace plan;

/// Numbers to count with: a message takes 10 us to be started, and links give all they have.
NetworkSpeed round_numbers() {
  return {.in_node = {100e9, 1e-3},
          .between_nodes = {10e9, 2e-3},
          .seconds_per_message = 1e-5,
          .bandwidth_reached = 1};
}

constexpr GroupShape kSixteenOnTwo{.ranks = 16, .nodes = 2};
constexpr double kBytes = 1.6e9;  // 0.1e9 for each of 16 ranks

void expect_phase(const Phase& phase, Resource resource, double latency, double transfer) {
  EXPECT_EQ(phase.resource, resource);
  EXPECT_NEAR(phase.latency_seconds, latency, 1e-12);
  EXPECT_NEAR(phase.transfer_seconds, transfer, 1e-12);
}

TEST(CollectiveTime, OverTwoLevelsAPartCrossesTheNetworkOnce) {
  const Phases phases = all_gather_phases(round_numbers(), kSixteenOnTwo, kBytes, Route::two_levels);
  ASSERT_EQ(phases.size(), 2U);
  expect_phase(phases[0], Resource::between_nodes, 2e-3 + 1 * 1e-5,
               0.1e9 / 10e9);  // to one rank of the other node
  expect_phase(phases[1], Resource::in_node, 1e-3 + 7 * 1e-5, 7 * 2 * 0.1e9 / 100e9);  // two parts to seven
}

TEST(CollectiveTime, OverOneLevelEachRankSendsToEachOther) {
  const Phases phases = all_gather_phases(round_numbers(), kSixteenOnTwo, kBytes, Route::direct);
  ASSERT_EQ(phases.size(), 1U);
  expect_phase(phases[0], Resource::between_nodes, 2e-3 + 15 * 1e-5, 8 * 0.1e9 / 10e9);
  // Links in the node that are slower than NICs take the time.
  NetworkSpeed slow_inside = round_numbers();
  slow_inside.in_node.bytes_per_second = 5e9;
  expect_phase(all_gather_phases(slow_inside, kSixteenOnTwo, kBytes, Route::direct).at(0), Resource::in_node,
               1e-3 + 15 * 1e-5, 7 * 0.1e9 / 5e9);
}

TEST(CollectiveTime, AReduceScatterIsAGatherBackwards) {
  const Phases gather = all_gather_phases(round_numbers(), kSixteenOnTwo, kBytes, Route::two_levels);
  const Phases scatter = reduce_scatter_phases(round_numbers(), kSixteenOnTwo, kBytes, Route::two_levels);
  ASSERT_EQ(scatter.size(), 2U);
  EXPECT_EQ(scatter[0].resource, Resource::in_node);
  EXPECT_EQ(scatter[1].resource, Resource::between_nodes);
  EXPECT_DOUBLE_EQ(seconds(scatter), seconds(gather));
  const Phases both = all_reduce_phases(round_numbers(), kSixteenOnTwo, kBytes, Route::two_levels);
  EXPECT_EQ(both.size(), 4U);
  EXPECT_DOUBLE_EQ(seconds(both), 2 * seconds(gather));
}

TEST(CollectiveTime, PartsThatAreSentApartAndPiecesCostTheirMessages) {
  NetworkSpeed apart = round_numbers();
  apart.sends_parts_apart = true;
  const Phases together = reduce_scatter_phases(round_numbers(), kSixteenOnTwo, kBytes, Route::two_levels);
  const Phases each = reduce_scatter_phases(apart, kSixteenOnTwo, kBytes, Route::two_levels);
  // Two parts go through each of the seven other ranks of the node.
  EXPECT_NEAR(each[0].latency_seconds, together[0].latency_seconds + 7 * apart.seconds_per_message, 1e-12);
  EXPECT_EQ(each[0].transfer_seconds, together[0].transfer_seconds);
  EXPECT_EQ(each[1].latency_seconds, together[1].latency_seconds);
  const Phases pieces = in_pieces(each, 5);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_NEAR(pieces[i].latency_seconds, 5 * each[i].latency_seconds, 1e-12);
    EXPECT_EQ(pieces[i].transfer_seconds, each[i].transfer_seconds);
  }
}

TEST(CollectiveTime, OneLevelIsAllThereIs) {
  const NetworkSpeed network = round_numbers();
  for (const Route route : {Route::two_levels, Route::direct}) {
    EXPECT_TRUE(all_gather_phases(network, {1, 1}, kBytes, route).empty());
    EXPECT_TRUE(all_reduce_phases(network, {1, 1}, kBytes, route).empty());
    // one node
    const Phases node = all_gather_phases(network, {8, 1}, kBytes, route);
    ASSERT_EQ(node.size(), 1U);
    expect_phase(node[0], Resource::in_node, 1e-3 + 7e-5, 7 * 0.2e9 / 100e9);
    // one rank on each, as replicas whose shard groups are nodes
    const Phases replicas = all_gather_phases(network, {4, 4}, kBytes, route);
    ASSERT_EQ(replicas.size(), 1U);
    expect_phase(replicas[0], Resource::between_nodes, 2e-3 + 3e-5, 3 * 0.4e9 / 10e9);
  }
}

TEST(CollectiveTime, AGroupKnowsItsNodes) {
  const auto shape = [](const std::vector<int>& members) {
    const GroupShape group = shape_of(members, {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3});
    return std::pair(group.ranks, group.nodes);
  };
  EXPECT_EQ(shape({0, 1, 2, 3}), std::pair(4, 1));
  EXPECT_EQ(shape({0, 4, 8, 12}), std::pair(4, 4));
  EXPECT_EQ(shape({2, 3, 6, 7}), std::pair(4, 2));
  const GroupShape uneven =
      shape_of({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1});
  EXPECT_EQ(uneven.most_on_a_node(), 8);
  EXPECT_EQ(uneven.fewest_on_a_node(), 4);
}

// 8 ranks and 2: each of the 2 receives the parts of four of the 8, with a NIC that carries four times as much, and each of the 8 at most one
// part; in the larger node each has one or two parts for 7 others.
TEST(CollectiveTime, UnevenNodesTakeTheTimeOfTheSlower) {
  NetworkSpeed network = round_numbers();
  const Phases phases = all_gather_phases(network, {10, 2, 8, 2}, kBytes, Route::two_levels);
  const double part = kBytes / 10;
  ASSERT_EQ(phases.size(), 2U);
  expect_phase(phases[0], Resource::between_nodes, 2e-3 + 4e-5, 4 * part / 4 / 10e9);
  expect_phase(phases[1], Resource::in_node, 1e-3 + 7e-5, 7 * 2 * part / 100e9);
  network.ranks_share_nics = false;
  expect_phase(all_gather_phases(network, {10, 2, 8, 2}, kBytes, Route::two_levels)[0],
               Resource::between_nodes, 2e-3 + 4e-5, 4 * part / 10e9);
}

// A rank of the 8 sums up to 2 of the 10 parts, and its workspace holds one: a second round, with the latency and the messages of one more.
TEST(CollectiveTime, UnevenNodesSumInTwoRounds) {
  const NetworkSpeed network = round_numbers();
  const GroupShape uneven{10, 2, 8, 2};
  const double part = kBytes / 10;
  const Phases phases = reduce_scatter_phases(network, uneven, kBytes, Route::two_levels);
  ASSERT_EQ(phases.size(), 3U);
  expect_phase(phases[0], Resource::in_node, 1e-3 + 7e-5, 7 * part / 100e9);
  expect_phase(phases[1], Resource::in_node, 1e-3 + 7e-5, 7 * part / 100e9);
  expect_phase(phases[2], Resource::between_nodes, 2e-3 + 4e-5, 4 * part / 4 / 10e9);
  const double gather = seconds(all_gather_phases(network, uneven, kBytes, Route::two_levels));
  EXPECT_NEAR(seconds(phases), gather + 1e-3 + 7e-5, 1e-12);
  EXPECT_NEAR(seconds(all_reduce_phases(network, uneven, kBytes, Route::two_levels)),
              seconds(phases) + gather, 1e-12);
  // 12 ranks on nodes of 6, 4 and 2, which all divide them: one round.
  EXPECT_EQ(reduce_scatter_phases(network, {12, 3, 6, 2}, kBytes, Route::two_levels).size(), 2U);
}

// Rows of collectives.csv, as `bench/smpi.sh BUILD FOLDER collectives` writes it with SimGrid 3.32. 2 %: all rows of two levels are
// within 1.2 % and large ones over one level within 3.5 %.
TEST(CollectiveTime, AgreesWithSimulatedNetworks) {
  struct Simulated {
    Route route;
    GroupShape group;
    double in_gb_s, in_us, rank_gb_s, out_us;
    Phases (*phases)(const NetworkSpeed&, GroupShape, double, Route);
    double bytes, seconds;
  };
  constexpr double kTolerance = 0.02;
  for (const Simulated& s : std::vector<Simulated>{
           {Route::two_levels, {16, 2}, 360, 3, 50, 5, all_gather_phases, 1073741824, 0.004166202},
           {Route::two_levels, {32, 8}, 200, 3, 6.25, 5, all_reduce_phases, 268435456, 0.021918840},
           {Route::two_levels, {64, 16}, 20, 3, 0.78125, 50, reduce_scatter_phases, 1048576, 0.000442837},
           {Route::direct, {64, 8}, 200, 3, 1.5625, 30, all_gather_phases, 1073741824, 0.632066056}}) {
    NetworkSpeed network;
    network.in_node = {s.in_gb_s * 1e9, s.in_us * 1e-6};
    network.between_nodes = {s.rank_gb_s * 1e9, s.out_us * 1e-6};
    EXPECT_NEAR(seconds(s.phases(network, s.group, s.bytes, s.route)), s.seconds, kTolerance * s.seconds);
  }
}

}  // namespace
}  // namespace llampi::test
