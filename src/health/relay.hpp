// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "health/inquiry.hpp"
#include "health/process_links.hpp"
#include "health/tree_neighbours.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::health {

/// The messages of a rank along the tree of ranks (watch_tree.hpp): heartbeats to those above and below it, a monitor's question down
/// the tree and the answers up again, and a goodbye. What has come is in TreeNeighbours and Inquiry. Judges nothing.
/// Not to be used by two threads at once.
class Relay {
 public:
  /// @param channel null: MPI lets no second thread call it
  Relay(std::unique_ptr<comm::Channel> channel, const TreeNeighbours::Setup& setup);

  /// Whether MPI lets a second thread call it.
  bool can_send() const { return channel_ != nullptr; }
  const WatchTree& tree() const { return neighbours_.tree(); }
  /// Other ranks with which this one exchanges heartbeats.
  int peers() const { return neighbours_.count(); }

  /// Takes what has come, and passes on what is for others.
  void receive(double now);
  /// Tells those above and below.
  void send_heartbeats(const Standing& own, const std::vector<int>& unlinked, double now);
  /// Something has become known since send_heartbeats() that the monitors should know at once.
  bool has_news() const { return neighbours_.has_news(); }
  /// Of a rank on this node, a monitor, or one on the node of a rank that was heard of; else empty.
  std::string host_of(int rank) const { return neighbours_.host_of(rank); }
  /// The process of this rank has ended.
  void set_exited(int rank) { neighbours_.set_exited(rank); }
  /// That this process was suspended: nobody was silent in that time.
  void forget(double pause, double now) { neighbours_.forget(pause, now); }

  // ---- what it has heard ----
  const std::set<int>& exited() const { return neighbours_.exited(); }
  /// That ended their training after an error.
  const std::set<int>& left() const { return neighbours_.left(); }
  /// Of this rank, and all of which those below it have told.
  Overview overview(double now) const { return neighbours_.overview(now); }
  /// Since anybody heard of it, as far as this rank was told.
  double silent_seconds(int monitor, double now) const { return neighbours_.silent_seconds(monitor, now); }
  /// Where the rank above this one listens.
  std::optional<ListeningPort> take_port() { return std::exchange(port_, std::nullopt); }
  void send_port(int rank, const ListeningPort& port);

  // ---- questions ----
  enum class Asked : std::uint8_t {
    below,  ///< those below in the tree, who pass the question on
    all,    ///< each rank of the job itself, where those above are lost
  };
  /// Asks all ranks, until end_question().
  void ask(const std::string& reason, bool urgent, Asked asked, double now);
  void end_question() { inquiry_.end(); }
  /// What it was asked, if answer() has not been called since.
  std::optional<Question> take_question() { return inquiry_.take_unanswered(); }
  void answer(const Standing& own, const FlightReport& report, double now);
  /// Of all that have been asked, by rank, with all times as of `now`.
  std::map<int, Account> accounts(double now) const { return inquiry_.accounts(now); }

  // ---- the end ----
  /// This rank ends its training after an error, which the others need not; they go on watching.
  void tell_of_leaving();
  /// All ranks end, after an error or not. Nothing that was sent stays behind in MPI, where it could meet a communicator that is
  /// made later or the end of MPI; unless a rank does not answer for so long.
  void say_goodbye(bool after_error, double seconds);

 private:
  void take(const comm::Channel::Message& message, double now);
  void take_question(int from, const Question& question, double now);
  void pass_on();
  std::optional<comm::Channel::Message> next_message();
  bool send(int rank, const std::string& message);
  void send_last(bool after_error, bool also_above, std::set<int>& told);
  void receive_last();

  const int rank_;
  const std::unique_ptr<comm::Channel> channel_;
  TreeNeighbours neighbours_;
  Inquiry inquiry_;
  std::optional<ListeningPort> port_;
  std::set<int> peers_;     ///< with whom something was exchanged, ever
  std::set<int> finished_;  ///< from whom nothing comes any more
};

}  // namespace llampi::health
