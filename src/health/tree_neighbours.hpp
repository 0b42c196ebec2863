// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "health/messages.hpp"
#include "health/watch_tree.hpp"
#include "llampi/comm/comm.hpp"

namespace llampi::health {

/// With which ranks above and below it in the tree a rank exchanges heartbeats, also after some are lost, and what it has heard from
/// them about all ranks. Sends nothing.
class TreeNeighbours {
 public:
  struct Setup {
    int rank = 0;
    const comm::Topology& topology;          ///< outlives this
    std::vector<std::string> monitor_hosts;  ///< in the order of WatchTree::monitors()
    double quiet_seconds = 10;               ///< without a word, until a rank counts as lost
    double now = 0;                          ///< all times are of one clock
  };
  explicit TreeNeighbours(const Setup& setup);

  // ---- who they are ----
  const WatchTree& tree() const { return tree_; }
  int count() const { return static_cast<int>(contacts_.size()); }
  std::vector<int> all() const;
  /// To which it reports: its parent and, in place of lost ones, monitors.
  const std::vector<int>& above() const { return above_; }
  /// Ranks that report to it, and those that have turned to it.
  std::vector<int> below() const;
  /// Takes others in place of ranks that are lost, and these again when they are back. Returns those new ones that report to it.
  std::vector<int> refresh(double now);

  // ---- what has become known ----
  void set_own(const Standing& own, const std::vector<int>& unlinked, double now);
  void take_from_below(int from, const Beat& beat, double now);
  void take_from_above(int from, const Beat& beat, double now);
  void set_exited(int rank) { has_news_ = exited_.insert(rank).second || has_news_; }
  void set_left(int rank) { has_news_ = left_.insert(rank).second || has_news_; }
  void forget(double pause, double now);

  // ---- what is known ----
  bool has_news() const { return has_news_; }  ///< of ranks that exited or left, since set_own()
  const std::set<int>& exited() const { return exited_; }
  const std::set<int>& left() const { return left_; }
  std::string host_of(int rank) const;
  double silent_seconds(int monitor, double now) const;
  /// What a neighbour has last told of itself.
  Account account_of(int neighbour, double now) const;
  /// What this rank tells its neighbours; those above, with the overview.
  Beat beat(double now) const;
  Overview overview(double now) const;

 private:
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

  Contact& contact(int rank, double now);
  Contact& take(int from, const Beat& beat, double now);
  double silence(int rank, double now) const;
  bool is_silent(int rank, double now) const { return silence(rank, now) > quiet_seconds_; }
  std::set<int> lost(double now) const;
  std::vector<Absence> absent(const std::vector<Absence>& told, double now) const;

  const int rank_;
  const comm::Topology& topology_;
  const double quiet_seconds_;
  const WatchTree tree_;
  std::vector<Monitor> monitors_;
  std::vector<int> above_, reporters_;
  std::map<int, Contact> contacts_;
  Contact own_;  ///< this rank, as of set_own()
  std::set<int> exited_, left_;
  bool has_news_ = false;
};

}  // namespace llampi::health
