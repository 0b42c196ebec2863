// SPDX-License-Identifier: Apache-2.0
#include "health/relay.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "llampi/comm/exchange.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"

namespace llampi::health {
namespace {

constexpr double kShareForRanksBelow = 0.5;            // of the time that there is at the end
constexpr std::chrono::milliseconds kGoodbyePause{1};  // between looks at what has come

enum class Kind : char {
  up = 'u',      ///< a Beat of a rank below this one
  down = 'd',    ///< and of one above it
  ask = 'a',     ///< a Question
  report = 'r',  ///< Accounts
  left = 'x',    ///< ranks that end their training after an error, the sender among them: its last message
  last = 'l',    ///< likewise, without an error and without content
  port = 'p',    ///< the ListeningPort of the rank above
};

template <class T>
std::string message_of(Kind kind, const T& content) {
  return static_cast<char>(kind) + comm::packed(content);
}

Kind kind_of(const std::string& message) { return static_cast<Kind>(message.front()); }

template <class T>
T content_of(const std::string& message) {
  return comm::unpacked<T>(message.substr(1));
}

template <class Some>
bool includes(const std::set<int>& all, const Some& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

}  // namespace

Relay::Relay(Setup setup)
    : rank_(setup.rank),
      topology_(setup.topology),
      channel_(std::move(setup.channel)),
      quiet_seconds_(setup.quiet_seconds),
      tree_(topology_.node_of_rank),
      reporters_(tree_.children(rank_)) {
  for (const int monitor : tree_.monitors())
    monitors_.push_back({monitor, setup.monitor_hosts[monitors_.size()], setup.now});
  if (const int parent = tree_.parent(rank_); parent >= 0) above_ = {parent};
  for (const int parent : above_) contact(parent, setup.now);
  for (const int child : reporters_) contact(child, setup.now);
}

Relay::Contact& Relay::contact(int rank, double now) {
  const auto [found, is_new] = contacts_.try_emplace(rank);
  if (is_new) found->second.heard = now;
  peers_.insert(rank);
  return found->second;
}

std::string Relay::host_of(int rank) const {
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

/// False if the message was dropped, because the rank has not read earlier ones yet. A failure to send is ignored: if the rank is
/// lost, its missing heartbeats show it. Nothing is sent to a process that has ended: MPI could hang or abort the job.
bool Relay::send(int rank, const std::string& message) {
  if (!channel_ || exited_.contains(rank)) return true;
  try {
    return channel_->send(rank, message);
  } catch (const Error&) {
    return true;
  }
}

/// A failure to receive is ignored: if the sender is lost, its missing heartbeats show it.
std::optional<comm::Channel::Message> Relay::next_message() {
  try {
    return channel_->receive();
  } catch (const Error&) {
    return std::nullopt;
  }
}

void Relay::send_port(int rank, const ListeningPort& port) { send(rank, message_of(Kind::port, port)); }

void Relay::receive(double now) {
  if (!channel_) return;
  while (const auto message = next_message()) take(*message, now);
  pass_on();
}

void Relay::take(const comm::Channel::Message& message, double now) {
  const auto& [from, text] = message;
  if (text.empty()) return;
  peers_.insert(from);
  switch (kind_of(text)) {
    case Kind::up:
      take_from_below(from, content_of<Beat>(text), now);
      break;
    case Kind::down:
      take_from_above(from, content_of<Beat>(text), now);
      break;
    case Kind::ask:
      take_question(from, content_of<Question>(text), now);
      break;
    case Kind::report:
      deliver(content_of<std::vector<Account>>(text), now);
      break;
    case Kind::left:
      finished_.insert(from);
      note_left(content_of<std::vector<std::int32_t>>(text));
      break;
    case Kind::last:
      finished_.insert(from);
      break;
    case Kind::port:
      port_ = content_of<ListeningPort>(text);
      break;
  }
}

Relay::Contact& Relay::take_beat(int from, const Beat& beat, double now) {
  auto& sender = contact(from, now);
  sender.heard = now;
  sender.host = beat.host;
  sender.standing = beat.standing;
  for (auto& monitor : monitors_) {
    if (monitor.rank == from) monitor.heard = now;
  }
  return sender;
}

void Relay::take_from_below(int from, const Beat& beat, double now) {
  auto& sender = take_beat(from, beat, now);
  sender.below = true;
  sender.overview = beat.overview;
  for (const auto& absence : beat.overview.absent) {
    if (absence.exited) set_exited(absence.rank);
    if (absence.left) note_left({absence.rank});
  }
}

/// "Heard of a monitor so long ago" is passed on only downwards. If it went around, each message would make it a little shorter, and
/// a lost monitor would seem alive.
void Relay::take_from_above(int from, const Beat& beat, double now) {
  take_beat(from, beat, now);
  for (std::size_t i = 0; i < monitors_.size(); ++i)
    monitors_[i].heard = std::max(monitors_[i].heard, now - beat.monitor_seconds[i]);
}

void Relay::set_exited(int rank) { has_news_ = exited_.insert(rank).second || has_news_; }

void Relay::note_left(const std::vector<std::int32_t>& ranks) {
  for (const int rank : ranks) has_news_ = left_.insert(rank).second || has_news_;
}

/// 0: of a rank that is no neighbour.
double Relay::silence(int rank, double now) const {
  const auto found = contacts_.find(rank);
  return found == contacts_.end() ? 0 : std::max(0.0, now - found->second.heard);
}

/// Ranks that were reported lost, and neighbours whose heartbeats are overdue.
std::set<int> Relay::lost(double now) const {
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

/// With which ranks it exchanges heartbeats, now that some are lost or there again.
void Relay::refresh(double now) {
  const auto lost_now = lost(now);
  const auto is_lost = [&](int rank) { return lost_now.contains(rank); };
  auto reporters = tree_.reporters(rank_, is_lost);
  for (const int reporter : reporters) {
    // A new one may not have been asked by the rank that was above it.
    if (asks_ && !contains(reporters_, reporter)) send(reporter, message_of(Kind::ask, *asks_));
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
}

/// Ranks that report to it, and those that have turned to it.
std::vector<int> Relay::below() const {
  std::vector<int> ranks = reporters_;
  for (const auto& [rank, contact] : contacts_) {
    if (contact.below && !contains(reporters_, rank)) ranks.push_back(rank);
  }
  return ranks;
}

void Relay::send_heartbeats(const Standing& own, const std::vector<int>& unlinked, double now) {
  own_.heard = now;
  own_.standing = own;
  own_.overview = overview_of(own.heartbeat, own.stalled_seconds, own.side_work_stalled_seconds);
  own_.overview.unlinked.assign(unlinked.begin(), unlinked.end());
  has_news_ = false;
  if (!channel_) return;
  refresh(now);
  Beat beat{topology_.host, own, {}, {}};
  for (std::size_t i = 0; i < monitors_.size(); ++i)
    beat.monitor_seconds[i] = silent_seconds(monitors_[i].rank, now);
  const auto down = message_of(Kind::down, beat);
  for (const int rank : below()) send(rank, down);
  if (above_.empty()) return;
  beat.overview = overview(now);
  const auto up = message_of(Kind::up, beat);
  for (const int rank : above_) send(rank, up);
}

double Relay::silent_seconds(int monitor, double now) const {
  if (monitor == rank_) return 0;
  return std::max(0.0, now - std::ranges::find(monitors_, monitor, &Monitor::rank)->heard);
}

Overview Relay::overview(double now) const {
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
std::vector<Absence> Relay::absent(const std::vector<Absence>& told, double now) const {
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

void Relay::forget(double pause, double now) {
  const auto shift = [&](double& time) { time = std::min(time + pause, now); };  // some came meanwhile
  for (auto& [rank, contact] : contacts_) shift(contact.heard);
  for (auto& monitor : monitors_) shift(monitor.heard);
  shift(own_.heard);
}

void Relay::ask(const std::string& reason, bool urgent, double now) {
  asks_ =
      last_question_ = {rank_, last_question_.number + 1, urgent, reason, {exited_.begin(), exited_.end()}};
  told_.clear();
  const auto message = message_of(Kind::ask, *asks_);
  for (const int rank : below()) send(rank, message);
  for (const auto& [rank, known] : contacts_) deliver({account_of(rank, now)}, now);
}

void Relay::end_question() {
  asks_.reset();
  told_.clear();
}

/// A known question that comes from another rank than before is answered again: the rank that passed it on first may be lost, and the
/// answers with it.
void Relay::take_question(int from, const Question& question, double now) {
  const bool is_known = question.monitor == last_question_.monitor &&
                        question.number == last_question_.number && from == asked_by_;
  if (is_known || question.monitor == rank_) return;
  asked_by_ = from;
  unanswered_ = last_question_ = question;
  for (const int rank : question.exited) set_exited(rank);
  answers_.clear();
  const auto message = message_of(Kind::ask, question);
  for (const int rank : below()) {
    if (rank != from) send(rank, message);
    answers_.push_back(account_of(rank, now));
  }
}

Account Relay::account_of(int rank, double now) const {
  return {rank, host_of(rank), contacts_.at(rank).standing, silence(rank, now), {}};
}

void Relay::answer(const Standing& own, const FlightReport& report, double now) {
  deliver({{rank_, topology_.host, own, 0, {report}}}, now);
  pass_on();
}

/// To this rank, if it asks, and to the one by which it was asked.
void Relay::deliver(std::vector<Account> accounts, double now) {
  for (const auto& account : accounts) {
    if (!asks_) break;
    auto& told = told_[account.rank];
    if (!account.report.empty() || told.account.report.empty()) told = {now, account};
  }
  if (last_question_.monitor == rank_) return;
  std::move(accounts.begin(), accounts.end(), std::back_inserter(answers_));
}

/// All that has come since, in one message.
void Relay::pass_on() {
  if (answers_.empty() || asked_by_ < 0) return;
  if (send(asked_by_, message_of(Kind::report, answers_))) answers_.clear();
}

std::map<int, Account> Relay::accounts(double now) const {
  std::map<int, Account> result;
  for (const auto& [rank, told] : told_) {
    auto& account = result[rank] = told.account;
    const double since = std::max(0.0, now - told.at);
    account.silent_seconds += since;
    account.standing.stalled_seconds += since;
    account.standing.side_work_stalled_seconds += since;
  }
  return result;
}

void Relay::tell_of_leaving() {
  const auto message = message_of(Kind::left, std::vector<std::int32_t>{rank_});
  std::set<int> all = peers_;
  for (const int parent : tree_.parents(rank_)) all.insert(parent);
  for (const int peer : all) send(peer, message);
}

void Relay::say_goodbye(bool after_error, double seconds) {
  if (!channel_) return;
  if (after_error) left_.insert(rank_);
  finished_.insert(exited_.begin(), exited_.end());
  std::set<int> told = exited_;
  const auto children = tree_.children(rank_);
  const double begin = steady_seconds();
  try {
    while (!includes(told, peers_) || !includes(finished_, peers_) || !channel_->sent()) {
      const double waited = steady_seconds() - begin;
      if (waited > seconds) return;
      // Those below come first, so that what is told above is of all of them.
      const bool tells_above = includes(finished_, children) || waited > seconds * kShareForRanksBelow;
      send_last(after_error, tells_above, told);
      receive_last();
      std::this_thread::sleep_for(kGoodbyePause);
    }
  } catch (const std::exception&) {  // of a rank that is lost, say
  }
}

void Relay::send_last(bool after_error, bool tells_above, std::set<int>& told) {
  const auto message = after_error
                           ? message_of(Kind::left, std::vector<std::int32_t>(left_.begin(), left_.end()))
                           : std::string(1, static_cast<char>(Kind::last));
  const auto above = tree_.parents(rank_);
  for (const int peer : peers_) {
    const bool is_due = !told.contains(peer) && (tells_above || !contains(above, peer));
    if (is_due && channel_->send(peer, message)) told.insert(peer);
  }
}

void Relay::receive_last() {
  while (const auto message = channel_->receive()) {
    peers_.insert(message->from);
    const auto kind = kind_of(message->text);
    if (kind == Kind::left || kind == Kind::last) take(*message, 0);
  }
}

}  // namespace llampi::health
