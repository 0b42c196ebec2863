// SPDX-License-Identifier: Apache-2.0
// Activations that are in host memory between forward and backward pass: the copies there and back, and where layers find them.
#pragma once

#include <vector>

#include "fsdp/program/emission.hpp"
#include "fsdp/program/schedule.hpp"

namespace llampi::fsdp {

class HostCopies {
 public:
  HostCopies(Emission& list, const Schedule& schedule);

  /// What is copied out after this event.
  void emit_departures(int event);
  /// What is copied back before it, to memory that any action on the compute stream before it in the list may have freed.
  void emit_returns(int event);
  /// What its computation waits for: copies back of what it reads, and out of what it overwrites.
  void add_waits(int event, std::vector<int>& waits);
  /// Where a layer's output is now.
  BufferId output_of(int layer);
  /// Likewise: a tensor that it saves.
  BufferId saved_of(int layer, int item);

 private:
  struct Numbers {  ///< of the schedule's host stays, see HostStay
    std::vector<int> leaves, returns, left, read;
  };
  enum class Place : std::uint8_t { made, on_host, returned };

  BufferId buffer_of(const HostStay& stay, int item, Place place);
  std::vector<BufferId> buffers_of(const HostStay& stay, Place place);
  Action copy_of(const HostStay& stay, int micro_batch, Op op, Place from, Place to);
  std::vector<bool>& returned_of(const HostStay& stay) {
    return stay.payload == CopyPayload::residual ? output_has_returned_ : saved_has_returned_;
  }

  Emission& list_;
  const Schedule& schedule_;
  std::vector<Numbers> at_;                    // per event
  std::vector<int> copied_out_, copied_back_;  // per host stay: actions
  std::vector<bool> output_has_returned_;      // per layer: it is where it came back to
  std::vector<bool> saved_has_returned_;       // likewise
};

}  // namespace llampi::fsdp
