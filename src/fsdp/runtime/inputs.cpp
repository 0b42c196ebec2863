// SPDX-License-Identifier: Apache-2.0
#include "fsdp/runtime/inputs.hpp"

#include <algorithm>
#include <bit>

namespace llampi::fsdp {

BatchCounts RoundedCounts::of(const BatchCounts& most, model::BatchShape batch) {
  if (most.documents * batch.seq_len == batch.tokens()) return {most.documents, {}, most.valid_labels};
  const auto raise = [&](std::int64_t& so_far, std::int64_t now) {
    const auto rounded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(now)));
    so_far = std::max(so_far, std::min(rounded, batch.tokens()));
  };
  raise(so_far_.documents, most.documents);
  for (std::size_t c = 0; c < most.lengths.documents.size(); ++c) {
    if (most.lengths.documents[c] > 0) raise(so_far_.lengths.documents[c], most.lengths.documents[c]);
  }
  so_far_.valid_labels = most.valid_labels;
  return so_far_;
}

std::vector<PlacedInput> place_inputs(const Program& program, Arenas& arenas,
                                      std::span<const device::HostBatch> micro_batches,
                                      const BatchCounts& counts) {
  const auto& rooms = program.persistent.host_inputs;
  std::vector<PlacedInput> inputs;
  for (const auto& batch : micro_batches) {
    const auto values = batch.values();
    if (rooms.empty()) {
      inputs.push_back({values, batch.counts(), batch.kv_len});
      continue;
    }
    const Buffer& room = program[rooms.at(inputs.size())];
    require(std::ssize(values) == room.elements(), "a micro-batch of another size than the program's");
    arenas.mark_used(room);
    auto* const kept = arenas.at(room).as<std::int32_t>();
    std::copy(values.begin(), values.end(), kept);
    device::HostBatch::pad_documents({kept, values.size()}, batch.documents, counts.documents);
    inputs.push_back({{kept, values.size()}, counts, batch.kv_len});
  }
  return inputs;
}

}  // namespace llampi::fsdp
