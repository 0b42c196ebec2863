// SPDX-License-Identifier: Apache-2.0
// When computations run, and while each of them which units are unsharded: the order behind a list of
// actions.
#pragma once

#include <vector>

#include "fsdp/program/program_spec.hpp"
#include "llampi/fsdp/program.hpp"

namespace llampi::fsdp {

/// A computation: one layer, forward or backward, in the order in which they run.
struct ComputeEvent {
  int layer;
  int micro_batch;
  Op op;                      ///< forward, recompute, backward
  bool writes_output = true;  ///< forward, recompute: false where nobody reads the layer's output
  bool recomputes = false;    ///< backward: writes what BufferSpec::recomputed marks once more
};

/// A point between computations.
struct IssuePoint {
  int index = 0;  ///< even: before event index / 2; odd: after it
  static IssuePoint before(int event) { return {2 * event}; }
  static IssuePoint after(int event) { return {2 * event + 1}; }
  auto operator<=>(const IssuePoint&) const = default;
};

/// A stretch of events during which a unit is unsharded, with the frozen part that follows it.
struct Residency {
  int unit;  ///< the first one
  Pass pass;
  int first, last;  ///< events
  bool in_backward;
  IssuePoint issue = {};  ///< of the gather
};

/// A stretch of events during which a layer's output, or what it saves, is in host memory. In events:
struct HostStay {
  int layer;
  CopyPayload payload;  ///< residual or saved
  int leaves;           ///< after this one it is copied out
  int left = 0;         ///< this one waits for that
  int returns = 0;      ///< before this one it is copied back
  int read;             ///< this one waits for that: the first that reads it again
};

struct Schedule {
  std::vector<ComputeEvent> events;  ///< as many for each micro-batch
  std::vector<Residency> residencies;
  std::vector<HostStay> host_stays;  ///< in the order in which they are read
  int events_per_micro_batch = 0;
};

/// @param in_place per unit: its parameters are read where they are kept, and nothing is to be done
Schedule make_schedule(const ProgramSpec& spec, const std::vector<bool>& in_place);

/// Whether a saved tensor is copied to host memory where that is asked of its layer: unless it is recomputed, or empty.
bool can_be_offloaded(const model::BufferSpec& saved);
std::vector<int> offloaded_items(const model::LayerSpec& layer);

/// The unit and what follows it.
std::vector<int> with_followers(const std::vector<Unit>& units, int unit);

/// Whether a layer reads a parameter in this event. The loss's backward is its forward too.
bool reads_parameter(const ProgramSpec& spec, const ComputeEvent& event, const model::LayerSpec::Use& use);

}  // namespace llampi::fsdp
