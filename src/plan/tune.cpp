// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/tune.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "llampi/core/error.hpp"

namespace llampi::plan {
namespace {

constexpr double kTie = 1.001;  // candidates this close to the fastest are as fast

/// Candidates that differ in their offloading only.
struct Family {
  Choice plain;         ///< with the first offloading and the least recomputation
  double at_least = 0;  ///< seconds of any of them
};

class Search {
 public:
  Search(const TuneSpace& space, const Bound& computing, const Try& try_choice)
      : space_(space), computing_(computing), try_(try_choice) {}

  Tuning run() {
    tuning_.candidates = space_.candidates();
    auto families = bounded_families();
    std::ranges::stable_sort(families, {}, &Family::at_least);
    for (const Family& family : families) search(family.plain);
    order(tuning_.timed);
    try_more_recomputation();
    return std::move(tuning_);
  }

 private:
  using Level = std::ptrdiff_t;  // of recomputation: an index

  void reject(Rejection why, const Choice& choice) { ++tuning_.rejected[why][choice.sharding.strategy]; }
  /// What `work` returns. Nothing, and the choice is rejected, where a run would refuse it or the machine file cannot predict it.
  template <class Work>
  std::optional<std::invoke_result_t<Work>> if_possible(const Choice& choice, const Work& work) {
    try {
      return work();
    } catch (const UserError& error) {
      reject(Rejection::impossible, choice);
      constexpr std::size_t kReasons = 3;  // that are shown
      if (auto& reasons = tuning_.impossible[choice.sharding.strategy]; reasons.size() < kReasons)
        reasons.insert(error.what());
      return std::nullopt;
    }
  }
  std::optional<Trial> attempt(const Choice& choice) {
    ++tuning_.tries;
    return if_possible(choice, [&] { return try_(choice); });
  }
  bool too_slow(double seconds) const { return best_ && seconds > *best_ * kTie; }

  std::vector<Family> bounded_families() {
    std::vector<Family> families;
    for_each_family(space_, [&](Choice choice) {
      choice.offloading = space_.offloadings.front();
      choice.checkpointing = space_.checkpointing.front();
      families.push_back({choice, computing_(choice)});
    });
    return families;
  }

  /// What fits, and with which level.
  struct Fit {
    Level level = 0;
    Trial trial;
  };

  void search(Choice choice) {
    std::vector<std::pair<fsdp::Offload, Level>> fitting;
    for (const fsdp::Offload& offloading : space_.offloadings) {
      if (!go_together(choice.sharding, offloading)) continue;
      choice.offloading = offloading;
      // With as much recomputation as less offloading needs, it is slower than that.
      Level end = std::ssize(space_.checkpointing);
      for (const auto& [less, level] : fitting) {
        if (is_part_of(less, offloading)) end = std::min(end, level);
      }
      const Level fast_end = end_of_fast_levels(choice);
      const auto fit = least_that_fits(choice, std::min(end, fast_end),
                                       end <= fast_end ? Rejection::offload_not_needed : Rejection::slower);
      if (!fit) continue;
      fitting.emplace_back(offloading, fit->level);
      const auto at_least = if_possible(choice, fit->trial.at_least);
      if (!at_least) continue;
      if (too_slow(*at_least)) {
        reject(Rejection::slower, choice);
        continue;
      }
      auto timed = if_possible(choice, fit->trial.time);
      if (!timed) continue;
      tuning_.timed.push_back(std::move(*timed));
      const double seconds = tuning_.timed.back().time.seconds;
      best_ = std::min(best_.value_or(seconds), seconds);
    }
  }
  /// Of the levels from the first one on that may be faster than the best.
  Level end_of_fast_levels(Choice choice) const {
    Level low = 0, high = std::ssize(space_.checkpointing);
    while (best_ && low < high) {
      const Level middle = low + (high - low) / 2;
      choice.checkpointing = space_.checkpointing[static_cast<std::size_t>(middle)];
      if (too_slow(computing_(choice))) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  /// The least of the levels before `end`. Rejects a choice that fits with none of them: what needs more memory than there is even
  /// with the last of all levels for that, otherwise for `why`.
  std::optional<Fit> least_that_fits(Choice& choice, Level end, Rejection why) {
    const auto with = [&](Level level) {
      choice.checkpointing = space_.checkpointing[static_cast<std::size_t>(level)];
      return attempt(choice);
    };
    if (end == 0) {
      reject(why, choice);
      return std::nullopt;
    }
    auto most = with(end - 1);
    if (!most) return std::nullopt;
    if (!most->fits()) {
      if (end == std::ssize(space_.checkpointing)) {
        why = most->fits_on_device ? Rejection::host_memory : Rejection::device_memory;
        const std::int64_t needed = most->fits_on_device ? most->host_needed_bytes : most->needed_bytes;
        auto& least = most->fits_on_device ? tuning_.least_host_needed_bytes : tuning_.least_needed_bytes;
        least = least == 0 ? needed : std::min(least, needed);
      }
      reject(why, choice);
      return std::nullopt;
    }
    Fit least{end - 1, std::move(*most)};
    // Often none is needed; all before `low` are too few.
    for (Level low = 0, middle = 0; low < least.level; middle = low + (least.level - low) / 2) {
      auto trial = with(middle);
      if (!trial) return std::nullopt;
      if (trial->fits()) {
        least = {middle, std::move(*trial)};
        continue;
      }
      if (middle == 0) {
        const auto at_least = if_possible(choice, trial->at_least);
        if (!at_least) return std::nullopt;
        if (too_slow(*at_least)) {
          reject(Rejection::slower, choice);
          return std::nullopt;
        }
      }
      low = middle + 1;
    }
    return least;
  }

  /// Of the choice that is the best: a level of more recomputation than it needs may be faster, where workspaces are larger with
  /// more room, or leave noticeably more room and take hardly longer.
  void try_more_recomputation() {
    constexpr Level kTried = 8;
    constexpr double kNoticeable = 0.98;  // of the memory that it needs
    if (tuning_.timed.empty()) return;
    TimedChoice& best = tuning_.timed.front();
    std::vector<TimedChoice> levels = {best};
    Choice choice = best.choice;
    const Level least =
        std::ranges::find(space_.checkpointing, choice.checkpointing) - space_.checkpointing.begin();
    const Level end = end_of_fast_levels(choice);
    for (Level level = least + 1; level < end; level += std::max<Level>(1, (end - least) / kTried)) {
      choice.checkpointing = space_.checkpointing[static_cast<std::size_t>(level)];
      ++tuning_.tries;
      try {
        const Trial trial = try_(choice);
        if (!trial.fits()) continue;
        TimedChoice timed = trial.time();
        const bool leaves_room =
            static_cast<double>(timed.needed_bytes) < kNoticeable * static_cast<double>(best.needed_bytes);
        if (timed.time.seconds < best.time.seconds || leaves_room) levels.push_back(std::move(timed));
      } catch (const UserError&) {  // nothing is rejected: the choice has been timed
      }
    }
    order(levels);
    best = levels.front();
  }

  /// The fastest first; of those that are as fast, the one that needs least memory before all others.
  static void order(std::vector<TimedChoice>& timed) {
    std::ranges::stable_sort(timed, {}, [](const TimedChoice& row) { return row.time.seconds; });
    if (timed.empty()) return;
    const auto ties_end = std::ranges::find_if(timed, [&](const TimedChoice& other) {
      return other.time.seconds > timed.front().time.seconds * kTie;
    });
    const auto least = std::min_element(timed.begin(), ties_end, [](const auto& a, const auto& b) {
      return a.needed_bytes < b.needed_bytes;
    });
    std::rotate(timed.begin(), least, least + 1);
  }

  template <class Visit>
  static void for_each_family(const TuneSpace& space, const Visit& visit) {
    for (const Sharding& sharding : space.shardings) {
      for (const Numbers& numbers : space.numbers) {
        for (const std::int64_t micro_batch : space.micro_batches) {
          for (const bool unsharded : space.accumulate_unsharded) {
            if (micro_batch == space.sequences && unsharded != space.accumulate_unsharded.front()) continue;
            visit(Choice{.sharding = sharding,
                         .numbers = numbers,
                         .micro_batch = micro_batch,
                         .accumulate_unsharded = unsharded,
                         .offloading = {},
                         .checkpointing = {}});
          }
        }
      }
    }
  }

  const TuneSpace& space_;
  const Bound& computing_;
  const Try& try_;
  Tuning tuning_;
  std::optional<double> best_;
};

}  // namespace

std::int64_t TuneSpace::candidates() const {
  std::int64_t ways = 0;
  for (const std::int64_t micro_batch : micro_batches)
    ways += micro_batch == sequences ? 1 : std::ssize(accumulate_unsharded);
  std::int64_t pairs = 0;
  for (const Sharding& sharding : shardings)
    pairs += std::ranges::count_if(offloadings, [&](const auto& o) { return go_together(sharding, o); });
  return ways * pairs * std::ssize(numbers);
}

std::int64_t Tuning::left_out() const {
  std::int64_t sum = 0;
  for (const auto& [why, of_strategy] : rejected) {
    for (const auto& [strategy, count] : of_strategy) sum += count;
  }
  return sum;
}

std::vector<TimedChoice> Tuning::best(std::size_t most) const {
  std::vector<TimedChoice> rows;
  for (const TimedChoice& row : timed) {
    const bool seen =
        std::ranges::any_of(rows, [&](const auto& r) { return r.choice.sharding == row.choice.sharding; });
    if (!seen && rows.size() < most) rows.push_back(row);
  }
  return rows;
}

Tuning tune(const TuneSpace& space, const Bound& computing, const Try& try_choice) {
  return Search(space, computing, try_choice).run();
}

}  // namespace llampi::plan
