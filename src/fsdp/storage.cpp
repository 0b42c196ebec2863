// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/storage.hpp"

namespace llampi::fsdp {

std::string frozen_in_words(const Precision& precision) {
  return std::string(to_string(precision.gathered(true))) +
         (precision.int8_base ? ", the matrices of the blocks in int8 with a scale for each 128 elements"
                              : "");
}

StatePlacement state_placement(const Precision& precision, const Offload& offload) {
  // A shard on the device cannot be the master of a step on the host.
  const bool apart = offload.optimizer && offload.host_step && !offload.params;
  StatePlacement placement{};
  placement.own_master = precision.master != precision.param || apart;
  placement.host_shard = offload.params;
  placement.host_master = placement.own_master ? offload.optimizer : placement.host_shard;
  placement.host_moments = offload.optimizer;
  return placement;
}

}  // namespace llampi::fsdp
