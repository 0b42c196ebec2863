// SPDX-License-Identifier: Apache-2.0
#include "llampi/health/watchdog.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "health/delays.hpp"
#include "health/diagnosis.hpp"
#include "health/flight_file.hpp"
#include "health/own_progress.hpp"
#include "health/process_links.hpp"
#include "health/rank_processes.hpp"
#include "health/relay.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/comm/exchange.hpp"
#include "llampi/comm/format_ranks.hpp"
#include "llampi/core/clock.hpp"
#include "llampi/core/error.hpp"
#include "llampi/core/process.hpp"
#include "llampi/health/done_within.hpp"
#include "llampi/health/flight_request.hpp"

namespace llampi::health {
namespace {

constexpr double kLongestInterval = 1;  // between heartbeats
constexpr double kLongestPause = 0.1;   // between looks at what has come
constexpr double kRelayPause =
    0.02;  // likewise of a rank with others below it, which wait for what it passes on
constexpr double kLongestQuiet = 10;   // of a rank, until those below it turn to another
constexpr double kAnswerSeconds = 2;   // for reports
constexpr double kHasteSeconds = 0.7;  // likewise when a process has ended: mpirun kills the others soon
constexpr double kPassingOnSeconds =
    0.05;                           // besides, of a level of the tree: for the question and what is answered
constexpr double kFileSeconds = 1;  // for a file, which may be what hangs
constexpr double kHastyFileSeconds = 0.4;  // likewise when a process has ended: the report is waited for
constexpr double kLeaveSeconds = 1;        // after an error: the others leave as well, or never
constexpr double kNoticeSeconds = 0.3;     // after an error of this rank: for the exit of another to show
constexpr double kReportSeconds = 3;       // for the report of that, with what comes before it
constexpr double kAbortSeconds = 5;        // for MPI to end the job
constexpr double kQuietSeconds = 15;       // once asked: whoever asked ends the job, or has failed to
constexpr double kAskedSeconds = 60;       // once asked: whoever asked has said why the job ends
constexpr double kFarApart = 1;            // since it last ran: the thread was suspended
constexpr double kSetUpSeconds = 2;     // that a job waits at its start for connections, usually milliseconds
constexpr double kLinkSeconds = 60;     // for them, until it is said that there are none
constexpr double kGoodbyeSeconds = 60;  // for ranks that end as well

}  // namespace

class Watchdog::Thread {
 public:
  Thread(comm::World& world, const FlightRecord& record, WatchdogOptions options, const Log& log);
  ~Thread();
  void finish();
  void leave();
  void allow_steps_of(double seconds) { step_seconds_ = seconds; }

 private:
  void let_it_report();
  void link_processes();
  void run();
  double look();
  void look_at_processes();
  void send_heartbeats(double now);
  void answer_if_due(double now);
  void judge_the_others(double now);
  void judge_alone(double now);
  bool judges(double now) const;
  Overview overview(double now) const;
  void warn_of_missing_links(const Overview& of_all, double now);
  void raise_alarm(Trouble trouble, const Overview& of_all, Relay::Asked asked, double now);
  [[noreturn]] void end_job(const std::string& summary);
  bool has_passed(const std::vector<WatchedRank>& ranks) const;
  std::vector<WatchedRank> view(double now) const;
  void record_if_requested(double now);
  Standing own_standing(double now) { return progress_.look(relay_.peers(), now); }
  FlightReport own_report(const std::string& reason, const Standing& own, bool urgent);
  void stop();
  Limits limits_now() const { return {limits_.seconds, limits_.phase_seconds, step_seconds_}; }

  /// Between a question and the answer of `rank`.
  double delay_of(int rank, bool urgent) const {
    return report_delay(rank, ranks_, urgent ? kHasteSeconds : std::numeric_limits<double>::infinity());
  }

  /// What this rank has found, until it has ended the job for it, or it has passed.
  struct Alarm {
    Trouble trouble = Trouble::none;
    Overview found_in = {};
    double ends = 0;
  };

  comm::World& world_;
  const FlightRecord& record_;
  const WatchdogOptions options_;
  const Limits limits_;  ///< without step_seconds
  std::atomic<double> step_seconds_ = 0;
  const double interval_;
  const int rank_, ranks_;
  const std::string host_;
  const std::vector<int> monitors_;
  Relay relay_;
  const std::vector<RankProcess> node_;
  const RankProcess* neighbour_ = nullptr;  ///< in node_
  std::unique_ptr<ProcessLinks> links_;
  Log log_;

  OwnProgress progress_;
  FlightFile file_;
  double started_ = 0, last_look_ = 0, last_heartbeat_ = 0, last_judgement_ = 0;
  Alarm alarm_;
  double quiet_until_ = 0;              ///< until then another rank that has found trouble says so
  double asked_at_ = -kAskedSeconds;    ///< for a report
  std::optional<Question> question_;    ///< for which it is not due yet
  std::optional<double> requested_at_;  ///< a record, by request_flight_record()
  double resumed_ = -kAnswerSeconds;    ///< after this process was suspended
  bool links_told_ = false;             ///< which connections to other nodes are missing

  std::atomic<bool> is_reporting_ = false;  ///< this rank or another has found trouble
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
      interval_(std::min(kLongestInterval, options_.seconds / 10)),
      rank_(world.rank()),
      ranks_(world.size()),
      host_(world.topology().host),
      monitors_(WatchTree(world.topology().node_of_rank).monitors()),
      relay_{world.channel(),
             {rank_, world.topology(), exchange_hosts(world, monitors_),
              std::min(kLongestQuiet, options_.seconds / 4), steady_seconds()}},
      node_(exchange_processes(world)),
      neighbour_(neighbour_of(node_, rank_)),
      log_(log),
      progress_(world, record, options_.side_work),
      file_(record, options_.run_dir, {.rank = rank_, .ranks = ranks_, .host = host_, .reason = ""},
            options_.holds_run_dir) {
  if (!relay_.can_send() && ranks_ > 1) {
    log.warning(
        "MPI does not provide MPI_THREAD_MULTIPLE: ranks cannot exchange heartbeats, and each watches only itself");
  }
  link_processes();
  last_look_ = started_ = steady_seconds();
  last_heartbeat_ = started_ - interval_ +
                    heartbeat_delay(world.topology().local_rank, world.topology().local_ranks, interval_);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    relay_.tell_of_leaving();  // with a reason of its own
    throw Error(fmt::format("the watchdog cannot start its thread: {}", error.code().message()));
  }
}

/// With ranks above and below this one whose processes no rank on this machine sees.
void Watchdog::Thread::link_processes() {
  const auto& node_of_rank = world_.topology().node_of_rank;
  const auto unseen = unseen_from_first(node_);
  const bool is_first = node_.front().rank == rank_;
  std::set<int> below;
  for (const int child : relay_.tree().children(rank_)) {
    const bool here = node_of_rank[static_cast<std::size_t>(child)] == world_.topology().node;
    if (!here || std::find(unseen.begin(), unseen.end(), child) != unseen.end()) below.insert(child);
  }
  const bool is_linked = is_first || std::find(unseen.begin(), unseen.end(), rank_) != unseen.end();
  const int above = is_linked ? relay_.tree().parent(rank_) : -1;
  links_ = std::make_unique<ProcessLinks>(rank_, below, above);
  if (relay_.can_send()) {
    for (const int child : below) relay_.send_port(child, links_->port());
  } else if (const auto ports = comm::all_gather_value(world_, links_->port()); above >= 0) {
    links_->connect(ports[static_cast<std::size_t>(above)]);
  }
  if (links_->missing().empty()) return;
  send_heartbeats(steady_seconds());  // so that they know the host
  const double latest = steady_seconds() + kSetUpSeconds;
  while (!links_->missing().empty() && steady_seconds() < latest) {
    relay_.receive(steady_seconds());
    look_at_processes();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Watchdog::Thread::~Thread() {
  if (!thread_.joinable()) return;
  let_it_report();
  stop();
  relay_.tell_of_leaving();
}

/// This rank ends with an exception of its own, which may be how a library saw that another rank is lost: whose report of that
/// is on its way ends the job.
void Watchdog::Thread::let_it_report() {
  const double begin = steady_seconds();
  while (steady_seconds() - begin < (is_reporting_ ? kReportSeconds : kNoticeSeconds))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void Watchdog::Thread::leave() {
  stop();
  relay_.say_goodbye(true, kLeaveSeconds);
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
  const double longest = relay_.tree().children(rank_).empty() ? kLongestPause : kRelayPause;
  const auto pause = std::chrono::duration<double>(std::min(longest, interval_));
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, pause, [&] { return stopped_; })) {
    lock.unlock();
    try {
      const double now = look();  // no later time: this process may be suspended anywhere
      // Suspended meanwhile: what it sees may be the end of a job of which the next look tells.
      const bool suspended = steady_seconds() - now > kFarApart;
      if (!suspended) relay_.can_send() ? judge_the_others(now) : judge_alone(now);
      if (!suspended) record_if_requested(now);
      is_reporting_ = alarm_.trouble != Trouble::none || now < quiet_until_;
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
    resumed_ = now;
    relay_.forget(pause, now);
    progress_.forget(pause, now);
    quiet_until_ = std::max(quiet_until_, now + kAnswerSeconds);  // first hear what the others know
  }
  last_look_ = now;
  relay_.receive(now);
  look_at_processes();
  if (relay_.has_news() || now - last_heartbeat_ >= interval_) send_heartbeats(now);
  answer_if_due(now);
  return now;
}

/// Of the neighbour, then the one after it: whoever is left in the end knows of all. And of those on other machines.
void Watchdog::Thread::look_at_processes() {
  while (neighbour_ != nullptr && process_state(neighbour_->pid) == 0) {
    relay_.set_exited(neighbour_->rank);
    neighbour_ = neighbour_after(node_, rank_, neighbour_->rank);
  }
  for (const int rank : links_->look()) relay_.set_exited(rank);
  if (auto port = relay_.take_port()) links_->connect(*port);
}

void Watchdog::Thread::send_heartbeats(double now) {
  last_heartbeat_ = now;
  relay_.send_heartbeats(own_standing(now), {links_->missing().begin(), links_->missing().end()}, now);
}

/// A thousand ranks that write their records at once would hold up each other.
void Watchdog::Thread::answer_if_due(double now) {
  if (auto question = relay_.take_question()) {
    asked_at_ = now;
    quiet_until_ = now + kQuietSeconds + delay_of(rank_, question->urgent);
    question_ = std::move(question);
  }
  if (!question_ || now - asked_at_ < delay_of(rank_, question_->urgent)) return;
  const auto question = *std::exchange(question_, std::nullopt);
  const Standing own = own_standing(now);
  relay_.answer(own, own_report(question.reason, own, question.urgent), now);
}

/// The one that is to be heard: rank 0, or the deputy in its place.
bool Watchdog::Thread::judges(double now) const {
  const bool root_is_lost = relay_.exited().contains(0) || relay_.silent_seconds(0, now) > limits_.seconds;
  return rank_ == 0 || (rank_ == monitors_.back() && root_is_lost);
}

/// Each level of the tree but one tells of what has moved up to an interval later.
Overview Watchdog::Thread::overview(double now) const {
  Overview of_all = relay_.overview(now);
  of_all.stalled_seconds -= std::max(0, relay_.tree().depth() - 1) * interval_;
  return of_all;
}

void Watchdog::Thread::judge_the_others(double now) {
  if (alarm_.trouble != Trouble::none) {
    const auto ranks = view(now);
    const bool answered =
        std::all_of(ranks.begin(), ranks.end(), [&](const auto& rank) {  // whoever can be expected to
          return rank.report || rank.exited || rank.left || rank.silent_seconds > limits_.seconds;
        });
    if (!answered && now <= alarm_.ends) return;
    if (!has_passed(ranks)) end_job(summary(ranks, alarm_.trouble, limits_, file_.folder()));
    alarm_.trouble = Trouble::none;
    relay_.end_question();
    return;
  }
  if (now < quiet_until_) return;  // its end, and mpirun's, of one rank after another are no news
  if (judges(now)) {
    if (now - last_judgement_ < interval_ && relay_.exited().empty()) return;
    last_judgement_ = now;
    const Overview of_all = overview(now);
    warn_of_missing_links(of_all, now);
    return raise_alarm(judge(of_all, limits_now()), of_all, Relay::Asked::below, now);
  }
  if (rank_ == monitors_.back()) return;
  // The monitors have had time to do it; one rank after another, so that one speaks. When they have found why the job ends, and
  // one of them has ended with it, little is waited for the other.
  const bool was_asked = now - asked_at_ < kAskedSeconds;
  const auto ended = [&](int monitor) {  // without having told why
    return relay_.exited().contains(monitor) && !relay_.left().contains(monitor);
  };
  const bool one_ended = std::any_of(monitors_.begin(), monitors_.end(), ended);
  const double patience =
      was_asked && one_ended ? kQuietSeconds : 1.25 * limits_.seconds + 1 + turn_of(rank_);
  const auto lost = [&](int monitor) {
    return ended(monitor) || relay_.silent_seconds(monitor, now) > patience;
  };
  if (!std::all_of(monitors_.begin(), monitors_.end(), lost)) return;
  if (was_asked) end_job("");
  raise_alarm(one_ended ? Trouble::exited : Trouble::unresponsive, overview(now), Relay::Asked::all, now);
}

void Watchdog::Thread::judge_alone(double now) {
  Overview own;
  own.unlinked = {links_->missing().begin(), links_->missing().end()};
  warn_of_missing_links(own, now);
  for (const int rank : relay_.exited()) {
    const auto report = own_report("a rank exited", own_standing(now), true);
    end_job(fmt::format("{} exited; {}", comm::format_rank(rank, relay_.host_of(rank)),
                        place_of_records({rank_}, report.record_written, file_.folder())));
  }
  const bool in_phase = !progress_.last().phase.view().empty();
  const double patience =
      std::max(in_phase ? limits_.phase_seconds : limits_.seconds, step_seconds_.load()) + turn_of(rank_);
  if (progress_.stalled_seconds(now) <= patience) return;
  const auto report = own_report("no progress", own_standing(now), false);
  end_job(fmt::format("no progress for {:g} s on {}: {}\n  {}", progress_.stalled_seconds(now),
                      comm::format_rank(rank_, host_), describe(progress_.last()),
                      place_of_records({rank_}, report.record_written, file_.folder())));
}

void Watchdog::Thread::warn_of_missing_links(const Overview& of_all, double now) {
  if (now - started_ < kLinkSeconds || links_told_) return;
  links_told_ = true;
  if (of_all.unlinked.empty()) return;
  const std::set<int> ranks(of_all.unlinked.begin(), of_all.unlinked.end());
  log_.warning(
      "there is no connection between nodes to {}: if such a process exits, only its missing heartbeats show it",
      comm::format_ranks({ranks.begin(), ranks.end()}));
}

void Watchdog::Thread::raise_alarm(Trouble trouble, const Overview& of_all, Relay::Asked asked, double now) {
  if (trouble == Trouble::none) return;
  alarm_.trouble = trouble;
  alarm_.found_in = of_all;
  const bool urgent = trouble == Trouble::exited;
  alarm_.ends = now + (urgent ? kHasteSeconds : kAnswerSeconds) + delay_of(ranks_ - 1, urgent) +
                kPassingOnSeconds * relay_.tree().depth();
  const char* const reason = trouble == Trouble::exited           ? "a rank exited"
                             : trouble == Trouble::unresponsive   ? "a rank is unresponsive"
                             : trouble == Trouble::desynchronized ? "ranks are desynchronized"
                             : trouble == Trouble::side_work      ? "background work hangs"
                                                                  : "no progress";
  relay_.ask(reason, urgent, asked, now);
  const Standing own = own_standing(now);
  relay_.answer(own, own_report(reason, own, urgent), now);
}

/// What is known of all ranks, while they are asked.
std::vector<WatchedRank> Watchdog::Thread::view(double now) const {
  WatchedRank unknown;
  unknown.stalled_seconds = std::numeric_limits<double>::infinity();
  std::vector<WatchedRank> ranks(static_cast<std::size_t>(ranks_), unknown);
  const auto at = [&](int rank) -> WatchedRank& { return ranks[static_cast<std::size_t>(rank)]; };
  for (int rank = 0; rank < ranks_; ++rank) at(rank).host = relay_.host_of(rank);
  for (const auto& [number, account] : relay_.accounts(now)) {
    auto& rank = at(number);
    if (!account.host.empty()) rank.host = account.host;
    rank.heartbeat = account.standing.heartbeat;
    rank.silent_seconds = account.silent_seconds;
    rank.stalled_seconds = account.standing.stalled_seconds;
    rank.side_work_stalled_seconds = account.standing.side_work_stalled_seconds;
    if (account.report.empty()) continue;
    rank.report = std::make_shared<FlightReport>(account.report.front());
    if (rank.report->neighbour >= 0) at(rank.report->neighbour).state = rank.report->neighbour_state;
  }
  for (const int monitor : monitors_) {  // of which other ranks have told, too
    if (monitor != rank_)
      at(monitor).silent_seconds = std::max(at(monitor).silent_seconds, relay_.silent_seconds(monitor, now));
  }
  for (const int rank : relay_.exited()) at(rank).exited = true;
  for (const int rank : relay_.left()) at(rank).left = true;
  // Ranks that differ go on meanwhile, and what showed it is no longer among their latest marks.
  std::map<int, std::size_t> marks;
  for (const auto& mark : alarm_.found_in.marks) {
    for (const auto& part : mark.parts) {
      for (const int rank : part.ranks) {
        auto& kept = at(rank).marks_at_alarm;
        if (marks[rank] < kept.size()) kept[marks[rank]++] = {mark.sequence, part.hash};
      }
    }
  }
  return ranks;
}

/// One was late: now nobody is silent, or the disk for which a second thread waited does its work again, or whoever has ended
/// had said why.
bool Watchdog::Thread::has_passed(const std::vector<WatchedRank>& ranks) const {
  const bool all_answer = std::ranges::all_of(ranks, [](const auto& rank) { return rank.report != nullptr; });
  if (alarm_.trouble == Trouble::unresponsive && all_answer) return true;
  const bool may_pass = alarm_.trouble == Trouble::unresponsive || alarm_.trouble == Trouble::side_work ||
                        alarm_.trouble == Trouble::exited;
  return may_pass && judge(ranks, limits_now()) != alarm_.trouble;
}

FlightReport Watchdog::Thread::own_report(const std::string& reason, const Standing& own, bool urgent) {
  FlightReport report = report_of(record_, own.heartbeat);
  report.record_written = file_.write(reason, urgent ? kHastyFileSeconds : kFileSeconds);
  if (neighbour_ == nullptr) return report;
  report.neighbour = neighbour_->rank;
  report.neighbour_state = process_state(neighbour_->pid);
  return report;
}

/// Not where a failure is being reported, or was: mpirun then terminates the ranks, and the records are those of the failure.
/// Whoever was suspended first hears whether there was one. And not at the same moment as all others.
void Watchdog::Thread::record_if_requested(double now) {
  if (take_flight_record_request()) requested_at_ = now;
  if (!requested_at_) return;
  const double due = std::max(*requested_at_ + delay_of(rank_, true), resumed_ + kAnswerSeconds);
  const bool is_reported = alarm_.trouble != Trouble::none || now - asked_at_ < kAskedSeconds;
  if (now < due && !is_reported) return;
  requested_at_.reset();
  if (!is_reported) file_.write_terminated(kFileSeconds);
}

void Watchdog::Thread::end_job(const std::string& summary) {
  const auto complain = [complain = options_.complain, summary] {
    if (complain && !summary.empty()) complain(summary);
  };
  try {
    if (done_within(kFileSeconds, complain) == Done::not_begun) complain();
    // Without a channel MPI is not to be called from here, and without a thread it may hang: then mpirun ends the others.
    if (relay_.can_send()) done_within(kAbortSeconds, [&world = world_] { world.abort(1); });
  } catch (const std::exception&) {  // out of memory
  }
  std::_Exit(1);
}

void Watchdog::Thread::finish() {
  world_.barrier();
  stop();
  relay_.say_goodbye(false, std::min(options_.seconds, kGoodbyeSeconds));
  file_.remove();  // it was told to terminate, and had the time to end well
}

Watchdog::Watchdog(comm::World& world, const FlightRecord& record, WatchdogOptions options, const Log& log)
    : thread_(std::make_unique<Thread>(world, record, std::move(options), log)) {}

Watchdog::~Watchdog() = default;

void Watchdog::finish() { thread_->finish(); }

void Watchdog::leave() { thread_->leave(); }

void Watchdog::allow_steps_of(double seconds) { thread_->allow_steps_of(seconds); }

}  // namespace llampi::health
