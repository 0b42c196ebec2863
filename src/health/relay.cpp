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
      monitors_(tree_.monitors()),
      parents_(tree_.parents(rank_)),
      monitor_hosts_(std::move(setup.monitor_hosts)),
      reporters_(tree_.children(rank_)),
      parents_in_use_(std::min<std::size_t>(1, parents_.size())) {
  monitor_heard_.fill(setup.now);
  if (!parents_.empty()) contact(parents_.front(), setup.now);
  for (const int child : reporters_) contact(child, setup.now);
}

Relay::Contact& Relay::contact(int rank, double now) {
  const auto [found, is_new] = contacts_.try_emplace(rank);
  if (is_new) found->second.heard = now;
  peers_.insert(rank);
  return found->second;
}

std::string Relay::host_of(int rank) const {
  if (topology_.node_of_rank[static_cast<std::size_t>(rank)] == topology_.node) return topology_.host;
  const auto monitor = std::find(monitors_.begin(), monitors_.end(), rank);
  if (monitor != monitors_.end())
    return monitor_hosts_[static_cast<std::size_t>(monitor - monitors_.begin())];
  const int node = topology_.node_of_rank[static_cast<std::size_t>(rank)];
  for (const auto& [other, contact] : contacts_) {
    if (topology_.node_of_rank[static_cast<std::size_t>(other)] == node && !contact.host.empty())
      return contact.host;
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
  const auto kind = kind_of(text);
  switch (kind) {
    case Kind::up:
    case Kind::down:
      take_beat(from, content_of<Beat>(text), kind == Kind::up, now);
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

/// "Heard of a monitor so long ago" is passed on only downwards. If it went around, each message would make it a little shorter, and
/// a lost monitor would seem alive.
void Relay::take_beat(int from, const Beat& beat, bool up, double now) {
  auto& sender = contact(from, now);
  sender.heard = now;
  sender.host = beat.host;
  sender.standing = beat.standing;
  for (std::size_t i = 0; i < monitors_.size(); ++i) {
    if (monitors_[i] == from) monitor_heard_[i] = now;
  }
  if (up) {
    sender.below = true;
    sender.overview = beat.overview;
    for (const auto& absence : beat.overview.absent) {
      if (absence.exited) set_exited(absence.rank);
      if (absence.left) note_left({absence.rank});
    }
  } else {
    for (std::size_t i = 0; i < monitors_.size(); ++i)
      monitor_heard_[i] = std::max(monitor_heard_[i], now - beat.monitor_seconds[i]);
  }
}

void Relay::set_exited(int rank) { has_news_ = exited_.insert(rank).second || has_news_; }

void Relay::note_left(const std::vector<std::int32_t>& ranks) {
  for (const int rank : ranks) has_news_ = left_.insert(rank).second || has_news_;
}

bool Relay::is_silent(int rank, double now) const {
  const auto found = contacts_.find(rank);
  return found != contacts_.end() && now - found->second.heard > quiet_seconds_;
}

/// Ranks that were reported lost, and neighbours in the tree whose heartbeats are overdue.
std::set<int> Relay::lost(double now) const {
  std::set<int> ranks = exited_;
  ranks.insert(left_.begin(), left_.end());
  for (const int reporter : reporters_) {
    if (is_silent(reporter, now)) {
      ranks.insert(reporter);
    } else if (const auto found = contacts_.find(reporter); found != contacts_.end()) {
      for (const auto& absence : found->second.overview.absent) {
        if (!contacts_.contains(absence.rank)) ranks.insert(absence.rank);
      }
    }
  }
  for (std::size_t i = 0; i < parents_in_use_; ++i) {
    if (is_silent(parents_[i], now)) ranks.insert(parents_[i]);
  }
  return ranks;
}

/// With which ranks it exchanges heartbeats, now that some are lost or there again.
void Relay::refresh(double now) {
  const auto lost_now = lost(now);
  auto reporters = tree_.reporters(rank_, [&](int rank) { return lost_now.contains(rank); });
  for (const int reporter : reporters) {
    // A new one may not have been asked by the rank that was above it.
    if (asks_ && !is_reporter(reporter)) send(reporter, message_of(Kind::ask, *asks_));
    contact(reporter, now);
  }
  reporters_ = std::move(reporters);

  const std::size_t before = parents_in_use_;
  parents_in_use_ = std::min<std::size_t>(1, parents_.size());
  while (parents_in_use_ < parents_.size() && lost_now.contains(parents_[parents_in_use_ - 1]))
    ++parents_in_use_;
  for (std::size_t i = before; i < parents_in_use_; ++i) contact(parents_[i], now).heard = now;

  std::erase_if(contacts_, [&](const auto& entry) {  // who had turned to this rank, and no longer does
    const auto end = parents_.begin() + static_cast<std::ptrdiff_t>(parents_in_use_);
    return now - entry.second.heard > 2 * quiet_seconds_ && !is_reporter(entry.first) &&
           std::find(parents_.begin(), end, entry.first) == end;
  });
}

bool Relay::is_reporter(int rank) const {
  return std::find(reporters_.begin(), reporters_.end(), rank) != reporters_.end();
}

/// Ranks that report to it, and those that have turned to it.
std::vector<int> Relay::below() const {
  std::vector<int> ranks = reporters_;
  for (const auto& [rank, contact] : contacts_) {
    if (contact.below && !is_reporter(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void Relay::send_heartbeats(const Standing& own, const std::vector<int>& unlinked, double now) {
  own_ = own;
  unlinked_ = unlinked;
  heartbeats_sent_ = now;
  has_news_ = false;
  if (!channel_) return;
  refresh(now);
  Beat beat{topology_.host, own, {}, {}};
  for (std::size_t i = 0; i < monitors_.size(); ++i)
    beat.monitor_seconds[i] = silent_seconds(monitors_[i], now);
  const std::string down = message_of(Kind::down, beat);
  for (const int rank : below()) send(rank, down);
  if (parents_.empty()) return;
  beat.overview = overview(now);
  const std::string up = message_of(Kind::up, beat);
  for (std::size_t i = 0; i < parents_in_use_; ++i) send(parents_[i], up);
}

double Relay::silent_seconds(int monitor, double now) const {
  if (monitor == rank_) return 0;
  const auto at = std::find(monitors_.begin(), monitors_.end(), monitor) - monitors_.begin();
  return std::max(0.0, now - monitor_heard_[static_cast<std::size_t>(at)]);
}

Overview Relay::overview(double now) const {
  const auto silence = [&](int rank) {
    const auto found = contacts_.find(rank);
    return found == contacts_.end() ? 0 : std::max(0.0, now - found->second.heard);
  };
  std::vector<OverviewPart> parts;
  parts.push_back({aged(overview_of(own_.heartbeat, own_.stalled_seconds, own_.side_work_stalled_seconds),
                        now - heartbeats_sent_),
                   [this] { return std::vector<int>{rank_}; }});
  std::map<int, double> absent;
  for (const int rank : below()) {
    const auto found = contacts_.find(rank);
    if (found == contacts_.end()) continue;
    if (is_silent(rank, now)) {
      if (!is_reporter(rank)) continue;  // it reports to its own parent again
      absent[rank] = silence(rank);
    }
    if (!found->second.below) continue;  // nothing was heard yet
    parts.push_back(
        {aged(found->second.overview, silence(rank)), [this, rank] { return tree_.subtree(rank); }});
  }
  Overview all = combine(parts);
  for (const auto& absence : all.absent) {
    if (!contacts_.contains(absence.rank)) absent.try_emplace(absence.rank, absence.silent_seconds);
  }
  for (const int rank : exited_) absent.try_emplace(rank, silence(rank));
  for (const int rank : left_) absent.try_emplace(rank, silence(rank));
  all.absent.clear();
  for (const auto& [rank, seconds] : absent)
    all.absent.push_back({rank, exited_.contains(rank), left_.contains(rank), seconds});
  all.unlinked.insert(all.unlinked.end(), unlinked_.begin(), unlinked_.end());
  return all;
}

void Relay::forget(double pause, double now) {
  const auto shift = [&](double& time) { time = std::min(time + pause, now); };  // some came meanwhile
  for (auto& [rank, contact] : contacts_) shift(contact.heard);
  for (double& heard : monitor_heard_) shift(heard);
  shift(heartbeats_sent_);
}

void Relay::ask(const std::string& reason, bool urgent, double now) {
  asks_ =
      last_question_ = {rank_, last_question_.number + 1, urgent, reason, {exited_.begin(), exited_.end()}};
  told_.clear();
  const auto message = message_of(Kind::ask, *asks_);
  for (const int rank : below()) send(rank, message);
  for (const auto& [rank, known] : contacts_) deliver({account_of(rank, known, now)}, now);
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
    answers_.push_back(account_of(rank, contact(rank, now), now));
  }
}

Account Relay::account_of(int rank, const Contact& known, double now) const {
  return {rank, host_of(rank), known.standing, std::max(0.0, now - known.heard), {}};
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
  all.insert(parents_.begin(), parents_.end());
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
  for (const int peer : peers_) {
    const bool above = std::find(parents_.begin(), parents_.end(), peer) != parents_.end();
    if (!told.contains(peer) && (tells_above || !above) && channel_->send(peer, message)) told.insert(peer);
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
