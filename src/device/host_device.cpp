// SPDX-License-Identifier: Apache-2.0
#include "device/host_device.hpp"

#include <cstring>
#include <utility>

#include "llampi/core/clock.hpp"
#include "llampi/device/host_memory.hpp"

namespace llampi::device {

namespace {

struct HostTime final : Event::Impl {
  const double seconds = steady_seconds();
};
double seconds_of(const Event& event) { return static_cast<const HostTime*>(event.get())->seconds; }

}  // namespace

Memory HostDevice::allocate(std::int64_t bytes) { return allocate_host_memory(bytes); }
Memory HostDevice::allocate_host(std::int64_t bytes) { return allocate_host_memory(bytes); }
std::int64_t HostDevice::available_bytes(int local_ranks) const {
  return available_host_memory() / local_ranks;
}

void HostDevice::upload(Tensor destination, const void* source, Stream) {
  if (destination.bytes() > 0)
    std::memcpy(destination.data, source, static_cast<std::size_t>(destination.bytes()));
}

void HostDevice::download(void* destination, Tensor source, Stream) {
  if (source.bytes() > 0) std::memcpy(destination, source.data, static_cast<std::size_t>(source.bytes()));
}

bool HostDevice::is_host_memory(const void*) const { return true; }
Event HostDevice::record(Stream) { return {}; }
Event HostDevice::record_timed(Stream) { return Event(std::make_unique<HostTime>()); }
double HostDevice::seconds_between(const Event& begin, const Event& end) const {
  return seconds_of(end) - seconds_of(begin);
}
void HostDevice::wait(Stream, const Event&) {}
void HostDevice::wait_in_any_thread(const Event&) const {}
void HostDevice::synchronize(Stream) {}
void HostDevice::set_progress(std::function<void()> progress) { progress_ = std::move(progress); }

void HostDevice::execute(const op::FinishNorm& o) {
  const ClippedNorm result = clipped_norm(sum_of_squares(o.sum), o.max_norm, *o.loss_scale);
  o.scalars->grad_norm = result.grad_norm;
  o.scalars->clip_coefficient = result.clip_coefficient;
}

SumOfSquares& sum_of_squares(const Tensor& sum) {
  return *reinterpret_cast<SumOfSquares*>(elements_of<std::int64_t>(sum, 1, kSumOfSquaresNumbers, "sum"));
}

void check_ranges(std::span<const UpdateRange> ranges, std::int64_t elements) {
  for (const UpdateRange& range : ranges) {
    require(0 <= range.begin && range.begin <= range.end && range.end <= elements,
            "range outside of its tensor");
  }
}

}  // namespace llampi::device
