// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other about themselves and how it travels: along the tree of ranks (watch_tree.hpp). Each rank tells
// the one above it where it and those below it stand, and those below it that it and the monitors are there. A question of
// a monitor goes down the tree, and what ranks answer goes up again. Nothing here judges.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "health/overview.hpp"
#include "health/own_progress.hpp"
#include "health/process_links.hpp"
#include "health/watch_tree.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::health {

/// What a monitor learns of one rank that it asks about, from the rank itself or, without a report, from the one above it.
struct Account {
  std::int32_t rank = 0;
  std::string host;
  Standing standing;
  double silent_seconds = 0;         ///< since it was like this
  std::vector<FlightReport> report;  ///< one, or none

  auto members() { return std::tie(rank, host, standing, silent_seconds, report); }
};

/// Of a monitor, to all.
struct Question {
  std::int32_t monitor = 0, number = 0;
  bool urgent = false;
  std::string reason;
  std::vector<std::int32_t> exited;  ///< ranks whose processes have ended

  auto members() { return std::tie(monitor, number, urgent, reason, exited); }
};

/// The messages between a rank and its neighbours in the tree, and what it has learned from them. Not to be used by two threads at
/// once.
class Relay {
 public:
  struct Setup {
    int rank = 0;
    const comm::Topology& topology;          ///< outlives the relay
    std::unique_ptr<comm::Channel> channel;  ///< null: MPI lets no second thread call it
    std::vector<std::string> monitor_hosts;  ///< in the order of WatchTree::monitors()
    double quiet_seconds = 10;               ///< without a word, until a rank counts as lost
    double now = 0;                          ///< all times are of one clock
  };
  explicit Relay(Setup setup);

  /// Whether MPI lets a second thread call it.
  bool can_send() const { return channel_ != nullptr; }
  const WatchTree& tree() const { return tree_; }
  /// Other ranks with which this one exchanges heartbeats.
  int peers() const { return static_cast<int>(contacts_.size()); }

  /// Takes what has come, and passes on what is for others.
  void receive(double now);
  /// Tells those above and below.
  void send_heartbeats(const Standing& own, const std::vector<int>& unlinked, double now);
  /// Something has become known since send_heartbeats() that the monitors should know at once.
  bool has_news() const { return has_news_; }
  /// Of a rank on this node, a monitor, or one on the node of a rank that was heard of; else empty.
  std::string host_of(int rank) const;
  /// The process of this rank has ended.
  void set_exited(int rank);
  /// That this process was suspended: nobody was silent in that time.
  void forget(double pause, double now);

  // ---- what it has heard ----
  const std::set<int>& exited() const { return exited_; }
  /// That ended their training after an error.
  const std::set<int>& left() const { return left_; }
  /// Of this rank, and all of which those below it have told.
  Overview overview(double now) const;
  /// Since anybody heard of it, as far as this rank was told.
  double silent_seconds(int monitor, double now) const;
  /// Where the rank above this one listens.
  std::optional<ListeningPort> take_port() { return std::exchange(port_, std::nullopt); }
  void send_port(int rank, const ListeningPort& port);

  // ---- questions ----
  /// Asks all, until end_question().
  void ask(const std::string& reason, bool urgent, double now);
  void end_question();
  /// What it was asked, if answer() has not been called since.
  std::optional<Question> take_question() { return std::exchange(unanswered_, std::nullopt); }
  void answer(const Standing& own, const FlightReport& report, double now);
  /// Of all that have been asked, by rank, with all times as of `now`.
  std::map<int, Account> accounts(double now) const;

  // ---- the end ----
  /// This rank ends its training after an error, which the others need not; they go on watching.
  void tell_of_leaving();
  /// All ranks end, after an error or not. Nothing that was sent stays behind in MPI, where it could meet a communicator that is
  /// made later or the end of MPI; unless a rank does not answer for so long.
  void say_goodbye(bool after_error, double seconds);

 private:
  struct Beat {
    std::string host;
    Standing standing;
    std::array<double, 2> monitor_seconds{};  ///< down only: since they were heard of
    Overview overview;                        ///< up only

    auto members() { return std::tie(host, standing, monitor_seconds, overview); }
  };
  /// A rank with which this one exchanges heartbeats.
  struct Contact {
    double heard = 0;
    bool below = false;  ///< it tells this one of itself
    std::string host;
    Standing standing;  ///< with the overview, as of `heard`
    Overview overview;
  };
  struct Monitor {
    int rank = 0;
    std::string host;
    double heard = 0;  ///< of it, from whomever
  };
  struct Told {
    double at = 0;
    Account account;
  };

  // ---- messages ----
  bool send(int rank, const std::string& message);
  std::optional<comm::Channel::Message> next_message();
  void take(const comm::Channel::Message& message, double now);
  void send_last(bool after_error, bool tells_above, std::set<int>& told);
  void receive_last();

  // ---- the neighbours and what they tell of themselves and others ----
  Contact& contact(int rank, double now);
  std::vector<int> below() const;
  void refresh(double now);
  std::set<int> lost(double now) const;
  Contact& take_beat(int from, const Beat& beat, double now);
  void take_from_below(int from, const Beat& beat, double now);
  void take_from_above(int from, const Beat& beat, double now);
  void note_left(const std::vector<std::int32_t>& ranks);
  double silence(int rank, double now) const;
  bool is_silent(int rank, double now) const { return silence(rank, now) > quiet_seconds_; }
  std::vector<Absence> absent(const std::vector<Absence>& told, double now) const;

  // ---- questions ----
  void take_question(int from, const Question& question, double now);
  Account account_of(int rank, double now) const;
  void deliver(std::vector<Account> accounts, double now);
  void pass_on();

  const int rank_;
  const comm::Topology& topology_;

  // ---- messages ----
  const std::unique_ptr<comm::Channel> channel_;
  std::optional<ListeningPort> port_;
  std::set<int> peers_;     ///< with whom something was exchanged, ever
  std::set<int> finished_;  ///< from whom nothing comes any more

  // ---- the neighbours and what they tell of themselves and others ----
  const double quiet_seconds_;
  const WatchTree tree_;
  std::vector<Monitor> monitors_;
  std::vector<int> above_;      ///< to which it reports: its parent and, in place of lost ones, monitors
  std::vector<int> reporters_;  ///< that report to it
  std::map<int, Contact> contacts_;
  Contact own_;  ///< this rank, as it has last told the others
  std::set<int> exited_, left_;
  bool has_news_ = false;

  // ---- questions ----
  std::optional<Question> asks_;  ///< this rank, all others
  std::map<int, Told> told_;      ///< to this rank, which asks
  Question last_question_;        ///< of any rank
  std::optional<Question> unanswered_;
  int asked_by_ = -1;             ///< the rank from which the question came
  std::vector<Account> answers_;  ///< not passed on yet
};

}  // namespace llampi::health
