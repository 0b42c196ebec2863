// SPDX-License-Identifier: Apache-2.0
// TCP connections between machines that show when a process exits: the kernel closes its connections at once, however the process
// ends. They do not show that a node or the network failed: nothing arrives on a connection that is cut, and one that is reset
// may have been by a firewall or a router. Missing heartbeats show that.
//
// They follow the tree of ranks (watch_tree.hpp) where it leads from one machine to another: a rank accepts those of
// ranks below it and connects to the one above it. Ranks of one machine see each other's processes.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace llampi::health {

/// Where a rank listens, for those below it.
struct ListeningPort {
  std::uint64_t token = 0;  ///< part of each greeting: a process that does not know it is not of this job
  std::uint16_t port = 0;
  std::vector<std::uint32_t> addresses;  ///< in network byte order; the last one is tried first

  auto members() { return std::tie(token, port, addresses); }
};

class ProcessLinks {
 public:
  /// @param below ranks that will connect to this one
  /// @param above to which this one will connect, when connect() says where; -1: none
  /// @param retry_seconds after all addresses of that rank have been tried in vain, until they are tried again
  ProcessLinks(int rank, std::set<int> below, int above, double retry_seconds = 30);
  /// Says goodbye: the other ranks then ignore the end of this process.
  ~ProcessLinks();
  ProcessLinks(const ProcessLinks&) = delete;
  ProcessLinks& operator=(const ProcessLinks&) = delete;

  const ListeningPort& port() const { return own_; }
  void connect(const ListeningPort& above);

  /// Makes and accepts connections, and returns the ranks whose processes have ended since the last call.
  /// Never waits. To be called again and again, by one thread.
  std::vector<int> look();
  /// Ranks that this one is not connected with yet, or cannot be connected with.
  const std::set<int>& missing() const { return missing_; }

 private:
  enum class State : std::uint8_t { connecting, greeting, linked, closed };
  /// What both ends of a connection send first.
  struct Greeting {
    std::uint64_t token = 0;  ///< of the one that listens
    std::int32_t rank = 0;    ///< of the sender
    std::int32_t unused = 0;
  };
  struct Link {
    int socket = -1;
    int rank = -1;  ///< at the other end; -1: not known yet
    State state = State::connecting;
    double since = 0;      ///< in this state
    std::string received;  ///< of the greeting
  };
  void listen_for_links();
  void accept_links();
  void connect_to_next();
  void advance_all();
  void advance(Link& link);
  void greet(Link& link, std::uint64_t token);
  void receive(Link& link);
  void take_greeting(Link& link);
  void close_link(Link& link);

  int rank_;
  int above_;
  double retry_seconds_;
  std::optional<ListeningPort> port_above_;
  std::vector<std::uint32_t> untried_;  ///< of its addresses
  double tried_ = 0;                    ///< when the last one was
  int listener_ = -1;
  ListeningPort own_;
  std::vector<Link> links_;
  std::size_t most_links_ = 0;  ///< that it accepts
  std::set<int> missing_;
  std::vector<int> ended_;  ///< not told of yet
};

}  // namespace llampi::health
