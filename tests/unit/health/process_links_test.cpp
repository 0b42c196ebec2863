// SPDX-License-Identifier: Apache-2.0
// Connections that show the exit of a process, and what does not.
#include "health/process_links.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

namespace llampi::test {
namespace {

using namespace health;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

/// The other end of a connection, as a process of this job would be.
class OtherEnd {
 public:
  OtherEnd(const ListeningPort& port, std::int32_t rank) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const auto address = loopback(port.port);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    char greeting[16] = {};
    std::memcpy(greeting, &port.token, sizeof port.token);
    std::memcpy(greeting + sizeof port.token, &rank, sizeof rank);
    EXPECT_EQ(::send(socket_, greeting, sizeof greeting, 0), std::ssize(greeting));
  }
  /// Takes the greeting of this end, as the kernel would keep it unread and then reset the connection.
  void take_greeting() {
    char greeting[16];
    EXPECT_EQ(::recv(socket_, greeting, sizeof greeting, MSG_WAITALL), std::ssize(greeting));
  }
  void end() { ::close(socket_); }
  void reset() {
    const linger at_once{1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::close(socket_);
  }
  void say_goodbye() {
    EXPECT_EQ(::send(socket_, "b", 1, 0), 1);
    ::close(socket_);
  }

 private:
  int socket_;
};

/// What look() has told after it was called for a while.
std::vector<int> ended(ProcessLinks& links, double seconds = 0.3) {
  std::vector<int> all;
  for (int i = 0; i < seconds * 100; ++i) {
    for (const int rank : links.look()) all.push_back(rank);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return all;
}

TEST(ProcessLinks, ShowTheEndOfAProcessAndNothingElse) {
  ProcessLinks links(0, {1, 2, 3}, -1);
  OtherEnd ends(links.port(), 1), is_reset(links.port(), 2), says_goodbye(links.port(), 3);
  EXPECT_THAT(ended(links), IsEmpty());
  EXPECT_THAT(links.missing(), IsEmpty());
  for (auto* end : {&ends, &is_reset, &says_goodbye}) end->take_greeting();
  is_reset.reset();  // as a firewall does that has forgotten the connection
  says_goodbye.say_goodbye();
  EXPECT_THAT(ended(links), IsEmpty());
  EXPECT_THAT(links.missing(), ElementsAre(2));
  OtherEnd again(links.port(), 2);
  EXPECT_THAT(ended(links), IsEmpty());
  EXPECT_THAT(links.missing(), IsEmpty());
  ends.end();
  EXPECT_THAT(ended(links), ElementsAre(1));
}

TEST(ProcessLinks, AreTriedAgain) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  auto address = loopback(0);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ProcessLinks links(1, {}, 0, 0.5);
  links.connect({7, ntohs(address.sin_port), {htonl(INADDR_LOOPBACK)}});  // refused: nobody listens yet
  ended(links, 0.2);
  EXPECT_THAT(links.missing(), ElementsAre(0));
  ASSERT_EQ(::listen(listener, 1), 0);
  std::jthread peer([&] {
    const int socket = ::accept(listener, nullptr, nullptr);
    if (socket < 0) return;
    char greeting[16];
    EXPECT_EQ(::recv(socket, greeting, sizeof greeting, MSG_WAITALL), std::ssize(greeting));
    const std::int32_t rank = 0;
    std::memcpy(greeting + 8, &rank, sizeof rank);
    EXPECT_EQ(::send(socket, greeting, sizeof greeting, 0), std::ssize(greeting));
    ::close(socket);
  });
  EXPECT_THAT(ended(links, 2), ElementsAre(0));
  EXPECT_THAT(links.missing(), IsEmpty());
  ::shutdown(listener, SHUT_RDWR);  // the peer does not wait for ever
}

}  // namespace
}  // namespace llampi::test
