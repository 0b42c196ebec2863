// SPDX-License-Identifier: Apache-2.0
#include "llampi/plan/tune.hpp"

#include <algorithm>

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
  Search(const TuneSpace& space, const Try& try_choice) : space_(space), try_(try_choice) {}

  Tuning run() {
    tuning_.candidates = space_.candidates();
    auto families = bounded_families();
    std::ranges::stable_sort(families, {}, &Family::at_least);
    for (const Family& family : families) search(family);
    std::ranges::stable_sort(tuning_.timed, {}, [](const TimedChoice& timed) { return timed.time.seconds; });
    prefer_least_memory();
    return std::move(tuning_);
  }

 private:
  using Count = std::int64_t;

  Count per_family() const { return std::ssize(space_.offloadings); }
  void reject(Rejection why, const Choice& choice, Count count) {
    if (count > 0) tuning_.rejected[why][choice.sharding.strategy] += count;
  }
  /// Nothing if it cannot be had.
  std::optional<Trial> attempt(const Choice& choice, Count count) {
    try {
      return try_(choice);
    } catch (const UserError& error) {
      reject(Rejection::impossible, choice, count);
      tuning_.impossible.emplace(choice.sharding.strategy, error.what());
      return std::nullopt;
    }
  }
  bool too_slow(double seconds) const { return best_ && seconds > *best_ * kTie; }

  std::vector<Family> bounded_families() {
    std::vector<Family> families;
    for_each_family(space_, [&](Choice choice) {
      choice.offloading = space_.offloadings.front();
      choice.checkpointing = space_.checkpointing.front();
      if (const auto trial = attempt(choice, per_family())) families.push_back({choice, trial->at_least()});
    });
    return families;
  }

  void search(const Family& family) {
    Count left = per_family();
    if (too_slow(family.at_least)) return reject(Rejection::slower, family.plain, left);
    for (const Offloading& offloading : space_.offloadings) {
      --left;
      Choice choice = family.plain;
      choice.offloading = offloading;
      const auto level = least_that_fits(choice);
      if (!level) continue;
      choice.checkpointing = space_.checkpointing[*level];
      const auto trial = attempt(choice, 1);
      if (!trial) continue;
      if (*level > 0 && too_slow(trial->at_least())) {
        reject(Rejection::slower, choice, 1);
        continue;
      }
      tuning_.timed.push_back(trial->time());
      const double seconds = tuning_.timed.back().time.seconds;
      best_ = std::min(best_.value_or(seconds), seconds);
      if (*level == 0 && !offloading.any()) return reject(Rejection::offload_not_needed, choice, left);
    }
  }

  /// The index of the level of recomputation; rejects a choice that fits with none of them, or that is too slow.
  std::optional<std::size_t> least_that_fits(Choice choice) {
    const auto& levels = space_.checkpointing;
    std::size_t low = 0, high = levels.size() - 1;
    const auto at = [&](std::size_t level) {
      choice.checkpointing = levels[level];
      return attempt(choice, 1);
    };
    const auto least = at(low);
    if (!least) return std::nullopt;
    if (least->fits()) return low;
    if (choice.offloading.any() && too_slow(least->at_least())) {
      reject(Rejection::slower, choice, 1);
      return std::nullopt;
    }
    const auto most = high == low ? least : at(high);
    if (!most) return std::nullopt;
    if (!most->fits()) {
      reject(most->fits_on_device ? Rejection::host_memory : Rejection::device_memory, choice, 1);
      auto& bytes = tuning_.least_needed_bytes;
      bytes = bytes == 0 ? most->needed_bytes : std::min(bytes, most->needed_bytes);
      return std::nullopt;
    }
    while (high - low > 1) {  // it fits with `high`, and not with `low`
      const std::size_t middle = low + (high - low) / 2;
      const auto trial = at(middle);
      if (!trial) return std::nullopt;
      (trial->fits() ? high : low) = middle;
    }
    return high;
  }

  void prefer_least_memory() {
    auto& timed = tuning_.timed;
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
  const Try& try_;
  Tuning tuning_;
  std::optional<double> best_;
};

}  // namespace

std::int64_t TuneSpace::candidates() const {
  std::int64_t ways = 0;
  for (const std::int64_t micro_batch : micro_batches)
    ways += micro_batch == sequences ? 1 : std::ssize(accumulate_unsharded);
  return ways * std::ssize(shardings) * std::ssize(numbers) * std::ssize(offloadings);
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

Tuning tune(const TuneSpace& space, const Try& try_choice) { return Search(space, try_choice).run(); }

}  // namespace llampi::plan
