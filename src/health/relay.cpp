// SPDX-License-Identifier: Apache-2.0
#include "health/relay.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "llampi/comm/exchange.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"

namespace llampi::health {
namespace {

constexpr double kShareForRanksBelow = 0.5;            // of the time that there is at the end
constexpr std::chrono::milliseconds kGoodbyePause{1};  // between looks at what has come

template <class T>
std::string message_of(MessageKind kind, const T& content) {
  return static_cast<char>(kind) + comm::packed(content);
}

MessageKind kind_of(const std::string& message) { return static_cast<MessageKind>(message.front()); }

template <class T>
T content_of(const std::string& message) {
  return comm::unpacked<T>(message.substr(1));
}

template <class Some>
bool includes(const std::set<int>& all, const Some& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

}  // namespace

Relay::Relay(std::unique_ptr<comm::Channel> channel, const TreeNeighbours::Setup& setup)
    : rank_(setup.rank), channel_(std::move(channel)), neighbours_(setup), inquiry_(rank_) {
  for (const int rank : neighbours_.all()) peers_.insert(rank);
}

/// False if the message was dropped, because the rank has not read earlier ones yet. A failure to send is ignored: if the rank is
/// lost, its missing heartbeats show it. Nothing is sent to a process that has ended: MPI could hang or abort the job.
bool Relay::send(int rank, const std::string& message) {
  if (!channel_ || neighbours_.exited().contains(rank)) return true;
  peers_.insert(rank);
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
    case MessageKind::up:
      neighbours_.take_from_below(from, content_of<Beat>(text), now);
      break;
    case MessageKind::down:
      neighbours_.take_from_above(from, content_of<Beat>(text), now);
      break;
    case MessageKind::ask:
      take_question(from, content_of<Question>(text), now);
      break;
    case MessageKind::report:
      inquiry_.add(content_of<std::vector<Account>>(text), now);
      break;
    case MessageKind::left:
      finished_.insert(from);
      for (const int rank : content_of<std::vector<std::int32_t>>(text)) neighbours_.set_left(rank);
      break;
    case MessageKind::last:
      finished_.insert(from);
      break;
    case MessageKind::port:
      port_ = content_of<ListeningPort>(text);
      break;
  }
}

void Relay::send_heartbeats(const Standing& own, const std::vector<int>& unlinked, double now) {
  neighbours_.set_own(own, unlinked, now);
  if (!channel_) return;
  for (const int added : neighbours_.refresh(now)) {
    // The rank that was above it may not have asked it.
    if (inquiry_.asks()) send(added, message_of(MessageKind::ask, *inquiry_.asks()));
  }
  Beat beat = neighbours_.beat(now);
  const auto down = message_of(MessageKind::down, beat);
  for (const int rank : neighbours_.below()) send(rank, down);
  if (neighbours_.above().empty()) return;
  beat.overview = neighbours_.overview(now);
  const auto up = message_of(MessageKind::up, beat);
  for (const int rank : neighbours_.above()) send(rank, up);
}

void Relay::send_port(int rank, const ListeningPort& port) {
  send(rank, message_of(MessageKind::port, port));
}

void Relay::ask(const std::string& reason, bool urgent, Asked asked, double now) {
  const auto message = message_of(MessageKind::ask, inquiry_.ask(reason, urgent, neighbours_.exited()));
  if (asked == Asked::below) {
    for (const int rank : neighbours_.below()) send(rank, message);
  } else {
    for (int rank = 0; rank < tree().ranks(); ++rank)
      if (rank != rank_) send(rank, message);
  }
  for (const int rank : neighbours_.all()) inquiry_.add({neighbours_.account_of(rank, now)}, now);
}

void Relay::take_question(int from, const Question& question, double now) {
  const auto below = neighbours_.below();
  std::vector<Account> known;
  for (const int rank : below) known.push_back(neighbours_.account_of(rank, now));
  if (!inquiry_.take(question, from, std::move(known))) return;
  for (const int rank : question.exited) neighbours_.set_exited(rank);
  for (const int rank : below) {
    if (rank != from) send(rank, message_of(MessageKind::ask, question));
  }
}

void Relay::answer(const Standing& own, const FlightReport& report, double now) {
  inquiry_.add({{rank_, host_of(rank_), own, 0, {report}}}, now);
  pass_on();
}

/// All that has come since, in one message.
void Relay::pass_on() {
  if (inquiry_.unsent().empty()) return;
  if (send(inquiry_.asked_by(), message_of(MessageKind::report, inquiry_.unsent()))) inquiry_.set_sent();
}

void Relay::tell_of_leaving() {
  const auto message = message_of(MessageKind::left, std::vector<std::int32_t>{rank_});
  std::set<int> all = peers_;
  for (const int parent : tree().parents(rank_)) all.insert(parent);
  for (const int peer : all) send(peer, message);
}

void Relay::say_goodbye(bool after_error, double seconds) {
  if (!channel_) return;
  if (after_error) neighbours_.set_left(rank_);
  std::set<int> told = exited();
  finished_.insert(told.begin(), told.end());
  const auto children = tree().children(rank_);
  const double begin = steady_seconds();
  try {
    while (!includes(told, peers_) || !includes(finished_, peers_) || !channel_->sent()) {
      const double waited = steady_seconds() - begin;
      if (waited > seconds) return;
      // Those below come first, so that what is told above is of all of them.
      send_last(after_error, includes(finished_, children) || waited > seconds * kShareForRanksBelow, told);
      receive_last();
      std::this_thread::sleep_for(kGoodbyePause);
    }
  } catch (const std::exception&) {  // of a rank that is lost, say
  }
}

void Relay::send_last(bool after_error, bool also_above, std::set<int>& told) {
  const auto message =
      after_error ? message_of(MessageKind::left, std::vector<std::int32_t>(left().begin(), left().end()))
                  : std::string(1, static_cast<char>(MessageKind::last));
  const auto above = tree().parents(rank_);
  for (const int peer : peers_) {
    const bool is_due = !told.contains(peer) && (also_above || !contains(above, peer));
    if (is_due && channel_->send(peer, message)) told.insert(peer);
  }
}

void Relay::receive_last() {
  while (const auto message = channel_->receive()) {
    peers_.insert(message->from);
    const auto kind = kind_of(message->text);
    if (kind == MessageKind::left || kind == MessageKind::last) take(*message, 0);
  }
}

}  // namespace llampi::health
