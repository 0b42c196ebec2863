// SPDX-License-Identifier: Apache-2.0
// When each buffer holds something: a pass over operands.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "llampi/fsdp/placement.hpp"

namespace llampi::fsdp {
namespace {

class Liveness {
 public:
  explicit Liveness(Program& program) : program_(program), contents_(program.buffers.size()) {}

  void run() {
    for (auto& buffer : program_.buffers) buffer.live.clear();
    for (int i = 0; i < program_.size(); ++i) visit(i);
    for (const auto& [buffer, range, use] : uses_beside_) {
      LiveRange& live = program_[buffer].live[range];
      live.last = std::max(live.last, released_after(use, program_[buffer].arena));
    }
  }

 private:
  using Extent = std::pair<std::int64_t, std::int64_t>;
  struct Contents {
    std::vector<Extent> touched;  ///< since the live range began
    int action = -1;              ///< the last that was looked at: what it does to the buffer
    bool read = false;
    bool overwritten = false;
  };
  /// On another stream than the one that computes: its end must be waited for.
  struct UseBeside {
    BufferId buffer;
    std::size_t range;
    int action;
  };

  template <class Visit>
  void for_each_operand(int i, const Visit& visit) {
    for (const auto& operand : program_.actions[i].operands) {
      if (operand.buffer == BufferId::none || program_[operand.buffer].persistent) continue;
      visit(operand, program_[operand.buffer], contents_[static_cast<std::size_t>(operand.buffer)]);
    }
  }

  static bool overlaps(const std::vector<Extent>& extents, const Extent& other) {
    return std::any_of(extents.begin(), extents.end(),
                       [&](const Extent& e) { return e.first < other.second && other.first < e.second; });
  }

  void visit(int i) {
    for_each_operand(i, [&](const Operand& operand, const Buffer& buffer, Contents& contents) {
      if (std::exchange(contents.action, i) != i) contents.read = contents.overwritten = false;
      contents.read = contents.read || reads(operand.access);
      const bool dead = buffer.live.empty() || operand.access == Access::reserve ||
                        overlaps(contents.touched, extent(buffer, operand.part));
      contents.overwritten = contents.overwritten || (!reads(operand.access) && dead);
    });
    for_each_operand(i, [&](const Operand& operand, Buffer& buffer, Contents& contents) {
      if (std::exchange(contents.action, -1) != i) return;  // seen before, as another operand of this action
      if (contents.overwritten && !contents.read) {
        buffer.live.push_back({i, i});
        contents.touched.clear();
        auto& of_stream = takers_[static_cast<std::size_t>(buffer.arena)][program_.actions[i].stream.index()];
        if (of_stream.empty() || of_stream.back() != i) of_stream.push_back(i);
      } else {
        require(!buffer.live.empty(), "an action reads a buffer that none has written");
        buffer.live.back().last = i;
      }
      if (program_.actions[i].stream != device::Stream::compute)
        uses_beside_.push_back({operand.buffer, buffer.live.size() - 1, i});
    });
    for_each_operand(i, [&](const Operand& operand, const Buffer& buffer, Contents& contents) {
      const Extent part = extent(buffer, operand.part);
      if (operand.access == Access::write && !overlaps(contents.touched, part))
        contents.touched.push_back(part);
    });
  }

  /// The last action during which the memory is not yet free.
  int released_after(int use, Arena arena) {
    const auto& actions = program_.actions;
    if (!happens_before_) happens_before_.emplace(actions);
    int last = use;
    if (actions[use].ranks != Ranks::self) {
      // The end of a collective is noticed when compute waits for it.
      for (int j = use + 1; j < program_.size(); ++j) {
        if (actions[j].stream == device::Stream::compute && (*happens_before_)(use, j)) break;
        last = j;
      }
      return last;
    }
    for (const auto& of_stream : takers_[static_cast<std::size_t>(arena)]) {
      // What comes after the use on a stream, all that follows there does.
      auto taker = std::upper_bound(of_stream.begin(), of_stream.end(), use);
      for (; taker != of_stream.end() && !(*happens_before_)(use, *taker); ++taker)
        last = std::max(last, *taker);
    }
    return last;
  }

  Program& program_;
  std::vector<Contents> contents_;  // per buffer
  /// Per arena and stream: the actions that begin a live range.
  std::array<std::array<std::vector<int>, device::kStreams>, kArenas> takers_;
  std::vector<UseBeside> uses_beside_;
  std::optional<HappensBefore> happens_before_;
};

}  // namespace

void find_live_ranges(Program& program) { Liveness(program).run(); }

}  // namespace llampi::fsdp
