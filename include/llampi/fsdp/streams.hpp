// SPDX-License-Identifier: Apache-2.0
// What the streams of a device are used for. Stream::compute runs layers and updates; Stream::host is the
// calling thread.
#pragma once

#include <array>

#include "llampi/device/runtime.hpp"

namespace llampi::fsdp {

/// All-gathers of parameters.
inline constexpr device::Stream kUnshardStream = device::Stream::urgent(0, "unshard");
/// Reductions of gradients and of the gradient norm.
inline constexpr device::Stream kReduceStream = device::Stream::urgent(1, "reduce");
/// All-reduces of sharded gradients over replicas, with StepOptions::all_reduce_stream: then the reductions of units that follow
/// do not wait for them.
inline constexpr device::Stream kAllReduceStream = device::Stream::urgent(2, "all_reduce");
/// From the host to the device.
inline constexpr device::Stream kH2dStream = device::Stream::other(0, "h2d");
/// From the device to the host: a link carries both directions at once.
inline constexpr device::Stream kD2hStream = device::Stream::other(1, "d2h");

/// Copies of the state that is saved.
inline constexpr device::Stream kSideStream = device::Stream::other(2, "side");

/// Of all collectives over replicas, so that they need one communicator.
/// @param apart fsdp.all_reduce_stream @param shards ranks of a shard group: where there is one, nothing else is reduced meanwhile
constexpr device::Stream replicas_stream(bool apart, int shards) {
  return apart && shards > 1 ? kAllReduceStream : kReduceStream;
}

/// Each at its number.
inline constexpr std::array<device::Stream, device::kStreams> kAllStreams = {device::Stream::compute,
                                                                             kUnshardStream,
                                                                             kReduceStream,
                                                                             kAllReduceStream,
                                                                             kH2dStream,
                                                                             kD2hStream,
                                                                             kSideStream,
                                                                             device::Stream::host};

}  // namespace llampi::fsdp
