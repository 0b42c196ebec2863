// SPDX-License-Identifier: Apache-2.0
#include "health/overview.hpp"

#include <algorithm>
#include <map>

namespace llampi::health {
namespace {

const CommonMark* mark_at(const Overview& overview, std::uint64_t sequence) {
  const auto found = std::find_if(overview.marks.begin(), overview.marks.end(),
                                  [&](const CommonMark& mark) { return mark.sequence == sequence; });
  return found == overview.marks.end() ? nullptr : &*found;
}

/// Who has which hash, with the ranks only where there are several. No parts if not all have told of it.
CommonMark combine_marks(std::span<const OverviewPart> parts, std::uint64_t sequence) {
  std::vector<const CommonMark*> marks;
  for (const auto& part : parts) marks.push_back(mark_at(part.overview, sequence));
  if (std::find(marks.begin(), marks.end(), nullptr) != marks.end()) return {sequence, {}};
  const std::uint64_t hash = marks.front()->parts.front().hash;
  const bool alike = std::all_of(marks.begin(), marks.end(), [&](const CommonMark* mark) {
    return mark->parts.size() == 1 && mark->parts.front().hash == hash;
  });
  if (alike) return {sequence, {{hash, {}}}};
  std::map<std::uint64_t, std::vector<std::int32_t>> ranks_of;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const auto& [its_hash, some] : marks[i]->parts) {
      const auto ranks = some.empty() ? parts[i].ranks() : some;
      ranks_of[its_hash].insert(ranks_of[its_hash].end(), ranks.begin(), ranks.end());
    }
  }
  CommonMark mark{sequence, {}};
  for (auto& [its_hash, ranks] : ranks_of) mark.parts.push_back({its_hash, std::move(ranks)});
  return mark;
}

}  // namespace

Overview overview_of(const Heartbeat& heartbeat, double stalled_seconds, double side_work_stalled_seconds) {
  Overview overview;
  overview.stalled_seconds = stalled_seconds;
  overview.side_work_stalled_seconds =
      heartbeat.side_work.view().empty() || heartbeat.side_work_waits ? 0 : side_work_stalled_seconds;
  overview.phase = !heartbeat.phase.view().empty();
  for (const auto& mark : heartbeat.marks) {
    if (mark.sequence > 0 && mark_at(overview, mark.sequence) == nullptr)
      overview.marks.push_back({mark.sequence, {{mark.hash, {}}}});
  }
  return overview;
}

Overview aged(Overview overview, double seconds) {
  overview.stalled_seconds += seconds;
  if (overview.side_work_stalled_seconds > 0) overview.side_work_stalled_seconds += seconds;
  for (auto& absence : overview.absent) absence.silent_seconds += seconds;
  return overview;
}

Overview combine(std::span<const OverviewPart> parts) {
  Overview all;
  for (const auto& [one, ranks] : parts) {
    all.stalled_seconds = std::min(all.stalled_seconds, one.stalled_seconds);
    all.side_work_stalled_seconds = std::max(all.side_work_stalled_seconds, one.side_work_stalled_seconds);
    all.phase = all.phase || one.phase;
    all.absent.insert(all.absent.end(), one.absent.begin(), one.absent.end());
    all.unlinked.insert(all.unlinked.end(), one.unlinked.begin(), one.unlinked.end());
  }
  if (parts.empty()) return all;
  for (const auto& mark : parts.front().overview.marks) {
    auto combined = combine_marks(parts, mark.sequence);
    if (!combined.parts.empty()) all.marks.push_back(std::move(combined));
  }
  return all;
}

}  // namespace llampi::health
