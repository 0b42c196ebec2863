// SPDX-License-Identifier: Apache-2.0
#include "llampi/health/watchdog.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>

#include "health/flight_file.hpp"
#include "health/process_links.hpp"
#include "health/verdict.hpp"
#include "health/watchers.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/process.hpp"
#include "llampi/health/flight_request.hpp"
#include "llampi/io/posix_file.hpp"

namespace llampi::health {
namespace {

constexpr double kLongestInterval = 1;    // between heartbeats
constexpr double kLongestPause = 0.1;     // between looks at what has come
constexpr double kAnswerSeconds = 2;      // for reports
constexpr double kHasteSeconds = 0.7;     // likewise when a process has ended: mpirun kills the others soon
constexpr double kFileSeconds = 1;        // for a file, which may be what hangs
constexpr double kLeaveSeconds = 1;       // after an error: the others leave as well, or never
constexpr double kAbortSeconds = 5;       // for MPI to end the job
constexpr double kQuietSeconds = 15;      // once asked: whoever asked ends the job, or has failed to
constexpr double kSpokenForSeconds = 60;  // once asked: whoever asked has said why the job ends
constexpr double kTurnSeconds = 0.05;     // of rank after rank, where any of them could say what is wrong
constexpr double kFarApart = 1;           // since it last ran: the thread was suspended
constexpr double kLinkSeconds = 60;  // for connections between nodes, until it is said that there are none

enum class Kind : char {
  heartbeat = 'h',
  report = 'r',
  ask = 'a',   ///< for a report; the job is about to end
  gone = 'g',  ///< the process of a rank has ended
  left = 'x',  ///< the sender ends its training after an error
  last = 'l',  ///< nothing comes after this
};

/// What a message carries, as it lies in memory: all ranks run one program on one kind of machine.
template <class T>
std::string pack(Kind kind, const T& content) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::string text(1 + sizeof(T), static_cast<char>(kind));
  std::memcpy(text.data() + 1, &content, sizeof(T));
  return text;
}

template <class T>
std::optional<T> unpack(const std::string& text) {
  if (text.size() != 1 + sizeof(T)) return std::nullopt;
  T content;
  std::memcpy(&content, text.data() + 1, sizeof(T));
  return content;
}

/// Does what may hang in a thread that is left behind if it does. True if it was done in time.
bool done_within(double seconds, std::function<void()> work) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto state = std::make_shared<State>();
  std::thread([state, work = std::move(work)] {
    try {
      work();
    } catch (...) {  // there is nobody who could do better
    }
    const std::lock_guard lock(state->mutex);
    state->done = true;
    state->changed.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  return state->changed.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return state->done; });
}

}  // namespace

class Watchdog::Thread {
 public:
  Thread(comm::World& world, const FlightRecord& record, WatchdogOptions options, const Log& log);
  ~Thread();
  void finish();
  void leave();

 private:
  /// What this rank knows of another, in times of steady_seconds().
  struct Known {
    double heard = 0, moved = 0;
    double beside_moved =
        0;  ///< its second thread; also when that had nothing to do, or waited for other ranks
    WatchedRank rank;
  };

  void run();
  double look();
  void take(const comm::Channel::Message& message);
  void answer_if_due(double now);
  void hear(int rank, const Heartbeat& heartbeat);
  void send_heartbeats(double now);
  void watch_neighbour();
  void watch_other_nodes(double now);
  void tell_who_is_gone();
  void judge_the_others(double now);
  void judge_alone(double now);
  void raise_alarm(Trouble trouble, double now);
  [[noreturn]] void end_job(const std::string& summary);
  bool answered(double now) const;
  bool has_passed(double now) const;
  bool all_report() const;
  std::vector<WatchedRank> view(double now) const;
  void write_record(const std::string& reason);
  Heartbeat own_heartbeat() const {
    const auto beside = options_.beside ? options_.beside->position() : SideWork::Position{};
    return heartbeat_of(record_, io_bytes(), peers(), world_.waits(), beside);
  }
  FlightReport own_report(const std::string& reason);
  void say_goodbye(Kind kind, double seconds);
  void tell(int rank, const std::string& text);
  std::optional<comm::Channel::Message> next_message();
  void stop();

  std::string folder() const { return flight_folder(options_.run_dir).string(); }
  bool is_monitor() const { return std::find(monitors_.begin(), monitors_.end(), rank_) != monitors_.end(); }
  std::int64_t pid_of(int rank) const { return processes_[static_cast<std::size_t>(rank)].pid; }
  int peers() const { return static_cast<int>(peers_.size()); }
  Known& known(int rank) { return known_[static_cast<std::size_t>(rank)]; }

  comm::World& world_;
  const FlightRecord& record_;
  const WatchdogOptions options_;
  const Limits limits_;
  const double interval_;
  const int rank_;
  const std::string host_;
  std::unique_ptr<comm::Channel> channel_;  ///< null: this rank watches itself
  std::vector<int> monitors_;
  std::vector<int> peers_;  ///< who is told, and tells: all of a monitor, the monitors of the others
  std::vector<RankProcess> processes_;
  int neighbour_ = -1;
  std::unique_ptr<ProcessLinks> links_;
  Log log_;

  std::vector<Known> known_;  ///< per rank
  std::set<int> finished_;    ///< ranks from which nothing comes any more
  double started_ = 0, last_look_ = 0, last_heartbeat_ = 0, last_judgement_ = 0;
  Trouble trouble_ = Trouble::none;  ///< that this rank has found
  double alarm_ends_ = 0;
  double quiet_until_ = 0;                ///< until then another rank that has found trouble says so
  double asked_at_ = -kSpokenForSeconds;  ///< for a report
  struct Question {
    int from = 0;
    std::string reason;
  };
  std::optional<Question> asked_;  ///< for a report that is not due yet
  bool record_written_ = false;
  bool links_told_ = false;  ///< whether there are connections to other nodes

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;  ///< guarded
  std::thread thread_;    ///< last: it uses all the others
};

Watchdog::Thread::Thread(comm::World& world, const FlightRecord& record, WatchdogOptions options,
                         const Log& log)
    : world_(world),
      record_(record),
      options_(std::move(options)),
      limits_{options_.seconds, std::max(options_.seconds, options_.least_phase_seconds)},
      interval_(heartbeat_interval(world.size(), std::min(kLongestInterval, options_.seconds / 10),
                                   options_.seconds / 10)),
      rank_(world.rank()),
      host_(world.topology().host),
      channel_(world.channel()),
      log_(log) {
  processes_ = exchange_processes(world);
  monitors_ = choose_monitors(processes_);
  if (!channel_ && world.size() > 1) {
    log.warning("MPI does not let a second thread call it: each rank watches only itself");
  }
  for (int rank = 0; rank < world.size(); ++rank) {
    const bool monitor = std::find(monitors_.begin(), monitors_.end(), rank) != monitors_.end();
    if (rank != rank_ && (monitor || is_monitor())) peers_.push_back(rank);
  }
  neighbour_ = neighbour_of(processes_, rank_);
  links_ = std::make_unique<ProcessLinks>(world, processes_, monitors_);
  last_look_ = started_ = steady_seconds();
  last_heartbeat_ = started_ - interval_ + heartbeat_delay(rank_, world.size(), interval_);
  for (const auto& process : processes_) {
    known_.push_back({last_look_, last_look_, last_look_, {}});
    known_.back().rank.host = process.host;
  }
  thread_ = std::thread([this] { run(); });
}

Watchdog::Thread::~Thread() {
  if (!thread_.joinable()) return;
  stop();
  if (!channel_) return;
  for (const int peer : peers_) tell(peer, {static_cast<char>(Kind::left)});
}

void Watchdog::Thread::leave() {
  stop();
  if (channel_) say_goodbye(Kind::left, kLeaveSeconds);
}

void Watchdog::Thread::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  thread_.join();
  links_.reset();
}

void Watchdog::Thread::run() {
  const auto pause = std::chrono::duration<double>(std::min(kLongestPause, interval_));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [&] { return stopped_; })) {
    lock.unlock();
    try {
      if (health::take_flight_record_request()) write_record("the process was told to terminate");
      const double now = look();  // no later time: this process may be suspended anywhere
      watch_neighbour();
      watch_other_nodes(now);
      // Suspended meanwhile: what it sees may be the end of a job of which the next look tells.
      const bool suspended = steady_seconds() - now > kFarApart;
      if (!suspended) channel_ ? judge_the_others(now) : judge_alone(now);
    } catch (const std::exception&) {  // short of memory or of threads: it looks again
    }
    lock.lock();
  }
}

/// What has come, and what is due. Returns the time at which it began.
double Watchdog::Thread::look() {
  const double now = steady_seconds();
  // Suspended as a whole, as jobs are that give way to others: nobody was silent in that time.
  if (const double pause = now - last_look_; pause > kFarApart) {
    const auto shift = [&](double& time) { time = std::min(time + pause, now); };  // some came meanwhile
    for (auto& known : known_) shift(known.heard), shift(known.moved), shift(known.beside_moved);
    quiet_until_ = std::max(quiet_until_, now + kAnswerSeconds);  // first hear what the others know
  }
  last_look_ = now;
  if (channel_) {
    while (const auto message = next_message()) take(*message);
  }
  answer_if_due(now);
  if (now - last_heartbeat_ >= interval_) send_heartbeats(now);
  return now;
}

void Watchdog::Thread::send_heartbeats(double now) {
  last_heartbeat_ = now;
  const Heartbeat heartbeat = own_heartbeat();
  hear(rank_, heartbeat);
  const std::string text = pack(Kind::heartbeat, heartbeat);
  if (!channel_) return;
  for (const int peer : peers_) tell(peer, text);
  tell_who_is_gone();
}

/// One that fails is of a rank that is lost; its silence will tell.
std::optional<comm::Channel::Message> Watchdog::Thread::next_message() {
  try {
    return channel_->receive();
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// One that does not read misses some. A message to a rank that is lost may fail; its silence will tell. One
/// to a process that has ended may wait in MPI, which has its own words to say about it.
void Watchdog::Thread::tell(int rank, const std::string& text) {
  if (known(rank).rank.gone) return;
  try {
    channel_->send(rank, text);
  } catch (const Error&) {
  }
}

void Watchdog::Thread::hear(int rank, const Heartbeat& heartbeat) {
  auto& sender = known(rank);
  sender.heard = steady_seconds();
  const auto& before = sender.rank.heartbeat;
  if (heartbeat.movement != before.movement) sender.moved = sender.heard;
  if (heartbeat.beside_movement != before.beside_movement || heartbeat.beside.view().empty() ||
      heartbeat.beside_waits)
    sender.beside_moved = sender.heard;
  sender.rank.heartbeat = heartbeat;
}

void Watchdog::Thread::take(const comm::Channel::Message& message) {
  const auto kind = static_cast<Kind>(message.text.empty() ? '\0' : message.text.front());
  switch (kind) {
    case Kind::heartbeat:
      if (const auto heartbeat = unpack<Heartbeat>(message.text)) hear(message.from, *heartbeat);
      break;
    case Kind::report:
      if (const auto report = unpack<FlightReport>(message.text)) {
        hear(message.from, report->heartbeat);
        known(message.from).rank.report = std::make_shared<FlightReport>(*report);
        if (report->neighbour >= 0) known(report->neighbour).rank.state = report->neighbour_state;
      }
      break;
    case Kind::ask:
      asked_at_ = steady_seconds();
      quiet_until_ = asked_at_ + kQuietSeconds + report_delay(rank_);
      asked_ = {message.from, message.text.substr(1)};
      answer_if_due(asked_at_);
      break;
    case Kind::gone:
      if (const auto rank = unpack<std::int32_t>(message.text)) known(*rank).rank.gone = true;
      break;
    case Kind::left:
      known(message.from).rank.left = true;
      finished_.insert(message.from);
      break;
    case Kind::last:
      finished_.insert(message.from);
      break;
  }
}

/// A thousand ranks that write their records and answer at once would hold up each other, and whoever asked.
void Watchdog::Thread::answer_if_due(double now) {
  if (!asked_ || now - asked_at_ < report_delay(rank_)) return;
  const auto [from, reason] = *std::exchange(asked_, std::nullopt);
  tell(from, pack(Kind::report, own_report(reason)));
}

/// Then the one after it: whoever is left in the end knows of all.
void Watchdog::Thread::watch_neighbour() {
  const int before = neighbour_;
  while (neighbour_ >= 0 && process_state(pid_of(neighbour_)) == 0) {
    known(neighbour_).rank.gone = true;
    neighbour_ = neighbour_after(processes_, rank_, neighbour_);
  }
  if (neighbour_ != before) tell_who_is_gone();
}

void Watchdog::Thread::watch_other_nodes(double now) {
  const auto ended = links_->look();
  for (const int rank : ended) known(rank).rank.gone = true;
  if (!ended.empty()) tell_who_is_gone();
  if (now - started_ < kLinkSeconds || links_told_) return;
  links_told_ = true;
  if (links_->missing().empty()) return;
  log_.warning("rank 0 has no connection to {}: should that process end, only its silence will tell",
               comm::format_ranks({links_->missing().begin(), links_->missing().end()}));
}

/// Again and again: one that does not read misses some.
void Watchdog::Thread::tell_who_is_gone() {
  if (!channel_) return;
  for (int rank = 0; rank < std::ssize(known_); ++rank) {
    if (!known(rank).rank.gone) continue;
    for (const int monitor : monitors_) {
      if (monitor != rank_) tell(monitor, pack(Kind::gone, static_cast<std::int32_t>(rank)));
    }
  }
}

std::vector<WatchedRank> Watchdog::Thread::view(double now) const {
  std::vector<WatchedRank> ranks;
  for (const auto& known : known_) {
    ranks.push_back(known.rank);
    ranks.back().silent_seconds = std::max(0.0, now - known.heard);  // messages came after it was `now`
    ranks.back().still_seconds = std::max(0.0, now - known.moved);
    ranks.back().beside_still_seconds = std::max(0.0, now - known.beside_moved);
  }
  return ranks;
}

void Watchdog::Thread::judge_the_others(double now) {
  if (trouble_ != Trouble::none) {
    if (!answered(now) && now <= alarm_ends_) return;
    if (!has_passed(now)) end_job(summary(view(now), trouble_, limits_, folder()));
    trouble_ = Trouble::none;
    for (auto& known : known_) known.rank.report.reset();
    return;
  }
  if (now < quiet_until_) return;  // its end, and mpirun's, of one rank after another are no news
  const auto silent = [&](int rank, double seconds) {
    return known(rank).rank.gone || now - known(rank).heard > seconds;
  };
  if (is_monitor()) {
    const bool dead = std::any_of(known_.begin(), known_.end(), [](const auto& k) { return k.rank.gone; });
    if (now - last_judgement_ < interval_ && !dead) return;
    last_judgement_ = now;
    if (rank_ == 0 || silent(0, limits_.seconds)) raise_alarm(judge(view(now), limits_), now);
    return;
  }
  // The monitors have had time to do it; one rank after another, so that one speaks.
  const double patience = 1.25 * limits_.seconds + 1 + kTurnSeconds * rank_;
  if (!std::all_of(monitors_.begin(), monitors_.end(), [&](int m) { return silent(m, patience); })) return;
  if (now - asked_at_ < kSpokenForSeconds) end_job("");
  take({rank_, pack(Kind::report, own_report("no rank that watches has been heard of"))});
  end_job(summary(view(now), Trouble::silent, limits_, folder()));
}

void Watchdog::Thread::judge_alone(double now) {
  for (int rank = 0; rank < std::ssize(known_); ++rank) {
    if (!known(rank).rank.gone) continue;
    own_report("a rank has ended");
    end_job(fmt::format("rank {} on {} has ended; the record of rank {} is in {}", rank,
                        known(rank).rank.host, rank_, folder()));
  }
  auto& self = known(rank_);
  const bool phase = !self.rank.heartbeat.phase.view().empty();
  const double patience = (phase ? limits_.phase_seconds : limits_.seconds) + kTurnSeconds * rank_;
  if (now - self.moved <= patience) return;
  own_report("nothing moves");
  end_job(fmt::format("nothing has moved for {:g} s on rank {} on {}: {}\n  its record is in {}",
                      now - self.moved, rank_, host_, describe(self.rank.heartbeat), folder()));
}

void Watchdog::Thread::raise_alarm(Trouble trouble, double now) {
  if (trouble == Trouble::none) return;
  trouble_ = trouble;
  // Ranks that differ go on meanwhile, and what showed it is no longer among their latest marks.
  for (auto& known : known_) known.rank.marks_at_alarm = known.rank.heartbeat.marks;
  alarm_ends_ = now + (trouble == Trouble::gone ? kHasteSeconds : kAnswerSeconds) +
                report_delay(static_cast<int>(known_.size()) - 1);
  const char* const reason = trouble == Trouble::gone        ? "a rank has ended"
                             : trouble == Trouble::silent    ? "a rank is silent"
                             : trouble == Trouble::diverged  ? "ranks do different things"
                             : trouble == Trouble::side_work ? "work beside training hangs"
                                                             : "nothing moves";
  for (const int peer : peers_) tell(peer, static_cast<char>(Kind::ask) + std::string(reason));
  take({rank_, pack(Kind::report, own_report(reason))});
}

/// Whoever can be expected to.
bool Watchdog::Thread::answered(double now) const {
  return std::all_of(known_.begin(), known_.end(), [&](const Known& known) {
    return known.rank.report || known.rank.gone || known.rank.left || now - known.heard > limits_.seconds;
  });
}

/// One was late: now nobody is silent, or the disk for which a second thread waited does its work again.
bool Watchdog::Thread::has_passed(double now) const {
  if (trouble_ == Trouble::silent) return all_report();
  return trouble_ == Trouble::side_work && judge(view(now), limits_) != Trouble::side_work;
}

bool Watchdog::Thread::all_report() const {
  return std::all_of(known_.begin(), known_.end(), [](const Known& k) { return k.rank.report != nullptr; });
}

FlightReport Watchdog::Thread::own_report(const std::string& reason) {
  write_record(reason);
  FlightReport report = report_of(record_, own_heartbeat());
  report.neighbour = neighbour_;
  if (neighbour_ >= 0) report.neighbour_state = process_state(pid_of(neighbour_));
  return report;
}

void Watchdog::Thread::write_record(const std::string& reason) {
  const auto file = flight_file(options_.run_dir, rank_);
  const auto ranks = static_cast<int>(known_.size());
  const std::string text = flight_json(record_, {rank_, ranks, host_, reason});
  record_written_ = true;
  done_within(kFileSeconds, [file, text] {
    std::filesystem::create_directories(file.parent_path());
    io::write_whole(file, text, false);  // a busy disk may take seconds
  });
}

void Watchdog::Thread::end_job(const std::string& summary) {
  done_within(kFileSeconds, [complain = options_.complain, summary] {
    if (complain && !summary.empty()) complain(summary);
  });
  // Without a channel MPI is not to be called from here, and mpirun ends the others.
  if (channel_) done_within(kAbortSeconds, [&world = world_] { world.abort(1); });
  std::_Exit(1);
}

/// Nothing that was sent stays behind in MPI, where it could meet a communicator that is made later or the
/// end of MPI; unless somebody does not answer, whom nobody watches any more.
void Watchdog::Thread::say_goodbye(Kind kind, double seconds) {
  const std::string text(1, static_cast<char>(kind));
  std::vector<int> left = peers_;
  const double latest = steady_seconds() + seconds;
  try {
    while (!left.empty() || finished_.size() < peers_.size() || !channel_->sent()) {
      if (steady_seconds() > latest) return;
      std::erase_if(left, [&](int peer) { return channel_->send(peer, text); });
      while (const auto message = channel_->receive()) {
        const auto heard = static_cast<Kind>(message->text.front());
        if (heard == Kind::left || heard == Kind::last) finished_.insert(message->from);
      }
      std::this_thread::yield();
    }
  } catch (const std::exception&) {  // of a rank that is lost, say
  }
}

void Watchdog::Thread::finish() {
  world_.barrier();
  stop();
  if (channel_) say_goodbye(Kind::last, options_.seconds);
  if (!record_written_) return;
  std::error_code ignored;  // it was told to terminate, and had the time to end well
  std::filesystem::remove(flight_file(options_.run_dir, rank_), ignored);
  std::filesystem::remove(flight_folder(options_.run_dir), ignored);  // if it is empty
}

Watchdog::Watchdog(comm::World& world, const FlightRecord& record, WatchdogOptions options, const Log& log)
    : thread_(std::make_unique<Thread>(world, record, std::move(options), log)) {}

Watchdog::~Watchdog() = default;

void Watchdog::finish() { thread_->finish(); }

void Watchdog::leave() { thread_->leave(); }

}  // namespace llampi::health
