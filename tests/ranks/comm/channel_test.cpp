// SPDX-License-Identifier: Apache-2.0
// Messages between ranks beside everything else.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "llampi/comm/comm.hpp"
#include "support/mpi_test.hpp"

namespace llampi::test {
namespace {

using namespace comm;

using Messages = std::map<int, std::vector<std::string>>;  ///< by rank

void send(Channel& channel, int rank, const std::string& text) {
  while (!channel.send(rank, text)) std::this_thread::yield();
}

/// Until `count` have come from each rank.
Messages receive(Channel& channel, std::size_t count) {
  Messages messages;
  const auto ranks = static_cast<std::size_t>(test_world().size());
  for (std::size_t missing = count * ranks; missing > 0;) {
    if (auto message = channel.receive()) {
      messages[message->from].push_back(message->text);
      --missing;
    }
  }
  return messages;
}

TEST(Channel, BringsWhatIsSentInOrder) {
  const auto channel = test_world().channel();
  ASSERT_NE(channel, nullptr) << "Open MPI of this machine has MPI_THREAD_MULTIPLE";
  EXPECT_FALSE(channel->receive());
  test_world().barrier();  // nobody has sent before
  const std::vector<std::string> sent = {"first", std::string(1 << 20, 'x'), "", "last"};
  for (const auto& text : sent) {
    for (int rank = 0; rank < test_world().size(); ++rank)
      send(*channel, rank, text + std::to_string(test_world().rank()));
  }
  auto expected = Messages();
  for (int rank = 0; rank < test_world().size(); ++rank) {
    for (const auto& text : sent) expected[rank].push_back(text + std::to_string(rank));
  }
  EXPECT_EQ(receive(*channel, sent.size()), expected);
  while (!channel->sent()) std::this_thread::yield();
}

TEST(Channel, IsForASecondThread) {
  constexpr int kCount = 200;
  const auto channel = test_world().channel();
  std::thread other([&] {
    for (int i = 0; i < kCount; ++i) {
      for (int rank = 0; rank < test_world().size(); ++rank) send(*channel, rank, std::to_string(i));
    }
    for (const auto& [rank, texts] : receive(*channel, kCount)) {
      for (int i = 0; i < kCount; ++i)
        EXPECT_EQ(texts[static_cast<std::size_t>(i)], std::to_string(i)) << rank;
    }
    while (!channel->sent()) std::this_thread::yield();
  });
  for (int i = 0; i < kCount; ++i) {
    std::int64_t sum[] = {test_world().rank() + i};
    test_world().sum(sum);
    const std::int64_t ranks = test_world().size();
    EXPECT_EQ(sum[0], ranks * (ranks - 1) / 2 + ranks * i);
  }
  other.join();
}

TEST(Channel, DropsWhatARankDoesNotRead) {
  const auto channel = test_world().channel();
  const int other = (test_world().rank() + 1) % test_world().size();
  int taken = 0;
  for (int i = 0; i < 1000; ++i) taken += channel->send(other, std::string(1 << 20, 'x')) ? 1 : 0;
  EXPECT_LT(taken, 100);
  test_world().barrier();
  std::int64_t expected = taken, all = 0;
  test_world().sum(std::span(&expected, 1));
  for (std::int64_t mine = 0; all < expected;) {
    if (channel->receive()) ++mine;
    channel->sent();
    all = mine;
    test_world().sum(std::span(&all, 1));
  }
  while (!channel->sent()) std::this_thread::yield();
  test_world().barrier();
}

}  // namespace
}  // namespace llampi::test
