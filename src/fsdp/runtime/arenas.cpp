// SPDX-License-Identifier: Apache-2.0
#include "llampi/fsdp/arenas.hpp"

#include <algorithm>
#include <cstring>

#include "llampi/comm/agree.hpp"
#include "llampi/comm/comm.hpp"
#include "llampi/fsdp/placement.hpp"

namespace llampi::fsdp {

Arenas::Arenas(comm::World& world, device::Device& device, const ArenaBytes& bytes) {
  comm::agree(world, [&] {
    memory_[static_cast<int>(Arena::device)] = world.allocate(bytes[static_cast<int>(Arena::device)]);
    memory_[static_cast<int>(Arena::host)] = device.allocate_host(bytes[static_cast<int>(Arena::host)]);
  });
}

void Arenas::clear(device::Device& device) {
  for (device::Memory& memory : memory_) {
    if (memory.bytes() == 0) continue;
    if (device.is_host_memory(memory.data())) {
      std::memset(memory.data(), 0, static_cast<std::size_t>(memory.bytes()));
    } else {
      device.run(device::op::Zero{.destination = {memory.data(), DType::int32, 1, memory.bytes() / 4}});
    }
  }
}

Tensor Arenas::at(const Buffer& buffer) const {
  const device::Memory& memory = memory_[static_cast<std::size_t>(buffer.arena)];
  require(buffer.offset + buffer.bytes <= memory.bytes(), "a buffer beyond its arena");
  return {memory.data() + buffer.offset, buffer.dtype, buffer.rows, buffer.cols};
}

Tensor Arenas::at(const Buffer& buffer, const Part& part, const OwnParts& own) const {
  const Tensor whole = at(buffer);
  if (part.whole()) return whole;
  if (part.own != Own::none) {
    const auto [index, count] = part.own == Own::shard ? own.shards : own.replicas;
    const std::int64_t n = whole.elements() / count;
    return whole.slice(index * n, (index + 1) * n);
  }
  require(part.offset + part.rows * part.cols <= whole.elements(), "a part beyond its buffer");
  Tensor view = whole.slice(part.offset, part.offset + part.rows * part.cols);
  view.rows = part.rows, view.cols = part.cols;
  return view;
}

void Arenas::extend(ArenaBytes& ends, const Buffer& buffer) {
  auto& end = ends[static_cast<std::size_t>(buffer.arena)];
  end = std::max(end, buffer.offset + in_arena(buffer.bytes));
}

void Arenas::mark_used(const Buffer& buffer) { extend(used_, buffer); }

void Arenas::mark_used(const ArenaBytes& ends) {
  for (std::size_t a = 0; a < ends.size(); ++a) used_[a] = std::max(used_[a], ends[a]);
}

}  // namespace llampi::fsdp
