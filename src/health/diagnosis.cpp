// SPDX-License-Identifier: Apache-2.0
#include "health/diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "llampi/core/text.hpp"

namespace llampi::health {
namespace {

constexpr std::size_t kMostGroups = 8;  // lines about others

std::string describe(const HeardOperation& at) {
  std::string text = fmt::format("{} #{}", at.operation.view(), at.sequence);
  if (!at.name.view().empty()) text += fmt::format(" of {}", at.name.view());
  if (at.bytes > 0) text += fmt::format(" ({})", format_bytes(at.bytes));
  return text;
}

std::string place_of(const Heartbeat& beat) {
  const int micro_batch = beat.waiting == Waiting::operation ? beat.at.micro_batch : beat.micro_batch;
  std::string text(beat.phase.view());
  if (beat.step > 0 || text.empty()) text += fmt::format("{}step {}", text.empty() ? "" : ", ", beat.step);
  if (micro_batch >= 0) text += fmt::format(", micro-batch {}", micro_batch);
  return text;
}

std::vector<int> ranks_that(std::span<const WatchedRank> ranks, const auto& condition) {
  std::vector<int> result;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (condition(ranks[r])) result.push_back(static_cast<int>(r));
  }
  return result;
}

/// The ranks with the smallest `value`; none if all have the same.
std::vector<int> smallest(std::span<const WatchedRank> ranks, const auto& value) {
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const auto& rank : ranks) least = std::min(least, value(rank));
  auto result = ranks_that(ranks, [&](const auto& rank) { return value(rank) == least; });
  if (result.size() == ranks.size()) result.clear();
  return result;
}

/// The ranks that hold up the others: those that do not wait for other ranks or, if all wait, those that wait in the earliest
/// operation.
std::vector<int> ranks_behind(std::span<const WatchedRank> ranks) {
  constexpr std::uint64_t kLater = std::uint64_t{1} << 63;
  return smallest(ranks, [&](const WatchedRank& rank) {
    return rank.heartbeat.at.sequence + (rank.heartbeat.waiting == Waiting::no ? 0 : kLater);
  });
}

/// Some ranks left after an error. If all had it, those hang that are still at it; if only some had it, the others wait for these,
/// which should have ended the job.
std::vector<int> behind_after_an_error(std::span<const WatchedRank> ranks) {
  const auto hang =
      ranks_that(ranks, [](const auto& r) { return !r.left && r.heartbeat.waiting == Waiting::no; });
  return hang.empty() ? ranks_that(ranks, [](const auto& r) { return r.left; }) : hang;
}

/// Operations with one number that are not the same on all ranks: which ranks have which, by hash.
struct Difference {
  std::uint64_t sequence = 0;
  bool exact = false;  ///< it is known to be the first that differs; otherwise an earlier one may be
  std::map<std::uint64_t, std::vector<int>> ranks_of;

  std::size_t ranks() const {
    std::size_t count = 0;
    for (const auto& [hash, some] : ranks_of) count += some.size();
    return count;
  }
};

void add(std::map<std::uint64_t, Difference>& by_sequence, std::uint64_t sequence, std::uint64_t hash,
         int rank) {
  if (sequence == 0) return;
  auto& entry = by_sequence[sequence];
  entry.sequence = sequence;
  auto& ranks = entry.ranks_of[hash];
  if (ranks.empty() || ranks.back() != rank) ranks.push_back(rank);
}

/// Whether all ranks known for `before` did the same there, among them at least one of each part.
bool agreed(const Difference& before, const Difference& parts) {
  if (before.ranks_of.size() > 1) return false;
  return std::all_of(parts.ranks_of.begin(), parts.ranks_of.end(), [&](const auto& part) {
    const auto& known = before.ranks_of.begin()->second;
    return std::any_of(part.second.begin(), part.second.end(),
                       [&](int rank) { return std::find(known.begin(), known.end(), rank) != known.end(); });
  });
}

/// Of the operations that differ between ranks, the one that most ranks have reported; of several such, the first.
std::optional<Difference> find_difference(std::span<const WatchedRank> ranks) {
  std::map<std::uint64_t, Difference> by_sequence;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    for (const auto& mark : ranks[r].heartbeat.marks) add(by_sequence, mark.sequence, mark.hash, rank);
    for (const auto& mark : ranks[r].marks_at_alarm) add(by_sequence, mark.sequence, mark.hash, rank);
    if (!ranks[r].report) continue;
    for (const auto& heard : ranks[r].report->last) add(by_sequence, heard.sequence, heard.hash, rank);
  }
  std::optional<Difference> found;
  for (auto& [sequence, difference] : by_sequence) {
    if (difference.ranks_of.size() < 2 || (found && difference.ranks() <= found->ranks())) continue;
    const auto before = by_sequence.find(sequence - 1);
    difference.exact = sequence == 1 || (before != by_sequence.end() && agreed(before->second, difference));
    found = difference;
  }
  return found;
}

/// The ranks that are not in the largest part; none if several parts are largest.
std::vector<int> minority(const Difference& difference) {
  std::size_t largest = 0, of_that_size = 0;
  for (const auto& [hash, ranks] : difference.ranks_of) largest = std::max(largest, ranks.size());
  for (const auto& [hash, ranks] : difference.ranks_of) of_that_size += ranks.size() == largest ? 1 : 0;
  std::vector<int> result;
  for (const auto& [hash, ranks] : difference.ranks_of) {
    if (of_that_size == 1 && ranks.size() < largest) result.insert(result.end(), ranks.begin(), ranks.end());
  }
  std::sort(result.begin(), result.end());
  return result;
}

std::string operation_at(const WatchedRank& rank, std::uint64_t sequence) {
  if (rank.report) {
    for (const auto& heard : rank.report->last) {
      if (heard.sequence == sequence) return describe(heard);
    }
  }
  return fmt::format("other operations up to #{}", sequence);
}

std::string with_host(std::span<const WatchedRank> ranks, int rank) {
  return comm::format_rank(rank, ranks[static_cast<std::size_t>(rank)].host);
}

std::string with_hosts(std::span<const WatchedRank> ranks, const std::vector<int>& some) {
  constexpr std::size_t kMostNamed = 4;
  std::vector<std::string> names;
  for (const int rank : some) {
    if (names.size() == kMostNamed) return comm::format_ranks(some);
    names.push_back(with_host(ranks, rank));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string state_of(const WatchedRank& rank) {
  if (rank.left && rank.exited) return "its process has exited after an error";
  if (rank.exited) return "its process has exited";
  if (rank.state == 'T' || rank.state == 't') return "its process is stopped (SIGSTOP or a debugger)";
  if (rank.state == 'D') return "its process waits for a disk or a file system";
  if (rank.left) return "it left its training after an error";
  return "";
}

/// "rank 2 on node7: step 12: waits ... for 601 s; last heard of 600 s ago; its process is stopped".
std::string line_of(std::span<const WatchedRank> ranks, int number) {
  const auto& rank = ranks[static_cast<std::size_t>(number)];
  std::string line = fmt::format(
      "{}: {}", with_host(ranks, number),
      rank.heartbeat.movement == 0 ? "none of its heartbeats is known" : describe(rank.heartbeat));
  if (rank.report || rank.heartbeat.movement == 0) {
    if (rank.heartbeat.movement > 0) line += fmt::format(", for {:.1f} s", rank.heartbeat.seconds);
  } else {
    line += fmt::format(", last heartbeat {:.1f} s ago", rank.silent_seconds);
  }
  if (const auto state = state_of(rank); !state.empty()) line += "; " + state;
  return line;
}

/// Its second thread, which waits for no other rank, has not moved for too long.
bool side_work_hangs(const WatchedRank& rank, const Limits& limits) {
  const auto& beat = rank.heartbeat;
  return !beat.side_work.view().empty() && !beat.side_work_waits &&
         rank.side_work_stalled_seconds > limits.phase_seconds;
}

double longest(std::span<const WatchedRank> ranks, double WatchedRank::*seconds) {
  double result = 0;
  for (const auto& rank : ranks) result = std::max(result, rank.*seconds);
  return result;
}

double shortest(std::span<const WatchedRank> ranks, double WatchedRank::*seconds) {
  double result = std::numeric_limits<double>::infinity();
  for (const auto& rank : ranks) result = std::min(result, rank.*seconds);
  return result;
}

/// A device that hangs holds up all the others in the same operation, as a network does.
std::string no_one_behind(std::span<const WatchedRank> ranks) {
  const auto waiting =
      ranks_that(ranks, [](const auto& r) { return r.heartbeat.waiting == Waiting::device; });
  if (ranks.size() == 1) return waiting.empty() ? "" : ": waiting for its device, which may hang";
  if (waiting.size() == ranks.size()) return ", and all wait for their devices: one device may hang";
  return ", and no rank is behind the others";
}

std::string headline(std::span<const WatchedRank> ranks, Trouble trouble, const std::vector<int>& blamed,
                     const std::optional<Difference>& difference) {
  const std::string who = with_hosts(ranks, blamed);
  const bool many = blamed.size() > 1;
  switch (trouble) {
    case Trouble::exited:
      return fmt::format(
          "{} exited without reporting an error (killed? dmesg or sacct show whether memory ran out)", who);
    case Trouble::unresponsive:
      return fmt::format("{} sent no heartbeat for {:.1f} s", who,
                         longest(ranks, &WatchedRank::silent_seconds));
    case Trouble::side_work:
      return fmt::format(
          "{} {} stuck while {}: no progress for {:.1f} s", who, many ? "are" : "is",
          blamed.empty() ? "" : ranks[static_cast<std::size_t>(blamed[0])].heartbeat.side_work.view(),
          longest(ranks, &WatchedRank::side_work_stalled_seconds));
    case Trouble::desynchronized:
      return fmt::format(
          "the ranks are desynchronized {} operation #{}{}", difference->exact ? "at" : "before",
          difference->sequence,
          blamed.empty() ? "" : fmt::format(": {} {} from the others", who, many ? "differ" : "differs"));
    default: {
      const auto left = [&](int rank) { return ranks[static_cast<std::size_t>(rank)].left; };
      const std::string why = blamed.empty() ? no_one_behind(ranks)
                              : std::ranges::any_of(blamed, left)
                                  ? fmt::format("; {} failed and did not end the job", who)
                                  : fmt::format("; {} {} behind", who, many ? "are" : "is");
      return fmt::format("no progress for {:.1f} s{}", shortest(ranks, &WatchedRank::stalled_seconds), why);
    }
  }
}

/// The others, those that stand at the same place in one line.
std::string others(std::span<const WatchedRank> ranks, const std::vector<int>& blamed) {
  std::map<std::string, std::vector<int>> by_place;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (std::find(blamed.begin(), blamed.end(), rank) != blamed.end()) continue;
    const bool known = ranks[r].report || ranks[r].heartbeat.movement > 0;
    std::string place = known ? describe(ranks[r].heartbeat) : "nothing is known";
    if (known && !ranks[r].report) place += " (does not answer)";
    if (const auto state = state_of(ranks[r]); !state.empty()) place += "; " + state;
    by_place[place].push_back(rank);
  }
  std::string text;
  std::size_t lines = 0;
  for (const auto& [place, some] : by_place) {
    if (++lines > kMostGroups)
      return text +
             fmt::format("\n  others in {}",
                         count(static_cast<std::int64_t>(by_place.size() - kMostGroups), "more place"));
    text += fmt::format("\n  {}: {}", comm::format_ranks(some), place);
  }
  return text;
}

/// Whether there is an operation that all ranks have reported, and that is not the same on all: then the different ranks are known.
bool are_desynchronized(const Overview& of_all) {
  return std::any_of(of_all.marks.begin(), of_all.marks.end(),
                     [](const CommonMark& mark) { return mark.parts.size() > 1; });
}

}  // namespace

std::string describe(const Heartbeat& beat) {
  std::string text = place_of(beat) + ": ";
  if (beat.waiting == Waiting::operation) return text + "waiting for other ranks in " + describe(beat.at);
  if (beat.waiting == Waiting::ranks) return text + "waiting for other ranks";
  const std::string after = beat.at.sequence > 0 ? describe(beat.at) : "the start";
  if (beat.waiting == Waiting::no && beat.doing.view().empty() && !beat.phase.view().empty())
    return place_of(beat);
  if (beat.waiting == Waiting::device) return text + "waiting for the device; last work submitted: " + after;
  if (beat.doing.view().empty()) return text + "between operations, after " + after;
  text += beat.doing.view();
  if (!beat.doing_name.view().empty()) text += fmt::format(" of {}", beat.doing_name.view());
  return text + ", after " + after;
}

Trouble judge(const Overview& of_all, const Limits& limits) {
  double silent = 0;
  for (const auto& absence : of_all.absent) {
    if (absence.left) continue;  // it ends after an error that others may still be at
    if (absence.exited) return Trouble::exited;
    silent = std::max(silent, absence.silent_seconds);
  }
  const double longest = std::max(of_all.phase ? limits.phase_seconds : limits.seconds, limits.step_seconds);
  const bool still = of_all.stalled_seconds > longest;
  // A silent rank moved last before its last heartbeat, so a standstill shows before its silence is as long.
  if (silent > limits.seconds || (still && silent > limits.seconds / 2)) return Trouble::unresponsive;
  if (of_all.side_work_stalled_seconds > limits.phase_seconds) return Trouble::side_work;
  if (still) return Trouble::stalled;
  return are_desynchronized(of_all) ? Trouble::desynchronized : Trouble::none;
}

Trouble judge(std::span<const WatchedRank> ranks, const Limits& limits) {
  std::vector<OverviewPart> parts;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto& rank = ranks[r];
    const int number = static_cast<int>(r);
    auto overview = overview_of(rank.heartbeat, rank.stalled_seconds, rank.side_work_stalled_seconds);
    overview.absent.push_back({number, rank.exited, rank.left, rank.silent_seconds});
    parts.push_back({std::move(overview), [number] { return std::vector<int>{number}; }});
  }
  return judge(combine(parts), limits);
}

std::string summary(std::span<const WatchedRank> ranks, Trouble trouble, const Limits& limits,
                    const std::string& folder) {
  const auto difference = find_difference(ranks);
  // Ranks that issued different operations wait for each other: that is the cause, and the standstill follows from it.
  if (trouble == Trouble::stalled && difference) trouble = Trouble::desynchronized;
  if (trouble == Trouble::desynchronized && !difference) trouble = Trouble::stalled;
  const auto unresponsive = ranks_that(ranks, [&](const auto& rank) {  // several at once
    return !rank.left && (rank.exited || (rank.silent_seconds > limits.seconds / 2 && !rank.report));
  });
  // Those that are silent have left after an error, and others hang in it.
  if (trouble == Trouble::unresponsive && unresponsive.empty()) trouble = Trouble::stalled;
  std::vector<int> blamed;
  if (trouble == Trouble::exited) {
    blamed = ranks_that(ranks, [](const auto& rank) { return rank.exited && !rank.left; });
  } else if (trouble == Trouble::unresponsive) {
    blamed = unresponsive;
  } else if (trouble == Trouble::side_work) {
    blamed = ranks_that(ranks, [&](const auto& rank) { return side_work_hangs(rank, limits); });
  } else if (trouble == Trouble::desynchronized) {
    blamed = minority(*difference);
  } else {
    blamed =
        std::ranges::any_of(ranks, &WatchedRank::left) ? behind_after_an_error(ranks) : ranks_behind(ranks);
    // All may seem to be at the same; whose process does not run holds up the others.
    if (blamed.empty()) blamed = ranks_that(ranks, [](const auto& rank) { return !state_of(rank).empty(); });
    if (blamed.size() == ranks.size()) blamed.clear();
  }

  std::string text = headline(ranks, trouble, blamed, difference);
  if (trouble == Trouble::desynchronized) {
    for (const auto& [hash, some] : difference->ranks_of) {
      text += fmt::format("\n  {}: {}", comm::format_ranks(some),
                          operation_at(ranks[static_cast<std::size_t>(some[0])], difference->sequence));
    }
  }
  for (std::size_t i = 0; i < std::min(blamed.size(), kMostGroups); ++i)
    text += "\n  " + line_of(ranks, blamed[i]);
  text += others(ranks, blamed);
  for (const bool written : {true, false}) {
    const auto some =
        ranks_that(ranks, [&](const auto& r) { return r.report && r.report->record_written == written; });
    if (!some.empty()) text += "\n  " + place_of_records(some, written, folder);
  }
  return text;
}

std::string place_of_records(const std::vector<int>& ranks, bool written, const std::string& folder) {
  return fmt::format("the record of {} {} {}", comm::format_ranks(ranks),
                     written ? "is in" : "was not written to", folder);
}

}  // namespace llampi::health
