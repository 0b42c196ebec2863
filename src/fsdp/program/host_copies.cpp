// SPDX-License-Identifier: Apache-2.0
#include "fsdp/program/host_copies.hpp"

#include <utility>

#include "llampi/fsdp/streams.hpp"

namespace llampi::fsdp {

HostCopies::HostCopies(Emission& list, const Schedule& schedule)
    : list_(list),
      schedule_(schedule),
      at_(schedule.events.size()),
      copied_out_(schedule.host_stays.size()),
      copied_back_(schedule.host_stays.size()),
      output_has_returned_(list.spec.specs.size()),
      saved_has_returned_(list.spec.specs.size()) {
  for (int i = 0; i < static_cast<int>(schedule.host_stays.size()); ++i) {
    const HostStay& stay = schedule.host_stays[i];
    at_[stay.leaves].leaves.push_back(i);
    at_[stay.returns].returns.push_back(i);
    at_[stay.left].left.push_back(i);
    at_[stay.read].read.push_back(i);
  }
}

void HostCopies::emit_departures(int event) {
  for (const int i : at_[event].leaves) {
    const HostStay& stay = schedule_.host_stays[i];
    Action copy = copy_of(stay, schedule_.events[event].micro_batch, Op::d2h, Place::made, Place::on_host);
    copy.waits = {list_.last_compute};
    copied_out_[i] = list_.push(std::move(copy));
    returned_of(stay)[stay.layer] = false;
  }
}

void HostCopies::emit_returns(int event) {
  for (const int i : at_[event].returns) {
    const HostStay& stay = schedule_.host_stays[i];
    Action copy =
        copy_of(stay, schedule_.events[event].micro_batch, Op::h2d, Place::on_host, Place::returned);
    copy.waits = {copied_out_[i], list_.last_compute};
    copied_back_[i] = list_.push(std::move(copy));
  }
}

void HostCopies::add_waits(int event, std::vector<int>& waits) {
  for (const int i : at_[event].left) waits.push_back(copied_out_[i]);
  for (const int i : at_[event].read) {
    const HostStay& stay = schedule_.host_stays[i];
    waits.push_back(copied_back_[i]);
    returned_of(stay)[stay.layer] = true;
  }
}

BufferId HostCopies::output_of(int layer) {
  return output_has_returned_[layer] ? list_.buffers.returned_activation(layer)
                                     : list_.buffers.activation(layer);
}

BufferId HostCopies::saved_of(int layer, int item) {
  const bool has_returned =
      saved_has_returned_[layer] && can_be_offloaded(list_.spec.specs[layer].saved[item]);
  return has_returned ? list_.buffers.returned_saved(layer, item) : list_.buffers.saved(layer, item);
}

BufferId HostCopies::buffer_of(const HostStay& stay, int item, Place place) {
  const bool is_output = stay.payload == CopyPayload::residual;
  auto& buffers = list_.buffers;
  switch (place) {
    case Place::made:
      return is_output ? buffers.activation(stay.layer) : buffers.saved(stay.layer, item);
    case Place::on_host:
      return is_output ? buffers.host_activation(stay.layer) : buffers.host_saved(stay.layer, item);
    case Place::returned:
      break;
  }
  return is_output ? buffers.returned_activation(stay.layer) : buffers.returned_saved(stay.layer, item);
}

/// One for each tensor of a stay.
std::vector<BufferId> HostCopies::buffers_of(const HostStay& stay, Place place) {
  if (stay.payload == CopyPayload::residual) return {buffer_of(stay, 0, place)};
  std::vector<BufferId> all;
  for (const int item : offloaded_items(list_.spec.specs[stay.layer]))
    all.push_back(buffer_of(stay, item, place));
  return all;
}

Action HostCopies::copy_of(const HostStay& stay, int micro_batch, Op op, Place from, Place to) {
  Action copy{.op = op,
              .stream = op == Op::d2h ? kD2hStream : kH2dStream,
              .layer = stay.layer,
              .micro_batch = micro_batch,
              .payload = stay.payload};
  for (const BufferId buffer : buffers_of(stay, from)) {
    copy.operands.push_back(read_of(buffer));
    copy.bytes += list_.bytes_of(buffer);
  }
  for (const BufferId buffer : buffers_of(stay, to)) copy.operands.push_back(write_of(buffer));
  return copy;
}

}  // namespace llampi::fsdp
