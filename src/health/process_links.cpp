// SPDX-License-Identifier: Apache-2.0
#include "health/process_links.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "llampi/core/clock.hpp"

namespace llampi::health {
namespace {

constexpr double kConnectSeconds = 3;
constexpr double kGreetingSeconds = 10;  // of a thread that may wait for a processor
constexpr int kIdleSeconds = 60;  // then the kernel looks whether the other end is there: firewalls forget
constexpr std::size_t kStrangers = 16;  // that are not of this job, and who they are is not known yet
constexpr char kGoodbye = 'b';

template <class T>
void set_option(int socket, int level, int name, T value) {
  ::setsockopt(socket, level, name, &value, sizeof value);  // not essential
}

/// Of this machine, in network byte order; the loopback address first.
std::vector<std::uint32_t> own_addresses() {
  std::vector<std::uint32_t> addresses = {htonl(INADDR_LOOPBACK)};
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const bool usable = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable || one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    addresses.push_back(reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr);
  }
  ::freeifaddrs(all);
  return addresses;
}

std::uint64_t random_token() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32) | random();
}

void keep_alive(int socket) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
}

int new_socket() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket >= 0) keep_alive(socket);
  return socket;
}

}  // namespace

ProcessLinks::ProcessLinks(int rank, std::set<int> below, int above, double retry_seconds)
    : rank_(rank), above_(above), retry_seconds_(retry_seconds), missing_(std::move(below)) {
  if (!missing_.empty()) listen_for_links();
  most_links_ = 2 * missing_.size() + kStrangers;
  if (above_ >= 0) missing_.insert(above_);
}

void ProcessLinks::connect(const ListeningPort& above) {
  port_above_ = above;
  untried_ = above.addresses;
  connect_to_next();
}

ProcessLinks::~ProcessLinks() {
  for (auto& link : links_) close_link(link);
  if (listener_ >= 0) ::close(listener_);
}

void ProcessLinks::listen_for_links() {
  listener_ = new_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool listens = listener_ >= 0 && ::bind(listener_, any, length) == 0 &&
                       ::listen(listener_, SOMAXCONN) == 0 && ::getsockname(listener_, any, &length) == 0;
  if (!listens) return;  // nobody will be linked: missing() tells
  own_ = {random_token(), ntohs(address.sin_port), own_addresses()};
}

/// Of connect(), if an address is left. What goes wrong later is found by advance().
void ProcessLinks::connect_to_next() {
  if (port_above_->port == 0) return;
  while (!untried_.empty()) {
    tried_ = steady_seconds();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = untried_.back();
    address.sin_port = htons(port_above_->port);
    untried_.pop_back();
    const int socket = new_socket();
    if (socket < 0) return;
    if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
        errno == EINPROGRESS) {
      links_.push_back({socket, above_, State::connecting, steady_seconds(), {}});
      return;
    }
    ::close(socket);
  }
}

/// Those beyond most_links_ stay missing().
void ProcessLinks::accept_links() {
  while (links_.size() < most_links_) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) return;
    keep_alive(socket);
    links_.push_back({socket, -1, State::greeting, steady_seconds(), {}});
  }
}

std::vector<int> ProcessLinks::look() {
  advance_all();
  return std::exchange(ended_, {});
}

void ProcessLinks::advance_all() {
  if (listener_ >= 0) accept_links();
  for (auto& link : links_) advance(link);
  std::erase_if(links_, [](const Link& link) { return link.state == State::closed; });
  if (!port_above_ || !missing_.contains(above_)) return;
  if (std::ranges::find(links_, above_, &Link::rank) != links_.end()) return;  // it is being tried
  if (untried_.empty() && steady_seconds() - tried_ > retry_seconds_) untried_ = port_above_->addresses;
  connect_to_next();
}

void ProcessLinks::advance(Link& link) {
  if (link.state == State::connecting) {
    pollfd poll{link.socket, POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof error;
    if (::poll(&poll, 1, 0) == 0) {
      if (steady_seconds() - link.since > kConnectSeconds) close_link(link);
      return;
    }
    if (::getsockopt(link.socket, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0)
      return close_link(link);
    greet(link, port_above_->token);
    link.state = State::greeting;
    link.since = steady_seconds();
  }
  receive(link);
  if (link.state == State::greeting && steady_seconds() - link.since > kGreetingSeconds) close_link(link);
}

void ProcessLinks::greet(Link& link, std::uint64_t token) {
  const Greeting greeting{token, rank_, 0};
  ::send(link.socket, &greeting, sizeof greeting, MSG_NOSIGNAL);  // what fails here, fails in receive()
}

void ProcessLinks::receive(Link& link) {
  while (link.state == State::greeting || link.state == State::linked) {
    char bytes[sizeof(Greeting)];
    const std::size_t wanted =
        link.state == State::greeting ? sizeof(Greeting) - link.received.size() : std::size_t{1};
    const ssize_t got = ::recv(link.socket, bytes, wanted, 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got < 0 && errno == EINTR) continue;
    if (got > 0 && link.state == State::greeting) {
      link.received.append(bytes, static_cast<std::size_t>(got));
      if (link.received.size() == sizeof(Greeting)) take_greeting(link);
      continue;
    }
    // A goodbye; or the end of the process; or an error, of which silence will tell: a firewall that has forgotten the
    // connection resets it too.
    if (link.state == State::linked && got == 0) ended_.push_back(link.rank);
    if (link.state == State::linked && got < 0) missing_.insert(link.rank);  // it is tried again
    return close_link(link);
  }
}

void ProcessLinks::take_greeting(Link& link) {
  Greeting greeting;
  std::memcpy(&greeting, link.received.data(), sizeof greeting);
  const bool is_above = link.rank >= 0;
  const std::uint64_t expected = is_above ? port_above_->token : own_.token;
  if (greeting.token != expected || (is_above && greeting.rank != link.rank)) return close_link(link);
  if (!is_above) greet(link, own_.token);
  link.rank = greeting.rank;
  link.state = State::linked;
  missing_.erase(link.rank);
}

/// The other end may have seen a greeting of this one and have taken it for linked.
void ProcessLinks::close_link(Link& link) {
  if (link.socket < 0) return;
  ::send(link.socket, &kGoodbye, 1, MSG_NOSIGNAL);
  ::close(link.socket);
  link.socket = -1;
  link.state = State::closed;
}

}  // namespace llampi::health
