// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other, of a thousand ranks in one process and a time of their own.
#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <set>

#include "health/relay.hpp"
#include "llampi/comm/exchange.hpp"

namespace llampi::test {
namespace {

using namespace health;

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kQuiet = 5;

/// So many ranks on each of so many nodes, of which each speaks once a second.
class Job {
 public:
  Job(int nodes, int per_node) : ranks_(static_cast<std::size_t>(nodes * per_node)) {
    std::vector<int> node_of_rank;
    for (int rank = 0; rank < size(); ++rank) node_of_rank.push_back(rank / per_node);
    for (int rank = 0; rank < size(); ++rank) {
      auto& one = at(rank);
      one.topology.nodes = nodes;
      one.topology.node = rank / per_node;
      one.topology.local_rank = rank % per_node;
      one.topology.local_ranks = per_node;
      one.topology.host = "node" + std::to_string(one.topology.node);
      one.topology.node_of_rank = node_of_rank;
      one.relay = std::make_unique<Relay>(
          std::make_unique<Wire>(*this, rank),
          TreeNeighbours::Setup{rank, one.topology, {"node0", "node1"}, kQuiet, now_});
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Relay& relay(int rank) { return *at(rank).relay; }
  double now() const { return now_; }
  void stop(int rank) { at(rank).stopped = true; }
  void go_on(int rank) { at(rank).stopped = false; }

  /// What is sent in a second is there in the next one, or at once where it is passed on.
  void run(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      now_ += 1;
      for (int rank = 0; rank < size(); ++rank) {
        if (!at(rank).stopped) relay(rank).receive(now_);
      }
      for (auto& one : ranks_) one.sent = 0, one.received = 0, one.bytes = 0;
      for (int rank = 0; rank < size(); ++rank) {
        if (!at(rank).stopped) relay(rank).send_heartbeats(standing_of(rank), {}, now_);
      }
    }
  }
  /// Without anybody's speaking.
  void deliver() {
    for (int rank = 0; rank < size(); ++rank) {
      if (at(rank).stopped) continue;
      relay(rank).receive(now_);
      if (const auto question = relay(rank).take_question()) {
        FlightReport report;
        report.heartbeat = standing_of(rank).heartbeat;
        relay(rank).answer(standing_of(rank), report, now_);
      }
    }
  }
  Standing standing_of(int rank) const {
    Standing standing;
    standing.heartbeat.step = rank;
    for (int i = 0; i < marks; ++i) standing.heartbeat.marks.at(static_cast<std::size_t>(i)) = {64U << i, 1};
    if (rank == other_rank) standing.heartbeat.marks[0].hash = 2;
    return standing;
  }
  int most(int (Job::*count)(int)) {
    int result = 0;
    for (int rank = 0; rank < size(); ++rank) result = std::max(result, (this->*count)(rank));
    return result;
  }
  int sent(int rank) { return at(rank).sent; }
  int received(int rank) { return at(rank).received; }
  int bytes(int rank) { return at(rank).bytes; }
  int peers(int rank) { return relay(rank).peers(); }

  int other_rank = -1;  ///< that does something else
  int marks = 1;        ///< that each rank has set: 12 after many steps

 private:
  struct Wire final : comm::Channel {
    Wire(Job& whole, int own) : job(whole), rank(own) {}
    bool send(int to, const std::string& text) override {
      job.at(to).inbox.push_back({rank, text});
      ++job.at(rank).sent, ++job.at(to).received;
      job.at(rank).bytes += static_cast<int>(text.size());
      return true;
    }
    std::optional<Message> receive() override {
      auto& inbox = job.at(rank).inbox;
      if (inbox.empty()) return std::nullopt;
      Message message = inbox.front();
      inbox.pop_front();
      return message;
    }
    bool sent() override { return true; }
    Job& job;
    int rank;
  };
  struct Rank {
    comm::Topology topology;
    std::deque<comm::Channel::Message> inbox;
    std::unique_ptr<Relay> relay;
    bool stopped = false;
    int sent = 0, received = 0, bytes = 0;
  };
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Rank> ranks_;
  double now_ = 100;
};

std::vector<int> absent_of(const Overview& overview) {
  std::vector<int> ranks;
  for (const auto& absence : overview.absent) ranks.push_back(absence.rank);
  return ranks;
}

TEST(Relay, CostsARankTheSameHoweverManyThereAre) {
  for (const int nodes : {1, 9, 64, 512}) {
    SCOPED_TRACE(nodes);
    Job job(nodes, 4);
    job.marks = 12;
    job.run(6);
    constexpr int kMost = WatchTree::kFanOut + 1 + 3;
    EXPECT_LE(job.most(&Job::peers), kMost);
    EXPECT_LE(job.most(&Job::sent), kMost);
    EXPECT_LE(job.most(&Job::received), kMost);
    EXPECT_THAT(job.relay(0).overview(job.now()).absent, IsEmpty());
    EXPECT_EQ(job.relay(0).overview(job.now()).marks.size(), 12U);
    EXPECT_LE(job.relay(0).overview(job.now()).stalled_seconds, job.relay(0).tree().depth());
    EXPECT_LE(job.most(&Job::bytes), kMost * 800);
    if (nodes > 1) {
      EXPECT_LE(job.bytes(5), 1200) << "upwards alone, with what all ranks have done";
    }
  }
}

// The deputy speaks upwards only, so it is the root that passes on that it does.
TEST(Relay, EveryRankHearsOfBothMonitors) {
  for (const int nodes : {1, 2, 64}) {
    Job job(nodes, 4);
    job.run(20);
    const int deputy = nodes == 1 ? 1 : 4;
    for (int rank = 0; rank < job.size(); ++rank) {
      for (const int monitor : {0, deputy}) {
        if (rank == monitor) continue;
        EXPECT_LE(job.relay(rank).silent_seconds(monitor, job.now()), 5) << nodes << ": " << rank;
      }
    }
  }
}

TEST(Relay, NamesWhoIsSilentAndNotThoseBelow) {
  Job job(64, 4);
  job.run(6);
  const int inner = job.relay(0).tree().children(job.relay(0).tree().children(0).back()).back();
  ASSERT_FALSE(job.relay(0).tree().children(inner).empty());
  const std::vector<int> lost = {0, 4, inner, inner + 1};  // root, deputy, a leader and a rank below it
  for (const int one : lost) {
    SCOPED_TRACE(one);
    job.stop(one);
    job.run(4 * static_cast<int>(kQuiet));
    const int judge = one == 0 ? 4 : 0;
    EXPECT_THAT(absent_of(job.relay(judge).overview(job.now())), ElementsAre(one));
    EXPECT_GT(job.relay(judge).overview(job.now()).absent[0].silent_seconds, 3 * kQuiet);
    for (int rank = 0; rank < job.size(); ++rank) {  // and all hear one that judges
      if (rank == one) continue;
      EXPECT_LE(job.relay(rank).silent_seconds(judge, job.now()), 5) << rank;
    }
    job.go_on(one);
    job.run(4 * static_cast<int>(kQuiet));
    EXPECT_THAT(job.relay(0).overview(job.now()).absent, IsEmpty());
    EXPECT_LE(job.most(&Job::peers), WatchTree::kFanOut + 1 + 3) << "they have gone back";
  }
}

TEST(Relay, TellsAtOnceOfWhoHasEnded) {
  Job job(64, 4);
  job.run(6);
  const int seen_by = job.size() - 2, ended = job.size() - 1;
  job.stop(ended);
  job.relay(seen_by).set_exited(ended);
  EXPECT_TRUE(job.relay(seen_by).has_news());
  for (int rank = seen_by; rank > 0; rank = job.relay(rank).tree().parent(rank)) {  // no time passes
    ASSERT_TRUE(job.relay(rank).has_news());
    job.relay(rank).send_heartbeats(job.standing_of(rank), {}, job.now());
    job.relay(job.relay(rank).tree().parent(rank)).receive(job.now());
  }
  EXPECT_THAT(job.relay(0).exited(), ElementsAre(ended));
}

TEST(Relay, AsksAllThatAreThereAndTellsOfTheOthersWhatWasHeard) {
  Job job(64, 4);
  job.run(6);
  const int inner = job.relay(0).tree().children(0).back();
  job.stop(inner), job.stop(inner + 1);
  job.relay(inner + 2).set_exited(inner);  // its node tells the root, to which it turns
  job.relay(inner + 2).set_exited(inner + 1);
  job.run(3);
  job.relay(0).ask("a rank exited", true, health::Relay::Asked::below, job.now());
  for (int i = 0; i < 8; ++i) job.deliver();
  const auto accounts = job.relay(0).accounts(job.now());
  for (int rank = 1; rank < job.size(); ++rank) {
    SCOPED_TRACE(rank);
    const bool lost = rank == inner || rank == inner + 1;
    ASSERT_TRUE(accounts.contains(rank));
    EXPECT_EQ(accounts.at(rank).report.empty(), lost);
    EXPECT_EQ(accounts.at(rank).host, "node" + std::to_string(rank / 4));
    if (rank == inner + 1) continue;  // known through `inner` only
    EXPECT_EQ(accounts.at(rank).standing.heartbeat.step, rank);
  }
  EXPECT_GE(accounts.at(inner).silent_seconds, 2);
  EXPECT_GE(accounts.at(inner).standing.stalled_seconds, accounts.at(inner).silent_seconds)
      << "whoever is silent is not known to have moved";
}

TEST(Relay, TellsTheRootWhoDiffers) {
  Job job(64, 4);
  job.other_rank = 201;
  job.run(6);
  const auto marks = job.relay(0).overview(job.now()).marks;
  ASSERT_EQ(marks.size(), 1U);
  ASSERT_EQ(marks[0].parts.size(), 2U);
  EXPECT_EQ(std::ssize(marks[0].parts[0].ranks), job.size() - 1);
  EXPECT_THAT(marks[0].parts[1].ranks, ElementsAre(201));
}

}  // namespace
}  // namespace llampi::test
