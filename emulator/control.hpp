// SPDX-License-Identifier: Apache-2.0
// How the emulated GPU orders what a real one may order freely. For tests; needs no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llampi::emulator {

/// When work that was enqueued on a stream is done.
enum class StreamOrder : std::uint8_t {
  eager,   ///< at once
  lazy,    ///< when a synchronization asks for it, or another stream that waits for it: as late as can be
  random,  ///< at any time that the order of a stream and the events between streams allow
};
/// In which order the threads of a block run between two barriers.
enum class ThreadOrder : std::uint8_t {
  forward,   ///< the first warp first, as far as it gets without the others
  backward,  ///< the last warp first, as far as it gets without the others
  random,    ///< any thread; now and then one warp goes far ahead
};

/// What is still enqueued is done first. `seed` is for StreamOrder::random.
void set_stream_order(StreamOrder order, std::uint64_t seed = 0);
void set_thread_order(ThreadOrder order, std::uint64_t seed = 0);
/// Host code that touches device memory (all but large allocations) ends the program, as it would with a real
/// GPU.
void guard_device_memory(bool wanted);
/// How often the host waited for the device since the last call of this function: calls that returned only once work
/// was done that was not before, and polls of a stream or an event that came to an end. Most with lazy streams, where
/// nothing is done until it is waited for.
int take_host_waits();

/// The calls with which a graph gets its memory.
enum class GraphCall : bool { instantiate, upload };
/// A graph of more nodes finds no memory in this call.
void limit_graphs(std::size_t nodes, GraphCall call = GraphCall::instantiate);

}  // namespace llampi::emulator
