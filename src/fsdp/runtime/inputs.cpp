// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/inputs.hpp"

#include <algorithm>
#include <bit>

namespace llampi::fsdp {

std::int64_t rounded_segments(std::int64_t segments, model::BatchShape batch) {
  if (segments * batch.seq_len == batch.tokens()) return segments;
  return std::min<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(segments)), batch.tokens());
}

std::vector<PlacedInput> place_inputs(const Program& program, Arenas& arenas,
                                      std::span<const device::HostBatch> micro_batches,
                                      std::int64_t segments) {
  const auto& rooms = program.persistent.host_inputs;
  std::vector<PlacedInput> inputs;
  for (const auto& batch : micro_batches) {
    const auto values = batch.values();
    if (rooms.empty()) {
      inputs.push_back({values, batch.segments, batch.past});
      continue;
    }
    const Buffer& room = program[rooms.at(inputs.size())];
    require(std::ssize(values) == room.elements(), "a micro-batch of another size than the program's");
    arenas.mark_used(room);
    auto* const kept = arenas.at(room).as<std::int32_t>();
    std::copy(values.begin(), values.end(), kept);
    const std::int64_t tokens = batch.token_count();
    std::fill(kept + 3 * tokens + batch.segments + 1, kept + 3 * tokens + segments + 1,
              static_cast<std::int32_t>(tokens));
    inputs.push_back({{kept, values.size()}, segments, batch.past});
  }
  return inputs;
}

}  // namespace llampi::fsdp
