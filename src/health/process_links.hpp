// SPDX-License-Identifier: Apache-2.0
// TCP connections between nodes by which the end of a process is noticed: the kernel closes them at once,
// however the process has ended, and only then. What happens to a node or the network they do not tell: a
// connection that is cut stays silent.
//
// One rank of each machine (the first one) is connected with each monitor on another machine. Ranks of one
// machine see each other's processes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "health/watchers.hpp"
#include "llampi/comm/forward.hpp"

namespace llampi::health {

/// Pairs (rank, monitor) that are to be connected, by rank. A machine that is not known is one of its own.
std::vector<std::pair<int, int>> pairs_to_link(const std::vector<RankProcess>& ranks,
                                               const std::vector<int>& monitors);

class ProcessLinks {
 public:
  /// Collective. Waits a little for the connections; those that take longer are made by look().
  ProcessLinks(comm::World& world, const std::vector<RankProcess>& ranks, const std::vector<int>& monitors);
  /// Says goodbye: what becomes of this process is no news to the others any more.
  ~ProcessLinks();
  ProcessLinks(const ProcessLinks&) = delete;
  ProcessLinks& operator=(const ProcessLinks&) = delete;

  /// Makes and accepts connections, and returns the ranks whose processes have ended since the last call.
  /// Never waits. To be called again and again, by one thread.
  std::vector<int> look();
  /// Ranks that this one is not connected with yet, or cannot be connected with.
  const std::set<int>& missing() const { return missing_; }

 private:
  enum class State : std::uint8_t { connecting, greeting, linked, closed };
  /// What both ends of a connection send first.
  struct Greeting {
    std::uint64_t token = 0;  ///< of the monitor: whoever else listens or connects there is not of this job
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
  /// A monitor that this rank connects to.
  struct Monitor {
    std::uint64_t token = 0;
    std::uint16_t port = 0;
    /// That have not been tried, in network byte order, the next one last.
    std::vector<std::uint32_t> addresses;

    auto members() { return std::tie(token, port, addresses); }
  };

  void listen_for_links();
  void accept_links();
  bool connect_to_next(int monitor);
  void advance_all();
  void advance(Link& link);
  void greet(Link& link, std::uint64_t token);
  void receive(Link& link);
  void take_greeting(Link& link);
  void close_link(Link& link);

  int rank_;
  int listener_ = -1;
  std::uint64_t token_ = 0;
  std::uint16_t port_ = 0;
  std::map<int, Monitor> monitors_;
  std::vector<Link> links_;
  std::size_t most_links_ = 0;  ///< that it accepts
  std::set<int> missing_;
  std::vector<int> ended_;  ///< not told of yet
};

}  // namespace llampi::health
