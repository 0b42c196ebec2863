// SPDX-License-Identifier: Apache-2.0
// Collectives between emulated GPUs (comm/nccl/library.hpp) over MPI, done when the emulated stream comes to
// them. Here is what tests can make them do.
//
// Every call takes effect only after some polls of its state, as in NCCL, whose own thread puts the kernel
// into the stream, and the first collective of a communicator only when all ranks have come to it. Sums go
// round a ring in the numbers' own dtype. What NCCL leaves undefined (overlapping buffers, memory that is no
// GPU's, a call while another is in progress) is an error.
#pragma once

#include <cstdint>
#include <map>

namespace llampi::emulator {

/// Of this process, now or so far.
struct CommunicatorCounts {
  int open = 0;
  int destroyed = 0;
  int aborted = 0;
  int memory = 0;     ///< blocks that were allocated for communication
  int windows = 0;    ///< that are open
  int most_ctas = 0;  ///< of the newest communicator; 0: not limited
  int split = 0;      ///< from others
};
CommunicatorCounts communicator_counts();

/// Bytes that this process has sent in exchanges since the last call, by the rank of the communicator that got them.
std::map<int, std::int64_t> take_exchanged_bytes();

/// Polls until a call takes effect; -1: it never does.
void set_delay(int polls);
/// Whether each collective waits for the one that was issued before, also on another stream, as at the start.
/// A rank that synchronizes lazy streams does nothing else until the collectives there are done, so ranks
/// that wait for different streams first would wait for each other; in one chain they do not. It can hide
/// that an event is missing.
void chain_collectives(bool wanted);

enum class Call : std::uint8_t { none, connect, split, issue, allocate };
/// The next call of this kind fails after the delay; there is no memory at once.
void fail_next(Call call);
/// The next call of this kind never takes effect.
void stall_next(Call call);
/// All communicators that there are have lost a rank: what is in their streams never ends by itself.
void lose_a_rank();
/// Memory for communication is aligned to 256 bytes instead of 2 MiB, as NCCL's without cuMem.
void misalign_memory(bool wanted);
/// As NCCL does on links without symmetric memory: registering succeeds, and there is no window.
void have_no_use_for_windows(bool wanted);
/// As it was at the start, but for the counts.
void reset_communicators();

}  // namespace llampi::emulator
