// SPDX-License-Identifier: Apache-2.0
#include "health/tree_neighbours.hpp"

#include <algorithm>
#include <utility>

namespace llampi::health {

TreeNeighbours::TreeNeighbours(const Setup& setup)
    : rank_(setup.rank),
      topology_(setup.topology),
      quiet_seconds_(setup.quiet_seconds),
      tree_(topology_.node_of_rank),
      reporters_(tree_.children(rank_)) {
  for (const int monitor : tree_.monitors())
    monitors_.push_back({monitor, setup.monitor_hosts[monitors_.size()], setup.now});
  if (const int parent = tree_.parent(rank_); parent >= 0) above_ = {parent};
  for (const int parent : above_) contact(parent, setup.now);
  for (const int child : reporters_) contact(child, setup.now);
}

TreeNeighbours::Contact& TreeNeighbours::contact(int rank, double now) {
  const auto [found, is_new] = contacts_.try_emplace(rank);
  if (is_new) found->second.heard = now;
  return found->second;
}

std::vector<int> TreeNeighbours::all() const {
  std::vector<int> ranks;
  for (const auto& [rank, contact] : contacts_) ranks.push_back(rank);
  return ranks;
}

std::vector<int> TreeNeighbours::below() const {
  std::vector<int> ranks = reporters_;
  for (const auto& [rank, contact] : contacts_) {
    if (contact.below && !contains(reporters_, rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> TreeNeighbours::refresh(double now) {
  const auto lost_now = lost(now);
  const auto is_lost = [&](int rank) { return lost_now.contains(rank); };
  std::vector<int> added;
  auto reporters = tree_.reporters(rank_, is_lost);
  for (const int reporter : reporters) {
    if (!contains(reporters_, reporter)) added.push_back(reporter);
    contact(reporter, now);
  }
  reporters_ = std::move(reporters);

  std::vector<int> above;
  for (const int parent : tree_.parents(rank_)) {
    if (!contains(above_, parent)) contact(parent, now).heard = now;
    above.push_back(parent);
    if (!is_lost(parent)) break;
  }
  above_ = std::move(above);

  std::erase_if(contacts_, [&](const auto& entry) {  // who had turned to this rank, and no longer does
    const auto& [rank, contact] = entry;
    return now - contact.heard > 2 * quiet_seconds_ && !contains(reporters_, rank) && !contains(above_, rank);
  });
  return added;
}

/// Ranks that were reported lost, and neighbours whose heartbeats are overdue.
std::set<int> TreeNeighbours::lost(double now) const {
  std::set<int> ranks = exited_;
  ranks.insert(left_.begin(), left_.end());
  for (const int parent : above_) {
    if (is_silent(parent, now)) ranks.insert(parent);
  }
  for (const int reporter : reporters_) {
    if (is_silent(reporter, now)) {
      ranks.insert(reporter);
      continue;
    }
    for (const auto& absence : contacts_.at(reporter).overview.absent) {
      if (!contacts_.contains(absence.rank)) ranks.insert(absence.rank);
    }
  }
  return ranks;
}

/// 0: of a rank that is no neighbour.
double TreeNeighbours::silence(int rank, double now) const {
  const auto found = contacts_.find(rank);
  return found == contacts_.end() ? 0 : std::max(0.0, now - found->second.heard);
}

void TreeNeighbours::set_own(const Standing& own, const std::vector<int>& unlinked, double now) {
  own_.heard = now;
  own_.standing = own;
  own_.overview = overview_of(own.heartbeat, own.stalled_seconds, own.side_work_stalled_seconds);
  own_.overview.unlinked.assign(unlinked.begin(), unlinked.end());
  has_news_ = false;
}

TreeNeighbours::Contact& TreeNeighbours::take(int from, const Beat& beat, double now) {
  auto& sender = contact(from, now);
  sender.heard = now;
  sender.host = beat.host;
  sender.standing = beat.standing;
  for (auto& monitor : monitors_) {
    if (monitor.rank == from) monitor.heard = now;
  }
  return sender;
}

void TreeNeighbours::take_from_below(int from, const Beat& beat, double now) {
  auto& sender = take(from, beat, now);
  sender.below = true;
  sender.overview = beat.overview;
  for (const auto& absence : beat.overview.absent) {
    if (absence.exited) set_exited(absence.rank);
    if (absence.left) set_left(absence.rank);
  }
}

/// "Heard of a monitor so long ago" is passed on only downwards. If it went around, each message would make it a little shorter, and
/// a lost monitor would seem alive.
void TreeNeighbours::take_from_above(int from, const Beat& beat, double now) {
  take(from, beat, now);
  for (std::size_t i = 0; i < monitors_.size(); ++i)
    monitors_[i].heard = std::max(monitors_[i].heard, now - beat.monitor_seconds[i]);
}

void TreeNeighbours::forget(double pause, double now) {
  const auto shift = [&](double& time) { time = std::min(time + pause, now); };  // some came meanwhile
  for (auto& [rank, contact] : contacts_) shift(contact.heard);
  for (auto& monitor : monitors_) shift(monitor.heard);
  shift(own_.heard);
}

std::string TreeNeighbours::host_of(int rank) const {
  const auto node_of = [&](int one) { return topology_.node_of_rank[static_cast<std::size_t>(one)]; };
  if (node_of(rank) == topology_.node) return topology_.host;
  for (const auto& monitor : monitors_) {
    if (monitor.rank == rank) return monitor.host;
  }
  for (const auto& [other, contact] : contacts_) {
    if (node_of(other) == node_of(rank) && !contact.host.empty()) return contact.host;
  }
  return "";
}

double TreeNeighbours::silent_seconds(int monitor, double now) const {
  if (monitor == rank_) return 0;
  return std::max(0.0, now - std::ranges::find(monitors_, monitor, &Monitor::rank)->heard);
}

Account TreeNeighbours::account_of(int neighbour, double now) const {
  Account account{
      neighbour, host_of(neighbour), contacts_.at(neighbour).standing, silence(neighbour, now), {}};
  // It has not moved since, as far as is known.
  account.standing.stalled_seconds += account.silent_seconds;
  account.standing.side_work_stalled_seconds += account.silent_seconds;
  return account;
}

Beat TreeNeighbours::beat(double now) const {
  Beat beat{topology_.host, own_.standing, {}, {}};
  for (std::size_t i = 0; i < monitors_.size(); ++i)
    beat.monitor_seconds[i] = silent_seconds(monitors_[i].rank, now);
  return beat;
}

Overview TreeNeighbours::overview(double now) const {
  std::vector<OverviewPart> parts = {
      {aged(own_.overview, now - own_.heard), [this] { return std::vector<int>{rank_}; }}};
  for (const int rank : below()) {
    if (is_silent(rank, now) && !contains(reporters_, rank)) continue;  // it reports to its own parent again
    const auto& known = contacts_.at(rank);
    if (!known.below) continue;  // nothing was heard yet
    parts.push_back({aged(known.overview, silence(rank, now)), [this, rank] { return tree_.subtree(rank); }});
  }
  Overview all = combine(parts);
  all.absent = absent(all.absent, now);
  return all;
}

/// @param told by those below, of which this rank knows better who of its neighbours is absent
std::vector<Absence> TreeNeighbours::absent(const std::vector<Absence>& told, double now) const {
  std::map<int, double> seconds;
  for (const int rank : reporters_) {
    if (is_silent(rank, now)) seconds[rank] = silence(rank, now);
  }
  for (const auto& absence : told) {
    if (!contacts_.contains(absence.rank)) seconds.try_emplace(absence.rank, absence.silent_seconds);
  }
  for (const int rank : exited_) seconds.try_emplace(rank, silence(rank, now));
  for (const int rank : left_) seconds.try_emplace(rank, silence(rank, now));
  std::vector<Absence> result;
  for (const auto& [rank, silent] : seconds)
    result.push_back({rank, exited_.contains(rank), left_.contains(rank), silent});
  return result;
}

}  // namespace llampi::health
